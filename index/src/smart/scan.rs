//! Scans (SMART section 4.4): level by level, all nodes of a level that can hold wanted keys in parallel, and the pairs
//! handed out in key order.
//!
//! The known part of the range lies in a queue in key order: pairs, and slots that lead to what was not read yet. A
//! window of the queue's slots is read at once; a leaf becomes a pair, an inner node its slots. The pairs at the front
//! go out.
//!
//! A slot that was read stays good while the epoch is pinned: its leaf says itself whether it is live, or which leaf
//! took its place, and an inner node that was replaced since keeps what it had. Between two windows of a scan nothing
//! is pinned. If the epoch has moved on meanwhile, a leaf's memory may be another leaf's, so the slots are forgotten,
//! and the scan goes on from the root, behind the last key. Keys that are there during the whole scan are below the
//! slots that were read; others may be missed. Nothing of the cache is used but the root word, which the root node
//! vouches for (reverse check).

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use farwood_runtime::{Buf, Chain, Meter, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::decide::SlotSnapshot;
use super::lookup::TORN_BEFORE_LOCK;
use crate::error::AccessError;
use crate::layout::radix::{InnerView, Link, Parent, Slot, Symbol};
use crate::layout::{Bytes, Malformed, Rejection};
use crate::range_index::{Pair, Scan};
use crate::shell::scan::{self, Windows};
use crate::step::Budget;

/// The position of the keys below a slot relative to a bound of the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Edge {
    /// All of them inside.
    Inside,
    /// They have the same first bytes as the bound.
    On,
    /// Not known: a node's header lacked bytes.
    Unknown,
}

/// A slot whose node was not read yet.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    slot: Slot,
    /// The key byte behind those that lead there.
    next: usize,
    low: Edge,
    high: Edge,
    /// READs of it that failed so far.
    vain: u32,
}

/// An element of the queue.
enum Item {
    Pair(Pair),
    Ahead(Ahead),
}

/// The bounds of a scan.
struct Range {
    start: Bound<Bytes>,
    end: Bound<Bytes>,
}

impl<V: Verbs> Tree<V> {
    /// Estimates, rather too low, how many wanted pairs there are below a slot: one for every second slot of its node's
    /// type; one if it lies at a bound of the range.
    fn expected_pairs(&self, ahead: &Ahead) -> usize {
        match ahead.slot.is_leaf() || ahead.low != Edge::Inside || ahead.high != Edge::Inside {
            true => 1,
            false => self.types().slots(ahead.slot.class()) / 2,
        }
    }
}

/// The result of a node that was read.
enum Became {
    Items(Vec<Item>),
    /// Another slot to read in its place.
    Again(Ahead),
    Not(Rejection),
}

impl Range {
    fn bytes(bound: &Bound<Bytes>) -> &[u8] {
        match bound {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        }
    }

    fn edges(&self) -> (Edge, Edge) {
        let edge = |bound: &Bound<Bytes>| match bound {
            Bound::Unbounded => Edge::Inside,
            _ => Edge::On,
        };
        (edge(&self.start), edge(&self.end))
    }

    fn holds(&self, key: &[u8]) -> bool {
        let after = match &self.start {
            Bound::Included(start) => key >= start.as_slice(),
            Bound::Excluded(start) => key > start.as_slice(),
            Bound::Unbounded => true,
        };
        let before = match &self.end {
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        };
        after && before
    }

    fn is_empty(&self) -> bool {
        let (start, end) = (Self::bytes(&self.start), Self::bytes(&self.end));
        match (&self.start, &self.end) {
            (Bound::Unbounded, Bound::Excluded(end)) => end.is_empty(),
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(_), Bound::Included(_)) => start > end,
            _ => start >= end,
        }
    }
}

