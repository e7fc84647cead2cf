//! Replacing an inner node: it moves to where it has more room, or path compression takes it out (SMART section 4.4,
//! "Delete").
//!
//! The paper gives every node the room of the largest type and never moves one. Here a node has the room of its type
//! (`layout/radix/types.rs`), so that it moves now and then. That is lock-free as everything else: a client that comes
//! across a half-replaced node completes what was begun, so one that dies leaves nothing behind.
//!
//! 1. The node's link says that it is being replaced: nothing is concluded any more from the reverse check.
//! 2. Its slots are frozen, each by a CAS, those included that are not claimed. After that nothing of it changes.
//! 3. A copy is made of what it has then, or it turns out that nothing, or a single child, is left.
//! 4. The slot that leads to the node is redirected to that.
//!
//! ```text
//!   insert      READ N: vacancy ····························· CAS N's slot: it is frozen ─> help, try again
//!   replace     CAS link    CAS slots: frozen    WRITE copy    CAS P's slot: copy
//!   get                 READ P: N                                               READ N: what it had when P led there
//! ```
//!
//! Children's links still name the old node then. That is safe, since it has no children any more; CASes that are not
//! awaited change them to the new one.
//!
//! # When the memory of a node that is out may be used again
//!
//! Nothing that a client reads of an inner node says which one it is: two nodes may have the same depth, prefix and
//! symbols below different bytes, and a CAS on a slot succeeds in whatever node has that word there. So no client may
//! come to memory that is another node's by now. These may have the address of a node that is out:
//!
//! - An operation, of a reader or a writer, that read the node, or a slot that led there, and what it leaves behind
//!   (CASes that are not awaited, tasks of janitors): until its epoch is over.
//! - A cache, of any compute node: in its copy of the node, from which the first CAS of an insert may come, and in
//!   slots of its copies of all nodes that were ever above. Until the next flush: all caches are emptied
//!   (`Tree::cache`).
//! - A scan between two windows: until the epoch moves on. Then it forgets its slots (`scan.rs`).
//! - Links of the children that it had: for ever, and they lead no client there (see below).
//!
//! A cache gets nothing of a node that is out once the epoch is over in which it was taken out: copies are made of
//! nodes that are not frozen, and those lead to nodes of the tree. So a flush three epochs later leaves no cache that
//! leads there, and one epoch more leaves no operation that looked into one before (`farwood_runtime::epoch`, with a
//! search of all orders). The allocator waits for both (`NodeAllocator::retire_cached`). To drop the copies of this
//! node alone would not do: slots that lead there may be in copies of all that ever was above.
//!
//! A link that names the node outlives it, if the CAS that changes it failed. It says that nothing came between the
//! child and the node of which the child's parent is a copy, or a copy of a copy. It goes on to say so if the memory
//! becomes a node that is not above the child: no client comes to the child from there. And if it becomes one that is
//! put above it (`split.rs`), the link says that before it should: to a client that comes over the parent's copy, in
//! any cache, it names another node, so it reads the parent once more. A split that fails leaves the link as it was.

use std::rc::Rc;

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::decide::{InnerStep, SlotSnapshot, decide_inner};
use super::new_node::NewNodes;
use super::pending::Old;
use super::write::Outcome;
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{
    Child, Header, InnerView, Link, PREFIX_BYTES_MAX, Parent, Slot, Symbol, build_inner, slot_at,
};
use crate::shell::nodes::NodeList;
use crate::step::Budget;

/// Atomics that go into one chain.
const CAS_PER_CHAIN: usize = 8;
/// Symbols that there are.
const SYMBOLS: usize = 257;
/// A node of the smallest type is checked for compression after every removal below it, and larger ones of which the
/// cache knows two children after one removal in this many.
const LOOK_AFTER_ONE_IN: u64 = 16;

/// A node of which nothing changes any more.
#[derive(Debug, PartialEq)]
pub(super) struct Frozen {
    header: Header,
    /// Slots that lead somewhere, thawed.
    live: Vec<Slot>,
}

