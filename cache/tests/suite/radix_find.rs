//! Finding a key's path in the radix cache against a plain map of nodes that follows the same rules: random
//! trees with keys that are prefixes of each other, with tombstones, stale copies, copies that are missing,
//! and header splits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use farwood_cache::Policy;
use farwood_cache::radix::slot::{CHILD, CLASS_SHIFT, END, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{CachedRoute, RadixCache, RadixConfig, RadixImage, RadixReader};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use crate::node::Node;
use crate::radix_kit::{Allocator, build, in_order};

/// Yields the index of the key byte that the node's slots are about.
fn pos(node: &Node) -> usize {
    usize::from(node.depth) + node.prefix.len()
}

fn child(word: u64) -> u64 {
    word & CHILD
}

/// The cached nodes, by address.
type Model = HashMap<u64, Node>;

fn symbol(word: u64) -> Option<u8> {
    (word & END == 0).then_some((word >> PARTIAL_SHIFT) as u8)
}

/// Applies the rules, written down once more: those of `find_covering`, if it `covers`.
fn expected(model: &Model, root: u64, key: &[u8], covers: bool) -> Option<CachedRoute> {
    expected_way(model, root, key, covers).pop()
}

/// Lists where the way of [`expected`] leads, from the root slot on.
fn expected_way(model: &Model, root: u64, key: &[u8], covers: bool) -> Vec<CachedRoute> {
    let mut way = Vec::new();
    if root == 0 {
        return way;
    }
    let slot = Some((0, root));
    let mut route = CachedRoute { node: 0, class: 0, pos: 0, slot, is_before: false, claimed: 1 };
    let mut next = 0;
    loop {
        way.push(route);
        let Some((_, word)) = route.slot else { return way };
        let Some(node) = model.get(&child(word)).filter(|_| word & LEAF == 0) else { return way };
        let prefix = usize::from(node.depth)..pos(node);
        let fits = usize::from(node.depth) <= next && pos(node) >= next;
        if !fits || !route.is_before && key.get(prefix) != Some(&node.prefix[..]) {
            return way;
        }
        let mut slots: Vec<(usize, u64)> = node.slots.iter().copied().enumerate().collect();
        slots.sort_by_key(|(_, word)| symbol(*word));
        let own = key.get(pos(node)).copied();
        let exact = slots.iter().find(|(_, word)| symbol(*word) == own).filter(|_| !route.is_before);
        let before = slots.iter().rfind(|(_, word)| route.is_before || symbol(*word) < own);
        let is_before = exact.is_none() && covers && (route.is_before || own.is_some() && pos(node) > 0);
        let slot = if is_before { before.copied() } else { exact.copied() };
        let (claimed, pos, class) = (node.slots.len(), pos(node), node.class);
        route = CachedRoute { node: child(word), class, pos, slot, is_before, claimed };
        next = pos + 1;
    }
}

/// Lists the leaves behind that of `key` which the cached nodes lead to, in order, but none twice in a row.
fn leaves_behind(model: &Model, root: u64, key: &[u8]) -> Vec<u64> {
    let way = expected_way(model, root, key, true);
    let Some((_, own)) = way.last().and_then(|route| route.slot).filter(|(_, word)| word & LEAF != 0) else {
        return Vec::new();
    };
    let mut leaves = vec![own];
    for route in way[1..].iter().rev() {
        let taken = route.slot.map(|(_, word)| symbol(word));
        if !collect_behind(model, route.node, taken, &mut leaves) {
            break;
        }
    }
    leaves.dedup_by_key(|word| child(*word));
    leaves[1..].to_vec()
}

/// Collects the leaves below a node, or those behind that symbol's; tells whether all nodes there are cached.
fn collect_behind(model: &Model, node: u64, symbol_taken: Option<Option<u8>>, leaves: &mut Vec<u64>) -> bool {
    let Some(node) = model.get(&node) else { return false };
    let mut slots = node.slots.clone();
    slots.retain(|word| symbol_taken.is_none_or(|taken| symbol(*word) > taken) && child(*word) != 0);
    slots.sort_by_key(|word| symbol(*word));
    slots.into_iter().all(|word| match word & LEAF {
        0 => collect_behind(model, child(word), None, leaves),
        _ => {
            leaves.push(word);
            true
        }
    })
}

fn cache() -> (Arc<RadixCache>, RadixReader) {
    let cache = RadixCache::new(RadixConfig { budget_bytes: 64 << 20, policy: Policy::TwoChoices, seed: 1 });
    let reader = cache.reader();
    (cache, reader)
}

/// Draws keys of all lengths from 0 to 255, many of which begin alike, over few bytes or all.
fn random_keys(rng: &mut SmallRng) -> Vec<Vec<u8>> {
    let mut keys = BTreeSet::new();
    let letters = [2, 3, 256][rng.random_range(0..3)];
    let letter = |rng: &mut SmallRng| [0, 255, 1][rng.random_range(0..letters.min(3))];
    for _ in 0..rng.random_range(1..300) {
        let mut key: Vec<u8> = match keys.iter().nth(rng.random_range(0..20)) {
            Some(other) if rng.random_bool(0.5) => Vec::clone(other),
            _ => Vec::new(),
        };
        let tail = [0, 1, 3, 20, 255][rng.random_range(0..5)];
        for _ in 0..tail {
            let byte = if letters == 256 { rng.random() } else { letter(rng) };
            key.push(byte);
        }
        key.truncate(255);
        keys.insert(key);
    }
    keys.into_iter().collect()
}

/// Yields a key, or one that leaves its path.
fn near(rng: &mut SmallRng, keys: &[Vec<u8>]) -> Vec<u8> {
    let mut key = keys.choose(rng).unwrap().clone();
    match rng.random_range(0..5) {
        0 => key.truncate(rng.random_range(0..=key.len())),
        1 => key.push([0, 1, 255][rng.random_range(0..3)]),
        2 if !key.is_empty() => {
            let at = rng.random_range(0..key.len());
            key[at] ^= 1;
        }
        _ => {}
    }
    key.truncate(255);
    key
}

/// Makes an older or newer state of the node.
fn varied(rng: &mut SmallRng, node: &Node) -> Node {
    let mut node = node.clone();
    match rng.random_range(0..6) {
        // Slots that were not claimed yet, or in another order.
        0 => node.slots.truncate(rng.random_range(0..=node.slots.len())),
        1 => node.slots.shuffle(rng),
        // Keys that are gone.
        2 => node.slots.iter_mut().filter(|word| **word & LEAF != 0).for_each(|word| *word &= !CHILD),
        // A header split has taken bytes away.
        3 => {
            let taken = rng.random_range(0..=node.prefix.len());
            node.prefix.drain(..taken);
            node.depth += taken as u8;
        }
        _ => {}
    }
    node
}

#[test]
fn finds_what_a_map_of_nodes_finds() {
    let mut leaves = 0;
    for seed in 0..if cfg!(debug_assertions) { 600 } else { 6_000 } {
        let mut rng = SmallRng::seed_from_u64(seed);
        let keys = random_keys(&mut rng);
        let (cache, reader) = cache();
        let covering = cache.reader();
        let mut nodes = Vec::new();
        let root = build(&keys, &mut Allocator::new(3, 1), &mut in_order, &mut |image| {
            nodes.push(Node::of(image));
        });
        let mut model = Model::new();
        assert_eq!(reader.find(b""), None);
        cache.set_root(root);
        let stale = [0.0, 0.1, 0.5][rng.random_range(0..3)];
        let mut hits = 0;
        for round in 0..4 {
            for node in &nodes {
                let address = node.address;
                if rng.random_bool(0.6) {
                    let node = if rng.random_bool(stale) { varied(&mut rng, node) } else { node.clone() };
                    assert!(cache.insert(&node.image()));
                    model.insert(address, node);
                } else if rng.random_bool(0.1) {
                    cache.invalidate(address);
                    model.remove(&address);
                }
            }
            for _ in 0..200 {
                let key = near(&mut rng, &keys);
                let found = reader.find(&key);
                let what = format!("seed {seed}, round {round}, key {key:?}");
                assert_eq!(found, expected(&model, root, &key, false), "{what}");
                assert_eq!(covering.find_covering(&key), expected(&model, root, &key, true), "{what}");
                let (most, behind) = (rng.random_range(0..40), leaves_behind(&model, root, &key));
                let behind = &behind[..behind.len().min(most)];
                assert_eq!(covering.leaves_behind(&key, most)[..], *behind, "{what}");
                leaves += behind.len();
                let is_known = |route: CachedRoute| route.slot.is_none_or(|(_, word)| word & LEAF != 0);
                hits += u64::from(found.is_some_and(is_known));
            }
            assert_eq!((reader.lookups(), reader.hits()), (1 + 200 * (round + 1), hits));
        }
        assert_eq!(cache.stats().nodes, model.len() as u64);
    }
    assert!(leaves > 100_000, "{leaves}");
}

#[test]
fn a_whole_cached_tree_leads_every_key_to_its_leaf() {
    let mut rng = SmallRng::seed_from_u64(9);
    let keys: BTreeSet<Vec<u8>> = (0..20).flat_map(|_| random_keys(&mut rng)).collect();
    let keys: Vec<Vec<u8>> = keys.into_iter().collect();
    assert!(keys[0].is_empty() && keys.iter().any(|key| key.len() == 255));
    let (cache, reader) = cache();
    let mut leaves = Vec::new();
    let mut leaf = |memory: &mut Allocator| {
        leaves.push(in_order(memory));
        leaves[leaves.len() - 1]
    };
    let root = build(&keys, &mut Allocator::new(8, 2), &mut leaf, &mut |image| assert!(cache.insert(image)));
    cache.set_root(root);
    for (key, leaf) in keys.iter().zip(&leaves) {
        let (_, word) = reader.find(key).unwrap().slot.unwrap();
        assert_eq!((word & LEAF, child(word)), (LEAF, *leaf), "{key:?}");
    }
    assert_eq!(reader.hits(), keys.len() as u64);
}

fn inner(partial: u8, node: u64) -> u64 {
    u64::from(partial) << PARTIAL_SHIFT | 2 << CLASS_SHIFT | node
}

fn leaf(partial: u8, child: u64) -> u64 {
    u64::from(partial) << PARTIAL_SHIFT | LEAF | 1 << CLASS_SHIFT | child
}

#[test]
fn the_root_slot_alone() {
    let (cache, reader) = cache();
    assert_eq!(reader.find(b"k"), None);
    let route = CachedRoute { node: 0, class: 0, pos: 0, slot: None, is_before: false, claimed: 1 };
    let slot = |word| Some(CachedRoute { slot: Some((0, word)), ..route });
    for (word, hits) in [(leaf(0, 77), 1), (leaf(0, 0), 2), (inner(0, 5), 2)] {
        cache.set_root(word);
        assert_eq!((cache.root(), reader.find(b"k"), reader.hits()), (word, slot(word), hits));
    }
    // A root that says it begins behind the first byte is not the root any more.
    assert!(cache.insert(&RadixImage { node: 5, class: 2, depth: 1, prefix: b"", slots: &[leaf(b'x', 9)] }));
    assert_eq!(reader.find(b"kx"), slot(inner(0, 5)));
    cache.clear();
    assert_eq!((cache.root(), reader.find(b"k")), (0, None));
}

#[test]
fn a_header_split_is_followed_from_either_side() {
    let (cache, reader) = cache();
    let key = b"pabcdefz";
    let parent = |child| RadixImage { node: 1, class: 2, depth: 0, prefix: b"", slots: child };
    let leaves = [leaf(b'z', 9)];
    let node = |depth, prefix| RadixImage { node: 2, class: 2, depth, prefix, slots: &leaves };
    let both = [inner(b'c', 2), leaf(b'x', 8)];
    let above = RadixImage { node: 3, class: 2, depth: 1, prefix: b"ab", slots: &both };
    let (to_node, to_above) = ([inner(b'p', 2)], [inner(b'p', 3)]);
    let at = |key: &[u8]| reader.find(key).map(|route| (route.node, route.pos));
    cache.set_root(inner(0, 1));
    assert!(cache.insert(&parent(&to_node)) && cache.insert(&node(1, b"abcdef")));
    assert_eq!(at(key), Some((2, 7)));
    // The node is new, its parent old: the bytes between them are nowhere.
    assert!(cache.insert(&node(4, b"def")));
    assert_eq!(at(key), Some((1, 0)));
    // All new.
    assert!(cache.insert(&parent(&to_above)) && cache.insert(&above));
    assert_eq!(at(key), Some((2, 7)));
    assert_eq!(at(b"pabxdefz"), Some((3, 3)));
    // The node is old: it says more than is needed, and must agree.
    assert!(cache.insert(&node(1, b"abcdef")));
    assert_eq!((at(key), at(b"pabcdeg"), at(b"pabc")), (Some((2, 7)), Some((3, 3)), Some((3, 3))));
}

#[test]
fn words_that_are_not_of_a_tree_end_the_descent() {
    let (cache, reader) = cache();
    cache.set_root(inner(0, 1));
    // A node that leads to itself.
    let slots = [inner(b'a', 1)];
    assert!(cache.insert(&RadixImage { node: 1, class: 2, depth: 0, prefix: b"", slots: &slots }));
    assert_eq!(reader.find(b"aaaa").unwrap().node, 1);
    // An inner slot without a child.
    let slots = [inner(b'a', 0)];
    assert!(cache.insert(&RadixImage { node: 1, class: 2, depth: 0, prefix: b"", slots: &slots }));
    assert_eq!(reader.find(b"aaaa").unwrap().slot, Some((0, slots[0])));
}
