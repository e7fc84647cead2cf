//! Nodes that are no longer a part of their tree, or not yet: what a client does that meets one.
//!
//! A node is *frozen* while it is being merged (`merge.rs`), while the root is about to get lower (`lower.rs`), or
//! while it is made where a leaf was (`retired.rs`). It is *freed* afterwards. A freed leaf names the leaf that had its
//! keys then, its heir. Mostly a client reads a frozen leaf again, or goes on to the heir of a freed one, whose fences
//! say whether that is right; from an inner node it begins anew at the root, after a pause. If it meets several such
//! nodes, their client has died: then it sees to it that the tree goes on without.
//!
//! - A frozen node thaws if its left neighbour ends where it begins and leads to it, and is freed if that covers where
//!   it begins. Both locks are held to tell: `merge.rs` says why. Nothing else leads there if neither is true. One
//!   that begins where the tree does has no left neighbour: of that the root word tells (`lower.rs`).
//! - The separator of a freed node is taken out. Where its parent begins with it, it stays, and what is below that is
//!   found from the left: the node before that separator is not freed, or its own is taken out.
//!
//! The memory of a node that is freed here is not used again: who had begun to free it may have noted it.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::BTree;
use super::descend::{Target, Via};
use super::separator::Separator;
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, Rejection, heir_of};
use crate::shell::handle::Local;
use crate::shell::merging::{Edge, Fate, decide};
use crate::step::Budget;

