//! Memory servers and clients as processes of their own, over shared memory: every command, several clients at once,
//! clients and servers that are killed, and Ctrl-C.

use std::ffi::OsStr;
use std::io::{BufRead, Write};
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::kit::{KINDS, Scratch, assert_failed, assert_ok, json_of, keys, lines};
use crate::servers::{Running, Server, pause};
use crate::{for_each_kind, kit};

const MEMORY: &str = "64MiB";

fn with_index(kind: &str, memory: &str) -> Server {
    let server = Server::start(memory);
    assert_ok(&server.farwood("create", &["t", "--index", kind]));
    server
}

/// Starts a server with an index for keys and values of up to 32 bytes.
fn with_index_of_32(kind: &str) -> Server {
    let server = Server::start("32MiB");
    let sizes = ["--max-key", "32", "--max-value", "32"];
    assert_ok(&server.farwood("create", &[&["t", "--index", kind], &sizes[..]].concat()));
    server
}

#[test]
fn every_command_does_what_it_says() {
    for_each_kind(use_every_command);
}

fn use_every_command(kind: &str) {
    let server = Server::start(MEMORY);
    assert!(server.ready.starts_with("ready: shm:") && server.ready.contains("64.0 MiB"), "{}", server.ready);
    assert!(server.ready.contains(&format!("--fabric {}", server.fabric)) && server.ready.ends_with('\n'));
    let created = server.farwood("create", &["t", "--index", kind, "--max-key", "24", "--max-value", "40"]);
    assert_ok(&created);
    assert!(created.stdout.contains("keys up to 24 bytes, values up to 40 bytes"), "{}", created.stdout);
    assert_failed(&server.farwood("create", &["t", "--index", kind]), 1, "an index named \"t\" already");
    assert_failed(&server.farwood("get", &["t", "k"]), 1, "has no key \"k\"");
    assert_failed(&server.farwood("get", &["none", "k"]), 1, "no index named \"none\"");
    assert_ok(&server.farwood("put", &["t", "k", "first"]));
    assert_ok(&server.farwood("put", &["t", "k", "second"]));
    assert_ok(&server.farwood("put", &["t", "", ""]));
    let got = server.farwood("get", &["t", "k"]);
    assert_ok(&got);
    assert_eq!(got.stdout, "second\n");
    assert_ok(&server.farwood("put", &["t", "l", "other"]));
    let scanned = server.farwood("scan", &["t", "--from", "k", "--to", "l"]);
    assert_ok(&scanned);
    assert_eq!(scanned.stdout, "k\tsecond\n");
    assert_eq!(server.farwood("scan", &["t"]).stdout, "\t\nk\tsecond\nl\tother\n");
    assert_eq!(server.farwood("scan", &["t", "--limit", "1"]).stdout, "\t\n");
    assert_ok(&server.farwood("remove", &["t", "k"]));
    assert_failed(&server.farwood("remove", &["t", "k"]), 1, "has no key \"k\"");
    let long = "x".repeat(41);
    for words in [&["put", "t", &long, ""][..], &["put", "t", "", &long], &["remove", "t", &long]] {
        assert_failed(&server.farwood(words[0], &words[1..]), 1, "41 bytes");
    }
    assert_failed(&server.farwood("get", &["t", "k"]), 1, "has no key \"k\"");
    assert_intact(&server, 2);
    let stat = server.farwood("stat", &[]);
    assert_ok(&stat);
    assert!(stat.stdout.contains(&format!("index    \"t\": {kind}, keys up to 24 bytes")), "{}", stat.stdout);
    assert!(stat.stdout.starts_with("server   0: 64.0 MiB"), "{}", stat.stdout);
    let dropped = server.farwood("drop", &["t"]);
    assert_ok(&dropped);
    assert!(dropped.stdout.starts_with("dropped index \"t\": ") && dropped.stdout.contains("iB freed"));
    assert_failed(&server.farwood("drop", &["t"]), 1, "no index named \"t\"");
    let stopped = server.stop();
    assert_eq!((stopped.code, stopped.stdout.as_str()), (0, ""));
    assert!(stopped.stderr.contains("stopping: nothing is lost"), "{}", stopped.stderr);
}

