//! The first stage of allocation: which chunks of a server's region belong to which index (Sherman section 4.2.4).

use std::collections::VecDeque;

use crate::control::IndexId;

/// Dropped indexes that are remembered: a request for one more chunk may still be on its way when an index is dropped,
/// and what it took nobody would ever give back.
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
    owned: Vec<(IndexId, u64)>,
    freed: VecDeque<IndexId>,
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
        let (returned, owned, freed) = (Vec::new(), Vec::new(), VecDeque::new());
        Chunks { start, chunk_bytes, count, fresh: 0, returned, owned, freed }
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

    /// Gives a zeroed chunk to an index; `None` if the index was dropped in the meantime, or before.
    pub(super) fn own(&mut self, reserved: Reserved, index: IndexId) -> Option<u64> {
        if self.freed.contains(&index) {
            self.returned.push(reserved.place);
            return None;
        }
        self.owned.push((index, reserved.place));
        Some(reserved.offset)
    }

    /// Takes all chunks of an index back; yields how many bytes that are.
    pub(super) fn free_all(&mut self, index: IndexId) -> u64 {
        let before = self.returned.len();
        let returned = &mut self.returned;
        self.owned.retain(|&(owner, place)| {
            if owner == index {
                returned.push(place);
            }
            owner != index
        });
        if !self.freed.contains(&index) {
            self.freed.push_back(index);
            if self.freed.len() > FREED_MAX {
                self.freed.pop_front();
            }
        }
        (self.returned.len() - before) as u64 * self.chunk_bytes
    }

    /// From now on another server numbers the indexes, from the beginning.
    pub(super) fn forget_freed(&mut self) {
        self.freed.clear();
    }

    /// Bytes that there are, and bytes that are handed out.
    pub(super) fn usage(&self) -> (u64, u64) {
        let handed_out = self.fresh - self.returned.len() as u64;
        (self.count * self.chunk_bytes, handed_out * self.chunk_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_being_zeroed_is_nobodys() {
        let mut chunks = Chunks::new(4096, 4096 * 3, 4096);
        let reserved = chunks.reserve().unwrap();
        assert_eq!(chunks.own(reserved, IndexId(1)), Some(4096));
        assert_eq!(chunks.free_all(IndexId(1)), 4096);
        let again = chunks.reserve().unwrap();
        assert!(again.reused && again.offset == 4096);
        assert_eq!(chunks.free_all(IndexId(2)), 0, "index 2 is dropped before its chunk is zeroed");
        assert_eq!(chunks.usage(), (8192, 4096), "and the chunk is not free meanwhile");
        assert_eq!(chunks.own(again, IndexId(2)), None);
        assert_eq!(chunks.usage(), (8192, 0));
        chunks.forget_freed();
        let last = chunks.reserve().unwrap();
        assert_eq!(chunks.own(last, IndexId(2)), Some(4096));
    }
}
