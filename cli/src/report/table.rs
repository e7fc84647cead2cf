//! The result for people.

use std::fmt::{self, Write};

use farwood::index::MemoryStats;
use farwood::lock::LockStats;
use farwood::lock::shared::SharedStats;

use crate::report::{Kind, Phase, Report, ratio};
use crate::units::{show_bytes, show_count, show_time};

/// Renders the whole result as text.
pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    write_report(report, &mut out).expect("a string takes everything");
    out
}

fn write_report(report: &Report, out: &mut String) -> fmt::Result {
    write_config(&report.config, out)?;
    if report.interrupted.is_some() {
        writeln!(out, "INTERRUPTED: the figures are of what had run until then")?;
    }
    for phase in &report.phases {
        write_phase(phase, out)?;
    }
    let (memory, compute) = (&report.memory, &report.compute);
    if memory.keys > 0 {
        writeln!(
            out,
            "memory   {} for {} keys, {:.1} bytes per key; {} leaves, {} inner nodes, {} {:.1} % full",
            show_bytes(memory.used_bytes),
            show_count(memory.keys),
            ratio(memory.used_bytes as f64, memory.keys as f64),
            show_count(memory.leaves),
            show_count(memory.inner_nodes),
            report.filled,
            memory.leaf_load_factor * 100.0,
        )?;
    }
    let hotspots = match compute.hotspot_bytes {
        0 => String::new(),
        bytes => format!(" and {} of hotspots", show_bytes(bytes)),
    };
    writeln!(
        out,
        "compute  cache {}{hotspots}, lock tables {}, {:.3} bytes per key; resident {}",
        show_bytes(compute.cache_bytes),
        show_bytes(compute.lock_table_bytes),
        ratio(compute.held_bytes() as f64, memory.keys as f64),
        show_bytes(compute.rss_bytes),
    )?;
    for note in &report.notes {
        writeln!(out, "note     {note}")?;
    }
    Ok(())
}

fn write_config(config: &serde_json::Value, out: &mut String) -> fmt::Result {
    let text = |key: &str| match &config[key] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    writeln!(
        out,
        "config   {}/{}/{}/{}, {} keys of kind {}, values of {} bytes\n         \
         shards {}, clients {}, servers {}, leaves of {} bytes",
        text("index"),
        text("fabric"),
        text("workload"),
        text("dist"),
        text("keys"),
        text("key"),
        text("value_size"),
        text("shards"),
        text("clients"),
        text("servers"),
        text("leaf_bytes"),
    )?;
    let off = config["techniques"].as_object().into_iter().flatten();
    let off: Vec<&str> = off.filter(|(_, on)| **on == false).map(|(name, _)| name.as_str()).collect();
    let off = if off.is_empty() { "none".to_owned() } else { off.join(", ") };
    writeln!(
        out,
        "         techniques off: {off}; farwood {}, digest {}, seed {}",
        text("version"),
        text("digest"),
        text("seed")
    )
}

fn write_phase(phase: &Phase, out: &mut String) -> fmt::Result {
    writeln!(
        out,
        "{:<8} {} operations in {:.3} s: {:.3} Mops/s",
        phase.name,
        show_count(phase.ops()),
        phase.seconds,
        phase.throughput() / 1e6,
    )?;
    if phase.unstarted > 0 {
        writeln!(
            out,
            "         {} operations were due and not started before the end",
            show_count(phase.unstarted)
        )?;
    }
    let kinds: Vec<&Kind> = phase.kinds.iter().filter(|kind| kind.stats.ops > 0).collect();
    if kinds.is_empty() {
        return Ok(());
    }
    write_row("", &["ops", "Mops/s", "p50", "p90", "p99", "p99.9", "max"].map(String::from), out)?;
    for kind in &kinds {
        write_row(kind.name, &times(kind, phase.seconds), out)?;
    }
    let verbs = ["RT", "RT p99", "reads", "writes", "cas", "faa", "B read", "B written", "retries"];
    write_row("per op", &verbs.map(String::from), out)?;
    for kind in &kinds {
        write_row(kind.name, &per_op(kind), out)?;
    }
    write_locks(&phase.locks, out)?;
    write_shared_locks(&phase.shared_locks, out)?;
    let sharing = &phase.sharing;
    if sharing.reads_delegated + sharing.writes_combined > 0 {
        writeln!(
            out,
            "sharing  {} reads by others' READs, {} writes with others' WRITEs",
            show_count(sharing.reads_delegated),
            show_count(sharing.writes_combined),
        )?;
    }
    let cache = &phase.cache;
    if cache.lookups > 0 {
        writeln!(
            out,
            "cache    {} lookups, {:.2} % hits, {} invalidated, {} evicted",
            show_count(cache.lookups),
            100.0 * ratio(cache.hits as f64, cache.lookups as f64),
            show_count(cache.invalidated),
            show_count(cache.evicted),
        )?;
    }
    write_allocators(&phase.memory, out)?;
    let [right, wrong] = [cache.speculations_right, cache.speculations_wrong];
    if right + wrong > 0 {
        writeln!(
            out,
            "         {} speculations, {:.2} % right",
            show_count(right + wrong),
            100.0 * ratio(right as f64, (right + wrong) as f64),
        )?;
    }
    Ok(())
}