/// Words need not be text.
#[test]
fn keys_and_values_are_bytes() {
    let server = with_index("sherman", MEMORY);
    let run = |command: &str, words: &[&[u8]]| {
        let ran = Command::new(env!("CARGO_BIN_EXE_farwood"))
            .args([command, "--fabric", &server.fabric, "t"])
            .args(words.iter().map(|word| OsStr::from_bytes(word)))
            .output();
        let ran = ran.expect("it starts");
        assert!(ran.status.success(), "{ran:?}");
        ran.stdout
    };
    assert_eq!(run("put", &[b"\xff\n", b"\xfe\t\n"]), b"");
    assert_eq!(run("get", &[b"\xff\n"]), b"\xfe\t\n\n");
    assert_eq!(run("scan", &[]), b"\xff\n\t\xfe\t\n\n");
}

#[test]
fn a_scan_begins_at_from_and_ends_before_to() {
    for_each_kind(scan_ranges);
}

fn scan_ranges(kind: &str) {
    let server = with_index(kind, MEMORY);
    let all: String = (0..100).map(|n| format!("{n:02}\tv{n}\n")).collect();
    assert_ok(&server.farwood_with_input("load", &["t"], all.as_bytes()));
    for (words, expected) in [
        (&[][..], &*all),
        (&["--from", "05", "--to", "07"], "05\tv5\n06\tv6\n"),
        (&["--from", "055", "--limit", "2"], "06\tv6\n07\tv7\n"),
        (&["--to", "01"], "00\tv0\n"),
        (&["--from", "07", "--to", "07"], ""),
        (&["--limit", "0"], ""),
    ] {
        let scanned = server.farwood("scan", &[&["t"], words].concat());
        assert_ok(&scanned);
        assert_eq!(scanned.stdout, expected, "{kind} {words:?}");
    }
}

/// A command takes memory for its nodes; the rest of the chunk is there for the next command.
#[test]
fn commands_share_chunks() {
    for_each_kind(share_chunks);
}

fn share_chunks(kind: &str) {
    let server = Server::start(MEMORY);
    assert_ok(&server.farwood("create", &["t", "--index", kind, "--max-value", "500"]));
    let value = "v".repeat(500);
    let pairs: String = (0..60).map(|n| format!("key{n:02}\t{value}\n")).collect();
    assert_ok(&server.farwood_with_input("load", &["t"], pairs.as_bytes()));
    let (leaves, used) = (leaves(&server), in_use(&server));
    (60..75).for_each(|n| assert_ok(&server.farwood("put", &["t", &format!("key{n:02}"), &value])));
    assert!(self::leaves(&server) > leaves, "{kind}: no put has made a node");
    assert_eq!(in_use(&server), used, "{kind}");
}

/// Returns how many leaves the index has.
fn leaves(server: &Server) -> u64 {
    let checked = server.farwood("check", &["t"]).stdout;
    let leaves = checked.lines().find_map(|line| line.strip_prefix("leaves       "));
    let count = leaves.and_then(|leaves| leaves.split(',').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{checked}"))
}

/// Returns how much memory of the server is handed out.
fn in_use(server: &Server) -> String {
    let stat = server.farwood("stat", &[]).stdout;
    let used = stat
        .lines()
        .next()
        .and_then(|line| line.split(", ").nth(1))
        .and_then(|used| used.split(" of ").next());
    used.unwrap_or_else(|| panic!("{stat}")).to_owned()
}

#[test]
fn a_server_says_what_it_loses() {
    let server = with_index("sherman", MEMORY);
    assert_ok(&server.farwood("put", &["t", "k", "v"]));
    let stopped = server.stop();
    assert_eq!(stopped.code, 0);
    assert!(stopped.stderr.contains("stopping: 1 index and "), "{}", stopped.stderr);
}

#[test]
fn a_file_is_loaded_and_its_bad_lines_are_named() {
    for_each_kind(load_a_file);
}

/// Asserts that a check finds so many keys and nothing broken.
fn assert_intact(server: &Server, keys: usize) {
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with(&format!("keys         {keys}\n")), "{}", checked.stdout);
}

