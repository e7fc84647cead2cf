//! Dolphin, Sherman and SMART under YCSB: figures 6 and 7; and with scans: figure 8.

use super::super::band::us;
use super::super::cluster::{Machines, Measured, Setup, run};
use super::super::workload::{Mix, Popularity};
use super::super::{Class, Effort, Row};
use super::{CACHE_BYTES, NODES, SERVERS, System, Workload, setup};

/// Simulates figures 6 and 7 (sections IV-B and IV-C). Of B, D and E the paper has no figures, only that Dolphin is the
/// best of all in everything (section I).
pub(in super::super) fn ycsb(effort: &Effort) -> Result<Vec<Row>, String> {
    let mut rows = fig6(effort)?;
    rows.extend(fig7(effort)?);
    Ok(rows)
}

const YCSB: &str = "dolphin-ycsb";

fn measure(
    effort: &Effort,
    system: System,
    workload: &Workload,
    cache_bytes: u64,
) -> Result<Measured, String> {
    run(&setup(effort, system.tree(), workload, cache_bytes))
}

/// Simulates figure 6: YCSB A over sizes of caches.
fn fig6(effort: &Effort) -> Result<Vec<Row>, String> {
    const MB: u64 = 1_000_000;
    let uniform = Workload { popularity: Popularity::Uniform, ..Workload::A };
    let mops = |system, workload: &Workload, cache_mb| {
        Ok::<_, String>(measure(effort, system, workload, cache_mb * MB)?.mops())
    };
    let mut rows = Vec::new();
    for (workload, name, cache_mb, over_sherman, over_smart) in [
        (Workload::A, "A, skewed", 800, 1.51, 1.32),
        // The ends of the range that the paper gives for 200 MB, over all systems and skews.
        (uniform, "A, uniform", 200, 1.16, 3.26),
    ] {
        let dolphin = mops(System::Dolphin, &workload, cache_mb)?;
        for (other, paper) in [(System::Sherman, over_sherman), (System::Smart, over_smart)] {
            let figure = format!("{name}, caches of {cache_mb} MB: Dolphin over {}", other.name());
            let ratio = dolphin / mops(other, &workload, cache_mb)?;
            rows.push(Row::new(YCSB, figure, paper, ratio, Class::Skewed));
        }
    }
    let least = mops(System::Dolphin, &Workload::A, 50)?;
    for other in [System::Sherman, System::Smart] {
        let figure = format!("A: Dolphin, 50 MB, over {}, 200 MB (over 1 in the paper)", other.name());
        let ratio = least / mops(other, &Workload::A, 200)?;
        rows.push(Row::new(YCSB, figure, 1.0, ratio, Class::AtLeast));
    }
    Ok(rows)
}

/// Simulates figure 7: all workloads, with caches that only SMART's inner nodes do not fit into.
fn fig7(effort: &Effort) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (workload, over_sherman, over_smart, class) in [
        (Workload::LOAD, 1.0, 1.54, Class::Skewed),
        // The ends of the range that the paper gives for all systems.
        (Workload::A, 1.45, 1.25, Class::Skewed),
        (Workload::B, 1.0, 1.0, Class::AtLeast),
        (Workload::C, 1.0, 1.0, Class::Even),
        (Workload::D, 1.0, 1.0, Class::AtLeast),
        (Workload::E, 1.0, 1.0, Class::AtLeast),
    ] {
        let of = |system| measure(effort, system, &workload, CACHE_BYTES);
        let name = workload.name;
        let (dolphin, sherman, smart) = (of(System::Dolphin)?, of(System::Sherman)?, of(System::Smart)?);
        let over = |other: System, paper, class, measured: &Measured| {
            let at_least = if class == Class::AtLeast { " (at least 1 in the paper)" } else { "" };
            let figure = format!("{name}: Dolphin over {}{at_least}", other.name());
            Row::new(YCSB, figure, paper, dolphin.mops() / measured.mops(), class)
        };
        rows.push(over(System::Sherman, over_sherman, class, &sherman));
        // Of SMART's gets the paper only says that they are slower.
        let class = if name == Workload::C.name { Class::AtLeast } else { class };
        rows.push(over(System::Smart, over_smart, class, &smart));
        rows.extend(latencies(name, &dolphin, &smart));
    }
    Ok(rows)
}

/// Yields what the paper says of latencies: its median of A, and how much higher SMART's are of LOAD and C.
fn latencies(name: &str, dolphin: &Measured, smart: &Measured) -> Option<Row> {
    let higher = |quantile| us(&smart.all, quantile) - us(&dolphin.all, quantile);
    let row = |figure: &str, paper, simulated, class| {
        Some(Row::new(YCSB, format!("{name}: {figure}"), paper, simulated, class))
    };
    match name {
        "A" => row("Dolphin, p50 us", 5.5, us(&dolphin.all, 0.5), Class::Even),
        "C" => row("SMART's p99 higher than Dolphin's, us", 10.0, higher(0.99), Class::Tail),
        "LOAD" => row("SMART's p50 higher than Dolphin's, us", 8.0, higher(0.5), Class::Tail),
        _ => None,
    }
}

/// Simulates figure 8: scans of 100 pairs, uniform, alone and beside as many inserts.
pub(in super::super) fn fig8(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "dolphin-fig8";
    let mops = |system, workload| Ok::<_, String>(measure(effort, system, workload, CACHE_BYTES)?.mops());
    let both = |system| {
        Ok::<_, String>([mops(system, &Workload::RANGE_ONLY)?, mops(system, &Workload::RANGE_WRITE)?])
    };
    let (dolphin, sherman, smart) = (both(System::Dolphin)?, both(System::Sherman)?, both(System::Smart)?);
    let mut rows = vec![
        Row::new(NAME, "range-only: Dolphin over Sherman", 1.0, dolphin[0] / sherman[0], Class::Bound),
        Row::new(NAME, "range-only: Dolphin over SMART", 22.4, dolphin[0] / smart[0], Class::Bound),
    ];
    for (figure, ratio) in [
        ("Dolphin, range-write over range-only", dolphin[1] / dolphin[0]),
        ("SMART, range-write over range-only", smart[1] / smart[0]),
        ("Sherman, range-only over range-write", sherman[0] / sherman[1]),
    ] {
        rows.push(Row::new(NAME, format!("{figure} (over 1 in the paper)"), 1.0, ratio, Class::AtLeast));
    }
    Ok(rows)
}

/// Simulates 200 clients on four compute servers that update the keys of one leaf, which the paper does not: shared
/// updates do not wait for each other, those under an exclusive lock do.
pub(in super::super) fn hot_leaf(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "dolphin-leaf";
    /// Fewer than a leaf of either index has room for.
    const KEYS: u64 = 30;
    const CLIENTS: u16 = 50;
    let updates = Workload {
        mix: Mix { updates: 1.0, ..Mix::READ_ONLY },
        popularity: Popularity::Uniform,
        ..Workload::A
    };
    let mops = |system: System| {
        let setup = Setup {
            machines: Machines { nodes: NODES, cores: CLIENTS, servers: SERVERS },
            clients: u32::from(NODES) * u32::from(CLIENTS),
            keys: KEYS,
            cache_bytes: Setup::CACHE_BYTES,
            ..setup(effort, system.tree(), &updates, CACHE_BYTES)
        };
        Ok::<_, String>(run(&setup)?.mops())
    };
    let ratio = mops(System::Dolphin)? / mops(System::Sherman)?;
    Ok(vec![Row::new(NAME, "updates: Dolphin over Sherman (at least 1)", 1.0, ratio, Class::AtLeast)])
}
