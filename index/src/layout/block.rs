//! Blocks: pairs that lie outside of their leaf, whose entry has a fingerprint of the key and leads to the block (CHIME
//! section 4.5, "indirect"). Pure; it does not know what an entry looks like, nor whose lock protects a block.
//!
//! ```text
//! block    0      8     8+k     8+k+v                   size of its class
//!          | head | key | value | whatever              |
//!
//! head      63                           24 23       13 12            0
//!          +-------------------------------+-----------+---------------+
//!          | checksum of lengths, key,     | key       | value         |
//!          | value                         | length    | length        |
//!          +-------------------------------+-----------+---------------+
//! pointer   63            48 47                               6 5      0
//!          +----------------+----------------------------------+--------+
//!          | memory server  | offset of the block, high bits   | class  |
//!          +----------------+----------------------------------+--------+
//! ```
//!
//! The class is the size in units. A unit is one line of 64 bytes, or as many as it takes for 63 units to hold the
//! longest key and value.
//!
//! The key and its length never change. Value, length and checksum change together, in one WRITE; a reader that gets
//! lines from before and from after it finds that the checksum does not fit, but for one torn READ in 10^12. The
//! checksum needs no bound of the READ's duration, as versions do.
//!
//! A block has no identity of its own: the fingerprint in the entry is the whole hash of the key, so a block of another
//! key in its place is told by that. Reclamation has to see to it that no client has an address any more that comes to
//! hold the same key again.

use std::ops::Range;

use farwood_runtime::RemotePtr;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    Bytes, LINE_BYTES, LayoutError, MAX_KEY_BYTES, MAX_VALUE_BYTES, Malformed, Rejection, check_key_bytes,
};

const HEAD_BYTES: usize = 8;
const CLASS_BITS: u32 = LINE_BYTES.trailing_zeros();
const CLASSES: usize = (1 << CLASS_BITS) - 1;
const VALUE_BITS: u32 = 13;
const KEY_BITS: u32 = 11;
const LENGTHS_MASK: u64 = (1 << (VALUE_BITS + KEY_BITS)) - 1;

const _: () = assert!(MAX_VALUE_BYTES < 1 << VALUE_BITS && MAX_KEY_BYTES < 1 << KEY_BITS);

/// The sizes of an index's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockFormat {
    max_key: usize,
    max_value: usize,
    unit: usize,
}

impl BlockFormat {
    /// Makes the sizes of blocks for keys and values of up to so many bytes.
    ///
    /// ```
    /// # use farwood_index::layout::BlockFormat;
    /// assert_eq!(BlockFormat::new(32, 256)?.largest_bytes(), 320);
    /// assert!(BlockFormat::new(1025, 256).is_err());
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If they are too long.
    pub fn new(max_key: usize, max_value: usize) -> Result<Self, LayoutError> {
        check_key_bytes(max_key)?;
        if max_value > MAX_VALUE_BYTES {
            return Err(LayoutError::ValueBytes { max_value });
        }
        let lines = bytes_for(max_key, max_value).div_ceil(LINE_BYTES);
        Ok(BlockFormat { max_key, max_value, unit: lines.div_ceil(CLASSES) * LINE_BYTES })
    }

    /// Counts the bytes of a block for a key and a value of so many bytes.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!((blocks.block_bytes(4, 1), blocks.block_bytes(64, 64)), (64, 192));
    /// # });
    /// ```
    pub fn block_bytes(&self, key_bytes: usize, value_bytes: usize) -> usize {
        bytes_for(key_bytes, value_bytes).next_multiple_of(self.unit)
    }

    /// Counts the bytes of the largest block.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.largest_bytes(), blocks.block_bytes(64, 64));
    /// # });
    /// ```
    pub fn largest_bytes(&self) -> usize {
        self.block_bytes(self.max_key, self.max_value)
    }

