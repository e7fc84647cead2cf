//! A client of a scenario: it draws operations, drops some of them on their way, and tells the recorder what it saw.
//! Values are made here too.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::Bound;
use std::rc::Rc;
use std::task::Poll;

use farwood_index::{AccessError, AnyIndex, IndexError, LoadError, OpenError, RangeIndex, WriteError};
use farwood_lock::{LockError, OnceDead};
use farwood_runtime::alloc::AllocError;
use farwood_runtime::clock::nanoseconds;
use farwood_runtime::sim::{Fault, FaultMix, SimShard};
use farwood_runtime::{ControlError, FabricError, Verbs};
use futures::future::{Either, select};
use futures::{FutureExt, StreamExt};
use rand::Rng;
use rand::rngs::SmallRng;

use crate::history::{Op, Outcome};
use crate::keys::keys;
use crate::recorder::{Range, Recorder, Who, as_slice};
use crate::scenario::{Adversary, Scenario, Work, may_lose_servers};
use crate::shard::Steerable;
use crate::waits;

/// After so many operations that met the lock of a dead client, a client has seen enough: each waits for as long as a
/// thousand others take.
const CONTENDED_MAX: u32 = 6;
/// An operation that is dropped on its way is dropped within that time.
const CANCEL_WITHIN_NS: u64 = 12_000;
/// Where it may be dropped at any time: after 2^7 to 2^21 ns, or when it was polled up to 2^6 times.
const CANCEL_LOG_NS: std::ops::Range<u32> = 7..21;
const CANCEL_LOG_POLLS: u32 = 6;
/// Where clients may stand still, one in so many operations is left unpolled, after it was polled up to so many times.
const STILL_ONE_IN: u32 = 30;
const STILL_POLLS: u64 = 8;
/// All clients of a run together stand still for so many times as long as others wait for them, so that the others come
/// to their end; and, every other time, for a moment.
const STILL_WAITS: u64 = 16;
const STILL_MOMENT_NS: u64 = 300_000;
/// An operation on one key waits for others so many times at most, each time as long as a client waits for a lock: in
/// a window, for locks on its way, for clients that replace a node, for memory that comes back.
const WAITS_MAX: u64 = 7;
/// One in so many values is short, where values may be.
const SHORT_ONE_IN: u64 = 3;

/// State that all clients of a run share.
pub(crate) struct Crew {
    pub(crate) recorder: Recorder,
    pub(crate) keys: Vec<Vec<u8>>,
    values: Cell<u64>,
    /// Short values so far, by key and length.
    short: RefCell<BTreeMap<(usize, usize), u64>>,
    value_bytes_max: usize,
    pub(crate) work: Work,
    pub(crate) adversary: Adversary,
    mix: FaultMix,
    /// True if locks of the dead are taken over.
    takes_over: bool,
    /// True if writes may fail where their queue pairs break.
    fails_with_queue_pairs: bool,
    /// A shard of each compute node that has ever been there.
    nodes: RefCell<Vec<SimShard>>,
    /// Operations that clients have begun while faults strike.
    begun: Cell<u64>,
    /// The longest time that clients wait for a lock.
    lock_wait_ns: u64,
    /// For how long clients may yet stand still.
    stillness_ns: Cell<u64>,
    /// Compute nodes a client of which has stood still for more than a moment.
    still: RefCell<BTreeSet<u16>>,
}

/// The point at which a client drops its operation.
#[derive(Clone, Copy)]
enum Patience {
    Endless,
    Ns(u64),
    /// When it is pending for that time, from 1.
    Polls(u64),
    /// It goes on to the end, but when it is pending for that time it is left unpolled for so many ns.
    Still(u64, u64),
}

/// One thing to do.
pub(crate) enum Action {
    Point(Op, usize),
    Scan(Range, Option<usize>),
}

/// A client.
pub(crate) struct Client {
    pub(crate) crew: Rc<Crew>,
    pub(crate) index: AnyIndex<Steerable>,
    pub(crate) verbs: Steerable,
    pub(crate) who: Who,
    pub(crate) rng: SmallRng,
}

