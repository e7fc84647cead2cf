//! A run in real time: a compute node whose shards have executors on cores of their own, whatever the fabric.

use std::sync::Arc;

use farwood::runtime::Fabric;
use farwood::{ComputeNode, NodeConfig};

use crate::driver::plan::Plan;
use crate::driver::setup::BenchSetup;
use crate::driver::shard::ShardResult;
use crate::driver::{not_started, run_shard};
use crate::error::CliError;

/// Runs the plan on that cluster. Yields the results of the shards, in their order.
pub(crate) fn run<F: Fabric>(plan: &Arc<Plan>, cluster: Arc<F>) -> Result<Vec<ShardResult>, CliError> {
    let config = &plan.config;
    let config = NodeConfig { shards: config.shards, seed: config.seed, ..NodeConfig::default() };
    let node = ComputeNode::new(cluster, config).map_err(|error| not_started(&error))?;
    let setup = Arc::new(BenchSetup::new(&*node, plan)?);
    let plan = Arc::clone(plan);
    let results = node.run(move |shard| run_shard(shard, Arc::clone(&plan), Arc::clone(&setup)));
    results.map_err(|error| not_started(&error))
}
