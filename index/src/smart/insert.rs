//! Normal insert (SMART section 4.1.2): a new leaf, and the CAS of the slot that leads to it; before that the node type
//! switch, if the slot lies behind those in use.
//!
//! ```text
//!   client 1   READ node: vacancy at 2        CAS slot 2 ─> a wins
//!   client 2   READ node: vacancy at 2   CAS slot 2 ─> finds a: its own symbol? follow it : CAS slot 3
//! ```
//!
//! Slots are tried in order, and never become vacant again (a removed key's slot stays its symbol's). So a symbol is
//! not claimed twice, however old the copy of the node was that the first try rests on.
//!
//! The paper switches the type after the CAS of the slot. A client that goes no further then (it dies, or its future is
//! dropped) leaves a key that no reader sees until the next insert into that node makes it visible, at any time. With
//! the switch first every slot that is claimed is in use: its CAS alone makes the key visible, to all at once. That
//! costs the same round trips.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, Verbs};

use super::Tree;
use super::decide::SlotSnapshot;
use super::pending::Old;
use super::write::Outcome;
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{Child, Header, Link, Parent, Slot};
use crate::step::Budget;

impl<V: Verbs> Tree<V> {
    /// Gives `key`, which has none, a leaf in the slot of `snapshot`: one round trip with `fused`, else two; two more
    /// without `lock_free_nodes`.
    pub(super) async fn insert_at(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        snapshot: SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        if self.is_beyond_room(&snapshot) {
            // Moving the node takes the slot that leads to it, which is not known here.
            return Ok(self.look_again(meter, &snapshot, budget)?);
        }
        let held = self.lock_holder(meter, &snapshot).await?;
        let done = self.insert_locked(meter, key, value, snapshot, budget).await;
        self.unlock_holder(meter, held).await?;
        done
    }

    async fn insert_locked(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        mut snapshot: SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        self.cover_slot(meter, &mut snapshot, budget).await?;
        let class = self.leaf().class_for(key.len(), value.len());
        let server = snapshot.at(self.shared.entry.root).server();
        let new = self.new_leaf(server, class).await?;
        let (place, live) = (*new, Link::Live(snapshot.holder));
        let (leaf, link) = (place.at, place.link(live));
        let buf: Buf = self.leaf_image(&place, live, key, value);
        let slot = Slot::leaf(snapshot.symbol, leaf, class);
        let redirect = self.redirect_of(&snapshot, slot, leaf, link);
        let mut redirected =
            self.write_and_redirect(meter, (new, buf), Old::Nothing, &redirect, budget).await?;
        loop {
            let Err((nodes, found)) = redirected else {
                self.reveal(meter, &place, live);
                self.amend_cache(&snapshot, slot);
                return Ok(Outcome::Done(true));
            };
            tracing::debug!(name: "smart.slot.lost", index = snapshot.index, "another client has claimed a slot");
            budget.spend(meter, snapshot.at(self.shared.entry.root), None)?;
            snapshot = match self.next_vacancy(meter, key, snapshot, Slot::from_bits(found), budget).await? {
                Outcome::On(next) if next.slot == Slot::EMPTY && next.holder == snapshot.holder => next,
                outcome => return Ok(outcome),
            };
            self.cover_slot(meter, &mut snapshot, budget).await?;
            let redirect = self.redirect_of(&snapshot, slot, leaf, link);
            redirected = self.publish(meter, nodes, Old::Nothing, &redirect, budget).await?;
        }
    }

    /// Yields where to try next after the slot of `snapshot` was found to hold something else: the slot behind it,
    /// unless the symbol has one already, or the node is being replaced. A client that came by a cached copy reads the
    /// node first: any number of slots may have been claimed since.
    async fn next_vacancy(
        &self,
        meter: &Meter,
        key: &[u8],
        snapshot: SlotSnapshot,
        found: Slot,
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        if let Parent::Node(holder) = snapshot.holder
            && (found.is_frozen() || !found.is_claimed())
        {
            // The client that began to replace the node may have got no further than the slots that no reader looks at
            // yet: with all of them frozen every client notices, and completes it.
            self.freeze(meter, holder, snapshot.holder_type, budget).await?;
            return self.look_again(meter, &snapshot, budget);
        }
        if snapshot.holder == Parent::Root || found.is_of(snapshot.symbol) {
            return Ok(Outcome::On(snapshot.with(found)));
        }
        let next = match snapshot.fresh {
            true => SlotSnapshot { index: snapshot.index + 1, slot: Slot::EMPTY, ..snapshot },
            false => self.refresh(meter, key, &snapshot, budget).await?,
        };
        match next.holder == snapshot.holder && self.is_beyond_room(&next) {
            true => self.look_again(meter, &next, budget),
            false => Ok(Outcome::On(next)),
        }
    }

