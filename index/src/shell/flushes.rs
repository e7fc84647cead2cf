//! Flushes: when the caches of a compute node are emptied, so that they lead to no node whose memory is used again
//! (`farwood_runtime::epoch`). It does not know what is cached.

use std::sync::atomic::{AtomicU64, Ordering};

/// The last flush for which a cache was emptied.
#[derive(Default)]
pub(crate) struct Flushes(AtomicU64);

impl Flushes {
    /// Empties a cache by `empty`, if the cluster has had another flush, in the epoch `flushed`. To be called each time
    /// before the cache is looked into.
    #[inline]
    pub(crate) fn keep_up(&self, flushed: u64, empty: impl FnOnce()) {
        if self.0.load(Ordering::Acquire) < flushed {
            tracing::debug!(name: "cache.flushed", flushed, "a cache is emptied");
            empty();
            // Behind that: other shards that know of the flush empty it themselves until then.
            self.0.fetch_max(flushed, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_emptied_once_for_each_flush() {
        let (flushes, mut emptied) = (Flushes::default(), 0);
        for flushed in [0, 5, 5, 4, 9] {
            flushes.keep_up(flushed, || emptied += 1);
        }
        assert_eq!(emptied, 2);
    }
}
