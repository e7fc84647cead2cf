//! Clients that die in a merge of two leaves, in those of inner nodes that follow and where the root gets lower, or
//! where a split uses a merged leaf's memory again: at any time, so between all verbs and within WRITEs, and at each
//! verb in each way in which simulated nodes stop. Others then read, write, scan and remove all around it: one that
//! still has the addresses of before, and one that has none. Clients stand still and queue pairs break at each verb,
//! too.
//!
//! The trees are made by hand, and know what a leaf's slots are and when it is merged (`index/src/shell/merging.rs`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use farwood::index::check::Pairs;
use farwood::runtime::alloc::Books;
use farwood::runtime::sim::{Fault, Rule, SimConfig, SimShard, Simulation};
use farwood::runtime::{ClientPool, NodeContext, Verbs};
use farwood::{AnyIndex, CheckOptions, IndexSpec, RangeIndex, chime, dolphin, sherman};
use futures::{FutureExt, TryStreamExt};

use crate::kit::simulated::ROUGH;
use crate::kit::{TestShard, key, number};

/// Far beyond what any part takes.
const LATE_NS: u64 = 60_000_000_000;
const LOCK_WAIT_MAX: Duration = Duration::from_secs(1);
/// Keys of the tree in the end, all of which survivors write.
const KEYS: u64 = 24;
/// The nodes: who dies, who has the addresses of before the merge, who has none.
pub(super) const VICTIM: usize = 0;
pub(super) const WITNESS: usize = 1;
pub(super) const NEWCOMER: usize = 2;
/// One more, which does nothing but count the time, in steps of this many ns.
const CLOCK: u16 = 3;
pub(super) const TICK_NS: u64 = 300;
/// Beyond the pauses of a janitor in ns that puts a separator in, or merges a leaf.
const JANITOR_NS: u64 = 1_500_000;
/// Beyond the time in ns from when a chain is posted until its fault is drawn, and below a rough round trip.
const STRIKE_NS: u64 = 4_000;

/// Numbers of keys, and of the values that they have.
pub(super) type Model = BTreeMap<u64, u64>;

/// Leaves, and keys with which they are split and merged. Those of B+trees have four slots, each of several lines, as
/// have inner nodes.
pub(super) struct Leaves {
    pub(super) spec: fn() -> IndexSpec,
    /// Keys that are removed before one more has two leaves merged: part by part, since leaves may be merged between.
    pub(super) removed: &'static [&'static [u64]],
    /// The key that is removed then.
    pub(super) merging: u64,
    /// Keys that are removed, again part by part, before one more has the leaves of the second inner node merged, then
    /// both inner nodes, and in the end all.
    pub(super) emptied_but: &'static [&'static [u64]],
    pub(super) lowering: u64,
    /// Numbers of pairs that fill the merged leaf, until a put of 4 splits it.
    pub(super) more: &'static [(u64, u64)],
    /// A key whose leaf's memory is used again then, for a leaf that has it, too.
    pub(super) moved: u64,
    /// Keys behind tens, and then one more that splits a leaf; and one in its second half.
    pub(super) amid: (&'static [u64], u64, u64),
    /// Keys whose removal has the second half merged, the last of which leaves a leaf empty.
    pub(super) emptied: [u64; 3],
    /// True if memory is used again only when caches were emptied.
    pub(super) is_flushed: bool,
}

/// Of 16 keys, in five leaves below two inner nodes, 9, 12 and 13 are left.
const EMPTIED_BUT: &[&[u64]] = &[&[1, 0, 2], &[4, 3, 5], &[7, 6, 8], &[10, 11], &[15, 14]];

