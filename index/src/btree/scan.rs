//! Scans (Sherman section 4.4, "Range query"): leaves are read whole and in parallel, a window at a time, and consumed
//! in key order. What is in a leaf is its format's to say.
//!
//! Which leaves to read comes from the cache and may be stale; what counts is the cursor. A leaf is consumed if the
//! cursor lies between its fences, and moves the cursor to its high fence. A leaf that begins beyond the cursor shows
//! a gap (the node before it was split), which is closed by looking the cursor's leaf up; one that ends before it was
//! consumed already. So a scan neither skips nor repeats a key, whatever happens to the tree meanwhile.
//!
//! Where pairs lie outside of the leaves (`blocks.rs`), the blocks of a window's leaves are read in a second round
//! trip.
//!
//! A leaf that cannot be trusted is read again by itself; what was read of the others stays good. Where READs took
//! longer than versions vouch for, scans give way instead of adding to the queue ([`SlowReads`]).

use std::ops::{Bound, RangeBounds};
use std::rc::Rc;

use farwood_runtime::{Chain, Completion, Failed, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::blocks::{BlockReads, Outside};
use super::descend::RightEdge;
use super::node::RETRIES_BEFORE_LOCK;
use super::{BTree, LeafFormat, WholeLeaf};
use crate::error::AccessError;
use crate::layout::{Bytes, NodeVersion, Position, Rejection, SlotOrder};
use crate::range_index::{Pair, Scan};
use crate::shell::handle::Local;
use crate::shell::scan::{self, Front, Windows};
use crate::step::{Budget, SlowReads, Step};

type Window = SmallVec<[RemotePtr; 32]>;

/// A scan under way.
struct Cursor<A: BTree, V: Verbs> {
    tree: Rc<Local<A, V>>,
    meter: Meter,
    front: Front,
    /// Pairs that were taken from the leaves of this window.
    ready: Vec<Pair>,
    order: SlotOrder,
    /// Leaves of the next window; grows while the scan goes on.
    window: usize,
}

/// Streams the pairs with keys in `bounds`, ascending.
pub(crate) fn stream<A: BTree, V: Verbs>(
    tree: Rc<Local<A, V>>,
    bounds: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let front = Front::new(bounds, limit);
    let window = scan::first_window(tree.leaf().slots(), front.left(), tree.scan_window());
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

impl<A: BTree, V: Verbs> Windows for Cursor<A, V> {
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

impl<A: BTree, V: Verbs> Cursor<A, V> {
    /// Reads the leaves from the cursor on, in parallel, and consumes them in order.
    async fn read_window(&mut self, budget: &mut Budget) -> Result<(), AccessError> {
        let Some(at) = self.front.at().cloned() else { return Ok(()) };
        let tree = Rc::clone(&self.tree);
        let mut leaves = Window::new();
        tree.locate_window(&self.meter, &at, self.window, &mut leaves, budget).await?;
        let Some(&first) = leaves.first() else {
            self.front.advance(0, None);
            return Ok(());
        };
        self.window = (self.window * 2).min(tree.scan_window());
        let mut reads = self.post_leaves(&leaves);
        if tree.leaf().blocks().is_some() {
            reads = self.read_blocks(reads).await;
        }
        // All at once: growing would move the pairs several times.
        self.ready.reserve(self.front.left().min(leaves.len() * tree.leaf().slots()));
        let mut consumed = false;
        for (leaf, read) in leaves.into_iter().zip(reads) {
            let (read, blocks) = match read {
                Coming::Leaf(read) => (read.await, None),
                Coming::Blocks(read, blocks) => (read, Some(blocks)),
            };
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
            let outside = match blocks {
                None => None,
                Some(Ok(blocks)) => Some(tree.await_pairs(&self.meter, blocks, budget).await?),
                Some(Err(rejection)) => Some(Err(rejection)),
            };
            let span_ns = read.span_ns;
            match self.consume(&read.into_buf(), span_ns, outside) {
                Consumed::Leaf => consumed = true,
                Consumed::Before => {}
                Consumed::Beyond => {
                    self.forget_parent();
                    return self.consume_one(leaf, SlowReads::default(), budget).await;
                }
                // Only this leaf is read again. If it was merged meanwhile, its heir ends where it did, or beyond the
                // next ones, which then end before the cursor.
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

    /// Posts READs of whole leaves: a round trip for all of them.
    fn post_leaves(&self, leaves: &[RemotePtr]) -> Reads<V> {
        let (tree, bytes) = (&self.tree, self.tree.leaf().node_bytes());
        self.meter.round_trip();
        let reads = leaves.iter().map(|&leaf| {
            let mut chain = Chain::with_buffer(leaf.server(), tree.verbs.lease(bytes));
            chain.read(leaf, 0..bytes);
            Coming::Leaf(tree.verbs.post(&self.meter, chain))
        });
        reads.collect()
    }

    /// Waits for the leaves of a window, and posts READs of the blocks that they lead to: a round trip for all of them.
    async fn read_blocks(&mut self, reads: Reads<V>) -> Reads<V> {
        let (mut whole, mut any) = (Reads::<V>::new(), false);
        for read in reads {
            whole.push(match read {
                Coming::Leaf(read) => match read.await {
                    Ok(read) => {
                        let span_ns = read.span_ns;
                        let image = read.buf.as_deref().expect("it was read into a buffer");
                        let blocks = self.post_blocks_of(image, span_ns);
                        any |= blocks.as_ref().is_ok_and(|blocks| !blocks.is_empty());
                        Coming::Blocks(Ok(read), blocks)
                    }
                    Err(failed) => Coming::Blocks(Err(failed), Ok(BlockReads::default())),
                },
                blocks => blocks,
            });
        }
        if any {
            self.meter.round_trip();
        }
        whole
    }

    /// Posts READs of the blocks that a leaf leads to, if it can be trusted: what else would be read might not be
    /// there.
    fn post_blocks_of(&self, image: &[u8], span_ns: u32) -> Result<BlockReads<V::Submission>, Rejection> {
        let tree = &self.tree;
        let leaf = tree.leaf().view(image)?;
        if u64::from(span_ns) >= tree.version_bound(0, leaf.writes_noticed(&self.front.bounds())) {
            return Err(Rejection::Slow);
        }
        Ok(tree.post_pairs(&self.meter, &leaf.blocks()?))
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
            let (image, outside, span_ns) = if lock || rereads > RETRIES_BEFORE_LOCK {
                let (image, outside) = A::read_leaf_locked(&tree, &self.meter, at.ptr).await?;
                (image, outside, 0)
            } else {
                match tree.verbs.read(&self.meter, at.ptr, bytes).await {
                    Ok(read) => {
                        let (span_ns, image) = (read.span_ns, read.into_buf());
                        let outside = self.read_outside(&image, span_ns, budget).await?;
                        (image, outside, span_ns)
                    }
                    Err(failed) => {
                        tree.read_again(&self.meter, at.ptr, failed, budget)?;
                        continue;
                    }
                }
            };
            match self.consume(&image, span_ns, outside) {
                Consumed::Leaf => return Ok(()),
                Consumed::Before => {
                    let leaf = tree.leaf().view(&image);
                    let right = leaf.as_ref().map_err(|rejection| *rejection);
                    let sibling = match right.and_then(|leaf| leaf.header().right()) {
                        Ok(sibling) => sibling,
                        Err(rejection) => return Err(AccessError::corrupt(at.ptr, rejection)),
                    };
                    let high = || leaf.ok().and_then(|leaf| leaf.header().high());
                    let edge = RightEdge { high, sibling };
                    at = tree.move_right(&self.meter, &key, at, edge, budget).await?;
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
                    if matches!(Step::<()>::after(rejection), Step::Restart(_)) {
                        let gone = (&image[..], rejection);
                        at = Box::pin(tree.leave_freed(&self.meter, &key, at, gone, budget)).await?;
                    } else {
                        budget.spend(&self.meter, at.ptr, Some(rejection))?;
                        rereads += 1;
                    }
                }
            }
        }
    }

    /// Reads the pairs of a leaf that lie outside of it: one round trip.
    async fn read_outside(
        &self,
        image: &[u8],
        span_ns: u32,
        budget: &mut Budget,
    ) -> Result<Outside, AccessError> {
        if self.tree.leaf().blocks().is_none() {
            return Ok(None);
        }
        Ok(Some(match self.post_blocks_of(image, span_ns) {
            Ok(reads) => {
                if !reads.is_empty() {
                    self.meter.round_trip();
                }
                self.tree.await_pairs(&self.meter, reads, budget).await?
            }
            Err(rejection) => Err(rejection),
        }))
    }

    /// Takes the wanted pairs of a leaf that holds the cursor, and moves the cursor to the leaf's end. The image took
    /// `span_ns` to read; `outside` is what was read of pairs that lie outside of it.
    fn consume(&mut self, image: &[u8], span_ns: u32, outside: Outside) -> Consumed {
        let noticed = |versions| u64::from(span_ns) < self.tree.version_bound(0, versions);
        let in_doubt = !noticed(A::Leaf::WRITES_NOTICED);
        if in_doubt && !noticed(NodeVersion::COUNT) {
            return Consumed::TooLate;
        }
        let at = self.front.at().expect("a scan that has ended consumes nothing");
        let leaf = match self.tree.leaf().view(image) {
            Ok(leaf) => leaf,
            Err(rejection) => return Consumed::Not(rejection),
        };
        match leaf.header().position(at) {
            Position::Here => {}
            Position::Right => return Consumed::Before,
            Position::Left => return Consumed::Beyond,
        }
        let bounds = self.front.bounds();
        if in_doubt && !noticed(leaf.writes_noticed(&bounds)) {
            return Consumed::TooLate;
        }
        let before = self.ready.len();
        let limit = self.front.left();
        let copied = match outside {
            None => leaf.copy_sorted(&bounds, limit, &mut self.order, &mut self.ready),
            Some(pairs) => pairs.map(|pairs| take_sorted(pairs, &bounds, limit, &mut self.ready)),
        };
        match copied {
            Ok(()) => {
                self.front.advance(self.ready.len() - before, leaf.header().high());
                Consumed::Leaf
            }
            Err(rejection) => Consumed::Not(rejection),
        }
    }
}

/// Appends those of the pairs whose keys are in `bounds` to `ready`, ascending by key and each key once, but at most
/// `limit`.
fn take_sorted(mut pairs: Vec<Pair>, bounds: &impl RangeBounds<[u8]>, limit: usize, ready: &mut Vec<Pair>) {
    pairs.retain(|(key, _)| bounds.contains(&key[..]));
    pairs.sort_unstable();
    pairs.dedup_by(|later, first| later.0 == first.0);
    ready.extend(pairs.into_iter().take(limit));
}

/// The reads of a window.
type Reads<V> = SmallVec<[Coming<<V as Verbs>::Submission>; 32]>;

/// A leaf of a window.
enum Coming<S> {
    /// It is on its way.
    Leaf(S),
    /// It has come, or not; and its blocks are on their way, if it can be trusted.
    Blocks(Result<Completion, Failed>, Result<BlockReads<S>, Rejection>),
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
