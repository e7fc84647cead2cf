//! Clients of an index. They check what they get: every key that was loaded, or added and acknowledged, is found; every
//! value belongs to its key; scans ascend.

pub(crate) mod replay;

use std::cell::Cell;
use std::error::Error;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use farwood::RangeIndex;
use farwood::index::OpKind;
use futures::StreamExt;
use futures::future::{FutureExt, LocalBoxFuture};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use crate::driver::bench_shard::BenchShard;
use crate::driver::counters::{Counters, OpClass};
use crate::driver::pace::{Pace, Start};
use crate::driver::plan::Plan;
use crate::driver::recorder::{Recorder, Timed};
use crate::driver::target::{BenchTarget, Client};
use crate::error::CliError;
use crate::footprint::BULK_FILL;
use crate::report::MemoryFigures;
use crate::report::history::{Op, Outcome, ScanEntries, ScanRange};
use crate::workload::Workload;
use crate::workload::distribution::{Distribution, below};
use crate::workload::frontier::ShardFrontier;
use crate::workload::keys::Bytes;
use crate::workload::mix::Step;
use crate::workload::values::{ValueFormat, tag_of};

/// An index as one shard measures it.
pub(crate) struct IndexTarget<V, I> {
    index: I,
    shard: V,
    plan: Arc<Plan>,
    shared: Rc<TargetShared>,
}

/// State that the clients of one shard share.
struct TargetShared {
    frontier: ShardFrontier,
    /// The number of the next value that is written here.
    stamp: Cell<u64>,
    stamp_step: u64,
}

impl<V: BenchShard, I: RangeIndex> IndexTarget<V, I> {
    /// Makes the target of one shard.
    pub(crate) fn new(index: I, shard: V, plan: Arc<Plan>) -> Self {
        let at = usize::from(shard.shard().0);
        let shared = TargetShared {
            frontier: ShardFrontier::new(Arc::clone(&plan.frontier), at),
            // The load has used the numbers below.
            stamp: Cell::new(plan.config.keys + at as u64),
            stamp_step: plan.config.shards as u64,
        };
        IndexTarget { index, shard, plan, shared: Rc::new(shared) }
    }
}

impl<V: BenchShard, I: RangeIndex> BenchTarget<V> for IndexTarget<V, I> {
    type Client = IndexClient<V, I>;

    fn load<'a>(&'a self, recorder: &'a Recorder<V>) -> LocalBoxFuture<'a, Result<u64, CliError>> {
        async move {
            let config = &self.plan.config;
            if !config.workload.is_preloaded() {
                return Ok(0);
            }
            let keys = config.key_set.sorted(config.keys);
            let write_value = |at: usize, key: &[u8], value: &mut Vec<u8>| {
                let format = keys.value_bytes(at).map_or(config.values, ValueFormat::new);
                format.write(tag_of(key), at as u64, value);
            };
            let start_ns = self.shard.now();
            let mut value = Vec::new();
            let progress = &self.plan.progress;
            let pairs = keys.iter().enumerate().map_while(|(at, key)| {
                if at % (1 << 12) == 0 && self.plan.is_cut_short() {
                    return None;
                }
                if at % (1 << 12) == 0 {
                    progress.set_now(self.shard.now());
                    progress.set_ops(0, at as u64);
                    progress.set_done(at as f64 / config.keys as f64);
                }
                write_value(at, &key, &mut value);
                Some((key, Bytes::from_slice(&value)))
            });
            let loaded =
                self.index.bulk_load(pairs, BULK_FILL).await.map_err(|error| failed("the load", &error))?;
            if self.plan.is_cut_short() {
                return Ok(loaded);
            }
            if loaded != config.keys {
                return Err(CliError::Check(format!("{loaded} of {} keys were loaded", config.keys)));
            }
            if recorder.keeps_history() {
                // All pairs become visible at some moment of the load, by a client with the number after the run's last
                // one.
                let times = (start_ns, self.shard.now());
                for (at, key) in keys.iter().enumerate() {
                    write_value(at, &key, &mut value);
                    recorder.note((config.clients as u32, Op::Put, Outcome::Ok), times, &key, Some(&value));
                }
            }
            Ok(loaded)
        }
        .boxed_local()
    }

