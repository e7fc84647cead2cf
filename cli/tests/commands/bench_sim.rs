//! `farwood bench` on the simulated fabric: the same contract as on the others, in virtual time, and the same result
//! for the same seed.

use std::fs;

use serde_json::Value;

use crate::WORKLOADS;
use crate::kit::{KINDS, Scratch, farwood};

/// Runs a small simulated benchmark and returns what is on standard output.
#[track_caller]
fn simulate(flags: &[&str]) -> String {
    let small = ["bench", "--fabric", "sim:connectx5", "--keys", "2k", "--memory", "64MiB", "--shards", "5"];
    let rest = ["--clients", "20", "--warmup", "200us", "--scan-length", "20", "--quiet"];
    let words: Vec<&str> = small.iter().chain(&rest).chain(flags).copied().collect();
    let ran = farwood(&words);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{flags:?}");
    ran.stdout
}

#[track_caller]
fn json(flags: &[&str]) -> Value {
    let text = simulate(&[flags, &["--json", "-"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// Removes the one figure that is of this process.
#[track_caller]
fn virtual_part(mut result: Value) -> Value {
    let rss = result["compute"].as_object_mut().expect("an object").remove("rss_bytes");
    assert!(rss.is_some_and(|rss| rss.as_u64() > Some(0)));
    result
}

#[test]
fn every_workload_runs_and_reports() {
    KINDS.iter().for_each(|index| check_every_workload(index));
}

fn check_every_workload(index: &str) {
    for workload in WORKLOADS {
        let result = json(&["--index", index, "--workload", workload, "--ops", "1500"]);
        assert_eq!((&result["schema"], &result["latency_sampling"]), (&1.into(), &1.into()));
        let config = &result["config"];
        assert_eq!((&config["fabric"], &config["workload"]), (&"sim:connectx5".into(), &workload.into()));
        assert_eq!((&config["shards"], &config["servers"]), (&5.into(), &1.into()));
        // The NICs that are simulated have memory of their own.
        assert!(config["techniques"].get("on_chip").is_none_or(|on| on == true), "{index} {workload}");
        let phases = result["phases"].as_array().expect("an array");
        let has_load = !["load", "lock", "raw"].contains(&workload);
        assert_eq!(phases.len(), if has_load { 2 } else { 1 }, "{workload}");
        assert!(phases.iter().all(|phase| phase["seconds"].as_f64() > Some(0.0)), "{workload}");
        let run = phases.last().expect("a run");
        assert_eq!((&run["name"], &run["ops"]), (&"run".into(), &1500.into()), "{workload}");
        for (name, kind) in run["kinds"].as_object().expect("an object") {
            let (ops, latency) = (kind["ops"].as_u64(), &kind["latency_ns"]);
            assert_eq!(ops, latency["samples"].as_u64(), "{workload} {name}: every one is timed");
            // Nothing that goes over a network takes less than two microseconds, whatever this machine does.
            assert!(ops == Some(0) || latency["p50"].as_u64() >= Some(2000), "{workload} {name}: {latency}");
        }
    }
}

#[test]
fn a_seed_determines_the_result() {
    for flags in [
        &["--workload", "write-intensive", "--duration", "2ms"][..],
        &["--workload", "lock", "--ops", "2000", "--servers", "2"],
        &["--workload", "ycsb-d", "--duration", "2ms", "--key", "string", "--rate", "500k"],
        &["--workload", "write-intensive", "--duration", "2ms", "--index", "smart"],
        &["--workload", "ycsb-d", "--duration", "2ms", "--key", "string", "--index", "smart"],
    ] {
        let of_seed = |seed| virtual_part(json(&[flags, &["--seed", seed]].concat()));
        let first = of_seed("7");
        assert_eq!(first, of_seed("7"), "{flags:?}");
        assert_ne!(first["phases"], of_seed("8")["phases"], "{flags:?}");
    }
}

#[test]
fn durations_and_rates_are_of_virtual_time() {
    let run = |flags| json(flags)["phases"][1].clone();
    let seconds = |flags| run(flags)["seconds"].as_f64().expect("a number");
    assert!((0.003..0.0035).contains(&seconds(&["--duration", "3ms"])));
    // Far below what the NICs can do, an open loop keeps its rate.
    let paced = run(&["--duration", "3ms", "--rate", "200k", "--workload", "ycsb-c"]);
    assert!((550..=600).contains(&paced["ops"].as_u64().expect("a number")), "{paced}");
    let p50 = paced["kinds"]["get"]["latency_ns"]["p50"].as_u64().expect("a number");
    assert!((3_000..8_000).contains(&p50), "a round trip and the client's work: {p50}");
}

#[test]
fn other_nics_and_techniques_count() {
    let throughput = |flags: &[&str]| {
        let small = ["bench", "--keys", "2k", "--memory", "64MiB", "--warmup", "0", "--json", "-"];
        let words: Vec<&str> = small.iter().chain(flags).copied().collect();
        let ran = farwood(&words);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let result: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        (result["phases"][0]["throughput"].as_f64().expect("a number"), result)
    };
    let spinning = ["--workload", "lock", "--ops", "20k", "--shards", "22", "--clients", "22"];
    let with = |fabric, more: &[&'static str]| {
        throughput(
            &[&["--fabric", fabric][..], &spinning, &["--technique", "hierarchical=off"], more].concat(),
        )
    };
    let (on_chip, result) = with("sim:connectx6", &[]);
    assert_eq!(result["config"]["fabric"], "sim:connectx6");
    let (in_host, result) = with("sim:connectx6", &["--technique", "on_chip=off"]);
    assert_eq!(result["config"]["techniques"]["on_chip"], false);
    assert!(on_chip > in_host, "Sherman, section 4.3: {on_chip} and {in_host}");
}

#[test]
fn a_history_has_virtual_times() {
    let scratch = Scratch::new("sim_history");
    let path = scratch.path("history");
    let table = simulate(&["--ops", "1000", "--history", &path]);
    assert!(table.contains("times are virtual") && table.contains("p99.9"), "{table}");
    assert_eq!(scratch.files(), ["history"]);
    let text = fs::read_to_string(&path).expect("written");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(events.len() > 2000 + 1000, "load and warm-up are part of it");
    for event in &events {
        let time = |key: &str| event[key].as_u64().expect("a number");
        // A whole run is over some milliseconds after the world began.
        assert!(time("start_ns") < time("end_ns") && time("end_ns") < 100_000_000, "{event}");
    }
}