    /// Makes what leads to the block at `address`, of so many bytes.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.pointer(RemotePtr::from_bits(640), 64), at);
    /// # });
    /// ```
    pub fn pointer(&self, address: RemotePtr, bytes: usize) -> BlockPtr {
        assert!(address.to_bits().is_multiple_of(LINE_BYTES as u64), "blocks begin at lines");
        BlockPtr(address.to_bits() | (bytes / self.unit) as u64)
    }

    /// Reads what [`BlockPtr::bits`] yields.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.pointer_of(at.bits()), Ok(at));
    /// assert!(blocks.pointer_of(640).is_err(), "a block has a size");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no writer leaves these bits.
    pub fn pointer_of(&self, bits: u64) -> Result<BlockPtr, Rejection> {
        let pointer = BlockPtr(bits);
        if pointer.address().is_null() || !(1..=self.largest_bytes()).contains(&self.bytes(pointer)) {
            return Err(Malformed::BlockPointer { word: bits }.into());
        }
        Ok(pointer)
    }

    /// Counts the bytes of that block.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.bytes(at), image.len());
    /// # });
    /// ```
    #[inline]
    pub fn bytes(&self, block: BlockPtr) -> usize {
        (block.0 & CLASSES as u64) as usize * self.unit
    }

    /// Tells whether that block has room for a key and a value of so many bytes.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert!(blocks.has_room(at, 4, 52) && !blocks.has_room(at, 4, 53));
    /// # });
    /// ```
    pub fn has_room(&self, block: BlockPtr, key_bytes: usize, value_bytes: usize) -> bool {
        bytes_for(key_bytes, value_bytes) <= self.bytes(block)
    }

    /// Counts the bytes of that block to read to learn whether it is of a key of `key_bytes`.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert!(blocks.view(&image[..blocks.key_part(at, 4)])?.is_of(b"anna"));
    /// # });
    /// ```
    pub fn key_part(&self, block: BlockPtr, key_bytes: usize) -> usize {
        bytes_for(key_bytes, 0).next_multiple_of(8).min(self.bytes(block))
    }

    /// Counts the bytes of that block to read to learn its key, whatever that is.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.any_key_part(at), 64, "keys of up to 64 bytes are not longer than the block");
    /// # });
    /// ```
    pub fn any_key_part(&self, block: BlockPtr) -> usize {
        self.key_part(block, self.max_key)
    }

    /// Counts the bytes of that block to read for the value of a key of `key_bytes`.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(image[blocks.view(&image[..blocks.value_part(at, 4)])?.value()?], *b"1");
    /// # });
    /// ```
    pub fn value_part(&self, block: BlockPtr, key_bytes: usize) -> usize {
        bytes_for(key_bytes, self.max_value).next_multiple_of(8).min(self.bytes(block))
    }

    /// Counts the bytes to read for the value of the longest key.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.value_part_max(), 8 + 64 + 64);
    /// # });
    /// ```
    pub fn value_part_max(&self) -> usize {
        bytes_for(self.max_key, self.max_value).next_multiple_of(8)
    }

    /// Puts a pair into `image`, which has room for it; yields the bytes to send.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.build(&mut image, b"berta", b"22"), 0..16);
    /// assert!(blocks.view(&image)?.is_of(b"berta"));
    /// # });
    /// ```
    pub fn build(&self, image: &mut [u8], key: &[u8], value: &[u8]) -> Range<usize> {
        assert!(key.len() <= self.max_key && value.len() <= self.max_value, "lengths were checked");
        let (value_at, end) = (bytes_for(key.len(), 0), bytes_for(key.len(), value.len()));
        image[HEAD_BYTES..value_at].copy_from_slice(key);
        image[value_at..end].copy_from_slice(value);
        let lengths = (key.len() as u64) << VALUE_BITS | value.len() as u64;
        let head = checksum(lengths, &image[HEAD_BYTES..end]) | lengths;
        image[..HEAD_BYTES].copy_from_slice(&head.to_le_bytes());
        let sent = end.next_multiple_of(8);
        image[end..sent].fill(0);
        0..sent
    }

