//! Results of a run, as one value, and the forms that they are shown in. Knows nothing of how they were measured.

pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod json;
pub(crate) mod output;
pub(crate) mod percentiles;
pub(crate) mod table;

use farwood::cache::CacheStats;
use farwood::index::{KindStats, MemoryStats};
use farwood::lock::LockStats;
use farwood::lock::shared::SharedStats;
use farwood::lock::window::WindowStats;
use hdrhistogram::Histogram;

use crate::error::CliError;

/// A benchmark that has ended.
pub(crate) struct Report {
    /// The configuration, with its digest and seed.
    pub(crate) config: serde_json::Value,
    /// Phases that were measured, in order: the load, if there was one, and the run.
    pub(crate) phases: Vec<Phase>,
    /// Memory that the index occupies on the memory servers.
    pub(crate) memory: MemoryFigures,
    /// Kind of nodes whose load factor is reported.
    pub(crate) filled: &'static str,
    /// Memory that the compute node holds for the index.
    pub(crate) compute: ComputeFigures,
    /// Remarks that the reader of the figures should know.
    pub(crate) notes: Vec<String>,
    /// Error that the command ends with if the run was interrupted: the figures are of what had run until then.
    pub(crate) interrupted: Option<CliError>,
}

/// A part of the benchmark.
pub(crate) struct Phase {
    /// "load" or "run".
    pub(crate) name: &'static str,
    /// Seconds that it took, in virtual time where there is such.
    pub(crate) seconds: f64,
    /// Keys that were loaded in bulk, which no kind counts.
    pub(crate) loaded: u64,
    /// Operations of an open loop whose time had come, but that were not started before the end.
    pub(crate) unstarted: u64,
    /// Per kind of operation: those of an index, which every phase has, then others.
    pub(crate) kinds: Vec<Kind>,
    /// Locks.
    pub(crate) locks: LockStats,
    /// Locks that several clients can have at the same time (Dolphin's).
    pub(crate) shared_locks: SharedStats,
    /// Operations that other clients did along with theirs.
    pub(crate) sharing: WindowStats,
    /// The cache.
    pub(crate) cache: CacheStats,
    /// Memory that the shards have on the memory servers at the end.
    pub(crate) memory: MemoryStats,
}

impl Phase {
    /// Counts the operations of all kinds; the keys, where they were loaded in bulk.
    pub(crate) fn ops(&self) -> u64 {
        self.loaded + self.kinds.iter().map(|kind| kind.stats.ops).sum::<u64>()
    }

    /// Returns the operations a second.
    pub(crate) fn throughput(&self) -> f64 {
        ratio(self.ops() as f64, self.seconds)
    }
}

/// Operations of one kind.
pub(crate) struct Kind {
    /// Its name.
    pub(crate) name: &'static str,
    /// Sums over the operations.
    pub(crate) stats: KindStats,
    /// Latencies in ns, of those that were timed.
    pub(crate) latency: Histogram<u64>,
}

impl Kind {
    /// Returns the mean per operation of a sum over the operations.
    pub(crate) fn per_op(&self, sum: u64) -> f64 {
        ratio(sum as f64, self.stats.ops as f64)
    }
}

/// Memory that the index occupies on the memory servers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryFigures {
    pub(crate) used_bytes: u64,
    pub(crate) keys: u64,
    pub(crate) leaf_load_factor: f64,
    pub(crate) leaves: u64,
    pub(crate) inner_nodes: u64,
}

/// Memory that the compute node holds for the index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ComputeFigures {
    pub(crate) cache_bytes: u64,
    pub(crate) hotspot_bytes: u64,
    pub(crate) lock_table_bytes: u64,
    pub(crate) rss_bytes: u64,
}

impl ComputeFigures {
    /// Counts all that is held for the index alone.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.cache_bytes + self.hotspot_bytes + self.lock_table_bytes
    }
}

/// Returns `part / whole`, and 0 where there is nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Makes an empty latency histogram: 1 ns to 10 minutes, three digits.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds in order")
}
