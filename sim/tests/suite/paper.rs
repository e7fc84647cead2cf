//! The papers' experiments on a small scale: what they are made of runs, and figures follow from it. Here and not
//! beside the experiments, since unit tests that run an index are compiled with all indexes once more.

use farwood_index::OpKind;
use farwood_sim::paper::cluster::{Setup, run};
use farwood_sim::paper::workload::{KEYS_OF_DOLPHIN, Popularity};
use farwood_sim::paper::{Effort, Experiment, NamedSetup, Row, chime_setups, dolphin_setups, smart_setups};

/// Runs three indexes with so many workloads each: as many writes as each asks for.
fn all_run(setups: Vec<NamedSetup>, workloads: usize) {
    assert_eq!(setups.len(), 3 * workloads);
    for NamedSetup { system, workload, setup } in setups {
        let measured = run(&setup).unwrap();
        assert!(measured.ops > 30, "{system}, {workload}: {}", measured.ops);
        let share = measured.writes.len() as f64 / measured.ops as f64;
        let expected = setup.mix.puts + setup.mix.updates + setup.mix.inserts;
        assert!((share - expected).abs() < 0.1, "{system}, {workload}: {share}");
    }
}

fn warmed_up_soon(mut setups: Vec<NamedSetup>) -> Vec<NamedSetup> {
    setups.iter_mut().for_each(|named| named.setup.warmup_ns = 100_000);
    setups
}

#[test]
fn all_systems_of_smarts_run_all_workloads() {
    all_run(smart_setups(&Effort { keys: 10_000, time_percent: 5, seed: 1 }), 6);
}

#[test]
fn all_systems_of_chimes_run_all_workloads() {
    all_run(warmed_up_soon(chime_setups(&Effort { keys: 10_000, time_percent: 5, seed: 1 })), 6);
}

#[test]
fn all_systems_of_dolphins_run_all_workloads() {
    all_run(warmed_up_soon(dolphin_setups(&Effort { keys: 10_000, time_percent: 5, seed: 1 })), 8);
}

fn rows_of(experiment: &str, effort: &Effort) -> Vec<Row> {
    let found = Experiment::ALL.into_iter().find(|other| other.name == experiment);
    found.expect("there is this experiment").run(effort).unwrap()
}

#[test]
fn amplifications_are_those_of_the_formats() {
    let effort = Effort { keys: 10_000, time_percent: 10, seed: 1 };
    let setups = smart_setups(&effort);
    let gets = setups.into_iter().find(|named| (named.system, named.workload) == ("SMART", "C")).unwrap();
    let pairs = Setup { popularity: Popularity::Uniform, key_bytes: 32, value_bytes: 64, ..gets.setup };
    let get = *run(&pairs).unwrap().stats.kind(OpKind::Get);
    let read = get.bytes_read as f64 / get.ops as f64 / 96.0;
    assert!((1.0..=1.2).contains(&read), "{read}");
    let rows = rows_of("smart-table1", &effort);
    let of = |figure: &str| rows.iter().find(|row| row.figure.starts_with(figure)).unwrap().simulated;
    assert!(of("B+tree, read") > 32.0 && of("B+tree, write") > 32.0 && of("Sherman, write") < 2.0);
}

#[test]
fn bytes_are_in_proportion_to_keys() {
    let of = |keys| rows_of("dolphin-table2", &Effort { keys, ..Effort::default() }).into_iter();
    // Of so few keys Dolphin has hardly an inner node.
    let both = of(10_000).zip(of(40_000)).filter(|(small, _)| !small.figure.starts_with("Dolphin"));
    let both: Vec<_> = both.collect();
    assert_eq!(both.len(), 4, "two figures of Sherman's, and of SMART's");
    for (small, large) in both {
        let ratio = small.simulated / large.simulated;
        assert!((0.8..1.25).contains(&ratio), "{small:?} {large:?}");
        if large.figure.contains("memory servers") {
            let bytes_per_key = large.simulated * 1e9 / KEYS_OF_DOLPHIN as f64;
            assert!(bytes_per_key > 16.0, "{large:?}");
        }
    }
}
