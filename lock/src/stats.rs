//! Counters of one shard's tables.

use std::cell::Cell;

/// Operations of a shard's clients on locks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    /// Global locks acquired, by CAS or by hand-over.
    pub acquired: u64,
    /// Acquisitions that had to queue because the lock was held, counted on the shard where the lock is at home: among
    /// `acquired` only in the sum over shards.
    pub waited: u64,
    /// Global locks acquired by hand-over: those of `acquired` that needed no CAS.
    pub handed_over: u64,
    /// Of those, the ones whose holder got the node's image with the lock, and so needed no READ.
    pub images: u64,
    /// CAS that found the global lock taken.
    pub remote_failed: u64,
    /// Global locks of owners that died before the index was made, which were taken over: among `acquired`.
    pub taken_over: u64,
    /// Acquisitions that failed without a CAS, because the janitor has as much to undo as it may on a memory server
    /// that does not answer ([`crate::LockConfig::unsettled_max`]).
    pub refused: u64,
    /// Locks that the janitor gave up, since their memory server did not answer: they may stay taken.
    pub orphaned: u64,
    /// Locks of dead compute nodes that were taken over, within this index.
    pub recovered: u64,
    /// Of those, the ones whose node was finished from an intent.
    pub redone: u64,
    /// Those whose node was made whole without one ([`crate::Mending`]).
    pub mended: u64,
    /// Write-backs whose intent was recorded, and the bytes of these intents.
    pub recorded: u64,
    /// See `recorded`.
    pub record_bytes: u64,
    /// Write-backs that would have been, had there been memory for it: locks that are not taken over meanwhile.
    pub unrecorded: u64,
}

farwood_runtime::counters!(LockStats {
    sum: acquired waited handed_over images remote_failed taken_over refused orphaned recovered redone mended
    recorded record_bytes unrecorded;
});

/// The counters behind [`LockStats`], and those of windows.
#[derive(Default)]
pub(crate) struct Counters<S>(Cell<S>);

impl<S: Copy> Counters<S> {
    #[inline]
    pub(crate) fn count(&self, change: impl FnOnce(&mut S)) {
        let mut stats = self.0.get();
        change(&mut stats);
        self.0.set(stats);
    }

    pub(crate) fn read(&self) -> S {
        self.0.get()
    }
}
