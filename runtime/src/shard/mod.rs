//! Shards: one per core of a compute node. A shard belongs to one glommio executor and owns its queue pairs, buffers,
//! client pool, timers and mailboxes; nothing of it is shared with another core but rings and wake-ups.
//!
//! ```text
//!   clients (futures in the pool)        glommio tasks of the service
//!        │ submit, wait                       │ submit, wait
//!        v                                    v
//!   +----------------------------- shard -----------------------------+
//!   | engine: slots, credits, device   timers   ports   janitor       |
//!   +-----------------------------------------------------------------+
//!        ^ one turn of the poller: rings -> timers -> chains -> clients
//! ```
//!
//! - `clients`: the client pool; `poller`: turns, spinning and parking; `mesh`: rings to the other shards; `timers`:
//!   pauses; `parking`: waking a parked shard; `reactor`: when the executor's I/O gets its turn.

mod clients;
mod mesh;
mod parking;
mod poller;
mod reactor;
mod timers;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub(crate) use self::clients::Clients;
pub use self::clients::JoinHandle;
pub(crate) use self::mesh::{MeshEnds, mesh};
pub(crate) use self::parking::Parking;
pub use self::parking::Unpark;
pub use self::timers::Pause;
use self::timers::Timers;
use crate::buffer::{Buf, BufferPool};
use crate::chain::Chain;
use crate::clock::Clock;
use crate::control::Control;
use crate::engine::{Device, Engine, SlotKey};
use crate::mapped::MappedDevice;
use crate::message::{Envelope, Message, Port, ShardId};
use crate::meter::Meter;
use crate::pointer::ServerId;
use crate::ports::Ports;
use crate::verbs::{Capabilities, Completion, Failed, Handler, Verbs};
use crate::waiter::Waiter;

/// How often a shard that is being closed looks at the others.
const CLOSE_POLL_NS: u64 = 1_000_000;

/// What a shard is made of, put together by its compute node.
pub(crate) struct ShardParts<D> {
    pub id: ShardId,
    pub node_id: u16,
    pub control: Arc<dyn Control>,
    pub device: D,
    pub credits: usize,
    pub mesh: MeshEnds,
    pub closed: Arc<AtomicUsize>,
    pub clock: Clock,
    pub seed: u64,
    pub spin_ns: u64,
    pub reactor_ns: u64,
}

/// A handle to a shard. Clones are cheap and stay on the shard's thread.
pub struct Shard<D: Device = MappedDevice>(Rc<Core<D>>);

pub(crate) struct Core<D> {
    id: ShardId,
    node_id: u16,
    control: Arc<dyn Control>,
    capabilities: Capabilities,
    engine: RefCell<Engine<D>>,
    clients: Clients,
    buffers: BufferPool,
    timers: Timers,
    mesh: RefCell<MeshEnds>,
    ports: Ports,
    /// Tasks of the janitor that have not ended.
    deferred: Cell<usize>,
    /// How many shards of the node have been closed.
    closed: Arc<AtomicUsize>,
    parking: Arc<Parking>,
    /// Whether the poller sleeps: then the next piece of work wakes it.
    parked: Cell<bool>,
    /// Whether the poller steps aside for the executor's reactor, and who waits until it is back.
    aside: Cell<bool>,
    closer: Cell<Option<Waker>>,
    clock: Clock,
    rng: RefCell<SmallRng>,
    spin_ns: u64,
    reactor_ns: u64,
}

