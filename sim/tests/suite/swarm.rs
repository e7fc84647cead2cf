//! Small swarms of every kind of index, so that `cargo test` notices a broken one. `farwood sim run` has the large
//! ones, and `.ci/run` takes thousands of seeds of each kind.

use std::ops::Range;

use farwood_index::IndexKind;
use farwood_sim::runner::run;
use farwood_sim::scenario::{Overrides, Scenario};

/// Asserts that all `seeds` pass. `rest` is what a command line needs beside the seed.
fn passes(seeds: Range<u64>, overrides: &Overrides, rest: &str) {
    for seed in seeds {
        let scenario = Scenario::draw(seed, overrides);
        let report = run(&scenario, false);
        let (kind, next) = (overrides.kind, seed + 1);
        assert_eq!(
            report.failure, None,
            "seed {seed}: farwood sim run --index {kind} --seeds {seed}..{next}{rest}\n{scenario}"
        );
        assert!(!report.undecided, "seed {seed}: the history is beyond what the oracles can decide");
    }
}

/// A test for each kind, since one takes one core for seconds.
macro_rules! a_small_swarm_passes {
    ($name:ident = $kind:ident) => {
        #[test]
        fn $name() {
            passes(1_000..1_100, &Overrides { kind: IndexKind::$kind, ..Overrides::default() }, "");
        }
    };
}

farwood_index::for_each_index_kind!(a_small_swarm_passes!());

/// Switches on techniques that are not of the paper, and off by default: few seeds of the large swarms have both.
#[test]
fn sherman_that_shares_operations() {
    let techniques = ["delegation", "combining"].map(|name| (name.to_owned(), true)).to_vec();
    passes(
        1_000..1_150,
        &Overrides { techniques, ..Overrides::default() },
        " --technique delegation=on --technique combining=on",
    );
}
