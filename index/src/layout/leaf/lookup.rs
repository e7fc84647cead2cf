//! The hot path: one key in one image that has just been read. No allocation, nothing is copied.
//!
//! Checks, in this order: kind, node versions, fences, fingerprints, key, entry version. It trusts nothing in the
//! image; what it does not need (the other entries, the level) it does not check: that is for `view.rs`.

use std::ops::Range;

use farwood_runtime::RemotePtr;

use super::{KEY_SHORT, LeafLayout, PRESENT, VALUE_SHORT, entry_is_whole, fingerprint};
use crate::layout::header::{Header, Kind, Position};
use crate::layout::stream::{self, CONTROL_BYTES, LINE_BYTES, PAYLOAD_BYTES, StreamRange};
use crate::layout::{LineRanges, Malformed, Rejection, version};

/// An entry that holds the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The slot's index.
    pub slot: usize,
    /// Place of the value; [`crate::layout::make_contiguous`] gathers it.
    pub value: StreamRange,
    /// True if the entry lies in several lines. Its five-bit version then guards it, so the read must have been shorter
    /// than it takes from the first of [`crate::layout::EntryVersion::COUNT`] writes of the entry to the last.
    pub spans_lines: bool,
}

/// Result of the lookup of a key in a leaf's image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafLookup {
    /// The key is here.
    Found(Found),
    /// The leaf answers for the key and does not hold it.
    Absent,
    /// The key lies at or beyond the high fence: go on at the right neighbour.
    MoveRight(RemotePtr),
    /// The key lies below the low fence: the pointer that led here was wrong.
    Left,
}

impl LeafLayout {
    /// Looks `key` up in an image of [`LeafLayout::node_bytes`] bytes (others panic).
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let found = layout.lookup(&image, b"anna")?;
    /// assert!(matches!(found, LeafLookup::Found(Found { slot: 0, .. })));
    /// assert_eq!(layout.lookup(&image, b"berta")?, LeafLookup::Absent);
    /// assert!(matches!(layout.lookup(&image, b"zoe")?, LeafLookup::MoveRight(_)));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if lines that the answer depends on do not fit together; other rejections if the image
    /// is no leaf, or one that no writer leaves.
    #[inline]
    pub fn lookup(&self, image: &[u8], key: &[u8]) -> Result<LeafLookup, Rejection> {
        self.check_len(image);
        // First, because the processor can then hash while it checks the header.
        let wanted = fingerprint(key);
        let header = Header::parse(image, self.max_key, Kind::Leaf)?;
        match header.position(key) {
            Position::Here => self.find(image, key, wanted),
            Position::Right => Ok(LeafLookup::MoveRight(header.right()?)),
            Position::Left => Ok(LeafLookup::Left),
        }
    }

    /// Yields the lines that the entry in `slot` depends on, in bytes of the image: the header's and its own.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.lines_of(0)[..], [0..64]);
    /// assert_eq!(layout.lines_of(3)[..], [0..128]);
    /// # });
    /// ```
    pub fn lines_of(&self, slot: usize) -> LineRanges {
        let header = stream::lines(StreamRange::new(0, Header::bytes(self.max_key)));
        let entry = stream::lines(self.entry(slot));
        let mut lines = LineRanges::new();
        if entry.start <= header.end {
            lines.push(header.start..entry.end);
        } else {
            lines.extend([header, entry]);
        }
        lines
    }

