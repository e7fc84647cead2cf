//! Leaves: a fixed number of slots, unsorted, found by one-byte fingerprints (Sherman's unsorted leaf, with the
//! fingerprints of later trees in front).
//!
//! ```text
//! stream | header | f0 f1 .. f(n-1) | entry 0 | entry 1 | .. | entry n-1 |        n = slots
//!
//! entry    0      1             1+K             1+K+V
//!         +------+-------------+---------------+
//!         | head | key slot    | value slot    |          the slots as in slot.rs
//!         +------+-------------+---------------+
//! head      7         6           5            4 .. 0
//!         +---------+-----------+-------------+------+
//!         | present | key short | value short | EV   |
//!         +---------+-----------+-------------+------+
//! ```
//!
//! An entry may cross line boundaries. The control word of each *further* line that it reaches into carries its EV
//! again (version.rs); a mixture of lines from before and after an entry write has two different EVs in one entry:
//!
//! ```text
//! writer                     line 3 |..head EV=4, key, val|   line 4 |EV=4|ue....|        update of one entry
//! reader      line 4 (EV=4)  writer: both lines, EV=5         line 3 (head EV=5)          5 != 4: torn
//! ```
//!
//! A key *is in* the leaf if some slot's entry is present and holds it. `present` lies in one line, so it comes and
//! goes in one moment for all. Fingerprints are a filter, in another line than most entries: an insert sets the
//! fingerprint before the entry, a remove clears it after. So as long as the entry is present the fingerprint is the
//! key's, and a reader that finds another one in the slot has seen a moment of its READ at which the key was not in it.
//! (A key changes its slot only by being absent in between, so moments of different slots do not add up to more.)
//! The other way round would not do:
//!
//! ```text
//! writer     remove(k)       entry k ····················> fingerprint k
//! reader 1   fingerprint k            entry k: found
//! reader 2                                    fingerprint 0: absent, though it was found before
//! ```
//!
//! A writer that dies between the two leaves a fingerprint without an entry: a vacancy, which the next entry in this
//! slot gives its own fingerprint.
//!
//! This module does not know locks, nor why clients write.

mod lookup;
mod patch;
#[cfg(test)]
mod tests;
mod view;

use xxhash_rust::xxh3::xxh3_64;

use super::header::Header;
use super::slot::Slot;
use super::stream::{self, StreamRange};
use super::version::{self, EntryVersion};
use super::{LayoutError, MAX_VALUE_BYTES, MIN_SLOTS, Sizing, check_key_bytes};

pub use lookup::{Found, LeafLookup};
pub use patch::tail_first;
pub use view::{Entry, LeafView};

const HEAD_BYTES: usize = 1;
const PRESENT: u8 = 0x80;
const KEY_SHORT: u8 = 0x40;
const VALUE_SHORT: u8 = 0x20;
/// The fingerprint of a vacant slot.
const VACANT: u8 = 0;

/// The sizes of an index's leaves, from which the place of each field follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafLayout {
    node_bytes: usize,
    slots: usize,
    max_key: usize,
    max_value: usize,
    /// Stream offset of slot 0's fingerprint.
    fingerprints: usize,
    /// Stream offset of entry 0.
    entries: usize,
}

impl LeafLayout {
    /// Makes a layout of as many slots as fit into `node_bytes` (a multiple of 64) for keys and values of up to
    /// `max_key` and `max_value` bytes.
    ///
    /// ```
    /// # use farwood_index::layout::LeafLayout;
    /// assert_eq!(LeafLayout::for_node(1024, 8, 8)?.node_bytes(), 1024);
    /// assert!(LeafLayout::for_node(64, 8, 8).is_err(), "too few slots");
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size is out of range or fewer than [`super::MIN_SLOTS`] slots fit; the error says what to change.
    pub fn for_node(node_bytes: usize, max_key: usize, max_value: usize) -> Result<Self, LayoutError> {
        let sizing = Self::sizing(max_key, max_value)?;
        Ok(Self::new(node_bytes, sizing.slots(node_bytes)?, max_key, max_value))
    }

