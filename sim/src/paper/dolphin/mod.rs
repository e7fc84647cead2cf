//! The figures of Dolphin (2024), against Sherman and SMART. Marlin, which the paper compares with too, is not among
//! our indexes: its rows are left out.
//!
//! - `ycsb`: what the three indexes do under YCSB, with scans (figures 6, 7, 8), and where all clients want one leaf.
//! - `sizes`: what caches and memory servers hold (table II).
//!
//! Techniques that the papers do not have are off: `fused`, `image_handover`, and Dolphin's `delegation` and
//! `combining`. The paper's figures are pictures: a row is what its text says of one.

mod sizes;
mod ycsb;

use farwood_index::sherman::NodeSize;
use farwood_index::{IndexKind, Limits, Nodes, smart};
use farwood_runtime::sim::Profile;

pub(super) use self::sizes::table2;
pub(super) use self::ycsb::{fig8, hot_leaf, ycsb};
use super::cluster::{Machines, Setup, Tree, Warm};
use super::tree::SHERMAN;
use super::workload::{KEYS_OF_DOLPHIN, Length, Mix, Popularity, Spread};
use super::{Effort, NamedSetup};

/// Compute servers, and clients of each, on a core each (section IV-A).
const NODES: u16 = 4;
const CLIENTS: u16 = 18;
const SERVERS: u16 = 4;
const KEY_BYTES: usize = 8;
const VALUE_BYTES: usize = 8;
/// Of the keys that Sherman's experiments store these store a half, to the next lower power of two.
const KEYS_SHARE: u64 = 2;
/// Caches for all but SMART's inner nodes (sections IV-C and IV-D), in bytes for the paper's keys.
const CACHE_BYTES: u64 = 2_000_000_000;
/// As full as inserts in random order leave leaves.
const FILL: f64 = 0.7;

/// The indexes that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Dolphin,
    Sherman,
    Smart,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Dolphin => "Dolphin",
            System::Sherman => "Sherman",
            System::Smart => "SMART",
        }
    }

    /// Yields the index with all that its paper has; leaves of 1 KiB but for SMART.
    fn tree(self) -> Tree {
        match self {
            System::Dolphin => of_paper(IndexKind::Dolphin),
            System::Sherman => Tree::Sherman(SHERMAN, NodeSize::Bytes(1024)),
            System::Smart => Tree::Smart(smart::Techniques { fused: false, ..smart::Techniques::ALL }),
        }
    }
}

/// Yields the index of that kind with its usual nodes, without techniques that are ours.
fn of_paper(kind: IndexKind) -> Tree {
    const OURS: [&str; 4] = ["fused", "image_handover", "delegation", "combining"];
    let limits = Limits { max_key: KEY_BYTES, max_value: VALUE_BYTES };
    let mut spec = kind.spec(limits, Nodes::Usual);
    for name in OURS {
        spec.set_technique(name, false);
    }
    Tree::Usual(spec)
}

/// A workload of the paper.
#[derive(Clone, Copy, Debug)]
struct Workload {
    name: &'static str,
    mix: Mix,
    popularity: Popularity,
    warm: Warm,
}

impl Workload {
    const A: Workload = Workload {
        name: "A",
        mix: Mix { updates: 0.5, ..Mix::READ_ONLY },
        popularity: Popularity::Zipf(0.99),
        warm: Warm::All,
    };
    const B: Workload = Workload { name: "B", mix: Mix { updates: 0.05, ..Mix::READ_ONLY }, ..Workload::A };
    const C: Workload = Workload { name: "C", mix: Mix::READ_ONLY, ..Workload::A };
    const D: Workload =
        Workload { name: "D", mix: Mix::READ_LATEST, popularity: Popularity::Latest(0.99), ..Workload::A };
    const E: Workload = Workload { name: "E", mix: Mix::SCANS, ..Workload::A };
    /// In the middle of the load: a compute server has cached what its own inserts have met.
    const LOAD: Workload =
        Workload { name: "LOAD", mix: Mix::LOAD, popularity: Popularity::Uniform, warm: Warm::Share };
    const RANGE_ONLY: Workload = Workload {
        name: "range-only",
        mix: Mix { scan: Some(Length::Pairs(100)), ..Mix::READ_ONLY },
        popularity: Popularity::Uniform,
        warm: Warm::All,
    };
    const RANGE_WRITE: Workload = Workload {
        name: "range-write",
        mix: Mix { inserts: 0.5, ..Workload::RANGE_ONLY.mix },
        ..Workload::RANGE_ONLY
    };

    const ALL: [Workload; 8] = [
        Workload::A,
        Workload::B,
        Workload::C,
        Workload::D,
        Workload::E,
        Workload::LOAD,
        Workload::RANGE_ONLY,
        Workload::RANGE_WRITE,
    ];
}

/// Yields a run by 72 clients, whose compute servers cache the part of `cache_bytes` that the stored keys are of the
/// paper's.
fn setup(effort: &Effort, tree: Tree, workload: &Workload, cache_bytes: u64) -> Setup {
    let keys = 1 << (effort.keys / KEYS_SHARE).ilog2();
    // Scans are long to simulate, and differ less.
    let measured_ns = if workload.mix.scan.is_some() { 10_000_000 } else { 20_000_000 };
    Setup {
        profile: Profile::CONNECTX5,
        machines: Machines { nodes: NODES, cores: CLIENTS, servers: SERVERS },
        tree,
        clients: u32::from(NODES) * u32::from(CLIENTS),
        mix: workload.mix,
        popularity: workload.popularity,
        spread: Spread::Dense { of: KEYS_OF_DOLPHIN },
        keys,
        key_bytes: KEY_BYTES,
        value_bytes: VALUE_BYTES,
        fill: FILL,
        cache_bytes: part_of(cache_bytes, keys),
        warm: workload.warm,
        warmup_ns: 5_000_000,
        measured_ns: measured_ns * effort.time_percent / 100,
        seed: effort.seed,
    }
}

/// Yields the part of so many bytes that the stored keys are of the paper's.
fn part_of(bytes: u64, keys: u64) -> usize {
    (bytes * keys / KEYS_OF_DOLPHIN) as usize
}

/// Yields Dolphin's indexes with all workloads of its paper.
pub fn setups(effort: &Effort) -> Vec<NamedSetup> {
    let with_all = |system: System| {
        Workload::ALL.map(|workload| NamedSetup {
            system: system.name(),
            workload: workload.name,
            setup: setup(effort, system.tree(), &workload, CACHE_BYTES),
        })
    };
    [System::Dolphin, System::Sherman, System::Smart].into_iter().flat_map(with_all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_any_kind_is_as_its_paper_has_it() {
        for &kind in IndexKind::ALL {
            let Tree::Usual(spec) = of_paper(kind) else { panic!("{kind}") };
            let on = |name| spec.technique(name).unwrap_or(false);
            assert!(!on("fused") && !on("delegation") && !on("combining"), "{kind}");
        }
    }

    #[test]
    fn caches_are_the_papers_part() {
        let setup = setup(&Effort::default(), System::Smart.tree(), &Workload::C, CACHE_BYTES);
        assert_eq!((setup.keys, setup.clients, setup.cache_bytes), (1 << 19, 72, 2_048_000));
    }
}
