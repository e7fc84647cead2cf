//! Scans (Sherman section 4.4, "Range query"): leaves are read in parallel, a window at a time, and consumed in key
//! order.
//!
//! Which leaves to read comes from the cache and may be stale; what counts is the cursor. A leaf is consumed if the
//! cursor lies between its fences, and moves the cursor to its high fence. A leaf that begins beyond the cursor shows
//! a gap (the node before it was split), which is closed by looking the cursor's leaf up; one that ends before it was
//! consumed already. So a scan neither skips nor repeats a key, whatever happens to the tree meanwhile.

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use futures::StreamExt;
use futures::stream;
use smallvec::SmallVec;

use super::Tree;
use super::lookup::RETRIES_BEFORE_LOCK;
use crate::error::IndexError;
use crate::layout::{Bytes, LeafLayout, Position, Rejection};
use crate::range_index::{Pair, Scan};
use crate::stats::OpKind;
use crate::step::{Budget, Step};

type Window = SmallVec<[RemotePtr; 32]>;

/// A scan under way.
struct Cursor<V: Verbs> {
    tree: Rc<Tree<V>>,
    meter: Meter,
    /// The next key to consume; none when the last leaf was consumed.
    at: Option<Bytes>,
    /// Whether the key `at` itself is wanted (only an excluded start is not).
    wanted: bool,
    end: Bound<Bytes>,
    left: usize,
    ready: VecDeque<Pair>,
    entries: u64,
    /// Leaves of the next window; grows while the scan goes on.
    window: usize,
}