fn load_a_file(kind: &str) {
    let server = with_index_of_32(kind);
    // All kinds run at once.
    let scratch = Scratch::new(&format!("load-{kind}"));
    let path = scratch.path("lines");
    let mut text = lines(0..5_000);
    text.extend_from_slice(b"no tab\n");
    text.extend_from_slice(format!("{}\tx\n", "k".repeat(33)).as_bytes());
    text.extend_from_slice(b"key0000007\tanother\nlast\tone");
    std::fs::write(&path, &text).expect("writable");
    let loaded = server.farwood("load", &["t", "--file", &path]);
    assert_failed(&loaded, 1, "2 lines were rejected");
    assert_eq!(loaded.stdout, "read 5004 lines, stored 5002, rejected 2\n");
    assert!(loaded.stderr.contains("line 5001: there is no TAB"), "{}", loaded.stderr);
    assert!(loaded.stderr.contains("line 5002: the key is longer than the 32 bytes"), "{}", loaded.stderr);
    assert_eq!(server.farwood("get", &["t", "key0000007"]).stdout, "another\n");
    assert_eq!(server.farwood("get", &["t", "last"]).stdout, "one\n");
    let scanned = server.farwood("scan", &["t", "--from", "key0000008", "--to", "last"]);
    assert_ok(&scanned);
    assert!(scanned.stdout.as_bytes() == lines(8..5_000), "{} bytes", scanned.stdout.len());
    assert_intact(&server, 5001);
    let shape = server.farwood("check", &["t"]).stdout;
    assert!(shape.matches(" % full\n").count() == 1 && !shape.contains("broken"), "{shape}");
    let piped = server.farwood_with_input("load", &["t"], b"from\tstdin");
    assert_ok(&piped);
    assert_eq!(piped.stdout, "read 1 lines, stored 1, rejected 0\n");
}

#[test]
fn keys_of_a_file_are_removed_and_its_bad_lines_are_named() {
    for_each_kind(remove_a_file);
}

fn remove_a_file(kind: &str) {
    let server = with_index_of_32(kind);
    let scratch = Scratch::new(&format!("remove-{kind}"));
    let path = scratch.path("keys");
    assert_ok(&server.farwood_with_input("load", &["t"], &lines(0..5_000)));
    let mut text = keys(2_000..6_000);
    text.extend_from_slice(b"key0000007\tvalue7\n");
    text.extend_from_slice(format!("{}\nkey0002000\nlast", "k".repeat(33)).as_bytes());
    std::fs::write(&path, &text).expect("writable");
    let removed = server.farwood("remove", &["t", "--file", &path]);
    assert_failed(&removed, 1, "2 lines were rejected, the keys of all others are gone");
    assert_eq!(removed.stdout, "read 4004 lines, removed 3000, absent 1002, rejected 2\n");
    assert!(removed.stderr.contains("line 4001: there is a TAB"), "{}", removed.stderr);
    assert!(removed.stderr.contains("line 4002: the key is longer than the 32 bytes"), "{}", removed.stderr);
    let rest = server.farwood("scan", &["t"]);
    assert_ok(&rest);
    assert!(rest.stdout.as_bytes() == lines(0..2_000), "{} bytes", rest.stdout.len());
    assert_intact(&server, 2000);
    // All again: absent keys alone are no error. Then what is left, as a scan of the same index shows it.
    let again = server.farwood_with_input("remove", &["t", "--file", "-"], &keys(2_000..5_000));
    assert_ok(&again);
    assert_eq!(again.stdout, "read 3000 lines, removed 0, absent 3000, rejected 0\n");
    let piped = server.farwood_with_input("remove", &["t", "--file", "-"], &keys(0..2_000));
    assert_ok(&piped);
    assert_eq!(piped.stdout, "read 2000 lines, removed 2000, absent 0, rejected 0\n");
    assert_eq!(server.farwood("scan", &["t"]).stdout, "");
    assert_intact(&server, 0);
}

/// Two processes write into the same tree, each its own keys and some that both write.
#[test]
fn two_clients_at_once_leave_an_intact_tree() {
    for_each_kind(load_with_two_clients);
}

fn load_with_two_clients(kind: &str) {
    let server = with_index(kind, "64MiB");
    std::thread::scope(|scope| {
        for half in [0..15_000, 10_000..25_000] {
            let server = &server;
            scope.spawn(move || assert_ok(&server.farwood_with_input("load", &["t"], &lines(half))));
        }
    });
    assert_intact(&server, 25000);
    assert!(server.farwood("scan", &["t"]).stdout.as_bytes() == lines(0..25_000));
}

#[test]
fn two_servers_hold_one_tree() {
    for_each_kind(load_into_two_servers);
}

