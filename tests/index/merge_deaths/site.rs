//! A simulated cluster with a tree that is made by hand, of which one node is struck and others live on. It does not
//! know what the victim is doing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use farwood::index::check::Pairs;
use farwood::runtime::sim::{Fault, Rule, SimConfig, SimShard, Simulation};
use farwood::runtime::{ClientPool, NodeContext, Verbs};
use farwood::{AnyIndex, CheckOptions, IndexSpec, RangeIndex, chime, dolphin, sherman};
use futures::{FutureExt, TryStreamExt};

use crate::kit::simulated::ROUGH;
use crate::kit::{TestShard, key, number};

/// Far beyond what any part takes.
pub(crate) const LATE_NS: u64 = 60_000_000_000;
pub(crate) const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// Keys of the tree in the end, all of which survivors write.
pub(crate) const KEYS: u64 = 24;
/// The nodes: who dies, who has the addresses of before the merge, who has none.
pub(crate) const VICTIM: usize = 0;
pub(crate) const WITNESS: usize = 1;
pub(crate) const NEWCOMER: usize = 2;
/// One more, which does nothing but count the time, in steps of this many ns.
pub(crate) const CLOCK: u16 = 3;
pub(crate) const TICK_NS: u64 = 300;
/// Beyond the pauses of a janitor in ns that puts a separator in, or merges a leaf.
pub(crate) const JANITOR_NS: u64 = 1_500_000;
/// Beyond the time in ns from when a chain is posted until its fault is drawn, and below a rough round trip.
pub(crate) const STRIKE_NS: u64 = 4_000;

/// Numbers of keys, and of the values that they have.
pub(crate) type Model = BTreeMap<u64, u64>;

/// Leaves, and keys with which they are split and merged. Those of B+trees have four slots, each of several lines, as
/// have inner nodes.
pub(crate) struct Leaves {
    pub(crate) spec: fn() -> IndexSpec,
    /// Keys that are removed before one more has two leaves merged: part by part, since leaves may be merged between.
    pub(crate) removed: &'static [&'static [u64]],
    /// The key that is removed then.
    pub(crate) merging: u64,
    /// Keys that are removed, again part by part, before one more has the leaves of the second inner node merged, then
    /// both inner nodes, and in the end all.
    pub(crate) emptied_but: &'static [&'static [u64]],
    pub(crate) lowering: u64,
    /// Numbers of pairs that fill the merged leaf, until a put of 4 splits it.
    pub(crate) more: &'static [(u64, u64)],
    /// A key whose leaf's memory is used again then, for a leaf that has it, too.
    pub(crate) moved: u64,
    /// Keys behind tens, and then one more that splits a leaf; and one in its second half.
    pub(crate) amid: (&'static [u64], u64, u64),
    /// Keys whose removal has the second half merged, the last of which leaves a leaf empty.
    pub(crate) emptied: [u64; 3],
    /// True if memory is used again only when caches were emptied.
    pub(crate) is_flushed: bool,
}

/// Of 16 keys, in five leaves below two inner nodes, 9, 12 and 13 are left.
pub(crate) const EMPTIED_BUT: &[&[u64]] = &[&[1, 0, 2], &[4, 3, 5], &[7, 6, 8], &[10, 11], &[15, 14]];

pub(crate) const SHERMAN: Leaves = Leaves {
    spec: || {
        let size = sherman::NodeSize::Slots { leaf: 4, inner: 4 };
        let options = sherman::Options { lock_wait_max: LOCK_WAIT_MAX, ..Default::default() };
        IndexSpec::Sherman { geometry: sherman::Geometry { max_key: 8, max_value: 40, size }, options }
    },
    removed: &[&[1, 2, 4]],
    merging: 5,
    emptied_but: EMPTIED_BUT,
    lowering: 13,
    more: &[(1, 1), (2, 2), (3, 33)],
    moved: 3,
    amid: (&[31], 32, 50),
    emptied: [30, 31, 32],
    is_flushed: false,
};

