//! A compute node that has ended leaves nothing behind, and one that begins does begin: a process may open and close
//! any number of them, on a busy machine too.

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, Cluster, ComputeNode, Meter, NodeConfig, RemotePtr, Shard, Verbs};

const NODES: usize = 20;

/// A node whose pollers step aside in every eighth turn: one that does so while its shard is closed has to come back.
fn node(cluster: &Arc<Cluster>, shards: usize) -> Arc<ComputeNode> {
    ComputeNode::new(Arc::clone(cluster), NodeConfig { shards, reactor_us: 1, ..NodeConfig::default() })
}

/// Work whose last chains nobody waits for.
async fn work(shard: Shard, at: RemotePtr) {
    for _ in 0..10 {
        let own = shard.clone();
        shard
            .spawn(async move {
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                own.submit(&Meter::default(), chain).await.unwrap();
                let mut chain = Chain::new(at.server());
                chain.faa(at, 1);
                drop(own.post(&Meter::default(), chain));
            })
            .await;
    }
}

#[test]
fn nodes_that_ran_are_gone() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that run and end", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let before = Arc::strong_count(&cluster);
    for _ in 0..NODES {
        node(&cluster, 2).run(move |shard| work(shard, at)).unwrap();
        assert_eq!(Arc::strong_count(&cluster), before);
    }
}

#[test]
fn nodes_that_were_attached_are_gone_when_they_are_closed() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that are attached and closed", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let before = Arc::strong_count(&cluster);
    for _ in 0..NODES {
        let node = node(&cluster, 1);
        let service = move || async move {
            let shard = node.attach().unwrap();
            work(shard.clone(), at).await;
            shard.close().await;
        };
        kit::on_executor(None, service).join().unwrap();
        assert_eq!(Arc::strong_count(&cluster), before);
    }
}

/// An executor whose thread loses its core for long enough between arming the preemption timer and its first task
/// goes to sleep with that task in its queue, and without a timer that would wake it.
#[test]
fn nodes_begin_on_a_busy_machine() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("nodes that begin on a busy machine", 300);
    let cluster = kit::cluster(LineMode::Auto);
    let over = AtomicBool::new(false);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..4 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for _ in 0..10 * NODES {
            assert_eq!(node(&cluster, 1).run(async |shard: Shard| shard.id().0).unwrap(), [0]);
        }
        over.store(true, Ordering::Relaxed);
    });
}
