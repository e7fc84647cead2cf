//! Two threads read while one writes: whatever they find is from some inserted version of a node that covers
//! the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farwood_cache::{CacheConfig, NodeCache, NodeImage, Policy, Root};
use farwood_runtime::{RemotePtr, ServerId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Miri looks at every access, also at those of arc-swap, and is some thousand times slower.
const FEW: bool = cfg!(miri);
const KEYS: u64 = if FEW { 100 } else { 4_000 };
const VERSIONS: u16 = match (FEW, cfg!(debug_assertions)) {
    (true, _) => 60,
    (_, true) => 8_000,
    (_, false) => 60_000,
};
const BUDGET_BYTES: usize = if FEW { 2_900 } else { 30_000 };

/// One version of a node: the keys of its children, and where it ends. Its number is the server of its
/// addresses.
struct Version {
    children: Vec<u64>,
    high: u64,
}

fn versions() -> Vec<Version> {
    let mut rng = SmallRng::seed_from_u64(11);
    let version = |_| {
        let low = rng.random_range(0..KEYS);
        let high = (low + 1 + rng.random_range(0..10)).min(KEYS);
        let mut children = vec![low];
        children.extend((low + 1..high).filter(|_| rng.random_bool(0.7)));
        Version { children, high }
    };
    (0..VERSIONS).map(version).collect()
}

fn address(version: usize, key: u64) -> RemotePtr {
    RemotePtr::new(ServerId(version as u16), key * 64)
}

fn write(cache: &NodeCache, versions: &[Version]) {
    let mut rng = SmallRng::seed_from_u64(12);
    for (number, version) in versions.iter().enumerate() {
        let keys: Vec<[u8; 8]> = version.children.iter().map(|key| key.to_be_bytes()).collect();
        let children = keys.iter().zip(&version.children);
        let separators: Vec<_> = children.map(|(bytes, key)| (&bytes[..], address(number, *key))).collect();
        let (low, high) = (separators[0].0, version.high.to_be_bytes());
        let node = address(number, KEYS + version.children[0]);
        cache.insert(&NodeImage { address: node, level: 1, low, high: Some(&high), separators: &separators });
        if rng.random_bool(0.3) {
            cache.invalidate(1, node, low);
        }
    }
}

fn read(cache: &Arc<NodeCache>, versions: &[Version], seed: u64, done: &AtomicBool) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let reader = cache.reader();
    let mut leaves = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let key = rng.random_range(0..KEYS);
        let Some(route) = reader.find(&key.to_be_bytes()) else { continue };
        let number = usize::from(route.child.server().0);
        let version = &versions[number];
        assert_eq!(route.via, address(number, KEYS + version.children[0]));
        let covering = version.children.iter().rfind(|child| **child <= key);
        assert!(
            key < version.high && covering == Some(&(route.child.offset() / 64)),
            "{key} in version {number}"
        );
        leaves.clear();
        reader.children_in(&key.to_be_bytes(), 40, &mut leaves);
        assert!(leaves.len() <= 40 && leaves.is_sorted_by_key(|leaf: &RemotePtr| leaf.offset()));
    }
    reader.hits()
}

#[test]
fn readers_find_only_what_was_inserted() {
    let versions = versions();
    let config = CacheConfig { budget_bytes: BUDGET_BYTES, policy: Policy::TwoChoices, seed: 1 };
    let cache = NodeCache::new(config);
    cache.set_root(Root { ptr: RemotePtr::new(ServerId(0), 64), level: 3 });
    let done = AtomicBool::new(false);
    let hits = thread::scope(|scope| {
        let (cache, versions, done) = (&cache, &versions, &done);
        let readers = [21, 22].map(|seed| scope.spawn(move || read(cache, versions, seed, done)));
        write(cache, versions);
        done.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(hits.iter().all(|hits| *hits > 0));
    assert!(
        cache.stats().evicted > 0 && cache.stats().invalidated > 0 && cache.bytes() <= config.budget_bytes
    );
}