fn load_into_two_servers(kind: &str) {
    let (first, second) = (Server::start(MEMORY), Server::start(MEMORY));
    let name = second.fabric.strip_prefix("shm:").expect("it is one of shm");
    let both = format!("{},{name}", first.fabric);
    let on_both = |words: &[&str], input: &[u8]| {
        let words: Vec<&str> = words.iter().copied().chain(["--fabric", both.as_str()]).collect();
        kit::farwood_with_input(&words, input)
    };
    assert_ok(&on_both(&["create", "t", "--index", kind], b""));
    assert_ok(&on_both(&["load", "t"], &lines(0..50_000)));
    assert_ok(&on_both(&["check", "t"], b""));
    let stat = on_both(&["stat"], b"").stdout;
    let used = |line: &str| line.starts_with("server") && !line.contains(" 0 B of ");
    assert_eq!(stat.lines().filter(|line| used(line)).count(), 2, "{stat}");
}

const SMALL: [&str; 6] = ["--keys", "5k", "--warmup", "0", "--shards", "1"];

fn bench<'w>(rest: &[&'w str]) -> Vec<&'w str> {
    SMALL.iter().chain(rest).copied().collect()
}

/// Lists the indexes of the catalog.
fn indexes(server: &Server) -> Vec<String> {
    let stat = server.farwood("stat", &[]);
    assert_ok(&stat);
    let lines = stat.stdout.lines().filter(|line| line.starts_with("index ") && !line.ends_with("none"));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_benchmark_brings_its_index_and_takes_it_away() {
    for_each_kind(run_benchmarks);
}

fn run_benchmarks(kind: &str) {
    let server = Server::start(MEMORY);
    for workload in ["ycsb-a", "ycsb-c", "ycsb-e", "load", "lock", "raw"] {
        let ran = server.farwood(
            "bench",
            &bench(&["--index", kind, "--ops", "5k", "--workload", workload, "--json", "-"]),
        );
        assert_ok(&ran);
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(
            (&json["config"]["fabric"], &json["config"]["servers"]),
            (&server.fabric.clone().into(), &1.into())
        );
        assert_eq!((indexes(&server).len(), &*in_use(&server)), (0, "0 B"), "{workload}");
    }
    assert_failed(&server.farwood("bench", &["--index", kind, "--keys", "100M"]), 2, "left: drop an index");
    // One that is soon full.
    let server = Server::start("4MiB");
    let endless = bench(&["--index", kind, "--duration", "1000s", "--workload", "write-only"]);
    let full = server.farwood("bench", &endless);
    assert_failed(&full, 1, "out of memory");
    assert_eq!((indexes(&server).len(), &*in_use(&server)), (0, "0 B"));
}

/// Round trips and bytes of an operation do not depend on where the memory is.
#[test]
fn operations_cost_what_they_cost_on_the_embedded_fabric() {
    let server = Server::start(MEMORY);
    for kind in KINDS {
        // One client from the first operation on: what the cache knows when does not depend on chance.
        let flags = ["--index", kind, "--ops", "5k", "--workload", "ycsb-a", "--clients", "1"];
        let flags = bench(&[&flags[..], &["--json", "-"]].concat());
        let here = undisturbed_costs(|| kit::farwood(&[&["bench"], &flags[..]].concat()));
        let there = undisturbed_costs(|| server.farwood("bench", &flags));
        assert_eq!(here, there, "{kind}");
    }
}

/// Yields what gets and updates cost in the first run of a benchmark of which nothing was done again: with one client
/// that is so unless the system took the core away in the middle of a READ.
fn undisturbed_costs(run: impl Fn() -> kit::Ran) -> [[f64; 7]; 2] {
    const RUNS_MAX: usize = 50;
    let costs = || {
        let json = json_of(&run());
        ["get", "update"].map(|kind| {
            let kind = &json["phases"][1]["kinds"][kind];
            ["retries", "round_trips", "reads", "bytes_read", "writes", "cas", "bytes_written"]
                .map(|name| kind[name].as_f64().expect("a number"))
        })
    };
    let is_undisturbed = |costs: &[[f64; 7]; 2]| costs.iter().all(|[retries, ..]| *retries == 0.0);
    iter::repeat_with(costs).take(RUNS_MAX).find(is_undisturbed).expect("a run without a retry")
}

/// Starts a benchmark that runs until it is ended, and waits until its clients are at work.
fn endless_bench(server: &Server, rest: &[&str]) -> Running {
    let workload: &[&str] = if rest.contains(&"--workload") { &[] } else { &["--workload", "ycsb-a"] };
    let endless = [&["--duration", "1000s", "--quiet"], workload].concat();
    let mut process = server.beside("bench", &[&bench(&endless)[..], rest].concat());
    while indexes(server).is_empty() {
        assert!(process.runs(), "{}", process.finish().stderr);
    }
    pause();
    process
}

#[test]
fn a_benchmark_that_is_interrupted_drops_its_index() {
    let server = Server::start(MEMORY);
    let scratch = Scratch::new("interrupted");
    for (signal, code, workload) in [("INT", 130, "ycsb-a"), ("TERM", 143, "ycsb-a"), ("INT", 130, "raw")] {
        let json = scratch.path("out.json");
        let process = endless_bench(&server, &["--json", &json, "--workload", workload]);
        process.signal(signal);
        assert_failed(&process.finish(), code, "the result is partial");
        assert_eq!((indexes(&server).len(), scratch.files()), (0, vec!["out.json".to_owned()]));
        assert_eq!(in_use(&server), "0 B", "{workload}");
    }
}

#[test]
fn a_load_phase_that_is_interrupted_leaves_nothing() {
    let server = Server::start("512MiB");
    let words = ["--workload", "load", "--keys", "1M", "--warmup", "0", "--shards", "1", "--quiet"];
    let mut process = server.beside("bench", &words);
    while indexes(&server).is_empty() {
        assert!(process.runs(), "{}", process.finish().stderr);
    }
    process.signal("INT");
    assert_failed(&process.finish(), 130, "the result is partial");
    assert_eq!((indexes(&server).len(), &*in_use(&server)), (0, "0 B"));
}

/// The killed process takes its own index with it and disturbs no other one. Locks of all indexes share the words of a
/// server: one client holds one lock at most, and the other index has so few nodes that hardly one of 131,072 is theirs
/// too.
#[test]
fn a_client_that_is_killed_does_not_disturb_others() {
    for_each_kind(kill_a_client);
}

fn kill_a_client(kind: &str) {
    let server = with_index(kind, MEMORY);
    let mut killed = endless_bench(&server, &["--clients", "1", "--index", kind]);
    let mut other = server.beside("load", &["t"]);
    let mut input = other.stdin();
    let mut feed = |rounds| (0..rounds).for_each(|_| input.write_all(&lines(0..200)).expect("it reads"));
    feed(250);
    killed.signal("KILL");
    killed.wait();
    feed(250);
    drop(input);
    let loaded = other.finish();
    assert_ok(&loaded);
    assert_eq!(loaded.stdout, "read 100000 lines, stored 100000, rejected 0\n");
    assert_intact(&server, 200);
    assert_eq!(server.farwood("get", &["t", "key0000199"]).stdout, "value199\n");
    assert_eq!(indexes(&server).len(), 1);
}

#[test]
fn a_load_that_is_interrupted_says_how_far_it_came() {
    let server = with_index("sherman", MEMORY);
    let mut process = server.beside("load", &["t"]);
    let mut input = process.stdin();
    input.write_all(&lines(0..10_000)).expect("it reads");
    while !server.farwood("get", &["t", "key0009999"]).stdout.starts_with("value") {
        assert!(process.runs());
    }
    // It waits for more lines, and still ends at once.
    process.signal("INT");
    let status = process.wait();
    drop(input);
    assert_eq!(status.code(), Some(130));
    let ran = process.finish();
    assert_failed(&ran, 130, "all but rejected ones");
    assert!(ran.stdout.starts_with("read 10000 lines"), "{}", ran.stdout);
    assert_ok(&server.farwood("check", &["t"]));
}

#[test]
fn a_removal_that_is_interrupted_says_how_far_it_came() {
    let server = with_index("sherman", MEMORY);
    assert_ok(&server.farwood_with_input("load", &["t"], &lines(0..20_000)));
    let mut process = server.beside("remove", &["t", "--file", "-"]);
    let mut input = process.stdin();
    input.write_all(&keys(0..10_000)).expect("it reads");
    while server.farwood("scan", &["t", "--limit", "1"]).stdout != "key0010000\tvalue10000\n" {
        assert!(process.runs());
    }
    process.signal("INT");
    let status = process.wait();
    drop(input);
    assert_eq!(status.code(), Some(130));
    let ran = process.finish();
    let done = "10000 keys were removed, 0 were absent, and up to line 10000 all but rejected ones";
    assert_failed(&ran, 130, done);
    assert_eq!(ran.stdout, "read 10000 lines, removed 10000, absent 0, rejected 0\n");
    assert_intact(&server, 10000);
}

#[test]
fn a_scan_whose_reader_leaves_ends_quietly() {
    let server = with_index("sherman", MEMORY);
    assert_ok(&server.farwood_with_input("load", &["t"], &lines(0..100_000)));
    let mut process = server.beside("scan", &["t"]);
    let mut first = String::new();
    // The reader is dropped with the rest of what it has read.
    process.stdout().read_line(&mut first).expect("text");
    assert_eq!(first, "key0000000\tvalue0\n");
    assert_ok(&process.finish());
}

#[test]
fn a_server_that_is_not_there_is_a_clear_error() {
    let absent = format!("shm:test-{}-absent", std::process::id());
    let commands: [&[&str]; 7] = [
        &["create", "t", "--index", "sherman"],
        &["drop", "t"],
        &["get", "t", "k"],
        &["scan", "t"],
        &["check", "t"],
        &["stat"],
        &["bench", "--keys", "1k"],
    ];
    for words in commands {
        let words: Vec<&str> = words.iter().copied().chain(["--fabric", absent.as_str()]).collect();
        let ran = kit::farwood(&words);
        assert_failed(&ran, 1, "memory");
        assert_eq!((ran.stdout.as_str(), ran.stderr.lines().count()), ("", 1), "{}", ran.stderr);
    }
}

/// A command that succeeds warns of nothing, and writes no colours where there is no terminal.
#[test]
fn events_are_plain_and_warn_of_nothing_where_nothing_is_wrong() {
    let (first, second) = (Server::start(MEMORY), Server::start(MEMORY));
    let both = format!("{},{}", first.fabric, second.fabric.strip_prefix("shm:").expect("it is one of shm"));
    let on_both = |log: &str, words: &[&str]| {
        let words: Vec<&str> = words.iter().copied().chain(["--fabric", both.as_str()]).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_farwood"));
        command.args(words).env("FARWOOD_LOG", log).output().expect("it starts")
    };
    assert!(on_both("debug", &["create", "t", "--index", "sherman"]).status.success());
    // Which of both sides closes a connection first is chance.
    for n in 0..20 {
        let put = on_both("debug", &["put", "t", &n.to_string(), "v"]);
        let said = String::from_utf8(put.stderr).expect("text");
        assert!(put.status.success() && !said.contains("WARN") && !said.contains('\x1b'), "{said}");
    }
    let refused = on_both("verbose", &["get", "t", "0"]);
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(refused.status.code() == Some(2) && said.contains("\"verbose\" is no level"), "{said}");
}

/// A line mode that this CPU does not have is an error, not another one.
#[test]
fn a_line_mode_that_there_is_not_is_refused() {
    let fabric = format!("shm:test-{}-mode", std::process::id());
    let mut command = Command::new(env!("CARGO_BIN_EXE_farwood"));
    command
        .args(["memory-server", "--memory", "16MiB", "--fabric", &fabric])
        .env("FARWOOD_LINE_MODE", "fast");
    let refused = command.output().expect("it starts");
    let said = String::from_utf8(refused.stderr).expect("text");
    assert!(!refused.status.success() && said.contains("write vector or sequence"), "{said}");
}

#[test]
fn a_server_that_is_killed_ends_its_clients_with_an_error() {
    let server = with_index("sherman", MEMORY);
    let (bench, mut load) = (endless_bench(&server, &[]), server.beside("load", &["t"]));
    let mut input = load.stdin();
    let feeding = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let feeder = scope.spawn(|| {
            for part in (0..).step_by(1000) {
                // It ends when the load does.
                if input.write_all(&lines(part..part + 1000)).is_err() {
                    return;
                }
                feeding.fetch_add(1, Ordering::Relaxed);
            }
        });
        while feeding.load(Ordering::Relaxed) < 10 && !feeder.is_finished() {
            std::thread::yield_now();
        }
        let fabric = server.kill();
        let name = fabric.strip_prefix("shm:").expect("it is one of shm");
        for ran in [bench.finish(), load.finish()] {
            assert_failed(&ran, 1, "memory server 0");
            // The error names the server, and what it left behind.
            assert!(ran.stderr.contains("has ended: all that it held is lost"), "{}", ran.stderr);
            assert!(ran.stderr.contains(&format!("rm /dev/shm/farwood-{name} ")), "{}", ran.stderr);
        }
        // Another server of that name knows nothing of what the first one held.
        let restarted = Server::start_at(&fabric, MEMORY);
        assert_failed(&restarted.farwood("get", &["t", "key0000000"]), 1, "no index named \"t\"");
        assert_ok(&restarted.farwood("create", &["t", "--index", "sherman"]));
    });
}
