//! Memory that an index keeps for nodes of one kind, where epochs alone do not tell when it is free: caches have their
//! addresses for good. It is the index that knows which of these nodes are free; here their bytes are counted.

use super::{NODE_ALIGN, NodeAllocator};
use crate::pointer::RemotePtr;

impl NodeAllocator {
    /// Notes that a node, of any shard, is out of the index, which keeps its memory for nodes of the same kind. Yields
    /// since when: the index asks [`Pins::is_over`](crate::epoch::Pins::is_over), and says so ([`NodeAllocator::keep`]).
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// let since = nodes.retire_kept(node, 1000);
    /// assert_eq!((nodes.books().retired_bytes, shard.pins().is_over(since)), (1024, false));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn retire_kept(&self, node: RemotePtr, bytes: u64) -> u64 {
        self.note_retired(node, bytes);
        self.control.want_epoch();
        self.pins.retired_now()
    }

    /// Notes that a node of those that the index keeps is free.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire_kept(node, 1000);
    /// // Later:
    /// nodes.keep(node, 1000);
    /// assert_eq!((nodes.books().retired_bytes, nodes.used_bytes()), (0, 0));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn keep(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        tracing::debug!(name: "alloc.reclaimed", %node, bytes, "a retired node is free");
        let mut state = self.state.borrow_mut();
        state.retired_bytes -= bytes;
        state.reclaimed_bytes += bytes;
        state.used_bytes -= bytes as i64;
        state.kept_bytes += bytes;
    }

    /// Notes that a node of those that the index keeps is in use again.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire_kept(node, 1000);
    /// nodes.keep(node, 1000);
    /// nodes.use_kept(node, 1000);
    /// assert_eq!(nodes.used_bytes(), 1024);
    /// nodes.return_kept(1000); // It did not become reachable.
    /// assert_eq!(nodes.used_bytes(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn use_kept(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        tracing::debug!(name: "alloc.reused", %node, bytes, "memory is used again");
        let mut state = self.state.borrow_mut();
        state.kept_bytes -= bytes;
        state.reused_bytes += bytes;
        state.used_bytes += bytes as i64;
    }

    /// Notes that such a node did not become reachable, and is free again. See [`NodeAllocator::use_kept`].
    pub fn return_kept(&self, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut state = self.state.borrow_mut();
        state.kept_bytes += bytes;
        state.used_bytes -= bytes as i64;
    }
}
