//! Changing one key (CHIME section 4.4): lock the leaf and read the key's neighbourhood, read more if that does not
//! tell, write the changed entries back, with the vacancies and the unlock. It does not know how readers trust a leaf.
//!
//! Of an indirect leaf (section 4.5) a writer reads the blocks of the entries with the key's fingerprint as well, as
//! far as their keys go. The leaf's lock protects the blocks that its entries lead to, so a value that fits into its
//! block is written there, with the unlock in one chain, whose WRITEs can be redone as all that is written under a
//! lock. Another server's block cannot be in that chain: a block that is written apart might be overtaken by the
//! unlock, if the writer is dropped. So a pair whose block is elsewhere (its leaf was split off another one's server),
//! or has no room, gets a new block beside its leaf, written before the entry that leads there.
//!
//! Where intents are kept, an insert and a remove are not recorded: if their writer dies, the leaf tells what it was
//! about (`layout/hopscotch/mend.rs`). Keys that hop are written to their new slots first for that; where these share a
//! word with others that change, the insert is recorded. An update over a line's end is, since its value may be neither
//! the old one nor the new; and so is a split.

use std::iter;
use std::rc::Rc;
use std::slice;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, ServerId, Verbs};

use super::block::{NewBlock, OldBlock};
use super::lookup::{Verdict, judge};
use super::{Techniques, Tree};
use crate::btree::descend::{RightEdge, Target};
use crate::error::{AccessError, WriteError};
use crate::layout::hopscotch::{HopLayout, Placement};
use crate::layout::{BlockPtr, LineRanges, Patch, Rejection};
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
    /// Of an indirect leaf, the blocks of the entries with the key's fingerprint.
    pub(super) blocks: Blocks,
}

/// Knowledge of whose blocks those of a fingerprint are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    Unread,
    /// That of the entry in this slot is the key's.
    At(usize),
    /// They are other keys'.
    OfOthers,
}

/// A change of one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) op: WriteOp<'a>,
    /// The leaf's server.
    pub(super) server: ServerId,
    /// The leaf's right neighbour if it was not split.
    pub(super) next: Option<RemotePtr>,
    pub(super) piggyback: bool,
    /// A new block for the pair.
    pub(super) block: Option<BlockPtr>,
}

/// The effect of a write on the leaf that answers for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// These ranges of the image, which was changed, are to be written; the key is in this slot, or was.
    Patch(Patch, usize),
    /// As are these, which bring a key to the leaf, or take one away, and move none: a leaf that has a part of that can
    /// be mended ([`HopLayout::mend`]).
    Mended(Patch, usize),
    /// As are these, which bring a key there that others make room for.
    Hops(Patch, Placement),
    /// More has to be read first: so many slots from the home on, or the header.
    Read(Known),
    /// The blocks of the entries with the key's fingerprint have to be read first.
    ReadBlocks,
    /// A block has to be allocated first.
    NewBlock,
    /// This block is to be written, and nothing of the leaf.
    InPlace(BlockPtr),
    /// The leaf has no room in the key's neighbourhood: it must be split. All of it was read.
    Split,
    /// The operation has no effect.
    Nothing,
}

