//! The figures of SMART (OSDI 2023), with ART as SMART without its techniques and Sherman as the authors ran it: leaves
//! with the bytes of their fork, 32 pairs each.
//!
//! - `ycsb`: what the three indexes do under YCSB (figures 3, 11, 13, 14).
//! - `factors`: what each technique is worth (figure 15), RDWC on Sherman, and bytes per operation (table 1).
//! - `sensitivity`: skew, and sizes of keys and values (figure 18).
//!
//! Numbers of clients are those of the authors' published scripts, with the two coroutines per client that they
//! recommend.

mod factors;
mod sensitivity;
mod ycsb;

use farwood_index::sherman::NodeSize;
use farwood_index::smart;
use farwood_runtime::sim::Profile;

pub(super) use self::factors::{fig15, rdwc_on_sherman, table1};
pub(super) use self::sensitivity::fig18;
pub(super) use self::ycsb::{fig3, fig11, fig13, fig14};
use super::cluster::{Machines, Setup, Tree, Warm};
use super::tree::SHERMAN;
use super::workload::{KEYS_OF_SMART, Mix, Popularity, Spread};
use super::{Effort, NamedSetup};

/// Compute nodes; two of their machines are memory servers too (section 5.1, footnote 3).
const NODES: u16 = 16;
const SERVERS: u16 = 2;
/// Coroutines of each client (the authors' artifact recommends two).
const COROUTINES: u32 = 2;
const SKEW: Popularity = Popularity::Zipf(0.99);
/// Of the keys that Sherman's experiments store these store a tenth. All compute nodes cache the inner nodes above
/// every key, and with random keys there is one of these for every three or four keys.
const KEYS_SHARE: u64 = 10;
/// In LOAD a compute node caches its own share of them, and more keys matter: clients meet at the inner nodes that they
/// insert into, of which there are more where there are more keys.
const KEYS_SHARE_OF_LOAD: u64 = 2;
const KEYS_MIN: u64 = 1000;
/// Fewer keys where pairs are large.
const STORED_BYTES_MAX: u64 = 64 << 20;

/// The indexes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Smart,
    Art,
    Sherman,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Smart => "SMART",
            System::Art => "ART",
            System::Sherman => "Sherman",
        }
    }

    /// Yields the index, with all that its paper has.
    fn tree(self, key_bytes: usize, value_bytes: usize) -> Tree {
        match self {
            System::Smart => Tree::Smart(smart::Techniques { fused: false, ..smart::Techniques::ALL }),
            System::Art => Tree::Smart(smart::Techniques::NONE),
            System::Sherman => Tree::Sherman(SHERMAN, leaf_of_the_fork(key_bytes, value_bytes)),
        }
    }
}

/// Yields the leaves of the authors' fork of Sherman, to the next line: 623 bytes for pairs of 8 + 8 bytes, 3231 for 32
/// + 64. Each of 32 pairs has a byte of versions; the rest is a header with two fence keys.
pub(super) fn leaf_of_the_fork(key_bytes: usize, value_bytes: usize) -> NodeSize {
    const SPAN: usize = 32;
    const HEADER_BYTES: usize = 63;
    const LINE_BYTES: usize = 64;
    let bytes = HEADER_BYTES + 2 * key_bytes + SPAN * (1 + key_bytes + value_bytes);
    NodeSize::Bytes(bytes.next_multiple_of(LINE_BYTES))
}

/// A workload of YCSB.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) mix: Mix,
    pub(super) popularity: Popularity,
    /// The density of the keys: that of a tree with so many.
    pub(super) keys: u64,
    /// Of the keys of an experiment so many are stored: one in so many.
    pub(super) share: u64,
    pub(super) fill: f64,
    pub(super) warm: Warm,
}

impl Workload {
    pub(super) const C: Workload = Workload {
        name: "C",
        mix: Mix::READ_ONLY,
        popularity: SKEW,
        keys: KEYS_OF_SMART,
        share: KEYS_SHARE,
        fill: 0.8,
        warm: Warm::All,
    };
    pub(super) const A: Workload = Workload { name: "A", mix: Mix::WRITE_INTENSIVE, ..Workload::C };
    pub(super) const B: Workload = Workload { name: "B", mix: Mix::READ_INTENSIVE, ..Workload::C };
    pub(super) const D: Workload =
        Workload { name: "D", mix: Mix::READ_LATEST, popularity: Popularity::Latest(0.99), ..Workload::C };
    pub(super) const E: Workload = Workload { name: "E", mix: Mix::SCANS, ..Workload::C };
    /// In the middle of the load, leaves of Sherman as full as random inserts make them. A compute node has cached what
    /// its own inserts have met.
    pub(super) const LOAD: Workload = Workload {
        name: "LOAD",
        mix: Mix::LOAD,
        popularity: Popularity::Uniform,
        keys: KEYS_OF_SMART / 2,
        share: KEYS_SHARE_OF_LOAD,
        fill: 0.7,
        warm: Warm::Share,
    };
    pub(super) const ALL: [Workload; 6] =
        [Workload::A, Workload::B, Workload::C, Workload::D, Workload::E, Workload::LOAD];
}

/// Yields a run with so many clients on each of 16 compute nodes, and pairs of 8 + 8 bytes.
pub(super) fn setup(effort: &Effort, tree: Tree, workload: &Workload, clients: u16) -> Setup {
    Setup {
        profile: Profile::CONNECTX6,
        machines: Machines { nodes: NODES, cores: clients, servers: SERVERS },
        tree,
        clients: u32::from(NODES) * u32::from(clients) * COROUTINES,
        mix: workload.mix,
        popularity: workload.popularity,
        spread: Spread::Random { of: workload.keys },
        keys: (effort.keys / workload.share).max(KEYS_MIN),
        key_bytes: 8,
        value_bytes: 8,
        fill: workload.fill,
        cache_bytes: Setup::CACHE_BYTES,
        warm: workload.warm,
        warmup_ns: 1_000_000,
        measured_ns: 3_000_000 * effort.time_percent / 100,
        seed: effort.seed,
    }
}

/// Yields `setup` with pairs of other sizes.
fn with_sizes(setup: Setup, system: System, key_bytes: usize, value_bytes: usize) -> Setup {
    let keys = setup.keys.min(STORED_BYTES_MAX / (key_bytes + value_bytes) as u64);
    Setup { tree: system.tree(key_bytes, value_bytes), keys, key_bytes, value_bytes, ..setup }
}

/// Yields SMART's indexes with all workloads of its paper, one client on each compute node.
pub fn setups(effort: &Effort) -> Vec<NamedSetup> {
    let with_all = |system: System| {
        Workload::ALL.map(|workload| NamedSetup {
            system: system.name(),
            workload: workload.name,
            setup: setup(effort, system.tree(8, 8), &workload, 1),
        })
    };
    [System::Smart, System::Art, System::Sherman].into_iter().flat_map(with_all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_those_of_the_authors() {
        // 623 and 3231 bytes (TARGETS section 3), in lines.
        assert_eq!(leaf_of_the_fork(8, 8), NodeSize::Bytes(640));
        assert_eq!(leaf_of_the_fork(32, 64), NodeSize::Bytes(3264));
    }
}
