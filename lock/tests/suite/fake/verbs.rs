//! The fake's side of the fabric contract: what a shard posts, sends and waits for goes into the [`World`]'s state,
//! and the world's steps take it from there.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use farwood_runtime::control::nodes::{NodeBatch, WantedNodes};
use farwood_runtime::control::{Chunk, ServerUsage};
use farwood_runtime::epoch::Pins;
use farwood_runtime::sweep::{Lists, Step};
use farwood_runtime::verbs::Handler;
use farwood_runtime::{
    Buf, Capabilities, CatalogEntry, Chain, Control, ControlError, Holdings, IndexId, LockRegion, Message,
    Meter, Port, RemotePtr, ServerId, ServerInfo, ShardId, Verbs, Waiter,
};
use futures::future::{FutureExt, LocalBoxFuture, ready};
use rand::Rng;
use smallvec::SmallVec;

use super::{CHUNK_BYTES, CHUNKS, LOCK_BASE, LOCKS, Outcome, Posted, REGION_BYTES, State, World};

/// A shard of the fake.
#[derive(Clone)]
pub(crate) struct Fake {
    world: World,
    shard: usize,
}

impl Fake {
    pub(super) fn new(world: World, shard: usize) -> Self {
        Fake { world, shard }
    }

    pub(crate) fn leased(&self) -> usize {
        self.world.state.borrow().shards[self.shard].pool.leased()
    }

    /// Yields the position, among all shards of the cluster, of a shard of this compute node.
    fn sibling(&self, id: ShardId) -> usize {
        let state = self.world.state.borrow();
        let node = state.shards[self.shard].node;
        let found = state.shards.iter().position(|shard| shard.node == node && shard.id == id);
        found.expect("the compute node has that shard")
    }
}

/// Something that will be there later: shared by the client that waits for it and the world that brings it.
pub(crate) enum Flight<T> {
    Flying(Option<Waker>),
    Landed(Option<T>),
}

/// The future of a [`Flight`]. Dropping it changes nothing about the flight.
pub(crate) struct Arrival<T>(Rc<RefCell<Flight<T>>>);

impl<T> Flight<T> {
    fn depart() -> (Rc<RefCell<Self>>, Arrival<T>) {
        let flight = Rc::new(RefCell::new(Flight::Flying(None)));
        (Rc::clone(&flight), Arrival(flight))
    }

    pub(super) fn land(flight: &Rc<RefCell<Self>>, value: T) {
        match flight.replace(Flight::Landed(Some(value))) {
            Flight::Flying(waker) => waker.into_iter().for_each(Waker::wake),
            Flight::Landed(_) => unreachable!("it lands once"),
        }
    }
}

impl<T> Future for Arrival<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut *self.0.borrow_mut() {
            Flight::Flying(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Flight::Landed(value) => Poll::Ready(value.take().expect("polled after it was ready")),
        }
    }
}

impl Verbs for Fake {
    type Submission = Arrival<Outcome>;
    type Pause = Arrival<()>;

    fn shard(&self) -> ShardId {
        self.world.state.borrow().shards[self.shard].id
    }

    fn shards(&self) -> usize {
        let state = self.world.state.borrow();
        state.shards.iter().filter(|shard| shard.node == state.shards[self.shard].node).count()
    }

    fn node_id(&self) -> u16 {
        self.world.state.borrow().shards[self.shard].node
    }

    fn capabilities(&self) -> &Capabilities {
        &self.world.capabilities
    }

    fn control(&self) -> &Arc<dyn Control> {
        &self.world.control
    }

    fn pins(&self) -> &Rc<Pins> {
        &self.world.pins
    }

    fn lease(&self, bytes: usize) -> Buf {
        self.world.state.borrow().shards[self.shard].pool.lease(bytes)
    }

    fn post(&self, meter: &Meter, chain: Chain) -> Arrival<Outcome> {
        meter.verbs(chain.verbs());
        let (flight, arrival) = Flight::depart();
        let mut state = self.world.state.borrow_mut();
        if state.shards[self.shard].is_dead {
            return arrival;
        }
        state.fences += chain.verbs().iter().filter(|verb| verb.fenced).count();
        let State { faults, rng, .. } = &mut *state;
        let fault = faults.next(chain.verbs().len(), rng);
        let posted = Posted {
            verbs: chain.verbs().to_vec(),
            executed: 0,
            lines: 0,
            buf: chain.into_buffer(),
            atomics: SmallVec::new(),
            fault,
            dies: faults.is_death(),
            flight,
        };
        state.shards[self.shard].queue.push_back(posted);
        arrival
    }

    fn now(&self) -> u64 {
        let mut state = self.world.state.borrow_mut();
        state.clock_reads += 1;
        state.now
    }

    fn random(&self) -> u64 {
        self.world.state.borrow_mut().rng.random()
    }

