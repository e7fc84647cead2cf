//! `farwood stat`: memory servers, compute nodes, indexes.

use std::fmt::{self, Write};
use std::sync::Arc;

use farwood::runtime::control::{Chunk, ServerUsage};
use farwood::runtime::{CatalogEntry, Holdings, ServerInfo};
use farwood::{Fabric, Limits};
use futures::executor::block_on;

use crate::args::StatArgs;
use crate::connect::{Action, Peer, nodes, with_cluster};
use crate::error::CliError;
use crate::index::limits_of;
use crate::interrupt::Interrupt;
use crate::report::output::print;
use crate::units::show_bytes;

/// Prints what the memory servers say of themselves.
///
/// # Errors
/// If one of them does not answer.
pub(crate) fn run(args: StatArgs) -> Result<(), CliError> {
    let servers = args.servers.servers()?;
    let interrupt = Interrupt::listen()?;
    let told = with_cluster(&servers, Stat)?;
    print(&told)?;
    interrupt.check("everything was printed")
}

/// Seconds for which memory may wait for a node that is not worth a word.
const LATE_SECONDS: u64 = 3;
/// Dead compute nodes that are named at most.
const DEAD_NAMED_MAX: usize = 8;

struct Stat;

/// An index of the catalog, and what it takes if this release knows its kind.
struct Listed {
    entry: CatalogEntry,
    limits: Option<Limits>,
    /// Bytes that all servers have handed out for it, and bytes of these that were given back.
    held: (u64, u64),
}

impl Action for Stat {
    type Output = String;

    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<String, CliError> {
        let control = cluster.control();
        let usage = block_on(control.usage()).map_err(CliError::failed)?;
        let entries = block_on(control.list()).map_err(CliError::failed)?;
        let listed = |entry: CatalogEntry| {
            // Without opening it: a client that has an index open keeps others from dropping it.
            let limits = limits_of(&entry);
            let held = block_on(control.holdings(entry.id)).map_err(CliError::failed)?;
            let sum = |pieces: &dyn Fn(&Holdings) -> &[Chunk]| {
                held.iter().flat_map(|held| pieces(held).iter().map(|piece| piece.bytes)).sum::<u64>()
            };
            let (used, rests) = (sum(&|held| &held.used), sum(&|held| &held.rests));
            Ok(Listed { entry, limits, held: (used + rests, rests) })
        };
        let mut indexes: Vec<Listed> = entries.into_iter().map(listed).collect::<Result<_, CliError>>()?;
        indexes.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        let mut out = String::new();
        let nodes = nodes(&*cluster)?;
        let dead = block_on(control.dead()).map_err(CliError::failed)?;
        write_all((control.servers(), &usage), &indexes, &nodes, &dead, &mut out)
            .expect("a string takes everything");
        Ok(out)
    }
}

