//! Changes the bytes of a radix tree's nodes on their way from the fabric (`farwood_index::layout::radix`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use farwood_index::layout::radix::{Child, InnerView, LeafFormat, Link, NodeTypes, Parent};
use farwood_index::smart::{Geometry, Types};
use farwood_runtime::RemotePtr;

/// A tree's formats, and the parents that one shard has seen.
#[derive(Clone)]
pub(crate) struct Radix {
    types: &'static NodeTypes,
    leaf: LeafFormat,
    /// By a node's address the one whose slot was last seen to lead there.
    parents: Rc<RefCell<BTreeMap<u64, Child>>>,
}

impl Radix {
    pub(crate) fn new(geometry: Geometry) -> Self {
        let types = match geometry.types {
            Types::Lines => &NodeTypes::LINES,
            Types::Tiny => &NodeTypes::TINY,
        };
        let leaf = LeafFormat::new(geometry.max_key, geometry.max_value).expect("the scenario has a tree");
        Radix { types, leaf, parents: Rc::default() }
    }

    /// Yields the inner node in `image`. Some leaves look like one: they are left alone.
    fn inner<'i>(&self, image: &'i [u8]) -> Option<InnerView<'i>> {
        InnerView::new(image, self.types).ok()
    }

    /// Gives a leaf of different moments the checksum of what is in it.
    pub(crate) fn put_checksum_right(&self, image: &mut [u8]) {
        if self.inner(image).is_some() {
            return;
        }
        let Ok(view) = self.leaf.view(image) else { return };
        let Ok(key_bytes) = view.key().map(<[u8]>::len) else { return };
        let value_bytes = usize::from(u16::from_le_bytes([image[8], image[9]]) & 0x1fff);
        let value_at = 16 + key_bytes;
        let Some(value) = image.get(value_at..value_at + value_bytes).map(<[u8]>::to_vec) else { return };
        self.leaf.set_value(image, key_bytes, &value);
    }

    /// Lets a node that was read at `at` name the parent as whose child it was last seen.
    pub(crate) fn put_link_right(&self, at: RemotePtr, image: &mut [u8]) {
        let Some(at) = Child::new(at) else { return };
        if let Some(inner) = self.inner(image) {
            let mut parents = self.parents.borrow_mut();
            for child in inner.claimed().filter_map(|(_, slot)| slot.child()) {
                parents.insert(child.bits(), at);
            }
        }
        let word = u64::from_le_bytes(image[..8].try_into().expect("eight bytes"));
        if let Some(&parent) = self.parents.borrow().get(&at.bits())
            && let Ok(Link::Live(Parent::Node(_))) = Link::from_bits(word)
        {
            image[..8].copy_from_slice(&Link::Live(Parent::Node(parent)).bits().to_le_bytes());
        }
    }
}

/// READs of one shard that are under way, and what those brought that others have joined.
#[derive(Clone, Default)]
pub(crate) struct Joined(Rc<RefCell<Reads>>);

#[derive(Default)]
struct Reads {
    numbers: u64,
    /// By address and length the READ that others join.
    under_way: BTreeMap<(u64, usize), u64>,
    brought: BTreeMap<u64, Vec<u8>>,
}

/// A READ, and the earlier one that it has joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    place: (u64, usize),
    number: u64,
    joins: Option<u64>,
}

impl Joined {
    /// Begins a READ: it joins the one of the same bytes that is under way.
    pub(crate) fn begin(&self, at: RemotePtr, len: usize) -> Ticket {
        let mut reads = self.0.borrow_mut();
        reads.numbers += 1;
        let (place, number) = ((at.to_bits(), len), reads.numbers);
        let joins = reads.under_way.get(&place).copied();
        if joins.is_none() {
            reads.under_way.insert(place, number);
        }
        Ticket { place, number, joins }
    }

    /// Ends a READ that has brought `image`; its caller gets what the READ brought that it has joined.
    pub(crate) fn end(&self, ticket: Ticket, image: &mut [u8]) {
        let mut reads = self.0.borrow_mut();
        match ticket.joins {
            Some(earlier) => {
                if let Some(brought) = reads.brought.get(&earlier) {
                    image.copy_from_slice(brought);
                }
            }
            None => {
                if reads.under_way.get(&ticket.place) == Some(&ticket.number) {
                    reads.under_way.remove(&ticket.place);
                }
                reads.brought.insert(ticket.number, image.to_vec());
            }
        }
    }
}
