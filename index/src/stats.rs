//! Counters of an index on one shard: per kind of operation, exact. Snapshots are plain values that can be merged over
//! shards and subtracted.

use farwood_cache::CacheStats;
use farwood_lock::LockStats;
use farwood_lock::shared::SharedStats;
use farwood_lock::window::WindowStats;
use farwood_runtime::Usage;
use farwood_runtime::alloc::Books;

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
    ///
    /// ```
    /// # use farwood_index::OpKind;
    /// assert_eq!(OpKind::ALL.map(OpKind::name)[..2], ["get", "put"]);
    /// ```
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
    /// Adds one operation that ended.
    ///
    /// ```
    /// # use farwood_index::KindStats;
    /// # use farwood_runtime::Usage;
    /// let mut gets = KindStats::default();
    /// gets.record(Usage { round_trips: 1, reads: 1, bytes_read: 1024, ..Usage::default() }, true, 0);
    /// assert_eq!((gets.ops, gets.found, gets.bytes_read), (1, 1, 1024));
    /// ```
    pub fn record(&mut self, usage: Usage, found: bool, entries: u64) {
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

    /// Yields the number of round trips that 99 % of the operations did not exceed; [`ROUND_TRIPS_MAX`] - 1 stands for
    /// all above.
    ///
    /// ```
    /// # use farwood_index::KindStats;
    /// # use farwood_runtime::Usage;
    /// let mut gets = KindStats::default();
    /// (0..99).for_each(|_| gets.record(Usage { round_trips: 1, ..Usage::default() }, true, 0));
    /// gets.record(Usage { round_trips: 30, ..Usage::default() }, true, 0);
    /// assert_eq!((gets.round_trips, gets.round_trips_p99()), (129, 1));
    /// ```
    pub fn round_trips_p99(&self) -> u64 {
        let all: u64 = self.round_trip_histogram.iter().sum();
        let mut seen = 0;
        let p99 = self.round_trip_histogram.iter().position(|&count| {
            seen += count;
            seen * 100 >= all * 99
        });
        p99.unwrap_or(0) as u64
    }
}

farwood_runtime::counters!(KindStats {
    sum: ops found entries round_trips reads writes cas faa retries bytes_read bytes_written;
    each: round_trip_histogram;
});

/// Memory on the memory servers that a shard has for an index: what it has now, and what was used again.
///
/// ```
/// # farwood_doctest::index!(|index| {
/// index.put(b"anna", b"1").await?;
/// let memory = index.stats().memory;
/// assert_eq!(memory.used_bytes + memory.free_bytes as i64, 64 << 10, "of one chunk");
/// # });
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct MemoryStats {
    /// Bytes of nodes that this shard has allocated, less those that came back to it, also from others: so one shard's
    /// may be below zero; the sum over all shards is what is in use.
    pub used_bytes: i64,
    /// Bytes that it has and that no node lies in: what is left of chunks, and nodes that came back.
    pub free_bytes: u64,
    /// Bytes of nodes that are out of the index, and not free yet, or never will be.
    pub retired_bytes: u64,
    /// Bytes of nodes of which nothing tells which shard has taken them out.
    pub unsettled_bytes: u64,
    /// Bytes of retired nodes that became free.
    pub reclaimed_bytes: u64,
    /// Bytes of nodes that were allocated where others were before.
    pub reused_bytes: u64,
}

impl From<Books> for MemoryStats {
    fn from(books: Books) -> Self {
        let Books { used_bytes, free_bytes, retired_bytes, unsettled_bytes, .. } = books;
        let Books { reclaimed_bytes, reused_bytes, .. } = books;
        MemoryStats { used_bytes, free_bytes, retired_bytes, unsettled_bytes, reclaimed_bytes, reused_bytes }
    }
}

farwood_runtime::counters!(MemoryStats {
    sum: reclaimed_bytes reused_bytes;
    held: used_bytes free_bytes retired_bytes unsettled_bytes;
});

