//! Loads and removals on a cluster of this process: what is stored, what is said, and what is left when one ends early.

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
    run_on(cluster, Operation::Put, input, interrupt)
}

fn remove(
    cluster: &Arc<Cluster>,
    input: impl Read + Send + 'static,
    interrupt: Interrupt,
) -> Result<Outcome, CliError> {
    run_on(cluster, Operation::Remove, input, interrupt)
}

fn run_on(
    cluster: &Arc<Cluster>,
    operation: Operation,
    input: impl Read + Send + 'static,
    interrupt: Interrupt,
) -> Result<Outcome, CliError> {
    let source = Source { input: Box::new(input), bytes: None, path: "lines".into() };
    Bulk { operation, name: "t".to_owned(), source, shards: 2, interrupt }.on(Arc::clone(cluster))
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

fn keys(numbers: std::ops::Range<u64>) -> Vec<u8> {
    numbers.flat_map(|n| format!("{n:08}\n").into_bytes()).collect()
}

/// Lines without end; before a certain one is read, something is done.
struct Endless<F> {
    lines: fn(std::ops::Range<u64>) -> Vec<u8>,
    next: u64,
    rest: io::Cursor<Vec<u8>>,
    after: Option<(u64, F)>,
}

impl<F: FnOnce() -> io::Result<usize>> Endless<F> {
    /// Makes lines of which number `line` (and some of its neighbours) is read only after `after` is done.
    fn new(line: u64, after: F) -> Self {
        Endless { lines: numbered, next: 0, rest: io::Cursor::default(), after: Some((line, after)) }
    }

    /// Makes keys, as `new` makes pairs.
    fn keys(line: u64, after: F) -> Self {
        Endless { lines: keys, ..Self::new(line, after) }
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
            self.rest = io::Cursor::new((self.lines)(self.next..self.next + LINES));
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
    let outcome = remove(&cluster, io::empty(), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 0 lines, removed 0, absent 0, rejected 0\n");
    assert!(outcome.verdict.is_ok() && stored(&cluster).is_empty());
}

/// Several blocks, of an index that gets empty in some places.
#[test]
fn keys_are_removed_and_those_that_are_absent_are_no_error() {
    IndexKind::ALL.iter().copied().for_each(remove_keys);
}

fn remove_keys(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    load(&cluster, io::Cursor::new(numbered(0..40_000)), Interrupt::default()).unwrap().verdict.unwrap();
    // Those of a range, some of them twice, some that are not there, and every other one of the rest.
    let mut text = keys(10_000..30_000);
    text.extend(keys(20_000..22_000));
    text.extend(keys(50_000..170_000));
    text.extend((30_000..40_000).step_by(2).flat_map(|n| keys(n..n + 1)));
    let outcome = remove(&cluster, io::Cursor::new(text), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 147000 lines, removed 25000, absent 122000, rejected 0\n");
    outcome.verdict.unwrap();
    let rest = (0..10_000).chain((30_001..40_000).step_by(2));
    let rest = rest.map(|n| (format!("{n:08}").into_bytes(), n.to_string().into_bytes()));
    assert!(stored(&cluster).into_iter().eq(rest));
    // All others.
    let outcome = remove(&cluster, io::Cursor::new(keys(0..40_000)), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 40000 lines, removed 15000, absent 25000, rejected 0\n");
    assert!(outcome.verdict.is_ok() && stored(&cluster).is_empty());
}

#[test]
fn lines_that_are_no_key_are_named_and_remove_nothing() {
    IndexKind::ALL.iter().copied().for_each(remove_good_lines_and_name_bad_ones);
}

fn remove_good_lines_and_name_bad_ones(kind: IndexKind) {
    let cluster = kit::cluster(kind);
    let pairs = b"\t1\na\t2\nb\t3\nc\t4\n\xff\0\t5\nlast\t6\n";
    load(&cluster, io::Cursor::new(pairs), Interrupt::default()).unwrap().verdict.unwrap();
    let text = b"a\na\nb\t3\nthis key is too long\n\nnone\n\t\n\xff\0\nlast";
    let outcome = remove(&cluster, io::Cursor::new(text), Interrupt::default()).unwrap();
    assert_eq!(outcome.summary(), "read 9 lines, removed 4, absent 2, rejected 3\n");
    let shown: Vec<String> = outcome.shown_rejects().collect();
    let expected = [
        "line 3: there is a TAB in it: a line to remove is a key alone",
        "line 4: the key is longer than the 16 bytes that this index takes",
        "line 7: there is a TAB in it: a line to remove is a key alone",
    ];
    assert_eq!(shown, expected);
    let error = outcome.verdict.unwrap_err();
    assert_eq!(
        (error.exit_code(), error.one_line().as_str()),
        (1, "3 lines were rejected, the keys of all others are gone")
    );
    assert_eq!(stored(&cluster), [(b"b".to_vec(), b"3".to_vec()), (b"c".to_vec(), b"4".to_vec())]);
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

/// Parses up to which line all is done.
fn through(message: &str) -> usize {
    let number = message.split("up to line ").nth(1).and_then(|rest| rest.split(' ').next());
    number.expect("it says how far it came").parse().expect("a number")
}

fn assert_complete_through(cluster: &Arc<Cluster>, outcome: &Outcome, message: &str) {
    let through = through(message);
    let stored = stored(cluster);
    assert_eq!(stored.len() as u64, outcome.counts.changed);
    assert!(stored.len() >= through && outcome.read >= outcome.counts.changed);
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

#[test]
fn an_interrupted_removal_says_how_far_it_came() {
    IndexKind::ALL.iter().copied().for_each(interrupt_a_removal);
}

fn interrupt_a_removal(kind: IndexKind) {
    const PAIRS: u64 = 40_000;
    let cluster = kit::cluster(kind);
    load(&cluster, io::Cursor::new(numbered(0..PAIRS)), Interrupt::default()).unwrap().verdict.unwrap();
    let interrupt = Interrupt::default();
    let signal = interrupt.clone();
    let input = Endless::keys(20_000, move || {
        signal.set();
        Ok(1)
    });
    let outcome = remove(&cluster, input, interrupt).unwrap();
    let error = outcome.verdict.as_ref().unwrap_err();
    assert_eq!(error.exit_code(), 130);
    let stored = stored(&cluster);
    assert_eq!(stored.len() as u64 + outcome.counts.changed, PAIRS);
    let through = through(&error.one_line());
    let left = stored.first().map(|(key, _)| key.clone()).unwrap_or_default();
    assert!(left >= format!("{through:08}").into_bytes(), "a key up to line {through} is left");
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
    assert_eq!((error.exit_code(), outcome.counts.changed), (1, 5_000));
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
    assert!(outcome.counts.changed > 10_000);
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
