//! Histories: every operation with its times and result, recorded per shard without any output, written at the end as
//! JSON lines in the order of their starts, so that any checker can judge a run.

use std::io::{self, Write};
use std::path::Path;

use crate::error::CliError;
use crate::report::files;

/// What an operation was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Get,
    Put,
    Insert,
    Update,
    Scan,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Found,
    Absent,
    Exists,
    Unknown,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Scan => "scan",
        }
    }
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Found => "found",
            Outcome::Absent => "absent",
            Outcome::Exists => "exists",
            Outcome::Unknown => "unknown",
        }
    }
}

/// An operation, its times known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// Which client's it was.
    pub(crate) client: u32,
    /// What it was.
    pub(crate) op: Op,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// When it began.
    pub(crate) start_ns: u64,
    /// When its result was known.
    pub(crate) end_ns: u64,
}

/// The history of one shard: events, and their keys and values in one buffer.
#[derive(Default)]
pub(crate) struct History {
    events: Vec<(Event, Piece)>,
    bytes: Vec<u8>,
}

/// Where in the buffer an event's parts are: the key, then the value, then the entries of a scan, each entry with its
/// lengths in front.
#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    key: u32,
    /// `None` for an absent value.
    value: Option<u32>,
    entries: u32,
}

impl History {
    /// Adds an operation on one key.
    pub(crate) fn add(&mut self, event: Event, key: &[u8], value: Option<&[u8]>) {
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value = value.map(|value| value.len() as u32);
        self.events.push((event, Piece { start, key: key.len() as u32, value, entries: 0 }));
    }

    /// Adds a scan from `key` on, with what it found as [`push_entry`] makes it.
    pub(crate) fn add_scan(&mut self, event: Event, key: &[u8], entries: u32, found: &[u8]) {
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(found);
        self.events.push((event, Piece { start, key: key.len() as u32, value: None, entries }));
    }

    fn write_event(&self, (event, piece): &(Event, Piece), out: &mut dyn Write) -> io::Result<()> {
        let bytes = &self.bytes[piece.start as usize..];
        let (key, rest) = bytes.split_at(piece.key as usize);
        write!(out, r#"{{"process": 1, "client": {}, "op": "{}", "key": ""#, event.client, event.op.name())?;
        write_hex(key, out)?;
        match piece.value {
            Some(len) => {
                out.write_all(br#"", "value": ""#)?;
                write_hex(&rest[..len as usize], out)?;
                out.write_all(b"\"")?;
            }
            None => out.write_all(br#"", "value": null"#)?,
        }
        if event.op == Op::Scan {
            write_entries(rest, piece.entries, out)?;
        }
        let (start, end, result) = (event.start_ns, event.end_ns, event.outcome.name());
        writeln!(out, r#", "start_ns": {start}, "end_ns": {end}, "result": "{result}"}}"#)
    }
}

/// Appends an entry of a scan to `found`.
pub(crate) fn push_entry(key: &[u8], value: &[u8], found: &mut Vec<u8>) {
    found.extend_from_slice(&(key.len() as u32).to_le_bytes());
    found.extend_from_slice(&(value.len() as u32).to_le_bytes());
    found.extend_from_slice(key);
    found.extend_from_slice(value);
}

fn write_entries(mut found: &[u8], entries: u32, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(br#", "entries": ["#)?;
    for entry in 0..entries {
        let (lengths, rest) = found.split_at(8);
        let (key_len, value_len) = (length(&lengths[..4]), length(&lengths[4..]));
        out.write_all(if entry == 0 { b"[\"" } else { b", [\"" })?;
        write_hex(&rest[..key_len], out)?;
        out.write_all(br#"", ""#)?;
        write_hex(&rest[key_len..key_len + value_len], out)?;
        out.write_all(b"\"]")?;
        found = &rest[key_len + value_len..];
    }
    out.write_all(b"]")
}

fn length(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |length, &byte| length << 8 | usize::from(byte))
}

fn write_hex(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for &byte in bytes {
        out.write_all(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])?;
    }
    Ok(())
}

/// Writes the histories of all shards into one file.
pub(crate) fn write(path: &Path, histories: &[History]) -> Result<(), CliError> {
    files::write_file(path, |out| write_merged(histories, out))
}

fn write_merged(histories: &[History], out: &mut dyn Write) -> io::Result<()> {
    let mut order: Vec<(u64, u32, u32)> = Vec::new();
    for (shard, history) in histories.iter().enumerate() {
        let events = history.events.iter().enumerate();
        order.extend(events.map(|(at, (event, _))| (event.start_ns, shard as u32, at as u32)));
    }
    order.sort_unstable();
    for (_, shard, at) in order {
        let history = &histories[shard as usize];
        history.write_event(&history.events[at as usize], out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event(client: u32, op: Op, outcome: Outcome, start_ns: u64) -> Event {
        Event { client, op, outcome, start_ns, end_ns: start_ns + 5 }
    }

    #[test]
    fn lines_are_json_in_the_order_of_starts() {
        let (mut first, mut second, mut found) = (History::default(), History::default(), Vec::new());
        first.add(event(0, Op::Put, Outcome::Ok, 20), b"\x01k", Some(b"\xff"));
        first.add(event(0, Op::Get, Outcome::Absent, 40), b"", None);
        push_entry(b"a", b"1", &mut found);
        push_entry(b"bb", b"", &mut found);
        second.add_scan(event(3, Op::Scan, Outcome::Ok, 30), b"a", 2, &found);
        let mut out = Vec::new();
        write_merged(&[first, second], &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = json!([
            { "process": 1, "client": 0, "op": "put", "key": "016b", "value": "ff",
              "start_ns": 20, "end_ns": 25, "result": "ok" },
            { "process": 1, "client": 3, "op": "scan", "key": "61", "value": null,
              "entries": [["61", "31"], ["6262", ""]], "start_ns": 30, "end_ns": 35, "result": "ok" },
            { "process": 1, "client": 0, "op": "get", "key": "", "value": null,
              "start_ns": 40, "end_ns": 45, "result": "absent" },
        ]);
        assert_eq!(Value::Array(lines), expected);
    }
}
