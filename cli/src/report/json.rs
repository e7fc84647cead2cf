//! The result for machines: the object that other programs read, schema 1.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::report::{Kind, Phase, Report, ratio};

/// Renders the whole result.
pub(crate) fn to_json(report: &Report) -> Value {
    let memory = &report.memory;
    let compute = &report.compute;
    json!({
        "schema": 1,
        "interrupted": report.interrupted.is_some(),
        "config": report.config,
        "latency_sampling": report.config["latency_sampling"],
        "phases": report.phases.iter().map(phase).collect::<Vec<_>>(),
        "memory": {
            "used_bytes": memory.used_bytes,
            "keys": memory.keys,
            "bytes_per_key": ratio(memory.used_bytes as f64, memory.keys as f64),
            "leaf_load_factor": memory.leaf_load_factor,
            "leaves": memory.leaves,
            "inner_nodes": memory.inner_nodes,
        },
        "compute": {
            "cache_bytes": compute.cache_bytes,
            "lock_table_bytes": compute.lock_table_bytes,
            "hotspot_bytes": compute.hotspot_bytes,
            "bytes_per_key": ratio(compute.held_bytes() as f64, memory.keys as f64),
            "rss_bytes": compute.rss_bytes,
        },
        "notes": report.notes,
    })
}

fn phase(phase: &Phase) -> Value {
    let kinds: Map<String, Value> =
        phase.kinds.iter().map(|kind| (kind.name.to_owned(), kind_json(kind))).collect();
    let (locks, shared, sharing, cache) = (&phase.locks, &phase.shared_locks, &phase.sharing, &phase.cache);
    let memory = &phase.memory;
    json!({
        "name": phase.name,
        "ops": phase.ops(),
        "seconds": phase.seconds,
        "throughput": phase.throughput(),
        "unstarted": phase.unstarted,
        "kinds": kinds,
        "locks": {
            "acquired": locks.acquired,
            "waited": locks.waited,
            "handed_over": locks.handed_over,
            "images": locks.images,
            "remote_failed": locks.remote_failed,
            "refused": locks.refused,
            "orphaned": locks.orphaned,
            "recovered": locks.recovered,
            "redone": locks.redone,
            "mended": locks.mended,
            "recorded": locks.recorded,
            "record_bytes": locks.record_bytes,
            "unrecorded": locks.unrecorded,
        },
        "shared_locks": {
            "shared": shared.shared,
            "joined": shared.joined,
            "barred": shared.barred,
            "laneless": shared.laneless,
            "overtaken": shared.overtaken,
            "awaited": shared.awaited,
            "orphaned": shared.orphaned,
            "recovered": shared.recovered,
        },
        "sharing": {
            "reads_delegated": sharing.reads_delegated,
            "writes_combined": sharing.writes_combined,
        },
        "cache": {
            "lookups": cache.lookups,
            "hit_ratio": ratio(cache.hits as f64, cache.lookups as f64),
            "invalidated": cache.invalidated,
            "evicted": cache.evicted,
            "speculations_right": cache.speculations_right,
            "speculations_wrong": cache.speculations_wrong,
        },
        "allocators": {
            "used_bytes": memory.used_bytes,
            "free_bytes": memory.free_bytes,
            "retired_bytes": memory.retired_bytes,
            "unsettled_bytes": memory.unsettled_bytes,
            "reclaimed_bytes": memory.reclaimed_bytes,
            "reused_bytes": memory.reused_bytes,
        },
    })
}

fn kind_json(kind: &Kind) -> Value {
    let stats = &kind.stats;
    json!({
        "ops": stats.ops,
        "found": stats.found,
        "entries": stats.entries,
        "latency_ns": latency(&kind.latency),
        "round_trips": kind.per_op(stats.round_trips),
        "round_trips_p99": stats.round_trips_p99(),
        "reads": kind.per_op(stats.reads),
        "writes": kind.per_op(stats.writes),
        "cas": kind.per_op(stats.cas),
        "faa": kind.per_op(stats.faa),
        "bytes_read": kind.per_op(stats.bytes_read),
        "bytes_written": kind.per_op(stats.bytes_written),
        "retries": kind.per_op(stats.retries),
    })
}

