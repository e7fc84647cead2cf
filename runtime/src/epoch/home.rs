//! The cluster's epoch: it moves on when all members have acknowledged it. A pure state machine: it knows neither
//! messages nor time.

use std::collections::BTreeMap;

use super::{FIRST, GRACE};

/// The epoch, and what its members have acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct EpochHome<K> {
    epoch: u64,
    acknowledged: BTreeMap<K, u64>,
    /// The epoch of the last flush; 0 before the first.
    flushed: u64,
    /// The epoch of the next flush.
    next_flush: Option<u64>,
}

impl<K> Default for EpochHome<K> {
    fn default() -> Self {
        EpochHome { epoch: FIRST, acknowledged: BTreeMap::new(), flushed: 0, next_flush: None }
    }
}

impl<K: Ord + Copy> EpochHome<K> {
    /// Returns the epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes a member in, which pins nothing yet. Yields the epoch: it moves on once at most before the member
    /// acknowledges it.
    pub(crate) fn join(&mut self, member: K) -> u64 {
        self.acknowledged.entry(member).or_insert(self.epoch);
        self.epoch
    }

    /// Waits no longer for a member, of which no operation takes effect any more.
    pub(crate) fn leave(&mut self, member: K) {
        self.acknowledged.remove(&member);
    }

    /// Notes that a member pins nothing older than that, and moves the epoch on if no member holds it back. Yields it.
    /// One that is no member is not waited for.
    pub(crate) fn acknowledge(&mut self, member: K, oldest: u64) -> u64 {
        if let Some(known) = self.acknowledged.get_mut(&member) {
            // A message that was overtaken says less; an epoch that is still to come was not acknowledged.
            *known = (*known).max(oldest.min(self.epoch));
        }
        if self.acknowledged.values().all(|oldest| *oldest == self.epoch) {
            self.epoch += 1;
            if self.next_flush == Some(self.epoch) {
                self.flushed = self.epoch;
                self.next_flush = None;
            }
        }
        self.epoch
    }

    /// Notes that memory which was retired in epoch `since` waits for a flush: it will be when all operations have
    /// ended that began before.
    pub(crate) fn want_flush(&mut self, since: u64) {
        if since.saturating_add(GRACE) > self.flushed {
            self.next_flush.get_or_insert(self.epoch + GRACE);
        }
    }

    /// Returns the epoch of the last flush.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Tells whether the epoch waits for a member.
    pub(crate) fn waits_for(&self, member: K) -> bool {
        self.acknowledged.get(&member).is_some_and(|oldest| *oldest < self.epoch)
    }
}

#[cfg(test)]
impl<K> EpochHome<K> {
    pub(super) fn next_flush(&self) -> Option<u64> {
        self.next_flush
    }
}
