//! Ranges that a scan takes: every range of the standard library whose bounds have bytes. A trait of its own, not
//! [`RangeBounds`], for which the compiler could not infer the key type of `..`. Knows no index.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use crate::layout::Bytes;

/// A range of keys: `a..b`, `a..=b`, `a..`, `..b`, `..=b` or a pair of [`Bound`]s of anything that is bytes (`&str`,
/// `&[u8]`, `[u8; 8]`, `Vec<u8>`), or `..`, which is all keys.
pub trait KeyRange {
    /// Yields where the range begins and where it ends.
    ///
    /// ```
    /// # use farwood_index::KeyRange;
    /// use std::ops::Bound::{Excluded, Included, Unbounded};
    ///
    /// assert_eq!(("a".."c").bounds(), (Included(&b"a"[..]), Excluded(&b"c"[..])));
    /// assert_eq!((7_u64.to_be_bytes()..).bounds().1, Unbounded);
    /// ```
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

impl KeyRange for RangeFull {
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

macro_rules! key_ranges {
    ($($range:ty),+) => {$(
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
                let (start, end): (Bound<&K>, Bound<&K>) = (self.start_bound(), self.end_bound());
                (start.map(K::as_ref), end.map(K::as_ref))
            }
        }
    )+};
}

key_ranges!(Range<K>, RangeInclusive<K>, RangeFrom<K>, RangeTo<K>, RangeToInclusive<K>, (Bound<K>, Bound<K>));

/// Copies the bounds of a range for a scan, which outlives them.
pub(crate) fn owned_bounds(range: &impl KeyRange) -> (Bound<Bytes>, Bound<Bytes>) {
    let (start, end) = range.bounds();
    (start.map(Bytes::from_slice), end.map(Bytes::from_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_anything_that_is_bytes() {
        use Bound::{Excluded, Included, Unbounded};
        let (a, b) = (&b"a"[..], &b"b"[..]);
        assert_eq!(("a".."b").bounds(), (Included(a), Excluded(b)));
        assert_eq!((b"a"..=b"b").bounds(), (Included(a), Included(b)));
        assert_eq!((a..).bounds(), (Included(a), Unbounded));
        assert_eq!((..vec![b'b']).bounds(), (Unbounded, Excluded(b)));
        assert_eq!((..=*b"b").bounds(), (Unbounded, Included(b)));
        assert_eq!((..).bounds(), (Unbounded, Unbounded));
        assert_eq!((Excluded("a"), Unbounded).bounds(), (Excluded(a), Unbounded));
    }
}
