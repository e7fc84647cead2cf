//! State that all shards of a run share: the configuration, and what follows from it. Read-only but for the barrier,
//! the first error, progress and the frontier of new keys, which are made to be shared.

use std::sync::Arc;

use crate::config::BenchConfig;
use crate::driver::barrier::{Barrier, FirstError};
use crate::driver::pace::share;
use crate::footprint::BULK_FILL;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::workload::Workload;
use crate::workload::distribution::Ranks;
use crate::workload::frontier::Frontier;
use crate::workload::mix::OpMix;

/// Configuration and state that all shards of a run share.
pub(crate) struct Plan {
    /// Configuration of the run.
    pub(crate) config: BenchConfig,
    /// Operations that clients choose from.
    pub(crate) mix: OpMix,
    /// Ranks of keys (of locks, of places).
    pub(crate) ranks: Ranks,
    /// Keys that the run adds.
    pub(crate) frontier: Arc<Frontier>,
    /// Leaves that the raw workload reads, as many as the keys would take.
    pub(crate) places: u64,
    /// Barrier at which shards wait for each other.
    pub(crate) barrier: Barrier,
    /// Failure of the run, if there is one.
    pub(crate) first_error: FirstError,
    /// Progress of the run.
    pub(crate) progress: Arc<Progress>,
    /// Set when the run is to end early.
    pub(crate) interrupt: Interrupt,
    /// The catalog's name for the index of the run, or for its memory.
    pub(crate) index_name: String,
}

impl Plan {
    /// Makes the plan of a run, which takes its memory under the name `index_name`.
    pub(crate) fn new(
        config: BenchConfig,
        progress: Arc<Progress>,
        interrupt: Interrupt,
        index_name: String,
    ) -> Arc<Self> {
        let places = config.spec.leaves(config.keys, BULK_FILL);
        let population = match config.workload {
            Workload::Lock => crate::config::LOCKS,
            Workload::Raw => places,
            // Draws nothing.
            Workload::Trace => 1,
            _ => config.keys,
        };
        let loaded = if config.workload.is_preloaded() { config.keys } else { 0 };
        let active = config.clients.min(config.shards);
        Arc::new(Plan {
            mix: config.workload.mix(),
            ranks: config.distribution.ranks(population),
            frontier: Arc::new(Frontier::new(loaded, active)),
            places,
            barrier: Barrier::new(config.shards),
            first_error: FirstError::default(),
            progress,
            interrupt,
            index_name,
            config,
        })
    }

    /// Tells whether the run is to end before its time: it has failed, or was interrupted.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.interrupt.is_set() || self.first_error.is_set()
    }

    /// Counts the shards that have clients.
    pub(crate) fn active_shards(&self) -> usize {
        self.config.clients.min(self.config.shards)
    }

    /// Counts the clients of a shard: the first shards have one more if they cannot be shared out evenly.
    pub(crate) fn clients_of(&self, shard: usize) -> usize {
        share(self.config.clients as u64, shard, self.config.shards) as usize
    }

    /// Returns the number of a shard's first client.
    pub(crate) fn first_client_of(&self, shard: usize) -> u32 {
        (0..shard).map(|earlier| self.clients_of(earlier)).sum::<usize>() as u32
    }

    /// Counts the operations of the measured phase that fall to a shard, if their number is given.
    pub(crate) fn ops_of(&self, shard: usize) -> Option<u64> {
        let ops = self.config.end.ops;
        let total = match self.config.workload {
            Workload::Load => Some(ops.unwrap_or(u64::MAX).min(self.config.keys)),
            Workload::Trace => self.config.trace().map(|trace| trace.len()),
            _ => ops,
        };
        let active = self.active_shards();
        total.map(|total| if shard < active { share(total, shard, active) } else { 0 })
    }
}
