//! What a client of a scenario does: draws operations, drops some of them on their way, and tells the recorder what it
//! saw. Values are made here too.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;

use farwood_index::{AnyIndex, IndexError, RangeIndex};
use farwood_lock::LockError;
use farwood_runtime::sim::{Fault, Mix, SimShard};
use farwood_runtime::{FabricError, Verbs};
use futures::StreamExt;
use futures::future::{Either, select};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::history::{Op, Outcome};
use crate::keys::keys;
use crate::recorder::{Range, Recorder, Who, as_slice};
use crate::scenario::{Scenario, Work};

/// After so many operations in a row that met the lock of a dead client, a client has seen enough.
const CONTENDED_MAX: u32 = 4;
/// An operation that is dropped on its way is dropped within that time.
const CANCEL_WITHIN_NS: u64 = 12_000;

/// What all clients of a run share.
pub(crate) struct Crew {
    pub(crate) recorder: Recorder,
    pub(crate) keys: Vec<Vec<u8>>,
    values: std::cell::Cell<u64>,
    value_bytes_max: usize,
    pub(crate) work: Work,
    mix: Mix,
    /// A shard of each compute node that has ever been there.
    nodes: RefCell<Vec<SimShard>>,
}

/// One thing to do.
pub(crate) enum Action {
    Point(Op, usize),
    Scan(Range, Option<usize>),
}

/// A client.
pub(crate) struct Client<V: Verbs> {
    pub(crate) crew: Rc<Crew>,
    pub(crate) index: AnyIndex<V>,
    pub(crate) verbs: V,
    pub(crate) who: Who,
    pub(crate) rng: SmallRng,
}

impl Crew {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let &Scenario { work, mix, geometry, seed, .. } = scenario;
        Crew {
            recorder: Recorder::default(),
            keys: keys(&work, geometry.max_key(), seed),
            values: std::cell::Cell::new(0),
            value_bytes_max: geometry.max_value(),
            work,
            mix,
            nodes: RefCell::default(),
        }
    }

    /// A compute node begins its work.
    pub(crate) fn meet(&self, shard: SimShard) {
        self.nodes.borrow_mut().push(shard);
    }

    /// A value that no other write has, of any length from 8 bytes on; each of its words tells which it is.
    pub(crate) fn value(&self, random: u64) -> Vec<u8> {
        let number = self.values.get() + 1;
        self.values.set(number);
        let len = 8 + (random % (self.value_bytes_max as u64 - 7)) as usize;
        number.to_be_bytes().iter().copied().cycle().take(len).collect()
    }

    /// Whether an operation may fail so while faults strike.
    fn is_legal(&self, error: &IndexError) -> bool {
        let fabric = match error {
            IndexError::Fabric(error) | IndexError::Lock(LockError::Fabric(error)) => error,
            _ => return self.is_of_dead(error),
        };
        let outages = self.mix.rules.iter().any(|rule| matches!(rule.fault, Fault::ServerAway(_)));
        outages && matches!(fabric, FabricError::ServerGone { .. })
    }

    /// Whether an error tells of a lock that a compute node holds which has stopped.
    pub(crate) fn is_of_dead(&self, error: &IndexError) -> bool {
        let IndexError::Lock(LockError::Contended { owner, .. }) = error else { return false };
        self.nodes.borrow().iter().any(|node| node.node_id() == *owner && node.is_dead())
    }
}

impl<V: Verbs> Client<V> {
    /// Works while faults strike.
    pub(crate) async fn work(mut self) {
        let work = self.crew.work;
        let mut contended = 0;
        for _ in 0..work.ops {
            if work.think_ns > 0 {
                self.verbs.pause(self.rng.random_range(1..=work.think_ns)).await;
            }
            let action = self.draw();
            let cancelled = work.cancel_one_in > 0 && self.rng.random_range(0..work.cancel_one_in) == 0;
            let patience_ns = cancelled.then(|| self.rng.random_range(1..=CANCEL_WITHIN_NS));
            match self.perform(&action, patience_ns).await {
                Ok(()) => contended = 0,
                Err(error) if !self.crew.is_legal(&error) => {
                    let name = self.name(&action);
                    self.crew.recorder.fail(format!("{name} failed: {error}"));
                    return;
                }
                Err(error) => contended += u32::from(self.crew.is_of_dead(&error)),
            }
            if contended >= CONTENDED_MAX {
                return;
            }
        }
    }

    /// Does all of `actions`; yields the errors.
    pub(crate) async fn perform_all(self, actions: Vec<Action>) -> Vec<(String, IndexError)> {
        let mut errors = Vec::new();
        for action in actions {
            if let Err(error) = self.perform(&action, None).await {
                errors.push((self.name(&action), error));
            }
        }
        errors
    }

    fn name(&self, action: &Action) -> String {
        let Who { node, client } = self.who;
        match action {
            Action::Point(op, key) => format!("{op} of key {key} by node {node} client {client}"),
            Action::Scan(..) => format!("a scan by node {node} client {client}"),
        }
    }

