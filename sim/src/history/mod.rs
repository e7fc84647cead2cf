//! The history of a run: every operation with its result and times, as the recorder saw them.
//!
//! An operation has two pairs of times. *Order ticks* (`start`, `end`) order operations of all clients:
//! `a.end < b.start` means that all clients agree `a` was over before `b` began, equal ticks order nothing. The oracles
//! go by these. Nanoseconds are what is written out, for readers of other checkers.
//!
//! Recording costs one push and a copy into a buffer that all operations of the history share: benchmarks record too.
//! Knows nothing of how operations came about, and does not judge them.

mod json_lines;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Bound;

pub use json_lines::write_json_lines;

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Reads a key.
    Get,
    /// Sets a key, present or not.
    Put,
    /// Sets a key that is absent.
    Insert,
    /// Sets a key that is present.
    Update,
    /// Removes a key.
    Remove,
    /// Reads a range of keys.
    Scan,
}

/// The ends of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It did what it says.
    Ok,
    /// The key was there; also the value that was read.
    Found,
    /// The key was not there: nothing was read, updated or removed.
    Absent,
    /// The key was there already: nothing was inserted.
    Exists,
    /// The client never learned: it died, the fabric failed, the run ended. A write may take effect at any
    /// time after its start, even after its end, or never; but not after everything was at rest ([`History::rest_at`]).
    Unknown,
}

impl Op {
    /// Yields the name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Put => "put",
            Op::Insert => "insert",
            Op::Update => "update",
            Op::Remove => "remove",
            Op::Scan => "scan",
        }
    }

    /// Tells whether an operation of this kind can end so.
    pub fn admits(self, outcome: Outcome) -> bool {
        match self {
            Op::Get => matches!(outcome, Outcome::Found | Outcome::Absent | Outcome::Unknown),
            Op::Put | Op::Scan => matches!(outcome, Outcome::Ok | Outcome::Unknown),
            Op::Insert => matches!(outcome, Outcome::Ok | Outcome::Exists | Outcome::Unknown),
            Op::Update | Op::Remove => matches!(outcome, Outcome::Ok | Outcome::Absent | Outcome::Unknown),
        }
    }

    fn writes_value(self) -> bool {
        matches!(self, Op::Put | Op::Insert | Op::Update)
    }
}

impl Outcome {
    /// Yields the name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Found => "found",
            Outcome::Absent => "absent",
            Outcome::Exists => "exists",
            Outcome::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An operation without its bytes: its client, kind, times and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The compute node.
    pub process: u32,
    /// Which client of it.
    pub client: u32,
    /// The kind of the operation.
    pub op: Op,
    /// Its end.
    pub outcome: Outcome,
    /// Order tick: when it began.
    pub start: u64,
    /// Order tick: when its result was known, or when it was given up. Nothing it returned came later.
    pub end: u64,
    /// When it began.
    pub start_ns: u64,
    /// When its result was known.
    pub end_ns: u64,
}

/// The bounds and the limit of a scan, and whether it got to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanRange<'k> {
    /// Where it begins.
    pub start: Bound<&'k [u8]>,
    /// Where it ends.
    pub end: Bound<&'k [u8]>,
    /// The most entries it may return.
    pub limit: Option<usize>,
    /// True if the scan said itself that there is no more. False if it failed or was dropped.
    pub ended: bool,
}

/// The entries that a scan has returned, in one buffer: collects them before the scan is recorded, can be reused.
#[derive(Clone, Default, Debug)]
pub struct ScanEntries {
    count: u32,
    /// Of each entry: both lengths, the key, the value.
    bytes: Vec<u8>,
}

impl ScanEntries {
    /// Adds an entry.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Forgets all entries and keeps the buffer.
    pub fn clear(&mut self) {
        self.count = 0;
        self.bytes.clear();
    }

    /// Yields the entries in the order in which they came.
    pub fn iter(&self) -> Entries<'_> {
        Entries { left: self.count, bytes: &self.bytes }
    }
}

/// Entries of a scan: key and value.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'h> {
    left: u32,
    bytes: &'h [u8],
}

