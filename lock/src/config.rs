//! The configuration of a lock table: the techniques of the paper as switches, how patiently it spins, and whose words
//! mean nothing.

use std::sync::Arc;

use crate::word::{LockWord, WordCodec};

/// A word that stays in a lock for this long belongs to a client that is slow, or dead: others do not keep a lock as
/// long.
pub(crate) const LONG_NS: u64 = 1_000_000;
/// Its waiters pause for the time that they have seen it, divided by this,
const LONG_SHARE: u64 = 16;
/// and for this long at most.
const LONG_PAUSE_NS_MAX: u64 = 10_000_000;

/// Settings for taking locks and passing them on. The same on every shard of a compute node. The default has everything
/// on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockConfig {
    /// Queue clients of one compute node locally, and let only the head of the queue go to the network. Off: every
    /// client spins on the global word by itself (FG+ in the Sherman paper).
    pub hierarchical: bool,
    /// Pass a taken global lock on to the next local waiter. Needs `hierarchical`.
    pub handover: bool,
    /// Consecutive hand-overs after which the global lock is released, so that other compute nodes get their turn.
    pub handovers_max: u8,
    /// Lock words in the memory servers' on-chip memory ([`crate::on_chip_possible`]), not in their host memory. Every
    /// compute node that locks the same nodes must say the same: two words for one node exclude no client.
    pub on_chip: bool,
    /// The name by which an error calls the index whose locks they are.
    pub name: Arc<str>,
    /// The part of the index's number that lock words have ([`crate::tag_of`]). The same on all compute nodes, and
    /// never 0.
    pub tag: u16,
    /// The longest time in ns that an operation waits for a lock, in its local queue and at the global word together.
    /// After that it fails with [`crate::LockError::Contended`], up to 10 ms later. `u64::MAX`: it waits for ever.
    pub wait_ns_max: u64,
    /// Failed CASes after which the acquisition fails with [`crate::LockError::Contended`]. At least 1.
    pub attempts_max: u32,
    /// The first pause after a failed CAS, in ns, doubled after each further one.
    pub backoff_ns_min: u64,
    /// The longest pause after a failed CAS, in ns, unless the lock has the same word in it for 1 ms and more: from
    /// then on a pause takes a sixteenth of that time, up to 10 ms.
    pub backoff_ns_max: u64,
    /// The most dropped or failed locks of one memory server that a shard's janitor works on. Beyond that operations
    /// ask for no further lock there: they wait, or, if the server does not answer, fail at once.
    pub unsettled_max: usize,
    /// Compute nodes, ascending, that had died before the index was made, and of which nothing can take effect any
    /// more: they are fenced, and no other node gets their ids. A word of theirs in a lock region protects nothing of
    /// this index, so it is taken over; when the lock is given back it stands there again, for older indexes.
    pub dead_owners: Arc<[u16]>,
    /// Says what free lock words within nodes ([`crate::LockTable::acquire_embedded`]) carry. Every compute node
    /// that locks these nodes must say the same.
    pub codec: WordCodec,
}

impl Default for LockConfig {
    fn default() -> Self {
        LockConfig {
            hierarchical: true,
            handover: true,
            handovers_max: 4,
            on_chip: false,
            name: Arc::default(),
            tag: 1,
            wait_ns_max: 5_000_000_000,
            attempts_max: u32::MAX,
            backoff_ns_min: 500,
            backoff_ns_max: 16_000,
            unsettled_max: 1024,
            dead_owners: Arc::default(),
            codec: WordCodec::PLAIN,
        }
    }
}

impl LockConfig {
    pub(crate) fn is_leftover(&self, word: LockWord) -> bool {
        self.dead_owners.binary_search(&word.owner()).is_ok()
    }

    /// Computes the pause after the `failed`-th failed CAS (from 1), which found the word that was there `unchanged_ns`
    /// before: a lock of a dead client costs a waiter some 600 CASes until it gives up after 5 s, not some 300,000.
    pub(crate) fn pause_ns(&self, failed: u32, unchanged_ns: u64, random: u64) -> u64 {
        let long_ns = if unchanged_ns < LONG_NS { 0 } else { unchanged_ns / LONG_SHARE };
        self.backoff_ns(failed, random).max(long_ns.min(LONG_PAUSE_NS_MAX))
    }

    /// Computes the pause after the `failed`-th chain that failed in a row (from 1): exponential, of which the upper
    /// half is random, so that spinners that collided once do not collide again.
    pub(crate) fn backoff_ns(&self, failed: u32, random: u64) -> u64 {
        let doublings = failed.saturating_sub(1).min(20);
        let most = (self.backoff_ns_min << doublings).min(self.backoff_ns_max).max(self.backoff_ns_min);
        most - random % (most / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_bound_and_keeps_half() {
        let config = LockConfig { backoff_ns_min: 100, backoff_ns_max: 1000, ..LockConfig::default() };
        for (failed, most) in [(1, 100), (2, 200), (4, 800), (5, 1000), (50, 1000), (u32::MAX, 1000)] {
            assert_eq!(config.backoff_ns(failed, 0), most);
            assert!((0..2000).all(|random| (most / 2..=most).contains(&config.backoff_ns(failed, random))));
        }
        let none = LockConfig { backoff_ns_min: 0, backoff_ns_max: 0, ..config };
        assert_eq!(none.backoff_ns(3, 12345), 0);
    }

    #[test]
    fn a_word_that_stays_is_asked_for_ever_more_rarely() {
        let config = LockConfig::default();
        assert_eq!(config.pause_ns(9, LONG_NS - 1, 0), config.backoff_ns_max);
        assert_eq!(config.pause_ns(9, 8 * LONG_NS, 0), LONG_NS / 2);
        assert_eq!(config.pause_ns(9, u64::MAX, 0), LONG_PAUSE_NS_MAX);
        let (mut waited_ns, mut attempts) = (0, 0);
        while waited_ns < config.wait_ns_max {
            attempts += 1;
            waited_ns += 2_000 + config.pause_ns(attempts, waited_ns, 0);
        }
        assert!((600..800).contains(&attempts), "{attempts}");
    }
}
