//! The fabric contract on the simulated fabric: every part of the body in calm and in rough reordering, over several
//! seeds, with many credits and with few.

use std::num::NonZero;
use std::rc::Rc;

use farwood_runtime::sim::{Reordering, SimConfig, Simulation};

use crate::conformance::{Fabric, Main, Site, conformance_tests};
use crate::shard::TestShard;
use crate::sim::kit::{self, ROUGH, area, run_all, start};

struct Simulated;

conformance_tests!(Simulated);

impl Fabric<TestShard> for Simulated {
    fn run(&self, shards: usize, main: &Main<TestShard>) {
        let in_order = Reordering { in_order_write: true, ..ROUGH };
        for (seed, reordering, colocated, credits) in [
            (1, Reordering::NONE, false, 4096),
            (2, ROUGH, false, 3),
            (3, in_order, true, 4096),
            (4, ROUGH, true, 4096),
        ] {
            let (nodes, shards, credits) = (1, shards as u16, NonZero::new(credits).unwrap());
            let config = SimConfig { colocated, credits, nodes, shards, ..kit::config(seed, reordering) };
            let run = || {
                let simulation = Simulation::new(&config).unwrap();
                let starts = [0, 1].map(|server| area(&simulation, server));
                let (site, alive) = (Site { starts, bytes: config.chunk_bytes }, Rc::default());
                for shard in 0..shards {
                    let shard = simulation.shard(0, shard);
                    start(&shard, &alive, main(TestShard::Simulated(shard.clone()), site));
                }
                run_all(&simulation, &alive);
                simulation.trace_hash()
            };
            assert_eq!(run(), run(), "the same seed did two different things");
        }
    }
}
