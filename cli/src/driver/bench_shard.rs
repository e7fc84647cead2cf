//! The driver's needs of a fabric's shards beside the fabric contract. The driver itself is the same on all fabrics.

use farwood::Shard;
use farwood::runtime::engine::Device;
use farwood::runtime::{ClientPool, Verbs};
use farwood_sim::shard::Steerable;

/// A shard that a benchmark can run on.
pub(crate) trait BenchShard: ClientPool {
    /// Time between two looks of a shard at the clock and the first error, after each of which it reports progress.
    const TICK_NS: u64;

    /// Keeps the core busy for `ns` nanoseconds, where time is virtual. Elsewhere computing takes as long as it takes.
    fn compute(&self, ns: u64);
}

impl<D: Device> BenchShard for Shard<D> {
    const TICK_NS: u64 = 2_000_000;

    #[inline(always)]
    fn compute(&self, _ns: u64) {}
}

// Not the simulated shard itself: what the simulator has compiled for this one is shared with it.
impl BenchShard for Steerable {
    // Runs in virtual time are short.
    const TICK_NS: u64 = 100_000;

    /// Keeps the core busy for about `ns`: without the variation, clients that began together would post together for
    /// ever.
    fn compute(&self, ns: u64) {
        if ns > 0 {
            self.simulated().work(ns * 8 / 10 + self.random() % (ns * 4 / 10 + 1));
        }
    }
}
