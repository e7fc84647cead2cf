//! The control services of simulated memory servers: those of the embedded ones, answered some turns later, so that
//! clients of the same shard come in between, and struck by the faults of the control plane.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use slab::Slab;

use super::rules::{Fault, Rule};
use super::{SimConfig, mixed};
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::sweep::{Lists, Step};
use crate::control::{
    CatalogEntry, Chunk, Control, ControlError, Holdings, IndexId, ServerInfo, ServerUsage,
};
use crate::fabric::embedded::Cluster;
use crate::pointer::ServerId;

/// The most turns that an answer takes.
const TURNS_MAX: u64 = 4;
/// Servers that are out of memory stay so for at most so many requests, a power of two.
const NO_MEMORY_LOG_REQUESTS: u64 = 12;
/// One in so many of such times has no end while faults strike.
const NO_MEMORY_FOR_GOOD_ONE_IN: u64 = 16;
/// The server that keeps the catalog.
const HOME: ServerId = ServerId(0);

type Answer<T> = LocalBoxFuture<'static, Result<T, ControlError>>;

/// Control services with slow answers, and with none.
///
/// It is called on the one thread of its simulation alone; locks and atomics are there because [`Control`] asks for
/// them.
pub(super) struct SimControl {
    cluster: Arc<Cluster>,
    is_slow: bool,
    random: AtomicU64,
    rules: Mutex<Vec<(Rule, u32)>>,
    late: Arc<LateReplies>,
    bytes_lost: AtomicU64,
    bytes_taken_back: AtomicU64,
    /// Requests for chunks that still find no memory.
    no_memory_left: AtomicU64,
}

/// Faults of a request.
#[derive(Default)]
struct Luck {
    late_ns: Option<u64>,
    is_lost: bool,
    fails: bool,
    finds_no_memory: bool,
    /// And others may find none after it.
    may_last: bool,
}

impl SimControl {
    pub(super) fn new(cluster: Arc<Cluster>, config: &SimConfig, late: Arc<LateReplies>) -> Self {
        SimControl {
            cluster,
            is_slow: config.slow_control,
            random: AtomicU64::new(mixed(config.seed, 2) | 1),
            rules: Mutex::default(),
            late,
            bytes_lost: AtomicU64::new(0),
            bytes_taken_back: AtomicU64::new(0),
            no_memory_left: AtomicU64::new(0),
        }
    }

    /// Counts the bytes that were handed out by replies that were lost, and given back by requests that were.
    pub(super) fn bytes_lost(&self) -> u64 {
        self.bytes_lost.load(Ordering::Relaxed)
    }

    /// Counts the bytes that servers have taken back.
    pub(super) fn bytes_taken_back(&self) -> u64 {
        self.bytes_taken_back.load(Ordering::Relaxed)
    }

    /// Lets these faults strike from now on, as far as they are of the control plane.
    pub(super) fn set_rules(&self, rules: &[Rule]) {
        let of_control = rules.iter().filter(|rule| rule.fault.is_of_control());
        *held(&self.rules) = of_control.map(|&rule| (rule, 0)).collect();
        self.no_memory_left.store(0, Ordering::Relaxed);
    }

    /// Draws the next number of a plain generator.
    fn random(&self) -> u64 {
        let random = self.random.load(Ordering::Relaxed).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        self.random.store(random, Ordering::Relaxed);
        random >> 33
    }

    fn draw(&self) -> Luck {
        let mut luck = Luck::default();
        for (rule, struck) in held(&self.rules).iter_mut() {
            if *struck >= rule.most || !self.random().is_multiple_of(u64::from(rule.one_in)) {
                continue;
            }
            *struck += 1;
            match rule.fault {
                // Of every order of magnitude.
                Fault::LateReply(ns) => luck.late_ns = Some((ns >> (self.random() % 16)).max(1)),
                Fault::LostReply => luck.is_lost = true,
                Fault::FailedRequest => luck.fails = true,
                Fault::NoMemory => {
                    luck.finds_no_memory = true;
                    luck.may_last = rule.most == u32::MAX;
                }
                _ => unreachable!("other faults are the fabric's"),
            }
        }
        luck
    }

