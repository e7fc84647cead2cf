//! What all shards of a run share: the configuration, and what follows from it. Read-only but for meetings, verdict,
//! progress and the frontier of new keys, which are made for many.

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

/// What all shards of a run share.
pub(crate) struct Plan {
    /// What was asked for.
    pub(crate) config: BenchConfig,
    /// What clients choose from.
    pub(crate) mix: OpMix,
    /// Ranks of keys (of locks, of places).
    pub(crate) ranks: Ranks,
    /// Keys that the run adds.
    pub(crate) frontier: Arc<Frontier>,
    /// Leaves that the raw workload reads, as many as the keys would take.
    pub(crate) places: u64,
    /// Where shards wait for each other.
    pub(crate) barrier: Barrier,
    /// Whether the run goes well.
    pub(crate) first_error: FirstError,
    /// How far it is.
    pub(crate) progress: Arc<Progress>,
    /// Whether somebody wants it to end.
    pub(crate) interrupt: Interrupt,
    /// The catalog's name for the index of the run, or for its memory.
    pub(crate) index_name: String,
}

impl Plan {
    /// The plan of a run. It takes its memory under the name `index_name`.
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

    /// Whether the run is to end before its time: it has failed, or was interrupted.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.interrupt.is_set() || self.first_error.is_set()
    }

    /// Shards that have clients.
    pub(crate) fn active_shards(&self) -> usize {
        self.config.clients.min(self.config.shards)
    }

    /// Clients of a shard: the first ones have one more if they cannot be shared out evenly.
    pub(crate) fn clients_of(&self, shard: usize) -> usize {
        share(self.config.clients as u64, shard, self.config.shards) as usize
    }

    /// The number of a shard's first client.
    pub(crate) fn first_client_of(&self, shard: usize) -> u32 {
        (0..shard).map(|earlier| self.clients_of(earlier)).sum::<usize>() as u32
    }

    /// Operations of the measured phase that fall to a shard, if their number is given.
    pub(crate) fn ops_of(&self, shard: usize) -> Option<u64> {
        let ops = self.config.end.ops;
        let total = match self.config.workload {
            Workload::Load => Some(ops.unwrap_or(u64::MAX).min(self.config.keys)),
            _ => ops,
        };
        let active = self.active_shards();
        total.map(|total| if shard < active { share(total, shard, active) } else { 0 })
    }
}
