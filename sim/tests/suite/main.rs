//! Runs and their judges through the public interface: a file per subject. Negative controls, which break the fabric,
//! are a program of their own (`controls`).

#[path = "../kit/mod.rs"]
mod kit;

mod paper;
mod regressions;
mod right_histories;
mod swarm;
mod trace_hash;