/// Yields how keys that have `symbol` at `position` lie to a bound, if those with the same bytes before it lie `edge`:
/// none means beyond it. `beyond` is how a symbol compares that lies outside.
fn narrow(
    edge: Edge,
    bound: &[u8],
    position: usize,
    symbol: Symbol,
    beyond: std::cmp::Ordering,
) -> Option<Edge> {
    if edge != Edge::On {
        return Some(edge);
    }
    match symbol.cmp(&Symbol::of(bound, position)) {
        std::cmp::Ordering::Equal => Some(Edge::On),
        ordering if ordering == beyond => None,
        _ => Some(Edge::Inside),
    }
}

/// Yields the slots of the inner node in `view`, to which `from` leads, that lead to keys in the range, ascending.
fn children(view: &InnerView<'_>, from: &Ahead, range: &Range) -> Vec<Item> {
    use std::cmp::Ordering::{Greater, Less};
    let (start, end) = (Range::bytes(&range.start), Range::bytes(&range.end));
    let (mut low, mut high) = (Some(from.low), Some(from.high));
    let header = view.header.from_depth(from.next);
    if usize::from(header.depth) != from.next {
        let unknown = |edge| if edge == Edge::Inside { edge } else { Edge::Unknown };
        (low, high) = (low.map(unknown), high.map(unknown));
    }
    let mut at = usize::from(header.depth);
    for &byte in header.prefix() {
        low = low.and_then(|edge| narrow(edge, start, at, Symbol::Byte(byte), Less));
        high = high.and_then(|edge| narrow(edge, end, at, Symbol::Byte(byte), Greater));
        at += 1;
    }
    let (Some(low), Some(high)) = (low, high) else { return Vec::new() };
    let mut slots: Vec<Slot> =
        view.claimed().map(|(_, slot)| slot.thawed()).filter(|slot| slot.child().is_some()).collect();
    slots.sort_unstable_by_key(|slot| slot.symbol());
    let ahead = slots.into_iter().filter_map(|slot| {
        let low = narrow(low, start, at, slot.symbol(), Less)?;
        let high = narrow(high, end, at, slot.symbol(), Greater)?;
        Some(Item::Ahead(Ahead { slot, next: at + 1, low, high, vain: 0 }))
    });
    ahead.collect()
}

/// A scan under way.
struct Cursor<V: Verbs> {
    tree: Rc<Tree<V>>,
    meter: Meter,
    range: Range,
    left: usize,
    /// None before the root was read.
    queue: Option<VecDeque<Item>>,
    /// The epoch that was known before the first slot of the queue was read.
    since: u64,
    /// The key that went out last: none goes out that is not above it.
    last: Option<Bytes>,
}

/// Streams the pairs with keys in `bounds`, ascending.
pub(super) fn stream<V: Verbs>(
    tree: Rc<Tree<V>>,
    (start, end): (Bound<Bytes>, Bound<Bytes>),
    limit: Option<usize>,
) -> Scan {
    let cursor = Cursor {
        tree: Rc::clone(&tree),
        meter: Meter::default(),
        range: Range { start, end },
        left: limit.unwrap_or(usize::MAX),
        queue: None,
        since: 0,
        last: None,
    };
    scan::stream(tree, cursor)
}

