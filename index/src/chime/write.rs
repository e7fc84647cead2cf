//! Changing one key (CHIME section 4.4): lock the leaf and read the key's neighbourhood, read more if that does not
//! tell, write the changed entries back, with the vacancies and the unlock. It does not know how readers trust a leaf.

use std::iter;
use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::lookup::{Verdict, judge};
use crate::btree::descend::Target;
use crate::error::{AccessError, WriteError};
use crate::layout::hopscotch::HopLayout;
use crate::layout::{LineRanges, Patch, Rejection};
use crate::step::{Budget, Step};
use crate::write_op::WriteOp;

/// Neighbourhoods that an insert reads with the lock, one behind the other. In leaves that are 80 % full its own has no
/// vacancy in 34 of 100, and three of eight slots have none in 6: that many READs of a round trip are saved.
const INSERT_READS: usize = 3;

/// The parts of a leaf that its lock's holder has read, beside the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Slots from the key's home on, at least its neighbourhood.
    pub(super) slots: usize,
    pub(super) header: bool,
}

/// The effect of a write on the leaf that answers for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// These ranges of the image, which was changed, are to be written; the key is in this slot, or was.
    Patch(Patch, usize),
    /// More has to be read first: so many slots from the home on, or the header.
    Read(Known),
    /// The leaf has no room in the key's neighbourhood: it must be split. All of it was read.
    Split,
    /// The operation has no effect.
    Nothing,
}

/// Decides what `op` does to the leaf in `image`, of which `known` was read under its lock, and changes the image
/// accordingly. `next` is the leaf's right neighbour if it was not split. Without `piggyback` an insert looks at the
/// whole leaf.
pub(super) fn plan(
    layout: &HopLayout,
    image: &mut [u8],
    known: Known,
    key: &[u8],
    op: WriteOp<'_>,
    next: Option<RemotePtr>,
    piggyback: bool,
) -> Step<Plan> {
    let found = match judge(layout.lookup(image, key, known.header), next, |_| true) {
        Verdict::Found(found) => Some(found.slot),
        Verdict::Absent => None,
        Verdict::Doubt => return Step::Done(Plan::Read(Known { header: true, ..known })),
        Verdict::Go(Step::MoveRight(sibling)) => return Step::MoveRight(sibling),
        Verdict::Go(Step::Reread(last)) => return Step::Reread(last),
        Verdict::Go(Step::Restart(last)) => return Step::Restart(last),
        Verdict::PerhapsAbsent | Verdict::Go(Step::Done(())) => unreachable!("nothing is written meanwhile"),
    };
    let plan = match (found, op) {
        (Some(slot), WriteOp::Put(value) | WriteOp::Update(value)) => {
            Ok(Plan::Patch(layout.update(image, slot, value), slot))
        }
        (Some(slot), WriteOp::Remove) => layout.remove(image, slot).map(|mut patch| {
            patch.push(layout.note_vacancies(image, slot, 1));
            Plan::Patch(patch, slot)
        }),
        (None, WriteOp::Put(value) | WriteOp::Insert(value)) => {
            plan_insert(layout, image, known, (key, value), piggyback)
        }
        (Some(_), WriteOp::Insert(_)) | (None, WriteOp::Update(_) | WriteOp::Remove) => Ok(Plan::Nothing),
    };
    plan.map_or_else(Step::after, Step::Done)
}

