//! Leaves that are out of the tree: removed, or moved, since their link says so. Their memory is another leaf's when no
//! slot leads there any more, of those that writers change, and when all operations have ended that may have found them
//! before (`farwood_runtime::epoch`). All of that is done in the background.
//!
//! ```text
//!   CAS link: removed ── CAS slot ──┬─ it led there ───────────────────────────────┬─ lock is free ── retired
//!                                   └─ not: go down from the root, until none does ┘
//! ```
//!
//! # Whether a leaf is out
//!
//! A slot leads to a leaf, or to one that moved to it, over any number of others. That is the *chain* of the slot. What
//! a leaf's link says of where it moved does not change. So if the slot of the key, read from the root down, leads to a
//! chain without the leaf, no client puts the leaf back: one that redirects a slot to it (a split, a copy of the slot's
//! node, a client that follows a leaf that moved) expects in that slot what leads there already. A CAS that took the
//! leaf out of a slot shows the same: slots that are not frozen belong to the tree.
//!
//! # Why the lock
//!
//! A client that removes a leaf does not lock it. A writer that held the lock then may have died, with an intent to
//! write (`farwood_lock`), and the client that takes its lock over writes for it: into the next leaf, if that is there
//! by then. So the lock is seen free once before the leaf is retired, and taken over if need be. Later holders find
//! that the leaf is out, and write nothing.
//!
//! # What may be believed of a leaf in memory that was used before
//!
//! Slots in caches lead there for as long as they stay there. Such a client finds a leaf that is out, or a new one of
//! which it believes nothing (`new_node.rs`), or one that is in the tree, and judges it by its key and its parent
//! (`decide.rs`). It may take its lock, and gives it back. Leaves' memory is never an inner node's, and of one size for
//! ever, so the lock is where it was.

use std::rc::Rc;

use farwood_lock::LockWord;
use farwood_runtime::alloc::Expected;
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::decide::SlotSnapshot;
use super::descend::{DescentResult, PrefixMismatch};
use crate::error::{AccessError, WriteError};
use crate::layout::Bytes;
use crate::layout::radix::{Child, Link, Slot};

/// Times that the way to a leaf is looked at, and the first pause between two looks, in ns, doubled each time: 16 ms in
/// all.
const LOOKS_MAX: u32 = 12;
const PAUSE_NS: u64 = 4_000;
/// Looks after which nodes on the way that are half replaced are completed.
const LOOKS_BEFORE_HELP: u32 = 3;
/// Leaves of a chain that are followed at one look.
const CHAIN_MAX: u32 = 64;

/// A leaf that is out of the tree as soon as its link is as it says, but for slots that may lead there.
pub(super) struct OutLeaf {
    pub(super) at: Child,
    pub(super) class: u8,
    /// The link that says that it is out.
    pub(super) link: Link,
    key: Bytes,
    /// The slot that is thought to lead there.
    snapshot: SlotSnapshot,
    /// The slot that takes its place.
    instead: Slot,
}

impl OutLeaf {
    pub(super) fn of(
        key: &[u8],
        snapshot: &SlotSnapshot,
        (at, class): (Child, u8),
        link: Link,
        instead: Slot,
    ) -> Self {
        OutLeaf { at, class, link, key: Bytes::from_slice(key), snapshot: *snapshot, instead }
    }
}

/// Where a leaf of a chain leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// To the leaf that is out.
    There,
    /// On to this one.
    On(Child),
    /// Nowhere.
    Ends,
}

/// Decides where a leaf with `link`, which is not the one that is out, leads.
fn way(link: Link, out: Child) -> Way {
    match link {
        Link::Moved { to, .. } if to == out => Way::There,
        Link::Moved { to, .. } => Way::On(to),
        Link::Live(_) | Link::New | Link::Removed { .. } => Way::Ends,
    }
}

/// A leaf that is seen off. Dropped before it is retired, nothing tells whether it is out.
struct Leaving<V: Verbs> {
    tree: Rc<Tree<V>>,
    leaf: OutLeaf,
    is_out: bool,
    _expected: Expected,
}

impl<V: Verbs> Leaving<V> {
    fn retire(mut self) {
        tracing::debug!(name: "smart.leaf.retired", leaf = %self.leaf.at.ptr(), "no slot leads to a leaf");
        self.is_out = true;
    }
}

impl<V: Verbs> Drop for Leaving<V> {
    fn drop(&mut self) {
        let (allocator, leaf) = (&self.tree.allocator, self.leaf.at.ptr());
        let bytes = self.tree.leaf().leaf_bytes(self.leaf.class) as u64;
        match self.is_out {
            true => allocator.retire_of_kind(leaf, bytes, self.leaf.link.bits()),
            false => allocator.retire_unsettled(leaf, bytes),
        }
    }
}

impl<V: Verbs> Tree<V> {
    /// Retires a leaf, whose link says that it is out, when no slot leads there any more. Redirects the slot that is
    /// thought to lead there, which saves others a round trip: that CAS is not awaited by the caller.
    pub(super) fn see_off(self: &Rc<Self>, meter: &Meter, leaf: OutLeaf) {
        let at = leaf.snapshot.at(self.shared.entry.root);
        let expected = leaf.snapshot.slot.bits();
        let mut chain = Chain::new(at.server());
        chain.cas(at, expected, leaf.instead.bits());
        let redirected = self.verbs.post(meter, chain);
        let bytes = self.leaf().leaf_bytes(leaf.class) as u64;
        let expected_node = self.allocator.expect_node(leaf.at.ptr(), bytes);
        let leaving = Leaving { tree: Rc::clone(self), leaf, is_out: false, _expected: expected_node };
        self.verbs.defer(async move {
            let tree = Rc::clone(&leaving.tree);
            let by_us = redirected.await.is_ok_and(|done| done.atomics[0] == expected);
            if by_us || tree.comes_out(&leaving.leaf).await {
                tree.retire_unlocked(leaving).await;
            }
        });
    }

