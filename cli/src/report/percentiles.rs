//! Latency tables, one file per kind of operation: what plots are made of.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use hdrhistogram::Histogram;

use crate::error::CliError;
use crate::report::{Phase, Report, files, json};

/// Writes `result.json` and `latency-KIND.csv` for every kind of the run that happened into `directory`.
pub(crate) fn write(directory: &Path, report: &Report) -> Result<(), CliError> {
    fs::create_dir_all(directory).map_err(|source| CliError::write(directory, source))?;
    let result = json::to_json(report);
    files::write_file(&directory.join("result.json"), |out| writeln!(out, "{result:#}"))?;
    for kind in report.phases.last().map_or(&[][..], |run: &Phase| &run.kinds) {
        if !kind.latency.is_empty() {
            let path = directory.join(format!("latency-{}.csv", kind.name));
            files::write_file(&path, |out| table(&kind.latency, out))?;
        }
    }
    Ok(())
}

fn table(latency: &Histogram<u64>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "quantile,latency_ns,operations")?;
    let mut operations = 0;
    for step in latency.iter_quantiles(5) {
        operations += step.count_since_last_iteration();
        writeln!(out, "{:.7},{},{operations}", step.quantile_iterated_to(), step.value_iterated_to())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::latencies;

    #[test]
    fn a_table_ascends_to_all_operations() {
        let mut latency = latencies();
        (1..=10_000).for_each(|ns| latency.record(ns).unwrap());
        let mut out = Vec::new();
        table(&latency, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(1)
            .map(|row| row.split(',').map(|cell| cell.parse().unwrap()).collect())
            .collect();
        assert!(rows.len() > 20 && rows.windows(2).all(|w| w[0][0] <= w[1][0] && w[0][2] <= w[1][2]));
        let last = rows.last().unwrap();
        assert_eq!((last[0], last[2]), (1.0, 10_000.0));
    }
}
