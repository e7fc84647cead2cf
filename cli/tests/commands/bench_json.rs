//! The JSON contract of `farwood bench`, for every workload, and the other things that a run leaves.

use std::fs;

use farwood::index::shell::Filled;
use serde_json::Value;

use crate::kit;
use crate::kit::{KINDS, Scratch, farwood, farwood_with_input};
use crate::{WORKLOADS, for_each_kind};

/// Runs a small benchmark and returns its JSON, which is all that is on standard output.
fn bench(flags: &[&str]) -> Value {
    let small = ["bench", "--keys", "5k", "--warmup", "10ms", "--scan-length", "20", "--json", "-"];
    let words: Vec<&str> = small.iter().chain(flags).copied().collect();
    let ran = farwood(&words);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{flags:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error} in {}", ran.stdout))
}

#[track_caller]
fn assert_integers(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].is_u64(), "{key} is {} in {object}", object[key]);
    }
}

#[track_caller]
fn assert_floats(object: &Value, keys: &[&str]) {
    for key in keys {
        assert!(object[key].is_f64(), "{key} is {} in {object}", object[key]);
    }
}

fn check_config(config: &Value, index: &str, workload: &str) {
    for key in ["index", "fabric", "workload", "dist", "key", "digest", "version"] {
        assert!(config[key].is_string(), "{key} is {}", config[key]);
    }
    assert_integers(config, &["keys", "value_size", "shards", "clients", "servers", "cache_bytes", "seed"]);
    assert_eq!((&config["index"], &config["workload"]), (&index.into(), &workload.into()));
    let techniques = config["techniques"].as_object().expect("an object");
    // The embedded fabric has no on-chip memory.
    let expected = kit::spec(index).effective(false).techniques();
    assert_eq!(techniques.len(), expected.len(), "{techniques:?}");
    assert!(expected.iter().all(|(name, on)| techniques[*name] == *on), "{techniques:?}");
    assert!(u64::from_str_radix(config["digest"].as_str().expect("checked above"), 16).is_ok());
}

fn check_phase(phase: &Value) {
    assert!(phase["name"].is_string());
    assert_integers(phase, &["ops"]);
    assert_floats(phase, &["seconds", "throughput"]);
    let kinds = phase["kinds"].as_object().expect("an object");
    for kind in ["get", "put", "insert", "update", "remove", "scan"] {
        assert!(kinds.contains_key(kind), "{kind}");
    }
    for kind in kinds.values() {
        assert_integers(kind, &["ops", "found", "entries", "round_trips_p99"]);
        let means =
            ["round_trips", "reads", "writes", "cas", "faa", "bytes_read", "bytes_written", "retries"];
        assert_floats(kind, &means);
        assert_integers(&kind["latency_ns"], &["min", "p50", "p90", "p99", "p999", "max"]);
        assert_floats(&kind["latency_ns"], &["mean"]);
        let times: Vec<u64> = ["min", "p50", "p90", "p99", "p999", "max"]
            .iter()
            .filter_map(|key| kind["latency_ns"][key].as_u64())
            .collect();
        assert!(times.is_sorted(), "{kind}");
    }
    let locks = ["acquired", "waited", "handed_over", "images", "remote_failed", "refused", "orphaned"];
    assert_integers(&phase["locks"], &locks);
    let shared = ["shared", "joined", "barred", "laneless", "overtaken", "awaited", "orphaned"];
    assert_integers(&phase["shared_locks"], &shared);
    let allocators = ["free_bytes", "retired_bytes", "unsettled_bytes", "reclaimed_bytes", "reused_bytes"];
    assert_integers(&phase["allocators"], &allocators);
    assert_integers(&phase["sharing"], &["reads_delegated", "writes_combined"]);
    let cache = ["lookups", "invalidated", "evicted", "speculations_right", "speculations_wrong"];
    assert_integers(&phase["cache"], &cache);
    assert_floats(&phase["cache"], &["hit_ratio"]);
}

#[test]
fn every_workload_keeps_the_contract() {
    for_each_kind(check_every_workload);
}

