//! Keys as they come from the world: strings of very different length, from files, loaded by two processes at once.
//!
//! With more lines than the test has, by hand (2 KiB of memory a line):
//!
//! ```sh
//! FARWOOD_TEST_LINES=1000000 cargo test --release -p farwood-cli --test commands shm_strings -- --nocapture
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::kit::{KINDS, Scratch, assert_ok};
use crate::servers::Server;

const LINES: usize = 20_000;
const BYTES_PER_LINE: usize = 2 << 10;
const KEY_BYTES_MAX: usize = 200;
/// Keys that are looked up one by one, each by a process of its own.
const GETS: usize = 20;

/// Yields the number of lines: that of the environment, if it names one.
fn lines() -> usize {
    match std::env::var("FARWOOD_TEST_LINES") {
        Ok(lines) => lines.parse().expect("FARWOOD_TEST_LINES is a number"),
        Err(_) => LINES,
    }
}

/// Makes so many different keys, half of them words of 1 to 200 letters, half addresses of pages, which have long
/// beginnings in common and are beginnings of each other.
fn keys(count: usize) -> Vec<String> {
    let mut rng = SmallRng::seed_from_u64(14);
    let word = |rng: &mut SmallRng, bytes: usize| -> String {
        (0..bytes).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect()
    };
    let sites: Vec<String> = (0..count / 100 + 1)
        .map(|_| {
            let bytes = rng.random_range(3..20);
            word(&mut rng, bytes)
        })
        .collect();
    let mut keys = BTreeSet::new();
    let mut drawn = Vec::new();
    while drawn.len() < count {
        let key = if rng.random() {
            let bytes = rng.random_range(1..=KEY_BYTES_MAX);
            word(&mut rng, bytes)
        } else {
            let mut address = format!("https://www.{}.example", sites[rng.random_range(0..sites.len())]);
            for _ in 0..rng.random_range(0..5) {
                write!(address, "/{}", rng.random_range(0..30)).expect("strings take everything");
            }
            address
        };
        if keys.insert(key.clone()) {
            drawn.push(key);
        }
    }
    drawn
}

#[test]
fn strings_of_very_different_length_are_loaded_by_two_processes() {
    let keys = keys(lines());
    KINDS.into_iter().for_each(|kind| load(kind, &keys));
}

fn load(kind: &str, keys: &[String]) {
    let server = Server::start(&format!("{}", (64 << 20) + keys.len() * BYTES_PER_LINE));
    let sizes = ["--max-key", &KEY_BYTES_MAX.to_string(), "--max-value", "16"];
    assert_ok(&server.farwood("create", &[&["t", "--index", kind], &sizes[..]].concat()));
    let scratch = Scratch::new(&format!("strings-{kind}"));
    let pairs: Vec<(&String, String)> = keys.iter().zip((0..).map(|n: usize| format!("line {n}"))).collect();
    // Both load the middle fifth.
    let (to, from) = (pairs.len() * 3 / 5, pairs.len() * 2 / 5);
    std::thread::scope(|scope| {
        for (name, part) in [("first", &pairs[..to]), ("second", &pairs[from..])] {
            let path = scratch.path(name);
            let text: String = part.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
            std::fs::write(&path, text).expect("writable");
            let server = &server;
            scope.spawn(move || {
                let loaded = server.farwood("load", &["t", "--file", &path]);
                assert_ok(&loaded);
                let lines = part.len();
                assert_eq!(loaded.stdout, format!("read {lines} lines, stored {lines}, rejected 0\n"));
            });
        }
    });
    for (key, value) in pairs.iter().step_by(pairs.len().div_ceil(GETS)) {
        let got = server.farwood("get", &["t", key]);
        assert_ok(&got);
        assert_eq!(got.stdout, format!("{value}\n"), "{kind}: {key}");
    }
    let sorted: BTreeMap<_, _> = pairs.iter().cloned().collect();
    let text: String = sorted.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
    let scanned = server.farwood("scan", &["t"]);
    assert_ok(&scanned);
    assert!(scanned.stdout == text, "{kind}: the scan has {} bytes of {}", scanned.stdout.len(), text.len());
    let checked = server.farwood("check", &["t"]);
    assert_ok(&checked);
    assert!(checked.stdout.starts_with(&format!("keys         {}\n", pairs.len())), "{}", checked.stdout);
    println!("{kind}: {} lines", pairs.len());
}
