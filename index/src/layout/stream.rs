//! The payload stream of a node: all bytes of its 64-byte lines except the control word at the start of each.
//!
//! ```text
//! image   |cw| 62 bytes      |cw| 62 bytes      |cw| 62 bytes      |   every line: 2-byte control word, 62 bytes
//! stream      0 ........ 61      62 ....... 123     124 ...... 185
//! ```
//!
//! Stream offset `o` lives at image offset `(o / 62) * 64 + 2 + o % 62`. Headers, fingerprints and entries are
//! laid out in the stream and need not care where lines begin; only the versions (`version.rs`) and patches do.
//! This file knows no field and no version.

use std::cmp::Ordering;
use std::ops::Range;

use smallvec::SmallVec;

use super::Bytes;

/// Bytes in a line: the unit in which the fabric is atomic.
pub const LINE_BYTES: usize = 64;
/// Bytes of the control word that opens each line.
pub(super) const CONTROL_BYTES: usize = 2;
/// Bytes of payload in each line.
pub(super) const PAYLOAD_BYTES: usize = LINE_BYTES - CONTROL_BYTES;
/// Bytes in the unit of comparison.
pub(super) const WORD_BYTES: usize = 8;
/// Offset and length of a WRITE are multiples of this.
const WRITE_ALIGN: usize = 8;

/// A range of the payload stream, in stream bytes. It belongs to images of the layout that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRange {
    start: u32,
    len: u32,
}

impl StreamRange {
    /// Makes the range of `len` bytes from stream offset `start`. Nodes have at most 64 KiB, so both fit with room to
    /// spare.
    pub(super) fn new(start: usize, len: usize) -> Self {
        StreamRange { start: start as u32, len: len as u32 }
    }

    /// Yields the stream offset of the first byte.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(layout.value_range(&image, 0)?.start() < layout.value_range(&image, 1)?.start());
    /// # });
    /// ```
    pub fn start(self) -> usize {
        self.start as usize
    }

    /// Counts the bytes.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert_eq!(layout.value_range(&image, 0)?.len(), 1);
    /// # });
    /// ```
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Tells whether the range has no bytes.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(!layout.value_range(&image, 0)?.is_empty());
    /// # });
    /// ```
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Yields the stream offset after the last byte.
    pub(super) fn end(self) -> usize {
        self.start() + self.len()
    }

    /// Yields the range without its first `bytes` bytes, of which it has as many.
    pub(super) fn from(self, bytes: usize) -> Self {
        StreamRange::new(self.start() + bytes, self.len() - bytes)
    }

    /// Yields the lines after the first in which the (non-empty) range has bytes; empty for a range inside one line.
    pub(super) fn further_lines(self) -> Range<usize> {
        debug_assert!(!self.is_empty(), "only a non-empty range lies in lines");
        self.start() / PAYLOAD_BYTES + 1..(self.end() - 1) / PAYLOAD_BYTES + 1
    }

    /// Yields the bytes of the image that a WRITE of this (non-empty) range sends: widened to 8-byte words, with the
    /// control words of the further lines inside.
    pub(super) fn write_range(self) -> Range<usize> {
        debug_assert!(!self.is_empty(), "a WRITE sends something");
        let start = physical(self.start()) / WRITE_ALIGN * WRITE_ALIGN;
        start..(physical(self.end() - 1) + 1).next_multiple_of(WRITE_ALIGN)
    }
}

/// Yields the lines in which the (non-empty) range has bytes, as bytes of the image.
pub(super) fn lines(range: StreamRange) -> Range<usize> {
    range.start() / PAYLOAD_BYTES * LINE_BYTES..range.further_lines().end * LINE_BYTES
}

/// Moves the bytes of `range` together inside `image` and returns where they are. The image is no node any more
/// afterwards (nothing moves if the range lies in one line). So a value can be handed on inside the buffer that
/// the READ filled.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// let value = layout.value_range(&image, 1)?;
/// let value = make_contiguous(&mut image, value);
/// assert_eq!(image[value], *b"3");
/// # });
/// ```
pub fn make_contiguous(image: &mut [u8], range: StreamRange) -> Range<usize> {
    if range.is_empty() {
        // It may begin where the image ends.
        return 0..0;
    }
    let start = physical(range.start());
    let mut end = start;
    for_each_piece(range.start(), range.len(), |from, bytes| {
        if from.start != end {
            image.copy_within(from, end);
        }
        end += bytes;
    });
    start..end
}

/// Tells where the byte at stream offset `offset` lies in the image.
#[inline]
pub(super) fn physical(offset: usize) -> usize {
    offset + offset / PAYLOAD_BYTES * CONTROL_BYTES + CONTROL_BYTES
}

