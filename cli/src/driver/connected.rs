//! A run on memory servers that are there already, with all that they hold: it makes an index of its own there, and
//! drops it at the end, however the run ended. If the process is killed, the memory servers drop it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use farwood::runtime::Control;
use farwood::{ControlError, Fabric};
use futures::executor::block_on;

use crate::config::BenchConfig;
use crate::connect::Action;
use crate::driver::plan::Plan;
use crate::driver::{Finished, executors, finish, not_started};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::note;
use crate::progress::Progress;
use crate::workload::Workload;

/// A run, to be carried out on any cluster.
pub(crate) struct ConnectedRun {
    /// Configuration of the run.
    pub(crate) config: BenchConfig,
    /// Progress of the run.
    pub(crate) progress: Arc<Progress>,
    /// Set when the run is to end early.
    pub(crate) interrupt: Interrupt,
}

impl Action for ConnectedRun {
    type Output = Finished;
    const TEMPORARY: bool = true;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<Finished, CliError> {
        let ConnectedRun { mut config, progress, interrupt } = self;
        let control = cluster.control();
        let usage = block_on(control.usage()).map_err(|error| not_started(&error))?;
        config.connect(control.servers(), &usage)?;
        let takes_memory = config.workload != Workload::Lock;
        let plan = Plan::new(config, progress, interrupt, unique_name());
        let ran = executors::run(&plan, Arc::clone(&cluster));
        let dropped = if takes_memory { drop_index(&*control, &plan.index_name) } else { Ok(()) };
        let mut finished = finish(&plan, ran?);
        finished.report = match (finished.report, dropped) {
            (Ok(report), Err(error)) if report.interrupted.is_some() => {
                note(&error);
                Ok(report)
            }
            (Ok(_), Err(error)) => Err(error),
            // The run's own failure says more than that of the drop.
            (report, _) => report,
        };
        Ok(finished)
    }
}

/// Makes a random name, which no other run uses, on this host or another.
fn unique_name() -> String {
    format!("bench-{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// Drops the index of the run, if it was created.
fn drop_index(control: &dyn Control, name: &str) -> Result<(), CliError> {
    match block_on(control.drop_index(name)) {
        Ok(_) | Err(ControlError::NotFound { .. }) => Ok(()),
        Err(error) => Err(CliError::Run(format!("its index {name:?} could not be dropped: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use farwood::{Cluster, EmbeddedConfig};

    use super::*;
    use crate::config::tests::config;

    fn cluster() -> Arc<Cluster> {
        let config = EmbeddedConfig {
            servers: 2,
            bytes_per_server: 4 << 20,
            chunk_bytes: 256 << 10,
            ..EmbeddedConfig::default()
        };
        Cluster::embedded(config).unwrap()
    }

    fn run(cluster: &Arc<Cluster>, line: &str, interrupt: Interrupt) -> Result<Finished, CliError> {
        let config = config(&format!("--fabric shm:x --shards 1 --warmup 0 {line}")).unwrap();
        let progress = Progress::new(config.shards, false);
        ConnectedRun { config, progress, interrupt }.on(Arc::clone(cluster))
    }

    fn used(cluster: &Arc<Cluster>) -> (u64, u32) {
        let usage = block_on(cluster.usage()).unwrap();
        (usage.iter().map(|usage| usage.chunk_bytes).sum(), usage[0].indexes)
    }

    #[test]
    fn a_run_leaves_nothing_behind() {
        let cluster = cluster();
        for workload in ["ycsb-a", "raw", "lock", "load"] {
            let line = format!("--keys 2k --ops 2k --workload {workload}");
            let finished = run(&cluster, &line, Interrupt::default()).unwrap();
            let report = finished.report.unwrap_or_else(|error| panic!("{workload}: {error}"));
            assert_eq!((&report.config["fabric"], &report.config["servers"]), (&"shm:x".into(), &2.into()));
            assert_eq!(used(&cluster), (0, 0), "{workload}");
        }
    }

    #[test]
    fn an_interrupted_run_leaves_nothing_behind() {
        for workload in ["ycsb-a", "raw", "load"] {
            let cluster = cluster();
            let interrupt = Interrupt::default();
            interrupt.set();
            // Without the interrupt the run would not end within the test.
            let line = format!("--keys 20k --duration 10000s --workload {workload}");
            let report = run(&cluster, &line, interrupt).unwrap().report;
            let report = report.unwrap_or_else(|error| panic!("{workload}: {error}"));
            let error = report.interrupted.expect("it was interrupted");
            assert_eq!(
                (error.exit_code(), report.phases.last().unwrap().ops()),
                (130, 0),
                "{workload}: {error}"
            );
            assert_eq!(used(&cluster), (0, 0), "{workload}");
        }
    }

    #[test]
    fn a_run_that_fails_leaves_nothing_behind() {
        let cluster = cluster();
        let line = "--keys 20k --duration 10000s --workload write-only";
        let error = run(&cluster, line, Interrupt::default()).unwrap().report.err().expect("memory runs out");
        assert!(error.one_line().contains("out of memory"), "{error}");
        assert_eq!(used(&cluster), (0, 0));
    }

    #[test]
    fn keys_that_do_not_fit_are_seen_before_anything_starts() {
        let cluster = cluster();
        let error = run(&cluster, "--keys 10M", Interrupt::default()).err().expect("8 MiB are too few");
        assert_eq!(error.exit_code(), 2);
        assert!(error.one_line().contains("left: drop an index"), "{error}");
        assert_eq!(used(&cluster), (0, 0));
    }

    #[test]
    fn names_are_different() {
        assert_ne!(unique_name(), unique_name());
    }
}