impl Crew {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let &Scenario { work, mix, seed, adversary, ref nodes, .. } = scenario;
        let lock_wait_ns = nodes.iter().map(|node| nanoseconds(node.locks().wait_max)).max().unwrap_or(0);
        Crew {
            recorder: Recorder::default(),
            keys: keys(&work, scenario.spec().limits().max_key, seed),
            values: Cell::default(),
            short: RefCell::default(),
            value_bytes_max: scenario.spec().limits().max_value,
            work,
            adversary,
            mix,
            fails_with_queue_pairs: scenario.spec().kind().trial().fails_with_queue_pairs,
            nodes: RefCell::default(),
            begun: Cell::default(),
            lock_wait_ns,
            stillness_ns: Cell::new(STILL_WAITS * lock_wait_ns),
            still: RefCell::default(),
            takes_over: scenario.takes_over(),
        }
    }

    /// Notes that a compute node begins its work.
    pub(crate) fn meet(&self, shard: SimShard) {
        self.nodes.borrow_mut().push(shard);
    }

    /// Operations that clients have begun while faults strike.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// Yields a value that no other write of that key has. One of 8 bytes and more is like no other at all, and each of
    /// its words tells which it is; a shorter one is the next of its length.
    pub(crate) fn value(&self, key: usize, random: u64) -> Vec<u8> {
        if self.adversary.short_values
            && random.is_multiple_of(SHORT_ONE_IN)
            && let Some(value) = self.short_value(key, (random >> 32) as usize % 8)
        {
            return value;
        }
        let number = self.values.get() + 1;
        self.values.set(number);
        let len = 8 + (random % (self.value_bytes_max as u64 - 7)) as usize;
        number.to_be_bytes().iter().copied().cycle().take(len).collect()
    }

    /// Yields the next value of `len` bytes for that key, if there is another.
    fn short_value(&self, key: usize, len: usize) -> Option<Vec<u8>> {
        let mut short = self.short.borrow_mut();
        let next = short.entry((key, len)).or_default();
        let value = *next;
        *next += 1;
        (value < 1 << (8 * len)).then(|| value.to_be_bytes()[8 - len..].to_vec())
    }

    /// Tells whether that is the error of a request, or of its reply, that got lost.
    pub(crate) fn may_be_lost(&self, error: &ControlError) -> bool {
        self.mix.has(|fault| matches!(fault, Fault::LostReply | Fault::FailedRequest))
            && matches!(error, ControlError::ServerGone { .. })
    }

    /// Tells whether an operation may fail so while faults strike.
    pub(crate) fn is_legal(&self, error: &IndexError) -> bool {
        let is_lost = |error: &ControlError| self.may_be_lost(error);
        match error {
            IndexError::Write(WriteError::Alloc(error))
            | IndexError::Load(LoadError::Write(WriteError::Alloc(error))) => match error {
                AllocError::OutOfMemory { .. } => self.mix.has(|fault| fault == Fault::NoMemory),
                AllocError::Control(error) => is_lost(error),
                _ => false,
            },
            IndexError::Open(OpenError::Control(error)) => is_lost(error),
            _ => match error.access() {
                Some(AccessError::Lock(LockError::Fabric(FabricError::QueuePair { .. }))) => {
                    self.fails_with_queue_pairs && matches!(error, IndexError::Write(_))
                }
                Some(AccessError::Fabric(error) | AccessError::Lock(LockError::Fabric(error))) => {
                    matches!(error, FabricError::ServerGone { .. }) && may_lose_servers(&self.mix)
                }
                _ => self.is_of_dead(error),
            },
        }
    }

    /// Tells whether an error is about a lock that is not had, after a compute node has stopped or a client stood
    /// still. [`Crew::unexplained`] asks later whether that one holds it.
    pub(crate) fn is_of_dead(&self, error: &IndexError) -> bool {
        matches!(error.access(), Some(AccessError::Lock(LockError::Contended { .. })))
            && !self.in_the_way().is_empty()
    }

    /// Tells whether an operation may fail so when nothing disturbs it: for a lock of the dead that is lost with its
    /// owner, where those of the others are taken over, or for one of a client that waits for such a lock itself.
    pub(crate) fn is_lost(&self, error: &IndexError) -> bool {
        let is_recoverable = matches!(
            error.access(),
            Some(AccessError::Lock(LockError::Contended { owner, once_dead: OnceDead::Recovered, .. }))
                if self.dead().contains(owner)
        );
        let may_be = !self.takes_over || !is_recoverable || !self.still.borrow().is_empty();
        may_be && self.is_of_dead(error)
    }

    /// Yields the ids of the compute nodes that have stopped.
    pub(crate) fn dead(&self) -> BTreeSet<u16> {
        self.nodes.borrow().iter().filter(|shard| shard.is_dead()).map(SimShard::node_id).collect()
    }

    /// Yields the ids of compute nodes whose locks others may time out on: they have stopped, or a client of theirs has
    /// stood still.
    pub(crate) fn in_the_way(&self) -> BTreeSet<u16> {
        &self.dead() | &self.still.borrow()
    }

    /// Yields a wait for a lock that no death explains, as [`waits::unexplained`] judges. Where a client has stood
    /// still none is asked for: those that waited for it, and then went on, have kept others.
    pub(crate) fn unexplained(&self) -> Option<String> {
        if !self.still.borrow().is_empty() {
            return None;
        }
        waits::unexplained(self.dead())
    }
}

