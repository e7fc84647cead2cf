//! Changing a copy where it lies, while others read it. Knows one copy and nothing of where else copies are; what
//! does not fit in its bits is for the caller to pack anew.
//!
//! ```text
//! writer:  new slot's bits, beyond the claimed slots ..         shape with one more claimed slot (Release)
//! reader:  shape (Acquire)   bits of claimed slots ..   fence   shape: the same?
//! ```
//!
//! A claimed slot changes only by a single store, of the word that has all of its value; its partial and whether it
//! is the key's end stay. A reader loads a value once. If the second look at the shape, which counts the slots, finds
//! it as before, no slot was added from before the value was read until after: all that was read was so then.

use super::slot::{self, END};
use super::{CHILD, CHILD_SERVER_SHIFT, Copy, OFFSET_MASK, SERVER_MASK, SERVER_WIDTHS, bits};

/// The outcome of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::radix) enum Change {
    /// The copy says so now.
    Made,
    /// It said so before, or it lacks slots before that one.
    None,
    /// It has no room for it.
    DoesNotFit,
}

impl Copy<'_> {
    /// Tells whether it would change the copy: the slot is claimed and differs, or would be the next one.
    pub(in crate::radix) fn is_news(&self, index: usize, word: u64) -> bool {
        index == self.claimed() || index < self.claimed() && self.slot(index) != word
    }

    /// Tells whether slots may be added where the copy lies, or could be before it was full.
    pub(in crate::radix) fn is_growing(&self) -> bool {
        self.shape.kind_code != 0 && self.shape.kind != 0
    }

    /// Sets slot `index` to `word`, which must be sound. Only under the writer lock; this view of the copy is
    /// out of date afterwards.
    pub(in crate::radix) fn change(&self, index: usize, word: u64) -> Change {
        if !self.is_news(index, word) {
            return Change::None;
        }
        let done = if index == self.claimed() { self.append(word) } else { self.replace(index, word) };
        if done { Change::Made } else { Change::DoesNotFit }
    }

    fn append(&self, word: u64) -> bool {
        let index = self.claimed();
        if index >= self.shape.room() {
            return false;
        }
        let Some(number) = self.number_of(slot::kind(word)) else { return false };
        let Some(value) = self.value_of(number, word & CHILD) else { return false };
        // A reader that sees the old shape looks at none of these bits.
        let kind_at = self.kinds_at() + number * 8;
        bits::write(self.words, kind_at, u64::from(slot::kind(word)), 8);
        bits::write(self.words, self.partials_at() + index * 8, u64::from(slot::partial(word)), 8);
        bits::write(self.words, self.value_at(index), value, self.value_width());
        let end = u32::from(word & END != 0) << 21;
        bits::write(self.words, self.at + 64, u64::from((self.shape_word + 1) | end), 32);
        true
    }

    fn replace(&self, index: usize, word: u64) -> bool {
        let old = self.slot(index);
        let stays = (old ^ word) & (END | 0xFF << slot::PARTIAL_SHIFT) == 0;
        let (at, width) = (self.value_at(index), self.value_width());
        if !stays || !bits::is_one_word(at, width) {
            return false;
        }
        let Some(number) = self.number_of(slot::kind(word)) else { return false };
        let Some(value) = self.value_of(number, word & CHILD) else { return false };
        if self.shape.kind_code != 0 {
            // Before the value that has its number, and so seen by all readers that see that.
            bits::write(self.words, self.kinds_at() + number * 8, u64::from(slot::kind(word)), 8);
        }
        bits::write(self.words, at, value, width);
        true
    }

    /// Yields the number of a kind, if it has one or can get one.
    fn number_of(&self, kind: u8) -> Option<usize> {
        if self.shape.kind_code == 0 {
            return (self.shape.kind == kind).then_some(0);
        }
        let numbers = 1 << self.shape.kind_width();
        // Unused ones, which are behind all others, repeat the first.
        let listed = (0..numbers).find(|number| self.listed_kind(*number) == kind);
        listed.or_else(|| (1..numbers).find(|number| self.listed_kind(*number) == self.listed_kind(0)))
    }

    /// Yields the value of a slot with this child, if it fits into as many bits as there are.
    fn value_of(&self, number: usize, child: u64) -> Option<u64> {
        let base = self.base();
        let server = (child >> CHILD_SERVER_SHIFT).wrapping_sub(base >> CHILD_SERVER_SHIFT) & SERVER_MASK;
        let offset = (child.wrapping_sub(base) & OFFSET_MASK) >> self.shape.stride;
        let is_null = self.shape.null && child == 0;
        let (server, offset) = if is_null { (0, 0) } else { (server, offset) };
        let too_wide =
            server >> SERVER_WIDTHS[self.shape.server_code] != 0 || offset >> self.shape.offset_width != 0;
        let value = (server << self.shape.offset_width | offset) << self.shape.kind_width() | number as u64;
        // Decoded as a reader would: an odd offset may not fit, nor the base itself where 0 is no child.
        (!too_wide && self.child(value) == child).then_some(value)
    }

    fn value_width(&self) -> u32 {
        self.shape.kind_width() + self.shape.child_width()
    }
}
