//! CHIME, Sherman and SMART under YCSB: figures 3, 12 and 17.

use super::super::band::{compare_all, run_read_rates};
use super::super::cluster::{Machines, Measured, Setup, Tree};
use super::super::smart::Workload;
use super::super::{Class, Effort, Row};
use super::{CHIME, CLIENTS, Geometry, NODES, System, Techniques, VALUE_BYTES, setup};

/// Leaves as full as inserts make them, and many: inserts of a short run split few of them.
const WORKLOAD_D: Workload =
    Workload { share: Workload::LOAD.share, fill: Workload::LOAD.fill, ..Workload::D };

/// Simulates figures 3b and 3c: gets with caches for all and one memory server, and with the usual caches and ten.
pub(in super::super) fn fig3(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig3";
    /// 480 of all.
    const FEWER_CLIENTS: u16 = 48;
    let limited = |system: System, of: &dyn Fn(Setup) -> Setup, clients| {
        run_read_rates(&of(setup(effort, system.tree(VALUE_BYTES), &Workload::C, clients)))
    };
    let bandwidth =
        |system| limited(system, &|setup| Setup { cache_bytes: Setup::CACHE_BYTES, ..setup }, CLIENTS);
    let caches = |system| {
        let machines = Machines { nodes: NODES, cores: FEWER_CLIENTS, servers: NODES };
        limited(system, &|setup| Setup { machines, ..setup }, FEWER_CLIENTS)
    };
    let row = |figure: &str, paper, (above, below): (Vec<Measured>, Vec<Measured>)| {
        compare_all((NAME, figure.into()), paper, Class::Bound, (&above, &below), Measured::mops)
    };
    Ok(vec![
        row(
            "limited bandwidth, SMART over Sherman",
            4.9,
            (bandwidth(System::Smart)?, bandwidth(System::Sherman)?),
        ),
        row("limited caches, Sherman over SMART", 5.9, (caches(System::Sherman)?, caches(System::Smart)?)),
    ])
}

/// Simulates figure 12 and section 5.2: 640 clients.
pub(in super::super) fn fig12(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig12";
    let mut rows = Vec::new();
    for (workload, over_sherman, over_smart, class) in [
        (Workload::LOAD, 1.6, 1.2, Class::Skewed),
        (Workload::A, 2.2, 2.5, Class::Skewed),
        (Workload::B, 3.6, 4.1, Class::Bound),
        (Workload::C, 4.3, 5.1, Class::Bound),
        (WORKLOAD_D, 4.2, 4.4, Class::Even),
        (Workload::E, 1.2, 2.5, Class::Bound),
    ] {
        let runs =
            |system: System| run_read_rates(&setup(effort, system.tree(VALUE_BYTES), &workload, CLIENTS));
        let chime = runs(System::Chime)?;
        for (other, paper) in [(System::Sherman, over_sherman), (System::Smart, over_smart)] {
            let figure = (NAME, format!("{}: CHIME over {}", workload.name, other.name()));
            rows.push(compare_all(figure, paper, class, (&chime, &runs(other)?), Measured::mops));
        }
    }
    Ok(rows)
}

/// Simulates figure 17: gets with and without speculation, by few clients and by those that saturate the network.
pub(in super::super) fn fig17(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig17";
    /// Clients per compute node that leave the network idle.
    const FEW_CLIENTS: u16 = 8;
    let runs = |speculative, clients| {
        let tree = Tree::Chime(Techniques { speculative, ..CHIME }, Geometry::default());
        run_read_rates(&setup(effort, tree, &Workload::C, clients))
    };
    let row = |clients: u16, paper| {
        let figure = (NAME, format!("C: {} clients, with speculative over without", NODES * clients));
        let runs = (runs(true, clients)?, runs(false, clients)?);
        Ok(compare_all(figure, paper, Class::Bound, (&runs.0, &runs.1), Measured::mops))
    };
    [row(FEW_CLIENTS, 1.0), row(CLIENTS, 1.2)].into_iter().collect()
}
