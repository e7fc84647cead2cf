//! Merges of nodes, as far as indexes share them, leaves and the inner nodes of B+trees alike: which nodes are merged
//! and how often that is tried, when a remove waits for that, and what becomes of a frozen node whose client has died.
//! It knows no format of nodes, and no way to them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farwood_runtime::{RemotePtr, Verbs};
use futures::channel::oneshot;

use crate::error::WriteError;
use crate::layout::Bytes;
use crate::shell::algorithm::Algorithm;
use crate::shell::handle::Local;

/// Attempts at a merge whose locks were taken, after pauses of this many ns, each twice as long as the one before.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE_NS: u64 = 50_000;
/// The time in ns for which a node is left alone whose neighbours are too full, unless it is empty.
const LEFT_ALONE_NS: u64 = 1_000_000;

/// Tells whether a node with so few pairs or entries should be merged.
#[inline]
pub(crate) fn is_low(count: usize, slots: usize) -> bool {
    count <= slots / 4
}

/// Tells whether a node with the pairs or entries of two is far enough from full: what is put in next does not split it
/// at once, and after a split neither half is low.
pub(crate) fn fits(count: usize, slots: usize) -> bool {
    count <= slots * 3 / 5
}

/// The outcome of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    Merged,
    /// Nothing to do: the tree is another one, or the neighbours are too full.
    Needless,
    /// A lock was taken, or a READ met a write.
    Busy,
}

/// Attempts a merge until it is done, is needless, or has met other clients for too often; yields whether it is done.
///
/// # Errors
/// That of an attempt.
pub(crate) async fn attempt_often<E>(
    verbs: &impl Verbs,
    mut attempt: impl AsyncFnMut() -> Result<Attempt, E>,
) -> Result<bool, E> {
    for number in 0..ATTEMPTS_MAX {
        match attempt().await? {
            Attempt::Merged => return Ok(true),
            Attempt::Needless => return Ok(false),
            Attempt::Busy => {
                tracing::debug!(name: "merge.busy", "a merge gives way to other clients");
                let pause_ns = PAUSE_NS << number;
                verbs.pause(pause_ns + verbs.random() % pause_ns).await;
            }
        }
    }
    Ok(false)
}

/// A node that is being merged, or is left alone.
#[derive(Clone, Copy)]
struct Noted {
    until: u64,
    was_empty: bool,
    is_called_again: bool,
}

/// The nodes that one shard is merging, or leaves alone until then.
#[derive(Default)]
pub(crate) struct Merging(RefCell<BTreeMap<RemotePtr, Noted>>);

impl Merging {
    /// Merges under way with which the janitor has enough to do.
    const MOST: usize = 64;
    /// Nodes that are noted at most, before those that are left alone are forgotten.
    const NOTED_MAX: usize = 256;
    const UNDER_WAY: u64 = u64::MAX;

    /// Notes that a node is being merged; false if it is already, or is left alone, or the janitor has enough to do.
    pub(crate) fn begin(&self, node: RemotePtr, is_empty: bool, now: u64) -> bool {
        !self.is_full() && self.note(node, is_empty, now)
    }

    /// Tells whether the janitor has enough to do.
    fn is_full(&self) -> bool {
        self.under_way() >= Self::MOST
    }

    /// Counts the nodes that are being merged.
    pub(crate) fn under_way(&self) -> usize {
        self.0.borrow().values().filter(|noted| noted.until == Self::UNDER_WAY).count()
    }

    fn note(&self, node: RemotePtr, is_empty: bool, now: u64) -> bool {
        let mut noted = self.0.borrow_mut();
        if noted.len() >= Self::NOTED_MAX {
            noted.retain(|_, noted| noted.until == Self::UNDER_WAY);
        }
        // One that has become empty is looked at once more: there may be no other remove.
        if let Some(noted) = noted.get_mut(&node) {
            let is_news = is_empty && !noted.was_empty;
            if noted.until == Self::UNDER_WAY || noted.until > now && !is_news {
                noted.is_called_again |= is_empty;
                return false;
            }
        }
        noted.insert(node, Noted { until: Self::UNDER_WAY, was_empty: is_empty, is_called_again: false });
        true
    }

    /// Tells whether a node was to be merged, and empty, while it was being merged: it may have changed since.
    fn is_called_again(&self, node: RemotePtr) -> bool {
        let mut noted = self.0.borrow_mut();
        noted.get_mut(&node).is_some_and(|noted| std::mem::take(&mut noted.is_called_again))
    }

    /// Notes that a node is not being merged any more. If it was not merged it is left alone for a while.
    pub(crate) fn end(&self, node: RemotePtr, is_merged: bool, now: u64) {
        let mut noted = self.0.borrow_mut();
        match noted.get_mut(&node) {
            Some(_) if is_merged => _ = noted.remove(&node),
            Some(noted) => noted.until = now + LEFT_ALONE_NS,
            None => {}
        }
    }
}

/// The end of a merge that is under way: it is dropped there.
pub(crate) type MergeEnd = oneshot::Receiver<()>;

