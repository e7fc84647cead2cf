//! A turn in pieces, for a runner that lets time pass between them, and others' verbs take effect: a message, a
//! deadline, a completion or a client at a time. [`Driver::turn`] takes all there is of each.

use std::cell::RefMut;
use std::rc::Rc;
use std::task::Waker;

use rand::Rng;

use super::Shard;
use super::driver::Driver;
use crate::engine::{Device, Engine};
use crate::message::{Envelope, ShardId};

impl<D: Device> Driver<D> {
    /// Takes a message from the ring of `from`, if one has arrived.
    pub(crate) fn take_message(&self, from: ShardId) -> Option<Envelope> {
        self.core.mesh.borrow_mut().take_from(from)
    }

    /// Moves messages that overflowed into rings that have room again.
    pub(crate) fn flush(&self) {
        self.core.mesh.borrow_mut().flush();
    }

    /// Passes a message that was taken to its actor.
    pub(crate) fn deliver(&self, from: ShardId, envelope: Envelope) {
        self.core.ports.deliver(from, envelope);
    }

    /// Ends the pauses that are over at `now`.
    pub(crate) fn fire_timers(&self, now: u64) {
        self.core.fire_timers(now);
    }

    /// Yields the moment that the next pause may end at.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.core.timers.next()
    }

    /// Takes the outcomes of chains that the device has executed.
    pub(crate) fn poll_engine(&self) {
        self.core.poll_engine();
    }

    /// Tells whether a client is ready.
    pub(crate) fn has_ready(&self) -> bool {
        self.core.clients.has_ready()
    }

    /// Polls one client that is ready, if there is one: any of them, or the one that has been for longest. A panic of
    /// it goes on, whether a task awaits it or not.
    pub(crate) fn run_one(&self, any: bool) {
        if any {
            let random = self.core.rng.borrow_mut().random();
            self.core.clients.promote(random);
        }
        self.core.clients.run_next();
    }

    /// Announces that there are no pieces until `waker` is called or the runner knows of one.
    pub(crate) fn announce_sleep(&self, waker: &Waker) {
        self.core.announce_sleep(waker);
    }

    /// Drops clients and actors, and all that is spawned from now on: handlers hold their shard, and the shard its
    /// handlers.
    pub(crate) fn discard(&self) {
        self.core.clients.discard();
        self.core.ports.clear();
    }

    /// Lends the chains to a fabric that executes them apart from its device.
    pub(crate) fn engine(&self) -> RefMut<'_, Engine<D>> {
        self.core.engine.borrow_mut()
    }

    /// Makes one more handle to the shard.
    pub(crate) fn handle(&self) -> Shard<D> {
        Shard(Rc::clone(&self.core))
    }
}

impl<D: Device> Shard<D> {
    /// Yields the shard's host.
    pub(crate) fn host(&self) -> &D::Host {
        &self.0.host
    }
}
