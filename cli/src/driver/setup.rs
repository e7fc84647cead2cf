//! Things made before any shard runs: the index of the run, or what the workloads without one share.

use std::sync::{Arc, OnceLock};

use farwood::runtime::PortLease;
use farwood::{AnyTree, NodeContext};
use futures::executor::block_on;

use crate::driver::not_started;
use crate::driver::plan::Plan;
use crate::driver::raw::Area;
use crate::error::CliError;
use crate::index;
use crate::workload::Workload;

/// The thing that the shards of a run work on.
pub(crate) enum BenchSetup {
    /// An index that is still empty.
    Index(AnyTree),
    /// The port of the lock tables.
    Locks(PortLease),
    /// The memory to read; the first shard's load fills it.
    Raw(Arc<OnceLock<Area>>),
}

impl BenchSetup {
    /// Makes what the workload needs on that compute node.
    pub(crate) fn new(node: &impl NodeContext, plan: &Plan) -> Result<Self, CliError> {
        let config = &plan.config;
        match config.workload {
            Workload::Lock => Ok(BenchSetup::Locks(node.allocate_port())),
            Workload::Raw => Ok(BenchSetup::Raw(Arc::default())),
            _ => {
                let cache_bytes = config.cache_bytes as usize;
                let spec = config.spec.with_options(|options| options.cache_bytes = cache_bytes);
                let created = index::create(node, &plan.index_name, &spec);
                block_on(created).map(BenchSetup::Index).map_err(|error| not_started(&error))
            }
        }
    }
}
