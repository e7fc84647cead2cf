//! Shards and clients that carry out a workload: makes a cluster and a compute node, runs every shard, and puts their
//! results together.

pub(crate) mod barrier;
pub(crate) mod bench_shard;
mod connected;
mod counters;
mod embedded;
mod executors;
pub(crate) mod in_flight;
mod index;
mod locks;
mod pace;
mod plan;
mod raw;
mod recorder;
mod setup;
mod shard;
mod simulated;
mod target;

use std::fmt::Display;
use std::sync::Arc;

use farwood::runtime::sim::Profile;

use self::bench_shard::BenchShard;
use self::connected::ConnectedRun;
use self::counters::{Counters, OpClass};
use self::index::IndexTarget;
use self::index::replay::TraceTarget;
use self::locks::LockTarget;
use self::plan::Plan;
use self::raw::RawTarget;
use self::setup::BenchSetup;
use self::shard::{ShardResult, ShardRun};
use crate::config::{BenchConfig, SIM_DURATION_NS};
use crate::connect::with_cluster;
use crate::error::CliError;
use crate::fabric::Fabric;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::history::History;
use crate::report::{ComputeFigures, Kind, Phase, Report, latencies};
use crate::units::show_time;
use crate::workload::keys::KeySet;

/// Outcome of a run: a report, or why there is none, and the history up to there.
pub(crate) struct Finished {
    /// The report, or the failure.
    pub(crate) report: Result<Report, CliError>,
    /// One history per shard.
    pub(crate) histories: Vec<History>,
}

/// Name of a run's index on memory servers of its own.
const INDEX_NAME: &str = "bench";

/// Explanation of an interrupted run's result.
const PARTIAL: &str = "the clients were ended, and the result is partial";

/// Runs the benchmark.
///
/// # Errors
/// If it could not be started.
pub(crate) fn run(
    config: BenchConfig,
    progress: Arc<Progress>,
    interrupt: Interrupt,
) -> Result<Finished, CliError> {
    let fabric = config.fabric.clone();
    if let Fabric::Connected(servers) = &fabric {
        return with_cluster(servers, ConnectedRun { config, progress, interrupt });
    }
    let plan = Plan::new(config, progress, interrupt, INDEX_NAME.to_owned());
    let results = match fabric {
        Fabric::Sim(profile) => simulated::run(&plan, profile)?,
        _ => embedded::run(&plan)?,
    };
    Ok(finish(&plan, results))
}

fn finish(plan: &Plan, mut results: Vec<ShardResult>) -> Finished {
    let histories = results.iter_mut().map(|result| std::mem::take(&mut result.history)).collect();
    let report = match plan.first_error.take() {
        Some(error) => Err(error),
        None => Ok(report(plan, &results)),
    };
    Finished { report, histories }
}

fn not_started(error: &dyn Display) -> CliError {
    CliError::Run(error.to_string())
}

async fn run_shard<V: BenchShard>(shard: V, plan: Arc<Plan>, setup: Arc<BenchSetup>) -> ShardResult {
    match &*setup {
        BenchSetup::Locks(port) => {
            let target = LockTarget::new(shard.clone(), port.port(), Arc::clone(&plan));
            ShardRun::new(shard, plan, target).run().await
        }
        BenchSetup::Raw(area) => {
            let target = RawTarget::new(shard.clone(), Arc::clone(area), Arc::clone(&plan));
            ShardRun::new(shard, plan, target).run().await
        }
        BenchSetup::Index(index) => {
            let target = IndexTarget::new(index.attach(shard.clone()), shard.clone(), Arc::clone(&plan));
            match plan.config.trace().cloned() {
                Some(trace) => ShardRun::new(shard, plan, TraceTarget::new(target, trace)).run().await,
                None => ShardRun::new(shard, plan, target).run().await,
            }
        }
    }
}

