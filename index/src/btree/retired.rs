//! Memory of leaves that were merged: from when they are out of the tree until another leaf is there.
//!
//! It stays memory of leaves, and its first line says that it is no leaf of the tree (freed or frozen), until a split
//! has made a leaf of it that its left neighbour leads to. For copies of inner nodes, on any compute node, may have its
//! address for good. They only steer: a client that comes from there to a leaf reads its fences under the same
//! version as its pairs, and if its key is between them it is right, whatever it has thought to find; else it begins
//! anew. What must not be is a leaf that looks alive and that the tree does not have:
//!
//! ```text
//!   splitter   WRITE new leaf R: alive ················ WRITE L: leads to R      (or dies before)
//!   other                  stale copy ─> R: writes X there, which no other client finds yet
//!
//!   splitter   WRITE R: frozen ── WRITE L: leads to R, unlock ── WRITE R: thawed, unlock
//! ```
//!
//! The splitter has R's lock from before it writes there until R is thawed, so that no other client thaws it and writes
//! to it meanwhile. If the splitter dies, R is frozen, and others thaw it (`freed.rs`), or nothing leads there.
//!
//! The new leaf has the version behind the one before it at this address: what a READ brings of both is torn.
//!
//! Between a merge and that, all operations end that may still put the leaf's separator in (`merge.rs`), and then its
//! parent is asked whether one has: so no inner node leads to what is used again, only copies of older ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Meter, RemotePtr, ServerId, Verbs};

use super::merge::MergedLeaf;
use super::node::Unpublished;
use super::separator::TakenOut;
use super::{BTree, LeafFormat};
use crate::error::WriteError;
use crate::layout::{Bytes, NodeVersion};
use crate::shell::handle::Local;

/// A leaf that was merged.
pub(super) struct Retired {
    pub(super) node: RemotePtr,
    pub(super) low: Bytes,
    pub(super) version: NodeVersion,
    /// The epoch in which its parent did not lead there.
    pub(super) since: u64,
}

/// Memory of a leaf that is free, and the version of what was there.
type Free = (RemotePtr, NodeVersion);

/// A leaf that is being merged, or is left alone.
#[derive(Clone, Copy)]
struct Noted {
    until: u64,
    was_empty: bool,
}

/// The merges of one shard.
#[derive(Default)]
pub(super) struct Merges {
    /// Leaves that are being merged, or are left alone until then.
    noted: RefCell<BTreeMap<RemotePtr, Noted>>,
    /// The oldest first.
    retired: RefCell<VecDeque<Retired>>,
    free: RefCell<BTreeMap<ServerId, VecDeque<Free>>>,
    looks: Cell<bool>,
}

impl Merges {
    /// Maximum of merges under way.
    const MOST: usize = 64;
    /// Leaves that are noted at most, before those that are left alone are forgotten.
    const NOTED_MAX: usize = 256;
    const UNDER_WAY: u64 = u64::MAX;

    /// Notes that a leaf is being merged; false if it is already, or is left alone, or there are too many.
    pub(super) fn begin(&self, leaf: RemotePtr, is_empty: bool, now: u64) -> bool {
        let mut noted = self.noted.borrow_mut();
        if noted.len() >= Self::NOTED_MAX {
            noted.retain(|_, noted| noted.until == Self::UNDER_WAY);
        }
        // One that has become empty is looked at once more: there may be no other remove.
        let is_left_alone = |noted: &Noted| {
            let is_news = is_empty && !noted.was_empty;
            noted.until == Self::UNDER_WAY || noted.until > now && !is_news
        };
        let under_way = || noted.values().filter(|noted| noted.until == Self::UNDER_WAY).count();
        if noted.get(&leaf).is_some_and(is_left_alone) || under_way() >= Self::MOST {
            return false;
        }
        noted.insert(leaf, Noted { until: Self::UNDER_WAY, was_empty: is_empty });
        true
    }

    /// Notes that a leaf is not being merged any more, and left alone until then.
    pub(super) fn end(&self, leaf: RemotePtr, until: u64) {
        let mut noted = self.noted.borrow_mut();
        match noted.get_mut(&leaf) {
            Some(_) if until == 0 => _ = noted.remove(&leaf),
            Some(noted) => noted.until = until,
            None => {}
        }
    }

    /// Takes the retired leaf that has waited for the longest, if that is long enough.
    fn oldest_if(&self, is_over: impl FnOnce(u64) -> bool) -> Option<Retired> {
        let mut retired = self.retired.borrow_mut();
        if retired.front().is_some_and(|oldest| is_over(oldest.since)) { retired.pop_front() } else { None }
    }

    /// Takes free memory, on that server if there is some.
    fn take(&self, near: ServerId) -> Option<Free> {
        let mut free = self.free.borrow_mut();
        if let Some(taken) = free.get_mut(&near).and_then(VecDeque::pop_back) {
            return Some(taken);
        }
        free.values_mut().find_map(VecDeque::pop_back)
    }

    /// Gives free memory back; it is taken last of all.
    fn put(&self, (node, version): Free) {
        self.free.borrow_mut().entry(node.server()).or_default().push_front((node, version));
    }
}

/// Memory of a leaf that a split uses again, and its lock.
pub(super) struct Again<A: BTree, V: Verbs> {
    tree: Rc<Local<A, V>>,
    pub(super) held: Option<Held<V>>,
    /// The version of the new leaf.
    pub(super) version: NodeVersion,
    pub(super) node: RemotePtr,
    pub(super) is_published: bool,
}

