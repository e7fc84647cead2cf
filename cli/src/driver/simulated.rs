//! A run on the simulated fabric: one compute node and memory servers on machines of their own, in this thread and in
//! virtual time. The seed determines everything that the run shows.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use farwood::runtime::sim::{Profile, SimConfig, Simulation};
use farwood_sim::shard::Steerable;

use crate::driver::plan::Plan;
use crate::driver::setup::BenchSetup;
use crate::driver::shard::ShardResult;
use crate::driver::{not_started, run_shard};
use crate::error::CliError;
use crate::footprint;

/// Runs the plan on NICs of that profile. Yields the results of the shards, in their order.
pub(crate) fn run(plan: &Arc<Plan>, profile: &Profile) -> Result<Vec<ShardResult>, CliError> {
    let config = &plan.config;
    let simulation = Simulation::new(&SimConfig {
        seed: config.seed,
        profile: *profile,
        shards: config.shards as u16,
        servers: config.servers,
        bytes_per_server: config.memory_bytes,
        chunk_bytes: footprint::chunk_bytes(config),
        ..SimConfig::default()
    });
    let simulation = simulation.map_err(|error| not_started(&error))?;
    let setup = Arc::new(BenchSetup::new(&*simulation.node(0), plan)?);
    let results = Rc::new(RefCell::new(Vec::new()));
    for number in 0..config.shards as u16 {
        let shard = simulation.shard(0, number);
        let run = run_shard(Steerable::from(shard.clone()), Arc::clone(plan), Arc::clone(&setup));
        let results = Rc::clone(&results);
        drop(shard.spawn(async move {
            let result = run.await;
            results.borrow_mut().push((number, result));
        }));
    }
    let ran = simulation.run(u64::MAX, || results.borrow().len() == config.shards);
    ran.map_err(|_| CliError::Run("all clients wait for ever: please report it".to_owned()))?;
    let mut results = results.take();
    results.sort_by_key(|(number, _)| *number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}
