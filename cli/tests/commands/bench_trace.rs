//! `farwood bench --trace`: what is replayed of a trace, on the embedded and the simulated fabric, and what is refused.
//!
//! `data/trace.csv` is made up, in the form of the traces of Twitter's cache clusters. Of its 56 keys it sets 14 first.

use std::fs;

use serde_json::Value;

use crate::kit;
use crate::kit::{KINDS, Scratch, assert_failed, farwood, farwood_with_input};

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/trace.csv");
/// Its operations as an index has them, and how many of each there are.
const OPS: [(&str, u64); 5] = [("get", 162), ("put", 85), ("update", 38), ("insert", 17), ("remove", 18)];
/// Of these so many find their key or take effect, in the order of the trace.
const FOUND: [(&str, u64); 5] = [("get", 148), ("put", 85), ("update", 34), ("insert", 6), ("remove", 16)];
const LINES: u64 = 320;
const LOADED: u64 = 42;
/// Keys that are there at the end.
const LAST: u64 = 54;

/// Replays a trace and returns the JSON.
#[track_caller]
fn replay(path: &str, flags: &[&str]) -> Value {
    let words = [&["bench", "--trace", path, "--quiet", "--json", "-"], flags].concat();
    kit::json_of(&farwood(&words))
}

#[track_caller]
fn assert_kinds(result: &Value, field: &str, expected: &[(&str, u64)]) {
    let kinds = &result["phases"][1]["kinds"];
    for (kind, count) in expected {
        assert_eq!(kinds[kind][field], *count, "{kind} {field}: {kinds}");
    }
}

#[test]
fn every_line_is_replayed_once() {
    for index in KINDS {
        let result = replay(TRACE, &["--index", index, "--clients", "37"]);
        assert_kinds(&result, "ops", &OPS);
        assert_eq!(
            (&result["phases"][0]["ops"], &result["phases"][1]["ops"]),
            (&LOADED.into(), &LINES.into())
        );
        let config = &result["config"];
        let workload = format!("trace:{TRACE}");
        assert_eq!((&config["workload"], &config["dist"]), (&workload.into(), &"trace".into()));
        assert_eq!((&config["keys"], &config["key"]), (&LOADED.into(), &"trace".into()));
        // The index is as large as the trace needs.
        assert_eq!((&config["value_size"], &config["key_bytes_max"]), (&312.into(), &24.into()));
        assert_eq!(result["latency_sampling"], 1);
    }
}

/// One client does the lines one after the other: what each of them finds is determined.
#[test]
fn one_client_keeps_the_order() {
    let techniques = kit::spec("sherman").techniques();
    let off: Vec<String> = techniques.iter().map(|(name, _)| format!("--technique={name}=off")).collect();
    let off: Vec<&str> = off.iter().map(String::as_str).collect();
    let runs = KINDS.map(|index| vec!["--index", index]).into_iter().chain([off]);
    for flags in runs {
        let result = replay(TRACE, &[&flags[..], &["--clients", "1"]].concat());
        assert_kinds(&result, "found", &FOUND);
        assert_eq!(result["memory"]["keys"], LAST, "{flags:?}");
    }
}

#[test]
fn a_trace_is_replayed_in_virtual_time() {
    for index in KINDS {
        let flags = [
            "--index",
            index,
            "--fabric",
            "sim:connectx6",
            "--shards",
            "3",
            "--clients",
            "7",
            "--servers",
            "2",
        ];
        let (first, second) = (replay(TRACE, &flags), replay(TRACE, &flags));
        assert_kinds(&first, "ops", &OPS);
        assert!(first["phases"][1]["seconds"].as_f64() > Some(0.0));
        assert_eq!(first["phases"], second["phases"], "{index}: the seed determines it");
    }
}

#[test]
fn a_part_of_a_trace_can_be_replayed() {
    let result = replay(TRACE, &["--ops", "100"]);
    assert_eq!(result["phases"][1]["ops"], 100);
    let open = replay(TRACE, &["--rate", "10k", "--duration", "60s"]);
    assert_eq!(open["phases"][1]["ops"], LINES, "it ends with the trace");
    assert!(open["phases"][1]["seconds"].as_f64() > Some(0.03), "320 operations at 10,000 a second");
}

