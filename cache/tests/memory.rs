//! The cache's own figure for its memory against what the allocator hands out, and the target: at most 0.39
//! bytes per key with 8-byte keys and 42 keys per leaf.

#[path = "../../tests/kit/counting_allocator.rs"]
mod counting_allocator;

use counting_allocator::bytes_in_use;
use farwood_cache::{CacheConfig, NodeCache, NodeImage, Policy};
use farwood_runtime::{RemotePtr, ServerId};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const LEAVES: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
/// Children of a level-1 node with 64 places after random insertions.
const CHILDREN: usize = 44;
const KEYS_PER_LEAF: usize = 42;

/// Caches every level-1 node of a tree, in random order, and returns what the cache and the allocator say it
/// takes.
fn fill(policy: Policy, lows: &[[u8; 8]], budget_bytes: usize) -> (usize, usize) {
    let mut rng = SmallRng::seed_from_u64(2);
    let mut order: Vec<_> = (0..lows.len().div_ceil(CHILDREN)).collect();
    order.shuffle(&mut rng);
    let mut separators: Vec<(&[u8], RemotePtr)> = Vec::with_capacity(CHILDREN);
    let before = bytes_in_use();
    let cache = NodeCache::new(CacheConfig { budget_bytes, policy, seed: 3 });
    let (busy, idle) = (cache.reader(), cache.reader());
    for &node in &order {
        let first = node * CHILDREN;
        let last = lows.len().min(first + CHILDREN);
        // Leaves of 1 KiB and a header, spread over 8 servers, each in whatever order they were split.
        let child =
            |leaf: usize| RemotePtr::new(ServerId(leaf as u16 % 8), (leaf as u64 * 7919 % (1 << 21)) * 1088);
        separators.clear();
        separators.extend((first..last).map(|leaf| (&lows[leaf][..], child(leaf))));
        let high = lows.get(last).map(|high| &high[..]);
        let address = RemotePtr::new(ServerId(0), node as u64 * 64);
        assert!(cache.insert(&NodeImage {
            address,
            level: 1,
            low: separators[0].0,
            high,
            separators: &separators
        }));
        // Looks once, half way, and then keeps what it has seen.
        if node == order[order.len() / 2] {
            idle.find(separators[0].0);
        }
        busy.find(separators[0].0);
    }
    let taken = (cache.bytes(), bytes_in_use() - before);
    cache.clear();
    let left = bytes_in_use() - before;
    assert!(left < 100_000, "an idle reader pins {left} bytes");
    taken
}

#[test]
fn counts_its_bytes_and_takes_few() {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut lows: Vec<[u8; 8]> = (0..LEAVES).map(|_| rng.random::<u64>().to_be_bytes()).collect();
    lows.sort_unstable();
    lows.dedup();
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        for budget in [usize::MAX, LEAVES * 3] {
            let (counted, allocated) = fill(policy, &lows, budget);
            assert!(counted <= budget);
            assert!(
                counted.abs_diff(allocated) < allocated / 50,
                "{policy:?}: says {counted}, takes {allocated}"
            );
            let per_key = allocated as f64 / (LEAVES * KEYS_PER_LEAF) as f64;
            println!(
                "{policy:?}, budget {budget}: {counted} counted, {allocated} allocated, {per_key:.3} per key"
            );
            assert!(per_key <= 0.39, "{policy:?}: {per_key} bytes per key");
        }
    }
}