    /// Makes a layout of `slots` slots, in as few lines as hold them.
    ///
    /// ```
    /// # use farwood_index::layout::LeafLayout;
    /// let layout = LeafLayout::for_slots(4, 8, 8)?;
    /// assert_eq!((layout.slots(), layout.node_bytes()), (4, 128));
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size or the number is out of range.
    pub fn for_slots(slots: usize, max_key: usize, max_value: usize) -> Result<Self, LayoutError> {
        let sizing = Self::sizing(max_key, max_value)?;
        Ok(Self::new(sizing.node_bytes(slots)?, slots, max_key, max_value))
    }

    /// Counts the bytes of a node, a multiple of 64.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.node_bytes(), image.len());
    /// # });
    /// ```
    pub fn node_bytes(&self) -> usize {
        self.node_bytes
    }

    /// Counts the entries that fit into a leaf.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.slots(), 4);
    /// # });
    /// ```
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Yields the longest key, in bytes.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.max_key(), 8);
    /// # });
    /// ```
    pub fn max_key(&self) -> usize {
        self.max_key
    }

    /// Yields the longest value, in bytes.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.max_value(), 8);
    /// # });
    /// ```
    pub fn max_value(&self) -> usize {
        self.max_value
    }

    fn sizing(max_key: usize, max_value: usize) -> Result<Sizing, LayoutError> {
        check_key_bytes(max_key)?;
        if max_value > MAX_VALUE_BYTES {
            return Err(LayoutError::ValueBytes { max_value });
        }
        // One byte for the fingerprint.
        Ok(Sizing {
            header_bytes: Header::bytes(max_key),
            slot_bytes: 1 + HEAD_BYTES + max_key + max_value,
            least: MIN_SLOTS,
        })
    }

    fn new(node_bytes: usize, slots: usize, max_key: usize, max_value: usize) -> Self {
        let fingerprints = Header::bytes(max_key);
        LeafLayout { node_bytes, slots, max_key, max_value, fingerprints, entries: fingerprints + slots }
    }

    /// Checks the length of an image: another one is a bug of the caller.
    fn check_len(&self, image: &[u8]) {
        assert_eq!(image.len(), self.node_bytes, "a leaf's image has the layout's length");
    }

    fn entry(&self, slot: usize) -> StreamRange {
        let bytes = HEAD_BYTES + self.max_key + self.max_value;
        StreamRange::new(self.entries + slot * bytes, bytes)
    }

    fn key_slot(&self, entry: StreamRange) -> Slot {
        Slot { start: entry.start() + HEAD_BYTES, size: self.max_key }
    }

    fn value_slot(&self, entry: StreamRange) -> Slot {
        Slot { start: entry.start() + HEAD_BYTES + self.max_key, size: self.max_value }
    }

    fn fingerprint_at(&self, slot: usize) -> usize {
        self.fingerprints + slot
    }

    /// Tells whether the slot has no entry.
    fn is_vacant(&self, image: &[u8], slot: usize) -> bool {
        stream::byte(image, self.entry(slot).start()) & PRESENT == 0
    }
}

/// Yields the key's fingerprint, 1 to 255.
#[inline]
fn fingerprint(key: &[u8]) -> u8 {
    // The constant length lets the compiler keep only the hash of eight bytes here.
    let hash = match <[u8; 8]>::try_from(key) {
        Ok(key) => xxh3_64(&key),
        Err(_) => hash_any_length(key),
    };
    (hash as u8).max(VACANT + 1)
}

#[inline(never)]
fn hash_any_length(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// Tells whether all lines of the entry come from the same entry write.
#[inline]
fn entry_is_whole(image: &[u8], entry: StreamRange, head: u8) -> bool {
    let expected = EntryVersion::from_bits(head);
    entry.further_lines().all(|line| version::entry_version(image, line) == expected)
}
