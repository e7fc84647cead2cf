//! The entries of an unsorted leaf in the order of their keys, for scans. Slots are sorted, not entries: each move is
//! of 16 bytes, and only the entries that a scan wants are copied, once, to their final place. This file knows neither
//! cursors nor fences.
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

use std::ops::{Bound, RangeBounds};

use super::{HEAD_BYTES, LeafView};
use crate::layout::stream::{self, StreamRange, WORD_BYTES};
use crate::layout::{Bytes, Rejection};

/// Buffer in which slots are sorted. Kept from leaf to leaf, so that not each allocates.
#[derive(Default)]
pub struct SlotOrder(Vec<Rank>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank(u128);

impl LeafView<'_> {
    /// Appends the entries with keys in `bounds` to `pairs`, ascending by key, but at most `limit` of them. A key
    /// that was removed and put back while the leaf was read may show in two slots; it comes once.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// let (mut order, mut pairs) = (SlotOrder::default(), Vec::new());
    /// layout.view(&image)?.copy_sorted(&.., 1, &mut order, &mut pairs)?;
    /// assert_eq!(pairs[0].0[..], *b"anna");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the lines of any entry, in `bounds` or not, come from different moments: the key that
    /// it seems to hold proves nothing. [`Rejection::Malformed`] if no writer leaves such an entry. Nothing is
    /// appended then.
    pub fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<(Bytes, Bytes)>,
    ) -> Result<(), Rejection> {
        let ranks = &mut order.0;
        ranks.clear();
        for slot in self.slots() {
            if let Some(key) = self.key(slot)?
                && self.is_in(bounds, key)
            {
                ranks.push(Rank::new(self.image, key, 0, slot));
            }
        }
        self.sort(ranks, 0)?;
        let before = pairs.len();
        for rank in ranks.iter().filter(|rank| **rank != Rank::DUPLICATE).take(limit) {
            match self.pair(rank.slot()) {
                Ok(pair) => pairs.push(pair),
                Err(rejection) => {
                    pairs.truncate(before);
                    return Err(rejection);
                }
            }
        }
        Ok(())
    }

    /// Tells whether [`LeafView::copy_sorted`] of `bounds` relies on entry versions, which prove nothing if the READ
    /// took too long. An entry in one line needs none. Nor does one that is not wanted, if its key is in one line: the
    /// key is then one that a writer left there, and no mixture.
    ///
    /// ```
    /// # farwood_doctest::leaf!(|layout, image| {
    /// assert!(layout.view(&image)?.rests_on_entry_versions(&..), "the second entry is in two lines");
    /// layout.clear_entry(&mut image, 1);
    /// assert!(!layout.view(&image)?.rests_on_entry_versions(&..));
    /// # });
    /// ```
    pub fn rests_on_entry_versions(&self, bounds: &impl RangeBounds<[u8]>) -> bool {
        let layout = self.layout;
        self.slots().filter(|slot| !layout.is_vacant(self.image, *slot)).any(|slot| {
            let entry = layout.entry(slot);
            let up_to_key = StreamRange::new(entry.start(), HEAD_BYTES + layout.max_key);
            !entry.further_lines().is_empty()
                && (!up_to_key.further_lines().is_empty()
                    || self.stored_key(slot).is_ok_and(|key| self.is_in(bounds, key)))
        })
    }

    fn is_in(&self, bounds: &impl RangeBounds<[u8]>, key: StreamRange) -> bool {
        let compare = |bound: &[u8]| stream::compare(self.image, key, bound);
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
    fn sort(&self, ranks: &mut [Rank], at: usize) -> Result<(), Rejection> {
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
                *rank = Rank::new(self.image, self.stored_key(slot)?, next, slot);
            }
            self.sort(ties, next)?;
        }
        Ok(())
    }
}

impl Rank {
    /// Mark in place of a key that would come again. No slot has that number.
    const DUPLICATE: Rank = Rank(u128::MAX);

    fn new(image: &[u8], key: StreamRange, at: usize, slot: usize) -> Self {
        let rest = key.from(at);
        let left = rest.len().min(WORD_BYTES + 1);
        let bytes = stream::first_word(image, rest);
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
