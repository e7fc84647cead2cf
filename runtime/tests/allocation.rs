//! Steady state allocates nothing: buffers, slots, chains and wakes are all taken from what is there.
//! A program of its own, since it has an allocator of its own.

#[path = "../../tests/kit/counting_allocator.rs"]
mod counting_allocator;
mod kit;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::{Chain, ComputeNode, Meter, NodeConfig, RemotePtr, Shard, Verbs};

use self::counting_allocator::allocations;

const CLIENTS: u64 = 16;
/// Interval in which the poller steps aside; the executor's timers allocate then.
const REACTOR_US: u64 = 250;
const PER_NAP: u64 = 4;
/// Chains between two readings of the counter.
const CHAINS: u64 = 10_000;

/// Progress of the clients, and whether they are to end.
#[derive(Default)]
struct Progress {
    chains: Cell<u64>,
    stop: Cell<bool>,
}

/// Most rounds that are tried.
const ROUNDS_MAX: usize = 1_000;

async fn operate(shard: Shard, at: RemotePtr, progress: Rc<Progress>) {
    let meter = Meter::default();
    for n in 0.. {
        if progress.stop.get() {
            break;
        }
        let mut chain = Chain::with_buffer(at.server(), shard.lease(1024));
        chain.read(at, 0..1024);
        let buf = shard.submit(&meter, chain).await.unwrap().into_buf();
        let mut chain = Chain::with_buffer(at.server(), buf);
        chain.write(at, 0..64).write(at.add(512), 512..768).write_word(at.add(1024), n);
        drop(shard.submit(&meter, chain).await.unwrap().into_buf());
        let mut chain = Chain::new(at.server());
        chain.cas(at.add(1024), n, n);
        assert_eq!(shard.submit(&meter, chain).await.unwrap().atomics[0], n);
        if n % 64 == 0 {
            shard.pause(1000).await;
        }
        drop(shard.submit(&meter, Chain::new(at.server())));
        progress.chains.set(progress.chains.get() + 4);
    }
}

#[test]
fn operations_of_pool_clients_allocate_nothing() {
    // The executor's timers allocate: not a poller that never steps aside.
    assert_eq!(fewest_allocations(0), 0);
    // A nap that was over too early is taken again, so their number is not exact. If one of the four kinds of chains
    // allocated, that would be a quarter of them.
    let beyond = fewest_allocations(REACTOR_US);
    println!("{beyond} allocations in {CHAINS} chains beyond the executor's own");
    assert!(beyond < CHAINS / 16, "{beyond} allocations");
}

/// Returns the fewest allocations in the time of [`CHAINS`] chains, but for those of the poller's naps.
fn fewest_allocations(reactor_us: u64) -> u64 {
    let _watchdog = kit::Watchdog::new("allocation", 60);
    let cluster = kit::cluster(LineMode::Auto);
    let base = kit::area(&cluster, 0);
    let reactor_interval = Duration::from_micros(reactor_us);
    let config = NodeConfig { shards: 1, reactor_interval, ..NodeConfig::default() };
    let least = ComputeNode::new(cluster, config).unwrap().run(move |shard| async move {
        let progress: Rc<Progress> = Rc::default();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| shard.spawn(operate(shard.clone(), base.add(client * 4096), Rc::clone(&progress))))
            .collect();
        let mut least = u64::MAX;
        // The executor itself allocates now and then (the heartbeat's timer): one round without that is proof. On a
        // busy machine rounds are long, so that there are few of these.
        for _ in 0..ROUNDS_MAX {
            if least == 0 {
                break;
            }
            let (from, before, begun) = (progress.chains.get(), allocations(), shard.now());
            while progress.chains.get() < from + CHAINS {
                shard.pause(50_000).await;
            }
            // One that was under way when the round began.
            let naps = (shard.now() - begun).checked_div(reactor_us * 1000).map_or(0, |naps| naps + 1);
            least = least.min((allocations() - before).saturating_sub(naps * PER_NAP));
        }
        progress.stop.set(true);
        for client in clients {
            client.await;
        }
        least
    });
    least.unwrap()[0]
}
