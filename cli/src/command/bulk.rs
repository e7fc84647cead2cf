//! An operation for each line of a file: put (`farwood load`) or remove (`farwood remove --file`). One thread
//! (`reader`) reads and divides lines (`blocks`), every shard does its share with many clients (`apply`); lines that
//! are not what the operation takes are noted (`rejects`). Memory is bounded: reader and shards hold a few blocks each,
//! whatever the length of the file or of its lines. What differs between the operations is in `operation`, but for the
//! call itself; nothing here knows the command line.

mod apply;
mod blocks;
mod operation;
mod reader;
mod rejects;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farwood::{ComputeNode, Fabric, NodeConfig};
use futures::executor::block_on;

use self::apply::{Applied, Shared, apply};
use self::operation::Counts;
pub(crate) use self::operation::Operation;
use self::reader::Reader;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::fabric::Servers;
use crate::index;
use crate::interrupt::Interrupt;
use crate::note;
use crate::progress::{Bar, Progress};
use crate::report::output::print;

/// Clients of each shard.
const CLIENTS: usize = 64;
const CACHE_BYTES: usize = 512 << 20;

/// Does it with every line of the file, and says how many lines were read and what came of them.
///
/// # Errors
/// Also if a line was rejected; the rest is done then.
pub(crate) fn run(
    operation: Operation,
    servers: &Servers,
    name: String,
    path: PathBuf,
) -> Result<(), CliError> {
    let (input, bytes) = open(&path)?;
    let interrupt = Interrupt::listen()?;
    let shards = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let source = Source { input, bytes, path };
    let outcome = with_cluster(servers, Bulk { operation, name, source, shards, interrupt })?;
    for line in outcome.shown_rejects() {
        note(line);
    }
    print(&outcome.summary())?;
    outcome.verdict
}

/// Input: lines.
struct Source {
    input: Box<dyn Read + Send>,
    /// Its length, where it has one.
    bytes: Option<u64>,
    path: PathBuf,
}

fn open(path: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), CliError> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin()), None));
    }
    let failed = |source| CliError::read(path, source);
    let file = File::open(path).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    if meta.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    Ok((Box::new(file), meta.is_file().then_some(meta.len())))
}

struct Bulk {
    operation: Operation,
    name: String,
    source: Source,
    shards: usize,
    interrupt: Interrupt,
}

/// Outcome for all lines.
#[derive(Debug)]
struct Outcome {
    operation: Operation,
    read: u64,
    counts: Counts,
    rejected: u64,
    /// The first rejected lines.
    first: Vec<String>,
    verdict: Result<(), CliError>,
}

impl Outcome {
    fn summary(&self) -> String {
        let counted = self.operation.counted(self.counts);
        format!("read {} lines, {counted}, rejected {}\n", self.read, self.rejected)
    }

    fn shown_rejects(&self) -> impl Iterator<Item = String> {
        let more = self.rejected - self.first.len() as u64;
        let more = (more > 0).then(|| format!("and {more} more rejected lines"));
        self.first.iter().cloned().chain(more)
    }
}

impl Action for Bulk {
    type Output = Outcome;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<Outcome, CliError> {
        let Bulk { operation, name, source, shards, interrupt } = self;
        let node = ComputeNode::new(cluster, NodeConfig { shards, ..NodeConfig::default() });
        let node = node.map_err(CliError::failed)?;
        let index = block_on(index::open(&node, &name, |options| options.cache_bytes = CACHE_BYTES))?;
        let progress = Progress::new(shards, false);
        progress.enter(operation.stage());
        let shared = Arc::new(Shared::new(operation, interrupt, Arc::clone(&progress)));
        let path = source.path.clone();
        let (reader, inboxes) = Reader::start(source, index.limits(), shards, &shared)?;
        let applied = {
            let _bar = Bar::show(&progress, false);
            let shared = Arc::clone(&shared);
            node.run(move |shard| {
                let (index, inbox) = (index.attach(shard.clone()), inboxes.take(shard.id()));
                apply(shard, index, inbox, Arc::clone(&shared))
            })
        };
        let applied: Vec<Applied> = applied.map_err(CliError::failed)?;
        Ok(outcome(&path, &reader, &applied, &shared))
    }
}

fn outcome(path: &Path, reader: &Reader, applied: &[Applied], shared: &Shared) -> Outcome {
    let operation = shared.operation;
    let counts = applied.iter().map(|shard| shard.counts).sum();
    let through = applied.iter().map(|shard| shard.through).min().unwrap_or(0);
    let so_far = format!("{}, and up to line {through} all but rejected ones", operation.done(counts));
    let rejects = reader.rejects();
    let verdict = if let Some(error) = shared.failure() {
        Err(CliError::Failed(format!("{}: {so_far}", error.one_line())))
    } else if shared.is_interrupted() {
        Err(shared.interrupt.error(&so_far))
    } else if let Some(error) = reader.failure() {
        Err(CliError::Failed(format!("{}: {so_far}", CliError::read(path, error).one_line())))
    } else if rejects.total() > 0 {
        let others = operation.of_the_others();
        Err(CliError::Failed(format!("{} lines were rejected, {others}", rejects.total())))
    } else {
        Ok(())
    };
    let (read, rejected, first) = (reader.lines(), rejects.total(), rejects.shown());
    Outcome { operation, read, counts, rejected, first, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_is_seen_before_anything_starts() {
        for path in ["/nonexistent/lines", "/"] {
            assert_eq!(open(Path::new(path)).err().expect("it cannot be read").exit_code(), 2, "{path}");
        }
    }
}
