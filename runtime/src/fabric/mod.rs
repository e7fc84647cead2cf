//! Fabrics: what a compute node is connected to, and where its shards get their devices. One type per kind of
//! cluster, in a module of its own; everything above [`crate::verbs::Verbs`] is the same on all of them. This file
//! knows no NIC.
//!
//! - [`embedded`]: memory servers of this process.
//! - [`shm`]: processes of one host share a mapped file.
//! - `verbs`: hosts with RDMA devices (feature `verbs`).
//! - `sim`: a whole cluster in one thread and in virtual time (feature `sim`), for tests and predictions. Its nodes are
//!   no [`crate::ComputeNode`]s, which have executors: it has its own, and no [`Fabric`].
//!
//! [`ClusterName`] is how text names one of the first three, and opens it for code that is generic over the fabric
//! ([`OnCluster`]).

pub mod embedded;
mod name;
mod open;
pub mod shm;
#[cfg(feature = "sim")]
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
use crate::epoch::NodeEpochs;
use crate::message::ShardId;
use crate::shard::Unpark;

/// A cluster that compute nodes can be made on.
pub trait Fabric: Send + Sync + 'static {
    /// Device that its shards execute chains with.
    type Device: Device<Host = Clock>;

    /// Returns the control services of its memory servers.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, Fabric};
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// assert_eq!(cluster.control().servers().len(), 1);
    /// ```
    fn control(self: &Arc<Self>) -> Arc<dyn Control>;

    /// Returns the connections to control services in other processes, for requests that only those take; none if the
    /// services are in this process.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, Fabric};
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// assert!(cluster.remote().is_none(), "its servers are in this process");
    /// ```
    fn remote(&self) -> Option<&Arc<RemoteControl>> {
        None
    }

    /// Yields the id for one more compute node of this cluster, never 0 and never given to two that are alive.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, Fabric};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let (first, second) = (cluster.allocate_node_id()?, cluster.allocate_node_id()?);
    /// assert!(first != 0 && second != 0 && first != second);
    /// # Ok::<_, farwood_runtime::ControlError>(())
    /// ```
    ///
    /// # Errors
    /// If the cluster takes no more, or does not answer.
    fn allocate_node_id(&self) -> Result<u16, ControlError>;

    /// Takes note that the compute node with that id, which was admitted, has ended well: it holds no lock, so its id
    /// may be used again.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, Fabric};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// for _ in 0..100_000 {
    ///     let node = cluster.allocate_node_id()?; // There are 65,535.
    ///     cluster.release_node_id(node);
    /// }
    /// # Ok::<_, farwood_runtime::ControlError>(())
    /// ```
    fn release_node_id(&self, _node: u16) {}

    /// Makes the cluster's epoch wait for a compute node, from its admission until its id is returned or it is dead.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// // A compute node does so by itself.
    /// let node = ComputeNode::new(cluster, NodeConfig::default())?;
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>);

    /// Makes a device for one shard, on the shard's own thread.
    ///
    /// # Errors
    /// If the shard cannot be connected.
    fn device(&self, context: &DeviceContext) -> Result<Self::Device, DeviceError>;
}

/// Why a shard could not be given a device: what was refused and what to do about it, for a user to read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// The shard that a device is for, and what of it the device needs.
pub struct DeviceContext {
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
