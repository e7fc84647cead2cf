//! Messages between the shards of a compute node: small, `Copy`, meaningless to the runtime.

use std::fmt;
use std::sync::Arc;

/// A shard of a compute node, by its position among the node's shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(pub u16);

/// The address of a message inside a shard: a number names the same actor on every shard of the node. The lower half is
/// a place, which is reused; the upper half counts its uses, so that a late message does not reach the actor that has
/// the place now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Port(pub u32);

const PLACE_BITS: u32 = 16;

impl Port {
    #[inline]
    pub(crate) fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }

    /// Returns the port that has this one's place next.
    pub(crate) fn next(self) -> Self {
        Port(self.0.wrapping_add(1 << PLACE_BITS))
    }

    /// Tells whether this port has had the place after `other`.
    pub(crate) fn is_after(self, other: Self) -> bool {
        let ahead = (self.0 >> PLACE_BITS).wrapping_sub(other.0 >> PLACE_BITS) as u16;
        ahead != 0 && ahead < 1 << (PLACE_BITS - 1)
    }
}

/// A port that belongs to the holders of the lease. When the last of them drops it, the actors on it are removed from
/// all shards, once they rest ([`crate::Verbs::listen_while_leased`]), and its place is given to others.
#[derive(Clone)]
pub struct PortLease(Arc<Lease>);

struct Lease {
    port: Port,
    ended: Box<dyn Fn() + Send + Sync>,
}

impl PortLease {
    /// Makes a lease at whose end `ended` is called.
    ///
    /// ```
    /// # use farwood_runtime::{Port, PortLease};
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// # use std::sync::Arc;
    /// let ends = Arc::new(AtomicU32::new(0));
    /// let counted = Arc::clone(&ends);
    /// let lease = PortLease::new(Port(7), move || drop(counted.fetch_add(1, Ordering::Relaxed)));
    /// let clone = lease.clone();
    /// drop(lease);
    /// assert_eq!(ends.load(Ordering::Relaxed), 0);
    /// drop(clone);
    /// assert_eq!(ends.load(Ordering::Relaxed), 1);
    /// ```
    pub fn new(port: Port, ended: impl Fn() + Send + Sync + 'static) -> Self {
        PortLease(Arc::new(Lease { port, ended: Box::new(ended) }))
    }

    /// Makes a lease for nodes that give each port once.
    ///
    /// ```
    /// # use farwood_runtime::{Port, PortLease};
    /// let lease = PortLease::for_ever(Port(7));
    /// drop(lease.clone());
    /// assert_eq!(lease.port(), Port(7));
    /// ```
    pub fn for_ever(port: Port) -> Self {
        Self::new(port, || {})
    }

    /// Returns the port.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    /// let node = ComputeNode::new(cluster, NodeConfig::default())?;
    /// let (locks, windows) = (node.allocate_port(), node.allocate_port());
    /// assert_ne!(locks.port(), windows.port());
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn port(&self) -> Port {
        self.0.port
    }
}

impl fmt::Debug for PortLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PortLease").field(&self.port()).finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        (self.ended)();
    }
}

/// The payload of a message. The actors that share a [`Port`] agree on the meaning of the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Message(pub [u64; 3]);

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Envelope {
    /// The receiving actor.
    pub port: Port,
    /// Payload for the actor.
    pub message: Message,
}
