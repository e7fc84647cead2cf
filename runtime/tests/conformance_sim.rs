//! The fabric contract on the simulated fabric: every part of the body in calm and in rough reordering, over several
//! seeds, with many credits and with few.
#![cfg(feature = "sim")]

#[path = "kit/conformance/mod.rs"]
mod conformance;

use std::future::Future;
use std::num::NonZero;

use farwood_runtime::sim::{Reordering, SimConfig, SimShard, Simulation};
use farwood_runtime::{IndexId, Verbs};
use futures::FutureExt;

use self::conformance::{Fabric, Probed, Site, conformance_tests};

struct Simulated;

conformance_tests!(Simulated);

const AREA_BYTES: u64 = 1 << 20;
/// A time far beyond what any part takes.
const LATE_NS: u64 = 60_000_000_000;

const ROUGH: Reordering =
    Reordering { lines: true, scatter_one_in: 3, scatter_ns: 5_000, jitter_ns: 2_000, in_order_write: false };

impl Fabric for Simulated {
    type V = SimShard;

    fn run<F, R>(shards: usize, main: F)
    where
        F: Fn(SimShard, Site) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
        let in_order = Reordering { in_order_write: true, ..ROUGH };
        for (seed, reordering, colocated, credits) in [
            (1, Reordering::NONE, false, 4096),
            (2, ROUGH, false, 3),
            (3, in_order, true, 4096),
            (4, ROUGH, true, 4096),
        ] {
            let config = SimConfig {
                seed,
                reordering,
                colocated,
                credits: NonZero::new(credits).unwrap(),
                shards: shards as u16,
                servers: 2,
                bytes_per_server: 8 << 20,
                chunk_bytes: AREA_BYTES,
                ..SimConfig::default()
            };
            let run = || {
                let simulation = Simulation::new(&config).unwrap();
                let control = simulation.shard(0, 0).control().clone();
                let area = |id: usize| {
                    let server = control.servers()[id].id;
                    control.chunk(server, IndexId(1)).now_or_never().unwrap().unwrap().start
                };
                let site = Site { starts: [area(0), area(1)], bytes: AREA_BYTES };
                let ended = std::rc::Rc::new(std::cell::Cell::new(0));
                for shard in 0..shards as u16 {
                    let shard = simulation.shard(0, shard);
                    let (body, ended) = (main(shard.clone(), site), ended.clone());
                    drop(shard.spawn(async move {
                        body.await;
                        ended.set(ended.get() + 1);
                    }));
                }
                simulation.run(LATE_NS, || ended.get() == shards).unwrap();
                simulation.trace_hash()
            };
            assert_eq!(run(), run(), "the same seed did two different things");
        }
    }
}

impl Probed for SimShard {
    fn buffers_leased(&self) -> usize {
        SimShard::buffers_leased(self)
    }

    fn chains_in_flight(&self) -> usize {
        SimShard::chains_in_flight(self)
    }
}