fn latency(histogram: &Histogram<u64>) -> Value {
    // An empty histogram has a minimum of u64::MAX-like filler; nothing measured is 0 everywhere.
    let min = if histogram.is_empty() { 0 } else { histogram.min() };
    json!({
        "samples": histogram.len(),
        "min": min,
        "p50": histogram.value_at_quantile(0.5),
        "p90": histogram.value_at_quantile(0.9),
        "p99": histogram.value_at_quantile(0.99),
        "p999": histogram.value_at_quantile(0.999),
        "max": histogram.max(),
        "mean": histogram.mean(),
    })
}

#[cfg(test)]
mod tests {
    use farwood::cache::CacheStats;
    use farwood::index::{KindStats, MemoryStats};
    use farwood::lock::LockStats;
    use farwood::lock::shared::SharedStats;
    use farwood::lock::window::WindowStats;

    use super::*;
    use crate::report::{ComputeFigures, MemoryFigures, latencies};

    #[test]
    fn figures_are_means_and_ratios() {
        let mut latency = latencies();
        (1..=1000).for_each(|ns| latency.record(ns).unwrap());
        let stats = KindStats { ops: 4, round_trips: 6, bytes_read: 4096, ..KindStats::default() };
        let report = Report {
            config: json!({ "latency_sampling": 16 }),
            phases: vec![Phase {
                name: "run",
                seconds: 2.0,
                loaded: 0,
                unstarted: 0,
                kinds: vec![Kind { name: "get", stats, latency }],
                locks: LockStats {
                    refused: 5,
                    orphaned: 6,
                    recovered: 9,
                    recorded: 10,
                    ..LockStats::default()
                },
                shared_locks: SharedStats { shared: 7, laneless: 8, ..SharedStats::default() },
                sharing: WindowStats { reads_delegated: 3, writes_combined: 2, ..WindowStats::default() },
                cache: CacheStats { lookups: 10, hits: 9, ..CacheStats::default() },
                memory: MemoryStats { used_bytes: -64, reused_bytes: 128, ..MemoryStats::default() },
            }],
            memory: MemoryFigures { used_bytes: 2048, keys: 64, ..MemoryFigures::default() },
            filled: "leaves",
            compute: ComputeFigures { cache_bytes: 40, hotspot_bytes: 8, lock_table_bytes: 16, rss_bytes: 1 },
            notes: Vec::new(),
            interrupted: None,
        };
        let json = to_json(&report);
        let get = &json["phases"][0]["kinds"]["get"];
        assert_eq!(get["round_trips"], 1.5);
        assert_eq!(get["bytes_read"], 1024.0);
        assert_eq!(get["latency_ns"]["p50"], 500);
        assert_eq!(json["phases"][0]["throughput"], 2.0);
        assert_eq!(json["phases"][0]["sharing"]["reads_delegated"], 3);
        assert_eq!(json["phases"][0]["sharing"]["writes_combined"], 2);
        assert_eq!(json["phases"][0]["locks"]["refused"], 5);
        assert_eq!(json["phases"][0]["locks"]["orphaned"], 6);
        assert_eq!(json["phases"][0]["locks"]["recovered"], 9);
        assert_eq!(json["phases"][0]["locks"]["recorded"], 10);
        assert_eq!(json["phases"][0]["shared_locks"]["shared"], 7);
        assert_eq!(json["phases"][0]["shared_locks"]["laneless"], 8);
        assert_eq!(json["phases"][0]["cache"]["hit_ratio"], 0.9);
        let allocators = &json["phases"][0]["allocators"];
        assert_eq!((&allocators["used_bytes"], &allocators["reused_bytes"]), (&(-64).into(), &128.into()));
        assert_eq!(json["memory"]["bytes_per_key"], 32.0);
        assert_eq!(json["compute"]["bytes_per_key"], 1.0);
        assert_eq!((&json["latency_sampling"], &json["interrupted"]), (&16.into(), &false.into()));
    }

    #[test]
    fn nothing_measured_is_zero() {
        let json = latency(&latencies());
        for key in ["min", "p50", "p999", "max"] {
            assert_eq!(json[key], 0, "{key}");
        }
        assert_eq!(json["mean"], 0.0);
    }
}
