//! One seed, one run: the same seed does the same twice, whatever ran in between, and different seeds do not. (That
//! debug and release builds agree, `farwood sim run` shows: what it prints depends on the seeds alone.)

use std::collections::BTreeSet;

use farwood_index::IndexKind;
use farwood_sim::runner::run;
use farwood_sim::scenario::{Overrides, Scenario};

#[test]
fn the_same_seed_does_the_same() {
    for &kind in IndexKind::ALL {
        let overrides = Overrides { kind, ..Overrides::default() };
        let hashes = move || -> Vec<u64> {
            let scenarios = (100..106).map(|seed| Scenario::draw(seed, &overrides));
            scenarios
                .map(|scenario| {
                    let report = run(&scenario, false);
                    assert_eq!(report.failure, None, "{scenario}");
                    report.trace_hash
                })
                .collect()
        };
        let once = hashes();
        // Hash maps with random states, addresses and leftovers of other runs would show here.
        assert_eq!(once, hashes());
        assert_eq!(once.iter().collect::<BTreeSet<_>>().len(), once.len());
        assert_eq!(once, std::thread::spawn(hashes).join().unwrap());
    }
}

#[test]
fn notes_do_not_change_what_happens() {
    for &kind in IndexKind::ALL {
        let mix = farwood_runtime::sim::FaultMix::named("all");
        let scenario = Scenario::draw(5, &Overrides { kind, mix, ..Overrides::default() });
        assert_eq!(run(&scenario, false).trace_hash, run(&scenario, true).trace_hash);
    }
}
