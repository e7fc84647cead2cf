//! The compute node that an index is opened on, real or simulated, as far as the index needs it. It knows no shard.

use std::sync::Arc;

use crate::control::Control;
use crate::message::PortLease;

/// A compute node as a whole, as an index needs it when it is opened.
pub trait NodeContext {
    /// Yields the memory servers' control services.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, NodeContext};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = ComputeNode::new(cluster, NodeConfig::default())?;
    /// assert_eq!(node.control().servers().len(), 1);
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    fn control(&self) -> Arc<dyn Control>;

    /// Leases a port that no other actor of the node uses.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, NodeContext};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = ComputeNode::new(cluster, NodeConfig::default())?;
    /// let (locks, windows) = (node.allocate_port(), node.allocate_port());
    /// assert_ne!(locks.port(), windows.port());
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    fn allocate_port(&self) -> PortLease;

    /// Yields the seed that the node was made with.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, NodeContext};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = ComputeNode::new(cluster, NodeConfig { seed: 7, ..Default::default() })?;
    /// assert_eq!(node.seed(), 7);
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    fn seed(&self) -> u64;
}

impl<H: NodeContext + ?Sized> NodeContext for Arc<H> {
    fn control(&self) -> Arc<dyn Control> {
        (**self).control()
    }

    fn allocate_port(&self) -> PortLease {
        (**self).allocate_port()
    }

    fn seed(&self) -> u64 {
        (**self).seed()
    }
}
