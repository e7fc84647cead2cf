//! Tests of the allocator, on embedded clusters, whose servers answer at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, poll_fn};

use super::*;
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::sweep::{Lists, Step};
use crate::control::{CatalogEntry, Holdings, ServerUsage};
use crate::control::{Chunk, ServerInfo};
use crate::epoch::{NodeEpochs, Pins};
use crate::fabric::Fabric as _;
use crate::fabric::embedded::{Cluster, EmbeddedConfig};

fn cluster(servers: u16) -> Arc<dyn Control> {
    Cluster::embedded(EmbeddedConfig {
        servers,
        bytes_per_server: 256 << 10,
        chunk_bytes: 16 << 10,
        locks_per_server: 16,
        ..Default::default()
    })
    .unwrap()
}

fn allocate(allocator: &NodeAllocator, bytes: u64) -> Result<RemotePtr, AllocError> {
    allocator.allocate(bytes).now_or_never().expect("embedded control calls are direct")
}

#[test]
fn nodes_never_overlap_and_memory_ends_with_an_error() {
    let control = cluster(2);
    let allocators: Vec<_> =
        (0..2).map(|i| NodeAllocator::new(Arc::clone(&control), IndexId(1), i, Pins::alone())).collect();
    let mut nodes = Vec::new();
    'full: loop {
        for (i, bytes) in [100, 1024, 64, 4000].into_iter().enumerate() {
            match allocate(&allocators[i % 2], bytes) {
                Ok(node) => nodes.push((node, bytes)),
                Err(error) => {
                    assert_eq!(error, AllocError::OutOfMemory { servers: 2 });
                    break 'full;
                }
            }
        }
    }
    nodes.sort();
    assert!(nodes.len() > 100);
    assert!(nodes.iter().any(|(n, _)| n.server().0 == 0) && nodes.iter().any(|(n, _)| n.server().0 == 1));
    for pair in nodes.windows(2) {
        let ((first, bytes), (second, _)) = (pair[0], pair[1]);
        assert!(first.server() != second.server() || first.offset() + bytes <= second.offset());
        assert_eq!(first.offset() % 64, 0);
    }
}

/// A control plane that answers each request for a chunk after `looks` polls.
pub(super) struct Slow {
    pub(super) cluster: Arc<Cluster>,
    pub(super) looks: u32,
    /// Number of requests for free nodes.
    pub(super) asked: AtomicU32,
}

impl Control for Slow {
    fn servers(&self) -> &[ServerInfo] {
        self.cluster.servers()
    }

    fn chunk(
        &self,
        server: ServerId,
        index: IndexId,
    ) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
        // The server does it at once; its answer takes its time.
        let (mut left, mut answer) = (self.looks, self.cluster.chunk(server, index));
        poll_fn(move |cx| {
            if left == 0 {
                return answer.poll_unpin(cx);
            }
            left -= 1;
            Poll::Pending
        })
        .boxed_local()
    }

    fn holdings(&self, index: IndexId) -> LocalBoxFuture<'static, Result<Vec<Holdings>, ControlError>> {
        self.cluster.holdings(index)
    }

    fn take_back(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: Vec<Chunk>,
    ) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        self.cluster.take_back(index, server, joins, extents)
    }

    fn lists(&self) -> &Lists {
        self.cluster.lists()
    }

    fn begin_sweep(&self, index: IndexId) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        self.cluster.begin_sweep(index)
    }

    fn sweep_waits_for(
        &self,
        sweep: u64,
        step: Step,
    ) -> LocalBoxFuture<'static, Result<Vec<u16>, ControlError>> {
        self.cluster.sweep_waits_for(sweep, step)
    }

    fn swept_lists(&self, sweep: u64) -> LocalBoxFuture<'static, Result<Vec<Chunk>, ControlError>> {
        self.cluster.swept_lists(sweep)
    }

    fn end_sweep(&self, sweep: Option<u64>) {
        self.cluster.end_sweep(sweep);
    }

    fn want_epoch(&self) {
        self.cluster.want_epoch();
    }

    fn want_flush(&self, since: u64) {
        self.cluster.want_flush(since);
    }

    fn return_extent(&self, index: IndexId, rest: Chunk) {
        self.cluster.return_extent(index, rest);
    }

    fn give_nodes(&self, index: IndexId, server: ServerId, batch: NodeBatch) {
        self.cluster.give_nodes(index, server, batch);
    }

    fn take_nodes(
        &self,
        server: ServerId,
        index: IndexId,
        wanted: WantedNodes,
    ) -> LocalBoxFuture<'static, Result<Option<NodeBatch>, ControlError>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.cluster.take_nodes(server, index, wanted)
    }

    fn create(
        &self,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        self.cluster.create(name, kind, config)
    }

    fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        self.cluster.open(name)
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        self.cluster.list()
    }

    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        self.cluster.drop_index(name)
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        self.cluster.usage()
    }

    fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>> {
        self.cluster.dead()
    }
}

