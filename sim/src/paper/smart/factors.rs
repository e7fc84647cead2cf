//! The gain from SMART's techniques one by one (figure 15) and from two of them on Sherman, and what operations send
//! (table 1).

use farwood_index::Switches;
use farwood_index::sherman::{self, NodeSize};
use farwood_index::{OpKind, smart};

use super::super::band::{compare, run_all, us};
use super::super::cluster::{Measured, Setup, Tree, run};
use super::super::tree::SHERMAN;
use super::super::workload::{Mix, Popularity};
use super::super::{Class, Effort, Row};
use super::{System, Workload, setup, with_sizes};

/// Clients per compute node in the factor analysis.
const CLIENTS: u16 = 24;
/// Techniques in the order in which the paper adds them (section 5.3).
const LADDER: [&str; 5] = ["lock_free_nodes", "in_place_leaves", "rear_lock", "delegation", "combining"];
/// Their places in the ladder; what is before the first one is ART.
const LOCK_FREE_NODES: usize = 1;
const IN_PLACE_LEAVES: usize = 2;
const REAR_LOCK: usize = 3;
const DELEGATION: usize = 4;
const COMBINING: usize = 5;

/// Makes SMART with so many steps of the ladder.
fn ladder(steps: usize) -> Tree {
    let mut techniques = smart::Techniques::NONE;
    for name in &LADDER[..steps] {
        assert!(techniques.set(name, true), "the ladder's names are SMART's");
    }
    Tree::Smart(techniques)
}

/// A step of figure 15: what it brings over the one before, under the workload that the paper shows it with.
struct Factor {
    step: usize,
    workload: Workload,
    class: Class,
    throughput: f64,
    /// Factors by which the median and the 99th percentile are lower.
    p50: Option<f64>,
    p99: f64,
}

const FACTORS: [Factor; 5] = [
    Factor {
        step: LOCK_FREE_NODES,
        workload: Workload::LOAD,
        class: Class::Skewed,
        throughput: 1.5,
        p50: Some(1.8),
        p99: 1.4,
    },
    Factor {
        step: IN_PLACE_LEAVES,
        workload: Workload::B,
        class: Class::Even,
        throughput: 1.5,
        p50: Some(1.4),
        p99: 1.7,
    },
    // Before, clients spin on locks of the lock table.
    Factor {
        step: REAR_LOCK,
        workload: Workload::A,
        class: Class::Spinning,
        throughput: 3.0,
        p50: None,
        p99: 11.3,
    },
    Factor {
        step: DELEGATION,
        workload: Workload::C,
        class: Class::Bound,
        throughput: 1.1,
        p50: None,
        p99: 1.3,
    },
    Factor {
        step: COMBINING,
        workload: Workload::A,
        class: Class::Skewed,
        throughput: 1.1,
        p50: None,
        p99: 1.3,
    },
];

/// Simulates figure 15: techniques one by one, 384 clients.
pub(in super::super) fn fig15(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig15";
    let mut rows = Vec::new();
    for Factor { step, workload, class, throughput, p50, p99 } in FACTORS {
        let runs = |steps| {
            let setup = setup(effort, ladder(steps), &workload, CLIENTS);
            if class == Class::Spinning { run_all(&setup) } else { Ok::<_, String>(vec![run(&setup)?]) }
        };
        let (with, without) = (runs(step)?, runs(step - 1)?);
        let title = |what: &str| (NAME, format!("+{} under {}, {what}", LADDER[step - 1], workload.name));
        let tail = if class == Class::Spinning { class } else { Class::Tail };
        rows.push(compare(title("throughput"), throughput, class, (&with, &without), Measured::mops));
        let lower = |quantile| move |measured: &Measured| us(&measured.all, quantile);
        if let Some(p50) = p50 {
            rows.push(compare(title("p50 lower"), p50, class, (&without, &with), lower(0.5)));
        }
        rows.push(compare(title("p99 lower"), p99, tail, (&without, &with), lower(0.99)));
    }
    Ok(rows)
}

/// Checks what the paper expects of RDWC on Sherman (section 5.3): no measurement, a prediction.
pub(in super::super) fn rdwc_on_sherman(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "rdwc-on-sherman";
    let mut rows = Vec::new();
    for (workload, paper, class) in [(Workload::A, 1.3, Class::Skewed), (Workload::C, 1.1, Class::Even)] {
        let mops = |shares: bool| {
            let Tree::Sherman(techniques, size) = System::Sherman.tree(8, 8) else {
                unreachable!("it is a Sherman tree");
            };
            let techniques = sherman::Techniques { delegation: shares, combining: shares, ..techniques };
            Ok::<_, String>(run(&setup(effort, Tree::Sherman(techniques, size), &workload, CLIENTS))?.mops())
        };
        let figure = format!("{}: Sherman with RDWC over Sherman", workload.name);
        rows.push(Row::new(NAME, figure, paper, mops(true)? / mops(false)?, class));
    }
    Ok(rows)
}

/// Simulates table 1: bytes of READs per get, and of WRITEs per put of a present key, over the bytes of a pair of 32 +
/// 64 bytes: exact, from the meters, with what we put around a pair instead of the paper's metadata.
pub(in super::super) fn table1(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-table1";
    const SPAN: NodeSize = NodeSize::Slots { leaf: 32, inner: 32 };
    let plain = sherman::Techniques { two_level: false, ..SHERMAN };
    let mut rows = Vec::new();
    for (name, tree, [read, write]) in [
        ("ART", System::Art.tree(32, 64), [1.10, 1.10]),
        ("B+tree", Tree::Sherman(plain, SPAN), [32.7, 32.7]),
        ("Sherman", Tree::Sherman(SHERMAN, SPAN), [33.0, 1.01]),
    ] {
        let simulated = amplification(effort, tree)?;
        for ((what, paper), simulated) in [("read", read), ("write", write)].into_iter().zip(simulated) {
            rows.push(Row::new(
                NAME,
                format!("{name}, {what} amplification"),
                paper,
                simulated,
                Class::Bound,
            ));
        }
    }
    Ok(rows)
}

/// Measures read and write amplification for pairs of 32 + 64 bytes, where clients do not meet and caches are right.
fn amplification(effort: &Effort, tree: Tree) -> Result<[f64; 2], String> {
    const PAIR_BYTES: f64 = 96.0;
    let stats = |mix| {
        let workload = Workload { mix, popularity: Popularity::Uniform, ..Workload::C };
        let setup = with_sizes(setup(effort, tree, &workload, 1), System::Art, 32, 64);
        Ok::<_, String>(run(&Setup { tree, ..setup })?.stats)
    };
    let (reads, writes) = (stats(Mix::READ_ONLY)?, stats(Mix::WRITE_ONLY)?);
    let (get, put) = (reads.kind(OpKind::Get), writes.kind(OpKind::Put));
    let per_op = |bytes: u64, ops: u64| bytes as f64 / ops as f64 / PAIR_BYTES;
    Ok([per_op(get.bytes_read, get.ops), per_op(put.bytes_written, put.ops)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_ends_with_smart() {
        assert_eq!(ladder(0), System::Art.tree(8, 8));
        assert_eq!(ladder(LADDER.len()), System::Smart.tree(8, 8));
        for factor in FACTORS {
            assert_ne!(ladder(factor.step), ladder(factor.step - 1));
        }
    }
}
