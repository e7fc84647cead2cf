//! Writes: of one value under a shared lock, and all else by a client that has the leaf's lock alone.
//!
//! ```text
//!   update    FAA bit, READ words, READ keys       WRITE value, FAA bit                                 2 round trips
//!   insert    CAS word, READ words, READ leaf      WRITE value, WRITE key, unlock                       2
//!   remove    CAS word, READ words, READ keys      WRITE key, unlock                                    2
//!   split     as an insert     WRITE right leaf    WRITE left leaf, unlock      its separator           3 and those
//! ```
//!
//! Without `fused` a client that has the lock alone reads behind the CAS in a round trip of its own. What a sharer does
//! is one chain in the paper, too, and stays one, also for want of a lane: the paper has no bound of sharers.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_lock::shared::Shared;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::{Located, Place};
use super::leaf_plan::{LeafPlan, Old, Pairs, plan};
use super::put_separator::Owed;
use super::reused::Reused;
use super::separators::Separator;
use crate::error::{AccessError, WriteError};
use crate::layout::radix::Child;
use crate::layout::range_leaf::{RangeFound, RangeHeader, RangeLayout};
use crate::layout::{Bytes, NodeVersion, Patch};
use crate::smart::child_at;
use crate::step::Budget;
use crate::write_op::WriteOp;

