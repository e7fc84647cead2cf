//! The runtime through its public interface: a file per subject, the fabric contract on every fabric that needs no
//! device (`conformance_*`), and scenarios on the simulated fabric (`sim`, with the feature of this name).
//!
//! One program, since each that is built compiles shards, executors and the control plane anew. Programs of their own
//! have the tests that count what the process holds or need all cores (`alone`, `idle.rs`, `line_atomicity.rs`,
//! `control_garbage.rs`, `allocation.rs`) and those that need an RDMA device. And those that start processes
//! (`shm_silence.rs`): until a child has become its own program, it keeps the locks of all files that are open here,
//! and tests of this program look whether such a lock is free (`control_resume.rs`).

#[path = "../kit/conformance/mod.rs"]
mod conformance;
#[path = "../control_kit/mod.rs"]
mod control_kit;
#[path = "../kit/mod.rs"]
mod kit;
#[path = "../../../tests/kit/shard.rs"]
mod shard;

mod attach;
mod attach_refused;
mod conformance_embedded;
mod conformance_shm;
#[cfg(feature = "sim")]
mod conformance_sim;
mod control_broken;
mod control_epochs;
mod control_model;
mod control_resume;
mod control_service;
mod control_session;
mod control_sweeps;
mod ports;
mod shutdown;
#[cfg(feature = "sim")]
mod sim;
