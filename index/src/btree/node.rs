//! Single nodes on the fabric: READs and WRITEs, under a lock of the lock table and without, and nodes that are new. A
//! tree whose leaves are read whole and locked there uses it for these too. It does not know what is in a node.

use std::ops::Range;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Failed, Meter, RemotePtr, Verbs};

use super::retired::Again;
use super::{BTree, LeafFormat};
use crate::error::{AccessError, WriteError};
use crate::layout::{EntryVersion, NodeHeader, NodeVersion, wrap_ns};
use crate::shell::handle::Local;
use crate::shell::nodes::{NewNodes, NodeList};
use crate::step::{Budget, SlowReads};

/// Failed READs of one node after which a reader takes its lock, under which nothing can be torn. Far more than happen
/// in practice; other retries, such as moves to the right, do not count. Where READs exceed the time that versions
/// cover, the reader takes it sooner ([`crate::step::SlowReads`]).
pub(crate) const RETRIES_BEFORE_LOCK: u32 = 64;

/// A node that was allocated and that nothing refers to yet. Goes back to the allocator if it is dropped.
pub(crate) struct Unpublished<'t, A: BTree, V: Verbs> {
    nodes: NewNodes<'t, A, V>,
    pub(crate) node: RemotePtr,
    /// A leaf's, in the place of one that was merged.
    again: Option<Again<A, V>>,
}

impl<A: BTree, V: Verbs> Unpublished<'_, A, V> {
    /// Takes over nodes that become reachable with it.
    pub(crate) fn join(&mut self, nodes: NodeList) {
        nodes.into_iter().for_each(|(node, bytes)| self.nodes.push(node, bytes as usize));
    }

    /// Marks the node as one that other clients may find from here on: it never goes back.
    pub(super) fn publish(mut self) -> NodeList {
        self.nodes.publish()
    }

    /// Marks the node as [`Unpublished::publish`] does; yields its lock if it is frozen until it is found.
    pub(super) fn publish_frozen(mut self) -> Option<Held<V>> {
        self.nodes.publish();
        self.again.as_mut().and_then(|again| {
            again.is_published = true;
            again.held.take()
        })
    }

    /// Yields the version of the first image.
    pub(crate) fn version(&self) -> NodeVersion {
        self.again.as_ref().map_or_else(NodeVersion::default, |again| again.version)
    }

    /// Tells whether it has to be frozen until it is found.
    pub(super) fn is_again(&self) -> bool {
        self.again.is_some()
    }

    /// Tells whether its lock is held, and is its own.
    pub(super) fn has_lock(&self) -> bool {
        self.again.as_ref().is_some_and(|again| again.held.is_some())
    }
}

impl<'t, A: BTree, V: Verbs> Unpublished<'t, A, V> {
    /// Makes a leaf in the place of one that was merged.
    pub(super) fn again(tree: &'t Local<A, V>, again: Again<A, V>) -> Self {
        Unpublished { nodes: tree.new_nodes(), node: again.node, again: Some(again) }
    }
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Checks whether to post a failed READ of `node` again, or a CAS whose result tells what it did before. Neither
    /// leaves anything half done.
    ///
    /// # Errors
    /// The cause, if asking again does not help or the budget is spent.
    #[cold]
    pub(crate) fn read_again(
        &self,
        meter: &Meter,
        node: RemotePtr,
        failed: Failed,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        budget.post_again(meter, node, failed).map(drop)
    }