/// The outcome of a write at a leaf.
enum Outcome {
    /// It is over: whether it took effect.
    Done(bool),
    /// It takes the lock alone.
    Alone,
    /// It goes on elsewhere.
    On(Located),
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
        let mut is_alone = !self.is_for_sharers(op);
        let mut located = self.locate(meter, key, budget).await?;
        loop {
            let place = match located {
                Located::Leaf(place) => place,
                Located::Nothing(_) if !op.creates() => return Ok(false),
                Located::Nothing(_) => {
                    if self.make_leaf(meter, key, op.value(), budget).await? {
                        return Ok(true);
                    }
                    budget.spend(meter, self.shared.entry.root, None)?;
                    located = self.locate(meter, key, budget).await?;
                    continue;
                }
            };
            let outcome = if is_alone {
                self.write_alone(meter, key, op, &place, budget).await?
            } else {
                self.write_sharing(meter, key, op, &place, budget).await?
            };
            match outcome {
                Outcome::Done(applied) => {
                    self.arrived(place);
                    return Ok(applied);
                }
                Outcome::Alone => (is_alone, located) = (true, Located::Leaf(place)),
                Outcome::On(elsewhere) => located = elsewhere,
            }
        }
    }

    /// Tells whether an operation may do with a shared lock: whether it is likely to change a value that is there.
    fn is_for_sharers(&self, op: WriteOp<'_>) -> bool {
        let may_share = self.techniques.shared_updates && self.leaf().has_whole_values();
        match op {
            WriteOp::Update(_) => may_share,
            WriteOp::Put(_) => may_share && !self.state.puts_insert.get(),
            WriteOp::Insert(_) | WriteOp::Remove => false,
        }
    }

    /// Writes the value of a key that is present, as other clients may do at the same time.
    async fn write_sharing(
        &self,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
        place: &Place,
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        let (layout, node) = (self.leaf(), place.leaf.ptr());
        let (buf, parts) = (self.verbs.lease(layout.node_bytes()), layout.parts(false));
        let (shared, read) =
            self.leaf_locks().share_and_read(meter, node, self.lock_of(node), buf, &parts).await?;
        let mut buf = read.into_buf();
        match layout.parse(&buf[layout.key_part()]).map(|keys| keys.find(key)) {
            Ok(RangeFound::Slot { slot, is_present: true }) => {
                self.state.puts_insert.set(false);
                let Some(patch) = layout.write_value(&mut buf, slot, op.value()) else {
                    leave(meter, shared).await;
                    return Ok(Outcome::Alone);
                };
                shared.release(meter, patch_chain(node, buf, patch)).await?;
                Ok(Outcome::Done(true))
            }
            Ok(RangeFound::Slot { .. } | RangeFound::Absent { .. }) => {
                leave(meter, shared).await;
                if !op.creates() {
                    return Ok(Outcome::Done(false));
                }
                tracing::debug!(name: "dolphin.put.inserts", "a put finds no value: it takes the lock alone");
                self.state.puts_insert.set(true);
                Ok(Outcome::Alone)
            }
            Ok(found) => {
                let bounds = layout.parsed(&buf[layout.key_part()]).bounds();
                leave(meter, shared).await;
                Ok(Outcome::On(self.elsewhere(meter, key, place, (found, bounds), budget).await?))
            }
            // No client writes the leaf whole meanwhile, so it is not torn for a moment.
            Err(rejection) => {
                leave(meter, shared).await;
                let gone = self.gone(place.leaf, &buf, rejection)?;
                Ok(Outcome::On(Box::pin(self.leave_gone(meter, key, place, gone, budget)).await?))
            }
        }
    }

    /// Goes on where the leaf at `place` does not answer for the key, as it has said, with the bounds that it has.
    pub(super) async fn elsewhere(
        &self,
        meter: &Meter,
        key: &[u8],
        place: &Place,
        (found, (low, high)): (RangeFound, (Bytes, Option<Bytes>)),
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        match (found, high) {
            // Where the first byte is another one, links lead to the end of its leaves, and no further.
            (RangeFound::Beyond(Some(right)), Some(key_of_right)) if low.first() == key.first() => {
                let separator = Separator { left: place.leaf, low, key: key_of_right, right, high: None };
                self.go_right(meter, key, place, separator, budget).await
            }
            _ => self.look_again(meter, key, place, budget).await,
        }
    }

    /// Does what `op` says to a leaf whose lock it takes alone.
    async fn write_alone(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
        place: &Place,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let (layout, node) = (self.leaf(), place.leaf.ptr());
        let is_removal = matches!(op, WriteOp::Remove);
        let (mut held, mut image) = self.lock_leaf(meter, node, !is_removal).await?;
        let read = 0..if is_removal { layout.key_part().end } else { layout.node_bytes() };
        let planned = match plan(layout, &mut image[read], key, op, self.techniques.deep_special) {
            Ok(planned) => planned,
            Err(rejection) => {
                held.unlock(meter).await?;
                let gone = self.gone(place.leaf, &image, rejection)?;
                let on = Box::pin(self.leave_gone(meter, key, place, gone, budget)).await?;
                return Ok(Outcome::On(on));
            }
        };
        if let WriteOp::Put(_) = op {
            self.state.puts_insert.set(!matches!(planned, LeafPlan::Patch(_, true)));
        }
        match planned {
            LeafPlan::Nothing => {
                held.unlock(meter).await?;
                return Ok(Outcome::Done(false));
            }
            LeafPlan::Elsewhere(found, bounds) => {
                held.unlock(meter).await?;
                return Ok(Outcome::On(self.elsewhere(meter, key, place, (found, bounds), budget).await?));
            }
            LeafPlan::Patch(patch, _) => {
                let left = is_removal.then(|| layout.parsed(&image).present().count());
                held.with_whole_steps();
                drop(held.release(meter, patch_chain(node, image, patch), true).await?);
                if let Some(pairs) = left {
                    self.note_removed(place.leaf, key, pairs).await;
                }
            }
            LeafPlan::Whole => {
                tracing::debug!(name: "dolphin.leaf.whole", leaf = %node, "a leaf is written whole");
                drop(held.release(meter, whole_chain(layout, node, image), true).await?);
            }
            LeafPlan::Compact(old, pairs) => {
                tracing::debug!(name: "dolphin.leaf.compacted", leaf = %node, "removed keys give their slots up");
                build(layout, &mut image, &old.whole(), &pairs);
                drop(held.release(meter, whole_chain(layout, node, image), true).await?);
            }
            LeafPlan::Split { old, left, separator, right, is_done } => {
                let halves = (&left, &separator, &right);
                self.split(meter, (held, image), place.leaf, &old, halves, budget).await?;
                if !is_done {
                    tracing::debug!(name: "dolphin.leaf.parted", leaf = %node, "a key gets a leaf between two others");
                    budget.spend(meter, node, None)?;
                    return Ok(Outcome::On(self.locate(meter, key, budget).await?));
                }
            }
        }
        Ok(Outcome::Done(true))
    }

    /// Writes the right part into a new leaf, then the left one in its place, which leads to it from then on. Where the
    /// new leaf is in the memory of a merged one, two or three round trips more.
    async fn split(
        self: &Rc<Self>,
        meter: &Meter,
        (held, mut image): (Held<V>, Buf),
        leaf: Child,
        old: &Old,
        (left, separator, right): (&Pairs, &Bytes, &Pairs),
        budget: &mut Budget,
    ) -> Result<(), WriteError> {
        let (layout, node) = (self.leaf(), leaf.ptr());
        tracing::debug!(name: "dolphin.leaf.split", leaf = %node, "a leaf is divided");
        let mut reused = self.leaf_again(meter, node).await;
        let version = reused.as_ref().map_or_else(NodeVersion::default, |reused| reused.version);
        let mut buf = self.verbs.lease(layout.node_bytes());
        let header = RangeHeader { version, low: separator, is_reused: reused.is_some(), ..old.whole() };
        build(layout, &mut buf, &header, right);
        let mut nodes = self.new_nodes();
        let written = match &reused {
            Some(reused) => match reused.write(meter, buf, budget).await {
                Ok(live) => Ok((reused.leaf, live)),
                Err(error) => Err(error.into()),
            },
            None => nodes.write(meter, buf, budget).await.and_then(|new| Ok((child_at(new)?, 0))),
        };
        let (new, live) = match written {
            Ok(written) => written,
            Err(error) => {
                held.unlock(meter).await?;
                return Err(error);
            }
        };
        let header = RangeHeader { next: Some(new), high: Some(separator), ..old.whole() };
        build(layout, &mut image, &header, left);
        // From here on the split may take effect whatever happens to this future.
        nodes.publish();
        reused.iter_mut().for_each(Reused::publish);
        let (low, high) = (old.low.clone(), old.high.clone());
        let owed = Owed::new(self, Separator { left: leaf, low, key: separator.clone(), right: new, high });
        if let Err(error) = held.release(meter, whole_chain(layout, node, image), true).await {
            // The janitor goes on, and the separator is put in once the leaf's lock can be taken again.
            tracing::debug!(name: "dolphin.split.unknown", %node, %error, "a split may have taken effect, or will");
            return Err(error.into());
        }
        if let Some(reused) = reused {
            reused.thaw(meter, live).await;
        }
        owed.pay(meter).await;
        Ok(())
    }

    /// Takes a leaf's lock alone and reads the leaf, or without values its key part: one round trip with `fused`, else
    /// two, unless other clients have the lock.
    pub(super) async fn lock_leaf(
        &self,
        meter: &Meter,
        node: RemotePtr,
        with_values: bool,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let (locks, layout) = (self.leaf_locks(), self.leaf());
        let mut held = locks.acquire(meter, node, self.lock_of(node)).await?;
        let buf = self.verbs.lease(layout.node_bytes());
        let (parts, fused) = (layout.parts(with_values), self.techniques.fused);
        let read = locks.lock_and_read(meter, &mut held, buf, &parts, fused).await?;
        Ok((held, read.into_buf()))
    }

    /// Waits until no client has the leaf's lock alone. Yields where the leaf ends then.
    pub(super) async fn settle_leaf(&self, meter: &Meter, leaf: Child) -> Result<Option<Bytes>, AccessError> {
        let (held, image) = self.lock_leaf(meter, leaf.ptr(), false).await?;
        held.unlock(meter).await?;
        match self.leaf().parse(&image[self.leaf().key_part()]) {
            Ok(view) => Ok(view.bounds().1),
            Err(rejection) => Err(AccessError::corrupt(leaf.ptr(), rejection)),
        }
    }

    pub(super) fn lock_of(&self, node: RemotePtr) -> RemotePtr {
        node.add(self.leaf().lock().start as u64)
    }
}

