//! Counters of a shard: sums that are merged over shards and subtracted from later ones.

use farwood::index::{IndexStats, KindStats, OpKind};
use farwood::lock::LockStats;
use farwood::runtime::Usage;

use crate::report::{CacheFigures, KindFigures, LockFigures, SharingFigures};

/// Classes of operations that are counted apart: those of an index in the order of [`OpKind`], of which clients use all
/// but remove, and those of workloads without an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpClass {
    Get = OpKind::Get as isize,
    Put = OpKind::Put as isize,
    Insert = OpKind::Insert as isize,
    Update = OpKind::Update as isize,
    Scan = OpKind::Scan as isize,
    Lock,
    Read,
}

/// Number of classes.
pub(crate) const CLASSES: usize = 8;
/// Names of the classes, in order.
pub(crate) const CLASS_NAMES: [&str; CLASSES] =
    ["get", "put", "insert", "update", "remove", "scan", "lock", "read"];

const ROUND_TRIPS_MAX: usize = 64;

/// Sums over operations of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    sums: KindFigures,
    round_trips: [u64; ROUND_TRIPS_MAX],
}

impl Default for Tally {
    fn default() -> Self {
        Tally { sums: KindFigures::default(), round_trips: [0; ROUND_TRIPS_MAX] }
    }
}

impl Tally {
    /// Adds one completed operation.
    pub(crate) fn record(&mut self, usage: Usage) {
        let sums = &mut self.sums;
        sums.ops += 1;
        sums.found += 1;
        sums.round_trips += u64::from(usage.round_trips);
        sums.reads += u64::from(usage.reads);
        sums.writes += u64::from(usage.writes);
        sums.cas += u64::from(usage.cas);
        sums.faa += u64::from(usage.faa);
        sums.bytes_read += usage.bytes_read;
        sums.bytes_written += usage.bytes_written;
        sums.retries += u64::from(usage.retries);
        self.round_trips[(usage.round_trips as usize).min(ROUND_TRIPS_MAX - 1)] += 1;
    }

    /// Returns the sums, with the 99th percentile of round trips.
    pub(crate) fn figures(&self) -> KindFigures {
        let all: u64 = self.round_trips.iter().sum();
        let mut seen = 0;
        let p99 = self.round_trips.iter().position(|&count| {
            seen += count;
            seen * 100 >= all * 99
        });
        KindFigures { round_trips_p99: p99.unwrap_or(0) as u64, ..self.sums }
    }

    fn combine(&mut self, other: &Tally, with: fn(u64, u64) -> u64) {
        let (own, other_sums) = (&mut self.sums, &other.sums);
        let fields: [(&mut u64, u64); 11] = [
            (&mut own.ops, other_sums.ops),
            (&mut own.found, other_sums.found),
            (&mut own.entries, other_sums.entries),
            (&mut own.round_trips, other_sums.round_trips),
            (&mut own.reads, other_sums.reads),
            (&mut own.writes, other_sums.writes),
            (&mut own.cas, other_sums.cas),
            (&mut own.faa, other_sums.faa),
            (&mut own.bytes_read, other_sums.bytes_read),
            (&mut own.bytes_written, other_sums.bytes_written),
            (&mut own.retries, other_sums.retries),
        ];
        for (own, other) in fields {
            *own = with(*own, other);
        }
        for (own, other) in self.round_trips.iter_mut().zip(other.round_trips) {
            *own = with(*own, other);
        }
    }
}

impl From<&KindStats> for Tally {
    fn from(stats: &KindStats) -> Self {
        Tally {
            sums: KindFigures {
                ops: stats.ops,
                found: stats.found,
                entries: stats.entries,
                round_trips: stats.round_trips,
                round_trips_p99: 0,
                reads: stats.reads,
                writes: stats.writes,
                cas: stats.cas,
                faa: stats.faa,
                bytes_read: stats.bytes_read,
                bytes_written: stats.bytes_written,
                retries: stats.retries,
            },
            round_trips: stats.round_trip_histogram,
        }
    }
}

/// Counters of one shard, or of all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Sums by class, in the order of [`OpClass`].
    pub(crate) classes: [Tally; CLASSES],
    /// Locks.
    pub(crate) locks: LockFigures,
    /// Operations that other clients did along with theirs.
    pub(crate) sharing: SharingFigures,
    /// The cache; `invalidated` and `evicted` are of the whole node.
    pub(crate) cache: CacheFigures,
    /// Bytes that the node's cache holds now.
    pub(crate) cache_bytes: u64,
    /// Bytes that the shard's lock tables hold now, with those where operations are shared.
    pub(crate) lock_table_bytes: u64,
}

impl Counters {
    /// Returns the counts since `earlier`, on the same shard. Bytes are those held now.
    pub(crate) fn since(&self, earlier: &Counters) -> Counters {
        let mut since = self.clone();
        for (class, earlier) in since.classes.iter_mut().zip(&earlier.classes) {
            class.combine(earlier, u64::wrapping_sub);
        }
        since.combine(earlier, u64::wrapping_sub, u64::wrapping_sub);
        since
    }