    /// Takes the leaf out of its key's slot, or of the chain there; yields whether it is out.
    async fn comes_out(self: &Rc<Self>, leaf: &OutLeaf) -> bool {
        tracing::debug!(name: "smart.leaf.sought", leaf = %leaf.at.ptr(), "a slot may lead to a leaf that is out");
        for look in 0..LOOKS_MAX {
            match self.look_for(leaf, look >= LOOKS_BEFORE_HELP).await {
                Ok(false) => return true,
                Ok(true) => {}
                Err(error) => {
                    tracing::debug!(%error, "the way to a leaf that is out was not found to its end")
                }
            }
            self.verbs.pause(PAUSE_NS << look).await;
        }
        false
    }

    /// Goes down to the key of the leaf; yields whether a slot may lead to the leaf still.
    async fn look_for(self: &Rc<Self>, leaf: &OutLeaf, helps: bool) -> Result<bool, WriteError> {
        let (meter, mut budget) = (Meter::default(), self.budget());
        let budget = &mut budget;
        let from = self.read_root(&meter, budget).await?;
        let slot = match self.descend(&meter, &leaf.key, from, helps, budget).await? {
            DescentResult::Leaf(slot) if slot.fresh => slot,
            DescentResult::Vacant(slot) | DescentResult::Full(slot) => return Ok(!slot.fresh),
            DescentResult::PrefixMismatch(PrefixMismatch { certain, .. }) => return Ok(!certain),
            DescentResult::Leaf(_) => return Ok(true),
            DescentResult::Replaced(slot) => {
                self.replace(&meter, slot, budget).await?;
                return Ok(true);
            }
        };
        let mut at = slot.slot.child().expect("a leaf has an address");
        for _ in 0..CHAIN_MAX {
            if at == leaf.at {
                return Ok(!self.lead_past(&meter, leaf, &slot).await?);
            }
            let word = self.read_word(&meter, at.ptr(), budget).await?;
            let link =
                Link::from_bits(word).map_err(|rejection| AccessError::corrupt(at.ptr(), rejection))?;
            at = match way(link, leaf.at) {
                Way::There => leaf.at,
                Way::On(to) => to,
                Way::Ends => return Ok(false),
            };
        }
        Ok(true)
    }

    /// Redirects a slot whose chain has the leaf to where that leads; yields whether it led there still.
    async fn lead_past(
        &self,
        meter: &Meter,
        leaf: &OutLeaf,
        slot: &SlotSnapshot,
    ) -> Result<bool, AccessError> {
        let instead = match leaf.link {
            Link::Moved { to, class } => Slot::leaf(slot.symbol, to, class),
            _ => Slot::tombstone(slot.symbol),
        };
        let at = slot.at(self.shared.entry.root);
        let mut chain = Chain::new(at.server());
        chain.cas(at, slot.slot.bits(), instead.bits());
        let found = self.verbs.submit(meter, chain).await?.atomics[0];
        if found == slot.slot.bits() {
            self.amend_cache(slot, instead);
        }
        Ok(found == slot.slot.bits())
    }

    /// Retires a leaf that no slot leads to, when its lock was seen free.
    async fn retire_unlocked(self: &Rc<Self>, leaving: Leaving<V>) {
        let (at, class) = (leaving.leaf.at.ptr(), leaving.leaf.class);
        let lock = match (self.techniques.in_place_leaves, self.techniques.rear_lock) {
            (false, _) => return leaving.retire(),
            (true, true) => at.add(self.leaf().lock_at(class) as u64),
            (true, false) => self.locks.word_of(at),
        };
        if let Ok(0) = self.read_word(&Meter::default(), lock, &mut self.budget()).await {
            return leaving.retire();
        }
        // That may take as long as a dead client's lock does, and follows no pointers: the leaf is not retired yet.
        self.verbs.attend(async move {
            if leaving.tree.is_unlocked(lock).await {
                leaving.retire();
            }
        });
    }

    /// Looks at a lock until it is free, which yields true. It does not compete for the lock: those who do would wait
    /// for it, too.
    async fn is_unlocked(&self, lock: RemotePtr) -> bool {
        tracing::debug!(name: "smart.leaf.locked", %lock, "the lock of a leaf that is out is awaited");
        for look in 0..LOOKS_MAX {
            self.verbs.pause(PAUSE_NS << look).await;
            let found = self.read_word(&Meter::default(), lock, &mut self.budget()).await;
            match found.map(LockWord::from_bits) {
                Ok(None) => return true,
                // One that is held for so long may be a dead client's.
                Ok(Some(word)) if look + LOOKS_BEFORE_HELP >= LOOKS_MAX => {
                    let taken = self.locks.take_over(lock, word).await;
                    tracing::debug!(%lock, ?taken, "a leaf that is out stays locked");
                }
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;
    use crate::layout::radix::Parent;

    fn child(line: u64) -> Child {
        Child::new(RemotePtr::new(ServerId(1), line * 64)).unwrap()
    }

    #[test]
    fn every_link_of_a_chain() {
        let out = child(20);
        for (link, expected) in [
            (Link::Moved { to: out, class: 1 }, Way::There),
            (Link::Moved { to: child(21), class: 1 }, Way::On(child(21))),
            (Link::Live(Parent::Root), Way::Ends),
            (Link::Live(Parent::Node(out)), Way::Ends),
            (Link::New, Way::Ends),
            (Link::removed(out.bits()), Way::Ends),
        ] {
            assert_eq!(way(link, out), expected, "{link:?}");
        }
    }
}
