//! Pairs that lie outside of their leaves, in blocks ([`crate::layout::BlockFormat`]): READs of many of them at once,
//! for scans, splits and checks. What one lookup or one write reads is each tree's own.
//!
//! A reader reads a leaf, then the blocks that it leads to. A block's key never changes; its value is changed in place
//! only as long as an entry leads to it, and an address is not used again. So a block that was read behind its leaf has
//! a value that was the key's at some moment since the leaf was read, whatever became of the entry meanwhile:
//!
//! ```text
//!   reader   READ leaf: k in block B ·············································> READ block B: 2
//!   writers                           B := 2 (in place)   k's entry := block C, 3     k had 2 here ─┘ or before
//! ```

use std::ops::Range;

use farwood_runtime::{Chain, Meter, RemotePtr, ServerId, Verbs};
use smallvec::SmallVec;

use super::{BTree, LeafFormat};
use crate::error::AccessError;
use crate::layout::{BlockFormat, BlockPtr, BlockView, Rejection};
use crate::range_index::Pair;
use crate::shell::handle::Local;
use crate::step::Budget;

/// Blocks that one chain reads. What fails is posted again by the chain, so long ones would hardly get through where
/// queue pairs break often.
const CHAIN_MAX: usize = 8;

/// Pairs of a leaf that lie outside of it, as they were read; none if they lie in it.
pub(crate) type Outside = Option<Result<Vec<Pair>, Rejection>>;

/// Blocks on their way.
pub(crate) struct BlockReads<S>(SmallVec<[Part<S>; 2]>);

impl<S> BlockReads<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<S> Default for BlockReads<S> {
    fn default() -> Self {
        BlockReads(SmallVec::new())
    }
}

/// Those of one chain.
struct Part<S> {
    read: S,
    near: RemotePtr,
    /// The slots of their entries, and where they are in the chain's buffer.
    blocks: Vec<(usize, Range<usize>)>,
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Yields the format of blocks, of a tree that has them.
    pub(crate) fn blocks(&self) -> &BlockFormat {
        self.leaf().blocks().expect("the tree's pairs lie in blocks")
    }

    /// Posts READs of these blocks, in chains of a few for each server; of each block as many
    /// bytes as `part` says. What is posted together is one round trip, which the caller counts if anything is.
    pub(crate) fn post_blocks(
        &self,
        meter: &Meter,
        blocks: &[(usize, BlockPtr)],
        part: impl Fn(BlockPtr) -> usize,
    ) -> BlockReads<V::Submission> {
        let mut sorted: Vec<_> = blocks.to_vec();
        let server = |(_, block): &(usize, BlockPtr)| block.address().server();
        sorted.sort_by_key(server);
        let of_servers = sorted.chunk_by(|a, b| server(a) == server(b));
        let chains = of_servers.flat_map(|blocks| blocks.chunks(CHAIN_MAX));
        BlockReads(chains.map(|blocks| self.post_chain(meter, server(&blocks[0]), blocks, &part)).collect())
    }

    fn post_chain(
        &self,
        meter: &Meter,
        server: ServerId,
        blocks: &[(usize, BlockPtr)],
        part: &impl Fn(BlockPtr) -> usize,
    ) -> Part<V::Submission> {
        let bytes = blocks.iter().map(|(_, block)| part(*block)).sum();
        let mut chain = Chain::with_buffer(server, self.verbs.lease(bytes));
        let (mut end, mut places) = (0, Vec::with_capacity(blocks.len()));
        for (slot, block) in blocks {
            let place = end..end + part(*block);
            end = place.end;
            chain.read(block.address(), place.clone());
            places.push((*slot, place));
        }
        let near = blocks[0].1.address();
        Part { read: self.verbs.post(meter, chain), near, blocks: places }
    }

    /// Waits for blocks, and shows `take` the slot of each with what was read of it. One round trip more for each queue
    /// pair that breaks meanwhile.
    ///
    /// # Errors
    /// The cause, if asking again does not help or the budget is spent.
    async fn await_blocks(
        &self,
        meter: &Meter,
        reads: BlockReads<V::Submission>,
        budget: &mut Budget,
        mut take: impl FnMut(usize, &[u8]),
    ) -> Result<(), AccessError> {
        for Part { mut read, near, blocks } in reads.0 {
            let buf = loop {
                match read.await {
                    Ok(done) => break done.into_buf(),
                    Err(failed) => {
                        let chain = budget.post_again(meter, near, failed)?;
                        read = self.verbs.submit(meter, chain);
                    }
                }
            };
            for (slot, place) in blocks {
                take(slot, &buf[place]);
            }
        }
        Ok(())
    }

    /// Waits for blocks that were posted, and yields by slot what `parse` finds in each.
    ///
    /// # Errors
    /// As [`Local::await_blocks`]. The inner one is that of `parse`.
    pub(crate) async fn parse_blocks<T>(
        &self,
        meter: &Meter,
        reads: BlockReads<V::Submission>,
        budget: &mut Budget,
        parse: impl Fn(BlockView<'_>) -> Result<T, Rejection>,
    ) -> Result<Vec<(usize, Result<T, Rejection>)>, AccessError> {
        let (format, mut parsed) = (*self.blocks(), Vec::new());
        self.await_blocks(meter, reads, budget, |slot, image| {
            parsed.push((slot, format.view(image).and_then(&parse)));
        })
        .await?;
        parsed.sort_by_key(|(slot, _)| *slot);
        Ok(parsed)
    }

    /// Posts READs of whole blocks.
    pub(crate) fn post_pairs(
        &self,
        meter: &Meter,
        blocks: &[(usize, BlockPtr)],
    ) -> BlockReads<V::Submission> {
        let format = *self.blocks();
        self.post_blocks(meter, blocks, |block| format.bytes(block))
    }

    /// Waits for the blocks of a leaf, and yields its pairs.
    ///
    /// # Errors
    /// As [`Local::await_blocks`]. The inner one is that of a block.
    pub(crate) async fn await_pairs(
        &self,
        meter: &Meter,
        reads: BlockReads<V::Submission>,
        budget: &mut Budget,
    ) -> Result<Result<Vec<Pair>, Rejection>, AccessError> {
        let pairs = self.parse_blocks(meter, reads, budget, |block| block.pair()).await?;
        Ok(pairs.into_iter().map(|(_, pair)| pair).collect())
    }
}
