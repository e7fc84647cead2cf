//! Scans: in the order of keys, windows of leaves, which are read in parallel. Where a leaf ends, the next one begins,
//! whatever was split meanwhile, so a key that stays comes once.
//!
//! The leaves of a window are those that the cached node above has behind the first. They are hints: one that does not
//! begin where the one before ends is not used, nor one that is torn, and the next window begins there.

use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use farwood_runtime::{Meter, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::descend::{Located, Place};
use super::leaf_plan::pairs_of;
use super::lookup::Sought;
use super::root::begin_of;
use crate::error::AccessError;
use crate::layout::radix::{Child, Slot, Symbol};
use crate::layout::range_leaf::RangeFound;
use crate::layout::{Bytes, Rejection};
use crate::range_index::{Pair, Scan};
use crate::shell::scan::{Front, LeafPairs, Windows, stream as stream_windows};

/// Streams the pairs between two bounds.
pub(super) fn stream<V: Verbs>(
    tree: Rc<Tree<V>>,
    range: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let scan = Leaves {
        tree: Rc::clone(&tree),
        meter: Meter::default(),
        front: Front::new(range, limit),
        window: 2,
    };
    stream_windows(tree, scan)
}

/// A scan under way.
struct Leaves<V: Verbs> {
    tree: Rc<Tree<V>>,
    meter: Meter,
    front: Front,
    /// Leaves of the next window.
    window: usize,
}

impl<V: Verbs> Windows for Leaves<V> {
    async fn next(&mut self) -> Result<Vec<Pair>, AccessError> {
        let mut wanted = Vec::new();
        while wanted.is_empty()
            && let Some(at) = self.front.at().cloned()
        {
            let leaves = self.read_window(&at).await?;
            if leaves.is_empty() {
                break;
            }
            for (pairs, high) in leaves {
                if self.front.at().is_none() {
                    break;
                }
                let (bounds, left) = (self.front.bounds(), self.front.left());
                let is_wanted = |pair: &Pair| RangeBounds::<[u8]>::contains(&bounds, &pair.0[..]);
                let before = wanted.len();
                wanted.extend(pairs.into_iter().filter(is_wanted).take(left));
                self.front.advance(wanted.len() - before, high);
            }
        }
        Ok(wanted)
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl<V: Verbs> Leaves<V> {
    /// Reads the leaf for `at`, and those behind that are known: the pairs of each, and where it ends. None after the
    /// last.
    async fn read_window(&mut self, at: &[u8]) -> Result<SmallVec<[LeafPairs; 1]>, AccessError> {
        let (tree, meter) = (&self.tree, &self.meter);
        let enough = self.front.left().div_ceil(tree.leaf().slots()).saturating_add(1);
        // Each is twice as large as the one before: a short scan reads few leaves that it does not want.
        let most = self.window.min(tree.scan_window()).min(enough);
        self.window = most.max(1) * 2;
        let mut leaves = SmallVec::new();
        if most > 1
            && let Located::Leaf(place) = tree.locate(meter, at, &mut tree.budget()).await?
        {
            tree.read_leaves(meter, at, place, most, &mut leaves).await?;
        }
        if leaves.is_empty()
            && let Some(leaf) = tree.leaf_pairs(meter, at).await?
        {
            leaves.push(leaf);
        }
        Ok(leaves)
    }
}

impl<V: Verbs> Tree<V> {
    /// Yields the pairs of the leaf for `key` and where it ends; if there is none no pair, and where the next one
    /// begins.
    async fn leaf_pairs(&self, meter: &Meter, key: &[u8]) -> Result<Option<LeafPairs>, AccessError> {
        let image = match self.seek(meter, key).await? {
            Sought::Leaf(image, _) => image,
            Sought::Nothing(next) => return Ok(next.map(|symbol| (Vec::new(), Some(begin_of(symbol))))),
        };
        let read = self.pairs_behind(&image, key);
        read.map_err(|wrong| AccessError::corrupt(self.shared.entry.root, wrong))
    }

    /// Yields the pairs of a leaf and where it ends; none if it does not answer for `key`.
    fn pairs_behind(&self, image: &[u8], key: &[u8]) -> Result<Option<LeafPairs>, Rejection> {
        let view = self.leaf().parse(image)?;
        match view.find(key) {
            RangeFound::Before | RangeFound::Beyond(_) => Ok(None),
            RangeFound::Slot { .. } | RangeFound::Absent { .. } => {
                Ok(Some((pairs_of(&view)?, view.bounds().1)))
            }
        }
    }

    /// Reads the leaf at `place`, which may be that of `key`, and those behind it that its holder leads to, in
    /// parallel: one round trip. Yields the pairs of the first ones that follow each other from `key` on.
    async fn read_leaves(
        &self,
        meter: &Meter,
        key: &[u8],
        place: Place,
        most: usize,
        leaves: &mut SmallVec<[LeafPairs; 1]>,
    ) -> Result<(), AccessError> {
        let byte = if let Symbol::Byte(byte) = place.symbol { Some(byte) } else { None };
        let behind = self.reader().leaves_behind(place.holder.bits(), byte, most - 1);
        let behind = behind.into_iter().filter_map(|word| Slot::from_bits(word).child());
        let mut window: SmallVec<[Child; 32]> = SmallVec::new();
        for leaf in std::iter::once(place.leaf).chain(behind) {
            if window.last() != Some(&leaf) {
                window.push(leaf);
            }
        }
        meter.round_trip();
        let posted: SmallVec<[V::Submission; 32]> =
            window.iter().map(|leaf| self.verbs.post(meter, self.leaf_chain(leaf.ptr()))).collect();
        let mut at = Some(Bytes::from_slice(key));
        for read in posted {
            let Some(key) = &at else { return Ok(()) };
            let leaf = match read.await {
                Ok(done) if !self.is_slow(&done) => self.pairs_behind(&done.into_buf(), key).ok(),
                _ => None,
            };
            let Some(leaf) = leaf else {
                // It cannot be used, and is read again by itself.
                meter.retry();
                return Ok(());
            };
            let Some(leaf) = leaf else { return Ok(()) };
            at = leaf.1.clone();
            leaves.push(leaf);
        }
        Ok(())
    }
}
