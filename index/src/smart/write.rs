//! Changing one key (SMART section 4.1.2 and 4.4): find its slot, then do what its leaf, or the lack of one, calls for.
//!
//! | what is there | | |
//! |---|---|---|
//! | the key's leaf | in-place update, a new leaf that takes its place, or removal | here |
//! | another key's leaf | leaf split | `split.rs` |
//! | nothing | normal insert, with a node type switch | `insert.rs` |
//! | the prefix of a node that the key leaves | header split | `split.rs` |
//! | a node without room, or one that is being replaced | it moves | `replace.rs` |
//!
//! Only writers in place lock a leaf, against each other. A client that removes a leaf or puts another one in its place
//! does so by a CAS of its link. A writer in place that read the link before that CAS and writes after it is linearized
//! just before it:
//!
//! ```text
//!   update   lock, READ: live ························· WRITE v1, unlock     linearized here ─┐
//!   remove                      READ: live ─> CAS link: removed          <── and this after ──┘
//!   get                                                 READ: removed
//! ```

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::decide::{LeafStep, SlotSnapshot, decide_leaf};
use super::descend::{DescentResult, PrefixMismatch};
use super::new_node::{Lead, Redirect};
use super::out::OutLeaf;
use super::pending::{Old, Removal};
use crate::error::{AccessError, WriteError};
use crate::layout::Rejection;
use crate::layout::radix::{Child, LeafFormat, Link, Parent, Slot};
use crate::step::Budget;
use crate::write_op::WriteOp;

/// The outcome of a part of an operation.
pub(super) enum Outcome {
    /// The operation is over: whether it took effect.
    Done(bool),
    /// It goes on from here.
    On(SlotSnapshot),
    /// It begins anew.
    Again,
    /// The key is absent, and is not created.
    Absent,
}

/// A leaf that a writer has read.
struct Leaf<V: Verbs> {
    node: Child,
    class: u8,
    image: Buf,
    /// The leaf's lock if it will be written in place.
    held: Option<Held<V>>,
}

impl<V: Verbs> Tree<V> {
    /// Does what `op` says; yields whether it took effect.
    pub(super) async fn write(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
    ) -> Result<bool, WriteError> {
        let mut budget = self.budget();
        let budget = &mut budget;
        let mut snapshot = self.begin(meter, key, budget).await?;
        // The reason why a node that should move cannot. Then nothing is created any more.
        let mut stuck = None;
        loop {
            let helps = op.creates() && stuck.is_none();
            let outcome = match self.descend(meter, key, snapshot, helps, budget).await? {
                DescentResult::Leaf(snapshot) => {
                    self.write_at_leaf(meter, key, op, helps, snapshot, budget).await?
                }
                DescentResult::Vacant(snapshot) if helps => {
                    self.insert_at(meter, key, op.value(), snapshot, budget).await?
                }
                DescentResult::PrefixMismatch(mismatch) if helps && mismatch.certain => {
                    self.split_header(meter, key, op.value(), mismatch, budget).await?
                }
                DescentResult::Vacant(SlotSnapshot { fresh: true, .. })
                | DescentResult::PrefixMismatch(PrefixMismatch { certain: true, .. })
                    if stuck.is_some() =>
                {
                    Outcome::Absent
                }
                DescentResult::Vacant(snapshot) if snapshot.fresh => Outcome::Done(false),
                DescentResult::PrefixMismatch(mismatch) if mismatch.certain => Outcome::Done(false),
                DescentResult::Vacant(snapshot) => {
                    Outcome::On(self.refresh(meter, key, &snapshot, budget).await?)
                }
                DescentResult::PrefixMismatch(mismatch) => {
                    Outcome::On(self.refresh(meter, key, &mismatch.snapshot, budget).await?)
                }
                DescentResult::Full(snapshot) => {
                    budget.spend(meter, snapshot.at(self.shared.entry.root), None)?;
                    self.make_room(meter, snapshot, budget).await?
                }
                DescentResult::Replaced(snapshot) => {
                    tracing::debug!(name: "smart.node.helped", "a node is half replaced: it is completed");
                    budget.spend(meter, snapshot.at(self.shared.entry.root), None)?;
                    match self.replace(meter, snapshot, budget).await {
                        // A key that is there can be written all the same.
                        Err(error @ WriteError::Alloc(_)) => {
                            stuck = Some(error);
                            Outcome::Again
                        }
                        done => done?,
                    }
                }
            };
            snapshot = match outcome {
                Outcome::Done(applied) => return Ok(applied),
                Outcome::Absent => match stuck {
                    Some(error) => return Err(error),
                    None => unreachable!("an absent key is created if there is memory"),
                },
                Outcome::On(snapshot) => snapshot,
                Outcome::Again => self.begin(meter, key, budget).await?,
            };
        }
    }

