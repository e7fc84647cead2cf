//! The data that a free lock's word may carry, and how that word is told from a held one. Pure.
//!
//! ```text
//!  63            48 47                                             0
//! +----------------+------------------------------------------------+
//! | owner, not 0   | index tag, nonce (`word`)                      |  held
//! +----------------+------------------------------------------------+
//! | 0              | payload, 0 in the lock region                  |  free
//! +----------------+------------------------------------------------+
//! ```
//!
//! [`WordCodec::PLAIN`] is every lock's codec unless a table is told otherwise: a free word is 0. A codec that carries
//! bits keeps a *payload* in the free words that lie in nodes, such as CHIME's vacancy bitmap (section 4.2.1). Words of
//! the lock region are plain in any case: nodes and indexes share them, so they belong to no node.
//!
//! The payload is the holder's. The CAS that takes the lock brings it and puts the held word in its place; the release
//! gives a new one ([`crate::Held::set_payload`]). It says of the node what is true whenever the lock is free.
//!
//! # A taker has to guess
//!
//! A CAS compares all 64 bits (CHIME's compares one, but few NICs have masked CAS). A taker that assumes another
//! payload than there is loses one round trip, and then knows it:
//!
//! ```text
//!   taker    CAS 3 -> t: finds 5, free     CAS 5 -> t: taken, with 5
//!   other                              CAS 5 -> o, WRITE, unlock: WRITE 6       the second CAS finds 6: once more
//! ```
//!
//! Each further attempt means that another client has had the lock in between, and counts against the budgets of waits.
//! A payload that went away and has come back is as good as one that stayed: the node's data is read behind the CAS.
//!
//! # What becomes of the payload when something fails
//!
//! It travels with the claim (`word::Claim::vacant`): what the CAS starts from, and from the release on what the unlock
//! writes. So the client or janitor that settles a claim knows it, and only has to compare memory with the held word,
//! which no payload equals.
//!
//! - A CAS of unknown outcome. An attempt starts from another payload only after a CAS has said what it found, and what
//!   it found was free: no attempt before it has taken the lock, nor will, since nothing of a failed chain takes effect
//!   later. So one that finds its own word was preceded by one from the very same payload:
//!
//! ```text
//!   taker    CAS 3 -> t: finds 5     CAS 5 -> t ✗ took effect, or not     CAS 5 -> t: finds t: taken, with 5
//!                                                                                     finds 5: taken, with 5
//!                                                                                     finds 6: free, next from 6
//! ```
//!
//! - A holder that is dropped before its release has changed nothing: the janitor puts back what the CAS found, also
//!   if [`crate::Held::set_payload`] was called.
//! - A release that is dropped or fails is completed, write-back and unlock (`janitor`), so the new payload belongs to
//!   the node:
//!
//! ```text
//!   holder    CAS 5 -> t     WRITE node, unlock: WRITE 6 ✗ ─> READ word: t ─> WRITE node, WRITE 6
//!                                                                     6, or another's ─> done
//! ```
//!
//!   A write-back that cannot be redone (it has an atomic in it, or is refused) is of unknown effect, and the new
//!   payload is written without it. An index that releases so takes payloads for advice.
//! - A lock that is handed over brings the payload along (`message`): in memory there is the held word.
//!
//! ```text
//!   holder    CAS 5 -> t    WRITE node (6), the word stays t ─> tells 6
//!   next, same compute node                                       READ node ─> WRITE node (7), unlock: WRITE 7
//! ```
//!
//!   If the next one is gone when it is told, the home's janitor writes 6.
//! - A holder that dies leaves its word, and the payload dies with it. No client passes over a word within a node
//!   (leftovers are of the lock region), so no CAS starts from a payload that is lost. A repair of such a node has to
//!   count its vacancies anew.
//!
//! # No counts
//!
//! A payload is the holder's: what several clients change at a time, such as the count of those that share a lock,
//! is none. Locks that are shared have words of their own behind this one ([`crate::shared`]).

use super::LockWord;

/// The codec of lock words within nodes, whose free ones carry some bits of data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WordCodec {
    /// The largest payload: every word above it is held.
    payload_max: u64,
}