    /// Parses the block in `image`, which is its beginning, at least 8 bytes of it.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert!(blocks.view(&image)?.is_of(b"anna"));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no writer leaves such bytes.
    pub fn view<'a>(&self, image: &'a [u8]) -> Result<BlockView<'a>, Rejection> {
        let head = u64::from_le_bytes(image[..HEAD_BYTES].try_into().expect("eight bytes"));
        let value_bytes = (head & ((1 << VALUE_BITS) - 1)) as usize;
        let key_bytes = (head >> VALUE_BITS & ((1 << KEY_BITS) - 1)) as usize;
        if key_bytes > self.max_key || value_bytes > self.max_value {
            return Err(Malformed::Block { word: head }.into());
        }
        Ok(BlockView { image, head, key_bytes, value_bytes })
    }
}

fn bytes_for(key_bytes: usize, value_bytes: usize) -> usize {
    HEAD_BYTES + key_bytes + value_bytes
}

/// Computes the checksum of lengths, key and value.
fn checksum(lengths: u64, pair: &[u8]) -> u64 {
    xxh3_64_with_seed(pair, lengths) & !LENGTHS_MASK
}

/// The address of a block, and its size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockPtr(u64);

impl BlockPtr {
    /// Yields the word that entries have.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(at.bits(), 640 | 1);
    /// # });
    /// ```
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Yields where the block is.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(at.address(), RemotePtr::from_bits(640));
    /// # });
    /// ```
    #[inline]
    pub fn address(self) -> RemotePtr {
        RemotePtr::from_bits(self.0 & !(CLASSES as u64))
    }
}

/// A block as it was read.
#[derive(Clone, Copy, Debug)]
pub struct BlockView<'a> {
    image: &'a [u8],
    head: u64,
    key_bytes: usize,
    value_bytes: usize,
}

impl<'a> BlockView<'a> {
    /// Tells whether this is the block of `key`. Keys never change, so this needs no checksum.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert!(!blocks.view(&image)?.is_of(b"berta"));
    /// # });
    /// ```
    #[inline]
    pub fn is_of(&self, key: &[u8]) -> bool {
        self.key_bytes == key.len() && self.image.get(HEAD_BYTES..bytes_for(key.len(), 0)) == Some(key)
    }

