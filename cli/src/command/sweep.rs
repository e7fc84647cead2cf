//! `farwood sweep`: finds memory of an index that was lost, and gives it back while clients work.

use std::sync::Arc;

use farwood::Fabric;
use farwood::index::SweepReport;

use crate::args::SweepArgs;
use crate::connect::{Action, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::report::output::print;
use crate::session::on_index;
use crate::units::show_bytes;

/// Sweeps the index once, and says what became of its memory.
///
/// # Errors
/// If the index cannot be swept, or its memory not be given back.
pub(crate) fn run(args: SweepArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let report = with_cluster(&servers, Sweep { name: args.name, interrupt: interrupt.clone() })?;
    print(&shown(&report))?;
    interrupt.check("the index was swept")
}

struct Sweep {
    name: String,
    interrupt: Interrupt,
}

impl Action for Sweep {
    type Output = SweepReport;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<SweepReport, CliError> {
        on_index(
            cluster,
            &self.name,
            &self.interrupt,
            "nothing was given back, or not all",
            |index| async move { index.sweep().await.map_err(CliError::failed) },
        )
    }
}

fn shown(report: &SweepReport) -> String {
    let SweepReport { reached_bytes, listed_bytes, given_back_bytes, left_bytes, .. } = *report;
    let mut out = format!(
        "reached      {}\nin lists     {}, of clients that work on the index\ngiven back   {}, which was lost\n",
        show_bytes(reached_bytes),
        show_bytes(listed_bytes),
        show_bytes(given_back_bytes),
    );
    if left_bytes > 0 {
        let left = show_bytes(left_bytes);
        out += &format!("left         {left}, of lost leaves: `farwood check --repair` gives them back\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_said_if_there_is_some() {
        let mut report = SweepReport::default();
        (report.reached_bytes, report.given_back_bytes) = (4096, 1 << 20);
        let three = "reached      4.0 KiB\nin lists     0 B, of clients that work on the index\n\
            given back   1.0 MiB, which was lost\n";
        assert_eq!(shown(&report), three);
        report.left_bytes = 1024;
        assert!(
            shown(&report).ends_with(
                "left         1.0 KiB, of lost leaves: `farwood check --repair` gives them back\n"
            )
        );
    }
}
