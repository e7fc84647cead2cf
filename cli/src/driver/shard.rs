//! Phases of one shard's run. Shards wait for each other between phases, so that all of them load, warm up, measure and
//! rest at the same time. A shard that has failed still waits at every barrier, and stays until the last one: it is the
//! home of locks that clients elsewhere use.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures::future::{Either, select};
use hdrhistogram::Histogram;

use crate::config::End;
use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::Counters;
use crate::driver::in_flight::{InFlight, PATIENCE_NS};
use crate::driver::pace::{Pace, Schedule};
use crate::driver::plan::Plan;
use crate::driver::recorder::Recorder;
use crate::driver::target::{BenchTarget, Client};
use crate::progress::Stage;
use crate::report::MemoryFigures;
use crate::report::history::History;

/// Results of one shard.
#[derive(Default)]
pub(crate) struct ShardResult {
    /// Seconds that the load took; of the first shard.
    pub(crate) load_seconds: f64,
    /// Keys that were loaded; of the first shard.
    pub(crate) loaded: u64,
    /// Begin and end of the measured phase on this shard, in ns.
    pub(crate) run_ns: (u64, u64),
    /// Operations of an open loop that were due and not started.
    pub(crate) unstarted: u64,
    /// Counters of the load.
    pub(crate) load: Counters,
    /// Counters of the measured phase.
    pub(crate) run: Counters,
    /// Latencies of the measured phase, by class.
    pub(crate) latency: Vec<Histogram<u64>>,
    /// Memory in use on the memory servers; of the first shard.
    pub(crate) memory: MemoryFigures,
    /// Resident memory of this process when the measured phase ended and nothing had been given back.
    pub(crate) rss_bytes: u64,
    /// Every operation, if a history was asked for.
    pub(crate) history: History,
}

/// One shard's part of the run.
pub(crate) struct ShardRun<V, S> {
    shard: V,
    plan: Arc<Plan>,
    target: S,
    recorder: Rc<Recorder<V>>,
    /// Barriers reached so far.
    round: usize,
}

impl<V: BenchShard, S: BenchTarget<V>> ShardRun<V, S> {
    /// Makes a run that has reached no barrier yet.
    pub(crate) fn new(shard: V, plan: Arc<Plan>, target: S) -> Self {
        let recorder = Rc::new(Recorder::new(shard.clone(), &plan.config));
        ShardRun { shard, plan, target, recorder, round: 0 }
    }

    /// Runs all phases.
    pub(crate) async fn run(mut self) -> ShardResult {
        let (load_seconds, loaded) = self.load().await;
        let after_load = self.target.counters();
        let warmup_ns = self.plan.config.warmup_ns;
        if warmup_ns > 0 {
            self.enter(Stage::WarmUp).await;
            self.drive(None, Some(warmup_ns), 0).await;
            self.recorder.take_latencies();
        }
        self.enter(Stage::Run).await;
        let before = self.target.counters();
        let End { after_ns, .. } = self.plan.config.end;
        let ops = self.plan.ops_of(self.me());
        let (run_ns, unstarted) = self.drive(ops, after_ns, 1).await;
        // The clients of this shard have ended: its counters are complete.
        let mut run = self.target.counters();
        run -= &before;
        let rss_bytes = resident_bytes();
        self.enter(Stage::Survey).await;
        let memory = self.survey().await;
        self.wait_for_all().await;
        ShardResult {
            load_seconds,
            loaded,
            run_ns,
            unstarted,
            load: after_load,
            run,
            latency: self.recorder.take_latencies(),
            memory,
            rss_bytes,
            history: self.recorder.take_history(),
        }
    }

    fn me(&self) -> usize {
        usize::from(self.shard.shard().0)
    }

    async fn wait_for_all(&mut self) {
        self.round += 1;
        self.plan.barrier.wait(&self.shard, self.round).await;
    }

    /// Waits for all shards before the next phase. The first shard announces it.
    async fn enter(&mut self, stage: Stage) {
        self.plan.progress.set_ops(self.me(), 0);
        self.wait_for_all().await;
        if self.me() == 0 {
            self.plan.progress.enter(stage);
        }
    }

    /// Loads the keys, on the first shard. Yields the seconds that it took, and how many keys were loaded.
    async fn load(&mut self) -> (f64, u64) {
        self.enter(Stage::Load).await;
        if self.me() != 0 || self.plan.is_cut_short() {
            return (0.0, 0);
        }
        let start_ns = self.shard.now();
        let loaded = self.target.load(&self.recorder).await.unwrap_or_else(|error| {
            self.plan.first_error.set(error);
            0
        });
        ((self.shard.now() - start_ns) as f64 / 1e9, loaded)
    }