impl<A: Algorithm, V: Verbs> Local<A, V> {
    /// Has the janitor `merge` a node in which few pairs or entries are left, as `merging` of this tree allows; once
    /// more if it has become empty meanwhile.
    ///
    /// No other remove may come to an empty node, so such a one is merged even if the janitor has enough to do. Then
    /// this yields the end of that, for the remove to wait for: removes leave no more behind than merges take away.
    #[cold]
    pub(crate) fn merge_in_background<M: Future<Output = Result<bool, WriteError>>>(
        &self,
        merging: fn(&Self) -> &Merging,
        (node, is_empty): (RemotePtr, bool),
        merge: impl Fn(Rc<Self>) -> M + 'static,
    ) -> Option<MergeEnd> {
        let (noted, now) = (merging(self), self.verbs.now());
        let is_awaited = is_empty && noted.is_full();
        if !(if is_awaited { noted.note(node, true, now) } else { noted.begin(node, is_empty, now) }) {
            return None;
        }
        let tree = self.me.upgrade().expect("a tree that is at work is alive");
        let ((ends, end), expected) = (oneshot::channel::<()>(), self.allocator.expect());
        self.verbs.defer(async move {
            // A client that needs memory, and finds none, may wait for the node's.
            let _expected = expected;
            let _ends = ends;
            let mut merged = merge(Rc::clone(&tree)).await;
            while matches!(merged, Ok(false)) && merging(&tree).is_called_again(node) {
                merged = merge(Rc::clone(&tree)).await;
            }
            if let Err(error) = &merged {
                tracing::debug!(name: "merge.failed", %error, "nodes are not merged");
            }
            merging(&tree).end(node, matches!(merged, Ok(true)), tree.verbs.now());
        });
        if is_awaited {
            tracing::debug!(name: "merge.awaited", %node, "a remove waits until its empty leaf is merged");
        }
        is_awaited.then_some(end)
    }
}

/// The right edge of a node on the way to where another one of its level begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// It ends before, and leads to this one.
    Before(RemotePtr),
    /// It ends there, and leads to this one.
    There(RemotePtr),
    /// It ends behind.
    Behind,
    /// It begins behind, or there.
    Beyond,
}

/// The end of a frozen node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Thawed,
    Freed,
    /// It is another client's, or not frozen any more.
    Left,
}

/// Decides what becomes of `node`, which begins at `frozen_low` if it is frozen, and was to begin at `low`. The lock of
/// the node that has that edge is held, as is its own.
pub(crate) fn decide(frozen_low: Option<&Bytes>, low: &Bytes, node: RemotePtr, edge: Edge) -> Fate {
    match edge {
        _ if frozen_low != Some(low) => Fate::Left,
        Edge::There(sibling) if sibling == node => Fate::Thawed,
        Edge::There(_) | Edge::Behind => Fate::Freed,
        Edge::Before(_) | Edge::Beyond => Fate::Left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u64) -> RemotePtr {
        RemotePtr::from_bits(64 * (n + 1))
    }

    #[test]
    fn a_node_is_merged_once_at_a_time_and_left_alone_unless_it_is_empty() {
        let merging = Merging::default();
        let over = |since: u64| since + LEFT_ALONE_NS;
        assert!(merging.begin(node(0), false, 5) && !merging.begin(node(0), true, 5));
        assert!(merging.is_called_again(node(0)), "it may have become empty since");
        assert!(!merging.is_called_again(node(0)));
        merging.end(node(0), false, 100);
        assert!(!merging.begin(node(0), false, over(99)) && merging.begin(node(0), true, over(99)));
        merging.end(node(0), false, 200);
        assert!(!merging.begin(node(0), true, over(199)), "it was empty");
        assert!(merging.begin(node(0), false, over(200)));
        merging.end(node(0), true, over(200));
        assert!((0..Merging::MOST as u64).all(|n| merging.begin(node(n), false, 5)));
        assert!(!merging.begin(node(99), true, 5) && merging.is_full(), "there are too many");
        merging.end(node(3), false, 7);
        assert!(!merging.begin(node(3), false, over(6)) && merging.begin(node(99), true, 6));
    }

    #[test]
    fn nodes_that_are_left_alone_are_forgotten_where_they_are_many() {
        let merging = Merging::default();
        for n in 0..10_000 {
            assert!(merging.begin(node(n), false, 5));
            merging.end(node(n), false, 100);
            assert!(merging.0.borrow().len() <= Merging::NOTED_MAX);
        }
    }

    /// All states of a node at 2 that is to begin at "h", with all edges of the one before.
    #[test]
    fn a_frozen_node_thaws_if_the_one_before_leads_to_it() {
        let [low, other] = [b"h", b"g"].map(|key| Bytes::from_slice(key));
        let edges = [
            (Edge::There(node(2)), Fate::Thawed),
            (Edge::There(node(3)), Fate::Freed),
            (Edge::Behind, Fate::Freed),
            (Edge::Before(node(2)), Fate::Left),
            (Edge::Beyond, Fate::Left),
        ];
        for (edge, fate) in edges {
            assert_eq!(decide(Some(&low), &low, node(2), edge), fate, "{edge:?}");
            assert_eq!(decide(Some(&other), &low, node(2), edge), Fate::Left, "it begins elsewhere by now");
            assert_eq!(decide(None, &low, node(2), edge), Fate::Left, "it is not frozen");
        }
    }
}
