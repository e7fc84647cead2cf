//! Shards embedded in a service: they serve each other until the last is done, on executors that Farwood starts and on
//! the service's own, and everything they took is given back in the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use farwood::{RangeIndex, Shard, Verbs, run_executor};
use futures::executor::block_on;
use glommio::{LocalExecutorBuilder, Placement};

use crate::kit;
use crate::kit::{IndexKind, Parties, Shape, TestShard, key};

/// Every shard is the home of some locks. One whose own part is done first must go on serving the others.
#[test]
fn a_shard_that_is_done_first_serves_the_others() {
    for &kind in IndexKind::ALL {
        let recipe = Shape::TINY.usual(kind);
        let results = kit::with_parties(Parties::Shards(3), recipe, |cluster| async move {
            if cluster.place != 1 {
                return cluster.place;
            }
            for n in 0..300 {
                cluster.index.put(&key(n), &key(n)).await.unwrap();
                cluster.shard.pause(1000).await;
            }
            cluster.place
        });
        assert_eq!(results, [0, 1, 2]);
    }
}

#[test]
fn a_node_that_is_done_gives_its_memory_back() {
    for &kind in IndexKind::ALL {
        let cluster = kit::cluster();
        let seen: Weak<_> = Arc::downgrade(&cluster);
        let node = kit::node(&cluster, 2);
        let tree = Arc::new(block_on(Shape::USUAL.usual(kind).create(&node, "t")).unwrap());
        node.run(move |shard| {
            let index = tree.attach(TestShard::Node(shard.clone()));
            async move {
                for n in 0..100 {
                    index.put(&key(n), &key(n)).await.unwrap();
                }
            }
        })
        .unwrap();
        drop((node, cluster));
        assert_eq!(seen.strong_count(), 0, "the memory of the cluster is still held");
    }
}

/// A service that has executors already: a shard is attached to each, and clients are tasks of the service.
#[test]
fn shards_of_the_services_own_executors() {
    IndexKind::ALL.iter().copied().for_each(serve);
}

fn serve(kind: IndexKind) {
    let cluster = kit::cluster();
    let node = kit::node(&cluster, 2);
    let tree = Arc::new(block_on(Shape::TINY.usual(kind).create(&node, "t")).unwrap());
    let done = Arc::new(AtomicUsize::new(0));
    let executors: Vec<_> = (0..2u64)
        .map(|place| {
            let (node, tree, done) = (Arc::clone(&node), Arc::clone(&tree), Arc::clone(&done));
            std::thread::spawn(move || {
                let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
                run_executor(&executor, async move {
                    let shard = node.attach().await.unwrap();
                    let index = tree.attach(TestShard::Node(shard.clone()));
                    let tasks: Vec<_> = (0..20u64)
                        .map(|task| {
                            let index = index.clone();
                            glommio::spawn_local(async move {
                                for n in (0..20).map(|i| i * 40 + 2 * task + place) {
                                    assert!(index.insert(&key(n), &key(n)).await.unwrap());
                                    assert_eq!(
                                        index.get(&key(n)).await.unwrap().as_deref(),
                                        Some(&key(n)[..])
                                    );
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await;
                    }
                    meet(&shard, &done, 2).await;
                    assert_eq!(index.survey().await.unwrap().keys, 800);
                    meet(&shard, &done, 4).await;
                });
            })
        })
        .collect();
    for executor in executors {
        executor.join().unwrap();
    }
    let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
    let late = run_executor(&executor, node.attach());
    assert!(late.is_err_and(|error| error.to_string().contains("more shards")));
}

/// Waits until so many are `done`, this one included. A bound on patience, not on time: another one that has panicked
/// never is.
async fn meet(shard: &Shard, done: &AtomicUsize, all: usize) {
    done.fetch_add(1, Ordering::SeqCst);
    for _ in 0..600_000 {
        if done.load(Ordering::SeqCst) >= all {
            return;
        }
        shard.pause(100_000).await;
    }
    panic!("the other shard has ended");
}