/// Yields the byte at stream offset `offset`.
#[inline]
pub(super) fn byte(image: &[u8], offset: usize) -> u8 {
    image[physical(offset)]
}

/// Yields the bytes of `range`, copied together.
#[inline]
pub(super) fn to_bytes(image: &[u8], range: StreamRange) -> Bytes {
    if range.len() == WORD_BYTES {
        // The constant length spares a call of `memcpy`.
        return Bytes::from_slice(&word(image, range.start()).to_be_bytes());
    }
    if let Some(bytes) = in_one_line(image, range) {
        return Bytes::from_slice(bytes);
    }
    let mut bytes = Bytes::with_capacity(range.len());
    for_each_piece(range.start(), range.len(), |from, _| bytes.extend_from_slice(&image[from]));
    bytes
}

/// Copies the bytes of `range` together for a moment: without an allocation, unless they are unusually many.
pub(super) fn gather(image: &[u8], range: StreamRange) -> SmallVec<[u8; 256]> {
    let mut bytes = SmallVec::with_capacity(range.len());
    for_each_piece(range.start(), range.len(), |from, _| bytes.extend_from_slice(&image[from]));
    bytes
}

/// Yields the bytes of `range` where they are, if they lie in one line.
#[inline]
pub(super) fn in_one_line(image: &[u8], range: StreamRange) -> Option<&[u8]> {
    if range.is_empty() {
        // It may begin where the image ends.
        return Some(&[]);
    }
    let at = physical(range.start());
    (range.start() % PAYLOAD_BYTES + range.len() <= PAYLOAD_BYTES).then(|| &image[at..at + range.len()])
}

/// Yields `N` bytes from stream offset `start`.
#[inline]
pub(super) fn array<const N: usize>(image: &[u8], start: usize) -> [u8; N] {
    if let Some(bytes) = in_one_line(image, StreamRange::new(start, N)) {
        return bytes.try_into().expect("as many as were asked for");
    }
    let mut bytes = [0; N];
    let mut done = 0;
    for_each_piece(start, N, |from, len| {
        bytes[done..done + len].copy_from_slice(&image[from]);
        done += len;
    });
    bytes
}

/// Writes `bytes` from stream offset `start`. Control words stay as they are.
pub(super) fn write(image: &mut [u8], start: usize, bytes: &[u8]) {
    let mut done = 0;
    for_each_piece(start, bytes.len(), |to, len| {
        image[to].copy_from_slice(&bytes[done..done + len]);
        done += len;
    });
}

/// Writes `len` zeros from stream offset `start`.
pub(super) fn write_zeros(image: &mut [u8], start: usize, len: usize) {
    for_each_piece(start, len, |to, _| image[to].fill(0));
}

/// Compares the bytes of `range` with `key`, lexicographically.
#[inline]
pub(super) fn compare(image: &[u8], range: StreamRange, key: &[u8]) -> Ordering {
    if let (WORD_BYTES, Ok(key)) = (range.len(), <[u8; WORD_BYTES]>::try_from(key)) {
        return word(image, range.start()).cmp(&u64::from_be_bytes(key));
    }
    compare_words(image, range, key)
}

/// Compares the bytes of two ranges, lexicographically.
pub(super) fn compare_ranges(image: &[u8], a: StreamRange, b: StreamRange) -> Ordering {
    let bytes = |range: StreamRange| (range.start()..range.end()).map(|offset| byte(image, offset));
    bytes(a).cmp(bytes(b))
}

/// Compares word by word, the last one overlapping its predecessor. Keys are short, so this beats a call of
/// `memcmp`, and it does not mind line boundaries.
#[inline(never)]
fn compare_words(image: &[u8], range: StreamRange, key: &[u8]) -> Ordering {
    let common = range.len().min(key.len());
    let Some(last) = common.checked_sub(WORD_BYTES) else {
        return compare_bytes(image, range, key);
    };
    let mut at = 0;
    loop {
        let ours = word(image, range.start() + at);
        let theirs = big_endian(key, at);
        if ours != theirs {
            return ours.cmp(&theirs);
        }
        if at == last {
            return range.len().cmp(&key.len());
        }
        at = (at + WORD_BYTES).min(last);
    }
}

/// Compares bytes too few for a word.
fn compare_bytes(image: &[u8], range: StreamRange, key: &[u8]) -> Ordering {
    let ours = (range.start()..range.end()).map(|offset| byte(image, offset));
    ours.cmp(key.iter().copied())
}