pub(crate) const CHIME: Leaves = Leaves {
    spec: || chime_of(false),
    removed: &[&[1, 3], &[2]],
    merging: 4,
    emptied_but: EMPTIED_BUT,
    lowering: 13,
    more: &[(1, 1), (2, 2), (5, 55)],
    moved: 5,
    amid: (&[31, 33], 32, 33),
    emptied: [31, 33, 32],
    is_flushed: true,
};

pub(crate) const INDIRECT: Leaves = Leaves { spec: || chime_of(true), ..CHIME };

/// Leaves of eight slots: keys below 8, and those behind.
pub(crate) const DOLPHIN: Leaves = Leaves {
    spec: || {
        let (types, leaf_bytes) = (dolphin::Types::Tiny, 704);
        let geometry = dolphin::Geometry { max_key: 8, max_value: 40, leaf_bytes, types };
        let options = dolphin::Options { lock_wait_max: LOCK_WAIT_MAX, ..Default::default() };
        IndexSpec::Dolphin { geometry, options }
    },
    removed: &[&[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12]],
    merging: 13,
    emptied_but: &[],
    lowering: 0,
    more: &[(1, 1), (2, 2), (14, 44), (17, 17)],
    moved: 14,
    amid: (&[], 0, 0),
    emptied: [0; 3],
    is_flushed: false,
};

pub(crate) const B_TREES: [&Leaves; 3] = [&SHERMAN, &CHIME, &INDIRECT];
pub(crate) const ALL: [&Leaves; 4] = [&SHERMAN, &CHIME, &INDIRECT, &DOLPHIN];

pub(crate) fn chime_of(indirect: bool) -> IndexSpec {
    let geometry =
        chime::Geometry { max_key: 8, max_value: 40, span: 4, neighbourhood: 4, inner: 4, indirect };
    let options = chime::Options { lock_wait_max: LOCK_WAIT_MAX, ..Default::default() };
    IndexSpec::Chime { geometry, options }
}

/// A value of several lines' length, whose parts belong together.
pub(crate) fn value(n: u64) -> Vec<u8> {
    n.to_be_bytes().repeat(5)
}

/// A blow to the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Blow {
    /// Its shard stops; what it has sent arrives, or not.
    Stop,
    /// It stops at its next verb: before it, behind it, or within a WRITE.
    StopAtVerb,
    /// The queue pair of its next verb breaks.
    Break,
    /// It stands still from its next verb on, for so long that the others may do much, and goes on then.
    StandStill,
}

/// A simulated cluster of three compute nodes with a tree, and a handle to that on each.
pub(crate) struct Site {
    pub(crate) leaves: &'static Leaves,
    pub(crate) sim: Simulation,
    pub(crate) parties: Vec<(SimShard, AnyIndex<TestShard>)>,
}

impl Site {
    pub(crate) fn new(leaves: &'static Leaves, seed: u64) -> Self {
        let config = SimConfig {
            seed,
            reordering: ROUGH,
            nodes: CLOCK + 1,
            servers: 1 + (seed % 2) as u16,
            bytes_per_server: 8 << 20,
            locks_per_server: 1024,
            chunk_bytes: 16 << 10,
            finds_deaths: true,
            ..SimConfig::default()
        };
        let spec = (leaves.spec)();
        let sim = Simulation::new(&config).unwrap();
        let parties = (0..CLOCK).map(|node| {
            let host = &*sim.node(node);
            let tree = match node {
                0 => spec.create(host, "t").now_or_never(),
                _ => spec.open(host, "t").now_or_never(),
            };
            let shard = sim.shard(node, 0);
            let tree = tree.expect("control services answer at once").unwrap();
            (shard.clone(), tree.attach(TestShard::Simulated(shard)))
        });
        let parties = parties.collect();
        Site { leaves, sim, parties }
    }

