//! The lock word: the holder of a lock, in the 64 bits that CAS compares. Pure.
//!
//! ```text
//!  63            48 47            32 31 30                         0
//! +----------------+----------------+--+----------------------------+
//! | owner node     | index tag      |I | nonce                      |
//! +----------------+----------------+--+----------------------------+
//! ```
//!
//! 0 is a free lock, or what a free one carries instead (`codec`); a compute node's id is never 0, so no held word is
//! that. Ids of dead nodes are not given to others:
//! the owner says which incarnation of a process it was. The tag says which index the node belongs to that the lock
//! was taken for, since indexes share the words of a lock region. The nonce tells an acquisition from every other one
//! that may be under way: after a CAS of unknown outcome, the word read back is ours or it is not. `I` is set where the
//! owner keeps intents ([`crate::intents`]): of such a word, and of no other, it can be found out whether the node is
//! half written, so it is taken over when its owner is dead, and fenced (`recovery`). To everything else the bit is a
//! part of the nonce.
//!
//! A word can also be a *leftover*, of an owner that is dead, and fenced, and that cannot have torn a node of this
//! index: it died before the index was made ([`crate::LockConfig::dead_owners`]), or held the lock for another index.
//! To this index the lock is as free as if the word were 0, and a CAS from exactly that word takes it
//! ([`Claim::vacant`]). Giving the lock back restores the word, because the other index may need it:
//!
//! ```text
//!   owner 7, index a   CAS 0 -> 7a, WRITE half a node ✗ dies
//!   index b                         CAS 7a -> ours, WRITE, unlock: WRITE 7a
//!   index a                                                        meets 7a: the torn node is its own
//! ```
//!
//! A word that was put over a leftover has tag 0, for it stands for the leftover, too: if its owner dies, the index of
//! the leftover must not pass over it.
//!
//! ```text
//!   owner 7, index a   CAS 0 -> 7a, WRITE half a node ✗ dies
//!   owner 8, index b                CAS 7a -> 80 ✗ dies
//!   index a                                        meets 80: not a leftover; 8b would be one
//! ```

mod codec;

use std::cell::Cell;
use std::num::NonZeroU64;

use farwood_runtime::{IndexId, Port, ShardId};

pub use self::codec::WordCodec;

/// The word of a free lock, unless it carries something ([`WordCodec`]).
pub(crate) const FREE: u64 = 0;
/// The bytes of a lock word in memory.
pub(crate) const WORD_BYTES: usize = 8;
/// The bit of a nonce that says that the owner keeps intents.
const KEEPS_INTENTS: u32 = 1 << 31;

/// The word of a lock that is held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockWord(NonZeroU64);

impl LockWord {
    /// Makes the word of one acquisition by compute node `owner`. `tag` is that of the index ([`tag_of`]).
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// let word = LockWord::new(7, 1, 9);
    /// assert_eq!((word.owner(), word.tag(), word.nonce()), (7, 1, 9));
    /// ```
    ///
    /// # Panics
    /// If `owner` is 0, which no compute node is.
    pub fn new(owner: u16, tag: u16, nonce: u32) -> Self {
        assert_ne!(owner, 0, "compute nodes count from 1");
        let bits = u64::from(owner) << 48 | u64::from(tag) << 32 | u64::from(nonce);
        LockWord(NonZeroU64::new(bits).expect("the owner is not 0"))
    }

    /// Parses the word that was read from memory; `None` if the lock is free. Every other bit pattern is a held word.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// let word = LockWord::new(7, 1, 9);
    /// assert_eq!(LockWord::from_bits(word.to_bits()), Some(word));
    /// assert_eq!(LockWord::from_bits(0), None);
    /// ```
    pub fn from_bits(bits: u64) -> Option<Self> {
        NonZeroU64::new(bits).map(LockWord)
    }

    /// Yields the bits that are stored in the lock region, or in the node.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// assert_eq!(LockWord::new(7, 1, 9).to_bits(), 0x0007_0001_0000_0009);
    /// ```
    pub fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// Yields the compute node that holds the lock.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// assert_eq!(LockWord::new(7, 1, 9).owner(), 7);
    /// ```
    pub fn owner(self) -> u16 {
        (self.to_bits() >> 48) as u16
    }

    /// Yields the tag of the index that the lock is held for ([`tag_of`]); 0 if it stands for a word of another index,
    /// too.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// assert_eq!(LockWord::new(7, 1, 9).tag(), 1);
    /// ```
    pub fn tag(self) -> u16 {
        (self.to_bits() >> 32) as u16
    }

    /// Tells whether it is held for another index than that of `tag`, and guards no node of this one.
    pub(crate) fn is_of_other_index(self, tag: u16) -> bool {
        ![0, tag].contains(&self.tag())
    }

    /// Makes the word of another acquisition of the same compute node, for the same index.
    pub(crate) fn with_nonce(self, nonce: u32) -> Self {
        LockWord::new(self.owner(), self.tag(), nonce)
    }

    /// Makes the word of an acquisition whose owner keeps intents.
    pub(crate) fn with_intents(self) -> Self {
        self.with_nonce(self.nonce() | KEEPS_INTENTS)
    }

    /// Tells whether its owner keeps intents, so that others may take the lock over when it has died.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// assert!(!LockWord::new(7, 1, 9).keeps_intents());
    /// ```
    pub fn keeps_intents(self) -> bool {
        self.nonce() & KEEPS_INTENTS != 0
    }

    /// Makes the word of the same acquisition that stands for a word of another index, too.
    pub(crate) fn without_tag(self) -> Self {
        LockWord::new(self.owner(), 0, self.nonce())
    }

