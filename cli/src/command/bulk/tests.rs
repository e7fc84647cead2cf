//! Loads on a cluster of this process: what is stored, what is said, and what is left when a load ends early.

use std::thread;

use farwood::{CheckOptions, Cluster, IndexKind, RangeIndex};
use futures::StreamExt;

use super::*;
use crate::session::{kit, on_index};

fn load(
    cluster: &Arc<Cluster>,
    input: impl Read + Send + 'static,
    interrupt: Interrupt,
) -> Result<Outcome, CliError> {
    let source = Source { input: Box::new(input), bytes: None, path: "lines".into() };
    Bulk { name: "t".to_owned(), source, shards: 2, interrupt }.on(Arc::clone(cluster))
}

/// Reads all lines of the index, which must be intact.
fn stored(cluster: &Arc<Cluster>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let lines = on_index(Arc::clone(cluster), "t", &Interrupt::default(), "", |index| async move {
        assert!(index.check(&CheckOptions::default()).await.map_err(CliError::failed)?.is_intact());
        let pairs = index.scan(.., None);
        Ok(pairs.map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect().await)
    });
    lines.unwrap()
}

fn numbered(lines: std::ops::Range<u64>) -> Vec<u8> {
    lines.flat_map(|n| format!("{n:08}\t{n}\n").into_bytes()).collect()
}

/// Lines without end; before a certain one is read, something is done.
struct Endless<F> {
    next: u64,
    rest: io::Cursor<Vec<u8>>,
    after: Option<(u64, F)>,
}

impl<F: FnOnce() -> io::Result<usize>> Endless<F> {
    /// Makes lines of which number `line` (and some of its neighbours) is read only after `after` is done.
    fn new(line: u64, after: F) -> Self {
        Endless { next: 0, rest: io::Cursor::default(), after: Some((line, after)) }
    }
}

impl<F: FnOnce() -> io::Result<usize>> Read for Endless<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        const LINES: u64 = 1000;
        if let Some((_, after)) = self.after.take_if(|(line, _)| self.next >= *line)
            && after()? == 0
        {
            return Ok(0);
        }
        if self.rest.position() == self.rest.get_ref().len() as u64 {
            self.rest = io::Cursor::new(numbered(self.next..self.next + LINES));
            self.next += LINES;
        }
        self.rest.read(out)
    }
}

#[test]
fn good_lines_are_stored_and_bad_ones_named() {
    IndexKind::ALL.iter().copied().for_each(store_good_lines_and_name_bad_ones);
}