#[test]
fn dropped_operations_lose_no_chunk() {
    const CHUNK_BYTES: u64 = 16 << 10;
    let config = EmbeddedConfig {
        servers: 2,
        bytes_per_server: 256 << 10,
        chunk_bytes: CHUNK_BYTES,
        locks_per_server: 16,
        ..Default::default()
    };
    let cluster = Cluster::embedded(config).unwrap();
    let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 10_000, asked: AtomicU32::new(0) });
    let allocator = NodeAllocator::new(slow, IndexId(1), 0, Pins::alone());
    let (mut nodes, mut dropped) = (0, 0);
    // Some want a certain server, others any.
    while dropped < 100_000 {
        let had = match dropped % 3 {
            0 => allocator.allocate_near(ServerId(1), 4096).now_or_never().map(|node| node.is_ok()),
            _ => allocator.allocate(4096).now_or_never().map(|node| node.is_ok()),
        };
        match had {
            Some(had) => {
                assert!(had, "after {nodes} nodes and {dropped} dropped operations");
                nodes += 1;
            }
            None => dropped += 1,
        }
    }
    let usage = cluster.usage().now_or_never().unwrap().unwrap();
    let taken: u64 = usage.iter().map(|server| server.chunk_bytes).sum();
    let kept: u64 = allocator.state().pieces.iter().map(|piece| piece.bytes).sum();
    let asked = allocator.request.borrow().iter().count() as u64 * CHUNK_BYTES;
    assert!(nodes >= 32, "{nodes} nodes");
    assert_eq!(taken, nodes * 4096 + kept + asked, "{nodes} nodes, {kept} bytes kept");
}

/// A client that asked for a chunk, and is not polled any more, does not keep others from it.
#[test]
fn a_client_that_stands_still_keeps_none_from_memory() {
    let config = EmbeddedConfig { bytes_per_server: 4 << 20, chunk_bytes: 16 << 10, ..Default::default() };
    let cluster = Cluster::embedded(EmbeddedConfig { locks_per_server: 16, ..config }).unwrap();
    let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 3, asked: AtomicU32::new(0) });
    let allocator = NodeAllocator::new(slow, IndexId(1), 0, Pins::alone());
    let mut still = Box::pin(allocator.allocate(4096));
    assert!((&mut still).now_or_never().is_none());
    let mut other = Box::pin(allocator.allocate(4096));
    let had = (0..10).find_map(|_| (&mut other).now_or_never());
    assert!(had.is_some_and(|node| node.is_ok()), "it waits for a client that does not go on");
    assert!((&mut still).now_or_never().is_some_and(|node| node.is_ok()), "its chunk is there");
    let books = allocator.books();
    assert_eq!((books.used_bytes, books.free_bytes, books.asks), (8192, 8192, false), "one chunk for both");
}

/// Clients that waited for a chunk use it up before the one that asked for it: that one asks once more.
#[test]
fn a_chunk_that_others_use_up_is_asked_for_again() {
    let config = EmbeddedConfig { bytes_per_server: 4 << 20, chunk_bytes: 16 << 10, ..Default::default() };
    let cluster = Cluster::embedded(EmbeddedConfig { locks_per_server: 16, ..config }).unwrap();
    for near in [None, Some(ServerId(0))] {
        let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 3, asked: AtomicU32::new(0) });
        let allocator = NodeAllocator::new(slow, IndexId(1), 0, Pins::alone());
        let mut clients: Vec<_> = (0..9).map(|_| Box::pin(allocator.allocate_of(near, 8192, true))).collect();
        // The one that asks comes last each time.
        for _ in 0..100 {
            clients.reverse();
            clients.retain_mut(|client| match client.now_or_never() {
                Some(node) => {
                    node.expect("there is memory");
                    false
                }
                None => true,
            });
        }
        assert!(clients.is_empty());
        drop(clients);
        assert_eq!(allocator.books().used_bytes, 9 * 8192);
    }
}

