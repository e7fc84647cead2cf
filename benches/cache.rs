//! Finding the leaf of a key in the index cache: as many nodes as a tree of 10 M keys has above its leaves. And in
//! the radix tree's cache, with that many keys.

#[path = "../cache/tests/radix_kit/keys.rs"]
mod radix_keys;
#[path = "../cache/tests/radix_kit/mod.rs"]
mod radix_kit;

use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use farwood::cache::radix::{RadixCache, RadixConfig};
use farwood::cache::{CacheConfig, NodeCache, NodeImage, Policy, Root};
use farwood::runtime::{RemotePtr, ServerId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NODES: u64 = 4800;
const LEAVES_PER_NODE: u64 = 50;
const LEAVES: u64 = NODES * LEAVES_PER_NODE;
/// Keys are spread over the key space.
const KEYS_PER_LEAF: u64 = u64::MAX / LEAVES;
const LOOKUPS: usize = 1024;
/// Few where it only has to run.
const RADIX_KEYS: u64 = if cfg!(debug_assertions) { 50_000 } else { 10_000_000 };

fn main() {
    divan::main();
}

fn cache() -> Arc<NodeCache> {
    let cache = NodeCache::new(CacheConfig { budget_bytes: 1 << 30, policy: Policy::TwoChoices, seed: 1 });
    cache.set_root(Root { ptr: RemotePtr::new(ServerId(1), 64), level: 3 });
    for node in 0..NODES {
        let leaves = node * LEAVES_PER_NODE..(node + 1) * LEAVES_PER_NODE;
        let keys: Vec<[u8; 8]> = leaves.clone().map(|leaf| (leaf * KEYS_PER_LEAF).to_be_bytes()).collect();
        let separators: Vec<(&[u8], RemotePtr)> = keys
            .iter()
            .zip(leaves.clone())
            .map(|(key, leaf)| (&key[..], RemotePtr::new(ServerId(0), (1 + leaf) * 1024)))
            .collect();
        let high = (leaves.end * KEYS_PER_LEAF).to_be_bytes();
        let image = NodeImage {
            address: RemotePtr::new(ServerId(1), (2 + node) * 1024),
            level: 1,
            low: &keys[0],
            high: (node + 1 < NODES).then_some(&high[..]),
            separators: &separators,
        };
        assert!(cache.insert(&image));
    }
    cache
}

/// Lookups of random keys, one after the other.
#[divan::bench]
fn find(bencher: Bencher) {
    let reader = cache().reader();
    let mut rng = SmallRng::seed_from_u64(1);
    let keys: Vec<[u8; 8]> =
        (0..LOOKUPS).map(|_| rng.random_range(0..LEAVES * KEYS_PER_LEAF).to_be_bytes()).collect();
    bencher.counter(ItemsCount::new(LOOKUPS)).bench_local(|| {
        for key in &keys {
            divan::black_box(reader.find(key).expect("everything is cached"));
        }
    });
}

/// Inserts a node that is there already, with other leaves: the work that a split leaves.
#[divan::bench]
fn replace(bencher: Bencher) {
    let cache = cache();
    let mut leaf = 0;
    bencher.bench_local(|| {
        leaf += 1;
        let separators = [(&[][..], RemotePtr::new(ServerId(0), leaf * 1024))];
        let high = KEYS_PER_LEAF.to_be_bytes();
        let address = RemotePtr::new(ServerId(1), 2048);
        cache.insert(&NodeImage { address, level: 1, low: &[], high: Some(&high), separators: &separators })
    });
}

/// Lookups of random keys in the radix tree's cache, all nodes of which are cached.
#[divan::bench]
fn radix_find(bencher: Bencher) {
    let config = RadixConfig { budget_bytes: 600 << 20, policy: Policy::TwoChoices, seed: 1 };
    let cache = RadixCache::new(config);
    let keys = radix_keys::integer_keys(RADIX_KEYS, 0);
    let mut memory = radix_kit::Allocator::new(8, 1);
    cache.set_root(radix_kit::build(&keys, &mut memory, &mut radix_kit::in_order, &mut |image| {
        assert!(cache.insert(image));
    }));
    let reader = cache.reader();
    let mut rng = SmallRng::seed_from_u64(1);
    bencher
        .counter(ItemsCount::new(LOOKUPS))
        .with_inputs(|| -> Vec<[u8; 8]> {
            (0..LOOKUPS).map(|_| keys[rng.random_range(0..keys.len())]).collect()
        })
        .bench_local_values(|wanted| {
            for key in &wanted {
                divan::black_box(reader.find(key).expect("the root is known"));
            }
        });
}
