//! Tests of what goes from one allocator to others, on an embedded cluster of two shards.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::tests::{Slow, two_shards};
use super::super::*;
use super::*;
use crate::control::nodes::WantedNodes;
use crate::fabric::Fabric as _;
use crate::fabric::embedded::Cluster;
use futures::FutureExt;

const CHUNK: u64 = 64 << 10;
const INDEX: IndexId = IndexId(1);
const HERE: ServerId = ServerId(0);

fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("embedded control calls are direct")
}

fn allocate(allocator: &NodeAllocator, bytes: u64) -> RemotePtr {
    now(allocator.allocate(bytes)).unwrap()
}

fn pass(cluster: &Cluster, shards: &[(NodeAllocator, Rc<Pins>)], epochs: u64) {
    for _ in 0..epochs {
        cluster.move_epoch(|| true);
        shards.iter().for_each(|(_, pins)| pins.turn());
    }
}

/// Bytes that are handed out and not given back.
fn used(cluster: &Cluster) -> u64 {
    now(cluster.holdings(INDEX)).unwrap()[0].used.iter().map(|piece| piece.bytes).sum()
}

fn chunks(cluster: &Cluster) -> u64 {
    now(cluster.usage()).unwrap()[0].chunk_bytes / CHUNK
}

#[test]
fn memory_levels_off_where_one_shard_allocates_and_another_retires() {
    for of_kind in [false, true] {
        let (cluster, shards) = two_shards();
        let [(one, _), (two, _)] = &shards[..] else { panic!("two shards") };
        let mut nodes = VecDeque::new();
        for round in 0..1000 {
            for _ in 0..32 {
                let node = match of_kind {
                    true => now(one.allocate_of_kind(HERE, 1000)).unwrap().at,
                    false => allocate(one, 1000),
                };
                assert!(!nodes.contains(&node), "{node} is in use");
                nodes.push_back(node);
            }
            for node in nodes.drain(..nodes.len().saturating_sub(64)) {
                match of_kind {
                    true => two.retire_of_kind(node, 1000, 7),
                    false => two.retire(node, 1000),
                }
            }
            pass(&cluster, &shards, 1);
            two.reclaim();
            // 64 nodes live, 4 epochs' of 32 wait, two shards keep 16, batches of 9 and more are in between.
            assert!(chunks(&cluster) <= 6, "{} chunks in round {round}", chunks(&cluster));
        }
    }
}

#[test]
fn all_that_a_shard_had_goes_to_others_when_its_allocator_is_dropped() {
    let (cluster, mut shards) = two_shards();
    let nodes: Vec<_> = (0..60).map(|_| allocate(&shards[0].0, 1000)).collect();
    let (cached, kept) = (allocate(&shards[0].0, 192), allocate(&shards[0].0, 64));
    let retires = |allocator: &NodeAllocator| {
        nodes[..20].iter().for_each(|node| allocator.retire(*node, 1000));
        nodes[20..40].iter().for_each(|node| allocator.retire_of_kind(*node, 1000, node.to_bits()));
        nodes[40..].iter().for_each(|node| allocator.return_extent(*node, 1000));
        allocator.retire_cached(cached, 192);
    };
    retires(&shards[0].0);
    let (first, pins) = shards.remove(0);
    drop(first);
    assert_eq!(used(&cluster), 64, "all but the node that is in use");
    shards.insert(0, (NodeAllocator::new(cluster.control(), INDEX, 0, pins.clone()), pins));
    let heir = &shards[1].0;
    let of_kind: BTreeSet<_> = nodes[20..40].iter().copied().collect();
    let others: BTreeSet<_> = nodes.iter().copied().filter(|node| !of_kind.contains(node)).collect();
    let early = allocate(heir, 1000);
    assert!(!nodes.contains(&early), "operations may have their addresses, and WRITEs be on their way");
    pass(&cluster, &shards, 4);
    // What is left of its chunk, and the nodes: each once, each for its kind.
    let plain: Vec<_> = (0..others.len() + 63).map(|_| allocate(heir, 1000)).collect();
    let mut had: BTreeSet<_> = plain.iter().copied().collect();
    assert_eq!(had.len(), plain.len());
    assert!(others.is_subset(&had) && of_kind.is_disjoint(&had) && !had.contains(&kept));
    for _ in 0..of_kind.len() {
        let node = now(heir.allocate_of_kind(HERE, 1000)).unwrap();
        assert_eq!(node.before, Before::Node(Some(node.at.to_bits())));
        assert!(of_kind.contains(&node.at) && had.insert(node.at));
    }
    assert_ne!(allocate(heir, 192), cached, "caches lead there");
}