#[test]
fn a_trace_can_come_from_standard_input() {
    let short = "0,a,8,get\n1,b,16,set\n2,a,9,delete\n";
    let ran = farwood_with_input(&["bench", "--trace", "-", "--quiet", "--json", "-"], short.as_bytes());
    let result = kit::json_of(&ran);
    assert_kinds(&result, "ops", &[("get", 1), ("put", 1), ("remove", 1)]);
    assert_eq!(
        (&result["memory"]["keys"], &result["config"]["workload"]),
        (&1.into(), &"trace:standard input".into())
    );
}

/// Nothing needs to be loaded where the trace sets every key first.
#[test]
fn a_trace_may_begin_with_nothing() {
    let scratch = Scratch::new("trace-empty");
    let path = scratch.path("sets.csv");
    let sets: String =
        (0..500).map(|n| format!("{n},k{},20,set\n{n},k{},20,get\n", n % 90, n % 90)).collect();
    fs::write(&path, sets).expect("writable");
    for index in KINDS {
        let result = replay(&path, &["--index", index]);
        assert_eq!(
            (&result["phases"][0]["ops"], &result["memory"]["keys"]),
            (&0.into(), &90.into()),
            "{index}"
        );
    }
}

#[test]
fn a_history_has_every_line() {
    let scratch = Scratch::new("trace-history");
    let (path, history) = (scratch.path("trace.csv"), scratch.path("history"));
    let lines = "0,a,8,get\n1,b,16,set\n1,b,16,add\n1,a,9,cas\n2,a,9,delete\n";
    fs::write(&path, lines).expect("writable");
    replay(&path, &["--history", &history, "--clients", "1"]);
    let text = fs::read_to_string(&history).expect("written");
    let ops: Vec<(String, String)> = text
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).expect("a line of JSON");
            let text = |field: &str| event[field].as_str().expect("text").to_owned();
            (text("op"), text("result"))
        })
        .collect();
    for (op, result) in
        [("put", "ok"), ("get", "found"), ("insert", "exists"), ("update", "ok"), ("remove", "ok")]
    {
        assert!(ops.contains(&(op.to_owned(), result.to_owned())), "{op} {result}: {ops:?}");
    }
    assert_eq!(ops.len(), 6, "the load of one key, too");
}

#[test]
fn what_is_wrong_is_said_before_anything_starts() {
    let scratch = Scratch::new("trace-errors");
    let path = scratch.path("trace.csv");
    let refused = |text: &str, flags: &[&str], part: &str| {
        fs::write(&path, text).expect("writable");
        assert_failed(&farwood(&[&["bench", "--trace", &path], flags].concat()), 2, part);
    };
    let long = "k".repeat(300);
    let long = format!("0,{long},8,get\n");
    refused(
        "0,a,8,get\n1,a,8,touch\n",
        &[],
        "trace.csv, line 2: column 4 (operation) is \"touch\": expected one of",
    );
    refused("0,a,5000,set\n", &[], "line 1: column 3 (value size) is \"5000\": expected 0 to 4096 bytes");
    refused("0,a\n", &[], "line 1: 2 columns: expected 7 (");
    refused("", &[], "has no lines");
    refused(&long, &["--index", "smart"], "has keys of up to 300 bytes and values of up to 8: ");
    refused("0,a,3,set\n", &["--history", &scratch.path("h")], "has one of 3");
    refused("0,a,3000,set\n", &["--memory", "2MiB"], "or fewer lines of the trace (--ops)");
    assert_failed(&farwood(&["bench", "--trace", "/nonexistent/t.csv"]), 2, "cannot read /nonexistent/t.csv");
}

#[test]
fn options_that_make_no_sense_with_a_trace_are_refused() {
    for (option, value) in [
        ("--workload", "ycsb-a"),
        ("--keys", "10"),
        ("--dist", "uniform"),
        ("--key", "string"),
        ("--value-size", "8"),
        ("--scan-length", "10"),
        ("--warmup", "1s"),
    ] {
        let ran = farwood(&["bench", "--trace", TRACE, option, value]);
        assert_failed(&ran, 2, "cannot be used with");
        assert!(ran.stderr.contains("--trace") && ran.stderr.contains(option), "{}", ran.stderr);
    }
}
