//! Nodes that no client can reach yet: allocating them, writing them, and the CAS that makes them part of the tree.
//!
//! A CAS of unknown outcome is never simply posted again. The node that it would have put in place has an address that
//! no other client uses, so the word that is found tells the outcome ([`Tree::redirect`]).
//!
//! A leaf in memory of another one can be found before it is in the tree, by old copies of slots that led to that one.
//! So its link says that it is new ([`Link::New`]), and is made live when it is in place:
//!
//! ```text
//!   insert   WRITE leaf: new ··························· CAS slot         CAS link: live (not awaited)
//!   get, by an old slot           READ leaf: reads the slot again          READ leaf: it counts
//! ```
//!
//! It is written without its lock, which a client that was led there wrongly may hold (`layout/radix/leaf.rs`).

use std::ops::Deref;
use std::rc::Rc;

use farwood_runtime::alloc::{Before, OfKind};
use farwood_runtime::{Buf, Chain, Completion, Meter, RemotePtr, ServerId, Verbs};
use smallvec::SmallVec;

use super::decide::SlotSnapshot;
use super::pending::{Old, Pending};
use super::{SmartAlgorithm, Tree};
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{Child, Link, Slot};
use crate::shell::nodes::{self, NodeList};
use crate::step::Budget;

/// Nodes that go back to the allocator unless they are published. One of them may be a leaf in memory of another one.
pub(super) struct NewNodes<'t, V: Verbs> {
    tree: &'t Tree<V>,
    nodes: nodes::NewNodes<'t, SmartAlgorithm, V>,
    recycled: Option<(RemotePtr, u64)>,
}

/// New nodes that are on their way into the tree.
pub(super) struct NewList {
    nodes: NodeList,
    /// A leaf in memory of another one.
    recycled: Option<(RemotePtr, u64)>,
}

impl<'t, V: Verbs> NewNodes<'t, V> {
    /// Takes over nodes that other clients cannot reach.
    pub(super) fn of(tree: &'t Tree<V>, list: NewList) -> Self {
        let NewList { nodes, recycled } = list;
        NewNodes { tree, nodes: nodes::NewNodes::of(tree, nodes), recycled }
    }

    /// Allocates one more, on the server of those before it.
    pub(super) async fn add(&mut self, bytes: usize) -> Result<Child, WriteError> {
        let near = self.nodes.list().first().map(|(node, _)| node.server());
        Ok(child_at(self.nodes.allocate(near, bytes).await?)?)
    }

    /// Allocates a leaf of that class, on that server if it has memory left. Of one list of nodes there is one leaf.
    pub(super) async fn add_leaf(&mut self, server: ServerId, class: u8) -> Result<LeafPlace, WriteError> {
        let bytes = self.tree.leaf().leaf_bytes(class);
        let OfKind { at, before } = self.tree.allocator.allocate_of_kind(server, bytes as u64).await?;
        match before {
            Before::Node(_) => {
                debug_assert!(self.recycled.is_none());
                tracing::debug!(name: "smart.leaf.recycled", leaf = %at, "a leaf gets memory of another one");
                self.recycled = Some((at, bytes as u64));
            }
            Before::Zeros | Before::Anything => self.nodes.push(at, bytes),
        }
        Ok(LeafPlace { at: child_at(at)?, class, before })
    }

    /// Marks the nodes as ones that other clients may find from here on: they never go back. Yields them.
    pub(super) fn publish(&mut self) -> NewList {
        NewList { nodes: self.nodes.publish(), recycled: self.recycled.take() }
    }
}

impl<V: Verbs> Drop for NewNodes<'_, V> {
    fn drop(&mut self) {
        // WRITEs to it may be in flight: its next owner writes behind those, on the same queue pair.
        if let Some((leaf, bytes)) = self.recycled {
            self.tree.allocator.return_of_kind(leaf, bytes);
        }
    }
}

/// Memory for a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeafPlace {
    /// The leaf's address.
    pub(super) at: Child,
    pub(super) class: u8,
    before: Before,
}

impl LeafPlace {
    /// Yields the link that the leaf is written with, if it is to be `live` in the tree.
    pub(super) fn link(&self, live: Link) -> Link {
        match self.before {
            Before::Node(_) => Link::New,
            Before::Zeros | Before::Anything => live,
        }
    }