#[test]
fn reuses_what_was_given_back_and_counts_what_is_in_use() {
    let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0, Pins::alone());
    let node = allocate(&allocator, 1000).unwrap();
    assert_eq!(allocator.used_bytes(), 1024);
    allocator.return_extent(node, 1000);
    assert_eq!(allocator.used_bytes(), 0);
    assert_eq!(allocate(&allocator, 1024), Ok(node));
}

/// A cluster with a compute node of two shards: its allocators and pins.
pub(super) fn two_shards() -> (Arc<Cluster>, Vec<(NodeAllocator, Rc<Pins>)>) {
    let config =
        EmbeddedConfig { bytes_per_server: 4 << 20, chunk_bytes: 64 << 10, ..EmbeddedConfig::small() };
    let cluster = Cluster::embedded(config).unwrap();
    let epochs = Arc::new(NodeEpochs::new(2));
    cluster.join_epochs(1, &epochs);
    let shard = |place| {
        let pins = Pins::new(Arc::clone(&epochs), place);
        (NodeAllocator::new(cluster.control(), IndexId(1), 0, Rc::clone(&pins)), pins)
    };
    let shards = (0..2).map(shard).collect();
    (cluster, shards)
}

#[test]
fn what_another_shard_allocated_is_used_again_where_it_was_retired_when_nothing_pins_it() {
    let (cluster, shards) = two_shards();
    let [(one, pins), (two, others)] = &shards[..] else { panic!("two shards") };
    let pass = |epochs| {
        for _ in 0..epochs {
            cluster.move_epoch(|| true);
            [pins, others].iter().for_each(|pins| pins.turn());
        }
    };
    let node = allocate(one, 1000).unwrap();
    let (reads, writes) = (others.pin(), pins.pin());
    two.retire(node, 1000);
    pass(9);
    assert_ne!(allocate(two, 1000), Ok(node), "an operation may read it");
    assert_eq!((two.books().retired_bytes, two.books().reclaimed_bytes), (1024, 0));
    drop((reads, writes));
    pass(3);
    assert_eq!(allocate(two, 1000), Ok(node));
    let books = two.books();
    assert_eq!((books.retired_bytes, books.reclaimed_bytes), (0, 1024));
    assert_eq!(
        (one.used_bytes(), two.used_bytes()),
        (1024, 1024),
        "the second shard has two, less one of the first"
    );
    let (one, two) = (one.books(), books);
    let had = one.used_bytes + two.used_bytes + (one.free_bytes + two.free_bytes) as i64;
    assert_eq!(had, 2 * (64 << 10), "no byte is lost");
}

/// A shard that retires asks for epochs by itself: no chunk is taken as long as memory comes back.
#[test]
fn memory_that_is_retired_and_allocated_in_turn_stays_within_bounds() {
    let (_, shards) = two_shards();
    let (allocator, pins) = &shards[0];
    for _ in 0..10_000 {
        let _operation = pins.pin();
        let node = allocate(allocator, 1000).unwrap();
        allocator.retire(node, 1000);
        pins.turn();
    }
    let books = allocator.books();
    assert_eq!(books.used_bytes + books.free_bytes as i64, 64 << 10, "one chunk of 64 nodes");
    assert_eq!(books.reclaimed_bytes + books.retired_bytes, 10_000 << 10);
}

#[test]
fn what_caches_lead_to_waits_for_a_flush_and_the_flush_for_enough() {
    let (cluster, shards) = two_shards();
    let (allocator, pins) = &shards[0];
    let pass = |epochs: u64| {
        for _ in 0..epochs {
            cluster.move_epoch(|| true);
            shards.iter().for_each(|(_, pins)| pins.turn());
        }
    };
    // An eighth of a chunk of 64 KiB.
    let nodes: Vec<_> = (0..8).map(|_| allocate(allocator, 1024).unwrap()).collect();
    nodes[..7].iter().for_each(|node| allocator.retire_cached(*node, 1024));
    pass(20);
    allocator.reclaim();
    assert_eq!((pins.flushed(), allocator.books().reclaimed_bytes), (0, 0), "too little");
    assert_eq!(allocator.free_extents().len(), 8, "nothing is there, though");
    allocator.retire_cached(nodes[7], 1024);
    pass(3);
    allocator.reclaim();
    assert!(pins.flushed() > 0);
    assert_eq!(allocator.books().reclaimed_bytes, 0, "who had an address from a cache may have it still");
    let late = allocate(allocator, 1024).unwrap();
    allocator.retire_cached(late, 1024);
    pass(1);
    allocator.reclaim();
    assert_eq!(allocator.books().reclaimed_bytes, 8 << 10);
    pass(20);
    allocator.reclaim();
    assert_eq!((allocator.books().reclaimed_bytes, allocator.books().retired_bytes), (8 << 10, 1 << 10));
}

