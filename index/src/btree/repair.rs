//! Missing separators: the client that split a node has died since, or there was no memory for an inner node. An
//! operation notices one when it moves right below a parent that it has just read, or for the second time below a
//! cached one (among inner nodes, the first time below any), and leaves it to the janitor to put the separator in.
//!
//! Most often it is not missing: the client that split the node is about to put it in. So the janitor pauses first, and
//! then looks without a lock. On each shard it handles a separator once at a time. One that could not be put in is left
//! alone for a while; meanwhile no cached parent is dropped because of it, for the next copy would be no better.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::BTree;
use super::descend::{RightEdge, Target, Via};
use super::node::RETRIES_BEFORE_LOCK;
use super::observed_node::Depth;
use super::separator::{Owed, Separator, separator_is_missing};
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, Rejection};
use crate::shell::handle::Local;
use crate::step::Budget;

/// The shortest time before the janitor looks, in ns; the longest is twice that, so that the janitors of several shards
/// come one by one and find what the first has done.
const PAUSE_NS: u64 = 200_000;
/// Time in ns for which a separator that could not be put in is left alone.
const LEFT_ALONE_NS: u64 = 1_000_000_000;

/// Nodes whose separators are missing or may be, as far as one shard knows, each with the time until which it is left
/// alone.
#[derive(Default)]
pub(super) struct Missing(RefCell<BTreeMap<RemotePtr, u64>>);

impl Missing {
    /// Maximum of noted nodes; others will be met again.
    const MOST: usize = 64;
    const NOT_AT_ALL: u64 = 0;
    const UNDER_WAY: u64 = u64::MAX;

    /// Notes that an operation came to `child` over its neighbour, to which a cached parent had led; false if it was
    /// noted before, or there are too many. A node stays noted although its separator may be put in meanwhile: if it is
    /// met again, the janitor looks once for nothing.
    fn is_news(&self, child: RemotePtr, now: u64) -> bool {
        !self.0.borrow().contains_key(&child) && self.note(child, Self::NOT_AT_ALL, now)
    }

    /// Notes that the janitor handles `child`; false if it is to be left alone, or there are too many.
    fn begin(&self, child: RemotePtr, now: u64) -> bool {
        !self.knows(child, now) && self.note(child, Self::UNDER_WAY, now)
    }

    /// Notes until when `child` is left alone; false if there are too many.
    fn note(&self, child: RemotePtr, until: u64, now: u64) -> bool {
        let mut children = self.0.borrow_mut();
        if children.len() >= Self::MOST {
            children.retain(|other, until| *other == child || *until > now);
        }
        if children.len() >= Self::MOST && !children.contains_key(&child) {
            return false;
        }
        children.insert(child, until);
        true
    }

    /// Notes that the separator of `child` is in.
    fn done(&self, child: RemotePtr) {
        self.0.borrow_mut().remove(&child);
    }

    /// Notes that the separator of `child` could not be put in: the next attempt is after `until`.
    fn failed(&self, child: RemotePtr, until: u64) {
        self.0.borrow_mut().insert(child, until);
    }

    /// Tells whether the separator of `child` is known to be missing.
    fn knows(&self, child: RemotePtr, now: u64) -> bool {
        self.0.borrow().get(&child).is_some_and(|until| *until > now)
    }
}

/// A node that may have to be put in.
enum Seen {
    /// It is one, from this key on.
    Begins(Bytes),
    /// It is gone, or is not there yet: others see to it.
    Leaves,
    Other,
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Yields the right neighbour of `from`, which ends before `key`, and notes that `from` was split.
    pub(super) async fn step_right(
        &self,
        meter: &Meter,
        key: &[u8],
        from: Target,
        edge: RightEdge<impl FnOnce() -> Option<Bytes>>,
    ) -> Result<Target, AccessError> {
        let sibling = edge.sibling;
        self.note_split(meter, key, from, edge).await?;
        // A parent that does not know this node does not know those to its right either.
        let via = if let Via::Read(_) = from.via { from.via } else { Via::Nothing };
        Ok(Target { ptr: sibling, via, ..from })
    }

    /// Notes that `from` ends before what led to it for `key` says: it was split. The cached parent that led to `from`
    /// is dropped if it may be outdated; if it is not, the neighbour's separator is missing.
    ///
    /// No round trip, except for a root that was split: one, to see whether there is another root.
    pub(crate) async fn note_split(
        &self,
        meter: &Meter,
        key: &[u8],
        from: Target,
        RightEdge { high, sibling }: RightEdge<impl FnOnce() -> Option<Bytes>>,
    ) -> Result<(), AccessError> {
        let is_known = self.missing().knows(sibling, self.verbs.now());
        let was_root = || self.cache().root().is_some_and(|root| root.ptr == from.ptr);
        // The next operation on a leaf reads its parent again, unless one on another leaf has done so. An inner node is
        // cached by then, and its parent is not asked.
        let is_inner = from.level > 0;
        let is_suspect = match from.via {
            _ if is_known => false,
            Via::Cached(_) => {
                self.invalidate_cached(from, key);
                is_inner || !self.missing().is_news(sibling, self.verbs.now())
            }
            Via::Read(_) => true,
            // A root with a right neighbour is no longer the root.
            Via::Nothing if was_root() => {
                self.read_root(meter).await?.is_some_and(|root| root.ptr == from.ptr)
            }
            Via::Nothing => is_inner,
        };
        if is_suspect && let Some(high) = high() {
            self.suspect(from, high, sibling);
        }
        Ok(())
    }

