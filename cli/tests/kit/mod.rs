//! Running the binary: with its output caught, and a directory of its own for files.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farwood::{IndexKind, IndexSpec, Limits, Nodes};

/// Output of a run of the binary.
pub(crate) struct Ran {
    /// Exit status.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// Runs `farwood` with these words and nothing on standard input.
pub(crate) fn farwood(words: &[&str]) -> Ran {
    farwood_with_input(words, b"")
}

/// Runs `farwood` with these words and that on standard input.
pub(crate) fn farwood_with_input(words: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_farwood"))
        .args(words)
        .env_remove("FARWOOD_LOG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().expect("it was piped").write_all(input);
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the binary ends");
    Ran {
        code: status.code().expect("it was not killed"),
        stdout: String::from_utf8(stdout).expect("text"),
        stderr: String::from_utf8(stderr).expect("text"),
    }
}

/// A directory that goes away with its test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes an empty directory; `name` is the test's.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("farwood-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Scratch(path)
    }

    /// Returns a path inside it, as a word of a command line.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("text").to_owned()
    }

    /// Lists the names of the files in it.
    pub(crate) fn files(&self) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
        let mut names: Vec<String> =
            fs::read_dir(&self.0).expect("it is there").map(|entry| name(entry.expect("readable"))).collect();
        names.sort();
        names
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The kinds of indexes, by name.
pub(crate) const KINDS: [&str; IndexKind::ALL.len()] = {
    let mut names = [""; IndexKind::ALL.len()];
    let mut place = 0;
    while place < names.len() {
        names[place] = IndexKind::ALL[place].name();
        place += 1;
    }
    names
};

/// Yields what the index is that a benchmark makes, for keys and values of 8 bytes.
pub(crate) fn spec(index: &str) -> IndexSpec {
    let kind = IndexKind::named(index).expect("one of those above");
    kind.spec(Limits { max_key: 8, max_value: 8 }, Nodes::Usual)
}

/// Reads what a get and an update cost in a benchmark's run: round trips, READs and bytes read, WRITEs, atomics and
/// bytes written, apart from what was done again because the system took the core away in the middle of a READ. An
/// update reads `leaf_bytes` again then. A get does that, or asks for the lines of its entry alone, in one or two
/// READs; after five times it takes the lock.
pub(crate) fn costs(json: &serde_json::Value, leaf_bytes: f64) -> [[f64; 6]; 2] {
    const LINE_BYTES: f64 = 64.0;
    const READS_BEFORE_LOCK: f64 = 5.0;
    let beyond = |figure: f64, least: f64, most: f64| figure - figure.clamp(least, most);
    ["get", "update"].map(|kind| {
        let kind_of = &json["phases"][1]["kinds"][kind];
        let figure = |name: &str| kind_of[name].as_f64().expect("a number");
        let again = figure("retries");
        let (reads, bytes) = (figure("reads") - again, figure("bytes_read") - again * leaf_bytes);
        let costs = if kind == "get" {
            let locked = figure("cas").min(again / READS_BEFORE_LOCK);
            [
                figure("round_trips") - again - locked,
                1.0 + beyond(reads, 1.0, 1.0 + again),
                leaf_bytes
                    + beyond(bytes, leaf_bytes - again * (leaf_bytes - LINE_BYTES).max(0.0), leaf_bytes),
                figure("writes") - locked,
                figure("cas") - locked,
                figure("bytes_written") - 8.0 * locked,
            ]
        } else {
            let round_trips = figure("round_trips") - again;
            [round_trips, reads, bytes, figure("writes"), figure("cas"), figure("bytes_written")]
        };
        // The means of counts differ in the last bits.
        costs.map(|cost| (cost * 1e6).round() / 1e6)
    })
}

/// Asserts that it succeeded and said nothing on standard error.
#[track_caller]
pub(crate) fn assert_ok(ran: &Ran) {
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
}

/// Parses the JSON that it printed.
pub(crate) fn json_of(ran: &Ran) -> serde_json::Value {
    assert_ok(ran);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Asserts that it failed with that status and one line that has `part` in it.
#[track_caller]
pub(crate) fn assert_failed(ran: &Ran, code: i32, part: &str) {
    assert_eq!(ran.code, code, "{}", ran.stderr);
    let last = ran.stderr.lines().last().unwrap_or_default();
    let begin = if code > 128 { "farwood: interrupted: " } else { "farwood: error: " };
    assert!(last.starts_with(begin) && last.contains(part), "{part:?} is not in {}", ran.stderr);
}

/// Makes lines for `load`, with keys in the order of the numbers.
pub(crate) fn lines(numbers: std::ops::Range<u32>) -> Vec<u8> {
    numbers.flat_map(|n| format!("key{n:07}\tvalue{n}\n").into_bytes()).collect()
}

/// Makes lines for `remove`, with the keys of the lines for `load`.
pub(crate) fn keys(numbers: std::ops::Range<u32>) -> Vec<u8> {
    numbers.flat_map(|n| format!("key{n:07}\n").into_bytes()).collect()
}
