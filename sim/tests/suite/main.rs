//! Runs and their judges through the public interface: a file per subject. What wraps the fabric is a program of its
//! own (`controls`), since for it the indexes are compiled once more.

#[path = "../kit/mod.rs"]
mod kit;

mod paper;
mod regressions;
mod right_histories;
mod swarm;
mod trace_hash;
