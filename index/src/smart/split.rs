//! Leaf split and header split (SMART section 4.1.2): new nodes between a slot and what it leads to.
//!
//! ```text
//! leaf split      P ─> old leaf            P ─> M ─┬─> old leaf
//!                                                  └─> new leaf
//! header split    P ─> N (abcd)            P ─> Q (ab) ─┬─> N (d)
//!                                                       └─> new leaf
//! ```
//!
//! New nodes are written and the link of the old one is changed, all at the same time; then the CAS of P's slot shows
//! them. The order matters to a client that comes by a cached copy of P, finds the old node and would conclude that
//! another key is absent: the link tells it from then on that P is not the parent any more.
//!
//! ```text
//!   split    WRITE M, leaf; CAS old's link: M      CAS P's slot: M       done
//!   get                                                                   READ old: not its key, link M: P is read
//!   wrong                                          CAS P's slot: M       done    CAS old's link
//!   get                                                                   READ old: not its key, link P: "absent"
//! ```
//!
//! If the CAS of the slot fails, the link names a node outside the tree: a client that reads it reads P once more, and
//! is right. The link gets its value back then (`pending.rs`).

use std::rc::Rc;

use farwood_runtime::{Buf, Chain, Meter, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::decide::SlotSnapshot;
use super::descend::PrefixMismatch;
use super::new_node::{LeafPlace, NewNodes, Redirect};
use super::pending::Pending;
use super::write::Outcome;
use crate::error::{AccessError, WriteError};
use crate::layout::Rejection;
use crate::layout::radix::{Child, Header, Link, PREFIX_BYTES_MAX, Parent, Slot, Symbol, build_inner};
use crate::step::Budget;

/// The type of new nodes: the smallest.
const NEW_TYPE: u8 = 1;
/// Times that a client that is not the first to change a link looks whether the first one is done.
const LOOKS_MAX: u32 = 4;
/// The pause after its first look, in ns; four times as long after each further one.
const PAUSE_NS: u64 = 4_000;

/// Yields the prefixes of the nodes that lead from key byte `from` to where two keys part, at `parting`: each but the
/// last leads on with the byte behind its prefix.
pub(super) fn prefixes(from: usize, parting: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut begin = Some(from);
    std::iter::from_fn(move || {
        let at = begin?;
        let end = parting.min(at + PREFIX_BYTES_MAX);
        begin = (end < parting).then_some(end + 1);
        Some((at, end))
    })
}

impl<V: Verbs> Tree<V> {
    /// Puts a node above the leaf that `snapshot` leads to, whose key is another one, and a new leaf beside it. The
    /// keys part somewhere behind the bytes that lead there; what they share is in the new node, or in several of them.
    pub(super) async fn split_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        snapshot: SlotSnapshot,
        (old, image): (Child, &Buf),
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let (old_key, old_link) = match self.leaf().view(image).and_then(|view| Ok((view.key()?, view.link)))
        {
            Ok(found) => found,
            Err(rejection) => return Ok(self.not_a_child(meter, key, &snapshot, rejection, budget).await?),
        };
        let parting = key.iter().zip(old_key).take_while(|(a, b)| a == b).count();
        if parting < snapshot.next || key == old_key {
            let rejection = Rejection::NotANode { found: 0 };
            return Ok(self.not_a_child(meter, key, &snapshot, rejection, budget).await?);
        }
        if let Some(found) = self.changed_by_others(meter, &snapshot, (old, old_link), budget).await? {
            return Ok(self.after_lost_slot(meter, snapshot, found, budget)?);
        }
        tracing::debug!(name: "smart.leaf.split", leaf = %old.ptr(), "a node comes above a leaf");
        let held = self.lock_holder(meter, &snapshot).await?;
        let old_slot = Slot::leaf(Symbol::of(old_key, parting), old, snapshot.slot.class());
        let symbol = Symbol::of(key, parting);
        let split = Split { snapshot, key, value, symbol, parting, old_slot, old, old_link };
        let done = self.put_between(meter, split, budget).await;
        self.unlock_holder(meter, held).await?;
        done
    }

    /// Puts a node above one whose prefix the key leaves, and a new leaf beside it.
    pub(super) async fn split_header(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        mismatch: PrefixMismatch,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let PrefixMismatch { snapshot, node, header, link, shared, .. } = mismatch;
        let parting = usize::from(header.depth) + shared;
        if parting < snapshot.next {
            let rejection = Rejection::NotANode { found: 0 };
            return Ok(self.not_a_child(meter, key, &snapshot, rejection, budget).await?);
        }
        if let Link::Removed { .. } = link {
            return self.replace(meter, snapshot, budget).await;
        }
        if let Some(found) = self.changed_by_others(meter, &snapshot, (node, link), budget).await? {
            return Ok(self.after_lost_slot(meter, snapshot, found, budget)?);
        }
        tracing::debug!(name: "smart.header.split", node = %node.ptr(), "a node comes above a node");
        let held = self.lock_holder(meter, &snapshot).await?;
        let old_symbol = Symbol::Byte(header.prefix()[shared]);
        let old_slot = Slot::inner(old_symbol, node, header.node_type);
        let symbol = Symbol::of(key, parting);
        let split = Split { snapshot, key, value, symbol, parting, old_slot, old: node, old_link: link };
        let done = self.put_between(meter, split, budget).await;
        if let Ok(Outcome::Done(true)) = done {
            // Only now: until the new node is in place, clients that come from above need these bytes. If the CAS
            // fails, they stay, and are compared twice.
            let shorter = header.from_depth(parting + 1);
            self.cas_without_awaiting(meter, node.ptr().add(Header::AT), header.bits(), shorter.bits());
        }
        self.unlock_holder(meter, held).await?;
        done
    }

    /// Waits for another client that has begun to put a node above the old one, whose link says so, and yields what the
    /// slot of `snapshot` holds then, if it has changed. Were the link overwritten at once, the client whose CAS of the
    /// slot fails could not restore it. A client that goes no further does not hold others up for long.
    async fn changed_by_others(
        &self,
        meter: &Meter,
        snapshot: &SlotSnapshot,
        (old, link): (Child, Link),
        budget: &mut Budget,
    ) -> Result<Option<Slot>, AccessError> {
        if [Link::New, Link::Live(snapshot.holder), Link::Live(Parent::Node(old))].contains(&link) {
            return Ok(None);
        }
        for look in 0..LOOKS_MAX {
            let word = self.read_word(meter, snapshot.at(self.shared.entry.root), budget).await?;
            let found = Slot::from_bits(word);
            if found.is_frozen() || !found.leads_as(snapshot.slot) {
                return Ok(Some(found));
            }
            self.verbs.pause(PAUSE_NS << (2 * look)).await;
        }
        Ok(None)
    }

    /// Goes on after a slot that does not lead where it says.
    async fn not_a_child(
        &self,
        meter: &Meter,
        key: &[u8],
        snapshot: &SlotSnapshot,
        rejection: Rejection,
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        Ok(Outcome::On(self.rejected(meter, key, snapshot, rejection, budget).await?))
    }

    /// Writes the nodes and the leaf, changes the old node's link, and redirects the slot: two round trips.
    async fn put_between(
        self: &Rc<Self>,
        meter: &Meter,
        split: Split<'_>,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let Split { snapshot, key, .. } = split;
        let mut nodes = self.nodes();
        let (images, places, leaf) = self.new_images(&split, &mut nodes).await?;
        let (first, last) = (places[0], places[places.len() - 1]);
        let new_link = Link::Live(Parent::Node(last));
        let mut pending = Pending::new(self, nodes);
        pending.links(split.old, split.old_link, new_link);
        let linked = self.verbs.post(meter, link_chain(split.old, split.old_link, new_link));
        self.write_new(meter, images, budget).await?;
        if !self.until_linked(meter, &split, new_link, linked, budget).await? {
            tracing::debug!(name: "smart.split.vain", old = %split.old.ptr(), "what a node came above is gone");
            return Ok(Outcome::On(self.refresh(meter, key, &snapshot, budget).await?));
        }
        let slot = Slot::inner(snapshot.symbol, first, NEW_TYPE);
        let redirect: Redirect = self.redirect_of(&snapshot, slot, first, Link::Live(snapshot.holder));
        pending.redirects(&redirect);
        let Err(found) = self.redirect(meter, &redirect, budget).await? else {
            pending.done(meter);
            self.reveal(meter, &leaf, new_link);
            self.amend_cache(&snapshot, slot);
            return Ok(Outcome::Done(true));
        };
        tracing::debug!(name: "smart.split.lost", at = %redirect.at, "another client has changed the slot");
        pending.lost();
        budget.spend(meter, redirect.at, None)?;
        Ok(self.after_lost_slot(meter, snapshot, Slot::from_bits(found), budget)?)
    }

    /// Yields where to go on after the slot of `snapshot` turned out to hold `found`.
    pub(super) fn after_lost_slot(
        &self,
        meter: &Meter,
        snapshot: SlotSnapshot,
        found: Slot,
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        match found.is_frozen() || !(snapshot.holder == Parent::Root || found.is_of(snapshot.symbol)) {
            true => self.look_again(meter, &snapshot, budget),
            false => Ok(Outcome::On(snapshot.with(found))),
        }
    }

    /// Builds the images of all new nodes with their addresses, and yields also the addresses of the inner ones from
    /// the top, and the leaf's.
    async fn new_images(
        &self,
        split: &Split<'_>,
        nodes: &mut NewNodes<'_, V>,
    ) -> Result<(SmallVec<[(Child, Buf); 4]>, SmallVec<[Child; 2]>, LeafPlace), WriteError> {
        let Split { snapshot, key, value, symbol, parting, old_slot, .. } = *split;
        let spans: SmallVec<[(usize, usize); 2]> = prefixes(snapshot.next, parting).collect();
        let bytes = self.types().node_bytes(NEW_TYPE);
        let mut places: SmallVec<[Child; 2]> = SmallVec::new();
        for _ in &spans {
            places.push(nodes.add(bytes).await?);
        }
        let class = self.leaf().class_for(key.len(), value.len());
        let leaf = nodes.add_leaf(places[0].ptr().server(), class).await?;
        let mut images = SmallVec::new();
        let mut holder = snapshot.holder;
        for (place, &(begin, end)) in spans.iter().enumerate() {
            let header = Header::new(begin, NEW_TYPE, &key[begin..end]);
            let slots: SmallVec<[Slot; 2]> = match places.get(place + 1) {
                Some(&next) => [Slot::inner(Symbol::Byte(key[end]), next, NEW_TYPE)].into_iter().collect(),
                None => [old_slot, Slot::leaf(symbol, leaf.at, class)].into_iter().collect(),
            };
            let mut buf = self.verbs.lease(bytes);
            build_inner(&mut buf, Link::Live(holder), &header, slots);
            images.push((places[place], buf));
            holder = Parent::Node(places[place]);
        }
        images.push((leaf.at, self.leaf_image(&leaf, Link::Live(holder), key, value)));
        Ok((images, places, leaf))
    }

    /// Waits until the old node's link leads to the new one; false if another client has changed it.
    async fn until_linked(
        &self,
        meter: &Meter,
        split: &Split<'_>,
        link: Link,
        mut linked: V::Submission,
        budget: &mut Budget,
    ) -> Result<bool, AccessError> {
        let at = split.old.ptr();
        loop {
            let found = match linked.await {
                Ok(done) if done.atomics[0] == split.old_link.bits() => return Ok(true),
                Ok(done) => done.atomics[0],
                Err(failed) => {
                    budget.post_again(meter, at, failed)?;
                    self.read_word(meter, at, budget).await?
                }
            };
            match found {
                found if found == link.bits() => return Ok(true),
                // The CAS of unknown outcome had no effect.
                found if found == split.old_link.bits() => {
                    linked = self.verbs.submit(meter, link_chain(split.old, split.old_link, link));
                }
                _ => return Ok(false),
            }
        }
    }
}