/// Decides where a new key goes. Its neighbourhood has no such key: all of that is looked at before a vacancy is taken.
fn plan_insert(
    layout: &HopLayout,
    image: &mut [u8],
    known: Known,
    (key, value): (&[u8], &[u8]),
    piggyback: bool,
) -> Result<Plan, Rejection> {
    let (ring, home) = (layout.ring(), layout.home(key));
    let all = Known { slots: ring.slots, header: true };
    if !piggyback && known != all {
        return Ok(Plan::Read(all));
    }
    let has_vacancy = (0..known.slots).any(|steps| layout.is_vacant(image, ring.ahead(home, steps)));
    if !has_vacancy && known.slots < ring.slots {
        let slots = layout.vacancy(image).slots_to_vacancy(ring, home, known.slots);
        return Ok(Plan::Read(
            slots.filter(|slots| *slots < ring.slots).map_or(all, |slots| Known { slots, ..known }),
        ));
    }
    let Some(placement) = layout.place(image, home)? else {
        return Ok(if known == all { Plan::Split } else { Plan::Read(all) });
    };
    if !placement.hops.is_empty() {
        tracing::debug!(name: "chime.insert.hops", hops = placement.hops.len(), "keys hop for a new one");
    }
    let mut patch = layout.insert(image, &placement, key, value);
    patch.push(layout.note_vacancies(image, home, known.slots));
    Ok(Plan::Patch(patch, placement.slot))
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
        let (layout, hash) = (self.leaf(), HopLayout::hash(key));
        let home = layout.home_of_hash(hash);
        loop {
            let piggyback = self.techniques.piggyback;
            let mut known = self.known_first(&at, op);
            let (held, mut image) = self.lock_leaf(meter, at.ptr, &self.first_parts(home, known, op)).await?;
            let step = loop {
                match plan(layout, &mut image, known, key, op, at.next, piggyback) {
                    Step::Done(Plan::Read(more)) => {
                        tracing::debug!(name: "chime.write.reads", ?more, "a writer reads more of a leaf");
                        image = self
                            .read_more(meter, at.ptr, image, &self.parts(home, more), &mut budget)
                            .await?;
                        known = more;
                    }
                    step => break step,
                }
            };
            if known.header && matches!(step, Step::Done(_)) {
                self.check_parent(meter, key, at, &image).await?;
            }
            match step {
                Step::Done(Plan::Patch(patch, slot)) => {
                    self.write_back(meter, held, image, patch).await?;
                    if op != WriteOp::Remove {
                        self.note_hotspot(at.ptr, hash, slot);
                    }
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
                Step::Done(Plan::Read(_)) => unreachable!("it was read"),
                Step::MoveRight(sibling) => {
                    self.unlock(meter, held).await?;
                    let high = || layout.high(&image, home, known.header);
                    at = self.move_right(meter, key, at, high, sibling, &mut budget).await?;
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

    /// Yields what a writer knows of a leaf from its first READ.
    fn known_first(&self, at: &Target, op: WriteOp<'_>) -> Known {
        let (ring, header) = (self.leaf().ring(), self.needs_header(at));
        match op {
            WriteOp::Insert(_) if !self.techniques.piggyback => Known { slots: ring.slots, header: true },
            WriteOp::Insert(_) => Known { slots: (INSERT_READS * ring.reach).min(ring.slots), header },
            // A put may be an update.
            _ => Known { slots: ring.reach, header },
        }
    }

    /// Yields the parts of a leaf that are read to know so much of it.
    fn parts(&self, home: usize, Known { slots, header }: Known) -> LineRanges {
        let layout = self.leaf();
        if slots == layout.ring().slots && header {
            return iter::once(0..layout.node_bytes()).collect();
        }
        let part = layout.slots_from(home, slots);
        if header { layout.with_header(&part) } else { part }
    }

    /// Yields the parts of a leaf that a writer reads when it takes the lock. An update needs no words.
    fn first_parts(&self, home: usize, known: Known, op: WriteOp<'_>) -> LineRanges {
        let parts = self.parts(home, known);
        if matches!(op, WriteOp::Update(_)) { parts } else { self.leaf().with_words(&parts) }
    }

    /// Locks a leaf and reads these parts: one round trip with `fused` or when the lock is handed over,
    /// else two.
    pub(super) async fn lock_leaf(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        parts: &LineRanges,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let layout = self.leaf();
        let mut held = self.locks.acquire_embedded(meter, leaf, leaf.add(layout.lock_at() as u64)).await?;
        let buf = self.verbs.lease(layout.node_bytes());
        let read = held.lock_and_read_parts(meter, buf, parts, self.techniques.fused).await?;
        Ok((held, read.into_buf()))
    }

    /// Reads parts of a leaf into its image, under its lock. One round trip.
    async fn read_more(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        image: Buf,
        parts: &LineRanges,
        budget: &mut Budget,
    ) -> Result<Buf, AccessError> {
        let mut chain = Chain::with_buffer(leaf.server(), image);
        for part in parts {
            chain.read(leaf.add(part.start as u64), part.clone());
        }
        loop {
            match self.verbs.submit(meter, chain).await {
                Ok(read) => return Ok(read.into_buf()),
                Err(failed) => chain = budget.post_again(meter, leaf, failed)?,
            }
        }
    }

    /// Writes the ranges of `patch`, and unlocks: one round trip. Words that changed are written with the unlock.
    async fn write_back(
        &self,
        meter: &Meter,
        mut held: Held<V>,
        image: Buf,
        patch: Patch,
    ) -> Result<(), AccessError> {
        let leaf = held.node();
        let mut chain = Chain::with_buffer(leaf.server(), image);
        for range in patch {
            if range.start == self.leaf().vacancy_at() {
                held.with_words_behind(range);
            } else {
                chain.write(leaf.add(range.start as u64), range);
            }
        }
        held.release(meter, chain, true).await?;
        Ok(())
    }
}