    /// Tells whether there is no chunk for a request of that luck: servers that are full stay so for some requests
    /// more, seldom for very many, or until faults end.
    fn finds_no_memory(&self, luck: &Luck) -> bool {
        let left = self.no_memory_left.load(Ordering::Relaxed);
        if left > 0 || !luck.finds_no_memory {
            self.no_memory_left.store(left.saturating_sub(1), Ordering::Relaxed);
            return left > 0;
        }
        if luck.may_last {
            let log = || self.random() % (NO_MEMORY_LOG_REQUESTS + 1);
            let requests = match self.random().is_multiple_of(NO_MEMORY_FOR_GOOD_ONE_IN) {
                true => u64::MAX,
                false => self.random() % (1 << log().min(log())),
            };
            self.no_memory_left.store(requests, Ordering::Relaxed);
        }
        true
    }

    /// Sends a request to the server of the catalog.
    fn request<T: 'static>(&self, perform: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let luck = self.draw();
        self.request_of(HOME, &luck, perform)
    }

    /// Sends a request to `server`, which is performed at once, if at all, and answered later.
    fn request_of<T: 'static>(
        &self,
        server: ServerId,
        luck: &Luck,
        perform: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        let turns = if self.is_slow { self.random() % (TURNS_MAX + 1) } else { 0 };
        let gone = || ready(Err(ControlError::ServerGone { server })).boxed_local();
        let answer = if luck.fails { gone() } else { perform() };
        let answer = if luck.is_lost { gone() } else { answer };
        let late = luck.late_ns.map(|ns| (Arc::clone(&self.late), ns));
        async move {
            for _ in 0..turns {
                next_turn().await;
            }
            if let Some((late, ns)) = late {
                late.wait(ns).await;
            }
            answer.await
        }
        .boxed_local()
    }
}

async fn next_turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds it")
}

/// Replies that take their time, between the tasks that wait for them and the world, which has the clock.
#[derive(Default)]
pub(super) struct LateReplies {
    any_new: AtomicBool,
    /// Those that the world has not been told of, and how long they take.
    new: Mutex<Vec<(u32, u64)>>,
    /// The task that waits for a reply; none if it is there.
    waiting: Mutex<Slab<Option<Waker>>>,
}

