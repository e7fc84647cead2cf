//! Windows and shared locks allocate nothing once they are warm: counted by the global allocator on shards' threads.
//!
//! The executor allocates a little for itself, at moments that have nothing to do with them. So there are short
//! rounds, and the cheapest round shows what they allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farwood_lock::shared::{Lanes, SharedLocks};
use farwood_lock::window::{Access, Entered, Outcome, WindowConfig, WindowTable};
use farwood_lock::{LockConfig, LockTable};
use farwood_runtime::{
    Chain, Cluster, ComputeNode, EmbeddedConfig, Meter, NodeConfig, Port, RemotePtr, ServerId, Shard, Verbs,
};

use crate::counting_allocator::allocations;

const ROUNDS_TO_WARM_UP: u64 = 300;
const ROUNDS: u64 = 300;
const WINDOWS_PER_ROUND: u64 = 10;
const VALUE: [u8; 100] = [7; 100];

async fn work(table: &WindowTable<Shard>, key: u64, access: Access) {
    match table.enter(&Meter::default(), &key.to_be_bytes(), access).await {
        Entered::Led(lead) if access == Access::Read => lead.finish(Outcome::read(Some(&VALUE))),
        Entered::Led(lead) => lead.finish(Outcome::written(true, &VALUE)),
        Entered::Read(value) => assert_eq!(*value.expect("it was read"), VALUE),
        Entered::Written { applied } => assert!(applied),
        Entered::Bypass => panic!("values are short and everything is on"),
    }
}

/// Uses a window of one client, and then one with a group: clients that come while the first leader is at work.
async fn use_windows(table: &WindowTable<Shard>, key: u64) {
    work(table, key, Access::Read).await;
    let Entered::Led(lead) = table.enter(&Meter::default(), &key.to_be_bytes(), Access::Read).await else {
        panic!("no other client uses the key")
    };
    futures::join!(
        work(table, key, Access::Read),
        work(table, key, Access::Write(0)),
        work(table, key, Access::Read),
        work(table, key, Access::Write(0)),
        async { lead.finish(Outcome::read(Some(&VALUE))) },
    );
}

/// Counts the allocations of the cheapest round on this shard, and the operations that were shared.
async fn cheapest_round(shard: Shard, done: Arc<AtomicUsize>) -> (u64, u64) {
    let table = WindowTable::attach(shard.clone(), Port(0), WindowConfig::default());
    let mut cheapest = u64::MAX;
    for round in 0..ROUNDS_TO_WARM_UP + ROUNDS {
        let before = allocations();
        for i in 0..WINDOWS_PER_ROUND {
            // Keys of this shard's client alone, at home on any shard.
            let key = (round * WINDOWS_PER_ROUND + i) << 8 | u64::from(shard.shard().0);
            use_windows(&table, key).await;
        }
        if round >= ROUNDS_TO_WARM_UP {
            cheapest = cheapest.min(allocations() - before);
        }
    }
    done.fetch_add(1, Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < shard.shards() || table.in_use() != (0, 0) {
        shard.pause(10_000).await;
    }
    let stats = table.stats();
    (cheapest, stats.reads_delegated + stats.writes_combined)
}

#[test]
fn warm_windows_allocate_nothing() {
    for shards in [1, 2] {
        let memory = EmbeddedConfig { bytes_per_server: 16 << 20, ..EmbeddedConfig::default() };
        let cluster = Cluster::embedded(memory).expect("16 MiB");
        let node = ComputeNode::new(cluster, NodeConfig { shards, ..NodeConfig::default() }).unwrap();
        let done = Arc::new(AtomicUsize::new(0));
        let results = node.run(move |shard| cheapest_round(shard, Arc::clone(&done))).expect("io_uring");
        for (allocations, shared) in results {
            assert_eq!(
                allocations, 0,
                "on one of {shards} shards, in {WINDOWS_PER_ROUND} windows with groups"
            );
            // Of four clients that come behind a leader the last writer leads, and three join.
            assert_eq!(shared, (ROUNDS_TO_WARM_UP + ROUNDS) * WINDOWS_PER_ROUND * 3);
        }
    }
}

/// Counts the allocations of the cheapest round, in which two clients share a lock.
async fn cheapest_shares(shard: Shard) -> u64 {
    let table = LockTable::attach(shard.clone(), Port(0), LockConfig::default());
    let node = RemotePtr::new(ServerId(0), 8 << 20);
    let locks = SharedLocks::new(&table, Lanes { after: 0, ..Lanes::new(node.add(4096), 64) });
    let share = async || {
        let (meter, buf) = (Meter::default(), shard.lease(64));
        let shared = locks.share_and_read(&meter, node, node, buf, &[0..16, 16..64]);
        let (shared, read) = shared.await.expect("no client has it alone");
        let mut chain = Chain::with_buffer(node.server(), read.into_buf());
        chain.write(node.add(16), 16..24);
        shared.release(&meter, chain).await.expect("embedded");
    };
    let mut cheapest = u64::MAX;
    for round in 0..ROUNDS_TO_WARM_UP + ROUNDS {
        let before = allocations();
        futures::join!(share(), share(), share());
        if round >= ROUNDS_TO_WARM_UP {
            cheapest = cheapest.min(allocations() - before);
        }
    }
    assert!(locks.stats().joined > ROUNDS);
    cheapest
}

#[test]
fn warm_shared_locks_allocate_nothing() {
    let memory = EmbeddedConfig { bytes_per_server: 16 << 20, ..EmbeddedConfig::default() };
    let cluster = Cluster::embedded(memory).expect("16 MiB");
    let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() }).unwrap();
    assert_eq!(node.run(cheapest_shares).expect("io_uring"), [0]);
}
