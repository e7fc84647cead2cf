//! Writing one level of the cache. Callers hold the cache's writer lock; readers go on meanwhile.
//!
//! Publication order when the directory changes: the new chunks are complete before the new directory is
//! published, and only then the cells of the old ones are emptied. So a reader with the new directory finds
//! everything, and a reader with the old one finds everything until the cells are emptied, and then misses
//! until its next lookup.

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::chunk::{Chunk, NODES_FEW, Slot};
use crate::directory::Directory;
use crate::eviction::Place;
use crate::node::Node;
use crate::sync::{ArcSwap, NODES_MAX};

/// One level of the cached tree.
pub(crate) struct Level {
    directory: ArcSwap<Directory>,
}

/// The effect of a change on the level's size.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) nodes: isize,
    pub(crate) bytes: isize,
}

impl Level {
    /// Makes a level without nodes; yields also the bytes that it takes even so.
    pub(crate) fn empty() -> (Self, usize) {
        let directory = Directory::empty();
        let bytes = directory.bytes();
        (Level { directory: ArcSwap::from_pointee(directory) }, bytes)
    }

    /// Yields the published directory, for readers that keep a copy.
    pub(crate) fn published(&self) -> &ArcSwap<Directory> {
        &self.directory
    }

    /// Loads the current directory.
    pub(crate) fn directory(&self) -> impl Deref<Target = Arc<Directory>> {
        self.directory.load()
    }

    /// Finds the node that covers `key`.
    pub(crate) fn covering(&self, key: &[u8]) -> Option<Node> {
        let chunk = self.directory().chunk(key)?;
        let node = &chunk.slots()[chunk.floor(key)?].node;
        node.position(key).is_some().then(|| node.clone())
    }

    /// Puts a node in, in place of all nodes whose ranges overlap its own.
    pub(crate) fn insert(&self, slot: Slot) -> Change {
        let directory = self.directory.load_full();
        let low = slot.node.low();
        let mut high = Vec::new();
        let high = slot.node.copy_high(&mut high).then_some(&high[..]);
        if directory.len() == 0 {
            return self.replace(&directory, 0..0, vec![slot], 0);
        }
        let first = directory.index(&low);
        let last = directory.last_below(high, first);
        let (left, right) = (directory.cell(first).load_full(), directory.cell(last).load_full());
        // The node before `low` reaches into the new one's range, or it ends at or before `low`.
        let before = match left.floor(&low) {
            Some(floor) if left.slots()[floor].node.ends_above(&low) => floor,
            Some(floor) => floor + 1,
            None => 0,
        };
        let after = high.map_or(right.slots().len(), |high| right.begin_below(high));
        // The rule: a node that has got one more separator, or lost its right half. No low key changes.
        if first == last && after == before + 1 && left.slots()[before].node.begins_at(&low) {
            let chunk = Arc::new(left.with(before, slot));
            let bytes = chunk.bytes() as isize - left.bytes() as isize;
            directory.cell(first).store(chunk);
            return Change { nodes: 0, bytes };
        }
        let mut slots: Vec<_> = left.slots()[..before].iter().map(Slot::copy).collect();
        slots.push(slot);
        slots.extend(
            right.slots()[after.max(if first == last { before } else { 0 })..].iter().map(Slot::copy),
        );
        let held = (first..=last).map(|index| directory.cell(index).load().slots().len()).sum();
        self.replace(&directory, first..last + 1, slots, held)
    }

    /// Takes the node at `place` of the current directory out.
    pub(crate) fn remove(&self, place: Place) -> Change {
        let directory = self.directory.load_full();
        let chunk = directory.cell(place.chunk).load_full();
        let rest = |(index, slot): (usize, &Slot)| (index != place.slot).then(|| slot.copy());
        let mut slots: Vec<_> = chunk.slots().iter().enumerate().filter_map(rest).collect();
        let mut range = place.chunk..place.chunk + 1;
        let mut held = chunk.slots().len();
        if slots.len() < NODES_FEW {
            held += merge(&directory, &mut range, &mut slots);
        }
        self.replace(&directory, range, slots, held)
    }