    /// Updates the slot in the cached copy of the holder of `snapshot`.
    pub(super) fn amend_cache(&self, snapshot: &SlotSnapshot, slot: Slot) {
        match snapshot.holder {
            Parent::Root => self.cache().set_root(slot.bits()),
            Parent::Node(holder) => self.cache().amend(holder.bits(), snapshot.index, slot.bits()),
        }
    }

    fn is_beyond_room(&self, snapshot: &SlotSnapshot) -> bool {
        let is_new = snapshot.slot == Slot::EMPTY;
        is_new
            && matches!(snapshot.holder, Parent::Node(_))
            && snapshot.index >= self.types().room(snapshot.holder_type)
    }

    /// Begins anew without the cached copy of the holder of `snapshot`, whose slots are out of date.
    pub(super) fn look_again(
        &self,
        meter: &Meter,
        snapshot: &SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        budget.spend(meter, snapshot.at(self.shared.entry.root), None)?;
        if let Parent::Node(holder) = snapshot.holder {
            self.cache().invalidate(holder.bits());
        }
        Ok(Outcome::Again)
    }

    /// Gives the holder of `snapshot` a type that covers its slot, which is about to be claimed: node type switch
    /// (section 4.1.2). Two round trips, or none if it is covered. The next client that comes by the slot or link that
    /// leads to the node updates that ([`Tree::descend`]).
    async fn cover_slot(
        &self,
        meter: &Meter,
        snapshot: &mut SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let Parent::Node(holder) = snapshot.holder else { return Ok(()) };
        if snapshot.slot == Slot::EMPTY && snapshot.index >= self.types().slots(snapshot.holder_type) {
            snapshot.holder_type = self.switch_type(meter, holder, snapshot.index, budget).await?;
            self.cache().invalidate(holder.bits());
        }
        Ok(())
    }

    /// Switches the type if needed; yields the one that the node has then.
    async fn switch_type(
        &self,
        meter: &Meter,
        node: Child,
        index: usize,
        budget: &mut Budget,
    ) -> Result<u8, AccessError> {
        let at = node.ptr().add(Header::AT);
        let corrupt = |what: String| AccessError::Corrupt { node: node.ptr(), what };
        let mut word = self.read_word(meter, at, budget).await?;
        loop {
            let header = Header::from_bits(word, self.types()).map_err(|wrong| corrupt(wrong.to_string()))?;
            let larger = self.types().with_slot(header.node_type, index);
            let node_type = larger.ok_or_else(|| corrupt(format!("it has no room for slot {index}")))?;
            if node_type == header.node_type {
                return Ok(node_type);
            }
            let mut chain = Chain::new(at.server());
            chain.cas(at, word, header.with_type(node_type).bits());
            word = match self.verbs.submit(meter, chain).await {
                Ok(done) if done.atomics[0] == word => {
                    tracing::debug!(name: "smart.type.switched", node = %node.ptr(), node_type, "a node has grown");
                    return Ok(node_type);
                }
                Ok(done) => done.atomics[0],
                Err(failed) => {
                    budget.post_again(meter, at, failed)?;
                    self.read_word(meter, at, budget).await?
                }
            };
            budget.spend(meter, at, None)?;
        }
    }

    /// Takes the lock of the holder of `snapshot`, where inner nodes are locked before they change (ROWEX): one round
    /// trip.
    pub(super) async fn lock_holder(
        &self,
        meter: &Meter,
        snapshot: &SlotSnapshot,
    ) -> Result<Option<Held<V>>, AccessError> {
        if self.techniques.lock_free_nodes {
            return Ok(None);
        }
        let node = match snapshot.holder {
            Parent::Root => self.shared.entry.root,
            Parent::Node(holder) => holder.ptr(),
        };
        let mut held = self.locks.acquire(meter, node).await?;
        held.lock(meter).await?;
        Ok(Some(held))
    }

    /// Releases the holder's lock: one round trip.
    pub(super) async fn unlock_holder(
        &self,
        meter: &Meter,
        held: Option<Held<V>>,
    ) -> Result<(), AccessError> {
        match held {
            Some(held) => self.unlock(meter, held).await,
            None => Ok(()),
        }
    }
}