/// Memory allocated in advance for a copy of a node.
struct ReservedNode<'t, V: Verbs> {
    nodes: NewNodes<'t, V>,
    at: Child,
    node_type: u8,
}

/// The content that takes the place of a frozen node.
#[derive(Debug, PartialEq)]
enum Replacement {
    /// This slot: nothing, or the only child, a leaf.
    Slot(Slot),
    /// The child of the only slot, which is an inner node, with the bytes that lead there, if they fit into its header.
    Merged { child: Child, node_type: u8, symbol: Symbol },
    /// A node of that type with the same slots.
    Copy(u8),
}

/// Decides what takes the place of a node to which `symbol` leads.
fn replacement(frozen: &Frozen, symbol: Symbol, type_for: impl Fn(usize) -> u8) -> Replacement {
    match frozen.live[..] {
        [] => Replacement::Slot(Slot::tombstone(symbol)),
        [only] if only.is_leaf() => {
            Replacement::Slot(Slot::leaf(symbol, only.child().expect("it is live"), only.class()))
        }
        [only] => Replacement::Merged {
            child: only.child().expect("it is live"),
            node_type: only.class(),
            symbol: only.symbol(),
        },
        // One more than there are, so that the node need not move again at once.
        _ => Replacement::Copy(type_for((frozen.live.len() + 1).min(SYMBOLS))),
    }
}

/// Yields the header of a node that takes over the prefix of the one above it, if it fits.
fn merged(above: &Header, symbol: Symbol, below: &Header) -> Option<Header> {
    let Symbol::Byte(byte) = symbol else { return None };
    let below = below.from_depth(above.position() + 1);
    if usize::from(below.depth) != above.position() + 1 {
        return None;
    }
    let mut prefix: SmallVec<[u8; 16]> = SmallVec::from_slice(above.prefix());
    prefix.push(byte);
    prefix.extend_from_slice(below.prefix());
    (prefix.len() <= PREFIX_BYTES_MAX)
        .then(|| Header::new(usize::from(above.depth), below.node_type, &prefix))
}

/// Frozen nodes that are taken out by a CAS on its way. If its outcome stays unknown, nothing tells whether it or
/// another client's has taken them out.
struct Unsettled<'t, V: Verbs> {
    tree: &'t Tree<V>,
    nodes: NodeList,
}

impl<V: Verbs> Unsettled<'_, V> {
    /// Notes whether the CAS has taken them out.
    fn settle(mut self, by_us: bool) {
        let nodes = std::mem::take(&mut self.nodes);
        if by_us {
            self.tree.retire_nodes(&nodes);
        }
    }
}

impl<V: Verbs> Drop for Unsettled<'_, V> {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|&(node, bytes)| self.tree.allocator.retire_unsettled(node, bytes));
    }
}

impl<V: Verbs> Tree<V> {
    /// Moves the inner node that `snapshot` leads to, which has no room left, as [`Tree::replace`] does.
    ///
    /// # Errors
    /// [`WriteError::Alloc`] if there is no memory for a roomier one: then nothing was begun.
    pub(super) async fn make_room(
        self: &Rc<Self>,
        meter: &Meter,
        snapshot: SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let Some(node_type) = self.types().beyond(snapshot.slot.class()) else {
            let what = "it has a slot for every symbol, and lacks one".into();
            return Err(AccessError::Corrupt { node: snapshot.at(self.shared.entry.root), what }.into());
        };
        tracing::debug!(name: "smart.node.full", node = %snapshot.at(self.shared.entry.root), "a node has to move");
        self.replace_with(meter, snapshot, Some(node_type), budget).await
    }

    /// Replaces the inner node that `snapshot` leads to. Some four round trips; or waits until another client of the
    /// compute node has done so.
    pub(super) async fn replace(
        self: &Rc<Self>,
        meter: &Meter,
        snapshot: SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        self.replace_with(meter, snapshot, None, budget).await
    }

