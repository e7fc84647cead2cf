//! Fields of any width at any bit of an array of atomic 64-bit words.
//!
//! Reading never fails: what lies beyond the end is 0. A reader may be looking at memory that is being
//! written anew; it gets nonsense then, and finds out when it validates. Writing always stores whole words,
//! in which all other bits stay as they are: a reader of those sees no change.

use smallvec::SmallVec;

use crate::sync::{AtomicU64, Ordering};

/// Reads the 64 bits from bit `at` on.
#[inline]
pub(super) fn read(words: &[AtomicU64], at: usize) -> u64 {
    let word = |index: usize| words.get(index).map_or(0, |word| word.load(Ordering::Relaxed));
    let (index, bit) = (at / 64, at % 64);
    word(index) >> bit | (word(index + 1) << 1) << (63 - bit)
}

/// Reads the bit at `at`.
#[inline]
pub(super) fn read_bit(words: &[AtomicU64], at: usize) -> bool {
    words.get(at / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (at % 64) & 1 == 1)
}

/// Reads the 8 bits from bit `at` on, a multiple of 8: one load.
#[inline]
pub(super) fn read_byte(words: &[AtomicU64], at: usize) -> u8 {
    (words.get(at / 64).map_or(0, |word| word.load(Ordering::Relaxed)) >> (at % 64)) as u8
}

/// Reads as [`read`] does; later reads see what was written before these bits were.
#[inline]
pub(super) fn read_acquire(words: &[AtomicU64], at: usize) -> u64 {
    let word = |index: usize| words.get(index).map_or(0, |word| word.load(Ordering::Acquire));
    let (index, bit) = (at / 64, at % 64);
    word(index) >> bit | (word(index + 1) << 1) << (63 - bit)
}

/// Reads the 32 bits from bit `at` on, a multiple of 32: one load. Orders like [`read_acquire`].
#[inline]
pub(super) fn read_half(words: &[AtomicU64], at: usize) -> u32 {
    (words.get(at / 64).map_or(0, |word| word.load(Ordering::Acquire)) >> (at % 64)) as u32
}

/// Overwrites `width` bits, up to 64, from bit `at` on; [`read_acquire`] of them sees what was written before.
/// Only under the writer lock, and only within `words`.
pub(super) fn write(words: &[AtomicU64], at: usize, value: u64, width: u32) {
    let (index, bit) = (at / 64, at % 64);
    let (value, mask) = (low(value, width), low(u64::MAX, width));
    put(&words[index], value << bit, mask << bit);
    if !is_one_word(at, width) {
        put(&words[index + 1], value >> (64 - bit), mask >> (64 - bit));
    }
}

/// Tells whether `width` bits from bit `at` on are in one word: then readers see either the old ones or the
/// new.
pub(super) fn is_one_word(at: usize, width: u32) -> bool {
    at % 64 + width as usize <= 64
}

fn put(word: &AtomicU64, value: u64, mask: u64) {
    let others = word.load(Ordering::Relaxed) & !mask;
    word.store(others | value, Ordering::Release);
}

/// Yields the low `width` bits of `value`; all for 64.
#[inline]
pub(super) fn low(value: u64, width: u32) -> u64 {
    value & !u64::MAX.checked_shl(width).unwrap_or(0)
}

/// A string of bits on its way into the cache. Short ones stay on the stack.
#[derive(Default)]
pub(super) struct Bits {
    words: SmallVec<[u64; 32]>,
    len: usize,
}

impl Bits {
    /// Appends the low `width` bits of `value`, up to 64.
    pub(super) fn push(&mut self, value: u64, width: u32) {
        if width == 0 {
            return;
        }
        let value = low(value, width);
        let bit = self.len % 64;
        match self.words.last_mut() {
            Some(last) if bit > 0 => {
                *last |= value << bit;
                if bit + width as usize > 64 {
                    self.words.push(value >> (64 - bit));
                }
            }
            _ => self.words.push(value),
        }
        self.len += width as usize;
    }

    /// Appends so many zeros.
    pub(super) fn push_zeros(&mut self, count: usize) {
        self.len += count;
        self.words.resize(self.len.div_ceil(64), 0);
    }

