//! The core of a shard: what it owns, and one turn of its work. It runs nothing by itself and knows no executor: a
//! `Driver` takes its turns, one after the other, on one thread.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::num::NonZero;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use smallvec::SmallVec;

use super::clients::{Clients, Panic};
use super::closing::Abandoned;
use super::mesh::MeshEnds;
use super::parking::Parking;
use super::port_book::PortBook;
use super::roster::Membership;
use super::timers::Timers;
use crate::buffer::BufferPool;
use crate::control::Control;
use crate::engine::{Device, Engine};
use crate::epoch::{NodeEpochs, Pins};
use crate::host::Host;
use crate::message::{Envelope, ShardId};
use crate::ports::Ports;
use crate::verbs::Capabilities;
use crate::waiter::Waiter;

/// Messages taken from each ring in one turn.
pub(super) const MESSAGES_PER_TURN: usize = 256;

/// Parts of a shard, put together by its compute node.
pub(crate) struct ShardParts<D: Device> {
    pub id: ShardId,
    pub node_id: u16,
    pub control: Arc<dyn Control>,
    pub epochs: Arc<NodeEpochs>,
    pub device: D,
    pub credits: NonZero<usize>,
    pub mesh: MeshEnds,
    pub ports: Arc<PortBook>,
    pub membership: Arc<Membership>,
    pub host: D::Host,
    pub seed: u64,
    pub spin_ns: u64,
    pub close_ns: u64,
}

pub(super) struct Core<D: Device> {
    pub(super) id: ShardId,
    pub(super) node_id: u16,
    pub(super) control: Arc<dyn Control>,
    pub(super) pins: Rc<Pins>,
    pub(super) capabilities: Capabilities,
    pub(super) engine: RefCell<Engine<D>>,
    pub(super) clients: Clients,
    pub(super) buffers: BufferPool,
    pub(super) timers: Timers,
    pub(super) mesh: RefCell<MeshEnds>,
    pub(super) ports: Ports,
    pub(super) port_book: Arc<PortBook>,
    /// Tasks of the janitor that have not ended.
    pub(super) deferred: Cell<usize>,
    /// Tasks of the janitor that panicked.
    pub(super) deferred_panicked: Cell<usize>,
    /// Clients whose panic no task awaited: their number, the first one's panic, and the task that wants to hear of it.
    pub(super) panicked: Cell<usize>,
    panic: RefCell<Option<Panic>>,
    listener: Cell<Option<Waker>>,
    pub(super) membership: Arc<Membership>,
    parking: Arc<Parking>,
    /// Set while the shard sleeps: then the next piece of work wakes it.
    asleep: Cell<bool>,
    /// Set while the driver's task is away from the shard, and the task that waits until it is back.
    aside: Cell<bool>,
    closer: Cell<Option<Waker>>,
    pub(super) host: D::Host,
    pub(super) rng: RefCell<SmallRng>,
    pub(super) spin_ns: u64,
    pub(super) close_ns: u64,
}

impl<D: Device> Drop for Core<D> {
    fn drop(&mut self) {
        // A shard that was closed has said so before. For any other, no handle was left and nothing was in flight.
        self.membership.go(Abandoned { panicked: self.panicked.get(), ..Abandoned::default() });
    }
}

impl<D: Device> Core<D> {
    pub(super) fn new(parts: ShardParts<D>) -> Rc<Self> {
        let servers = parts.control.servers().len();
        let parking = Arc::clone(parts.mesh.own_parking());
        let buffers = parts.device.buffers();
        Rc::new(Core {
            id: parts.id,
            node_id: parts.node_id,
            control: parts.control,
            pins: Pins::new(parts.epochs, usize::from(parts.id.0)),
            capabilities: *parts.device.capabilities(),
            engine: RefCell::new(Engine::new(parts.device, servers, parts.credits)),
            clients: Clients::new(Arc::clone(&parking)),
            buffers,
            timers: Timers::default(),
            mesh: RefCell::new(parts.mesh),
            ports: Ports::default(),
            port_book: parts.ports,
            deferred: Cell::new(0),
            deferred_panicked: Cell::new(0),
            panicked: Cell::new(0),
            panic: RefCell::new(None),
            listener: Cell::new(None),
            membership: parts.membership,
            parking,
            asleep: Cell::new(false),
            aside: Cell::new(false),
            closer: Cell::new(None),
            host: parts.host,
            rng: RefCell::new(SmallRng::seed_from_u64(parts.seed)),
            spin_ns: parts.spin_ns,
            close_ns: parts.close_ns,
        })
    }