    /// Replaces a node. Memory for one of type `roomier`, if that is asked for, is allocated before anything is frozen:
    /// without memory the freezing would be for nothing.
    async fn replace_with(
        self: &Rc<Self>,
        meter: &Meter,
        snapshot: SlotSnapshot,
        roomier: Option<u8>,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let node = snapshot.slot.child().expect("it was read");
        let Some(_turn) = self.turn_at(node).await else { return Ok(Outcome::Again) };
        let reserved = match roomier {
            None => None,
            Some(node_type) => {
                let mut nodes = self.nodes();
                let at = nodes.add(self.types().node_bytes(node_type)).await?;
                Some(ReservedNode { nodes, at, node_type })
            }
        };
        let held = self.lock_holder(meter, &snapshot).await?;
        let done = self.replace_locked(meter, snapshot, reserved, budget).await;
        self.unlock_holder(meter, held).await?;
        done
    }

    /// Retires inner nodes that no slot of the tree leads to any more.
    pub(super) fn retire_nodes(&self, nodes: &NodeList) {
        nodes.iter().for_each(|&(node, bytes)| self.allocator.retire_cached(node, bytes));
    }

    async fn replace_locked(
        self: &Rc<Self>,
        meter: &Meter,
        mut snapshot: SlotSnapshot,
        reserved: Option<ReservedNode<'_, V>>,
        budget: &mut Budget,
    ) -> Result<Outcome, WriteError> {
        let node = snapshot.slot.child().expect("it was read");
        let (mut frozen, by_us) = self.freeze(meter, node, snapshot.slot.class(), budget).await?;
        if !by_us {
            // The client that froze it completes it, or has done so: a copy would be wasted then.
            let at = snapshot.at(self.shared.entry.root);
            let found = Slot::from_bits(self.read_word(meter, at, budget).await?);
            if found.is_frozen() || !found.leads_as(snapshot.slot) {
                return Ok(self.after_lost_slot(meter, snapshot, found, budget)?);
            }
            snapshot = snapshot.with(found);
        }
        let bytes = |node_type| self.types().node_bytes(node_type) as u64;
        let mut emptied: NodeList = SmallVec::from_slice(&[(node.ptr(), bytes(snapshot.slot.class()))]);
        loop {
            match replacement(&frozen, snapshot.symbol, |slots| self.types().for_slots(slots)) {
                Replacement::Slot(slot) => {
                    tracing::debug!(name: "smart.node.taken_out", node = %node.ptr(), "a node has a child or none");
                    if let Some(leaf) = slot.child() {
                        self.estrange(meter, leaf, budget).await?;
                    }
                    let found = self.take_out(meter, &snapshot, slot, &emptied, budget).await?;
                    return Ok(self.replaced(meter, snapshot, found, slot, &emptied, budget)?);
                }
                Replacement::Copy(node_type) => {
                    let place = self.place_for(node_type, frozen.live.len(), reserved).await?;
                    return Ok(self.put_copy(meter, snapshot, frozen, place, &emptied, budget).await?);
                }
                Replacement::Merged { child, node_type, symbol } => {
                    let below = self.header_of(meter, child, budget).await?;
                    match below.and_then(|below| merged(&frozen.header, symbol, &below)) {
                        Some(header) => {
                            tracing::debug!(name: "smart.node.merged", node = %child.ptr(), "two nodes become one");
                            let (Frozen { live, header: below }, _) =
                                self.freeze(meter, child, node_type, budget).await?;
                            emptied.push((child.ptr(), bytes(node_type)));
                            frozen = Frozen { header: header.with_type(below.node_type), live };
                        }
                        None => {
                            let place = self.place_for(self.types().for_slots(2), 1, reserved).await?;
                            return Ok(self
                                .put_copy(meter, snapshot, frozen, place, &emptied, budget)
                                .await?);
                        }
                    }
                }
            }
        }
    }

