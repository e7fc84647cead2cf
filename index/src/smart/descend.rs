//! Finding the slot that answers for a key: from the cache, else from the root word; one round trip per inner node.

use farwood_cache::radix::RadixImage;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::way::{InnerStep, Way, decide_inner};
use crate::error::IndexError;
use crate::layout::radix::{Child, Header, InnerView, Link, Parent, Slot, Symbol};
use crate::layout::{Malformed, Rejection};
use crate::step::Budget;

/// So often an operation begins with what the cache knows; after that, with the root word.
const CACHED_STARTS: u32 = 3;

/// Where a key belongs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spot {
    /// Its slot leads to this leaf.
    Leaf(Way),
    /// It has no slot, or one that leads nowhere.
    Vacant(Way),
    /// It leaves the prefix of an inner node.
    Fork(Fork),
    /// Its slot would be one more than there is room for in the node that the first way leads to.
    Full(Way),
    /// It belongs below a node that is being replaced, which the way leads to.
    Replaced(Way),
}

/// An inner node whose prefix a key leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fork {
    /// What leads to the node.
    pub(super) way: Way,
    pub(super) node: Child,
    pub(super) header: Header,
    pub(super) link: Link,
    /// Bytes of the prefix that the key shares.
    pub(super) shared: usize,
    /// Whether it is certain that the key has no other place.
    pub(super) certain: bool,
}

impl<V: Verbs> Tree<V> {
    /// The slot that an operation on `key` begins with. Costs no round trip when the cache knows one.
    #[inline]
    pub(super) async fn begin(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Way, IndexError> {
        if budget.spent() < CACHED_STARTS
            && let Some(steer) = self.reader().find(key)
        {
            let (holder, position) = match Child::of(steer.node) {
                None => (Parent::Root, None),
                Some(node) => (Parent::Node(node), Some(steer.pos)),
            };
            let symbol = position.map_or(Symbol::Byte(0), |position| Symbol::of(key, position));
            let (index, slot) = match steer.slot {
                Some((index, word)) => (index, Slot::from_bits(word)),
                None => (steer.claimed, Slot::EMPTY),
            };
            let next = position.map_or(0, |position| position + 1);
            return Ok(Way { holder, index, slot, symbol, next, holder_type: steer.class, fresh: false });
        }
        self.read_root(meter, budget).await
    }

    /// Reads the root word. One round trip.
    pub(super) async fn read_root(&self, meter: &Meter, budget: &mut Budget) -> Result<Way, IndexError> {
        let root = self.shared.entry.root;
        let word = self.read_word(meter, root, budget).await?;
        self.cache().set_root(word);
        Ok(Way::root(Slot::from_bits(word), true))
    }

    /// Reads one word. One round trip.
    pub(super) async fn read_word(
        &self,
        meter: &Meter,
        at: RemotePtr,
        budget: &mut Budget,
    ) -> Result<u64, IndexError> {
        let buf = self.read(meter, at, 8, budget).await?;
        Ok(u64::from_le_bytes(buf[..8].try_into().expect("eight bytes")))
    }

    /// Reads `bytes` bytes: one round trip, and one more for each queue pair that breaks meanwhile.
    #[inline]
    pub(super) async fn read(
        &self,
        meter: &Meter,
        at: RemotePtr,
        bytes: usize,
        budget: &mut Budget,
    ) -> Result<Buf, IndexError> {
        loop {
            match self.verbs.read(meter, at, bytes).await {
                Ok(read) => return Ok(read.into_buf()),
                Err(failed) => drop(budget.post_again(meter, at, failed)?),
            }
        }
    }

    /// The same slot, read now, after it turned out that `way` is out of date: one round trip or two. If its node was
    /// replaced, the way of somebody above.
    pub(super) async fn refresh(
        &self,
        meter: &Meter,
        key: &[u8],
        way: &Way,
        budget: &mut Budget,
    ) -> Result<Way, IndexError> {
        tracing::debug!(name: "smart.way.stale", "a slot is read again");
        let Parent::Node(holder) = way.holder else {
            budget.spend(meter, self.shared.entry.root, None)?;
            return self.read_root(meter, budget).await;
        };
        budget.spend(meter, holder.ptr(), None)?;
        self.cache().invalidate(holder.bits());
        // What leads to the holder is not known, but which key bytes do: all before its position.
        let position = way.next - 1;
        let above = Way { next: position, fresh: false, ..*way };
        let mut node_type = way.holder_type.max(1);
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
                InnerStep::On(on) if on.next == way.next => {
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

    /// Goes down from `way` to where `key` belongs. Who `writes` stops at nodes that are being replaced.
    pub(super) async fn descend(
        &self,
        meter: &Meter,
        key: &[u8],
        mut way: Way,
        writes: bool,
        budget: &mut Budget,
    ) -> Result<Spot, IndexError> {
        loop {
            if !way.slot.is_inner() {
                return Ok(if way.slot.is_leaf() { Spot::Leaf(way) } else { Spot::Vacant(way) });
            }
            let node = way.slot.child().expect("an inner node has an address");
            let bytes = self.types().read_bytes(way.slot.class());
            if bytes == self.types().read_bytes(0) {
                let rejection = Malformed::RadixSlot { word: way.slot.bits() }.into();
                budget.spend(meter, way.at(self.shared.entry.root), Some(rejection))?;
                way = self.refresh(meter, key, &way, budget).await?;
                continue;
            }
            let image = self.read(meter, node.ptr(), bytes, budget).await?;
            let view = match InnerView::new(&image, self.types()) {
                Ok(view) => view,
                Err(rejection) => {
                    way = self.rejected(meter, key, &way, rejection, budget).await?;
                    continue;
                }
            };
            let header = view.header;
            if header.node_type > way.slot.class() {
                self.tell_type(meter, &mut way, header.node_type);
            }
            let room = self.types().room(header.node_type);
            match decide_inner(&view, node, &way, key, room, writes) {
                InnerStep::On(on) => {
                    self.cache_node(node, &view);
                    way = on;
                }
                InnerStep::Fork { shared, certain } => {
                    self.cache_node(node, &view);
                    return Ok(Spot::Fork(Fork { way, node, header, link: view.link, shared, certain }));
                }
                InnerStep::Full(_) => return Ok(Spot::Full(way)),
                InnerStep::Replaced => return Ok(Spot::Replaced(way)),
                InnerStep::ReadMore => way.slot = way.slot.with_class(header.node_type),
                InnerStep::Stale => way = self.refresh(meter, key, &way, budget).await?,
            }
        }
    }

    /// Where to go on after what `way` leads to was no node.
    #[cold]
    pub(super) async fn rejected(
        &self,
        meter: &Meter,
        key: &[u8],
        way: &Way,
        rejection: Rejection,
        budget: &mut Budget,
    ) -> Result<Way, IndexError> {
        let node = way.slot.child().map_or(self.shared.entry.root, Child::ptr);
        budget.spend(meter, node, Some(rejection))?;
        self.refresh(meter, key, way, budget).await
    }

    /// Tells the slot of `way` that its node has grown, so that others read enough of it at once. A CAS that is not
    /// awaited: if it comes to nothing, the next one to come this way tells it (SMART section 4.1.2, node type switch).
    fn tell_type(&self, meter: &Meter, way: &mut Way, node_type: u8) {
        let slot = way.slot.with_class(node_type);
        if way.fresh {
            self.cas_without_awaiting(meter, way.at(self.shared.entry.root), way.slot.bits(), slot.bits());
        }
        way.slot = slot;
    }

    /// A CAS that makes something shorter for others, and that nobody waits for (SMART section 4.1.3, unsignalled
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
