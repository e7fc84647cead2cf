//! Blocks of an indirect tree's pairs, one by one (CHIME section 4.5): what a lookup and a write read of them, how a
//! new one comes to its leaf, and how a value is replaced in place. READs of many at once are
//! [`crate::btree::blocks`]'s.
//!
//! Blocks have no locks: that of the leaf whose entry leads to them protects them. Readers take none; the checksum
//! tells them what is torn.

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, ServerId, Verbs};

use super::lookup::{Verdict, judge};
use super::write::Blocks;
use super::{ChimeAlgorithm, Tree};
use crate::btree::BTree;
use crate::btree::blocks::Outside;
use crate::error::{AccessError, WriteError};
use crate::layout::{BlockPtr, Bytes, Rejection};
use crate::shell::nodes::{NewNodes, NodeList};
use crate::step::{Budget, Step};
use crate::value::Value;

/// A pair's new block. Goes back to the allocator unless it is published.
pub(super) struct NewBlock<'t, V: Verbs> {
    nodes: NewNodes<'t, ChimeAlgorithm, V>,
    pub(super) at: BlockPtr,
}

impl<V: Verbs> NewBlock<'_, V> {
    /// Marks the block as one that other clients may find from here on: it never goes back.
    pub(super) fn publish(mut self) -> NodeList {
        self.nodes.publish()
    }
}

/// A block that no entry of its leaf leads to any more, as soon as a write-back has come to its end. Dropped before
/// that, the janitor waits for that end: a write-back that was posted takes effect before the leaf's lock is free, or
/// its server is given up.
pub(super) struct OldBlock<'t, V: Verbs> {
    tree: &'t Tree<V>,
    leaf: RemotePtr,
    at: BlockPtr,
    is_out: bool,
}

impl<V: Verbs> OldBlock<'_, V> {
    /// Retires the block: the write-back has taken effect.
    pub(super) fn retire(mut self) {
        self.is_out = true;
    }
}

impl<V: Verbs> Drop for OldBlock<'_, V> {
    fn drop(&mut self) {
        let (tree, leaf, block) = (self.tree, self.leaf, self.at.address());
        let bytes = tree.blocks().bytes(self.at) as u64;
        if self.is_out {
            return tree.allocator.retire(block, bytes);
        }
        let Some(tree) = tree.me.upgrade() else { return tree.allocator.retire_unsettled(block, bytes) };
        self.tree.verbs.defer(async move {
            let meter = Meter::default();
            let settled = tree.persist(async || ChimeAlgorithm::settle_leaf(&tree, &meter, leaf).await).await;
            tracing::debug!(name: "chime.block.settled", %block, ?settled, "a dropped write has left a block");
            match settled {
                Ok(()) => tree.allocator.retire(block, bytes),
                Err(_) => tree.allocator.retire_unsettled(block, bytes),
            }
        });
    }
}

