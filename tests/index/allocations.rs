//! Steady state allocates nothing per operation: counted by the global allocator on the shards' threads.
//!
//! The executor allocates a little on its own account (timers of the poller's heartbeat), at moments that
//! have nothing to do with operations. So operations run in short rounds, and what operations allocate is
//! what the cheapest round shows: an allocation that every operation makes, or every tenth, shows in every
//! round.

use std::time::Duration;

use farwood::runtime::ClientPool;
use farwood::{IndexSpec, NodeConfig, RangeIndex};

use crate::counting_allocator::allocations;
use crate::kit;
use crate::kit::kind::shared;
use crate::kit::{IndexKind, Mixes, Parties, Shape, TestCluster, key};

const KEYS: u64 = 5000;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    key: usize,
    value: usize,
}

impl Sizes {
    const SMALL: Sizes = Sizes { key: 8, value: 8 };
    const LARGE: Sizes = Sizes { key: 32, value: 64 };

    const ALL: [Sizes; 2] = [Sizes::SMALL, Sizes::LARGE];

    fn shape(self) -> Shape {
        Shape { max_key: self.key, max_value: self.value, ..Shape::USUAL }
    }

    /// Yields keys of full length, which differ in their last bytes.
    fn key(self, n: u64) -> [u8; 32] {
        let mut bytes = [b'k'; 32];
        bytes[self.key - 8..self.key].copy_from_slice(&key(n));
        bytes
    }
}

/// Rounds to let every pool, slab and queue reach the size it needs, and rounds that count.
const WARM_UP: usize = 20;
const ROUNDS: usize = 40;
/// Operations of one round of the single client.
const OPS: u64 = 100;

async fn load(cluster: &TestCluster, sizes: Sizes) {
    if cluster.place == 0 {
        let pairs = (0..KEYS).map(|n| (sizes.key(n)[..sizes.key].to_vec(), vec![1; sizes.value]));
        cluster.index.bulk_load(pairs, 0.8).await.unwrap();
    }
    cluster.meet().await;
}

fn with_sizes<F, R>(mix: IndexSpec, parties: Parties, sizes: Sizes, main: F)
where
    F: Fn(TestCluster) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    // Pollers that neither nap nor park: both take timers of the executor.
    let config = NodeConfig {
        reactor_interval: Duration::ZERO,
        spin: Duration::from_secs(10),
        ..NodeConfig::default()
    };
    kit::with_parties_in(&kit::cluster(), config, parties, sizes.shape().of(mix), main);
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Get,
    Update,
    Put,
    RemoveAndInsert,
}

impl Operation {
    /// Yields those that are counted.
    fn all(kind: IndexKind) -> &'static [Operation] {
        match kind {
            IndexKind::Sherman | IndexKind::Chime => {
                &[Operation::Get, Operation::Update, Operation::Put, Operation::RemoveAndInsert]
            }
            // What inserts and removes do not wait for is a task of the janitor's.
            IndexKind::Smart => &[Operation::Get, Operation::Update, Operation::Put],
            // What all indexes promise.
            _ => &[Operation::Get, Operation::Update],
        }
    }

    async fn run(self, cluster: &TestCluster, sizes: Sizes, n: u64) {
        let (key, value) = (sizes.key(n), [n as u8; 64]);
        let (key, value) = (&key[..sizes.key], &value[..sizes.value]);
        match self {
            Operation::Get => assert!(cluster.index.get(key).await.unwrap().is_some()),
            Operation::Update => assert!(cluster.index.update(key, value).await.unwrap()),
            Operation::Put => cluster.index.put(key, value).await.unwrap(),
            Operation::RemoveAndInsert => {
                assert!(cluster.index.remove(key).await.unwrap());
                assert!(cluster.index.insert(key, value).await.unwrap());
            }
        }
    }
}

#[test]
fn one_client_allocates_nothing() {
    for &kind in IndexKind::ALL {
        for mix in kind.with_each_on() {
            for sizes in Sizes::ALL {
                with_sizes(mix, Parties::Shards(1), sizes, move |cluster| async move {
                    load(&cluster, sizes).await;
                    for &operation in Operation::all(kind) {
                        let rounds = allocations_per_round(cluster.clone(), sizes, operation);
                        let counts = cluster.shard.spawn(rounds).await;
                        assert_few(&counts[WARM_UP..], OPS, &format!("{mix:?} {sizes:?} {operation:?}"));
                    }
                });
            }
        }
    }
}

/// Operations allocate nothing in some round of `ops` each, and little in most. The executor's timers allocate, too: in
/// rounds that last because the system takes a core away, as often as they like.
fn assert_few(counts: &[u64], ops: u64, what: &str) {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    let (least, median) = (sorted[0], sorted[sorted.len() / 2]);
    assert!(least == 0 && median < ops / 10, "{what}: {counts:?}");
}

async fn allocations_per_round(
    cluster: TestCluster,
    sizes: Sizes,
    operation: Operation,
) -> [u64; WARM_UP + ROUNDS] {
    let mut counts = [0; WARM_UP + ROUNDS];
    for (round, count) in counts.iter_mut().enumerate() {
        let before = allocations();
        for i in 0..OPS {
            operation.run(&cluster, sizes, kit::scatter(round as u64 * OPS + i) % KEYS).await;
        }
        *count = allocations() - before;
    }
    counts
}

const CLIENTS: usize = 32;

/// 64 clients on two shards that mostly want the same few keys: locks are waited for, handed over between shards, and
/// sometimes fought for, or one client works for others.
#[test]
fn contending_clients_allocate_nothing() {
    for &kind in IndexKind::ALL {
        for sizes in Sizes::ALL {
            with_sizes(kind.default_mix(), Parties::Shards(2), sizes, move |cluster| async move {
                load(&cluster, sizes).await;
                let mut counts = Vec::with_capacity(WARM_UP + ROUNDS);
                for round in 0..WARM_UP + ROUNDS {
                    cluster.meet().await;
                    let before = cluster.index.stats();
                    counts.push(contend(&cluster, sizes, round as u64).await);
                    let mut stats = cluster.index.stats();
                    stats -= &before;
                    assert!(shared(&stats) > 20, "there was to be contention: {:?}", stats.locks);
                }
                assert_few(&counts[WARM_UP..], CLIENTS as u64 * 20, &format!("{kind:?} {sizes:?}"));
            });
        }
    }
}

/// Allocations from when the last client has begun until the first one ends.
async fn contend(cluster: &TestCluster, sizes: Sizes, round: u64) -> u64 {
    let all = cluster
        .clients(CLIENTS, |c| {
            let cluster = cluster.clone();
            async move {
                // Spawning allocates; from here on nothing should.
                cluster.shard_pause().await;
                let before = allocations();
                for i in 0..20u64 {
                    let n = kit::scatter(round * 20 + i + c as u64);
                    let n = if n.is_multiple_of(2) { n % 50 } else { n % KEYS };
                    let operation = if n % 3 == 0 { Operation::Get } else { Operation::Update };
                    operation.run(&cluster, sizes, n).await;
                }
                (before, allocations())
            }
        })
        .await;
    let first = all.iter().map(|(before, _)| *before).max().unwrap();
    let last = all.iter().map(|(_, after)| *after).min().unwrap();
    last.saturating_sub(first)
}
