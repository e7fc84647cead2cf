//! Counts of a cache, of either tree. Knows nothing of how they are merged: the models of lock-free readers
//! compile this file without the rest of the crate.

/// Contents of the cache, what has happened to it since it was made, and the lookups of one shard's reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Lookups of the reader; 0 if the cache itself is asked.
    pub lookups: u64,
    /// Of these: answered without a node that is not cached.
    pub hits: u64,
    /// READs of a hotspot's entry alone that found its key there (CHIME's speculation); 0 if the cache itself is asked.
    pub speculations_right: u64,
    /// READs of a hotspot's entry alone that were in vain; likewise.
    pub speculations_wrong: u64,
    /// Nodes in the cache now.
    pub nodes: u64,
    /// Bytes that the cache takes now.
    pub bytes: u64,
    /// Nodes that were rejected by the tree and dropped.
    pub invalidated: u64,
    /// Nodes that left to keep the budget.
    pub evicted: u64,
    /// Nodes that came in.
    pub inserted: u64,
}
