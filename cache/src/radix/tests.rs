//! The cache's books against what is really there, after random changes of every kind, under every policy and
//! budget; and what eviction does to the nodes above.

use std::collections::HashSet;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::part::settled;
use super::slot::{CLASS_SHIFT, LEAF, PARTIAL_SHIFT};
use super::*;

fn leaves(node: u64, version: u64, count: usize) -> Vec<u64> {
    (0..count as u64)
        .map(|index| index << PARTIAL_SHIFT | LEAF | 1 << CLASS_SHIFT | (node * 7 + version + index))
        .collect()
}

fn image<'a>(node: u64, slots: &'a [u64]) -> RadixImage<'a> {
    RadixImage { node, class: 3, depth: 0, prefix: &[], slots }
}

fn cache(budget_bytes: usize, policy: Policy) -> Arc<RadixCache> {
    RadixCache::new(RadixConfig { budget_bytes, policy, seed: 1 })
}

fn has(cache: &RadixCache, image: &RadixImage<'_>) -> bool {
    cache.visit(image.node, |copy| copy.is_copy_of(image)) == Some(true)
}

/// Counts the entries of all pages; each must be where a search finds it.
fn recount(cache: &RadixCache) -> usize {
    cache.parts.iter().map(recount_part).sum()
}

fn recount_part(part: &Part) -> usize {
    let numbers: HashSet<u32> = part
        .table
        .directory()
        .iter()
        .filter_map(|slot| slot.load(Ordering::Relaxed).checked_sub(1))
        .collect();
    let mut nodes = 0;
    for number in numbers {
        let page = part.table.page(&part.arena, number).unwrap();
        for index in 0..page.capacity() {
            let entry = page.entry(index);
            if entry != 0 {
                let place = part.arena.decode(entry);
                let found = part.table.locate(&part.arena, part.arena.node_at(place));
                assert_eq!(found, Some((number, index, place)));
                nodes += 1;
            }
        }
    }
    part.lock().check(part.shared(), nodes);
    assert_eq!(part.counters.nodes.load(Ordering::Relaxed), nodes);
    nodes
}

/// Inserts, grows, invalidates and sometimes clears; checks the newest version of each node against what the
/// cache says. Returns the statistics.
fn run(seed: u64, steps: u64, nodes: u64, budget: usize, policy: Policy) -> CacheStats {
    let mut rng = SmallRng::seed_from_u64(seed);
    let cache = cache(budget, policy);
    let empty = cache.bytes();
    let mut newest = vec![None; nodes as usize + 1];
    for step in 0..steps {
        let node = rng.random_range(1..=nodes);
        if rng.random_bool(0.8) {
            let count = if rng.random_bool(0.02) { 256 } else { rng.random_range(0..20) };
            let slots = leaves(node, step, count);
            if cache.insert(&image(node, &slots)) {
                newest[node as usize] = Some(slots);
                assert!(has(&cache, &image(node, newest[node as usize].as_ref().unwrap())));
            }
        } else {
            cache.invalidate(node);
            newest[node as usize] = None;
            assert!(cache.visit(node, |_| ()).is_none());
        }
        assert!(cache.bytes() <= budget.max(empty), "{} bytes of {budget}", cache.bytes());
        if step % 997 == 0 {
            let found = recount(&cache);
            let right = (1..).zip(&newest[1..]).filter(|(node, slots)| {
                slots.as_ref().is_some_and(|slots| has(&cache, &image(*node, slots)))
            });
            assert_eq!(right.count(), found, "what is cached is the newest");
        }
        if step % 20_011 == 20_010 {
            cache.clear();
            newest.fill(None);
            assert_eq!((recount(&cache), cache.root()), (0, 0));
        }
    }
    recount(&cache);
    cache.stats()
}