    fn client(
        &self,
        number: u32,
        seed: u64,
        pace: &Rc<Pace>,
        recorder: &Rc<Recorder<V>>,
    ) -> IndexClient<V, I> {
        IndexClient {
            index: self.index.clone(),
            plan: Arc::clone(&self.plan),
            shared: Rc::clone(&self.shared),
            pace: Rc::clone(pace),
            recorder: Rc::clone(recorder),
            rng: SmallRng::seed_from_u64(seed),
            number,
            key: Vec::with_capacity(64),
            value: Vec::with_capacity(64),
            writing: None,
        }
    }

    fn counters(&self) -> Counters {
        Counters { index: self.index.stats(), ..Counters::default() }
    }

    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>> {
        async move {
            let survey = self.index.survey().await.map_err(|error| failed("the survey", &error))?;
            Ok(MemoryFigures {
                used_bytes: survey.used_bytes,
                keys: survey.keys,
                leaf_load_factor: survey.load_factor,
                leaves: survey.leaves,
                inner_nodes: survey.inner_nodes,
            })
        }
        .boxed_local()
    }
}

/// A logical client of an index.
pub(crate) struct IndexClient<V, I> {
    index: I,
    plan: Arc<Plan>,
    shared: Rc<TargetShared>,
    pace: Rc<Pace>,
    recorder: Rc<Recorder<V>>,
    rng: SmallRng,
    number: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    /// The write in flight, for the history.
    writing: Option<(Op, Timed)>,
}

/// Kind of a client's write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Write {
    Put,
    Update,
    Insert,
}

impl<V: BenchShard, I: RangeIndex> Client for IndexClient<V, I> {
    #[inline]
    async fn step(&mut self, start: Start) -> Result<(), CliError> {
        // One random word decides both what comes next and whether it is timed.
        let random = self.rng.next_u64();
        let timed = self.recorder.begin(random as u32, start.intended_ns);
        match self.plan.mix.step((random >> 32) as u32) {
            Step::Get => {
                self.choose();
                self.get(timed).await.and_then(|found| self.must_be_found(found))
            }
            Step::Update => {
                self.choose();
                self.write_one(Write::Update, timed).await
            }
            Step::PutOld => {
                self.choose();
                self.write_one(Write::Put, timed).await
            }
            Step::ReadModifyWrite => {
                self.choose();
                self.get(timed).await.and_then(|found| self.must_be_found(found))?;
                // A read-modify-write is two operations: the last one of a run may have no room for the second.
                if !self.pace.take() {
                    return Ok(());
                }
                // Timed if the first one was.
                let random = if timed.is_some() { 0 } else { u32::MAX };
                let timed = self.recorder.begin(random, None);
                self.write_one(Write::Update, timed).await
            }
            Step::PutNew => self.write_new(Write::Put, timed).await,
            Step::Insert => self.write_new(Write::Insert, timed).await,
            Step::Scan => {
                self.choose();
                self.scan(timed).await
            }
            Step::InsertAny => {
                self.choose_any();
                self.write(Write::Insert, self.plan.config.values, timed).await.map(drop)
            }
            Step::RemoveAny => {
                self.choose_any();
                self.remove(timed).await
            }
        }
    }

    fn abandoned(&mut self) {
        // The write may have taken effect; others may have read its value.
        if let Some((op, timed)) = self.writing.take() {
            let value = (op != Op::Remove).then_some(&self.value[..]);
            self.note(op, Outcome::Unknown, Some(timed), self.recorder.now(), value);
        }
    }
}

impl<V: BenchShard, I: RangeIndex> IndexClient<V, I> {
    /// Draws the next key by the distribution, from those in the index.
    #[inline]
    fn choose(&mut self) {
        let rank = self.plan.ranks.sample(&mut self.rng);
        let number = match self.plan.config.distribution {
            Distribution::Latest => self.shared.frontier.shared().latest(rank),
            _ => rank,
        };
        self.plan.config.key_set.write(number, &mut self.key);
    }

