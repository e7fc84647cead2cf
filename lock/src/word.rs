//! The lock word: who holds a lock, in the 64 bits that CAS compares. Pure.
//!
//! ```text
//!  63            48 47            32 31                            0
//! +----------------+----------------+-------------------------------+
//! | owner node     | epoch          | nonce                         |
//! +----------------+----------------+-------------------------------+
//! ```
//!
//! 0 is a free lock; a compute node's id is never 0, so no held word is 0. The owner and its epoch (which incarnation
//! of that node) are what a takeover from a dead node needs. The nonce tells an acquisition from every other one that
//! may be under way: after a CAS of unknown outcome, the word read back is ours or it is not.
//!
//! A word can also be a *leftover*: of an owner that died, and was fenced, before the index was made
//! ([`crate::LockConfig::dead_owners`]). Indexes share the words of a lock region, so a new index meets words of all
//! that ever died. Such an owner cannot have torn a node of an index that was not there: to this index the lock is as
//! free as if the word were 0, and a CAS from exactly that word takes it ([`Claim::vacant`]). Giving the lock back
//! restores the word, because older indexes may need it:
//!
//! ```text
//!   owner 7, index old   CAS 0 -> 7, WRITE half a node ✗ dies
//!   index new                        CAS 7 -> ours, WRITE, unlock: WRITE 0
//!   index old                                                      CAS 0 -> theirs wins: the torn node is theirs
//! ```

use std::cell::Cell;
use std::num::NonZeroU64;

use farwood_runtime::{Port, ShardId};

/// What a free lock's word holds.
pub(crate) const FREE: u64 = 0;
/// The bytes of a lock word in memory.
pub(crate) const WORD_BYTES: usize = 8;

/// The word of a lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockWord(NonZeroU64);

impl LockWord {
    /// The word of one acquisition by compute node `owner`.
    ///
    /// # Panics
    /// If `owner` is 0, which no compute node is.
    pub fn new(owner: u16, epoch: u16, nonce: u32) -> Self {
        assert_ne!(owner, 0, "compute nodes count from 1");
        let bits = u64::from(owner) << 48 | u64::from(epoch) << 32 | u64::from(nonce);
        LockWord(NonZeroU64::new(bits).expect("the owner is not 0"))
    }

    /// The word that was read from memory; `None` if the lock is free. Every other bit pattern is a held word.
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(LockWord)
    }

    /// What is stored in the lock region, or in the node.
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The compute node that holds the lock.
    pub fn owner(self) -> u16 {
        (self.to_bits() >> 48) as u16
    }

    /// The incarnation of that compute node.
    pub fn epoch(self) -> u16 {
        (self.to_bits() >> 32) as u16
    }

    /// Which acquisition of that incarnation.
    pub fn nonce(self) -> u32 {
        self.to_bits() as u32
    }
}

/// The word that an acquisition writes to a lock, and the one that stands there while no client has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) word: LockWord,
    /// [`FREE`], or a leftover that is taken over: what the CAS starts from and the unlock goes back to.
    pub(crate) vacant: u64,
}

impl Claim {
    pub(crate) fn new(word: LockWord) -> Self {
        Claim { word, vacant: FREE }
    }

    /// Whether the CAS of this claim that found `found` took the lock. Finding the very word means that an earlier CAS
    /// of the same acquisition, reported as failed, had taken it: nonces are not used twice.
    #[inline]
    pub(crate) fn wins(self, found: u64) -> bool {
        found == self.vacant || found == self.word.to_bits()
    }

    /// Whether it takes over a leftover.
    #[inline]
    pub(crate) fn takes_over(self) -> bool {
        self.vacant != FREE
    }
}

/// Nonces of one shard's lock table.
///
/// Shards count interleaved (shard + k * shards), so that those of one table never agree within 2^32 / shards
/// acquisitions. Tables of other indexes share the lock words; their ports spread where they begin.
pub(crate) struct Nonces {
    next: Cell<u32>,
    step: u32,
}

impl Nonces {
    pub(crate) fn new(shard: ShardId, shards: usize, port: Port) -> Self {
        let begin = port.0.wrapping_mul(0x9E37_79B1);
        let step = u32::try_from(shards).expect("shards have 16-bit ids");
        // Rounded down to a multiple of the step: shards of one table stay interleaved.
        Nonces { next: Cell::new(begin / step * step + u32::from(shard.0)), step }
    }

    pub(crate) fn next(&self) -> u32 {
        let nonce = self.next.get();
        self.next.set(nonce.wrapping_add(self.step));
        nonce
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn fields_come_back() {
        for (owner, epoch, nonce) in [(1, 0, 0), (u16::MAX, u16::MAX, u32::MAX), (7, 0x1234, 0x89AB_CDEF)] {
            let word = LockWord::new(owner, epoch, nonce);
            assert_eq!((word.owner(), word.epoch(), word.nonce()), (owner, epoch, nonce));
            assert_eq!(LockWord::from_bits(word.to_bits()), Some(word));
        }
        assert_eq!(LockWord::from_bits(FREE), None);
    }

    #[test]
    fn layout_is_fixed() {
        assert_eq!(LockWord::new(0x0102, 0x0304, 0x0506_0708).to_bits(), 0x0102_0304_0506_0708);
    }

    #[test]
    #[should_panic(expected = "count from 1")]
    fn refuses_owner_0() {
        let _ = LockWord::new(0, 1, 1);
    }

    #[test]
    fn nonces_of_shards_and_ports_differ() {
        let mut seen = HashSet::new();
        for port in 0..3 {
            for shard in 0..5 {
                let nonces = Nonces::new(ShardId(shard), 5, Port(port));
                assert!((0..1000).all(|_| seen.insert(nonces.next())));
            }
        }
    }
}