    /// Yields memory for a copy of that type with so many slots: the reserved node if it is of that size. If there is
    /// no memory for another, the reserved one is used if the slots fit.
    async fn place_for<'t>(
        &'t self,
        node_type: u8,
        slots: usize,
        reserved: Option<ReservedNode<'t, V>>,
    ) -> Result<ReservedNode<'t, V>, WriteError> {
        let bytes = self.types().node_bytes(node_type);
        match reserved {
            Some(reserved) if self.types().node_bytes(reserved.node_type) == bytes => {
                Ok(ReservedNode { node_type, ..reserved })
            }
            reserved => {
                let mut nodes = self.nodes();
                match (nodes.add(bytes).await, reserved) {
                    (Ok(at), _) => Ok(ReservedNode { nodes, at, node_type }),
                    (Err(error @ WriteError::Alloc(_)), Some(reserved)) => {
                        let fitting = self.types().with_slot(reserved.node_type, slots.saturating_sub(1));
                        fitting.map(|node_type| ReservedNode { node_type, ..reserved }).ok_or(error)
                    }
                    (Err(error), _) => Err(error),
                }
            }
        }
    }

    /// Puts a fresh copy of a frozen node in its place.
    async fn put_copy(
        self: &Rc<Self>,
        meter: &Meter,
        snapshot: SlotSnapshot,
        frozen: Frozen,
        place: ReservedNode<'_, V>,
        emptied: &[(RemotePtr, u64)],
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        let Frozen { header, live } = frozen;
        let ReservedNode { nodes, at: copy, node_type } = place;
        let header = header.with_type(node_type);
        let link = Link::Live(snapshot.holder);
        let mut buf = self.verbs.lease(self.types().node_bytes(node_type));
        build_inner(&mut buf, link, &header, live.iter().copied());
        self.write_new(meter, [(copy, buf)], budget).await?;
        let slot = Slot::inner(snapshot.symbol, copy, node_type);
        let redirect = self.redirect_of(&snapshot, slot, copy, link);
        let old = Old::Nodes(SmallVec::from_slice(emptied));
        let found = match self.publish(meter, nodes, old, &redirect, budget).await? {
            Ok(()) => {
                self.tell_children(meter, &live, emptied, copy);
                slot
            }
            Err((_, found)) => Slot::from_bits(found),
        };
        self.replaced(meter, snapshot, found, slot, emptied, budget)
    }

    /// Goes on after the slot of `snapshot` was to hold `wanted` and holds `found`.
    fn replaced(
        &self,
        meter: &Meter,
        snapshot: SlotSnapshot,
        found: Slot,
        wanted: Slot,
        emptied: &[(RemotePtr, u64)],
        budget: &mut Budget,
    ) -> Result<Outcome, AccessError> {
        for node in emptied.iter().filter_map(|(node, _)| Child::new(*node)) {
            self.cache().invalidate(node.bits());
        }
        if found == wanted {
            tracing::debug!(name: "smart.node.replaced", nodes = emptied.len(), "a frozen node has a replacement");
            self.amend_cache(&snapshot, wanted);
            return Ok(Outcome::On(snapshot.with(wanted)));
        }
        tracing::debug!(name: "smart.replace.lost", "another client has replaced the node, or its parent");
        budget.spend(meter, snapshot.at(self.shared.entry.root), None)?;
        self.after_lost_slot(meter, snapshot, found, budget)
    }

    /// Makes the link of a live leaf name the leaf itself, before the leaf comes back to a slot that led to it before.
    /// A client may still be about to put a node between that slot and the leaf, which succeeds then; without this,
    /// others would have a link that fits their copy of the node that goes now:
    ///
    /// ```text
    ///   A   READ L; CAS L's link: M1 ······················································ CAS P's slot, L: M1
    ///   B                              CAS L's link: M2, CAS P's slot: M2
    ///   C                                                                  replaces M2: CAS P's slot: L
    ///   B   get of what A has put:  M2's copy leads to L, and without this L's link to M2: "absent"
    /// ```
    ///
    /// It costs clients that look for other keys there a READ of the parent.
    async fn estrange(&self, meter: &Meter, leaf: Child, budget: &mut Budget) -> Result<(), AccessError> {
        let unnamed = Link::Live(Parent::Node(leaf)).bits();
        let mut link = self.read_word(meter, leaf.ptr(), budget).await?;
        while link != unnamed && matches!(Link::from_bits(link), Ok(Link::Live(_) | Link::New)) {
            let mut chain = Chain::new(leaf.ptr().server());
            chain.cas(leaf.ptr(), link, unnamed);
            link = match self.verbs.submit(meter, chain).await {
                Ok(done) if done.atomics[0] == link => {
                    tracing::debug!(name: "smart.leaf.estranged", leaf = %leaf.ptr(), "a leaf returns to a slot");
                    return Ok(());
                }
                Ok(done) => done.atomics[0],
                Err(failed) => {
                    budget.post_again(meter, leaf.ptr(), failed)?;
                    self.read_word(meter, leaf.ptr(), budget).await?
                }
            };
            budget.spend(meter, leaf.ptr(), None)?;
        }
        Ok(())
    }

    /// Takes frozen nodes out: redirects the slot of `snapshot` to what every other client would redirect it to. Yields
    /// what it holds then.
    async fn take_out(
        self: &Rc<Self>,
        meter: &Meter,
        snapshot: &SlotSnapshot,
        slot: Slot,
        emptied: &[(RemotePtr, u64)],
        budget: &mut Budget,
    ) -> Result<Slot, AccessError> {
        let at = snapshot.at(self.shared.entry.root);
        let unsettled = Unsettled { tree: self, nodes: SmallVec::from_slice(emptied) };
        let mut has_failed = false;
        loop {
            let mut chain = Chain::new(at.server());
            chain.cas(at, snapshot.slot.bits(), slot.bits());
            match self.verbs.submit(meter, chain).await {
                Ok(done) if done.atomics[0] == snapshot.slot.bits() => {
                    unsettled.settle(true);
                    return Ok(slot);
                }
                Ok(done) => {
                    if !has_failed {
                        unsettled.settle(false);
                    }
                    return Ok(Slot::from_bits(done.atomics[0]));
                }
                Err(failed) => drop(budget.post_again(meter, at, failed)?),
            }
            has_failed = true;
        }
    }

    /// Makes the children's links name their new parent, where they name one of `emptied`. The CASes are not awaited;
    /// if one fails, clients that look for another key there read the parent once more.
    fn tell_children(&self, meter: &Meter, live: &[Slot], emptied: &[(RemotePtr, u64)], parent: Child) {
        let link = Link::Live(Parent::Node(parent));
        for child in live.iter().filter_map(|slot| slot.child()) {
            for old in emptied.iter().filter_map(|(node, _)| Child::new(*node)) {
                let old = Link::Live(Parent::Node(old));
                self.cas_without_awaiting(meter, child.ptr(), old.bits(), link.bits());
            }
        }
    }

    /// Reads the header of an inner node. One round trip.
    async fn header_of(
        &self,
        meter: &Meter,
        node: Child,
        budget: &mut Budget,
    ) -> Result<Option<Header>, AccessError> {
        let word = self.read_word(meter, node.ptr().add(Header::AT), budget).await?;
        Ok(Header::from_bits(word, self.types()).ok())
    }

    /// Freezes all slots of a node, and marks it in its link as being replaced. Two round trips, if no other client
    /// changes it at the same time. Yields also whether there was anything left to freeze.
    pub(super) async fn freeze(
        &self,
        meter: &Meter,
        node: Child,
        node_type: u8,
        budget: &mut Budget,
    ) -> Result<(Frozen, bool), AccessError> {
        let removed = Link::removed(self.verbs.random());
        let mut by_us = false;
        loop {
            let image = self.read(meter, node.ptr(), self.types().node_bytes(node_type), budget).await?;
            let word = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
            let corrupt = |what: String| AccessError::Corrupt { node: node.ptr(), what };
            let header = Header::from_bits(word(Header::AT as usize), self.types())
                .map_err(|rejection| corrupt(rejection.to_string()))?;
            if self.types().room(header.node_type) != self.types().room(node_type) {
                return Err(corrupt("its type is of another room than its parent's slot says".into()));
            }
            let slots: Vec<Slot> = (0..self.types().room(node_type))
                .map(|index| Slot::from_bits(word(slot_at(index) as usize)))
                .collect();
            let live_link = Link::from_bits(word(0)).ok().filter(|link| matches!(link, Link::Live(_)));
            if live_link.is_none() && slots.iter().all(|slot| slot.is_frozen()) {
                let live = slots.iter().filter(|slot| slot.child().is_some()).map(|slot| slot.thawed());
                let live: Vec<Slot> = live.collect();
                return match live.len() <= SYMBOLS {
                    true => Ok((Frozen { header, live }, by_us)),
                    false => Err(corrupt("it has more children than there are symbols".into())),
                };
            }
            tracing::debug!(name: "smart.node.frozen", node = %node.ptr(), "a node is being replaced");
            budget.spend(meter, node.ptr(), None)?;
            by_us = true;
            self.freeze_once(meter, node, live_link.map(|link| (link, removed)), &slots, budget).await?;
        }
    }

    /// Posts one CAS for each word that is not frozen, all at the same time: one round trip. The next READ tells which
    /// succeeded.
    async fn freeze_once(
        &self,
        meter: &Meter,
        node: Child,
        link: Option<(Link, Link)>,
        slots: &[Slot],
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let link = link.map(|(live, removed)| (node.ptr(), live.bits(), removed.bits()));
        let slots = slots.iter().enumerate().filter(|(_, slot)| !slot.is_frozen());
        let slots =
            slots.map(|(index, slot)| (node.ptr().add(slot_at(index)), slot.bits(), slot.frozen().bits()));
        let words: SmallVec<[_; 32]> = link.into_iter().chain(slots).collect();
        meter.round_trip();
        let posted: SmallVec<[V::Submission; 8]> = words
            .chunks(CAS_PER_CHAIN)
            .map(|words| {
                let mut chain = Chain::new(node.ptr().server());
                for &(at, expected, desired) in words {
                    chain.cas(at, expected, desired);
                }
                self.verbs.post(meter, chain)
            })
            .collect();
        for done in posted {
            if let Err(failed) = done.await {
                drop(budget.post_again(meter, node.ptr(), failed)?);
            }
        }
        Ok(())
    }

    /// Takes out the holder of `snapshot`, below which a key was removed, if it is not needed any more, and then what
    /// is not needed above it. In the background, and not every time: a READ for each removal would cost more than it
    /// saves. So a small node is looked at, one of which the cache knows no two children, and some others, which other
    /// compute nodes may have emptied.
    pub(super) fn look_after(self: &Rc<Self>, key: &[u8], snapshot: &SlotSnapshot) {
        let Parent::Node(holder) = snapshot.holder else { return };
        let small = snapshot.holder_type == 1;
        let seems_needless = || self.reader().children_of(holder.bits(), 2).is_some_and(|known| known < 2);
        if !small && !seems_needless() && !self.verbs.random().is_multiple_of(LOOK_AFTER_ONE_IN) {
            return;
        }
        let (tree, key, snapshot) = (Rc::clone(self), key.to_vec(), *snapshot);
        self.verbs.defer(async move {
            if let Err(error) = tree.compress_paths(&key, holder, snapshot.holder_type).await {
                tracing::debug!(name: "smart.compress", %error, "path compression was given up: the tree is whole");
            }
        });
    }

    /// Tells whether a needless node can be taken out: not if its only child is an inner node whose header has no room
    /// for the bytes in between. Long common prefixes have chains of such nodes.
    async fn can_go(
        &self,
        meter: &Meter,
        view: &InnerView<'_>,
        budget: &mut Budget,
    ) -> Result<bool, AccessError> {
        let only = view.claimed().map(|(_, slot)| slot).find(|slot| slot.is_inner());
        let Some((symbol, child)) = only.and_then(|slot| Some((slot.symbol(), slot.child()?))) else {
            return Ok(true);
        };
        let below = self.header_of(meter, child, budget).await?;
        Ok(below.is_some_and(|below| merged(&view.header, symbol, &below).is_some()))
    }

    /// Takes out nodes on the path to `key` that have one child or none.
    async fn compress_paths(
        self: &Rc<Self>,
        key: &[u8],
        holder: Child,
        holder_type: u8,
    ) -> Result<(), WriteError> {
        let meter = Meter::default();
        let mut budget = self.budget();
        let bytes = self.types().read_bytes(holder_type.max(1));
        let image = self.read(&meter, holder.ptr(), bytes, &mut budget).await?;
        if InnerView::new(&image, self.types()).is_ok_and(|view| !is_needless(&view)) {
            return Ok(());
        }
        // Each time one level less, unless another client is at it.
        for _ in 0..=key.len() {
            if !self.take_out_first(&meter, key, &mut budget).await? {
                break;
            }
        }
        Ok(())
    }

    /// Takes out the first node on the path to `key` that has one child or none; yields whether there was one.
    async fn take_out_first(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<bool, WriteError> {
        let mut snapshot = self.read_root(meter, budget).await?;
        while snapshot.slot.is_inner() && self.types().slots(snapshot.slot.class()) > 0 {
            let node = snapshot.slot.child().expect("an inner node has an address");
            let bytes = self.types().read_bytes(snapshot.slot.class());
            let image = self.read(meter, node.ptr(), bytes, budget).await?;
            let Ok(view) = InnerView::new(&image, self.types()) else { return Ok(false) };
            if is_needless(&view) && self.can_go(meter, &view, budget).await? {
                self.replace(meter, snapshot, budget).await?;
                return Ok(true);
            }
            let room = self.types().room(view.header.node_type);
            snapshot = match decide_inner(&view, node, &snapshot, key, room, false) {
                InnerStep::On(on) => on,
                InnerStep::ReadMore => {
                    SlotSnapshot { slot: snapshot.slot.with_class(view.header.node_type), ..snapshot }
                }
                _ => return Ok(false),
            };
        }
        Ok(false)
    }
}

