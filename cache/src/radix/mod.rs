//! The cache of a radix tree's inner nodes (SMART, section 4.3): shared by the shards of a compute node, read
//! without locks, under a byte budget that counts everything it holds.
//!
//! Cached nodes are found by their addresses, from the root down: what a cached slot says about the child (its
//! address) and what the cached child says about itself (depth and prefix) must fit, or the lookup ends there.
//! A copy may be stale; the tree notices that by the reverse check and calls [`RadixCache::invalidate`]. What a
//! lookup returns is always from one copy that was inserted for that node, as it was at one time, whatever writers
//! do meanwhile.
//!
//! ```text
//! amend     changing one slot of a copy
//! slot      the bits of a slot word
//! copy      one node in 16 to some thousand bytes; slots change, and are added, where it lies
//! bits      fields of any width in atomic words
//! arena     segments of memory for copies; why a reader needs no lock
//! table     hash table from a node's address to its copy
//! store     the writer: room, growth, emptying of segments
//! victim    which segment, and which copies in it, by policy
//! part      all of that for a share of the nodes: readers, the writer, waiting
//! reader    RadixReader: lookups of a shard
//! ```
//!
//! The paper indexes its cache by a local radix tree. A hash table by address takes about 6 bytes for each node
//! where a local tree needs a pointer to the node and one back (copies move), and it still finds a node after a
//! header split put a new one above it.

mod amend;
mod arena;
mod bits;
mod clock;
mod copy;
mod part;
mod reader;
pub mod slot;
mod store;
mod table;
mod victim;

use std::sync::Arc;

use crate::eviction::Policy;
use crate::stats::CacheStats;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
pub use amend::AmendStats;
use copy::Copy;
pub use copy::{PREFIX_BYTES_MAX, SLOTS_MAX};
use part::{Counters, Part};
pub use reader::{CachedRoute, RadixReader};

/// A cache of this many bytes is divided into parts, as many as there are such shares in it, up to so many.
const PART_BYTES_MIN: usize = 16 << 20;
const PARTS_MAX: usize = 16;
/// Bits of a node's hash, from this one on, that say in which part it is: the table uses others.
const PART_SHIFT: u32 = 40;

/// Settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct RadixConfig {
    /// Bytes that the cache may take, its table and bookkeeping included. Allocators round up, which is not
    /// counted. Below about 12 KiB nothing is cached; the cache itself takes a few hundred bytes, even where that
    /// exceeds the budget. At most 256 GiB are used. What is not needed is not taken, except 1/700 of the budget at
    /// 600 MB for directories. From 32 MiB on it is divided into up to 16 parts, so that writers seldom meet.
    pub budget_bytes: usize,
    /// The choice of the copies that leave when the budget is full. They leave many at a time: a segment (4
    /// KiB, or 64 KiB of 600 MB) is emptied, and under [`Policy::TwoChoices`] those of its copies stay that
    /// were used more recently than another one picked at random.
    pub policy: Policy,
    /// Determines all random choices.
    pub seed: u64,
}

/// A node as it was read.
#[derive(Clone, Copy, Debug)]
pub struct RadixImage<'a> {
    /// Its address, in the form that slots have ([`slot::CHILD`]).
    pub node: u64,
    /// Its type, below 32.
    pub class: u8,
    /// Key bytes before its prefix.
    pub depth: u8,
    /// At most [`PREFIX_BYTES_MAX`] bytes.
    pub prefix: &'a [u8],
    /// The claimed slots in their order, at most [`SLOTS_MAX`].
    pub slots: &'a [u64],
}

/// Copies of a radix tree's inner nodes: one cache per index and compute node.
pub struct RadixCache {
    root: AtomicU64,
    /// A power of two.
    parts: Box<[Part]>,
}

impl RadixCache {
    /// Makes an empty cache.
    ///
    /// ```
    /// # use farwood_cache::Policy;
    /// # use farwood_cache::radix::{RadixCache, RadixConfig};
    /// let cache = RadixCache::new(RadixConfig { budget_bytes: 1 << 20, policy: Policy::TwoChoices, seed: 1 });
    /// assert_eq!((cache.root(), cache.stats().nodes), (0, 0));
    /// ```
    pub fn new(config: RadixConfig) -> Arc<Self> {
        let shares = (config.budget_bytes / PART_BYTES_MIN).clamp(1, PARTS_MAX);
        let parts = 1 << shares.ilog2();
        let budget_bytes = config.budget_bytes.saturating_sub(Self::OWN_BYTES) / parts;
        let part = |number: u64| {
            Part::new(RadixConfig { budget_bytes, seed: config.seed.wrapping_add(number), ..config })
        };
        Arc::new(RadixCache { root: AtomicU64::new(0), parts: (0..parts as u64).map(part).collect() })
    }