    /// Yields the word that is there before the leaf is written, if it can be told from all that may be there after the
    /// leaf was found. The link of a leaf that moved cannot: this one may move to that address, too.
    fn tells_before(&self) -> Option<u64> {
        match self.before {
            Before::Zeros => Some(0),
            Before::Node(Some(word)) if matches!(Link::from_bits(word), Ok(Link::Removed { .. })) => {
                Some(word)
            }
            Before::Node(_) | Before::Anything => None,
        }
    }
}

/// Yields the address of a node, as slots name it.
pub(crate) fn child_at(node: RemotePtr) -> Result<Child, AccessError> {
    Child::new(node).ok_or_else(|| AccessError::corrupt(node, "it is beyond what slots can name"))
}

/// A leaf that goes back to the allocator unless it is published.
pub(super) struct NewLeaf<'t, V: Verbs> {
    nodes: NewNodes<'t, V>,
    place: LeafPlace,
}

impl<V: Verbs> Deref for NewLeaf<'_, V> {
    type Target = LeafPlace;

    fn deref(&self) -> &LeafPlace {
        &self.place
    }
}

/// A CAS that puts a new node in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Redirect {
    /// The word.
    pub(super) at: RemotePtr,
    pub(super) expected: u64,
    pub(super) desired: Lead,
    pub(super) node: RemotePtr,
    /// The bits of the link that the new node was written with. It changes before a slot that leads there does.
    pub(super) written: u64,
    /// The word there before the node is written, if that is in the chain of the CAS; else the same.
    before: u64,
}

/// A word that leads to a new node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    /// A slot, which other clients freeze, or give another type, while it leads to the node.
    Slot(Slot),
    /// The bits of the link of the leaf before, which stays as it is.
    Link(u64),
}

impl Lead {
    fn bits(self) -> u64 {
        match self {
            Lead::Slot(slot) => slot.bits(),
            Lead::Link(link) => link,
        }
    }

    /// Tells whether `found`, read from the word, leads to the node.
    ///
    /// An address alone does not tell it in a link: the one before may name a parent that never came into the tree, and
    /// in whose memory the new leaf is.
    fn is_shown_by(self, found: u64) -> bool {
        match self {
            Lead::Slot(slot) => Slot::from_bits(found).leads_as(slot),
            Lead::Link(link) => found == link,
        }
    }
}

