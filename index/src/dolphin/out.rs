//! Inner nodes that are out of the tree: they have moved to more room, or were needless, and no slot leads to them any
//! more. Which client gives their memory back, and when it may be another node's. It does not know how nodes move, nor
//! which are needless.
//!
//! ```text
//!   mover                       lock N   WRITE M   WRITE link of N: M is in its place, unlock
//!   or: N is needless           lock N             WRITE link of N: leaf X is in its place, unlock
//!   who comes by, mostly the same client                               lock A, WRITE slot: M or X, unlock ── N is out
//! ```
//!
//! # Who retires a node
//!
//! The client that has made the slot above lead on. There is one: it has seen the slot lead to N, under the lock of A,
//! the node above, which was in the tree. If A moves before, the node in its place has the slot that leads to N, and N
//! stays in the tree until a client comes by there. A is not needless before: N is an inner node. If the client is
//! dropped, its janitor waits until A's lock is free: the WRITE that was posted under it has taken effect then. If the
//! fabric fails for good, nothing tells whether it has, and N's memory stays where it is.
//!
//! # When the memory may be used again
//!
//! Nothing that a client reads of an inner node says which prefix it is for, so no client may come to memory that is
//! another node's by now. These may have the address of N:
//!
//! - An operation, in a slot or in the link of a node that moved to N, or among the nodes that it has passed, and what
//!   it has left to the janitor: until its epoch is over.
//! - A cache, of any compute node, in a copy of N, and in copies of all nodes that ever were above it: until the next
//!   flush, in which all caches are emptied (`Tree::cache`).
//! - The link of a node that moved to N. It is out since N's address is in the slot above, so it waits no shorter.
//! - A scan between two windows, and what a shard remembers from one operation to the next: none, but for nodes that
//!   the janitor sees to, which are compared and not followed (`Suspects`).
//!
//! A cache gets N's address from no operation that began after N was out. Copies are made of nodes that were read and
//! whose links said of nothing in their place, so that they were in the tree then, and led to nodes that were:
//!
//! ```text
//!   mover     slot above: M, N is out                             flush              one epoch ── N's memory is M2's
//!   cache     copy of A: N ······································ emptied
//!   reader                    from A's copy: READ N: moved, READ M: cached
//! ```
//!
//! So the allocator waits for a flush, and for an epoch more (`NodeAllocator::retire_cached`). WRITEs that a client has
//! under way to N when others see the link pin its epoch, until its janitor has ended them. A client that died there
//! has left no intent: all WRITEs to inner nodes are of one word. The root is for good, and caches keep it. What leads
//! to a leaf in N's place is a slot like others: memory of leaves stays that.

use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::Unread;

/// An inner node that is gone, while the slot above is made to lead on, by a WRITE that is posted next.
#[must_use]
pub(super) struct Leaving<'t, V: Verbs> {
    tree: &'t Tree<V>,
    node: RemotePtr,
    bytes: u64,
    above: RemotePtr,
    is_out: bool,
}

impl<'t, V: Verbs> Leaving<'t, V> {
    pub(super) fn new(tree: &'t Tree<V>, gone: Unread, above: RemotePtr) -> Self {
        let bytes = tree.types().node_bytes(gone.class) as u64;
        Leaving { tree, node: gone.node.ptr(), bytes, above, is_out: false }
    }

    /// Gives the node's memory back: no slot leads there any more.
    pub(super) fn retire(mut self) {
        self.is_out = true;
    }
}

impl<V: Verbs> Drop for Leaving<'_, V> {
    fn drop(&mut self) {
        let Leaving { tree, node, bytes, above, is_out } = *self;
        if is_out {
            return tree.allocator.retire_cached(node, bytes);
        }
        let Some(tree) = tree.me.upgrade() else { return tree.allocator.retire_unsettled(node, bytes) };
        self.tree.verbs.defer(async move {
            let settled = tree.persist(async || tree.settle_node(&Meter::default(), above).await).await;
            tracing::debug!(name: "dolphin.node.settled", %node, ?settled, "a dropped write has taken a node out");
            match settled {
                Ok(()) => tree.allocator.retire_cached(node, bytes),
                Err(_) => tree.allocator.retire_unsettled(node, bytes),
            }
        });
    }
}