    /// Allocates a node of `bytes` bytes.
    pub(crate) async fn new_node(&self, bytes: usize) -> Result<Unpublished<'_, A, V>, WriteError> {
        let mut nodes = self.new_nodes();
        let node = nodes.allocate(None, bytes).await?;
        Ok(Unpublished { nodes, node, again: None })
    }

    /// Draws the header of a node at a new address.
    pub(super) fn new_header<'k>(
        &self,
        level: u8,
        low: &'k [u8],
        high: Option<&'k [u8]>,
        sibling: RemotePtr,
    ) -> NodeHeader<'k> {
        let incarnation = self.verbs.random() as u32;
        NodeHeader { level, low, high, sibling, incarnation, node_version: NodeVersion::default() }
    }

    /// Writes `range` of `buf` to a node that no client can reach yet: one round trip, and one more for each queue pair
    /// that breaks meanwhile. No client reads what a failed attempt has left there, so it is simply posted again.
    ///
    /// # Errors
    /// As [`Local::read_again`].
    pub(crate) async fn write_new(
        &self,
        meter: &Meter,
        node: RemotePtr,
        buf: Buf,
        range: Range<usize>,
    ) -> Result<Buf, AccessError> {
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, range);
        self.until_written(meter, node, self.verbs.submit(meter, chain)).await
    }

    /// Waits for a posted WRITE to a new node, and posts it again as [`Local::write_new`] does.
    pub(super) async fn until_written(
        &self,
        meter: &Meter,
        node: RemotePtr,
        mut write: V::Submission,
    ) -> Result<Buf, AccessError> {
        let mut budget = self.budget();
        loop {
            match write.await {
                Ok(done) => return Ok(done.into_buf()),
                Err(failed) => {
                    let chain = budget.post_again(meter, node, failed)?;
                    write = self.verbs.submit(meter, chain);
                }
            }
        }
    }

    /// Locks and reads a node of `bytes` bytes: one round trip with `fused` or when the lock is handed over, else two.
    pub(crate) async fn lock_node(
        &self,
        meter: &Meter,
        node: RemotePtr,
        bytes: usize,
    ) -> Result<(Held<V>, Buf), AccessError> {
        self.lock_and_read(meter, node, bytes, self.chains().fused).await
    }

    /// Waits for the local lock of a leaf, wherever that is.
    pub(crate) async fn acquire_leaf(&self, meter: &Meter, leaf: RemotePtr) -> Result<Held<V>, AccessError> {
        Ok(match self.leaf().lock_place() {
            Some(at) => self.locks.acquire_embedded(meter, leaf, leaf.add(at as u64)).await?,
            None => self.locks.acquire(meter, leaf).await?,
        })
    }

    /// Reads a node of `bytes` bytes under its lock. If a stopped compute node holds that, this fails after
    /// `lock_attempts_max`.
    pub(crate) async fn read_node_locked(
        &self,
        meter: &Meter,
        node: RemotePtr,
        bytes: usize,
    ) -> Result<Buf, AccessError> {
        tracing::debug!(name: "btree.read.locked", %node, "a reader takes the lock");
        let (held, image) = self.lock_node(meter, node, bytes).await?;
        self.unlock(meter, held).await?;
        Ok(image)
    }

    /// Gives a lock back under which nothing was changed.
    pub(crate) async fn unlock(&self, meter: &Meter, held: Held<V>) -> Result<(), AccessError> {
        Ok(held.unlock(meter).await?)
    }

    /// Tells whether the node versions of a node of `level` cannot have wrapped around during a read of that duration.
    #[inline]
    pub(crate) fn node_version_holds(&self, level: u8, span_ns: u32) -> bool {
        u64::from(span_ns) < self.version_bound(level, NodeVersion::COUNT)
    }

    /// Tells whether the entry versions of a node of `level` cannot have wrapped around during such a read.
    #[inline]
    pub(crate) fn entry_version_holds(&self, level: u8, span_ns: u32) -> bool {
        u64::from(span_ns) < self.version_bound(level, EntryVersion::COUNT)
    }

    /// Yields the least time in ns from the first of so many writes of a node of `level` to the last.
    #[inline]
    pub(crate) fn version_bound(&self, level: u8, writes: u32) -> u64 {
        let bytes = if level == 0 { self.leaf().writer_reads() } else { self.inner().node_bytes() };
        wrap_ns(writes, self.verbs.capabilities().write_interval_ns, bytes)
    }

    /// Tells whether to read under the lock after a READ that took longer than entry versions vouch for. If not, it
    /// pauses, and the reader reads again.
    ///
    /// No comparison of two such READs would do instead, not even of all bytes. In either, any number of writes may
    /// lie between two lines of an entry; 32 of them, or 64, go unnoticed, and a value that comes back every so often
    /// makes both READs bring the same mixture:
    ///
    /// ```text
    ///   writer    x,EV=4   ... 32 ...   y,EV=4   ... 32 ...   x,EV=4   ... 32 ...   y,EV=4
    ///   READ 1    line 3: x             line 4: y
    ///   READ 2                                                line 3: x             line 4: y     xy was never there
    /// ```
    #[cold]
    pub(crate) async fn pause_or_lock(&self, slow: &mut SlowReads) -> bool {
        tracing::debug!(name: "btree.read.slow", "a READ took longer than versions vouch for");
        let Some(multiple) = slow.another() else { return true };
        let most = multiple * self.version_bound(0, EntryVersion::COUNT);
        if most > 0 {
            // Half of it is random: readers whose READs were slow together come back one by one.
            self.verbs.pause(most - self.verbs.random() % (most / 2 + 1)).await;
        }
        false
    }
}