impl<V: Verbs> Tree<V> {
    /// Makes an empty list of new nodes.
    pub(super) fn nodes(&self) -> NewNodes<'_, V> {
        NewNodes { tree: self, nodes: self.new_nodes(), recycled: None }
    }

    /// Allocates a leaf on the server of the node that will hold it, so that one chain can write and publish it.
    pub(super) async fn new_leaf(&self, server: ServerId, class: u8) -> Result<NewLeaf<'_, V>, WriteError> {
        let mut nodes = self.nodes();
        let place = nodes.add_leaf(server, class).await?;
        Ok(NewLeaf { nodes, place })
    }

    /// Builds the image of a leaf with what is to be written of it: not the lock, if a client may hold it.
    pub(super) fn leaf_image(&self, place: &LeafPlace, live: Link, key: &[u8], value: &[u8]) -> Buf {
        let format = self.leaf();
        let bytes = match place.before {
            Before::Node(_) => format.body_bytes(place.class),
            Before::Zeros | Before::Anything => format.leaf_bytes(place.class),
        };
        let mut buf = self.verbs.lease(bytes);
        format.build(&mut buf, place.link(live), key, value);
        buf
    }

    /// Makes the link of a leaf live that is in place, if it was written as new: the CAS is not awaited. If it fails,
    /// others do the same ([`Tree::welcome`]).
    pub(super) fn reveal(&self, meter: &Meter, place: &LeafPlace, live: Link) {
        let written = place.link(live);
        if written != live {
            self.cas_without_awaiting(meter, place.at.ptr(), written.bits(), live.bits());
        }
    }

    /// Makes the link of a leaf live that was found by the slot that leads there, and has stayed new: its writer is not
    /// that far, or was dropped.
    ///
    /// If the CAS succeeds the slot's holder is its parent still, or a copy of it is. A node that came in between would
    /// have changed the link before; unless that came above the leaf that moved to this one, so that such a way says
    /// nothing of the parent:
    ///
    /// ```text
    ///   split       CAS link of X: M                                     CAS P's slot, X: M
    ///   supersede                     CAS link of X: moved to L
    ///   get         READ P: X                                  READ X: moved                   READ L: not P's child
    /// ```
    pub(super) fn welcome(&self, meter: &Meter, snapshot: &SlotSnapshot, link: Link) {
        if let (Link::New, true, Some(leaf)) = (link, snapshot.direct, snapshot.slot.child()) {
            tracing::debug!(name: "smart.leaf.welcomed", leaf = %leaf.ptr(), "a leaf that is new is in the tree");
            let live = Link::Live(snapshot.holder);
            self.cas_without_awaiting(meter, leaf.ptr(), link.bits(), live.bits());
        }
    }

    /// WRITEs new nodes, all at the same time: one round trip, and one more for each queue pair that breaks meanwhile.
    pub(super) async fn write_new(
        &self,
        meter: &Meter,
        images: impl IntoIterator<Item = (Child, Buf)>,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        meter.round_trip();
        let posted: SmallVec<[_; 4]> = images
            .into_iter()
            .map(|(node, buf)| {
                let (at, bytes) = (node.ptr(), buf.len());
                let mut chain = Chain::with_buffer(at.server(), buf);
                chain.write(at, 0..bytes);
                (at, self.verbs.post(meter, chain))
            })
            .collect();
        for (at, mut write) in posted {
            while let Err(failed) = write.await {
                write = self.verbs.submit(meter, budget.post_again(meter, at, failed)?);
            }
        }
        Ok(())
    }

    /// WRITEs the leaf in `buf`, which no client can reach, and puts it in place, instead of `old` nodes: one round
    /// trip with `fused`, if it is on the same server and it is known what was in its memory before. Yields what was
    /// found in its place if the CAS failed, with the leaf's memory.
    ///
    /// Other memory takes two: were both in one chain that fails, an old link could not be told from one that was
    /// changed since the leaf was found.
    ///
    /// # Errors
    /// If the fabric fails for good. The leaf may be in place then.
    pub(super) async fn write_and_redirect<'t>(
        self: &'t Rc<Self>,
        meter: &Meter,
        (leaf, mut buf): (NewLeaf<'t, V>, Buf),
        old: Old,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<Result<(), (NewNodes<'t, V>, u64)>, AccessError> {
        let bytes = buf.len();
        let NewLeaf { nodes, place } = leaf;
        let together = self.techniques.fused && redirect.node.server() == redirect.at.server();
        let Some(before) = place.tells_before().filter(|_| together) else {
            self.write_new(meter, [(place.at, buf)], budget).await?;
            return self.publish(meter, nodes, old, redirect, budget).await;
        };
        let redirect = &Redirect { before, ..*redirect };
        let mut pending = Pending::new(self, nodes).instead_of(old);
        pending.redirects(redirect);
        loop {
            let mut chain = Chain::with_buffer(redirect.node.server(), buf);
            chain.write(redirect.node, 0..bytes).cas(redirect.at, redirect.expected, redirect.desired.bits());
            match self.verbs.submit(meter, chain).await {
                Ok(done) => return Ok(self.known(meter, pending, redirected(&done, redirect))),
                Err(failed) => {
                    let chain = budget.post_again(meter, redirect.node, failed)?;
                    buf = chain.into_buffer().expect("it was posted with one");
                    if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(self.known(meter, pending, Ok(())));
                    }
                }
            }
        }
    }

    /// Puts new nodes that were written in place, instead of `old` ones. Yields what was found there if the CAS failed,
    /// with the nodes.
    ///
    /// # Errors
    /// See [`Tree::write_and_redirect`].
    pub(super) async fn publish<'t>(
        self: &'t Rc<Self>,
        meter: &Meter,
        nodes: NewNodes<'t, V>,
        old: Old,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<Result<(), (NewNodes<'t, V>, u64)>, AccessError> {
        let mut pending = Pending::new(self, nodes).instead_of(old);
        pending.redirects(redirect);
        let redirected = self.redirect(meter, redirect, budget).await?;
        Ok(self.known(meter, pending, redirected))
    }

    /// Lets go of nodes that are in place, and yields those that are not.
    fn known<'t>(
        &'t self,
        meter: &Meter,
        pending: Pending<V>,
        redirected: Result<(), u64>,
    ) -> Result<(), (NewNodes<'t, V>, u64)> {
        match redirected {
            Ok(()) => {
                pending.done(meter);
                Ok(())
            }
            Err(found) => Err((pending.withdraw(self), found)),
        }
    }

    /// Puts a new node that was written in place. Yields what was found there if the CAS failed.
    ///
    /// # Errors
    /// See [`Tree::write_and_redirect`].
    pub(super) async fn redirect(
        &self,
        meter: &Meter,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<Result<(), u64>, AccessError> {
        loop {
            let mut chain = Chain::new(redirect.at.server());
            chain.cas(redirect.at, redirect.expected, redirect.desired.bits());
            match self.verbs.submit(meter, chain).await {
                Ok(done) => return Ok(redirected(&done, redirect)),
                Err(failed) => {
                    budget.post_again(meter, redirect.at, failed)?;
                    if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(Ok(()));
                    }
                }
            }
        }
    }

    /// Tells whether a CAS of unknown outcome took effect. It will not do so later.
    ///
    /// If it did, the word leads to the new node (frozen, perhaps, or with another type), or another client has changed
    /// it since, perhaps back to what was expected (a tombstone). A client that changes a slot that leads to a node has
    /// changed the node's link before: from what was written there, and not from what was there before it.
    pub(super) async fn has_redirected(
        &self,
        meter: &Meter,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<bool, AccessError> {
        tracing::debug!(name: "smart.redirect.settled", at = %redirect.at, "what is there tells what became of a CAS");
        let word = self.read_word(meter, redirect.at, budget).await?;
        if redirect.desired.is_shown_by(word) {
            return Ok(true);
        }
        let link = self.read_word(meter, redirect.node, budget).await?;
        Ok(link != redirect.before && link != redirect.written)
    }

    /// Makes the CAS that redirects the slot of `snapshot` to `slot`, a node with `link`.
    pub(super) fn redirect_of(
        &self,
        snapshot: &SlotSnapshot,
        slot: Slot,
        node: Child,
        link: Link,
    ) -> Redirect {
        let at = snapshot.at(self.shared.entry.root);
        Redirect::new(at, snapshot.slot.bits(), Lead::Slot(slot), node, link)
    }
}

