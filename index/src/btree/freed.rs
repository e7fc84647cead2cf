//! Leaves that are no longer a part of their tree, or not yet: what a client does that meets one.
//!
//! A leaf is *frozen* while it is being merged (`merge.rs`), or made where another one was (`retired.rs`). It is
//! *freed* afterwards, and names the leaf that had its keys then, its heir. Mostly a client reads a frozen leaf again,
//! or goes on to the heir of a freed one, whose fences say whether that is right. If it meets several such leaves,
//! their client has died: then it sees to it that the tree goes on without.
//!
//! - A frozen leaf thaws if its left neighbour ends where it begins and leads to it, and is freed if that covers where
//!   it begins. Both locks are held to tell: `merge.rs` says why. Nothing else leads there if neither is true.
//! - The separator of a freed leaf is taken out. Where its parent begins with it, it stays, and what is below that is
//!   found from the left: the leaf before that separator is not freed, or its own is taken out.
//!
//! The memory of a leaf that is freed here is not used again: who had begun to free it may have noted it.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::descend::{Target, Via};
use super::merge::MergedLeaf;
use super::{BTree, LeafFormat};
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, Rejection, heir_of, kind_of, mark_freed};
use crate::shell::handle::Local;
use crate::shell::merging::{Edge, Fate, decide};
use crate::step::Budget;

/// Leaves of this kind that one operation meets before it looks after one.
const MEETINGS: u32 = 8;
/// The longest pause in ns before a frozen leaf is read again.
const PAUSE_NS: u64 = 4_000;
/// The shortest time in ns before the janitor looks whether a freed leaf is linked; the longest is twice that.
const UNLINK_NS: u64 = 200_000;

impl<A: BTree<Leaf: MergedLeaf>, V: Verbs> Local<A, V> {
    /// Goes on from `at`, where the READ or the lock has brought an image that is frozen or freed; `rejection` says
    /// which.
    #[cold]
    pub(crate) async fn leave_freed(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        at: Target,
        (image, rejection): (&[u8], Rejection),
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        budget.spend(meter, at.ptr, Some(rejection))?;
        let is_fresh = matches!(at.via, Via::Read(_));
        self.invalidate_cached(at, key);
        if budget.count_freed().is_multiple_of(MEETINGS) {
            return self.look_after(meter, key, at.ptr, budget).await;
        }
        if let Some(heir) = heir_of(image) {
            tracing::debug!(name: "btree.leaf.freed", node = %at.ptr, is_fresh, "a leaf is another one's by now");
            if is_fresh && let Some((low, _)) = self.low_of(image) {
                self.unlink_later(at.ptr, low);
            }
            return Ok(Target { ptr: heir, via: Via::Nothing, next: None, ..at });
        }
        if rejection == Rejection::Frozen {
            tracing::debug!(name: "btree.leaf.frozen", node = %at.ptr, "a leaf is read again that is frozen");
            self.verbs.pause(1 + self.verbs.random() % PAUSE_NS).await;
            if is_fresh || at.via == Via::Nothing {
                return Ok(Target { via: Via::Nothing, ..at });
            }
        }
        let root = self.restart(meter, at.ptr).await?;
        self.descend(meter, key, 0, root, budget).await
    }

    /// Leaves it to the janitor to take the separator of a freed leaf out that its parent still had just now. Most
    /// often its merger is about to: so it pauses first, and then looks without a lock.
    fn unlink_later(self: &Rc<Self>, leaf: RemotePtr, low: Bytes) {
        if !self.merges().merging.begin(leaf, true, self.verbs.now()) {
            return;
        }
        let tree = Rc::clone(self);
        self.verbs.defer(async move {
            tree.verbs.pause(UNLINK_NS + tree.verbs.random() % UNLINK_NS).await;
            if let Err(error) = tree.unlink(leaf, &low).await {
                tracing::debug!(name: "btree.leaf.kept", %leaf, %error, "a freed leaf stays linked");
            }
            tree.merges().merging.end(leaf, false, tree.verbs.now());
        });
    }

    async fn unlink(self: &Rc<Self>, leaf: RemotePtr, low: &Bytes) -> Result<(), WriteError> {
        let (meter, mut budget) = (Meter::default(), self.budget());
        let found = self.locate_from_root(&meter, low, 0, &mut budget).await?;
        if found.is_some_and(|found| found.ptr == leaf) {
            let out = self.take_out(&meter, &Self::leaf_separator(low, leaf), &mut budget).await?;
            tracing::debug!(name: "btree.leaf.unlinked", %leaf, ?out, "a freed leaf was still linked");
        }
        Ok(())
    }

    /// Looks after a leaf that keeps this operation from its key; yields where that goes on.
    async fn look_after(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        leaf: RemotePtr,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        tracing::debug!(name: "btree.leaf.looked_after", node = %leaf, "a leaf is not what leads to it");
        // What its last holder has begun is done, or will not be.
        let image = self.read_whole_leaf_locked(meter, leaf).await?;
        match self.low_of(&image) {
            Some((low, Rejection::Frozen)) => self.settle_frozen(meter, leaf, &low, budget).await?,
            Some((low, Rejection::Freed)) => {
                let separator = Self::leaf_separator(&low, leaf);
                if let Err(error) = self.take_out(meter, &separator, budget).await {
                    tracing::debug!(name: "btree.leaf.kept", %leaf, %error, "a freed leaf stays linked");
                }
                if low[..] <= *key {
                    let left = self.leaf_before(meter, &low, budget).await?;
                    return Ok(Target { ptr: left, level: 0, via: Via::Nothing, next: None });
                }
            }
            _ => {}
        }
        let root = self.restart(meter, leaf).await?;
        self.descend(meter, key, 0, root, budget).await
    }