    /// Draws the next key by the distribution, from the loaded ones or from as many others.
    fn choose_any(&mut self) {
        let rank = self.plan.ranks.sample(&mut self.rng);
        let others = if self.rng.random() { self.plan.config.keys } else { 0 };
        self.plan.config.key_set.write(rank + others, &mut self.key);
    }

    /// Reads the key, and checks its value. Yields whether there is one.
    #[inline]
    async fn get(&mut self, timed: Option<Timed>) -> Result<bool, CliError> {
        let got = self.index.get(&self.key).await;
        let end_ns = self.recorder.end(OpClass::Index(OpKind::Get), timed);
        match got {
            Ok(Some(value)) => {
                self.note(Op::Get, Outcome::Found, timed, end_ns, Some(&value));
                self.check_value(&self.key, &value).map(|()| true)
            }
            Ok(None) => {
                self.note(Op::Get, Outcome::Absent, timed, end_ns, None);
                Ok(false)
            }
            Err(error) => {
                self.note(Op::Get, Outcome::Unknown, timed, end_ns, None);
                Err(failed("a get", &error))
            }
        }
    }

    /// Fails unless the key that was read, which has been there since the load, was found.
    #[inline]
    fn must_be_found(&self, found: bool) -> Result<(), CliError> {
        if found {
            return Ok(());
        }
        Err(CliError::Check(format!("a get of the loaded key {} found nothing", hex(&self.key))))
    }

    /// Writes a value to the key, or an absent key. Yields whether it took effect: a put always does.
    #[inline]
    async fn write(
        &mut self,
        how: Write,
        format: ValueFormat,
        timed: Option<Timed>,
    ) -> Result<bool, CliError> {
        let stamp = self.shared.stamp.get();
        self.shared.stamp.set(stamp + self.shared.stamp_step);
        format.write(tag_of(&self.key), stamp, &mut self.value);
        let (op, kind, name) = match how {
            Write::Put => (Op::Put, OpKind::Put, "a put"),
            Write::Update => (Op::Update, OpKind::Update, "an update"),
            Write::Insert => (Op::Insert, OpKind::Insert, "an insert"),
        };
        self.writing = timed.map(|timed| (op, timed));
        let (key, value) = (&self.key[..], &self.value[..]);
        let written = match how {
            Write::Put => self.index.put(key, value).await.map(|()| true),
            Write::Update => self.index.update(key, value).await,
            Write::Insert => self.index.insert(key, value).await,
        };
        self.writing = None;
        let end_ns = self.recorder.end(OpClass::Index(kind), timed);
        let outcome = match (&written, how) {
            (Ok(true), _) => Outcome::Ok,
            (Ok(false), Write::Insert) => Outcome::Exists,
            (Ok(false), _) => Outcome::Absent,
            (Err(_), _) => Outcome::Unknown,
        };
        self.note(op, outcome, timed, end_ns, Some(&self.value));
        written.map_err(|error| failed(name, &error))
    }

    /// Writes a value of the usual size to the key, which must take effect.
    #[inline]
    async fn write_one(&mut self, how: Write, timed: Option<Timed>) -> Result<(), CliError> {
        let took_effect = self.write(how, self.plan.config.values, timed).await?;
        self.must_take_effect(how, took_effect)
    }

    /// Fails unless the write of a key whose state is known took effect.
    #[inline]
    fn must_take_effect(&self, how: Write, took_effect: bool) -> Result<(), CliError> {
        let (name, was) = match how {
            _ if took_effect => return Ok(()),
            // A new key that is made of a file's key may be in the file itself.
            Write::Insert if !self.plan.config.key_set.is_injective() => return Ok(()),
            Write::Insert => ("an insert", "there before it was inserted"),
            Write::Update | Write::Put => ("an update", "not there"),
        };
        let key = hex(&self.key);
        Err(CliError::Check(format!("{name} of {key} had no effect: the key was {was}")))
    }

