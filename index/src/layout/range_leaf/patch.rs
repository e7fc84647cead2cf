//! Changes of single slots, in an image, and the ranges of it that a writer sends. It does not know who may do what.

use smallvec::smallvec;

use super::slot::{State, VALUE_SHORT, fill, key_slot};
use super::{RangeLayout, WORD_BYTES, at, unstored};
use crate::layout::{Bytes, Patch};

impl RangeLayout {
    /// Writes a pair into a slot of the image that is vacant. The last range has the head, which makes the pair
    /// visible. `None` if only a write of the whole leaf can bring the pair, or the slot is not vacant: then nothing
    /// is changed.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let patch = layout.write_pair(&mut image, 1, b"asta", b"2").expect("it has lines of its own");
    /// assert_eq!(patch[..], [layout.value(1), layout.key_at(1)..layout.key_at(1) + 8]);
    /// # });
    /// ```
    pub fn write_pair(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8]) -> Option<Patch> {
        let is_vacant = State::of(image[self.key_at(slot)]) == State::Vacant;
        if !(self.has_whole_keys() && self.has_whole_values() && is_vacant) {
            return None;
        }
        self.put_pair(image, slot, &key[unstored(key)..], value);
        let mut patch = Patch::new();
        if self.value_words() > 0 {
            patch.push(self.value(slot));
        }
        let first = self.key_at(slot);
        let behind = first + WORD_BYTES..at(self.key_word(slot) + self.key_words() - 1) + WORD_BYTES;
        if !behind.is_empty() {
            patch.push(behind);
        }
        patch.push(first..first + WORD_BYTES);
        Some(patch)
    }

    /// Writes the value of a slot. `None` if only a write of the whole leaf can bring it: then nothing is changed.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(layout.write_value(&mut image, 0, b"2").expect("as long")[..], [layout.value(0)]);
    /// assert_eq!(layout.write_value(&mut image, 0, b"12345678"), None);
    /// # });
    /// ```
    pub fn write_value(&self, image: &mut [u8], slot: usize, value: &[u8]) -> Option<Patch> {
        let was_short = image[self.key_at(slot)] & VALUE_SHORT != 0;
        let is_short = value.len() < self.value_words() * WORD_BYTES;
        if is_short != was_short || !self.has_whole_values() {
            return None;
        }
        self.put_value(image, slot, value);
        Some(if self.value_words() == 0 { Patch::new() } else { smallvec![self.value(slot)] })
    }

    /// Marks the key of a slot as removed.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// layout.remove(&mut image, 0);
    /// assert_eq!(layout.parse(&image)?.find(b"anna"), RangeFound::Slot { slot: 0, is_present: false });
    /// # });
    /// ```
    pub fn remove(&self, image: &mut [u8], slot: usize) -> Patch {
        let first = self.key_at(slot);
        image[first] = State::Removed.put(image[first]);
        smallvec![first..first + WORD_BYTES]
    }

    pub(super) fn put_pair(&self, image: &mut [u8], slot: usize, stored_key: &[u8], value: &[u8]) {
        let short = self.put_value(image, slot, value);
        let key = key_slot(stored_key, self.key_words() * WORD_BYTES, State::Present, short);
        self.put_bytes(image, self.key_word(slot), &key);
    }

    /// Puts a value into its place; yields whether it is a short one.
    fn put_value(&self, image: &mut [u8], slot: usize, value: &[u8]) -> bool {
        let mut bytes = Bytes::from_elem(0, self.value_words() * WORD_BYTES);
        let short = fill(&mut bytes, value);
        self.put_bytes(image, self.value_word(slot), &bytes);
        short
    }
}
