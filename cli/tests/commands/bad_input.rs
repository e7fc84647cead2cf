//! Bad input: one clear line on standard error, nothing on standard output, exit status 2, and no file left.

use crate::kit::{Ran, Scratch, farwood, farwood_with_input};

#[track_caller]
fn assert_refused(ran: &Ran, part: &str) {
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.starts_with("farwood: error: "), "{}", ran.stderr);
    assert!(ran.stderr.contains(part), "{part:?} is not in {}", ran.stderr);
    assert!(ran.stderr.ends_with('\n') && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let cases: [(&[&str], &str); 36] = [
        (&["--nonsense"], "--nonsense"),
        (&["positional"], "positional"),
        (&["--keys", "ten"], "--keys"),
        (&["--keys", "-1"], "-1"),
        (&["--keys"], "--keys"),
        (&["--keys", "0"], "--keys 0"),
        (&["--keys", "1", "--keys", "2"], "--keys"),
        (&["--ops", "5", "--duration", "1s"], "--duration"),
        (&["--duration", "10"], "a number with us, ms or s"),
        (&["--memory", "4GB"], "KiB, MiB or GiB"),
        (&["--memory", "99999999999999999999GiB"], "too large"),
        (&["--index", "btree"], "[possible values: "),
        (&["--index", "smart", "--technique", "combine=off"], "it has lock_free_nodes, in_place_leaves"),
        (
            &["--technique", "lock_free_nodes=off"],
            "sherman has no technique 'lock_free_nodes': it has combine",
        ),
        (&["--index", "smart", "--memory", "128MiB"], "keys in leaves of 64 bytes"),
        (&["--fabric", "shm:"], "shm:NAME"),
        (&["--fabric", "shm:a,a"], "twice"),
        (&["--fabric", "shm:a", "--servers", "2"], "--servers"),
        (&["--fabric", "shm:a", "--memory", "1GiB"], "--memory"),
        (&["--device", "mlx5_0"], "--device"),
        (&["--fabric", "sim:connectx7"], "choose sim:connectx5 or sim:connectx6"),
        (&["--fabric", "sim:"], "choose sim:connectx5 or sim:connectx6"),
        (&["--fabric", "sim"], "choose sim:connectx5 or sim:connectx6"),
        (&["--fabric", "sim:connectx5", "--shards", "0"], "1 to 1024"),
        (&["--fabric", "sim:connectx5", "--shards", "1025"], "1 to 1024"),
        (&["--fabric", "tcp"], "choose embedded"),
        (&["--workload", "ycsb-z"], "ycsb-a"),
        (&["--dist", "zipf:often"], "--dist"),
        (&["--technique", "warp=on"], "combine, on_chip"),
        (&["--technique", "fused=maybe"], "neither on nor off"),
        (&["--shards", "100000"], "core"),
        (&["--clients", "0"], "--clients"),
        (&["--servers", "0"], "--servers"),
        (&["--value-size", "1GiB"], "--value-size"),
        (&["--seed", "x"], "--seed"),
        (&["--key", "file:/nonexistent/keys"], "/nonexistent/keys"),
    ];
    for (flags, part) in cases {
        let words: Vec<&str> = ["bench"].iter().chain(flags).copied().collect();
        assert_refused(&farwood(&words), part);
    }
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let shm = "--fabric=shm:no-such-server";
    let cases: [(&[&str], &str); 34] = [
        (&["memory-server", "--fabric", "shm:a"], "--memory"),
        (&["memory-server", "--memory", "1GiB"], "--fabric"),
        (&["memory-server", "--fabric", "embedded", "--memory", "1GiB"], "shm:NAME or verbs"),
        (&["memory-server", "--fabric", "shm:a,b", "--memory", "1GiB"], "one region"),
        (&["memory-server", "--fabric", "shm:a", "--memory", "0"], "--memory 0"),
        (&["memory-server", "--fabric", "shm:a", "--memory", "1GiB", "--listen", "0.0.0.0:1"], "--listen"),
        (&["memory-server", "--fabric", "shm:a", "--memory", "1GiB", "--device", "x"], "--device"),
        (&["memory-server", "--fabric", "verbs:host:1", "--memory", "1GiB"], "--listen ADDR:PORT"),
        (&["create", "t", shm], "--index"),
        (&["create", "t", shm, "--index", "smart", "--max-key", "256"], "keys of up to 255 bytes, not 256"),
        (&["create", "t", shm, "--index", "smart", "--max-value", "1MiB"], "choose 0 to 4096"),
        (&["create", "t", shm, "--index", "btree"], "[possible values: "),
        (&["create", "t", shm, "--index", "sherman", "--max-key", "1GiB"], "choose 1 to 1024"),
        (&["create", "", shm, "--index", "sherman"], "empty"),
        (&["create", "a\nb", shm, "--index", "sherman"], "control character"),
        (&["create", "t", "--index", "sherman"], "--fabric"),
        (&["drop", "t"], "--fabric"),
        (&["drop", shm], "NAME"),
        (&["drop", "t", "--fabric", "embedded"], "memory-server"),
        (&["drop", "t", "--fabric", "sim:connectx5"], "memory-server"),
        (&["drop", "t", shm, "--gid-index", "1"], "--gid-index"),
        (&["get", "t", shm], "KEY"),
        (&["put", "t", shm, "k"], "VALUE"),
        (&["remove", "t", shm, "k", "more"], "more"),
        (&["remove", "t", shm], "<KEY|--file <PATH>>"),
        (&["remove", "t", shm, "k", "--file", "-"], "--file <PATH>"),
        (&["remove", "t", shm, "--file", "/nonexistent/keys"], "cannot read /nonexistent/keys"),
        (&["remove", "t", shm, "--file", "/"], "cannot read /"),
        (&["scan", "t", shm, "--from", "b", "--to", "a"], "--from is above --to"),
        (&["scan", "t", shm, "--limit", "x"], "--limit"),
        (&["load", "t", shm, "--file", "/nonexistent/lines"], "cannot read /nonexistent/lines"),
        (&["load", "t", shm, "--file", "/"], "cannot read /"),
        (&["check", "t", "--fabric", "nonsense"], "no fabric"),
        (&["stat", "--fabric", "shm:"], "shm:NAME"),
    ];
    for (words, part) in cases {
        assert_refused(&farwood(words), part);
    }
}

