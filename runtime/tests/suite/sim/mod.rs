//! Scenarios on the simulated fabric: each file has one.

mod chunks;
mod control;
mod delays;
mod determinism;
mod fences;
pub(crate) mod kit;
mod model;
mod node_stop;
mod overtaking;
mod partition;
mod queue_pair_errors;
mod queue_pairs;
mod server_away;
mod shards;
mod torn_reads;
mod write_order;
