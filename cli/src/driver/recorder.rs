//! What a shard notes about its operations besides the index's own counters: latencies of those that are timed, and the
//! history if one is asked for. No clock is read for an operation that is neither. In virtual time, what an operation
//! costs its client is spent here, half of it before and half of it after what the index does.

use std::cell::RefCell;

use hdrhistogram::Histogram;

use crate::config::BenchConfig;
use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::{CLASSES, OpClass};
use crate::report::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};
use crate::report::latencies;

/// The notes of one shard.
pub(crate) struct Recorder<V> {
    shard: V,
    /// What an operation costs the client, before and after what the index does, each; in virtual time.
    half_client_ns: u64,
    /// One operation in so many (a power of two) is timed.
    sampling_mask: u32,
    latency: RefCell<Vec<Histogram<u64>>>,
    history: Option<RefCell<History>>,
}

/// An operation in flight that will be noted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// When it began.
    pub(crate) start_ns: u64,
    /// What its latency counts from.
    from_ns: u64,
}

impl<V: BenchShard> Recorder<V> {
    /// Empty notes.
    pub(crate) fn new(shard: V, config: &BenchConfig) -> Self {
        let history = config.output.history.is_some().then(RefCell::default);
        Recorder {
            shard,
            half_client_ns: config.client_ns() / 2,
            sampling_mask: config.latency_sampling - 1,
            latency: RefCell::new(empty()),
            history,
        }
    }

    /// An operation begins. `random` decides whether it is timed; one of an open loop always is.
    #[inline]
    pub(crate) fn begin(&self, random: u32, intended_ns: Option<u64>) -> Option<Timed> {
        if intended_ns.is_none() && random & self.sampling_mask != 0 {
            self.shard.compute(self.half_client_ns);
            return None;
        }
        let start_ns = self.shard.now();
        self.shard.compute(self.half_client_ns);
        Some(Timed { start_ns, from_ns: intended_ns.unwrap_or(start_ns) })
    }

    /// The time by the shard's clock.
    pub(crate) fn now(&self) -> u64 {
        self.shard.now()
    }

    /// It has ended. Yields when, if it was timed.
    #[inline]
    pub(crate) fn end(&self, class: OpClass, timed: Option<Timed>) -> u64 {
        self.shard.compute(self.half_client_ns);
        let Some(timed) = timed else { return 0 };
        let end_ns = self.shard.now();
        self.latency.borrow_mut()[class as usize].saturating_record(end_ns.saturating_sub(timed.from_ns));
        end_ns
    }

    /// Whether operations have to be noted one by one.
    #[inline]
    pub(crate) fn keeps_history(&self) -> bool {
        self.history.is_some()
    }

    /// Notes an operation on one key.
    pub(crate) fn note(
        &self,
        (client, op, outcome): (u32, Op, Outcome),
        (start_ns, end_ns): (u64, u64),
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        if let Some(history) = &self.history {
            history.borrow_mut().add(event((client, op, outcome), (start_ns, end_ns)), key, value);
        }
    }

    /// Notes a scan.
    pub(crate) fn note_scan(
        &self,
        (client, outcome): (u32, Outcome),
        times: (u64, u64),
        range: ScanRange<'_>,
        found: &ScanEntries,
    ) {
        if let Some(history) = &self.history {
            history.borrow_mut().add_scan(event((client, Op::Scan, outcome), times), range, found);
        }
    }

    /// The latencies noted so far; the next ones are counted anew.
    pub(crate) fn take_latencies(&self) -> Vec<Histogram<u64>> {
        self.latency.replace(empty())
    }

    /// The history.
    pub(crate) fn take_history(&self) -> History {
        self.history.as_ref().map(RefCell::take).unwrap_or_default()
    }
}

/// All clients are of one compute node, and all its shards read one clock: its time also orders.
fn event((client, op, outcome): (u32, Op, Outcome), (start_ns, end_ns): (u64, u64)) -> Event {
    Event { process: 1, client, op, outcome, start: start_ns, end: end_ns, start_ns, end_ns }
}

fn empty() -> Vec<Histogram<u64>> {
    (0..CLASSES).map(|_| latencies()).collect()
}
