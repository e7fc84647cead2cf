//! The end of a shard, one stage after the other:
//!
//! ```text
//!   clients   those that nobody awaits get some time, then they are dropped; what they hold goes to the janitor
//!   janitor   clears the locks that were left, which a server that does not answer may take its time for
//!   chains    are executed
//!   others    are served, until no shard of the node has anything to do for itself
//!   janitor, chains once more, for what that has brought
//!   actors    are dropped
//! ```
//! Each stage but the others' has an end. What was not done by then is reported, so that a compute node's id is not
//! given to another while a lock may bear it.

use std::ops::AddAssign;
use std::rc::Rc;

use super::Shard;
use super::clients::Panic;
use crate::engine::Device;
use crate::verbs::Verbs;

/// How often a shard that is being closed looks.
const LOOK_NS: u64 = 1_000_000;
/// The longest that the janitor is waited for. It gives a server up earlier by itself.
const JANITOR_NS: u64 = 60_000_000_000;
/// The longest that chains are waited for.
const CHAINS_NS: u64 = 1_000_000_000;

/// What shards had not done when they ended. All 0 if they ended well.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Abandoned {
    /// Clients that nobody awaited, and that did not end in time. They were dropped, their locks cleared.
    pub clients: usize,
    /// Clients that panicked and that nobody awaited. What they held was cleared likewise.
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
    /// Whether a lock may be left that bears the id of the node.
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

pub(super) async fn close<D: Device>(shard: Shard<D>) -> (Abandoned, Option<Panic>) {
    let core = Rc::clone(&shard.0);
    let mut abandoned = Abandoned::default();
    // Whoever closes may be a client itself.
    let own = core.clients.polled();
    until(&shard, core.close_ns, || core.clients.clients_of_others(own) == 0).await;
    abandoned.clients = core.clients.drop_all_but(own);
    settle(&shard).await;
    core.membership.leave();
    while !core.membership.all_have_left() {
        shard.pause(LOOK_NS).await;
    }
    settle(&shard).await;
    abandoned.deferred = core.deferred.get() + core.deferred_panicked.get();
    abandoned.chains = core.engine.borrow().in_flight();
    abandoned.panicked = core.panicked.get();
    // Actors hold the shard and the shard its actors.
    core.ports.clear();
    core.driver_is_back().await;
    drop(shard);
    // The driver's and this one are no strangers'; tasks of the janitor that have not ended are counted already.
    abandoned.handles = Rc::strong_count(&core).saturating_sub(2 + core.deferred.get());
    core.membership.go(abandoned);
    if abandoned != Abandoned::default() {
        tracing::warn!(name: "shard.abandoned", shard = core.id.0, ?abandoned, "a closed shard left something undone");
    }
    (abandoned, core.take_panic())
}

/// Waits for the janitor and for chains.
async fn settle<D: Device>(shard: &Shard<D>) {
    let core = &shard.0;
    until(shard, JANITOR_NS, || core.deferred.get() == 0).await;
    until(shard, CHAINS_NS, || core.engine.borrow().in_flight() == 0).await;
}

/// Waits for `what`, but no longer than `ns`.
async fn until<D: Device>(shard: &Shard<D>, ns: u64, what: impl Fn() -> bool) {
    let deadline = shard.now().saturating_add(ns);
    while !what() && shard.now() < deadline {
        shard.pause(LOOK_NS).await;
    }
}
