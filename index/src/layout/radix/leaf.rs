//! Leaves: one key, its value, and a lock at the rear (SMART figure 6b). Pure.
//!
//! ```text
//! offset 0      8           16     16+k      16+k+v                size-8
//!        | link | body word | key  | value   | whatever            | lock |
//!
//! body word  63                     21 20     13 12           0
//!           +-------------------------+---------+--------------+
//!           | checksum                | key     | value length |
//!           | of lengths, key, value  | length  |              |
//!           +-------------------------+---------+--------------+
//! ```
//!
//! The size is a number of units, which the slot that leads here has as its class. A unit is one line of 64 bytes, or
//! as many as it takes for 31 units to hold the longest key and value (paper: `length_unit`).
//!
//! The key and its length never change, until the leaf is out of the tree and its memory another leaf's. Value,
//! length and checksum change together, in one WRITE under the lock; a reader that gets lines from before and from
//! after it finds that the checksum does not fit. 43 bits leave one torn READ in 10^13 undetected. The paper has 64,
//! which would make a READ of 32 + 64 bytes a word longer.
//!
//! A leaf in memory of another one is written without the lock: a client that was led there by an old copy of a slot
//! may hold it for a moment, and gives it back.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::link::Link;
use super::slot::Slot;
use super::{MAX_RADIX_KEY_BYTES, word_at};
use crate::layout::{LINE_BYTES, LayoutError, MAX_VALUE_BYTES, Malformed, Rejection};

const BODY_AT: usize = 8;
const KEY_AT: usize = 16;
const LOCK_BYTES: usize = 8;
const CLASSES: usize = 31;
const VALUE_BITS: u32 = 13;
const KEY_BITS: u32 = 8;
const LENGTHS_MASK: u64 = (1 << (VALUE_BITS + KEY_BITS)) - 1;

const _: () = assert!(MAX_VALUE_BYTES < 1 << VALUE_BITS && MAX_RADIX_KEY_BYTES < 1 << KEY_BITS);

/// The sizes of a tree's leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafFormat {
    max_key: usize,
    max_value: usize,
    unit: usize,
}

impl LeafFormat {
    /// Makes the sizes of leaves for keys and values of up to so many bytes.
    ///
    /// ```
    /// # use farwood_index::layout::radix::LeafFormat;
    /// assert!(LeafFormat::new(255, 1024).is_ok());
    /// assert!(LeafFormat::new(256, 1024).is_err());
    /// ```
    ///
    /// # Errors
    /// If they are too long.
    pub fn new(max_key: usize, max_value: usize) -> Result<Self, LayoutError> {
        if !(1..=MAX_RADIX_KEY_BYTES).contains(&max_key) {
            return Err(LayoutError::RadixKeyBytes { max_key });
        }
        if max_value > MAX_VALUE_BYTES {
            return Err(LayoutError::ValueBytes { max_value });
        }
        let lines = bytes_for(max_key, max_value).div_ceil(LINE_BYTES);
        Ok(LeafFormat { max_key, max_value, unit: lines.div_ceil(CLASSES) * LINE_BYTES })
    }

    /// Yields the size class of a leaf for a key and a value of so many bytes.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!((leaves.class_for(4, 1), leaves.class_for(64, 64)), (1, 3));
    /// # });
    /// ```
    pub fn class_for(&self, key_bytes: usize, value_bytes: usize) -> u8 {
        bytes_for(key_bytes, value_bytes).div_ceil(self.unit) as u8
    }

    /// Counts the bytes of a leaf of that class.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.leaf_bytes(1), image.len());
    /// # });
    /// ```
    #[inline]
    pub fn leaf_bytes(&self, class: u8) -> usize {
        usize::from(class) * self.unit
    }

    /// Counts the bytes of the largest leaf.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.largest_bytes(), leaves.leaf_bytes(leaves.class_for(64, 64)));
    /// # });
    /// ```
    pub fn largest_bytes(&self) -> usize {
        self.leaf_bytes(self.class_for(self.max_key, self.max_value))
    }

