//! The cost of adding slots to cached nodes one by one: `RadixCache::amend` against inserting the changed
//! node whole, and of lookups afterwards. Prints; asserts only what holds on every machine.

use std::sync::Arc;

use farwood_cache::Policy;
use farwood_cache::radix::slot::{CHILD_SERVER_SHIFT, CLASS_SHIFT, LEAF, PARTIAL_SHIFT};
use farwood_cache::radix::{RadixCache, RadixConfig, RadixImage};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

const NODES: usize = 100_000;
const SLOTS: usize = 30;
const BUDGET: usize = 64 << 20;

/// Nodes of random leaves on 8 servers, and the order in which slots are added: random keys.
struct Work {
    slots: Vec<Vec<u64>>,
    order: Vec<u32>,
}

impl Work {
    fn new() -> Self {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut partials: Vec<u64> = (0..256).collect();
        let slots = (0..NODES).map(|_| {
            partials.shuffle(&mut rng);
            let leaf = |partial: &u64| {
                let child = rng.random_range(0..8) << CHILD_SERVER_SHIFT | rng.random_range(1..1u64 << 23);
                partial << PARTIAL_SHIFT | LEAF | 1 << CLASS_SHIFT | child
            };
            partials[..SLOTS].iter().map(leaf).collect()
        });
        let slots = slots.collect();
        let mut order: Vec<u32> = (0..NODES as u32).flat_map(|node| [node; SLOTS - 2]).collect();
        order.shuffle(&mut rng);
        Work { slots, order }
    }

    fn node(index: u32) -> u64 {
        1 + u64::from(index) * 17
    }

    fn cache(&self) -> Arc<RadixCache> {
        let cache =
            RadixCache::new(RadixConfig { budget_bytes: BUDGET, policy: Policy::TwoChoices, seed: 1 });
        for node in 0..NODES {
            assert!(cache.insert(&self.image(node, 2)));
        }
        cache
    }

    fn image(&self, node: usize, count: usize) -> RadixImage<'_> {
        let address = Self::node(node as u32);
        RadixImage { node: address, class: 3, depth: 0, prefix: &[], slots: &self.slots[node][..count] }
    }

    /// Adds all slots in their order.
    fn grow(&self, add: impl Fn(usize, usize)) -> f64 {
        let mut claimed = vec![2; NODES];
        per_call(self.order.len(), || {
            for node in &self.order {
                let count = &mut claimed[*node as usize];
                add(*node as usize, *count);
                *count += 1;
            }
        })
    }

    /// Measures the nanoseconds of a lookup, all of which must find their leaf.
    fn find(&self, cache: &Arc<RadixCache>) -> f64 {
        let reader = cache.reader();
        per_call(self.order.len(), || {
            for (turn, node) in self.order.iter().enumerate() {
                let slot = self.slots[*node as usize][turn % SLOTS];
                cache.set_root(3 << CLASS_SHIFT | Self::node(*node));
                let route = reader.find(&[(slot >> PARTIAL_SHIFT) as u8]).expect("the root is known");
                assert_eq!(route.slot, Some((turn % SLOTS, slot)));
            }
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement of real time, not part of a simulated run")]
fn per_call(calls: usize, run: impl FnOnce()) -> f64 {
    let begin = std::time::Instant::now();
    run();
    begin.elapsed().as_nanos() as f64 / calls as f64
}

#[test]
#[ignore = "a measurement, of use in release only"]
fn what_adding_a_slot_costs() {
    let work = Work::new();
    for round in 0..2 {
        let (whole, amended) = (work.cache(), work.cache());
        let inserting = work.grow(|node, claimed| {
            assert!(whole.insert(&work.image(node, claimed + 1)));
        });
        let amending = work.grow(|node, claimed| {
            amended.amend(Work::node(node as u32), claimed, work.slots[node][claimed]);
        });
        let finds = [&whole, &amended].map(|cache| work.find(cache));
        let bytes = [&whole, &amended].map(|cache| cache.bytes() as f64 / (NODES * SLOTS) as f64);
        println!(
            "round {round}: insert {inserting:.0} ns, amend {amending:.0} ns; find {:.0} / {:.0} ns; {:.2} / {:.2} \
             bytes per slot",
            finds[0], finds[1], bytes[0], bytes[1]
        );
    }
}
