//! The runtime under Farwood's indexes: the fabric contract, the fabrics that keep it, memory servers, and shards.
//!
//! A map, from the seam downwards:
//!
//! - [`verbs`]: the contract. [`Verbs`] is all that indexes, locks and caches know of what is below them;
//!   [`chain`], [`buffer`], [`mod@pointer`], [`meter`], [`message`] and [`waiter`] are its vocabulary.
//! - [`control`] and [`memory`]: the services of memory servers beside being read and written; [`alloc`] carves nodes
//!   from the chunks that they hand out. [`service`] is the server's side of [`control`] over sockets.
//! - [`epoch`]: what operations of a cluster may still read, so that the rest is used again.
//! - [`engine`]: the life of a chain from submission to completion, credits included, without any I/O.
//! - [`mapped`]: the device behind the embedded and the shm fabric: mapped memory, executed in prefetched batches.
//! - [`fabric`]: the fabrics that a node can be connected to: [`fabric::embedded`], [`fabric::shm`], `fabric::verbs`
//!   (feature `verbs`), `fabric::sim` (feature `sim`).
//! - [`shard`]: client pool, timers, mailboxes and chains of one core, driven from outside. [`executor`]: glommio
//!   executors, kept from sleeping over their tasks, and the poller that drives a shard on one. [`node`]: a
//!   [`ComputeNode`] is a set of shards, and to an index a [`NodeContext`]. [`on_one_shard`] makes all of it, for
//!   examples and tests.
//!
//! Only this crate names a clock or a thread, and only [`executor`] uses glommio.

pub mod alloc;
pub mod buffer;
pub mod chain;
pub mod clock;
pub mod control;
mod counters;
pub mod engine;
pub mod epoch;
pub mod executor;
mod extents;
pub mod fabric;
mod forward_verbs;
pub mod host;
pub mod mapped;
pub mod memory;
pub mod message;
pub mod meter;
pub mod node;
mod node_context;
mod one_shard;
pub mod pointer;
mod ports;
pub mod service;
pub mod shard;
mod sync;
pub mod verbs;
pub mod waiter;

pub use alloc::NodeAllocator;
pub use buffer::{Buf, BufferPool};
pub use chain::Chain;
pub use control::sweep;
pub use control::{
    CatalogEntry, ConnectConfig, ConnectError, Control, ControlError, Holdings, IndexId, LockRegion,
    RemoteControl, ServerAddress, ServerInfo,
};
pub use executor::run_executor;
pub use extents::Extents;
pub use fabric::embedded::{Cluster, EmbeddedConfig};
#[cfg(feature = "sim")]
pub use fabric::sim;
#[cfg(feature = "verbs")]
pub use fabric::verbs as ibverbs;
pub use fabric::{
    ClusterConfig, ClusterName, ClusterNameError, ClusterOpenError, DeviceError, Fabric, OnCluster, shm,
};
pub use mapped::prefetch::prefetch;
pub use memory::{MemoryServer, ServerParts};
pub use message::{Message, Port, PortLease, ShardId};
pub use meter::{Meter, Usage};
pub use node::{NodeConfig, NodeError};
pub use node_context::NodeContext;
pub use one_shard::on_one_shard;
pub use pointer::{RemotePtr, ServerId};
pub use service::{ListenAt, Served, Service, ServiceConfig, ServiceError};
pub use shard::{Abandoned, ClientPool, JoinError, JoinHandle};
pub use shm::{ShmCluster, ShmName, ShmServer, ShmServerConfig};
pub use verbs::{Capabilities, Completion, FabricError, Failed, TimedOut, Verbs};
pub use waiter::Waiter;

/// A compute node, [`node::ComputeNode`]: on the embedded fabric unless another one is named.
pub type ComputeNode<F = Cluster> = node::ComputeNode<F>;

/// A shard, [`shard::Shard`]: on mapped memory unless another device is named.
pub type Shard<D = mapped::MappedDevice> = shard::Shard<D>;
