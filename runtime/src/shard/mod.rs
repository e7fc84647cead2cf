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
//! - `clients`: the client pool, and `client_pool` the trait of shards that have one; `poller`: turns, spinning and
//!   parking; `mesh`: rings to the other shards; `timers`: pauses; `parking`: waking a parked shard; `reactor`: when
//!   the executor's I/O gets its turn; `closing`: the end.
//! - What the shards of a node share: `roster`, who is there; `port_book`, which ports are leased.
//!
//! A shard knows nothing of the node that puts it together, nor of the fabric that its device belongs to.

mod client_pool;
mod clients;
mod closing;
mod mesh;
mod parking;
mod poller;
mod port_book;
mod reactor;
mod roster;
mod timers;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::num::NonZero;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub use self::client_pool::ClientPool;
pub(crate) use self::clients::Clients;
use self::clients::Panic;
pub use self::clients::{JoinError, JoinHandle};
pub use self::closing::Abandoned;
pub(crate) use self::mesh::{MeshEnds, mesh};
pub(crate) use self::parking::Parking;
pub use self::parking::Unpark;
pub(crate) use self::port_book::PortBook;
use self::roster::Membership;
pub(crate) use self::roster::{Roster, Taken};
pub use self::timers::Pause;
use self::timers::Timers;
use crate::buffer::{Buf, BufferPool};
use crate::chain::Chain;
use crate::clock::Clock;
use crate::control::Control;
use crate::engine::{Device, Engine, SlotKey};
use crate::executor::tell_end;
use crate::message::{Envelope, Message, Port, ShardId};
use crate::meter::Meter;
use crate::pointer::ServerId;
use crate::ports::Ports;
use crate::verbs::{AtRest, Capabilities, Completion, Failed, Handler, Verbs};
use crate::waiter::Waiter;

/// How often, and how many times, it is looked whether a closed shard is gone.
const GONE_LOOK: Duration = Duration::from_micros(100);
const GONE_LOOKS: u32 = 50;

/// What a shard is made of, put together by its compute node.
pub(crate) struct ShardParts<D> {
    pub id: ShardId,
    pub node_id: u16,
    pub control: Arc<dyn Control>,
    pub device: D,
    pub credits: NonZero<usize>,
    pub mesh: MeshEnds,
    pub ports: Arc<PortBook>,
    pub membership: Arc<Membership>,
    pub clock: Clock,
    pub seed: u64,
    pub spin_ns: u64,
    pub reactor_ns: u64,
    pub close_ns: u64,
}

/// A handle to a shard. Clones are cheap and stay on the shard's thread.
///
/// End a shard by [`Shard::close`]. Dropping handles waits for nothing, and so does less:
///
/// - When the last handle is dropped, the shard is closed. Nothing is left to be done then: clients, operations under
///   way and indexes that are attached have handles of their own, and keep the shard at work.
/// - So a shard with an attached index serves the node's other shards until its executor ends. After that their
///   operations that need it fail at once, with an error that says so (`LockError::ShardEnded`), and the node's id
///   is not used again ([`ComputeNode::abandoned`](crate::node::ComputeNode::abandoned)).
pub struct Shard<D: Device>(Rc<Core<D>>);

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
    port_book: Arc<PortBook>,
    /// Tasks of the janitor that have not ended.
    deferred: Cell<usize>,
    /// How many of them panicked.
    deferred_panicked: Cell<usize>,
    /// Clients that panicked unheard: how many, the first one's panic, and the task that wants to know of it.
    panicked: Cell<usize>,
    panic: RefCell<Option<Panic>>,
    listener: Cell<Option<Waker>>,
    membership: Arc<Membership>,
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
    close_ns: u64,
}

impl<D> Drop for Core<D> {
    fn drop(&mut self) {
        // Of a shard that is closed this is known. Of another one nobody held anything, and nothing was in flight.
        self.membership.go(Abandoned { panicked: self.panicked.get(), ..Abandoned::default() });
    }
}

/// Whether anything is left of a shard.
pub(crate) struct Remains<D>(Weak<Core<D>>);