impl<'h> Iterator for Entries<'h> {
    type Item = (&'h [u8], &'h [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (key_len, rest) = self.bytes.split_first_chunk()?;
        let (value_len, rest) = rest.split_first_chunk()?;
        let (key, rest) = rest.split_at(u32::from_le_bytes(*key_len) as usize);
        let (value, rest) = rest.split_at(u32::from_le_bytes(*value_len) as usize);
        self.bytes = rest;
        Some((key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Entries<'_> {}

/// A scan as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Scanned<'h> {
    /// Its bounds and its limit.
    pub range: ScanRange<'h>,
    /// The entries that it returned.
    pub entries: Entries<'h>,
}

/// An operation as it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'h> {
    /// All but the bytes.
    pub event: Event,
    /// Its key; the start of a scan, empty if it has none.
    pub key: &'h [u8],
    /// The value written, or read.
    pub value: Option<&'h [u8]>,
    /// Of a scan the rest of it.
    pub scan: Option<Scanned<'h>>,
}

/// The operations of a run, or of a part of one.
#[derive(Clone, Default, Debug)]
pub struct History {
    records: Vec<Record>,
    rest: Option<u64>,
    scans: Vec<ScanRecord>,
    /// Of each operation the key, then its value or the end and the entries of its scan.
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    event: Event,
    /// Where in the bytes it begins.
    at: u64,
    key_len: u32,
    rest: Rest,
}

#[derive(Clone, Copy, Debug)]
enum Rest {
    Nothing,
    /// The length of the value.
    Value(u32),
    /// Which scan it is.
    Scan(u32),
}

#[derive(Clone, Copy, Debug)]
struct ScanRecord {
    start: Bound<()>,
    end: Bound<()>,
    limit: Option<usize>,
    ended: bool,
    end_len: u32,
    entries: u32,
    entries_len: u64,
}

impl History {
    /// Adds an operation on one key, with the value that it wrote or read.
    ///
    /// # Panics
    /// If no such operation can end so, or lacks its value: the recording is wrong, and no verdict would be worth
    /// anything.
    pub fn add(&mut self, event: Event, key: &[u8], value: Option<&[u8]>) {
        let Event { op, outcome, .. } = event;
        assert!(op != Op::Scan && op.admits(outcome), "a {op} cannot end as {outcome}");
        assert!(
            value.is_some() || !(op.writes_value() || outcome == Outcome::Found),
            "a {op} without its value"
        );
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let rest = value.map_or(Rest::Nothing, |value| Rest::Value(value.len() as u32));
        self.records.push(Record { event, at, key_len: key.len() as u32, rest });
    }

    /// Adds a scan with the entries that it returned, all of them and in their order, whatever became of it then.
    ///
    /// # Panics
    /// If it is not a scan, or one that cannot end so.
    pub fn add_scan(&mut self, event: Event, range: ScanRange<'_>, entries: &ScanEntries) {
        let Event { op, outcome, .. } = event;
        assert!(op == Op::Scan && op.admits(outcome), "a scan that is a {op} and ended as {outcome}");
        let (start_key, end_key) = (bound_key(range.start), bound_key(range.end));
        let rest = Rest::Scan(self.scans.len() as u32);
        self.records.push(Record {
            event,
            at: self.bytes.len() as u64,
            key_len: start_key.len() as u32,
            rest,
        });
        self.scans.push(ScanRecord {
            start: range.start.map(drop),
            end: range.end.map(drop),
            limit: range.limit,
            ended: range.ended,
            end_len: end_key.len() as u32,
            entries: entries.count,
            entries_len: entries.bytes.len() as u64,
        });
        for part in [start_key, end_key, &entries.bytes] {
            self.bytes.extend_from_slice(part);
        }
    }

    /// Notes that at tick `rest` nothing was under way any more, neither for clients nor in the background: what was
    /// given up by then has taken effect, or never will. The first rest counts.
    pub fn rest_at(&mut self, rest: u64) {
        self.rest.get_or_insert(rest);
    }

    /// Yields when everything was at rest.
    pub fn rest(&self) -> Option<u64> {
        self.rest
    }

    /// Counts its operations.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Tells whether it has no operations.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Yields the operations in the order in which they were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Operation<'_>> {
        self.records.iter().map(|record| self.operation(record))
    }

    fn operation(&self, record: &Record) -> Operation<'_> {
        let (key, rest) = self.bytes[record.at as usize..].split_at(record.key_len as usize);
        let operation = Operation { event: record.event, key, value: None, scan: None };
        match record.rest {
            Rest::Nothing => operation,
            Rest::Value(len) => Operation { value: Some(&rest[..len as usize]), ..operation },
            Rest::Scan(scan) => {
                let scan = &self.scans[scan as usize];
                let (end_key, rest) = rest.split_at(scan.end_len as usize);
                let range = ScanRange {
                    start: scan.start.map(|()| key),
                    end: scan.end.map(|()| end_key),
                    limit: scan.limit,
                    ended: scan.ended,
                };
                let entries = Entries { left: scan.entries, bytes: &rest[..scan.entries_len as usize] };
                Operation { scan: Some(Scanned { range, entries }), ..operation }
            }
        }
    }
}

fn bound_key(bound: Bound<&[u8]>) -> &[u8] {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}
