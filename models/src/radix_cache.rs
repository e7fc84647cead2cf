//! `cache/src/radix/`: a lookup returns one copy as it was at one moment, whatever the writer does meanwhile; and no
//! copy stays that has to go.

use std::sync::Arc;

use crate::eviction::Policy;
use crate::radix::slot::{CLASS_SHIFT, LEAF, PARTIAL_SHIFT};
use crate::radix::{RadixCache, RadixConfig, RadixImage};

/// The node below the root slot.
const NODE: u64 = 1;
/// Room for a segment of the table and one of copies.
const BUDGET_BYTES: usize = 2079;

/// Makes the slots of a version of a node: as many as the version's number, and every word says which it is.
fn slots(node: u64, version: u64) -> Vec<u64> {
    (0..version)
        .map(|index| index << PARTIAL_SHIFT | LEAF | 1 << CLASS_SHIFT | node << 16 | version << 8 | index)
        .collect()
}

fn insert(cache: &RadixCache, node: u64, version: u64) -> bool {
    cache.insert(&RadixImage { node, class: 3, depth: 0, prefix: &[], slots: &slots(node, version) })
}

/// Models a thread that looks a node up, and another that inserts copies of other nodes, `before` of them before the
/// lookup begins and `after` perhaps during it, then a new copy of the node: the memory of the node's copy is reused.
///
/// # Panics
/// If the lookup finds a copy that never was.
pub fn a_lookup_and_a_writer(before: u64, after: u64) {
    let cache = RadixCache::new(RadixConfig { budget_bytes: BUDGET_BYTES, policy: Policy::Fifo, seed: 1 });
    cache.set_root(3 << CLASS_SHIFT | NODE);
    let bring = |cache: &RadixCache, number: u64| {
        // With or without room.
        let _inserted = insert(cache, NODE + 1 + number % 2, 5 + number % 3);
    };
    assert!(insert(&cache, NODE, 2), "the budget has no room for it: {:?}", cache.stats());
    (0..before).for_each(|number| bring(&cache, number));
    let lookup = {
        let cache = Arc::clone(&cache);
        loom::thread::spawn(move || look(&cache))
    };
    (before..before + after).for_each(|number| bring(&cache, number));
    assert!(insert(&cache, NODE, 3), "it had room");
    lookup.join().expect("the lookup does not panic");
    assert_eq!(cache.reader().find(&[0]).expect("the root is known").node, NODE, "at rest it is found");
}

fn look(cache: &Arc<RadixCache>) {
    let route = cache.reader().find(&[0]).expect("the root is known");
    if route.node == NODE {
        let (index, word) = route.slot.expect("every version has that slot");
        let version = word >> 8 & 0xff;
        let expected = (0, slots(NODE, version)[0], version);
        let found = (index, word, route.claimed as u64);
        assert!(found == expected, "a copy that never was: {found:x?} is not {expected:x?}");
    }
}

/// Models a thread that finds the copy of a node out of date while another adds a slot to it.
///
/// # Panics
/// If the copy is still there when both are done.
pub fn an_invalidation_and_a_writer() {
    let cache = RadixCache::new(RadixConfig { budget_bytes: BUDGET_BYTES, policy: Policy::Fifo, seed: 1 });
    cache.set_root(3 << CLASS_SHIFT | NODE);
    assert!(insert(&cache, NODE, 1), "the budget has no room for it: {:?}", cache.stats());
    let writer = {
        let cache = Arc::clone(&cache);
        loom::thread::spawn(move || {
            // Unless the other thread has the lock, or has had it.
            cache.amend(NODE, 1, slots(NODE, 2)[1]);
        })
    };
    cache.invalidate(NODE);
    writer.join().expect("the writer does not panic");
    let found = cache.reader().find(&[0]).expect("the root is known").node;
    assert_ne!(found, NODE, "it was left behind");
}
