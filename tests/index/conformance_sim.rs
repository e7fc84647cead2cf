//! The promises of every index, on the simulated fabric: without and with much reordering, with few credits and many,
//! and with control services that take their time. One thread and virtual time, so that a failure comes again.

use std::num::NonZero;

use farwood::runtime::sim::SimConfig;

use crate::conformance::{Fabric, Size, index_conformance_tests};
use crate::kit::TestShard;
use crate::kit::cluster::{Main, Parties, Seat};
use crate::kit::simulated::{ROUGH, calm, simulate};

struct Simulated;

index_conformance_tests!(Simulated);

impl Fabric<TestShard> for Simulated {
    fn size(&self) -> Size {
        // Two settings, and swarms draw mixes there (`farwood sim run`), each seed with steps of its own: every mix is
        // run on the embedded fabric.
        Size { runs_mix: |place| place < 2 || place % 3 == 2, ..Size::of_this_run() }
    }

    fn run(&self, parties: Parties, make: &dyn Fn() -> Main<Seat<TestShard>>) {
        let calm = calm(parties);
        let rough = SimConfig {
            seed: 2,
            reordering: ROUGH,
            colocated: true,
            credits: NonZero::new(3).unwrap(),
            slow_control: true,
            ..calm.clone()
        };
        for config in [calm, rough] {
            simulate(&config, parties, &make());
        }
    }
}
