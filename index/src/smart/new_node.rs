//! Nodes that no client can reach yet: allocating them, writing them, and the CAS that makes them part of the tree.
//!
//! A CAS of unknown outcome is never simply posted again. The node that it would have put in place has an address that
//! no other client uses, so the word that is found tells the outcome ([`Tree::redirect`]).

use std::rc::Rc;

use farwood_runtime::alloc::Allocated;
use farwood_runtime::{Buf, Chain, Completion, Meter, RemotePtr, ServerId, Verbs};
use smallvec::SmallVec;

use super::decide::SlotSnapshot;
use super::pending::Pending;
use super::{SmartAlgorithm, Tree};
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{Child, Link, Slot};
use crate::shell::nodes::{self, NodeList};
use crate::step::Budget;

/// Nodes that go back to the allocator unless they are published.
pub(super) type NewNodes<'t, V> = nodes::NewNodes<'t, SmartAlgorithm, V>;

impl<V: Verbs> NewNodes<'_, V> {
    /// Allocates one more, on the server of those before it.
    pub(super) async fn add(&mut self, bytes: usize) -> Result<Child, WriteError> {
        let near = self.list().first().map(|(node, _)| node.server());
        Ok(child_at(self.allocate(near, bytes).await?)?)
    }
}

/// Yields the address of a node, as slots name it.
pub(crate) fn child_at(node: RemotePtr) -> Result<Child, AccessError> {
    Child::new(node).ok_or_else(|| AccessError::corrupt(node, "it is beyond what slots can name"))
}

/// A leaf that goes back to the allocator unless it is published.
pub(super) struct NewLeaf<'t, V: Verbs> {
    nodes: NewNodes<'t, V>,
    /// The leaf's address.
    pub(super) at: Child,
    /// True if nothing was ever written there.
    zeroed: bool,
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
    /// Allocates a leaf on the server of the node that will hold it, so that one chain can write and publish it.
    pub(super) async fn new_leaf(
        &self,
        server: ServerId,
        bytes: usize,
    ) -> Result<NewLeaf<'_, V>, WriteError> {
        let mut nodes = self.new_nodes();
        let Allocated { at, zeroed } = self.allocator.allocate_near(server, bytes as u64).await?;
        nodes.push(at, bytes);
        Ok(NewLeaf { nodes, at: child_at(at)?, zeroed })
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
    /// trip with `fused`, if it is on the same server and its memory is zeroed. Yields what was found in its place if
    /// the CAS failed, with the leaf's memory.
    ///
    /// Memory that was written before takes two: were both in one chain that fails, an old link could not be told from
    /// one that was changed since the leaf was found.
    ///
    /// # Errors
    /// If the fabric fails for good. The leaf may be in place then.
    pub(super) async fn write_and_redirect<'t>(
        self: &'t Rc<Self>,
        meter: &Meter,
        (leaf, mut buf): (NewLeaf<'t, V>, Buf),
        old: NodeList,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<Result<(), (NewNodes<'t, V>, u64)>, AccessError> {
        let bytes = buf.len();
        let NewLeaf { nodes, at, zeroed } = leaf;
        if !(self.techniques.fused && zeroed && redirect.node.server() == redirect.at.server()) {
            self.write_new(meter, [(at, buf)], budget).await?;
            return self.publish(meter, nodes, old, redirect, budget).await;
        }
        let mut pending = Pending::new(self, nodes).instead_of(old);
        pending.redirects(redirect);
        loop {
            let mut chain = Chain::with_buffer(redirect.node.server(), buf);
            chain.write(redirect.node, 0..bytes).cas(redirect.at, redirect.expected, redirect.desired.bits());
            match self.verbs.submit(meter, chain).await {
                Ok(done) => return Ok(self.known(pending, redirected(&done, redirect))),
                Err(failed) => {
                    let chain = budget.post_again(meter, redirect.node, failed)?;
                    buf = chain.into_buffer().expect("it was posted with one");
                    if self.has_redirected(meter, redirect, budget).await? {
                        return Ok(self.known(pending, Ok(())));
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
        old: NodeList,
        redirect: &Redirect,
        budget: &mut Budget,
    ) -> Result<Result<(), (NewNodes<'t, V>, u64)>, AccessError> {
        let mut pending = Pending::new(self, nodes).instead_of(old);
        pending.redirects(redirect);
        let redirected = self.redirect(meter, redirect, budget).await?;
        Ok(self.known(pending, redirected))
    }

    /// Lets go of nodes that are in place, and yields those that are not.
    fn known<'t>(
        &'t self,
        pending: Pending<V>,
        redirected: Result<(), u64>,
    ) -> Result<(), (NewNodes<'t, V>, u64)> {
        match redirected {
            Ok(()) => {
                pending.done();
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
    /// changed the node's link before: from what was written there, and not from the zeros before it.
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
        Ok(link != 0 && link != redirect.written)
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
        let (expected, desired) = (snapshot.slot.bits(), Lead::Slot(slot));
        Redirect { at, expected, desired, node: node.ptr(), written: link.bits() }
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
    fn a_redirect_takes_six_words() {
        assert_eq!(size_of::<Redirect>(), 48);
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
