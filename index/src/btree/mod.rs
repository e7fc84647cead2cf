//! The part of a B+tree above its leaves: inner nodes, the root word, splits of inner nodes and roots, separators that
//! are missing and their repair, the inner levels of a bulk load and of a check. A B-link tree (Lehman and Yao): one
//! lock at a time, and between a split and its separator the right half is reached over the sibling pointer.
//!
//! It serves every tree that brings leaves of its own, and must not know what is in a leaf, how its lock works, nor
//! whether a reader wants all of it. Lookups, writes and splits of leaves are each tree's own control flow: it
//! asks for the way to a leaf, reads and judges what it likes of it, and says where to go on.
//!
//! # What a tree supplies
//!
//! | | what | why |
//! |---|---|---|
//! | [`BTree`] | `node`, `shard` | its states hold those of this module, beside what else it keeps |
//! | | `chains` | inner nodes are written with the tree's techniques |
//! | | `settle_leaf`, `read_leaf_locked` | take its lock: for a separator of unknown outcome, for a scan in doubt |
//! | [`LeafFormat`] | `node_bytes`, `slots` | memory for leaves, and how full they are |
//! | | `writer_reads` | versions wrap around no faster than writers read: that bounds how long a READ may take |
//! | | `WRITES_NOTICED` | a scan's READ of a leaf that took less time than so many writes is beyond doubt |
//! | | `room_for`, `build` | the first leaf of a tree, and the leaves of a bulk load |
//! | | `view` | the pairs of a leaf in order, for scans, and how long a READ of all of it may take |
//! | | `fill`, `unite` | leaves that are nearly empty are merged |
//! | | `freeze`, `thaw` | a leaf that is being merged answers for no key |
//! | | `lock_place` | where the lock is within a leaf: merges take it, checks tell those of the dead |
//! | | `TOLD_BY_ADDRESS` | whether leaves' memory is used again before caches are emptied |
//! | | `glimpse` | a check goes on behind a leaf that cannot be read |
//! | | `sight` | a check judges a leaf by itself; it and a repair compare its links with what others say |
//! | | `blocks` | where pairs lie outside of leaves: bulk loads write blocks, scans and checks read them |
//!
//! Of these `build`, `view` and `sight` are about whole leaves: new ones, those of scans, of checks and of repairs.
//!
//! # What a tree finds here
//!
//! | file | what |
//! |---|---|
//! | `descend.rs` | the leaf that should answer for a key, the way on from one that does not, and from the root anew |
//! | `scan.rs` | scans: windows of whole leaves, read in parallel and consumed in the order of keys |
//! | `window.rs` | the leaves from a key on, as level 1 has them: what a scan reads next |
//! | `blocks.rs` | READs of pairs that lie outside of their leaves |
//! | `node.rs` | READs and WRITEs of whole nodes, under locks and without; new nodes; how long versions hold |
//! | `root.rs` | the root word, the first leaf |
//! | `split.rs` | what the two halves of a node have in common with it; how they are published |
//! | `separator.rs` | what a split owes to the level above, up to a new root |
//! | `repair.rs` | separators whose splitter died |
//! | `merge.rs`, `lower.rs` | merges of nodes that are nearly empty; roots with one child, which take it for the root |
//! | `format.rs` | how leaves and inner nodes differ for that |
//! | `freed.rs`, `retired.rs` | what clients do that meet a node which is gone; what becomes of its memory |
//! | `bulk_load.rs`, `check.rs` | all of it, but for the bytes of leaves |
//! | `observed_node.rs` | a node as a check or a repair sees it, with the faults inside it |

pub(crate) mod blocks;
pub(crate) mod bulk_load;
pub(crate) mod check;
pub(crate) mod descend;
mod format;
mod freed;
mod lower;
pub(crate) mod mark;
mod merge;
pub(crate) mod node;
pub(crate) mod observed_node;
mod repair;
mod retired;
mod root;
pub(crate) mod scan;
pub(crate) mod separator;
pub(crate) mod split;
mod window;

use std::ops::{Range, RangeBounds};
use std::sync::Arc;

use farwood_cache::{CacheConfig, CacheReader, NodeCache};
use farwood_lock::LockWord;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use self::blocks::Outside;
use self::observed_node::{Depth, ObservedNode};
use self::repair::Missing;
use self::retired::Merges;
use crate::error::AccessError;
use crate::layout::{
    BlockFormat, BlockPtr, Glimpse, Header, InnerLayout, NodeHeader, Rejection, SlotOrder, freeze, thaw,
};
use crate::range_index::Pair;
use crate::shell::algorithm::Algorithm;
use crate::shell::flushes::Flushes;
use crate::shell::handle::Local;