fn check_every_workload(index: &str) {
    for workload in WORKLOADS {
        let result = bench(&["--index", index, "--workload", workload, "--ops", "3000"]);
        assert_eq!(result["schema"], 1);
        check_config(&result["config"], index, workload);
        let phases = result["phases"].as_array().expect("an array");
        phases.iter().for_each(check_phase);
        let run = phases.last().expect("a run");
        assert_eq!((&run["name"], &run["ops"]), (&"run".into(), &3000.into()), "{workload}");
        let kinds = run["kinds"].as_object().expect("checked above");
        let sum: u64 = kinds.values().filter_map(|kind| kind["ops"].as_u64()).sum();
        assert_eq!(sum, 3000, "{index} {workload}");
        assert_integers(&result["memory"], &["used_bytes", "keys", "leaves", "inner_nodes"]);
        assert_floats(&result["memory"], &["bytes_per_key", "leaf_load_factor"]);
        assert_integers(
            &result["compute"],
            &["cache_bytes", "lock_table_bytes", "hotspot_bytes", "rss_bytes"],
        );
        assert_floats(&result["compute"], &["bytes_per_key"]);
    }
}

/// Resident memory used to be measured when the memory servers of the embedded fabric were gone.
#[test]
fn resident_memory_is_that_of_the_run() {
    let ran = farwood(&["bench", "--index", "smart", "--workload", "load", "--keys", "500k", "--json", "-"]);
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    let bytes = |part: &str, name: &str| result[part][name].as_u64().expect("checked elsewhere");
    let (used, cache) = (bytes("memory", "used_bytes"), bytes("compute", "cache_bytes"));
    assert!(used > 32 << 20, "too little to be told from the rest of the process: {used}");
    assert!(bytes("compute", "rss_bytes") > used + cache, "{result}");
}

#[test]
fn all_keys_are_loaded_and_added() {
    KINDS.iter().for_each(|index| check_keys(index));
}

fn check_keys(index: &str) {
    let bench = |flags: &[&str]| bench(&[&["--index", index], flags].concat());
    let loaded = bench(&["--workload", "load"]);
    assert_eq!((&loaded["memory"]["keys"], &loaded["phases"][0]["ops"]), (&5000.into(), &5000.into()));
    // Fewer clients than shards: the shards without clients leave no keys out.
    let one = bench(&["--workload", "load", "--clients", "1"]);
    assert_eq!(one["memory"]["keys"], 5000);
    let inserts = bench(&["--workload", "ycsb-d", "--ops", "4000"]);
    let added = inserts["phases"][1]["kinds"]["insert"]["ops"].as_u64().expect("a number");
    // The warm-up added some too.
    assert!(added > 0 && inserts["memory"]["keys"].as_u64() >= Some(5000 + added));
    assert_eq!(inserts["config"]["dist"], "latest");
    // Figures of the survey.
    let memory = &loaded["memory"];
    let (leaves, full) = (memory["leaves"].as_u64(), memory["leaf_load_factor"].as_f64().expect("a number"));
    assert!(full > 0.1 && full <= 1.0, "{memory}");
    let of_several = kit::spec(index).kind().filled() == Filled::Leaves;
    assert_eq!(leaves < Some(5000), of_several, "one leaf per key, or many keys: {memory}");
}

/// With one client and a cache that knows every node, what an operation costs does not depend on chance.
#[test]
fn a_get_takes_one_round_trip() {
    for (index, get_bytes) in [("sherman", 1024.0), ("smart", 32.0)] {
        let flags =
            ["--index", index, "--workload", "ycsb-a", "--ops", "20k", "--shards", "1", "--clients", "1"];
        let [get, update] = kit::costs(&bench(&flags), get_bytes);
        assert_eq!(get, [1.0, 1.0, get_bytes, 0.0, 0.0, 0.0], "{index}");
        // CAS and READ in one, WRITE and unlock in the other.
        assert_eq!((update[0], update[1], update[4]), (2.0, 1.0, 1.0), "{index}: {update:?}");
    }
}

#[test]
fn reads_are_delegated_and_writes_combined() {
    let sharing = |flags: &[&str]| {
        let hot = ["--index", "smart", "--dist", "zipf:1.5", "--ops", "50k", "--clients", "256"];
        let result = bench(&[&hot, flags].concat());
        let sharing = &result["phases"][1]["sharing"];
        ["reads_delegated", "writes_combined"].map(|name| sharing[name].as_u64().expect("a number"))
    };
    let [reads, writes] = sharing(&[]);
    assert!(reads > 0 && writes > 0, "{reads} {writes}");
    let off = ["--technique", "delegation=off", "--technique", "combining=off"];
    assert_eq!(sharing(&off), [0, 0]);
}

