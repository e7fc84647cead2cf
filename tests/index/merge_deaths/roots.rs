//! Roots that come and go: what was a root is no node of the tree before another one is, and stays none, whatever
//! becomes of the client that lowers it, and of one that has put it up.

use std::cell::Cell;
use std::rc::Rc;

use farwood::index::layout::InnerLayout;
use farwood::runtime::sim::Fault;
use farwood::runtime::{ClientPool, Meter, NodeContext, RemotePtr, Verbs};
use farwood::{IndexSpec, OpKind, RangeIndex};
use futures::FutureExt;

use super::LOWER;
use super::site::*;
use crate::kit::key;

/// The time in ns for which a queue pair is broken: others take a root down meanwhile.
const BROKEN_NS: u64 = 20_000_000;

impl Site {
    /// Reads so many bytes as they are now.
    fn read(&self, at: RemotePtr, bytes: usize) -> Vec<u8> {
        let shard = &self.parties[NEWCOMER].0;
        let read = {
            let shard = shard.clone();
            async move { shard.read(&Meter::default(), at, bytes).await.unwrap().into_buf().to_vec() }
        };
        self.sim.block_on(shard, self.sim.now() + LATE_NS, read).unwrap()
    }

    /// Yields the address of the root, and its level.
    fn root(&self) -> (RemotePtr, u64) {
        let control = self.sim.node(NEWCOMER as u16).control().clone();
        let entry = control.open("t").now_or_never().expect("it answers at once").unwrap();
        let word = u64::from_le_bytes(self.read(entry.root, 8).try_into().unwrap());
        (RemotePtr::from_bits(word & !0x3f), word & 0x3f)
    }
}

fn inner() -> InnerLayout {
    let IndexSpec::Sherman { geometry, .. } = (SHERMAN.spec)() else { unreachable!("it is Sherman's") };
    geometry.layouts().unwrap().1
}

/// A client that still has its address would put separators into a root that is alive, and out of the tree.
#[test]
fn what_was_a_root_looks_like_no_node() {
    let (inner, mut lowered) = (inner(), 0);
    for seed in 0..4 {
        let (mut ns, mut acts) = (0, true);
        while acts {
            let site = Site::new(&SHERMAN, seed);
            let model = (LOWER.prepare)(&site);
            let before = site.root();
            acts = LOWER.act(&site, ns);
            site.strike(Blow::Stop);
            let is_none = || {
                let is_out = site.root() != before;
                let is_node = inner.view(&site.read(before.0, inner.node_bytes())).is_ok();
                assert!(!is_out || !is_node, "seed {seed}, after {ns} ns: it looks alive");
                is_out
            };
            lowered += u32::from(is_none() && acts);
            // The witness comes by the root that it knows.
            site.sees(WITNESS, &model, &[SHERMAN.lowering]);
            is_none();
            ns += TICK_NS;
        }
    }
    assert!(lowered > 0, "no client died when the root was another one");
}

/// Once a root was met that is none, no operation comes by it again; who has lowered it does not at all.
#[test]
fn a_lower_root_costs_no_detour() {
    for leaves in B_TREES {
        let site = Site::new(leaves, 0);
        let left = 9;
        assert!((LOWER.prepare)(&site).contains_key(&left));
        LOWER.act(&site, u64::MAX);
        site.linger(VICTIM);
        let get = |node: usize| {
            let index = &site.parties[node].1;
            let round_trips = || index.stats().kind(OpKind::Get).round_trips;
            let before = round_trips();
            site.on(node, async move |index| assert!(index.get(&key(left)).await.unwrap().is_some()));
            round_trips() - before
        };
        let by_victim = get(VICTIM);
        for node in [NEWCOMER, WITNESS] {
            (0..4).for_each(|_| _ = get(node));
            assert_eq!(get(node), by_victim, "node {node}");
        }
    }
}

/// A client puts a root up, and does not hear of it for long. Others take it down meanwhile: then the root word is what
/// it was before, and the CAS must not be posted again.
#[test]
fn a_root_that_was_put_up_and_taken_down_is_not_put_up_again() {
    let mut taken_down = 0;
    for (leaves, seed) in B_TREES.into_iter().flat_map(|leaves| (0..12).map(move |seed| (leaves, seed))) {
        let (mut ns, mut acts) = (0, true);
        while acts {
            let (is_taken_down, still_acts) = play_put_up(leaves, seed, ns);
            (taken_down, ns, acts) = (taken_down + u32::from(is_taken_down), ns + 3 * TICK_NS, still_acts);
        }
    }
    assert!(taken_down > 0, "no root was taken down by others");
}

/// Has the queue pair break of a client that puts a root up, at its next verb after so many ns; yields whether others
/// have taken the root down before it knew, and whether the client was still at work.
fn play_put_up(leaves: &'static Leaves, seed: u64, ns: u64) -> (bool, bool) {
    let site = Site::new(leaves, seed);
    site.write(VICTIM, (0..4).map(|n| (n, n)).collect(), []);
    site.rest(VICTIM);
    let (shard, index) = site.parties[VICTIM].clone();
    drop(shard.spawn(async move { index.put(&key(4), &value(4)).await.unwrap() }));
    site.wait(ns);
    let acts = shard.clients_alive() > 0;
    site.strike_next(Fault::QueuePairError(BROKEN_NS));
    let had_root = Rc::new(Cell::new(false));
    let tells = Rc::clone(&had_root);
    site.on(NEWCOMER, async move |index| tells.set(index.survey().await.unwrap().height > 1));
    site.write(NEWCOMER, Model::new(), [1, 2, 3, 4]);
    site.linger(NEWCOMER);
    let (_, level) = site.root();
    let is_taken_down = had_root.get() && level == 0 && shard.clients_alive() > 0;
    site.rest(VICTIM);
    site.sees(WITNESS, &Model::from([(0, 0)]), &[4]);
    let model: Model = (0..KEYS).map(|n| (n, 100 + n)).collect();
    site.write(NEWCOMER, model.clone(), []);
    site.sees(WITNESS, &model, &[]);
    site.holds(NEWCOMER, &model);
    (is_taken_down, acts)
}
