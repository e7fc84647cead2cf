//! The radix cache's own figure for its memory against what the allocator hands out, and the targets in bytes
//! per key: for a bulk-loaded tree, for one whose leaves are anywhere, and for strings.

#[path = "../../tests/kit/counting_allocator.rs"]
mod counting_allocator;
#[path = "radix_kit/keys.rs"]
mod keys;
#[path = "radix_kit/node.rs"]
mod node;
mod radix_kit;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use counting_allocator::bytes_in_use;
use farwood_cache::Policy;
use farwood_cache::radix::slot::{CHILD_SERVER_SHIFT, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{RadixCache, RadixConfig};
use keys::integer_keys;
use node::Node;
use radix_kit::{Allocator, build, in_order};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// Held by the test that measures.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 60 M keys have this many in each 64th of the key space.
const KEYS: u64 = 937_500;
const SHARE_LOG2: u32 = 6;

/// Makes a cache with more room than it needs: what is measured is what is taken.
fn roomy(budget_bytes: usize) -> Arc<RadixCache> {
    RadixCache::new(RadixConfig { budget_bytes, policy: Policy::TwoChoices, seed: 1 })
}

/// Checks the cache's figure against the allocator's since `before`, and returns it per key.
fn per_key(what: &str, cache: &RadixCache, before: usize, keys: usize) -> f64 {
    let (counted, allocated) = (cache.bytes(), bytes_in_use() - before);
    assert!(counted.abs_diff(allocated) < allocated / 100, "{what}: says {counted}, takes {allocated}");
    let per_key = counted as f64 / keys as f64;
    println!("{what}: {keys} keys, {:?}, {per_key:.3} bytes per key", cache.stats());
    assert_eq!(cache.stats().evicted, 0);
    per_key
}

/// Asserts that every key of a full cache leads to its leaf: the next address in key order.
fn all_hit<K: AsRef<[u8]>>(cache: &Arc<RadixCache>, keys: &[K]) {
    let reader = cache.reader();
    let mut seen = 0;
    for key in keys {
        let route = reader.find(key.as_ref()).unwrap();
        let (_, word) = route.slot.unwrap();
        assert!(
            word & LEAF != 0
                && key.as_ref().get(route.pos).is_none_or(|byte| u64::from(*byte) == word >> PARTIAL_SHIFT)
        );
        seen += 1;
    }
    assert_eq!((reader.lookups(), reader.hits()), (seen, seen));
}

fn bulk_loaded(count: u64, shift: u32, budget: usize) -> f64 {
    let _turn = turn();
    let keys = integer_keys(count, shift);
    let before = bytes_in_use();
    let cache = roomy(budget);
    let root =
        build(&keys, &mut Allocator::new(8, 1), &mut in_order, &mut |image| assert!(cache.insert(image)));
    let per_key = per_key("bulk load", &cache, before, keys.len());
    cache.set_root(root);
    all_hit(&cache, &keys);
    per_key
}

#[test]
fn a_bulk_loaded_tree_takes_few_bytes_per_key() {
    let per_key = bulk_loaded(KEYS, SHARE_LOG2, 600_000_000 / 64);
    assert!(per_key <= 7.8, "{per_key} bytes per key");
}

#[test]
#[ignore = "takes 2 GB and, in release, a minute"]
fn sixty_million_keys_take_few_bytes_each() {
    let per_key = bulk_loaded(60_000_000, 0, 600_000_000);
    assert!(per_key <= 7.8, "{per_key} bytes per key");
}

#[test]
fn leaves_anywhere_take_what_their_addresses_need() {
    let _turn = turn();
    let keys = integer_keys(KEYS, SHARE_LOG2);
    let mut rng = SmallRng::seed_from_u64(5);
    let mut nodes = Vec::new();
    // Leaves of 60 M keys on 8 servers: 24 bits of address each. Slots in the order in which keys came.
    let mut anywhere =
        |_: &mut Allocator| rng.random_range(0..8) << CHILD_SERVER_SHIFT | rng.random_range(1..1 << 23);
    build(&keys, &mut Allocator::new(8, 1), &mut anywhere, &mut |image| {
        nodes.push(Node::of(image));
    });
    nodes.iter_mut().for_each(|node| node.slots.shuffle(&mut rng));
    let before = bytes_in_use();
    let cache = roomy(600_000_000 / 32);
    // Nodes grow while they are cached.
    for share in [3, 2] {
        nodes.shuffle(&mut rng);
        for node in &nodes {
            assert!(cache.insert(&node.image_of_first(node.slots.len().div_ceil(share))));
        }
    }
    nodes.shuffle(&mut rng);
    assert!(nodes.iter().all(|node| cache.insert(&node.image())));
    let per_key = per_key("leaves anywhere", &cache, before, keys.len());
    assert!(per_key <= 15.5, "{per_key} bytes per key");
}

#[test]
fn strings_take_few_bytes_per_key() {
    let _turn = turn();
    let mut rng = SmallRng::seed_from_u64(6);
    let word = |rng: &mut SmallRng| format!("{:04}", rng.random_range(0..3000));
    let keys: BTreeSet<String> = (0..200_000)
        .map(|_| format!("user/{}/{}/item{}", word(&mut rng), word(&mut rng), word(&mut rng)))
        .collect();
    let keys: Vec<String> = keys.into_iter().collect();
    let before = bytes_in_use();
    let cache = roomy(16 << 20);
    let root =
        build(&keys, &mut Allocator::new(8, 2), &mut in_order, &mut |image| assert!(cache.insert(image)));
    let per_key = per_key("strings", &cache, before, keys.len());
    cache.set_root(root);
    all_hit(&cache, &keys);
    assert!(per_key <= 13.8, "{per_key} bytes per key");
}
