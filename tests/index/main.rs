//! The indexes through their public interface: what every index promises on every fabric (`conformance_*`), and a file
//! per scenario.
//!
//! One program, since most of the time that building tests takes goes into the trees, and each program has its own.

#[path = "../kit/conformance/mod.rs"]
mod conformance;
#[path = "../kit/counting_allocator.rs"]
mod counting_allocator;
#[path = "../kit/mod.rs"]
mod kit;

mod allocations;
mod bad_input;
mod cancellation;
mod check;
mod chime_blocks;
mod chime_costs;
mod conformance_embedded;
mod conformance_shm;
mod conformance_sim;
mod damaged_tree;
mod dolphin_costs;
mod dolphin_deaths;
mod dolphin_inner;
mod dolphin_needless;
mod dolphin_separators;
mod dolphin_wrong_slots;
mod embedding;
mod grow;
mod images;
mod memory_of_others;
mod merge_deaths;
mod merges;
mod million_keys;
mod on_chip;
mod open_close;
mod out_of_memory;
mod panics;
mod queue_pair_errors;
mod repairs;
mod round_trips;
mod separators;
mod shard_ended;
mod slow_reads;
mod smart_herd;
mod smart_inner;
mod smart_leaves;
mod smart_links;
mod smart_prefixes;
mod smart_races;
mod smart_slots;
mod smart_torn;
mod stale_cache;
mod sweeps;
