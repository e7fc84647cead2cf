//! Free nodes that allocators have given back to one memory server, until other allocators ask for some. It knows which
//! bytes these are and of which owner's chunks, and nothing of the memory itself.
//!
//! ```text
//!   batches   (owner, class) ──> [ batch | batch | ... ]      the oldest first
//!   lines     page ──> 0b...0110    one bit for each line of 64 bytes that is in a batch: so none is in two
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::chunks::{Extent, Owner};
use crate::control::REST_ALIGN;
use crate::control::nodes::{NodeBatch, NodeClass, WantedNodes};

/// Bytes that one word of the bits of lines stands for.
const PAGE_BYTES: u64 = REST_ALIGN * 64;
/// Batches that wait for the same are joined up to so many nodes: processes that live for one node leave one each.
const JOINED_MAX: usize = 64;

/// The batches of one server.
#[derive(Default)]
pub(super) struct Given {
    batches: BTreeMap<(Owner, NodeClass), VecDeque<NodeBatch>>,
    lines: BTreeMap<u64, u64>,
}

/// Yields the pages of an extent of whole lines, each with the bits of its lines there.
fn pages(extent: Extent) -> impl Iterator<Item = (u64, u64)> {
    let (first, end) = (extent.offset / REST_ALIGN, (extent.offset + extent.bytes) / REST_ALIGN);
    (first / 64..end.div_ceil(64)).map(move |page| {
        let (from, to) = (first.max(page * 64) - page * 64, end.min(page * 64 + 64) - page * 64);
        (page, (u64::MAX >> (64 - (to - from))) << from)
    })
}

fn extents(batch: &NodeBatch) -> impl Iterator<Item = Extent> {
    let bytes = batch.class.bytes;
    batch.nodes.iter().map(move |&(offset, _)| Extent { offset, bytes })
}

impl Given {
    /// Tells whether a byte of these whole lines is in a batch.
    pub(super) fn has_any_of(&self, extent: Extent) -> bool {
        pages(extent).any(|(page, bits)| self.lines.get(&page).is_some_and(|lines| lines & bits != 0))
    }

    /// Takes nodes of that owner's chunks. Yields the first of which a byte is here already, or twice among them; then
    /// nothing changes.
    pub(super) fn put(&mut self, owner: Owner, batch: NodeBatch) -> Result<(), Extent> {
        for (place, node) in extents(&batch).enumerate() {
            if self.has_any_of(node) {
                extents(&batch).take(place).for_each(|before| self.clear(before));
                return Err(node);
            }
            pages(node).for_each(|(page, bits)| *self.lines.entry(page).or_default() |= bits);
        }
        let of_class = self.batches.entry((owner, batch.class)).or_default();
        match of_class.back_mut() {
            Some(last) if last.waits == batch.waits && last.nodes.len() + batch.nodes.len() <= JOINED_MAX => {
                last.nodes.extend(batch.nodes);
            }
            _ => of_class.push_back(batch),
        }
        Ok(())
    }

    /// Hands a batch of that owner's out, which is not here any more then: the allocator that asks has it alone.
    pub(super) fn take(&mut self, owner: Owner, wanted: &WantedNodes) -> Option<NodeBatch> {
        let WantedNodes { class, epoch, flushed, last_resort } = *wanted;
        let is_free = |batch: &NodeBatch| batch.waits.are_over(epoch, flushed);
        let free = self.take_if(owner, class, is_free);
        if free.is_some() || !last_resort {
            return free;
        }
        let waiting = self.take_if(owner, class, |_| true);
        if waiting.is_some() || class.of_kind {
            return waiting;
        }
        // One larger node is better than many smaller ones, which have to be joined.
        let size = |bytes| (owner, NodeClass { bytes, of_kind: false });
        let of_size = |(&(_, class), _): (&(Owner, NodeClass), _)| (!class.of_kind).then_some(class);
        let larger = self.batches.range(size(class.bytes)..=size(u64::MAX)).find_map(of_size);
        let other = larger.or_else(|| self.batches.range(size(0)..size(class.bytes)).rev().find_map(of_size));
        self.take_if(owner, other?, |_| true)
    }

    fn take_if(
        &mut self,
        owner: Owner,
        class: NodeClass,
        fits: impl FnMut(&NodeBatch) -> bool,
    ) -> Option<NodeBatch> {
        let of_class = self.batches.get_mut(&(owner, class))?;
        let place = of_class.iter().position(fits)?;
        let batch = of_class.remove(place)?;
        if of_class.is_empty() {
            self.batches.remove(&(owner, class));
        }
        extents(&batch).for_each(|node| self.clear(node));
        Some(batch)
    }

    /// Forgets all nodes of an owner, whose chunks are taken back.
    pub(super) fn forget(&mut self, owner: Owner) {
        let class = |bytes, of_kind| (owner, NodeClass { bytes, of_kind });
        let theirs = self.batches.range(class(0, false)..=class(u64::MAX, true)).map(|(key, _)| *key);
        for key in theirs.collect::<Vec<_>>() {
            let batches = self.batches.remove(&key).into_iter().flatten();
            batches.for_each(|batch| extents(&batch).for_each(|node| self.clear(node)));
        }
    }

    fn clear(&mut self, node: Extent) {
        for (page, bits) in pages(node) {
            if let Some(lines) = self.lines.get_mut(&page) {
                *lines &= !bits;
                if *lines == 0 {
                    self.lines.remove(&page);
                }
            }
        }
    }

    /// Lists what is here of a range of whole lines, ascending; what lies side by side is one piece.
    pub(super) fn runs(&self, from: u64, to: u64) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for (page, lines) in self.lines.range(from / PAGE_BYTES..to.div_ceil(PAGE_BYTES)) {
            for line in (0..64).filter(|line| lines >> line & 1 == 1) {
                let offset = page * PAGE_BYTES + line * REST_ALIGN;
                match runs.last_mut() {
                    _ if !(from..to).contains(&offset) => {}
                    Some(last) if last.offset + last.bytes == offset => last.bytes += REST_ALIGN,
                    _ => runs.push(Extent { offset, bytes: REST_ALIGN }),
                }
            }
        }
        runs
    }
}
