//! Dolphin's inner nodes that lead to one leaf only, since the others below were merged: they go, and their memory is
//! used again. How clients die on the way is in `dolphin_deaths.rs`.

use std::ops::Range;

use farwood::dolphin::{Geometry, Options, Techniques, Types};
use farwood::{CheckOptions, IndexSpec, RangeIndex, TreeShape, Verbs};

use crate::kit::cluster::Model;
use crate::kit::{Parties, TestCluster, key, scatter, with_parties};

const KEYS: u64 = 3_000;
/// Bytes of a leaf, of two slots.
const LEAF_BYTES: u64 = 192;

/// Times that a client comes by, at most.
const ROUNDS: u32 = 4;
/// Longer than a leaf is left alone that could not be merged, in ns.
const LEFT_ALONE_NS: u64 = 2_000_000;

type Key = [u8; 8];

/// Keys of four first bytes, with nodes at many depths between them.
fn scattered(n: u64) -> Key {
    key(scatter(n) & 0x0300_3f3f_0f0f_0f0f)
}

/// Keys of one first byte that follow each other.
fn ascending(n: u64) -> Key {
    key(n * 7)
}

/// A way to empty a tree.
#[derive(Clone, Copy, Debug)]
struct Emptied {
    parties: Parties,
    types: Types,
    techniques: Techniques,
    key_of: fn(u64) -> Key,
    /// First bytes of keys.
    first_bytes: u64,
    /// Clients of each compute node, and the numbers of the keys that they remove, in turn.
    clients: usize,
    numbers: fn() -> Vec<u64>,
}

/// Looks at a tree at rest: all nodes are whole, and nothing is half done.
async fn survey(cluster: &TestCluster) -> TreeShape {
    cluster.rest().await;
    let report = cluster.index.check(&CheckOptions::default()).await.unwrap();
    assert!(report.is_intact(), "{:?}", report.violations);
    assert_eq!(report.unfinished.total(), 0);
    cluster.rest().await;
    report.survey
}

/// Puts pairs whose keys are their values, as the first shard alone.
async fn put(cluster: &TestCluster, key_of: fn(u64) -> Key, numbers: Range<u64>) {
    if cluster.place == 0 {
        for key in numbers.map(key_of) {
            cluster.index.put(&key, &key).await.unwrap();
        }
    }
    cluster.rest().await;
}

impl Emptied {
    /// Has a tree grow, removes all keys, and has it grow again.
    fn play(self) {
        let geometry =
            Geometry { max_key: 8, max_value: 24, leaf_bytes: LEAF_BYTES as usize, types: self.types };
        let options = Options { techniques: self.techniques, ..Options::default() };
        with_parties(self.parties, IndexSpec::Dolphin { geometry, options }, move |cluster| async move {
            put(&cluster, self.key_of, 0..1).await;
            let least = survey(&cluster).await;
            put(&cluster, self.key_of, 0..KEYS).await;
            let full = survey(&cluster).await;
            assert!(full.inner_nodes > 80, "{full:?}");
            self.remove_all(&cluster).await;
            let mut empty = survey(&cluster).await;
            // Merges that gave way to too many others are not made later: a client has to come by.
            for _ in 0..ROUNDS {
                if empty.leaves > self.first_bytes {
                    self.come_by(&cluster).await;
                    empty = survey(&cluster).await;
                }
            }
            assert_eq!((empty.inner_nodes, empty.leaves), (1, self.first_bytes), "{self:?}");
            let more = (self.first_bytes - least.leaves) * LEAF_BYTES;
            assert_eq!((empty.keys, empty.used_bytes), (0, least.used_bytes + more));
            cluster.rest().await;
            put(&cluster, self.key_of, 0..KEYS / 3).await;
            let key = |n| (self.key_of)(n).to_vec();
            cluster.holds(&(0..KEYS / 3).map(|n| (key(n), key(n))).collect::<Model>()).await;
            cluster.finish().await;
        });
    }

    /// Puts each key once more and removes it, such that leaves that were left alone are looked at again.
    async fn come_by(self, cluster: &TestCluster) {
        if cluster.place == 0 {
            for n in 0..KEYS {
                let key = (self.key_of)(n);
                cluster.index.put(&key, &key).await.unwrap();
                cluster.index.remove(&key).await.unwrap();
                if n % 16 == 0 {
                    cluster.shard.pause(LEFT_ALONE_NS).await;
                }
            }
        }
        cluster.rest().await;
    }

    async fn remove_all(self, cluster: &TestCluster) {
        let all = cluster.parties() * self.clients;
        cluster
            .clients(self.clients, |client| {
                let (index, first) = (cluster.index.clone(), cluster.place * self.clients + client);
                async move {
                    for n in (self.numbers)().into_iter().skip(first).step_by(all) {
                        index.remove(&(self.key_of)(n)).await.unwrap();
                    }
                }
            })
            .await;
        cluster.rest().await;
    }
}

const EMPTIED: Emptied = Emptied {
    parties: Parties::ONE,
    types: Types::Tiny,
    techniques: Techniques::ALL,
    key_of: scattered,
    first_bytes: 4,
    clients: 1,
    numbers: || (0..KEYS).collect(),
};

#[test]
fn of_a_tree_that_was_emptied_the_root_and_the_first_leaves_stay() {
    let ascending = Emptied { key_of: ascending, first_bytes: 1, ..EMPTIED };
    for emptied in [EMPTIED, ascending] {
        emptied.play();
        Emptied { types: Types::Lines, numbers: || (0..KEYS).rev().collect(), ..emptied }.play();
        Emptied { numbers: || (0..KEYS).step_by(2).chain((1..KEYS).step_by(2)).collect(), ..emptied }.play();
        Emptied { techniques: Techniques::NONE, clients: 60, ..emptied }.play();
    }
}

#[test]
fn nothing_else_stays_if_many_clients_empty_it_at_once() {
    for parties in Parties::BOTH {
        Emptied { parties, clients: 60, ..EMPTIED }.play();
        Emptied { parties, clients: 20, key_of: ascending, first_bytes: 1, ..EMPTIED }.play();
    }
}
