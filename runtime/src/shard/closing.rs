//! The end of a shard: carries out the steps that `shutdown` decides on, and reports what was not done by then, so that
//! a compute node's id is not given to another while a lock may bear it.

use std::ops::AddAssign;
use std::rc::Rc;

use super::Shard;
use super::clients::Panic;
use super::core::Core;
use super::shutdown::{Left, State, Step};
use crate::engine::Device;
use crate::verbs::Verbs;

/// The time between two looks at a shard that is being closed.
const LOOK_NS: u64 = 1_000_000;

/// Work that shards had not done when they ended. All 0 if they ended well.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// Clients that no task awaited, and that did not end in time. They were dropped, their locks cleared.
    pub clients: usize,
    /// Clients that panicked and that no task awaited. What they held was cleared likewise.
    pub panicked: usize,
    /// Tasks of the janitor that did not end in time, or panicked. They may hold locks.
    pub deferred: usize,
    /// Chains that were not executed in time. They may lock or unlock.
    pub chains: usize,
    /// Handles to shards that were held elsewhere when these were closed. Their holders may go on to lock.
    pub handles: usize,
    /// Shards whose executor ended before they were closed. They may hold locks.
    pub shards: usize,
}

impl Abandoned {
    /// Tells whether a lock may be left that bears the id of the node.
    ///
    /// ```
    /// # use farwood_runtime::Abandoned;
    /// let mut abandoned = Abandoned::default();
    /// abandoned.clients = 3;
    /// assert!(!abandoned.may_hold_locks());
    /// abandoned.chains = 1;
    /// assert!(abandoned.may_hold_locks());
    /// ```
    pub fn may_hold_locks(&self) -> bool {
        let Abandoned { clients: _, panicked: _, deferred, chains, handles, shards } = *self;
        deferred + chains + handles + shards > 0
    }
}

impl AddAssign for Abandoned {
    fn add_assign(&mut self, other: Self) {
        self.clients += other.clients;
        self.panicked += other.panicked;
        self.deferred += other.deferred;
        self.chains += other.chains;
        self.handles += other.handles;
        self.shards += other.shards;
    }
}

/// Closes a shard; also yields the panic of a client that no task awaited.
pub(super) async fn close<D: Device>(shard: Shard<D>) -> (Abandoned, Option<Panic>) {
    let core = Rc::clone(&shard.0);
    let mut abandoned = Abandoned::default();
    // The caller may be a client itself.
    let own = core.clients.polled();
    let mut state = State::begin(core.close_ns, shard.now());
    loop {
        let (next, step) = state.next(&core.left(own), shard.now());
        state = next;
        match step {
            Step::Wait => shard.pause(LOOK_NS).await,
            Step::DropClients => abandoned.clients = core.clients.drop_all_but(own),
            Step::Leave => core.membership.leave(),
            Step::RemoveActors => {
                abandoned.deferred = core.deferred.get() + core.deferred_panicked.get();
                abandoned.chains = core.in_flight();
                abandoned.panicked = core.panicked.get();
                core.ports.clear();
            }
            Step::AwaitDriver => core.driver_is_back().await,
            Step::End => break,
        }
    }
    drop(shard);
    // The driver's handle and this one are expected; tasks of the janitor that have not ended are counted already.
    abandoned.handles = Rc::strong_count(&core).saturating_sub(2 + core.deferred.get());
    core.membership.go(abandoned);
    if abandoned != Abandoned::default() {
        tracing::warn!(name: "shard.abandoned", shard = core.id.0, ?abandoned, "a closed shard left something undone");
    }
    (abandoned, core.take_panic())
}

impl<D: Device> Core<D> {
    /// Counts what is left to do, but for the client `own`.
    fn left(&self, own: Option<u32>) -> Left {
        Left {
            clients: self.clients.clients_of_others(own),
            deferred: self.deferred.get(),
            chains: self.in_flight(),
            others: !self.membership.all_have_left(),
            driver_is_away: self.is_aside(),
        }
    }
}
