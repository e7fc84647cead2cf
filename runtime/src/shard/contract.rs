//! A shard as indexes see it: the fabric contract over a shard's core.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use rand::Rng;

use super::Shard;
use super::core::Core;
use super::timers::Pause;
use crate::buffer::Buf;
use crate::chain::Chain;
use crate::control::Control;
use crate::engine::{Device, SlotKey};
use crate::epoch::Pins;
use crate::host::Host;
use crate::message::{Envelope, Message, Port, ShardId};
use crate::meter::Meter;
use crate::pointer::ServerId;
use crate::verbs::{AtRest, Capabilities, Completion, Failed, Handler, Verbs};
use crate::waiter::Waiter;

impl<D: Device> Verbs for Shard<D> {
    type Submission = Submission<D>;
    type Pause = Pause<D>;

    fn shard(&self) -> ShardId {
        self.0.id
    }

    fn shards(&self) -> usize {
        self.0.mesh.borrow().shards()
    }

    fn node_id(&self) -> u16 {
        self.0.node_id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn control(&self) -> &Arc<dyn Control> {
        &self.0.control
    }

    #[inline]
    fn pins(&self) -> &Rc<Pins> {
        &self.0.pins
    }

    fn lease(&self, bytes: usize) -> Buf {
        self.0.buffers.lease(bytes)
    }

    #[inline(always)]
    fn post(&self, meter: &Meter, chain: Chain) -> Submission<D> {
        meter.verbs(chain.verbs());
        let slot = self.0.engine.borrow_mut().submit(chain);
        self.0.work_arrived();
        Submission { core: Rc::clone(&self.0), slot: Some(slot) }
    }

    #[inline(always)]
    fn submit_built(
        &self,
        meter: &Meter,
        server: ServerId,
        buf: Option<Buf>,
        build: impl FnOnce(&mut Chain),
    ) -> Submission<D> {
        meter.round_trip();
        let slot = self.0.engine.borrow_mut().submit_in_place(server, buf, |chain| {
            build(chain);
            meter.verbs(chain.verbs());
        });
        self.0.work_arrived();
        Submission { core: Rc::clone(&self.0), slot: Some(slot) }
    }

    fn now(&self) -> u64 {
        self.0.host.now()
    }

    fn random(&self) -> u64 {
        self.0.rng.borrow_mut().random()
    }

    fn pause(&self, ns: u64) -> Pause<D> {
        // At least a nanosecond: a client that waits for the clock in a loop gets there, also where time only passes
        // between turns.
        Pause::new(Rc::clone(&self.0), self.now().saturating_add(ns.max(1)))
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        self.0.waiter(cx)
    }

    fn wake(&self, waiter: Waiter) {
        self.0.wake(waiter);
    }

    fn attend(&self, task: impl Future<Output = ()> + 'static) {
        self.0.deferred.set(self.0.deferred.get() + 1);
        let (core, of_panic) = (Rc::clone(&self.0), Rc::clone(&self.0));
        let task = task.map(move |()| core.deferred.set(core.deferred.get() - 1));
        let on_panic = move |_| {
            of_panic.deferred_panicked.set(of_panic.deferred_panicked.get() + 1);
            of_panic.deferred.set(of_panic.deferred.get() - 1);
        };
        self.0.clients.spawn_deferred(Box::pin(task), Box::new(on_panic));
        self.0.work_arrived();
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        let own_work = self.0.mesh.borrow_mut().send(to, Envelope { port, message });
        self.0.host.sent(to);
        if own_work {
            self.0.work_arrived();
        }
    }

    fn has_ended(&self, to: ShardId) -> bool {
        self.0.membership.has_ended(to)
    }

    fn listen(&self, port: Port, handler: Handler) {
        self.0.port_book.listens(port);
        self.0.ports.listen(port, handler, None);
    }

    fn listen_while_leased(&self, port: Port, handler: Handler, at_rest: AtRest) {
        self.0.port_book.listens(port);
        self.0.ports.listen(port, handler, Some(at_rest));
    }
}

/// A posted chain of a [`Shard`].
pub struct Submission<D: Device> {
    core: Rc<Core<D>>,
    slot: Option<SlotKey>,
}

impl<D: Device> Future for Submission<D> {
    type Output = Result<Completion, Failed>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let slot = this.slot.expect("a submission is not polled after it was ready");
        let outcome = this.core.engine.borrow_mut().take(slot, || this.core.waiter(cx));
        if outcome.is_ready() {
            this.slot = None;
        }
        outcome
    }
}

impl<D: Device> Drop for Submission<D> {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.core.engine.borrow_mut().orphan(slot, || self.core.pins.pin_left());
        }
        // As for the shard's handles: this may have been the last that held it.
        self.core.work_arrived();
    }
}
