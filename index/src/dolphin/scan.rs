//! Scans: in the order of keys, windows of leaves, which are read in parallel. Where a leaf ends, the next one begins,
//! whatever was split meanwhile, so a key that stays comes once.
//!
//! The leaves of a window are those that cached nodes lead to behind the first. They are hints: one that does not begin
//! where the one before ends is not used, nor one that is torn, and the next window begins there.

use std::ops::Bound;
use std::rc::Rc;

use farwood_runtime::{Meter, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::descend::Located;
use super::lookup::Sought;
use super::root::begin_of;
use crate::error::AccessError;
use crate::layout::radix::{Child, Slot};
use crate::layout::range_leaf::RangeFound;
use crate::layout::{Bytes, Rejection, SlotOrder};
use crate::range_index::{Pair, Scan};
use crate::shell::scan::{Front, Windows, first_window, stream as stream_windows};

/// Streams the pairs between two bounds.
pub(super) fn stream<V: Verbs>(
    tree: Rc<Tree<V>>,
    range: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let front = Front::new(range, limit);
    let scan = Leaves {
        tree: Rc::clone(&tree),
        meter: Meter::default(),
        window: first_window(tree.leaf().slots(), front.left(), tree.scan_window()),
        front,
        ready: Vec::new(),
        order: SlotOrder::default(),
        leaves: 0,
        pairs: 0,
    };
    stream_windows(tree, scan)
}

/// A scan under way.
struct Leaves<V: Verbs> {
    tree: Rc<Tree<V>>,
    meter: Meter,
    front: Front,
    /// Pairs that were taken from the leaves of this window.
    ready: Vec<Pair>,
    order: SlotOrder,
    /// The most leaves of the next window.
    window: usize,
    /// Leaves and pairs that were consumed.
    leaves: usize,
    pairs: usize,
}

impl<V: Verbs> Windows for Leaves<V> {
    async fn next(&mut self) -> Result<Vec<Pair>, AccessError> {
        while self.ready.is_empty()
            && let Some(at) = self.front.at().cloned()
        {
            if !self.consume_window(&at).await? {
                self.consume_one(&at).await?;
            }
        }
        Ok(std::mem::take(&mut self.ready))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl<V: Verbs> Leaves<V> {
    /// Reads the leaf for `at` and those behind it that are known, in parallel: one round trip. Consumes the first ones
    /// that follow each other from `at` on, or goes on where the next one begins if there is none for `at`; yields
    /// whether the front moved. Reads nothing where only one leaf is wanted.
    async fn consume_window(&mut self, at: &[u8]) -> Result<bool, AccessError> {
        let tree = Rc::clone(&self.tree);
        let most = self.window.min(self.enough());
        let next_window = (self.window * 2).min(tree.scan_window());
        if most == 1 {
            self.window = next_window;
            return Ok(false);
        }
        let place = match tree.locate(&self.meter, at, &mut tree.budget()).await? {
            Located::Leaf(place) => place,
            Located::Nothing(next) => {
                self.front.advance(0, next.map(begin_of));
                return Ok(true);
            }
        };
        let behind = tree.reader().leaves_behind(at, most - 1);
        let behind = behind.into_iter().filter_map(|word| Slot::from_bits(word).child());
        let window: SmallVec<[Child; 32]> = std::iter::once(place.leaf).chain(behind).collect();
        self.window = next_window;
        self.meter.round_trip();
        let posted: SmallVec<[V::Submission; 32]> =
            window.iter().map(|leaf| tree.verbs.post(&self.meter, tree.leaf_chain(leaf.ptr()))).collect();
        // All at once: growing would move the pairs several times.
        self.ready.reserve(self.front.left().min(window.len() * tree.leaf().slots()));
        let mut is_any = false;
        for read in posted {
            if self.front.at().is_none() {
                break;
            }
            let consumed = match read.await {
                Ok(done) if !tree.is_slow(&done) => self.consume(&done.into_buf()).ok(),
                _ => None,
            };
            match consumed {
                Some(true) => is_any = true,
                // A slot was outdated; the leaf behind may be the next one all the same.
                Some(false) => {}
                None => {
                    // It cannot be used, and is read again by itself.
                    self.meter.retry();
                    break;
                }
            }
        }
        Ok(is_any)
    }

    /// Counts the leaves that have as many pairs as are wanted still, if they are as full as those before.
    fn enough(&self) -> usize {
        match self.leaves {
            0 => usize::MAX,
            leaves => self.front.left().saturating_mul(leaves).div_ceil(self.pairs.max(1)).saturating_add(1),
        }
    }

    /// Reads the leaf that answers for `at`, and consumes it. If there is none the scan goes on where the next one
    /// begins.
    async fn consume_one(&mut self, at: &[u8]) -> Result<(), AccessError> {
        let image = match self.tree.seek(&self.meter, at).await? {
            Sought::Leaf { image, .. } => image,
            Sought::Nothing(next) => {
                self.front.advance(0, next.map(begin_of));
                return Ok(());
            }
        };
        match self.consume(&image) {
            Ok(_) => Ok(()),
            Err(wrong) => Err(AccessError::corrupt(self.tree.shared.entry.root, wrong)),
        }
    }

    /// Takes the wanted pairs of the leaf that answers for the front, and moves the front to where the leaf ends.
    /// Yields false if it does not answer.
    fn consume(&mut self, image: &[u8]) -> Result<bool, Rejection> {
        let view = self.tree.leaf().parse(image)?;
        let at = self.front.at().expect("a scan that has ended consumes nothing");
        if let RangeFound::Before | RangeFound::Beyond(_) = view.find(at) {
            return Ok(false);
        }
        let before = self.ready.len();
        view.copy_sorted(&self.front.bounds(), self.front.left(), &mut self.order, &mut self.ready)?;
        let taken = self.ready.len() - before;
        self.leaves += 1;
        self.pairs += taken;
        self.front.advance(taken, view.bounds().1);
        Ok(true)
    }
}
