//! The effect of skew and of the sizes of keys and values on SMART, ART and Sherman (figure 18), 256 clients.

use super::super::cluster::{Setup, run};
use super::super::workload::Popularity;
use super::super::{Class, Effort, Row};
use super::{System, Workload, setup, with_sizes};

/// Clients per compute node.
const CLIENTS: u16 = 16;
/// The paper's longest key has one byte more than ours may have.
const LONG_KEY: usize = 255;
const LONG_VALUE: usize = 1024;

/// Simulates figure 18: by what factor throughput falls.
pub(in super::super) fn fig18(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig18";
    let mut rows = Vec::new();
    for (system, paper, class) in [
        (System::Smart, 2.6, Class::Skewed),
        (System::Art, 2.6, Class::Skewed),
        (System::Sherman, 7.4, Class::Skewed),
    ] {
        let mops = |exponent| {
            let setup = setup(effort, system.tree(8, 8), &Workload::A, CLIENTS);
            Ok::<_, String>(run(&Setup { popularity: Popularity::Zipf(exponent), ..setup })?.mops())
        };
        let figure = format!("A: {}, skew 0.5 over 0.99", system.name());
        rows.push(Row::new(NAME, figure, paper, mops(0.5)? / mops(0.99)?, class));
    }
    for (system, key, value, class) in [
        (System::Smart, 1.3, 3.1, Class::Even),
        (System::Art, 1.3, 3.4, Class::Even),
        (System::Sherman, 14.0, 64.0, Class::Bound),
    ] {
        let mops = |key_bytes, value_bytes| {
            let setup = setup(effort, system.tree(8, 8), &Workload::C, CLIENTS);
            Ok::<_, String>(run(&with_sizes(setup, system, key_bytes, value_bytes))?.mops())
        };
        let short = mops(8, 8)?;
        let name = system.name();
        let figure = format!("C: {name}, keys of 8 over keys of {LONG_KEY} B");
        rows.push(Row::new(NAME, figure, key, short / mops(LONG_KEY, 8)?, class));
        let figure = format!("C: {name}, values of 8 over values of {LONG_VALUE} B");
        rows.push(Row::new(NAME, figure, value, short / mops(8, LONG_VALUE)?, class));
    }
    Ok(rows)
}
