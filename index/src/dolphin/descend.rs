//! The way down to a key's leaf: over cached nodes, and from the first one that is not cached by READs.

use farwood_runtime::{Buf, Meter, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::separators::{Separator, Slots, covering, last, leaf_slot, only_leaf};
use crate::error::AccessError;
use crate::layout::Rejection;
use crate::layout::radix::{Child, InnerView, Link, Slot, Symbol};
use crate::step::Budget;

/// Steps over links after which a client looks whether a slot leads far to the left of its key.
const FAR: u32 = 8;

/// A leaf, and what led there.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) leaf: Child,
    /// The node whose slot leads there.
    pub(super) holder: Child,
    /// True if that slot was read by this operation, and what led to its node is the key's own, or was read as well.
    pub(super) is_fresh: bool,
    /// The leaf's separator, if its neighbour's link led there and not that slot.
    pub(super) over: Option<Box<Separator>>,
}

/// The result of a descent.
pub(super) enum Located {
    /// The key belongs into this leaf, or one to its right.
    Leaf(Place),
    /// No leaf is for keys that begin as this one. The next symbol of the root that has one, if there is any.
    Nothing(Option<Symbol>),
}

/// An inner node that was not read yet, as a slot names it.
#[derive(Clone, Copy)]
pub(super) struct Unread {
    pub(super) node: Child,
    pub(super) class: u8,
    /// The node with that slot; none above the root.
    pub(super) above: Option<Above>,
}

/// An inner node with a slot that is gone by.
#[derive(Clone, Copy)]
pub(super) struct Above {
    pub(super) node: Child,
    pub(super) class: u8,
    /// The key byte that it is about.
    pub(super) position: usize,
}

impl Unread {
    /// Yields the node that a slot of this one leads to, which is about the key byte at `position`.
    pub(super) fn below(self, position: usize, slot: Slot) -> Option<Unread> {
        let above = Some(Above { node: self.node, class: self.class, position });
        Some(Unread { node: slot.child()?, class: slot.class(), above })
    }
}

/// An inner node that was read.
pub(super) struct Inner {
    pub(super) position: usize,
    pub(super) class: u8,
    pub(super) slots: Slots,
    /// The one that took its place, if it is out of the tree, or about to be.
    pub(super) successor: Option<Successor>,
}

/// A node or leaf that took the place of an inner node: the slot above is to lead there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Successor {
    /// An inner node of that type, with more room.
    Node(Child, u8),
    /// The only leaf that it led to: it was needless.
    Leaf(Child),
}

impl Successor {
    /// Reads a node's link; none if it is in the tree.
    fn of(link: Link) -> Option<Self> {
        match link {
            Link::Moved { to, class: Link::LEAF } => Some(Successor::Leaf(to)),
            Link::Moved { to, class } => Some(Successor::Node(to, class)),
            _ => None,
        }
    }

    /// Yields the link of the node whose place it took.
    pub(super) fn link(self) -> Link {
        match self {
            Successor::Node(to, class) => Link::Moved { to, class },
            Successor::Leaf(to) => Link::Moved { to, class: Link::LEAF },
        }
    }

    /// Yields the slot of a symbol that leads there.
    pub(super) fn slot(self, symbol: Symbol) -> Slot {
        match self {
            Successor::Node(node, class) => Slot::inner(symbol, node, class),
            Successor::Leaf(leaf) => leaf_slot(symbol, leaf),
        }
    }
}

impl Inner {
    /// Parses an inner node.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn parse<V: Verbs>(tree: &Tree<V>, image: &[u8]) -> Result<Self, Rejection> {
        let view = InnerView::new(image, tree.types())?;
        let slots = view.claimed().map(|(_, slot)| slot).collect();
        let (header, successor) = (view.header, Successor::of(view.link));
        Ok(Inner { position: header.position(), class: header.node_type, slots, successor })
    }

    /// Yields the leaf that can take its place, if it is needless.
    pub(super) fn only_leaf(&self) -> Option<Successor> {
        only_leaf(&self.slots, self.position).map(Successor::Leaf)
    }
}

