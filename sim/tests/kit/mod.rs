//! Histories as a right index makes them: clients that take turns at random, each operation in three steps (it begins,
//! it takes effect on one map, it ends), scans in several, some clients giving up in between.

use std::collections::BTreeMap;
use std::ops::Bound;

use farwood_sim::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};
use farwood_sim::oracle::Pairs;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The shape of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) clients: u32,
    pub(crate) keys: u32,
    pub(crate) ops: usize,
    /// Chances of an operation to be a scan, and of anything to be given up.
    pub(crate) scans: f64,
    pub(crate) lost: f64,
}

struct Running {
    event: Event,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Of a scan the last bound; of others whether it has taken effect.
    end: Vec<u8>,
    effected: bool,
    answer: Option<Vec<u8>>,
    limit: usize,
    last: Option<Vec<u8>>,
    entries: ScanEntries,
    count: usize,
}

struct Run {
    shape: Shape,
    rng: SmallRng,
    map: Pairs,
    history: History,
    tick: u64,
    stamp: u64,
    /// Writes whose clients are gone.
    ghosts: Vec<Running>,
}

/// Yields a history, and what was there before it.
pub(crate) fn run(shape: Shape, seed: u64) -> (History, Pairs) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let key = |number: u32| number.to_be_bytes()[2..].to_vec();
    let loaded = (0..shape.keys).filter(|_| rng.random_bool(0.5)).map(|number| (key(number), vec![0; 8]));
    let initial: Pairs = loaded.collect();
    let map = initial.clone();
    let mut run = Run { shape, rng, map, history: History::default(), tick: 0, stamp: 0, ghosts: Vec::new() };
    let mut clients: BTreeMap<u32, Running> = BTreeMap::new();
    while run.history.len() < shape.ops {
        run.tick += 1;
        let client = run.rng.random_range(0..shape.clients);
        match clients.remove(&client) {
            None => drop(clients.insert(client, run.begin(client))),
            Some(running) => {
                if let Some(running) = run.advance(running) {
                    clients.insert(client, running);
                }
            }
        }
        if !run.ghosts.is_empty() && run.rng.random_bool(0.02) {
            let at = run.rng.random_range(0..run.ghosts.len());
            let mut ghost = run.ghosts.swap_remove(at);
            run.take_effect(&mut ghost);
        }
    }
    for running in clients.into_values() {
        run.tick += 1;
        run.end(running, true);
    }
    (run.history, initial)
}

impl Run {
    fn begin(&mut self, client: u32) -> Running {
        let op = if self.rng.random_bool(self.shape.scans) {
            Op::Scan
        } else {
            [Op::Get, Op::Get, Op::Get, Op::Put, Op::Insert, Op::Update, Op::Remove]
                [self.rng.random_range(0..7)]
        };
        self.stamp += 1;
        let mut key = || self.rng.random_range(0..self.shape.keys).to_be_bytes()[2..].to_vec();
        let (key, end) = (key(), key());
        let start = self.tick;
        let (process, outcome) = (client % 3, Outcome::Unknown);
        Running {
            event: Event { process, client, op, outcome, start, end: 0, start_ns: start, end_ns: 0 },
            key,
            end,
            value: self.stamp.to_be_bytes().to_vec(),
            effected: false,
            answer: None,
            limit: self.rng.random_range(0..30),
            last: None,
            entries: ScanEntries::default(),
            count: 0,
        }
    }

    /// Takes one step; yields `None` if it has ended.
    fn advance(&mut self, mut running: Running) -> Option<Running> {
        if self.rng.random_bool(self.shape.lost) {
            self.end(running, true);
            return None;
        }
        if running.effected {
            self.end(running, false);
            return None;
        }
        if running.event.op == Op::Scan {
            self.scan_on(&mut running)
        } else {
            self.take_effect(&mut running)
        }
        Some(running)
    }

    fn take_effect(&mut self, running: &mut Running) {
        let Running { key, value, .. } = running;
        let before = self.map.get(key).cloned();
        running.event.outcome = match (running.event.op, &before) {
            (Op::Get, Some(_)) => Outcome::Found,
            (Op::Insert, Some(_)) => Outcome::Exists,
            (Op::Get | Op::Update | Op::Remove, None) => Outcome::Absent,
            (Op::Remove, Some(_)) => {
                self.map.remove(key);
                Outcome::Ok
            }
            _ => {
                self.map.insert(key.clone(), value.clone());
                Outcome::Ok
            }
        };
        running.answer = before;
        running.effected = true;
    }

    /// Reads the next three keys, as if they were a leaf.
    fn scan_on(&mut self, running: &mut Running) {
        running.event.outcome = Outcome::Ok;
        let from = running.last.take().map_or(Bound::Included(running.key.clone()), Bound::Excluded);
        let to = Bound::Included(running.end.clone());
        running.effected = running.key > running.end || running.count >= running.limit;
        if running.effected {
            return;
        }
        let mut found = self.map.range((from, to)).take(3.min(running.limit - running.count)).peekable();
        running.effected = found.peek().is_none();
        for (key, value) in found {
            running.entries.push(key, value);
            running.count += 1;
            running.last = Some(key.clone());
        }
    }

    fn end(&mut self, mut running: Running, lost: bool) {
        running.event.end = self.tick;
        running.event.end_ns = self.tick;
        let ended = !lost && running.event.op == Op::Scan;
        if lost {
            running.event.outcome = Outcome::Unknown;
        }
        match running.event.op {
            Op::Scan => {
                let (start, end) = (Bound::Included(&running.key[..]), Bound::Included(&running.end[..]));
                let range = ScanRange { start, end, limit: Some(running.limit), ended };
                self.history.add_scan(running.event, range, &running.entries);
            }
            Op::Get => {
                let value = running.answer.filter(|_| !lost);
                self.history.add(running.event, &running.key, value.as_deref());
            }
            _ => {
                let value = (running.event.op != Op::Remove).then_some(&running.value[..]);
                self.history.add(running.event, &running.key, value);
                if lost && !running.effected {
                    self.ghosts.push(running);
                }
            }
        }
    }
}
