//! `farwood sim run`: one line per seed, the same whenever it is run; histories; and what it refuses.

use std::fs;

use crate::kit::{Scratch, farwood};

#[test]
fn what_is_printed_depends_on_the_seeds_alone() {
    let all = farwood(&["sim", "run", "--seeds", "0..8"]);
    assert_eq!((all.code, all.stderr.as_str()), (0, ""), "{}", all.stdout);
    let lines: Vec<&str> = all.stdout.lines().collect();
    assert_eq!(lines.len(), 8);
    for (seed, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("seed {seed}  trace ")) && line.ends_with("  ok"), "{line}");
    }
    // Alone, or in other company on other threads.
    for (seeds, range) in [("5..6", 5..6), ("3..8", 3..8)] {
        let some = farwood(&["sim", "run", "--seeds", seeds]);
        assert_eq!(some.stdout.lines().collect::<Vec<_>>(), lines[range]);
    }
}

#[test]
fn coverage_is_printed_and_required() {
    let plain = farwood(&["sim", "run", "--seeds", "0..4"]);
    let required = farwood(&["sim", "run", "--seeds", "0..4", "--require-coverage"]);
    let table = required.stdout.strip_prefix(&plain.stdout).expect("the table comes after the seeds");
    assert!(table.starts_with("coverage") && table.contains("sherman.leaf.split"), "{table}");
    assert!(table.ends_with("undecided histories: 0 of 4\n") && !table.contains("smart."), "{table}");
    // No four seeds take every path.
    assert_eq!(required.code, 1);
    assert!(required.stderr.contains("4 seeds never took: "), "{}", required.stderr);
    assert_eq!(farwood(&["sim", "run", "--seeds", "0..4", "--require-coverage"]).stdout, required.stdout);
}

#[test]
fn wishes_are_heard() {
    let plain = farwood(&["sim", "run", "--seeds", "7..8", "--faults", "none", "--ops", "5"]);
    assert!(plain.code == 0 && plain.stdout.contains("  none  "), "{}", plain.stdout);
    let other =
        ["sim", "run", "--seeds", "7..8", "--faults", "none", "--ops", "5", "--technique", "combine=off"];
    assert_ne!(farwood(&other).stdout, plain.stdout);
    let smart =
        farwood(&["sim", "run", "--seeds", "7..8", "--faults", "none", "--ops", "5", "--index", "smart"]);
    assert!(smart.code == 0 && smart.stdout.ends_with("  ok\n"), "{}", smart.stdout);
    assert_ne!(smart.stdout, plain.stdout);
}

#[test]
fn histories_are_written_one_file_per_seed() {
    let scratch = Scratch::new("sim_histories");
    let directory = scratch.path("");
    let ran = farwood(&["sim", "run", "--seeds", "2..4", "--history", &directory]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for (seed, line) in (2..).zip(ran.stdout.lines()) {
        let history = fs::read_to_string(scratch.path(&format!("seed-{seed}.jsonl"))).unwrap();
        let said = format!("ops {:>4}  ", history.lines().count());
        assert!(line.contains(&said), "{said:?} is not in {line}");
        let first = history.lines().next().unwrap();
        assert!(first.starts_with(r#"{"process": "#) && first.ends_with('}'), "{first}");
    }
    assert_eq!(scratch.files(), ["seed-2.jsonl", "seed-3.jsonl"]);
}

#[test]
fn a_swarm_that_makes_no_sense_is_refused() {
    for (words, part) in [
        (&["--seeds", "5"][..], "A..B"),
        (&["--seeds", "5..5"], "A..B"),
        (&["--faults", "storm"], "crashes (a compute node stops"),
        (&["--index", "smart", "--technique", "two_level=on"], "lock_free_nodes"),
        (&["--technique", "warp=on"], "combine, on_chip"),
        (&["--ops", "5000000000"], "--ops"),
        (&["--ops", "0"], "--ops"),
        (&["--history", "/dev/null/x"], "/dev/null"),
    ] {
        let words: Vec<&str> = ["sim", "run"].iter().chain(words).copied().collect();
        let ran = farwood(&words);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{words:?}");
        assert!(ran.stderr.starts_with("farwood: error: ") && ran.stderr.contains(part), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
}
