//! The first stage of allocation: which chunks of a server's region belong to which index (Sherman section 4.2.4), and
//! what of them was given back unused. It touches no memory: it only says whose it is.
//!
//! ```text
//! a chunk of index 1, given back in part twice
//! +----------------+---------------+----------------------------------+
//! | used, by one   | used, by two  | a rest: zero, index 1's only     |
//! +----------------+---------------+----------------------------------+
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
        self.taken.remove(&start);
        for (start, end) in [(start, offset), (end, taken_end)] {
            let bytes = end - start;
            // Of less than that nothing can be given back.
            if bytes >= REST_BYTES_MIN {
                self.taken.insert(start, Taken { bytes, ..taken });
            }
        }
        let new = self.rests.entry(taken.owner).or_default().insert((bytes, offset));
        assert!(new, "what is taken is no rest");
        true
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
        let before = self.returned.len();
        let returned = &mut self.returned;
        self.owned.retain(|&(owner, place)| {
            if owner == freed {
                returned.push(place);
            }
            owner != freed
        });
        self.taken.retain(|_, taken| taken.owner != freed);
        self.rests.remove(&freed);
        self.temporary.remove(&freed);
        if !self.freed.contains(&freed) {
            self.freed.push_back(freed);
            if self.freed.len() > FREED_MAX {
                self.freed.pop_front();
            }
        }
        (self.returned.len() - before) as u64 * self.chunk_bytes
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