/// Stops sharing a lock under which nothing was changed. If that fails the lock is given back all the same.
pub(super) async fn leave<V: Verbs>(meter: &Meter, shared: Shared<V>) {
    let nothing = Chain::new(shared.node().server());
    if let Err(error) = shared.release(meter, nothing).await {
        tracing::debug!(name: "dolphin.release.failed", %error, "a shared lock is given back by the janitor");
    }
}

pub(super) fn build(layout: &RangeLayout, image: &mut [u8], header: &RangeHeader<'_>, pairs: &Pairs) {
    layout.build(image, header, pairs.iter().map(|(key, value)| (&key[..], &value[..])));
}

/// Makes the chain that writes parts of a leaf.
fn patch_chain(node: RemotePtr, image: Buf, patch: Patch) -> Chain {
    let mut chain = Chain::with_buffer(node.server(), image);
    for range in patch {
        chain.write(node.add(range.start as u64), range);
    }
    chain
}

/// Makes the chain that writes a leaf whole, but for its lock.
pub(super) fn whole_chain(layout: &RangeLayout, node: RemotePtr, image: Buf) -> Chain {
    let mut chain = Chain::with_buffer(node.server(), image);
    chain.write_word(node, RangeLayout::TORN);
    for range in layout.whole() {
        chain.write(node.add(range.start as u64), range);
    }
    chain
}
