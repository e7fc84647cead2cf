//! The first stage of allocation: which chunks of a server's region belong to which index (Sherman section 4.2.4), and
//! what of them was given back, unused or as free nodes (`given.rs`). It touches no memory: it only says whose it is.
//!
//! ```text
//! a chunk of index 1, given back in part twice
//! +----------------+---------------+----------------------------------+
//! | used, by one   | used, by two  | a rest: zero, index 1's only     |
//! +----------------+---------------+----------------------------------+
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::given::Given;
use crate::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
use crate::control::queue_pair::PeerId;
use crate::control::seal::Seal;
use crate::control::{IndexId, REST_ALIGN, REST_BYTES_MIN};

/// Dropped indexes that are remembered: a request for one more chunk may still be on its way when an index is dropped,
/// and what it took would never be given back.
const FREED_MAX: usize = 1024;

/// The chunks of one server. A chunk is free, or reserved while it is being zeroed, or belongs to one index until that
/// index is dropped.
pub(super) struct Chunks {
    start: u64,
    chunk_bytes: u64,
    count: u64,
    /// Chunks from here on were never handed out.
    fresh: u64,
    returned: Vec<u64>,
    owned: Vec<(Owner, u64)>,
    /// Pieces that may be given back, by where they begin: what was handed out, without what was given back of it. None
    /// lies in two chunks, none is smaller than the smallest rest: so there are never more of them than a region has
    /// pages.
    taken: BTreeMap<u64, Taken>,
    /// Pieces that were given back of an index's chunks, by their size. It overlaps nothing of `taken`.
    rests: BTreeMap<Owner, BTreeSet<(u64, u64)>>,
    /// Free nodes that were given back of an index's chunks. They overlap nothing of `taken`, nor of `rests`.
    given: Given,
    /// Chunks of which pieces are being zeroed that will be rests or free nodes, and whether their index was dropped
    /// meanwhile: then they are free when that has ended, since the zeroing would wipe what another index has written.
    cleaning: BTreeMap<u64, bool>,
    /// Indexes whose chunks go when that connection has ended.
    temporary: BTreeMap<Owner, PeerId>,
    freed: VecDeque<Owner>,
}

/// A piece of a chunk that a connection has taken.
#[derive(Clone, Copy)]
struct Taken {
    bytes: u64,
    owner: Owner,
    by: PeerId,
}

/// Owner of chunks: an index, by its number and by what only its drop can open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) index: IndexId,
    pub(crate) seal: Seal,
}

/// A chunk, or what is left of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A chunk that is neither free nor an index's.
#[must_use = "it has to become an index's, or free again"]
pub(crate) struct Reserved {
    place: u64,
    /// Where it begins.
    pub(super) offset: u64,
    /// It was in use before: its bytes are not zero.
    pub(super) reused: bool,
}

/// Pieces of an index's chunks that are neither in use nor handed out again before they are zero.
#[must_use = "their chunks are free again only when the zeroing has ended"]
#[derive(Debug)]
pub(crate) struct Cleaning {
    owner: Owner,
    pub(super) pieces: Vec<Extent>,
}

/// Makes a free node of a piece that no operation knows.
fn node_that_waits_for_none(piece: &Extent) -> NodeBatch {
    let class = NodeClass { bytes: piece.bytes, of_kind: false };
    NodeBatch { class, waits: Waits::Epoch(0), nodes: vec![(piece.offset, None)] }
}

impl Chunks {
    pub(super) fn new(start: u64, end: u64, chunk_bytes: u64) -> Self {
        let count = (end - start) / chunk_bytes;
        Chunks {
            start,
            chunk_bytes,
            count,
            fresh: 0,
            returned: Vec::new(),
            owned: Vec::new(),
            taken: BTreeMap::new(),
            rests: BTreeMap::new(),
            given: Given::default(),
            cleaning: BTreeMap::new(),
            temporary: BTreeMap::new(),
            freed: VecDeque::new(),
        }
    }