impl<V: Verbs> Tree<V> {
    /// Finds the leaf for `key`: no round trip if all nodes on the way are cached, else one for each from the first on
    /// that is not.
    pub(super) async fn locate(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        let route = self.reader().find_covering(key);
        let slot = route.and_then(|route| route.slot).map(|(_, word)| Slot::from_bits(word));
        if let (Some(route), Some(slot)) = (route, slot)
            && let Some(node) = slot.child()
        {
            let holder = Child::of(route.node);
            match holder {
                Some(holder) if slot.is_leaf() => {
                    return Ok(Located::Leaf(Place { leaf: node, holder, is_fresh: false, over: None }));
                }
                holder => {
                    let (class, position) = (route.class, route.pos);
                    let above = holder.map(|node| Above { node, class, position });
                    let at = Unread { node, class: slot.class(), above };
                    return self.descend(meter, key, (at, route.is_before), budget).await;
                }
            }
        }
        self.descend_from_root(meter, key, budget).await
    }

    /// Finds the leaf for `key` by READs of all nodes from the root on, which take the place of the cached copies.
    pub(super) async fn descend_from_root(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        match self.read_root(meter, budget).await? {
            Some(root) => self.descend(meter, key, (self.unread_root(root), false), budget).await,
            None => Ok(Located::Nothing(None)),
        }
    }

    /// Goes down from a node on the way to `key`, or to the last leaf below it, which is before.
    async fn descend(
        &self,
        meter: &Meter,
        key: &[u8],
        (mut at, mut is_before): (Unread, bool),
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        let (is_fresh, mut is_above_read) = (!is_before, false);
        loop {
            let inner = self.read_and_cache(meter, at, budget).await?;
            if let Some(successor) = inner.successor {
                budget.spend(meter, at.node.ptr(), None)?;
                if is_above_read {
                    self.suspect_gone(at, successor);
                }
                self.forget_gone(at);
                match successor {
                    Successor::Node(node, class) => at = Unread { node, class, ..at },
                    Successor::Leaf(leaf) => {
                        let (holder, is_fresh) = (at.node, is_fresh && is_above_read);
                        return Ok(Located::Leaf(Place { leaf, holder, is_fresh, over: None }));
                    }
                }
                continue;
            }
            if !is_before && inner.only_leaf().is_some() {
                self.suspect_needless(at, key);
            }
            is_above_read = true;
            let symbol = Symbol::of(key, inner.position);
            let slot = match is_before {
                true => last(&inner.slots),
                false => covering(&inner.slots, symbol, inner.position),
            };
            match slot.and_then(|slot| at.below(inner.position, slot)).zip(slot) {
                Some((Unread { node: leaf, .. }, slot)) if slot.is_leaf() => {
                    return Ok(Located::Leaf(Place { leaf, holder: at.node, is_fresh, over: None }));
                }
                Some((below, slot)) => {
                    is_before |= !slot.is_of(symbol);
                    at = below;
                }
                None if inner.position == 0 => {
                    let behind = inner.slots.iter().map(|slot| slot.symbol()).filter(|other| *other > symbol);
                    return Ok(Located::Nothing(behind.min()));
                }
                None => {
                    return Err(AccessError::corrupt(at.node.ptr(), "it has no slot for the end of keys"));
                }
            }
        }
    }

    /// READs an inner node, of which the slot says what size it has.
    ///
    /// # Errors
    /// If there is none, or one that does not belong below the slot that led there: following it could lead in circles.
    pub(super) async fn read_inner(
        &self,
        meter: &Meter,
        at: Unread,
        budget: &mut Budget,
    ) -> Result<Inner, AccessError> {
        let ptr = at.node.ptr();
        let bytes = self.inner_bytes(at)?;
        let image: Buf = self.read(meter, ptr, bytes, budget).await?;
        self.judge_inner(at, &image)
    }

