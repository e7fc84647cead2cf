//! `farwood check`: walks an index and judges it.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use farwood::IndexKind;
use farwood::index::check::Broken;
use farwood::index::shell::{Filled, Options};
use farwood::{CheckOptions, CheckReport, Fabric, Switches, Violation};

use crate::args::CheckArgs;
use crate::connect::{Action, Peer, nodes, with_cluster};
use crate::error::CliError;
use crate::index::check_name;
use crate::interrupt::Interrupt;
use crate::report::output::print;
use crate::session::on_index_with;
use crate::units::show_bytes;

/// Findings that are shown; the others are counted.
const SHOWN_MAX: usize = 20;
/// Findings among which owners of locks are looked for.
const KEPT_MAX: usize = 10_000;

/// Prints the shape of the index, and what is wrong with it; with `--repair` after locks of the dead were taken over.
///
/// # Errors
/// If an invariant is broken; the first node where one is, is named.
pub(crate) fn run(args: CheckArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let check = Check { name: args.name.clone(), repairs: args.repair, interrupt: interrupt.clone() };
    let found = with_cluster(&servers, check)?;
    print(&shown(&found))?;
    interrupt.check("the walk was finished")?;
    verdict(&args.name, &found.report)
}

/// Findings of the walk.
struct Found {
    kind: IndexKind,
    report: CheckReport,
    /// The owners of orphaned locks that are silent; the others are gone.
    silent: BTreeSet<u16>,
    /// Locks of the dead that were taken over.
    taken_over: u64,
}

struct Check {
    name: String,
    repairs: bool,
    interrupt: Interrupt,
}

impl Action for Check {
    type Output = Found;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<Found, CliError> {
        let walk = |dead: BTreeSet<u16>, silent: BTreeSet<u16>| {
            let (repairs, undone) = (self.repairs, "the walk was not finished");
            let change = |options: &mut Options<dyn Switches>| options.intent_log = repairs;
            on_index_with(Arc::clone(&cluster), &self.name, change, &self.interrupt, undone, move |index| {
                let options = CheckOptions { kept_max: KEPT_MAX, dead: dead.clone() };
                let silent = silent.clone();
                async move {
                    let mut report = index.check(&options).await.map_err(CliError::failed)?;
                    let mut taken_over = 0;
                    if repairs && !report.orphaned.is_empty() {
                        for held in report.orphaned.iter() {
                            taken_over += u64::from(index.take_over(held).await.map_err(CliError::failed)?);
                        }
                        report = index.check(&options).await.map_err(CliError::failed)?;
                    }
                    Ok(Found { kind: index.kind(), report, silent, taken_over })
                }
            })
        };
        let found = walk(BTreeSet::new(), BTreeSet::new())?;
        let owners = owners(&found.report);
        if owners.is_empty() {
            return Ok(found);
        }
        // Asked after the walk: an owner that is not connected now will not give its lock back, or not soon.
        let (orphaned, silent) = parted(owners, &nodes(&*cluster)?);
        if orphaned.is_empty() { Ok(found) } else { walk(orphaned, silent) }
    }
}

/// Finds the owners of locks of which nothing is heard, and those among them that are not gone, but silent.
fn parted(mut owners: BTreeSet<u16>, nodes: &[Peer]) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let ids = |silent| nodes.iter().filter(move |node| node.silent == silent).filter_map(|node| node.id);
    ids(false).for_each(|connected| {
        owners.remove(&connected);
    });
    let silent = ids(true).filter(|silent| owners.contains(silent)).collect();
    (owners, silent)
}

/// Collects the compute nodes that hold locks.
fn owners(report: &CheckReport) -> BTreeSet<u16> {
    let owner = |violation: &Violation| match violation.broken {
        Broken::LockHeld { word } => Some(word.owner()),
        _ => None,
    };
    report.violations.iter().filter_map(owner).collect()
}

fn verdict(name: &str, report: &CheckReport) -> Result<(), CliError> {
    let Some(first) = report.violations.first() else { return Ok(()) };
    Err(CliError::Failed(format!(
        "the index {name:?} breaks {} invariant{}, the first one: {first}",
        report.violations.total(),
        if report.violations.total() == 1 { "" } else { "s" },
    )))
}

fn shown(found: &Found) -> String {
    let mut out = String::new();
    write_report(found, &mut out).expect("a string takes everything");
    out
}

fn write_report(Found { kind, report, silent, taken_over }: &Found, out: &mut String) -> fmt::Result {
    let survey = &report.survey;
    let full = format!(", {:.1} % full", survey.load_factor * 100.0);
    let (of_leaves, of_inner_nodes) = match kind.filled() {
        Filled::Leaves => (full.as_str(), ""),
        Filled::InnerNodes => ("", full.as_str()),
    };
    writeln!(out, "keys         {}", survey.keys)?;
    writeln!(out, "leaves       {}{of_leaves}", survey.leaves)?;
    writeln!(out, "inner nodes  {}{of_inner_nodes}", survey.inner_nodes)?;
    writeln!(out, "height       {}", survey.height)?;
    writeln!(out, "memory       {}", show_bytes(survey.used_bytes))?;
    let missing = &report.missing_separators;
    if !missing.is_empty() {
        writeln!(out, "unlinked     {} nodes that only their neighbours lead to; no fault", missing.total())?;
    }
    if *taken_over > 0 {
        writeln!(out, "taken over   {taken_over} locks of compute nodes that are gone")?;
    }
    for held in report.orphaned.iter().take(SHOWN_MAX) {
        let (at, owner) = (held.at, held.word.owner());
        let state =
            if silent.contains(&owner) { "silent: it releases the lock if it goes on" } else { "gone" };
        writeln!(out, "orphaned     lock {at}, of compute node {owner}, which is {state}")?;
    }
    let leftovers = &report.leftovers;
    if !leftovers.is_empty() {
        let (count, why) =
            (leftovers.total(), "other indexes, or of nodes that died before this one was made; no fault");
        writeln!(out, "leftover     {count} lock words of {why}")?;
    }
    for node in report.torn.iter().take(SHOWN_MAX) {
        writeln!(out, "torn         node {node}, under such a lock: what is in it was not looked at")?;
    }
    for violation in report.violations.iter().take(SHOWN_MAX) {
        writeln!(out, "broken       {violation}")?;
    }
    let more = report.violations.total().saturating_sub(SHOWN_MAX as u64);
    if more > 0 {
        writeln!(out, "broken       and {more} more")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_is_not_gone() {
        let node =
            |id, silent| Peer { id: Some(id), name: String::new(), seconds: 1, silent, late_seconds: 0 };
        let nodes = [node(1, false), node(2, true), node(3, true)];
        let (orphaned, silent) = parted(BTreeSet::from([1, 2, 9]), &nodes);
        assert_eq!((orphaned, silent), (BTreeSet::from([2, 9]), BTreeSet::from([2])));
    }
}
