//! A run of up to 64 neighbouring nodes of one level, immutable except for the use stamps: the unit that
//! writers copy.
//!
//! The nodes' low keys are packed once more beside them, so that a lookup touches only the node that it
//! wants.

use crate::key_list::KeyList;
use crate::keys::{self, Keys};
use crate::node::Node;
use crate::sync::{ArcSwap, AtomicU32, NODES_MAX, Ordering};

/// A chunk with fewer nodes than this looks for a neighbour to merge with.
pub(crate) const NODES_FEW: usize = NODES_MAX / 4;

const ARC_BYTES: usize = 2 * size_of::<usize>();

/// The cell in which directories keep a chunk: published by the writer, loaded by readers.
pub(crate) type ChunkCell = ArcSwap<Chunk>;

/// Bytes of a cell beyond the chunk in it: the cell in its own allocation, and the directory's pointer to it.
pub(crate) const CELL_BYTES: usize = ARC_BYTES + size_of::<ChunkCell>() + size_of::<usize>();

/// Nodes in key order whose ranges do not overlap.
pub(crate) struct Chunk {
    lows: Box<[u64]>,
    slots: Box<[Slot]>,
}

/// A node in its chunk.
pub(crate) struct Slot {
    pub(crate) node: Node,
    /// Epoch of the last use.
    stamp: AtomicU32,
    /// The number of the insertion that brought it, modulo 2^32: tells a node from another one at the same
    /// place.
    pub(crate) born: u32,
}

impl Slot {
    pub(crate) fn new(node: Node, epoch: u32, born: u32) -> Self {
        Slot { node, stamp: AtomicU32::new(epoch), born }
    }

    /// Notes a use. Writes only once per epoch, so that the line of a hot node stays shared between cores.
    #[inline]
    pub(crate) fn touch(&self, epoch: u32) {
        if self.stamp.load(Ordering::Relaxed) != epoch {
            self.stamp.store(epoch, Ordering::Relaxed);
        }
    }

    /// Counts the epochs since the last use.
    pub(crate) fn idle(&self, epoch: u32) -> u32 {
        // A reader may have seen a newer epoch than the caller: that is "just now", not "ages ago".
        (epoch.wrapping_sub(self.stamp.load(Ordering::Relaxed)) as i32).max(0) as u32
    }

    /// Copies a slot for a changed copy of the chunk. A use noted in the old chunk meanwhile is lost, which
    /// costs only precision.
    pub(crate) fn copy(&self) -> Self {
        Slot::new(self.node.clone(), self.stamp.load(Ordering::Relaxed), self.born)
    }
}

impl Chunk {
    /// Makes a chunk of `slots` in key order, at most [`NODES_MAX`].
    pub(crate) fn new(slots: Vec<Slot>) -> Self {
        assert!(slots.len() <= NODES_MAX);
        let mut lows = KeyList::default();
        slots.iter().for_each(|slot| lows.push(slot.node.keys(), 0));
        let lows = lows.pack().expect("the low keys of packed nodes ascend and are short");
        Chunk { lows, slots: slots.into() }
    }

    /// Makes a copy with another node at `place`, which begins where the old one does.
    pub(crate) fn with(&self, place: usize, slot: Slot) -> Self {
        let mut slots: Box<[Slot]> = self.slots.iter().map(Slot::copy).collect();
        slots[place] = slot;
        Chunk { lows: self.lows.clone(), slots }
    }

    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Finds the last node that does not begin above `key`. Whether it reaches as far as `key`, the node
    /// tells.
    #[inline]
    pub(crate) fn floor(&self, key: &[u8]) -> Option<usize> {
        keys::prefetch(&self.lows);
        Keys::new(&self.lows).rank(key).checked_sub(1)
    }

    /// Counts the nodes that begin below `key`.
    pub(crate) fn begin_below(&self, key: &[u8]) -> usize {
        Keys::new(&self.lows).rank_below(key)
    }

    /// Counts the bytes that the chunk and its nodes take.
    pub(crate) fn bytes(&self) -> usize {
        let nodes: usize = self.slots.iter().map(|slot| slot.node.bytes()).sum();
        ARC_BYTES + size_of::<Self>() + size_of_val(&*self.lows) + size_of_val(&*self.slots) + nodes
    }
}
