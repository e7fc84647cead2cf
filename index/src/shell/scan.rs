//! Scans as streams, for all algorithms: windows of pairs, one after the other, and an entry in the statistics at the
//! end; and how far a scan has come that consumes leaf by leaf. It does not know where pairs come from.

use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use farwood_runtime::{Meter, Verbs};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::AccessError;
use crate::layout::Bytes;
use crate::range_index::{Pair, Scan};
use crate::shell::algorithm::Algorithm;
use crate::shell::handle::Local;
use crate::stats::OpKind;

/// A scan under way.
pub trait Windows: 'static {
    /// Yields the next pairs: at least one, or none after the last.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Pair>, AccessError>>;

    /// Yields the meter that all chains so far went into.
    fn meter(&self) -> &Meter;
}

/// Streams the pairs of all windows.
pub fn stream<A: Algorithm, V: Verbs>(local: Rc<Local<A, V>>, windows: impl Windows) -> Scan {
    let start = Some((local, windows, 0));
    // Unfolded by the window, not by the pair: each step moves the scan and its future, which are large.
    let windows = stream::unfold(start, |scan| async move {
        let (local, mut windows, entries) = scan?;
        // For a window: what a scan keeps from one to the next are keys and pairs.
        let pin = local.verbs.pins().pin();
        let window = windows.next().await;
        drop(pin);
        match window {
            Ok(pairs) if pairs.is_empty() => {
                local.record(OpKind::Scan, windows.meter(), true, entries);
                None
            }
            Ok(pairs) => {
                let entries = entries + pairs.len() as u64;
                Some((Ok(stream::iter(pairs.into_iter().map(Ok))), Some((local, windows, entries))))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    windows.try_flatten().boxed_local()
}

/// Streams pairs, one leaf after the other. `leaf` yields the pairs of the leaf for a key, ascending, and where its
/// keys end; none if the index has no leaf.
pub fn by_leaf<A: Algorithm, V: Verbs>(
    local: Rc<Local<A, V>>,
    range: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
    leaf: impl AsyncFnMut(&Rc<Local<A, V>>, &Meter, &[u8]) -> Result<Option<LeafPairs>, AccessError> + 'static,
) -> Scan {
    let leaves =
        Leaves { local: Rc::clone(&local), meter: Meter::default(), front: Front::new(range, limit), leaf };
    stream(local, leaves)
}

/// The pairs of a leaf, and where its keys end: nowhere, if it is the last one.
pub type LeafPairs = (Vec<Pair>, Option<Bytes>);

/// A scan under way that reads leaf by leaf.
struct Leaves<A: Algorithm, V: Verbs, L> {
    local: Rc<Local<A, V>>,
    meter: Meter,
    front: Front,
    leaf: L,
}

impl<A: Algorithm, V: Verbs, L> Windows for Leaves<A, V, L>
where
    L: AsyncFnMut(&Rc<Local<A, V>>, &Meter, &[u8]) -> Result<Option<LeafPairs>, AccessError> + 'static,
{
    async fn next(&mut self) -> Result<Vec<Pair>, AccessError> {
        let Leaves { local, meter, front, leaf } = self;
        let mut wanted = Vec::new();
        while wanted.is_empty()
            && let Some(at) = front.at()
            && let Some((pairs, high)) = leaf(local, meter, at).await?
        {
            let (bounds, left) = (front.bounds(), front.left());
            let is_wanted = |pair: &Pair| RangeBounds::<[u8]>::contains(&bounds, &pair.0[..]);
            wanted.extend(pairs.into_iter().filter(is_wanted).take(left));
            front.advance(wanted.len(), high);
        }
        Ok(wanted)
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

/// Counts the leaves of so many slots that hold `limit` pairs if they are 70 % full (as B-trees are) and the first
/// begins in the middle. A scan without a limit starts small: its end may be near.
pub fn first_window(slots: usize, limit: usize, most: usize) -> usize {
    let full = (slots * 7).div_ceil(10);
    let wanted = if limit == usize::MAX { 2 } else { (limit.saturating_add(full / 2)).div_ceil(full) };
    wanted.clamp(1, most)
}

/// The pairs that a scan still wants, where leaves are consumed in the order of their keys.
#[derive(Debug)]
pub struct Front {
    /// The next key to consume; none when the last leaf was consumed.
    at: Option<Bytes>,
    /// True if the key `at` itself is wanted (only an excluded start is not).
    wanted: bool,
    end: Bound<Bytes>,
    left: usize,
}

impl Front {
    /// Makes the front of a scan that has consumed nothing.
    pub fn new((start, end): (Bound<Bytes>, Bound<Bytes>), limit: Option<usize>) -> Self {
        let (at, wanted) = match start {
            Bound::Unbounded => (Bytes::new(), true),
            Bound::Included(key) => (key, true),
            Bound::Excluded(key) => (key, false),
        };
        Front { at: Some(at), wanted, end, left: limit.unwrap_or(usize::MAX) }
    }

    /// Yields the key whose leaf is the next one; none if the scan wants nothing more.
    #[inline]
    pub fn at(&self) -> Option<&Bytes> {
        let at = self.at.as_ref().filter(|_| self.left > 0)?;
        let is_past_end = match &self.end {
            Bound::Excluded(end) => at >= end,
            Bound::Included(end) => at > end || (at == end && !self.wanted),
            Bound::Unbounded => false,
        };
        (!is_past_end).then_some(at)
    }

    /// Yields the bounds of the keys that are wanted: those of a scan that wants something more can be met.
    #[inline]
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let at = self.at.as_deref().unwrap_or_default();
        let start = if self.wanted { Bound::Included(at) } else { Bound::Excluded(at) };
        (start, self.end.as_ref().map(Bytes::as_slice))
    }

    /// Counts the pairs that are wanted at most.
    #[inline]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Consumes a leaf, of which so many pairs were taken, up to its end; none if it is the last one.
    #[inline]
    pub fn advance(&mut self, taken: usize, high: Option<Bytes>) {
        self.left -= taken;
        self.at = high;
        self.wanted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn front(start: Bound<&[u8]>, end: Bound<&[u8]>, limit: Option<usize>) -> Front {
        Front::new((start.map(Bytes::from_slice), end.map(Bytes::from_slice)), limit)
    }

    #[test]
    fn a_scan_wants_nothing_of_an_empty_range() {
        use Bound::{Excluded, Included, Unbounded};
        for (start, end, limit, wants) in [
            (Unbounded, Unbounded, None, true),
            (Unbounded, Unbounded, Some(0), false),
            (Included(&b"b"[..]), Included(&b"b"[..]), None, true),
            (Included(b"b"), Excluded(b"b"), None, false),
            (Excluded(b"b"), Included(b"b"), None, false),
            (Included(b"c"), Included(b"b"), None, false),
            (Excluded(b"b"), Included(b"c"), None, true),
        ] {
            assert_eq!(front(start, end, limit).at().is_some(), wants, "{start:?} {end:?} {limit:?}");
        }
    }

    #[test]
    fn a_scan_ends_with_its_limit_or_with_the_last_leaf() {
        let mut scan = front(Bound::Excluded(b"b"), Bound::Unbounded, Some(3));
        assert_eq!(scan.bounds(), (Bound::Excluded(&b"b"[..]), Bound::Unbounded));
        scan.advance(2, Some(Bytes::from_slice(b"h")));
        assert_eq!((scan.bounds().0, scan.left()), (Bound::Included(&b"h"[..]), 1));
        scan.advance(1, Some(Bytes::from_slice(b"m")));
        assert_eq!(scan.at(), None);
        let mut scan = front(Bound::Unbounded, Bound::Unbounded, None);
        scan.advance(2, None);
        assert_eq!(scan.at(), None);
    }

    #[test]
    fn the_first_window_fits_the_limit() {
        // Sherman's leaves of 1 KiB have 54.
        assert_eq!(first_window(54, 100, 32), 4);
        assert_eq!(first_window(54, 1, 32), 1);
        assert_eq!(first_window(54, 1_000_000, 32), 32);
        assert_eq!(first_window(54, usize::MAX, 32), 2);
    }
}