/// Nodes of this kind that one operation meets before it looks after one.
const MEETINGS: u32 = 8;
/// The longest pause in ns before a frozen leaf is read again, or an inner node that is gone is looked for anew.
const PAUSE_NS: u64 = 4_000;
/// The shortest time in ns before the janitor looks whether a freed leaf is linked; the longest is twice that.
const UNLINK_NS: u64 = 200_000;

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Goes on from the leaf `at`, where the READ or the lock has brought an image that is frozen or freed; `rejection`
    /// says which.
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
            let from = self.look_after(meter, key, at, budget).await?;
            return self.descend(meter, key, 0, from, budget).await;
        }
        if let Some(heir) = heir_of(image) {
            tracing::debug!(name: "btree.leaf.freed", node = %at.ptr, is_fresh, "a leaf is another one's by now");
            if is_fresh && let Some((low, _)) = self.format(0).low_of(image) {
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

    /// Goes on from the inner node `at`, whose image is frozen or freed, as `rejection` says: yields the root, or a
    /// node of that level from which the way to `key` goes right.
    #[cold]
    pub(super) async fn leave_freed_inner(
        &self,
        meter: &Meter,
        key: &[u8],
        at: Target,
        rejection: Rejection,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        match rejection {
            Rejection::Freed => {
                tracing::debug!(name: "btree.inner.freed", node = %at.ptr, "an inner node is gone");
            }
            _ => tracing::debug!(name: "btree.inner.frozen", node = %at.ptr, "an inner node is frozen"),
        }
        if rejection == Rejection::Freed && self.cache().root().is_some_and(|root| root.ptr == at.ptr) {
            // The cache believes in no lower root.
            self.cache().clear();
        }
        if budget.count_freed().is_multiple_of(MEETINGS) {
            let tree = self.me.upgrade().expect("a tree that is at work is alive");
            return tree.look_after(meter, key, at, budget).await;
        }
        if !matches!(at.via, Via::Cached(_)) {
            // Its merger is about to take its separator out, most often.
            self.verbs.pause(1 + self.verbs.random() % PAUSE_NS).await;
        }
        self.restart(meter, at.ptr).await
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
            let separator = Separator { level: 1, key: low.clone(), child: leaf };
            let out = self.take_out(&meter, &separator, &mut budget).await?;
            tracing::debug!(name: "btree.leaf.unlinked", %leaf, ?out, "a freed leaf was still linked");
        }
        Ok(())
    }

    /// Looks after a node that keeps this operation from its key; yields where that goes on: at the root, or at a node
    /// of that level.
    async fn look_after(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        Target { ptr: node, level, .. }: Target,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        match level {
            0 => tracing::debug!(name: "btree.leaf.looked_after", %node, "a leaf is not what leads to it"),
            _ => {
                tracing::debug!(name: "btree.inner.looked_after", %node, "an inner node is not what leads to it")
            }
        }
        // What its last holder has begun is done, or will not be.
        let image = self.read_whole_locked(meter, level, node).await?;
        match self.format(level).low_of(&image) {
            Some((low, Rejection::Frozen)) => self.settle_frozen(meter, level, node, &low, budget).await?,
            Some((low, Rejection::Freed)) if !low.is_empty() => {
                let separator = Separator { level: level + 1, key: low.clone(), child: node };
                if let Err(error) = self.take_out(meter, &separator, budget).await {
                    tracing::debug!(name: "btree.freed.kept", %node, %error, "a freed node stays linked");
                }
                if low[..] <= *key
                    && let Some(left) = self.node_before(meter, level, &low, budget).await?
                {
                    return Ok(Target { ptr: left, level, via: Via::Nothing, next: None });
                }
            }
            _ => {}
        }
        self.restart(meter, node).await
    }

    /// Finds the node of `level` that is before `low`, as inner nodes have it: that one, or one to the left of it; none
    /// if the tree is not that high. Reads under locks: what dead clients have left is settled then.
    async fn node_before(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        low: &Bytes,
        budget: &mut Budget,
    ) -> Result<Option<RemotePtr>, AccessError> {
        let mut low = low.clone();
        loop {
            let mut at = self.restart(meter, self.shared.entry.root).await?;
            if at.level < level {
                return Ok(None);
            }
            while at.level > level {
                at = self.step_before(meter, at, &low, budget).await?;
            }
            let image = self.read_whole_locked(meter, level, at.ptr).await?;
            match self.format(level).low_of(&image) {
                Some((before, Rejection::Freed)) if before < low => low = before,
                _ => return Ok(Some(at.ptr)),
            }
            budget.spend(meter, at.ptr, Some(Rejection::Freed))?;
        }
    }

    /// Goes on from an inner node on the way to the node before `low`: down, right, or anew from the root.
    async fn step_before(
        self: &Rc<Self>,
        meter: &Meter,
        at: Target,
        low: &Bytes,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        let corrupt = |rejection| AccessError::corrupt(at.ptr, rejection);
        let image = self.read_node_locked(meter, at.ptr, self.inner().node_bytes()).await?;
        if let Some((begins, rejection)) = self.format(at.level).low_of(&image) {
            budget.spend(meter, at.ptr, Some(rejection))?;
            if rejection == Rejection::Frozen {
                Box::pin(self.settle_frozen(meter, at.level, at.ptr, &begins, budget)).await?;
            } else if !begins.is_empty()
                && let Some(left) = Box::pin(self.node_before(meter, at.level, &begins, budget)).await?
            {
                return Ok(Target { ptr: left, ..at });
            }
            return self.restart(meter, at.ptr).await;
        }
        let view = self.inner().view(&image).map_err(corrupt)?;
        let header = view.header();
        if header.high().is_some_and(|high| high < *low) {
            budget.spend(meter, at.ptr, None)?;
            return Ok(Target { ptr: header.right().map_err(corrupt)?, ..at });
        }
        let entries = view.entries().filter_map(Result::ok);
        match entries.take_while(|(separator, _)| separator < low).last() {
            Some((_, child)) => Ok(Target { ptr: child, level: at.level - 1, ..at }),
            None => Err(AccessError::corrupt(at.ptr, "it is not what leads to it")),
        }
    }

    /// Sees to it that the node that begins at `low` is frozen no longer, unless nothing leads to it, or another client
    /// has its lock.
    async fn settle_frozen(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
        low: &Bytes,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        if low.is_empty() {
            return self.settle_root(meter, level, node, budget).await;
        }
        let Some(mut left) = self.node_before(meter, level, low, budget).await? else { return Ok(()) };
        loop {
            let (held, image) = self.lock_whole(meter, level, left).await?;
            match self.edge_before(level, &image, low) {
                Some(Edge::Before(sibling)) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, left, None)?;
                    left = sibling;
                }
                Some(edge) => return self.settle_between(meter, level, node, low, (held, edge)).await,
                // It is frozen itself, or was merged meanwhile.
                None => {
                    let of_left = self.format(level).low_of(&image);
                    self.unlock(meter, held).await?;
                    budget.spend(meter, left, Some(Rejection::Frozen))?;
                    if let Some((before, Rejection::Frozen)) = of_left.filter(|(before, _)| before < low) {
                        Box::pin(self.settle_frozen(meter, level, left, &before, budget)).await?;
                    }
                    let Some(found) = self.node_before(meter, level, low, budget).await? else {
                        return Ok(());
                    };
                    left = found;
                }
            }
        }
    }

    /// Compares a node with the place where another one begins; none if it is no node of the tree.
    fn edge_before(&self, level: u8, image: &[u8], low: &Bytes) -> Option<Edge> {
        let format = self.format(level);
        let (header, _) = format.fill(image).ok()?;
        Some(match header.high() {
            _ if header.low() >= *low => Edge::Beyond,
            Some(high) if high < *low => Edge::Before(header.right().ok()?),
            Some(high) if high == *low => Edge::There(header.right().ok()?),
            _ => Edge::Behind,
        })
    }

    /// Settles a frozen node, with the lock of the one that is before where it begins.
    async fn settle_between(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
        low: &Bytes,
        (held, edge): (Held<V>, Edge),
    ) -> Result<(), AccessError> {
        let left = held.node();
        // Two nodes may have one lock.
        let (own, mut image) = if self.lock_word(level, left) == self.lock_word(level, node) {
            (None, self.read(meter, node, self.node_bytes(level), &mut self.budget()).await?)
        } else {
            match self.try_lock_whole(meter, level, node).await? {
                Some((own, image)) => (Some(own), image),
                None => return self.unlock(meter, held).await,
            }
        };
        let format = self.format(level);
        let frozen = format.low_of(&image).filter(|(_, rejection)| *rejection == Rejection::Frozen);
        let written = match decide(frozen.as_ref().map(|(low, _)| low), low, node, edge) {
            Fate::Left => None,
            Fate::Thawed => {
                tracing::debug!(name: "btree.frozen.thawed", %node, level, "a frozen node is one of the tree again");
                Some(format.thaw(&mut image))
            }
            Fate::Freed => {
                tracing::debug!(name: "btree.frozen.let_go", %node, level, "a frozen node is freed");
                Some(format.free(&mut image, left))
            }
        };
        let mut chain = Chain::with_buffer(node.server(), image);
        if let Some(written) = written {
            self.write_whole(&mut chain, level, node, written);
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
