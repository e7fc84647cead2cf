//! The gain from CHIME's techniques one by one (figure 15a), from its Sherman with a version in each line on.

use farwood_index::Switches;
use farwood_index::chime::{Geometry, Techniques};

use super::super::band::{compare_all, run_read_rates, us};
use super::super::cluster::{Measured, Tree};
use super::super::smart::Workload;
use super::super::{Class, Effort, Row};
use super::setup;

/// Clients per compute node: 320 of all.
const CLIENTS: u16 = 32;
/// Techniques in the order in which the paper adds them (section 5.3).
const LADDER: [&str; 5] = ["hopscotch", "piggyback", "replicas", "sibling_validation", "speculative"];

/// Makes CHIME with so many steps of the ladder.
fn ladder(steps: usize) -> Tree {
    let mut techniques = Techniques { delegation: true, combining: true, ..Techniques::NONE };
    for name in &LADDER[..steps] {
        assert!(techniques.set(name, true), "the ladder's names are CHIME's");
    }
    Tree::Chime(techniques, Geometry::default())
}

/// A step of the figure: what it brings over the one before, under the workload that the paper shows it with.
struct Factor {
    step: usize,
    workload: Workload,
    class: Class,
    throughput: f64,
    /// Factors by which the median and the 99th percentile are lower.
    latency: Option<[f64; 2]>,
}

const FACTORS: [Factor; 4] = [
    Factor {
        step: 1,
        workload: Workload::C,
        class: Class::Bound,
        throughput: 2.3,
        latency: Some([2.4, 2.0]),
    },
    Factor {
        step: 2,
        workload: Workload::LOAD,
        class: Class::Skewed,
        throughput: 1.6,
        latency: Some([1.7, 1.4]),
    },
    Factor {
        step: 3,
        workload: Workload::C,
        class: Class::Bound,
        throughput: 1.6,
        latency: Some([1.6, 1.4]),
    },
    // "Only a negligible improvement".
    Factor { step: 5, workload: Workload::C, class: Class::Bound, throughput: 1.0, latency: None },
];

/// Simulates figure 15a: techniques one by one.
pub(in super::super) fn fig15(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "chime-fig15";
    let mut rows = Vec::new();
    for Factor { step, workload, class, throughput, latency } in FACTORS {
        let runs = |steps| run_read_rates(&setup(effort, ladder(steps), &workload, CLIENTS));
        let (with, without) = (runs(step)?, runs(step - 1)?);
        let title = |what: &str| (NAME, format!("+{} under {}, {what}", LADDER[step - 1], workload.name));
        rows.push(compare_all(title("throughput"), throughput, class, (&with, &without), Measured::mops));
        let Some([p50, p99]) = latency else { continue };
        for (what, quantile, paper, class) in
            [("p50 lower", 0.5, p50, Class::Even), ("p99 lower", 0.99, p99, Class::Tail)]
        {
            let lower = |measured: &Measured| us(&measured.all, quantile);
            rows.push(compare_all(title(what), paper, class, (&without, &with), lower));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::super::{System, VALUE_BYTES};
    use super::*;

    #[test]
    fn the_ladder_ends_with_chime() {
        assert_eq!(ladder(LADDER.len()), System::Chime.tree(VALUE_BYTES));
        for factor in FACTORS {
            assert_ne!(ladder(factor.step), ladder(factor.step - 1));
        }
    }
}
