//! What is there before any shard runs: the index of the run, or what the workloads without one share.

use std::sync::{Arc, OnceLock};

use farwood::Host;
use farwood::runtime::PortLease;
use futures::executor::block_on;

use crate::driver::not_started;
use crate::driver::plan::Plan;
use crate::driver::raw::Area;
use crate::error::CliError;
use crate::open_index::OpenIndex;
use crate::workload::Workload;

/// What the shards of a run work on.
pub(crate) enum Stage {
    /// An index, empty still.
    Index(OpenIndex),
    /// The port of the lock tables.
    Locks(PortLease),
    /// The memory to read; the first shard's load fills it.
    Raw(Arc<OnceLock<Area>>),
}

impl Stage {
    /// Makes what the workload needs on that compute node.
    pub(crate) fn new(node: &impl Host, plan: &Plan) -> Result<Self, CliError> {
        let config = &plan.config;
        match config.workload {
            Workload::Lock => Ok(Stage::Locks(node.allocate_port())),
            Workload::Raw => Ok(Stage::Raw(Arc::default())),
            _ => {
                let cache_bytes = config.cache_bytes as usize;
                let created = OpenIndex::create(node, &plan.index_name, &config.recipe, cache_bytes);
                block_on(created).map(Stage::Index).map_err(|error| not_started(&error))
            }
        }
    }
}
