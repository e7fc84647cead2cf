//! Changing one key (Sherman figure 7): lock the leaf, read it, decide, write back and unlock.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use crate::error::{AccessError, WriteError};
use crate::layout::{LeafLayout, LeafLookup, Patch, Rejection, bump_node_version, tail_first};
use crate::step::Step;
use crate::write_op::WriteOp;

/// The effect of a write on the leaf that answers for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// These ranges of the image, which was changed, are to be written.
    Patch(Patch),
    /// As are these, which put the key into a vacancy.
    Insert(Patch),
    /// The leaf has no vacancy: it must be split.
    Split,
    /// The operation has no effect.
    Nothing,
}

/// Decides what `op` does to the leaf in `image`, which was read under its lock, and changes the image accordingly.
pub(super) fn plan(layout: &LeafLayout, image: &mut [u8], key: &[u8], op: WriteOp<'_>) -> Step<Plan> {
    let found = match layout.lookup(image, key) {
        Ok(LeafLookup::Found(found)) => Some(found.slot),
        Ok(LeafLookup::Absent) => None,
        Ok(LeafLookup::MoveRight(sibling)) => return Step::MoveRight(sibling),
        Ok(LeafLookup::Left) => return Step::Restart(None),
        Err(rejection) => return Step::after(rejection),
    };
    let plan = match (found, op) {
        (Some(slot), WriteOp::Put(value) | WriteOp::Update(value)) => {
            Plan::Patch(layout.write_entry(image, slot, key, value))
        }
        (Some(slot), WriteOp::Remove) => Plan::Patch(layout.clear_entry(image, slot)),
        (None, WriteOp::Put(value) | WriteOp::Insert(value)) => {
            match layout.view(image).map(|leaf| leaf.vacancy()) {
                Ok(Some(slot)) => Plan::Insert(layout.write_entry(image, slot, key, value)),
                Ok(None) => Plan::Split,
                Err(rejection) => return Step::after(rejection),
            }
        }
        (Some(_), WriteOp::Insert(_)) | (None, WriteOp::Update(_) | WriteOp::Remove) => Plan::Nothing,
    };
    Step::Done(plan)
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
        let mut at = loop {
            match self.locate_leaf(meter, key, &mut budget).await? {
                Some(target) => break target,
                None if op.creates() => self.create_root_leaf(meter).await?,
                None => return Ok(false),
            }
        };
        loop {
            let (held, mut image) = self.lock_leaf(meter, at.ptr).await?;
            match plan(self.leaf(), &mut image, key, op) {
                Step::Done(Plan::Patch(patch)) => {
                    let left = match op {
                        WriteOp::Remove => self.leaf().view(&image).ok().map(|leaf| leaf.len()),
                        _ => None,
                    };
                    let leaf = held.node();
                    self.write_back(meter, held, image, patch).await?;
                    if let Some(pairs) = left {
                        self.note_removed(leaf, key, pairs).await;
                    }
                    return Ok(true);
                }
                Step::Done(Plan::Insert(mut patch)) => {
                    if held.keeps_intents() {
                        // A WRITE more is less than an intent.
                        tail_first(&mut patch);
                    }
                    self.write_back(meter, held, image, patch).await?;
                    return Ok(true);
                }
                Step::Done(Plan::Split) => {
                    self.split_leaf(meter, held, image, key, op.value()).await?;
                    return Ok(true);
                }
                Step::Done(Plan::Nothing) => {
                    self.unlock(meter, held).await?;
                    return Ok(false);
                }
                Step::MoveRight(sibling) => {
                    self.unlock(meter, held).await?;
                    at = self.move_right(meter, key, at, self.edge_of(&image, sibling), &mut budget).await?;
                }
                Step::Restart(Some(gone @ (Rejection::Freed | Rejection::Frozen))) => {
                    self.unlock(meter, held).await?;
                    let gone = (&image[..], gone);
                    at = Box::pin(self.leave_freed(meter, key, at, gone, &mut budget)).await?;
                }
                Step::Reread(last) | Step::Restart(last) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, at.ptr, last)?;
                    self.invalidate_cached(at, key);
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, key, 0, root, &mut budget).await?;
                }
            }
        }
    }

    /// Locks and reads a leaf: one round trip with `fused` or when the lock is handed over, none with `image_handover`
    /// then, else two.
    pub(super) async fn lock_leaf(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<(Held<V>, Buf), AccessError> {
        self.lock_node(meter, leaf, self.leaf().node_bytes()).await
    }

    /// Writes the ranges of `patch`, or the whole leaf without `two_level`, and unlocks: one round trip with `combine`.
    /// The next holder on this compute node gets the image.
    async fn write_back(
        &self,
        meter: &Meter,
        mut held: Held<V>,
        mut image: Buf,
        patch: Patch,
    ) -> Result<(), AccessError> {
        let leaf = held.node();
        if !self.techniques.two_level {
            bump_node_version(&mut image);
        }
        let whole = 0..image.len();
        let known = [whole.clone()];
        let mut chain = Chain::with_buffer(leaf.server(), image);
        if self.techniques.two_level {
            held.with_whole_steps();
            for range in patch {
                chain.write(leaf.add(range.start as u64), range);
            }
        } else {
            chain.write(leaf, whole);
        }
        held.release_with_image(meter, chain, self.techniques.combine, &known).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeHeader, NodeVersion};

    fn leaf(entries: &[(&[u8], &[u8])]) -> (LeafLayout, Vec<u8>) {
        let layout = LeafLayout::for_slots(2, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let header = NodeHeader {
            level: 0,
            low: b"b",
            high: Some(b"m"),
            sibling: RemotePtr::from_bits(640),
            incarnation: 1,
            node_version: NodeVersion::default(),
        };
        layout.build(&mut image, &header, entries.iter().copied());
        (layout, image)
    }

    fn outcome(entries: &[(&[u8], &[u8])], key: &[u8], op: WriteOp<'_>) -> (Step<Plan>, Option<Vec<u8>>) {
        let (layout, mut image) = leaf(entries);
        let step = plan(&layout, &mut image, key, op);
        let value = match layout.lookup(&image, key).unwrap() {
            LeafLookup::Found(found) => {
                let range = crate::layout::make_contiguous(&mut image, found.value);
                Some(image[range].to_vec())
            }
            _ => None,
        };
        (step, value)
    }

    #[test]
    fn every_write_op_on_a_present_and_an_absent_key() {
        let one: &[(&[u8], &[u8])] = &[(b"c", b"1")];
        let patched = |step: &Step<Plan>| matches!(step, Step::Done(Plan::Patch(_) | Plan::Insert(_)));
        for (entries, op, applied, after) in [
            (one, WriteOp::Put(b"2"), true, Some(b"2")),
            (one, WriteOp::Insert(b"2"), false, Some(b"1")),
            (one, WriteOp::Update(b"2"), true, Some(b"2")),
            (one, WriteOp::Remove, true, None),
            (&[], WriteOp::Put(b"2"), true, Some(b"2")),
            (&[], WriteOp::Insert(b"2"), true, Some(b"2")),
            (&[], WriteOp::Update(b"2"), false, None),
            (&[], WriteOp::Remove, false, None),
        ] {
            let (step, value) = outcome(entries, b"c", op);
            assert_eq!((patched(&step), value.as_deref()), (applied, after.map(|v| &v[..])), "{op:?}");
            assert!(applied || step == Step::Done(Plan::Nothing));
        }
    }

    #[test]
    fn a_full_leaf_is_split_for_a_new_key_only() {
        let full: &[(&[u8], &[u8])] = &[(b"c", b"1"), (b"d", b"2")];
        assert_eq!(outcome(full, b"e", WriteOp::Put(b"3")).0, Step::Done(Plan::Split));
        assert_eq!(outcome(full, b"e", WriteOp::Update(b"3")).0, Step::Done(Plan::Nothing));
        assert_eq!(outcome(full, b"d", WriteOp::Put(b"3")).1.as_deref(), Some(&b"3"[..]));
    }

    #[test]
    fn keys_outside_the_fences_go_elsewhere() {
        let sibling = RemotePtr::from_bits(640);
        assert_eq!(outcome(&[], b"m", WriteOp::Put(b"")).0, Step::MoveRight(sibling));
        assert_eq!(outcome(&[], b"a", WriteOp::Put(b"")).0, Step::Restart(None));
        assert_eq!(outcome(&[], b"", WriteOp::Remove).0, Step::Restart(None));
    }
}
