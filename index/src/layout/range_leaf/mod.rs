//! Leaves of Dolphin's (its paper, section III-A and figure 3): the keys of one range, unsorted, in an array of keys
//! and an array of values.
//!
//! ```text
//! line    | control | word 0 | word 1 | .. | word 6 |                      16 lines are a leaf of 1 KiB
//!
//! control 63      56 55                16 15         0
//!         +---------+--------------------+-----------+
//!         | kind    | 0                  | NV        |                     in every line
//!         +---------+--------------------+-----------+
//! words   | lock | presence, P words | next | bounds | low | high |     then keys, then, in lines of their own, values
//! bounds  63         33   32   31         16 15          0
//!         +------------+--------+-------------+-------------+
//!         | 0          | reused | high length | low length  |
//!         +------------+--------+-------------+-------------+
//! key     | head | key without its first byte, as in slot.rs |            whole words, in a line if they fit into one
//! head    7     6 5             4           3    0
//!         +------+-------------+-----------+------+
//!         | state| value short | key short | 0    |
//!         +------+-------------+-----------+------+
//! value   | as in slot.rs |                                              whole words, in a line if they fit into one
//! ```
//!
//! Lock and presence are `farwood_lock::shared`'s. The first line's kind says whether the leaf is one of the tree
//! (`standing.rs`). `next` is the leaf that was split off last: it begins where this one ends. A leaf is *reused* if
//! another one was in its memory before. All keys of a leaf have the first byte of its lower bound, so a head costs no
//! word where keys have 8 bytes.
//! The empty key has a leaf of its own, from the empty key to the key of one zero byte.
//!
//! # Writes, and what a reader may meet
//!
//! Clients that share the lock change values alone, each by one WRITE within a line ([`RangeLayout::write_value`]). A
//! client that has the lock alone fills a vacant slot, the value first, or marks a key as removed, by WRITEs within
//! lines. All else is a write of the whole leaf, which increments NV in every line: also where a key or value does not
//! fit into a line, or a value's length changes its bit in the head.
//!
//! | state | | next |
//! |---|---|---|
//! | vacant | no key; nor have the slots behind it | present |
//! | present | | removed |
//! | removed | the slot is that key's still | none, until the leaf is written whole |
//!
//! A removed key that comes back takes a write of the whole leaf: a reader that has seen it present before would read
//! the new value before the key is there.
//!
//! ```text
//!   writer   key 3: removed        value 3        key 3: present
//!   reader      keys: 3 was present         values: the new one, too early
//! ```
//!
//! So of READs of one NV a reader can say: a slot that was vacant has got at most one key since, and a slot's key is
//! always the same. It reads the values behind the keys: then a value is as new as the slot that it saw present.
//!
//! ```text
//!   writer   value 3        key 3
//!   reader                           keys: 3 is present      values: 3 is there
//! ```
//!
//! The first line has the lock's words, which a write of the leaf must not touch, so it takes two WRITEs, and NV is
//! none ([`RangeLayout::TORN`]) in between:
//!
//! ```text
//!   writer   line 0: NV = none      all but line 0's begin      line 0: NV = new
//! ```
//!
//! This module does not know locks, nor why clients write.

mod patch;
mod slot;
mod standing;
#[cfg(test)]
mod tests;
mod view;

use std::ops::Range;

use super::radix::Child;
use super::version::NodeVersion;
use super::{LayoutError, LineRanges, MAX_NODE_BYTES, MAX_VALUE_BYTES, MIN_SLOTS, check_key_bytes};
use crate::layout::LINE_BYTES;

pub use slot::State;
pub use standing::{Standing, heir_of};
pub use view::{RangeFound, RangeView};

const WORD_BYTES: usize = 8;
/// Words of a line, without its control word.
const LINE_WORDS: usize = LINE_BYTES / WORD_BYTES - 1;
/// The words before the bounds' keys that are no presence words: lock, next, bounds.
const FIXED_WORDS: usize = 3;
const UNBOUNDED: u16 = u16::MAX;
/// The bit of the bounds word that says whether the leaf is reused.
const REUSED: u64 = 1 << 32;

/// The sizes of an index's leaves, from which the place of each field follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeLayout {
    presence_words: usize,
    max_key: usize,
    max_value: usize,
    slots: usize,
    lines: usize,
}

/// The content of a leaf that is written whole, beside its pairs.
#[derive(Clone, Copy, Debug)]
pub struct RangeHeader<'a> {
    /// The version of this write of the whole leaf.
    pub version: NodeVersion,
    /// The leaf that begins at `high`, if one was split off.
    pub next: Option<Child>,
    /// The least key that the leaf may have.
    pub low: &'a [u8],
    /// The least key beyond it, if there is one.
    pub high: Option<&'a [u8]>,
    /// True if another leaf was in this memory before.
    pub is_reused: bool,
}

impl RangeLayout {
    /// The most presence words: they are in the first line, with the lock and the link.
    pub const PRESENCE_WORDS_MAX: usize = LINE_WORDS - 2;

