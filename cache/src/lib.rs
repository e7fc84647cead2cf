//! The index cache of a compute node: copies of a B-link tree's internal nodes (Sherman, section 4.2.3),
//! shared by the node's shards, read without locks, under a byte budget that counts everything the cache
//! holds.
//!
//! It keeps the nodes just above the leaves (level 1; leaves are level 0), which are evicted when the budget
//! is full, and the two top levels of the tree (the root and the level below it), which always stay. A cached
//! node only says where to look: it may be stale, the tree notices by the fence keys and the level of what it
//! reads, and then calls [`NodeCache::invalidate`].
//!
//! # Map
//!
//! ```text
//! node_cache   NodeCache: the root, the levels, the budget, the one lock that writers take
//! reader       CacheReader: lookups of a shard, lock-free: find, locate and finish, children_in
//! level        writing one level: insert, remove, split and merge of chunks
//! directory    a level's root array: separator keys -> chunks
//! chunk        up to 64 nodes: their low keys, the nodes, when each was last used
//! node         one cached node in a single allocation of 64-bit words
//! keys         sorted byte strings as words: searched by 8-byte windows, ties resolved by tails
//! key_list     keys that writers unpack and pack again
//! children     addresses in as few bits as the node's children need
//! eviction/    which node goes: one policy per file
//! hotspot      where frequently read keys lie in their leaves (CHIME)
//! radix/       the cache of radix nodes (SMART, Dolphin), a cache of its own
//! ```
//!
//! # What a lookup does
//!
//! ```text
//! reader's copy of the directory  --search-->  chunk (ArcSwap load)  --search-->  node  --search-->  child
//! ```
//!
//! Chunks and directories are immutable: writers copy a chunk, change the copy and publish it; the directory
//! is copied only when a chunk splits, merges or vanishes. A lookup that races with such a change may miss a
//! node that is cached, and never finds one that is not right for its key.
#![forbid(unsafe_code)]

mod children;
mod chunk;
mod directory;
mod eviction;
mod hotspot;
mod key_list;
mod keys;
mod level;
mod node;
mod node_cache;
pub mod radix;
mod reader;
mod stats;
mod sync;

pub use eviction::Policy;
pub use hotspot::HotspotBuffer;
pub use node::NodeImage;
pub use node_cache::{CacheConfig, NodeCache, Root};
pub use reader::{CacheReader, CachedRoute, Located};
pub use stats::CacheStats;

/// Longest key the cache stores, bytes. Nodes with a longer separator are not cached.
pub const KEY_BYTES_MAX: usize = keys::LENGTH_MAX;

farwood_runtime::counters!(CacheStats {
    sum: lookups hits speculations_right speculations_wrong;
    node: invalidated evicted inserted;
    node_held: nodes bytes hotspot_bytes;
});
