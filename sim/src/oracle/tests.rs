//! Tests of the rules for scans, each by its name.

use std::ops::Bound::{Excluded, Included, Unbounded};

use super::*;
use crate::history::{Op, ScanEntries, ScanRange};

const ALL: ScanRange<'static> = ScanRange { start: Unbounded, end: Unbounded, limit: None, ended: true };

struct Run {
    history: History,
    initial: Pairs,
}

impl Run {
    fn with(initial: &[(&str, &str)]) -> Run {
        let initial = initial.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()));
        Run { history: History::default(), initial: initial.collect() }
    }

    fn point(mut self, (start, end): (u64, u64), op: Op, key: &str, value: &str, outcome: Outcome) -> Run {
        let value = (op != Op::Remove && outcome != Outcome::Absent).then_some(value.as_bytes());
        self.history.add(event(start, end, op, outcome), key.as_bytes(), value);
        self
    }

    fn scan(self, (start, end): (u64, u64), range: ScanRange<'_>, pairs: &[(&str, &str)]) -> Run {
        self.scan_that_ends((start, end), Outcome::Ok, range, pairs)
    }

    fn scan_that_ends(
        mut self,
        (start, end): (u64, u64),
        outcome: Outcome,
        range: ScanRange<'_>,
        pairs: &[(&str, &str)],
    ) -> Run {
        let mut entries = ScanEntries::default();
        pairs.iter().for_each(|(key, value)| entries.push(key.as_bytes(), value.as_bytes()));
        self.history.add_scan(event(start, end, Op::Scan, outcome), range, &entries);
        self
    }

    fn passes(&self) {
        if let Err(violation) = check_history(&self.history, &self.initial) {
            panic!("{violation}");
        }
    }

    fn fails(&self, with: &str) {
        let violation = check_history(&self.history, &self.initial).expect_err(with).to_string();
        assert!(violation.contains(with), "{violation}");
    }
}

fn event(start: u64, end: u64, op: Op, outcome: Outcome) -> Event {
    Event { process: 1, client: 2, op, outcome, start, end, start_ns: start, end_ns: end }
}

