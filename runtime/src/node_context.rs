//! The compute node that an index is opened on, real or simulated, as far as the index needs it. It knows no shard.

use std::sync::Arc;

use crate::control::Control;
use crate::message::PortLease;

/// A compute node as a whole, as an index needs it when it is opened.
pub trait NodeContext {
    /// Yields the memory servers' control services.
    fn control(&self) -> Arc<dyn Control>;
    /// Leases a port that no other actor of the node uses.
    fn allocate_port(&self) -> PortLease;
    /// Yields the seed that the node was made with.
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