    /// Runs a client on a node to its end.
    pub(crate) fn on<F: Future<Output = ()> + 'static>(
        &self,
        node: usize,
        work: impl FnOnce(AnyIndex<TestShard>) -> F,
    ) {
        let (shard, index) = &self.parties[node];
        self.sim.block_on(shard, self.sim.now() + LATE_NS, work(index.clone())).unwrap();
    }

    /// Runs a node until nothing is left to do there.
    pub(crate) fn rest(&self, node: usize) {
        let (shard, index) = &self.parties[node];
        let is_idle =
            || shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && index.locks_in_use() == 0;
        self.sim.run(self.sim.now() + LATE_NS, || shard.is_dead() || is_idle()).unwrap();
    }

    /// Lets the janitor of a node come to its end, pauses included.
    pub(crate) fn linger(&self, node: usize) {
        let shard = &self.parties[node].0;
        self.sim.block_on(shard, self.sim.now() + LATE_NS, shard.pause(JANITOR_NS)).unwrap();
        self.rest(node);
    }

    /// Lets epochs move on, and janitors come to their ends; where it matters, caches are emptied.
    pub(crate) fn pass_epochs(&self) {
        self.pass(self.leaves.is_flushed);
    }

    /// Lets epochs move on, and has all caches emptied.
    pub(crate) fn flush(&self) {
        self.pass(true);
    }

    fn pass(&self, is_flushed: bool) {
        let control = self.sim.node(NEWCOMER as u16).control();
        let now = self.parties[NEWCOMER].0.pins().retired_now();
        // Some of the messages do not come through.
        for _ in 0..200 {
            control.want_epoch();
            if is_flushed {
                control.want_flush(now);
            }
            for node in (0..self.sim.nodes()).filter(|node| !self.sim.shard(*node, 0).is_dead()) {
                let shard = self.sim.shard(node, 0);
                self.sim.block_on(&shard, self.sim.now() + LATE_NS, shard.pause(1_000)).unwrap();
            }
        }
    }

    /// Has the victim's next chain be struck, if it posts one, and nothing else.
    pub(crate) fn strike_next(&self, fault: Fault) {
        let shard = &self.parties[VICTIM].0;
        let posted = shard.chains_posted();
        self.sim.set_faults(&[Rule { fault, one_in: 1, most: 1 }]);
        let is_struck = || shard.chains_posted() > posted || shard.clients_alive() == 0;
        let _ = self.sim.run(self.sim.now() + LATE_NS, is_struck);
        // A chain is struck when its NIC takes it, which is after it was posted, and long before it ends.
        self.wait(STRIKE_NS);
        self.sim.set_faults(&[]);
    }

    /// Lets so many ns pass.
    pub(crate) fn wait(&self, ns: u64) {
        let clock = self.sim.shard(CLOCK, 0);
        self.sim.block_on(&clock, self.sim.now() + LATE_NS, clock.pause(ns)).unwrap();
    }

    /// Strikes the victim. One that stands still goes on later; with the other blows it has come to rest.
    pub(crate) fn strike(&self, blow: Blow) {
        let rule = |fault, one_in, most| self.sim.set_faults(&[Rule { fault, one_in, most }]);
        match blow {
            Blow::Stop => self.sim.stop_node(VICTIM as u16),
            Blow::StopAtVerb => rule(Fault::NodeStop, 1, 1),
            Blow::Break => rule(Fault::QueuePairError(20_000), 1, 1),
            Blow::StandStill => self.strike_next(Fault::StalledShard(20_000_000)),
        }
        if blow != Blow::StandStill {
            self.rest(VICTIM);
        }
        self.sim.set_faults(&[]);
    }

    /// Has a node die, if it lives, and its death become known.
    pub(crate) fn bury(&self, node: usize) {
        let place = node as u16;
        let shard = self.sim.shard(place, 0);
        if !shard.is_dead() {
            self.sim.stop_node(place);
        }
        self.sim.cluster().died(shard.node_id());
    }

    /// Yields the bytes of the tree's nodes.
    pub(crate) fn used_bytes(&self, node: usize) -> u64 {
        let (used, index) = (Rc::new(Cell::new(0)), self.parties[node].1.clone());
        let tells = Rc::clone(&used);
        self.on(node, async move |_| tells.set(index.survey().await.unwrap().used_bytes));
        used.get()
    }

    /// Puts pairs, and then removes keys.
    pub(crate) fn write(&self, node: usize, pairs: Model, removed: impl IntoIterator<Item = u64> + 'static) {
        self.on(node, async move |index| {
            for (n, number) in pairs {
                index.put(&key(n), &value(number)).await.unwrap();
            }
            for n in removed {
                index.remove(&key(n)).await.unwrap();
            }
        });
    }

    /// Asserts that a node finds these pairs, each alone and in a scan, and no others; nothing is said of the `unsure`
    /// keys.
    pub(crate) fn sees(&self, node: usize, model: &Model, unsure: &[u64]) {
        let (model, unsure) = (model.clone(), unsure.to_vec());
        self.on(node, async move |index| {
            let is_sure = |n: &u64| !unsure.contains(n);
            let keys = (0..KEYS).chain(model.range(KEYS..).map(|(n, _)| *n));
            for n in keys.filter(is_sure) {
                let found = index.get(&key(n)).await.unwrap();
                assert_eq!(found.as_deref(), model.get(&n).map(|n| value(*n)).as_deref(), "key {n}");
            }
            let scanned: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
            let scanned = scanned.iter().map(|(key, value)| (number(key), value.to_vec()));
            let expected = model.iter().map(|(n, number)| (*n, value(*number)));
            let sure = |(n, _): &(u64, Vec<u8>)| is_sure(n);
            assert!(scanned.filter(sure).eq(expected.filter(sure)), "a scan says otherwise");
        });
    }

    /// Asserts that the tree is intact and holds `model`, for a check.
    pub(crate) fn holds(&self, node: usize, model: &Model) {
        let (model, victim) = (model.clone(), &self.parties[VICTIM].0);
        let dead = victim.is_dead().then(|| victim.node_id()).into_iter().collect();
        self.on(node, async move |index| {
            let mut found = Pairs::default();
            let visit = |key: &[u8], value: &[u8]| assert!(found.insert(key, value));
            // Locks that no client has come by since.
            let options = CheckOptions { dead, ..CheckOptions::default() };
            let report = index.check_each(&options, visit).await.unwrap();
            assert!(report.is_intact(), "{:?}", report.violations);
            let found = found.iter().map(|(key, value)| (number(key), value.to_vec()));
            assert!(found.eq(model.into_iter().map(|(n, number)| (n, value(number)))));
        });
    }

    /// Lets the others live on: what one has written, the other one finds. The victim was about to write the key
    /// `unsure`, and may still do so if it `goes_on`.
    pub(crate) fn live_on(&self, [first, second]: [usize; 2], mut model: Model, unsure: u64, goes_on: bool) {
        self.sees(first, &model, &[unsure]);
        model.insert(unsure, 99);
        model.iter_mut().for_each(|(n, number)| *number = 100 + n);
        let unsure: &[u64] = if goes_on { &[unsure] } else { &[] };
        self.write(first, model.clone(), []);
        self.sees(second, &model, unsure);
        model = (0..KEYS).map(|n| (n, 200 + n)).collect();
        self.write(second, model.clone(), []);
        self.sees(first, &model, unsure);
        // Both at once: merges, and splits in their places.
        let (shard, index) = self.parties[second].clone();
        let other = shard.spawn(async move {
            for n in (1..KEYS).step_by(2) {
                index.remove(&key(n)).await.unwrap();
                index.put(&key(n), &value(300 + n)).await.unwrap();
            }
        });
        self.write(first, Model::new(), (0..KEYS).step_by(2));
        self.rest(second);
        drop(other);
        model = (1..KEYS).step_by(2).map(|n| (n, 300 + n)).collect();
        self.sees(first, &model, unsure);
        self.sees(second, &model, unsure);
        self.write(first, Model::new(), (1..KEYS - 2).step_by(2));
        [VICTIM, first, second].into_iter().for_each(|node| self.rest(node));
        // What was retired is used again, before anyone else has looked.
        self.pass_epochs();
        model = (0..KEYS).map(|n| (n, 400 + n)).collect();
        self.write(first, model.clone(), []);
        self.sees(second, &model, &[]);
        self.write(second, Model::new(), (0..KEYS).step_by(2));
        model.retain(|n, _| n % 2 == 1);
        [first, second].into_iter().for_each(|node| self.rest(node));
        self.sees(first, &model, &[]);
        self.pass_epochs();
        self.holds(second, &model);
    }
}
