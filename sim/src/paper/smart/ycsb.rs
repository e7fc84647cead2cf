//! SMART, ART and Sherman under YCSB: figures 3, 11, 13 and 14.

use super::super::band::{compare, run_all};
use super::super::cluster::{Machines, Measured, Setup, run};
use super::super::{Class, Effort, Row};
use super::{COROUTINES, System, Workload, setup, with_sizes};

/// Simulates figure 3: gets of 32-byte keys with values of 64 bytes, 8 compute nodes and 1 memory server, each index
/// with the clients that the authors end its curve with.
pub(in super::super) fn fig3(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig3";
    const NODES: u16 = 8;
    let mops = |system: System, clients: u16| {
        let setup = setup(effort, system.tree(32, 64), &Workload::C, clients);
        let setup = Setup {
            machines: Machines { nodes: NODES, cores: clients, servers: 1 },
            clients: u32::from(NODES) * u32::from(clients) * COROUTINES,
            ..with_sizes(setup, system, 32, 64)
        };
        Ok::<_, String>(run(&setup)?.mops())
    };
    Ok(vec![
        Row::new(NAME, "Sherman, Mops (bandwidth)", 4.17, mops(System::Sherman, 8)?, Class::Bound),
        Row::new(NAME, "ART, Mops (message rate)", 45.0, mops(System::Art, 40)?, Class::Bound),
    ])
}

/// Yields the clients per compute node with which the authors end the curves of figure 11.
fn most_clients(system: System, workload: &Workload) -> u16 {
    match (system, workload.name) {
        (System::Smart, "LOAD" | "A") => 24,
        (System::Smart, "B") => 28,
        (System::Smart, "D") => 36,
        (System::Smart, _) => 56,
        (System::Art, "LOAD") => 23,
        (System::Art, "A") => 9,
        (System::Art, "B" | "D") => 24,
        (System::Art, _) => 40,
        (System::Sherman, "LOAD") => 13,
        // 44 of them, on two compute nodes.
        (System::Sherman, "A") => 3,
        (System::Sherman, _) => 16,
    }
}

/// Simulates figure 11 and section 5.2: each system with the most clients that the authors gave it.
pub(in super::super) fn fig11(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig11";
    let mut rows = Vec::new();
    for (workload, over_sherman, over_art, classes) in [
        (Workload::LOAD, 1.6, 1.5, [Class::Skewed; 2]),
        (Workload::A, 6.1, 3.4, [Class::Skewed, Class::Spinning]),
        (Workload::B, 2.4, 1.8, [Class::Even; 2]),
        (Workload::C, 2.8, 1.2, [Class::Bound; 2]),
        (Workload::D, 2.4, 1.4, [Class::Even; 2]),
    ] {
        let is_banded = classes.contains(&Class::Spinning);
        let runs = |system: System| {
            let clients = most_clients(system, &workload);
            let setup = setup(effort, system.tree(8, 8), &workload, clients);
            if is_banded && system != System::Sherman { run_all(&setup) } else { Ok(vec![run(&setup)?]) }
        };
        let smart = runs(System::Smart)?;
        if workload.name == Workload::C.name {
            rows.push(Row::new(NAME, "C: SMART, Mops", 96.0, smart[0].mops(), Class::Bound));
        }
        let others = [(System::Sherman, over_sherman), (System::Art, over_art)];
        for ((other, paper), class) in others.into_iter().zip(classes) {
            let figure = (NAME, format!("{}: SMART over {}", workload.name, other.name()));
            rows.push(compare(figure, paper, class, (&smart, &runs(other)?), Measured::mops));
        }
    }
    Ok(rows)
}

/// Simulates figure 13: A with more and more clients. The paper gives a picture, and two sentences.
pub(in super::super) fn fig13(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig13";
    const CLIENTS: [u16; 3] = [4, 16, 48];
    let mops = |system: System| -> Result<[f64; 3], String> {
        let mut mops = [0.0; 3];
        for (mops, clients) in mops.iter_mut().zip(CLIENTS) {
            *mops = run(&setup(effort, system.tree(8, 8), &Workload::A, clients))?.mops();
        }
        Ok(mops)
    };
    let (smart, art, sherman) = (mops(System::Smart)?, mops(System::Art)?, mops(System::Sherman)?);
    let row = |figure: &str, simulated| {
        Row::new(NAME, format!("A: {figure} (over 1 in the paper)"), 1.0, simulated, Class::AtLeast)
    };
    Ok(vec![
        row("ART collapses, 256 over 768 clients", art[1] / art[2]),
        row("SMART scales, 768 over 256 clients", smart[2] / smart[1]),
        row("SMART scales, 256 over 64 clients", smart[1] / smart[0]),
        row("768 clients, SMART over ART", smart[2] / art[2]),
        row("768 clients, SMART over Sherman", smart[2] / sherman[2]),
    ])
}

/// Simulates figure 14: scans of up to 100 pairs by 128 clients. Where the lines cross is all that the paper tells in
/// words.
pub(in super::super) fn fig14(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "smart-fig14";
    const CLIENTS: u16 = 8;
    let mops = |system: System, value_bytes| {
        let setup = setup(effort, system.tree(8, value_bytes), &Workload::E, CLIENTS);
        let measured = run(&with_sizes(setup, system, 8, value_bytes))?;
        Ok::<_, String>(measured.reads.len() as f64 / measured.seconds / 1e6)
    };
    let mut rows = Vec::new();
    for (value_bytes, better, other) in [
        (8, System::Sherman, System::Smart),
        (128, System::Smart, System::Sherman),
        (256, System::Smart, System::Sherman),
    ] {
        let figure = format!(
            "values of {value_bytes} B, scans of {} over {} (over 1 in the paper)",
            better.name(),
            other.name()
        );
        let ratio = mops(better, value_bytes)? / mops(other, value_bytes)?;
        rows.push(Row::new(NAME, figure, 1.0, ratio, Class::AtLeast));
    }
    Ok(rows)
}
