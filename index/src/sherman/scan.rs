//! Scans (Sherman section 4.4, "Range query"): leaves are read in parallel, a window at a time, and consumed in key
//! order.
//!
//! Which leaves to read comes from the cache and may be stale; what counts is the cursor. A leaf is consumed if the
//! cursor lies between its fences, and moves the cursor to its high fence. A leaf that begins beyond the cursor shows
//! a gap (the node before it was split), which is closed by looking the cursor's leaf up; one that ends before it was
//! consumed already. So a scan neither skips nor repeats a key, whatever happens to the tree meanwhile.
//!
//! A leaf that cannot be trusted is read again by itself; what was read of the others stays good. Where READs took
//! longer than versions vouch for, scans give way instead of adding to the queue ([`SlowReads`]).

use std::ops::Bound;
use std::rc::Rc;

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::Tree;
use crate::btree::node::RETRIES_BEFORE_LOCK;
use crate::error::AccessError;
use crate::layout::{Bytes, LeafLayout, Position, Rejection, SlotOrder};
use crate::range_index::{Pair, Scan};
use crate::shell::scan::{self, Front, Windows};
use crate::step::{Budget, SlowReads, Step};

type Window = SmallVec<[RemotePtr; 32]>;

/// A scan under way.
struct Cursor<V: Verbs> {
    tree: Rc<Tree<V>>,
    meter: Meter,
    front: Front,
    /// Pairs that were taken from the leaves of this window.
    ready: Vec<Pair>,
    order: SlotOrder,
    /// Leaves of the next window; grows while the scan goes on.
    window: usize,
}

/// Streams the pairs with keys in `bounds`, ascending.
pub(super) fn stream<V: Verbs>(
    tree: Rc<Tree<V>>,
    bounds: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let front = Front::new(bounds, limit);
    let window = first_window(tree.leaf(), front.left(), tree.scan_window());
    let cursor = Cursor {
        tree: Rc::clone(&tree),
        meter: Meter::default(),
        front,
        ready: Vec::new(),
        order: SlotOrder::default(),
        window,
    };
    scan::stream(tree, cursor)
}

/// Counts the leaves that hold `limit` pairs if they are 70 % full (as B-trees are) and the first begins in the middle.
/// A scan without a limit starts small: its end may be near.
fn first_window(leaf: &LeafLayout, limit: usize, most: usize) -> usize {
    let full = (leaf.slots() * 7).div_ceil(10);
    let wanted = if limit == usize::MAX { 2 } else { (limit.saturating_add(full / 2)).div_ceil(full) };
    wanted.clamp(1, most)
}

