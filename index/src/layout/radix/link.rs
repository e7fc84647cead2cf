//! The first word of every node: its reverse pointer, and of a leaf also what became of it. One word, so that one CAS
//! both says that a leaf is gone and fails if anything else happened to it.
//!
//! ```text
//!  63    62 61       54 53    49 48 47                                   0
//! +--------+-----------+--------+--+--------------------------------------+
//! | state  | 0         | class  | 0| address                              |
//! +--------+-----------+--------+--+--------------------------------------+
//! ```
//!
//! | state | | address |
//! |---|---|---|
//! | 0 | no node; with an address that is all ones, a leaf that is new in memory of another one | |
//! | 1 | live | the parent; all ones is the root word |
//! | 2 | moved | the leaf that took its place, of that class |
//! | 2 | an inner node (Dolphin's) that is out | what took its place: a node of that type, or of class 31 a leaf |
//! | 3 | removed, or replaced by a node with other slots | who did it: a random number |

use crate::layout::Rejection;

use super::slot::Child;

const STATE_SHIFT: u32 = 62;
const CLASS_SHIFT: u32 = 49;
const CLASS_MASK: u64 = 0x1f;
const ADDRESS_MASK: u64 = (1 << 48) - 1;

/// Parent of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// The catalog's root word.
    Root,
    /// An inner node.
    Node(Child),
}

impl Parent {
    const fn bits(self) -> u64 {
        match self {
            Parent::Root => ADDRESS_MASK,
            Parent::Node(at) => at.bits(),
        }
    }
}

/// A node's first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// A child of that parent. The parent may be out of date: then other children of it are not to be trusted either.
    Live(Parent),
    /// A leaf in memory of another one that was removed or moved. It may not be in the tree yet: only a slot that leads
    /// there now tells that it is. Its link becomes live as soon as it is.
    New,
    /// A leaf that another leaf replaces: the same key, another value. Or an inner node (Dolphin's), with another one,
    /// or a leaf, in its place.
    Moved {
        /// The node or leaf that took its place.
        to: Child,
        /// The size class of the new leaf, or the type of the new inner node; of what took an inner node's place
        /// [`Link::LEAF`] if that is a leaf.
        class: u8,
    },
    /// A leaf whose key was removed, or an inner node that is being replaced, or was. The number tells the client that
    /// did it, if its queue pair broke meanwhile, that it was done.
    Removed {
        /// Random, of 48 bits.
        by: u64,
    },
}

impl Link {
    /// The type that says that a leaf took an inner node's place: no inner node has it.
    pub const LEAF: u8 = CLASS_MASK as u8;

    /// Makes the link of a removal by the client that drew that random number.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Link;
    /// assert_eq!(Link::removed(u64::MAX), Link::Removed { by: (1 << 48) - 1 });
    /// ```
    pub const fn removed(random: u64) -> Self {
        Link::Removed { by: random & ADDRESS_MASK }
    }

    /// Yields the word that is stored.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Link, Parent};
    /// assert_ne!(Link::Live(Parent::Root).bits(), Link::removed(1).bits());
    /// ```
    pub const fn bits(self) -> u64 {
        match self {
            Link::New => ADDRESS_MASK,
            Link::Live(parent) => 1 << STATE_SHIFT | parent.bits(),
            Link::Moved { to, class } => 2 << STATE_SHIFT | (class as u64) << CLASS_SHIFT | to.bits(),
            Link::Removed { by } => 3 << STATE_SHIFT | by & ADDRESS_MASK,
        }
    }

    /// Reads a word.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Link, Parent};
    /// let link = Link::Live(Parent::Root);
    /// assert_eq!(Link::from_bits(link.bits()), Ok(link));
    /// assert!(Link::from_bits(0).is_err());
    /// ```
    ///
    /// # Errors
    /// If no node begins with it.
    pub fn from_bits(bits: u64) -> Result<Self, Rejection> {
        let address = bits & ADDRESS_MASK;
        let class = (bits >> CLASS_SHIFT & CLASS_MASK) as u8;
        match bits >> STATE_SHIFT {
            _ if bits == ADDRESS_MASK => Ok(Link::New),
            1 if address == ADDRESS_MASK => Ok(Link::Live(Parent::Root)),
            1 if address != 0 => Ok(Link::Live(Parent::Node(Child::from_bits(address)))),
            2 if address != 0 && class != 0 => Ok(Link::Moved { to: Child::from_bits(address), class }),
            3 => Ok(Link::Removed { by: address }),
            _ => Err(Rejection::NotANode { found: (bits >> 56) as u8 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::{RemotePtr, ServerId};

    use super::super::NodeTypes;
    use super::*;

    #[test]
    fn no_inner_node_has_the_type_of_a_leaf_in_its_place() {
        for types in [&NodeTypes::LINES, &NodeTypes::TINY] {
            assert!(types.largest() < Link::LEAF && types.slots(Link::LEAF) == 0);
        }
    }

    #[test]
    fn links_come_back() {
        let at = Child::new(RemotePtr::new(ServerId(5), 128)).unwrap();
        for link in [
            Link::New,
            Link::Live(Parent::Root),
            Link::Live(Parent::Node(at)),
            Link::Moved { to: at, class: 1 },
            Link::Moved { to: at, class: Link::LEAF },
            Link::Removed { by: 0 },
            Link::Removed { by: ADDRESS_MASK },
        ] {
            assert_eq!(Link::from_bits(link.bits()), Ok(link));
        }
    }

    #[test]
    fn what_is_no_link_is_rejected() {
        for bits in [
            0,
            1,
            ADDRESS_MASK - 1,
            ADDRESS_MASK | 1 << 48,
            1 << 62,
            2 << 62,
            2 << 62 | 64,
            2 << 62 | 1 << 49,
            0x41,
        ] {
            assert!(matches!(Link::from_bits(bits), Err(Rejection::NotANode { .. })), "{bits:#x}");
        }
    }
}