/// See [`Shard::leave_on_drop`].
pub(crate) struct LeaveOnDrop(Arc<AtomicUsize>);

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl<D: Device> Shard<D> {
    /// Makes the shard and starts its poller on the executor that this runs on.
    pub(crate) fn start(parts: ShardParts<D>) -> Self {
        let servers = parts.control.servers().len();
        let parking = Arc::clone(parts.mesh.own_parking());
        let buffers = parts.device.buffers();
        let core = Rc::new(Core {
            id: parts.id,
            node_id: parts.node_id,
            control: parts.control,
            capabilities: *parts.device.capabilities(),
            engine: RefCell::new(Engine::new(parts.device, servers, parts.credits)),
            clients: Clients::new(Arc::clone(&parking)),
            buffers,
            timers: Timers::default(),
            mesh: RefCell::new(parts.mesh),
            ports: Ports::default(),
            deferred: Cell::new(0),
            closed: parts.closed,
            parking,
            parked: Cell::new(false),
            aside: Cell::new(false),
            closer: Cell::new(None),
            clock: parts.clock,
            rng: RefCell::new(SmallRng::seed_from_u64(parts.seed)),
            spin_ns: parts.spin_ns,
            reactor_ns: parts.reactor_ns,
        });
        poller::start(&core);
        Shard(core)
    }

    /// The shard's place in its node.
    pub fn id(&self) -> ShardId {
        self.0.id
    }

    /// Runs `client` in the shard's own client pool: a persistent future that is polled directly when its chain is
    /// done, several times cheaper than a task of the executor. It runs to its end also if the handle is dropped.
    pub fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (task, handle) = JoinHandle::around(client);
        self.0.clients.spawn(task);
        self.0.work_arrived();
        handle
    }

    /// Ends this shard's part in its node: waits for its janitor, and then until every shard of the node is closed,
    /// for a shard is home to locks that clients of other shards wait for. [`crate::ComputeNode::run`] does it by
    /// itself; a service that attached its shards does it on each before its executors end. Afterwards no actor
    /// listens on this shard any more.
    pub async fn close(self) {
        let leave = self.leave_on_drop();
        self.close_with(leave).await;
    }

    /// Counts this shard as closed when it is dropped: also if its `main` panics, or the others would wait for ever.
    pub(crate) fn leave_on_drop(&self) -> LeaveOnDrop {
        LeaveOnDrop(Arc::clone(&self.0.closed))
    }

    pub(crate) async fn close_with(self, leave: LeaveOnDrop) {
        while self.0.deferred.get() > 0 {
            self.pause(CLOSE_POLL_NS).await;
        }
        drop(leave);
        while self.0.closed.load(Ordering::Acquire) < self.shards() || self.0.deferred.get() > 0 {
            self.pause(CLOSE_POLL_NS).await;
        }
        // Actors hold the shard and the shard its actors.
        self.0.ports.clear();
        poller::is_back(&self.0).await;
    }

    /// Buffers on lease now. When no operation runs and no value is held, it is 0.
    pub fn buffers_leased(&self) -> usize {
        self.0.buffers.leased()
    }

    /// Chains that were submitted and not executed yet.
    pub fn chains_in_flight(&self) -> usize {
        self.0.engine.borrow().in_flight()
    }

    /// Clients of the pool that have not ended, the janitor's tasks among them.
    pub fn clients_alive(&self) -> usize {
        self.0.clients.alive()
    }
}

impl<D: Device> Core<D> {
    /// Wakes the poller if it sleeps. Called wherever work for it appears on its own thread.
    #[inline]
    fn work_arrived(&self) {
        if self.parked.get() {
            self.parking.unpark();
        }
    }

    fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Client(key) => {
                self.clients.make_ready(key);
                self.work_arrived();
            }
            Waiter::Task(waker) => waker.wake(),
        }
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        match self.clients.current(cx.waker()) {
            Some(key) => Waiter::Client(key),
            None => Waiter::Task(cx.waker().clone()),
        }
    }
}

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
        self.0.clock.now()
    }

    fn random(&self) -> u64 {
        self.0.rng.borrow_mut().random()
    }

    fn pause(&self, ns: u64) -> Pause<D> {
        Pause::new(Rc::clone(&self.0), self.0.clock.now().saturating_add(ns))
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        self.0.waiter(cx)
    }

    fn wake(&self, waiter: Waiter) {
        self.0.wake(waiter);
    }

    fn defer(&self, task: impl Future<Output = ()> + 'static) {
        self.0.deferred.set(self.0.deferred.get() + 1);
        let core = Rc::clone(&self.0);
        self.0.clients.spawn(Box::pin(async move {
            task.await;
            core.deferred.set(core.deferred.get() - 1);
        }));
        self.0.work_arrived();
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        let own_work = self.0.mesh.borrow_mut().send(to, Envelope { port, message });
        if own_work {
            self.0.work_arrived();
        }
    }

    fn listen(&self, port: Port, handler: Handler) {
        self.0.ports.listen(port, handler);
    }
}

impl<D: Device> Clone for Shard<D> {
    fn clone(&self) -> Self {
        Shard(Rc::clone(&self.0))
    }
}

impl<D: Device> Drop for Shard<D> {
    fn drop(&mut self) {
        // A parked poller would not notice that it is the last one.
        self.0.work_arrived();
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
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.core.engine.borrow_mut().orphan(slot);
        }
        // As for the shard's handles: this may have been the last that held it.
        self.core.work_arrived();
    }
}
