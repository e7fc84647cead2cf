//! Two threads read while two write: whatever leads a reader on is one copy that was inserted for its node,
//! though the memory under it is used again all the time; and if slots are changed and added where copies
//! lie, it is the copy as it was at one time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use farwood_cache::Policy;
use farwood_cache::radix::slot::{CLASS_SHIFT, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{RadixCache, RadixConfig, RadixImage};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The root's children are nodes 1 to 256.
const ROOT: u64 = 1 << 20;
const VERSIONS: u64 = if cfg!(debug_assertions) { 40_000 } else { 400_000 };

fn slots_of_root() -> Vec<u64> {
    (0..256).map(|byte| byte << PARTIAL_SHIFT | 3 << CLASS_SHIFT | (byte + 1)).collect()
}

fn root_word() -> u64 {
    4 << CLASS_SHIFT | ROOT
}

/// Counts the slots of a version. All that is in a copy follows from the node and the version, which every
/// child contains.
fn claimed(node: u64, version: u64) -> usize {
    let few = (node * 31 + version * 7) % 23;
    if few == 0 { 256 } else { few as usize }
}

fn word(node: u64, version: u64, index: usize) -> u64 {
    let partial = (index as u64 * 17 + version) % 256;
    let child = node << 38 | version << 16 | (index as u64 * 3);
    partial << PARTIAL_SHIFT | LEAF | (version % 32) << CLASS_SHIFT | child
}

fn class(node: u64, version: u64) -> u8 {
    ((node + version) % 32) as u8
}

/// Yields the key bytes before the slots' one: always the same for a node.
fn prefix(node: u64) -> Vec<u8> {
    (0..node % 7).map(|index| (node + index) as u8).collect()
}

/// Writes in turns: in the cache a writer does not wait for another, but leaves its change out.
fn write(cache: &RadixCache, seed: u64, turns: &Mutex<()>) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let root = RadixImage { node: ROOT, class: 4, depth: 0, prefix: &[], slots: &slots_of_root() };
    let mut refused = 0;
    for version in 1..VERSIONS {
        let node = rng.random_range(1..=256);
        let slots: Vec<u64> = (0..claimed(node, version)).map(|index| word(node, version, index)).collect();
        let (class, prefix) = (class(node, version), prefix(node));
        let image = RadixImage { node, class, depth: 1, prefix: &prefix, slots: &slots };
        let _turn = turns.lock().unwrap();
        refused += u64::from(!cache.insert(&image));
        if version % 8 == 0 {
            cache.invalidate(rng.random_range(1..=256));
        }
        if version % 5_000 == 0 {
            cache.clear();
        }
        cache.set_root(root_word());
        refused += u64::from(!cache.insert(&root));
    }
    refused
}

/// Returns how many lookups ended at a leaf.
fn read(cache: &Arc<RadixCache>, seed: u64, done: &AtomicBool) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let reader = cache.reader();
    let slots_of_root = slots_of_root();
    while !done.load(Ordering::Relaxed) {
        let node = rng.random_range(1..=256u64);
        let mut key = vec![(node - 1) as u8];
        key.extend(prefix(node));
        key.push(rng.random());
        let Some(route) = reader.find(&key) else { continue };
        match route.node {
            0 => assert_eq!(route.slot, Some((0, root_word()))),
            ROOT => {
                let byte = usize::from(key[0]);
                assert_eq!((route.slot, route.claimed), (Some((byte, slots_of_root[byte])), 256));
                assert_eq!((route.pos, route.class), (0, 4));
            }
            found => {
                assert_eq!((found, route.pos), (node, key.len() - 1));
                let Some((index, found)) = route.slot else { continue };
                let version = found >> 16 & ((1 << 22) - 1);
                assert!(version < VERSIONS && index < route.claimed, "{route:?}");
                assert_eq!(found, word(node, version, index), "{route:?}");
                assert_eq!(found >> PARTIAL_SHIFT, u64::from(key[key.len() - 1]), "{route:?}");
                assert_eq!(route.claimed, claimed(node, version), "{route:?}");
                assert_eq!(route.class, class(node, version), "{route:?}");
            }
        }
    }
    reader.hits()
}

#[test]
fn readers_see_only_whole_copies() {
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        let cache = RadixCache::new(RadixConfig { budget_bytes: 30_000, policy, seed: 1 });
        let empty = cache.stats().bytes;
        let (done, turns) = (AtomicBool::new(false), Mutex::default());
        let hits = thread::scope(|scope| {
            let (cache, done, turns) = (&cache, &done, &turns);
            let readers = [21, 22].map(|seed| scope.spawn(move || read(cache, seed, done)));
            let writers = [31, 32].map(|seed| scope.spawn(move || write(cache, seed, turns)));
            let refused = writers.map(|writer| writer.join().unwrap());
            done.store(true, Ordering::Relaxed);
            assert_eq!(refused, [0, 0]);
            readers.map(|reader| reader.join().unwrap())
        });
        let stats = cache.stats();
        assert!(hits.iter().all(|hits| *hits > 1_000), "{policy:?} {hits:?}");
        assert!(stats.evicted > 10_000 && stats.invalidated > 1_000, "{policy:?} {stats:?}");
        assert!(stats.bytes <= 30_000 && stats.bytes > empty, "{policy:?} {stats:?}");
    }
}