    /// Itself, and the counts of the Arc, which are in the same allocation.
    const OWN_BYTES: usize = size_of::<Self>() + 2 * size_of::<usize>();

    /// Makes a reader for a shard.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let of_another_shard = cache.reader();
    /// assert_eq!(of_another_shard.find(b"anna"), reader.find(b"anna"));
    /// # });
    /// ```
    pub fn reader(self: &Arc<Self>) -> RadixReader {
        RadixReader::new(self.clone())
    }

    /// Notes the word of the slot that leads to the root; its partial is 0. 0 if it is not known.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// cache.set_root(0);
    /// assert_eq!(reader.find(b"anna"), None);
    /// # });
    /// ```
    pub fn set_root(&self, word: u64) {
        self.root.store(word, Ordering::Relaxed);
    }

    /// Yields the word that was set last.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// assert_eq!(cache.root() & slot::CHILD, 64);
    /// # });
    /// ```
    pub fn root(&self) -> u64 {
        self.root.load(Ordering::Relaxed)
    }

    /// Caches a node, in place of the copy that there is. Refuses images with a frozen slot, and those that make
    /// no sense: with an unclaimed slot, an END slot that has a partial, or beyond one of the limits. True if the
    /// node is cached now; false as well if the budget has no room for it, or another thread is changing this part of
    /// the cache, for which it does not wait. Does not lock if there is such a copy already.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let end = slot::END | slot::LEAF | 1 << slot::CLASS_SHIFT | 192;
    /// let node = RadixImage { node: 64, class: 1, depth: 0, prefix: b"", slots: &[leaf, end] };
    /// assert!(cache.insert(&node));
    /// assert_eq!(reader.find(b"").and_then(|route| route.slot), Some((1, end)));
    /// # });
    /// ```
    pub fn insert(&self, image: &RadixImage<'_>) -> bool {
        let (part, hash) = self.part(image.node);
        part.insert(hash, image)
    }

    /// Drops the copy of the node at this address: it has led a client to a wrong place. Where another thread is
    /// changing this part of the cache, that one drops it, as soon as it is done.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// cache.invalidate(64);
    /// assert_eq!(reader.find(b"anna").map(|route| route.node), Some(0), "only the root's slot is known");
    /// # });
    /// ```
    pub fn invalidate(&self, node: u64) {
        let (part, hash) = self.part(node);
        part.invalidate(hash, node);
    }

    /// Forgets everything, the root included. Keeps the memory for what comes.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// cache.clear();
    /// assert_eq!((cache.root(), reader.find(b"anna")), (0, None));
    /// # });
    /// ```
    pub fn clear(&self) {
        self.set_root(0);
        self.clear_nodes();
    }

    /// Forgets all nodes, and keeps the root, for trees whose root is one node for good. Keeps the memory, too.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// let root = cache.root();
    /// cache.clear_nodes();
    /// assert_eq!((cache.root(), cache.stats().nodes), (root, 0));
    /// # });
    /// ```
    pub fn clear_nodes(&self) {
        self.parts.iter().for_each(Part::clear);
    }

    /// Counts the bytes that the cache takes now, everything included except what allocators round up and the
    /// few dozen bytes of a reader.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// assert!(cache.bytes() < 1 << 20);
    /// # });
    /// ```
    pub fn bytes(&self) -> usize {
        Self::OWN_BYTES + self.sum(|counters| &counters.bytes) as usize
    }

    /// Yields what the cache holds and what has happened to it.
    ///
    /// ```
    /// # farwood_doctest::radix_cache!(|cache, reader, leaf| {
    /// assert_eq!((cache.stats().nodes, cache.stats().inserted), (1, 1));
    /// # });
    /// ```
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            nodes: self.sum(|counters| &counters.nodes),
            bytes: self.bytes() as u64,
            invalidated: self.sum(|counters| &counters.invalidated),
            evicted: self.sum(|counters| &counters.evicted),
            inserted: self.sum(|counters| &counters.inserted),
            ..CacheStats::default()
        }
    }

    fn sum(&self, counter: impl Fn(&Counters) -> &AtomicUsize) -> u64 {
        self.parts.iter().map(|part| counter(&part.counters).load(Ordering::Relaxed) as u64).sum()
    }

    /// Yields the part that a node belongs to, and the node's hash.
    #[inline]
    fn part(&self, node: u64) -> (&Part, u64) {
        let hash = table::hash(node);
        (&self.parts[(hash >> PART_SHIFT) as usize & (self.parts.len() - 1)], hash)
    }

    /// Yields what `look` makes of the copy of a node. None if the node is not cached.
    #[inline(always)]
    fn visit<R>(&self, node: u64, look: impl Fn(&Copy<'_>) -> R) -> Option<R> {
        let (part, hash) = self.part(node);
        part.visit(hash, node, look)
    }
}

#[cfg(test)]
mod tests;