    /// Removes the key, if it is there.
    async fn remove(&mut self, timed: Option<Timed>) -> Result<(), CliError> {
        self.writing = timed.map(|timed| (Op::Remove, timed));
        let removed = self.index.remove(&self.key).await;
        self.writing = None;
        let end_ns = self.recorder.end(OpClass::Index(OpKind::Remove), timed);
        let outcome = match &removed {
            Ok(true) => Outcome::Ok,
            Ok(false) => Outcome::Absent,
            Err(_) => Outcome::Unknown,
        };
        self.note(Op::Remove, outcome, timed, end_ns, None);
        removed.map(drop).map_err(|error| failed("a removal", &error))
    }

    async fn write_new(&mut self, how: Write, timed: Option<Timed>) -> Result<(), CliError> {
        let (ticket, number) = self.shared.frontier.take();
        self.plan.config.key_set.write(number, &mut self.key);
        self.write_one(how, timed).await?;
        self.shared.frontier.acknowledge(ticket);
        Ok(())
    }

    async fn scan(&mut self, timed: Option<Timed>) -> Result<(), CliError> {
        let longest = self.plan.config.scan_length;
        let limit = match self.plan.config.workload {
            // YCSB E: 1 to the longest, uniform.
            Workload::YcsbE => 1 + below(&mut self.rng, longest),
            _ => longest,
        };
        let mut pairs = self.index.scan(&self.key[..].., Some(limit as usize));
        let (mut entries, mut found) = (0u32, ScanEntries::default());
        let mut last = Bytes::new();
        let mut verdict = Ok(());
        while let Some(pair) = pairs.next().await {
            let (key, value) = match pair {
                Ok(pair) => pair,
                Err(error) => {
                    verdict = Err(failed("a scan", &error));
                    break;
                }
            };
            let ascends = if entries == 0 { key[..] == self.key[..] } else { last[..] < key[..] };
            if !ascends {
                verdict = Err(CliError::Check(format!(
                    "a scan from {} came to {} after {} entries",
                    hex(&self.key),
                    hex(&key),
                    entries
                )));
            } else if let Err(error) = self.check_value(&key, &value) {
                verdict = Err(error);
            }
            if self.recorder.keeps_history() {
                found.push(&key, &value);
            }
            last = Bytes::from_slice(&key);
            entries += 1;
        }
        let end_ns = self.recorder.end(OpClass::Index(OpKind::Scan), timed);
        if let Some(timed) = timed.filter(|_| self.recorder.keeps_history()) {
            let outcome = if verdict.is_ok() { Outcome::Ok } else { Outcome::Unknown };
            let times = (timed.start_ns, end_ns);
            let range = ScanRange {
                start: Bound::Included(&self.key[..]),
                end: Bound::Unbounded,
                limit: Some(limit as usize),
                ended: verdict.is_ok(),
            };
            self.recorder.note_scan((self.number, outcome), times, range, &found);
        }
        if verdict.is_ok() && (entries == 0 || u64::from(entries) > limit) {
            let start = hex(&self.key);
            return Err(CliError::Check(format!(
                "a scan of {limit} from {start} returned {entries} entries"
            )));
        }
        verdict
    }

    #[inline]
    fn check_value(&self, key: &[u8], value: &[u8]) -> Result<(), CliError> {
        if self.plan.config.values.belongs(tag_of(key), value) {
            return Ok(());
        }
        Err(CliError::Check(format!("the value {} does not belong to the key {}", hex(value), hex(key))))
    }

    #[inline]
    fn note(&self, op: Op, outcome: Outcome, timed: Option<Timed>, end_ns: u64, value: Option<&[u8]>) {
        if self.recorder.keeps_history()
            && let Some(timed) = timed
        {
            self.recorder.note((self.number, op, outcome), (timed.start_ns, end_ns), &self.key, value);
        }
    }
}

#[cold]
fn failed(what: &str, error: &dyn Error) -> CliError {
    CliError::Run(format!("{what}: {error}"))
}

/// Shows the first bytes of a key or value, for a message.
#[cold]
fn hex(bytes: &[u8]) -> String {
    const SHOWN: usize = 32;
    let shown: String = bytes.iter().take(SHOWN).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN { format!("{shown}... ({} bytes)", bytes.len()) } else { format!("0x{shown}") }
}

#[cfg(test)]
mod tests;
