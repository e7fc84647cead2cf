//! Contents of the radix cache when it has room for a part of the tree: nodes in use, and those above them.

use std::collections::HashMap;

use farwood_cache::Policy;
use farwood_cache::radix::slot::{CHILD, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{RadixCache, RadixConfig};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::keys;
use crate::node::Node;
use crate::radix_kit::{Allocator, build, in_order};

struct Tree {
    keys: Vec<[u8; 8]>,
    root: u64,
    nodes: HashMap<u64, Node>,
}

fn tree() -> Tree {
    let keys = keys::integer_keys(234_375, 8);
    let mut nodes = HashMap::new();
    let root = build(&keys, &mut Allocator::new(8, 1), &mut in_order, &mut |image| {
        nodes.insert(image.node, Node::of(image));
    });
    Tree { keys, root, nodes }
}

/// Looks keys up as a tree does: what is not cached is read and cached. Returns how many of 100 lookups in the
/// second half find their leaf.
fn hits(tree: &Tree, policy: Policy, budget_bytes: usize, mut pick: impl FnMut(usize) -> usize) -> u64 {
    let lookups = if cfg!(debug_assertions) { 400_000 } else { 2_000_000 };
    let cache = RadixCache::new(RadixConfig { budget_bytes, policy, seed: 1 });
    cache.set_root(tree.root);
    let reader = cache.reader();
    let mut hits_of_first_half = 0;
    for lookup in 0..lookups {
        if lookup == lookups / 2 {
            hits_of_first_half = reader.hits();
        }
        let key = &tree.keys[pick(tree.keys.len())];
        let (_, mut word) = reader.find(key).unwrap().slot.unwrap();
        while word & LEAF == 0 {
            let node = &tree.nodes[&(word & CHILD)];
            assert!(cache.insert(&node.image()));
            assert!(cache.bytes() <= budget_bytes);
            let byte = u64::from(key[usize::from(node.depth) + node.prefix.len()]);
            word = *node.slots.iter().find(|word| **word >> PARTIAL_SHIFT == byte).unwrap();
        }
    }
    assert!(cache.stats().evicted > 10_000, "{:?}", cache.stats());
    (reader.hits() - hits_of_first_half) * 100 / (lookups / 2)
}

#[test]
fn what_is_in_use_stays() {
    let tree = tree();
    let all = RadixCache::new(RadixConfig { budget_bytes: 8 << 20, policy: Policy::TwoChoices, seed: 1 });
    assert!(tree.nodes.values().all(|node| all.insert(&node.image())));
    let half = all.bytes() / 2;
    let mut rng = SmallRng::seed_from_u64(4);
    let uniform = hits(&tree, Policy::TwoChoices, half, |keys| rng.random_range(0..keys));
    // Nine lookups of ten go to a tenth of the keys, a run of neighbours.
    let mut skewed = |keys: usize| {
        let among = if rng.random_bool(0.9) { keys / 10 } else { keys };
        rng.random_range(0..among)
    };
    let hot = hits(&tree, Policy::TwoChoices, half / 2, &mut skewed);
    let fifo = hits(&tree, Policy::Fifo, half / 2, &mut skewed);
    println!("uniform {uniform} %, skewed {hot} %, skewed and first in, first out {fifo} %");
    assert!(uniform >= 40, "{uniform} % with half of the tree");
    assert!(hot >= 85 && hot > fifo, "{hot} % with a quarter of the tree, {fifo} % by age");
}
