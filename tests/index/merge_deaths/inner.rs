//! Inner nodes that were merged, and to which a parent leads once more.

use std::cell::Cell;
use std::rc::Rc;

use farwood::runtime::ClientPool;
use farwood::runtime::sim::Fault;
use farwood::{CheckOptions, RangeIndex};

use super::Scene;
use super::site::*;
use crate::kit::key;

/// A put of 220 splits the last inner node, and so one that a root is above. Keys are tens.
const SPLIT_INNER: Scene = Scene {
    kinds: &B_TREES,
    prepare: |site| {
        let model: Model = (0..22).map(|n| (10 * n, n)).collect();
        site.write(VICTIM, model.clone(), []);
        site.rest(VICTIM);
        model
    },
    unsure: |_| 220,
    is_put: true,
    is_it: |before, after| after.used_bytes > before.used_bytes,
    lowers: false,
    afterwards: |_| {},
};
/// The time in ns for which the splitter stands still: others do much meanwhile.
const STILL_NS: u64 = 200_000_000;
/// The bytes of an inner node.
const INNER_BYTES: u64 = 128;
/// Keys whose removal has the last inner node merged with the one before.
const EMPTIED: [std::ops::RangeInclusive<u64>; 2] = [9..=16, 18..=21];

/// A client that has split an inner node stands still; others put its separator in, merge the node, and take it out.
/// Then the client goes on, and a root leads to a node that is gone: no client comes by before it is to be used again.
#[test]
fn a_merged_inner_node_is_not_used_again_while_its_parent_leads_there() {
    for leaves in SPLIT_INNER.kinds {
        let mut linked = 0;
        for seed in 0..4 {
            let (mut ns, mut acts) = (0, true);
            while acts {
                let (is_linked, still_acts) = play(leaves, seed, ns);
                (linked, ns, acts) = (linked + u32::from(is_linked), ns + 2 * TICK_NS, still_acts);
            }
        }
        assert!(linked > 0, "no splitter stood still before it put its separator in");
    }
}

impl Site {
    /// Asserts that the tree is intact. Yields how many bytes parents lead to that are no node.
    fn led_to(&self) -> u64 {
        let led_to = Rc::new(Cell::new(0));
        let tells = Rc::clone(&led_to);
        self.on(NEWCOMER, async move |index| {
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact(), "{:?}", report.violations);
            tells.set(report.memory.expect("the servers say what they have handed out").led_to_bytes);
        });
        led_to.get()
    }
}

/// Yields whether a node was linked that was merged, and whether the client was still at work after so many ns.
fn play(leaves: &'static Leaves, seed: u64, ns: u64) -> (bool, bool) {
    let site = Site::new(leaves, seed);
    let mut model = (SPLIT_INNER.prepare)(&site);
    let acts = SPLIT_INNER.act(&site, ns);
    site.strike_next(Fault::StalledShard(STILL_NS));
    // Who moves right from under a parent that was just read has the separator put in.
    site.on(NEWCOMER, async move |index| assert!(index.get(&key(210)).await.unwrap().is_some()));
    site.linger(NEWCOMER);
    for removed in EMPTIED {
        let removed: Vec<u64> = removed.map(|n| 10 * n).collect();
        removed.iter().for_each(|n| _ = model.remove(n));
        site.write(NEWCOMER, Model::new(), removed);
        site.linger(NEWCOMER);
    }
    let is_late = site.parties[VICTIM].0.clients_alive() > 0;
    site.rest(VICTIM);
    let led_to = site.led_to();
    // All at the other end of the tree: a split has retired nodes looked after, and the next ones use them again.
    for tens in [0..1, 1..2, 2..8] {
        site.flush();
        let more: Model = tens.flat_map(|ten| 10 * ten + 1..10 * ten + 10).map(|n| (n, n)).collect();
        site.write(NEWCOMER, more.clone(), []);
        site.linger(NEWCOMER);
        model.extend(more);
    }
    site.led_to();
    site.sees(WITNESS, &model, &[220]);
    site.rest(WITNESS);
    (is_late && led_to == INNER_BYTES, acts)
}