/// A B+tree with leaves of its own.
pub trait BTree: Algorithm {
    /// The format of its leaves.
    type Leaf: LeafFormat;

    /// Yields what the compute node's state has for this module.
    fn node(state: &Self::NodeState) -> &NodeState<Self::Leaf>;

    /// Yields what a shard's state has for this module.
    fn shard(state: &Self::ShardState) -> &ShardState;

    /// Tells which verbs share a chain where an inner node is written.
    fn chains(techniques: Self::Techniques) -> Chains;

    /// Takes the lock of `leaf` and gives it back: afterwards, all that its previous holder began has taken effect.
    fn settle_leaf<V: Verbs>(
        local: &Local<Self, V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> impl Future<Output = Result<(), AccessError>>;

    /// Reads all of a leaf under its lock, wherever that is, so that no client writes it meanwhile; and its pairs,
    /// where they lie outside of it.
    fn read_leaf_locked<V: Verbs>(
        local: &Local<Self, V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> impl Future<Output = Result<(Buf, Outside), AccessError>>;
}

/// The bytes of a tree's leaves. Pure.
pub trait LeafFormat: Send + Sync + 'static {
    /// A whole leaf that was read.
    type View<'a>: WholeLeaf
    where
        Self: 'a;

    /// The writes of a leaf among which a reader of all of it notices each that lies within its READ: any leaf's
    /// [`WholeLeaf::writes_noticed`] are at least these.
    const WRITES_NOTICED: u32;

    /// Counts the bytes of a leaf, a multiple of 64.
    fn node_bytes(&self) -> usize;

    /// Counts the pairs that fit into a leaf.
    fn slots(&self) -> usize;

    /// Tells whether readers conclude from the addresses of a leaf and of its neighbour, as inner nodes have them, for
    /// which keys it answers. Then memory of a leaf is used again only when no copy of an inner node has its address;
    /// by default when its parent has not (`retired.rs`).
    const TOLD_BY_ADDRESS: bool = false;

    /// Counts the bytes of a leaf that a writer READs at least, under its lock, before it WRITEs.
    fn writer_reads(&self) -> usize;

    /// Counts those of the ascending keys, from the first on, that one leaf has room for; they are no more than it has
    /// slots. By default all of them.
    fn room_for<'k>(&self, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> usize {
        keys.len()
    }

    /// Yields the format of blocks if the pairs lie in these, and leaves have what leads there. By default they lie in
    /// the leaves.
    fn blocks(&self) -> Option<&BlockFormat> {
        None
    }

    /// Makes `image`, whatever it held, a leaf with `header` and these pairs, ascending and no more than there is room
    /// for ([`LeafFormat::room_for`]); where these lie in blocks, each with [`BlockPtr::bits`] in the place of its
    /// value.
    fn build<'p>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    );

    /// Parses a whole leaf, whose lines agree as far as node versions tell.
    ///
    /// # Errors
    /// If it is none, or is torn.
    fn view<'a>(&'a self, image: &'a [u8]) -> Result<Self::View<'a>, Rejection>;

    /// Reads what the first line of an image says, which is never torn.
    ///
    /// # Errors
    /// If there is no leaf.
    fn glimpse(&self, line: &[u8]) -> Result<Glimpse, Rejection>;

    /// Yields fences and neighbour of a whole leaf, and counts its pairs.
    ///
    /// # Errors
    /// If it is none, or is torn.
    fn fill<'a>(&'a self, image: &'a [u8]) -> Result<(Header<'a>, usize), Rejection>;

    /// Makes `image` a leaf with `header` and the pairs of both leaves; yields whether there is room for all of them.
    ///
    /// # Errors
    /// That of a pair that no writer leaves.
    fn unite(&self, image: &mut [u8], header: &NodeHeader<'_>, leaves: [&[u8]; 2])
    -> Result<bool, Rejection>;

    /// Marks a whole leaf as frozen; yields the bytes to send. By default one word, which all readers look at first.
    fn freeze(&self, image: &mut [u8]) -> Range<usize> {
        freeze(image)
    }

    /// Makes a leaf of one that is frozen or freed, which has all else that it had before; yields the bytes to send.
    /// One that is torn stays so.
    fn thaw(&self, image: &mut [u8]) -> Range<usize> {
        thaw(image)
    }

    /// Yields the place of a lock within the leaf, in bytes of it. By default it is in the lock table.
    fn lock_place(&self) -> Option<usize> {
        None
    }

    /// Yields the place of a lock within the leaf, and the word there if it is held.
    fn lock(&self, image: &[u8]) -> Option<(usize, LockWord)> {
        let at = self.lock_place()?;
        let word = u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
        LockWord::from_bits(word).map(|word| (at, word))
    }

    /// Judges a leaf by itself, and yields its links.
    ///
    /// # Errors
    /// If it is none, or is torn. What is wrong with single entries is among the faults of what is seen.
    fn sight(&self, image: &[u8], depth: Depth) -> Result<ObservedNode, Rejection>;
}