impl<V: Verbs> Windows for Cursor<V> {
    async fn next(&mut self) -> Result<Vec<Pair>, AccessError> {
        let mut budget = self.tree.budget();
        if self.left == 0 || self.range.is_empty() {
            return Ok(Vec::new());
        }
        self.forget_old_slots();
        if self.queue.is_none() {
            self.queue = Some(self.first_items(&mut budget).await?);
        }
        loop {
            let pairs = self.take_pairs();
            if !pairs.is_empty() || self.left == 0 || self.queue.as_ref().is_none_or(VecDeque::is_empty) {
                return Ok(pairs);
            }
            self.read_window(&mut budget).await?;
        }
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl<V: Verbs> Cursor<V> {
    /// Forgets slots of an earlier epoch: what they led to may be used for something else by now. While this one is
    /// pinned, memory is not used again that was in the tree when it, or the one before, was known.
    fn forget_old_slots(&mut self) {
        let known = self.tree.verbs.pins().retired_now();
        let leads_on = |queue: &VecDeque<Item>| queue.iter().any(|item| matches!(item, Item::Ahead(_)));
        if self.since != known && self.queue.as_ref().is_some_and(leads_on) {
            tracing::debug!(name: "smart.scan.resumed", "a scan goes down from the root again");
            self.meter.retry();
            self.queue = None;
            if let Some(last) = &self.last {
                self.range.start = Bound::Excluded(last.clone());
            }
        }
        if self.queue.is_none() {
            self.since = known;
        }
    }

    /// Takes the pairs at the front of the queue.
    fn take_pairs(&mut self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        let Some(queue) = &mut self.queue else { return pairs };
        while self.left > 0 && matches!(queue.front(), Some(Item::Pair(_))) {
            let Some(Item::Pair(pair)) = queue.pop_front() else { unreachable!("it was looked at") };
            if self.last.as_ref().is_none_or(|last| *last < pair.0) {
                self.last = Some(pair.0.clone());
                self.left -= 1;
                pairs.push(pair);
            }
        }
        pairs
    }

    /// Yields the slot that the root word holds, or the root node's, if the cache knows where that node is.
    async fn first_items(&mut self, budget: &mut Budget) -> Result<VecDeque<Item>, AccessError> {
        let tree = Rc::clone(&self.tree);
        let (low, high) = self.range.edges();
        let ahead = |slot| Ahead { slot, next: 0, low, high, vain: 0 };
        let known = Slot::from_bits(tree.cache().root());
        if known.is_inner() && tree.types().slots(known.class()) > 0 {
            let node = known.child().expect("an inner node has an address");
            let bytes = tree.types().read_bytes(known.class());
            let image = tree.read(&self.meter, node.ptr(), bytes, budget).await?;
            if let Ok(view) = InnerView::new(&image, tree.types())
                && view.link == Link::Live(Parent::Root)
                && view.is_whole()
                && !view.is_frozen()
                && view.header.depth == 0
            {
                return Ok(children(&view, &ahead(known), &self.range).into());
            }
            budget.spend(&self.meter, node.ptr(), None)?;
        }
        let SlotSnapshot { slot, .. } = tree.read_root(&self.meter, budget).await?;
        let items = slot.child().map(|_| Item::Ahead(ahead(slot)));
        Ok(items.into_iter().collect())
    }

    /// Reads the first slots of the queue that are ahead, in parallel: one round trip.
    async fn read_window(&mut self, budget: &mut Budget) -> Result<(), AccessError> {
        let tree = Rc::clone(&self.tree);
        let most = tree.scan_window().min(self.left);
        let queue = self.queue.as_mut().expect("it was filled");
        let mut window: SmallVec<[Ahead; 32]> = SmallVec::new();
        // Pairs among them keep their places.
        let mut taken: VecDeque<Item> = VecDeque::new();
        let mut expected = 0;
        while window.len() < most
            && expected < self.left
            && let Some(item) = queue.pop_front()
        {
            expected += match &item {
                Item::Ahead(ahead) => {
                    window.push(*ahead);
                    tree.expected_pairs(ahead)
                }
                Item::Pair(_) => 1,
            };
            taken.push_back(item);
        }
        let slowest = window.iter().map(|ahead| ahead.vain).max().unwrap_or(0);
        tree.pause_after_torn(slowest).await;
        let read = self.read_all(&window, budget).await;
        // Whatever happens, the queue is whole: the stream ends after an error, and not before.
        let mut read = read?.into_iter();
        let mut items: Vec<Item> = Vec::with_capacity(taken.len());
        for item in taken {
            let Item::Ahead(ahead) = item else {
                items.push(item);
                continue;
            };
            let image = read.next().expect("every slot ahead was read");
            match self.became(&ahead, image) {
                Became::Items(more) => items.extend(more),
                Became::Again(ahead) => {
                    let node = ahead.slot.child().expect("it leads on").ptr();
                    budget.spend(&self.meter, node, None)?;
                    items.push(Item::Ahead(ahead));
                }
                Became::Not(rejection) => {
                    let node = ahead.slot.child().expect("it was read").ptr();
                    budget.spend(&self.meter, node, Some(rejection))?;
                    items.push(Item::Ahead(Ahead { vain: ahead.vain + 1, ..ahead }));
                }
            }
        }
        let queue = self.queue.as_mut().expect("it was filled");
        for item in items.into_iter().rev() {
            queue.push_front(item);
        }
        Ok(())
    }

    /// Reads the nodes that these slots lead to: none for a slot that leads to no kind of node. Leaves that stay torn
    /// are read under their locks, one after the other.
    async fn read_all(&self, window: &[Ahead], budget: &mut Budget) -> Result<Vec<Option<Buf>>, AccessError> {
        let tree = &self.tree;
        self.meter.round_trip();
        let posted: SmallVec<[_; 32]> = window
            .iter()
            .map(|ahead| {
                let (node, bytes) = (ahead.slot.child()?.ptr(), self.bytes_of(ahead.slot)?);
                if ahead.slot.is_leaf() && ahead.vain >= TORN_BEFORE_LOCK {
                    return Some((node, bytes, Err(ahead.slot.class())));
                }
                let mut chain = Chain::with_buffer(node.server(), tree.verbs.lease(bytes));
                chain.read(node, 0..bytes);
                Some((node, bytes, Ok(tree.verbs.post(&self.meter, chain))))
            })
            .collect();
        let mut images = Vec::with_capacity(posted.len());
        for read in posted {
            images.push(match read {
                None => None,
                Some((node, _, Err(class))) => Some(tree.read_whole(&self.meter, node, class).await?),
                Some((node, bytes, Ok(read))) => Some(match read.await {
                    Ok(done) => done.into_buf(),
                    Err(failed) => {
                        drop(budget.post_again(&self.meter, node, failed)?);
                        tree.read(&self.meter, node, bytes, budget).await?
                    }
                }),
            });
        }
        Ok(images)
    }

    fn bytes_of(&self, slot: Slot) -> Option<usize> {
        if slot.is_leaf() {
            return self.tree.leaf().class_of(slot).ok().map(|class| self.tree.leaf().body_bytes(class));
        }
        (self.tree.types().slots(slot.class()) > 0).then(|| self.tree.types().read_bytes(slot.class()))
    }

    /// Yields what the node in `image`, to which `ahead` leads, has of the range.
    fn became(&self, ahead: &Ahead, image: Option<Buf>) -> Became {
        let Some(image) = image else {
            return Became::Not(Malformed::RadixSlot { word: ahead.slot.bits() }.into());
        };
        if ahead.slot.is_leaf() {
            return self.leaf_became(ahead, &image).unwrap_or_else(Became::Not);
        }
        match InnerView::new(&image, self.tree.types()) {
            Ok(view) if !view.is_whole() => {
                let slot = ahead.slot.with_class(view.header.node_type);
                Became::Again(Ahead { slot, ..*ahead })
            }
            // No writer lets a node lead upwards: following damaged bytes could loop for ever.
            Ok(view) if view.header.position() < ahead.next => {
                Became::Not(Malformed::RadixHeader { word: view.header.bits() }.into())
            }
            Ok(view) => Became::Items(children(&view, ahead, &self.range)),
            Err(rejection) => Became::Not(rejection),
        }
    }

    fn leaf_became(&self, ahead: &Ahead, image: &[u8]) -> Result<Became, Rejection> {
        let view = self.tree.leaf().view(image)?;
        Ok(match view.link {
            Link::Removed { .. } => Became::Items(Vec::new()),
            Link::Moved { to, class } => {
                Became::Again(Ahead { slot: Slot::leaf(ahead.slot.symbol(), to, class), ..*ahead })
            }
            Link::Live(_) | Link::New => {
                let key = view.key()?;
                if !self.range.holds(key) {
                    return Ok(Became::Items(Vec::new()));
                }
                let value = &image[view.value()?];
                Became::Items(vec![Item::Pair((Bytes::from_slice(key), Bytes::from_slice(value)))])
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::{RemotePtr, ServerId};

    use super::*;
    use crate::layout::radix::{Child, Header, NodeTypes, build_inner};

    fn range(start: Bound<&[u8]>, end: Bound<&[u8]>) -> Range {
        Range { start: start.map(Bytes::from_slice), end: end.map(Bytes::from_slice) }
    }

    /// Yields the children, in the range, of a node at byte 2, after "ab", whose slots are for the end, a, b and c.
    fn symbols(range: &Range) -> Vec<Symbol> {
        let child = Child::new(RemotePtr::new(ServerId(0), 64)).unwrap();
        let slots = [Symbol::Byte(b'b'), Symbol::End, Symbol::Byte(b'c'), Symbol::Byte(b'a')];
        let mut image = vec![0; NodeTypes::LINES.node_bytes(1)];
        let header = Header::new(0, 1, b"ab");
        build_inner(
            &mut image,
            Link::Live(Parent::Root),
            &header,
            slots.map(|symbol| Slot::leaf(symbol, child, 1)),
        );
        let view = InnerView::new(&image, &NodeTypes::LINES).unwrap();
        let (low, high) = range.edges();
        let from = Ahead { slot: Slot::inner(Symbol::Byte(0), child, 1), next: 0, low, high, vain: 0 };
        let symbol = |item| match item {
            Item::Ahead(ahead) => Ahead::symbol(&ahead),
            Item::Pair(_) => panic!("no leaf was read"),
        };
        children(&view, &from, range).into_iter().map(symbol).collect()
    }

    impl Ahead {
        fn symbol(&self) -> Symbol {
            self.slot.symbol()
        }
    }

    #[test]
    fn only_children_that_can_hold_wanted_keys_are_read() {
        use Bound::{Excluded, Included, Unbounded};
        let (end, a, b, c) = (Symbol::End, Symbol::Byte(b'a'), Symbol::Byte(b'b'), Symbol::Byte(b'c'));
        for (from, to, expected) in [
            (Unbounded, Unbounded, vec![end, a, b, c]),
            (Included(&b"abb"[..]), Unbounded, vec![b, c]),
            (Included(b"ab"), Included(&b"aba"[..]), vec![end, a]),
            (Included(b"abax"), Excluded(b"abc"), vec![a, b, c]),
            (Unbounded, Included(b"ab"), vec![end]),
            (Included(b"a"), Included(b"ac"), vec![end, a, b, c]),
            (Included(b"ac"), Unbounded, vec![]),
            (Unbounded, Excluded(b"aa"), vec![]),
            (Unbounded, Included(b""), vec![]),
            (Included(b""), Included(b"b"), vec![end, a, b, c]),
        ] {
            assert_eq!(symbols(&range(from, to)), expected, "{from:?} {to:?}");
        }
    }

    #[test]
    fn empty_ranges() {
        use Bound::{Excluded, Included, Unbounded};
        for (from, to, empty) in [
            (Unbounded, Unbounded, false),
            (Included(&b"b"[..]), Included(&b"b"[..]), false),
            (Included(b"b"), Excluded(b"b"), true),
            (Excluded(b"b"), Included(b"b"), true),
            (Included(b"c"), Included(b"b"), true),
            (Unbounded, Excluded(b""), true),
            (Unbounded, Included(b""), false),
            (Excluded(b"b"), Unbounded, false),
        ] {
            assert_eq!(range(from, to).is_empty(), empty, "{from:?} {to:?}");
        }
    }
}
