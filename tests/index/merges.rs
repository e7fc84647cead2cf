//! Leaves that removes have left nearly empty: they are merged, their memory is used again, and clients that read
//! meanwhile see each key once.

use std::rc::Rc;
use std::sync::Arc;

use farwood::{CheckOptions, Cluster, EmbeddedConfig, IndexSpec, RangeIndex, Verbs};
use futures::future::join_all;
use futures::{FutureExt, TryStreamExt, join};

use crate::kit::{IndexKind, Parties, Shape, TestCluster, key, number, with_parties, with_parties_on};

/// A kind whose leaves are merged, and its usual leaves.
struct Merged {
    kind: IndexKind,
    leaf_bytes: u64,
    /// Pairs of a leaf, at most, where keys come in ascending order.
    pairs: u64,
}

const KINDS: [Merged; 3] = [
    Merged { kind: IndexKind::Sherman, leaf_bytes: 1024, pairs: 25 },
    Merged { kind: IndexKind::Chime, leaf_bytes: 1408, pairs: 40 },
    Merged { kind: IndexKind::Dolphin, leaf_bytes: 1024, pairs: 50 },
];

impl Merged {
    fn spec(&self) -> IndexSpec {
        Shape::USUAL.usual(self.kind)
    }
}

/// Runs a body with an index of each kind, on a cluster of its own.
fn with_each<F, R>(body: F)
where
    F: Fn(TestCluster, &'static Merged) -> R + Copy + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    for merged in &KINDS {
        with_parties(Parties::Shards(1), merged.spec(), move |cluster| body(cluster, merged));
    }
}

/// Fills the tree; yields how many leaves it has then.
async fn fill(cluster: &TestCluster, keys: u64) -> u64 {
    for n in 0..keys {
        cluster.index.insert(&key(n), b"value").await.unwrap();
    }
    cluster.rest().await;
    leaves(cluster).await
}

async fn leaves(cluster: &TestCluster) -> u64 {
    let report = cluster.index.check(&CheckOptions::default()).await.unwrap();
    assert!(report.is_intact(), "{report:?}");
    report.survey.leaves
}

/// Keys are put in on one side and removed on the other. Of each parent one leaf stays, and the parent.
#[test]
fn a_window_that_slides_takes_no_more_memory() {
    const WINDOW: u64 = 2_000;
    with_each(|cluster, merged| async move {
        let index = &cluster.index;
        let mut after_a_while = 0;
        for n in 0..60_000 {
            assert!(index.insert(&key(n), b"value").await.unwrap());
            if n >= WINDOW {
                assert!(index.remove(&key(n - WINDOW)).await.unwrap());
            }
            if n == 10_000 {
                after_a_while = index.books().used_bytes;
            }
        }
        let books = index.books();
        // Without merges it would be the leaves of 50,000 keys more.
        let without = (50_000 / merged.pairs * merged.leaf_bytes) as i64;

        assert!(books.used_bytes - after_a_while < without / 10, "{after_a_while}: {books:?}");
        assert!(books.reclaimed_bytes as i64 > without / 2, "{books:?}");
        cluster.rest().await;
        let expected = (60_000 - WINDOW..60_000).map(|n| (key(n).to_vec(), b"value".to_vec())).collect();
        cluster.holds(&expected).await;
        cluster.rest().await;
    });
}

/// Keys are removed in an order that leaves all leaves half empty before any is empty.
#[test]
fn little_is_left_of_a_tree_of_which_all_was_removed() {
    const KEYS: u64 = 20_000;
    with_each(|cluster, _| async move {
        let (index, before) = (&cluster.index, fill(&cluster, KEYS).await);
        for first in 0..7 {
            for n in (first..KEYS).step_by(7) {
                assert!(index.remove(&key(n)).await.unwrap());
            }
        }
        cluster.rest().await;
        let after = leaves(&cluster).await;
        assert!(after * 20 <= before, "{after} of {before}");
        for n in (0..KEYS).step_by(3) {
            assert!(index.insert(&key(n), b"again").await.unwrap());
        }
        cluster.rest().await;
        let expected = (0..KEYS).step_by(3).map(|n| (key(n).to_vec(), b"again".to_vec())).collect();
        cluster.holds(&expected).await;
        cluster.rest().await;
    });
}

/// Many clients remove at the same time, faster than leaves are merged: those that have emptied one wait for it.
#[test]
fn little_is_left_of_a_tree_that_many_clients_empty_at_once() {
    const KEYS: u64 = 20_000;
    const CLIENTS: u64 = 250;
    with_each(|cluster, _| async move {
        let (index, before) = (&cluster.index, fill(&cluster, KEYS).await);
        let empty = async |client: u64| {
            for n in (0..KEYS).map(|n| n * 7919 % KEYS).filter(|n| n % CLIENTS == client) {
                assert!(index.remove(&key(n)).await.unwrap());
            }
        };
        join_all((0..CLIENTS).map(empty)).await;
        cluster.rest().await;
        let after = leaves(&cluster).await;
        assert!(after * 10 <= before, "{after} of {before}");
    });
}

/// Makes a cluster with so many locks that nodes hardly share one: those that do are not merged.
fn many_locks() -> Arc<Cluster> {
    let (servers, chunk_bytes, locks_per_server) = (2, 64 << 10, 1 << 16);
    Cluster::embedded(EmbeddedConfig { servers, chunk_bytes, locks_per_server, ..EmbeddedConfig::default() })
        .unwrap()
}

