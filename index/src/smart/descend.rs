//! Finding the slot that answers for a key: from the cache, else from the root word; one round trip per inner node.

use farwood_cache::radix::RadixImage;
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::decide::{InnerStep, SlotSnapshot, decide_inner};
use crate::error::AccessError;
use crate::layout::radix::{Child, Header, InnerView, Link, Parent, Slot, Symbol};
use crate::layout::{Malformed, Rejection};
use crate::step::Budget;

/// Attempts of an operation that begin with what the cache knows; later ones begin with the root word.
const CACHED_STARTS: u32 = 3;

/// Where a key belongs.
#[derive(Clone, Copy, Debug)]
pub(super) enum DescentResult {
    /// Its slot leads to this leaf.
    Leaf(SlotSnapshot),
    /// It has no slot, or one that leads nowhere.
    Vacant(SlotSnapshot),
    /// It leaves the prefix of an inner node.
    PrefixMismatch(PrefixMismatch),
    /// It needs one more slot than there is room for in the node that this slot leads to.
    Full(SlotSnapshot),
    /// It belongs below a node that is being replaced, to which this slot leads.
    Replaced(SlotSnapshot),
}

/// An inner node whose prefix a key leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixMismatch {
    /// The slot that leads to the node.
    pub(super) snapshot: SlotSnapshot,
    pub(super) node: Child,
    pub(super) header: Header,
    pub(super) link: Link,
    /// Bytes of the prefix that the key shares.
    pub(super) shared: usize,
    /// True if the key certainly has no other place.
    pub(super) certain: bool,
}

