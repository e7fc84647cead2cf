//! Leaves that are hopscotch tables (CHIME section 4, figures 6, 8 and 10): a reader of one key needs its neighbourhood
//! alone, and finds beside it what it has to know of the leaf.
//!
//! ```text
//! stream | header | words | replica | entry 0 .. H-1 | replica | entry H .. 2H-1 | replica | ..    n entries, H | n
//!
//! header     as every node's (header.rs), with the only fences of the leaf
//! words      +------+---------+-----+
//!            | lock | vacancy | sum |      aligned words in the first half line behind the header that has room
//!            +------+---------+-----+
//! replica    0      1     2                 10
//!            +------+-----+-----------------+--------------------------------------------------+
//!            | kind | NV  | sibling, 0=none | with fences: low len u16, high len u16, low, high |
//!            +------+-----+-----------------+--------------------------------------------------+
//! entry      0      2                3 (H > 8: 4)    ..+K          ..+K+V
//!            +------+----------------+---------------+--------------+
//!            | head | hops: bit j: the key in the slot j behind this one has its home here; none if H = n
//!            |      |                | key slot      | value slot   |     the slots as in slot.rs
//!            +------+----------------+---------------+--------------+
//! head       15 .. 8     7         6           5            4 .. 0
//!            +-----------+---------+-----------+-------------+------+
//!            | NV        | present | key short | value short | EV   |
//!            +-----------+---------+-----------+-------------+------+
//! ```
//!
//! All in the payload stream (stream.rs), whose lines begin with a control word (version.rs). A READ of a neighbourhood
//! begins within a line: so each entry and each replica carries the low eight bits of the node version itself, and the
//! control words tell of the lines behind. The paper has 4 bits, in entries and lines.
//!
//! The paper's leaves without fences have the place of the largest key instead, for inserts behind a split that the
//! parent does not know yet. That place does not tell: keys between the largest one and the separator belong to this
//! leaf, and the largest one may be removed. So one pair of fences is in the header, which a client in doubt reads.
//!
//! For any neighbourhood there is a replica inside it or right before it:
//!
//! ```text
//! H = 4     R0 e0 e1 e2 e3 R1 e4 e5 e6 e7       home 4: R1 e4 .. e7     home 2: e2 e3 R1 e4 e5
//!                                               home 6: e6 e7 and R0 e0 e1, two READs of one chain
//! ```
//!
//! *Indirect* leaves have a fingerprint of 8 bytes in the place of each key, and in that of the value what leads to the
//! block of both (block.rs). The fingerprint is the hash of the key: so homes and sums are told without the blocks, and
//! an entry of another key than the one that was looked for is a coincidence of 64 bits. (The paper has the first 8
//! bytes of the key, which keys with a common prefix share.) The fences in header and replicas are keys all the same.
//!
//! The *sum* is the XOR of the hashes of all keys. Hops do not change it. A reader of the whole leaf that sees the keys
//! whose sum it reads sees all keys that were there when it read the sum, however many have hopped meanwhile.
//!
//! A leaf that is merged is *frozen*, in all of its replicas and entries (`frozen.rs`).
//!
//! Hop bits, vacancies and sum follow from the entries. So a writer that has died while it brought a key, or took one
//! away, needs no record of that: the leaf is mended (`mend.rs`).
//!
//! This module does not know locks, nor why clients write.

mod entry;
mod frozen;
mod lookup;
mod mend;
mod patch;
mod ring;
#[cfg(test)]
mod tests;
mod unite;
mod vacancy;
mod view;

use std::iter;
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use super::header::Header;
use super::stream::{CONTROL_BYTES, LINE_BYTES, PAYLOAD_BYTES, StreamRange, WORD_BYTES, physical};
use super::{BlockFormat, LayoutError, LineRanges, MAX_NODE_BYTES, MAX_VALUE_BYTES, check_key_bytes};

pub use lookup::{Candidates, HopFound, Neighbourhood, SHORT_VERSIONS, Versions, WRITES_THAT_HIDE};
pub use ring::{Hop, Placement, Ring};
pub use vacancy::Vacancy;
pub use view::HopView;

/// Bytes of the words: the lock's, the vacancies', and the sum of the keys.
const WORDS_BYTES: usize = 3 * WORD_BYTES;
/// Bytes that have all of them, at a multiple of as many: a masked CAS of the lock brings these.
const HALF_BYTES: usize = LINE_BYTES / 2;
const _: () = assert!(HALF_BYTES == farwood_runtime::chain::MASKED_BYTES);
/// Ranges that are no farther apart are read as one: the bytes between cost less than a message.
const GAP_MAX: usize = 32;
/// Stream bytes of a replica without fences.
const REPLICA_BYTES: usize = 10;
const FENCE_LENGTHS: usize = 4;
/// Stream bytes of an entry's head.
const HEAD_BYTES: usize = 2;
/// Bytes of an indirect entry's fingerprint, and of what leads to its block.
const FINGERPRINT_BYTES: usize = 8;
const POINTER_BYTES: usize = 8;

