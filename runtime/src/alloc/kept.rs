//! Nodes of a kind of which the index says when they are free: that all operations have ended which were under way when
//! a node was retired is not enough, the index has to look once more. It knows which of its nodes wait for that; here
//! their bytes are counted, and free ones are kept.
//!
//! ```text
//!   in use ──retire_kept──> waits for an epoch, the index looks ──┬─free_kept──> free, for nodes of the kind
//!                                                                 └─flush_kept─> waits for a flush, free for all
//! ```

use super::{NODE_ALIGN, NodeAllocator, OfKind};
use crate::pointer::{RemotePtr, ServerId};

impl NodeAllocator {
    /// Notes that a node, of any shard, is out of the index, which says when it is free ([`NodeAllocator::free_kept`]).
    /// Yields since when it is out: the index asks [`Pins::is_over`](crate::epoch::Pins::is_over) first. Until then it
    /// keeps what [`NodeAllocator::expect`] yields.
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
        let bytes = self.note_retired(node, bytes);
        self.state().leaving.insert(node, bytes);
        self.control.want_epoch();
        self.pins.retired_now()
    }

    /// Takes a node back that was retired and that the index has found free: for nodes of the kind alone.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire_kept(node, 1000);
    /// // Later:
    /// nodes.free_kept(node, 1000);
    /// assert_eq!((nodes.books().retired_bytes, nodes.used_bytes()), (0, 0));
    /// assert_eq!(nodes.reuse_of_kind(node.server(), 1000).await.map(|again| again.at), Some(node));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn free_kept(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let count = {
            let mut state = self.state();
            state.leaving.remove(&node);
            state.free_retired(node, bytes);
            state.give_back_of_kind(node, bytes, None)
        };
        if self.is_surplus(count, node.server(), bytes) {
            self.give_surplus();
        }
    }

    /// Takes a node back that was retired, to which caches alone may lead, as the index has found: it waits for a
    /// flush, as [`NodeAllocator::retire_cached`] has it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(64 << 10).await?;
    /// nodes.retire_kept(node, 64 << 10);
    /// // Later:
    /// nodes.flush_kept(node, 64 << 10);
    /// while nodes.books().reclaimed_bytes == 0 {
    ///     shard.control().want_epoch();
    ///     shard.pause(1_000).await;
    ///     nodes.reclaim();
    /// }
    /// assert!(shard.pins().flushed() > 0 && nodes.books().retired_bytes == 0);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn flush_kept(&self, node: RemotePtr, bytes: u64) {
        self.wait_for_flush(node, bytes.next_multiple_of(NODE_ALIGN));
        // Behind that: in one of the two lists at any time.
        self.state().leaving.remove(&node);
    }

    /// Takes memory that a node of a kind and this size had before, on `server` if there is some, else on any other
    /// server; none if there is none. Before a chunk is needed for want of it, the server is asked for some that other
    /// shards have given back. What becomes of no node goes back by [`NodeAllocator::return_of_kind`].
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate_of_kind(ServerId(0), 1000).await?.at;
    /// assert_eq!(nodes.reuse_of_kind(ServerId(0), 1000).await, None);
    /// nodes.return_of_kind(node, 1000);
    /// assert_eq!(nodes.reuse_of_kind(ServerId(3), 1000).await.map(|again| again.at), Some(node));
    /// # Ok(()) }).unwrap();
    /// ```
    pub async fn reuse_of_kind(&self, server: ServerId, bytes: u64) -> Option<OfKind> {
        self.reclaim();
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let own = {
            let mut state = self.state();
            state.take_of_kind(Some(server), bytes).or_else(|| state.take_of_kind(None, bytes))
        };
        match own {
            None => self.others_of_kind(server, bytes).await,
            own => own,
        }
    }
}