/// Decides what `change` does to the leaf in `image`, of which `known` was read under its lock, and changes the image
/// accordingly. Without `piggyback` an insert looks at the whole leaf.
pub(super) fn plan(layout: &HopLayout, image: &mut [u8], known: Known, change: &Change<'_>) -> Step<Plan> {
    let Change { key, op, next, .. } = *change;
    let seen = match known.blocks {
        Blocks::OfOthers => layout.lookup_others(image, key, known.header),
        Blocks::Unread | Blocks::At(_) => layout.lookup(image, key, known.header),
    };
    let found = match judge(seen, next, |_| true) {
        Verdict::Found(found) => match (layout.blocks(), known.blocks) {
            (None, _) => Some(found.slot),
            (Some(_), Blocks::At(slot)) => Some(slot),
            (Some(_), _) => return Step::Done(Plan::ReadBlocks),
        },
        Verdict::Absent => None,
        Verdict::Doubt => return Step::Done(Plan::Read(Known { header: true, ..known })),
        Verdict::Go(Step::MoveRight(sibling)) => return Step::MoveRight(sibling),
        Verdict::Go(Step::Reread(last)) => return Step::Reread(last),
        Verdict::Go(Step::Restart(last)) => return Step::Restart(last),
        Verdict::PerhapsAbsent | Verdict::Go(Step::Done(())) => unreachable!("nothing is written meanwhile"),
    };
    let plan = match (found, op) {
        (Some(slot), WriteOp::Put(value) | WriteOp::Update(value)) => {
            plan_update(layout, image, slot, value, change)
        }
        (Some(slot), WriteOp::Remove) => layout.remove(image, slot).map(|mut patch| {
            patch.push(layout.note_vacancies(image, slot, 1));
            Plan::Mended(patch, slot)
        }),
        (None, WriteOp::Put(value) | WriteOp::Insert(value)) => {
            plan_insert(layout, image, known, value, change)
        }
        (Some(_), WriteOp::Insert(_)) | (None, WriteOp::Update(_) | WriteOp::Remove) => Ok(Plan::Nothing),
    };
    plan.map_or_else(Step::after, Step::Done)
}

/// Decides where the new value of the key in `slot` goes.
fn plan_update(
    layout: &HopLayout,
    image: &mut [u8],
    slot: usize,
    value: &[u8],
    change: &Change<'_>,
) -> Result<Plan, Rejection> {
    let Change { key, server, block, .. } = *change;
    let Some(blocks) = layout.blocks() else {
        return Ok(Plan::Patch(layout.update(image, slot, value), slot));
    };
    if let Some(block) = block {
        return Ok(Plan::Patch(layout.update(image, slot, &block.bits().to_le_bytes()), slot));
    }
    let block = layout.block(image, slot)?;
    let fits = blocks.has_room(block, key.len(), value.len());
    Ok(if fits && block.address().server() == server { Plan::InPlace(block) } else { Plan::NewBlock })
}

/// Decides where a new key goes. Its neighbourhood has no such key: all of that is looked at before a vacancy is taken.
fn plan_insert(
    layout: &HopLayout,
    image: &mut [u8],
    known: Known,
    value: &[u8],
    change: &Change<'_>,
) -> Result<Plan, Rejection> {
    let Change { key, piggyback, block, .. } = *change;
    if layout.blocks().is_some() && block.is_none() {
        return Ok(Plan::NewBlock);
    }
    let pointer = block.map(|block| block.bits().to_le_bytes());
    let value = pointer.as_ref().map_or(value, |pointer| pointer);
    let (ring, home) = (layout.ring(), layout.home(key));
    let all = all_of(layout, known);
    if !piggyback && known != all {
        return Ok(Plan::Read(all));
    }
    let has_vacancy = (0..known.slots).any(|steps| layout.is_vacant(image, ring.ahead(home, steps)));
    if !has_vacancy && known.slots < ring.slots {
        return Ok(Plan::Read(up_to_vacancy(layout, image, home, known.slots, known)));
    }
    let placement = match layout.place(image, home)? {
        Some(placement) => {
            if !placement.hops.is_empty() {
                tracing::debug!(name: "chime.insert.hops", hops = placement.hops.len(), "keys hop for a new one");
            }
            placement
        }
        None if known != all => return Ok(Plan::Read(all)),
        None => {
            let Some(placement) = layout.place_back(image, home)? else { return Ok(Plan::Split) };
            tracing::debug!(name: "chime.insert.hops_back", hops = placement.hops.len(), "keys hop back for a new one");
            placement
        }
    };
    let mut patch = layout.insert(image, &placement, key, value);
    patch.push(layout.note_vacancies(image, home, known.slots));
    Ok(match placement.hops.is_empty() {
        true => Plan::Mended(patch, placement.slot),
        false => Plan::Hops(patch, placement),
    })
}

/// Yields what an insert has to know of a leaf, by the words in its image: `known`, with the slots from the home on up
/// to a vacancy that is not among the first `full`; all of the leaf, if there is none.
fn up_to_vacancy(layout: &HopLayout, image: &[u8], home: usize, full: usize, known: Known) -> Known {
    let ring = layout.ring();
    match layout.vacancy(image).slots_to_vacancy(ring, home, full) {
        Some(slots) if slots < ring.slots => Known { slots: slots.max(ring.reach), ..known },
        _ => all_of(layout, known),
    }
}