/// Yields the first eight bytes of `range`, big-endian, with zeros behind the bytes of a shorter one.
#[inline]
pub(super) fn first_word(image: &[u8], range: StreamRange) -> u64 {
    if range.len() >= WORD_BYTES {
        return word(image, range.start());
    }
    let bytes = (0..range.len()).map(|i| u64::from(byte(image, range.start() + i)) << (56 - 8 * i));
    bytes.fold(0, |word, byte| word | byte)
}

/// Yields eight bytes from stream offset `offset`, big-endian, so that words compare as their bytes do.
#[inline]
fn word(image: &[u8], offset: usize) -> u64 {
    let at = physical(offset);
    let here = PAYLOAD_BYTES - offset % PAYLOAD_BYTES;
    if here >= WORD_BYTES {
        return big_endian(image, at);
    }
    // The bytes after `here` come after a control word.
    let after = u64::MAX >> (8 * here);
    big_endian(image, at) & !after | big_endian(image, at + CONTROL_BYTES) & after
}

/// Makes a number of the first 8 bytes, and zeros behind the last one, that is in the order of the bytes.
#[inline]
pub(super) fn in_order(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk() {
        // The constant length spares a call of `memcpy`.
        return u64::from_be_bytes(*whole);
    }
    let mut padded = [0; WORD_BYTES];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_be_bytes(padded)
}

#[inline]
fn big_endian(bytes: &[u8], at: usize) -> u64 {
    let word = &bytes[at..at + WORD_BYTES];
    u64::from_be_bytes(std::array::from_fn(|i| word[i]))
}

/// Calls `piece` with each run of the image that the stream range lies in, and the run's length, in stream order.
fn for_each_piece(start: usize, len: usize, mut piece: impl FnMut(Range<usize>, usize)) {
    let (mut offset, mut left) = (start, len);
    while left > 0 {
        let here = left.min(PAYLOAD_BYTES - offset % PAYLOAD_BYTES);
        let at = physical(offset);
        piece(at..at + here, here);
        offset += here;
        left -= here;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an image in which stream byte `o` holds `o`, and control words hold 0xEE.
    fn image() -> Vec<u8> {
        let mut image = vec![0xEE; 4 * LINE_BYTES];
        let stream: Vec<u8> = (0..4 * PAYLOAD_BYTES as u8).collect();
        write(&mut image, 0, &stream);
        image
    }

    fn ranges() -> impl Iterator<Item = (StreamRange, Vec<u8>)> {
        let bytes = 4 * PAYLOAD_BYTES;
        let range = move |start| (0..=bytes - start).map(move |len| (start, len));
        (0..bytes)
            .flat_map(range)
            .map(|(start, len)| (StreamRange::new(start, len), (start as u8..(start + len) as u8).collect()))
    }

    #[test]
    fn every_range_reads_as_its_bytes() {
        let image = image();
        for (range, expected) in ranges() {
            assert_eq!(to_bytes(&image, range)[..], expected);
            let mut copy = image.clone();
            let at = make_contiguous(&mut copy, range);
            assert_eq!(copy[at], expected);
        }
    }

    #[test]
    fn compares_as_slices_do() {
        let image = image();
        for (range, bytes) in ranges().filter(|(range, _)| range.start() % 7 == 0 && range.len() < 80) {
            let mut others =
                vec![bytes.clone(), [&bytes[..], &[0]].concat(), bytes[..bytes.len() / 2].to_vec()];
            for at in [0, bytes.len() / 2, bytes.len().saturating_sub(1)] {
                for difference in [1, 0xff] {
                    let mut other = bytes.clone();
                    if let Some(byte) = other.get_mut(at) {
                        *byte = byte.wrapping_add(difference);
                    }
                    others.push(other);
                }
            }
            for other in others {
                assert_eq!(compare(&image, range, &other), bytes.cmp(&other), "{range:?} {other:?}");
            }
            for (other, other_bytes) in
                ranges().filter(|(other, _)| other.start() % 61 == 0 && other.len() < 4)
            {
                assert_eq!(
                    compare_ranges(&image, range, other),
                    bytes.cmp(&other_bytes),
                    "{range:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn a_write_covers_its_bytes_and_the_control_words_between() {
        for (range, _) in ranges().filter(|(range, _)| !range.is_empty()) {
            let sent = range.write_range();
            assert!(sent.start <= physical(range.start()) && physical(range.end() - 1) < sent.end);
            assert!(sent.len() <= range.len() + 2 * range.further_lines().len() + 14);
            assert!(range.further_lines().all(|line| sent.contains(&(line * LINE_BYTES))));
            let first = range.further_lines().start;
            assert!(!sent.contains(&(first * LINE_BYTES)) || !range.further_lines().is_empty());
        }
    }
}