    /// Takes one turn: messages, deadlines, chains, clients. Yields whether anything moved.
    #[inline]
    pub(super) fn turn(&self, inbox: &mut Vec<(ShardId, Envelope)>) -> bool {
        self.pins.turn();
        let mut moved = self.receive(inbox);
        if self.timers.next().is_some() {
            moved |= self.fire_timers(self.host.now());
        }
        moved |= self.poll_engine();
        moved |= self.clients.run_ready() > 0;
        moved
    }

    /// Tells whether all that is left to do is to wait, for chains or pauses.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        !self.clients.has_ready() && !self.mesh.borrow().has_work()
    }

    #[inline]
    pub(super) fn in_flight(&self) -> usize {
        self.engine.borrow().in_flight()
    }

    #[inline]
    fn receive(&self, inbox: &mut Vec<(ShardId, Envelope)>) -> bool {
        {
            let mut mesh = self.mesh.borrow_mut();
            mesh.flush();
            mesh.receive(MESSAGES_PER_TURN, inbox);
        }
        let moved = !inbox.is_empty();
        for (from, envelope) in inbox.drain(..) {
            self.ports.deliver(from, envelope);
        }
        moved
    }

    /// Ends the pauses that are over at `now`.
    pub(super) fn fire_timers(&self, now: u64) -> bool {
        let mut moved = false;
        while let Some(waiter) = self.timers.pop_due(now) {
            self.wake(waiter);
            moved = true;
        }
        moved
    }

    #[inline]
    pub(super) fn poll_engine(&self) -> bool {
        // Wakers of other executors' tasks may run code that submits: they are called when the engine is free again.
        let mut tasks: SmallVec<[Waiter; 16]> = SmallVec::new();
        let completed = self.engine.borrow_mut().poll(&mut |waiter| match waiter {
            Waiter::Client(key) => self.clients.make_ready(key),
            Waiter::Task(_) => tasks.push(waiter),
        });
        for waiter in tasks {
            self.wake(waiter);
        }
        completed > 0
    }

    /// Wakes the shard if it sleeps. Called wherever work for it appears on its own thread.
    #[inline]
    pub(super) fn work_arrived(&self) {
        if self.asleep.get() {
            self.parking.unpark();
        }
    }

    /// Announces that the shard is about to sleep, and that `waker` wakes it. False if there is work: then it must not.
    pub(super) fn fall_asleep(&self, waker: &Waker) -> bool {
        self.announce_sleep(waker);
        self.is_quiet() && self.engine.borrow_mut().may_sleep() && self.parking.is_parked()
    }

    pub(super) fn announce_sleep(&self, waker: &Waker) {
        self.pins.rest();
        self.parking.prepare(waker);
        self.asleep.set(true);
    }

    pub(super) fn awaken(&self) {
        self.asleep.set(false);
        self.parking.cancel();
    }

    pub(super) fn is_aside(&self) -> bool {
        self.aside.get()
    }

    pub(super) fn step_aside(&self) {
        self.aside.set(true);
    }

    pub(super) fn come_back(&self) {
        self.aside.set(false);
        if let Some(closer) = self.closer.take() {
            closer.wake();
        }
    }

    /// Waits until the driver's task is back, if it has stepped aside.
    pub(super) async fn driver_is_back(&self) {
        poll_fn(|cx| {
            if !self.aside.get() {
                return Poll::Ready(());
            }
            self.closer.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Notes the panic of a client that no task awaits.
    pub(super) fn hear_of(&self, panic: Panic) {
        self.panicked.set(self.panicked.get() + 1);
        self.panic.borrow_mut().get_or_insert(panic);
        if let Some(listener) = self.listener.take() {
            listener.wake();
        }
    }

    /// Waits until a client that no task awaits has panicked.
    pub(super) async fn unheard_panic(&self) {
        poll_fn(|cx| {
            if self.panic.borrow().is_some() {
                return Poll::Ready(());
            }
            self.listener.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    pub(super) fn take_panic(&self) -> Option<Panic> {
        self.panic.take()
    }

    #[inline]
    pub(super) fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Client(key) => {
                self.clients.make_ready(key);
                self.work_arrived();
            }
            Waiter::Task(waker) => waker.wake(),
        }
    }

    #[inline]
    pub(super) fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        match self.clients.current(cx.waker()) {
            Some(key) => Waiter::Client(key),
            None => Waiter::Task(cx.waker().clone()),
        }
    }
}

/// Tells whether anything is left of a shard.
pub(crate) struct Remains<D: Device>(Weak<Core<D>>);

impl<D: Device> Remains<D> {
    pub(super) fn of(core: &Rc<Core<D>>) -> Self {
        Remains(Rc::downgrade(core))
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}
