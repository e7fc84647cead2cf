//! In-flight slots: each owns its chain from submission until the outcome is taken, or, orphaned, until execution.

use std::collections::VecDeque;
use std::task::Poll;

use slab::Slab;
use smallvec::SmallVec;

use crate::chain::Chain;
use crate::verbs::{Completion, FabricError};
use crate::waiter::Waiter;

/// A slot, by its place. Valid until the outcome was taken or the orphan executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotKey(u32);

/// The chains of a shard that were submitted and whose outcome was not taken.
#[derive(Default)]
pub struct Slots {
    slab: Slab<Slot>,
    in_flight: usize,
    completed: VecDeque<(u16, Option<Waiter>)>,
}

struct Slot {
    chain: Chain,
    state: State,
}

enum State {
    /// Not executed; who waits, if anyone has asked.
    InFlight(Option<Waiter>),
    /// Not executed, and nobody will ask.
    Orphaned,
    /// Executed.
    Done { outcome: Result<SmallVec<[u64; 2]>, FabricError>, span_ns: u32 },
}

impl Slots {
    pub(super) fn insert(&mut self, chain: Chain) -> SlotKey {
        self.in_flight += 1;
        SlotKey(self.slab.insert(Slot { chain, state: State::InFlight(None) }) as u32)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The chain of a slot that is in flight.
    #[inline]
    pub fn chain_mut(&mut self, key: SlotKey) -> &mut Chain {
        &mut self.slab[key.0 as usize].chain
    }

    /// Records that a chain was executed: the words its atomics found, or why it failed. `span_ns` bounds the time from
    /// its first to its last access.
    #[inline]
    pub fn complete(&mut self, key: SlotKey, outcome: Result<SmallVec<[u64; 2]>, FabricError>, span_ns: u32) {
        self.in_flight -= 1;
        let slot = &mut self.slab[key.0 as usize];
        let server = slot.chain.server().0;
        match std::mem::replace(&mut slot.state, State::Done { outcome, span_ns }) {
            State::InFlight(waiter) => self.completed.push_back((server, waiter)),
            State::Orphaned => {
                self.slab.remove(key.0 as usize);
                self.completed.push_back((server, None));
            }
            State::Done { .. } => panic!("a chain is completed once"),
        }
    }

    /// The next completion that was not looked at: its server, and who waits.
    #[inline]
    pub(super) fn pop_completed(&mut self) -> Option<(u16, Option<Waiter>)> {
        self.completed.pop_front()
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        key: SlotKey,
        waiter: impl FnOnce() -> Waiter,
    ) -> Poll<Result<Completion, FabricError>> {
        let slot = &mut self.slab[key.0 as usize];
        if let State::InFlight(waiting) = &mut slot.state {
            *waiting = Some(waiter());
            return Poll::Pending;
        }
        let Slot { chain, state } = self.slab.remove(key.0 as usize);
        let State::Done { outcome, span_ns } = state else { panic!("an orphan's outcome is not asked for") };
        Poll::Ready(outcome.map(|atomics| Completion { buf: chain.into_buffer(), atomics, span_ns }))
    }

    pub(super) fn orphan(&mut self, key: SlotKey) {
        let slot = &mut self.slab[key.0 as usize];
        match slot.state {
            State::InFlight(_) => slot.state = State::Orphaned,
            State::Done { .. } => drop(self.slab.remove(key.0 as usize)),
            State::Orphaned => panic!("a chain is orphaned once"),
        }
    }
}
