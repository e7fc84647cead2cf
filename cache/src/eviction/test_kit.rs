//! Requirements on every policy, and the promises of each one, on a cache that is only a list.

use super::*;

/// Nodes in a row; the place of node `n` is slot `n` of chunk 0, its low key is `n` and its insertion number
/// `n`.
struct List {
    last_use: Vec<Option<u32>>,
    now: u32,
}

impl Cached for List {
    fn sample(&self, random: u64) -> Option<Candidate> {
        let slot = random as usize % self.last_use.len();
        let last_use = self.last_use[slot]?;
        Some(Candidate { place: Place { chunk: 0, slot }, idle: self.now - last_use })
    }

    fn first(&self) -> Option<Candidate> {
        let slot = self.last_use.iter().position(Option::is_some)?;
        Some(Candidate { place: Place { chunk: 0, slot }, idle: 0 })
    }

    fn find(&self, low: &[u8], born: u32) -> Option<Place> {
        let slot = u64::from_be_bytes(low.try_into().unwrap()) as usize;
        assert_eq!(slot, born as usize);
        self.last_use[slot].map(|_| Place { chunk: 0, slot })
    }
}

fn filled(policy: Policy, seed: u64, nodes: u32) -> (List, Box<dyn Eviction>) {
    let mut eviction = policy.start(seed);
    let mut list = List { last_use: Vec::new(), now: nodes };
    for node in 0..nodes {
        list.last_use.push(Some(node));
        eviction.inserted(&u64::from(node).to_be_bytes(), node, &list, list.last_use.len());
    }
    (list, eviction)
}

/// Evicts until nothing is left; yields the order in which nodes went.
fn drain(list: &mut List, eviction: &mut dyn Eviction) -> Vec<usize> {
    let mut order = Vec::new();
    while let Some(Place { chunk: 0, slot }) = eviction.victim(list) {
        assert!(list.last_use[slot].take().is_some(), "node {slot} went twice");
        order.push(slot);
    }
    order
}

#[test]
fn every_policy_empties_the_cache_and_then_stops() {
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        let (mut list, mut eviction) = filled(policy, 3, 50);
        list.last_use[7] = None;
        let mut order = drain(&mut list, &mut *eviction);
        assert!(eviction.victim(&list).is_none());
        order.sort_unstable();
        assert_eq!(order, (0..50).filter(|slot| *slot != 7).collect::<Vec<_>>(), "{policy:?}");
    }
}

#[test]
fn every_policy_bounds_its_memory() {
    for policy in [Policy::TwoChoices, Policy::Fifo] {
        let (mut list, mut eviction) = filled(policy, 3, 10);
        let empty = policy.start(3).bytes();
        for node in 10..10_000 {
            list.last_use.push(Some(node));
            list.last_use[node as usize - 10] = None;
            eviction.inserted(&u64::from(node).to_be_bytes(), node, &list, 10);
            assert!(
                eviction.bytes() < empty + 64 * 40,
                "{policy:?}: {} bytes for 10 nodes",
                eviction.bytes()
            );
        }
        eviction.cleared();
        assert_eq!(eviction.bytes(), empty);
    }
}

#[test]
fn fifo_goes_by_age() {
    let (mut list, mut eviction) = filled(Policy::Fifo, 0, 100);
    assert_eq!(drain(&mut list, &mut *eviction), (0..100).collect::<Vec<_>>());
}

#[test]
fn two_choices_prefer_the_idle_and_follow_their_seed() {
    let halves = |seed| {
        let (mut list, mut eviction) = filled(Policy::TwoChoices, seed, 1000);
        (0..300)
            .map(|_| eviction.victim(&list).map(|place| list.last_use[place.slot].take()).unwrap())
            .collect()
    };
    let one: Vec<Option<u32>> = halves(1);
    assert!(one == halves(1) && one != halves(2));
    let older = one.iter().filter(|last_use| last_use.is_some_and(|last_use| last_use < 500)).count();
    // Three quarters of the pairs have a member in the older half, as long as that is still full.
    assert!((180..260).contains(&older), "{older} of 300 came from the older half");
}
