//! Counters of an index on one shard: per kind of operation, exact. Snapshots are plain values that can be merged over
//! shards and subtracted.

use std::ops::{AddAssign, SubAssign};

use farwood_lock::LockStats;
use farwood_runtime::Usage;

/// Kinds of operations that are counted separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[expect(missing_docs, reason = "named as the operations of RangeIndex")]
pub enum OpKind {
    Get,
    Put,
    Insert,
    Update,
    Remove,
    Scan,
}

impl OpKind {
    /// All kinds, in the order of [`IndexStats::kinds`].
    pub const ALL: [OpKind; 6] =
        [OpKind::Get, OpKind::Put, OpKind::Insert, OpKind::Update, OpKind::Remove, OpKind::Scan];

    /// Yields the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Get => "get",
            OpKind::Put => "put",
            OpKind::Insert => "insert",
            OpKind::Update => "update",
            OpKind::Remove => "remove",
            OpKind::Scan => "scan",
        }
    }
}

/// Round trips from this many on share the last place of the histogram.
pub const ROUND_TRIPS_MAX: usize = 64;

/// Counters of one kind of operation. Operations that failed or were cancelled are not among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindStats {
    /// Operations that ended.
    pub ops: u64,
    /// Of these: gets that found their key; inserts, updates and removes that took effect; all puts and scans.
    pub found: u64,
    /// Pairs that scans returned.
    pub entries: u64,
    /// Round trips, chains in parallel counted once.
    pub round_trips: u64,
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps.
    pub cas: u64,
    /// Fetch-and-adds.
    pub faa: u64,
    /// Steps that were done again.
    pub retries: u64,
    /// Payload bytes read.
    pub bytes_read: u64,
    /// Payload bytes written.
    pub bytes_written: u64,
    /// Operations by their round trips.
    pub round_trip_histogram: [u64; ROUND_TRIPS_MAX],
}

impl Default for KindStats {
    fn default() -> Self {
        KindStats {
            ops: 0,
            found: 0,
            entries: 0,
            round_trips: 0,
            reads: 0,
            writes: 0,
            cas: 0,
            faa: 0,
            retries: 0,
            bytes_read: 0,
            bytes_written: 0,
            round_trip_histogram: [0; ROUND_TRIPS_MAX],
        }
    }
}

impl KindStats {
    fn record(&mut self, usage: Usage, found: bool, entries: u64) {
        self.ops += 1;
        self.found += u64::from(found);
        self.entries += entries;
        self.round_trips += u64::from(usage.round_trips);
        self.reads += u64::from(usage.reads);
        self.writes += u64::from(usage.writes);
        self.cas += u64::from(usage.cas);
        self.faa += u64::from(usage.faa);
        self.retries += u64::from(usage.retries);
        self.bytes_read += usage.bytes_read;
        self.bytes_written += usage.bytes_written;
        self.round_trip_histogram[(usage.round_trips as usize).min(ROUND_TRIPS_MAX - 1)] += 1;
    }

    fn combine(&mut self, other: &KindStats, with: impl Fn(&mut u64, u64)) {
        with(&mut self.ops, other.ops);
        with(&mut self.found, other.found);
        with(&mut self.entries, other.entries);
        with(&mut self.round_trips, other.round_trips);
        with(&mut self.reads, other.reads);
        with(&mut self.writes, other.writes);
        with(&mut self.cas, other.cas);
        with(&mut self.faa, other.faa);
        with(&mut self.retries, other.retries);
        with(&mut self.bytes_read, other.bytes_read);
        with(&mut self.bytes_written, other.bytes_written);
        for (own, other) in self.round_trip_histogram.iter_mut().zip(&other.round_trip_histogram) {
            with(own, *other);
        }
    }
}

/// Operations that clients did for each other (read delegation and write combining).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SharingCounters {
    /// Gets whose value another client found or wrote.
    pub reads_delegated: u64,
    /// Puts and updates that another client's overwrote before they were done.
    pub writes_combined: u64,
}