    /// Tells where the lock is, from the beginning of a leaf of that class.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.lock_at(1), 56);
    /// # });
    /// ```
    #[inline]
    pub fn lock_at(&self, class: u8) -> usize {
        self.leaf_bytes(class) - LOCK_BYTES
    }

    /// Counts the bytes of a leaf of that class to read to learn whether it holds a key of `key_bytes`, and its value.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert!(leaves.lookup_bytes(3, 8) < leaves.leaf_bytes(3));
    /// # });
    /// ```
    #[inline]
    pub fn lookup_bytes(&self, class: u8, key_bytes: usize) -> usize {
        (KEY_AT + key_bytes + self.max_value).next_multiple_of(8).min(self.lock_at(class))
    }

    /// Counts the bytes of a leaf of that class to read for all of its content.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.body_bytes(1), 56, "all but the lock");
    /// # });
    /// ```
    #[inline]
    pub fn body_bytes(&self, class: u8) -> usize {
        self.lock_at(class)
    }

    /// Tells whether a value of so many bytes fits into a leaf of that class beside a key of `key_bytes`.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert!(leaves.has_room(1, 4, 36) && !leaves.has_room(1, 4, 37));
    /// # });
    /// ```
    pub fn has_room(&self, class: u8, key_bytes: usize, value_bytes: usize) -> bool {
        bytes_for(key_bytes, value_bytes) <= self.leaf_bytes(class)
    }

    /// Makes a new leaf in `image`, which is as long as its class, and not locked then; or as long without the lock.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// leaves.build(&mut image, Link::Live(Parent::Root), b"berta", b"2");
    /// assert!(leaves.view(&image)?.is_of(b"berta"));
    /// # });
    /// ```
    pub fn build(&self, image: &mut [u8], link: Link, key: &[u8], value: &[u8]) {
        image.fill(0);
        image[..8].copy_from_slice(&link.bits().to_le_bytes());
        image[KEY_AT..KEY_AT + key.len()].copy_from_slice(key);
        self.set_value(image, key.len(), value);
    }

    /// Puts another value into the image of a leaf with a key of `key_bytes`, which has room for it. The bytes to write
    /// begin at [`LeafFormat::BODY_AT`].
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// leaves.set_value(&mut image, 4, b"two");
    /// let value = leaves.view(&image)?.value()?;
    /// assert_eq!(image[value], *b"two");
    /// # });
    /// ```
    pub fn set_value(&self, image: &mut [u8], key_bytes: usize, value: &[u8]) {
        let value_at = KEY_AT + key_bytes;
        image[value_at..value_at + value.len()].copy_from_slice(value);
        let lengths = (key_bytes as u64) << VALUE_BITS | value.len() as u64;
        let body = checksum(lengths, &image[KEY_AT..value_at + value.len()]) | lengths;
        image[BODY_AT..KEY_AT].copy_from_slice(&body.to_le_bytes());
    }

    /// Offset in the leaf at which a change of the value begins; it ends with the lock.
    pub const BODY_AT: usize = BODY_AT;

    /// Parses the leaf in `image`, which is its beginning.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.view(&image)?.link, Link::Live(Parent::Root));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no writer leaves such bytes.
    pub fn view<'a>(&self, image: &'a [u8]) -> Result<LeafView<'a>, Rejection> {
        let link = Link::from_bits(word_at(image, 0))?;
        let body = word_at(image, BODY_AT);
        let value_bytes = (body & ((1 << VALUE_BITS) - 1)) as usize;
        let key_bytes = (body >> VALUE_BITS & ((1 << KEY_BITS) - 1)) as usize;
        if key_bytes > self.max_key || value_bytes > self.max_value {
            return Err(Malformed::RadixLeaf { word: body }.into());
        }
        Ok(LeafView { image, link, body, key_bytes, value_bytes })
    }

    /// Yields the class of the slot's leaf, if there is one of that size.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// let slot = Slot::leaf(Symbol::of(b"anna", 0), at, 1);
    /// assert_eq!(leaves.class_of(slot)?, 1);
    /// # });
    /// ```
    ///
    /// # Errors
    /// If there is none.
    #[inline]
    pub fn class_of(&self, slot: Slot) -> Result<u8, Rejection> {
        let class = slot.class();
        if class >= 1 && self.leaf_bytes(class) <= self.largest_bytes() {
            return Ok(class);
        }
        Err(Malformed::RadixSlot { word: slot.bits() }.into())
    }
}

