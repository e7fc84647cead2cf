//! Sizes: cached bytes of the three indexes (figure 14), how full CHIME's leaves become, and what its hotspots bring
//! (figure 19).

use farwood_index::layout::hopscotch::{HopLayout, Ring};
use farwood_index::sherman::NodeSize;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::band::{compare_all, run_read_rates};
use super::super::cluster::{Measured, Setup, Tree, run};
use super::super::smart::Workload;
use super::super::workload::KEYS_OF_SMART;
use super::super::{Class, Effort, Row};
use super::{CHIME, CLIENTS, Geometry, SHERMAN, SPAN, System, Techniques, VALUE_BYTES, part_of, setup};

/// A tree becomes so many times as large by inserts, until it has one in so many of an experiment's keys.
const GROWTH: u64 = 4;
const GROWN_SHARE: u64 = 4;

/// Simulates figure 14: bytes of cached nodes, for the paper's 60 million keys, where there is room for all.
pub(in super::super) fn fig14(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig14";
    let sherman = Tree::Sherman(SHERMAN, NodeSize::Slots { leaf: SPAN, inner: SPAN });
    let chime = cached_by_inserts(effort, chime(Geometry::default()))?;
    let sherman = cached_by_inserts(effort, sherman)?;
    let smart = cached_by_gets(effort, System::Smart.tree(VALUE_BYTES))?;
    let megabytes = |system: System, paper, bytes_per_key: f64| {
        let figure = format!("{}, MB for 60 M keys", system.name());
        Row::new(NAME, figure, paper, bytes_per_key * KEYS_OF_SMART as f64 / 1e6, Class::Even)
    };
    Ok(vec![
        megabytes(System::Chime, 27.6, chime),
        megabytes(System::Sherman, 23.6, sherman),
        megabytes(System::Smart, 503.2, smart),
        Row::new(NAME, "CHIME over Sherman", 27.6 / 23.6, chime / sherman, Class::Even),
    ])
}

/// Makes CHIME without hotspots: their buffer has the size that it is given.
fn chime(geometry: Geometry) -> Tree {
    Tree::Chime(Techniques { speculative: false, ..CHIME }, geometry)
}

/// Measures the cached bytes per key of a tree that inserts made: its leaves are as full as these leave them.
fn cached_by_inserts(effort: &Effort, tree: Tree) -> Result<f64, String> {
    // As fast as the message rate lets them, about.
    const NS_PER_KEY: u64 = 110;
    let setup = setup(effort, tree, &Workload::LOAD, CLIENTS);
    let grown = effort.keys / GROWN_SHARE;
    let keys = grown / GROWTH;
    let measured_ns = (grown - keys) * NS_PER_KEY;
    let setup = Setup { keys, measured_ns, warmup_ns: 0, cache_bytes: Setup::CACHE_BYTES, ..setup };
    let measured = run(&setup)?;
    Ok(measured.stats.cache.bytes as f64 / (keys + measured.ops) as f64)
}

/// Measures the cached bytes per key of a tree whose nodes are the same whatever the order of inserts.
fn cached_by_gets(effort: &Effort, tree: Tree) -> Result<f64, String> {
    let setup = Setup { cache_bytes: Setup::CACHE_BYTES, ..setup(effort, tree, &Workload::C, CLIENTS) };
    Ok(run(&setup)?.stats.cache.bytes as f64 / setup.keys as f64)
}

/// Simulates figure 19: load factors and cached bytes over sizes, throughput over hotspots.
pub(in super::super) fn fig19(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig19";
    let mut rng = SmallRng::seed_from_u64(effort.seed);
    let mut rows = Vec::new();
    for (reach, paper) in [(2, 0.377), (8, 0.881), (16, 0.998)] {
        let load = load_factor(&mut rng, Ring { slots: SPAN, reach });
        let figure = format!("span {SPAN}, neighbourhood {reach}: maximum load factor");
        rows.push(Row::new(NAME, figure, paper, load, Class::Bound));
    }
    let cached = |geometry| cached_by_inserts(effort, chime(geometry));
    let of = |span, neighbourhood| Geometry { span, neighbourhood, ..Geometry::default() };
    for (figure, above, below) in
        [("span 16 over 64", of(16, 8), of(64, 8)), ("neighbourhood 2 over 16", of(64, 2), of(64, 16))]
    {
        let figure = format!("cached bytes, {figure} (over 1 in the paper)");
        rows.push(Row::new(NAME, figure, 1.0, cached(above)? / cached(below)?, Class::AtLeast));
    }
    rows.push(hotspots(effort, NAME)?);
    Ok(rows)
}

/// Measures the part of a leaf's slots that are taken when the first key finds no place, of many leaves.
fn load_factor(rng: &mut SmallRng, ring: Ring) -> f64 {
    const LEAVES: usize = 2000;
    let leaf = HopLayout::new(ring, 8, 8, false).expect("the figure's sizes make leaves");
    let mut taken = 0;
    for _ in 0..LEAVES {
        let keys: Vec<[u8; 8]> = (0..ring.slots).map(|_| rng.random()).collect();
        taken += leaf.room_for(keys.iter().map(|key| &key[..]));
    }
    taken as f64 / (LEAVES * ring.slots) as f64
}

/// Simulates figure 19c: gets with as many hotspots as the paper's 50 MB have, over gets without.
fn hotspots(effort: &Effort, name: &'static str) -> Result<Row, String> {
    const HOTSPOTS_BYTES: u64 = 50_000_000;
    /// A hotspot takes 16 bytes there, and 8 here.
    const SMALLER: u64 = 2;
    /// CHIME gives a quarter of the budget to hotspots.
    const PARTS: u64 = 4;
    let all = setup(effort, Tree::Chime(CHIME, Geometry::default()), &Workload::C, CLIENTS);
    let cache_bytes = part_of(HOTSPOTS_BYTES / SMALLER * PARTS, all.keys, &Workload::C);
    let none = Setup { tree: chime(Geometry::default()), ..all.clone() };
    let runs = (run_read_rates(&Setup { cache_bytes, ..all })?, run_read_rates(&none)?);
    let figure = (name, "C: hotspots of 50 MB over none".to_string());
    Ok(compare_all(figure, 1.2, Class::Bound, (&runs.0, &runs.1), Measured::mops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_neighbourhoods_fill_leaves_better() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut of = |reach| load_factor(&mut rng, Ring { slots: SPAN, reach });
        let loads = [2, 8, 16, SPAN].map(&mut of);
        assert!(loads.is_sorted() && loads[0] < 0.5 && loads[3] == 1.0, "{loads:?}");
    }
}