impl<D> Remains<D> {
    /// Waits a little until nothing is left; false if something is all the same.
    pub(crate) async fn are_gone(self) -> bool {
        for _ in 0..GONE_LOOKS {
            if self.0.strong_count() == 0 {
                return true;
            }
            glommio::timer::sleep(GONE_LOOK).await;
        }
        false
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
            port_book: parts.ports,
            deferred: Cell::new(0),
            deferred_panicked: Cell::new(0),
            panicked: Cell::new(0),
            panic: RefCell::new(None),
            listener: Cell::new(None),
            membership: parts.membership,
            parking,
            parked: Cell::new(false),
            aside: Cell::new(false),
            closer: Cell::new(None),
            clock: parts.clock,
            rng: RefCell::new(SmallRng::seed_from_u64(parts.seed)),
            spin_ns: parts.spin_ns,
            reactor_ns: parts.reactor_ns,
            close_ns: parts.close_ns,
        });
        let membership = Arc::downgrade(&core.membership);
        tell_end(membership);
        poller::start(&core);
        Shard(core)
    }

    /// The shard's place in its node.
    pub fn id(&self) -> ShardId {
        self.0.id
    }

    /// Runs `client` in the shard's own client pool: a persistent future that is polled directly when its chain is
    /// done, several times cheaper than a task of the executor. It goes on also if the handle is dropped, to its end or
    /// until the shard is closed.
    ///
    /// If it panics, the task that awaits the handle hears of it. If there is none, [`crate::ComputeNode::run`] ends
    /// with the panic, and [`Shard::close`] counts it.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let config = EmbeddedConfig { bytes_per_server: 64 << 20, ..Default::default() };
    /// # let cluster = Cluster::embedded(config)?;
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..Default::default() })?;
    /// let sums = node.run(async |shard: Shard| {
    ///     let clients: Vec<_> = (0..100).map(|n| shard.spawn(async move { n })).collect();
    ///     futures::future::join_all(clients).await.into_iter().sum::<u64>()
    /// })?;
    /// assert_eq!(sums, [4950, 4950]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let core = Rc::downgrade(&self.0);
        let unheard = move |panic| {
            if let Some(core) = core.upgrade() {
                core.hear_of(panic);
            }
        };
        let (task, on_panic, handle) = JoinHandle::guarded(client, unheard);
        self.0.clients.spawn_guarded(task, on_panic);
        self.0.work_arrived();
        handle
    }

    /// Ends this shard's part in its node, and yields what it had to abandon. It gives clients that nobody awaits
    /// [`NodeConfig::close_timeout`](crate::NodeConfig::close_timeout) to end, then drops them; waits for its janitor
    /// and for chains; and then until no shard of the node has anything to do for itself, for a shard is home to locks
    /// that clients of other shards wait for.
    ///
    /// [`crate::ComputeNode::run`] does it by itself; a service that attached its shards does it on each before its
    /// executors end. Afterwards no actor listens on this shard any more. [`Shard`] says what becomes of a shard that
    /// is not closed.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let config = EmbeddedConfig { bytes_per_server: 64 << 20, ..Default::default() };
    /// # let cluster = Cluster::embedded(config)?;
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..Default::default() })?;
    /// let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
    /// farwood_runtime::run_executor(&executor, async {
    ///     let shard = node.attach().await?;
    ///     shard.pause(1_000).await;
    ///     let abandoned = shard.close().await;
    ///     assert!(!abandoned.may_hold_locks());
    ///     Ok::<_, farwood_runtime::NodeError>(())
    /// })?;
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub async fn close(self) -> Abandoned {
        self.end().await.0
    }

    /// [`Shard::close`], with the panic of a client that nobody awaited.
    pub(crate) async fn end(self) -> (Abandoned, Option<Panic>) {
        closing::close(self).await
    }

    /// Waits until a client that nobody awaits has panicked.
    pub(crate) async fn unheard_panic(&self) {
        poll_fn(|cx| {
            if self.0.panic.borrow().is_some() {
                return Poll::Ready(());
            }
            self.0.listener.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    pub(crate) fn remains(&self) -> Remains<D> {
        Remains(Rc::downgrade(&self.0))
    }

    /// Actors that listen on this shard.
    pub fn actors(&self) -> usize {
        self.0.ports.actors()
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

    /// Notes the panic of a client that no task awaits.
    fn hear_of(&self, panic: Panic) {
        self.panicked.set(self.panicked.get() + 1);
        self.panic.borrow_mut().get_or_insert(panic);
        if let Some(listener) = self.listener.take() {
            listener.wake();
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
        self.0.clients.spawn_deferred(Box::pin(async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                core.deferred_panicked.set(core.deferred_panicked.get() + 1);
            }
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

impl<D: Device> Clone for Shard<D> {
    #[inline]
    fn clone(&self) -> Self {
        Shard(Rc::clone(&self.0))
    }
}

impl<D: Device> Drop for Shard<D> {
    #[inline]
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
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.core.engine.borrow_mut().orphan(slot);
        }
        // As for the shard's handles: this may have been the last that held it.
        self.core.work_arrived();
    }
}