/// A whole leaf as a scan sees it. Pure.
pub trait WholeLeaf {
    /// Yields fences and neighbour.
    fn header(&self) -> &Header<'_>;

    /// Counts the writes of which none within the READ goes unnoticed, as far as the pairs in `bounds` depend on it: a
    /// READ that took as long as so many proves nothing.
    fn writes_noticed(&self, bounds: &impl RangeBounds<[u8]>) -> u32;

    /// Yields the blocks of all pairs, with the slots of their entries. By default pairs lie in the leaf.
    ///
    /// # Errors
    /// As [`WholeLeaf::copy_sorted`].
    fn blocks(&self) -> Result<Vec<(usize, BlockPtr)>, Rejection> {
        Ok(Vec::new())
    }

    /// Tells whether the entry in that slot, whose pair lies in a block, is one of `key`.
    fn leads_to(&self, _slot: usize, _key: &[u8]) -> bool {
        true
    }

    /// Appends the pairs with keys in `bounds` to `pairs`, ascending by key and each key once, but at most `limit`.
    ///
    /// # Errors
    /// [`Rejection::Torn`] if what they depend on comes from different moments; another one if no writer leaves such
    /// an entry. Nothing is appended then.
    fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), Rejection>;
}

/// Verbs that share a chain, and so a round trip.
#[derive(Clone, Copy, Debug)]
pub struct Chains {
    /// A lock's CAS and the READ of its node.
    pub fused: bool,
    /// The WRITEs of a node, or of two on one server, and the unlock.
    pub combine: bool,
}

/// State of a B+tree that the shards of a compute node share: the formats of its nodes, the cache of inner ones.
pub struct NodeState<L> {
    leaf: L,
    inner: InnerLayout,
    cache: Arc<NodeCache>,
    flushes: Flushes,
}

/// State of one shard: its view of the cache, the separators that it has found missing, its merges.
pub struct ShardState {
    pub(crate) reader: CacheReader,
    missing: Missing,
    merges: Merges,
}

impl<L> NodeState<L> {
    pub(crate) fn new(leaf: L, inner: InnerLayout, cache: CacheConfig) -> Self {
        NodeState { leaf, inner, cache: NodeCache::new(cache), flushes: Flushes::default() }
    }

    pub(crate) fn shard(&self) -> ShardState {
        ShardState { reader: self.cache.reader(), missing: Missing::default(), merges: Merges::default() }
    }

    /// Yields the format of the leaves.
    pub(crate) fn leaf(&self) -> &L {
        &self.leaf
    }

    /// Counts the bytes of the largest node.
    pub(crate) fn largest_bytes(&self) -> usize
    where
        L: LeafFormat,
    {
        self.leaf.node_bytes().max(self.inner.node_bytes())
    }

    /// Counts the bytes that the cache takes now.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Forgets all inner nodes.
    pub(crate) fn empty_cache(&self) {
        self.cache.clear();
    }
}

impl<A: BTree, V: Verbs> Local<A, V> {
    #[inline]
    pub(crate) fn leaf(&self) -> &A::Leaf {
        &A::node(&self.shared.state).leaf
    }

    #[inline]
    fn inner(&self) -> &InnerLayout {
        &A::node(&self.shared.state).inner
    }

    /// Yields the cache, emptied since the last flush: it may have led to memory that is used again.
    #[inline]
    fn cache(&self) -> &NodeCache {
        let NodeState { cache, flushes, .. } = A::node(&self.shared.state);
        flushes.keep_up(self.verbs.pins().flushed(), || cache.clear());
        cache
    }

    /// Yields this shard's reader of the cache, which is emptied since then, too.
    #[inline]
    fn reader(&self) -> &CacheReader {
        self.cache();
        &A::shard(&self.state).reader
    }

    #[inline]
    fn missing(&self) -> &Missing {
        &A::shard(&self.state).missing
    }

    #[inline]
    fn merges(&self) -> &Merges {
        &A::shard(&self.state).merges
    }

    #[inline]
    fn chains(&self) -> Chains {
        A::chains(self.techniques)
    }

    /// Counts the bytes of a node of `level`.
    fn node_bytes(&self, level: u8) -> usize {
        if level == 0 { self.leaf().node_bytes() } else { self.inner().node_bytes() }
    }

    /// Judges a node of `level` by itself.
    fn sight(&self, level: u8, image: &[u8], depth: Depth) -> Result<ObservedNode, Rejection> {
        match level {
            0 => self.leaf().sight(image, depth),
            _ => ObservedNode::inner(self.inner(), image),
        }
    }
}
