//! Counting, as the other tests do, on real shards: two executors over the embedded fabric, messages through the mesh.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use farwood_lock::shared::{Lanes, LockWords, SharedLocks, SharedStats};
use farwood_lock::{LockConfig, LockStats, LockTable};
use farwood_runtime::{
    Chain, ClientPool, Cluster, ComputeNode, Control, EmbeddedConfig, Meter, NodeConfig, Port, RemotePtr,
    ServerId, Shard, Verbs,
};
use futures::FutureExt;

const SHARDS: usize = 2;
const NODES: u64 = 3;
const CLIENTS: u64 = 16;
const OPERATIONS: u64 = 200;

/// The bytes of a node: several lines, the first with the counter, the last with the embedded lock word and a copy.
const NODE_BYTES: usize = 192;
const COPY: usize = NODE_BYTES - 16;

async fn count(shard: Shard, table: LockTable<Shard>, start: RemotePtr, client: u64, rear: bool) {
    for i in 0..OPERATIONS {
        let meter = Meter::default();
        let node = start.add((client + i) % NODES * NODE_BYTES as u64);
        let word = node.add(NODE_BYTES as u64 - 8);
        let mut held = match rear {
            true => table.acquire_embedded(&meter, node, word).await.expect("it is not held for long"),
            false => table.acquire(&meter, node).await.expect("it is not held for long"),
        };
        let buf = shard.lease(NODE_BYTES);
        let read = held.lock_and_read(&meter, buf, NODE_BYTES, i % 3 != 0).await.expect("embedded");
        let mut buf = read.into_buf();
        let value = u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"));
        buf[..8].copy_from_slice(&(value + 1).to_le_bytes());
        if rear {
            let copy = u64::from_le_bytes(buf[COPY..][..8].try_into().expect("8 bytes"));
            assert_eq!(copy, value, "unlocked before all was there");
            buf[COPY..][..8].copy_from_slice(&(value + 1).to_le_bytes());
            held.release_rear(&meter, buf, 0..NODE_BYTES - 8).await.expect("embedded");
            continue;
        }
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, 0..64);
        held.release(&meter, chain, i % 5 != 0).await.expect("embedded");
    }
}

