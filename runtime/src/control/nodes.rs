//! Free nodes that go from one allocator to another, by way of the memory server that they lie on: in batches, of nodes
//! that have all in common that matters to who uses them again. It knows neither allocators nor messages.

use serde::{Deserialize, Serialize};

use crate::epoch::GRACE;

/// A class of free nodes: one takes the place of any other of its class, on the same server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeClass {
    /// Length: a multiple of 64.
    pub bytes: u64,
    /// True if caches may lead there, so that the memory is for nodes of the same kind and size alone: never divided.
    pub of_kind: bool,
}

/// Moments that nodes which are out of an index wait for before they are used again ([`crate::epoch`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Waits {
    /// For all operations that had begun in that epoch, and WRITEs of theirs on their way.
    Epoch(u64),
    /// For a flush first: caches may lead to what was retired in that epoch.
    Flush(u64),
}

impl Waits {
    /// Tells whether nodes are free for who knows of that epoch, and of the epoch of that flush.
    ///
    /// ```
    /// use farwood_runtime::control::nodes::Waits;
    /// assert!(!Waits::Epoch(7).are_over(9, 0) && Waits::Epoch(7).are_over(10, 0));
    /// assert!(!Waits::Flush(7).are_over(12, 0), "no cache was emptied");
    /// assert!(!Waits::Flush(7).are_over(12, 12) && Waits::Flush(7).are_over(13, 12));
    /// ```
    pub fn are_over(self, epoch: u64, flushed: u64) -> bool {
        match self {
            Waits::Epoch(since) => epoch >= since.saturating_add(GRACE),
            Waits::Flush(since) => flushed >= since.saturating_add(GRACE) && epoch > flushed,
        }
    }
}

/// Free nodes of one class on one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeBatch {
    /// The class of all of them.
    pub class: NodeClass,
    /// The moment that the last of them waits for.
    pub waits: Waits,
    /// Where each begins in the server's region, and its first word if that is known.
    pub nodes: Vec<(u64, Option<u64>)>,
}

impl NodeBatch {
    /// Counts the bytes of all nodes.
    ///
    /// ```
    /// use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits};
    /// let class = NodeClass { bytes: 128, of_kind: false };
    /// let batch = NodeBatch { class, waits: Waits::Epoch(1), nodes: vec![(4096, None), (8192, None)] };
    /// assert_eq!(batch.bytes(), 256);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.class.bytes.saturating_mul(self.nodes.len() as u64)
    }
}

/// A wish of an allocator for free nodes that a server may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedNodes {
    /// The class of the nodes.
    pub class: NodeClass,
    /// The epoch that the allocator's shard knows of: nodes that wait for a later one are not free.
    pub epoch: u64,
    /// The epoch of the last flush that it knows of.
    pub flushed: u64,
    /// True where there is no other memory: nodes that still wait will do, too, and nodes of any size, to be divided or
    /// joined, unless they have to be of a kind.
    pub last_resort: bool,
}
