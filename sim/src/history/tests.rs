//! Tests that recorded operations come back as they were, and as lines of JSON.

use std::ops::Bound;

use serde_json::{Value, json};

use super::*;

fn event(process: u32, client: u32, op: Op, outcome: Outcome, start_ns: u64) -> Event {
    Event { process, client, op, outcome, start: start_ns, end: start_ns + 1, start_ns, end_ns: start_ns + 5 }
}

fn all_from(key: &[u8]) -> ScanRange<'_> {
    ScanRange { start: Bound::Included(key), end: Bound::Unbounded, limit: None, ended: true }
}

fn entries(pairs: &[(&[u8], &[u8])]) -> ScanEntries {
    let mut entries = ScanEntries::default();
    pairs.iter().for_each(|(key, value)| entries.push(key, value));
    entries
}

fn lines(histories: &[History]) -> Value {
    let mut out = Vec::new();
    write_json_lines(histories, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
}

#[test]
fn operations_come_back_as_they_were() {
    let mut history = History::default();
    let put = event(1, 2, Op::Put, Outcome::Ok, 3);
    history.add(put, b"k", Some(b""));
    history.add(event(1, 2, Op::Get, Outcome::Absent, 4), b"", None);
    let range =
        ScanRange { start: Bound::Excluded(b"a"), end: Bound::Included(b"zz"), limit: Some(7), ended: false };
    history.add_scan(
        event(1, 2, Op::Scan, Outcome::Unknown, 5),
        range,
        &entries(&[(b"", b"1"), (b"bb", b"")]),
    );
    history.add(event(1, 2, Op::Remove, Outcome::Ok, 6), b"last", None);
    let found: Vec<Operation<'_>> = history.iter().collect();
    assert_eq!((found.len(), history.len(), history.is_empty()), (4, 4, false));
    assert_eq!((found[0].event, found[0].key, found[0].value), (put, &b"k"[..], Some(&b""[..])));
    assert_eq!((found[1].key, found[1].value), (&b""[..], None));
    let scan = found[2].scan.unwrap();
    assert_eq!((found[2].key, scan.range), (&b"a"[..], range));
    assert_eq!(scan.entries.len(), 2);
    assert_eq!(scan.entries.collect::<Vec<_>>(), [(&b""[..], &b"1"[..]), (b"bb", b"")]);
    assert_eq!(found[3].key, b"last");
}

#[test]
fn lines_are_json_in_the_order_of_starts() {
    let (mut first, mut second) = (History::default(), History::default());
    first.add(event(1, 0, Op::Put, Outcome::Ok, 20), b"\x01k", Some(b"\xff"));
    first.add(event(1, 0, Op::Get, Outcome::Absent, 40), b"", None);
    let scan = event(2, 3, Op::Scan, Outcome::Ok, 30);
    second.add_scan(scan, all_from(b"a"), &entries(&[(b"a", b"1"), (b"bb", b"")]));
    let expected = json!([
        { "process": 1, "client": 0, "op": "put", "key": "016b", "value": "ff",
          "start_ns": 20, "end_ns": 25, "result": "ok" },
        { "process": 2, "client": 3, "op": "scan", "key": "61", "value": null,
          "entries": [["61", "31"], ["6262", ""]], "start_ns": 30, "end_ns": 35, "result": "ok" },
        { "process": 1, "client": 0, "op": "get", "key": "", "value": null,
          "start_ns": 40, "end_ns": 45, "result": "absent" },
    ]);
    assert_eq!(lines(&[first, second]), expected);
}

#[test]
fn of_starts_at_the_same_moment_the_ticks_say_which_is_first() {
    let mut history = History::default();
    for (client, start) in [(1, 9), (2, 7), (3, 8)] {
        let at = Event { start, end: 20, ..event(1, client, Op::Remove, Outcome::Absent, 5) };
        history.add(at, b"k", None);
    }
    let lines = lines(&[history]);
    let clients: Vec<_> =
        lines.as_array().unwrap().iter().map(|line| line["client"].as_u64().unwrap()).collect();
    assert_eq!(clients, [2, 3, 1]);
}

#[test]
#[should_panic(expected = "a put cannot end as absent")]
fn refuses_an_outcome_that_cannot_be() {
    History::default().add(event(1, 1, Op::Put, Outcome::Absent, 1), b"k", Some(b"v"));
}

#[test]
#[should_panic(expected = "a get without its value")]
fn refuses_a_read_without_its_value() {
    History::default().add(event(1, 1, Op::Get, Outcome::Found, 1), b"k", None);
}