    /// Adds another shard's counters; figures of the whole node are taken once.
    pub(crate) fn add(&mut self, other: &Counters) {
        for (class, other) in self.classes.iter_mut().zip(&other.classes) {
            class.combine(other, u64::wrapping_add);
        }
        self.combine(other, u64::wrapping_add, u64::max);
        self.cache_bytes = self.cache_bytes.max(other.cache_bytes);
        self.lock_table_bytes += other.lock_table_bytes;
    }

    fn combine(&mut self, other: &Counters, of_shard: fn(u64, u64) -> u64, of_node: fn(u64, u64) -> u64) {
        let (locks, sharing, cache) = (&mut self.locks, &mut self.sharing, &mut self.cache);
        locks.acquired = of_shard(locks.acquired, other.locks.acquired);
        locks.waited = of_shard(locks.waited, other.locks.waited);
        locks.handed_over = of_shard(locks.handed_over, other.locks.handed_over);
        locks.remote_failed = of_shard(locks.remote_failed, other.locks.remote_failed);
        locks.refused = of_shard(locks.refused, other.locks.refused);
        locks.orphaned = of_shard(locks.orphaned, other.locks.orphaned);
        sharing.reads_delegated = of_shard(sharing.reads_delegated, other.sharing.reads_delegated);
        sharing.writes_combined = of_shard(sharing.writes_combined, other.sharing.writes_combined);
        cache.lookups = of_shard(cache.lookups, other.cache.lookups);
        cache.hits = of_shard(cache.hits, other.cache.hits);
        cache.invalidated = of_node(cache.invalidated, other.cache.invalidated);
        cache.evicted = of_node(cache.evicted, other.cache.evicted);
    }
}

impl From<&IndexStats> for Counters {
    fn from(stats: &IndexStats) -> Self {
        let mut counters = Counters {
            locks: stats.locks.into(),
            sharing: SharingFigures {
                reads_delegated: stats.sharing.reads_delegated,
                writes_combined: stats.sharing.writes_combined,
            },
            cache: CacheFigures {
                lookups: stats.cache.lookups,
                hits: stats.cache.hits,
                invalidated: stats.cache.invalidated,
                evicted: stats.cache.evicted,
            },
            cache_bytes: stats.cache.bytes,
            lock_table_bytes: stats.lock_table_bytes,
            ..Counters::default()
        };
        for (class, kind) in counters.classes.iter_mut().zip(OpKind::ALL) {
            *class = Tally::from(stats.kind(kind));
        }
        counters
    }
}

impl From<LockStats> for LockFigures {
    fn from(stats: LockStats) -> Self {
        LockFigures {
            acquired: stats.acquired,
            waited: stats.waited,
            handed_over: stats.handed_over,
            remote_failed: stats.remote_failed,
            refused: stats.refused,
            orphaned: stats.orphaned,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_named_as_the_index_names_them() {
        for kind in OpKind::ALL {
            assert_eq!(CLASS_NAMES[kind as usize], kind.name());
        }
        assert_eq!(CLASS_NAMES[OpClass::Read as usize], "read");
    }

    #[test]
    fn locks_are_counted_as_the_index_counts_them() {
        let locks = LockStats {
            acquired: 1,
            waited: 2,
            handed_over: 3,
            remote_failed: 4,
            refused: 5,
            orphaned: 6,
            ..LockStats::default()
        };
        let LockFigures { acquired, waited, handed_over, remote_failed, refused, orphaned } =
            Counters::from(&IndexStats { locks, ..IndexStats::default() }).locks;
        assert_eq!([acquired, waited, handed_over, remote_failed, refused, orphaned], [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn counts_merge_and_subtract() {
        let usage = Usage { round_trips: 2, cas: 1, ..Usage::default() };
        let mut early = Counters::default();
        early.classes[OpClass::Lock as usize].record(usage);
        early.locks = LockFigures { refused: 1, orphaned: 3, ..LockFigures::default() };
        early.sharing.reads_delegated = 2;
        early.cache.evicted = 5;
        let mut late = early.clone();
        late.classes[OpClass::Lock as usize].record(Usage { round_trips: 9, ..usage });
        late.locks = LockFigures { refused: 5, orphaned: 10, ..early.locks };
        late.sharing.reads_delegated = 5;
        late.cache.evicted = 7;
        let since = late.since(&early);
        let figures = since.classes[OpClass::Lock as usize].figures();
        assert_eq!((figures.ops, figures.round_trips, figures.round_trips_p99), (1, 9, 9));
        let mut sum = since.clone();
        sum.add(&since);
        assert_eq!(sum.classes[OpClass::Lock as usize].figures().cas, 2);
        assert_eq!((sum.locks.refused, sum.locks.orphaned), (8, 14));
        assert_eq!(sum.sharing.reads_delegated, 6);
        assert_eq!(sum.cache.evicted, 2, "of the whole node, not twice");
    }
}