impl<V: Verbs> Windows for Cursor<V> {
    async fn next(&mut self) -> Result<Vec<Pair>, AccessError> {
        let mut budget = self.tree.budget();
        while self.ready.is_empty() && self.front.at().is_some() {
            self.read_window(&mut budget).await?;
        }
        Ok(std::mem::take(&mut self.ready))
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl<V: Verbs> Cursor<V> {
    /// Reads the leaves from the cursor on, in parallel, and consumes them in order.
    async fn read_window(&mut self, budget: &mut Budget) -> Result<(), AccessError> {
        let Some(at) = self.front.at().cloned() else { return Ok(()) };
        let tree = Rc::clone(&self.tree);
        let bytes = tree.leaf().node_bytes();
        let mut leaves = Window::new();
        tree.locate_window(&self.meter, &at, self.window, &mut leaves, budget).await?;
        let Some(&first) = leaves.first() else {
            self.front.advance(0, None);
            return Ok(());
        };
        self.window = (self.window * 2).min(tree.scan_window());
        self.meter.round_trip();
        let reads: SmallVec<[_; 32]> = leaves
            .iter()
            .map(|&leaf| {
                let mut chain = Chain::with_buffer(leaf.server(), tree.verbs.lease(bytes));
                chain.read(leaf, 0..bytes);
                tree.verbs.post(&self.meter, chain)
            })
            .collect();
        // All at once: growing would move the pairs several times.
        self.ready.reserve(self.front.left().min(leaves.len() * tree.leaf().slots()));
        let mut consumed = false;
        for (leaf, read) in leaves.into_iter().zip(reads) {
            let read = read.await;
            if self.front.at().is_none() {
                return Ok(());
            }
            let read = match read {
                Ok(read) => read,
                Err(failed) => {
                    tree.read_again(&self.meter, leaf, failed, budget)?;
                    return self.consume_one(leaf, SlowReads::default(), budget).await;
                }
            };
            let span_ns = read.span_ns;
            match self.consume(&read.into_buf(), span_ns) {
                Consumed::Leaf => consumed = true,
                Consumed::Before => {}
                Consumed::Beyond => {
                    self.forget_parent();
                    return self.consume_one(leaf, SlowReads::default(), budget).await;
                }
                // Only this leaf is read again: leaves are not merged, so the others still begin where they did.
                Consumed::Not(rejection) => {
                    budget.spend(&self.meter, leaf, Some(rejection))?;
                    self.consume_one(leaf, SlowReads::default(), budget).await?;
                    consumed = true;
                }
                Consumed::TooLate => {
                    budget.spend(&self.meter, leaf, Some(Rejection::Slow))?;
                    self.window = 1;
                    let mut slow = SlowReads::in_a_window();
                    tree.pause_or_lock(&mut slow).await;
                    self.consume_one(leaf, slow, budget).await?;
                    consumed = true;
                }
            }
        }
        if consumed {
            return Ok(());
        }
        // All of them end before the cursor: the cached parent is outdated, and would lead here again.
        self.consume_one(first, SlowReads::default(), budget).await
    }

    /// Drops the cached parent of the cursor's leaf, which misses leaves.
    fn forget_parent(&self) {
        if let Some(at) = self.front.at() {
            self.tree.forget_parent(at);
        }
    }

    /// Looks the cursor's leaf up, as a lookup does, and consumes it.
    async fn consume_one(
        &mut self,
        near: RemotePtr,
        mut slow: SlowReads,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let tree = Rc::clone(&self.tree);
        let bytes = tree.leaf().node_bytes();
        let Some(key) = self.front.at().cloned() else { return Ok(()) };
        let mut at = match tree.locate_leaf(&self.meter, &key, budget).await? {
            Some(target) => target,
            None => return Err(AccessError::corrupt(near, "the tree lost its root")),
        };
        let (mut lock, mut rereads) = (false, 0);
        loop {
            let (image, span_ns) = if lock || rereads > RETRIES_BEFORE_LOCK {
                (tree.read_leaf_locked(&self.meter, at.ptr).await?, 0)
            } else {
                match tree.verbs.read(&self.meter, at.ptr, bytes).await {
                    Ok(read) => {
                        let span_ns = read.span_ns;
                        (read.into_buf(), span_ns)
                    }
                    Err(failed) => {
                        tree.read_again(&self.meter, at.ptr, failed, budget)?;
                        continue;
                    }
                }
            };
            match self.consume(&image, span_ns) {
                Consumed::Leaf => return Ok(()),
                Consumed::Before => {
                    let right = tree.leaf().view(&image).and_then(|leaf| leaf.header().right());
                    match right {
                        Ok(sibling) => {
                            at = tree
                                .move_right(&self.meter, &key, at, tree.high_of(&image), sibling, budget)
                                .await?;
                        }
                        Err(rejection) => {
                            return Err(AccessError::corrupt(at.ptr, rejection));
                        }
                    }
                }
                Consumed::Beyond => {
                    budget.spend(&self.meter, at.ptr, None)?;
                    tree.invalidate_cached(at, &key);
                    let root = tree.restart(&self.meter, at.ptr).await?;
                    at = tree.descend(&self.meter, &key, 0, root, budget).await?;
                }
                Consumed::TooLate => {
                    budget.spend(&self.meter, at.ptr, Some(Rejection::Slow))?;
                    rereads += 1;
                    lock = tree.pause_or_lock(&mut slow).await;
                }
                Consumed::Not(rejection) => {
                    budget.spend(&self.meter, at.ptr, Some(rejection))?;
                    rereads += 1;
                    if matches!(Step::<()>::after(rejection), Step::Restart(_)) {
                        tree.invalidate_cached(at, &key);
                        let root = tree.restart(&self.meter, at.ptr).await?;
                        at = tree.descend(&self.meter, &key, 0, root, budget).await?;
                    }
                }
            }
        }
    }

    /// Takes the wanted pairs of a leaf that holds the cursor, and moves the cursor to the leaf's end.
    fn consume(&mut self, image: &[u8], span_ns: u32) -> Consumed {
        let entries_hold = self.tree.entry_version_holds(0, span_ns);
        // The wider bound: what holds for entries holds for nodes.
        if !entries_hold && !self.tree.node_version_holds(0, span_ns) {
            return Consumed::TooLate;
        }
        self.take(image, entries_hold).unwrap_or_else(Consumed::Not)
    }

    /// Consumes an image whose node versions can be trusted, and its entry versions if `entries_hold`.
    fn take(&mut self, image: &[u8], entries_hold: bool) -> Result<Consumed, Rejection> {
        let at = self.front.at().expect("a scan that has ended consumes nothing");
        let leaf = self.tree.leaf().view(image)?;
        match leaf.header().position(at) {
            Position::Here => {}
            Position::Right => return Ok(Consumed::Before),
            Position::Left => return Ok(Consumed::Beyond),
        }
        let bounds = self.front.bounds();
        if !entries_hold && leaf.rests_on_entry_versions(&bounds) {
            return Ok(Consumed::TooLate);
        }
        let before = self.ready.len();
        leaf.copy_sorted(&bounds, self.front.left(), &mut self.order, &mut self.ready)?;
        self.front.advance(self.ready.len() - before, leaf.header().high());
        Ok(Consumed::Leaf)
    }
}

/// The fate of a leaf that was read.
enum Consumed {
    /// Its pairs were taken.
    Leaf,
    /// It ends before the cursor.
    Before,
    /// It begins beyond the cursor.
    Beyond,
    /// It took so long to read that its versions vouch for nothing.
    TooLate,
    /// It cannot be trusted.
    Not(Rejection),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_window_fits_the_limit() {
        let leaf = LeafLayout::for_node(1024, 8, 8).unwrap();
        assert_eq!(first_window(&leaf, 100, 32), 4);
        assert_eq!(first_window(&leaf, 1, 32), 1);
        assert_eq!(first_window(&leaf, 1_000_000, 32), 32);
        assert_eq!(first_window(&leaf, usize::MAX, 32), 2);
    }
}
