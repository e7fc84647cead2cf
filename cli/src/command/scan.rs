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
    use farwood::IndexKind;

    use super::*;
    use crate::session::kit;

    /// Scans 100 keys, 00 to 99. Yields what was written, and how that ended.
    fn scan(kind: IndexKind, range: Range, room: usize) -> (String, Result<(), CliError>) {
        let out = on_index(kit::cluster(kind), "t", &Interrupt::default(), "", move |index| {
            let range = range.clone();
            async move {
                for n in 0..100 {
                    index.put(format!("{n:02}").as_bytes(), format!("v{n}").as_bytes()).await.unwrap();
                }
                let mut out = Pipe { taken: Vec::new(), room };
                let result = copy(&index, &range, &mut out).await;
                Ok((String::from_utf8(out.taken).unwrap(), result))
            }
        });
        out.unwrap()
    }

    /// A pipe whose reader leaves after `room` bytes.
    struct Pipe {
        taken: Vec<u8>,
        room: usize,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.taken.len() + bytes.len() > self.room {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.taken.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn range(from: Option<&str>, to: Option<&str>, limit: Option<usize>) -> Range {
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        Range { from: bytes(from), to: bytes(to), limit }
    }

    #[test]
    fn begins_at_from_and_ends_before_to() {
        IndexKind::ALL.iter().copied().for_each(scan_ranges);
    }

    fn scan_ranges(kind: IndexKind) {
        let lines = |range| {
            let (out, result) = scan(kind, range, usize::MAX);
            result.unwrap();
            out
        };
        let all: String = (0..100).map(|n| format!("{n:02}\tv{n}\n")).collect();
        assert_eq!(lines(range(None, None, None)), all);
        assert_eq!(lines(range(Some("05"), Some("07"), None)), "05\tv5\n06\tv6\n");
        assert_eq!(lines(range(Some("055"), None, Some(2))), "06\tv6\n07\tv7\n");
        assert_eq!(lines(range(None, Some("01"), None)), "00\tv0\n");
        assert_eq!(lines(range(Some("07"), Some("07"), None)), "");
        assert_eq!(lines(range(None, None, Some(0))), "");
    }

    #[test]
    fn a_reader_that_leaves_ends_it_quietly() {
        let (out, result) = scan(IndexKind::Sherman, range(None, None, None), 14);
        assert!(result.is_ok());
        assert_eq!(out, "00\tv0\n01\tv1\n02");
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        assert!(range(Some("b"), Some("a"), None).check().is_err());
        assert!(range(Some("a"), Some("a"), None).check().is_ok());
    }
}
