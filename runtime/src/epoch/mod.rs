//! Epochs: when memory that is out of an index may be used again. Epoch-based reclamation as crossbeam-epoch does it
//! for the threads of one process, for the shards of a cluster.
//!
//! An operation *pins* its shard's epoch for as long as it may follow pointers that it has read; so do chains that no
//! client waits for any more, until they are executed. A shard tells the oldest epoch that is pinned, a compute node
//! the oldest of its shards (it *acknowledges* that one), and the `EpochHome` moves the cluster's epoch on when all
//! nodes have acknowledged it. What was retired by a shard that knew of epoch `e` is free when the epoch is
//! `e + GRACE`:
//!
//! ```text
//!   a shard retires a node, and knows of e      the cluster's epoch is e or e + 1: this shard holds it back
//!   operations that may have its address        have pinned e + 1 at most: they began before
//!   the epoch is e + 2                          all nodes have acknowledged e + 1, and some pin it still
//!   the epoch is e + 3                          all nodes have acknowledged e + 2: the operations have ended
//! ```
//!
//! So a shard pins the cluster's epoch or the one before, and no other. A shard that sleeps pins nothing, and is not
//! waited for ([`NodeEpochs`]). Pins say nothing of what a cache keeps from one operation to the next: an index whose
//! caches have addresses of what it retires waits for a *flush* before. That is an epoch, `f`, in which all compute
//! nodes empty these caches. Each learns of it with the epoch itself, and empties its caches before an operation looks
//! there:
//!
//! ```text
//!   a shard retires a node, and knows of e      copies of its parent, in any cache, lead there
//!   the epoch is e + 3                          no operation is left that may put one into a cache: f may be now
//!   the epoch is f                              operations that look into a cache first empty it, if they know of f
//!   the epoch is f + 1                          all nodes have acknowledged f: the others have ended
//! ```
//!
//! A flush costs every cache all that it has, so it is asked for when much waits (`NodeAllocator`), and its epoch is
//! always one that is still to come: so no member misses it.
//!
//! - `pins`: a shard's own side, of one thread; `home`: who has acknowledged what. This file is what threads share.
//!
//! It knows neither messages nor allocators.

mod home;
mod pins;

pub(crate) use self::home::EpochHome;
pub use self::pins::{Pin, Pins};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The first epoch of a cluster.
pub(crate) const FIRST: u64 = 1;
/// Epochs after which what a shard has retired may be used again.
pub(crate) const GRACE: u64 = 3;
/// The word of a shard that pins nothing, and will not without asking first.
const RESTS: u64 = u64::MAX;

/// The epochs of a compute node: what it knows of the cluster's, and what its shards pin.
#[derive(Debug)]
pub struct NodeEpochs {
    known: AtomicU64,
    /// The epoch of the last flush that is known here.
    flushed: AtomicU64,
    /// The oldest epoch that each shard pins or may pin, or [`RESTS`].
    oldest: Box<[AtomicU64]>,
    /// Held while a shard ends its rest, and while the node is asked what it acknowledges: a shard that was overlooked
    /// must not pin an epoch that is older than the answer.
    awakening: Mutex<()>,
}

impl NodeEpochs {
    /// Makes the epochs of a node of so many shards, all of which rest.
    pub(crate) fn new(shards: usize) -> Self {
        let oldest = (0..shards).map(|_| AtomicU64::new(RESTS)).collect();
        NodeEpochs {
            known: AtomicU64::new(FIRST),
            flushed: AtomicU64::new(0),
            oldest,
            awakening: Mutex::default(),
        }
    }

    /// Returns the cluster's epoch as far as it is known here: that one, or the one before.
    #[inline]
    pub(crate) fn known(&self) -> u64 {
        self.known.load(Ordering::Acquire)
    }

    /// Returns the oldest epoch that an operation of this node pins, or may still pin.
    pub(crate) fn acknowledged(&self) -> u64 {
        let _none_awakens = self.awakening.lock();
        let known = self.known();
        self.oldest.iter().map(|oldest| oldest.load(Ordering::Acquire)).fold(known, u64::min)
    }

    /// Returns the epoch of the last flush that is known here.
    #[inline]
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    /// Notes that the cluster has come to that epoch, and when its last flush was. No epoch is believed that this node
    /// has not let come.
    pub(crate) fn learn(&self, epoch: u64, flushed: u64) {
        let epoch = epoch.min(self.acknowledged().saturating_add(1));
        // First: an operation that pins the epoch of a flush knows of the flush.
        self.flushed.fetch_max(flushed.min(epoch), Ordering::AcqRel);
        self.known.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Begins with the cluster's epoch, which this node holds back from now on. It must not have pinned any.
    pub(crate) fn join(&self, epoch: u64) {
        self.known.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Tells that a shard pins nothing older.
    #[inline]
    fn publish(&self, shard: usize, oldest: u64) {
        // What was read under the older pins is read: who acts on this sees to it that it comes after.
        self.oldest[shard].store(oldest, Ordering::Release);
    }

    /// Ends the rest of a shard; yields the epoch that it may pin from now on.
    fn awaken(&self, shard: usize) -> u64 {
        let _not_meanwhile = self.awakening.lock();
        let known = self.known();
        self.publish(shard, known);
        known
    }
}

#[cfg(test)]
mod flush_tests;
#[cfg(test)]
mod tests;