/// Cache activity: lookups and hits of one shard, the rest of the whole node's cache.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CacheCounters {
    /// Lookups of this shard.
    pub lookups: u64,
    /// Of these: answered by a node just above the leaves.
    pub hits: u64,
    /// Nodes dropped because they were stale; of the whole node, the same on every shard.
    pub invalidated: u64,
    /// Nodes dropped because the budget was full; of the whole node.
    pub evicted: u64,
    /// Bytes that the cache takes now; of the whole node.
    pub bytes: u64,
}

/// A snapshot of one shard's counters.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct IndexStats {
    /// By kind, in the order of [`OpKind::ALL`].
    pub kinds: [KindStats; OpKind::ALL.len()],
    /// Locks.
    pub locks: LockStats,
    /// Operations done by one client for others.
    pub sharing: SharingCounters,
    /// Cache.
    pub cache: CacheCounters,
    /// Bytes of local lock tables and of windows of this shard now.
    pub lock_table_bytes: u64,
}

impl IndexStats {
    /// Yields the counters of one kind.
    pub fn kind(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind as usize]
    }

    pub(crate) fn record(&mut self, kind: OpKind, usage: Usage, found: bool, entries: u64) {
        self.kinds[kind as usize].record(usage, found, entries);
    }
}

/// Adds another shard's counters. Counters of the whole node are taken once.
impl AddAssign<&IndexStats> for IndexStats {
    fn add_assign(&mut self, other: &IndexStats) {
        for (own, other) in self.kinds.iter_mut().zip(&other.kinds) {
            own.combine(other, |own, other| *own += other);
        }
        self.locks += &other.locks;
        self.sharing.reads_delegated += other.sharing.reads_delegated;
        self.sharing.writes_combined += other.sharing.writes_combined;
        self.cache.lookups += other.cache.lookups;
        self.cache.hits += other.cache.hits;
        self.cache.invalidated = self.cache.invalidated.max(other.cache.invalidated);
        self.cache.evicted = self.cache.evicted.max(other.cache.evicted);
        self.cache.bytes = self.cache.bytes.max(other.cache.bytes);
        self.lock_table_bytes += other.lock_table_bytes;
    }
}

/// Subtracts an earlier snapshot of the same shards. Bytes held now stay.
impl SubAssign<&IndexStats> for IndexStats {
    fn sub_assign(&mut self, earlier: &IndexStats) {
        for (own, earlier) in self.kinds.iter_mut().zip(&earlier.kinds) {
            own.combine(earlier, |own, earlier| *own -= earlier);
        }
        self.locks -= &earlier.locks;
        self.sharing.reads_delegated -= earlier.sharing.reads_delegated;
        self.sharing.writes_combined -= earlier.sharing.writes_combined;
        self.cache.lookups -= earlier.cache.lookups;
        self.cache.hits -= earlier.cache.hits;
        self.cache.invalidated -= earlier.cache.invalidated;
        self.cache.evicted -= earlier.cache.evicted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_and_subtracts() {
        let mut first = IndexStats::default();
        let usage = Usage { round_trips: 2, reads: 1, cas: 1, bytes_read: 1024, ..Usage::default() };
        first.record(OpKind::Get, usage, true, 0);
        let every = |n| LockStats {
            acquired: n,
            waited: n,
            handed_over: n,
            remote_failed: n,
            taken_over: n,
            refused: n,
            orphaned: n,
        };
        first.locks = every(3);
        let earlier = first.clone();
        first.record(OpKind::Get, Usage { round_trips: 200, ..usage }, false, 0);
        first.locks = every(10);
        first.cache.bytes = 7;
        let mut sum = first.clone();
        sum += &earlier;
        assert_eq!((sum.kind(OpKind::Get).ops, sum.kind(OpKind::Get).found, sum.cache.bytes), (3, 2, 7));
        assert_eq!(sum.locks, every(13));
        first -= &earlier;
        assert_eq!(first.locks, every(7));
        let get = first.kind(OpKind::Get);
        assert_eq!((get.ops, get.found, get.round_trips, get.bytes_read), (1, 0, 200, 1024));
        assert_eq!(get.round_trip_histogram[ROUND_TRIPS_MAX - 1], 1);
        assert_eq!(get.round_trip_histogram[2], 0);
    }
}
