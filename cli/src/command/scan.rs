//! `farwood scan`: keys and values in ascending order, as they come.

use std::io::{self, BufWriter, Write};
use std::ops::Bound;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use farwood::{Fabric, RangeIndex};
use futures::StreamExt;

use crate::args::ScanArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::report::output;
use crate::session::on_index;

/// Size of the pieces in which output is written.
const OUTPUT_BYTES: usize = 64 << 10;

/// Message of a scan that was interrupted.
const EARLY: &str = "the scan did not come to its end";

/// Prints the range.
///
/// # Errors
/// If a read fails, or standard output cannot be written to; not if its reader is gone.
pub(crate) fn run(args: ScanArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let range = Range {
        from: args.from.map(OsStringExt::into_vec),
        to: args.to.map(OsStringExt::into_vec),
        limit: args.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    range.check()?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    with_cluster(&servers, Scan { name: args.name, range, interrupt })
}

/// Range that is printed.
#[derive(Clone)]
struct Range {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    limit: Option<usize>,
}

impl Range {
    fn check(&self) -> Result<(), CliError> {
        match (&self.from, &self.to) {
            (Some(from), Some(to)) if from > to => {
                Err(CliError::usage("--from is above --to: a scan ascends, so there is nothing between them"))
            }
            _ => Ok(()),
        }
    }
}

struct Scan {
    name: String,
    range: Range,
    interrupt: Interrupt,
}

impl Action for Scan {
    type Output = ();

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<(), CliError> {
        let Scan { name, range, interrupt } = self;
        on_index(cluster, &name, &interrupt, EARLY, move |index| {
            let range = range.clone();
            async move {
                // Pairs found before an interrupt are written when this is dropped.
                let mut out = BufWriter::with_capacity(OUTPUT_BYTES, io::stdout());
                copy(&index, &range, &mut out).await
            }
        })
    }
}

/// Copies the range to `out`, whose reader may leave.
async fn copy<I: RangeIndex>(index: &I, range: &Range, out: &mut impl Write) -> Result<(), CliError> {
    let copied = copy_pairs(index, range, out).await;
    // Pairs found before an error are printed too.
    let copied = match out.flush() {
        Ok(()) => copied,
        Err(error) => copied.and(Err(Stopped::Output(error))),
    };
    match copied {
        Ok(()) => Ok(()),
        Err(Stopped::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(Stopped::Output(error)) => Err(output::failed(error)),
        Err(Stopped::Early(error)) => Err(error),
    }
}

/// Reason why a scan ended before its end.
enum Stopped {
    Output(io::Error),
    Early(CliError),
}

async fn copy_pairs<I: RangeIndex>(index: &I, range: &Range, out: &mut impl Write) -> Result<(), Stopped> {
    let from = range.from.as_deref().map_or(Bound::Unbounded, Bound::Included);
    let to = range.to.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut pairs = index.scan((from, to), range.limit);
    while let Some(pair) = pairs.next().await {
        let (key, value) = pair.map_err(|error| Stopped::Early(CliError::failed(error)))?;
        for part in [&key[..], b"\t", &value[..], b"\n"] {
            out.write_all(part).map_err(Stopped::Output)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        assert!(range(Some("b"), Some("a"), None).check().is_err());
        assert!(range(Some("a"), Some("a"), None).check().is_ok());
    }

    fn range(from: Option<&str>, to: Option<&str>, limit: Option<usize>) -> Range {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        Range { from: bytes(from), to: bytes(to), limit }
    }
}
