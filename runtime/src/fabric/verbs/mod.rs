//! The fabric over libibverbs: memory servers and compute nodes on hosts with RDMA devices, or with Soft-RoCE.
//!
//! ```text
//!   compute node                                                     memory server
//!   VerbsCluster ── Port ── CqEventThread                            VerbsResponder ── Port
//!     └ VerbsDevice, one per shard                                     ├ Registration of the region
//!         ├ CompletionQueue, Arenas (registered buffers)               └ QueuePair per peer and shard
//!         └ ServerLink, one per server: QueuePair, Words, SendQueue  <── RC ──>
//! ```
//!
//! - `context`: devices, ports and addresses; `memory`: registrations; `cq`, `qp`: completion queues and queue pairs.
//!   Each object of libibverbs has a type that owns it and holds what must outlive it.
//! - `post`: a chain becomes linked work requests; `send_queue`: which chains are in flight; `server_link`: a shard's
//!   queue pair to one server, and how a broken one is replaced; `device`: all server links of a shard.
//! - `cq_event_thread`: wakes shards that sleep; `server`, `responder`, `loopback`: the server's side; `cluster`: the
//!   node's side; `error`: what can be wrong with a host.
//!
//! This is the only place that names libibverbs. What goes over the network by other means (endpoints) is the control
//! plane's business ([`crate::control::queue_pair::Exchange`]).
//!
//! Owners of memory that a device uses, each of which keeps it valid:
//!
//! - A chain's buffer: its slot, until the chain is reported. A chain is reported when its last work request has
//!   succeeded, or, if it failed, after its queue pair was destroyed. If the device does not destroy it, the buffer is
//!   never used again; the chain is reported with a copy.
//! - When a shard is dropped with chains in flight: its engine drops the device first, hence its queue pairs, then the
//!   registrations, and only then the slots with their chains.
//! - Arenas of buffers: the registration owns a handle to their pool, and a pool never frees an arena before its last
//!   handle is gone. The words of atomics and a server's region are owned by their registrations as well.
//! - After `ibv_dereg_mr` nothing can be reached any more, whatever went wrong before; if it fails, memory is leaked.

#![expect(unsafe_code, reason = "libibverbs is a C library; every block says why it is sound")]

mod cluster;
mod context;
mod cq;
mod cq_event_thread;
mod device;
mod error;
mod loopback;
mod memory;
mod post;
mod qp;
mod responder;
mod send_queue;
mod server;
mod server_link;

pub use self::cluster::VerbsCluster;
pub use self::context::VerbsConfig;
pub use self::device::VerbsDevice;
pub use self::error::VerbsError;
pub use self::responder::VerbsResponder;
pub use self::server::{VerbsServer, VerbsServerConfig};

// Words are little-endian in remote memory, and a NIC adds and compares in the byte order of its host.
#[cfg(target_endian = "big")]
compile_error!("the verbs fabric needs a little-endian host: RDMA atomics act in the host's byte order");