impl<V: Verbs> Tree<V> {
    /// Begins to take a block out of the index, with the write-back of `leaf` that is posted next.
    pub(super) fn leave_behind(&self, leaf: RemotePtr, at: BlockPtr) -> OldBlock<'_, V> {
        OldBlock { tree: self, leaf, at, is_out: false }
    }

    /// Reads the blocks of those entries of a neighbourhood that have the key's fingerprint, one after the other: a
    /// round trip each, and more than one is a coincidence of 64 bits. Yields the value, or none if the blocks are
    /// other keys'.
    ///
    /// # Errors
    /// Those of the fabric. The inner one is that of an entry, or of a block: it may be torn.
    pub(super) async fn read_value(
        &self,
        meter: &Meter,
        image: &Buf,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Result<Option<Value>, Rejection>, AccessError> {
        let blocks = self.blocks();
        let candidates = match self.leaf().candidates(image, key) {
            Ok(candidates) => candidates,
            Err(rejection) => return Ok(Err(rejection)),
        };
        for (_, block) in candidates {
            let bytes = blocks.value_part(block, key.len());
            let buf = self.read(meter, block.address(), bytes, budget).await?;
            match blocks.view(&buf) {
                Ok(view) if view.is_of(key) => {
                    let value = view.value();
                    return Ok(value.map(|value| Some(Value::at(buf, value))));
                }
                Ok(_) => met_another(block),
                Err(rejection) => return Ok(Err(rejection)),
            }
        }
        Ok(Ok(None))
    }

    /// Judges an indirect leaf's neighbourhood by its blocks, where [`judge`] has found an entry: the value, or what
    /// else there is to do.
    ///
    /// # Errors
    /// Those of the fabric.
    pub(super) async fn judge_block(
        &self,
        meter: &Meter,
        (image, has_header): (&Buf, bool),
        key: &[u8],
        next: Option<RemotePtr>,
        noticed: impl Fn(u32) -> bool,
        budget: &mut Budget,
    ) -> Result<Result<Value, Verdict>, AccessError> {
        Ok(match self.read_value(meter, image, key, budget).await? {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(judge(self.leaf().lookup_others(image, key, has_header), next, noticed)),
            Err(rejection) => {
                tracing::debug!(name: "chime.block.torn", %rejection, "a block met a write, or is none");
                Err(Verdict::Go(Step::Reread(Some(rejection))))
            }
        })
    }

    /// Finds the entry of the key among those that have its fingerprint, under the leaf's lock: a round trip each.
    /// Yields also the block that it leads to.
    ///
    /// # Errors
    /// Those of the fabric, and if there is no block where an entry says so.
    pub(super) async fn find_block(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        image: &Buf,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<(Blocks, Option<BlockPtr>), AccessError> {
        let blocks = self.blocks();
        let corrupt = |rejection| AccessError::corrupt(leaf, rejection);
        for (slot, block) in self.leaf().candidates(image, key).map_err(corrupt)? {
            let bytes = blocks.key_part(block, key.len());
            let buf = self.read(meter, block.address(), bytes, budget).await?;
            if blocks.view(&buf).map_err(corrupt)?.is_of(key) {
                return Ok((Blocks::At(slot), Some(block)));
            }
            met_another(block);
        }
        Ok((Blocks::OfOthers, None))
    }

    /// Allocates a block for a pair, on the server of its leaf if that has memory left.
    pub(super) async fn new_block(
        &self,
        server: ServerId,
        key: &[u8],
        value: &[u8],
    ) -> Result<NewBlock<'_, V>, WriteError> {
        let (blocks, mut nodes) = (self.blocks(), self.new_nodes());
        let bytes = blocks.block_bytes(key.len(), value.len());
        let at = nodes.allocate(Some(server), bytes).await?;
        Ok(NewBlock { nodes, at: blocks.pointer(at, bytes) })
    }

    /// Writes a pair to its new block: one round trip.
    pub(super) async fn write_block(
        &self,
        meter: &Meter,
        block: &NewBlock<'_, V>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), AccessError> {
        let mut buf = self.verbs.lease(self.blocks().bytes(block.at));
        let sent = self.blocks().build(&mut buf, key, value);
        self.write_new(meter, block.at.address(), buf, sent).await?;
        Ok(())
    }

    /// Begins the write-back of a leaf, in a chain whose buffer begins with its image. If it leads to a new block, that
    /// is written first, and may be found from here on. No round trip, unless the block is on another server.
    pub(super) async fn begin_write_back(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        image: Buf,
        block: Option<NewBlock<'_, V>>,
        (key, value): (&[u8], &[u8]),
    ) -> Result<Chain, AccessError> {
        let Some(block) = block else { return Ok(Chain::with_buffer(leaf.server(), image)) };
        let (blocks, bytes, at) = (self.blocks(), image.len(), block.at.address());
        let mut buf = self.verbs.lease(bytes + blocks.bytes(block.at));
        buf[..bytes].copy_from_slice(&image);
        let sent = blocks.build(&mut buf[bytes..], key, value);
        let sent = bytes + sent.start..bytes + sent.end;
        let together = at.server() == leaf.server();
        if !together {
            tracing::debug!(name: "chime.block.apart", %leaf, block = %at, "a block is not on its leaf's server");
            buf = self.write_new(meter, at, buf, sent.clone()).await?;
        }
        let mut chain = Chain::with_buffer(leaf.server(), buf);
        if together {
            chain.write(at, sent);
        }
        block.publish();
        Ok(chain)
    }

    /// Writes another value into the key's block, which has room and is on the leaf's server, and unlocks: one round
    /// trip.
    pub(super) async fn write_in_place(
        &self,
        meter: &Meter,
        held: Held<V>,
        block: BlockPtr,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), AccessError> {
        let mut buf = self.verbs.lease(self.blocks().bytes(block));
        let sent = self.blocks().build(&mut buf, key, value);
        let mut chain = Chain::with_buffer(block.address().server(), buf);
        chain.write(block.address(), sent);
        held.release(meter, chain, true).await?;
        Ok(())
    }

    /// Yields the keys of a leaf that was read whole, by slot: of an indirect one from its blocks, under its lock, in
    /// one round trip.
    ///
    /// # Errors
    /// Those of the fabric, and if the leaf or a block is not as writers leave it.
    pub(super) async fn keys_of(&self, meter: &Meter, image: &Buf) -> Result<KeysBySlot, AccessError> {
        let (layout, mut budget) = (self.leaf(), self.budget());
        let Some(format) = layout.blocks() else {
            return Ok(layout.view(image).and_then(|leaf| leaf.keys()));
        };
        let blocks = match layout.view(image).and_then(|leaf| leaf.blocks()) {
            Ok(blocks) => blocks,
            Err(rejection) => return Ok(Err(rejection)),
        };
        meter.round_trip();
        let reads = self.post_blocks(meter, &blocks, |block| format.any_key_part(block));
        let key = |view: crate::layout::BlockView<'_>| view.key().map(Bytes::from_slice);
        let keys = self.parse_blocks(meter, reads, &mut budget, key).await?;
        Ok(keys.into_iter().map(|(slot, key)| Ok((slot, key?))).collect())
    }

    /// Yields the pairs of a leaf that was read whole, of an indirect tree, under its lock: one round trip.
    pub(super) async fn pairs_of(&self, meter: &Meter, image: &Buf) -> Result<Outside, AccessError> {
        let blocks = match self.leaf().view(image).and_then(|leaf| leaf.blocks()) {
            Ok(blocks) => blocks,
            Err(rejection) => return Ok(Some(Err(rejection))),
        };
        meter.round_trip();
        let reads = self.post_pairs(meter, &blocks);
        Ok(Some(self.await_pairs(meter, reads, &mut self.budget()).await?))
    }
}

/// Keys with the slots of their entries.
pub(super) type KeysBySlot = Result<Vec<(usize, Bytes)>, Rejection>;

/// Notes that an entry has a key's fingerprint and not the key.
#[cold]
fn met_another(block: BlockPtr) {
    tracing::debug!(name: "chime.block.other", block = %block.address(), "keys have the same fingerprint");
}