fn all_of(layout: &HopLayout, known: Known) -> Known {
    Known { slots: layout.ring().slots, header: true, ..known }
}

/// Sees to it that a leaf can be mended without an intent if this writer dies, where that can be; yields what is to be
/// written then.
fn foresee_death<V: Verbs>(layout: &HopLayout, held: &mut Held<V>, step: Step<Plan>) -> Step<Plan> {
    match step {
        Step::Done(Plan::Mended(patch, slot)) => {
            held.with_mending();
            Step::Done(Plan::Patch(patch, slot))
        }
        Step::Done(Plan::Hops(mut patch, placement)) => {
            if held.keeps_intents()
                && let Some(copies) = layout.copies_first(&placement)
            {
                // Some short WRITEs more are less than an intent of all that is between.
                patch.insert_many(0, copies);
                held.with_mending();
            }
            Step::Done(Plan::Patch(patch, placement.slot))
        }
        step => step,
    }
}

/// A leaf as its lock's holder has read it.
struct Seen {
    image: Buf,
    known: Known,
    /// The parts of the image that are the leaf's. The words are not among them once more was read: the next holder may
    /// have to read those.
    parts: LineRanges,
}

/// A change that was planned.
struct Settled<'t, V: Verbs> {
    step: Step<Plan>,
    seen: Seen,
    block: Option<NewBlock<'t, V>>,
    /// The block that the key's entry led to before.
    before: Option<BlockPtr>,
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
            let (mut held, seen) = self.lock_to_write(meter, &at, home, op).await?;
            let settled = self.settle_plan(meter, &at, seen, key, op, &mut budget).await;
            let Settled { step, seen: Seen { image, known, parts }, block, before } = match settled {
                Err(error @ WriteError::Alloc(_)) => {
                    self.unlock(meter, held).await?;
                    return Err(error);
                }
                settled => settled?,
            };
            if known.header && matches!(step, Step::Done(_)) {
                self.check_parent(meter, key, at, &image).await?;
            }
            match foresee_death(layout, &mut held, step) {
                Step::Done(Plan::Patch(patch, slot)) => {
                    let leaf = at.ptr;
                    // The words come with the lock that a remove takes.
                    let left = (op == WriteOp::Remove).then(|| layout.vacancy(&image).taken(layout.ring()));
                    let pair = (key, op.value());
                    let chain = self.begin_write_back(meter, leaf, image, block, pair).await?;
                    let before = before.map(|before| self.leave_behind(leaf, before));
                    self.write_back(meter, held, chain, patch, &parts).await?;
                    before.into_iter().for_each(OldBlock::retire);
                    match left {
                        Some(pairs) => self.note_removed(leaf, key, pairs).await,
                        None => self.note_hotspot(leaf, hash, slot),
                    }
                    return Ok(true);
                }
                Step::Done(Plan::InPlace(block)) => {
                    self.write_in_place(meter, held, block, key, op.value()).await?;
                    return Ok(true);
                }
                Step::Done(Plan::Split) => {
                    self.split_leaf(meter, held, image, key, op.value(), block).await?;
                    return Ok(true);
                }
                Step::Done(Plan::Nothing) => {
                    self.unlock(meter, held).await?;
                    return Ok(false);
                }
                Step::Done(_) => unreachable!("it was done"),
                Step::MoveRight(sibling) => {
                    self.unlock(meter, held).await?;
                    let edge = RightEdge { high: || layout.high(&image, home, known.header), sibling };
                    at = self.move_right(meter, key, at, edge, &mut budget).await?;
                }
                Step::Reread(last) | Step::Restart(last) => {
                    self.unlock(meter, held).await?;
                    at = self.begin_anew(meter, key, at, last, &mut budget).await?;
                }
            }
        }
    }

    /// Plans a change of the leaf in `image`, and does what the plan calls for first: reads more of the leaf, reads
    /// blocks, allocates one. A round trip for each READ.
    async fn settle_plan(
        &self,
        meter: &Meter,
        at: &Target,
        mut seen: Seen,
        key: &[u8],
        op: WriteOp<'_>,
        budget: &mut Budget,
    ) -> Result<Settled<'_, V>, WriteError> {
        let (layout, server, piggyback) = (self.leaf(), at.ptr.server(), self.techniques.piggyback);
        let (mut block, mut before): (Option<NewBlock<'_, V>>, _) = (None, None);
        loop {
            let new = block.as_ref().map(|block| block.at);
            let change = Change { key, op, server, next: at.next, piggyback, block: new };
            match plan(layout, &mut seen.image, seen.known, &change) {
                Step::Done(Plan::Read(more)) => {
                    tracing::debug!(name: "chime.write.reads", ?more, "a writer reads more of a leaf");
                    let parts = self.parts(layout.home(key), more);
                    let image = self.read_more(meter, at.ptr, seen.image, &parts, budget).await?;
                    seen = Seen { image, known: more, parts };
                }
                Step::Done(Plan::ReadBlocks) => {
                    (seen.known.blocks, before) =
                        self.find_block(meter, at.ptr, &seen.image, key, budget).await?;
                }
                Step::Done(Plan::NewBlock) => {
                    if matches!(seen.known.blocks, Blocks::At(_)) {
                        tracing::debug!(name: "chime.block.grown", node = %at.ptr, "a pair moves to another block");
                    }
                    block = Some(self.new_block(server, key, op.value()).await?);
                }
                step => return Ok(Settled { step, seen, block, before }),
            }
        }
    }

    /// Locks a leaf and reads what a writer reads of it to begin with. With `piggyback` the words come with the lock:
    /// with `fused` as all of that does, else before it, and an insert reads no more than they call for.
    async fn lock_to_write(
        &self,
        meter: &Meter,
        at: &Target,
        home: usize,
        op: WriteOp<'_>,
    ) -> Result<(Held<V>, Seen), AccessError> {
        let (layout, Techniques { fused, piggyback, .. }) = (self.leaf(), self.techniques);
        let mut held = self.acquire_leaf(meter, at.ptr).await?;
        let mut image = self.verbs.lease(layout.node_bytes());
        let mut known = self.known_at_first(at, op);
        let is_update = matches!(op, WriteOp::Update(_));
        if fused || !piggyback || is_update || held.was_handed_over() {
            let parts = self.parts(home, known);
            let parts = if is_update { parts } else { layout.with_words(&parts) };
            let image = held.lock_and_read_parts(meter, image, &parts, fused).await?.into_buf();
            return Ok((held, Seen { image, known, parts }));
        }
        let words = layout.words();
        image = held.lock_and_read_parts(meter, image, slice::from_ref(&words), true).await?.into_buf();
        if let WriteOp::Insert(_) = op {
            known = up_to_vacancy(layout, &image, home, 0, known);
        }
        let mut parts = self.parts(home, known);
        let image = held.lock_and_read_parts(meter, image, &parts, false).await?.into_buf();
        parts.push(words);
        Ok((held, Seen { image, known, parts }))
    }

    /// Yields what a writer reads of a leaf to begin with, where the words do not say more.
    fn known_at_first(&self, at: &Target, op: WriteOp<'_>) -> Known {
        let (ring, header, blocks) = (self.leaf().ring(), self.needs_header(at), Blocks::Unread);
        match op {
            WriteOp::Insert(_) if !self.techniques.piggyback => {
                Known { slots: ring.slots, header: true, blocks }
            }
            WriteOp::Insert(_) => {
                Known { slots: (INSERT_READS * ring.reach).min(ring.slots), header, blocks }
            }
            // A put may be an update.
            _ => Known { slots: ring.reach, header, blocks },
        }
    }

    /// Yields the parts of a leaf that are read to know so much of it.
    fn parts(&self, home: usize, Known { slots, header, .. }: Known) -> LineRanges {
        let layout = self.leaf();
        if slots == layout.ring().slots && header {
            return iter::once(0..layout.node_bytes()).collect();
        }
        let part = layout.slots_from(home, slots);
        if header { layout.with_header(&part) } else { part }
    }

    /// Locks a leaf and reads these parts: one round trip with `fused` or when the lock is handed over, none if they
    /// are handed over with it, else two.
    pub(super) async fn lock_leaf(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        parts: &LineRanges,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let mut held = self.acquire_leaf(meter, leaf).await?;
        let buf = self.verbs.lease(self.leaf().node_bytes());
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

    /// Writes the ranges of `patch` behind what is in `chain`, whose buffer begins with the leaf's image, and unlocks:
    /// one round trip. Words that changed are written with the unlock. The next holder on this compute node gets the
    /// `known` parts of the image.
    async fn write_back(
        &self,
        meter: &Meter,
        mut held: Held<V>,
        mut chain: Chain,
        patch: Patch,
        known: &LineRanges,
    ) -> Result<(), AccessError> {
        let leaf = held.node();
        for range in patch {
            if range.start == self.leaf().vacancy_at() {
                held.with_words_behind(range);
            } else {
                chain.write(leaf.add(range.start as u64), range);
            }
        }
        held.release_with_image(meter, chain, true, known).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::hopscotch::Ring;
    use crate::layout::{NodeHeader, NodeVersion};

    const SIBLING: RemotePtr = RemotePtr::from_bits(640);
    const HERE: ServerId = ServerId(0);
    const ALL: Known = Known { slots: 2, header: true, blocks: Blocks::Unread };

    /// Makes a leaf of two slots, one of which is taken if there is a block of 64 bytes for `c`.
    fn leaf(block: Option<RemotePtr>) -> (HopLayout, Vec<u8>, Option<BlockPtr>) {
        let layout = HopLayout::indirect(Ring { slots: 2, reach: 2 }, 8, 100, false).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let header = NodeHeader {
            level: 0,
            low: b"b",
            high: Some(b"m"),
            sibling: SIBLING,
            incarnation: 1,
            node_version: NodeVersion::default(),
        };
        let block = block.map(|at| layout.blocks().unwrap().pointer(at, 64));
        let entry = block.map(|block| block.bits().to_le_bytes());
        layout.build(&mut image, &header, entry.iter().map(|entry| (&b"c"[..], &entry[..])));
        (layout, image, block)
    }

    fn change(op: WriteOp<'_>) -> Change<'_> {
        Change { key: b"c", op, server: HERE, next: Some(SIBLING), piggyback: true, block: None }
    }

    const EVERY_OP: [WriteOp<'_>; 4] =
        [WriteOp::Put(b"2"), WriteOp::Insert(b"2"), WriteOp::Update(b"2"), WriteOp::Remove];

    /// All vacancies of a small leaf, from every home on.
    #[test]
    fn an_insert_reads_up_to_a_vacancy_or_the_whole_leaf() {
        let ring = Ring { slots: 8, reach: 2 };
        let layout = HopLayout::new(ring, 8, 8, false).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let known = Known { slots: 2, header: false, blocks: Blocks::Unread };
        for vacant in 0..1_u64 << ring.slots {
            image[layout.vacancy_at()..][..8].copy_from_slice(&vacant.to_le_bytes());
            for (home, full) in (0..ring.slots).flat_map(|home| (0..ring.slots).map(move |full| (home, full)))
            {
                let is_vacant = |steps: &usize| vacant >> ring.ahead(home, *steps) & 1 != 0;
                let expected = match (full..ring.slots - 1).find(is_vacant) {
                    Some(steps) => Known { slots: (steps + 1).max(ring.reach), ..known },
                    None => Known { slots: ring.slots, header: true, ..known },
                };
                assert_eq!(up_to_vacancy(&layout, &image, home, full, known), expected, "{vacant:b}");
            }
        }
    }

    #[test]
    fn blocks_of_the_fingerprint_are_read_before_anything_is_changed() {
        let at = RemotePtr::from_bits(64);
        for op in EVERY_OP {
            let (layout, mut image, _) = leaf(Some(at));
            let before = image.clone();
            assert_eq!(plan(&layout, &mut image, ALL, &change(op)), Step::Done(Plan::ReadBlocks));
            assert_eq!(image, before);
        }
    }

    #[test]
    fn every_op_on_the_key_of_a_block_and_on_another_key_of_its_fingerprint() {
        let (near, far) = (RemotePtr::new(HERE, 64), RemotePtr::new(ServerId(1), 64));
        let long = [7; 100];
        for (at, op, blocks, expected) in [
            (near, WriteOp::Put(b"2"), Blocks::At(0), Some(Plan::InPlace(leaf(Some(near)).2.unwrap()))),
            (near, WriteOp::Update(b"2"), Blocks::At(0), Some(Plan::InPlace(leaf(Some(near)).2.unwrap()))),
            (near, WriteOp::Update(&long), Blocks::At(0), Some(Plan::NewBlock)),
            (far, WriteOp::Put(b"2"), Blocks::At(0), Some(Plan::NewBlock)),
            (near, WriteOp::Insert(b"2"), Blocks::At(0), Some(Plan::Nothing)),
            (near, WriteOp::Remove, Blocks::At(0), None),
            (near, WriteOp::Put(b"2"), Blocks::OfOthers, Some(Plan::NewBlock)),
            (near, WriteOp::Insert(b"2"), Blocks::OfOthers, Some(Plan::NewBlock)),
            (near, WriteOp::Update(b"2"), Blocks::OfOthers, Some(Plan::Nothing)),
            (near, WriteOp::Remove, Blocks::OfOthers, Some(Plan::Nothing)),
        ] {
            let (layout, mut image, _) = leaf(Some(at));
            let slot = layout.candidates(&image, b"c").unwrap()[0].0;
            let blocks = if blocks == Blocks::At(0) { Blocks::At(slot) } else { blocks };
            let before = image.clone();
            let step = plan(&layout, &mut image, Known { blocks, ..ALL }, &change(op));
            match expected {
                Some(expected) => assert_eq!((step, &image), (Step::Done(expected), &before), "{op:?}"),
                None => assert!(matches!(step, Step::Done(Plan::Mended(_, removed)) if removed == slot)),
            }
        }
    }

    #[test]
    fn a_new_block_is_allocated_before_an_entry_leads_there() {
        for op in EVERY_OP {
            let (layout, mut image, _) = leaf(None);
            let step = plan(&layout, &mut image, ALL, &change(op));
            let expected = if op.creates() { Plan::NewBlock } else { Plan::Nothing };
            assert_eq!(step, Step::Done(expected), "{op:?}");
        }
        let block = layout_block(128);
        for (known, present) in [(ALL, false), (Known { blocks: Blocks::OfOthers, ..ALL }, true)] {
            let (layout, mut image, _) = leaf(present.then_some(RemotePtr::from_bits(64)));
            let put = Change { block: Some(block), ..change(WriteOp::Put(b"2")) };
            assert!(matches!(plan(&layout, &mut image, known, &put), Step::Done(Plan::Mended(..))));
            let found = layout.candidates(&image, b"c").unwrap();
            assert!(found.iter().any(|(_, at)| *at == block) && found.len() == 1 + usize::from(present));
        }
        let (layout, mut image, _) = leaf(Some(RemotePtr::from_bits(64)));
        let slot = layout.candidates(&image, b"c").unwrap()[0].0;
        let put = Change { block: Some(block), ..change(WriteOp::Put(b"2")) };
        let step = plan(&layout, &mut image, Known { blocks: Blocks::At(slot), ..ALL }, &put);
        assert!(matches!(step, Step::Done(Plan::Patch(_, changed)) if changed == slot));
        assert_eq!(layout.candidates(&image, b"c").unwrap()[..], [(slot, block)]);
    }

    fn layout_block(at: u64) -> BlockPtr {
        leaf(None).0.blocks().unwrap().pointer(RemotePtr::from_bits(at), 64)
    }

    #[test]
    fn a_full_leaf_is_split_when_there_is_a_block_for_the_new_pair() {
        let (layout, mut image, _) = leaf(Some(RemotePtr::from_bits(64)));
        layout.insert_near(&mut image, b"d", &layout_block(128).bits().to_le_bytes()).unwrap();
        let insert = Change { key: b"e", ..change(WriteOp::Insert(b"2")) };
        assert_eq!(plan(&layout, &mut image, ALL, &insert), Step::Done(Plan::NewBlock));
        let insert = Change { block: Some(layout_block(192)), ..insert };
        assert_eq!(plan(&layout, &mut image, ALL, &insert), Step::Done(Plan::Split));
    }
}