fn bytes_for(key_bytes: usize, value_bytes: usize) -> usize {
    KEY_AT + key_bytes + value_bytes + LOCK_BYTES
}

/// Computes the checksum of lengths, key and value.
fn checksum(lengths: u64, pair: &[u8]) -> u64 {
    xxh3_64_with_seed(pair, lengths) & !LENGTHS_MASK
}

/// A leaf as it was read.
#[derive(Clone, Copy, Debug)]
pub struct LeafView<'a> {
    image: &'a [u8],
    /// Parent, or what became of the leaf.
    pub link: Link,
    body: u64,
    key_bytes: usize,
    value_bytes: usize,
}

impl<'a> LeafView<'a> {
    /// Tells whether this is the leaf of `key`. Keys never change, so this needs no checksum.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert!(leaves.view(&image)?.is_of(b"anna"));
    /// # });
    /// ```
    #[inline]
    pub fn is_of(&self, key: &[u8]) -> bool {
        self.key_bytes == key.len() && self.image.get(KEY_AT..KEY_AT + key.len()) == Some(key)
    }

    /// Yields the key.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert_eq!(leaves.view(&image)?.key()?, b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the image ends before it.
    pub fn key(&self) -> Result<&'a [u8], Rejection> {
        let key = self.image.get(KEY_AT..KEY_AT + self.key_bytes);
        key.ok_or(Rejection::Malformed(Malformed::RadixLeaf { word: self.body }))
    }

    /// Tells whether the image is of one leaf in all that a comparison with a key of `key_bytes` rests on, even if the
    /// leaf's memory became another leaf's while it was read: that is in one line, with link and lengths, or the
    /// checksum fits.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// assert!(leaves.view(&image)?.is_of_one_leaf(48) && leaves.view(&image)?.is_of_one_leaf(64));
    /// image[16] ^= 1;
    /// assert!(leaves.view(&image)?.is_of_one_leaf(48) && !leaves.view(&image)?.is_of_one_leaf(49));
    /// # });
    /// ```
    #[inline]
    pub fn is_of_one_leaf(&self, key_bytes: usize) -> bool {
        KEY_AT + key_bytes <= LINE_BYTES || self.value().is_ok()
    }

    /// Tells whether the leaf's key begins as `key` does, in its first `shared` bytes. Behind a key's end are none.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// let view = leaves.view(&image)?;
    /// assert!(view.begins_as(b"anton", 2) && !view.begins_as(b"anton", 3));
    /// assert!(view.begins_as(b"anna", 4) && !view.begins_as(b"anna", 5));
    /// # });
    /// ```
    #[inline]
    pub fn begins_as(&self, key: &[u8], shared: usize) -> bool {
        let own = self.image.get(KEY_AT..KEY_AT + shared);
        shared <= self.key_bytes && shared <= key.len() && own == key.get(..shared)
    }

    /// Tells where the value is in the image.
    ///
    /// ```
    /// # farwood_doctest::radix_leaf!(|leaves, image| {
    /// let value = leaves.view(&image)?.value()?;
    /// assert_eq!(image[value.clone()], *b"1");
    /// image[value.start] = b'2';
    /// assert_eq!(leaves.view(&image)?.value(), Err(Rejection::Torn));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the image is of different moments.
    pub fn value(&self) -> Result<Range<usize>, Rejection> {
        let at = KEY_AT + self.key_bytes;
        let pair = self.image.get(KEY_AT..at + self.value_bytes).ok_or(Rejection::Torn)?;
        let lengths = self.body & LENGTHS_MASK;
        if checksum(lengths, pair) | lengths != self.body {
            return Err(Rejection::Torn);
        }
        Ok(at..at + self.value_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::Parent;
    use super::*;

    fn leaf(format: &LeafFormat, key: &[u8], value: &[u8]) -> Vec<u8> {
        let class = format.class_for(key.len(), value.len());
        let mut image = vec![0xff; format.leaf_bytes(class)];
        format.build(&mut image, Link::Live(Parent::Root), key, value);
        image
    }

    #[test]
    fn sizes_are_units_that_31_classes_suffice_for() {
        let small = LeafFormat::new(8, 8).unwrap();
        assert_eq!((small.class_for(8, 8), small.largest_bytes(), small.lookup_bytes(1, 8)), (1, 64, 32));
        let usual = LeafFormat::new(32, 64).unwrap();
        assert_eq!((usual.largest_bytes(), usual.lookup_bytes(2, 32)), (128, 112));
        let large = LeafFormat::new(255, 4096).unwrap();
        assert_eq!(large.class_for(255, 4096), 23);
        assert_eq!(large.leaf_bytes(1), 192);
        assert!(large.has_room(1, 0, 168) && !large.has_room(1, 0, 169));
        assert!(LeafFormat::new(256, 8).is_err() && LeafFormat::new(0, 8).is_err());
        assert!(LeafFormat::new(8, 4097).is_err() && LeafFormat::new(1, 0).is_ok());
    }

    #[test]
    fn keys_and_values_come_back() {
        let format = LeafFormat::new(255, 300).unwrap();
        for key_bytes in [0, 1, 7, 8, 100, 255] {
            for value_bytes in [0, 1, 8, 63, 64, 300] {
                let (key, value) = (vec![7; key_bytes], vec![9; value_bytes]);
                let image = leaf(&format, &key, &value);
                let view = format.view(&image).unwrap();
                assert!(view.is_of(&key) && !view.is_of(b"something else"));
                assert_eq!(view.key(), Ok(&key[..]));
                assert_eq!(&image[view.value().unwrap()], value);
                assert_eq!(image[image.len() - 8..], [0; 8]);
            }
        }
    }

    #[test]
    fn a_lookup_reads_what_it_needs() {
        let format = LeafFormat::new(32, 64).unwrap();
        let image = leaf(&format, &[1; 32], &[2; 64]);
        let read = &image[..format.lookup_bytes(2, 32)];
        let view = format.view(read).unwrap();
        assert_eq!(&read[view.value().unwrap()], [2; 64]);
        // A longer key than the one that was looked for is cut off, and is another one.
        let read = &image[..format.lookup_bytes(2, 0)];
        assert!(!format.view(read).unwrap().is_of(b""));
    }

    /// Every mixture of lines of two images of a leaf is one of them, or torn.
    #[test]
    fn mixtures_of_lines_are_torn() {
        let format = LeafFormat::new(8, 200).unwrap();
        let image = leaf(&format, b"key", &[1; 200]);
        for value in [&[2; 200][..], &[1; 190], &[3; 60], b""] {
            let mut other = image.clone();
            format.set_value(&mut other, 3, value);
            let lines = image.len() / 64;
            for bits in 0..1u32 << lines {
                let mut mixed = image.clone();
                for line in (0..lines).filter(|line| bits >> line & 1 == 1) {
                    mixed[line * 64..][..64].copy_from_slice(&other[line * 64..][..64]);
                }
                let found = format.view(&mixed).unwrap().value().map(|range| mixed[range].to_vec());
                match found {
                    Ok(found) => assert!(found == [1; 200] || found == value, "{bits:b}"),
                    Err(rejection) => assert_eq!(rejection, Rejection::Torn),
                }
            }
        }
    }

    #[test]
    fn whatever_is_there_is_parsed_or_rejected() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        let mut rng = SmallRng::seed_from_u64(1);
        let format = LeafFormat::new(8, 16).unwrap();
        for _ in 0..20_000 {
            let image: Vec<u8> = (0..56).map(|_| rng.random()).collect();
            if let Ok(view) = format.view(&image) {
                let _ = (view.is_of(b"key"), view.key(), view.value());
            }
        }
    }
}
