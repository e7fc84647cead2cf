//! Clients that replay a trace: each one that is free does the next line of its shard, and lines are dealt out to the
//! shards in turn. So lines begin in their order, as many at a time as there are clients, and those that are under way
//! at the same time may take effect in any order. It knows nothing of files.
//!
//! Clients check the values that they get, and that a key which was loaded and is never removed is always there.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farwood::RangeIndex;
use futures::future::LocalBoxFuture;
use rand::RngCore;

use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::Counters;
use crate::driver::index::{IndexClient, IndexTarget, Write};
use crate::driver::pace::{Pace, Start};
use crate::driver::recorder::Recorder;
use crate::driver::target::{BenchTarget, Client};
use crate::error::CliError;
use crate::report::MemoryFigures;
use crate::workload::trace::{Line, Trace, TraceOp};
use crate::workload::values::ValueFormat;

/// An index that a trace is replayed on, as one shard measures it.
pub(crate) struct TraceTarget<V, I> {
    target: IndexTarget<V, I>,
    lines: Rc<ShardLines>,
}

/// The lines of one shard.
struct ShardLines {
    trace: Arc<Trace>,
    next: Cell<u64>,
    /// Number of shards that have lines.
    stride: u64,
}

impl ShardLines {
    /// Takes the next line. The pace has counted that there is one.
    #[inline]
    fn take(&self) -> Line {
        let at = self.next.get();
        self.next.set(at + self.stride);
        self.trace.line(at)
    }
}

impl<V: BenchShard, I: RangeIndex> TraceTarget<V, I> {
    /// Makes the target of the shard that `target` is of.
    pub(crate) fn new(target: IndexTarget<V, I>, trace: Arc<Trace>) -> Self {
        let next = Cell::new(u64::from(target.shard.shard().0));
        let stride = target.plan.active_shards() as u64;
        TraceTarget { target, lines: Rc::new(ShardLines { trace, next, stride }) }
    }
}

impl<V: BenchShard, I: RangeIndex> BenchTarget<V> for TraceTarget<V, I> {
    type Client = TraceClient<V, I>;

    fn load<'a>(&'a self, recorder: &'a Recorder<V>) -> LocalBoxFuture<'a, Result<u64, CliError>> {
        self.target.load(recorder)
    }

    fn client(
        &self,
        number: u32,
        seed: u64,
        pace: &Rc<Pace>,
        recorder: &Rc<Recorder<V>>,
    ) -> TraceClient<V, I> {
        TraceClient {
            client: self.target.client(number, seed, pace, recorder),
            lines: Rc::clone(&self.lines),
        }
    }

    fn counters(&self) -> Counters {
        self.target.counters()
    }

    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>> {
        self.target.survey()
    }
}

/// A logical client that replays lines of a trace.
pub(crate) struct TraceClient<V, I> {
    client: IndexClient<V, I>,
    lines: Rc<ShardLines>,
}

impl<V: BenchShard, I: RangeIndex> Client for TraceClient<V, I> {
    #[inline]
    async fn step(&mut self, start: Start) -> Result<(), CliError> {
        let TraceClient { client, lines } = self;
        let timed = client.recorder.begin(client.rng.next_u32(), start.intended_ns);
        let Line { key, op, value_bytes } = lines.take();
        client.key.clear();
        client.key.extend_from_slice(lines.trace.key(key));
        let format = ValueFormat::new(value_bytes);
        let is_kept = lines.trace.is_kept(key);
        match op {
            TraceOp::Get => {
                let found = client.get(timed).await?;
                client.must_be_found(found || !is_kept)
            }
            TraceOp::Put => client.write(Write::Put, format, timed).await.map(drop),
            TraceOp::Insert => client.write(Write::Insert, format, timed).await.map(drop),
            TraceOp::Update => {
                let took_effect = client.write(Write::Update, format, timed).await?;
                client.must_take_effect(Write::Update, took_effect || !is_kept)
            }
            TraceOp::Remove => client.remove(timed).await,
        }
    }

    fn abandoned(&mut self) {
        self.client.abandoned();
    }
}