    /// Leaves it to the janitor to put the separator `key` of `sibling` in, the right neighbour of `left`.
    #[cold]
    fn suspect(&self, left: Target, key: Bytes, sibling: RemotePtr) {
        let Some(tree) = self.me.upgrade() else { return };
        if !self.missing().begin(sibling, self.verbs.now()) {
            return;
        }
        let separator = Separator { level: left.level + 1, key, child: sibling };
        self.verbs.defer(async move {
            match tree.repair(left.ptr, separator).await {
                Ok(()) => tree.missing().done(sibling),
                Err(error) => {
                    separator_is_missing(&error);
                    tree.missing().failed(sibling, tree.verbs.now() + LEFT_ALONE_NS);
                }
            }
        });
    }

    /// Puts a separator in if it is missing, and in turn those that the levels above then owe.
    async fn repair(self: &Rc<Self>, left: RemotePtr, separator: Separator) -> Result<(), WriteError> {
        self.verbs.pause(PAUSE_NS + self.verbs.random() % PAUSE_NS).await;
        let meter = Meter::default();
        let (level, child) = (separator.level - 1, separator.child);
        let mut budget = self.budget();
        let found = self.locate_from_root(&meter, &separator.key, level, &mut budget).await?;
        if found.is_some_and(|found| found.ptr == child) {
            return Ok(());
        }
        // Where all lines of `left` agree, none of the split's WRITE is still on its way: readers whom other parents
        // lead there may read one line alone.
        self.look(&meter, level, left).await?;
        let begins = match self.look(&meter, level, child).await? {
            Seen::Begins(low) => low == separator.key,
            Seen::Leaves => return Ok(()),
            Seen::Other => false,
        };
        if !begins {
            let what = format!("it ends where its right neighbour {child} does not begin");
            return Err(AccessError::Corrupt { node: left, what }.into());
        }
        let owed = Owed::new(self, left, separator);
        if owed.pay(&meter).await? {
            tracing::debug!(name: "btree.separator.repaired", %child, level, "a missing separator was put in");
        }
        Ok(())
    }

    /// Tells where `node` begins, if it is of `level`, from a READ of all of it. A damaged node must not damage its
    /// parent.
    async fn look(&self, meter: &Meter, level: u8, node: RemotePtr) -> Result<Seen, AccessError> {
        // Under a dead client's lock it may be torn for good.
        let mut budget = Budget::new(RETRIES_BEFORE_LOCK);
        let bytes = self.node_bytes(level);
        loop {
            let read = match self.verbs.read(meter, node, bytes).await {
                Ok(read) => read,
                Err(failed) => {
                    self.read_again(meter, node, failed, &mut budget)?;
                    continue;
                }
            };
            let is_timely = self.node_version_holds(level, read.span_ns);
            match self.sight(level, &read.into_buf(), Depth::Shape) {
                Ok(seen) if is_timely && seen.level == level => return Ok(Seen::Begins(seen.low)),
                Ok(_) if is_timely => return Ok(Seen::Other),
                Ok(_) => budget.spend(meter, node, Some(Rejection::Slow))?,
                Err(Rejection::Torn) => budget.spend(meter, node, Some(Rejection::Torn))?,
                Err(Rejection::Freed | Rejection::Frozen) => return Ok(Seen::Leaves),
                Err(_) => return Ok(Seen::Other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(n: usize) -> RemotePtr {
        RemotePtr::from_bits(64 * (n as u64 + 1))
    }

    #[test]
    fn what_was_met_is_met_again_and_makes_room() {
        let missing = Missing::default();
        assert!(missing.is_news(child(0), 5) && !missing.is_news(child(0), 5) && !missing.knows(child(0), 0));
        assert!(missing.begin(child(0), 5) && missing.knows(child(0), 5));
        missing.done(child(0));
        assert!(missing.is_news(child(0), 5), "it was put in");
        assert!((1..1000).all(|n| missing.is_news(child(n), 5)), "those before are forgotten");
        assert!((1000..1000 + Missing::MOST).all(|n| missing.begin(child(n), 5)));
        assert!(!missing.is_news(child(0), 5), "there are too many that are known to be missing");
    }

    #[test]
    fn a_separator_is_seen_to_once_and_left_alone_after_a_failure() {
        let missing = Missing::default();
        assert!(!missing.knows(child(0), 5) && missing.begin(child(0), 5));
        assert!(missing.knows(child(0), u64::MAX - 1) && !missing.begin(child(0), 1 << 60));
        missing.failed(child(0), 100);
        assert!(missing.knows(child(0), 99) && !missing.begin(child(0), 99));
        assert!(!missing.knows(child(0), 100) && missing.begin(child(0), 100));
        missing.done(child(0));
        assert!(!missing.knows(child(0), 0));
        assert!((0..Missing::MOST).all(|n| missing.begin(child(n), 0)));
        assert!(!missing.begin(child(Missing::MOST), 0), "there are too many");
        missing.failed(child(3), 7);
        assert!(!missing.begin(child(Missing::MOST), 6) && missing.begin(child(Missing::MOST), 7));
    }
}