/// The nodes of a load that failed are as small as leaves are; the next one wants larger ones, too.
#[test]
fn small_nodes_that_were_given_back_are_joined_when_all_else_is_used_up() {
    let control = cluster(2);
    let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0, Pins::alone());
    let nodes: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 192).ok()).collect();
    let sum = |books: Books| books.used_bytes as u64 + books.free_bytes;
    let all = sum(allocator.books());
    assert_eq!(allocate(&allocator, 1024), Err(AllocError::OutOfMemory { servers: 2 }));
    // Every second one is as good as none.
    let (kept, given): (Vec<_>, Vec<_>) = (0..).zip(nodes).partition(|(i, _)| i % 2 == 0);
    let give = |nodes: Vec<(usize, RemotePtr)>| {
        nodes.into_iter().for_each(|(_, node)| allocator.return_extent(node, 192));
    };
    give(given);
    assert_eq!(allocate(&allocator, 1024), Err(AllocError::OutOfMemory { servers: 2 }));
    give(kept);
    let mut taken = BTreeSet::new();
    while let Ok(node) = allocate(&allocator, 1024) {
        assert!((0..1024).step_by(64).all(|at| taken.insert(node.add(at))), "{node} overlaps");
    }
    let books = allocator.books();
    assert_eq!((books.used_bytes, sum(books)), (taken.len() as i64 * 64, all));
    assert!(books.free_bytes < all / 8, "{books:?}");
}

/// A load that failed has returned leaves only; the next one wants inner nodes, too.
#[test]
fn large_nodes_that_were_given_back_are_divided_when_all_else_is_used_up() {
    let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0, Pins::alone());
    let nodes: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 192).ok()).collect();
    nodes.iter().for_each(|&node| allocator.return_extent(node, 192));
    let mut small: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 64).ok()).collect();
    small.sort();
    small.dedup();
    assert!(small.len() >= 3 * nodes.len(), "each of them gives three");
    assert!(allocate(&allocator, 192).is_err());
}

fn taken(control: &Arc<dyn Control>) -> u64 {
    let usage = control.usage().now_or_never().expect("embedded control calls are direct").unwrap();
    usage.iter().map(|server| server.chunk_bytes).sum()
}

/// A process that lives for one node takes a node, not a chunk.
#[test]
fn what_was_not_used_goes_to_the_next() {
    const CHUNK: u64 = 1 << 20;
    let control: Arc<dyn Control> = Cluster::embedded(EmbeddedConfig {
        bytes_per_server: 4 << 20,
        chunk_bytes: CHUNK,
        locks_per_server: 16,
        ..Default::default()
    })
    .unwrap();
    let nodes: BTreeSet<_> = (0..2000)
        .map(|_| {
            let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0, Pins::alone());
            let node = allocate(&allocator, 1000).unwrap();
            assert_eq!(allocator.used_bytes(), 1024);
            node.offset()
        })
        .collect();
    assert_eq!(nodes.len(), 2000);
    assert!(nodes.iter().zip(nodes.iter().skip(1)).all(|(node, next)| next - node >= 1024));
    assert_eq!(taken(&control), (2000u64 * 1024).next_multiple_of(CHUNK));
    // Another index has no part in it.
    let other = NodeAllocator::new(Arc::clone(&control), IndexId(2), 0, Pins::alone());
    let node = allocate(&other, 1000).unwrap();
    assert!(
        !nodes.range(node.offset() + 1 - CHUNK..node.offset() + CHUNK).any(|at| at + 1024 > node.offset())
    );
    assert_eq!(taken(&control), 3 * CHUNK);
}