/// The sizes of an index's hopscotch leaves, from which the place of each field follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HopLayout {
    ring: Ring,
    max_key: usize,
    /// Bytes of an entry's key slot and value slot.
    key_bytes: usize,
    value_bytes: usize,
    /// The blocks of an indirect leaf's pairs.
    blocks: Option<BlockFormat>,
    has_fences: bool,
    /// Stream bytes of a replica, and of an entry.
    replica_bytes: usize,
    entry_bytes: usize,
    /// 2^32 / `ring.reach`, rounded up: its product with a slot, without the lower half, is the slot's group.
    groups_per_slot: u64,
    /// The lock's word and those behind it, in bytes of the image.
    words: usize,
    node_bytes: usize,
    neighbourhood_bytes_min: usize,
}

impl HopLayout {
    /// The largest neighbourhood.
    pub const REACH_MAX: usize = 16;

    /// Makes a layout of so many entries in neighbourhoods of `reach`, for keys and values of up to `max_key` and
    /// `max_value` bytes. Neighbourhoods of all entries make a leaf that is no hopscotch table: a key may be anywhere.
    /// Without sibling-based validation replicas have fences (section 4.2.2).
    ///
    /// ```
    /// # use farwood_index::layout::hopscotch::{HopLayout, Ring};
    /// assert_eq!(HopLayout::new(Ring { slots: 64, reach: 8 }, 8, 8, false)?.node_bytes(), 1408);
    /// assert!(HopLayout::new(Ring { slots: 60, reach: 8 }, 8, 8, false).is_err(), "no multiple of 8");
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size is out of range, or the span is no multiple of the neighbourhood.
    pub fn new(ring: Ring, max_key: usize, max_value: usize, has_fences: bool) -> Result<Self, LayoutError> {
        check_key_bytes(max_key)?;
        if max_value > MAX_VALUE_BYTES {
            return Err(LayoutError::ValueBytes { max_value });
        }
        Self::of_entries(ring, max_key, (max_key, max_value), None, has_fences)
    }

    /// Makes a layout as [`HopLayout::new`] does, of indirect leaves: pairs lie in blocks.
    ///
    /// ```
    /// # use farwood_index::layout::hopscotch::{HopLayout, Ring};
    /// let layout = HopLayout::indirect(Ring { slots: 64, reach: 8 }, 32, 4096, false)?;
    /// assert_eq!(layout.node_bytes(), 1472, "of 64 entries of 19 bytes");
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// See [`HopLayout::new`].
    pub fn indirect(
        ring: Ring,
        max_key: usize,
        max_value: usize,
        has_fences: bool,
    ) -> Result<Self, LayoutError> {
        let blocks = BlockFormat::new(max_key, max_value)?;
        Self::of_entries(ring, max_key, (FINGERPRINT_BYTES, POINTER_BYTES), Some(blocks), has_fences)
    }

    fn of_entries(
        ring @ Ring { slots, reach }: Ring,
        max_key: usize,
        (key_bytes, value_bytes): (usize, usize),
        blocks: Option<BlockFormat>,
        has_fences: bool,
    ) -> Result<Self, LayoutError> {
        if reach < 2 || reach > Self::REACH_MAX && reach != slots {
            return Err(LayoutError::Neighbourhood { entries: reach });
        }
        if slots == 0 || !slots.is_multiple_of(reach) || slots > Vacancy::SLOTS_MAX {
            return Err(LayoutError::Span { entries: slots, neighbourhood: reach });
        }
        let hops_bytes = if reach < slots { reach.div_ceil(8) } else { 0 };
        let words = words_behind(Header::bytes(max_key));
        let mut layout = HopLayout {
            ring,
            max_key,
            key_bytes,
            value_bytes,
            blocks,
            has_fences,
            replica_bytes: REPLICA_BYTES + if has_fences { FENCE_LENGTHS + 2 * max_key } else { 0 },
            entry_bytes: HEAD_BYTES + hops_bytes + key_bytes + value_bytes,
            groups_per_slot: (1_u64 << 32).div_ceil(reach as u64),
            words,
            node_bytes: 0,
            neighbourhood_bytes_min: 0,
        };
        let bytes = layout.group(slots / reach).div_ceil(PAYLOAD_BYTES).saturating_mul(LINE_BYTES);
        if bytes > MAX_NODE_BYTES {
            return Err(LayoutError::NodeBytes { node_bytes: bytes });
        }
        layout.node_bytes = bytes;
        let read = |home| layout.neighbourhood(home).iter().map(|range| range.len()).sum();
        layout.neighbourhood_bytes_min = (0..slots).map(read).min().expect("a table has slots");
        Ok(layout)
    }