const SHERMAN: Leaves = Leaves {
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

const CHIME: Leaves = Leaves {
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

const INDIRECT: Leaves = Leaves { spec: || chime_of(true), ..CHIME };

/// Leaves of eight slots: keys below 8, and those behind.
pub(super) const DOLPHIN: Leaves = Leaves {
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

const B_TREES: [&Leaves; 3] = [&SHERMAN, &CHIME, &INDIRECT];
const ALL: [&Leaves; 4] = [&SHERMAN, &CHIME, &INDIRECT, &DOLPHIN];

fn chime_of(indirect: bool) -> IndexSpec {
    let geometry =
        chime::Geometry { max_key: 8, max_value: 40, span: 4, neighbourhood: 4, inner: 4, indirect };
    let options = chime::Options { lock_wait_max: LOCK_WAIT_MAX, ..Default::default() };
    IndexSpec::Chime { geometry, options }
}

/// A value of several lines' length, whose parts belong together.
fn value(n: u64) -> Vec<u8> {
    n.to_be_bytes().repeat(5)
}

/// A blow to the victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blow {
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
pub(super) struct Site {
    leaves: &'static Leaves,
    sim: Simulation,
    pub(super) parties: Vec<(SimShard, AnyIndex<TestShard>)>,
}

impl Site {
    pub(super) fn new(leaves: &'static Leaves, seed: u64) -> Self {
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
    pub(super) fn on<F: Future<Output = ()> + 'static>(
        &self,
        node: usize,
        work: impl FnOnce(AnyIndex<TestShard>) -> F,
    ) {
        let (shard, index) = &self.parties[node];
        self.sim.block_on(shard, self.sim.now() + LATE_NS, work(index.clone())).unwrap();
    }

    /// Runs a node until nothing is left to do there.
    pub(super) fn rest(&self, node: usize) {
        let (shard, index) = &self.parties[node];
        let is_idle =
            || shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && index.locks_in_use() == 0;
        self.sim.run(self.sim.now() + LATE_NS, || shard.is_dead() || is_idle()).unwrap();
    }

    /// Lets the janitor of a node come to its end, pauses included.
    pub(super) fn linger(&self, node: usize) {
        let shard = &self.parties[node].0;
        self.sim.block_on(shard, self.sim.now() + LATE_NS, shard.pause(JANITOR_NS)).unwrap();
        self.rest(node);
    }

    /// Lets epochs move on, and janitors come to their ends; where it matters, caches are emptied.
    pub(super) fn pass_epochs(&self) {
        let control = self.sim.node(NEWCOMER as u16).control();
        let now = self.parties[NEWCOMER].0.pins().retired_now();
        // Some of the messages do not come through.
        for _ in 0..50 {
            control.want_epoch();
            if self.leaves.is_flushed {
                control.want_flush(now);
            }
            for node in (0..self.sim.nodes()).filter(|node| !self.sim.shard(*node, 0).is_dead()) {
                let shard = self.sim.shard(node, 0);
                self.sim.block_on(&shard, self.sim.now() + LATE_NS, shard.pause(1_000)).unwrap();
            }
        }
    }

    /// Strikes the victim. One that stands still goes on later; with the other blows it has come to rest.
    pub(super) fn strike(&self, blow: Blow) {
        let (shard, _) = &self.parties[VICTIM];
        let rule = |fault, one_in, most| self.sim.set_faults(&[Rule { fault, one_in, most }]);
        match blow {
            Blow::Stop => self.sim.stop_node(VICTIM as u16),
            Blow::StopAtVerb => rule(Fault::NodeStop, 1, 1),
            Blow::Break => rule(Fault::QueuePairError(20_000), 1, 1),
            Blow::StandStill => {
                let posted = shard.chains_posted();
                rule(Fault::StalledShard(20_000_000), 1, 1);
                let is_struck = || shard.chains_posted() > posted || shard.clients_alive() == 0;
                let _ = self.sim.run(self.sim.now() + LATE_NS, is_struck);
                // A chain is struck when its NIC takes it, which is after it was posted, and long before it ends.
                let clock = self.sim.shard(CLOCK, 0);
                self.sim.block_on(&clock, self.sim.now() + LATE_NS, clock.pause(STRIKE_NS)).unwrap();
            }
        }
        if blow != Blow::StandStill {
            self.rest(VICTIM);
        }
        self.sim.set_faults(&[]);
    }

    /// Puts pairs, and then removes keys.
    pub(super) fn write(&self, node: usize, pairs: Model, removed: impl IntoIterator<Item = u64> + 'static) {
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
    pub(super) fn sees(&self, node: usize, model: &Model, unsure: &[u64]) {
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
    pub(super) fn holds(&self, node: usize, model: &Model) {
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
    pub(super) fn live_on(&self, [first, second]: [usize; 2], mut model: Model, unsure: u64, goes_on: bool) {
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

/// Something that the victim does, and that others find half done.
pub(super) struct Scene {
    pub(super) kinds: &'static [&'static Leaves],
    /// Makes the tree, and yields its pairs: the next write is the one.
    pub(super) prepare: fn(&Site) -> Model,
    /// The key that is written, and whether it is put; else it is removed.
    pub(super) unsure: fn(&Leaves) -> u64,
    pub(super) is_put: bool,
    /// Tells from the victim's books before and after whether it was what it should be.
    pub(super) is_it: fn(&Books, &Books) -> bool,
    /// True if nothing is left of the tree but a leaf.
    pub(super) lowers: bool,
    /// Looks at what is left after survivors have lived on.
    pub(super) afterwards: fn(&Site),
}

/// A remove merges two leaves. The witness has their addresses.
pub(super) const MERGE: Scene = Scene {
    kinds: &ALL,
    prepare: prepare_merge,
    unsure: |leaves| leaves.merging,
    is_put: false,
    is_it: |before, after| after.retired_bytes > before.retired_bytes,
    lowers: false,
    afterwards: |_| {},
};

/// A put of 4 splits a full leaf: its second half goes where another one was before. The witness has not been there
/// since.
const SPLIT_AGAIN: Scene = Scene {
    kinds: &ALL,
    prepare: prepare_split_again,
    unsure: |_| 4,
    is_put: true,
    is_it: |before, after| after.reused_bytes > before.reused_bytes,
    lowers: false,
    afterwards: |_| {},
};

/// A put of 16 splits a full leaf: its second half goes where nothing was before.
pub(super) const SPLIT: Scene = Scene {
    kinds: &ALL,
    prepare: prepare_split,
    unsure: |_| 16,
    is_put: true,
    is_it: |before, after| after.used_bytes > before.used_bytes && after.reused_bytes == 0,
    lowers: false,
    afterwards: |_| {},
};

/// A put splits a full leaf: its second half goes where nothing was before. It is neither the first below its parent,
/// nor below that of the last leaf.
const SPLIT_AMID: Scene = Scene {
    kinds: &B_TREES,
    prepare: prepare_split_amid,
    unsure: |leaves| leaves.amid.1,
    is_put: true,
    is_it: |before, after| after.used_bytes > before.used_bytes && after.reused_bytes == 0,
    lowers: false,
    afterwards: |_| {},
};

/// A remove merges all nodes of the tree, but for a leaf. The witness has their addresses.
const LOWER: Scene = Scene {
    kinds: &B_TREES,
    prepare: prepare_lower,
    unsure: |leaves| leaves.lowering,
    is_put: false,
    is_it: |before, after| after.retired_bytes > before.retired_bytes,
    lowers: true,
    afterwards: |_| {},
};

fn prepare_lower(site: &Site) -> Model {
    remove_all(site, site.leaves.emptied_but)
}

fn prepare_split_amid(site: &Site) -> Model {
    let mut model: Model = (0..16).map(|n| (10 * n, n)).collect();
    site.write(VICTIM, model.clone(), []);
    let more: Model = site.leaves.amid.0.iter().map(|n| (*n, *n)).collect();
    site.write(VICTIM, more.clone(), []);
    model.extend(more);
    site.rest(VICTIM);
    model
}

pub(super) fn prepare_split(site: &Site) -> Model {
    let model: Model = (0..16).map(|n| (n, n)).collect();
    site.write(VICTIM, model.clone(), []);
    site.sees(WITNESS, &model, &[]);
    site.rest(VICTIM);
    model
}

pub(super) fn prepare_merge(site: &Site) -> Model {
    remove_all(site, site.leaves.removed)
}

fn remove_all(site: &Site, parts: &[&'static [u64]]) -> Model {
    let mut model = prepare_split(site);
    for removed in parts {
        site.write(VICTIM, Model::new(), removed.iter().copied());
        removed.iter().for_each(|n| _ = model.remove(n));
        site.rest(VICTIM);
    }
    site.pass_epochs();
    site.sees(WITNESS, &model, &[]);
    model
}

fn prepare_split_again(site: &Site) -> Model {
    let mut model = prepare_merge(site);
    let index = &site.parties[VICTIM].1;
    site.write(VICTIM, Model::new(), [site.leaves.merging]);
    model.remove(&site.leaves.merging);
    site.pass_epochs();
    assert!(index.books().retired_bytes > 0, "leaves were merged");
    // It is a split that has retired leaves looked after.
    site.write(VICTIM, Model::from([(16, 16)]), []);
    site.pass_epochs();
    // What is there now is not what was there.
    let more: Model = site.leaves.more.iter().copied().collect();
    site.write(VICTIM, more.clone(), []);
    model.extend(more);
    model.insert(16, 16);
    site.rest(VICTIM);
    model
}

impl Scene {
    /// Has it all done without a fault: leaves are merged in it, or memory is used again.
    pub(super) fn rehearse(&self, leaves: &'static Leaves) {
        let (site, unsure) = (Site::new(leaves, 0), (self.unsure)(leaves));
        let mut model = (self.prepare)(&site);
        let index = site.parties[VICTIM].1.clone();
        let before = index.books();
        self.act(&site, u64::MAX);
        let after = index.books();
        assert!((self.is_it)(&before, &after), "{before:?} {after:?}");
        match self.is_put {
            true => _ = model.insert(unsure, unsure),
            false => _ = model.remove(&unsure),
        }
        site.holds(NEWCOMER, &model);
        if self.lowers {
            site.on(NEWCOMER, async |index| {
                let survey = index.survey().await.unwrap();
                assert_eq!((survey.height, survey.inner_nodes, survey.leaves), (1, 0, 1));
            });
        }
    }

    /// Lets the victim act for so many ns; yields whether it still does.
    pub(super) fn act(&self, site: &Site, ns: u64) -> bool {
        let (shard, index) = site.parties[VICTIM].clone();
        let (is_put, n) = (self.is_put, (self.unsure)(site.leaves));
        drop(shard.spawn(async move {
            match is_put {
                true => index.put(&key(n), &value(n)).await.unwrap(),
                // Where it stood still, another client may have removed it.
                false => _ = index.remove(&key(n)).await.unwrap(),
            }
        }));
        let end_ns = site.sim.now().saturating_add(ns);
        let mut busy_ns = site.sim.now();
        // A simulation looks up when something concerns a shard: the clock's, at any time.
        let (clock, runs) = (site.sim.shard(CLOCK, 0), Rc::new(Cell::new(true)));
        let (ticks, goes_on) = (clock.clone(), Rc::clone(&runs));
        drop(clock.spawn(async move {
            while goes_on.get() {
                ticks.pause(TICK_NS).await;
            }
        }));
        let is_over = || {
            if shard.clients_alive() > 0 || shard.chains_in_flight() > 0 {
                busy_ns = site.sim.now();
            }
            // What a client leaves to the janitor begins a little later.
            site.sim.now() >= end_ns || site.sim.now() > busy_ns + 1_000
        };
        site.sim.run(site.sim.now() + LATE_NS, is_over).unwrap();
        runs.set(false);
        site.sim.now() >= end_ns
    }

    /// Plays it with a blow after so many ns; yields whether it was over before.
    fn play(&self, leaves: &'static Leaves, seed: u64, blow: Blow, ns: u64) -> bool {
        let site = Site::new(leaves, seed);
        let model = (self.prepare)(&site);
        let acts = self.act(&site, ns);
        site.strike(blow);
        let others = if seed.is_multiple_of(2) { [WITNESS, NEWCOMER] } else { [NEWCOMER, WITNESS] };
        site.live_on(others, model, (self.unsure)(leaves), blow == Blow::StandStill);
        (self.afterwards)(&site);
        !acts
    }

    /// Plays it with blows at any time.
    #[track_caller]
    pub(super) fn play_all(&self, seeds: std::ops::Range<u64>, blow: Blow, step_ns: u64) {
        for leaves in self.kinds {
            self.rehearse(leaves);
            for seed in seeds.clone() {
                let mut ns = 0;
                while !self.play(leaves, seed, blow, ns) {
                    ns += step_ns;
                }
                assert!(ns > 5_000, "{ns} ns are no merge, nor a split");
            }
        }
    }
}

#[test]
fn a_merger_may_stop_at_any_time() {
    MERGE.play_all(0..2, Blow::Stop, TICK_NS);
}

#[test]
fn a_merger_may_stop_at_any_verb() {
    MERGE.play_all(0..8, Blow::StopAtVerb, 1_000);
}

#[test]
fn who_merges_inner_nodes_and_lowers_the_root_may_stop_at_any_time() {
    LOWER.play_all(0..2, Blow::Stop, 3 * TICK_NS);
}

#[test]
fn who_merges_inner_nodes_and_lowers_the_root_may_stop_at_any_verb() {
    LOWER.play_all(0..2, Blow::StopAtVerb, 2_000);
}

#[test]
fn who_merges_inner_nodes_and_lowers_the_root_may_be_late() {
    LOWER.play_all(0..2, Blow::Break, 1_000);
    LOWER.play_all(0..2, Blow::StandStill, 1_000);
}

#[test]
fn who_makes_a_leaf_where_one_was_may_stop_at_any_time() {
    SPLIT_AGAIN.play_all(0..2, Blow::Stop, TICK_NS);
}

#[test]
fn who_makes_a_leaf_where_one_was_may_stop_at_any_verb() {
    SPLIT_AGAIN.play_all(0..8, Blow::StopAtVerb, 1_000);
}

#[test]
fn queue_pairs_may_break_at_any_verb() {
    [MERGE, SPLIT_AGAIN].iter().for_each(|scene| scene.play_all(0..4, Blow::Break, 1_000));
}

/// A client that has split a leaf puts its separator in long after others have, and have merged that leaf.
#[test]
fn clients_may_stand_still_at_any_verb() {
    [MERGE, SPLIT_AGAIN, SPLIT].iter().for_each(|scene| scene.play_all(0..4, Blow::StandStill, 1_000));
}

/// A client that has split a leaf stands still; others put its separator in, merge the leaf, and take it out. Then the
/// client goes on, and its parent leads to a leaf that is gone: no client comes by before it is to be used again.
#[test]
fn a_merged_leaf_is_not_used_again_while_its_parent_leads_there() {
    for leaves in B_TREES {
        SPLIT_AMID.rehearse(leaves);
        let mut linked = 0;
        for seed in (0..8).step_by(2) {
            let (mut ns, mut acts) = (0, true);
            while acts {
                let (is_linked, still_acts) = play_linked(leaves, seed, ns);
                (linked, ns, acts) = (linked + u32::from(is_linked), ns + TICK_NS, still_acts);
            }
        }
        assert!(linked > 0, "no splitter stood still before it put its separator in");
    }
}

/// Has the client that splits a leaf stand still after so many ns; yields whether the merged leaf was linked when it
/// was to be used again, and whether the client was still at work.
fn play_linked(leaves: &'static Leaves, seed: u64, ns: u64) -> (bool, bool) {
    let site = Site::new(leaves, seed);
    let (_, unsure, far) = leaves.amid;
    let mut model = (SPLIT_AMID.prepare)(&site);
    let acts = SPLIT_AMID.act(&site, ns);
    site.strike(Blow::StandStill);
    // Who moves right from under a parent that was just read has the separator put in.
    site.on(NEWCOMER, async move |index| {
        assert!(index.get(&key(far)).await.unwrap().is_some());
    });
    site.linger(NEWCOMER);
    // One that is left alone is looked at again when it is empty.
    for removed in leaves.emptied {
        site.write(NEWCOMER, Model::new(), [removed]);
        site.linger(NEWCOMER);
        model.remove(&removed);
    }
    let is_late = site.parties[VICTIM].0.clients_alive() > 0;
    site.rest(VICTIM);
    site.pass_epochs();
    let index = &site.parties[NEWCOMER].1;
    // A split has retired leaves looked after, and the next one uses them again.
    let mut split = |numbers: std::ops::Range<u64>| {
        let more: Model = numbers.map(|n| (10 * n, n)).collect();
        site.write(NEWCOMER, more.clone(), []);
        site.linger(NEWCOMER);
        model.extend(more);
    };
    let before = index.books();
    split(16..17);
    let mut looked = index.books();
    if leaves.is_flushed {
        site.pass_epochs();
    }
    split(17..20);
    if leaves.is_flushed {
        looked = index.books();
    }
    let unsure: &[u64] = if is_late { &[unsure] } else { &[] };
    site.sees(WITNESS, &model, unsure);
    site.rest(WITNESS);
    (is_late && looked.reclaimed_bytes < before.retired_bytes, acts)
}

/// A READ at an address of before brings some lines of the leaf that was there, and some of the one that is made there:
/// it may begin before that is written, and end after it is thawed, which is three round trips of a rough network.
#[test]
fn a_reader_may_come_by_an_old_address_at_any_time() {
    for (leaves, seed) in ALL.into_iter().flat_map(|leaves| (0..20).map(move |seed| (leaves, seed))) {
        for ns in (0..20_000).step_by(TICK_NS as usize) {
            let (site, moved) = (Site::new(leaves, seed), leaves.moved);
            let model = (SPLIT_AGAIN.prepare)(&site);
            SPLIT_AGAIN.act(&site, ns);
            // One line of the READ, which most often is the next access.
            site.sim.set_faults(&[Rule { fault: Fault::DelayedLine(30_000), one_in: 1, most: 1 }]);
            let expected = value(model[&moved]);
            site.on(WITNESS, async move |index| {
                assert_eq!(index.get(&key(moved)).await.unwrap().as_deref(), Some(&expected[..]));
            });
            site.rest(VICTIM);
        }
    }
}
