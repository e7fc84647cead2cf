//! Changes of single slots, in an image, and the ranges of it that a writer sends. It does not know who may do what.

use std::ops::Range;

use smallvec::smallvec;

use super::slot::{Scratch, State, VALUE_SHORT, fill, filled, key_slot};
use super::standing::LIVE;
use super::{LINE_WORDS, RangeLayout, WORD_BYTES, at, unstored};
use crate::layout::{LINE_BYTES, Malformed, NodeVersion, Patch, Rejection};

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

    /// Puts a pair into a slot of the image, whatever it has been, and makes the image that of the next write of the
    /// whole leaf.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// layout.rewrite_pair(&mut image, 0, b"anna", b"12345678");
    /// let leaf = layout.parse(&image)?;
    /// assert_eq!((leaf.version().number(), &leaf.value(0)?[..]), (8, &b"12345678"[..]));
    /// # });
    /// ```
    pub fn rewrite_pair(&self, image: &mut [u8], slot: usize, key: &[u8], value: &[u8]) {
        self.put_pair(image, slot, &key[unstored(key)..], value);
        let control = u64::from_le_bytes(*image.first_chunk().expect("8 bytes"));
        self.put_version(image, NodeVersion::new(control as u16).next());
    }

    /// Yields where in the image the value of a slot is whose key is present. If it takes several lines, its bytes are
    /// moved together, over what was between them: then the image is none of a leaf any more.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// let value = layout.value_in_place(&mut image, 0)?;
    /// assert_eq!(&image[value], b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If its length is impossible.
    ///
    /// # Panics
    /// If only the key part was read.
    pub fn value_in_place(&self, image: &mut [u8], slot: usize) -> Result<Range<usize>, Rejection> {
        let short = image[self.key_at(slot)] & VALUE_SHORT != 0;
        let (first, bytes) = (self.value_word(slot), self.value_words() * WORD_BYTES);
        let (start, mut moved) = (self.value(slot).start, 0);
        while moved < bytes {
            let word = first + moved / WORD_BYTES;
            let piece = (LINE_WORDS - word % LINE_WORDS) * WORD_BYTES;
            let piece = piece.min(bytes - moved);
            image.copy_within(at(word)..at(word) + piece, start + moved);
            moved += piece;
        }
        let value = filled(&image[start..start + bytes], short).ok_or(Malformed::ValueLength { slot })?;
        Ok(start..start + value.len())
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

    pub(super) fn put_version(&self, image: &mut [u8], version: NodeVersion) {
        let control = u64::from(LIVE) << 56 | u64::from(version.number());
        for line in image.chunks_mut(LINE_BYTES) {
            line[..WORD_BYTES].copy_from_slice(&control.to_le_bytes());
        }
    }

    /// Puts a value into its place; yields whether it is a short one.
    fn put_value(&self, image: &mut [u8], slot: usize, value: &[u8]) -> bool {
        let mut bytes = Scratch::from_elem(0, self.value_words() * WORD_BYTES);
        let short = fill(&mut bytes, value);
        self.put_bytes(image, self.value_word(slot), &bytes);
        short
    }
}
