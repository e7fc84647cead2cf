//! Power of two choices: two random nodes, the less recently used of them goes. Remembers nothing but its
//! random state; recency is the stamp that every node has anyway.

use super::{Cached, Candidate, Eviction, Place};

/// Tries for one random node, before the first one must do. Chunks are more than a quarter full on average,
/// so that this many fail together with a probability below 1e-8, except where a few nodes are left in
/// several chunks.
const TRIES_MAX: usize = 64;

pub(super) struct TwoChoices {
    state: u64,
}

impl TwoChoices {
    pub(super) fn new(seed: u64) -> Self {
        TwoChoices { state: seed }
    }

    /// Yields the next number of splitmix64, which takes any seed and needs one word.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn pick(&mut self, cached: &dyn Cached) -> Option<Candidate> {
        (0..TRIES_MAX).find_map(|_| cached.sample(self.random())).or_else(|| cached.first())
    }
}

impl Eviction for TwoChoices {
    fn inserted(&mut self, _low: &[u8], _born: u32, _cached: &dyn Cached, _nodes: usize) {}

    fn victim(&mut self, cached: &dyn Cached) -> Option<Place> {
        let (one, other) = (self.pick(cached)?, self.pick(cached)?);
        Some(if one.idle >= other.idle { one.place } else { other.place })
    }

    fn cleared(&mut self) {}

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}
