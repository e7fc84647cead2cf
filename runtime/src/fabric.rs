//! Fabrics: what a compute node is connected to, and where its shards get their devices. One type per kind of
//! cluster; everything above [`crate::verbs::Verbs`] is the same on all of them. Also what two sides of a queue pair
//! have to tell each other, since the control plane carries it. This file knows no NIC.

use std::sync::Arc;

use futures::channel::oneshot;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::control::{Control, ControlError};
use crate::engine::Device;
use crate::message::ShardId;
use crate::node::NodeError;
use crate::pointer::ServerId;
use crate::shard::Unpark;

/// A cluster that compute nodes can be made on.
pub trait Fabric: Send + Sync + 'static {
    /// What its shards execute chains with.
    type Device: Device;

    /// The control services of its memory servers.
    fn control(self: &Arc<Self>) -> Arc<dyn Control>;

    /// The id for one more compute node of this cluster, never 0 and never given to two that are alive.
    ///
    /// # Errors
    /// If the cluster takes no more, or does not answer.
    fn admit(&self) -> Result<u16, ControlError>;

    /// Takes note that the compute node with that id, which was admitted, has ended well: it holds no lock, so its id
    /// may be used again.
    fn ended(&self, _node: u16) {}

    /// A device for one shard, made on the shard's own thread.
    ///
    /// # Errors
    /// If the shard cannot be connected.
    fn device(&self, seat: &Seat) -> Result<Self::Device, NodeError>;
}

/// Whom a device is for.
pub struct Seat {
    /// The shard.
    pub shard: ShardId,
    /// Its compute node's id.
    pub node_id: u16,
    /// Chains in flight at most, per queue pair.
    pub credits: usize,
    /// The node's clock.
    pub clock: Clock,
    /// Wakes the shard when it sleeps.
    pub unpark: Unpark,
}

/// One side of a reliable connection, as the other has to know it.
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

/// How a shard's device reaches the other side of its queue pairs. Calls do not wait.
pub trait Exchange: Send + Sync {
    /// Asks a server to connect a new queue pair to `own`, the shard's new one. Before the server answers it has
    /// destroyed the one that it had for this shard: nothing that came over that takes effect afterwards.
    fn exchange(&self, server: ServerId, shard: ShardId, own: Endpoint) -> Exchanged;

    /// Whether the server is gone for good: its control service closed the connection, or is silent.
    fn is_gone(&self, server: ServerId) -> bool;
}

/// Who gives ids to the compute nodes of a cluster, as [`Fabric::admit`] and [`Fabric::ended`] have it.
pub trait Admission: Send + Sync {
    /// An id for one more compute node, never 0.
    ///
    /// # Errors
    /// If there is none left, or nobody answers.
    fn admit(&self) -> Result<u16, ControlError>;

    /// A compute node that was admitted has ended well.
    fn ended(&self) {}
}

/// The compute node at the other end of a control connection, by the number of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerId(pub u64);

/// A memory server's side of queue pairs, as its control service sees it.
pub trait Responder: Send + Sync {
    /// Destroys the queue pair of that peer's shard, if it has one, and connects a new one to `theirs`.
    ///
    /// # Errors
    /// Why there is none, for the peer to read.
    fn answer(&self, peer: PeerId, shard: ShardId, theirs: Endpoint) -> Result<Answer, String>;

    /// Destroys all queue pairs of a peer: nothing that came over them takes effect afterwards.
    fn forget(&self, peer: PeerId);
}
