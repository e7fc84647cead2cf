//! The figures of CHIME (SOSP 2024), against Sherman and SMART with all their techniques. Read delegation and write
//! combining are on for all three, as in the paper ("RDWC"); `fused` and
//! `image_handover`, which it does not have, are off.
//!
//! - `ycsb`: what the three indexes do under YCSB (figures 3, 12, 17).
//! - `factors`: what each technique is worth (figure 15).
//! - `sizes`: what caches and leaves hold (figures 14, 19).
//! - `sensitivity`: skew, sizes of values and leaves (figure 18).
//!
//! Compute nodes have room for a part of what SMART would cache. So popularity is drawn over the keys that are stored,
//! and the cache's budget is that part of the paper's 100 MB which the stored keys are of the paper's 60 million.
//! Where small READs are many, the figures are a band over their rate.

mod factors;
mod sensitivity;
mod sizes;
mod ycsb;

use farwood_index::chime::{Geometry, Techniques};
use farwood_index::layout::LINE_BYTES;
use farwood_index::sherman::{self, NodeSize};
use farwood_index::smart as smart_index;

pub(super) use self::factors::fig15;
pub(super) use self::sensitivity::fig18;
pub(super) use self::sizes::{fig14, fig19};
pub(super) use self::ycsb::{fig3, fig12, fig17};
use super::cluster::{Machines, Setup, Tree};
use super::smart::{self, Workload};
use super::tree;
use super::workload::{Mix, Spread};
use super::{Effort, NamedSetup};

/// Compute nodes; the memory server is on the machine of one of them (section 5.1, footnote 2).
const NODES: u16 = 10;
/// Clients of each compute node, on a core each. With two coroutines each, as in SMART's experiments, 320 clients
/// would saturate the network, which the paper says 500 do.
const CLIENTS: u16 = 64;
/// The paper's leaves, and its keys and values.
const SPAN: usize = 64;
const KEY_BYTES: usize = 8;
const VALUE_BYTES: usize = 8;
/// The cache of a compute node, hotspots included.
const CACHE_BYTES: u64 = 100 << 20;
/// Time in which caches and hotspot buffers become what they stay.
const WARMUP_NS: u64 = 10_000_000;

/// The indexes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Chime,
    Sherman,
    Smart,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Chime => "CHIME",
            System::Sherman => "Sherman",
            System::Smart => "SMART",
        }
    }

    /// Yields the index with the paper's nodes, for values of so many bytes.
    fn tree(self, value_bytes: usize) -> Tree {
        match self {
            System::Chime => Tree::Chime(CHIME, Geometry::default()),
            System::Sherman => Tree::Sherman(SHERMAN, leaf_of_the_fork(value_bytes)),
            System::Smart => Tree::Smart(SMART),
        }
    }
}

/// All that the papers have.
const CHIME: Techniques = Techniques { fused: false, image_handover: false, ..Techniques::ALL };
const SHERMAN: sherman::Techniques =
    sherman::Techniques { delegation: true, combining: true, ..tree::SHERMAN };
const SMART: smart_index::Techniques =
    smart_index::Techniques { fused: false, ..smart_index::Techniques::ALL };

/// Yields the leaves of the authors' fork of Sherman, to the next line: 1133 bytes for 64 pairs of 8 + 8 bytes.
fn leaf_of_the_fork(value_bytes: usize) -> NodeSize {
    const HEADER_BYTES: usize = 45;
    let bytes = HEADER_BYTES + SPAN * (1 + KEY_BYTES + value_bytes);
    NodeSize::Bytes(bytes.next_multiple_of(LINE_BYTES))
}

/// Yields a run with so many clients on each of 10 compute nodes, and pairs of 8 + 8 bytes.
fn setup(effort: &Effort, tree: Tree, workload: &Workload, clients: u16) -> Setup {
    let setup = smart::setup(effort, tree, workload, clients);
    let cache_bytes = part_of(CACHE_BYTES, setup.keys, workload);
    // YCSB's writes to stored keys: a client need not make ready for one that is absent.
    let mix = Mix { puts: 0.0, updates: workload.mix.puts, ..workload.mix };
    Setup {
        mix,
        machines: Machines { nodes: NODES, cores: clients, servers: 1 },
        clients: u32::from(NODES) * u32::from(clients),
        spread: Spread::Scaled { of: workload.keys },
        cache_bytes,
        warmup_ns: WARMUP_NS,
        ..setup
    }
}

/// Yields the part of so many bytes which the stored keys are of those of the paper's workload.
fn part_of(bytes: u64, keys: u64, workload: &Workload) -> usize {
    (bytes * keys / workload.keys) as usize
}

/// Yields CHIME's indexes with all workloads of its paper, one client on each compute node.
pub fn setups(effort: &Effort) -> Vec<NamedSetup> {
    let with_all = |system: System| {
        Workload::ALL.map(|workload| NamedSetup {
            system: system.name(),
            workload: workload.name,
            setup: setup(effort, system.tree(VALUE_BYTES), &workload, 1),
        })
    };
    [System::Chime, System::Sherman, System::Smart].into_iter().flat_map(with_all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_those_of_the_authors() {
        assert_eq!(leaf_of_the_fork(8), NodeSize::Bytes(1152));
    }

    #[test]
    fn caches_are_the_papers_part() {
        let setup = setup(&Effort::default(), System::Smart.tree(VALUE_BYTES), &Workload::C, CLIENTS);
        assert_eq!((setup.keys, setup.clients, setup.cache_bytes), (200_000, 640, (100 << 20) / 300));
    }
}