    /// Hands out what was given back of a chunk of that index, if there is anything. The largest first: if that is too
    /// small for a node, so are all others.
    pub(super) fn take_rest(&mut self, owner: Owner, by: PeerId) -> Option<Extent> {
        let Entry::Occupied(mut rests) = self.rests.entry(owner) else { return None };
        let largest = rests.get_mut().pop_last();
        if rests.get().is_empty() {
            rests.remove();
        }
        let (bytes, offset) = largest?;
        self.taken.insert(offset, Taken { bytes, owner, by });
        Some(Extent { offset, bytes })
    }

    /// Takes back what `by` has taken for that index and not used. Yields whether it was so; otherwise nothing changes.
    pub(super) fn return_extent(&mut self, index: IndexId, by: PeerId, rest: Extent) -> bool {
        let Extent { offset, bytes } = rest;
        let aligned = offset.is_multiple_of(REST_ALIGN) && bytes.is_multiple_of(REST_ALIGN);
        let Some(end) = offset.checked_add(bytes).filter(|_| aligned && bytes >= REST_BYTES_MIN) else {
            return false;
        };
        let Some((&start, &taken)) = self.taken.range(..=offset).next_back() else { return false };
        let taken_end = start + taken.bytes;
        if taken.owner.index != index || taken.by != by || end > taken_end {
            return false;
        }
        self.forget_taken(offset, end);
        let new = self.rests.entry(taken.owner).or_default().insert((bytes, offset));
        assert!(new, "what is taken is no rest");
        true
    }

    /// Takes free nodes of the chunks of that index, of any of its allocators. They lie in chunks of one owner, in
    /// nothing that was given back, and in no piece that is being zeroed.
    ///
    /// # Errors
    /// The first that does not; then nothing changes.
    pub(super) fn give_nodes(&mut self, index: IndexId, batch: NodeBatch) -> Result<(), Extent> {
        let (chunks, rests) = (self.chunks_of(index), self.rests_of(index));
        let (bytes, mut of) = (batch.class.bytes, None);
        let nodes = || batch.nodes.iter().map(|&(offset, _)| Extent { offset, bytes });
        for node in nodes() {
            let aligned = node.offset.is_multiple_of(REST_ALIGN) && bytes.is_multiple_of(REST_ALIGN);
            let end = node.offset.checked_add(bytes).filter(|_| aligned && bytes > 0);
            let (Some(end), Some(inside)) = (end, node.offset.checked_sub(self.start)) else {
                return Err(node);
            };
            let before = rests.range(..end).next_back();
            if before.is_some_and(|(rest, bytes)| rest + bytes > node.offset) {
                return Err(node);
            }
            for place in inside / self.chunk_bytes..=(end - 1 - self.start) / self.chunk_bytes {
                let owner = chunks.get(&place).filter(|_| !self.cleaning.contains_key(&place));
                if owner.is_none() || of.is_some_and(|of| Some(&of) != owner) {
                    return Err(node);
                }
                of = owner.copied();
            }
        }
        let owner = of.ok_or(Extent { offset: 0, bytes })?;
        let extents: Vec<Extent> = nodes().collect();
        self.given.put(owner, batch)?;
        extents.iter().for_each(|node| self.forget_taken(node.offset, node.offset + node.bytes));
        Ok(())
    }

    /// Hands out free nodes of that owner's chunks that were given back, if there are such.
    pub(super) fn take_nodes(&mut self, owner: Owner, wanted: &WantedNodes) -> Option<NodeBatch> {
        self.given.take(owner, wanted)
    }

    /// Lets no part of these bytes be given back by those who took it.
    fn forget_taken(&mut self, from: u64, to: u64) {
        let before = self.taken.range(..to).rev();
        let cut: Vec<(u64, Taken)> = before
            .take_while(|(start, taken)| **start + taken.bytes > from)
            .map(|(start, taken)| (*start, *taken))
            .collect();
        for (start, taken) in cut {
            self.taken.remove(&start);
            for (start, end) in [(start, from), (to, start + taken.bytes)] {
                let bytes = end.saturating_sub(start);
                // Of less than that nothing can be given back.
                if bytes >= REST_BYTES_MIN {
                    self.taken.insert(start, Taken { bytes, ..taken });
                }
            }
        }
    }

