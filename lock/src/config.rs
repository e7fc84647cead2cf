//! The configuration of a lock table: the techniques of the paper as switches, how patiently it spins, and whose words
//! mean nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::word::{LockWord, WordCodec};

/// Settings for taking locks and passing them on. The same on every shard of a compute node. The default has everything
/// on.
///
/// ```
/// # use farwood_lock::LockConfig;
/// # use std::time::Duration;
/// let config = LockConfig { wait_max: Duration::from_secs(1), ..LockConfig::default() };
/// assert!(config.hierarchical && config.handover);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockConfig {
    /// Queue clients of one compute node locally, and let only the head of the queue go to the network. Off: every
    /// client spins on the global word by itself (FG+ in the Sherman paper).
    pub hierarchical: bool,
    /// Pass a taken global lock on to the next local waiter. Needs `hierarchical`.
    pub handover: bool,
    /// Consecutive hand-overs after which the global lock is released, so that other compute nodes get their turn.
    pub handovers_max: u8,
    /// Leave what is known of a node to the next holder ([`crate::Held::release_with_image`]). Needs `handover`.
    pub image_handover: bool,
    /// Lock words in the memory servers' on-chip memory ([`crate::on_chip_possible`]), not in their host memory. Every
    /// compute node that locks the same nodes must say the same: two words for one node exclude no client.
    pub on_chip: bool,
    /// The name by which an error calls the index whose locks they are.
    pub name: Arc<str>,
    /// The part of the index's number that lock words have ([`crate::tag_of`]). The same on all compute nodes, and
    /// never 0.
    pub tag: u16,
    /// The longest time that an operation waits for a lock, in its local queue and at the global word together. After
    /// that it fails with [`crate::LockError::Contended`], up to 10 ms later. [`Duration::MAX`]: it waits for ever.
    pub wait_max: Duration,
    /// Failed CASes after which the acquisition fails with [`crate::LockError::Contended`]. At least 1.
    pub attempts_max: u32,
    /// Pauses after failed CASes. They are longer if the lock has the same word in it for 1 ms and more: from then on a
    /// pause takes a sixteenth of that time, up to 10 ms.
    pub backoff: Backoff,
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
            image_handover: true,
            on_chip: false,
            name: Arc::default(),
            tag: 1,
            wait_max: Duration::from_secs(5),
            attempts_max: u32::MAX,
            backoff: Backoff { min: Duration::from_nanos(500), max: Duration::from_micros(16) },
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
}
