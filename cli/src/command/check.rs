//! `farwood check`: walks an index and judges it.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use farwood::IndexKind;
use farwood::index::check::Broken;
use farwood::index::shell::{Filled, Options};
use farwood::index::{GiveBackError, MemoryReport};
use farwood::{AnyIndex, CheckOptions, CheckReport, Fabric, Switches, Violation};

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

/// Prints the shape of the index, and what is wrong with it; with `--repair` after locks of the dead were taken over,
/// and memory that they have left was given back.
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
    /// Bytes that were given back, or why none were; none if nothing was to be given back.
    given_back: Option<Result<u64, GiveBackError>>,
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
                    Ok(Found { kind: index.kind(), report, silent, taken_over, given_back: None })
                }
            })
        };
        let mut found = walk(BTreeSet::new(), BTreeSet::new())?;
        let owners = owners(&found.report);
        // Asked after the walk: an owner that is not connected now will not give its lock back, or not soon.
        let (orphaned, silent) = parted(owners, &nodes(&*cluster)?);
        if !orphaned.is_empty() {
            found = walk(orphaned.clone(), silent)?;
        }
        let lost = found.report.memory.as_ref().map_or(0, |memory| memory.unreached_bytes);
        if self.repairs && lost > 0 {
            self.give_back(&cluster, orphaned, &mut found)?;
        }
        Ok(found)
    }
}

impl Check {
    /// Gives back what nothing leads to, on a compute node of its own: one that has taken locks over has memory itself.
    fn give_back<F: Fabric>(
        &self,
        cluster: &Arc<F>,
        dead: BTreeSet<u16>,
        found: &mut Found,
    ) -> Result<(), CliError> {
        let change = |options: &mut Options<dyn Switches>| options.intent_log = false;
        let undone = "what nothing leads to was given back";
        let gives = move |index: AnyIndex<_>| {
            let options = CheckOptions { kept_max: KEPT_MAX, dead: dead.clone() };
            async move {
                let report = index.check(&options).await.map_err(CliError::failed)?;
                let given_back = index.give_back(&report).await;
                if given_back.is_err() {
                    return Ok((report, given_back));
                }
                Ok((index.check(&options).await.map_err(CliError::failed)?, given_back))
            }
        };
        let done = on_index_with(Arc::clone(cluster), &self.name, change, &self.interrupt, undone, gives)?;
        found.report = done.0;
        found.given_back = Some(done.1);
        Ok(())
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

/// Tells what of the memory that was handed out for the index it reaches, and what became of the rest.
fn write_memory(
    memory: &MemoryReport,
    given_back: Option<&Result<u64, GiveBackError>>,
    out: &mut String,
) -> fmt::Result {
    let MemoryReport { chunk_bytes, rest_bytes, unreached_bytes, led_to_bytes, others, .. } = *memory;
    let (reached, rests) = (show_bytes(memory.reached.bytes()), show_bytes(rest_bytes));
    let chunks = show_bytes(chunk_bytes);
    writeln!(out, "handed out   {chunks}: {reached} reached, {rests} to be handed out again")?;
    if let Some(Ok(bytes)) = given_back {
        writeln!(out, "given back   {}, which nothing led to", show_bytes(*bytes))?;
    }
    if unreached_bytes > 0 {
        let state = match (others, unreached_bytes - led_to_bytes) {
            (0, 0) => "lost, and not given back while something leads there".to_owned(),
            (0, lost) => format!("lost; --repair gives back {} of it", show_bytes(lost)),
            (1, _) => "held by the other client that is connected, or lost".to_owned(),
            _ => format!("held by the {others} other clients that are connected, or lost"),
        };
        writeln!(out, "not reached  {}: {state}", show_bytes(unreached_bytes))?;
    }
    if let Some(Err(error)) = given_back {
        writeln!(out, "kept         nothing was given back, or not all: {error}")?;
    }
    Ok(())
}

fn write_report(found: &Found, out: &mut String) -> fmt::Result {
    let Found { kind, report, silent, taken_over, given_back } = found;
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
    if let Some(memory) = &report.memory {
        write_memory(memory, given_back.as_ref(), out)?;
    }
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