impl Client {
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
            let patience = if cancelled { self.draw_patience() } else { self.draw_stillness() };
            self.crew.begun.set(self.crew.begun.get() + 1);
            match self.perform(&action, patience).await {
                Ok(()) => {}
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

    /// Does all of `actions`, but for writes when it has seen enough locks of the dead; yields the errors.
    pub(crate) async fn perform_all(self, actions: Vec<Action>) -> Vec<(String, IndexError)> {
        self.perform_until(actions, CONTENDED_MAX).await
    }

    /// Does all of `actions`, however many locks of the dead it sees; yields the errors.
    pub(crate) async fn perform_every(self, actions: Vec<Action>) -> Vec<(String, IndexError)> {
        self.perform_until(actions, u32::MAX).await
    }

    async fn perform_until(self, actions: Vec<Action>, contended_max: u32) -> Vec<(String, IndexError)> {
        let (mut errors, mut contended) = (Vec::new(), 0);
        for action in actions {
            if contended >= contended_max && is_write(&action) {
                continue;
            }
            if let Err(error) = self.perform(&action, Patience::Endless).await {
                contended += u32::from(self.crew.is_of_dead(&error));
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

    fn draw_patience(&mut self) -> Patience {
        if !self.crew.adversary.drops_anywhere {
            return Patience::Ns(self.rng.random_range(1..=CANCEL_WITHIN_NS));
        }
        if self.rng.random() {
            let most = 1 << self.rng.random_range(1..=CANCEL_LOG_POLLS);
            Patience::Polls(self.rng.random_range(1..=most))
        } else {
            let most = 1 << self.rng.random_range(CANCEL_LOG_NS);
            Patience::Ns(self.rng.random_range(1..=most))
        }
    }

    fn draw_stillness(&mut self) -> Patience {
        if !self.crew.adversary.stands_still || self.rng.random_range(0..STILL_ONE_IN) > 0 {
            return Patience::Endless;
        }
        let polls = self.rng.random_range(1..=STILL_POLLS);
        let left_ns = self.crew.stillness_ns.get();
        if left_ns > 0 && self.rng.random() {
            return Patience::Still(polls, self.rng.random_range(1..=left_ns));
        }
        Patience::Still(polls, self.rng.random_range(1..=STILL_MOMENT_NS))
    }

    /// Does something, unless it loses its patience.
    async fn perform(&self, action: &Action, patience: Patience) -> Result<(), IndexError> {
        let recorder = &self.crew.recorder;
        let whole = self.perform_whole(action);
        let done = match patience {
            Patience::Endless => Some(self.in_time(action, whole).await),
            Patience::Still(polls, ns) => {
                let mut whole = Box::pin(whole);
                match polled(&mut whole, polls).await {
                    None => {
                        self.stand_still(ns).await;
                        Some(whole.await)
                    }
                    done => done,
                }
            }
            Patience::Polls(most) => polled(Box::pin(whole), most).await,
            // The pause first: what came in the meantime, such as a lock that was granted, is dropped unseen.
            Patience::Ns(ns) => match select(self.verbs.pause(ns), Box::pin(whole)).await {
                Either::Left(((), _)) => None,
                Either::Right((done, _)) => Some(done),
            },
        };
        // A dropped scan, too, has returned what it has returned.
        match &done {
            Some(Ok(())) => {}
            // It had no effect: no value of its may ever be seen.
            Some(Err(IndexError::Write(error))) if !error.outcome_unknown() => recorder.forget(self.who),
            Some(Err(_)) | None => recorder.give_up(self.who, self.verbs.now()),
        }
        done.unwrap_or(Ok(()))
    }

    /// Performs an operation, and sees to it that it does not wait for others without end.
    async fn in_time<T>(&self, action: &Action, whole: impl Future<Output = T>) -> T {
        let begun_ns = self.verbs.now();
        let done = whole.await;
        let took_ns = self.verbs.now() - begun_ns;
        if matches!(action, Action::Point(..)) && took_ns > WAITS_MAX * self.crew.lock_wait_ns {
            self.crew.recorder.fail(format!("{} took {took_ns} ns", self.name(action)));
        }
        done
    }

    async fn stand_still(&self, ns: u64) {
        let mut ns = ns;
        // Several of them, one after the other, keep others longer than each.
        if ns > STILL_MOMENT_NS {
            let left_ns = self.crew.stillness_ns.get();
            ns = ns.min(left_ns);
            self.crew.stillness_ns.set(left_ns - ns);
            self.crew.still.borrow_mut().insert(self.verbs.node_id());
        }
        self.verbs.pause(ns).await;
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
        let value = writes.then(|| self.crew.value(number, self.verbs.random()));
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

/// Yields the output of `future`, unless it is still pending when it has been polled `most` times: then it is dropped.
async fn polled<F: Future + Unpin>(mut future: F, most: u64) -> Option<F::Output> {
    let mut left = most;
    poll_fn(|cx| {
        left -= 1;
        match future.poll_unpin(cx) {
            Poll::Pending if left == 0 => Poll::Ready(None),
            polled => polled.map(Some),
        }
    })
    .await
}

fn is_write(action: &Action) -> bool {
    matches!(action, Action::Point(op, _) if *op != Op::Get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Overrides;

    #[test]
    fn no_two_values_of_a_key_are_the_same() {
        let adversary = Adversary { short_values: true, ..Adversary::default() };
        let crew = Crew::new(&Scenario { adversary, ..Scenario::draw(1, &Overrides::default()) });
        let mut lengths = BTreeSet::new();
        for key in 0..3 {
            let values: Vec<_> = (0..3_000u64).map(|n| crew.value(key, n << 32 | n)).collect();
            lengths.extend(values.iter().map(Vec::len));
            assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), values.len());
        }
        assert!((0..=8).all(|len| lengths.contains(&len)), "{lengths:?}");
    }

    #[test]
    fn an_operation_is_dropped_at_each_of_its_awaits() {
        let awaits = |most| {
            let reached = Rc::new(Cell::new(0));
            let inner = Rc::clone(&reached);
            let operation = async move {
                for _ in 0..5 {
                    inner.set(inner.get() + 1);
                    futures::pending!();
                }
            };
            let mut dropped = Box::pin(polled(Box::pin(operation), most));
            let ended = std::iter::repeat_with(|| (&mut dropped).now_or_never()).flatten().next();
            (ended.expect("it ends"), reached.get())
        };
        for most in 1..=5 {
            assert_eq!(awaits(most), (None, most));
        }
        assert_eq!(awaits(6), (Some(()), 5));
    }
}