/// Memory that waits for a flush is asked for when there is nothing else, and then waited for.
#[test]
fn on_a_full_server_memory_that_waits_and_memory_of_other_sizes_is_had_from_others() {
    let (cluster, mut shards) = two_shards();
    let small: Vec<_> = (0..1000).map(|_| allocate(&shards[0].0, 192)).collect();
    let cached: Vec<_> = (0..64).map(|_| allocate(&shards[0].0, 1024)).collect();
    // The second shard has all the rest.
    let heir = &shards[1].0;
    while chunks(&cluster) < 60 && now(heir.allocate(CHUNK)).is_ok() {}
    while now(heir.allocate(1024)).is_ok() {}
    assert_eq!(now(heir.allocate(1024)), Err(AllocError::OutOfMemory { servers: 1 }));
    let (first, pins) = shards.remove(0);
    small.iter().for_each(|node| first.return_extent(*node, 192));
    cached.iter().for_each(|node| first.retire_cached(*node, 1024));
    let since = pins.retired_now();
    drop(first);
    shards.insert(0, (NodeAllocator::new(cluster.control(), INDEX, 0, pins.clone()), pins));
    let (heir, known) = &shards[1];
    let is_flushed = || known.flushed_since(since).is_some_and(|since| known.is_over(since));
    let before = heir.books().used_bytes;
    let mut had = BTreeSet::new();
    loop {
        match now(heir.allocate(1024)) {
            Ok(node) => (0..1024).step_by(64).for_each(|at| {
                assert!(had.insert(node.add(at)), "{node} overlaps");
                assert!(!cached.contains(&node.add(at)) || is_flushed(), "a cache may lead to {node}");
            }),
            Err(_) if heir.awaits_memory() => pass(&cluster, &shards, 1),
            Err(error) => break assert_eq!(error, AllocError::OutOfMemory { servers: 1 }),
        }
    }
    let all: BTreeSet<_> =
        cached.iter().flat_map(|node| (0..1024).step_by(64).map(|at| node.add(at))).collect();
    assert!(all.is_subset(&had));
    assert!(had.len() as u64 * 64 > (64 << 10) + 1000 * 192 * 9 / 10, "{} lines", had.len());
    let books = heir.books();
    assert_eq!((books.retired_bytes, books.used_bytes - before), (0, had.len() as i64 * 64));
}

#[test]
fn a_batch_is_given_once_and_taken_once() {
    let (cluster, shards) = two_shards();
    let class = NodeClass { bytes: 1024, of_kind: false };
    let node = allocate(&shards[0].0, 1024).offset();
    let batch = |nodes: &[u64]| NodeBatch {
        class,
        waits: Waits::Epoch(1),
        nodes: nodes.iter().map(|node| (*node, None)).collect(),
    };
    let server = &cluster.mapped()[0];
    assert_eq!(server.give_nodes(INDEX, batch(&[node])), Ok(()));
    for (what, index, nodes) in [
        ("again", INDEX, &[node][..]),
        ("a part of it", INDEX, &[node + 512]),
        ("one twice", INDEX, &[node + 2048, node + 2048]),
        ("a good one and one that is there", INDEX, &[node + 2048, node]),
        ("what is not handed out", INDEX, &[node + 2 * CHUNK]),
        ("what is no memory for nodes", INDEX, &[4096]),
        ("the end of the world", INDEX, &[u64::MAX - 63]),
        ("no line", INDEX, &[node + 2048 + 8]),
        ("another index's", IndexId(2), &[node + 2048]),
        ("none", INDEX, &[]),
    ] {
        assert!(server.give_nodes(index, batch(nodes)).is_err(), "{what}");
    }
    assert_eq!(used(&cluster), CHUNK - 1024);
    let wanted = WantedNodes { class, epoch: 4, flushed: 0, last_resort: false };
    let take = |wanted| now(cluster.take_nodes(HERE, INDEX, wanted)).unwrap();
    assert_eq!(take(WantedNodes { epoch: 3, ..wanted }), None, "its epoch is not over");
    assert_eq!(take(wanted), Some(batch(&[node])));
    assert_eq!((take(wanted), take(WantedNodes { last_resort: true, ..wanted })), (None, None));
    assert_eq!(server.give_nodes(INDEX, batch(&[node])), Ok(()), "it was taken since");
}

/// A server is not asked for each node.
#[test]
fn a_server_that_has_no_nodes_is_asked_once_in_an_epoch() {
    let (cluster, shards) = two_shards();
    let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 0, asked: AtomicU32::new(0) });
    let allocator = NodeAllocator::new(slow.clone(), INDEX, 0, shards[0].1.clone());
    let asked = || slow.asked.load(Ordering::Relaxed);
    for node in 1..=640 {
        now(allocator.allocate_of_kind(HERE, 1024)).unwrap();
        assert_eq!(asked(), 2, "once of a kind, once not, {node} nodes in all");
    }
    pass(&cluster, &shards, 1);
    (0..640).for_each(|_| _ = allocate(&allocator, 1024));
    assert_eq!(asked(), 3);
}