/// A snapshot of one shard's counters.
///
/// ```
/// # use farwood_index::OpKind;
/// # farwood_doctest::index!(|index| {
/// let before = index.stats();
/// index.put(b"anna", b"1").await?;
/// let mut since = index.stats();
/// since -= &before;
/// assert_eq!((since.kind(OpKind::Put).ops, since.locks.acquired), (1, 1));
/// # });
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct IndexStats {
    /// By kind, in the order of [`OpKind::ALL`].
    pub kinds: [KindStats; OpKind::ALL.len()],
    /// Locks.
    pub locks: LockStats,
    /// Locks that clients share.
    pub shared_locks: SharedStats,
    /// Operations that clients did for each other (read delegation and write combining).
    pub sharing: WindowStats,
    /// Cache: lookups and hits of this shard, the rest of the whole compute node's cache.
    pub cache: CacheStats,
    /// Memory on the memory servers.
    pub memory: MemoryStats,
    /// Bytes of local lock tables and of windows of this shard now.
    pub lock_table_bytes: u64,
}

impl IndexStats {
    /// Yields the counters of one kind.
    ///
    /// ```
    /// # use farwood_index::OpKind;
    /// # farwood_doctest::index!(|index| {
    /// index.put(b"anna", b"1").await?;
    /// index.put(b"anna", b"2").await?;
    /// let stats = index.stats();
    /// assert_eq!(stats.kind(OpKind::Put).ops, 2);
    /// # });
    /// ```
    pub fn kind(&self, kind: OpKind) -> &KindStats {
        &self.kinds[kind as usize]
    }

    pub(crate) fn record(&mut self, kind: OpKind, usage: Usage, found: bool, entries: u64) {
        self.kinds[kind as usize].record(usage, found, entries);
    }
}

farwood_runtime::counters!(IndexStats {
    sum: locks shared_locks sharing cache memory;
    each: kinds;
    held: lock_table_bytes;
});

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
            images: n,
            remote_failed: n,
            taken_over: n,
            refused: n,
            orphaned: n,
            recovered: n,
            redone: n,
            mended: n,
            recorded: n,
            record_bytes: n,
            unrecorded: n,
        };
        first.locks = every(3);
        (first.cache.evicted, first.sharing.reads_delegated) = (5, 2);
        first.memory = MemoryStats { used_bytes: -64, reclaimed_bytes: 64, ..MemoryStats::default() };
        let earlier = first.clone();
        first.record(OpKind::Get, Usage { round_trips: 200, ..usage }, false, 0);
        first.locks = every(10);
        (first.cache.bytes, first.cache.evicted, first.sharing.reads_delegated) = (7, 7, 5);
        first.memory = MemoryStats { used_bytes: 192, reclaimed_bytes: 320, ..first.memory };
        let mut sum = first.clone();
        sum += &earlier;
        assert_eq!((sum.kind(OpKind::Get).ops, sum.kind(OpKind::Get).found, sum.cache.bytes), (3, 2, 7));
        assert_eq!(sum.locks, every(13));
        assert_eq!((sum.cache.evicted, sum.sharing.reads_delegated), (7, 7), "of the whole node, not twice");
        assert_eq!((sum.memory.used_bytes, sum.memory.reclaimed_bytes), (128, 384));
        first -= &earlier;
        assert_eq!((first.memory.used_bytes, first.memory.reclaimed_bytes), (192, 256), "what is held stays");
        assert_eq!(first.locks, every(7));
        assert_eq!((first.cache.evicted, first.cache.bytes, first.sharing.reads_delegated), (2, 7, 3));
        let get = first.kind(OpKind::Get);
        assert_eq!((get.ops, get.found, get.round_trips, get.bytes_read), (1, 0, 200, 1024));
        assert_eq!(get.round_trip_histogram[ROUND_TRIPS_MAX - 1], 1);
        assert_eq!((get.round_trip_histogram[2], get.round_trips_p99()), (0, ROUND_TRIPS_MAX as u64 - 1));
    }
}
