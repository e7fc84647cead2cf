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
    use super::*;

    #[test]
    fn names_are_different() {
        assert_ne!(unique_name(), unique_name());
    }
}