/// Trees of tiny nodes, so of many levels: keys are removed from one end, from the other, or all over.
#[test]
fn a_tree_of_which_all_was_removed_is_a_leaf_and_grows_again() {
    const KEYS: u64 = 1_000;
    for (kind, order) in [IndexKind::Sherman, IndexKind::Chime]
        .into_iter()
        .flat_map(|kind| [1, KEYS - 1, 7 * 11 * 13 * 17].map(|step| (kind, step)))
    {
        with_parties_on(
            &many_locks(),
            Parties::Shards(1),
            Shape::TINY.usual(kind),
            move |cluster| async move {
                let index = &cluster.index;
                for round in 0..2 {
                    for n in 0..KEYS {
                        assert!(index.insert(&key(n), &[round]).await.unwrap());
                    }
                    let expected = (0..KEYS).map(|n| (key(n).to_vec(), vec![round])).collect();
                    cluster.rest().await;
                    cluster.holds(&expected).await;
                    assert!(index.survey().await.unwrap().height > 4);
                    for n in 0..KEYS {
                        assert!(index.remove(&key(n * order % KEYS)).await.unwrap());
                    }
                    cluster.rest().await;
                    cluster.holds(&Default::default()).await;
                    let survey = index.survey().await.unwrap();
                    assert_eq!(
                        (survey.height, survey.inner_nodes, survey.leaves),
                        (1, 0, 1),
                        "{kind:?} {order}"
                    );
                    cluster.rest().await;
                }
            },
        );
    }
}

/// Copies of inner nodes lead to those that were merged, and to roots that got lower: their memory is no other node's
/// before caches were emptied. So it is with leaves of CHIME.
#[test]
fn inner_nodes_that_were_merged_wait_for_a_flush() {
    const KEYS: u64 = 600;
    for kind in [IndexKind::Sherman, IndexKind::Chime] {
        // In chunks of which they are so small a part that no shard asks for a flush.
        let config = EmbeddedConfig { chunk_bytes: 1 << 20, ..EmbeddedConfig::default() };
        let cluster = Cluster::embedded(config).unwrap();
        with_parties_on(&cluster, Parties::ONE, Shape::TINY.usual(kind), move |cluster| async move {
            let (index, shard) = (&cluster.index, &cluster.shard);
            for n in 0..KEYS {
                assert!(index.insert(&key(n), b"value").await.unwrap());
            }
            cluster.rest().await;
            let before = index.survey().await.unwrap();
            for n in 0..KEYS {
                assert!(index.remove(&key(n)).await.unwrap());
            }
            cluster.rest().await;
            let since = shard.pins().retired_now();
            while !shard.pins().is_over(since) {
                shard.control().want_epoch();
                shard.pause(1_000).await;
            }
            // A split has leaves of Sherman looked after, which wait for no flush.
            for n in 0..40 {
                assert!(index.insert(&key(n), b"again").await.unwrap());
            }
            cluster.rest().await;
            let after = index.survey().await.unwrap();
            let gone = before.inner_nodes - after.inner_nodes;
            let least = match kind {
                // Its leaves, too: readers conclude from their addresses for which keys they answer.
                IndexKind::Chime => before.used_bytes - after.used_bytes,
                _ => gone * 128,
            };
            let books = index.books();
            assert!(gone > 50 && books.retired_bytes >= least, "{kind}: {gone} inner nodes, {books:?}");
            let since = shard.pins().retired_now();
            while shard.pins().flushed_since(since).is_none_or(|since| !shard.pins().is_over(since)) {
                shard.control().want_flush(since);
                shard.pause(1_000).await;
            }
            // A shard takes back what is free when it needs a node.
            for n in KEYS..KEYS + 40 {
                assert!(index.insert(&key(n), b"again").await.unwrap());
            }
            cluster.rest().await;
            let books = index.books();
            assert!(books.retired_bytes < least && books.reclaimed_bytes >= least, "{kind}: {books:?}");
            cluster.finish().await;
        });
    }
}

/// One client removes all keys but each hundredth, and puts them back, while another one scans.
#[test]
fn scans_see_each_key_once_while_leaves_are_merged() {
    const KEYS: u64 = 5_000;
    with_each(|cluster, _| async move {
        let index = Rc::new(cluster.index.clone());
        for n in 0..KEYS {
            index.insert(&key(n), b"value").await.unwrap();
        }
        let changes = async {
            for _ in 0..3 {
                for n in (0..KEYS).filter(|n| n % 100 != 0) {
                    index.remove(&key(n)).await.unwrap();
                }
                for n in (0..KEYS).filter(|n| n % 100 != 0) {
                    index.insert(&key(n), b"value").await.unwrap();
                }
            }
        }
        .shared();
        let scans = async {
            while changes.peek().is_none() {
                let pairs: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
                let found: Vec<u64> = pairs.iter().map(|(key, _)| number(key)).collect();
                assert!(found.is_sorted_by(|a, b| a < b), "a key comes twice, or too late");
                assert!(found.iter().filter(|n| *n % 100 == 0).count() as u64 == KEYS / 100);
            }
        };
        join!(changes.clone(), scans);
        cluster.rest().await;
    });
}