    /// Finds where the node that covers `key` is in the current directory, if the test is true for it.
    pub(crate) fn place(&self, key: &[u8], test: impl FnOnce(&Node) -> bool) -> Option<Place> {
        let directory = self.directory();
        let chunk = directory.index(key);
        let loaded = directory.chunk(key)?;
        let slot = loaded.floor(key)?;
        let node = &loaded.slots()[slot].node;
        (node.position(key).is_some() && test(node)).then_some(Place { chunk, slot })
    }

    /// Takes everything out.
    pub(crate) fn clear(&self) -> Change {
        let old = self.directory.load_full();
        let nodes: usize = (0..old.len()).map(|index| old.cell(index).load().slots().len()).sum();
        if old.len() == 0 {
            Change::default()
        } else {
            self.publish(&old, 0..old.len(), Directory::empty(), nodes, 0, 0)
        }
    }

    /// Puts `slots` in place of the `held` nodes of the chunks in `range`.
    fn replace(&self, old: &Directory, range: Range<usize>, slots: Vec<Slot>, held: usize) -> Change {
        let count = slots.len();
        if range.len() == 1 && (1..=NODES_MAX).contains(&count) {
            let chunk = Arc::new(Chunk::new(slots));
            let new = chunk.bytes() as isize;
            let bytes = new - old.cell(range.start).swap(chunk).bytes() as isize;
            return Change { nodes: count as isize - held as isize, bytes };
        }
        let at_end = range.end == old.len();
        let chunks = cut(slots, at_end);
        let bytes = chunks.iter().map(Chunk::bytes).sum();
        match old.with(range.clone(), chunks) {
            Some(new) => self.publish(old, range, new, held, count, bytes),
            // Separators of gigabytes: start over. The cache refills itself.
            None => self.clear(),
        }
    }

    fn publish(
        &self,
        old: &Directory,
        range: Range<usize>,
        new: Directory,
        held: usize,
        count: usize,
        bytes: usize,
    ) -> Change {
        let added = bytes + new.bytes();
        self.directory.store(Arc::new(new));
        let dropped = old.bytes() + old.retire(range);
        Change { nodes: count as isize - held as isize, bytes: added as isize - dropped as isize }
    }
}

/// Adds a neighbour of the chunk in `range` to it, if both together leave room to grow. Returns the number of
/// nodes that it brought.
fn merge(directory: &Directory, range: &mut Range<usize>, slots: &mut Vec<Slot>) -> usize {
    let roomy = NODES_MAX - NODES_FEW;
    let fits = |index: usize| {
        let chunk = directory.cell(index).load_full();
        (chunk.slots().len() + slots.len() <= roomy).then_some(chunk)
    };
    let right = Some(range.end).filter(|index| *index < directory.len()).and_then(fits);
    if let Some(right) = right {
        slots.extend(right.slots().iter().map(Slot::copy));
        range.end += 1;
        return right.slots().len();
    }
    match range.start.checked_sub(1).and_then(fits) {
        Some(left) => {
            slots.splice(0..0, left.slots().iter().map(Slot::copy));
            range.start -= 1;
            left.slots().len()
        }
        None => 0,
    }
}

/// Cuts nodes into chunks: even ones, or full ones at the end of the level, where ascending insertions go on.
fn cut(slots: Vec<Slot>, at_end: bool) -> Vec<Chunk> {
    let pieces = slots.len().div_ceil(NODES_MAX);
    let size = if at_end { NODES_MAX } else { slots.len().div_ceil(pieces.max(1)) };
    let mut chunks = Vec::with_capacity(pieces);
    let mut rest = slots.into_iter();
    for _ in 0..pieces {
        chunks.push(Chunk::new(rest.by_ref().take(size).collect()));
    }
    chunks
}
