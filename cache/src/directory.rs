//! The root array of one level: which chunk holds which range of keys. Immutable; readers hold a copy and
//! revalidate it.
//!
//! Chunk `i` holds exactly the nodes that lie within `[separator i, separator i + 1)`, as a whole: a node
//! never reaches into the next chunk's range, or lookups there would not find it. The first separator counts
//! as "below every key".
//!
//! Old directories may stay referenced by idle readers for as long as those idle. So chunks sit in cells that
//! old and new directories share, and cells that a new directory drops are emptied: what an idle reader pins
//! is an array of pointers, no nodes.

use std::ops::Range;
use std::sync::Arc;

use crate::chunk::{CELL_BYTES, Chunk, ChunkCell};
use crate::eviction::{Cached, Candidate, Place};
use crate::key_list::KeyList;
use crate::keys::Keys;
use crate::sync::{Guard, NODES_MAX};

/// The chunks of one level in key order; none at all while the level is empty.
pub(crate) struct Directory {
    separators: Box<[u64]>,
    cells: Box<[Arc<ChunkCell>]>,
}

impl Directory {
    pub(crate) fn empty() -> Self {
        let separators = KeyList::default().pack().expect("no keys can be packed");
        Directory { separators, cells: Box::new([]) }
    }

    /// Loads the chunk whose range holds `key`, if there is any chunk.
    #[inline]
    pub(crate) fn chunk(&self, key: &[u8]) -> Option<Guard<Arc<Chunk>>> {
        Some(self.cells.get(self.index(key))?.load())
    }

    /// Finds the index of the chunk whose range holds `key`; 0 if there is no chunk.
    #[inline]
    pub(crate) fn index(&self, key: &[u8]) -> usize {
        Keys::new(&self.separators).rank(key).saturating_sub(1)
    }

    /// Finds the index of the last chunk whose range begins below `key`, which must not be before chunk
    /// `first`.
    pub(crate) fn last_below(&self, key: Option<&[u8]>, first: usize) -> usize {
        let begin_below = key.map_or(self.len(), |key| Keys::new(&self.separators).rank_below(key));
        begin_below.saturating_sub(1).max(first)
    }

    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    pub(crate) fn cell(&self, index: usize) -> &ChunkCell {
        &self.cells[index]
    }

    /// Makes a directory with the chunks of `range` replaced. None if its separators would be too large for
    /// the format.
    pub(crate) fn with(&self, range: Range<usize>, chunks: Vec<Chunk>) -> Option<Directory> {
        let old = Keys::new(&self.separators);
        let mut separators = KeyList::default();
        (0..range.start).for_each(|index| separators.push(old, index));
        for (nth, chunk) in chunks.iter().enumerate() {
            // The first one takes over the range as it begins, which may be below its first node. At the very
            // left it is the other way round: nodes may begin below the separator, which means nothing there.
            match chunk.slots().first() {
                Some(slot) if nth > 0 || range.start == 0 => separators.push(slot.node.keys(), 0),
                _ => separators.push(old, range.start),
            }
        }
        (range.end..self.len()).for_each(|index| separators.push(old, index));
        let separators = separators.pack()?;
        let fresh = chunks.into_iter().map(|chunk| Arc::new(ChunkCell::from_pointee(chunk)));
        let cells = self.cells[..range.start]
            .iter()
            .cloned()
            .chain(fresh)
            .chain(self.cells[range.end..].iter().cloned())
            .collect();
        Some(Directory { separators, cells })
    }

    /// Empties the cells of `range` and returns what their chunks took, in bytes.
    pub(crate) fn retire(&self, range: Range<usize>) -> usize {
        let nothing = Arc::new(Chunk::new(Vec::new()));
        self.cells[range].iter().map(|cell| cell.swap(nothing.clone()).bytes()).sum()
    }

    /// Counts the bytes that the directory takes, without the chunks.
    pub(crate) fn bytes(&self) -> usize {
        let arc = 2 * size_of::<usize>();
        arc + size_of::<Self>() + size_of_val(&*self.separators) + self.len() * CELL_BYTES
    }
}

/// A directory as eviction policies see it.
pub(crate) struct Evictable<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) epoch: u32,
}

impl Cached for Evictable<'_> {
    fn sample(&self, random: u64) -> Option<Candidate> {
        let (high, low) = ((random >> 32) as usize, random as u32 as usize);
        let chunk = (high * self.directory.len()) >> 32;
        let loaded = self.directory.cells.get(chunk)?.load();
        // Of several chunks, a fuller one must be more likely to be hit: by the empty places of the others.
        let places = if self.directory.len() == 1 { loaded.slots().len() } else { NODES_MAX };
        let slot = low % places.max(1);
        let idle = loaded.slots().get(slot)?.idle(self.epoch);
        Some(Candidate { place: Place { chunk, slot }, idle })
    }

    fn first(&self) -> Option<Candidate> {
        let idle = self.directory.cells.first()?.load().slots().first()?.idle(self.epoch);
        Some(Candidate { place: Place { chunk: 0, slot: 0 }, idle })
    }

    fn find(&self, low: &[u8], born: u32) -> Option<Place> {
        let chunk = self.directory.index(low);
        let loaded = self.directory.cells.get(chunk)?.load();
        let slot = loaded.floor(low)?;
        let found = &loaded.slots()[slot];
        (found.born == born && found.node.begins_at(low)).then_some(Place { chunk, slot })
    }
}