/// The interleaving that threads hardly ever hit: the memory is used again between a reader's first look at the
/// entry and its look at the generation, which then is the new one.
#[test]
fn an_entry_that_has_left_is_not_followed_into_new_memory() {
    let cache = cache(64 << 10, Policy::Fifo);
    assert!(cache.insert(&image(1, &leaves(1, 0, 8))));
    let part = &cache.parts[0];
    let (number, index, place) = part.table.locate(&part.arena, 1).unwrap();
    let page = part.table.page(&part.arena, number).unwrap();
    let entry = page.entry(index);
    let segment = part.arena.segment(place.segment);
    let before = settled(page, index, entry, segment).expect("nothing has happened");
    assert!(segment.is_still(before));
    cache.invalidate(1);
    assert_eq!(settled(page, index, entry, segment), None);
    for node in 2.. {
        assert!(cache.insert(&image(node, &leaves(node, 0, 100))));
        if !segment.is_still(before) {
            break;
        }
    }
    assert_eq!(settled(page, index, entry, segment), None);
}

#[test]
fn the_books_are_right_while_there_is_room() {
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        let stats = run(1, 30_000, 3_000, 4 << 20, policy);
        assert!(stats.evicted == 0 && stats.invalidated > 1_000 && stats.nodes > 500, "{policy:?} {stats:?}");
    }
}

#[test]
fn the_budget_is_kept_at_every_step() {
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        for (seed, budget) in [(2, 20_000), (3, 30_000), (4, 64 << 10), (5, 200_000)] {
            let stats = run(seed, 12_000, 20_000, budget, policy);
            assert!(stats.evicted > 1_000 && stats.nodes > 20, "{policy:?} {budget} {stats:?}");
            assert!(stats.bytes > budget as u64 / 2, "{policy:?} {budget} {stats:?}");
        }
    }
}

#[test]
fn a_tiny_budget_caches_nothing_and_works() {
    for budget in [0, 1, 4_000, 5_000, 9_000] {
        let stats = run(6, 2_000, 100, budget, Policy::TwoChoices);
        assert!(stats.bytes < 2_000 || stats.bytes <= budget as u64, "{stats:?}");
    }
}

/// Big nodes first, small ones then: the table takes memory from the copies.
#[test]
fn the_table_grows_when_all_memory_is_taken() {
    let budget = 1 << 20;
    let cache = cache(budget, Policy::TwoChoices);
    let fill = |nodes: std::ops::Range<u64>, count| {
        for node in nodes {
            assert!(cache.insert(&image(node, &leaves(node, 0, count))));
            assert!(cache.bytes() <= budget);
        }
        recount(&cache)
    };
    let big = fill(1..5_000, 200);
    let small = fill(5_000..105_000, 2);
    assert!(small > 8 * big && small > 30_000, "{big}, then {small}");
}

#[test]
fn nodes_in_use_stay() {
    let cache = cache(256 << 10, Policy::TwoChoices);
    let reader = cache.reader();
    let hot = 1..=100u64;
    for node in hot.clone() {
        assert!(cache.insert(&image(node, &leaves(node, 0, 8))));
    }
    // Twenty times what there is room for. Nodes that are evicted in spite of their use come back at the next use.
    let mut back = 0;
    for node in 1_000..150_000 {
        assert!(cache.insert(&image(node, &leaves(node, 0, 4))));
        if node % 5 == 0 {
            let hot = node / 5 % 100 + 1;
            cache.set_root(3 << CLASS_SHIFT | hot);
            if reader.find(&[0]).unwrap().node != hot {
                assert!(cache.insert(&image(hot, &leaves(hot, 0, 8))));
                back += 1;
            }
        }
    }
    let stats = cache.stats();
    assert!(stats.evicted > 100_000, "{stats:?}");
    assert!(back < 1_000, "{back} of 29,800 uses found their node gone");
}

#[test]
#[cfg_attr(miri, ignore = "needs rounds that take hours")]
fn upper_nodes_stay_longer_than_those_below() {
    let cache = cache(256 << 10, Policy::TwoChoices);
    let reader = cache.reader();
    let slots: Vec<u64> =
        (0..100).map(|index| index << PARTIAL_SHIFT | 3 << CLASS_SHIFT | (5_000 + index)).collect();
    let root = image(1, &slots);
    let mut back = 0;
    for round in 0..100_000u64 {
        // Every lookup uses the root, and most others what came a moment ago: all are of the same epoch.
        cache.set_root(3 << CLASS_SHIFT | 1);
        if reader.find(&[0]).unwrap().node != 1 {
            assert!(cache.insert(&root));
            back += 1;
        }
        assert!(cache.insert(&image(10_000 + round, &leaves(round, 0, 4))));
    }
    assert!(cache.stats().evicted > 50_000);
    assert!(back <= 3, "the root came {back} times");
}

