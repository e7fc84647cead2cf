//! Farwood: ordered indexes (range indexes) in disaggregated memory.
//!
//! Memory servers hold the data and have almost no CPU; compute nodes read and change it with one-sided RDMA verbs.
//! An index operation is an async future that yields after posting verbs, so hundreds of logical clients share a core.
//!
//! This crate is the facade: everything a user needs, re-exported from the crates that make it up.
//!
//! - [`Cluster`] (memory of this process), [`ShmCluster`] (memory servers on this host), `VerbsCluster` (behind RDMA
//!   NICs, feature `verbs`): where the memory is; [`ShmServer`] and `VerbsServer` are memory servers of your own.
//! - [`ComputeNode`], [`Shard`]: the executors that work on it.
//! - [`Sherman`] (a B+tree) and [`Smart`] (a radix tree): the indexes; [`RangeIndex`]: what they do. What goes with the
//!   first is re-exported here, what goes with the second is in [`smart`].
//! - [`runtime`], [`lock`], [`cache`], [`index`]: the crates themselves, for those who build an index of their own.
//!
//! `examples/quickstart.rs` is the place to begin; ARCHITECTURE.md says what is where and why.
#![forbid(unsafe_code)]

pub use farwood_cache as cache;
pub use farwood_index as index;
pub use farwood_index::smart;
pub use farwood_lock as lock;
pub use farwood_runtime as runtime;

pub use farwood_index::{
    AnyIndex, AnyTree, Backoff, Bytes, CheckOptions, CheckReport, Geometry, IndexError, IndexKind, IndexSpec,
    IndexStats, KeyRange, Limits, NodeSize, Nodes, OpKind, Options, Pair, RangeIndex, Scan, Sherman,
    ShermanIndex, Smart, SmartIndex, Spec, Survey, Switches, Techniques, Value, Violation,
};
pub use farwood_runtime::{
    Cluster, ComputeNode, ControlError, EmbeddedConfig, Host, NodeConfig, NodeError, Shard, ShmCluster,
    ShmName, ShmServer, ShmServerConfig, TimedOut, Verbs, run_executor,
};

#[cfg(feature = "verbs")]
pub use farwood_runtime::ibverbs::{VerbsCluster, VerbsConfig, VerbsServer, VerbsServerConfig};
