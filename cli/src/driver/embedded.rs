//! A run on the embedded fabric: memory servers of this process.

use std::sync::Arc;

use farwood::{Cluster, EmbeddedConfig};

use crate::driver::plan::Plan;
use crate::driver::shard::ShardResult;
use crate::driver::{executors, not_started};
use crate::error::CliError;
use crate::footprint;

/// Runs the plan. Yields the results of the shards, in their order.
pub(crate) fn run(plan: &Arc<Plan>) -> Result<Vec<ShardResult>, CliError> {
    let config = &plan.config;
    let cluster = Cluster::embedded(EmbeddedConfig {
        servers: config.servers,
        bytes_per_server: config.memory_bytes,
        chunk_bytes: footprint::chunk_bytes(config),
        ..EmbeddedConfig::default()
    });
    executors::run(plan, cluster.map_err(|error| not_started(&error))?)
}
