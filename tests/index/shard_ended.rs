//! A shard whose executor returns without closing it, while another shard of its node is at work: what only it could
//! grant is an error that says so, at once, and not a wait for a lock that names the caller's own node.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use farwood::lock::LockError;
use farwood::{AccessError, RangeIndex, WriteError, run_executor};
use futures::executor::block_on;
use glommio::{LocalExecutorBuilder, Placement};

use crate::kit;
use crate::kit::{IndexKind, Shape, TestShard, key};

const KEYS: u64 = 200;

#[test]
fn operations_that_need_a_shard_that_has_ended_say_so() {
    for &kind in IndexKind::ALL {
        let cluster = kit::cluster();
        let node = kit::node(&cluster, 2);
        let mut spec = Shape::TINY.usual(kind);
        // Locks that shards share are at home on none.
        spec.set_technique("shared_updates", false);
        let tree = Arc::new(block_on(spec.create(&node, "t")).unwrap());
        let (ended, has_ended) = channel();
        let leaving = {
            let (node, tree) = (Arc::clone(&node), Arc::clone(&tree));
            std::thread::spawn(move || {
                let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
                run_executor(&executor, async move {
                    let index = tree.attach(TestShard::Node(node.attach().await.unwrap()));
                    for n in 0..KEYS {
                        index.put(&key(n), b"first").await.unwrap();
                    }
                });
                drop(executor);
                ended.send(()).unwrap();
            })
        };
        let working = std::thread::spawn(move || {
            let executor = LocalExecutorBuilder::new(Placement::Unbound).make().unwrap();
            run_executor(&executor, async move {
                let index = tree.attach(TestShard::Node(node.attach().await.unwrap()));
                wait_for(&has_ended).await;
                let mut refused = 0;
                for n in 0..KEYS {
                    match index.put(&key(n), b"second").await {
                        Ok(()) => {
                            assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&b"second"[..]))
                        }
                        Err(WriteError::Access(AccessError::Lock(error @ LockError::ShardEnded { .. }))) => {
                            assert!(error.to_string().contains("its executor returned before"), "{error}");
                            refused += 1;
                        }
                        Err(error) => panic!("{kind:?}: {error}"),
                    }
                }
                assert!((1..KEYS).contains(&refused), "{kind:?}: some locks are at home there: {refused}");
                assert_eq!(index.stats().locks.remote_failed, 0, "no lock was waited for");
            });
        });
        leaving.join().unwrap();
        working.join().unwrap();
    }
}

async fn wait_for(event: &Receiver<()>) {
    while event.try_recv().is_err() {
        glommio::timer::sleep(std::time::Duration::from_millis(1)).await;
    }
}
