//! Slots as they were read on the way down the tree, and what a node that was read says about a key: pure decisions,
//! without I/O.
//!
//! A [`SlotSnapshot`] is a slot as it was read. It is *fresh* if the slot had that content at some moment since the
//! operation began, in a node that was part of the tree at that moment; one from the cache is not. A conclusion from a
//! fresh snapshot is true at that moment. From another one only this is concluded:
//!
//! - A live leaf with the key is the key's leaf, whichever slot led there. One that is new in memory of another leaf is
//!   not known to be in the tree (`out.rs`).
//! - A slot of an inner node that is not frozen belongs to the tree: its snapshot is fresh.
//! - A node whose link names the holder of the slot is still that holder's child (the *reverse check*, SMART section
//!   4.3): links change before slots do. Then the snapshot may count as fresh. A leaf's memory may be another leaf's by
//!   now, that the same holder has in another slot: so its key has to begin with the bytes that lead to this one.
//!
//! A leaf that a snapshot leads to which is not fresh may even become another one while it is read, line by line: all
//! that is concluded has to be in one line with the link, or the checksum has to fit.

use farwood_runtime::RemotePtr;

use crate::layout::Rejection;
use crate::layout::radix::{Child, InnerView, LeafView, Link, Parent, Slot, Sought, Symbol, slot_at};

/// A slot as it was read, of an inner node or the root word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotSnapshot {
    /// The node that the slot is in.
    pub(super) holder: Parent,
    /// The slot's index there.
    pub(super) index: usize,
    pub(super) slot: Slot,
    /// The symbol that the slot is for, also where it was not claimed yet.
    pub(super) symbol: Symbol,
    /// The index of the key byte behind those that lead here.
    pub(super) next: usize,
    /// The type of the holder, as far as known.
    pub(super) holder_type: u8,
    /// True if the slot had this content at some moment since the operation began.
    pub(super) fresh: bool,
    /// False if a leaf that moved led here, so that the slot itself may lead somewhere else.
    pub(super) direct: bool,
}

impl SlotSnapshot {
    /// Makes a snapshot of the root word.
    pub(super) fn root(slot: Slot, fresh: bool) -> Self {
        let symbol = Symbol::Byte(0);
        SlotSnapshot {
            holder: Parent::Root,
            index: 0,
            slot,
            symbol,
            next: 0,
            holder_type: 0,
            fresh,
            direct: true,
        }
    }

    /// Yields the slot's address.
    pub(super) fn at(&self, root: RemotePtr) -> RemotePtr {
        match self.holder {
            Parent::Root => root,
            Parent::Node(node) => node.ptr().add(slot_at(self.index)),
        }
    }

    /// Makes a fresh snapshot of the slot, which holds `slot` now.
    #[must_use]
    pub(super) fn with(&self, slot: Slot) -> Self {
        SlotSnapshot { slot, fresh: true, direct: true, ..*self }
    }
}

/// The next step after an inner node was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InnerStep {
    /// Go on with this slot, which may lead nowhere.
    On(SlotSnapshot),
    /// The key leaves the node's prefix after so many of its bytes.
    PrefixMismatch {
        /// Bytes of the prefix that the key shares.
        shared: usize,
        /// True if this holds now, and does not come from a snapshot that is out of date.
        certain: bool,
    },
    /// The key has no slot, and the room for slots is full: the node has to move before one is added.
    Full(SlotSnapshot),
    /// The node is being replaced, in its place: a client that wants to change it helps first.
    Replaced,
    /// The node has grown: more of it must be read.
    ReadMore,
    /// The snapshot that led here is out of date.
    Stale,
}

