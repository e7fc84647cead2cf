//! A run on the embedded fabric: a compute node whose shards are glommio executors on cores of their own.

use std::sync::Arc;

use farwood::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig};

use crate::driver::plan::Plan;
use crate::driver::shard::ShardResult;
use crate::driver::stage::Stage;
use crate::driver::{not_started, run_shard};
use crate::error::CliError;
use crate::footprint;

/// Runs the plan. Yields what the shards bring home, in their order.
pub(crate) fn run(plan: &Arc<Plan>) -> Result<Vec<ShardResult>, CliError> {
    let config = &plan.config;
    let cluster = Cluster::embedded(EmbeddedConfig {
        servers: config.servers,
        bytes_per_server: config.memory_bytes,
        chunk_bytes: footprint::chunk_bytes(config),
        ..EmbeddedConfig::default()
    });
    let cluster = cluster.map_err(|error| not_started(&error))?;
    let node = ComputeNode::new(
        cluster,
        NodeConfig { shards: config.shards, seed: config.seed, ..NodeConfig::default() },
    );
    let stage = Arc::new(Stage::new(&*node, config)?);
    let plan = Arc::clone(plan);
    let results = node.run(move |shard| run_shard(shard, Arc::clone(&plan), Arc::clone(&stage)));
    results.map_err(|error| not_started(&error))
}