impl WordCodec {
    /// The most bits that a free word carries: those beside the owner's.
    pub const PAYLOAD_BITS_MAX: u32 = 48;
    /// Free words carry nothing: they are 0.
    pub const PLAIN: WordCodec = WordCodec::carrying(0);

    /// Makes a codec whose free words carry payloads of `bits` bits.
    ///
    /// ```
    /// # use farwood_lock::WordCodec;
    /// assert_eq!(WordCodec::carrying(16).payload_max(), 65_535);
    /// ```
    ///
    /// # Panics
    /// If that is more than [`WordCodec::PAYLOAD_BITS_MAX`].
    pub const fn carrying(bits: u32) -> Self {
        assert!(bits <= WordCodec::PAYLOAD_BITS_MAX, "the owner's bits tell held words from free ones");
        WordCodec { payload_max: (1 << bits) - 1 }
    }

    /// Yields the holder of the lock that has this word. `None` if it is free: then the word is its payload.
    ///
    /// ```
    /// # use farwood_lock::{LockWord, WordCodec};
    /// let (codec, word) = (WordCodec::carrying(16), LockWord::new(7, 1, 9));
    /// assert_eq!(codec.holder(word.to_bits()), Some(word));
    /// assert_eq!((codec.holder(65_535), codec.holder(65_536).is_some()), (None, true));
    /// ```
    pub fn holder(self, word: u64) -> Option<LockWord> {
        if self.is_free(word) { None } else { LockWord::from_bits(word) }
    }

    /// Yields the largest payload.
    ///
    /// ```
    /// # use farwood_lock::WordCodec;
    /// assert_eq!(WordCodec::PLAIN.payload_max(), 0);
    /// ```
    pub fn payload_max(self) -> u64 {
        self.payload_max
    }

    #[inline]
    pub(crate) fn is_free(self, word: u64) -> bool {
        word <= self.payload_max
    }
}

impl Default for WordCodec {
    fn default() -> Self {
        WordCodec::PLAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::{Claim, FREE};

    #[test]
    fn a_plain_free_word_is_0_and_every_other_one_is_held() {
        assert_eq!(WordCodec::default(), WordCodec::PLAIN);
        assert_eq!(WordCodec::PLAIN.holder(FREE), None);
        for word in (1..1000).chain([1 << 48, u64::MAX]) {
            assert_eq!(WordCodec::PLAIN.holder(word), LockWord::from_bits(word));
        }
    }

    /// All payloads and all held words of small fields: a payload taken from a free word goes back to one, and no word
    /// is both.
    #[test]
    fn every_payload_comes_back_from_every_held_word() {
        for bits in 0..=4 {
            let codec = WordCodec::carrying(bits);
            assert_eq!(codec.payload_max() + 1, 1 << bits);
            let held = (1..4).flat_map(|owner| (0..3).map(move |tag| (owner, tag)));
            let held =
                held.flat_map(|(owner, tag)| (0..4).map(move |nonce| LockWord::new(owner, tag, nonce)));
            for word in held {
                assert_eq!(codec.holder(word.to_bits()), Some(word));
                for payload in 0..1 << bits {
                    assert_eq!(codec.holder(payload), None);
                    let claim = Claim { word, vacant: payload };
                    assert!(claim.wins(payload) && claim.wins(word.to_bits()) && !claim.takes_over(codec));
                    for other in (0..1 << bits).filter(|&other| other != payload) {
                        assert!(!claim.wins(other));
                        let next = claim.starting_from(other, codec);
                        assert_eq!(next, Claim { word, vacant: other }, "the same acquisition");
                        assert!(next.wins(other) && !next.wins(payload));
                    }
                }
            }
            // No client writes such words. They are no payload, so they are not free.
            assert!(codec.holder(1 << bits).is_some());
        }
    }

    #[test]
    fn the_largest_payload_leaves_the_owner_alone() {
        let codec = WordCodec::carrying(WordCodec::PAYLOAD_BITS_MAX);
        assert_eq!(codec.holder((1 << 48) - 1), None);
        let least = LockWord::new(1, 0, 0);
        assert_eq!(codec.holder(least.to_bits()), Some(least));
    }

    #[test]
    #[should_panic(expected = "tell held words from free ones")]
    fn refuses_payloads_that_reach_into_the_owner() {
        let _ = WordCodec::carrying(49);
    }
}
