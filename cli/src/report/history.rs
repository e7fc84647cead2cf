//! Histories of a benchmark: recorded per shard without any output, written at the end into one file, so that any
//! checker can judge the run. `farwood-sim` defines a history and its format.

use std::path::Path;

use farwood_sim::history::write_json_lines;
pub(crate) use farwood_sim::history::{Event, History, Op, Outcome, ScanEntries, ScanRange};

use crate::error::CliError;
use crate::report::files;

/// Writes the histories of all shards into one file.
pub(crate) fn write(path: &Path, histories: &[History]) -> Result<(), CliError> {
    files::write_file(path, |out| write_json_lines(histories, out))
}