    /// Lists pieces of the chunks of that index from `from` on, ascending, each with whether it was given back: `max`
    /// at most, and tells whether there are more.
    pub(super) fn pieces(&self, index: IndexId, from: u64, max: usize) -> (Vec<(Extent, bool)>, bool) {
        let (chunks, rests) = (self.chunks_of(index), self.rests_of(index));
        let mut pieces = Vec::new();
        for offset in chunks.into_keys().map(|place| self.start + place * self.chunk_bytes) {
            let (mut at, end) = (offset, offset + self.chunk_bytes);
            if end <= from {
                continue;
            }
            // What was two pieces for the page before may be one now.
            let mut add = |offset: u64, end: u64, is_rest: bool| {
                let offset = offset.max(from);
                if offset < end {
                    pieces.push((Extent { offset, bytes: end - offset }, is_rest));
                }
            };
            let mut free = self.given.runs(offset, end);
            free.extend(rests.range(offset..end).map(|(&offset, &bytes)| Extent { offset, bytes }));
            free.sort_unstable_by_key(|piece| piece.offset);
            for Extent { offset, bytes } in free {
                add(at, offset, false);
                add(offset, offset + bytes, true);
                at = offset + bytes;
            }
            add(at, end, false);
            if pieces.len() > max {
                pieces.truncate(max);
                return (pieces, true);
            }
        }
        (pieces, false)
    }

    fn chunks_of(&self, index: IndexId) -> BTreeMap<u64, Owner> {
        let theirs = self.owned.iter().filter(|(owner, _)| owner.index == index);
        theirs.map(|(owner, place)| (*place, *owner)).collect()
    }

    fn rests_of(&self, index: IndexId) -> BTreeMap<u64, u64> {
        let theirs = self.rests.iter().filter(|(owner, _)| owner.index == index);
        theirs.flat_map(|(_, rests)| rests).map(|(bytes, offset)| (*offset, *bytes)).collect()
    }

    /// Takes back pieces of the chunks of that index, ascending, in which nothing is that is in use. They are rests
    /// when they are zeroed, and those that are smaller free nodes ([`Chunks::cleaned`]).
    ///
    /// # Errors
    /// The first that is no such piece; then nothing changes.
    pub(super) fn take_back(&mut self, index: IndexId, pieces: Vec<Extent>) -> Result<Cleaning, Extent> {
        let (chunks, rests) = (self.chunks_of(index), self.rests_of(index));
        let (mut last, mut places, mut of) = (0, BTreeSet::new(), None);
        for piece in &pieces {
            let Extent { offset, bytes } = *piece;
            let aligned = offset.is_multiple_of(REST_ALIGN) && bytes.is_multiple_of(REST_ALIGN);
            let end = offset.checked_add(bytes).filter(|_| aligned && bytes > 0);
            let (Some(end), Some(inside)) = (end, offset.checked_sub(self.start)) else { return Err(*piece) };
            let place = inside / self.chunk_bytes;
            let Some(owner) = chunks.get(&place) else { return Err(*piece) };
            let before = rests.range(..end).next_back();
            let is_rest = before.is_some_and(|(rest, bytes)| rest + bytes > offset);
            let is_inside = (end - 1 - self.start) / self.chunk_bytes == place;
            let is_given = self.given.has_any_of(*piece);
            if !is_inside || is_rest || is_given || offset < last || self.cleaning.contains_key(&place) {
                return Err(*piece);
            }
            if of.is_some_and(|of| of != *owner) {
                return Err(*piece);
            }
            last = end;
            places.insert(place);
            of = Some(*owner);
        }
        let owner = of.ok_or(Extent { offset: 0, bytes: 0 })?;
        pieces.iter().for_each(|piece| self.forget_taken(piece.offset, piece.offset + piece.bytes));
        self.cleaning.extend(places.into_iter().map(|place| (place, false)));
        Ok(Cleaning { owner, pieces })
    }