impl LateReplies {
    async fn wait(&self, ns: u64) {
        let mut place = None;
        poll_fn(|cx| {
            let mut waiting = held(&self.waiting);
            let Some(reply) = place else {
                let reply = waiting.insert(Some(cx.waker().clone()));
                place = Some(reply);
                held(&self.new).push((reply as u32, ns));
                self.any_new.store(true, Ordering::Relaxed);
                return Poll::Pending;
            };
            if waiting[reply].is_none() {
                waiting.remove(reply);
                return Poll::Ready(());
            }
            waiting[reply] = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Hands over the replies that are waited for since the last time, and how much later they are there.
    #[inline]
    pub(super) fn take_new(&self, mut take: impl FnMut(u32, u64)) {
        if self.any_new.load(Ordering::Relaxed) {
            self.any_new.store(false, Ordering::Relaxed);
            held(&self.new).drain(..).for_each(|(reply, ns)| take(reply, ns));
        }
    }

    /// Delivers a reply. The place of one that was given up stays taken, so that no other reply gets it.
    pub(super) fn arrive(&self, reply: u32) {
        let waker = held(&self.waiting)[reply as usize].take();
        waker.expect("a reply arrives once").wake();
    }
}

impl Control for SimControl {
    fn servers(&self) -> &[ServerInfo] {
        self.cluster.servers()
    }

    fn chunk(&self, server: ServerId, index: IndexId) -> Answer<Chunk> {
        let luck = self.draw();
        let finds_no_memory = self.finds_no_memory(&luck);
        self.request_of(server, &luck, || {
            let info = self.cluster.servers().get(usize::from(server.0)).filter(|_| finds_no_memory);
            match info {
                Some(&ServerInfo { chunk_bytes, .. }) => {
                    ready(Err(ControlError::OutOfMemory { server, chunk_bytes })).boxed_local()
                }
                None => {
                    let chunk = self.cluster.chunk(server, index).now_or_never().expect("a direct call");
                    if let (Ok(chunk), true) = (&chunk, luck.is_lost) {
                        self.bytes_lost.fetch_add(chunk.bytes, Ordering::Relaxed);
                    }
                    ready(chunk).boxed_local()
                }
            }
        })
    }

    /// Gives it back at once: no client hears when it is done, and nothing random is drawn, whichever ends first.
    fn return_extent(&self, index: IndexId, rest: Chunk) {
        self.cluster.return_extent(index, rest);
    }

    /// Gives them back at once, or not at all. No client hears which.
    fn give_nodes(&self, index: IndexId, server: ServerId, batch: NodeBatch) {
        if self.draw().fails {
            self.bytes_lost.fetch_add(batch.bytes(), Ordering::Relaxed);
            return;
        }
        self.cluster.give_nodes(index, server, batch);
    }

    fn take_nodes(&self, server: ServerId, index: IndexId, wanted: WantedNodes) -> Answer<Option<NodeBatch>> {
        let luck = self.draw();
        self.request_of(server, &luck, || {
            let taken = self.cluster.take_nodes(server, index, wanted);
            let taken = taken.now_or_never().expect("a direct call");
            if let (Ok(Some(batch)), true) = (&taken, luck.is_lost) {
                self.bytes_lost.fetch_add(batch.bytes(), Ordering::Relaxed);
            }
            ready(taken).boxed_local()
        })
    }

    fn holdings(&self, index: IndexId) -> Answer<Vec<Holdings>> {
        self.request(|| self.cluster.holdings(index))
    }

    fn take_back(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: Vec<Chunk>,
    ) -> Answer<u64> {
        self.request(|| {
            let taken = self.cluster.take_back(index, server, joins, extents);
            let taken = taken.now_or_never().expect("a direct call");
            self.bytes_taken_back.fetch_add(*taken.as_ref().unwrap_or(&0), Ordering::Relaxed);
            ready(taken).boxed_local()
        })
    }

    fn lists(&self) -> &Lists {
        self.cluster.lists()
    }

    fn begin_sweep(&self, index: IndexId) -> Answer<u64> {
        self.request(|| self.cluster.begin_sweep(index))
    }

    fn sweep_waits_for(&self, sweep: u64, step: Step) -> Answer<Vec<u16>> {
        self.request(|| self.cluster.sweep_waits_for(sweep, step))
    }

    fn swept_lists(&self, sweep: u64) -> Answer<Vec<Chunk>> {
        self.request(|| self.cluster.swept_lists(sweep))
    }

    fn end_sweep(&self, sweep: Option<u64>) {
        self.cluster.end_sweep(sweep);
    }

    /// Each node's message comes through or not, so that nodes are behind, and the epoch behind the nodes.
    fn want_epoch(&self) {
        self.cluster.move_epoch(|| self.random().is_multiple_of(2));
    }

    fn want_flush(&self, since: u64) {
        self.cluster.note_flush(since);
        self.want_epoch();
    }

    fn create(&self, name: &str, kind: &str, config: &[u8]) -> Answer<CatalogEntry> {
        self.request(|| self.cluster.create(name, kind, config))
    }

    fn open(&self, name: &str) -> Answer<CatalogEntry> {
        self.request(|| self.cluster.open(name))
    }

    fn list(&self) -> Answer<Vec<CatalogEntry>> {
        self.request(|| self.cluster.list())
    }

    fn drop_index(&self, name: &str) -> Answer<u64> {
        self.request(|| self.cluster.drop_index(name))
    }

    fn usage(&self) -> Answer<Vec<ServerUsage>> {
        self.request(|| self.cluster.usage())
    }

    fn dead(&self) -> Answer<Arc<[u16]>> {
        self.request(|| self.cluster.dead())
    }
}