    /// READs an inner node for the cache, too.
    ///
    /// # Errors
    /// See [`Tree::read_inner`].
    pub(super) async fn read_and_cache(
        &self,
        meter: &Meter,
        at: Unread,
        budget: &mut Budget,
    ) -> Result<Inner, AccessError> {
        let inner = self.read_inner(meter, at, budget).await?;
        self.cache_unmoved(at, &inner);
        Ok(inner)
    }

    /// Offers an inner node to the cache, if none has taken its place.
    pub(super) fn cache_unmoved(&self, at: Unread, inner: &Inner) {
        if inner.successor.is_none() {
            self.cache_node(at, inner);
        }
    }

    /// Yields the cached copy of an inner node, with its slots in the order of their symbols.
    pub(super) fn cached_inner(&self, at: Unread) -> Option<Inner> {
        let (position, words) = self.reader().slots_of(at.node.bits())?;
        let slots = words.into_iter().map(Slot::from_bits).collect();
        let inner = Inner { position, class: at.class, slots, successor: None };
        (position == expected_position(at)).then_some(inner)
    }

    /// Parses the image of an inner node.
    ///
    /// # Errors
    /// See [`Tree::read_inner`].
    pub(super) fn judge_inner(&self, at: Unread, image: &[u8]) -> Result<Inner, AccessError> {
        let inner =
            Inner::parse(self, image).map_err(|rejection| AccessError::corrupt(at.node.ptr(), rejection))?;
        let (expected, corrupt) =
            (expected_position(at), |what| Err(AccessError::corrupt(at.node.ptr(), what)));
        if inner.position != expected {
            return corrupt(format!("it is about key byte {}, not {expected}", inner.position));
        }
        if inner.class != at.class {
            return corrupt(format!("it has the type {}, and a slot gives it {}", inner.class, at.class));
        }
        let mut symbols: SmallVec<[Symbol; 32]> = inner.slots.iter().map(|slot| slot.symbol()).collect();
        symbols.sort_unstable();
        if let Some(twice) = symbols.windows(2).find(|two| two[0] == two[1]) {
            return corrupt(format!("it has two slots for {:?}", twice[0]));
        }
        if let Some(slot) = inner.slots.iter().find(|slot| slot.child().is_none() || slot.is_frozen()) {
            return corrupt(format!("its slot {slot:?} leads nowhere"));
        }
        Ok(inner)
    }

    /// Counts the bytes of an inner node.
    ///
    /// # Errors
    /// If the slot that leads to it names a type that there is not.
    pub(super) fn inner_bytes(&self, at: Unread) -> Result<usize, AccessError> {
        let slots = self.types().slots(at.class);
        if slots == 0 {
            return Err(AccessError::corrupt(
                at.node.ptr(),
                format!("a slot gives it the type {}", at.class),
            ));
        }
        Ok(self.types().node_bytes(at.class))
    }

    /// Drops the copies that have led to an inner node in whose place is something else. The slot above leads to the
    /// old one still, or a cached copy of it does.
    pub(super) fn forget_gone(&self, at: Unread) {
        tracing::debug!(name: "dolphin.node.moved", node = %at.node.ptr(), "something took an inner node's place");
        self.cache().invalidate(at.node.bits());
        if let Some(above) = at.above {
            self.cache().invalidate(above.node.bits());
        }
    }

