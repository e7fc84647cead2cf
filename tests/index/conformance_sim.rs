//! The promises of every index, on the simulated fabric: without and with much reordering, with few credits and many,
//! and with control services that take their time. One thread and virtual time, so that a failure comes again.

use std::future::Future;
use std::num::NonZero;

use farwood::runtime::sim::{SimConfig, SimShard};

use crate::conformance::{Fabric, Size, index_conformance_tests};
use crate::kit::cluster::{Parties, Seat};
use crate::kit::simulated::{ROUGH, calm, simulate};

struct Simulated;

index_conformance_tests!(Simulated);

impl Fabric for Simulated {
    type V = SimShard;

    const SIZE: Size = Size::FULL;

    fn run<F, R>(parties: Parties, make: impl Fn() -> F)
    where
        F: Fn(Seat<SimShard>) -> R + Clone + Send + 'static,
        R: Future<Output = ()> + 'static,
    {
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
            simulate(&config, parties, make());
        }
    }
}
