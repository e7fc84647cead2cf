//! Fabrics: what a compute node is connected to, and where its shards get their devices. One type per kind of
//! cluster, in a module of its own; everything above [`crate::verbs::Verbs`] is the same on all of them. This file
//! knows no NIC.
//!
//! - [`embedded`]: memory servers of this process.
//! - [`shm`]: processes of one host share a mapped file.
//! - `verbs`: hosts with RDMA devices (feature `verbs`).
//! - [`sim`]: a whole cluster in one thread and in virtual time. Its nodes are no [`crate::ComputeNode`]s, which have
//!   executors: it has its own, and no [`Fabric`].
//!
//! [`ClusterName`] is how text names one of the first three, and opens it for code that is generic over the fabric
//! ([`OnCluster`]).

pub mod embedded;
mod name;
mod open;
pub mod shm;
pub mod sim;
#[cfg(feature = "verbs")]
pub mod verbs;

use std::num::NonZero;
use std::sync::Arc;

use thiserror::Error;

pub use self::name::{ClusterName, ClusterNameError};
pub use self::open::{ClusterConfig, ClusterOpenError, OnCluster};
use crate::clock::Clock;
pub use crate::control::queue_pair::{Admission, Answer, Endpoint, Exchange, Exchanged, PeerId, Responder};
use crate::control::{Control, ControlError, RemoteControl};
use crate::engine::Device;
use crate::message::ShardId;
use crate::shard::Unpark;

/// A cluster that compute nodes can be made on.
pub trait Fabric: Send + Sync + 'static {
    /// What its shards execute chains with.
    type Device: Device;

    /// The control services of its memory servers.
    fn control(self: &Arc<Self>) -> Arc<dyn Control>;

    /// The control services as other processes serve them, for what only such can tell; none if they are of this process.
    fn remote(&self) -> Option<&Arc<RemoteControl>> {
        None
    }

    /// The id for one more compute node of this cluster, never 0 and never given to two that are alive.
    ///
    /// # Errors
    /// If the cluster takes no more, or does not answer.
    fn allocate_node_id(&self) -> Result<u16, ControlError>;

    /// Takes note that the compute node with that id, which was admitted, has ended well: it holds no lock, so its id
    /// may be used again.
    fn release_node_id(&self, _node: u16) {}

    /// A device for one shard, made on the shard's own thread.
    ///
    /// # Errors
    /// If the shard cannot be connected.
    fn device(&self, seat: &Seat) -> Result<Self::Device, DeviceError>;
}

/// Why a shard could not be given a device: what was refused and what to do about it, for a user to read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// Whom a device is for.
pub struct Seat {
    /// The shard.
    pub shard: ShardId,
    /// Its compute node's id.
    pub node_id: u16,
    /// Chains in flight at most, per queue pair.
    pub credits: NonZero<usize>,
    /// The node's clock.
    pub clock: Clock,
    /// Wakes the shard when it sleeps.
    pub unpark: Unpark,
}
