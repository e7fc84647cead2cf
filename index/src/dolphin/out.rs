//! Inner nodes that are out of the tree: they have moved to more room, and no slot leads to them any more. In the
//! background their memory is given back.
//!
//! ```text
//!   mover     WRITE link of N: moved to M, unlock
//!   who comes by, the mover mostly                 lock A, WRITE slot: M, unlock
//!   its janitor                                                                   lock N, unlock ── N is retired
//! ```
//!
//! # Who retires a node
//!
//! The client that has made the slot above lead on. There is one: it has seen the slot lead to N, under the lock of A,
//! the node above, which had not moved. A node that has moved while N had is copied with the slot that leads to N, so N
//! stays in the tree until a client comes by there.
//!
//! # Why the lock
//!
//! The mover may have died before its unlock, when others could see the link already. The client that takes the lock
//! over may have the link to write once more (`farwood_lock`), into another node if there is one by then. So the lock
//! of N is had once since its link says that it has moved. Later holders find that, and write nothing.
//!
//! # When the memory may be used again
//!
//! Nothing that a client reads of an inner node says which prefix it is for, so no client may come to memory that is
//! another node's by now. These may have the address of N:
//!
//! - An operation that has read the slot that led to N, or the link of a node before it that did, and what it has left
//!   to the janitor: until its epoch is over.
//! - A cache, of any compute node: in a copy of N, and in copies of all nodes that ever were above it. Until the next
//!   flush, in which all caches are emptied (`Tree::cache`).
//! - The link of a node that moved to N before N has moved on. That one is out of the tree since N's slot took the
//!   place of its own, so it has waited for longer than N.
//! - A scan between two windows, and what a shard remembers of leaves: they have no addresses of inner nodes, but for
//!   nodes that moved and that the janitor sees to, which are compared and not followed (`Suspects`).
//!
//! A cache gets nothing of N from an operation that began after N was out: copies are made of nodes that were read, and
//! had not moved. Such a node is in the tree, and leads to nodes that are:
//!
//! ```text
//!   mover     slot above: M        N is retired              flush              one epoch ── N's memory is another's
//!   cached    copy of A: N ································· emptied
//!   reader                   from A's copy: READ N: moved, READ M: cached
//! ```
//!
//! So the allocator waits for the flush and for an epoch more (`NodeAllocator::retire_cached`). Leaves are not retired,
//! nor is the root: caches keep that.

use std::rc::Rc;

use farwood_runtime::alloc::Expected;
use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::Unread;
use crate::error::AccessError;
use crate::layout::radix::Link;

/// Bytes of a node's link, which it begins with.
const LINK_BYTES: usize = 8;

/// An inner node that has moved, and to which the slot above leads, or is about to lead no more. Dropped before it is
/// retired, nothing tells whether it is out.
#[must_use]
pub(super) struct Leaving<V: Verbs> {
    tree: Rc<Tree<V>>,
    node: RemotePtr,
    bytes: usize,
    is_out: bool,
    _expected: Expected,
}

impl<V: Verbs> Leaving<V> {
    pub(super) fn new(tree: &Tree<V>, moved: Unread) -> Self {
        let expected = tree.allocator.expect();
        let bytes = tree.types().node_bytes(moved.class);
        let tree = tree.me.upgrade().expect("a tree that is at work is alive");
        Leaving { tree, node: moved.node.ptr(), bytes, is_out: false, _expected: expected }
    }

    /// Retires the node, to which no slot leads any more, once its lock was had. That may take as long as a dead
    /// client's lock does, and follows no pointers: the node is not retired yet.
    pub(super) fn see_off(self) {
        let tree = Rc::clone(&self.tree);
        tree.verbs.attend(async move {
            match self.settle().await {
                Ok(()) => self.retire(),
                Err(error) => tracing::debug!(%error, "an inner node that is out stays locked"),
            }
        });
    }

    fn retire(mut self) {
        tracing::debug!(name: "dolphin.node.retired", node = %self.node, "no slot leads to an inner node");
        self.is_out = true;
    }

    /// Takes the node's lock once, behind all that was to be written under it.
    async fn settle(&self) -> Result<(), AccessError> {
        let (meter, fused) = (Meter::default(), self.tree.techniques.fused);
        let (held, link) = self.tree.lock_and_read(&meter, self.node, LINK_BYTES, fused).await?;
        held.unlock(&meter).await?;
        let word = u64::from_le_bytes(*link.first_chunk().expect("a link was read"));
        match Link::from_bits(word) {
            Ok(Link::Moved { .. }) => Ok(()),
            _ => Err(AccessError::corrupt(self.node, "it has moved, and its link says no more where")),
        }
    }
}

impl<V: Verbs> Drop for Leaving<V> {
    fn drop(&mut self) {
        let (allocator, bytes) = (&self.tree.allocator, self.bytes as u64);
        match self.is_out {
            true => allocator.retire_cached(self.node, bytes),
            false => allocator.retire_unsettled(self.node, bytes),
        }
    }
}
