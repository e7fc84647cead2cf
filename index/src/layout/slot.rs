//! Variable-length bytes in a slot of fixed size, at the cost of one bit kept elsewhere: the *short* bit.
//!
//! ```text
//! full length   | size bytes                           |   short bit clear
//! shorter       | bytes           | zeros          | d |   short bit set, d = size - length, 1..=254
//! much shorter  | bytes     | zeros    | d u16 LE |255|   short bit set, d = size - length >= 255
//! ```
//!
//! The room left over is stored, not the length: it decides how much room there is to store it in (a value one byte
//! short of the size leaves one byte). This file does not know where the short bit lives.

use super::stream::{self, StreamRange};

const LONG_FORM: u8 = 255;

/// A slot: `size` bytes from stream offset `start`.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) start: usize,
    pub(super) size: usize,
}

impl Slot {
    /// Stores `bytes`, at most `size` of them, and returns the short bit.
    pub(super) fn write(self, image: &mut [u8], bytes: &[u8]) -> bool {
        assert!(bytes.len() <= self.size, "the caller has checked the length against the index's limits");
        stream::write(image, self.start, bytes);
        let room = self.size - bytes.len();
        if room == 0 {
            return false;
        }
        stream::write_zeros(image, self.start + bytes.len(), room);
        let last = self.start + self.size - 1;
        if room < usize::from(LONG_FORM) {
            stream::write(image, last, &[room as u8]);
        } else {
            let [low, high] = (room as u16).to_le_bytes();
            stream::write(image, last - 2, &[low, high, LONG_FORM]);
        }
        true
    }

    /// Yields the bytes in use, or `None` if their number is not one that [`Slot::write`] leaves.
    #[inline]
    pub(super) fn used(self, image: &[u8], short: bool) -> Option<StreamRange> {
        let len = if short { self.short_len(image)? } else { self.size };
        Some(StreamRange::new(self.start, len))
    }

    #[inline(never)]
    fn short_len(self, image: &[u8]) -> Option<usize> {
        let last = (self.start + self.size).checked_sub(1).filter(|_| self.size > 0)?;
        let room = match stream::byte(image, last) {
            0 => return None,
            LONG_FORM if self.size >= usize::from(LONG_FORM) => {
                let room = u16::from_le_bytes(stream::array(image, last - 2));
                usize::from(room).max(usize::from(LONG_FORM))
            }
            room => usize::from(room),
        };
        self.size.checked_sub(room)
    }
}