/// Rests that are too small for one node serve smaller ones, and cost no client a chunk that is there.
#[test]
fn small_rests_are_passed_over_and_used_up() {
    let control = cluster(1);
    let chunk = 16 << 10;
    let chunks = taken_all(&control) / chunk;
    let new = |bytes: u64| {
        let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0, Pins::alone());
        let node = allocate(&allocator, bytes);
        (allocator, node)
    };
    // All but one were taken by a client that used 10 KiB of each.
    let used: Vec<_> = (1..chunks)
        .map(|_| control.chunk(ServerId(0), IndexId(1)).now_or_never().unwrap().unwrap().start)
        .collect();
    used.iter().for_each(|start| {
        control.return_extent(IndexId(1), Chunk { start: start.add(10 << 10), bytes: 6 << 10 });
    });
    assert_eq!(taken(&control), (chunks - 1) * chunk);
    let (large, node) = new(16 << 10);
    let node = node.expect("the last chunk, behind many rests that are too small");
    assert_eq!((large.used_bytes(), taken(&control)), (16 << 10, chunks * chunk));
    assert_eq!(allocate(&large, 8 << 10), Err(AllocError::OutOfMemory { servers: 1 }));
    let mut all = vec![node];
    while let Ok(node) = allocate(&large, 6 << 10) {
        assert!(all.iter().all(|other| other != &node));
        all.push(node);
    }
    assert_eq!(all.len() as u64, chunks);
    assert_eq!(large.used_bytes(), (16 << 10) + (chunks as i64 - 1) * (6 << 10));
    // They are smaller than its largest node and used up besides: nothing is left for others.
    drop(large);
    assert_eq!(new(4096).1, Err(AllocError::OutOfMemory { servers: 1 }));
}

/// Returns the bytes of all chunks.
fn taken_all(control: &Arc<dyn Control>) -> u64 {
    control.usage().now_or_never().expect("direct").unwrap()[0].capacity_bytes
}

/// Memory that a dropped index returned belongs to no index, and memory that it has not returned goes nowhere.
#[test]
fn allocators_may_outlive_their_index() {
    let control = cluster(1);
    let entry = |name: &str| control.create(name, "sherman", b"").now_or_never().unwrap().unwrap().id;
    let (first, second) = (entry("first"), entry("second"));
    let allocator = NodeAllocator::new(Arc::clone(&control), first, 0, Pins::alone());
    let node = allocate(&allocator, 64).unwrap();
    control.drop_index("first").now_or_never().unwrap().unwrap();
    let heir = NodeAllocator::new(Arc::clone(&control), second, 0, Pins::alone());
    assert_eq!(allocate(&heir, 64), Ok(node), "the same chunk");
    drop(allocator);
    let other = NodeAllocator::new(Arc::clone(&control), second, 0, Pins::alone());
    assert!(allocate(&other, 64).unwrap().offset() >= node.offset() + (16 << 10));
}

#[test]
fn says_when_a_node_exceeds_a_chunk() {
    let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0, Pins::alone());
    assert_eq!(allocate(&allocator, 16385), Err(AllocError::TooLarge { bytes: 16448, chunk_bytes: 16384 }));
}

fn allocate_of_kind(allocator: &NodeAllocator, bytes: u64) -> Option<OfKind> {
    allocator
        .allocate_of_kind(ServerId(0), bytes)
        .now_or_never()
        .expect("embedded control calls are direct")
        .ok()
}

/// Leaves of one size, say: a cache that leads to one may lead to the next one there, and to nothing else.
#[test]
fn memory_of_a_kind_stays_of_that_kind_and_size() {
    let (cluster, shards) = two_shards();
    let (allocator, pins) = &shards[0];
    let node = allocate_of_kind(allocator, 192).unwrap();
    assert_eq!(node.before, Before::Zeros);
    allocator.retire_of_kind(node.at, 192, 7);
    assert_eq!((allocator.books().retired_bytes, allocator.books().used_bytes), (192, 192));
    assert_ne!(allocate_of_kind(allocator, 192).unwrap().at, node.at, "an operation may read it");
    for _ in 0..3 {
        cluster.move_epoch(|| true);
        pins.turn();
    }
    let rest: Vec<_> = std::iter::from_fn(|| allocate(allocator, 192).ok()).collect();
    assert!(!rest.contains(&node.at), "others are not given it, not even as the last that there is");
    let small: Vec<_> = std::iter::from_fn(|| allocate(allocator, 64).ok()).collect();
    assert!((0..192).step_by(64).all(|at| !small.contains(&node.at.add(at))), "it is not divided");
    assert!(small.iter().all(|at| !rest.contains(at)));
    assert_eq!(allocate_of_kind(allocator, 128), None, "nor is it for a node of the kind of another size");
    let again = allocate_of_kind(allocator, 192).unwrap();
    assert_eq!((again.at, again.before), (node.at, Before::Node(Some(7))));
    let books = allocator.books();
    assert_eq!((books.retired_bytes, books.reclaimed_bytes), (0, 192));
    allocator.return_of_kind(node.at, 192);
    assert_eq!(allocator.books().free_bytes, books.free_bytes + 192);
    let again = allocate_of_kind(allocator, 192).unwrap();
    assert_eq!(
        (again.at, again.before),
        (node.at, Before::Node(None)),
        "what it begins with is not known any more"
    );
    assert_eq!(allocator.books(), Books { reused_bytes: 2 * 192, ..books });
}