    /// Goes on at a leaf, which may be the key's. Without `creates` only a key that is there is written.
    async fn write_at_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
        creates: bool,
        snapshot: SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let leaf = match self.take_leaf(meter, &snapshot, op, budget).await? {
            Ok(leaf) => leaf,
            Err(rejection) => {
                return Ok(Outcome::On(self.rejected(meter, key, &snapshot, rejection, budget).await?));
            }
        };
        let view = self.leaf().view(&leaf.image);
        let step = decide_leaf(view.as_ref().map_err(|rejection| *rejection), &snapshot, key);
        if step == LeafStep::Here {
            return self.change_leaf(meter, key, op, snapshot, leaf, budget).await;
        }
        let Leaf { image, held, node, .. } = leaf;
        if let Some(held) = held {
            self.unlock(meter, held).await?;
        }
        Ok(match step {
            LeafStep::Here => unreachable!("handled above"),
            LeafStep::Other | LeafStep::Gone if !op.creates() => Outcome::Done(false),
            LeafStep::Other | LeafStep::Gone if !creates => Outcome::Absent,
            LeafStep::Other => {
                self.split_leaf(meter, key, op.value(), snapshot, (node, &image), budget).await?
            }
            // A removed leaf is out of the tree, except for its slot: the new leaf takes that over at once.
            LeafStep::Gone => self.insert_at(meter, key, op.value(), snapshot, budget).await?,
            LeafStep::Moved(to, class) => {
                budget.spend(meter, node.ptr(), None)?;
                Outcome::On(self.follow(meter, &snapshot, Slot::leaf(snapshot.symbol, to, class)))
            }
            LeafStep::Stale => Outcome::On(self.refresh(meter, key, &snapshot, budget).await?),
            LeafStep::Not(rejection) => {
                Outcome::On(self.rejected(meter, key, &snapshot, rejection, budget).await?)
            }
        })
    }

    /// Reads the leaf that `snapshot` leads to, and locks it if the operation writes leaves in place: one round trip
    /// with `fused`.
    async fn take_leaf(
        &self,
        meter: &Meter,
        snapshot: &SlotSnapshot,
        op: WriteOp<'_>,
        budget: &mut Budget,
    ) -> Result<Result<Leaf<V>, Rejection>, AccessError> {
        let class = match self.leaf().class_of(snapshot.slot) {
            Ok(class) => class,
            Err(rejection) => return Ok(Err(rejection)),
        };
        let node = snapshot.slot.child().expect("a leaf has an address");
        let changes = matches!(op, WriteOp::Put(_) | WriteOp::Update(_));
        if changes && self.techniques.in_place_leaves {
            let (held, image) = self.lock_leaf(meter, node.ptr(), class).await?;
            return Ok(Ok(Leaf { node, class, image, held: Some(held) }));
        }
        let image = self.read(meter, node.ptr(), self.leaf().body_bytes(class), budget).await?;
        Ok(Ok(Leaf { node, class, image, held: None }))
    }

    /// Locks a leaf and reads it: one round trip with `fused`, else two.
    pub(super) async fn lock_leaf(
        &self,
        meter: &Meter,
        node: RemotePtr,
        class: u8,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let format = self.leaf();
        let mut held = match self.techniques.rear_lock {
            true => self.locks.acquire_embedded(meter, node, node.add(format.lock_at(class) as u64)).await?,
            false => self.locks.acquire(meter, node).await?,
        };
        let buf = self.verbs.lease(format.leaf_bytes(class));
        let read = held.lock_and_read(meter, buf, format.body_bytes(class), self.techniques.fused).await?;
        Ok((held, read.into_buf()))
    }

    /// Releases a lock under which nothing was changed.
    pub(super) async fn unlock(&self, meter: &Meter, held: Held<V>) -> Result<(), AccessError> {
        Ok(held.unlock(meter).await?)
    }

    /// Does what `op` says to the key's leaf, which is live, and locked if it will be written in place.
    async fn change_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
        snapshot: SlotSnapshot,
        leaf: Leaf<V>,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let Leaf { node, class, image, held } = leaf;
        match (op, held) {
            (WriteOp::Insert(_), _) => Ok(Outcome::Done(false)),
            (WriteOp::Remove, _) => {
                Ok(self.remove_leaf(meter, key, snapshot, (node, class, &image), budget).await?)
            }
            (WriteOp::Put(value) | WriteOp::Update(value), None) => {
                self.supersede(meter, (key, value), snapshot, (node, class, &image), budget).await
            }
            (WriteOp::Put(value) | WriteOp::Update(value), Some(held)) => {
                if self.leaf().has_room(class, key.len(), value.len()) {
                    self.welcome(meter, &snapshot, self.leaf().view(&image).expect("it was parsed").link);
                    self.write_in_place(meter, key, value, class, image, held).await?;
                    return Ok(Outcome::Done(true));
                }
                let done = self.supersede(meter, (key, value), snapshot, (node, class, &image), budget).await;
                let unlocked = self.unlock(meter, held).await;
                let outcome = done?;
                unlocked?;
                Ok(outcome)
            }
        }
    }

    /// Writes the value with its checksum, and the lock behind it: in-place leaf update (section 4.1.2). One round trip
    /// with `rear_lock`, else two.
    async fn write_in_place(
        &self,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        class: u8,
        mut image: Buf,
        held: Held<V>,
    ) -> Result<(), AccessError> {
        let format = self.leaf();
        format.set_value(&mut image, key.len(), value);
        let body = LeafFormat::BODY_AT..format.lock_at(class);
        if self.techniques.rear_lock {
            held.release_rear(meter, image, body).await?;
        } else {
            let node = held.node();
            let mut chain = Chain::with_buffer(node.server(), image);
            chain.write(node.add(body.start as u64), body);
            held.release(meter, chain, false).await?;
        }
        Ok(())
    }

    /// Writes a new leaf, and makes the old one's link lead to it by a CAS: out-of-place update. From then on the new
    /// one is the key's, for all clients; that the slot leads there at once saves others a round trip.
    async fn supersede(
        self: &Rc<Self>,
        meter: &Meter,
        (key, value): (&[u8], &[u8]),
        snapshot: SlotSnapshot,
        (old, old_class, image): (Child, u8, &Buf),
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let class = self.leaf().class_for(key.len(), value.len());
        let mut link = self.leaf().view(image).expect("it was parsed").link;
        loop {
            // The parent of a leaf that is new is the holder of the slot that leads there, if one does; else it gets a
            // link that names no parent.
            let live = match (link, snapshot.direct) {
                (Link::New, true) => Link::Live(snapshot.holder),
                (Link::New, false) => Link::Live(Parent::Node(old)),
                _ => link,
            };
            let leaf = self.new_leaf(old.ptr().server(), class).await?;
            let place = *leaf;
            let buf = self.leaf_image(&place, live, key, value);
            let moved = Link::Moved { to: place.at, class };
            let desired = Lead::Link(moved.bits());
            let redirect = Redirect::new(old.ptr(), link.bits(), desired, place.at, place.link(live));
            let slot = Slot::leaf(snapshot.symbol, place.at, class);
            let out = OutLeaf::of(key, &snapshot, (old, old_class), moved, slot);
            let redirected =
                self.write_and_redirect(meter, (leaf, buf), Old::Leaf(out), &redirect, budget).await?;
            let Err((_, found)) = redirected else {
                tracing::debug!(name: "smart.leaf.superseded", leaf = %old.ptr(), "another leaf takes its place");
                self.reveal(meter, &place, live);
                self.amend_cache(&snapshot, slot);
                return Ok(Outcome::Done(true));
            };
            match self.lost_link(meter, old, found, budget)? {
                found @ Link::Live(_) => link = found,
                Link::New if snapshot.fresh => link = Link::New,
                // It was removed, or replaced: the slot, read again, tells what to do.
                _ => return Ok(Outcome::On(self.refresh(meter, key, &snapshot, budget).await?)),
            }
        }
    }

    /// Removes the key's leaf by a CAS of its link. Clearing its slot only saves others a round trip.
    async fn remove_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        snapshot: SlotSnapshot,
        (leaf, class, image): (Child, u8, &Buf),
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        let mut link = self.leaf().view(image).expect("it was parsed").link;
        // Its number tells the removal from others': after a CAS of unknown outcome the link says whose it was.
        let removed = Link::removed(self.verbs.random());
        loop {
            let mut chain = Chain::new(leaf.ptr().server());
            chain.cas(leaf.ptr(), link.bits(), removed.bits());
            let vacated = Slot::tombstone(snapshot.symbol);
            let removal = Removal::of(self, OutLeaf::of(key, &snapshot, (leaf, class), removed, vacated));
            let found = match self.verbs.submit(meter, chain).await {
                Ok(done) => done.atomics[0],
                Err(failed) => {
                    budget.post_again(meter, leaf.ptr(), failed)?;
                    match self.read_word(meter, leaf.ptr(), budget).await? {
                        found if found == removed.bits() => link.bits(),
                        found if found == link.bits() => {
                            removal.settle(meter, false);
                            continue;
                        }
                        found => found,
                    }
                }
            };
            removal.settle(meter, found == link.bits());
            if found == link.bits() {
                self.amend_cache(&snapshot, vacated);
                self.look_after(key, &snapshot);
                return Ok(Outcome::Done(true));
            }
            match self.lost_link(meter, leaf, found, budget)? {
                found @ (Link::Live(_) | Link::New) => link = found,
                _ => return Ok(Outcome::On(self.refresh(meter, key, &snapshot, budget).await?)),
            }
        }
    }

    /// Parses the link that a CAS found in a leaf where it expected another.
    fn lost_link(
        &self,
        meter: &Meter,
        leaf: Child,
        found: u64,
        budget: &mut Budget,
    ) -> Result<Link, AccessError> {
        tracing::debug!(name: "smart.link.lost", leaf = %leaf.ptr(), "another client has changed a link");
        budget.spend(meter, leaf.ptr(), None)?;
        Link::from_bits(found).map_err(|rejection| AccessError::Corrupt {
            node: leaf.ptr(),
            what: format!("its link became {found:#x}: {rejection}"),
        })
    }
}