    /// The first word of a leaf that is being written whole.
    pub const TORN: u64 = (standing::LIVE as u64) << 56 | u16::MAX as u64;

    /// Makes a layout of leaves of so many bytes for keys and values of up to `max_key` and `max_value` bytes, with
    /// `presence_words` words behind the lock.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(1024, 1, 8, 8)?.slots(), 50);
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
        let with = |slots| RangeLayout { presence_words, max_key, max_value, slots, lines };
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
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(256, 1, 8, 8)?.slots(), 8);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Counts the bytes of a leaf.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(256, 1, 8, 8)?.node_bytes(), 256);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn node_bytes(&self) -> usize {
        self.lines * LINE_BYTES
    }

    /// Yields where the lock's words are: the first part of a leaf that a client reads that wants the lock.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(256, 1, 8, 8)?.lock(), 8..24);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn lock(&self) -> Range<usize> {
        at(0)..at(0) + (1 + self.presence_words) * WORD_BYTES
    }

    /// Yields what a write of the whole leaf sends, after [`RangeLayout::TORN`] to its first word, in this order.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(256, 1, 8, 8)?.whole(), [24..256, 0..8]);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn whole(&self) -> [Range<usize>; 2] {
        [self.lock().end..self.node_bytes(), 0..WORD_BYTES]
    }

    /// Yields the part of a leaf without its values: what an update reads.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(1024, 1, 8, 8)?.key_part(), 0..512);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn key_part(&self) -> Range<usize> {
        0..self.key_lines() * LINE_BYTES
    }

    /// Yields the parts of a leaf, in this order, for a client that wants the lock: what it reads of the first part is
    /// older than what it reads of the others.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// let layout = RangeLayout::new(1024, 1, 8, 8)?;
    /// assert_eq!(layout.parts(false)[..], [0..64, 64..512]);
    /// assert_eq!(layout.parts(true)[..], [0..64, 64..1024]);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn parts(&self, with_values: bool) -> LineRanges {
        let end = if with_values { self.node_bytes() } else { self.key_part().end };
        [0..LINE_BYTES, LINE_BYTES..end].into_iter().filter(|part| !part.is_empty()).collect()
    }

    /// Yields where the first word of a slot's key is, with its head.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(1024, 1, 8, 8)?.key_at(0), 56);
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn key_at(&self, slot: usize) -> usize {
        at(self.key_word(slot))
    }

    /// Yields where the value of a slot is. If it takes several lines, their control words are among these bytes.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert_eq!(RangeLayout::new(1024, 1, 8, 8)?.value(0), 520..528);
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
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert!(RangeLayout::new(1024, 1, 8, 56)?.has_whole_values());
    /// assert!(!RangeLayout::new(1024, 1, 8, 57)?.has_whole_values());
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn has_whole_values(&self) -> bool {
        self.value_words() <= LINE_WORDS
    }

    /// Tells whether a key is within a line, so that a vacant slot can be filled without writing the whole leaf.
    ///
    /// ```
    /// # use farwood_index::layout::range_leaf::RangeLayout;
    /// assert!(RangeLayout::new(1024, 1, 56, 8)?.has_whole_keys());
    /// assert!(!RangeLayout::new(1024, 1, 57, 8)?.has_whole_keys());
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    pub fn has_whole_keys(&self) -> bool {
        self.key_words() <= LINE_WORDS
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
        place(self.bounds_word() + 1 + 2 * self.bound_words(), self.key_words(), slot)
    }

    /// Counts the lines of the key part.
    fn key_lines(&self) -> usize {
        match self.slots.checked_sub(1) {
            Some(last) => (self.key_word(last) + self.key_words()).div_ceil(LINE_WORDS),
            None => self.key_word(0).div_ceil(LINE_WORDS),
        }
    }

    fn value_word(&self, slot: usize) -> usize {
        place(self.key_lines() * LINE_WORDS, self.value_words(), slot)
    }

    fn lines_needed(&self) -> usize {
        match self.slots.checked_sub(1).filter(|_| self.value_words() > 0) {
            Some(last) => (self.value_word(last) + self.value_words()).div_ceil(LINE_WORDS),
            None => self.key_lines(),
        }
    }
}

/// Yields the first word of element `index` of an array from word `first` on, of so many words each. None crosses a
/// line that fits into one.
fn place(first: usize, words: usize, index: usize) -> usize {
    match LINE_WORDS.checked_div(words) {
        Some(1..) if words > 1 => {
            let per_line = LINE_WORDS / words;
            let taken = (first % LINE_WORDS).div_ceil(words).min(per_line);
            let index = index + taken;
            first / LINE_WORDS * LINE_WORDS + index / per_line * LINE_WORDS + index % per_line * words
        }
        _ => first + index * words,
    }
}

/// Yields the offset of a word in the image.
fn at(word: usize) -> usize {
    word / LINE_WORDS * LINE_BYTES + (1 + word % LINE_WORDS) * WORD_BYTES
}

/// Counts the first bytes of a key that are not stored, since all keys of a leaf share them: none of the empty key.
fn unstored(key: &[u8]) -> usize {
    key.len().min(1)
}
