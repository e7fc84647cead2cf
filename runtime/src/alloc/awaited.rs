//! Memory that is on its way back, which is worth waiting for where servers are full. Who waits, and how long, is not
//! known here.

use std::rc::Rc;
use std::sync::{Arc, Mutex};

use super::state::{State, lock};
use super::{NODE_ALIGN, NodeAllocator};
use crate::pointer::RemotePtr;

/// A node that is about to be retired ([`NodeAllocator::expect`]).
pub struct Expected {
    _counts: Rc<()>,
    /// Which one it is, if that is known.
    node: Option<(Arc<Mutex<State>>, RemotePtr)>,
}

impl Drop for Expected {
    fn drop(&mut self) {
        let Some((state, node)) = &self.node else { return };
        let mut state = lock(state);
        if let Some(bytes) = state.expected.remove(node) {
            // It may be in the index from now on, for a sweep that has walked by.
            state.note(*node, bytes);
        }
    }
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
        Expected { _counts: Rc::clone(&self.leaving), node: None }
    }

    /// Announces that node, which may be out of the index already and is to be retired, in the background, without an
    /// epoch being pinned meanwhile: a sweep does not take it for lost.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// let leaving = nodes.expect_node(node, 1000);
    /// // Later:
    /// nodes.retire(node, 1000);
    /// drop(leaving);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn expect_node(&self, node: RemotePtr, bytes: u64) -> Expected {
        self.state().expected.insert(node, bytes.next_multiple_of(NODE_ALIGN));
        Expected { _counts: Rc::clone(&self.leaving), node: Some((Arc::clone(&self.state), node)) }
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
