//! Windows on real shards: two executors over the embedded fabric, messages through the mesh. A key is a counter; what
//! a client is told of it must not be older than what any client knew when the call began, on whatever shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farwood_lock::window::{Access, Entered, Outcome, WindowConfig, WindowStats, WindowTable};
use farwood_runtime::{Chain, ClientPool, Meter, Port, RemotePtr, Shard, Verbs};

use crate::embedded::node_with_memory;

const SHARDS: usize = 2;
const KEYS: u64 = 3;
const CLIENTS: u64 = 16;
const OPERATIONS: u64 = 300;
const VALUE_BYTES: usize = 40;

/// State that all shards share.
#[derive(Clone)]
struct Shared {
    start: RemotePtr,
    announced: Arc<[AtomicU64; KEYS as usize]>,
    done: Arc<AtomicUsize>,
}

impl Shared {
    async fn work(&self, shard: &Shard, key: u64, access: Access) -> u64 {
        let (meter, at) = (Meter::default(), self.start.add(key * 64));
        match access {
            Access::Read => {
                let buf = shard.read(&meter, at, 8).await.expect("embedded").into_buf();
                u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"))
            }
            Access::Write(_) => {
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                shard.submit(&meter, chain).await.expect("embedded").atomics[0] + 1
            }
        }
    }

    async fn operate(&self, shard: &Shard, table: &WindowTable<Shard>, key: u64, access: Access) {
        let announced = &self.announced[key as usize];
        let least = announced.load(Ordering::SeqCst);
        let name = key.to_be_bytes();
        let version = match table.enter(&Meter::default(), &name, access).await {
            Entered::Led(lead) => {
                let version = self.work(shard, key, access).await;
                let value = version.to_le_bytes().repeat(VALUE_BYTES / 8);
                lead.finish(match access {
                    Access::Read => Outcome::read(Some(&value)),
                    Access::Write(_) => Outcome::written(true, &value),
                });
                version
            }
            Entered::Read(value) => {
                let value = value.expect("every key has a value");
                let version = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
                assert_eq!(*value, version.to_le_bytes().repeat(VALUE_BYTES / 8));
                version
            }
            Entered::Written { applied } => {
                assert!(applied);
                let now = self.work(shard, key, Access::Read).await;
                assert!(now > least, "no write since the call began");
                return;
            }
            Entered::Bypass => panic!("values are short and everything is on"),
        };
        assert!(version >= least, "write {version} is told of, and {least} was known when the call began");
        announced.fetch_max(version, Ordering::SeqCst);
    }

    /// Runs one shard's part. It stays until all shards are done: it is the home of keys that the others still use.
    async fn run(self, shard: Shard) -> WindowStats {
        let table = WindowTable::attach(shard.clone(), Port(0), WindowConfig::default());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (all, own, table) = (self.clone(), shard.clone(), table.clone());
                shard.spawn(async move {
                    for i in 0..OPERATIONS {
                        let access = if (client + i) % 5 < 2 { Access::Write(0) } else { Access::Read };
                        all.operate(&own, &table, (client + i / 4) % KEYS, access).await;
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) < SHARDS || table.in_use() != (0, 0) {
            shard.pause(10_000).await;
        }
        assert_eq!(shard.buffers_leased(), 0);
        table.stats()
    }
}

#[test]
fn counts_on_the_embedded_fabric() {
    let (node, start) = node_with_memory(SHARDS);
    let shared = Shared { start, announced: Arc::default(), done: Arc::default() };
    let results = node.run(move |shard| shared.clone().run(shard)).expect("io_uring");
    let sum = |pick: fn(&WindowStats) -> u64| results.iter().map(pick).sum::<u64>();
    let (windows, reads, writes) =
        (sum(|s| s.windows), sum(|s| s.reads_delegated), sum(|s| s.writes_combined));
    assert_eq!(windows + reads + writes, SHARDS as u64 * CLIENTS * OPERATIONS);
    assert!(reads > 500 && writes > 100, "{reads} reads, {writes} writes");
}
