//! What every index promises, on the simulated fabric: in calm and in rough weather, with few credits and with many,
//! and with control services that take their time. One thread and virtual time, so that a failure comes again.

#[path = "kit/conformance/mod.rs"]
mod conformance;
mod kit;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use farwood::Host;
use farwood::runtime::sim::{Profile, SimConfig, SimShard, Simulation, Weather};
use farwood::runtime::{Control, Port};

use self::conformance::{Fabric, Size, index_conformance_tests};
use self::kit::party::{Parties, Seat};

struct Simulated;

index_conformance_tests!(Simulated);

/// Far beyond what any part takes.
const LATE_NS: u64 = 600_000_000_000;

const ROUGH: Weather =
    Weather { lines: true, scatter_one_in: 3, scatter_ns: 5_000, jitter_ns: 2_000, in_order_write: false };

/// On-chip memory of few locks: all words are looked at after every run.
const PROFILE: Profile = Profile { device_bytes: 8 << 10, ..Profile::CONNECTX5 };

impl Fabric for Simulated {
    type V = SimShard;

    const SIZE: Size = Size::FULL;

    fn run<F, R>(parties: Parties, make: impl Fn() -> F)
    where
        F: Fn(Seat<SimShard>) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        let calm = SimConfig {
            profile: PROFILE,
            nodes: parties.nodes() as u16,
            shards: parties.shards() as u16,
            servers: 2,
            bytes_per_server: 64 << 20,
            locks_per_server: 1024,
            chunk_bytes: 64 << 10,
            ..SimConfig::default()
        };
        let rough = SimConfig {
            seed: 2,
            weather: ROUGH,
            colocated: true,
            credits: 3,
            slow_control: true,
            ..calm.clone()
        };
        for config in [calm, rough] {
            simulate(&config, parties, make());
        }
    }
}

fn simulate<F, R>(config: &SimConfig, parties: Parties, main: F)
where
    F: Fn(Seat<SimShard>) -> R,
    R: Future<Output = ()> + 'static,
{
    let simulation = Simulation::new(config).unwrap();
    let ended = Rc::new(Cell::new(0));
    for node in 0..config.nodes {
        let simulated = simulation.node(node);
        let host: Arc<dyn Host> = Arc::new(LentHost {
            control: simulated.control(),
            ports: AtomicU16::new(0),
            seed: simulated.seed(),
        });
        for shard in 0..config.shards {
            let shard = simulation.shard(node, shard);
            let seat = Seat { shard: shard.clone(), host: Arc::clone(&host), node: usize::from(node) };
            let (body, ended) = (main(seat), Rc::clone(&ended));
            drop(shard.spawn(async move {
                body.await;
                ended.set(ended.get() + 1);
            }));
        }
    }
    simulation.run(LATE_NS, || ended.get() == parties.count()).unwrap();
}

/// A compute node that clients can hold on to: the simulation owns its own, and the clients.
struct LentHost {
    control: Arc<dyn Control>,
    ports: AtomicU16,
    seed: u64,
}

impl Host for LentHost {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn allocate_port(&self) -> Port {
        Port(self.ports.fetch_add(1, Ordering::Relaxed))
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}
