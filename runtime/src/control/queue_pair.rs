//! The vocabulary in which the two sides of a queue pair connect it over the control plane: a compute node, which gets
//! an id and asks for queue pairs, and a memory server. It knows no NIC.

use std::sync::Arc;

use futures::channel::oneshot;
use serde::{Deserialize, Serialize};

use super::ControlError;
use crate::epoch::NodeEpochs;
use crate::message::ShardId;
use crate::pointer::ServerId;

/// One side of a reliable connection, as the other side has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The port's global identifier (RoCE: derived from its IP address).
    pub gid: [u8; 16],
    /// The port's local identifier (InfiniBand; 0 on RoCE).
    pub lid: u16,
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub first_packet: u32,
    /// The largest payload of a packet that the port's link takes, in bytes.
    pub mtu: u16,
    /// READs and atomics that it answers at the same time at most.
    pub reads_max: u8,
}

/// A memory server's answer to an [`Endpoint`]: its own, and where its region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The server's side of the connection.
    pub endpoint: Endpoint,
    /// The address at which the region begins.
    pub region_address: u64,
    /// The key that the NIC lets the region be reached with.
    pub region_key: u32,
    /// The shortest time in ns that a WRITE to this server can take, measured by the server over its own NIC: bounds
    /// [`crate::verbs::Capabilities::write_interval_ns`].
    pub write_ns: u32,
}

/// An answer that is on its way.
pub type Exchanged = oneshot::Receiver<Result<Answer, ControlError>>;

/// The way by which a shard's device reaches the other side of its queue pairs. Calls do not wait.
pub trait Exchange: Send + Sync {
    /// Asks a server to connect a new queue pair to `own`, the shard's new one. Before the server answers it has
    /// destroyed the queue pair that it had for this shard: nothing that came over that one takes effect afterwards.
    fn exchange(&self, server: ServerId, shard: ShardId, own: Endpoint) -> Exchanged;

    /// Tells whether the server is gone for good: its control service closed the connection, or is silent.
    fn is_gone(&self, server: ServerId) -> bool;
}

/// The source of compute-node ids of a cluster, behind
/// [`Fabric::allocate_node_id`](crate::fabric::Fabric::allocate_node_id) and
/// [`Fabric::release_node_id`](crate::fabric::Fabric::release_node_id).
pub trait Admission: Send + Sync {
    /// Allocates an id for one more compute node, never 0.
    ///
    /// # Errors
    /// If there is none left, or the server does not answer.
    fn allocate_node_id(&self) -> Result<u16, ControlError>;

    /// Releases the id of a compute node that has ended well.
    fn release_node_id(&self) {}

    /// Makes the cluster's epoch wait for that compute node.
    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>);
}

/// The compute node at the other end of a control connection, by the number of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerId(pub u64);

/// A memory server's side of queue pairs, as its control service sees it.
pub trait Responder: Send + Sync {
    /// Destroys the queue pair of that peer's shard, if it has one, and connects a new one to `theirs`.
    ///
    /// # Errors
    /// The reason why there is none, for the peer to read.
    fn answer(&self, peer: PeerId, shard: ShardId, theirs: Endpoint) -> Result<Answer, String>;

    /// Destroys all queue pairs of a peer: nothing that came over them takes effect afterwards.
    fn forget(&self, peer: PeerId);
}
