//! A compute node that has ended leaves nothing behind: a process may open and close any number of them.

mod kit;

use std::sync::Arc;

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, Cluster, ComputeNode, Meter, NodeConfig, RemotePtr, Shard, Verbs};
use glommio::{LocalExecutorBuilder, Placement};

const NODES: usize = 20;

/// A node whose pollers step aside in every eighth turn: one that does so while its shard is closed has to come back.
fn node(cluster: &Arc<Cluster>, shards: usize) -> Arc<ComputeNode> {
    ComputeNode::new(Arc::clone(cluster), NodeConfig { shards, reactor_us: 1, ..NodeConfig::default() })
}

/// Threads of this process that look after executors, one for each node.
fn guards() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    // A thread may end between the listing and the reading.
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.trim() == "farwood-guard").count()
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
        let node = node(&cluster, 2);
        node.run(move |shard| work(shard, at)).unwrap();
        assert_eq!(guards(), 1, "the node itself is held still");
    }
    assert_eq!((Arc::strong_count(&cluster), guards()), (before, 0));
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
        LocalExecutorBuilder::new(Placement::Unbound).spawn(service).unwrap().join().unwrap();
    }
    assert_eq!((Arc::strong_count(&cluster), guards()), (before, 0));
}