    /// Goes on after a leaf that ends before `key`, which is the paper's backtracking (section III-B): at the leaf that
    /// was split off last, whose separator it says, or from the deepest node on the way of which there is a copy still.
    /// Without `backtracking` from the root.
    pub(super) async fn go_right(
        &self,
        meter: &Meter,
        key: &[u8],
        from: &Place,
        separator: Separator,
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        let node = from.leaf.ptr();
        budget.spend(meter, node, None)?;
        self.forget(key, from);
        let steps = budget.count_move_right();
        if steps.is_multiple_of(FAR)
            && let Some(past) = Box::pin(self.look_past(meter, key, budget)).await?
            && past.low > separator.key
        {
            return Ok(Located::Leaf(self.believe(past)));
        }
        match way_on(self.techniques.backtracking, from.is_fresh, steps) {
            WayOn::Link => {
                tracing::debug!(name: "dolphin.leaf.right", leaf = %node, "a leaf ends before the key");
                let (leaf, over) = (separator.right, Some(Box::new(separator)));
                Ok(Located::Leaf(Place { leaf, over, ..*from }))
            }
            WayOn::Above => self.locate(meter, key, budget).await,
            WayOn::Root => {
                tracing::debug!(name: "dolphin.leaf.lost", leaf = %node, "a client begins at the root again");
                self.descend_from_root(meter, key, budget).await
            }
        }
    }

    /// Goes on after a leaf that is not the key's, nor on the way to it: what led there is wrong.
    pub(super) async fn look_again(
        &self,
        meter: &Meter,
        key: &[u8],
        from: &Place,
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        budget.spend(meter, from.leaf.ptr(), None)?;
        self.forget(key, from);
        if budget.count_freed() > 1 {
            // It is not a copy that leads there.
            return Box::pin(self.locate_past(meter, key, budget)).await;
        }
        match self.techniques.backtracking {
            true => self.locate(meter, key, budget).await,
            false => self.descend_from_root(meter, key, budget).await,
        }
    }

    /// Drops the cached nodes that may have led to a wrong leaf.
    pub(super) fn forget(&self, key: &[u8], from: &Place) {
        self.reader().forget_before(key);
        self.cache().invalidate(from.holder.bits());
    }
}

/// Yields the key byte that a node is to be about.
pub(super) fn expected_position(at: Unread) -> usize {
    at.above.map_or(0, |above| above.position + 1)
}

/// The way on after a leaf that ends before the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WayOn {
    /// Over its link, to the leaf that was split off from it last.
    Link,
    /// From the deepest node of which there is a copy still.
    Above,
    /// From the root, by READs.
    Root,
}

/// Chooses the way on after the leaf that is the operation's `nth`, from 1 on, to end before the key; `is_fresh` as
/// [`Place`] has it.
fn way_on(backtracking: bool, is_fresh: bool, nth: u32) -> WayOn {
    match (backtracking, nth) {
        // A new copy of the node above may save more.
        (true, 2) => WayOn::Above,
        (true, _) => WayOn::Link,
        // What was just read leads here, so the separator is missing: only the link leads on.
        (false, 2..) if is_fresh => WayOn::Link,
        (false, _) => WayOn::Root,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::radix::Parent;

    #[test]
    fn what_took_a_nodes_place_is_in_its_link_and_in_the_slot_above() {
        let (at, symbol) = (Child::of(7).unwrap(), Symbol::Byte(b'x'));
        for (successor, is_leaf) in [(Successor::Node(at, 3), false), (Successor::Leaf(at), true)] {
            assert_eq!(Successor::of(successor.link()), Some(successor));
            let slot = successor.slot(symbol);
            assert_eq!((slot.is_of(symbol), slot.is_leaf(), slot.child()), (true, is_leaf, Some(at)));
        }
        assert_eq!(Successor::of(Link::Live(Parent::Root)), None);
    }

    #[test]
    fn links_lead_on_and_without_backtracking_the_root() {
        let ways = |backtracking, is_fresh| [1, 2, 3, 9].map(|nth| way_on(backtracking, is_fresh, nth));
        for is_fresh in [false, true] {
            assert_eq!(ways(true, is_fresh), [WayOn::Link, WayOn::Above, WayOn::Link, WayOn::Link]);
        }
        assert_eq!(ways(false, false), [WayOn::Root; 4]);
        assert_eq!(ways(false, true), [WayOn::Root, WayOn::Link, WayOn::Link, WayOn::Link]);
    }
}