#[cfg(not(feature = "verbs"))]
#[test]
fn a_build_without_verbs_names_the_feature() {
    assert_refused(&farwood(&["stat", "--fabric", "verbs:host:7077"]), "--features verbs");
    assert_refused(&farwood(&["bench", "--fabric", "verbs:host:7077"]), "--features verbs");
    assert_refused(&farwood(&["memory-server", "--fabric", "verbs", "--memory", "1GiB"]), "--features verbs");
}

#[cfg(feature = "verbs")]
#[test]
fn addresses_that_make_no_sense_are_refused() {
    for address in
        ["verbs", "verbs:", "verbs:host", "verbs:host:0", "verbs:host:1,host:1", "verbs:fe80::1:7077"]
    {
        assert_refused(&farwood(&["stat", "--fabric", address]), "verbs");
    }
}

#[test]
fn a_missing_or_unknown_command_is_refused() {
    assert_refused(&farwood(&[]), "farwood help");
    assert_refused(&farwood(&["bnech"]), "bnech");
}

#[test]
fn help_and_version_are_for_standard_output() {
    for words in [&["help"][..], &["help", "bench"], &["bench", "--help"], &["--help"], &["--version"]] {
        let ran = farwood(words);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words:?}");
        assert!(ran.stdout.contains("farwood") || ran.stdout.contains("--workload"), "{words:?}");
    }
    assert!(farwood(&["--version"]).stdout.starts_with("farwood 0."));
}

#[test]
fn too_little_memory_is_seen_before_anything_starts() {
    let scratch = Scratch::new("memory");
    let json = scratch.path("out.json");
    let ran = farwood(&["bench", "--keys", "1G", "--memory", "64MiB", "--json", &json]);
    assert_refused(&ran, "GiB of memory");
    assert!(ran.stderr.contains("--memory"), "{}", ran.stderr);
    assert_eq!(scratch.files(), [""; 0]);
}

#[test]
fn the_advised_memory_is_enough() {
    let ran = farwood(&["bench", "--keys", "300k", "--memory", "6MiB", "--ops", "10"]);
    let advised = ran.stderr.split("--memory ").nth(1).and_then(|rest| rest.split(' ').next());
    let advised = advised.unwrap_or_else(|| panic!("no advice: {}", ran.stderr));
    let ran = farwood(&["bench", "--keys", "300k", "--memory", advised, "--ops", "10", "--warmup", "0"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
fn places_that_cannot_be_written_are_seen_before_anything_starts() {
    let scratch = Scratch::new("places");
    let directory = scratch.path("");
    assert_refused(&farwood(&["bench", "--json", &directory]), "cannot write");
    assert_refused(&farwood(&["bench", "--json", &scratch.path("none/out.json")]), "cannot write");
    assert_refused(&farwood(&["bench", "--history", &scratch.path("none/h")]), "cannot write");
    std::fs::write(scratch.path("file"), "").expect("writable");
    assert_refused(&farwood(&["bench", "--report", &scratch.path("file")]), "cannot write");
    assert_eq!(scratch.files(), ["file"]);
}

#[test]
fn key_files_are_checked() {
    let scratch = Scratch::new("keys");
    let path = scratch.path("keys.txt");
    let key = format!("file:{path}");
    std::fs::write(&path, ["short\n".to_owned(), "x".repeat(1025), "\nrest\n".to_owned()].concat())
        .expect("writable");
    assert_refused(&farwood(&["bench", "--key", &key]), "line 2");
    std::fs::write(&path, "").expect("writable");
    assert_refused(&farwood(&["bench", "--key", &key]), "no keys");
    std::fs::write(&path, "a\nb\n").expect("writable");
    assert_refused(&farwood(&["bench", "--key", &key, "--keys", "3"]), "only 2 different keys");
    assert_refused(&farwood(&["bench", "--key", &format!("file:{}", scratch.path(""))]), "cannot read");
    let too_long = "y".repeat(3000);
    assert_refused(&farwood_with_input(&["bench", "--key", "file:-"], too_long.as_bytes()), "line 1");
}

#[test]
fn memory_that_runs_out_in_the_run_is_one_line() {
    let scratch = Scratch::new("exhausted");
    let json = scratch.path("out.json");
    // The keys fit; those that the run adds do not.
    let ran = farwood(&[
        "bench",
        "--keys",
        "50k",
        "--memory",
        "8MiB",
        "--workload",
        "write-only",
        "--duration",
        "60s",
        "--warmup",
        "0",
        "--json",
        &json,
    ]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("out of memory"), "{}", ran.stderr);
    assert_eq!(scratch.files(), [""; 0]);
}