    /// Counts the bits so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies the `len` bits from bit `at` of `words` on.
    pub(super) fn copied(words: &[AtomicU64], at: usize, len: usize) -> Self {
        let words = (0..len.div_ceil(64)).map(|index| read(words, at + index * 64)).collect();
        Bits { words, len }
    }

    /// Writes the bits to `words` from bit `at` on, which must be a multiple of 32. Leaves what is before
    /// untouched; up to the next multiple of 64 it may spoil what follows.
    pub(super) fn store(&self, words: &[AtomicU64], at: usize) {
        let (first, bit) = (at / 64, at % 64);
        // Bits before `at` are what a reader of the neighbour sees: they are stored again as they are.
        let mut carry = low(words[first].load(Ordering::Relaxed), bit as u32);
        for (index, word) in self.words.iter().enumerate() {
            words[first + index].store(carry | word << bit, Ordering::Relaxed);
            carry = (word >> 1) >> (63 - bit);
        }
        if bit + self.len > self.words.len() * 64 {
            words[first + self.words.len()].store(carry, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(super) fn atomics(&self) -> Vec<AtomicU64> {
        self.words.iter().copied().map(AtomicU64::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_at_every_bit_survives() {
        for width in 1..=64 {
            let mut bits = Bits::default();
            let value = |index: u64| low(index.wrapping_mul(0x9E37_79B9_7F4A_7C15), width);
            for index in 0..70 {
                bits.push(value(index), width);
            }
            assert_eq!(bits.len(), 70 * width as usize);
            let words = bits.atomics();
            assert_eq!(words.len(), bits.len().div_ceil(64));
            for index in 0..70 {
                let read = low(read(&words, index as usize * width as usize), width);
                assert_eq!(read, value(index), "value {index} of width {width}");
            }
        }
    }

    #[test]
    fn overwriting_changes_nothing_around() {
        // All of them would take Miri hours.
        let step = if cfg!(miri) { 21 } else { 1 };
        for width in (0..=64u32).step_by(step) {
            for at in (0..=128).step_by(step) {
                for (around, value) in [(0, u64::MAX), (u64::MAX, 0)] {
                    let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(around)).collect();
                    write(&words, at, value, width);
                    let written = at..at + width as usize;
                    for bit in 0..256 {
                        let expected = if written.contains(&bit) { value } else { around };
                        assert_eq!(read(&words, bit) & 1, expected & 1, "{width} bits at {at}: bit {bit}");
                        assert_eq!(read_acquire(&words, bit), read(&words, bit));
                        assert_eq!(read_bit(&words, bit), read(&words, bit) & 1 == 1);
                        assert_eq!(read_byte(&words, bit & !7), read(&words, bit & !7) as u8);
                    }
                    let first_and_last_word = (at / 64, (at + (width as usize).max(1) - 1) / 64);
                    let in_one = first_and_last_word.0 == first_and_last_word.1;
                    assert_eq!(is_one_word(at, width), in_one, "{width} bits at {at}");
                    assert_eq!(read_half(&words, at & !31), read(&words, at & !31) as u32);
                }
            }
        }
    }

    #[test]
    fn beyond_the_end_there_are_zeros() {
        let words = [AtomicU64::new(u64::MAX)];
        assert_eq!((read(&words, 0), read(&words, 60), read(&words, 64)), (u64::MAX, 15, 0));
        assert_eq!((read(&[], 1 << 40), read_bit(&[], 1 << 40), read_byte(&[], 1 << 40)), (0, false, 0));
    }

    #[test]
    fn neighbours_in_one_word_do_not_touch_each_other() {
        let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(u64::MAX)).collect();
        let string = |seed: u64, len: u32| {
            let mut bits = Bits::default();
            (0..len / 32).for_each(|index| bits.push(seed + u64::from(index), 32));
            bits
        };
        let parts = [(96, 10), (160, 20), (32, 30), (192, 40)];
        let mut at = 0;
        for (len, seed) in parts {
            string(seed, len).store(&words, at);
            at += len as usize;
        }
        let mut at = 0;
        for (len, seed) in parts {
            for index in 0..u64::from(len) / 32 {
                assert_eq!(low(read(&words, at), 32), seed + index);
                at += 32;
            }
            let moved = Bits::copied(&words, at - len as usize, len as usize);
            assert_eq!(low(read(&moved.atomics(), 0), 32), seed);
        }
    }
}
