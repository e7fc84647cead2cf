//! The driver of a shard: takes its turns, and says after each how it goes on. It is what a shard offers to the one
//! that runs it, whatever that is: the same clock and the same events give the same turns.
//!
//! ```text
//!   turn ──> Busy, Idle ──> turn        other tasks of the thread may run in between
//!     ├────> Sleep until ──> fall_asleep(waker) ──true──> (woken, or the deadline) ──> awaken ──> turn
//!     │                            └──false──> awaken ──> turn
//!     └────> Over                       drop the driver
//! ```
//!
//! It knows no executor, no timer and no thread.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use super::core::{Core, MESSAGES_PER_TURN};
use super::roster::Membership;
use crate::engine::Device;
use crate::host::Host;
use crate::message::{Envelope, ShardId};

/// Factor by which a shard spins longer while chains are in flight: one that sleeps sees their completion late, and a
/// READ that seems to have taken long vouches for less ([`crate::verbs::Completion::span_ns`]).
const SPINS_IN_FLIGHT: u64 = 20;
/// The longest sleep while chains are in flight: then devices look whether those who should complete them still exist.
const LOOK_AFTER_NS: u64 = 100_000_000;
/// Turns of a shard that is never idle between two looks after actors that are to be removed.
const TURNS_PER_VISIT: u64 = 64;
/// A sleep ends this much before the deadline it is for, the rest is spun: waking takes its time.
pub(super) const WAKE_EARLY_NS: u64 = 100_000;

/// The outcome of a turn: how the shard goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Something moved, or has come in the meantime.
    Busy,
    /// Nothing moved, but something may soon: the next turn looks again.
    Idle,
    /// Nothing has moved for as long as the shard spins: it may sleep until it is woken, but no longer than until this
    /// moment of its clock.
    Sleep { until_ns: Option<u64> },
    /// The last handle is dropped and nothing is left to do.
    Over,
}

/// Drives one shard, on the shard's own thread.
pub(crate) struct Driver<D: Device> {
    pub(super) core: Rc<Core<D>>,
    inbox: Vec<(ShardId, Envelope)>,
    turns: u64,
    /// The moment since which nothing has moved.
    idle_since: Option<u64>,
}

impl<D: Device> Driver<D> {
    pub(super) fn new(core: Rc<Core<D>>) -> Self {
        Driver { core, inbox: Vec::with_capacity(MESSAGES_PER_TURN), turns: 0, idle_since: None }
    }

    /// Takes one turn.
    #[inline]
    pub(crate) fn turn(&mut self) -> Turn {
        let core = &*self.core;
        let moved = core.turn(&mut self.inbox);
        if !moved || self.turns.is_multiple_of(TURNS_PER_VISIT) {
            self.visit_ports();
        }
        self.turns = self.turns.wrapping_add(1);
        if moved {
            self.idle_since = None;
            return Turn::Busy;
        }
        if core.is_quiet() { self.rest() } else { Turn::Busy }
    }

    /// Does this shard's part in the removal of actors whose ports are not leased any more.
    pub(crate) fn visit_ports(&self) {
        let core = &*self.core;
        if core.port_book.has_leaving() {
            core.port_book.visit(core.id, &core.ports);
        }
    }

    /// Decides how a quiet shard goes on.
    fn rest(&mut self) -> Turn {
        let core = &*self.core;
        let in_flight = core.in_flight() > 0;
        // Clients run to their end, also those that hold no handle, and chains until they are executed.
        if !self.is_held() && core.clients.alive() == 0 && !in_flight {
            return Turn::Over;
        }
        let now = core.host.now();
        let since = *self.idle_since.get_or_insert(now);
        let pause = core.timers.next().map(|at| at.saturating_sub(now));
        let wait = pause.into_iter().chain(in_flight.then_some(LOOK_AFTER_NS)).min();
        let spins = if in_flight { SPINS_IN_FLIGHT } else { 1 };
        let is_spun = now.saturating_sub(since) >= spins * core.spin_ns;
        if is_spun && wait.is_none_or(|ns| ns > 2 * WAKE_EARLY_NS) {
            return Turn::Sleep { until_ns: wait.map(|ns| now + (ns - WAKE_EARLY_NS)) };
        }
        Turn::Idle
    }

    /// Announces a sleep that `waker` ends, from whatever thread it is called. False if there is work, or if the device
    /// has to be polled: then the shard must not sleep. Either way [`Driver::awaken`] comes next.
    pub(crate) fn fall_asleep(&mut self, waker: &Waker) -> bool {
        self.idle_since = None;
        self.core.fall_asleep(waker)
    }

    /// Ends a sleep, or its announcement.
    pub(crate) fn awaken(&self) {
        self.core.awaken();
    }

    /// Tells whether the shard has handles, of which there will be more work.
    pub(crate) fn is_held(&self) -> bool {
        Rc::strong_count(&self.core) > 1
    }

    /// Announces that no turn is taken for a while: a shard is not closed until the driver's task is back.
    pub(crate) fn step_aside(&self) {
        self.core.step_aside();
    }

    /// Ends what [`Driver::step_aside`] began.
    pub(crate) fn come_back(&self) {
        self.core.come_back();
    }

    /// Yields the shard's host.
    pub(crate) fn host(&self) -> &D::Host {
        &self.core.host
    }

    /// Yields the shard's place in its node.
    pub(crate) fn membership(&self) -> &Arc<Membership> {
        &self.core.membership
    }
}

impl<D: Device> Drop for Driver<D> {
    fn drop(&mut self) {
        // It takes no more turns, and may have handles: the epoch waits no longer, unless an operation was abandoned.
        self.core.pins.rest();
    }
}

#[cfg(test)]
#[path = "driver_tests.rs"]
mod tests;
