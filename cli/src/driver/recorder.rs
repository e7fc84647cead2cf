//! Records of a shard's operations besides the index's own counters: latencies of those that are timed, and the history
//! if one is asked for. No clock is read for an operation that needs neither. In virtual time, the CPU time that an
//! operation costs its client is spent here, half of it before and half of it after the index's work.

use std::cell::RefCell;

use hdrhistogram::Histogram;

use crate::config::BenchConfig;
use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::OpClass;
use crate::report::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};
use crate::report::latencies;

/// Recorder of one shard's operations.
pub(crate) struct Recorder<V> {
    shard: V,
    /// Half of what an operation costs the client, spent before the index's work and again after it; in virtual time.
    half_client_ns: u64,
    /// Mask of the random bits that choose the timed operations: one in a power of two.
    sampling_mask: u32,
    latency: RefCell<Vec<Histogram<u64>>>,
    history: Option<RefCell<History>>,
}

/// An operation in flight that will be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// Time at which the operation began.
    pub(crate) start_ns: u64,
    /// Time that its latency counts from.
    from_ns: u64,
}

impl<V: BenchShard> Recorder<V> {
    /// Makes an empty recorder.
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

    /// Begins an operation. `random` decides whether it is timed; one of an open loop always is.
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

    /// Returns the time by the shard's clock.
    pub(crate) fn now(&self) -> u64 {
        self.shard.now()
    }

    /// Ends an operation. Yields the time if it was timed, 0 if not.
    #[inline]
    pub(crate) fn end(&self, class: OpClass, timed: Option<Timed>) -> u64 {
        self.shard.compute(self.half_client_ns);
        let Some(timed) = timed else { return 0 };
        let end_ns = self.shard.now();
        self.latency.borrow_mut()[class.place()].saturating_record(end_ns.saturating_sub(timed.from_ns));
        end_ns
    }

    /// Tells whether operations have to be recorded one by one.
    #[inline]
    pub(crate) fn keeps_history(&self) -> bool {
        self.history.is_some()
    }

    /// Records an operation on one key.
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

    /// Records a scan.
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

    /// Takes the latencies recorded so far; the next ones are counted anew.
    pub(crate) fn take_latencies(&self) -> Vec<Histogram<u64>> {
        self.latency.replace(empty())
    }

    /// Takes the history.
    pub(crate) fn take_history(&self) -> History {
        self.history.as_ref().map(RefCell::take).unwrap_or_default()
    }
}

/// Makes an event. All clients are of one compute node, and all its shards read one clock: its time also orders.
fn event((client, op, outcome): (u32, Op, Outcome), (start_ns, end_ns): (u64, u64)) -> Event {
    Event { process: 1, client, op, outcome, start: start_ns, end: end_ns, start_ns, end_ns }
}

fn empty() -> Vec<Histogram<u64>> {
    OpClass::all().map(|_| latencies()).collect()
}