impl<V: Verbs> Tree<V> {
    /// Yields the slot that an operation on `key` begins with. Costs no round trip when the cache knows one.
    #[inline]
    pub(super) async fn begin(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<SlotSnapshot, AccessError> {
        if budget.spent() < CACHED_STARTS
            && let Some(route) = self.reader().find(key)
        {
            let (holder, position) = match Child::of(route.node) {
                None => (Parent::Root, None),
                Some(node) => (Parent::Node(node), Some(route.pos)),
            };
            let symbol = position.map_or(Symbol::Byte(0), |position| Symbol::of(key, position));
            let (index, slot) = match route.slot {
                Some((index, word)) => (index, Slot::from_bits(word)),
                None => (route.claimed, Slot::EMPTY),
            };
            let next = position.map_or(0, |position| position + 1);
            return Ok(SlotSnapshot {
                holder,
                index,
                slot,
                symbol,
                next,
                holder_type: route.class,
                fresh: false,
                direct: true,
            });
        }
        self.read_root(meter, budget).await
    }

    /// Reads the root word. One round trip.
    pub(super) async fn read_root(
        &self,
        meter: &Meter,
        budget: &mut Budget,
    ) -> Result<SlotSnapshot, AccessError> {
        let root = self.shared.entry.root;
        let word = self.read_word(meter, root, budget).await?;
        self.cache().set_root(word);
        Ok(SlotSnapshot::root(Slot::from_bits(word), true))
    }

    /// Reads the slot again after `snapshot` turned out to be out of date: one round trip or two. If its node was
    /// replaced, yields a slot above it.
    pub(super) async fn refresh(
        &self,
        meter: &Meter,
        key: &[u8],
        snapshot: &SlotSnapshot,
        budget: &mut Budget,
    ) -> Result<SlotSnapshot, AccessError> {
        tracing::debug!(name: "smart.snapshot.stale", "a slot is read again");
        let Parent::Node(holder) = snapshot.holder else {
            budget.spend(meter, self.shared.entry.root, None)?;
            return self.read_root(meter, budget).await;
        };
        budget.spend(meter, holder.ptr(), None)?;
        self.cache().invalidate(holder.bits());
        // The slot that leads to the holder is not known, but the key bytes are: all before its position.
        let position = snapshot.next - 1;
        let above = SlotSnapshot { next: position, fresh: false, ..*snapshot };
        let mut node_type = snapshot.holder_type.max(1);
        loop {
            let bytes = self.types().read_bytes(node_type);
            let image = self.read(meter, holder.ptr(), bytes, budget).await?;
            let view = match InnerView::new(&image, self.types()) {
                Ok(view) => view,
                Err(rejection) => {
                    budget.spend(meter, holder.ptr(), Some(rejection))?;
                    return self.read_root(meter, budget).await;
                }
            };
            let room = self.types().room(view.header.node_type);
            match decide_inner(&view, holder, &above, key, room, false) {
                InnerStep::On(on) if on.next == snapshot.next => {
                    self.cache_node(holder, &view);
                    return Ok(on);
                }
                InnerStep::ReadMore => node_type = view.header.node_type,
                _ => {
                    self.cache().invalidate(holder.bits());
                    return self.begin(meter, key, budget).await;
                }
            }
        }
    }

    /// Goes down from `snapshot` to where `key` belongs. An operation that `writes` stops at nodes that are being
    /// replaced.
    pub(super) async fn descend(
        &self,
        meter: &Meter,
        key: &[u8],
        mut snapshot: SlotSnapshot,
        writes: bool,
        budget: &mut Budget,
    ) -> Result<DescentResult, AccessError> {
        loop {
            if !snapshot.slot.is_inner() {
                return Ok(if snapshot.slot.is_leaf() {
                    DescentResult::Leaf(snapshot)
                } else {
                    DescentResult::Vacant(snapshot)
                });
            }
            let node = snapshot.slot.child().expect("an inner node has an address");
            let bytes = self.types().read_bytes(snapshot.slot.class());
            if bytes == self.types().read_bytes(0) {
                let rejection = Malformed::RadixSlot { word: snapshot.slot.bits() }.into();
                budget.spend(meter, snapshot.at(self.shared.entry.root), Some(rejection))?;
                snapshot = self.refresh(meter, key, &snapshot, budget).await?;
                continue;
            }
            let image = self.read(meter, node.ptr(), bytes, budget).await?;
            let view = match InnerView::new(&image, self.types()) {
                Ok(view) => view,
                Err(rejection) => {
                    snapshot = self.rejected(meter, key, &snapshot, rejection, budget).await?;
                    continue;
                }
            };
            let header = view.header;
            if header.node_type > snapshot.slot.class() {
                self.tell_type(meter, &mut snapshot, header.node_type);
            }
            let room = self.types().room(header.node_type);
            match decide_inner(&view, node, &snapshot, key, room, writes) {
                InnerStep::On(on) => {
                    self.cache_node(node, &view);
                    snapshot = on;
                }
                InnerStep::PrefixMismatch { shared, certain } => {
                    self.cache_node(node, &view);
                    return Ok(DescentResult::PrefixMismatch(PrefixMismatch {
                        snapshot,
                        node,
                        header,
                        link: view.link,
                        shared,
                        certain,
                    }));
                }
                InnerStep::Full(_) => return Ok(DescentResult::Full(snapshot)),
                InnerStep::Replaced => return Ok(DescentResult::Replaced(snapshot)),
                InnerStep::ReadMore => snapshot.slot = snapshot.slot.with_class(header.node_type),
                InnerStep::Stale => snapshot = self.refresh(meter, key, &snapshot, budget).await?,
            }
        }
    }

    /// Yields where to go on after what `snapshot` leads to was no node.
    #[cold]
    pub(super) async fn rejected(
        &self,
        meter: &Meter,
        key: &[u8],
        snapshot: &SlotSnapshot,
        rejection: Rejection,
        budget: &mut Budget,
    ) -> Result<SlotSnapshot, AccessError> {
        let node = snapshot.slot.child().map_or(self.shared.entry.root, Child::ptr);
        budget.spend(meter, node, Some(rejection))?;
        self.refresh(meter, key, snapshot, budget).await
    }

    /// Writes the grown type of the node into the slot of `snapshot`, so that others read enough of the node at once,
    /// and into the cache's copy of it: a node of which too little is read is not cached. The CAS is not awaited: if it
    /// fails, the next client that reads the slot repeats it (SMART section 4.1.2, node type switch).
    fn tell_type(&self, meter: &Meter, snapshot: &mut SlotSnapshot, node_type: u8) {
        let slot = snapshot.slot.with_class(node_type);
        if snapshot.fresh {
            self.cas_without_awaiting(
                meter,
                snapshot.at(self.shared.entry.root),
                snapshot.slot.bits(),
                slot.bits(),
            );
        }
        self.amend_cache(snapshot, slot);
        snapshot.slot = slot;
    }

    /// Posts a CAS that saves others a round trip, and that no client waits for (SMART section 4.1.3, unsignalled
    /// verbs).
    pub(super) fn cas_without_awaiting(&self, meter: &Meter, at: RemotePtr, expected: u64, desired: u64) {
        let mut chain = Chain::new(at.server());
        chain.cas(at, expected, desired);
        drop(self.verbs.post(meter, chain));
    }

    /// Offers an inner node to the cache.
    pub(super) fn cache_node(&self, node: Child, view: &InnerView<'_>) {
        if view.is_frozen() || !view.is_whole() {
            return;
        }
        let slots: SmallVec<[u64; 64]> = view.claimed().map(|(_, slot)| slot.bits()).collect();
        let Header { depth, node_type, .. } = view.header;
        let prefix = view.header.prefix();
        self.cache().insert(&RadixImage {
            node: node.bits(),
            class: node_type,
            depth,
            prefix,
            slots: &slots,
        });
    }
}
