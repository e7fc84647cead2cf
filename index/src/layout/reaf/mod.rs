//! Leaves of Dolphin's (its paper, section III-A and figure 3): keys of one prefix and one range, unsorted, in an array of
//! keys and an array of values.
//!
//! ```text
//! line    | control | word 0 | word 1 | .. | word 6 |                      16 lines are a leaf of 1 KiB
//!
//! control 63      56 55                16 15         0
//!         +---------+--------------------+-----------+
//!         | kind    | 0                  | NV        |                     in every line
//!         +---------+--------------------+-----------+
//! words   | lock | presence, P words | link | bounds | low | high |         then the keys, then, in lines of their own, the values
//! bounds  63      48 47      32 31         16 15          0
//!         +---------+----------+-------------+-------------+
//!         | 0       | depth    | high length | low length  |
//!         +---------+----------+-------------+-------------+
//! key     | head | key without its first `depth` bytes, as in slot.rs   |     whole words
//! head    7     6 5             4           3    0
//!         +------+-------------+-----------+------+
//!         | state| value short | key short | 0    |
//!         +------+-------------+-----------+------+
//! value   | as in slot.rs |                                                 whole words, in one line if they fit into one
//! ```
//!
//! Lock and presence are `farwood_lock::shared`'s. The link is the reverse pointer, as of the radix tree's nodes
//! ([`Link`]). A leaf hangs below at least one byte of its keys (`depth`), so a head costs no word where keys have 8 bytes.
//!
//! Clients that share the lock change single words and values: a *value write* is one WRITE within a line, or is made
//! alone if a value takes several. The length of a value is half in the head, which a value write does not touch. So one
//! that makes a short value of a full one, or the reverse, is made alone, too ([`ReafLayout::write_value`]).
//!
//! | state | | next |
//! |---|---|---|
//! | vacant | no key | claimed by CAS, the first vacant slot only |
//! | claimed | a key that no reader may see, since its value is not there yet | present, by its client |
//! | present | | removed |
//! | removed | the slot is that key's still, until the leaf is rewritten | present |
//!
//! A leaf is rewritten by a client that has the lock alone: it compacts, splits, and increments NV in every line. Slots are
//! claimed in order and never vacated otherwise. So a client whose CAS takes a slot that it has read as vacant knows that
//! no other client has put its key elsewhere meanwhile:
//!
//! ```text
//!   first    READ: slot 3 is vacant       CAS slot 3: k               one of the two wins; the other one reads again
//!   second        READ: slot 3 is vacant          CAS slot 3: k
//! ```
//!
//! This module does not know locks, nor why clients write.

mod patch;
mod slot;
#[cfg(test)]
mod tests;
mod view;

use std::ops::Range;

use super::radix::Link;
use super::version::NodeVersion;
use super::{LayoutError, MAX_NODE_BYTES, MAX_VALUE_BYTES, MIN_SLOTS, check_key_bytes};
use crate::layout::LINE_BYTES;

pub use slot::State;
pub use view::{ReafFound, ReafView};

const WORD_BYTES: usize = 8;
/// Words of a line, without its control word.
const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES - 1;
/// The words before the bounds' keys that are no presence words: lock, link, bounds.
const FIXED_WORDS: usize = 3;
const UNBOUNDED: u16 = u16::MAX;

/// The sizes of an index's leaves, from which the place of each field follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReafLayout {
    presence_words: usize,
    max_key: usize,
    max_value: usize,
    slots: usize,
    lines: usize,
}

/// The content of a leaf that is written whole.
#[derive(Clone, Copy, Debug)]
pub struct ReafHeader<'a> {
    /// The version of this write of the whole leaf.
    pub version: NodeVersion,
    /// Bytes that all keys share with `low`, and that are not stored: at least 1.
    pub depth: usize,
    /// The reverse pointer.
    pub link: Link,
    /// The least key that the leaf may have.
    pub low: &'a [u8],
    /// The least key beyond it, if there is one.
    pub high: Option<&'a [u8]>,
}

impl ReafLayout {
    /// The most presence words: they are in the first line, with the lock and the link.
    pub const PRESENCE_WORDS_MAX: usize = LINE_WORDS - 2;

