//! The nodes of one level as merges see them, leaves and inner nodes alike: which are merged, where they lock, how two
//! become one, and how one is marked as gone. Whatever of that differs by level is here. It does not know when any of
//! it is done.

use std::ops::Range;

use farwood_lock::{Held, LockError};
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::separator::borrowed;
use super::{BTree, LeafFormat};
use crate::error::AccessError;
use crate::layout::{
    Bytes, Header, InnerLayout, Malformed, NodeHeader, Rejection, freeze, kind_of, mark_freed, thaw,
};
use crate::shell::handle::Local;
use crate::shell::merging;

/// The format of the nodes of one level. Pure.
pub(super) struct Format<'t, L> {
    pub(super) level: u8,
    pub(super) leaf: &'t L,
    pub(super) inner: &'t InnerLayout,
}

impl<L: LeafFormat> Format<'_, L> {
    /// Tells whether a node with so few pairs or entries should be merged. Of an inner node it is never less than one,
    /// however small nodes are.
    pub(super) fn is_low(&self, count: usize) -> bool {
        match self.level {
            0 => merging::is_low(count, self.leaf.slots()),
            _ => count <= 1 || merging::is_low(count, self.inner.slots()),
        }
    }

    /// Tells whether a node with the pairs or entries of two is far enough from full.
    pub(super) fn fits(&self, count: usize) -> bool {
        match self.level {
            0 => merging::fits(count, self.leaf.slots()),
            _ => count <= 2 || merging::fits(count, self.inner.slots()),
        }
    }

    /// Yields fences and neighbour of a whole node, and counts its pairs or entries.
    ///
    /// # Errors
    /// If it is none of this level, or is torn.
    pub(super) fn fill<'a>(&'a self, image: &'a [u8]) -> Result<(Header<'a>, usize), Rejection> {
        if self.level == 0 {
            return self.leaf.fill(image);
        }
        let view = self.inner.view(image)?;
        if view.header().level() != self.level {
            return Err(Malformed::Level.into());
        }
        Ok((*view.header(), view.len()))
    }

    /// Makes `image` a node with `header` and all that is in both nodes; yields whether there is room for it.
    ///
    /// # Errors
    /// That of a pair or entry that no writer leaves.
    pub(super) fn unite(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        [left, right]: [&[u8]; 2],
    ) -> Result<bool, Rejection> {
        if self.level == 0 {
            return self.leaf.unite(image, header, [left, right]);
        }
        let mut entries = self.inner.view(left)?.sorted_entries()?;
        entries.extend(self.inner.view(right)?.sorted_entries()?);
        let has_room = entries.len() <= self.inner.slots();
        if has_room {
            self.inner.build(image, header, borrowed(&entries));
        }
        Ok(has_room)
    }

    /// Marks a whole node as frozen; yields the bytes to send.
    pub(super) fn freeze(&self, image: &mut [u8]) -> Range<usize> {
        if self.level == 0 { self.leaf.freeze(image) } else { freeze(image) }
    }

    /// Makes a node of one that is frozen or freed; yields the bytes to send.
    pub(super) fn thaw(&self, image: &mut [u8]) -> Range<usize> {
        if self.level == 0 { self.leaf.thaw(image) } else { thaw(image) }
    }

    /// Marks a node as freed whose keys are those of `heir` now; yields the bytes to send. An inner node names no heir:
    /// memory of that may be a node of another kind before nothing leads to this one.
    pub(super) fn free(&self, image: &mut [u8], heir: RemotePtr) -> Range<usize> {
        mark_freed(image, if self.level == 0 { heir } else { RemotePtr::NULL })
    }

    /// Yields where a node begins that is frozen or freed, and which of the two it is; none if it is neither.
    pub(super) fn low_of(&self, image: &[u8]) -> Option<(Bytes, Rejection)> {
        let rejection = kind_of(image).err()?;
        if !matches!(rejection, Rejection::Frozen | Rejection::Freed) {
            return None;
        }
        let mut whole = image.to_vec();
        self.thaw(&mut whole);
        let low = self.fill(&whole).ok().map(|(header, _)| header.low())?;
        Some((low, rejection))
    }

    /// Yields the place of a lock within a node.
    fn lock_place(&self) -> Option<usize> {
        if self.level == 0 { self.leaf.lock_place() } else { None }
    }
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Yields the format of the nodes of `level`.
    pub(super) fn format(&self, level: u8) -> Format<'_, A::Leaf> {
        Format { level, leaf: self.leaf(), inner: self.inner() }
    }

    /// Yields the word that locks a node.
    pub(super) fn lock_word(&self, level: u8, node: RemotePtr) -> RemotePtr {
        self.format(level).lock_place().map_or_else(|| self.locks.word_of(node), |at| node.add(at as u64))
    }

    /// Locks and reads a whole node, as [`Local::lock_node`] does.
    pub(super) async fn lock_whole(
        &self,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
    ) -> Result<(Held<V>, Buf), AccessError> {
        let held = match level {
            0 => self.acquire_leaf(meter, node).await?,
            _ => self.locks.acquire(meter, node).await?,
        };
        Ok(self.read_with_lock(meter, held, self.node_bytes(level), self.chains().fused).await?)
    }

    /// Locks and reads a whole node, if its lock is free: for a client that holds another one.
    pub(super) async fn try_lock_whole(
        &self,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
    ) -> Result<Option<(Held<V>, Buf)>, AccessError> {
        let held = match self.format(level).lock_place() {
            Some(at) => self.locks.try_acquire_embedded(node, node.add(at as u64)).await?,
            None => self.locks.try_acquire(node).await?,
        };
        let Some(held) = held else { return Ok(None) };
        match self.read_with_lock(meter, held, self.node_bytes(level), self.chains().fused).await {
            Ok(locked) => Ok(Some(locked)),
            Err(LockError::Contended { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a whole node as [`Local::read_node_locked`] does.
    pub(super) async fn read_whole_locked(
        &self,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
    ) -> Result<Buf, AccessError> {
        tracing::debug!(name: "btree.read.locked", %node, "a reader takes the lock");
        let (held, image) = self.lock_whole(meter, level, node).await?;
        self.unlock(meter, held).await?;
        Ok(image)
    }

    /// Adds WRITEs of that part of a node, which is in the chain's buffer as it is to be, but for its lock.
    pub(super) fn write_whole(&self, chain: &mut Chain, level: u8, node: RemotePtr, part: Range<usize>) {
        let lock = self.format(level).lock_place().map(|at| at..at + 8);
        let lock = lock.filter(|lock| part.contains(&lock.start)).unwrap_or(part.end..part.end);
        for part in [part.start..lock.start, lock.end..part.end] {
            if !part.is_empty() {
                chain.write(node.add(part.start as u64), part);
            }
        }
    }
}