    /// Lets the clients run until they have done `ops` operations here or `after_ns` have passed. Yields when it began
    /// and ended, and how many operations of an open loop were left over.
    async fn drive(&self, ops: Option<u64>, after_ns: Option<u64>, phase: u64) -> ((u64, u64), u64) {
        let clients = self.plan.clients_of(self.me());
        let start_ns = self.shard.now();
        if self.plan.is_cut_short() {
            // Perhaps not all keys were loaded.
            return ((start_ns, start_ns), 0);
        }
        let schedule = self.plan.config.rate.map(|rate| Schedule {
            start_ns,
            rate,
            first: self.me() as u64,
            stride: self.plan.active_shards() as u64,
        });
        let pace = Rc::new(Pace::new(clients, ops, schedule));
        let in_flight = Rc::<InFlight>::default();
        let first = self.plan.first_client_of(self.me());
        for number in first..first + clients as u32 {
            let seed = client_seed(self.plan.config.seed, number, phase);
            let client = self.target.client(number, seed, &pace, &self.recorder);
            let paced = (Rc::clone(&pace), Rc::clone(&in_flight));
            // Its handle is not needed: `pace` counts the clients that still run.
            drop(self.shard.spawn(run_client(client, self.shard.clone(), paced, Arc::clone(&self.plan))));
        }
        let end_ns = after_ns.map_or(u64::MAX, |after_ns| start_ns.saturating_add(after_ns));
        self.watch((&pace, &in_flight), (start_ns, end_ns), ops).await;
        let ended_ns = pace.ended_ns().max(start_ns);
        ((start_ns, ended_ns), pace.unstarted(end_ns.min(ended_ns)))
    }

    /// Waits for the clients, stops them when it is time, and shows how far they are.
    async fn watch(
        &self,
        (pace, in_flight): (&Pace, &InFlight),
        (start_ns, end_ns): (u64, u64),
        ops: Option<u64>,
    ) {
        let me = self.me();
        let mut give_up_ns = None;
        while pace.is_running() {
            let now = self.shard.now();
            if now >= end_ns || self.plan.is_cut_short() {
                pace.stop();
            }
            if self.plan.is_cut_short() && now >= *give_up_ns.get_or_insert(now + PATIENCE_NS) {
                in_flight.abandon(&self.shard);
            }
            self.plan.progress.set_ops(me, pace.started());
            if me == 0 {
                self.plan.progress.set_now(now);
                let of_time = (now - start_ns) as f64 / (end_ns - start_ns) as f64;
                let of_ops = ops.map_or(0.0, |ops| pace.started() as f64 / ops.max(1) as f64);
                self.plan.progress.set_done(of_time.max(of_ops));
            }
            let left_ns = end_ns.saturating_sub(now);
            self.shard.pause(if left_ns == 0 { V::TICK_NS } else { left_ns.min(V::TICK_NS) }).await;
        }
    }

    async fn survey(&self) -> MemoryFigures {
        if self.me() != 0 || self.plan.is_cut_short() {
            return MemoryFigures::default();
        }
        let interrupted = pin!(self.plan.interrupt.asked(&self.shard));
        match select(self.target.survey(), interrupted).await {
            Either::Left((Ok(memory), _)) => memory,
            Either::Left((Err(error), _)) => {
                self.plan.first_error.set(error);
                MemoryFigures::default()
            }
            Either::Right(_) => MemoryFigures::default(),
        }
    }
}

async fn run_client<V: BenchShard>(
    mut client: impl Client,
    shard: V,
    (pace, in_flight): (Rc<Pace>, Rc<InFlight>),
    plan: Arc<Plan>,
) {
    in_flight.enlist(&shard).await;
    let steps = async {
        while let Some(start) = pace.next(&shard).await {
            if let Err(error) = client.step(start).await {
                plan.first_error.set(error);
                pace.stop();
            }
        }
    };
    if in_flight.until_abandoned(pin!(steps)).await.is_none() {
        client.abandoned();
    }
    pace.client_ended(shard.now());
}

/// Derives the seed of a client in a phase; the mixing is [`crate::workload::keys::mix64`]'s.
fn client_seed(seed: u64, number: u32, phase: u64) -> u64 {
    use crate::workload::keys::mix64;
    mix64(mix64(seed ^ mix64(u64::from(number))) ^ phase)
}

/// Reads the resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_known() {
        assert!(resident_bytes() > 1 << 20);
    }
}
