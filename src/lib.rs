//! Farwood: ordered indexes (range indexes) in disaggregated memory.
//!
//! Memory servers hold the data and have almost no CPU; compute nodes read and change it with one-sided RDMA verbs.
//! An index operation is an async future that yields after posting verbs, so hundreds of logical clients share a core.
//!
//! This crate is the facade: everything a user needs, re-exported from the crates that make it up.
//!
//! - [`Cluster`] (memory of this process), [`ShmCluster`] (memory servers on this host), `VerbsCluster` (behind RDMA
//!   NICs, feature `verbs`): where the memory is; [`ClusterName::open`] makes any of them from its name. [`ShmServer`]
//!   and `VerbsServer` are memory servers of your own.
//! - [`ComputeNode`], [`Shard`]: the executors that work on it.
//! - [`Sherman`] (a B+tree), [`Smart`] (a radix tree), [`Chime`] (a B+tree of hopscotch tables) and [`Dolphin`] (radix
//!   nodes above leaves of many keys): the indexes; [`RangeIndex`]: what they do. What differs from one to the other
//!   (`Geometry`, `Options`, `Techniques`) is in [`sherman`], [`smart`], [`chime`] and [`dolphin`].
//! - [`ReadError`], [`WriteError`] and so on: what each kind of call can fail with; [`IndexError`]: any of them.
//! - [`runtime`], [`lock`], [`cache`], [`index`]: the crates themselves, to build an index of one's own.
//!
//! An index is created once, opened by each compute node, and attached to each of its shards:
//!
//! ```
//! use farwood::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, RangeIndex};
//! use farwood::{Sherman, Smart, sherman, smart};
//! use futures::executor::block_on;
//!
//! # type Failure = Box<dyn std::error::Error + Send + Sync>;
//! # fn main() -> Result<(), Failure> {
//! let cluster = Cluster::embedded(EmbeddedConfig { bytes_per_server: 64 << 20, ..Default::default() })?;
//! let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..Default::default() })?;
//! let geometry = sherman::Geometry { max_key: 16, max_value: 32, ..Default::default() };
//! block_on(Sherman::create(&node, "users", geometry, sherman::Options::default()))?;
//! let users = block_on(Sherman::open(&node, "users", sherman::Options::default()))?;
//! let words = Smart::create(&node, "words", smart::Geometry::default(), smart::Options::default());
//! let words = block_on(words)?;
//! node.try_run(move |shard| {
//!     let (users, words) = (users.attach(shard.clone()), words.attach(shard));
//!     async move {
//!         users.put(b"anna", b"1").await?;
//!         words.put(b"index", b"a list").await?;
//!         Ok::<_, Failure>(())
//!     }
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/quickstart.rs` is the place to begin; ARCHITECTURE.md says what is where and why.
#![forbid(unsafe_code)]

pub use farwood_cache as cache;
pub use farwood_index as index;
pub use farwood_index::{chime, dolphin, sherman, smart};
pub use farwood_lock as lock;
pub use farwood_runtime as runtime;

pub use farwood_index::{
    AccessError, AnyIndex, AnyTree, Backoff, Bytes, CheckOptions, CheckReport, Chime, ChimeIndex, Dolphin,
    DolphinIndex, IndexError, IndexKind, IndexSpec, IndexStats, KeyRange, Limits, LoadError, Nodes, OpKind,
    OpenError, Pair, RangeIndex, ReadError, Scan, Sherman, ShermanIndex, Smart, SmartIndex, Switches,
    TreeShape, Value, Violation, WriteError,
};
pub use farwood_runtime::{
    Cluster, ClusterConfig, ClusterName, ClusterNameError, ClusterOpenError, ComputeNode, ControlError,
    EmbeddedConfig, Fabric, NodeConfig, NodeContext, NodeError, OnCluster, Shard, ShmCluster, ShmName,
    ShmServer, ShmServerConfig, TimedOut, Verbs, run_executor,
};

#[cfg(feature = "verbs")]
pub use farwood_runtime::ibverbs::{VerbsCluster, VerbsConfig, VerbsServer, VerbsServerConfig};

/// Compiles and runs the README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
