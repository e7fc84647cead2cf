//! In-flight slots: each owns its chain from submission until the outcome is taken, or, orphaned, until execution.
//!
//! Slots stay where they are and are used again: a chain is moved in once and only its buffer and results move out.

use std::collections::VecDeque;
use std::task::Poll;

use smallvec::SmallVec;

use crate::buffer::Buf;
use crate::chain::Chain;
use crate::epoch::Pin;
use crate::pointer::ServerId;
use crate::verbs::{Completion, FabricError, Failed};
use crate::waiter::Waiter;

/// A slot, by its place. Valid until the outcome was taken or the orphan executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotKey(u32);

/// Success or failure of executing a chain. The words that its atomics found are in its slot ([`Slots::parts`]).
pub type Outcome = Result<(), FabricError>;

/// The chains of a shard that were submitted and whose outcome was not taken.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_flight: usize,
    completed: VecDeque<(u16, Option<Waiter>)>,
}

struct Slot {
    chain: Chain,
    /// Words that the chain's atomics found, in posting order.
    atomics: SmallVec<[u64; 2]>,
    error: Option<FabricError>,
    span_ns: u32,
    state: State,
}

enum State {
    Free,
    /// Not executed; its waiter, if it was asked for.
    InFlight(Option<Waiter>),
    /// Not executed; its future was dropped. What it reaches is not used again before it is executed.
    Orphaned(#[expect(dead_code, reason = "it is held")] Pin),
    /// Executed; the outcome was not taken.
    Done,
}

impl Slots {
    #[inline(always)]
    pub(super) fn insert(&mut self, chain: Chain) -> SlotKey {
        let key = self.occupy();
        self.slots[key.0 as usize].chain = chain;
        key
    }

    #[inline(always)]
    pub(super) fn insert_in_place(
        &mut self,
        server: ServerId,
        buf: Option<Buf>,
        build: impl FnOnce(&mut Chain),
    ) -> SlotKey {
        let key = self.occupy();
        let chain = &mut self.slots[key.0 as usize].chain;
        chain.restart(server, buf);
        build(chain);
        key
    }

    #[inline]
    fn occupy(&mut self) -> SlotKey {
        self.in_flight += 1;
        let place = self.free.pop().unwrap_or_else(|| self.grow());
        self.slots[place as usize].state = State::InFlight(None);
        SlotKey(place)
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let chain = Chain::new(ServerId(0));
        self.slots.push(Slot {
            chain,
            atomics: SmallVec::new(),
            error: None,
            span_ns: 0,
            state: State::Free,
        });
        self.slots.len() as u32 - 1
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Yields the chain of a slot that is in flight.
    #[inline]
    pub fn chain_mut(&mut self, key: SlotKey) -> &mut Chain {
        &mut self.slots[key.0 as usize].chain
    }

    /// Yields the chain of a slot that is in flight, and the place for the words that its atomics find.
    #[inline]
    pub fn parts(&mut self, key: SlotKey) -> (&mut Chain, &mut SmallVec<[u64; 2]>) {
        let slot = &mut self.slots[key.0 as usize];
        (&mut slot.chain, &mut slot.atomics)
    }

    /// Tells whether no future waits for a chain that is in flight.
    pub fn is_orphaned(&self, key: SlotKey) -> bool {
        matches!(self.slots[key.0 as usize].state, State::Orphaned(_))
    }

    /// Records that a chain was executed. `span_ns` bounds the time from its first to its last access.
    #[inline]
    pub fn complete(&mut self, key: SlotKey, outcome: Outcome, span_ns: u32) {
        self.set_outcome(key, outcome);
        self.announce(key, span_ns);
    }

    /// Does the first half of [`Slots::complete`]: records the outcome, while the time is not known yet.
    #[inline]
    pub fn set_outcome(&mut self, key: SlotKey, outcome: Outcome) {
        // Success is the rule, and nothing to write down.
        if let Err(error) = outcome {
            self.slots[key.0 as usize].error = Some(error);
        }
    }

    /// Does the second half of [`Slots::complete`]: records the time, and queues the waiter.
    #[inline]
    pub fn announce(&mut self, key: SlotKey, span_ns: u32) {
        self.in_flight -= 1;
        let slot = &mut self.slots[key.0 as usize];
        slot.span_ns = span_ns;
        let server = slot.chain.server().0;
        match std::mem::replace(&mut slot.state, State::Done) {
            State::InFlight(waiter) => self.completed.push_back((server, waiter)),
            State::Orphaned(_) => {
                self.discard(key);
                self.completed.push_back((server, None));
            }
            State::Done | State::Free => panic!("a chain is completed once"),
        }
    }

    /// Takes the next completion: its server, and its waiter if it has one.
    #[inline]
    pub(super) fn pop_completed(&mut self) -> Option<(u16, Option<Waiter>)> {
        self.completed.pop_front()
    }

    #[inline]
    pub(super) fn take(
        &mut self,
        key: SlotKey,
        waiter: impl FnOnce() -> Waiter,
    ) -> Poll<Result<Completion, Failed>> {
        let slot = &mut self.slots[key.0 as usize];
        match &mut slot.state {
            State::InFlight(waiting) => {
                *waiting = Some(waiter());
                return Poll::Pending;
            }
            State::Done => {}
            State::Orphaned(_) | State::Free => panic!("an orphan's outcome is not asked for"),
        }
        if slot.error.is_some() {
            return Poll::Ready(Err(self.take_failed(key)));
        }
        let span_ns = slot.span_ns;
        let buf = slot.chain.take_buffer();
        // Most chains have no atomics: nothing to move then.
        let atomics =
            if slot.atomics.is_empty() { SmallVec::new() } else { std::mem::take(&mut slot.atomics) };
        self.free(key);
        Poll::Ready(Ok(Completion { buf, atomics, span_ns }))
    }

    /// Gives a chain that failed back whole, so that it can be posted again.
    #[cold]
    fn take_failed(&mut self, key: SlotKey) -> Failed {
        let slot = &mut self.slots[key.0 as usize];
        let cause = slot.error.take().expect("the chain failed");
        slot.atomics.clear();
        let chain = std::mem::replace(&mut slot.chain, Chain::new(ServerId(0)));
        self.free(key);
        Failed::new(cause, chain)
    }

    pub(super) fn orphan(&mut self, key: SlotKey, pin: impl FnOnce() -> Pin) {
        let slot = &mut self.slots[key.0 as usize];
        match slot.state {
            State::InFlight(_) => slot.state = State::Orphaned(pin()),
            State::Done => self.discard(key),
            State::Orphaned(_) | State::Free => panic!("a chain is orphaned once"),
        }
    }

    /// Frees a slot whose outcome is not taken.
    fn discard(&mut self, key: SlotKey) {
        let slot = &mut self.slots[key.0 as usize];
        slot.atomics.clear();
        slot.error = None;
        drop(slot.chain.take_buffer());
        self.free(key);
    }

    /// Frees a slot whose buffer and outcome have been moved out.
    #[inline]
    fn free(&mut self, key: SlotKey) {
        self.slots[key.0 as usize].state = State::Free;
        self.free.push(key.0);
    }
}
