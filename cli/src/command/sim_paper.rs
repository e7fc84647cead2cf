//! `farwood sim paper`: the papers' experiments on the simulated fabric, as a table of figures and as JSON.

use std::path::Path;

use farwood_sim::paper::{Class, Effort, Experiment, Row};
use serde_json::{Value, json};

use crate::args::SimPaperArgs;
use crate::error::CliError;
use crate::report::files;
use crate::report::output::print;

/// Runs one experiment or all, prints each when it is done, and writes JSON at the end.
///
/// # Errors
/// If an experiment could not be run, or a result could not be written.
pub(crate) fn run(args: &SimPaperArgs) -> Result<(), CliError> {
    let wanted = |experiment: &Experiment| args.name.as_ref().is_none_or(|name| name == experiment.name);
    let effort = Effort { keys: args.keys, time_percent: args.time, seed: args.seed };
    if effort.keys < 10_000 || effort.time_percent == 0 {
        return Err(CliError::usage("--keys takes 10k or more, --time 1 or more"));
    }
    let on_stdout = args.json.as_deref() == Some("-".as_ref());
    if let Some(path) = args.json.as_ref().filter(|_| !on_stdout) {
        files::check_file(path)?;
    }
    let mut all = Vec::new();
    for experiment in Experiment::ALL.into_iter().filter(wanted) {
        let rows = experiment
            .run(&effort)
            .map_err(|error| CliError::Run(format!("{}: {error}", experiment.name)))?;
        if !on_stdout {
            print(&table(&experiment, &rows))?;
        }
        all.extend(rows);
    }
    if !on_stdout {
        let inside = all.iter().filter(|row| row.is_inside()).count();
        print(&format!("{inside} of {} figures are inside the tolerance of their class\n", all.len()))?;
    }
    let text = format!("{:#}\n", json!({ "rows": all.iter().map(to_json).collect::<Vec<_>>() }));
    match &args.json {
        None => Ok(()),
        Some(_) if on_stdout => print(&text),
        Some(path) => write_json(path, &text),
    }
}

fn write_json(path: &Path, text: &str) -> Result<(), CliError> {
    files::write_file(path, |out| out.write_all(text.as_bytes()))
}

fn table(experiment: &Experiment, rows: &[Row]) -> String {
    let mut text = format!("{}: {}\n", experiment.name, experiment.about);
    text += &format!(
        "  {:<64} {:>10} {:>10} {:>6}  {:>19}  {:<10}\n",
        "figure", "paper", "simulated", "ratio", "band", "tolerance"
    );
    for row in rows {
        let (low, high) = row.band;
        let band = if low == high { String::new() } else { format!("{low:.2} - {high:.2}") };
        let verdict = if row.is_inside() { "inside" } else { "OUTSIDE" };
        text += &format!(
            "  {:<64} {:>10.3} {:>10.3} {:>6.2}  {band:>19}  {:<10} {verdict}\n",
            row.figure,
            row.paper,
            row.simulated,
            row.ratio(),
            tolerance(row.class),
        );
    }
    text + "\n"
}

fn tolerance(class: Class) -> String {
    match class {
        Class::Spinning => "factor 2".into(),
        Class::AtLeast => "at least".into(),
        _ => format!("{:.0} %", class.tolerance() * 100.0),
    }
}

fn to_json(row: &Row) -> Value {
    json!({
        "experiment": row.experiment,
        "figure": row.figure,
        "paper": row.paper,
        "simulated": row.simulated,
        "ratio": row.ratio(),
        "low": row.band.0,
        "high": row.band.1,
        "tolerance": row.class.tolerance(),
        "inside": row.is_inside(),
    })
}