impl<A: BTree, V: Verbs> Drop for Again<A, V> {
    fn drop(&mut self) {
        if !self.is_published {
            // A WRITE there may be in flight: the lock is given back behind it.
            self.tree.allocator.return_kept(self.tree.leaf().node_bytes() as u64);
            self.tree.merges().put((self.node, self.version));
        }
    }
}

impl<A: BTree<Leaf: MergedLeaf>, V: Verbs> Local<A, V> {
    /// Notes that a leaf is out of the tree.
    pub(super) fn retire(&self, retired: Retired) {
        let since = self.allocator.retire_kept(retired.node, self.leaf().node_bytes() as u64);
        self.merges().retired.borrow_mut().push_back(Retired { since, ..retired });
    }

    /// Has the janitor look after the retired leaves, if the oldest may be free.
    pub(crate) fn look_after_retired(&self) {
        let merges = self.merges();
        let is_over = |retired: &Retired| self.verbs.pins().is_over(retired.since);
        let Some(tree) = self.me.upgrade() else { return };
        if !merges.retired.borrow().front().is_some_and(is_over) || merges.looks.replace(true) {
            return;
        }
        self.verbs.defer(async move {
            if let Err(error) = tree.free_retired().await {
                tracing::debug!(name: "btree.retired.failed", %error, "a retired leaf is not free yet");
            }
            tree.merges().looks.set(false);
        });
    }

    /// Frees the retired leaves that all operations have left, and to which their parents do not lead: two round trips
    /// each.
    async fn free_retired(self: &Rc<Self>) -> Result<(), WriteError> {
        let bytes = self.leaf().node_bytes() as u64;
        loop {
            let Some(retired) = self.merges().oldest_if(|since| self.verbs.pins().is_over(since)) else {
                return Ok(());
            };
            let separator = Self::leaf_separator(&retired.low, retired.node);
            let found = self.take_out(&Meter::default(), &separator, &mut self.budget()).await;
            match found {
                Ok(TakenOut::Before) => {
                    self.allocator.keep(retired.node, bytes);
                    self.merges().put((retired.node, retired.version));
                }
                Ok(TakenOut::Not) => {
                    tracing::debug!(name: "btree.retired.first", node = %retired.node, "a freed leaf stays linked");
                }
                Ok(TakenOut::Now) | Err(_) => {
                    tracing::debug!(name: "btree.retired.linked", node = %retired.node, "a freed leaf was linked");
                    let since = self.verbs.pins().retired_now();
                    self.merges().retired.borrow_mut().push_back(Retired { since, ..retired });
                    found?;
                }
            }
        }
    }

    /// Takes memory of a merged leaf for the new half of the leaf whose lock is `held`: one round trip for its lock,
    /// and none if there is none.
    pub(crate) async fn leaf_again(
        self: &Rc<Self>,
        meter: &Meter,
        held: &Held<V>,
    ) -> Option<Unpublished<'_, A, V>> {
        self.look_after_retired();
        let left = held.node();
        let (node, version) = self.merges().take(left.server())?;
        self.allocator.use_kept(node, self.leaf().node_bytes() as u64);
        let (tree, version) = (Rc::clone(self), version.next());
        let mut again = Again { tree, held: None, version, node, is_published: false };
        if self.locks.word_of(node) == self.locks.word_of(left) {
            return None;
        }
        // Where the lock is taken, or the server does not answer, other memory will do.
        let mut own = self.locks.try_acquire(node).await.ok()??;
        own.lock(meter).await.ok()?;
        again.held = Some(own);
        tracing::debug!(name: "btree.leaf.again", %node, "a leaf is made where one was merged");
        Some(Unpublished::again(self, again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(n: u64) -> RemotePtr {
        RemotePtr::new(ServerId((n % 3) as u16), 64 * (n + 1))
    }

    #[test]
    fn a_leaf_is_merged_once_at_a_time_and_left_alone_unless_it_is_empty() {
        let merges = Merges::default();
        assert!(merges.begin(leaf(0), false, 5) && !merges.begin(leaf(0), true, 5));
        merges.end(leaf(0), 100);
        assert!(!merges.begin(leaf(0), false, 99) && merges.begin(leaf(0), true, 99));
        merges.end(leaf(0), 200);
        assert!(!merges.begin(leaf(0), true, 199), "it was empty");
        assert!(merges.begin(leaf(0), false, 200));
        merges.end(leaf(0), 0);
        assert!((0..Merges::MOST as u64).all(|n| merges.begin(leaf(n), false, 5)));
        assert!(!merges.begin(leaf(99), true, 5), "there are too many");
        merges.end(leaf(3), 7);
        assert!(!merges.begin(leaf(3), false, 6) && merges.begin(leaf(99), true, 6));
    }

    #[test]
    fn leaves_that_are_left_alone_are_forgotten_where_they_are_many() {
        let merges = Merges::default();
        for n in 0..10_000 {
            assert!(merges.begin(leaf(n), false, 5));
            merges.end(leaf(n), 100);
            assert!(merges.noted.borrow().len() <= Merges::NOTED_MAX);
        }
    }

    #[test]
    fn memory_near_by_goes_first() {
        let merges = Merges::default();
        (0..4).for_each(|n| merges.put((leaf(n), NodeVersion::default())));
        let take = |near| merges.take(ServerId(near)).map(|(node, _)| node);
        assert_eq!([take(1), take(0), take(0)], [Some(leaf(1)), Some(leaf(0)), Some(leaf(3))]);
        assert_eq!([take(0), take(0)], [Some(leaf(2)), None]);
    }
}
