//! Memory of nodes that were merged: from when they are out of the tree until another node is there.
//!
//! An operation that still has to put the node's separator in may do so behind its merge (`merge.rs`). So the memory
//! waits until all of that time have ended, and then the parent is asked whether one has, at whatever node that is by
//! then: no inner node of the tree leads to what is used again, only copies of older ones do.
//!
//! | who has the address of a merged node | until |
//! |---|---|
//! | operations that have read its parent, its neighbour or the root word before | they end: three epochs |
//! | its parent, once more | it is asked |
//! | copies of inner nodes, on any compute node, which say where they were read; the cached root | a flush |
//! | a freed node whose heir it is: a leaf only | never, for it is not merged while one is linked (`merge.rs`) |
//!
//! An inner node is any node's memory then, as is a leaf where readers conclude from addresses
//! ([`LeafFormat::TOLD_BY_ADDRESS`]): what looks like a node there has to be the one that was meant. Without that,
//! memory of a leaf stays memory of leaves, and does without the flush. Copies of inner nodes may have its address for
//! good. They only steer: a client that comes from there to a leaf reads its fences under the same version as its
//! pairs, and if its key is between them it is right, whatever it has thought to find; else it begins anew. What must
//! not be is a leaf that looks alive and that the tree does not have. So its first line says that it is none (freed or
//! frozen) until a split has made a leaf of it that its left neighbour leads to:
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

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::alloc::Expected;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::node::Unpublished;
use super::separator::{Separator, TakenOut};
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

/// A node that was merged.
struct Retired {
    level: u8,
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
    /// Tells whether no node is being merged, and none is retired.
    fn are_over(&self) -> bool {
        self.merging.under_way() == 0 && self.retired.borrow().is_empty()
    }

    /// Takes the retired node that has waited for the longest, if that is long enough.
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

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Notes that a node that begins at `low` is out of the tree.
    pub(super) fn retire(&self, level: u8, node: RemotePtr, low: Bytes) {
        let since = self.allocator.retire_kept(node, self.node_bytes(level) as u64);
        let retired = Retired { level, node, low, since, _expected: self.allocator.expect() };
        self.merges().retired.borrow_mut().push_back(retired);
    }

    /// Has the janitor look after the retired nodes, if the oldest may be free; else asks for the epoch that it waits
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
                tracing::debug!(name: "btree.retired.failed", %error, "a retired node is not free yet");
            }
            tree.merges().looks.set(false);
        });
    }

    /// Has the janitor look after the retired nodes until there are none: this shard has no client of the tree any
    /// more, and may be about to end.
    pub(crate) fn look_after_all_retired(&self) {
        let Some(tree) = self.me.upgrade().filter(|tree| !tree.merges().are_over()) else { return };
        // No epoch is pinned by waiting for one.
        self.verbs.attend(async move {
            if let Err(error) = tree.free_all_retired().await {
                tracing::debug!(name: "btree.retired.left", %error, "merged nodes are lost until a sweep or a repair");
            }
        });
    }

    /// Frees all retired nodes, for as long as epochs move on.
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

    /// Frees the retired nodes that all operations have left, and to which their parents do not lead: two round trips
    /// each.
    async fn free_retired(self: &Rc<Self>) -> Result<(), WriteError> {
        loop {
            let Some(retired) = self.merges().oldest_if(|since| self.verbs.pins().is_over(since)) else {
                return Ok(());
            };
            let Retired { level, node, .. } = retired;
            let separator = Separator { level: level + 1, key: retired.low.clone(), child: node };
            let bytes = self.node_bytes(level) as u64;
            let found = self.take_out(&Meter::default(), &separator, &mut self.budget()).await;
            match found {
                Ok(TakenOut::Before) if level > 0 || A::Leaf::TOLD_BY_ADDRESS => {
                    self.allocator.flush_kept(node, bytes);
                }
                Ok(TakenOut::Before) => self.allocator.free_kept(node, bytes),
                Ok(TakenOut::Not) => {
                    tracing::debug!(name: "btree.retired.first", %node, "a freed node stays linked");
                }
                Ok(TakenOut::Now) | Err(_) => {
                    tracing::debug!(name: "btree.retired.linked", %node, "a freed node was linked");
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
            let image = if self.lock_word(0, node) == self.lock_word(0, left) {
                self.read(meter, node, bytes, &mut self.budget()).await.ok()
            } else {
                let locked = self.try_lock_whole(meter, 0, node).await.ok().flatten();
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
