//! `farwood bench`: decides, runs, reports.

use crate::args::BenchArgs;
use crate::config::{BenchConfig, Output};
use crate::driver;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::progress::{Bar, Progress};
use crate::report::output::print;
use crate::report::{Report, files, history, json, percentiles, table};

/// Runs a benchmark and writes its results to wherever they were asked for.
///
/// # Errors
/// If the arguments make no benchmark, the run or one of its checks failed, or a result could not be written; also if
/// it was interrupted, after the partial result was written.
pub(crate) fn run(args: BenchArgs) -> Result<(), CliError> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let config = BenchConfig::new(args, cores)?;
    let output = config.output.clone();
    let interrupt = Interrupt::listen()?;
    let progress = Progress::new(config.shards, config.fabric.is_simulated());
    let finished = {
        let _bar = Bar::show(&progress, output.quiet);
        driver::run(config, progress, interrupt)?
    };
    // The history is worth most if the run failed.
    let written = match &output.history {
        Some(path) => history::write(path, &finished.histories),
        None => Ok(()),
    };
    let report = finished.report?;
    written?;
    write_report(&report, &output)?;
    report.interrupted.map_or(Ok(()), Err)
}

fn write_report(report: &Report, output: &Output) -> Result<(), CliError> {
    if let Some(directory) = &output.report {
        percentiles::write(directory, report)?;
    }
    let result = json::to_json(report);
    match &output.json {
        Some(_) if output.json_on_stdout() => return print(&format!("{result:#}\n")),
        Some(path) => files::write_file(path, |out| writeln!(out, "{result:#}"))?,
        None => {}
    }
    print(&table::render(report))
}