/// Where other memory was given back, a node of a kind may have it, and is told that anything may be there.
#[test]
fn a_node_of_a_kind_may_have_memory_that_nothing_leads_to() {
    let allocator = NodeAllocator::new(cluster(2), IndexId(1), 0, Pins::alone());
    let node = allocator.allocate_on(ServerId(0), 192).now_or_never().unwrap().unwrap().at;
    allocator.return_extent(node, 192);
    let again = allocate_of_kind(&allocator, 192).unwrap();
    assert_eq!((again.at, again.before), (node, Before::Anything));
    // One of another server is better than none.
    let far = allocator.allocate_of_kind(ServerId(1), 192).now_or_never().unwrap().unwrap().at;
    assert_eq!(far.server(), ServerId(1));
    allocator.return_of_kind(far, 192);
    while allocate(&allocator, 192).is_ok() {}
    let last = allocate_of_kind(&allocator, 192).unwrap();
    assert_eq!((last.at, last.before), (far, Before::Node(None)));
}

/// A sweep is told what is in the lists, and what has left them since it began: allocated, given to the server, or
/// with an allocator that ended.
#[test]
fn a_sweep_is_told_what_passes_through_the_lists() {
    let control = cluster(1);
    let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0, Pins::alone());
    let before = allocate(&allocator, 1024).unwrap();
    let retired = allocate(&allocator, 1024).unwrap();
    let kept = allocate(&allocator, 1024).unwrap();
    let unsettled = allocate(&allocator, 1024).unwrap();
    let sweep = control.begin_sweep(IndexId(1)).now_or_never().unwrap().unwrap();
    let told = || {
        assert_eq!(control.sweep_waits_for(sweep, Step::Lists).now_or_never(), Some(Ok(vec![])));
        let lists = control.swept_lists(sweep).now_or_never().unwrap().unwrap();
        let mut extents = crate::extents::Extents::default();
        lists.iter().for_each(|piece| _ = extents.add(piece.start, piece.bytes));
        extents
    };
    let allocated = allocate(&allocator, 2048).unwrap();
    allocator.retire(retired, 1024);
    allocator.retire_kept(kept, 1024);
    allocator.retire_unsettled(unsettled, 1024);
    drop(allocator);
    let told = told();
    assert_eq!(told.first_shared(before, 1024), None, "it is a node of the index all the while");
    for (at, bytes, is_told) in [(allocated, 2048, true), (retired, 1024, true), (kept, 1024, false)] {
        assert_eq!(told.gaps(at, bytes).is_empty(), is_told, "{at}");
    }
    assert_eq!(told.bytes(), (16 << 10) - 3 * 1024, "the rest of the chunk, which went to the server");
    control.end_sweep(Some(sweep));

    let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0, Pins::alone());
    allocator.retire_kept(kept, 1024);
    allocator.retire_unsettled(unsettled, 1024);
    let sweep = control.begin_sweep(IndexId(1)).now_or_never().unwrap().unwrap();
    assert_eq!(control.sweep_waits_for(sweep, Step::Lists).now_or_never(), Some(Ok(vec![])));
    let lists = control.swept_lists(sweep).now_or_never().unwrap().unwrap();
    let of = |node| lists.iter().any(|piece| piece.start <= node && node < piece.start.add(piece.bytes));
    assert!(of(kept) && of(unsettled), "nothing leads there, and they are not free yet");
}
