//! `farwood check`: walks an index and judges it.

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::sync::Arc;

use farwood::index::check::Broken;
use farwood::{CheckOptions, CheckReport, Violation};

use crate::args::CheckArgs;
use crate::connect::{Action, Connected, with_cluster};
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::kind::Kind;
use crate::open_index::check_name;
use crate::report::output::print;
use crate::session::on_index;
use crate::units::show_bytes;

/// Findings that are shown; the others are counted.
const SHOWN_MAX: usize = 20;
/// Findings among which owners of locks are looked for.
const KEPT_MAX: usize = 10_000;

/// Prints the shape of the index, and what is wrong with it.
///
/// # Errors
/// If an invariant is broken; the first node where one is, is named.
pub(crate) fn run(args: CheckArgs) -> Result<(), CliError> {
    check_name(&args.name)?;
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let check = Check { name: args.name.clone(), interrupt: interrupt.clone() };
    let (kind, report) = with_cluster(&servers, check)?;
    print(&shown(kind, &report))?;
    interrupt.check("the walk was finished")?;
    verdict(&args.name, &report)
}

struct Check {
    name: String,
    interrupt: Interrupt,
}

impl Action for Check {
    type Output = (Kind, CheckReport);

    fn on<F: Connected>(self, cluster: Arc<F>) -> Result<(Kind, CheckReport), CliError> {
        let walk = |dead: BTreeSet<u16>| {
            let undone = "the walk was not finished";
            on_index(Arc::clone(&cluster), &self.name, &self.interrupt, undone, move |index| {
                let options = CheckOptions { kept_max: KEPT_MAX, dead: dead.clone() };
                async move {
                    let report = index.check(&options).await.map_err(CliError::failed)?;
                    Ok((Kind::of(&index), report))
                }
            })
        };
        let found = walk(BTreeSet::new())?;
        let mut gone = owners(&found.1);
        if gone.is_empty() {
            return Ok(found);
        }
        // Asked after the walk: whoever held a lock and is not connected now will not give it back.
        for alive in cluster.nodes()?.into_iter().filter_map(|node| node.id) {
            gone.remove(&alive);
        }
        if gone.is_empty() { Ok(found) } else { walk(gone) }
    }
}

/// The compute nodes that hold locks.
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

fn shown(kind: Kind, report: &CheckReport) -> String {
    let mut out = String::new();
    write_report(kind, report, &mut out).expect("a string takes everything");
    out
}

fn write_report(kind: Kind, report: &CheckReport, out: &mut String) -> fmt::Result {
    let survey = &report.survey;
    let full = format!(", {:.1} % full", survey.load_factor * 100.0);
    let (of_leaves, of_inner_nodes) = match kind {
        Kind::Sherman => (full.as_str(), ""),
        Kind::Smart => ("", full.as_str()),
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
    for held in report.orphaned.iter().take(SHOWN_MAX) {
        writeln!(out, "orphaned     lock {}, of compute node {}, which is gone", held.at, held.word.owner())?;
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
    use farwood::lock::LockWord;
    use farwood::runtime::{Chain, Control, Meter, RemotePtr};
    use farwood::{ComputeNode, NodeConfig, RangeIndex, Verbs};

    use super::*;
    use crate::session::kit;

    fn check(cluster: &Arc<farwood::Cluster>) -> (Kind, CheckReport) {
        Check { name: "t".to_owned(), interrupt: Interrupt::default() }.on(Arc::clone(cluster)).unwrap()
    }

    #[test]
    fn an_intact_index_has_a_shape() {
        for kind in Kind::ALL {
            let cluster = kit::cluster(kind);
            let (found, report) = check(&cluster);
            assert_eq!(found, kind);
            assert!(shown(kind, &report).starts_with("keys         0\nleaves       0"), "{kind:?}");
            let filled = on_index(Arc::clone(&cluster), "t", &Interrupt::default(), "", |index| async move {
                for n in 0..500u32 {
                    index.put(&n.to_be_bytes(), b"v").await.map_err(CliError::failed)?;
                }
                Ok(())
            });
            filled.unwrap();
            let (_, report) = check(&cluster);
            assert!(verdict("t", &report).is_ok());
            let shown = shown(kind, &report);
            assert!(shown.starts_with("keys         500\n") && !shown.contains("broken"), "{shown}");
            assert_eq!(shown.matches(" % full\n").count(), 1, "{shown}");
        }
    }

    fn write_word(cluster: &Arc<farwood::Cluster>, at: RemotePtr, word: u64) {
        let node = ComputeNode::new(Arc::clone(cluster), NodeConfig { shards: 1, ..NodeConfig::default() });
        let written = node.run(move |shard| async move {
            let mut buf = shard.lease(8);
            buf.copy_from_slice(&word.to_le_bytes());
            let mut chain = Chain::with_buffer(at.server(), buf);
            chain.write(at, 0..8);
            shard.submit(&Meter::default(), chain).await.map(drop).unwrap();
        });
        written.unwrap();
    }

    #[test]
    fn a_lock_of_a_client_that_is_gone_is_no_fault() {
        let cluster = kit::cluster(Kind::Sherman);
        let lock = Control::servers(&*cluster)[1].locks.base;
        write_word(&cluster, lock, LockWord::new(7, 0, 0xff).to_bits());
        let (kind, report) = check(&cluster);
        assert!(verdict("t", &report).is_ok());
        let shown = shown(kind, &report);
        assert!(shown.contains("orphaned     lock 1:0x"), "{shown}");
        assert!(shown.contains("compute node 7, which is gone"), "{shown}");
    }

    #[test]
    fn a_damaged_index_is_named_with_the_node() {
        for kind in Kind::ALL {
            let cluster = kit::cluster(kind);
            let entry = futures::executor::block_on(Control::open(&*cluster, "t")).unwrap();
            // An address where no node was ever written.
            write_word(&cluster, entry.root, 0x41);
            let (_, report) = check(&cluster);
            let error = verdict("t", &report).unwrap_err();
            assert_eq!(error.exit_code(), 1);
            assert!(error.one_line().contains("breaks"), "{error}");
            assert!(shown(kind, &report).contains("\nbroken       "), "{}", shown(kind, &report));
        }
    }
}
