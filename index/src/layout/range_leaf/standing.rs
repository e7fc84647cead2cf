//! The standing of a leaf, which its first line says by the kind in its control word: whether it is one of the tree. So
//! the WRITE of one word changes it for all readers.
//!
//! ```text
//!          first word of line 0                       next
//! live     0xD3 | 0 | NV, as those of all lines       the leaf behind
//! frozen   0xD6 | 0 | NV                              the leaf behind, or already its heir
//! freed    0xD9 | 0 | NV                              its heir
//! ```
//!
//! All else that was in the leaf stays there. This file does not know when a leaf is which.

use super::{RangeLayout, WORD_BYTES, at};
use crate::layout::Rejection;
use crate::layout::radix::Child;

/// The top byte of the control word of each line: one that unrelated memory is unlikely to hold.
pub(super) const LIVE: u8 = 0xD3;
const FROZEN: u8 = 0xD6;
const FREED: u8 = 0xD9;

/// The standing of a leaf: it is one of its tree or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It answers for its keys.
    Live,
    /// It answers for no key: it is being merged, or made.
    Frozen,
    /// It was merged: another leaf, its heir, has its keys.
    Freed,
}

impl Standing {
    /// Reads the standing of a leaf from its first word.
    ///
    /// # Errors
    /// If there is no leaf.
    pub(super) fn of(first_word: u64) -> Result<Self, Rejection> {
        match (first_word >> 56) as u8 {
            LIVE => Ok(Standing::Live),
            FROZEN => Ok(Standing::Frozen),
            FREED => Ok(Standing::Freed),
            found => Err(Rejection::NotANode { found }),
        }
    }

    fn kind(self) -> u8 {
        match self {
            Standing::Live => LIVE,
            Standing::Frozen => FROZEN,
            Standing::Freed => FREED,
        }
    }
}

impl RangeLayout {
    /// Gives the leaf in `image` that standing; yields its first word, which a WRITE has to send.
    ///
    /// ```
    /// # use farwood_index::layout::Rejection;
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// layout.set_standing(&mut image, Standing::Frozen);
    /// assert_eq!(layout.parse(&image).err(), Some(Rejection::Frozen));
    /// layout.set_standing(&mut image, Standing::Live);
    /// assert!(layout.parse(&image).is_ok());
    /// # });
    /// ```
    ///
    /// # Panics
    /// If the image is shorter than a word.
    pub fn set_standing(&self, image: &mut [u8], standing: Standing) -> u64 {
        let word: &mut [u8; WORD_BYTES] = image.first_chunk_mut().expect("a leaf has more than one word");
        word[WORD_BYTES - 1] = standing.kind();
        u64::from_le_bytes(*word)
    }

    /// Yields where a leaf says which one is behind it, or is its heir: in its first line.
    ///
    /// ```
    /// # farwood_doctest::range_leaf!(|layout, image| {
    /// assert_eq!(layout.next_at(), layout.lock().end);
    /// # });
    /// ```
    pub fn next_at(&self) -> usize {
        at(1 + self.presence_words)
    }
}

/// Yields the leaf that had the keys of a freed one when it was freed; none if the image is of no freed one.
///
/// ```
/// # use farwood_index::layout::radix::Child;
/// # farwood_doctest::range_leaf!(|layout, image| {
/// let heir = Child::of(7).unwrap();
/// image[layout.next_at()..][..8].copy_from_slice(&heir.bits().to_le_bytes());
/// assert_eq!(heir_of(&layout, &image), None);
/// layout.set_standing(&mut image, Standing::Freed);
/// assert_eq!(heir_of(&layout, &image), Some(heir));
/// # });
/// ```
pub fn heir_of(layout: &RangeLayout, image: &[u8]) -> Option<Child> {
    let word_at = |place: usize| Some(u64::from_le_bytes(*image.get(place..)?.first_chunk()?));
    let is_freed = Standing::of(word_at(0)?) == Ok(Standing::Freed);
    Child::of(word_at(layout.next_at())?).filter(|_| is_freed)
}