    /// Makes a layout of leaves of so many bytes for keys and values of up to `max_key` and `max_value` bytes, with
    /// `presence_words` words behind the lock.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(1024, 1, 8, 8)?.slots(), 50);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size is out of range, or fewer than two entries fit.
    ///
    /// # Panics
    /// If there are more presence words than a line takes.
    pub fn new(
        node_bytes: usize,
        presence_words: usize,
        max_key: usize,
        max_value: usize,
    ) -> Result<Self, LayoutError> {
        assert!(presence_words <= Self::PRESENCE_WORDS_MAX, "presence words are in the first line");
        check_key_bytes(max_key)?;
        if max_value > MAX_VALUE_BYTES {
            return Err(LayoutError::ValueBytes { max_value });
        }
        let lines = node_bytes / LINE_BYTES;
        if lines == 0 || !node_bytes.is_multiple_of(LINE_BYTES) || node_bytes > MAX_NODE_BYTES {
            return Err(LayoutError::NodeBytes { node_bytes });
        }
        let with = |slots| ReafLayout { presence_words, max_key, max_value, slots, lines };
        let most = lines * LINE_WORDS;
        let slots = (0..=most).rfind(|&slots| with(slots).lines_needed() <= lines).unwrap_or(0);
        if slots < MIN_SLOTS {
            let least_node_bytes = with(MIN_SLOTS).lines_needed() * LINE_BYTES;
            return Err(LayoutError::TooFewSlots { node_bytes, slots, least: MIN_SLOTS, least_node_bytes });
        }
        Ok(with(slots))
    }

    /// Counts the slots of a leaf.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(256, 1, 8, 8)?.slots(), 8);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Counts the bytes of a leaf.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(256, 1, 8, 8)?.node_bytes(), 256);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn node_bytes(&self) -> usize {
        self.lines * LINE_BYTES
    }

    /// Yields where the lock's words are: the first part of a leaf that a client reads that wants the lock.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(256, 1, 8, 8)?.lock(), 8..24);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn lock(&self) -> Range<usize> {
        at(0)..at(0) + (1 + self.presence_words) * WORD_BYTES
    }

    /// Yields where the link is: the word that a CAS changes when the leaf gets another parent.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(256, 1, 8, 8)?.link_at(), 24);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn link_at(&self) -> usize {
        at(1 + self.presence_words)
    }

    /// Yields the part of a leaf without its values: what an update reads.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(1024, 1, 8, 8)?.key_part(), 0..512);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn key_part(&self) -> Range<usize> {
        0..self.key_lines() * LINE_BYTES
    }

    /// Yields where the first word of a slot's key is: the one that a CAS changes.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(1024, 1, 8, 8)?.key_at(0), 56);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn key_at(&self, slot: usize) -> usize {
        at(self.key_word(slot))
    }

    /// Yields where the value of a slot is. If it takes several lines, their control words are among these bytes.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert_eq!(ReafLayout::new(1024, 1, 8, 8)?.value(0), 520..528);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn value(&self, slot: usize) -> Range<usize> {
        let words = self.value_words();
        if words == 0 {
            return 0..0;
        }
        let first = self.value_word(slot);
        at(first)..at(first + words - 1) + WORD_BYTES
    }

    /// Tells whether a value is within a line, so that clients that share the lock may write it.
    ///
    /// ```
    /// # use farwood_index::layout::reaf::ReafLayout;
    /// assert!(ReafLayout::new(1024, 1, 8, 56)?.has_whole_values());
    /// assert!(!ReafLayout::new(1024, 1, 8, 57)?.has_whole_values());
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn has_whole_values(&self) -> bool {
        self.value_words() <= LINE_WORDS
    }

    /// Words of a key: one byte of them is the head, and one byte of each key at least is not stored.
    fn key_words(&self) -> usize {
        self.max_key.div_ceil(WORD_BYTES)
    }

    fn value_words(&self) -> usize {
        self.max_value.div_ceil(WORD_BYTES)
    }

    /// Words of a bound.
    fn bound_words(&self) -> usize {
        self.max_key.div_ceil(WORD_BYTES)
    }

    /// Yields the place of the bounds: their lengths, then low, then high.
    fn bounds_word(&self) -> usize {
        self.presence_words + FIXED_WORDS - 1
    }

    fn key_word(&self, slot: usize) -> usize {
        self.bounds_word() + 1 + 2 * self.bound_words() + slot * self.key_words()
    }

    /// Counts the lines of the key part.
    fn key_lines(&self) -> usize {
        self.key_word(self.slots).div_ceil(LINE_WORDS)
    }

    fn value_word(&self, slot: usize) -> usize {
        let (first, words) = (self.key_lines() * LINE_WORDS, self.value_words());
        match LINE_WORDS.checked_div(words) {
            // They cross lines, or take nothing.
            Some(0) | None => first + slot * words,
            Some(per_line) => first + slot / per_line * LINE_WORDS + slot % per_line * words,
        }
    }

    fn lines_needed(&self) -> usize {
        match self.slots.checked_sub(1).filter(|_| self.value_words() > 0) {
            Some(last) => (self.value_word(last) + self.value_words()).div_ceil(LINE_WORDS),
            None => self.key_lines(),
        }
    }
}

/// Yields the offset of a word in the image.
fn at(word: usize) -> usize {
    word / LINE_WORDS * LINE_BYTES + (1 + word % LINE_WORDS) * WORD_BYTES
}
