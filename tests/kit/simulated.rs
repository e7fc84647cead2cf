//! Parties on the simulated fabric: one thread and virtual time, so that a failure comes again.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farwood::runtime::sim::{Profile, Reordering, SimConfig, Simulation};
use farwood::runtime::{Control, Port, PortLease};
use farwood::{IndexSpec, NodeContext};

use super::cluster::{Main, Parties, Seat, TestCluster, as_main, at_index, to_the_end};
use super::shard::TestShard;

/// Far beyond what any test takes.
const LATE_NS: u64 = 600_000_000_000;

/// Lines of one access at different times and in any order, messages that overtake each other.
pub(crate) const ROUGH: Reordering =
    Reordering { lines: true, scatter_one_in: 3, scatter_ns: 5_000, jitter_ns: 2_000, in_order_write: false };

/// On-chip memory of few locks: all words are looked at after every run.
const PROFILE: Profile = Profile { device_bytes: 8 << 10, ..Profile::CONNECTX5 };

/// Yields a small cluster of two servers in calm reordering.
pub(crate) fn calm(parties: Parties) -> SimConfig {
    SimConfig {
        profile: PROFILE,
        nodes: parties.nodes() as u16,
        shards: parties.shards() as u16,
        servers: 2,
        bytes_per_server: 64 << 20,
        locks_per_server: 1024,
        chunk_bytes: 64 << 10,
        ..SimConfig::default()
    }
}

/// Runs `main` on every shard of all `parties` and waits for all of them.
pub(crate) fn simulate(config: &SimConfig, parties: Parties, main: &Main<Seat<TestShard>>) {
    let simulation = Simulation::new(config).unwrap();
    let ended = Rc::new(Cell::new(0));
    for node in 0..config.nodes {
        let simulated = simulation.node(node);
        let host: Arc<dyn NodeContext> = Arc::new(LentNode {
            control: simulated.control(),
            ports: AtomicU32::new(0),
            seed: simulated.seed(),
        });
        for shard in 0..config.shards {
            let shard = simulation.shard(node, shard);
            let (seated, host) = (TestShard::Simulated(shard.clone()), Arc::clone(&host));
            let seat = Seat { shard: seated, host, node: usize::from(node) };
            let (body, ended) = (main(seat), Rc::clone(&ended));
            drop(shard.spawn(async move {
                body.await;
                ended.set(ended.get() + 1);
            }));
        }
    }
    simulation.run(LATE_NS, || ended.get() == parties.count()).unwrap();
}

/// Runs `main` on every shard, on a fresh index. Afterwards nothing may be left behind, and the index must pass its
/// check.
pub(crate) fn simulate_parties<F, R>(config: &SimConfig, parties: Parties, recipe: IndexSpec, main: F)
where
    F: Fn(TestCluster) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    simulate(config, parties, &at_index(parties, recipe, to_the_end(as_main(main))));
}

/// A compute node that clients can hold on to: the simulation owns its own, and the clients.
struct LentNode {
    control: Arc<dyn Control>,
    ports: AtomicU32,
    seed: u64,
}

impl NodeContext for LentNode {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn allocate_port(&self) -> PortLease {
        PortLease::for_ever(Port(self.ports.fetch_add(1, Ordering::Relaxed)))
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}
