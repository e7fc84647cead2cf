//! Records the operations of many clients as one history for the oracles of `farwood-sim`: keys are linearizable, scans
//! keep their promises. Clients are on many shards, and these perhaps on many threads.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farwood::RangeIndex;
use farwood::runtime::ClientPool;
use farwood_sim::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};
use farwood_sim::oracle::{Pairs, check_history};
use futures::TryStreamExt;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::cancel::{Drops, after_polls};
use super::cluster::TestCluster;

/// The history of an index that was empty when it began.
#[derive(Default)]
pub(crate) struct Recorder {
    /// The clock that orders operations of different shards: `end < start` is "before", as all of them see it.
    ticks: AtomicU64,
    values: AtomicU64,
    history: Mutex<History>,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    /// Yields every key that an operation was about, once.
    pub(crate) fn keys(&self) -> BTreeSet<Vec<u8>> {
        let history = self.history.lock().expect("nothing panics while it adds");
        history.iter().filter(|done| done.event.op != Op::Scan).map(|done| done.key.to_vec()).collect()
    }

    /// Asserts that the oracles accept everything so far.
    pub(crate) fn judge(&self) {
        let history = self.history.lock().expect("nothing panics while it adds");
        assert!(!history.is_empty());
        check_history(&history, &Pairs::new()).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// A client whose operations are recorded.
pub(crate) struct Client<V: ClientPool> {
    pub(crate) cluster: TestCluster<V>,
    pub(crate) rng: SmallRng,
    /// Bytes of the values that it writes, 8 or more.
    pub(crate) value_bytes: usize,
    recorder: Arc<Recorder>,
    number: u32,
}

impl<V: ClientPool> Client<V> {
    /// Makes the client with that number on its shard; no more than 1000 there.
    pub(crate) fn new(cluster: &TestCluster<V>, recorder: &Arc<Recorder>, number: usize) -> Self {
        let number = (cluster.place * 1000 + number) as u32;
        let rng = SmallRng::seed_from_u64(u64::from(number));
        Client { cluster: cluster.clone(), rng, value_bytes: 8, recorder: Arc::clone(recorder), number }
    }

    /// Yields its number on its shard.
    pub(crate) fn number(&self) -> usize {
        self.number as usize % 1000
    }

    /// Runs an operation on one key; writes have values that no other write has.
    pub(crate) async fn point(&self, op: Op, key: &[u8]) -> Outcome {
        self.point_within(op, key, None).await
    }

    /// Runs a [`Client::point`] that may be dropped after so many polls: then its outcome is unknown.
    pub(crate) async fn point_within(&self, op: Op, key: &[u8], drops: Option<(usize, Drops)>) -> Outcome {
        let number = super::key(self.recorder.values.fetch_add(1, Ordering::SeqCst));
        let value: Vec<u8> = number.into_iter().cycle().take(self.value_bytes).collect();
        let (start, start_ns) = (self.recorder.tick(), self.cluster.shard.now());
        let done = match drops {
            None => Some(self.perform(op, key, &value).await),
            Some((polls, drops)) => after_polls(self.perform(op, key, &value), polls, drops).await,
        };
        let (outcome, read) = done.unwrap_or((Outcome::Unknown, None));
        let written = matches!(op, Op::Put | Op::Insert | Op::Update).then_some(&value[..]);
        let event = self.event(op, outcome, (start, start_ns));
        let mut history = self.recorder.history.lock().expect("nothing panics while it adds");
        history.add(event, key, written.or(read.as_deref()));
        outcome
    }

    async fn perform(&self, op: Op, key: &[u8], value: &[u8]) -> (Outcome, Option<Vec<u8>>) {
        let index = &self.cluster.index;
        let effect = |done: bool, otherwise| if done { Outcome::Ok } else { otherwise };
        let outcome = match op {
            Op::Get => {
                let found = index.get(key).await.unwrap().map(|value| value.to_vec());
                return (if found.is_some() { Outcome::Found } else { Outcome::Absent }, found);
            }
            Op::Put => index.put(key, value).await.map(|()| Outcome::Ok).unwrap(),
            Op::Insert => effect(index.insert(key, value).await.unwrap(), Outcome::Exists),
            Op::Update => effect(index.update(key, value).await.unwrap(), Outcome::Absent),
            Op::Remove => effect(index.remove(key).await.unwrap(), Outcome::Absent),
            Op::Scan => unreachable!("a scan has no key"),
        };
        (outcome, None)
    }

    /// Scans to the end; yields the numbers of the keys.
    pub(crate) async fn scan(&self, from: Bound<u64>, to: Bound<u64>, limit: Option<usize>) -> Vec<u64> {
        let (from, to) = (from.map(super::key), to.map(super::key));
        let (from, to) = (from.as_ref().map(<[u8; 8]>::as_slice), to.as_ref().map(<[u8; 8]>::as_slice));
        let start = (self.recorder.tick(), self.cluster.shard.now());
        let pairs: Vec<_> = self.cluster.index.scan((from, to), limit).try_collect().await.unwrap();
        let mut entries = ScanEntries::default();
        pairs.iter().for_each(|(key, value)| entries.push(key, value));
        let event = self.event(Op::Scan, Outcome::Ok, start);
        let range = ScanRange { start: from, end: to, limit, ended: true };
        let mut history = self.recorder.history.lock().expect("nothing panics while it adds");
        history.add_scan(event, range, &entries);
        pairs.iter().map(|(key, _)| super::number(key)).collect()
    }

    fn event(&self, op: Op, outcome: Outcome, (start, start_ns): (u64, u64)) -> Event {
        let (end, end_ns) = (self.recorder.tick(), self.cluster.shard.now());
        let process = u32::from(self.cluster.shard.node_id());
        Event { process, client: self.number, op, outcome, start, end, start_ns, end_ns }
    }
}
