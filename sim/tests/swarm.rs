//! A small swarm, so that whoever changes an index hears of it from `cargo test`. `farwood sim run` has the large one.

use farwood_sim::runner::run;
use farwood_sim::scenario::{Scenario, Wish};

#[test]
fn a_small_swarm_passes() {
    for seed in 1_000..1_300 {
        let scenario = Scenario::draw(seed, &Wish::default());
        let report = run(&scenario, false);
        assert_eq!(
            report.failure,
            None,
            "seed {seed}: farwood sim run --seeds {seed}..{}\n{scenario}",
            seed + 1
        );
        assert!(!report.undecided, "seed {seed}");
    }
}