    /// Counts the bytes of a leaf, a multiple of 64.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.node_bytes(), image.len());
    /// # });
    /// ```
    pub fn node_bytes(&self) -> usize {
        self.node_bytes
    }

    /// Yields the slots of a leaf and of a neighbourhood.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.ring(), Ring { slots: 8, reach: 4 });
    /// # });
    /// ```
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Yields the format of the blocks that pairs lie in, if the leaf is indirect.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert!(layout.blocks().is_none() && HopLayout::indirect(layout.ring(), 8, 8, false)?.blocks().is_some());
    /// # });
    /// ```
    #[inline]
    pub fn blocks(&self) -> Option<&BlockFormat> {
        self.blocks.as_ref()
    }

    /// Hashes a key: 64 even bits.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_ne!(HopLayout::hash(b"anna"), HopLayout::hash(b"clara"));
    /// # });
    /// ```
    #[inline]
    pub fn hash(key: &[u8]) -> u64 {
        xxh3_64(key)
    }

    /// Yields the home of a key with this hash.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.home_of_hash(HopLayout::hash(b"anna")), layout.home(b"anna"));
    /// # });
    /// ```
    #[inline]
    pub fn home_of_hash(&self, hash: u64) -> usize {
        // The upper half times the slots: as even as a remainder, without a division.
        (((hash >> 32) * self.ring.slots as u64) >> 32) as usize
    }

    /// Yields the home of a key.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let found = layout.lookup(&image, b"anna", false)?.found.expect("it is there");
    /// assert!((0..4).any(|steps| layout.ring().ahead(layout.home(b"anna"), steps) == found.slot));
    /// # });
    /// ```
    #[inline]
    pub fn home(&self, key: &[u8]) -> usize {
        self.home_of_hash(Self::hash(key))
    }

    /// Yields what a lookup of a key with this home reads: its neighbourhood, with a replica.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let mut read = vec![0; layout.node_bytes()];
    /// for part in layout.neighbourhood(layout.home(b"anna")) {
    ///     read[part.clone()].copy_from_slice(&image[part]);
    /// }
    /// assert!(layout.lookup(&read, b"anna", false)?.found.is_some());
    /// # });
    /// ```
    pub fn neighbourhood(&self, home: usize) -> LineRanges {
        if self.has_hops() { self.part(home, self.ring.reach) } else { self.part(0, self.ring.slots) }
    }

    /// Yields what to read for so many slots from `home` on: at least a neighbourhood.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.slots_from(2, 4), layout.neighbourhood(2));
    /// assert_eq!(layout.slots_from(2, 8).len(), 1, "all of them are read in one go");
    /// # });
    /// ```
    pub fn slots_from(&self, home: usize, slots: usize) -> LineRanges {
        if slots == self.ring.slots { self.part(0, slots) } else { self.part(home, slots) }
    }

    /// Counts the bytes of the shortest neighbourhood.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let bytes = |home| layout.neighbourhood(home).iter().map(|part| part.len()).sum::<usize>();
    /// assert_eq!((0..8).map(bytes).min(), Some(layout.neighbourhood_bytes_min()));
    /// # });
    /// ```
    pub fn neighbourhood_bytes_min(&self) -> usize {
        self.neighbourhood_bytes_min
    }

    /// Yields what to read for so many slots from `from` on: at least a neighbourhood, so that a replica is among it.
    fn part(&self, from: usize, slots: usize) -> LineRanges {
        assert!(from < self.ring.slots && (self.ring.reach..=self.ring.slots).contains(&slots));
        let end = from + slots;
        let start = if from.is_multiple_of(self.ring.reach) {
            self.replica(from / self.ring.reach).start()
        } else {
            self.entry(from).start()
        };
        let mut ranges = LineRanges::new();
        let mut push = |start: usize, last: usize| {
            let end = self.entry(last).end();
            ranges.push(StreamRange::new(start, end - start).write_range());
        };
        if end <= self.ring.slots {
            push(start, end - 1);
        } else {
            push(start, self.ring.slots - 1);
            push(self.replica(0).start(), end - self.ring.slots - 1);
        }
        ranges
    }

    /// Yields the lock's word, in bytes of the image.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(image[layout.lock_at()..][..8], [0; 8], "it is free");
    /// # });
    /// ```
    pub fn lock_at(&self) -> usize {
        self.words
    }

