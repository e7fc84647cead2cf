//! The first stage of allocation: which chunks of a server's region belong to which index (Sherman section 4.2.4).

use crate::control::IndexId;

/// The chunks of one server. A chunk is free, or belongs to one index until that index is dropped.
pub(super) struct Chunks {
    start: u64,
    chunk_bytes: u64,
    count: u64,
    /// Chunks from here on were never handed out.
    fresh: u64,
    returned: Vec<u64>,
    owned: Vec<(IndexId, u64)>,
}

impl Chunks {
    pub(super) fn new(start: u64, end: u64, chunk_bytes: u64) -> Self {
        let count = (end - start) / chunk_bytes;
        Chunks { start, chunk_bytes, count, fresh: 0, returned: Vec::new(), owned: Vec::new() }
    }

    /// A chunk's offset, and whether it was in use before (its bytes are then not zero).
    pub(super) fn take(&mut self, index: IndexId) -> Option<(u64, bool)> {
        let (place, reused) = match self.returned.pop() {
            Some(place) => (place, true),
            None if self.fresh < self.count => {
                self.fresh += 1;
                (self.fresh - 1, false)
            }
            None => return None,
        };
        self.owned.push((index, place));
        Some((self.start + place * self.chunk_bytes, reused))
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
        (self.returned.len() - before) as u64 * self.chunk_bytes
    }

    /// Bytes that there are, and bytes that are handed out.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.count * self.chunk_bytes, self.owned.len() as u64 * self.chunk_bytes)
    }
}