fn report(plan: &Plan, results: &[ShardResult]) -> Report {
    let config = &plan.config;
    let (mut load, mut run) = (Counters::default(), Counters::default());
    for result in results {
        load += &result.load;
        run += &result.run;
    }
    let mut phases = Vec::new();
    if config.workload.is_preloaded() {
        let seconds = results.first().map_or(0.0, |first| first.load_seconds);
        let mut phase = phase("load", seconds, &load, &[]);
        phase.loaded = results.first().map_or(0, |first| first.loaded);
        phases.push(phase);
    }
    let start_ns = results.iter().map(|result| result.run_ns.0).min().unwrap_or(0);
    let end_ns = results.iter().map(|result| result.run_ns.1).max().unwrap_or(0);
    let mut run_phase = phase("run", end_ns.saturating_sub(start_ns) as f64 / 1e9, &run, results);
    run_phase.unstarted = results.iter().map(|result| result.unstarted).sum();
    phases.push(run_phase);
    Report {
        config: config.to_json(),
        phases,
        memory: results.first().map(|first| first.memory).unwrap_or_default(),
        filled: config.spec.kind().filled().name(),
        compute: ComputeFigures {
            cache_bytes: run.index.cache.bytes - run.index.cache.hotspot_bytes,
            hotspot_bytes: run.index.cache.hotspot_bytes,
            lock_table_bytes: run.index.lock_table_bytes,
            rss_bytes: results.iter().map(|result| result.rss_bytes).max().unwrap_or(0),
        },
        notes: notes(config),
        interrupted: plan.interrupt.check(PARTIAL).err(),
    }
}

fn phase(name: &'static str, seconds: f64, counters: &Counters, results: &[ShardResult]) -> Phase {
    let mut kinds = Vec::new();
    for class in OpClass::all() {
        let stats = *counters.of(class);
        // The kinds of an index are always shown; the others only if they happened.
        if !matches!(class, OpClass::Index(_)) && stats.ops == 0 {
            continue;
        }
        let mut latency = latencies();
        for result in results {
            latency.add(&result.latency[class.place()]).expect("histograms of the same bounds");
        }
        kinds.push(Kind { name: class.name(), stats, latency });
    }
    Phase {
        name,
        seconds,
        loaded: 0,
        unstarted: 0,
        kinds,
        locks: counters.index.locks,
        shared_locks: counters.index.shared_locks,
        memory: counters.index.memory,
        sharing: counters.index.sharing,
        cache: counters.index.cache,
    }
}

fn notes(config: &BenchConfig) -> Vec<String> {
    let mut notes = Vec::new();
    match config.latency_sampling {
        1 => {}
        sampling => {
            notes.push(format!("latencies are of 1 operation in {sampling}; all other figures are exact"))
        }
    }
    if config.rate.is_some() {
        notes.push("latency counts from the intended start of each operation".to_owned());
    }
    if let KeySet::File(keys) = &config.key_set
        && keys.duplicates() > 0
    {
        notes.push(format!("{} duplicate lines of the key file were left out", keys.duplicates()));
    }
    if let Some(trace) = config.trace() {
        notes.push(format!(
            "{} of the trace's {} keys were loaded before it, those that it does not set first; values are of up to \
             {} bytes; clients take its lines in turn, without regard to their times",
            trace.loaded(),
            trace.keys(),
            config.values.size()
        ));
    }
    if config.no_on_chip {
        notes.push("on_chip is off: this fabric has no on-chip memory, locks are in host memory".to_owned());
    }
    match &config.fabric {
        Fabric::Embedded => {
            notes
                .push("the memory servers of the embedded fabric are part of the resident memory".to_owned());
        }
        Fabric::Sim(profile) => notes.extend(sim_notes(config, profile)),
        Fabric::Connected(_) => {}
    }
    notes
}

fn sim_notes(config: &BenchConfig, profile: &Profile) -> Vec<String> {
    let mut notes = vec![format!(
        "times are virtual, on simulated NICs of the profile {}; the seed determines all but resident memory",
        profile.name
    )];
    notes.push(match config.client_ns() {
        0 => "clients take no CPU time beside posting, polling and searching".to_owned(),
        ns => format!(
            "clients take about {} of CPU per operation beside posting, polling and searching",
            show_time(ns)
        ),
    });
    if config.end.after_ns == Some(SIM_DURATION_NS) {
        let duration = show_time(SIM_DURATION_NS);
        notes.push(format!("without --duration, simulated runs measure {duration} of virtual time"));
    }
    notes.push("the memory servers of the simulated fabric are part of the resident memory".to_owned());
    notes
}