#[test]
fn keys_and_values_of_all_kinds_work() {
    for_each_kind(use_all_kinds_of_keys_and_values);
}

fn use_all_kinds_of_keys_and_values(index: &str) {
    let techniques = kit::spec(index).techniques();
    let off: Vec<String> = techniques.iter().map(|(name, _)| format!("--technique={name}=off")).collect();
    let off: Vec<&str> = off.iter().map(String::as_str).collect();
    for flags in [
        &["--key", "string", "--value-size", "100"][..],
        &["--key", "dense", "--value-size", "0"],
        &["--value-size", "3"],
        &["--value-size", "2000", "--servers", "3"],
        &["--dist", "uniform"],
        &["--dist", "zipf:1.2"],
        &off,
        &["--rate", "20k"],
    ] {
        for workload in ["write-intensive", "ycsb-e"] {
            let words = ["--index", index, "--workload", workload, "--ops", "2000"];
            let words: Vec<&str> = words.iter().chain(flags).copied().collect();
            assert_eq!(bench(&words)["phases"][1]["ops"], 2000, "{words:?}");
        }
    }
}

#[test]
fn a_duration_ends_a_run() {
    let result = bench(&["--duration", "200ms"]);
    let seconds = result["phases"][1]["seconds"].as_f64().expect("a number");
    assert!((0.19..5.0).contains(&seconds), "{seconds}");
    assert_eq!(result["latency_sampling"], 16);
}

#[test]
fn key_files_are_used_and_duplicates_reported() {
    let lines: String = (0..1000).map(|n| format!("user{:05}\n", n % 900)).collect();
    let words =
        ["bench", "--key", "file:-", "--workload", "ycsb-d", "--ops", "3000", "--warmup", "0", "--json", "-"];
    let ran = farwood_with_input(&words, lines.as_bytes());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("900 different keys, 100 duplicates"), "{}", ran.stderr);
    let result: Value = serde_json::from_str(&ran.stdout).expect("JSON only");
    assert_eq!(result["config"]["keys"], 900);
}

#[test]
fn files_are_written_where_they_were_asked_for() {
    let scratch = Scratch::new("files");
    let (json, report, history) =
        (scratch.path("out.json"), scratch.path("deep/report"), scratch.path("history"));
    let words = [
        "bench",
        "--keys",
        "1k",
        "--ops",
        "2000",
        "--warmup",
        "0",
        "--workload",
        "ycsb-f",
        "--json",
        &json,
        "--report",
        &report,
        "--history",
        &history,
    ];
    let ran = farwood(&words);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains("p99.9") && ran.stdout.contains("digest"), "{}", ran.stdout);
    assert_eq!(scratch.files(), ["deep", "history", "out.json"]);
    let of = |path: &str| {
        serde_json::from_str::<Value>(&fs::read_to_string(path).expect("written")).expect("JSON")
    };
    assert_eq!(of(&json), of(&format!("{report}/result.json")));
    let table = fs::read_to_string(format!("{report}/latency-get.csv")).expect("written");
    assert!(table.starts_with("quantile,latency_ns,operations\n") && table.lines().count() > 10);
    check_history(&fs::read_to_string(&history).expect("written"));
}

fn check_history(text: &str) {
    let (mut counts, mut values) = (std::collections::BTreeMap::new(), std::collections::HashSet::new());
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).expect("a line of JSON");
        let op = event["op"].as_str().expect("a name").to_owned();
        assert_integers(&event, &["process", "client", "start_ns", "end_ns"]);
        assert!(event["start_ns"].as_u64() <= event["end_ns"].as_u64());
        assert!(event["key"].as_str().is_some_and(|key| key.len() == 16));
        if op != "get" {
            let value = event["value"].as_str().expect("a value").to_owned();
            assert!(values.insert(value), "values written are unique: {line}");
        }
        *counts.entry(op).or_insert(0) += 1;
    }
    assert_eq!(counts["put"], 1000, "the load is part of it");
    assert_eq!(counts["get"] + counts["update"], 2000);
}

#[test]
fn the_digest_is_of_the_configuration_alone() {
    let digest = |flags: &[&str]| bench(&[&["--ops", "10"], flags].concat())["config"]["digest"].clone();
    assert_eq!(digest(&["--seed", "1"]), digest(&["--seed", "2"]));
    assert_ne!(digest(&[]), digest(&["--dist", "uniform"]));
}
