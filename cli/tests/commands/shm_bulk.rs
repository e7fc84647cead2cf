//! `farwood load` and `farwood remove --file`: what is stored, what is said, and what is left when one ends early.

use std::io::Write;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use crate::for_each_kind;
use crate::kit::{Ran, assert_failed, assert_ok};
use crate::servers::Server;

/// Starts a server of that much memory with an index for keys and values of up to 16 bytes.
fn with_index_of(kind: &str, memory: &str) -> Server {
    let server = Server::start(memory);
    let sizes = ["--max-key", "16", "--max-value", "16"];
    assert_ok(&server.farwood("create", &[&["t", "--index", kind], &sizes[..]].concat()));
    server
}

fn with_index(kind: &str) -> Server {
    with_index_of(kind, "24MiB")
}

fn load(server: &Server, input: &[u8]) -> Ran {
    server.farwood_with_input("load", &["t"], input)
}

fn remove(server: &Server, input: &[u8]) -> Ran {
    server.farwood_with_input("remove", &["t", "--file", "-"], input)
}

/// Reads all lines of the index, which must be intact.
fn stored(server: &Server) -> String {
    assert_ok(&server.farwood("check", &["t"]));
    let scanned = server.farwood("scan", &["t"]);
    assert_ok(&scanned);
    scanned.stdout
}

fn numbered(lines: Range<u64>) -> String {
    lines.map(|n| format!("{n:08}\t{n}\n")).collect()
}

fn keys(numbers: Range<u64>) -> String {
    numbers.map(|n| format!("{n:08}\n")).collect()
}

/// Returns the lines of standard error that name a line of the input.
fn rejects(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().filter_map(|line| line.split_once("line ")).map(|(_, rest)| rest).collect()
}

#[test]
fn good_lines_are_stored_and_bad_ones_named() {
    for_each_kind(store_good_lines_and_name_bad_ones);
}

fn store_good_lines_and_name_bad_ones(kind: &str) {
    let server = with_index(kind);
    let text = [
        "b\t1\nnothing\na\t\u{e4}\0\nb\t2\nthis key is too long\tx\n",
        "\t\nc\tthis value is too long\nb\t3\nlast\tone",
    ];
    let ran = load(&server, text.concat().as_bytes());
    assert_failed(&ran, 1, "3 lines were rejected, all others are stored");
    assert_eq!(ran.stdout, "read 9 lines, stored 6, rejected 3\n");
    let rejects = rejects(&ran);
    assert!(
        rejects[0].starts_with("2: there is no TAB") && rejects[1].starts_with("5: the key"),
        "{rejects:?}"
    );
    assert!(rejects[2].starts_with("7: the value") && rejects.len() == 3, "{rejects:?}");
    assert_eq!(stored(&server), "\t\na\t\u{e4}\0\nb\t3\nlast\tone\n");
}

#[test]
fn nothing_is_loaded_of_nothing() {
    for_each_kind(load_nothing);
}

fn load_nothing(kind: &str) {
    let server = with_index(kind);
    let loaded = load(&server, b"");
    assert_ok(&loaded);
    assert_eq!(loaded.stdout, "read 0 lines, stored 0, rejected 0\n");
    let removed = remove(&server, b"");
    assert_ok(&removed);
    assert_eq!(removed.stdout, "read 0 lines, removed 0, absent 0, rejected 0\n");
    assert_eq!(stored(&server), "");
    let checked = server.farwood("check", &["t"]).stdout;
    assert!(checked.starts_with("keys         0\nleaves       0"), "{checked}");
}

/// Several blocks, of an index that gets empty in some places.
#[test]
fn keys_are_removed_and_those_that_are_absent_are_no_error() {
    for_each_kind(remove_keys);
}

fn remove_keys(kind: &str) {
    let server = with_index(kind);
    assert_ok(&load(&server, numbered(0..40_000).as_bytes()));
    // Those of a range, some of them twice, some that are not there, and every other one of the rest.
    let mut text = keys(10_000..30_000) + &keys(20_000..22_000) + &keys(50_000..170_000);
    text.extend((30_000..40_000).step_by(2).map(|n| keys(n..n + 1)));
    let removed = remove(&server, text.as_bytes());
    assert_ok(&removed);
    assert_eq!(removed.stdout, "read 147000 lines, removed 25000, absent 122000, rejected 0\n");
    let odd = (30_001..40_000).step_by(2).map(|n| numbered(n..n + 1));
    assert!(stored(&server) == numbered(0..10_000) + &odd.collect::<String>());
    // All others.
    let removed = remove(&server, keys(0..40_000).as_bytes());
    assert_ok(&removed);
    assert_eq!(removed.stdout, "read 40000 lines, removed 15000, absent 25000, rejected 0\n");
    assert_eq!(stored(&server), "");
}

#[test]
fn lines_that_are_no_key_are_named_and_remove_nothing() {
    for_each_kind(remove_good_lines_and_name_bad_ones);
}