impl Redirect {
    /// Makes the CAS of a word to one that leads to `node`, which is written, with `written` as its link, before.
    pub(super) fn new(at: RemotePtr, expected: u64, desired: Lead, node: Child, written: Link) -> Self {
        let written = written.bits();
        Redirect { at, expected, desired, node: node.ptr(), written, before: written }
    }
}

fn redirected(done: &Completion, redirect: &Redirect) -> Result<(), u64> {
    match done.atomics[0] {
        found if found == redirect.expected => Ok(()),
        found => Err(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::radix::{Parent, Symbol};

    fn child(offset: u64) -> Child {
        Child::new(RemotePtr::new(ServerId(0), offset)).expect("slots can name it")
    }

    /// Futures of every write hold one.
    #[test]
    fn a_redirect_takes_seven_words() {
        assert_eq!(size_of::<Redirect>(), 56);
    }

    #[test]
    fn an_earlier_link_that_names_the_same_memory_shows_no_new_leaf() {
        let to = child(0x140c0);
        let lead = Lead::Link(Link::Moved { to, class: 1 }.bits());
        assert!(lead.is_shown_by(lead.bits()));
        for other in
            [Link::Live(Parent::Node(to)), Link::Live(Parent::Root), Link::Moved { to: child(64), class: 1 }]
        {
            assert!(!lead.is_shown_by(other.bits()), "{other:?}");
        }
    }

    #[test]
    fn a_slot_shows_its_node_frozen_and_with_another_type_as_well() {
        let slot = Slot::leaf(Symbol::Byte(7), child(0x140c0), 1);
        let lead = Lead::Slot(slot);
        for found in [slot, slot.frozen(), slot.with_class(3)] {
            assert!(lead.is_shown_by(found.bits()), "{found:?}");
        }
        assert!(!lead.is_shown_by(Slot::EMPTY.bits()));
        assert!(!lead.is_shown_by(Slot::leaf(Symbol::Byte(7), child(64), 1).bits()));
    }
}
