//! `farwood sim`: the commands that need the simulated fabric.

use crate::args::SimCommand;
use crate::command::{sim_paper, sim_run};
use crate::error::CliError;

/// Runs a command of `farwood sim`.
pub(crate) fn run(command: SimCommand) -> Result<(), CliError> {
    match command {
        SimCommand::Run(args) => sim_run::run(&args),
        SimCommand::Paper(args) => sim_paper::run(&args),
    }
}