fn remove_good_lines_and_name_bad_ones(kind: &str) {
    let server = with_index(kind);
    assert_ok(&load(&server, b"\t1\na\t2\nb\t3\nc\t4\n\xff\0\t5\nlast\t6\n"));
    let ran = remove(&server, b"a\na\nb\t3\nthis key is too long\n\nnone\n\t\n\xff\0\nlast");
    assert_failed(&ran, 1, "3 lines were rejected, the keys of all others are gone");
    assert_eq!(ran.stdout, "read 9 lines, removed 4, absent 2, rejected 3\n");
    let expected = [
        "3: there is a TAB in it: a line to remove is a key alone",
        "4: the key is longer than the 16 bytes that this index takes",
        "7: there is a TAB in it: a line to remove is a key alone",
    ];
    assert_eq!(rejects(&ran), expected);
    assert_eq!(stored(&server), "b\t3\nc\t4\n");
}

/// Several blocks, and more of them than may wait.
#[test]
fn many_lines_are_stored_and_the_last_of_equal_keys_wins() {
    for_each_kind(load_many_lines);
}

fn load_many_lines(kind: &str) {
    let server = with_index(kind);
    let mut text = numbered(0..40_000);
    text.extend((0..40_000).map(|n| format!("{n:08}\tx{n}\nhot\t{n}\n")));
    let loaded = load(&server, text.as_bytes());
    assert_ok(&loaded);
    assert_eq!(loaded.stdout, "read 120000 lines, stored 120000, rejected 0\n");
    let last = (0..40_000).map(|n| format!("{n:08}\tx{n}\n")).collect::<String>() + "hot\t39999\n";
    assert!(stored(&server) == last);
}

/// Runs a command that reads lines without end, in the order of their numbers; once so many were written, `then` is
/// done.
fn endless(server: &Server, words: &[&str], lines: fn(Range<u64>) -> String, most: u64, signal: &str) -> Ran {
    let mut process = server.beside(words[0], &words[1..]);
    let mut input = process.stdin();
    for part in (0..).step_by(1000) {
        if part == most {
            process.signal(signal);
        }
        // It ends when the command does.
        if input.write_all(lines(part..part + 1000).as_bytes()).is_err() {
            break;
        }
    }
    process.finish()
}

const NO_SIGNAL: &str = "0";

/// Parses up to which line all is done.
fn through(ran: &Ran) -> u64 {
    let number = ran.stderr.split("up to line ").nth(1).and_then(|rest| rest.split(' ').next());
    number.expect("it says how far it came").parse().expect("a number")
}

fn number_behind(word: &str, text: &str) -> u64 {
    let digits = text.split(word).nth(1).expect("it has that word").chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().expect("a number")
}

fn assert_complete_through(server: &Server, ran: &Ran) {
    let (through, changed) = (through(ran), number_behind("stored ", &ran.stdout));
    let stored = stored(server);
    assert_eq!(stored.lines().count() as u64, changed);
    assert!(changed >= through && number_behind("read ", &ran.stdout) >= changed, "{}", ran.stdout);
    assert!(stored.starts_with(&numbered(0..through)), "a line up to {through} is missing");
}

#[test]
fn an_interrupt_ends_it_and_it_says_how_far_it_came() {
    for_each_kind(interrupt_a_load);
}

fn interrupt_a_load(kind: &str) {
    let server = with_index(kind);
    let ran = endless(&server, &["load", "t"], numbered, 50_000, "INT");
    assert_failed(&ran, 130, "up to line");
    assert_complete_through(&server, &ran);
}

#[test]
fn an_interrupted_removal_says_how_far_it_came() {
    for_each_kind(interrupt_a_removal);
}

fn interrupt_a_removal(kind: &str) {
    const PAIRS: u64 = 40_000;
    let server = with_index(kind);
    assert_ok(&load(&server, numbered(0..PAIRS).as_bytes()));
    let ran = endless(&server, &["remove", "t", "--file", "-"], keys, 20_000, "INT");
    assert_failed(&ran, 130, "up to line");
    let stored = stored(&server);
    assert_eq!(stored.lines().count() as u64 + number_behind("removed ", &ran.stdout), PAIRS);
    let through = format!("{:08}", through(&ran));
    assert!(stored.is_empty() || *stored >= *through, "a key up to line {through} is left");
}

#[test]
fn memory_that_runs_out_ends_it_with_the_line() {
    for_each_kind(run_out_of_memory);
}

fn run_out_of_memory(kind: &str) {
    let server = with_index_of(kind, "5MiB");
    let ran = endless(&server, &["load", "t"], numbered, u64::MAX, NO_SIGNAL);
    assert_failed(&ran, 1, "out of memory");
    assert!(ran.stderr.starts_with("farwood: error: line "), "{}", ran.stderr);
    assert!(number_behind("stored ", &ran.stdout) > 10_000, "{}", ran.stdout);
}

#[test]
fn what_was_read_before_reading_failed_is_stored() {
    for_each_kind(fail_to_read);
}

/// A socket whose other end is closed with something unread in it fails once all is read.
fn fail_to_read(kind: &str) {
    let server = with_index(kind);
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"unread").unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_farwood"))
        .args(["load", "--fabric", &server.fabric, "t"])
        .env_remove("FARWOOD_LOG")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    ours.write_all(numbered(0..5_000).as_bytes()).unwrap();
    drop(ours);
    let ended = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = ended.status.code().unwrap();
    let ran = Ran { code, stdout: text(ended.stdout), stderr: text(ended.stderr) };
    assert_failed(&ran, 1, "cannot read standard input: ");
    assert_eq!(ran.stdout, "read 5000 lines, stored 5000, rejected 0\n");
    assert_complete_through(&server, &ran);
}