/// Decides what the inner node in `view`, to which `snapshot` leads, says about `key`. A reader may use a node that is
/// being replaced, if it was still in its place when the reader came.
pub(super) fn decide_inner(
    view: &InnerView<'_>,
    at: Child,
    snapshot: &SlotSnapshot,
    key: &[u8],
    room: usize,
    writes: bool,
) -> InnerStep {
    let header = &view.header;
    if usize::from(header.depth) > snapshot.next {
        // A node above took over the bytes between after the snapshot was taken.
        return InnerStep::Stale;
    }
    if header.position() < snapshot.next {
        // No writer lets a node lead upwards: the bytes are damaged, and following them could loop for ever.
        return InnerStep::Stale;
    }
    if view.is_frozen() && (writes || !snapshot.fresh) {
        // If the snapshot may be out of date, the node was perhaps replaced long ago.
        return if snapshot.fresh { InnerStep::Replaced } else { InnerStep::Stale };
    }
    let shared = header.matches(key);
    if shared < header.prefix().len() {
        let certain = snapshot.fresh || view.link == Link::Live(snapshot.holder);
        return InnerStep::PrefixMismatch { shared, certain };
    }
    let position = header.position();
    let symbol = Symbol::of(key, position);
    let on = |index, slot: Slot| SlotSnapshot {
        holder: Parent::Node(at),
        index,
        slot: slot.thawed(),
        symbol,
        next: position + 1,
        holder_type: header.node_type,
        fresh: true,
        direct: true,
    };
    match view.seek(symbol) {
        Sought::Slot { index, slot } => InnerStep::On(on(index, slot)),
        Sought::Vacant { index } if index >= room && writes => InnerStep::Full(on(index, Slot::EMPTY)),
        Sought::Vacant { index } => InnerStep::On(on(index, Slot::EMPTY)),
        Sought::Beyond => InnerStep::ReadMore,
    }
}

/// The next step after a leaf was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeafStep {
    /// It is the key's.
    Here,
    /// It is another key's, whose slot it is.
    Other,
    /// It was the key's, which is removed.
    Gone,
    /// It was the key's: a leaf of that class took its place.
    Moved(Child, u8),
    /// The snapshot that led here is out of date.
    Stale,
    /// No leaf, or not a whole one.
    Not(Rejection),
}