/// Tells of memory that is out of the index, if there is any: what is free already is not worth a line.
fn write_allocators(memory: &MemoryStats, out: &mut String) -> fmt::Result {
    let MemoryStats { free_bytes, retired_bytes, unsettled_bytes, reclaimed_bytes, reused_bytes, .. } =
        *memory;
    if retired_bytes + unsettled_bytes + reclaimed_bytes > 0 {
        writeln!(
            out,
            "freed    {} of nodes freed, {} used again; {} wait or stay, {} free",
            show_bytes(reclaimed_bytes),
            show_bytes(reused_bytes),
            show_bytes(retired_bytes + unsettled_bytes),
            show_bytes(free_bytes),
        )?;
    }
    Ok(())
}

fn write_locks(locks: &LockStats, out: &mut String) -> fmt::Result {
    if locks.acquired > 0 {
        writeln!(
            out,
            "locks    {} acquired, {:.1} % waited, {:.1} % handed over, {:.1} % with images, {} CAS failed",
            show_count(locks.acquired),
            100.0 * ratio(locks.waited as f64, locks.acquired as f64),
            100.0 * ratio(locks.handed_over as f64, locks.acquired as f64),
            100.0 * ratio(locks.images as f64, locks.acquired as f64),
            show_count(locks.remote_failed),
        )?;
    }
    if locks.refused + locks.orphaned > 0 {
        writeln!(
            out,
            "         {} refused and {} left taken, since a memory server did not answer",
            show_count(locks.refused),
            show_count(locks.orphaned),
        )?;
    }
    Ok(())
}

fn write_shared_locks(locks: &SharedStats, out: &mut String) -> fmt::Result {
    if locks.shared + locks.laneless > 0 {
        writeln!(
            out,
            "shared   {} shared, {:.1} % joined, {} barred, {} overtaken, {} without a lane, {} awaited",
            show_count(locks.shared),
            100.0 * ratio(locks.joined as f64, locks.shared as f64),
            show_count(locks.barred),
            show_count(locks.overtaken),
            show_count(locks.laneless),
            show_count(locks.awaited),
        )?;
    }
    Ok(())
}

fn times(kind: &Kind, seconds: f64) -> [String; 7] {
    let latency = &kind.latency;
    let at = |quantile| match latency.is_empty() {
        true => "-".to_owned(),
        false => show_time(latency.value_at_quantile(quantile)),
    };
    let rate = ratio(kind.stats.ops as f64, seconds) / 1e6;
    let ops = show_count(kind.stats.ops);
    [ops, format!("{rate:.3}"), at(0.5), at(0.9), at(0.99), at(0.999), at(1.0)]
}

fn per_op(kind: &Kind) -> [String; 9] {
    let stats = &kind.stats;
    let mean = |sum| format!("{:.2}", kind.per_op(sum));
    let bytes = |sum| format!("{:.0}", kind.per_op(sum));
    [
        mean(stats.round_trips),
        stats.round_trips_p99().to_string(),
        mean(stats.reads),
        mean(stats.writes),
        mean(stats.cas),
        mean(stats.faa),
        bytes(stats.bytes_read),
        bytes(stats.bytes_written),
        format!("{:.4}", kind.per_op(stats.retries)),
    ]
}

fn write_row(name: &str, cells: &[String], out: &mut String) -> fmt::Result {
    write!(out, "  {name:<7}")?;
    for cell in cells {
        write!(out, "{cell:>10}")?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use farwood::cache::CacheStats;
    use farwood::index::KindStats;
    use farwood::lock::window::WindowStats;

    use super::*;
    use crate::report::latencies;

    fn shown(locks: LockStats) -> String {
        shown_with(locks, MemoryStats::default())
    }

    fn shown_with(locks: LockStats, memory: MemoryStats) -> String {
        let stats = KindStats { ops: 4, ..KindStats::default() };
        let phase = Phase {
            name: "run",
            seconds: 2.0,
            loaded: 0,
            unstarted: 0,
            kinds: vec![Kind { name: "put", stats, latency: latencies() }],
            locks,
            shared_locks: SharedStats::default(),
            sharing: WindowStats::default(),
            cache: CacheStats::default(),
            memory,
        };
        let mut out = String::new();
        write_phase(&phase, &mut out).expect("a string takes all");
        out
    }

    #[test]
    fn locks_that_a_silent_server_keeps_are_told_if_there_are_any() {
        let locks = LockStats { acquired: 4, ..LockStats::default() };
        assert!(!shown(locks).contains("did not answer"));
        for (refused, orphaned) in [(0, 3), (2, 0), (2, 3)] {
            let told =
                format!("{refused} refused and {orphaned} left taken, since a memory server did not answer");
            assert!(shown(LockStats { refused, orphaned, ..locks }).contains(&told));
            assert!(shown(LockStats { refused, orphaned, ..LockStats::default() }).contains(&told));
        }
    }

    #[test]
    fn memory_that_is_out_of_the_index_is_told_if_there_is_any() {
        let memory = MemoryStats { used_bytes: 1 << 20, free_bytes: 1 << 20, ..MemoryStats::default() };
        let locks = LockStats::default();
        assert!(!shown_with(locks, memory).contains("freed"));
        let memory = MemoryStats { reclaimed_bytes: 2 << 20, reused_bytes: 1 << 20, ..memory };
        let told = shown_with(locks, memory);
        assert!(told.contains("freed    2.0 MiB of nodes freed, 1.0 MiB used again; 0 B wait"), "{told}");
    }
}
