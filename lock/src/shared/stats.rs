//! Counters of one shard's shared locks.

/// Operations of a shard's clients on locks that can be shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedStats {
    /// Acquisitions that share a lock.
    pub shared: u64,
    /// Those of `shared` that found their shard present: they set no bit.
    pub joined: u64,
    /// Bits that were set while a client had the lock alone, and taken back.
    pub barred: u64,
    /// Acquisitions of clients that meant to share and have the lock alone, because their shard has no lane.
    pub laneless: u64,
    /// Those that have it alone because they were overtaken too often ([`crate::shared::Lanes::overtaken_max`]).
    pub overtaken: u64,
    /// Acquisitions of a lock alone that found other clients sharing it, and waited for them.
    pub awaited: u64,
    /// Bits that the janitor gave up, since their memory server did not answer: they may stay set.
    pub orphaned: u64,
    /// Bits of dead compute nodes that were taken away.
    pub recovered: u64,
}

farwood_runtime::counters!(SharedStats {
    sum: shared joined barred laneless overtaken awaited orphaned recovered;
});
