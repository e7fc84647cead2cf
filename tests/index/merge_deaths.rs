//! Clients that die in a merge of two leaves, in those of inner nodes that follow and where the root gets lower, or
//! where a split uses a merged leaf's memory again: at any time, so between all verbs and within WRITEs, and at each
//! verb in each way in which simulated nodes stop. Others then read, write, scan and remove all around it: one that
//! still has the addresses of before, and one that has none. Clients stand still and queue pairs break at each verb,
//! too.
//!
//! The trees are made by hand, and know what a leaf's slots are and when it is merged (`index/src/shell/merging.rs`).

mod inner;
mod roots;
mod site;

use std::cell::Cell;
use std::rc::Rc;

use farwood::runtime::alloc::Books;
use farwood::runtime::sim::{Fault, Rule};
use farwood::runtime::{ClientPool, Verbs};
use farwood::{CheckOptions, RangeIndex};

pub(crate) use self::site::*;
use crate::kit::key;

/// Something that the victim does, and that others find half done.
pub(crate) struct Scene {
    pub(crate) kinds: &'static [&'static Leaves],
    /// Makes the tree, and yields its pairs: the next write is the one.
    pub(crate) prepare: fn(&Site) -> Model,
    /// The key that is written, and whether it is put; else it is removed.
    pub(crate) unsure: fn(&Leaves) -> u64,
    pub(crate) is_put: bool,
    /// Tells from the victim's books before and after whether it was what it should be.
    pub(crate) is_it: fn(&Books, &Books) -> bool,
    /// True if nothing is left of the tree but a leaf.
    pub(crate) lowers: bool,
    /// Looks at what is left after survivors have lived on.
    pub(crate) afterwards: fn(&Site),
}

/// A remove merges two leaves. The witness has their addresses.
pub(crate) const MERGE: Scene = Scene {
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
pub(crate) const SPLIT: Scene = Scene {
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

pub(crate) fn prepare_split(site: &Site) -> Model {
    let model: Model = (0..16).map(|n| (n, n)).collect();
    site.write(VICTIM, model.clone(), []);
    site.sees(WITNESS, &model, &[]);
    site.rest(VICTIM);
    model
}

pub(crate) fn prepare_merge(site: &Site) -> Model {
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
    pub(crate) fn rehearse(&self, leaves: &'static Leaves) {
        let (site, unsure) = (Site::new(leaves, 0), (self.unsure)(leaves));
        let mut model = (self.prepare)(&site);
        let index = site.parties[VICTIM].1.clone();
        let (before, used) = (index.books(), site.used_bytes(NEWCOMER));
        self.act(&site, u64::MAX);
        let after = index.books();
        assert!((self.is_it)(&before, &after), "{before:?} {after:?}");
        match self.is_put {
            true => _ = model.insert(unsure, unsure),
            false => _ = model.remove(&unsure),
        }
        site.holds(NEWCOMER, &model);
        if self.lowers {
            let gone = used - site.used_bytes(NEWCOMER);
            // Some of what had waited before has come back meanwhile.
            let out = |books: &Books| books.retired_bytes + books.reclaimed_bytes;
            assert!(out(&after) >= out(&before) + gone, "all {gone} bytes wait: {after:?}");
            site.on(NEWCOMER, async |index| {
                let survey = index.survey().await.unwrap();
                assert_eq!((survey.height, survey.inner_nodes, survey.leaves), (1, 0, 1));
            });
        }
    }

    /// Lets the victim act for so many ns; yields whether it still does.
    pub(crate) fn act(&self, site: &Site, ns: u64) -> bool {
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
    pub(crate) fn play_all(&self, seeds: std::ops::Range<u64>, blow: Blow, step_ns: u64) {
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

/// A merger dies when it has freed a node, and the parent still leads there. That memory is not lost: who repairs
/// leaves it, and what is put in then goes elsewhere.
#[test]
fn a_repair_leaves_a_merged_node_where_it_is_to_which_its_parent_leads() {
    for leaves in B_TREES {
        let mut linked = 0;
        for seed in 0..4 {
            let (mut ns, mut acts) = (0, true);
            while acts {
                let (is_linked, still_acts) = play_repaired(leaves, seed, ns);
                (linked, ns, acts) = (linked + u32::from(is_linked), ns + 2 * TICK_NS, still_acts);
            }
        }
        assert!(linked > 0, "no merger died before the parent was written");
    }
}

/// Has the client that merges a leaf die after so many ns, and another one repair the tree; yields whether a node was
/// still linked that is none, and whether the client was still at work.
fn play_repaired(leaves: &'static Leaves, seed: u64, ns: u64) -> (bool, bool) {
    let site = Site::new(leaves, seed);
    let mut model = (MERGE.prepare)(&site);
    let acts = MERGE.act(&site, ns);
    site.strike(Blow::Stop);
    let dead = [site.parties[VICTIM].0.node_id()].into();
    // What it had sent has arrived then, or will not.
    site.bury(VICTIM);
    site.linger(WITNESS);
    site.on(WITNESS, async move |index| {
        let options = CheckOptions { dead, ..CheckOptions::default() };
        for held in index.check(&options).await.unwrap().orphaned.iter() {
            assert!(index.take_over(held).await.unwrap());
        }
    });
    site.rest(WITNESS);
    [WITNESS, usize::from(CLOCK)].into_iter().for_each(|node| site.bury(node));
    let led_to = Rc::new(Cell::new(0));
    let tells = Rc::clone(&led_to);
    site.on(NEWCOMER, async move |index| {
        let report = index.check(&CheckOptions::default()).await.unwrap();
        assert!(report.is_intact(), "{:?}", report.violations);
        tells.set(report.memory.as_ref().expect("the servers say what they have handed out").led_to_bytes);
        assert!(index.give_back(&report).await.unwrap() > 0);
    });
    site.sees(NEWCOMER, &model, &[leaves.merging]);
    // What was given back is used first.
    model.extend((0..4 * KEYS).map(|n| (n, 100 + n)));
    site.write(NEWCOMER, model.clone(), []);
    site.sees(NEWCOMER, &model, &[]);
    site.holds(NEWCOMER, &model);
    (led_to.get() > 0, acts)
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