    /// Yields the number of the acquisition at that compute node.
    ///
    /// ```
    /// # use farwood_lock::LockWord;
    /// assert_eq!(LockWord::new(7, 1, 9).nonce(), 9);
    /// ```
    pub fn nonce(self) -> u32 {
        self.to_bits() as u32
    }
}

/// Yields the part of an index's number that lock words have: never 0, and equal for every 65,535th index, which then
/// count as one.
///
/// ```
/// # use farwood_lock::tag_of;
/// # use farwood_runtime::IndexId;
/// assert_eq!((tag_of(IndexId(0)), tag_of(IndexId(1)), tag_of(IndexId(65_535))), (1, 2, 1));
/// ```
pub fn tag_of(index: IndexId) -> u16 {
    (index.0 % u32::from(u16::MAX)) as u16 + 1
}

/// The word that an acquisition writes to a lock, and the one that stands there while no client has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Claim {
    pub(crate) word: LockWord,
    /// A free word, or a leftover that is taken over: what the CAS starts from and the unlock goes back to. From the
    /// release on, a free word with the payload that the holder leaves.
    pub(crate) vacant: u64,
}

impl Claim {
    /// Makes the claim of the same acquisition that starts from what was found in the lock: free, or a leftover.
    #[cold]
    pub(crate) fn starting_from(self, found: u64, codec: WordCodec) -> Self {
        let word = if codec.is_free(found) { self.word } else { self.word.without_tag() };
        Claim { word, vacant: found }
    }

    /// Tells whether the CAS of this claim that found `found` took the lock. Finding the very word means that an
    /// earlier CAS of the same acquisition, reported as failed, had taken it: nonces are not used twice.
    #[inline]
    pub(crate) fn wins(self, found: u64) -> bool {
        found == self.vacant || found == self.word.to_bits()
    }

    /// Tells whether it takes over a leftover.
    #[inline]
    pub(crate) fn takes_over(self, codec: WordCodec) -> bool {
        !codec.is_free(self.vacant)
    }
}

/// Nonces of one shard's lock table.
///
/// Shards count interleaved (shard + k * shards), so that those of one table never agree within 2^31 / shards
/// acquisitions. Tables of other indexes share the lock words; their ports spread where they begin.
pub(crate) struct Nonces {
    next: Cell<u32>,
    step: u32,
}

impl Nonces {
    pub(crate) fn new(shard: ShardId, shards: usize, port: Port) -> Self {
        let begin = port.0.wrapping_mul(0x9E37_79B1) & !KEEPS_INTENTS;
        let step = u32::try_from(shards).expect("shards have 16-bit ids");
        // Rounded down to a multiple of the step: shards of one table stay interleaved.
        Nonces { next: Cell::new(begin / step * step + u32::from(shard.0)), step }
    }

    pub(crate) fn next(&self) -> u32 {
        let nonce = self.next.get();
        self.next.set(nonce.wrapping_add(self.step) & !KEEPS_INTENTS);
        nonce
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn fields_come_back() {
        for (owner, tag, nonce) in [(1, 0, 0), (u16::MAX, u16::MAX, u32::MAX), (7, 0x1234, 0x89AB_CDEF)] {
            let word = LockWord::new(owner, tag, nonce);
            assert_eq!((word.owner(), word.tag(), word.nonce()), (owner, tag, nonce));
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
    fn tags_tell_indexes_apart_and_0_tells_nothing() {
        let tags: HashSet<u16> = (0..u32::from(u16::MAX)).map(|id| tag_of(IndexId(id))).collect();
        assert!(tags.len() == usize::from(u16::MAX) && !tags.contains(&0));
        assert_eq!(tag_of(IndexId(3)), tag_of(IndexId(3 + u32::from(u16::MAX))));
        let word = |tag| LockWord::new(1, tag, 1);
        assert!(word(2).is_of_other_index(3));
        assert!(!word(3).is_of_other_index(3) && !word(0).is_of_other_index(3));
    }

    #[test]
    fn a_word_over_a_leftover_has_no_tag() {
        let leftover = LockWord::new(7, 3, 1).to_bits();
        for codec in [WordCodec::PLAIN, WordCodec::carrying(48)] {
            let claim = Claim { word: LockWord::new(8, 5, 77), vacant: FREE };
            assert!(claim.starting_from(FREE, codec) == claim && !claim.takes_over(codec));
            let over = claim.starting_from(leftover, codec);
            assert_eq!(over, Claim { word: LockWord::new(8, 0, 77), vacant: leftover });
            assert!(over.takes_over(codec));
            let free_again = Claim { word: LockWord::new(8, 0, 77), vacant: FREE };
            assert_eq!(over.starting_from(FREE, codec), free_again);
        }
    }

    #[test]
    fn a_bit_of_the_nonce_says_that_intents_are_kept() {
        let word = LockWord::new(7, 3, 9);
        assert!(!word.keeps_intents() && word.with_intents().keeps_intents());
        assert_eq!(word.with_intents().to_bits(), 0x0007_0003_8000_0009);
        assert!(word.with_intents().without_tag().keeps_intents());
    }

    #[test]
    fn no_nonce_says_that_intents_are_kept() {
        // The last nonces before they begin anew.
        let nonces = Nonces { next: Cell::new(KEEPS_INTENTS - 3), step: 2 };
        assert!((0..5).all(|_| nonces.next() & KEEPS_INTENTS == 0));
        assert!((0..40).all(|port| Nonces::new(ShardId(1), 2, Port(port)).next() & KEEPS_INTENTS == 0));
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
