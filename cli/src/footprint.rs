//! How large nodes are, and how much remote memory a run will need, before anything is started. An estimate from above:
//! better to ask for a little more than to fail after a minute of loading.

use farwood::index::layout::MAX_NODE_BYTES;
use farwood::runtime::ServerInfo;
use farwood::runtime::control::ServerUsage;
use farwood::{Geometry, NodeSize};

use crate::config::BenchConfig;
use crate::error::CliError;
use crate::units::show_bytes;
use crate::workload::Workload;

/// The paper's nodes.
const NODE_BYTES: usize = 1024;
const NODE_STEP: usize = 64;
/// A node holds at least so many entries: with fewer, a tree is mostly nodes.
const SLOTS_MIN: usize = 8;
/// How full leaves are after a bulk load.
pub(crate) const BULK_FILL: f64 = 0.8;
/// How full they are after inserts in random order: ln 2, less a reserve.
const INSERT_FILL: f64 = 0.65;
const CHUNK_BYTES_MAX: u64 = 8 << 20;
const CHUNK_BYTES_MIN: u64 = 256 << 10;
const CHUNK_STEP: u64 = 4096;
/// Header, root words and lock words of a memory server.
const RESERVED_BYTES: u64 = 2 << 20;

/// The geometry for keys and values up to these sizes: Sherman's nodes of 1 KiB, or larger ones where few entries would
/// fit.
///
/// # Errors
/// If no node is large enough.
pub(crate) fn geometry(max_key: usize, max_value: usize) -> Result<Geometry, CliError> {
    let of = |bytes| Geometry { max_key, max_value, size: NodeSize::Bytes(bytes) };
    let roomy = |geometry: &Geometry| {
        geometry.layouts().is_ok_and(|(leaf, inner)| leaf.slots() >= SLOTS_MIN && inner.slots() >= SLOTS_MIN)
    };
    let sizes = (NODE_BYTES..=MAX_NODE_BYTES).step_by(NODE_STEP);
    let chosen = sizes.map(of).find(roomy).unwrap_or_else(|| of(MAX_NODE_BYTES));
    match chosen.layouts() {
        Ok(_) => Ok(chosen),
        Err(error) => Err(CliError::usage(error)),
    }
}

/// The chunks that memory servers hand out: the paper's 8 MiB, smaller where memory is scarce, so that what shards have
/// taken and not yet used stays a small part of it.
pub(crate) fn chunk_bytes(config: &BenchConfig) -> u64 {
    chunk_bytes_for(config.memory_bytes, config.shards as u64)
}

/// The same for a server of that much memory, if that many shards take chunks of it at the same time.
pub(crate) fn chunk_bytes_for(memory_bytes: u64, shards: u64) -> u64 {
    let share = memory_bytes / (16 * (shards + 1));
    share.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX) / CHUNK_STEP * CHUNK_STEP
}

/// Fails if the memory servers are too small for the keys of the run.
pub(crate) fn check(config: &BenchConfig) -> Result<(), CliError> {
    let needed = bytes_needed(config, chunk_bytes(config));
    let given = u64::from(config.servers).saturating_mul(config.memory_bytes.saturating_sub(RESERVED_BYTES));
    if needed <= given {
        return Ok(());
    }
    let each = needed / u64::from(config.servers) + RESERVED_BYTES;
    // Chunks grow with the memory, so what was needed for chunks may too.
    let advised = (each + each / 8).next_multiple_of(1 << 20) >> 20;
    Err(CliError::Memory(format!(
        "{} keys in nodes of {} bytes need about {} of memory, and {} server{} of {} cannot hold them: \
         use --memory {advised}MiB or fewer --keys",
        config.keys,
        config.node_bytes(),
        show_bytes(needed),
        config.servers,
        if config.servers == 1 { "" } else { "s" },
        show_bytes(config.memory_bytes),
    )))
}

/// Fails if what is left of running memory servers is too small for the keys of the run.
pub(crate) fn check_left(
    config: &BenchConfig,
    servers: &[ServerInfo],
    usage: &[ServerUsage],
) -> Result<(), CliError> {
    if config.workload == Workload::Lock {
        // It takes the locks of the servers, and no memory.
        return Ok(());
    }
    let chunk_bytes = servers.iter().map(|server| server.chunk_bytes).max().unwrap_or(0);
    let needed = bytes_needed(config, chunk_bytes);
    let left: u64 = usage.iter().map(|usage| usage.capacity_bytes.saturating_sub(usage.chunk_bytes)).sum();
    if needed <= left {
        return Ok(());
    }
    Err(CliError::Memory(format!(
        "{} keys in nodes of {} bytes need about {} of memory, and {} have {} left: drop an index, start the memory \
         servers with more --memory, or use fewer --keys",
        config.keys,
        config.node_bytes(),
        show_bytes(needed),
        config.fabric.name(),
        show_bytes(left),
    )))
}

fn bytes_needed(config: &BenchConfig, chunk_bytes: u64) -> u64 {
    // Every shard carves from a chunk of its own, and what it leaves of the last one stays unused; so does what is left
    // of a server's memory beyond whole chunks.
    let chunks = (config.shards as u64 + u64::from(config.servers)) * chunk_bytes;
    let fill = match config.workload {
        Workload::Lock => return chunks,
        Workload::Load => INSERT_FILL,
        _ => BULK_FILL,
    };
    nodes(config, fill).saturating_mul(config.node_bytes() as u64).saturating_add(chunks)
}

/// Nodes for the keys of the run at that fill, inner ones included.
pub(crate) fn nodes(config: &BenchConfig, fill: f64) -> u64 {
    let Ok((leaf, inner)) = config.geometry.layouts() else { return u64::MAX };
    let per = |slots: usize| (slots as f64 * fill).floor().max(1.0);
    let leaves = config.keys as f64 / per(leaf.slots());
    // The levels above shrink by a factor each: a geometric series.
    let levels = 1.0 + 1.0 / (per(inner.slots()) - 1.0).max(1.0);
    (leaves * levels).ceil() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(key: usize, value: usize) -> usize {
        match geometry(key, value).unwrap().size {
            NodeSize::Bytes(bytes) => bytes,
            NodeSize::Slots { .. } => panic!("bytes were asked for"),
        }
    }

    #[test]
    fn nodes_grow_with_their_entries() {
        assert_eq!(bytes(8, 8), 1024);
        assert_eq!(bytes(8, 64), 1024);
        let largest = bytes(1024, 4096);
        assert!(largest.is_multiple_of(64) && largest > 8 * 5120 && largest <= MAX_NODE_BYTES);
    }
}