/// The pairs with keys in `bounds`, ascending.
pub(super) fn stream<V: Verbs>(
    tree: Rc<Tree<V>>,
    bounds: (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let (start, end) = bounds;
    let (at, wanted) = match start {
        Bound::Unbounded => (Bytes::new(), true),
        Bound::Included(key) => (key, true),
        Bound::Excluded(key) => (key, false),
    };
    let left = limit.unwrap_or(usize::MAX);
    let window = first_window(tree.leaf(), left, tree.shared.options.scan_window);
    let cursor = Cursor {
        tree,
        meter: Meter::default(),
        at: Some(at),
        wanted,
        end,
        left,
        ready: VecDeque::new(),
        entries: 0,
        window,
    };
    stream::unfold(Some(cursor), |cursor| async move {
        let mut cursor = cursor?;
        match cursor.next().await {
            Ok(Some(pair)) => Some((Ok(pair), Some(cursor))),
            Ok(None) => {
                cursor.tree.record(OpKind::Scan, &cursor.meter, true, cursor.entries);
                None
            }
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed_local()
}

/// Leaves that hold `limit` pairs if they are 70 % full (as B-trees are) and the first begins in the middle. A scan
/// without a limit starts small: its end may be near.
fn first_window(leaf: &LeafLayout, limit: usize, most: usize) -> usize {
    let full = (leaf.slots() * 7).div_ceil(10);
    let wanted = if limit == usize::MAX { 2 } else { (limit.saturating_add(full / 2)).div_ceil(full) };
    wanted.clamp(1, most.max(1))
}

impl<V: Verbs> Cursor<V> {
    async fn next(&mut self) -> Result<Option<Pair>, IndexError> {
        let mut budget = self.tree.budget();
        loop {
            if let Some(pair) = self.ready.pop_front() {
                self.entries += 1;
                return Ok(Some(pair));
            }
            if self.left == 0 || self.is_past_end() {
                return Ok(None);
            }
            self.read_window(&mut budget).await?;
        }
    }

    fn is_past_end(&self) -> bool {
        match (&self.at, &self.end) {
            (None, _) => true,
            (Some(at), Bound::Excluded(end)) => at >= end,
            (Some(at), Bound::Included(end)) => at > end || (at == end && !self.wanted),
            (Some(_), Bound::Unbounded) => false,
        }
    }

    /// Reads the leaves from the cursor on, in parallel, and consumes them in order.
    async fn read_window(&mut self, budget: &mut Budget) -> Result<(), IndexError> {
        let Some(at) = self.at.clone() else { return Ok(()) };
        let tree = Rc::clone(&self.tree);
        let bytes = tree.leaf().node_bytes();
        let mut leaves = Window::new();
        if tree.reader.children_in(&at, self.window, &mut leaves) == 0 {
            match tree.locate_leaf(&self.meter, &at, budget).await? {
                None => {
                    self.at = None;
                    return Ok(());
                }
                Some(target) if tree.reader.children_in(&at, self.window, &mut leaves) == 0 => {
                    leaves.push(target.ptr);
                }
                Some(_) => {}
            }
        }
        self.window = (self.window * 2).min(tree.shared.options.scan_window.max(1));
        self.meter.round_trip();
        let reads: SmallVec<[_; 32]> = leaves
            .iter()
            .map(|&leaf| {
                let mut chain = Chain::with_buffer(leaf.server(), tree.verbs.lease(bytes));
                chain.read(leaf, 0..bytes);
                tree.verbs.post(&self.meter, chain)
            })
            .collect();
        let first = leaves[0];
        let mut consumed = false;
        for (leaf, read) in leaves.into_iter().zip(reads) {
            let read = read.await?;
            let span_ns = read.span_ns;
            if self.left == 0 || self.is_past_end() {
                return Ok(());
            }
            match self.consume(&read.into_buf(), span_ns) {
                Consumed::Leaf => consumed = true,
                Consumed::Before => {}
                Consumed::Beyond => {
                    // The cached parent misses the leaves in between: the next window asks again.
                    if let Some(via) = tree.reader.node_of(1, &at) {
                        tree.cache().invalidate(1, via, &at);
                    }
                    return self.consume_one(leaf, budget).await;
                }
                Consumed::Not(step) => {
                    budget.spend(&self.meter, leaf, step)?;
                    return self.consume_one(leaf, budget).await;
                }
            }
        }
        if consumed {
            return Ok(());
        }
        // All of them end before the cursor: the cached parent is from before they were split, and would lead
        // here again.
        self.consume_one(first, budget).await
    }

    /// Looks the cursor's leaf up and consumes it: what a lookup does, for a leaf.
    async fn consume_one(&mut self, near: RemotePtr, budget: &mut Budget) -> Result<(), IndexError> {
        let tree = Rc::clone(&self.tree);
        let bytes = tree.leaf().node_bytes();
        let Some(key) = self.at.clone() else { return Ok(()) };
        let mut at = match tree.locate_leaf(&self.meter, &key, budget).await? {
            Some(target) => target,
            None => return Err(IndexError::Corrupt { node: near, what: "the tree lost its root".into() }),
        };
        loop {
            let (image, span_ns) = if budget.spent() > RETRIES_BEFORE_LOCK {
                (tree.read_leaf_locked(&self.meter, at.ptr).await?, 0)
            } else {
                let read = tree.read_node(&self.meter, at.ptr, bytes).await?;
                let span_ns = read.span_ns;
                (read.into_buf(), span_ns)
            };
            match self.consume(&image, span_ns) {
                Consumed::Leaf => return Ok(()),
                Consumed::Before => {
                    let right = tree.leaf().view(&image).and_then(|leaf| leaf.header().right());
                    match right {
                        Ok(sibling) => at = tree.move_right(&self.meter, &key, at, sibling, budget).await?,
                        Err(rejection) => {
                            return Err(IndexError::Corrupt { node: at.ptr, what: rejection.to_string() });
                        }
                    }
                }
                Consumed::Beyond => {
                    budget.spend(&self.meter, at.ptr, None)?;
                    tree.forget(at, &key);
                    let root = tree.restart(&self.meter, at.ptr).await?;
                    at = tree.descend(&self.meter, &key, 0, root, budget).await?;
                }
                Consumed::Not(last) => {
                    budget.spend(&self.meter, at.ptr, last)?;
                    if matches!(last.map(Step::<()>::after), Some(Step::Restart(_))) {
                        tree.forget(at, &key);
                        let root = tree.restart(&self.meter, at.ptr).await?;
                        at = tree.descend(&self.meter, &key, 0, root, budget).await?;
                    }
                }
            }
        }
    }

    /// Takes the wanted pairs of a leaf that holds the cursor, and moves the cursor to the leaf's end.
    fn consume(&mut self, image: &[u8], span_ns: u32) -> Consumed {
        // Entries of several lines rest on entry versions: the narrower bound holds for all.
        if !self.tree.entry_version_holds(span_ns) {
            return Consumed::Not(None);
        }
        let at = self.at.as_ref().expect("a scan that has ended consumes nothing");
        match wanted_pairs(self.tree.leaf(), image, at, self.wanted, &self.end) {
            Ok(Leaf::Here { mut pairs, high }) => {
                pairs.truncate(self.left);
                self.left -= pairs.len();
                self.ready.extend(pairs);
                self.at = high;
                self.wanted = true;
                Consumed::Leaf
            }
            Ok(Leaf::Before) => Consumed::Before,
            Ok(Leaf::Beyond) => Consumed::Beyond,
            Err(rejection) => Consumed::Not(Some(rejection)),
        }
    }
}

/// What became of a leaf that was read.
enum Consumed {
    /// Its pairs were taken.
    Leaf,
    /// It ends before the cursor.
    Before,
    /// It begins beyond the cursor.
    Beyond,
    /// It cannot be trusted.
    Not(Option<Rejection>),
}

/// A leaf as the cursor sees it.
#[derive(Debug, PartialEq)]
enum Leaf {
    Here { pairs: Vec<Pair>, high: Option<Bytes> },
    Before,
    Beyond,
}

/// The pairs of the leaf in `image` from `at` on (without `at` itself if it is not wanted) up to `end`, ascending.
fn wanted_pairs(
    layout: &LeafLayout,
    image: &[u8],
    at: &[u8],
    wanted: bool,
    end: &Bound<Bytes>,
) -> Result<Leaf, Rejection> {
    let leaf = layout.view(image)?;
    match leaf.header().position(at) {
        Position::Here => {}
        Position::Right => return Ok(Leaf::Before),
        Position::Left => return Ok(Leaf::Beyond),
    }
    let mut pairs = Vec::with_capacity(layout.slots());
    for entry in leaf.entries() {
        let entry = entry?;
        let key = entry.key.as_slice();
        let after_start = if wanted { key >= at } else { key > at };
        let before_end = match end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
        };
        if after_start && before_end {
            pairs.push((entry.key, entry.value));
        }
    }
    // Unsorted leaf; and a key that was removed and put back while the leaf was read may show in both slots.
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs.dedup_by(|(a, _), (b, _)| a == b);
    Ok(Leaf::Here { pairs, high: leaf.header().high() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeHeader, NodeVersion};

    fn bytes(s: &str) -> Bytes {
        Bytes::from_slice(s.as_bytes())
    }

    fn keys(at: &str, wanted: bool, end: Bound<Bytes>) -> Option<String> {
        let layout = LeafLayout::for_slots(6, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let header = NodeHeader {
            level: 0,
            low: b"b",
            high: Some(b"m"),
            sibling: RemotePtr::from_bits(640),
            incarnation: 1,
            node_version: NodeVersion::default(),
        };
        let entries = ["g", "b", "k", "d"].map(|k| (k.as_bytes(), &b"v"[..]));
        layout.build(&mut image, &header, entries);
        match wanted_pairs(&layout, &image, at.as_bytes(), wanted, &end).unwrap() {
            Leaf::Here { pairs, high } => {
                assert_eq!(high, Some(bytes("m")));
                Some(pairs.iter().map(|(k, _)| String::from_utf8(k.to_vec()).unwrap()).collect())
            }
            _ => None,
        }
    }

    #[test]
    fn takes_what_lies_in_the_bounds_in_order() {
        assert_eq!(keys("b", true, Bound::Unbounded).as_deref(), Some("bdgk"));
        assert_eq!(keys("b", false, Bound::Unbounded).as_deref(), Some("dgk"));
        assert_eq!(keys("c", true, Bound::Included(bytes("g"))).as_deref(), Some("dg"));
        assert_eq!(keys("c", true, Bound::Excluded(bytes("g"))).as_deref(), Some("d"));
        assert_eq!(keys("l", true, Bound::Unbounded).as_deref(), Some(""));
        assert_eq!(keys("m", true, Bound::Unbounded), None);
        assert_eq!(keys("a", true, Bound::Unbounded), None);
    }

    #[test]
    fn the_first_window_fits_the_limit() {
        let leaf = LeafLayout::for_node(1024, 8, 8).unwrap();
        assert_eq!(first_window(&leaf, 100, 32), 4);
        assert_eq!(first_window(&leaf, 1, 32), 1);
        assert_eq!(first_window(&leaf, 1_000_000, 32), 32);
        assert_eq!(first_window(&leaf, usize::MAX, 32), 2);
    }
}