#[test]
fn a_scan_of_what_was_there() {
    let run = Run::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let run = run.scan((1, 2), ALL, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let (start, end) = (Excluded(&b"a"[..]), Excluded(&b"c"[..]));
    let run = run.scan((1, 2), ScanRange { start, end, ..ALL }, &[("b", "2")]);
    let run = run.scan((1, 2), ScanRange { limit: Some(2), ..ALL }, &[("a", "1"), ("b", "2")]);
    run.scan((1, 2), ScanRange { limit: Some(0), ..ALL }, &[]).passes();
}

#[test]
fn a_scan_of_nothing() {
    let (a, b) = (&b"a"[..], &b"b"[..]);
    for (start, end) in [(Included(b), Included(a)), (Excluded(a), Excluded(a)), (Included(b), Excluded(b))] {
        Run::with(&[("a", "1"), ("b", "2")]).scan((1, 2), ScanRange { start, end, ..ALL }, &[]).passes();
    }
}

#[test]
fn a_scan_that_misses_a_key() {
    let loaded = Run::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    loaded
        .scan((1, 2), ALL, &[("a", "1"), ("c", "3")])
        .fails(r#"scan saw what was not there: key "b", "2" before"#);
    let put = Run::with(&[]).point((1, 2), Op::Put, "b", "2", Outcome::Ok);
    put.scan((3, 4), ALL, &[]).fails("scan   -> absent");
    // It may have been there from the middle of the scan on.
    Run::with(&[]).point((1, 4), Op::Put, "b", "2", Outcome::Ok).scan((3, 5), ALL, &[]).passes();
}

#[test]
fn a_scan_misses_a_key_that_an_update_only_changed() {
    let run = Run::with(&[("b", "1")]).point((2, 3), Op::Update, "b", "2", Outcome::Ok);
    run.scan((1, 4), ALL, &[]).fails("scan   -> absent");
    let run = Run::with(&[("b", "1")]).point((2, 3), Op::Remove, "b", "", Outcome::Ok);
    run.point((4, 5), Op::Put, "b", "2", Outcome::Ok).scan((1, 6), ALL, &[]).passes();
}

#[test]
fn a_scan_beyond_what_it_covered_misses_nothing() {
    let run = Run::with(&[("a", "1"), ("b", "2"), ("c", "3")]);
    let run = run.scan((1, 2), ScanRange { limit: Some(1), ..ALL }, &[("a", "1")]);
    let run = run.scan((1, 2), ScanRange { ended: false, ..ALL }, &[("a", "1"), ("b", "2")]);
    let failed = ScanRange { ended: false, ..ALL };
    let run = run.scan_that_ends((1, 2), Outcome::Unknown, failed, &[("a", "1")]);
    run.scan_that_ends((1, 2), Outcome::Unknown, failed, &[]).passes();
}

#[test]
fn a_scan_that_failed_is_still_held_to_what_it_returned() {
    let loaded = || Run::with(&[("a", "1"), ("b", "2")]);
    let failed = ScanRange { ended: false, ..ALL };
    loaded().scan_that_ends((1, 2), Outcome::Unknown, failed, &[("b", "2")]).fails(r#"key "a""#);
    loaded().scan_that_ends((1, 2), Outcome::Unknown, failed, &[("a", "2")]).fails(r#"key "a""#);
}

#[test]
fn a_scan_with_a_stale_value() {
    let written = || Run::with(&[("a", "1")]).point((1, 3), Op::Put, "a", "2", Outcome::Ok);
    written().scan((2, 4), ALL, &[("a", "1")]).passes();
    written().scan((4, 5), ALL, &[("a", "1")]).fails(r#"scan   -> "1""#);
    // One of unknown outcome may still be to come.
    let run = Run::with(&[("a", "1")]).point((1, 3), Op::Put, "a", "2", Outcome::Unknown);
    run.scan((4, 5), ALL, &[("a", "1")]).scan((6, 7), ALL, &[("a", "2")]).passes();
}

#[test]
fn a_scan_with_a_stale_value_that_only_a_later_read_gives_away() {
    let run = Run::with(&[]).point((1, 9), Op::Put, "a", "1", Outcome::Ok);
    let run = run.point((2, 8), Op::Put, "a", "2", Outcome::Ok).scan((10, 11), ALL, &[("a", "1")]);
    run.passes();
    run.point((12, 13), Op::Get, "a", "2", Outcome::Found).fails("scan   -> \"1\"");
}

#[test]
fn a_scan_with_a_value_from_the_future() {
    let run = Run::with(&[("a", "1")]).point((5, 6), Op::Put, "a", "2", Outcome::Ok);
    run.scan((1, 4), ALL, &[("a", "2")]).fails("values read were written by");
}

#[test]
fn a_scan_with_a_key_that_was_removed() {
    let removed = || Run::with(&[("a", "1")]).point((2, 3), Op::Remove, "a", "", Outcome::Ok);
    removed().scan((1, 4), ALL, &[("a", "1")]).passes();
    removed().scan((4, 5), ALL, &[("a", "1")]).fails("remove -> ok");
    let unknown = Run::with(&[("a", "1")]).point((2, 3), Op::Remove, "a", "", Outcome::Unknown);
    unknown.scan((4, 5), ALL, &[("a", "1")]).scan((6, 7), ALL, &[]).passes();
}

#[test]
fn a_scan_with_a_key_that_never_was() {
    Run::with(&[]).scan((1, 2), ALL, &[("x", "1")]).fails(r#"key "x", absent before all of it"#);
}

#[test]
fn scans_that_take_turns() {
    let run = Run::with(&[("a", "1")]).point((1, 90), Op::Put, "a", "2", Outcome::Ok);
    let run = run.scan((2, 3), ALL, &[("a", "2")]);
    run.scan((4, 5), ALL, &[("a", "1")]).fails("scan saw what was not there");
}

#[test]
fn a_duplicate_key() {
    let run = Run::with(&[("a", "1"), ("b", "2")]);
    run.scan((1, 2), ALL, &[("a", "1"), ("a", "1"), ("b", "2")])
        .fails(r#"the scan of ( .. ) by node 1 client 2, ticks 1 .. 2 returned "a" twice"#);
}

#[test]
fn keys_that_descend() {
    let run = Run::with(&[("a", "1"), ("b", "2")]);
    run.scan((1, 2), ALL, &[("b", "2"), ("a", "1")]).fails(r#"returned "a" after "b""#);
}

#[test]
fn keys_out_of_bounds() {
    let range = ScanRange { start: Excluded(b"a"), end: Included(b"c"), limit: Some(9), ..ALL };
    let run = || Run::with(&[("a", "1"), ("d", "4")]);
    let with = r#"the scan of ("a" .. "c"], at most 9 by node 1 client 2, ticks 1 .. 2 returned "a", out of"#;
    run().scan((1, 2), range, &[("a", "1")]).fails(with);
    run().scan((1, 2), range, &[("d", "4")]).fails(r#"returned "d", out of its bounds"#);
}

#[test]
fn more_than_asked_for() {
    let run = Run::with(&[("a", "1"), ("b", "2")]);
    run.scan((1, 2), ScanRange { limit: Some(1), ..ALL }, &[("a", "1"), ("b", "2")])
        .fails("returned 2 entries, and was asked for 1");
}

#[test]
fn a_scan_is_not_blamed_for_what_the_writes_did() {
    let run = Run::with(&[]).point((1, 2), Op::Insert, "a", "1", Outcome::Ok);
    let run = run.scan((3, 4), ALL, &[]).point((5, 6), Op::Insert, "a", "2", Outcome::Ok);
    run.fails("not linearizable");
}

#[test]
fn what_is_undecided_does_not_hide_what_is_wrong() {
    let mut run = Run::with(&[]);
    for at in 0..50 {
        run = run.point((at, at + 10), Op::Put, "a", &at.to_string(), Outcome::Ok);
    }
    let undecided = check_history_within(&run.history, &run.initial, 60);
    assert!(matches!(undecided, Err(Violation::Undecided { steps_max: 60, .. })), "{undecided:?}");
    let run = run.point((1, 2), Op::Get, "b", "1", Outcome::Found);
    assert!(matches!(check_history_within(&run.history, &run.initial, 60), Err(Violation::Point(_))));
    Run { history: run.history.clone(), initial: run.initial.clone() }.fails(r#"key "b""#);
}
