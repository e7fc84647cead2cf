//! The entries of an unsorted leaf in the order of their keys, for scans of leaves of any format. Slots are sorted, not
//! entries: each move is of 16 bytes, and only the entries that a scan wants are copied, once, to their final place.
//! This file knows neither cursors nor fences.
//!
//! ```text
//!  127                      64 63        32 31         0
//! +---------------------------+------------+------------+
//! | 8 bytes of key from `at`  | 0 .. 8, 9  | slot       |   a rank: its order as a number is that of the keys,
//! +---------------------------+------------+------------+   as far as they go
//! ```
//!
//! Keys that end inside the 8 bytes are padded with zeros; the number of bytes from `at` on, 9 for all that reach
//! beyond the 8, comes next: so `a` goes before `a\0`. Only keys that reach beyond can still differ if all this is
//! the same, and then their next 8 bytes decide. Keys that are all the same come out in the order of their slots.

use std::cmp::Ordering;
use std::ops::{Bound, RangeBounds};

use super::Rejection;
use super::stream::{self, StreamRange, WORD_BYTES};

/// A key of an entry, where it lies.
pub(super) trait SlotKey {
    /// Yields the 8 bytes of the key from `at` on, as a number, with zeros behind the last one, and how many there are
    /// from `at` on, which may be more.
    fn word(&self, at: usize) -> (u64, usize);

    /// Tells whether the key is within bounds.
    fn is_in(&self, bounds: &impl RangeBounds<[u8]>) -> bool;
}

/// Buffer in which slots are sorted. Kept from leaf to leaf, so that not each allocates.
#[derive(Default)]
pub struct SlotOrder(Vec<Rank>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u128);

impl SlotOrder {
    /// Yields those of `slots` whose keys are in `bounds`, ascending by key; of slots with one key the first. `key`
    /// yields the key in a slot, none if it is vacant.
    ///
    /// # Errors
    /// Those of `key`.
    pub(super) fn sorted<K: SlotKey>(
        &mut self,
        bounds: &impl RangeBounds<[u8]>,
        slots: impl Iterator<Item = usize>,
        key: impl Fn(usize) -> Result<Option<K>, Rejection>,
    ) -> Result<impl Iterator<Item = usize>, Rejection> {
        let ranks = &mut self.0;
        ranks.clear();
        for slot in slots {
            if let Some(key) = key(slot)?
                && key.is_in(bounds)
            {
                ranks.push(Rank::new(&key, 0, slot));
            }
        }
        sort(ranks, 0, &|slot| Ok(key(slot)?.expect("it had a key before")))?;
        Ok(ranks.iter().filter(|rank| **rank != Rank::DUPLICATE).map(|rank| rank.slot()))
    }
}

/// A key in the payload stream of an image.
#[derive(Clone, Copy)]
pub(super) struct StreamKey<'a> {
    pub(super) image: &'a [u8],
    pub(super) range: StreamRange,
}

impl SlotKey for StreamKey<'_> {
    #[inline]
    fn word(&self, at: usize) -> (u64, usize) {
        let rest = self.range.from(at);
        (stream::first_word(self.image, rest), rest.len())
    }

    #[inline]
    fn is_in(&self, bounds: &impl RangeBounds<[u8]>) -> bool {
        is_between(bounds, |bound| stream::compare(self.image, self.range, bound))
    }
}

/// Tells whether what compares so with bounds is between them.
pub(super) fn is_between(bounds: &impl RangeBounds<[u8]>, compare: impl Fn(&[u8]) -> Ordering) -> bool {
    let after_start = match bounds.start_bound() {
        Bound::Unbounded => true,
        Bound::Included(start) => compare(start).is_ge(),
        Bound::Excluded(start) => compare(start).is_gt(),
    };
    after_start
        && match bounds.end_bound() {
            Bound::Unbounded => true,
            Bound::Included(end) => compare(end).is_le(),
            Bound::Excluded(end) => compare(end).is_lt(),
        }
}

/// Sorts ranks that were made with `at`, of keys that are the same up to there.
fn sort<K: SlotKey>(
    ranks: &mut [Rank],
    at: usize,
    key: &dyn Fn(usize) -> Result<K, Rejection>,
) -> Result<(), Rejection> {
    ranks.sort_unstable();
    for ties in ranks.chunk_by_mut(|a, b| a.bytes_and_left() == b.bytes_and_left()) {
        if ties.len() == 1 {
            continue;
        }
        if !ties[0].reaches_beyond() {
            ties[1..].fill(Rank::DUPLICATE);
            continue;
        }
        let next = at + WORD_BYTES;
        for rank in &mut *ties {
            let slot = rank.slot();
            *rank = Rank::new(&key(slot)?, next, slot);
        }
        sort(ties, next, key)?;
    }
    Ok(())
}

impl Rank {
    /// Mark in place of a key that would come again. No slot has that number.
    const DUPLICATE: Rank = Rank(u128::MAX);

    #[inline]
    fn new(key: &impl SlotKey, at: usize, slot: usize) -> Self {
        let (bytes, left) = key.word(at);
        let left = left.min(WORD_BYTES + 1);
        Rank(u128::from(bytes) << 64 | (left as u128) << 32 | slot as u128)
    }

    fn slot(self) -> usize {
        self.0 as u32 as usize
    }

    fn bytes_and_left(self) -> u128 {
        self.0 >> 32
    }

    fn reaches_beyond(self) -> bool {
        (self.0 >> 32) as u32 as usize > WORD_BYTES
    }
}
