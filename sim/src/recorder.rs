//! Notes the operations of a simulation's clients while they run: the history for the oracles, in which operations that
//! never ended stay unknown, a number for all results, and the first thing that went wrong.

use std::cell::{Cell, RefCell};
use std::ops::Bound;

use crate::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};

/// A client of the run, with its compute node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) node: u32,
    pub(crate) client: u32,
}

/// The bounds and the limit of a scan.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) start: Bound<Vec<u8>>,
    pub(crate) end: Bound<Vec<u8>>,
    pub(crate) limit: Option<usize>,
}

/// The notes of a run.
#[derive(Default)]
pub(crate) struct Recorder {
    ticks: Cell<u64>,
    hash: Cell<u64>,
    unknown: Cell<u64>,
    history: RefCell<History>,
    /// The operation that each client is at.
    open: RefCell<Vec<Option<Open>>>,
    failure: RefCell<Option<String>>,
}

struct Open {
    who: Who,
    op: Op,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    scan: Option<(Range, ScanEntries)>,
    start: u64,
    start_ns: u64,
}

impl Recorder {
    /// Begins an operation of the client on one key.
    pub(crate) fn begin(&self, who: Who, now_ns: u64, op: Op, key: &[u8], value: Option<&[u8]>) {
        self.open(who, now_ns, op, key.to_vec(), value.map(<[u8]>::to_vec), None);
    }

    /// Begins a scan of the client.
    pub(crate) fn begin_scan(&self, who: Who, now_ns: u64, range: Range) {
        self.open(who, now_ns, Op::Scan, Vec::new(), None, Some((range, ScanEntries::default())));
    }

    fn open(
        &self,
        who: Who,
        start_ns: u64,
        op: Op,
        key: Vec<u8>,
        value: Option<Vec<u8>>,
        scan: Option<(Range, ScanEntries)>,
    ) {
        let start = self.tick();
        let mut open = self.open.borrow_mut();
        let place = who.client as usize;
        if open.len() <= place {
            open.resize_with(place + 1, || None);
        }
        assert!(open[place].is_none(), "a client does one thing at a time");
        open[place] = Some(Open { who, op, key, value, scan, start, start_ns });
    }

    /// Adds an entry that the client's scan has returned.
    pub(crate) fn scanned(&self, who: Who, key: &[u8], value: &[u8]) {
        let mut open = self.open.borrow_mut();
        let open = open[who.client as usize].as_mut().expect("the client scans");
        open.scan.as_mut().expect("the client scans").1.push(key, value);
    }

    /// Ends the client's operation. `read` is what a get found.
    pub(crate) fn end(&self, who: Who, now_ns: u64, outcome: Outcome, read: Option<&[u8]>) {
        let end = self.tick();
        let Some(open) = self.take(who) else { return };
        self.add(open, outcome, read, false, end, now_ns);
    }

    /// Ends the client's scan, which is at its end or gives up before.
    pub(crate) fn end_scan(&self, who: Who, now_ns: u64, ended: bool) {
        let end = self.tick();
        let Some(open) = self.take(who) else { return };
        self.add(open, Outcome::Ok, None, ended, end, now_ns);
    }

    /// Drops the client's operation: it is no part of the history.
    pub(crate) fn forget(&self, who: Who) {
        drop(self.take(who));
    }

    /// Records the client's operation with an unknown outcome.
    pub(crate) fn give_up(&self, who: Who, now_ns: u64) {
        let end = self.tick();
        let Some(open) = self.take(who) else { return };
        self.unknown.set(self.unknown.get() + 1);
        self.add(open, Outcome::Unknown, None, false, end, now_ns);
    }

    /// Records the operations of all clients that are at one with unknown outcomes.
    pub(crate) fn give_all_up(&self, now_ns: u64) {
        let open: Vec<Who> = self.open.borrow().iter().flatten().map(|open| open.who).collect();
        open.into_iter().for_each(|who| self.give_up(who, now_ns));
    }

    /// Marks that nothing is under way any more: what was given up has taken effect, or never will.
    pub(crate) fn rest(&self) {
        assert!(self.open.borrow().iter().all(Option::is_none), "at rest no client is at anything");
        let tick = self.tick();
        self.history.borrow_mut().rest_at(tick);
    }

    /// Notes a failure; the first one counts.
    pub(crate) fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
    }

    /// Yields the first failure.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Describes the operations that clients are at.
    pub(crate) fn still_open(&self) -> String {
        let open = self.open.borrow();
        let ops = open.iter().flatten().take(8).map(|Open { who, op, key, start_ns, .. }| {
            format!("\n    {op} {key:02x?} by node {} client {}, since {start_ns} ns", who.node, who.client)
        });
        ops.collect()
    }

    /// Yields a number for all results so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Operations whose outcome is unknown.
    pub(crate) fn unknown(&self) -> u64 {
        self.unknown.get()
    }

    /// Yields the history so far; the recorder begins a new one.
    pub(crate) fn take_history(&self) -> History {
        self.history.take()
    }

    fn take(&self, who: Who) -> Option<Open> {
        self.open.borrow_mut().get_mut(who.client as usize)?.take()
    }

    fn tick(&self) -> u64 {
        self.ticks.set(self.ticks.get() + 1);
        self.ticks.get()
    }

    fn add(&self, open: Open, outcome: Outcome, read: Option<&[u8]>, ended: bool, end: u64, end_ns: u64) {
        let Open { who, op, key, value, scan, start, start_ns } = open;
        let event =
            Event { process: who.node, client: who.client, op, outcome, start, end, start_ns, end_ns };
        let mut history = self.history.borrow_mut();
        self.mix(u64::from(who.client) << 8 | (op as u64) << 4 | outcome as u64);
        self.mix(end);
        match &scan {
            Some((range, entries)) => {
                let (start, end) = (as_slice(&range.start), as_slice(&range.end));
                let range = ScanRange { start, end, limit: range.limit, ended };
                entries.iter().for_each(|(key, value)| self.mix_bytes(&[key, value]));
                history.add_scan(event, range, entries);
            }
            None => {
                let value = value.as_deref().or(read);
                self.mix_bytes(&[&key, value.unwrap_or_default()]);
                history.add(event, &key, value);
            }
        }
    }

    fn mix_bytes(&self, parts: &[&[u8]]) {
        for part in parts {
            self.mix(part.len() as u64);
            for piece in part.chunks(8) {
                self.mix(piece.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
            }
        }
    }

    fn mix(&self, word: u64) {
        self.hash.set((self.hash.get().rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// Yields a bound that borrows its key.
pub(crate) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