/// The nodes that come between a slot and what it leads to.
#[derive(Clone, Copy)]
struct Split<'k> {
    /// The slot.
    snapshot: SlotSnapshot,
    /// The new leaf.
    key: &'k [u8],
    value: &'k [u8],
    symbol: Symbol,
    /// The key byte at which the new leaf and the old node part.
    parting: usize,
    /// The slot that will lead to the old node.
    old_slot: Slot,
    old: Child,
    old_link: Link,
}

fn link_chain(node: Child, expected: Link, desired: Link) -> Chain {
    let mut chain = Chain::new(node.ptr().server());
    chain.cas(node.ptr(), expected.bits(), desired.bits());
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_common_prefixes_take_nodes_of_their_own() {
        let spans = |from, parting| prefixes(from, parting).collect::<Vec<_>>();
        assert_eq!(spans(0, 0), [(0, 0)]);
        assert_eq!(spans(2, 8), [(2, 8)]);
        assert_eq!(spans(2, 9), [(2, 8), (9, 9)]);
        assert_eq!(spans(0, 20), [(0, 6), (7, 13), (14, 20)]);
        for from in 0..5 {
            for parting in from..255 {
                let spans = spans(from, parting);
                assert_eq!((spans[0].0, spans.last().unwrap().1), (from, parting));
                assert!(spans.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
                assert!(spans.iter().all(|(begin, end)| end - begin <= PREFIX_BYTES_MAX));
            }
        }
    }
}