    /// Makes pieces that were taken back rests or free nodes, if they are zero now; yields how many bytes that are.
    pub(super) fn cleaned(&mut self, cleaning: Cleaning, is_zero: bool) -> u64 {
        let Cleaning { owner, pieces } = cleaning;
        let mut bytes = 0;
        let place_of = |piece: &Extent| (piece.offset - self.start) / self.chunk_bytes;
        let places: BTreeSet<u64> = pieces.iter().map(place_of).collect();
        let gone: BTreeSet<u64> =
            places.into_iter().filter(|place| self.cleaning.remove(place) == Some(true)).collect();
        for piece in pieces.iter().filter(|piece| is_zero && !gone.contains(&place_of(piece))) {
            match piece.bytes >= REST_BYTES_MIN {
                true => {
                    let new = self.rests.entry(owner).or_default().insert((piece.bytes, piece.offset));
                    assert!(new, "what is being zeroed is no rest");
                }
                false => {
                    let nodes = self.given.put(owner, node_that_waits_for_none(piece));
                    nodes.expect("what is being zeroed is no free node");
                }
            }
            bytes += piece.bytes;
        }
        self.returned.extend(gone);
        bytes
    }

    /// Notes that a connection has ended: what it took remains the index's, and is not given back.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.taken.retain(|_, taken| taken.by != peer);
    }

    pub(super) fn reserve(&mut self) -> Option<Reserved> {
        let (place, reused) = match self.returned.pop() {
            Some(place) => (place, true),
            None if self.fresh < self.count => {
                self.fresh += 1;
                (self.fresh - 1, false)
            }
            None => return None,
        };
        Some(Reserved { place, offset: self.start + place * self.chunk_bytes, reused })
    }

    /// Frees a reserved chunk again, used as before.
    pub(super) fn unreserve(&mut self, reserved: Reserved) {
        self.returned.push(reserved.place);
    }

    /// Gives a zeroed chunk to an index, for which `by` has asked; `None` if the index was dropped in the meantime, or
    /// before.
    pub(super) fn own(&mut self, reserved: Reserved, owner: Owner, by: PeerId) -> Option<Extent> {
        if self.freed.contains(&owner) {
            self.returned.push(reserved.place);
            return None;
        }
        let piece = Extent { offset: reserved.offset, bytes: self.chunk_bytes };
        self.owned.push((owner, reserved.place));
        self.taken.insert(piece.offset, Taken { bytes: piece.bytes, owner, by });
        Some(piece)
    }

    /// Takes all chunks of an index back, with what was given back of them; yields how many bytes that are.
    pub(super) fn free_all(&mut self, freed: Owner) -> u64 {
        let mut count = 0;
        let (returned, cleaning) = (&mut self.returned, &mut self.cleaning);
        self.owned.retain(|&(owner, place)| {
            if owner == freed {
                count += 1;
                match cleaning.get_mut(&place) {
                    Some(is_gone) => *is_gone = true,
                    None => returned.push(place),
                }
            }
            owner != freed
        });
        self.taken.retain(|_, taken| taken.owner != freed);
        self.rests.remove(&freed);
        self.given.forget(freed);
        self.temporary.remove(&freed);
        if !self.freed.contains(&freed) {
            self.freed.push_back(freed);
            if self.freed.len() > FREED_MAX {
                self.freed.pop_front();
            }
        }
        count * self.chunk_bytes
    }

    /// Ties the chunks of that index to `peer`: they go when it has ended.
    pub(super) fn tie(&mut self, owner: Owner, peer: PeerId) {
        self.temporary.insert(owner, peer);
    }

    /// Takes the chunks of all indexes back that go with that peer.
    pub(super) fn free_temporary(&mut self, peer: PeerId) {
        let theirs = self.temporary.iter().filter(|(_, of)| **of == peer);
        let theirs: Vec<Owner> = theirs.map(|(owner, _)| *owner).collect();
        for owner in theirs {
            self.free_all(owner);
        }
    }

    /// Counts the bytes of the chunks of these indexes.
    pub(super) fn bytes_of(&self, indexes: &BTreeSet<IndexId>) -> u64 {
        let theirs = self.owned.iter().filter(|(owner, _)| indexes.contains(&owner.index));
        theirs.count() as u64 * self.chunk_bytes
    }

    /// Forgets which indexes were freed: from now on another server numbers the indexes, from the beginning.
    pub(super) fn forget_freed(&mut self) {
        self.freed.clear();
    }

    /// Counts the bytes that there are, and those that are handed out.
    pub(super) fn usage(&self) -> (u64, u64) {
        let handed_out = self.fresh - self.returned.len() as u64;
        (self.count * self.chunk_bytes, handed_out * self.chunk_bytes)
    }
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