#[test]
fn inserting_what_is_there_changes_nothing() {
    let cache = cache(1 << 20, Policy::TwoChoices);
    let slots = leaves(1, 0, 5);
    assert!(cache.insert(&image(1, &slots)));
    let guard = cache.parts[0].lock();
    let stats = cache.stats();
    // Would wait for ever if it took the lock.
    assert!(cache.insert(&image(1, &slots)));
    assert_eq!(cache.stats(), stats);
    drop(guard);
    assert!(cache.insert(&image(1, &slots[..4])));
    assert!(has(&cache, &image(1, &slots[..4])) && !has(&cache, &image(1, &slots)));
    assert_eq!((cache.stats().nodes, cache.stats().inserted), (1, 2));
}

/// Pollers of shards used to wait for each other here, for as long as it takes to empty a segment.
#[test]
fn what_only_helps_does_not_wait_for_another_writer() {
    let cache = cache(64 << 20, Policy::TwoChoices);
    assert_eq!(cache.parts.len(), 4);
    let (two, three) = (leaves(1, 0, 2), leaves(1, 0, 3));
    assert!(cache.insert(&image(1, &two)));
    let guard = cache.part(1).0.lock();
    cache.amend(1, 2, three[2]);
    assert!(!cache.insert(&image(1, &three)));
    assert!(has(&cache, &image(1, &two)) && cache.amend_stats() == AmendStats::default());
    // All but the nodes of that part.
    let others = (2..100).filter(|node| cache.insert(&image(*node, &leaves(*node, 0, 2)))).count();
    assert!((50..98).contains(&others), "{others} of 98");
    drop(guard);
    cache.amend(1, 2, three[2]);
    assert!(has(&cache, &image(1, &three)) && cache.insert(&image(1, &two)));
    recount(&cache);
}

/// A client that found a copy out of date waited for another shard's writer, in its poller.
#[test]
fn what_has_to_go_is_left_to_the_writer_at_work() {
    let cache = cache(1 << 20, Policy::TwoChoices);
    let there = || (1..=20).filter(|node| has(&cache, &image(*node, &leaves(*node, 0, 2)))).count();
    assert!((1..=20).all(|node| cache.insert(&image(node, &leaves(node, 0, 2)))));
    let guard = cache.parts[0].lock();
    for node in [3, 5, 3, 99] {
        cache.invalidate(node);
    }
    assert_eq!((there(), cache.stats().invalidated), (20, 0));
    drop(guard);
    assert_eq!((there(), cache.stats().invalidated), (18, 2));
    assert_eq!(recount(&cache), 18);
}

/// Notes that are taken while the lock is given back are not left behind.
#[test]
fn nothing_that_has_to_go_stays() {
    const NODES: u64 = 16;
    let cache = cache(1 << 20, Policy::TwoChoices);
    for _ in 0..if cfg!(miri) { 2 } else { 300 } {
        for node in 1..=NODES {
            assert!(cache.insert(&image(node, &leaves(node, 0, 2))));
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    (1..=NODES).filter(|node| node % 4 == thread).for_each(|node| cache.invalidate(node));
                });
            }
        });
        assert_eq!(recount(&cache), 0);
    }
}

#[test]
fn large_caches_are_divided() {
    for (budget, parts) in [(0, 1), (31 << 20, 1), (32 << 20, 2), (600_000_000, 16), (100 << 30, 16)] {
        assert_eq!(cache(budget, Policy::Fifo).parts.len(), parts, "{budget}");
    }
    let stats = run(7, 20_000, 100_000, 32 << 20, Policy::TwoChoices);
    assert!(stats.nodes > 1000 && stats.evicted == 0, "{stats:?}");
}
