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

use farwood_runtime::{Chain, Meter, Verbs};

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

/// The work that is left if the nodes do not come into the tree.
struct Left {
    nodes: NodeList,
    /// The CAS that publishes them, once it was posted.
    redirect: Option<Redirect>,
    /// An old node whose link names one of them, as soon as a CAS that was posted takes effect; and its link before.
    link: Option<(Child, Link, Link)>,
}

impl<V: Verbs> Pending<V> {
    pub(super) fn new(tree: &Rc<Tree<V>>, mut nodes: NewNodes<'_, V>) -> Self {
        let left = Left { nodes: nodes.publish(), redirect: None, link: None };
        Pending { tree: Rc::clone(tree), left: Some(left) }
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
        self.left = None;
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

impl<V: Verbs> Tree<V> {
    /// Undoes what is left of new nodes, unless they came into the tree.
    async fn take_back(&self, left: Left) -> Result<(), AccessError> {
        let (meter, mut budget) = (Meter::default(), self.budget());
        // The READs go behind the CAS, on its queue pair.
        if let Some(redirect) = &left.redirect
            && self.has_redirected(&meter, redirect, &mut budget).await?
        {
            return Ok(());
        }
        if let Some((old, before, link)) = left.link {
            tracing::debug!(name: "smart.link.restored", node = %old.ptr(), "a link gets its value back");
            let mut chain = Chain::new(old.ptr().server());
            // Behind the CAS that changed it.
            chain.fence().cas(old.ptr(), link.bits(), before.bits());
            if let Err(failed) = self.verbs.submit(&meter, chain).await {
                // Done or not: it costs others a round trip at most.
                drop(budget.post_again(&meter, old.ptr(), failed)?);
            }
        }
        left.nodes.iter().for_each(|&(node, bytes)| self.allocator.return_extent(node, bytes));
        Ok(())
    }
}