    fn pause(&self, ns: u64) -> Arrival<()> {
        let (flight, arrival) = Flight::depart();
        let mut state = self.world.state.borrow_mut();
        let due = state.now + ns;
        state.timers.push((due, flight));
        arrival
    }

    fn waiter(&self, cx: &mut Context<'_>) -> Waiter {
        Waiter::Task(cx.waker().clone())
    }

    fn wake(&self, waiter: Waiter) {
        match waiter {
            Waiter::Task(waker) => waker.wake(),
            Waiter::Client(_) => unreachable!("the fake has no client pool"),
        }
    }

    fn attend(&self, task: impl Future<Output = ()> + 'static) {
        self.world.spawn(task);
    }

    fn send(&self, to: ShardId, port: Port, message: Message) {
        let to = self.sibling(to);
        let mut state = self.world.state.borrow_mut();
        state.sent += 1;
        state.wires.entry((self.shard, to)).or_default().push_back((port, message));
    }

    fn listen(&self, port: Port, handler: Handler) {
        self.world.state.borrow_mut().shards[self.shard].handlers.insert(port, handler);
    }
}

/// The control service of the one memory server, of which locks use nothing but the description.
pub(super) struct Memory {
    servers: [ServerInfo; 1],
    pub(super) dead: Mutex<Arc<[u16]>>,
    pub(super) asked_for_dead: AtomicUsize,
    chunks: AtomicUsize,
    pub(super) is_out: AtomicBool,
    lists: Lists,
}

impl Memory {
    pub(super) fn new() -> Self {
        let id = ServerId(0);
        let region_bytes = REGION_BYTES as u64;
        let locks = LockRegion { base: RemotePtr::new(id, LOCK_BASE), count: LOCKS };
        let info =
            ServerInfo { id, region_bytes, locks, device_locks: None, chunk_bytes: CHUNK_BYTES as u64 };
        let (asked_for_dead, chunks, is_out) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        Memory {
            servers: [info],
            dead: Mutex::default(),
            asked_for_dead,
            chunks,
            is_out,
            lists: Lists::default(),
        }
    }
}

fn refused<T: 'static>() -> LocalBoxFuture<'static, Result<T, ControlError>> {
    ready(Err(ControlError::NoSuchServer { server: ServerId(0) })).boxed_local()
}

impl Control for Memory {
    fn servers(&self) -> &[ServerInfo] {
        &self.servers
    }

    fn chunk(&self, server: ServerId, _: IndexId) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
        if self.is_out.load(Ordering::Relaxed) || self.chunks.load(Ordering::Relaxed) == CHUNKS {
            return ready(Err(ControlError::OutOfMemory { server, chunk_bytes: CHUNK_BYTES as u64 }))
                .boxed_local();
        }
        let number = self.chunks.fetch_add(1, Ordering::Relaxed);
        let start = RemotePtr::new(server, (REGION_BYTES + number * CHUNK_BYTES) as u64);
        ready(Ok(Chunk { start, bytes: CHUNK_BYTES as u64 })).boxed_local()
    }

    fn holdings(&self, _: IndexId) -> LocalBoxFuture<'static, Result<Vec<Holdings>, ControlError>> {
        refused()
    }

    fn take_back(
        &self,
        _: IndexId,
        _: ServerId,
        _: Option<u64>,
        _: Vec<Chunk>,
    ) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        refused()
    }

    fn lists(&self) -> &Lists {
        &self.lists
    }

    fn begin_sweep(&self, _: IndexId) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        refused()
    }

    fn sweep_waits_for(&self, _: u64, _: Step) -> LocalBoxFuture<'static, Result<Vec<u16>, ControlError>> {
        refused()
    }

    fn swept_lists(&self, _: u64) -> LocalBoxFuture<'static, Result<Vec<Chunk>, ControlError>> {
        refused()
    }

    fn end_sweep(&self, _: Option<u64>) {}

    /// Nothing is retired here.
    fn want_epoch(&self) {}

    fn want_flush(&self, _: u64) {}

    /// Takes it back and does not hand it out again.
    fn return_extent(&self, _: IndexId, _: Chunk) {}

    fn give_nodes(&self, _: IndexId, _: ServerId, _: NodeBatch) {}

    fn take_nodes(
        &self,
        _: ServerId,
        _: IndexId,
        _: WantedNodes,
    ) -> LocalBoxFuture<'static, Result<Option<NodeBatch>, ControlError>> {
        ready(Ok(None)).boxed_local()
    }

    fn create(
        &self,
        _: &str,
        _: &str,
        _: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        refused()
    }

    fn open(&self, _: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        refused()
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        refused()
    }

    fn drop_index(&self, _: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        refused()
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        refused()
    }

    fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>> {
        self.asked_for_dead.fetch_add(1, Ordering::Relaxed);
        let dead = Arc::clone(&self.dead.lock().expect("one thread"));
        ready(Ok(dead)).boxed_local()
    }
}
