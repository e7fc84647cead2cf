//! Memory that is on its way back, which is worth waiting for where servers are full. Who waits, and how long, is not
//! known here.

use std::rc::Rc;

use super::NodeAllocator;

/// A node that is about to be retired ([`NodeAllocator::expect`]).
#[derive(Debug)]
pub struct Expected {
    _counts: Rc<()>,
}

impl NodeAllocator {
    /// Tells whether retired nodes of this shard wait for an epoch or a flush, which it asks for, or will soon
    /// ([`NodeAllocator::expect`]). Where servers are full, a client that pins no epoch may wait for their memory:
    /// [`NodeAllocator::reclaimed_bytes`] says when some is free.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire(node, 1000);
    /// while nodes.awaits_memory() {
    ///     shard.pause(1_000).await;
    /// }
    /// assert_eq!(nodes.reclaimed_bytes(), 1024);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn awaits_memory(&self) -> bool {
        self.reclaim();
        let is_waiting = self.awaits_epochs();
        if is_waiting {
            self.want_flush();
            self.control.want_epoch();
        }
        is_waiting || Rc::strong_count(&self.leaving) > 1
    }

    /// Announces a node that is about to be retired, in the background, for as long as the answer is kept.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let leaving = nodes.expect();
    /// assert!(nodes.awaits_memory());
    /// drop(leaving);
    /// assert!(!nodes.awaits_memory());
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn expect(&self) -> Expected {
        Expected { _counts: Rc::clone(&self.leaving) }
    }

    /// Counts the bytes of retired nodes that have become free here so far.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire(node, 1000);
    /// assert_eq!(nodes.reclaimed_bytes(), 0, "others may read it");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn reclaimed_bytes(&self) -> u64 {
        self.state().reclaimed_bytes
    }
}
