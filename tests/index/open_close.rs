//! An index may be opened and closed any number of times in one compute node: its actors go with its last handle, and
//! its ports are used again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use farwood::{AnyTree, Cluster, ComputeNode, EmbeddedConfig, NodeConfig, RangeIndex, Shard, Verbs};
use futures::future::join_all;

use crate::kit::{IndexKind, Shape, TestShard};

const SHARDS: usize = 2;
const OPENS: usize = 30;
const CLIENTS: u64 = 8;

/// Yields the number of openings; the environment may set another one for runs by hand.
fn opens() -> usize {
    std::env::var("FARWOOD_TEST_OPENS").map_or(OPENS, |opens| opens.parse().expect("a number of opens"))
}

/// Lets all shards come to the same point.
async fn meet(shard: &Shard, met: &AtomicUsize, round: usize) {
    met.fetch_add(1, Ordering::AcqRel);
    while met.load(Ordering::Acquire) < SHARDS * round {
        shard.pause(200_000).await;
    }
}

fn node() -> Arc<ComputeNode> {
    let cluster =
        Cluster::embedded(EmbeddedConfig { bytes_per_server: 64 << 20, ..EmbeddedConfig::default() });
    ComputeNode::new(cluster.unwrap(), NodeConfig { shards: SHARDS, ..NodeConfig::default() }).unwrap()
}

/// Lets clients of all shards work on few keys, and drops some of them half-way; then the index is closed.
fn is_opened_and_closed(kind: IndexKind) {
    let node = node();
    let spec = Shape::USUAL.usual(kind);
    let (met, opening) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&node));
    let opened: Arc<Mutex<Option<AnyTree>>> = Arc::default();
    let main = move |shard: Shard| {
        let (met, opening, opened) = (Arc::clone(&met), Arc::clone(&opening), Arc::clone(&opened));
        async move {
            for round in 0..opens() {
                if shard.id().0 == 0 {
                    let tree = match round {
                        0 => spec.create(&opening, "t").await,
                        _ => spec.open(&opening, "t").await,
                    };
                    *opened.lock().unwrap() = Some(tree.unwrap());
                }
                meet(&shard, &met, 3 * round + 1).await;
                let tree = opened.lock().unwrap().clone().unwrap();
                let index = tree.attach(TestShard::Node(shard.clone()));
                let clients = (0..CLIENTS).map(|client| {
                    let (index, own) = (index.clone(), shard.clone());
                    shard.spawn(async move {
                        for n in 0..20u64 {
                            let key = (n % 5).to_be_bytes();
                            let put = std::pin::pin!(index.put(&key, &key));
                            if (n + client).is_multiple_of(3) {
                                // Dropped after a while, maybe with a lock, maybe in the queue for one.
                                let soon = own.pause(own.random() % 3000);
                                futures::future::select(put, soon).await;
                            } else {
                                put.await.unwrap();
                            }
                        }
                    })
                });
                join_all(clients).await;
                meet(&shard, &met, 3 * round + 2).await;
                opened.lock().unwrap().take();
                drop((index, tree));
                // The actors of both ports go.
                while shard.actors() > 0 {
                    shard.pause(100_000).await;
                }
                meet(&shard, &met, 3 * round + 3).await;
            }
        }
    };
    node.run(main).unwrap();
    assert_eq!((node.ports_in_use(), node.abandoned()), (0, Default::default()));
}

#[test]
fn sherman_is_opened_and_closed() {
    is_opened_and_closed(IndexKind::Sherman);
}

#[test]
fn smart_is_opened_and_closed() {
    is_opened_and_closed(IndexKind::Smart);
}

#[test]
fn chime_is_opened_and_closed() {
    is_opened_and_closed(IndexKind::Chime);
}

#[test]
fn dolphin_is_opened_and_closed() {
    is_opened_and_closed(IndexKind::Dolphin);
}
