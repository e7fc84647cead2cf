//! New nodes on their way into the tree: written, and perhaps found by others already. The client that puts them there
//! holds a [`Pending`] until it knows the outcome. If its future is dropped before, the janitor finds that out: nodes
//! that no client can reach go back to the allocator, and no others.
//!
//! A split has also made the old node's link name the new one above it, before the slot leads there (`split.rs`). If
//! the CAS of the slot fails, or was never posted, that link names a node outside the tree. It misleads no client, but
//! one that comes by a cached slot and looks for another key does not trust what it finds, and reads the parent once
//! more, for as long as the link stays so. So the link gets its old value back: if no client has changed it since, it
//! is as if it had never been changed. It must not get another value, however well that fits by then:
//!
//! ```text
//!   A   READ old; CAS link: M1 ·················································· CAS P's slot: M1
//!   B   READ old;        CAS link: M2, slot lost     link back to M1, or M2 stays: right
//!                                                    link to P, where the slot leads to old still:  P's copies mislead
//! ```
//!
//! Only then do the nodes go back, so that a link to another node above the old one is not taken for it.

use std::rc::Rc;

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::new_node::{NewNodes, Redirect};
use crate::error::AccessError;
use crate::layout::radix::{Child, Link};
use crate::shell::nodes::NodeList;

/// New nodes whose fate is not known yet.
#[must_use]
pub(super) struct Pending<V: Verbs> {
    tree: Rc<Tree<V>>,
    /// None once their fate is known.
    left: Option<Left>,
}

/// The work that is left until the nodes are in the tree, or for the case that they do not come into it.
struct Left {
    nodes: NodeList,
    /// Nodes whose place they take.
    old: NodeList,
    /// The CAS that publishes them, once it was posted.
    redirect: Option<Redirect>,
    /// An old node whose link names one of them, as soon as a CAS that was posted takes effect; and its link before.
    link: Option<(Child, Link, Link)>,
}

impl<V: Verbs> Pending<V> {
    pub(super) fn new(tree: &Rc<Tree<V>>, mut nodes: NewNodes<'_, V>) -> Self {
        let left = Left { nodes: nodes.publish(), old: NodeList::new(), redirect: None, link: None };
        Pending { tree: Rc::clone(tree), left: Some(left) }
    }

    /// Notes that the nodes take the place of these, which are retired then.
    pub(super) fn instead_of(mut self, old: impl IntoIterator<Item = (RemotePtr, u64)>) -> Self {
        self.left().old.extend(old);
        self
    }

    fn left(&mut self) -> &mut Left {
        self.left.as_mut().expect("it is asked for only before the fate is known")
    }

    /// Notes that the CAS of `old`'s link from `before` to `link` is posted next.
    pub(super) fn links(&mut self, old: Child, before: Link, link: Link) {
        self.left().link = Some((old, before, link));
    }

    /// Notes that the CAS that publishes the nodes is posted next.
    pub(super) fn redirects(&mut self, redirect: &Redirect) {
        self.left().redirect = Some(*redirect);
    }

    /// Notes that the CAS failed: no client can reach the nodes.
    pub(super) fn lost(&mut self) {
        self.left().redirect = None;
    }

    /// Notes that the nodes are part of the tree.
    pub(super) fn done(mut self) {
        let left = self.left.take().expect("the fate is not known");
        self.tree.retire_all(&left.old);
    }

    /// Yields the nodes, for another try, after the CAS failed. No link names them.
    pub(super) fn withdraw<'t>(mut self, tree: &'t Tree<V>) -> NewNodes<'t, V> {
        let left = self.left.take().expect("the fate is not known");
        debug_assert!(left.link.is_none());
        NewNodes::of(tree, left.nodes)
    }
}

impl<V: Verbs> Drop for Pending<V> {
    fn drop(&mut self) {
        let Some(left) = self.left.take() else { return };
        let tree = Rc::clone(&self.tree);
        self.tree.verbs.defer(async move {
            if let Err(error) = tree.take_back(left).await {
                tracing::debug!(name: "smart.nodes.lost", %error, "new nodes are lost: others may have found them");
            }
        });
    }
}

/// A leaf that is removed by a CAS on its way. If the future that holds this is dropped, the janitor finds out what
/// became of the CAS, and the leaf is retired if it is out.
#[must_use]
pub(super) struct Removal<V: Verbs> {
    tree: Rc<Tree<V>>,
    leaf: Child,
    bytes: u64,
    /// The leaf's link then, which no other client writes.
    removed: Link,
    /// True while a CAS may take effect, or has.
    is_open: bool,
}

impl<V: Verbs> Removal<V> {
    /// Notes that the CAS is posted next that makes the link of `leaf`, of `bytes` bytes, `removed`.
    pub(super) fn of(tree: &Rc<Tree<V>>, leaf: Child, bytes: u64, removed: Link) -> Self {
        Removal { tree: Rc::clone(tree), leaf, bytes, removed, is_open: true }
    }

    /// Notes whether the CAS has removed the leaf.
    pub(super) fn settle(mut self, is_out: bool) {
        self.is_open = false;
        if is_out {
            self.tree.allocator.retire_for_good(self.leaf.ptr(), self.bytes);
        }
    }
}

impl<V: Verbs> Drop for Removal<V> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let (tree, leaf, bytes, removed) = (Rc::clone(&self.tree), self.leaf.ptr(), self.bytes, self.removed);
        self.tree.verbs.defer(async move {
            // The READ goes behind the CAS, on its queue pair.
            let link =
                tree.persist(async || tree.read_word(&Meter::default(), leaf, &mut tree.budget()).await);
            match link.await {
                Ok(link) if link == removed.bits() => tree.allocator.retire_for_good(leaf, bytes),
                Ok(_) => {}
                Err(_) => tree.allocator.retire_unsettled(leaf, bytes),
            }
        });
    }
}

impl<V: Verbs> Tree<V> {
    fn retire_all(&self, nodes: &[(RemotePtr, u64)]) {
        nodes.iter().for_each(|&(node, bytes)| self.allocator.retire_for_good(node, bytes));
    }

    /// Undoes what is left of new nodes, unless they came into the tree.
    async fn take_back(&self, left: Left) -> Result<(), AccessError> {
        let meter = Meter::default();
        if let Some(redirect) = &left.redirect {
            // The READs go behind the CAS, on its queue pair.
            let redirected =
                self.persist(async || self.has_redirected(&meter, redirect, &mut self.budget()).await);
            if redirected.await? {
                self.retire_all(&left.old);
                return Ok(());
            }
        }
        if let Some((old, before, link)) = left.link {
            tracing::debug!(name: "smart.link.restored", node = %old.ptr(), "a link gets its value back");
            self.persist(async || {
                let (mut chain, mut budget) = (Chain::new(old.ptr().server()), self.budget());
                // Behind the CAS that changed it.
                chain.fence().cas(old.ptr(), link.bits(), before.bits());
                while let Err(failed) = self.verbs.submit(&meter, chain).await {
                    chain = budget.post_again(&meter, old.ptr(), failed)?;
                }
                Ok(())
            })
            .await?;
        }
        left.nodes.iter().for_each(|&(node, bytes)| self.allocator.return_extent(node, bytes));
        Ok(())
    }
}
