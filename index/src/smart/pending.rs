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
use super::new_node::{NewList, NewNodes, Redirect};
use super::out::OutLeaf;
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

/// The nodes that new ones take the place of.
pub(super) enum Old {
    Nothing,
    /// Inner nodes.
    Nodes(NodeList),
    /// The leaf of the same key.
    Leaf(OutLeaf),
}

/// The work that is left until the nodes are in the tree, or for the case that they do not come into it.
struct Left {
    nodes: NewList,
    /// The nodes whose place they take.
    old: Old,
    /// The CAS that publishes them, once it was posted.
    redirect: Option<Redirect>,
    /// An old node whose link names one of them, as soon as a CAS that was posted takes effect; and its link before.
    link: Option<(Child, Link, Link)>,
}

impl<V: Verbs> Pending<V> {
    pub(super) fn new(tree: &Rc<Tree<V>>, mut nodes: NewNodes<'_, V>) -> Self {
        let left = Left { nodes: nodes.publish(), old: Old::Nothing, redirect: None, link: None };
        Pending { tree: Rc::clone(tree), left: Some(left) }
    }

    /// Notes that the nodes take the place of these, which are retired then.
    pub(super) fn instead_of(mut self, old: Old) -> Self {
        self.left().old = old;
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
    pub(super) fn done(mut self, meter: &Meter) {
        let left = self.left.take().expect("the fate is not known");
        self.tree.retire_all(meter, left.old);
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
/// became of the CAS, and the leaf is seen off if it is out.
#[must_use]
pub(super) struct Removal<V: Verbs> {
    tree: Rc<Tree<V>>,
    /// The leaf, with the link that no other client writes; none if no CAS may take effect any more.
    leaf: Option<OutLeaf>,
}

impl<V: Verbs> Removal<V> {
    /// Notes that the CAS is posted next that removes the leaf.
    pub(super) fn of(tree: &Rc<Tree<V>>, leaf: OutLeaf) -> Self {
        Removal { tree: Rc::clone(tree), leaf: Some(leaf) }
    }

    /// Notes whether the CAS has removed the leaf.
    pub(super) fn settle(mut self, meter: &Meter, is_out: bool) {
        if let Some(leaf) = self.leaf.take().filter(|_| is_out) {
            self.tree.see_off(meter, leaf);
        }
    }
}

impl<V: Verbs> Drop for Removal<V> {
    fn drop(&mut self) {
        let Some(leaf) = self.leaf.take() else { return };
        let tree = Rc::clone(&self.tree);
        self.tree.verbs.defer(async move {
            let (meter, at) = (Meter::default(), leaf.at.ptr());
            // The READ goes behind the CAS, on its queue pair.
            let link = tree.persist(async || tree.read_word(&meter, at, &mut tree.budget()).await);
            match link.await {
                Ok(link) if link == leaf.link.bits() => tree.see_off(&meter, leaf),
                Ok(_) => {}
                Err(_) => tree.allocator.retire_unsettled(at, tree.leaf().leaf_bytes(leaf.class) as u64),
            }
        });
    }
}

impl<V: Verbs> Tree<V> {
    fn retire_all(self: &Rc<Self>, meter: &Meter, old: Old) {
        match old {
            Old::Nothing => {}
            Old::Nodes(nodes) => self.retire_nodes(&nodes),
            Old::Leaf(leaf) => self.see_off(meter, leaf),
        }
    }

    /// Undoes what is left of new nodes, unless they came into the tree.
    async fn take_back(self: &Rc<Self>, left: Left) -> Result<(), AccessError> {
        let meter = Meter::default();
        if let Some(redirect) = &left.redirect {
            // The READs go behind the CAS, on its queue pair.
            let redirected =
                self.persist(async || self.has_redirected(&meter, redirect, &mut self.budget()).await);
            if redirected.await? {
                self.retire_all(&meter, left.old);
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
        drop(NewNodes::of(self, left.nodes));
        Ok(())
    }
}