/// Runs one shard's part. It stays until all shards are done: it is the home of locks that the others still use.
async fn run_shard(
    shard: Shard,
    config: LockConfig,
    start: RemotePtr,
    rear: bool,
    done: Arc<AtomicUsize>,
) -> (LockStats, u64) {
    let table = LockTable::attach(shard.clone(), Port(0), config);
    let clients: Vec<_> =
        (0..CLIENTS).map(|i| shard.spawn(count(shard.clone(), table.clone(), start, i, rear))).collect();
    for client in clients {
        client.await;
    }
    done.fetch_add(1, Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < SHARDS || table.in_use() != (0, 0) {
        shard.pause(10_000).await;
    }
    let mut sum = 0;
    for node in 0..NODES {
        let mut chain = Chain::with_buffer(start.server(), shard.lease(8));
        chain.read(start.add(node * NODE_BYTES as u64), 0..8);
        let buf = shard.submit(&Meter::default(), chain).await.expect("embedded").into_buf();
        sum += u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"));
    }
    assert_eq!(shard.buffers_leased(), 0);
    (table.stats(), sum)
}

/// Makes a compute node of so many shards, and memory on a server.
pub(crate) fn node_with_memory(shards: usize) -> (Arc<ComputeNode>, RemotePtr) {
    let memory = EmbeddedConfig { bytes_per_server: 64 << 20, ..EmbeddedConfig::default() };
    let cluster = Cluster::embedded(memory).expect("64 MiB");
    let index =
        cluster.create("tables", "test", &[]).now_or_never().expect("a direct call").expect("a new name");
    let chunk =
        cluster.chunk(ServerId(0), index.id).now_or_never().expect("a direct call").expect("one fits");
    (ComputeNode::new(cluster, NodeConfig { shards, ..NodeConfig::default() }).unwrap(), chunk.start)
}

#[test]
fn counts_on_the_embedded_fabric() {
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    for (config, rear) in
        [LockConfig::default(), flat].into_iter().flat_map(|c| [(c.clone(), false), (c, true)])
    {
        let (node, start) = node_with_memory(SHARDS);
        let (done, hierarchical) = (Arc::new(AtomicUsize::new(0)), config.hierarchical);
        let results = node
            .run(move |shard| run_shard(shard, config.clone(), start, rear, Arc::clone(&done)))
            .expect("io_uring");
        let mut acquired = 0;
        for (stats, sum) in results {
            assert_eq!(sum, SHARDS as u64 * CLIENTS * OPERATIONS, "lost updates");
            assert!(!hierarchical || stats.handed_over > 0);
            acquired += stats.acquired;
        }
        assert_eq!(acquired, SHARDS as u64 * CLIENTS * OPERATIONS);
    }
}

/// Lets clients of real shards count as in the other test: two of three share the lock and add to a word by FAA, the
/// third has it alone and rewrites the line.
async fn share_shard(shard: Shard, start: RemotePtr, done: Arc<AtomicUsize>) -> (SharedStats, u64) {
    let table = LockTable::attach(shard.clone(), Port(0), LockConfig::default());
    let lanes = Lanes { after: 0, ..Lanes::new(start.add(4096), 64) };
    let locks = SharedLocks::new(&table, lanes);
    let count = |client: u64| {
        let (shard, locks) = (shard.clone(), locks.clone());
        async move {
            for _ in 0..OPERATIONS {
                let (meter, buf, parts) =
                    (Meter::default(), shard.lease(NODE_BYTES), [0..64, 64..NODE_BYTES]);
                if !client.is_multiple_of(3) {
                    let shared = locks.share_and_read(&meter, start, start, buf, &parts);
                    let (shared, _) = shared.await.expect("it is not held for long");
                    let mut chain = Chain::new(start.server());
                    chain.faa(start.add(64), 1);
                    assert_eq!(shared.release(&meter, chain).await.expect("embedded").atomics.len(), 1);
                    continue;
                }
                let mut held = locks.acquire(&meter, start, start).await.expect("it is not held for long");
                let fused = client.is_multiple_of(2);
                let read =
                    locks.lock_and_read(&meter, &mut held, buf, &parts, fused).await.expect("embedded");
                let mut buf = read.into_buf();
                let value = u64::from_le_bytes(buf[64..72].try_into().expect("8 bytes"));
                buf[64..72].copy_from_slice(&(value + 1).to_le_bytes());
                let mut chain = Chain::with_buffer(start.server(), buf);
                chain.write(start.add(64), 64..128);
                held.release(&meter, chain, true).await.expect("embedded");
            }
        }
    };
    let clients: Vec<_> = (0..CLIENTS).map(|client| shard.spawn(count(client))).collect();
    for client in clients {
        client.await;
    }
    done.fetch_add(1, Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < SHARDS || table.in_use() != (0, 0) || locks.in_use() > 0 {
        shard.pause(10_000).await;
    }
    let node = shard.read(&Meter::default(), start, 72).await.expect("embedded").into_buf();
    assert!(LockWords::new(&node[..16]).is_free());
    (locks.stats(), u64::from_le_bytes(node[64..72].try_into().expect("8 bytes")))
}

#[test]
fn shares_on_the_embedded_fabric() {
    let (node, start) = node_with_memory(SHARDS);
    let done = Arc::new(AtomicUsize::new(0));
    let results = node.run(move |shard| share_shard(shard, start, Arc::clone(&done))).expect("io_uring");
    for (stats, sum) in results {
        assert_eq!(sum, SHARDS as u64 * CLIENTS * OPERATIONS, "lost updates");
        assert!(stats.shared > 0, "{stats:?}");
    }
}
