//! Sizes: cached bytes of a compute server, and bytes of nodes on all memory servers (table II).

use super::super::cluster::{Machines, Setup, Sizes, sizes};
use super::super::workload::KEYS_OF_DOLPHIN;
use super::super::{Class, Effort, Row};
use super::{SERVERS, System, Workload, setup};

/// Keys that are measured, over those of Sherman's experiments: 20 million by default.
const KEYS_FACTOR: u64 = 10;

/// Simulates table II: what 20 million keys take, each as much as one of the paper's 512 million.
pub(in super::super) fn table2(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "dolphin-table2";
    let mut rows = Vec::new();
    for (system, compute_mb, memory_gb) in
        [(System::Dolphin, 320.0, 14.0), (System::Sherman, 460.0, 12.0), (System::Smart, 5200.0, 156.0)]
    {
        let Sizes { cached, stored } = measure(effort, system)?;
        let keys = KEYS_OF_DOLPHIN as f64;
        let name = system.name();
        let compute = format!("{name}, compute server, MB for 512 M keys");
        rows.push(Row::new(NAME, compute, compute_mb, cached * keys / 1e6, Class::Even));
        let memory = format!("{name}, memory servers, GB for 512 M keys");
        rows.push(Row::new(NAME, memory, memory_gb, stored * keys / 1e9, Class::Even));
    }
    Ok(rows)
}

fn measure(effort: &Effort, system: System) -> Result<Sizes, String> {
    /// More than any index caches for a key.
    const CACHE_BYTES_PER_KEY: u64 = 64;
    let keys = effort.keys * KEYS_FACTOR;
    sizes(&Setup {
        machines: Machines { nodes: 1, cores: 1, servers: SERVERS },
        keys,
        cache_bytes: (keys * CACHE_BYTES_PER_KEY) as usize,
        ..setup(effort, system.tree(), &Workload::C, 0)
    })
}