/// Tells whether a node has one child or none.
fn is_needless(view: &InnerView<'_>) -> bool {
    view.is_whole() && view.claimed().filter(|(_, slot)| slot.child().is_some()).take(2).count() < 2
}

#[cfg(test)]
mod tests {
    use farwood_runtime::{RemotePtr, ServerId};

    use super::*;

    fn child(line: u64) -> Child {
        Child::new(RemotePtr::new(ServerId(0), line * 64)).unwrap()
    }

    fn frozen(live: &[Slot]) -> Frozen {
        Frozen { header: Header::new(3, 1, b"ab"), live: live.to_vec() }
    }

    #[test]
    fn what_takes_the_place_of_a_node() {
        let symbol = Symbol::Byte(b'x');
        let leaf = Slot::leaf(Symbol::Byte(1), child(5), 2);
        let inner = Slot::inner(Symbol::Byte(2), child(6), 3);
        let replacement = |live: &[Slot]| replacement(&frozen(live), symbol, |slots| slots as u8 + 10);
        assert_eq!(replacement(&[]), Replacement::Slot(Slot::tombstone(symbol)));
        assert_eq!(replacement(&[leaf]), Replacement::Slot(Slot::leaf(symbol, child(5), 2)));
        let merged = Replacement::Merged { child: child(6), node_type: 3, symbol: Symbol::Byte(2) };
        assert_eq!(replacement(&[inner]), merged);
        assert_eq!(replacement(&[leaf, inner]), Replacement::Copy(13));
    }

    #[test]
    fn headers_merge_if_they_fit() {
        let above = Header::new(3, 1, b"ab");
        let below = Header::new(6, 4, b"de");
        assert_eq!(merged(&above, Symbol::Byte(b'c'), &below), Some(Header::new(3, 4, b"abcde")));
        // Bytes that the node below has taken over from the one above already, or not given up yet.
        let twice = Header::new(4, 4, b"bcde");
        assert_eq!(merged(&above, Symbol::Byte(b'c'), &twice), Some(Header::new(3, 4, b"abcde")));
        let lacking = Header::new(7, 4, b"e");
        assert_eq!(merged(&above, Symbol::Byte(b'c'), &lacking), None);
        let long = Header::new(6, 4, b"defg");
        assert_eq!(merged(&above, Symbol::Byte(b'c'), &long), None);
    }
}