fn store_good_lines_and_name_bad_ones(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let text = [
        &b"b\t1\nnothing\na\t\xff\0\nb\t2\nthis key is too long\tx\n"[..],
        b"\t\nc\tthis value is too long\nb\t3\nlast\tone",
    ];
    let outcome = load(&cluster, io::Cursor::new(text.concat()), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 9 lines, stored 6, rejected 3\n");
    let shown: Vec<String> = outcome.shown_rejects().collect();
    assert!(
        shown[0].starts_with("line 2: there is no TAB") && shown[1].starts_with("line 5: the key"),
        "{shown:?}"
    );
    assert!(shown[2].starts_with("line 7: the value") && shown.len() == 3, "{shown:?}");
    let error = outcome.verdict.unwrap_err();
    assert_eq!(
        (error.exit_code(), error.one_line().as_str()),
        (1, "3 lines were rejected, all others are stored")
    );
    let expected: [(&[u8], &[u8]); 4] = [(b"", b""), (b"a", b"\xff\0"), (b"b", b"3"), (b"last", b"one")];
    assert!(stored(&cluster).iter().map(|(key, value)| (&key[..], &value[..])).eq(expected));
}

#[test]
fn nothing_is_loaded_of_nothing() {
    IndexKind::ALL.iter().copied().for_each(load_nothing);
}

fn load_nothing(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let outcome = load(&cluster, io::empty(), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 0 lines, stored 0, rejected 0\n");
    assert!(outcome.verdict.is_ok() && stored(&cluster).is_empty());
}

/// Several blocks, and more of them than may wait.
#[test]
fn many_lines_are_stored_and_the_last_of_equal_keys_wins() {
    IndexKind::ALL.iter().copied().for_each(load_many_lines);
}

fn load_many_lines(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let mut text = numbered(0..40_000);
    text.extend((0..40_000).flat_map(|n| format!("{n:08}\tx{n}\nhot\t{n}\n").into_bytes()));
    let outcome = load(&cluster, io::Cursor::new(text), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 120000 lines, stored 120000, rejected 0\n");
    outcome.verdict.unwrap();
    let stored = stored(&cluster);
    assert_eq!(stored.len(), 40_001);
    for (n, (key, value)) in stored[..40_000].iter().enumerate() {
        assert_eq!((key, value), (&format!("{n:08}").into_bytes(), &format!("x{n}").into_bytes()));
    }
    assert_eq!(stored[40_000], (b"hot".to_vec(), b"39999".to_vec()));
}

fn assert_complete_through(cluster: &Arc<Cluster>, outcome: &Outcome, message: &str) {
    let through = message.split("up to line ").nth(1).and_then(|rest| rest.split(' ').next());
    let through: usize = through.expect("it says how far it came").parse().expect("a number");
    let stored = stored(cluster);
    assert_eq!(stored.len() as u64, outcome.stored);
    assert!(stored.len() >= through && outcome.read >= outcome.stored);
    let keys = stored.iter().take(through).map(|(key, _)| key.clone());
    assert!(
        keys.eq((0..through).map(|n| format!("{n:08}").into_bytes())),
        "a line up to {through} is missing"
    );
}

#[test]
fn an_interrupt_ends_it_and_it_says_how_far_it_came() {
    IndexKind::ALL.iter().copied().for_each(interrupt_a_load);
}

fn interrupt_a_load(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let interrupt = Interrupt::default();
    let signal = interrupt.clone();
    let input = Endless::new(50_000, move || {
        signal.set();
        Ok(1)
    });
    let outcome = load(&cluster, input, interrupt).unwrap();
    let error = outcome.verdict.as_ref().unwrap_err();
    assert_eq!(error.exit_code(), 130);
    assert_complete_through(&cluster, &outcome, &error.one_line());
}

/// As a terminal or a pipe does.
#[test]
fn a_read_that_blocks_does_not_keep_it() {
    let cluster = kit::cluster(IndexKind::Sherman);
    let interrupt = Interrupt::default();
    let signal = interrupt.clone();
    let input = Endless::new(5_000, move || {
        signal.set();
        loop {
            thread::park();
        }
    });
    let outcome = load(&cluster, input, interrupt).unwrap();
    assert_eq!(outcome.verdict.as_ref().unwrap_err().exit_code(), 130);
}

#[test]
fn what_was_read_before_reading_failed_is_stored() {
    IndexKind::ALL.iter().copied().for_each(fail_to_read);
}

fn fail_to_read(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let input = Endless::new(5_000, || Err(io::Error::other("a bad disk")));
    let outcome = load(&cluster, input, Interrupt::default()).unwrap();
    let error = outcome.verdict.as_ref().unwrap_err();
    assert_eq!((error.exit_code(), outcome.stored), (1, 5_000));
    assert!(error.one_line().contains("cannot read lines: a bad disk"), "{error}");
    assert_complete_through(&cluster, &outcome, &error.one_line());
}

#[test]
fn memory_that_runs_out_ends_it_with_the_line() {
    IndexKind::ALL.iter().copied().for_each(run_out_of_memory);
}

fn run_out_of_memory(kind: IndexKind) {
    let cluster = kit::cluster_of(kind, 4 << 20);
    let outcome = load(&cluster, Endless::new(u64::MAX, || Ok(1)), Interrupt::default()).unwrap();
    let error = outcome.verdict.as_ref().unwrap_err();
    let message = error.one_line();
    assert_eq!(error.exit_code(), 1);
    assert!(message.starts_with("line ") && message.contains("out of memory"), "{message}");
    assert!(outcome.stored > 10_000);
}

/// `cargo test --release -p farwood-cli lines_a_second -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn lines_a_second() {
    let shuffled = (0..1_000_000u64).map(|n| n * 7_919 % 1_000_000);
    let shuffled = shuffled.flat_map(|n| format!("{n:08}\t{n}\n").into_bytes()).collect();
    let texts: [(&str, Vec<u8>); 2] = [("sorted", numbered(0..1_000_000)), ("shuffled", shuffled)];
    for (kind, (order, text)) in
        IndexKind::ALL.iter().copied().flat_map(|kind| texts.clone().map(|text| (kind, text)))
    {
        let cluster = kit::cluster_of(kind, 256 << 20);
        let clock = farwood::runtime::clock::Clock::new();
        let outcome = load(&cluster, io::Cursor::new(text), Interrupt::default()).unwrap();
        let seconds = clock.now() as f64 / 1e9;
        outcome.verdict.unwrap();
        println!("{}, {order}: {:.0} lines/s, {seconds:.2} s", kind.name(), 1e6 / seconds);
    }
}

#[test]
fn what_cannot_be_opened_is_seen_before_anything_starts() {
    for path in ["/nonexistent/lines", "/"] {
        assert_eq!(open(Path::new(path)).err().expect("it cannot be read").exit_code(), 2, "{path}");
    }
}
