//! Simulated runs of Farwood's indexes, for two purposes: to break wrong protocols, and to predict what a cluster
//! would show.
//!
//! A map:
//!
//! - [`scenario`]: a cluster, a workload and faults, drawn from a seed;
//!   [`runner`]: runs one on the simulated fabric and judges it. `client` is what its clients do, `keys` with what,
//!   `recorder` takes down what they see, `waits` which locks they timed out on; [`shard`] is what they
//!   run on.
//! - [`history`]: the operations of a run with their results and times, and how they are written out.
//! - [`oracle`]: what must hold of a history: linearizable keys, the promises of scans, a model map for one client.
//!   Both are pure: the same history gives the same verdict, in words and in the work that it takes.
//! - [`coverage`]: how often a run took the rare paths.
//! - [`paper`]: the papers' experiments, without reordering.
//!
//! Nothing here reads a clock or starts a thread that a result depends on.
#![forbid(unsafe_code)]

mod client;
pub mod coverage;
pub mod history;
mod keys;
pub mod oracle;
pub mod paper;
mod recorder;
pub mod runner;
pub mod scenario;
pub mod shard;
mod waits;
