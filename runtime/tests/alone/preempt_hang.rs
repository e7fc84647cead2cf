//! glommio 0.9 loses wake-ups under short preemption timers: if the timer fires before the first task of a scheduling
//! round, the executor goes to sleep although tasks are runnable. A shard's heartbeat bounds that stall wherever a
//! service attaches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use farwood_runtime::clock::Clock;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, Meter, Shard, Verbs};

use crate::kit;

const TASKS: u64 = 50;
const ROUNDS: u64 = 20;

#[test]
fn operations_finish_under_short_preemption_timers() {
    let _alone = kit::alone();
    let _watchdog = kit::Watchdog::new("operations under a short preemption timer", 120);
    for timer in [Duration::from_micros(100), Duration::from_millis(1)] {
        let clock = Clock::new();
        let cluster = kit::cluster(LineMode::Auto);
        let at = kit::area(&cluster, 0);
        let node = kit::node(&cluster, 2, 20);
        let left = Arc::new(AtomicUsize::new(0));
        let executors: Vec<_> = (0..2)
            .map(|_| {
                let (node, left) = (Arc::clone(&node), Arc::clone(&left));
                kit::on_executor(Some(timer), move || async move {
                    let shard = node.attach().await.unwrap();
                    let done = serve(&shard, at).await;
                    left.fetch_add(1, Ordering::Release);
                    while left.load(Ordering::Acquire) < 2 {
                        shard.pause(1_000_000).await;
                    }
                    done
                })
            })
            .collect();
        let done: u64 = executors.into_iter().map(|executor| executor.join().unwrap()).sum();
        let ms = clock.now() / 1_000_000;
        println!("preemption timer {timer:?}: {done} operations in {ms} ms");
        assert_eq!(done, 2 * TASKS * ROUNDS * 2);
        assert!(ms < 30_000, "{done} operations took {ms} ms");
    }
}

/// Runs ordinary tasks and clients of the pool, with idle moments between their operations.
async fn serve(shard: &Shard, at: farwood_runtime::RemotePtr) -> u64 {
    let client = |shard: Shard, pooled: bool| async move {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(at.server());
            chain.faa(at, 1);
            shard.submit(&Meter::default(), chain).await.unwrap();
            if round % 4 == 0 {
                match pooled {
                    true => shard.pause(shard.random() % 500_000).await,
                    false => glommio::timer::sleep(Duration::from_micros(shard.random() % 500)).await,
                }
            }
        }
        ROUNDS
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| glommio::spawn_local(client(shard.clone(), false))).collect();
    let clients: Vec<_> = (0..TASKS).map(|_| shard.spawn(client(shard.clone(), true))).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await;
    }
    for client in clients {
        done += client.await;
    }
    done
}
