//! A busy shard does not keep the timers and sockets of its executor waiting for glommio's preemption timer.

use std::time::Duration;

use farwood_runtime::clock::Clock;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, ComputeNode, Meter, NodeConfig, RemotePtr, Shard, Verbs};
use futures::{AsyncReadExt, AsyncWriteExt};
use glommio::net::UnixStream;

use crate::kit;

const CLIENTS: usize = 32;
const WAITS: u32 = 40;

/// Runs as a client of the pool that never rests.
async fn hammer(shard: Shard, at: RemotePtr) {
    loop {
        let mut chain = Chain::with_buffer(at.server(), shard.lease(1024));
        chain.read(at, 0..1024);
        shard.submit(&Meter::default(), chain).await.unwrap();
    }
}

/// Returns the time in ms that [`WAITS`] waits for a timer and a socket took together.
fn waits_beside_a_busy_shard(reactor_interval: Duration) -> u64 {
    let cluster = kit::cluster(LineMode::Auto);
    let at = kit::area(&cluster, 0);
    let config = NodeConfig { shards: 1, reactor_interval, ..NodeConfig::default() };
    let node = ComputeNode::new(cluster, config).unwrap();
    let executor = kit::on_executor(None, move || async move {
        let shard = node.attach().await.unwrap();
        for _ in 0..CLIENTS {
            shard.spawn(hammer(shard.clone(), at));
        }
        let (mut near, mut far) = UnixStream::pair().unwrap();
        glommio::spawn_local(async move {
            let mut byte = [0];
            while far.read(&mut byte).await.is_ok_and(|read| read > 0) {
                far.write_all(&byte).await.unwrap();
            }
        })
        .detach();
        let clock = Clock::new();
        for _ in 0..WAITS {
            glommio::timer::sleep(Duration::from_micros(100)).await;
            near.write_all(b"x").await.unwrap();
            near.read_exact(&mut [0]).await.unwrap();
        }
        clock.now() / 1_000_000
    });
    executor.join().unwrap()
}

#[test]
fn a_busy_shard_lets_the_reactor_run() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("a busy shard beside a service", 60);
    let took = waits_beside_a_busy_shard(NodeConfig::default().reactor_interval);
    // Two or three quanta each. With glommio's own timer alone each would take 100 ms or more.
    assert!(took < u64::from(WAITS) * 50, "{WAITS} waits took {took} ms");
}
