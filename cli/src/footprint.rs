//! Estimates of the remote memory that a run will need, before anything is started. They err upwards: better to ask for
//! a little more than to fail after a minute of loading. The geometry of an index says what its keys take.

use farwood::runtime::ServerInfo;
use farwood::runtime::control::ServerUsage;

use crate::config::BenchConfig;
use crate::error::CliError;
use crate::units::show_bytes;
use crate::workload::Workload;

/// Fill of leaves after a bulk load.
pub(crate) const BULK_FILL: f64 = 0.8;
/// Fill of leaves after inserts in random order: ln 2, less a reserve.
const INSERT_FILL: f64 = 0.65;
const CHUNK_BYTES_MAX: u64 = 8 << 20;
const CHUNK_BYTES_MIN: u64 = 256 << 10;
const CHUNK_STEP: u64 = 4096;
/// Header, root words and lock words of a memory server.
const RESERVED_BYTES: u64 = 2 << 20;

/// Returns the size of the chunks that memory servers hand out: the paper's 8 MiB, smaller where memory is scarce, so
/// that what shards have taken and not yet used stays a small part of it.
pub(crate) fn chunk_bytes(config: &BenchConfig) -> u64 {
    chunk_bytes_for(config.memory_bytes, config.shards as u64)
}

/// Returns the size of chunks of a server of that much memory, if that many shards take them at the same time.
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
        "{} keys in leaves of {} bytes need about {} of memory, and {} server{} of {} cannot hold them: \
         use --memory {advised}MiB or {}",
        keys_at_last(config),
        config.spec.leaf_bytes(),
        show_bytes(needed),
        config.servers,
        if config.servers == 1 { "" } else { "s" },
        show_bytes(config.memory_bytes),
        fewer_keys(config),
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
        "{} keys in leaves of {} bytes need about {} of memory, and {} have {} left: drop an index, start the memory \
         servers with more --memory, or use {}",
        keys_at_last(config),
        config.spec.leaf_bytes(),
        show_bytes(needed),
        config.fabric.name(),
        show_bytes(left),
        fewer_keys(config),
    )))
}

/// Counts the keys that are loaded, and those that a trace adds.
fn keys_at_last(config: &BenchConfig) -> u64 {
    config.trace().map_or(config.keys, |trace| trace.keys())
}

fn fewer_keys(config: &BenchConfig) -> &'static str {
    match config.trace() {
        Some(_) => "fewer lines of the trace (--ops)",
        None => "fewer --keys",
    }
}

fn bytes_needed(config: &BenchConfig, chunk_bytes: u64) -> u64 {
    // Every shard carves from a chunk of its own, and what it leaves of the last one stays unused; so does what is left
    // of a server's memory beyond whole chunks.
    let chunks = (config.shards as u64 + u64::from(config.servers)) * chunk_bytes;
    let keys = match config.workload {
        Workload::Lock => 0,
        Workload::Load | Workload::Trace => config.spec.bytes_for(keys_at_last(config), INSERT_FILL),
        // Only leaves are read there, as many as the index would have.
        _ => config.spec.bytes_for(config.keys, BULK_FILL),
    };
    keys.saturating_add(chunks)
}