    fn draw(&mut self) -> Action {
        let work = self.crew.work;
        let shares = work.shares;
        let mut left = self.rng.random_range(
            0..shares.get + shares.put + shares.insert + shares.update + shares.remove + shares.scan,
        );
        for (share, op) in [
            (shares.get, Op::Get),
            (shares.put, Op::Put),
            (shares.insert, Op::Insert),
            (shares.update, Op::Update),
            (shares.remove, Op::Remove),
        ] {
            if left < share {
                return Action::Point(op, self.draw_key());
            }
            left -= share;
        }
        self.draw_scan()
    }

    fn draw_key(&mut self) -> usize {
        let work = self.crew.work;
        let draws = (0..work.skew.max(1)).map(|_| self.rng.random_range(0..work.keys));
        // Hot keys lie next to each other, in a place of their own.
        let least = draws.min().expect("at least one was drawn");
        ((least + work.keys / 3) % work.keys) as usize
    }

    fn draw_scan(&mut self) -> Action {
        let work = self.crew.work;
        let (a, b) = (self.draw_key(), self.draw_key());
        let mut bound = |key: usize| match self.rng.random_range(0..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(self.crew.keys[key].clone()),
            _ => Bound::Included(self.crew.keys[key].clone()),
        };
        let (start, end) = (bound(a.min(b)), bound(a.max(b)));
        let limit =
            self.rng.random_bool(0.5).then(|| self.rng.random_range(0..=work.scan_limit_max) as usize);
        let dropped = self.rng.random_bool(0.1).then(|| self.rng.random_range(0..10));
        Action::Scan(Range { start, end, limit }, dropped)
    }

    /// Does something, for `patience_ns` at most.
    async fn perform(&self, action: &Action, patience_ns: Option<u64>) -> Result<(), IndexError> {
        let recorder = &self.crew.recorder;
        let done = match patience_ns {
            None => self.perform_whole(action).await,
            Some(patience_ns) => {
                let pause = self.verbs.pause(patience_ns);
                let whole = Box::pin(self.perform_whole(action));
                match select(whole, pause).await {
                    Either::Left((done, _)) => done,
                    Either::Right(((), unfinished)) => {
                        drop(unfinished);
                        recorder.give_up(self.who, self.verbs.now());
                        Ok(())
                    }
                }
            }
        };
        if done.is_err() {
            recorder.give_up(self.who, self.verbs.now());
        }
        done
    }

    async fn perform_whole(&self, action: &Action) -> Result<(), IndexError> {
        match action {
            Action::Point(op, key) => self.point(*op, *key).await,
            Action::Scan(range, dropped) => self.scan(range, *dropped).await,
        }
    }

    async fn point(&self, op: Op, number: usize) -> Result<(), IndexError> {
        let (recorder, key) = (&self.crew.recorder, self.crew.keys[number].as_slice());
        let writes = matches!(op, Op::Put | Op::Insert | Op::Update);
        let value = writes.then(|| self.crew.value(self.verbs.random()));
        recorder.begin(self.who, self.verbs.now(), op, key, value.as_deref());
        let value = value.as_deref().unwrap_or_default();
        let outcome = match op {
            Op::Get => {
                let found = self.index.get(key).await?;
                let outcome = if found.is_some() { Outcome::Found } else { Outcome::Absent };
                recorder.end(self.who, self.verbs.now(), outcome, found.as_deref());
                return Ok(());
            }
            Op::Put => self.index.put(key, value).await.map(|()| Outcome::Ok)?,
            Op::Insert if self.index.insert(key, value).await? => Outcome::Ok,
            Op::Insert => Outcome::Exists,
            Op::Update if self.index.update(key, value).await? => Outcome::Ok,
            Op::Remove if self.index.remove(key).await? => Outcome::Ok,
            Op::Update | Op::Remove => Outcome::Absent,
            Op::Scan => unreachable!("a scan has no key"),
        };
        recorder.end(self.who, self.verbs.now(), outcome, None);
        Ok(())
    }

    /// Scans, and drops the scan after so many entries.
    async fn scan(&self, range: &Range, dropped: Option<usize>) -> Result<(), IndexError> {
        let recorder = &self.crew.recorder;
        recorder.begin_scan(self.who, self.verbs.now(), range.clone());
        let bounds = (as_slice(&range.start), as_slice(&range.end));
        let mut scan = self.index.scan(bounds, range.limit);
        let mut left = dropped.unwrap_or(usize::MAX);
        let mut ended = false;
        while left > 0 {
            let Some(pair) = scan.next().await else {
                ended = true;
                break;
            };
            let (key, value) = pair?;
            recorder.scanned(self.who, &key, &value);
            left -= 1;
        }
        recorder.end_scan(self.who, self.verbs.now(), ended);
        Ok(())
    }
}