    /// Yields the key. It never changes, so this needs no checksum.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.view(&image)?.key()?, b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// If the block ends before it.
    pub fn key(&self) -> Result<&'a [u8], Rejection> {
        let key = self.image.get(HEAD_BYTES..bytes_for(self.key_bytes, 0));
        key.ok_or(Rejection::Malformed(Malformed::Block { word: self.head }))
    }

    /// Tells where the value is in the image.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// let value = blocks.view(&image)?.value()?;
    /// assert_eq!(image[value.clone()], *b"1");
    /// image[value.start] = b'2';
    /// assert_eq!(blocks.view(&image)?.value(), Err(Rejection::Torn));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the image is of different moments.
    pub fn value(&self) -> Result<Range<usize>, Rejection> {
        let (at, end) = (bytes_for(self.key_bytes, 0), bytes_for(self.key_bytes, self.value_bytes));
        let pair = self.image.get(HEAD_BYTES..end).ok_or(Rejection::Torn)?;
        let lengths = self.head & LENGTHS_MASK;
        if checksum(lengths, pair) | lengths == self.head { Ok(at..end) } else { Err(Rejection::Torn) }
    }

    /// Copies key and value.
    ///
    /// ```
    /// # farwood_doctest::block!(|blocks, at, image| {
    /// assert_eq!(blocks.view(&image)?.pair()?.1[..], *b"1");
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`BlockView::value`].
    pub fn pair(&self) -> Result<(Bytes, Bytes), Rejection> {
        let value = self.value()?;
        Ok((Bytes::from_slice(self.key()?), Bytes::from_slice(&self.image[value])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(format: &BlockFormat, key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut image = vec![0xff; format.block_bytes(key.len(), value.len())];
        let sent = format.build(&mut image, key, value);
        assert!(sent.start == 0 && sent.end <= image.len());
        image
    }

    #[test]
    fn sizes_are_units_that_63_classes_suffice_for() {
        for (max_key, max_value, unit, largest) in [
            (1, 0, 64, 64),
            (8, 8, 64, 64),
            (32, 256, 64, 320),
            (1024, 3000, 64, 4032),
            (1024, 4096, 128, 5248),
        ] {
            let format = BlockFormat::new(max_key, max_value).unwrap();
            assert_eq!((format.block_bytes(0, 0), format.largest_bytes()), (unit, largest));
            let pointer = format.pointer(RemotePtr::from_bits(1 << 50 | 640), largest);
            assert_eq!(format.pointer_of(pointer.bits()), Ok(pointer));
            assert_eq!((pointer.address().to_bits(), format.bytes(pointer)), (1 << 50 | 640, largest));
            if largest / unit < CLASSES {
                assert!(format.pointer_of(pointer.bits() + 1).is_err(), "beyond the largest");
            }
        }
        assert!(BlockFormat::new(1025, 8).is_err() && BlockFormat::new(0, 8).is_err());
        assert!(BlockFormat::new(8, 4097).is_err());
    }

    /// Every length of keys and values of small limits, and every part that a reader may read.
    #[test]
    fn pairs_come_back() {
        let format = BlockFormat::new(70, 70).unwrap();
        for key_bytes in 0..=70 {
            for value_bytes in 0..=70 {
                let (key, value) = (vec![7; key_bytes], vec![9; value_bytes]);
                let image = block(&format, &key, &value);
                let at = format.pointer(RemotePtr::from_bits(64), image.len());
                assert!(format.has_room(at, key_bytes, value_bytes));
                let view = format.view(&image[..format.value_part(at, key_bytes)]).unwrap();
                assert!(view.is_of(&key) && !view.is_of(b"something else"));
                assert_eq!(view.pair(), Ok((Bytes::from_slice(&key), Bytes::from_slice(&value))));
                assert!(format.view(&image[..format.key_part(at, key_bytes)]).unwrap().is_of(&key));
                assert_eq!(format.view(&image[..format.any_key_part(at)]).unwrap().key(), Ok(&key[..]));
                // A longer key than the one that was looked for may be cut off, and is another one.
                if key_bytes > 0 {
                    let part = &image[..format.key_part(at, key_bytes - 1)];
                    assert!(!format.view(part).unwrap().is_of(&key[1..]));
                }
            }
        }
    }

    /// Every mixture of lines of two images of a block is one of them, or torn.
    #[test]
    fn mixtures_of_lines_are_torn() {
        let format = BlockFormat::new(8, 200).unwrap();
        let image = block(&format, b"key", &[1; 200]);
        for value in [&[2; 200][..], &[1; 190], &[3; 60], b""] {
            let mut other = image.clone();
            format.build(&mut other, b"key", value);
            let lines = image.len() / LINE_BYTES;
            for bits in 0..1u32 << lines {
                let mut mixed = image.clone();
                for line in (0..lines).filter(|line| bits >> line & 1 == 1) {
                    let line = line * LINE_BYTES..(line + 1) * LINE_BYTES;
                    mixed[line.clone()].copy_from_slice(&other[line]);
                }
                let view = format.view(&mixed).unwrap();
                assert!(view.is_of(b"key"));
                match view.value() {
                    Ok(found) => assert!(mixed[found.clone()] == [1; 200] || mixed[found] == *value),
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
        let format = BlockFormat::new(8, 16).unwrap();
        for _ in 0..20_000 {
            let image: Vec<u8> = (0..8 * rng.random_range(1..8)).map(|_| rng.random()).collect();
            let _ = format.pointer_of(rng.random());
            if let Ok(view) = format.view(&image) {
                let _ = (view.is_of(b"key"), view.key(), view.value(), view.pair());
            }
        }
    }
}
