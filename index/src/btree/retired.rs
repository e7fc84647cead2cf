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
//! to it meanwhile. If the splitter dies, R is frozen, and others thaw it (`freed.rs`), or nothing leads there. Where L
//! and R have one lock, R thaws in the chain that writes L, behind it.
//!
//! The new leaf has a version behind all that were written at this address: what a READ brings of two is torn.
//!
//! Where readers conclude from addresses ([`LeafFormat::TOLD_BY_ADDRESS`]), even a leaf that is alive would mislead a
//! client with an old copy. So there memory waits for the caches to be emptied as well (`Local::cache`), and is any
//! node's then: nothing of this file is for the leaf that a split makes of it.
//!
//! Between a merge and that, all operations end that may still put the leaf's separator in (`merge.rs`), and then its
//! parent is asked whether one has: so no inner node leads to what is used again, only copies of older ones.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::alloc::Expected;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::merge::MergedLeaf;
use super::node::Unpublished;
use super::separator::TakenOut;
use super::{BTree, LeafFormat};
use crate::error::WriteError;
use crate::layout::{Bytes, NodeVersion, Rejection, kind_of, version_behind};
use crate::shell::handle::Local;
use crate::shell::merging::Merging;

/// Merged leaves whose locks a split tries at most.
const TRIES_MAX: usize = 4;
/// The time in ns between two looks of a shard that has no other work in the tree.
const LOOK_NS: u64 = 5_000_000;
/// The time in ns for which it waits for an epoch to end, which another compute node may hold back.
const EPOCH_NS_MAX: u64 = 2_000_000_000;

/// A leaf that was merged.
struct Retired {
    node: RemotePtr,
    low: Bytes,
    /// The epoch in which its parent did not lead there.
    since: u64,
    _expected: Expected,
}

/// The merges of one shard.
#[derive(Default)]
pub(super) struct Merges {
    pub(super) merging: Merging,
    /// The oldest first.
    retired: RefCell<VecDeque<Retired>>,
    looks: Cell<bool>,
}

impl Merges {
    /// Tells whether no leaf is being merged, and none is retired.
    fn are_over(&self) -> bool {
        self.merging.under_way() == 0 && self.retired.borrow().is_empty()
    }

    /// Takes the retired leaf that has waited for the longest, if that is long enough.
    fn oldest_if(&self, is_over: impl FnOnce(u64) -> bool) -> Option<Retired> {
        let mut retired = self.retired.borrow_mut();
        if retired.front().is_some_and(|oldest| is_over(oldest.since)) { retired.pop_front() } else { None }
    }
}

/// Memory of a leaf that a split uses again. Goes back to the allocator if it is dropped before the split is published.
pub(super) struct Again<A: BTree, V: Verbs> {
    tree: Rc<Local<A, V>>,
    pub(super) node: RemotePtr,
    /// Its lock; none if that is the lock of the leaf that is split, too.
    pub(super) held: Option<Held<V>>,
    /// The version of the new leaf.
    pub(super) version: NodeVersion,
    pub(super) is_published: bool,
}

impl<A: BTree, V: Verbs> Drop for Again<A, V> {
    fn drop(&mut self) {
        if !self.is_published {
            // A WRITE there may be in flight: the lock is given back behind it.
            self.tree.allocator.return_of_kind(self.node, self.tree.leaf().node_bytes() as u64);
        }
    }
}

impl<A: BTree<Leaf: MergedLeaf>, V: Verbs> Local<A, V> {
    /// Notes that a leaf that begins at `low` is out of the tree.
    pub(super) fn retire(&self, node: RemotePtr, low: Bytes) {
        let since = self.allocator.retire_kept(node, self.leaf().node_bytes() as u64);
        let retired = Retired { node, low, since, _expected: self.allocator.expect() };
        self.merges().retired.borrow_mut().push_back(retired);
    }

    /// Has the janitor look after the retired leaves, if the oldest may be free; else asks for the epoch that it waits
    /// for.
    pub(crate) fn look_after_retired(&self) {
        let (merges, Some(tree)) = (self.merges(), self.me.upgrade()) else { return };
        let Some(since) = merges.retired.borrow().front().map(|oldest| oldest.since) else { return };
        if !self.verbs.pins().is_over(since) {
            return self.verbs.control().want_epoch();
        }
        if merges.looks.replace(true) {
            return;
        }
        self.verbs.defer(async move {
            if let Err(error) = tree.free_retired().await {
                tracing::debug!(name: "btree.retired.failed", %error, "a retired leaf is not free yet");
            }
            tree.merges().looks.set(false);
        });
    }

    /// Has the janitor look after the retired leaves until there are none: this shard has no client of the tree any
    /// more, and may be about to end.
    pub(crate) fn look_after_all_retired(&self) {
        let Some(tree) = self.me.upgrade().filter(|tree| !tree.merges().are_over()) else { return };
        // No epoch is pinned by waiting for one.
        self.verbs.attend(async move {
            if let Err(error) = tree.free_all_retired().await {
                tracing::debug!(name: "btree.retired.left", %error, "merged leaves are lost until a repair");
            }
        });
    }

    /// Frees all retired leaves, for as long as epochs move on.
    async fn free_all_retired(self: &Rc<Self>) -> Result<(), WriteError> {
        let pins = self.verbs.pins();
        let (mut epoch, mut until_ns) = (0, 0);
        loop {
            {
                let _pin = pins.pin();
                self.free_retired().await?;
            }
            let (known, now) = (pins.retired_now(), self.verbs.now());
            if known > epoch {
                (epoch, until_ns) = (known, now + EPOCH_NS_MAX);
            }
            if self.merges().are_over() || now >= until_ns {
                return Ok(());
            }
            self.verbs.control().want_epoch();
            self.verbs.pause(LOOK_NS).await;
        }
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
                Ok(TakenOut::Before) if A::Leaf::TOLD_BY_ADDRESS => {
                    self.allocator.flush_kept(retired.node, bytes);
                }
                Ok(TakenOut::Before) => self.allocator.free_kept(retired.node, bytes),
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

    /// Takes memory of a merged leaf for the new half of the leaf whose lock is `held`, if there is some whose lock can
    /// be had at once: a round trip or two for that.
    pub(crate) async fn leaf_again(
        self: &Rc<Self>,
        meter: &Meter,
        held: &Held<V>,
    ) -> Option<Unpublished<'_, A, V>> {
        self.look_after_retired();
        let bytes = self.leaf().node_bytes();
        let (left, mut others) = (held.node(), Vec::new());
        while others.len() < TRIES_MAX
            && let Some(memory) = self.allocator.reuse_of_kind(left.server(), bytes as u64).await
        {
            let (tree, node, version) = (Rc::clone(self), memory.at, NodeVersion::default());
            let mut again = Again { tree, node, held: None, version, is_published: false };
            // Where the lock is taken, or the server does not answer, other memory will do.
            let image = if self.leaf_word(node) == self.leaf_word(left) {
                self.read(meter, node, bytes, &mut self.budget()).await.ok()
            } else {
                let locked = self.try_lock_leaf(meter, node).await.ok().flatten();
                locked.map(|(own, image)| {
                    again.held = Some(own);
                    image
                })
            };
            // Frozen: by a split that came to nothing.
            let is_gone = |image: &Buf| matches!(kind_of(image), Err(Rejection::Freed | Rejection::Frozen));
            if let Some(image) = image.filter(is_gone) {
                again.version = version_behind(&image);
                tracing::debug!(name: "btree.leaf.again", %node, "a leaf is made where one was merged");
                return Some(Unpublished::again(self, again));
            }
            others.push(again);
        }
        None
    }
}