    /// Yields the vacancy word, in bytes of the image.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.vacancy_at() / 64, layout.lock_at() / 64, "one line has both");
    /// # });
    /// ```
    pub fn vacancy_at(&self) -> usize {
        self.words + WORD_BYTES
    }

    /// Yields the word with the sum of the keys, in bytes of the image.
    fn sum_at(&self) -> usize {
        self.vacancy_at() + WORD_BYTES
    }

    /// Yields the half of a line that has the words, in bytes of the image: it comes with the lock where the fabric has
    /// masked CAS.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let words = layout.words();
    /// assert!(words.contains(&layout.lock_at()) && words.contains(&layout.vacancy_at()));
    /// assert_eq!((words.start % 32, words.len()), (0, 32));
    /// # });
    /// ```
    pub fn words(&self) -> Range<usize> {
        let start = self.words / HALF_BYTES * HALF_BYTES;
        start..start + HALF_BYTES
    }

    /// Yields what the holder of the lock reads of the leaf to begin with: the words, and that part.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let parts = layout.with_words(&layout.neighbourhood(4));
    /// assert!(parts.iter().any(|part| part.contains(&layout.lock_at()) && part.contains(&layout.vacancy_at())));
    /// # });
    /// ```
    pub fn with_words(&self, part: &LineRanges) -> LineRanges {
        joined(iter::once(self.words..self.words + WORDS_BYTES).chain(part.iter().cloned()))
    }

    /// Yields what a reader in doubt about the fences reads: the header, and that part.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.with_header(&layout.neighbourhood(4))[0].start, 0);
    /// # });
    /// ```
    pub fn with_header(&self, part: &LineRanges) -> LineRanges {
        joined(iter::once(self.header_range()).chain(part.iter().cloned()))
    }

    /// Yields the bytes of the image that have the header.
    fn header_range(&self) -> Range<usize> {
        StreamRange::new(0, Header::bytes(self.max_key)).write_range()
    }

    /// Checks the length of an image: another one is a bug of the caller.
    fn check_len(&self, image: &[u8]) {
        assert_eq!(image.len(), self.node_bytes, "a leaf's image has the layout's length");
    }

    fn hops_bytes(&self) -> usize {
        self.entry_bytes - HEAD_BYTES - self.key_bytes - self.value_bytes
    }

    /// Tells whether a key has places where it cannot be, so that keys hop.
    fn has_hops(&self) -> bool {
        self.ring.reach < self.ring.slots
    }

    /// Yields the stream offset of a group: a replica and the entries up to the next one.
    fn group(&self, group: usize) -> usize {
        logical(self.words + WORDS_BYTES) + group * (self.replica_bytes + self.ring.reach * self.entry_bytes)
    }

    fn replica(&self, group: usize) -> StreamRange {
        StreamRange::new(self.group(group), self.replica_bytes)
    }

    #[inline]
    fn entry(&self, slot: usize) -> StreamRange {
        // A scan asks for every slot some ten times, and a division takes as long as the rest of this.
        let group = ((slot as u64 * self.groups_per_slot) >> 32) as usize;
        let start = self.group(0) + (group + 1) * self.replica_bytes + slot * self.entry_bytes;
        StreamRange::new(start, self.entry_bytes)
    }

    /// Yields the replica that [`HopLayout::part`] has for slots from `from` on.
    fn replica_of(&self, from: usize) -> usize {
        let group = from.div_ceil(self.ring.reach);
        if group * self.ring.reach == self.ring.slots { 0 } else { group }
    }
}

/// Yields the first place for the words behind so many stream bytes, in bytes of the image.
fn words_behind(stream_bytes: usize) -> usize {
    let end = (physical(stream_bytes - 1) + 1).next_multiple_of(WORD_BYTES);
    let at = if end % HALF_BYTES > HALF_BYTES - WORDS_BYTES { end.next_multiple_of(HALF_BYTES) } else { end };
    // A line begins with its control word.
    if at.is_multiple_of(LINE_BYTES) { at + WORD_BYTES } else { at }
}

/// Yields the stream offset of the byte at `at` of the image, or of the first one behind it if that is of a control
/// word.
fn logical(at: usize) -> usize {
    at / LINE_BYTES * PAYLOAD_BYTES + (at % LINE_BYTES).saturating_sub(CONTROL_BYTES)
}

/// Joins ranges that are near each other.
fn joined(ranges: impl Iterator<Item = Range<usize>>) -> LineRanges {
    let mut joined = LineRanges::new();
    let mut sorted: LineRanges = ranges.collect();
    sorted.sort_unstable_by_key(|range| range.start);
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + GAP_MAX => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
