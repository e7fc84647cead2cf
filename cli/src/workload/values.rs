//! Values that can be checked: each one carries a hash of its key and the unique number (stamp) of its writer's
//! operation, and the rest is filled from both, so that a get sees a value of another key or a mixture of two values.
//!
//! ```text
//! size     0      1..=7                        8..=15                    16 and more
//!          empty  tag (half, rounded up) stamp tag:4 stamp:4 filler      tag:8 stamp:8 filler
//! ```

use xxhash_rust::xxh3::xxh3_64;

use crate::workload::keys::mix64;

/// The greatest size of a value.
pub(crate) const VALUE_BYTES_MAX: u64 = 4096;
/// The least size at which values are unique (2^32 of them).
pub(crate) const UNIQUE_BYTES_MIN: u64 = 8;

/// Returns the hash of a key that its values carry.
#[inline]
pub(crate) fn tag_of(key: &[u8]) -> u64 {
    match <[u8; 8]>::try_from(key) {
        Ok(word) => mix64(u64::from_be_bytes(word) ^ 0xfa77_00d5_ca1e_ab1e),
        Err(_) => xxh3_64(key),
    }
}

/// Maker and checker of the values of one size, and checker of those of various sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFormat {
    size: usize,
    /// True if values may also be smaller.
    is_limit: bool,
    tag: usize,
    stamp: usize,
}

impl ValueFormat {
    /// Makes the format of values of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        let (tag, stamp) = match size {
            0..8 => (size.div_ceil(2), size / 2),
            8..16 => (4, 4),
            _ => (8, 8),
        };
        ValueFormat { size, is_limit: false, tag, stamp }
    }

    /// Makes the format of values of `size` bytes that takes smaller ones, too.
    pub(crate) fn up_to(size: usize) -> Self {
        ValueFormat { is_limit: true, ..Self::new(size) }
    }

    /// Returns the size of a value: of the largest, where they differ.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Writes a value into `out`, replacing what is there.
    #[inline]
    pub(crate) fn write(&self, tag: u64, stamp: u64, out: &mut Vec<u8>) {
        out.clear();
        if self.size == 8 {
            out.extend_from_slice(&((stamp << 32) | (tag & 0xffff_ffff)).to_le_bytes());
            return;
        }
        out.extend_from_slice(&tag.to_le_bytes()[..self.tag]);
        out.extend_from_slice(&stamp.to_le_bytes()[..self.stamp]);
        let mut seed = self.filler_seed(out);
        while out.len() < self.size {
            seed = seed.wrapping_add(FILLER_STEP);
            let word = mix64(seed).to_le_bytes();
            out.extend_from_slice(&word[..word.len().min(self.size - out.len())]);
        }
    }

    /// Tells whether the value is one that was written for the key with that tag.
    #[inline]
    pub(crate) fn belongs(&self, tag: u64, value: &[u8]) -> bool {
        if value.len() != self.size {
            return self.is_limit && value.len() < self.size && Self::new(value.len()).belongs(tag, value);
        }
        if self.size == 8 {
            return value[..4] == tag.to_le_bytes()[..4];
        }
        let mut seed = self.filler_seed(value);
        value[..self.tag] == tag.to_le_bytes()[..self.tag]
            && value[self.tag + self.stamp..].chunks(8).all(|chunk| {
                seed = seed.wrapping_add(FILLER_STEP);
                *chunk == mix64(seed).to_le_bytes()[..chunk.len()]
            })
    }

    fn filler_seed(&self, value: &[u8]) -> u64 {
        value[..self.tag + self.stamp].iter().fold(0, |seed, &byte| mix64(seed ^ u64::from(byte)))
    }
}

const FILLER_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_belong_to_their_key_only() {
        let (mine, other) = (tag_of(b"mine"), tag_of(b"other"));
        let mut value = Vec::new();
        for size in 0..200 {
            let format = ValueFormat::new(size);
            format.write(mine, 77, &mut value);
            assert_eq!(value.len(), size);
            assert!(format.belongs(mine, &value), "{size}");
            assert!(size < 2 || !format.belongs(other, &value), "{size}");
            assert!(!format.belongs(mine, &[&value[..], b"x"].concat()));
        }
    }

    #[test]
    fn values_of_various_sizes_are_checked_alike() {
        let format = ValueFormat::up_to(30);
        let mut value = Vec::new();
        for size in 0..=30 {
            ValueFormat::new(size).write(tag_of(b"mine"), 77, &mut value);
            assert!(format.belongs(tag_of(b"mine"), &value), "{size}");
            assert!(size < 2 || !format.belongs(tag_of(b"other"), &value), "{size}");
        }
        ValueFormat::new(31).write(tag_of(b"mine"), 77, &mut value);
        assert!(!format.belongs(tag_of(b"mine"), &value));
    }

    #[test]
    fn stamps_make_values_unique() {
        for size in [8, 12, 16, 100] {
            let format = ValueFormat::new(size);
            let (mut a, mut b) = (Vec::new(), Vec::new());
            format.write(5, 1, &mut a);
            format.write(5, 2, &mut b);
            assert_ne!(a, b);
        }
    }

    #[test]
    fn a_torn_value_is_seen() {
        let format = ValueFormat::new(128);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        format.write(5, 1, &mut a);
        format.write(5, 2, &mut b);
        for cut in 16..127 {
            let torn = [&a[..cut], &b[cut..]].concat();
            assert!(!format.belongs(5, &torn), "{cut}");
        }
    }
}