    /// Yields where a leaf begins that is frozen or freed, and which of the two it is; none if it is neither.
    fn low_of(&self, image: &[u8]) -> Option<(Bytes, Rejection)> {
        let rejection = kind_of(image).err()?;
        if !matches!(rejection, Rejection::Frozen | Rejection::Freed) {
            return None;
        }
        let mut whole = image.to_vec();
        self.leaf().thaw(&mut whole);
        let low = self.leaf().fill(&whole).ok().map(|(header, _)| header.low())?;
        Some((low, rejection))
    }

    /// Finds the leaf that is before `low`, as inner nodes have it: that one, or one to the left of it. Reads under
    /// locks: what dead clients have left is settled then.
    async fn leaf_before(
        self: &Rc<Self>,
        meter: &Meter,
        low: &Bytes,
        budget: &mut Budget,
    ) -> Result<RemotePtr, AccessError> {
        let mut low = low.clone();
        loop {
            let root = self.restart(meter, self.shared.entry.root).await?;
            let (mut at, mut level) = (root.ptr, root.level);
            while level > 0 {
                let image = self.read_node_locked(meter, at, self.inner().node_bytes()).await?;
                let view =
                    self.inner().view(&image).map_err(|rejection| AccessError::corrupt(at, rejection))?;
                let header = view.header();
                if header.high().is_some_and(|high| high < low) {
                    budget.spend(meter, at, None)?;
                    at = header.right().map_err(|rejection| AccessError::corrupt(at, rejection))?;
                    continue;
                }
                let entries = view.entries().filter_map(Result::ok);
                match entries.take_while(|(separator, _)| *separator < low).last() {
                    Some((_, child)) => (at, level) = (child, level - 1),
                    None => return Err(AccessError::corrupt(at, "it is not what leads to it")),
                }
            }
            let image = self.read_whole_leaf_locked(meter, at).await?;
            match self.low_of(&image) {
                Some((before, Rejection::Freed)) if before < low => low = before,
                _ => return Ok(at),
            }
            budget.spend(meter, at, Some(Rejection::Freed))?;
        }
    }

    /// Sees to it that the leaf that begins at `low` is frozen no longer, unless nothing leads to it, or another client
    /// has its lock.
    async fn settle_frozen(
        self: &Rc<Self>,
        meter: &Meter,
        leaf: RemotePtr,
        low: &Bytes,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let mut left = self.leaf_before(meter, low, budget).await?;
        loop {
            let (held, image) = self.lock_whole_leaf(meter, left).await?;
            let edge = self.edge_before(&image, low);
            match edge {
                Some(Edge::Before(sibling)) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, left, None)?;
                    left = sibling;
                }
                Some(edge) => return self.settle_between(meter, leaf, low, (held, edge)).await,
                // It is frozen itself, or was merged meanwhile.
                None => {
                    let of_left = self.low_of(&image);
                    self.unlock(meter, held).await?;
                    budget.spend(meter, left, Some(Rejection::Frozen))?;
                    if let Some((before, Rejection::Frozen)) = of_left.filter(|(before, _)| before < low) {
                        Box::pin(self.settle_frozen(meter, left, &before, budget)).await?;
                    }
                    left = self.leaf_before(meter, low, budget).await?;
                }
            }
        }
    }

    /// Compares a leaf with the place where another one begins; none if it is no leaf of the tree.
    fn edge_before(&self, image: &[u8], low: &Bytes) -> Option<Edge> {
        let (header, _) = self.leaf().fill(image).ok()?;
        Some(match header.high() {
            _ if header.low() >= *low => Edge::Beyond,
            Some(high) if high < *low => Edge::Before(header.right().ok()?),
            Some(high) if high == *low => Edge::There(header.right().ok()?),
            _ => Edge::Behind,
        })
    }

    /// Settles a frozen leaf, with the lock of the one that is before where it begins.
    async fn settle_between(
        self: &Rc<Self>,
        meter: &Meter,
        leaf: RemotePtr,
        low: &Bytes,
        (held, edge): (Held<V>, Edge),
    ) -> Result<(), AccessError> {
        let left = held.node();
        // Two nodes may have one lock.
        let (own, mut image) = if self.leaf_word(left) == self.leaf_word(leaf) {
            (None, self.read(meter, leaf, self.node_bytes(0), &mut self.budget()).await?)
        } else {
            match self.try_lock_leaf(meter, leaf).await? {
                Some((own, image)) => (Some(own), image),
                None => return self.unlock(meter, held).await,
            }
        };
        let frozen = self.low_of(&image).filter(|(_, rejection)| *rejection == Rejection::Frozen);
        let written = match decide(frozen.as_ref().map(|(low, _)| low), low, leaf, edge) {
            Fate::Left => None,
            Fate::Thawed => {
                tracing::debug!(name: "btree.leaf.thawed", node = %leaf, "a frozen leaf is one of the tree again");
                Some(self.leaf().thaw(&mut image))
            }
            Fate::Freed => {
                tracing::debug!(name: "btree.leaf.let_go", node = %leaf, "a frozen leaf is freed");
                Some(mark_freed(&mut image, left))
            }
        };
        let mut chain = Chain::with_buffer(leaf.server(), image);
        if let Some(written) = written {
            self.write_leaf(&mut chain, leaf, written);
        }
        match own {
            Some(own) => {
                own.release(meter, chain, true).await?;
                self.unlock(meter, held).await
            }
            None => Ok(held.release(meter, chain, true).await.map(drop)?),
        }
    }
}