    /// Looks `key` up in `slot` alone, in an image of which only [`LeafLayout::lines_of`] it were read. `Absent` says
    /// no more than that the key is not in this slot.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let lines = layout.lines_of(0)[0].clone();
    /// image[lines.end..].fill(0);
    /// let found = layout.lookup_slot(&image, b"anna", 0)?;
    /// assert!(matches!(found, LeafLookup::Found(Found { slot: 0, .. })));
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`LeafLayout::lookup`].
    pub fn lookup_slot(&self, image: &[u8], key: &[u8], slot: usize) -> Result<LeafLookup, Rejection> {
        self.check_len(image);
        assert!(slot < self.slots, "there is no such slot");
        let lines = self.lines_of(slot);
        let header = Header::parse(&image[lines[0].clone()], self.max_key, Kind::Leaf)?;
        let versions = |lines: &Range<usize>| version::node_version_of_all(&image[lines.clone()]);
        if !lines.iter().all(|lines| versions(lines) == Some(header.node_version())) {
            return Err(Rejection::Torn);
        }
        match header.position(key) {
            Position::Here if self.holds(image, slot, key) => self.found(image, slot),
            Position::Here => Ok(LeafLookup::Absent),
            Position::Right => Ok(LeafLookup::MoveRight(header.right()?)),
            Position::Left => Ok(LeafLookup::Left),
        }
    }

    /// Tells where the value of the entry in `slot` is. The entry is to be present, as a lookup or a view has found.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let value = layout.value_range(&image, 0)?;
    /// let value = make_contiguous(&mut image, value);
    /// assert_eq!(image[value], *b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Malformed::ValueLength`].
    #[inline]
    pub fn value_range(&self, image: &[u8], slot: usize) -> Result<StreamRange, Rejection> {
        assert!(slot < self.slots, "there is no such slot");
        let entry = self.entry(slot);
        let short = stream::byte(image, entry.start()) & VALUE_SHORT != 0;
        let value = self.value_slot(entry).used(image, short);
        value.ok_or(Rejection::Malformed(Malformed::ValueLength { slot }))
    }

    /// Yields `Found` or `Absent`, in an image whose node versions agree, whatever the fences are.
    #[inline(always)]
    pub(super) fn find(&self, image: &[u8], key: &[u8], wanted: u8) -> Result<LeafLookup, Rejection> {
        let mut line = self.fingerprints / PAYLOAD_BYTES;
        while line * PAYLOAD_BYTES < self.entries {
            for offset in Hits::of(image, line, wanted) {
                // Other bytes of these lines may look like the fingerprint.
                let slot = offset.wrapping_sub(self.fingerprints);
                if slot < self.slots && self.holds(image, slot, key) {
                    return self.found(image, slot);
                }
            }
            line += Hits::LINES;
        }
        Ok(LeafLookup::Absent)
    }

    /// Tells whether the entry in `slot` seems to hold `key`: its lines may still come from different moments.
    #[inline]
    fn holds(&self, image: &[u8], slot: usize, key: &[u8]) -> bool {
        let entry = self.entry(slot);
        let head = stream::byte(image, entry.start());
        if head & PRESENT == 0 {
            return false;
        }
        let held = self.key_slot(entry).used(image, head & KEY_SHORT != 0);
        held.is_some_and(|held| stream::compare(image, held, key).is_eq())
    }

    /// Yields the entry in `slot`, which seems to hold the key, if its lines fit together.
    ///
    /// Only such an entry's versions matter. A torn entry that seems to hold another key cannot be the key's: a
    /// key stays in its slot as long as it is in the leaf, so another one in parts of its lines means that it has
    /// been removed, or is not yet inserted, at some moment of the read.
    #[inline]
    fn found(&self, image: &[u8], slot: usize) -> Result<LeafLookup, Rejection> {
        let entry = self.entry(slot);
        if !entry_is_whole(image, entry, stream::byte(image, entry.start())) {
            return Err(Rejection::Torn);
        }
        let value = self.value_range(image, slot)?;
        Ok(LeafLookup::Found(Found { slot, value, spans_lines: !entry.further_lines().is_empty() }))
    }
}

/// The stream offsets of a byte in two lines (or the last one), in no particular order.
///
/// A bit set: the lines are compared as eight vectors of 16 bytes, and byte `16 * v + b` is bit `v` of byte `b` in
/// 128 bits. Byte-wise in a form that compilers turn into vector instructions.
struct Hits {
    bits: u128,
    line: usize,
}

impl Hits {
    const LINES: usize = 2;

    #[inline]
    fn of(image: &[u8], line: usize, wanted: u8) -> Self {
        let bytes = &image[line * LINE_BYTES..];
        let bits = match bytes.first_chunk::<{ Self::LINES * LINE_BYTES }>() {
            Some(two) => Self::compare(two, wanted),
            None => Self::compare_last_line(bytes, wanted),
        };
        Hits { bits: bits & !Self::CONTROL_WORDS, line }
    }

    #[cold]
    #[inline(never)]
    fn compare_last_line(bytes: &[u8], wanted: u8) -> u128 {
        Self::compare(bytes, wanted)
    }

    #[inline]
    fn compare(bytes: &[u8], wanted: u8) -> u128 {
        let (vectors, _) = bytes.as_chunks::<16>();
        let mut hits = [0_u8; 16];
        for (v, vector) in vectors.iter().enumerate() {
            for (hit, byte) in hits.iter_mut().zip(vector) {
                *hit |= u8::from(*byte == wanted) << v;
            }
        }
        u128::from_le_bytes(hits)
    }

    /// Bytes 0 and 1 of vectors 0 and 4.
    const CONTROL_WORDS: u128 = 0x1111;
}

impl Iterator for Hits {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.bits == 0 {
            return None;
        }
        let bit = self.bits.trailing_zeros() as usize;
        self.bits &= self.bits - 1;
        let position = bit % 8 * 16 + bit / 8;
        let line = self.line + position / LINE_BYTES;
        Some(line * PAYLOAD_BYTES + position % LINE_BYTES - CONTROL_BYTES)
    }
}