/// Decides what the leaf in `view`, to which `snapshot` leads, says about `key`.
pub(super) fn decide_leaf(
    view: Result<&LeafView<'_>, Rejection>,
    snapshot: &SlotSnapshot,
    key: &[u8],
) -> LeafStep {
    let view = match view {
        Ok(view) => view,
        Err(rejection) => return LeafStep::Not(rejection),
    };
    let is_whole = || snapshot.fresh || view.is_of_one_leaf(key.len());
    let is_below = || view.begins_as(key, snapshot.next) && is_whole();
    match (view.link, view.is_of(key)) {
        (Link::Live(_), true) if is_whole() => LeafStep::Here,
        (Link::New, true) if snapshot.fresh => LeafStep::Here,
        (Link::Live(_) | Link::New, false) if snapshot.fresh => LeafStep::Other,
        (Link::Live(parent), false) if parent == snapshot.holder && is_below() => LeafStep::Other,
        (Link::Removed { .. }, _) if snapshot.fresh => LeafStep::Gone,
        (Link::Moved { to, class }, _) if snapshot.fresh => LeafStep::Moved(to, class),
        _ => LeafStep::Stale,
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;
    use crate::layout::radix::{Header, LeafFormat, NodeTypes, build_inner};

    const TYPES: &NodeTypes = &NodeTypes::TINY;

    fn child(line: u64) -> Child {
        Child::new(RemotePtr::new(ServerId(1), line * 64)).unwrap()
    }

    /// Makes a snapshot of a slot of node 10 that leads to node 20, whose keys begin with "x".
    fn snapshot(fresh: bool) -> SlotSnapshot {
        SlotSnapshot {
            holder: Parent::Node(child(10)),
            index: 0,
            slot: Slot::inner(Symbol::Byte(b'x'), child(20), 2),
            symbol: Symbol::Byte(b'x'),
            next: 1,
            holder_type: 2,
            fresh,
            direct: true,
        }
    }

    fn decide(
        header: Header,
        slots: &[Slot],
        link: Link,
        fresh: bool,
        key: &[u8],
        writes: bool,
    ) -> InnerStep {
        let mut image = vec![0; TYPES.node_bytes(header.node_type)];
        build_inner(&mut image, link, &header, slots.iter().copied());
        let view = InnerView::new(&image, TYPES).unwrap();
        decide_inner(&view, child(20), &snapshot(fresh), key, TYPES.room(header.node_type), writes)
    }

    fn leaf_slot(byte: u8) -> Slot {
        Slot::leaf(Symbol::Byte(byte), child(30), 1)
    }

    #[test]
    fn a_slot_of_a_node_in_the_tree_is_fresh() {
        let header = Header::new(1, 2, b"yz");
        let link = Link::Live(Parent::Node(child(99)));
        for fresh in [false, true] {
            for writes in [false, true] {
                let step = decide(header, &[leaf_slot(b'a')], link, fresh, b"xyza", writes);
                let InnerStep::On(on) = step else { panic!("{step:?}") };
                assert_eq!((on.index, on.slot, on.next, on.fresh), (0, leaf_slot(b'a'), 4, true));
                let step = decide(header, &[leaf_slot(b'a')], link, fresh, b"xyz", writes);
                let InnerStep::On(on) = step else { panic!("{step:?}") };
                assert_eq!((on.index, on.slot, on.symbol), (1, Slot::EMPTY, Symbol::End));
            }
        }
    }

    #[test]
    fn a_prefix_mismatch_is_certain_only_by_a_fresh_snapshot_or_the_reverse_check() {
        let header = Header::new(1, 2, b"yz");
        let (parent, other) = (Link::Live(Parent::Node(child(10))), Link::Live(Parent::Node(child(11))));
        for (link, fresh, certain) in [
            (parent, false, true),
            (other, false, false),
            (other, true, true),
            (Link::removed(1), false, false),
        ] {
            assert_eq!(
                decide(header, &[leaf_slot(b'a')], link, fresh, b"xyb", false),
                InnerStep::PrefixMismatch { shared: 1, certain }
            );
        }
    }

    #[test]
    fn missing_bytes_mean_a_node_in_between() {
        let link = Link::Live(Parent::Node(child(10)));
        for fresh in [false, true] {
            let step = decide(Header::new(2, 2, b"z"), &[leaf_slot(b'a')], link, fresh, b"xyza", false);
            assert_eq!(step, InnerStep::Stale);
        }
        let upwards = decide(Header::new(0, 2, b""), &[leaf_slot(b'a')], link, true, b"xa", false);
        assert_eq!(upwards, InnerStep::Stale);
        // Surplus bytes do no harm.
        let step = decide(Header::new(0, 2, b"xyz"), &[leaf_slot(b'a')], link, true, b"xyza", false);
        assert!(matches!(step, InnerStep::On(SlotSnapshot { next: 4, .. })));
    }

    #[test]
    fn a_frozen_node_is_for_readers_that_came_in_time() {
        let header = Header::new(1, 2, b"");
        let slots = [leaf_slot(b'a').frozen(), Slot::EMPTY.frozen()];
        let link = Link::removed(7);
        for writes in [false, true] {
            assert_eq!(decide(header, &slots, link, false, b"xa", writes), InnerStep::Stale);
        }
        assert_eq!(decide(header, &slots, link, true, b"xa", true), InnerStep::Replaced);
        let step = decide(header, &slots, link, true, b"xa", false);
        assert!(matches!(step, InnerStep::On(on) if on.slot == leaf_slot(b'a')), "{step:?}");
        assert!(
            matches!(decide(header, &slots, link, true, b"xb", false), InnerStep::On(on) if on.index == 1)
        );
    }

    #[test]
    fn a_full_room_is_for_writers_to_leave() {
        let link = Link::Live(Parent::Node(child(10)));
        let full = [leaf_slot(b'a'), leaf_slot(b'b')];
        let header = Header::new(1, 1, b"");
        assert!(matches!(decide(header, &full, link, true, b"xc", true), InnerStep::Full(_)));
        assert!(matches!(decide(header, &full, link, true, b"xc", false), InnerStep::On(_)));
        assert!(matches!(decide(header, &full, link, true, b"xb", true), InnerStep::On(_)));
    }

    /// Makes the image of a leaf, and decides by a snapshot of a slot for keys with "x".
    fn decide_by(link: Link, own: &[u8], key: &[u8], fresh: bool) -> LeafStep {
        let format = LeafFormat::new(80, 8).unwrap();
        let mut image = vec![0; format.leaf_bytes(format.class_for(own.len(), 5))];
        format.build(&mut image, link, own, b"value");
        decide_leaf(format.view(&image).as_ref().map_err(|rejection| *rejection), &snapshot(fresh), key)
    }

    #[test]
    fn every_leaf_by_every_snapshot() {
        use LeafStep::{Gone, Here, Moved, Other, Stale};
        let (parent, other) = (Link::Live(Parent::Node(child(10))), Link::Live(Parent::Node(child(11))));
        let moved = Link::Moved { to: child(40), class: 1 };
        let on = Moved(child(40), 1);
        for (link, key, not_fresh, fresh) in [
            (parent, b"xwn", Here, Here),
            (other, b"xwn", Here, Here),
            (parent, b"xth", Other, Other),
            (other, b"xth", Stale, Other),
            (Link::New, b"xwn", Stale, Here),
            (Link::New, b"xth", Stale, Other),
            (Link::removed(1), b"xwn", Stale, Gone),
            (Link::removed(1), b"xth", Stale, Gone),
            (moved, b"xwn", Stale, on),
            (moved, b"xth", Stale, on),
        ] {
            assert_eq!(decide_by(link, b"xwn", key, false), not_fresh, "{link:?} {key:?}");
            assert_eq!(decide_by(link, b"xwn", key, true), fresh, "{link:?} {key:?}");
        }
        let not = Rejection::NotANode { found: 0 };
        assert_eq!(decide_leaf(Err(not), &snapshot(true), b"xwn"), LeafStep::Not(not));
    }

    /// The memory of a leaf in slot "x" became that of a leaf in another slot of the same node.
    #[test]
    fn a_leaf_of_another_slot_says_nothing() {
        let parent = Link::Live(Parent::Node(child(10)));
        assert_eq!(decide_by(parent, b"y", b"x", false), LeafStep::Stale);
        assert_eq!(decide_by(parent, b"xy", b"x", false), LeafStep::Other);
        let at_end = SlotSnapshot { symbol: Symbol::End, next: 2, ..snapshot(false) };
        let format = LeafFormat::new(8, 8).unwrap();
        let mut image = vec![0; 64];
        format.build(&mut image, parent, b"y", b"value");
        let view = format.view(&image).unwrap();
        assert_eq!(decide_leaf(Ok(&view), &at_end, b"x"), LeafStep::Stale);
    }

    /// A READ by an old slot may have one leaf's first line, and another's second.
    #[test]
    fn a_key_of_two_lines_is_believed_with_its_checksum() {
        let (link, format) = (Link::Live(Parent::Node(child(10))), LeafFormat::new(80, 8).unwrap());
        let (one, two) = ([b'x'; 60], [&[b'x'; 59][..], b"y"].concat());
        let image = |key: &[u8], value: &[u8]| {
            let mut image = vec![0; 128];
            format.build(&mut image, link, key, value);
            image
        };
        let mut torn = image(&two, b"v");
        torn[64..].copy_from_slice(&image(&one, b"w")[64..]);
        for (image, key, not_fresh, fresh) in [
            (&image(&one, b"w"), &one[..], LeafStep::Here, LeafStep::Here),
            (&image(&two, b"v"), &one[..], LeafStep::Other, LeafStep::Other),
            (&torn, &one[..], LeafStep::Stale, LeafStep::Here),
            (&torn, &two[..], LeafStep::Stale, LeafStep::Other),
            (&torn, &one[..40], LeafStep::Other, LeafStep::Other),
        ] {
            let view = format.view(image).unwrap();
            assert_eq!(decide_leaf(Ok(&view), &snapshot(false), key), not_fresh, "{key:?}");
            assert_eq!(decide_leaf(Ok(&view), &snapshot(true), key), fresh, "{key:?}");
        }
    }
}