/// Nodes that get slots one by one, and lose them when the next cycle begins.
const GROWING: u64 = 8;
const CYCLES: u64 = if cfg!(debug_assertions) { 1_000 } else { 4_000 };
const OPS: u64 = 60;
/// Slots when a cycle begins.
const FIRST: usize = 3;

/// Yields the slot that an operation of a cycle writes, and how many there are then. Every other one adds a
/// slot.
fn written(op: u64) -> (usize, usize) {
    let claimed = FIRST + op.div_ceil(2) as usize;
    if op % 2 == 1 { (claimed - 1, claimed) } else { (op as usize * 7 % claimed, claimed) }
}

/// Yields the word that the operation writes. Far away children from the beginning, so that most fit. 0
/// stands for the slots of the beginning.
fn word_of(node: u64, cycle: u64, op: u64, index: usize) -> u64 {
    let child = node << 38 | (index as u64 % 2) << 24 | cycle << 8 | op;
    (index as u64 * 5) << PARTIAL_SHIFT | LEAF | (1 + op % 3) << CLASS_SHIFT | child
}

fn grow(cache: &RadixCache, nodes: [u64; 4], turns: &Mutex<()>) {
    for cycle in 1..=CYCLES {
        for node in nodes {
            let slots: Vec<u64> = (0..FIRST).map(|index| word_of(node, cycle, 0, index)).collect();
            let _turn = turns.lock().unwrap();
            assert!(cache.insert(&RadixImage { node, class: 3, depth: 1, prefix: &[], slots: &slots }));
        }
        for op in 1..=OPS {
            let (index, _) = written(op);
            for node in nodes {
                let _turn = turns.lock().unwrap();
                cache.amend(node, index, word_of(node, cycle, op, index));
            }
        }
    }
}

/// Tells whether, after one of the operations, a slot was what operation `op` had written and there were so
/// many slots.
fn was_true(index: usize, op: u64, claimed: usize) -> bool {
    let wrote_it = if op == 0 { index < FIRST } else { written(op).0 == index };
    let next = (op + 1..=OPS).find(|next| written(*next).0 == index).unwrap_or(OPS + 1);
    wrote_it && (op..next).any(|then| written(then.max(1)).1 - usize::from(then == 0) == claimed)
}

/// Returns how many lookups found a slot, and how many of them one that was written after the cycle's beginning.
fn watch(cache: &Arc<RadixCache>, seed: u64, done: &AtomicBool) -> (u64, u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let reader = cache.reader();
    let (mut found, mut later) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        let (node, index) = (rng.random_range(1..=GROWING), rng.random_range(0..FIRST + OPS as usize / 2));
        let route = reader.find(&[(node - 1) as u8, index as u8 * 5]).expect("the root is known");
        if route.node != node {
            continue;
        }
        let Some((at, word)) = route.slot else {
            assert!(route.claimed <= index, "{route:?}: slot {index}");
            continue;
        };
        let (cycle, op) = (word >> 8 & 0xFFFF, word & 0xFF);
        assert_eq!((at, word), (index, word_of(node, cycle, op, index)), "{route:?}");
        assert!(was_true(index, op, route.claimed), "{route:?}: cycle {cycle}, operation {op}");
        found += 1;
        later += u64::from(op > 0);
    }
    (found, later)
}

#[test]
fn readers_see_what_was_true_at_one_time_while_slots_change() {
    let cache = RadixCache::new(RadixConfig { budget_bytes: 100_000, policy: Policy::TwoChoices, seed: 1 });
    let root = RadixImage { node: ROOT, class: 4, depth: 0, prefix: &[], slots: &slots_of_root() };
    cache.set_root(root_word());
    assert!(cache.insert(&root));
    let (done, turns) = (AtomicBool::new(false), Mutex::default());
    let seen = thread::scope(|scope| {
        let (cache, done, turns) = (&cache, &done, &turns);
        let readers = [41, 42].map(|seed| scope.spawn(move || watch(cache, seed, done)));
        let writers =
            [[1, 2, 3, 4], [5, 6, 7, 8]].map(|nodes| scope.spawn(move || grow(cache, nodes, turns)));
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(seen.iter().all(|(found, later)| found > later && *later > 1_000), "{seen:?}");
    let (amended, stats) = (cache.amend_stats(), cache.stats());
    assert_eq!(stats.evicted, 0, "{stats:?}");
    assert_eq!(amended.in_place + amended.anew, CYCLES * OPS * GROWING, "{amended:?}");
    assert!(amended.in_place > amended.anew && amended.anew > 10_000, "{amended:?}");
}