fn write_all(
    (servers, usage): (&[ServerInfo], &[ServerUsage]),
    indexes: &[Listed],
    nodes: &[Peer],
    dead: &[u16],
    out: &mut String,
) -> fmt::Result {
    for (server, usage) in servers.iter().zip(usage) {
        write!(
            out,
            "server   {}: {}, {} of {} in use, in chunks of {}",
            server.id.0,
            show_bytes(server.region_bytes),
            show_bytes(usage.chunk_bytes),
            show_bytes(usage.capacity_bytes),
            show_bytes(server.chunk_bytes),
        )?;
        match usage.silent_bytes {
            0 => writeln!(out)?,
            kept => writeln!(out, "; {} of it kept for silent nodes", show_bytes(kept))?,
        }
    }
    for Listed { entry, limits, held } in indexes {
        write!(out, "index    {:?}: {}", entry.name, entry.kind)?;
        if let Some(Limits { max_key, max_value }) = limits {
            write!(out, ", keys up to {max_key} bytes, values up to {max_value} bytes")?;
        }
        match held {
            (0, _) => writeln!(out)?,
            (chunks, 0) => writeln!(out, "; {} handed out", show_bytes(*chunks))?,
            (chunks, rests) => {
                writeln!(
                    out,
                    "; {} handed out, {} of it given back",
                    show_bytes(*chunks),
                    show_bytes(*rests)
                )?;
            }
        }
    }
    if indexes.is_empty() {
        writeln!(out, "index    none")?;
    }
    for Peer { id, name, seconds, silent, late_seconds } in nodes {
        let id = id.map_or("-".to_owned(), |id| id.to_string());
        let silent = if *silent { ": silent, what it has open is kept until its process ends" } else { "" };
        // A second or two go by between signs of life, whatever it does.
        let late = match late_seconds {
            0..=LATE_SECONDS => String::new(),
            late => format!(": memory has waited {late} s for an operation of it to end"),
        };
        writeln!(out, "node     {id}: {name}, connected for {seconds} s{silent}{late}")?;
    }
    if let Some(ServerUsage { epoch, waits, .. }) = usage.first() {
        let late = |node: &&Peer| node.late_seconds > LATE_SECONDS;
        let late: Vec<String> = nodes.iter().filter(late).map(|node| node.name.clone()).collect();
        let waits = if *waits { ", memory waits for the next one" } else { "" };
        let held =
            if late.is_empty() { String::new() } else { format!(", held back by {}", late.join(", ")) };
        writeln!(out, "epoch    {epoch}{waits}{held}")?;
    }
    if !dead.is_empty() {
        let ids: Vec<String> = dead.iter().take(DEAD_NAMED_MAX).map(u16::to_string).collect();
        let more = if dead.len() > DEAD_NAMED_MAX { ", .." } else { "" };
        let count = dead.len();
        writeln!(out, "dead     {count} since the first server was started: {}{more}", ids.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use farwood::IndexKind;
    use farwood::runtime::Control;

    use super::*;
    use crate::session::kit;

    #[test]
    fn everything_is_listed() {
        let cluster = kit::cluster(IndexKind::Smart);
        block_on(Control::create(&*cluster, "a raw one", "raw", b"")).unwrap();
        let told = Stat.on(Arc::clone(&cluster)).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        assert!(
            lines[0].starts_with("server   0: 32.0 MiB, 0 B of ")
                && lines[0].ends_with("chunks of 256.0 KiB")
        );
        assert!(lines[1].starts_with("server   1: 32.0 MiB"), "{told}");
        assert_eq!(lines[2], "index    \"a raw one\": raw");
        assert_eq!(lines[3], "index    \"t\": smart, keys up to 16 bytes, values up to 16 bytes");
        assert_eq!((lines[4], lines.len()), ("epoch    1", 5));
        let id = block_on(cluster.open("t")).unwrap().id;
        let chunk = block_on(cluster.chunk(farwood::runtime::ServerId(1), id)).unwrap();
        let half = Chunk { bytes: chunk.bytes / 2, ..chunk };
        let told = Stat.on(Arc::clone(&cluster)).unwrap();
        assert!(told.contains("16 bytes; 256.0 KiB handed out\n"), "{told}");
        cluster.return_extent(id, half);
        let told = Stat.on(cluster).unwrap();
        assert!(told.contains("16 bytes; 256.0 KiB handed out, 128.0 KiB of it given back\n"), "{told}");
    }

    #[test]
    fn compute_nodes_are_listed() {
        let node = |id, name: &str, silent, late_seconds| Peer {
            id,
            name: name.to_owned(),
            seconds: 7,
            silent,
            late_seconds,
        };
        let mut out = String::new();
        let nodes = [
            node(Some(3), "host/123", true, 0),
            node(None, "other", false, 3),
            node(Some(4), "busy", false, 4),
        ];
        let dead: Vec<u16> = (1..=9).collect();
        let usage = ServerUsage { epoch: 17, waits: true, ..ServerUsage::default() };
        write_all((&[], &[usage]), &[], &nodes, &dead, &mut out).unwrap();
        assert_eq!(
            out,
            "index    none\n\
             node     3: host/123, connected for 7 s: silent, what it has open is kept until its process ends\n\
             node     -: other, connected for 7 s\n\
             node     4: busy, connected for 7 s: memory has waited 4 s for an operation of it to end\n\
             epoch    17, memory waits for the next one, held back by busy\n\
             dead     9 since the first server was started: 1, 2, 3, 4, 5, 6, 7, 8, ..\n"
        );
    }
}
