//! A closed-loop client of an experiment, and the board where all of them put what they measure. Knows nothing of what
//! kind the index is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood_index::{AnyIndex, IndexError, IndexStats, RangeIndex};
use farwood_runtime::Verbs;
use farwood_runtime::sim::SimShard;
use futures::StreamExt;
use hdrhistogram::Histogram;
use rand::Rng;

use super::cluster::Measured;
use super::workload::{KeySpace, Mix, client_rng};
use crate::shard::Steerable;

/// One closed-loop client.
pub(super) struct Client {
    pub(super) shard: SimShard,
    pub(super) index: AnyIndex<Steerable>,
    pub(super) space: Rc<KeySpace>,
    pub(super) mix: Mix,
    pub(super) value_bytes: usize,
    pub(super) board: Rc<Board>,
    /// The CPU time of an operation beside posting and polling.
    pub(super) op_ns: u64,
    /// True if no other client shares the shard: then the shard's counters are its own.
    pub(super) is_alone: bool,
}

/// A client's next operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Put,
    Update,
    Insert,
    Read,
}

impl Client {
    /// Works until the simulation ends.
    ///
    /// # Errors
    /// If an operation fails.
    pub(super) async fn run(self) -> Result<(), IndexError> {
        let mut rng = client_rng(&self.shard);
        let (mut key, mut value) = (Vec::new(), vec![0; self.value_bytes]);
        // Keys that it has added.
        let mut own: Vec<u64> = Vec::new();
        loop {
            let number = self.space.draw(&mut rng, &own);
            let choice: f64 = rng.random();
            let start_ns = self.shard.now();
            let before = (self.shard.chains_posted(), self.shard.bytes_written());
            // No two operations take exactly as long.
            let work_ns = rng.random_range(self.op_ns * 8 / 10..=self.op_ns * 12 / 10);
            self.shard.work(work_ns / 2);
            let step = self.step(choice);
            let number = if step == Step::Insert { self.space.draw_new() } else { number };
            self.space.write(number, &mut key);
            let stamp = start_ns.to_be_bytes();
            value.iter_mut().zip(stamp).for_each(|(byte, stamp)| *byte = stamp);
            match (step, self.mix.scan) {
                (Step::Put, _) => self.index.put(&key, &value).await?,
                (Step::Update, _) => drop(self.index.update(&key, &value).await?),
                (Step::Insert, _) => {
                    self.index.insert(&key, &value).await?;
                    own.push(number);
                }
                (Step::Read, Some(length)) => {
                    let mut scan = self.index.scan(&key[..].., Some(length.pairs(&mut rng)));
                    while let Some(pair) = scan.next().await {
                        pair?;
                    }
                }
                (Step::Read, None) => drop(self.index.get(&key).await?),
            }
            self.shard.work(work_ns / 2);
            let traffic = self.is_alone.then(|| Traffic {
                chains: self.shard.chains_posted() - before.0,
                bytes: self.shard.bytes_written() - before.1,
            });
            self.board.record(step != Step::Read, start_ns, self.shard.now(), traffic);
        }
    }

    fn step(&self, choice: f64) -> Step {
        let Mix { puts, updates, inserts, .. } = self.mix;
        match choice {
            choice if choice < puts => Step::Put,
            choice if choice < puts + updates => Step::Update,
            choice if choice < puts + updates + inserts => Step::Insert,
            _ => Step::Read,
        }
    }
}

/// The traffic of one operation of a client that has its shard to itself.
struct Traffic {
    chains: u64,
    bytes: u64,
}

/// Where the clients of a run put what they measure.
pub(super) struct Board {
    begins_ns: u64,
    ends_ns: u64,
    ops: Cell<u64>,
    lanes: RefCell<Lanes>,
}

struct Lanes {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    write_round_trips: Histogram<u64>,
    write_bytes: Histogram<u64>,
    read_retries: Histogram<u64>,
}

impl Lanes {
    fn new() -> Self {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        Lanes {
            reads: histogram(),
            writes: histogram(),
            write_round_trips: histogram(),
            write_bytes: histogram(),
            read_retries: histogram(),
        }
    }
}

impl Board {
    /// Makes a board for what ends between these times.
    pub(super) fn new(begins_ns: u64, ends_ns: u64) -> Self {
        Board { begins_ns, ends_ns, ops: Cell::new(0), lanes: RefCell::new(Lanes::new()) }
    }

    fn record(&self, is_write: bool, start_ns: u64, end_ns: u64, traffic: Option<Traffic>) {
        if end_ns < self.begins_ns || end_ns >= self.ends_ns {
            return;
        }
        self.ops.set(self.ops.get() + 1);
        let mut lanes = self.lanes.borrow_mut();
        let Lanes { reads, writes, write_round_trips, write_bytes, read_retries } = &mut *lanes;
        let lane = if is_write { writes } else { reads };
        record(lane, end_ns - start_ns);
        match traffic {
            Some(traffic) if is_write => {
                record(write_round_trips, traffic.chains);
                record(write_bytes, traffic.bytes);
            }
            Some(traffic) => record(read_retries, traffic.chains.saturating_sub(1)),
            None => {}
        }
    }

    /// Yields the board's figures, with what else the run showed.
    pub(super) fn measured(&self, stats: IndexStats, trace_hash: u64) -> Measured {
        let lanes = self.lanes.replace(Lanes::new());
        let mut all = lanes.reads.clone();
        all.add(&lanes.writes).expect("histograms of one kind add up");
        Measured {
            ops: self.ops.get(),
            seconds: (self.ends_ns - self.begins_ns) as f64 / 1e9,
            reads: lanes.reads,
            writes: lanes.writes,
            all,
            write_round_trips: lanes.write_round_trips,
            write_bytes: lanes.write_bytes,
            read_retries: lanes.read_retries,
            stats,
            trace_hash,
        }
    }
}

fn record(histogram: &mut Histogram<u64>, value: u64) {
    histogram.record(value).expect("histograms grow with their values");
}
