//! A slot of an inner node: its key symbol and its child, in the 64 bits that CAS compares (SMART figure 6a). Knows
//! nothing of whole nodes.
//!
//! ```text
//!  63       56 55   54   53    49 48     47                                   0
//! +-----------+----+----+--------+------+--------------------------------------+
//! | key byte  | L  | E  | class  | F    | child: server (10), line (38)        |
//! +-----------+----+----+--------+------+--------------------------------------+
//! ```
//!
//! L: the child is a leaf, and the class its size; otherwise the class is the inner node's type. E: the slot is for
//! keys that end here, and the key byte is 0. F: frozen, the node is being replaced and the slot changes no more. A
//! leaf without an address is a tombstone: the slot is claimed for its symbol, whose key is gone.
//!
//! Nodes begin at lines of 64 bytes, so an address needs 38 bits for 16 TiB a server. The paper has a 7-bit length of
//! leaves, in whose place are E and F.

use std::fmt;

use farwood_cache::radix::slot as cached;
use farwood_runtime::{RemotePtr, ServerId};

use crate::layout::{LINE_BYTES, Malformed};

const KEY_SHIFT: u32 = 56;
const LEAF: u64 = 1 << 55;
const END: u64 = 1 << 54;
const CLASS_SHIFT: u32 = 49;
const CLASS_MASK: u64 = 0x1f;
const FROZEN: u64 = 1 << 48;
const CHILD_MASK: u64 = (1 << 48) - 1;
const SYMBOL_MASK: u64 = 0xff << KEY_SHIFT | END;
const LINE_BITS: u32 = 38;

// The cache reads slots too.
const _: () = assert!(
    KEY_SHIFT == cached::PARTIAL_SHIFT
        && LEAF == cached::LEAF
        && END == cached::END
        && CLASS_SHIFT == cached::CLASS_SHIFT
        && CLASS_MASK + 1 == 1 << cached::CLASS_BITS
        && FROZEN == cached::FROZEN
        && CHILD_MASK == cached::CHILD
        && LINE_BITS == cached::CHILD_SERVER_SHIFT
);

/// The address of a node in 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Child(u64);

impl Child {
    /// Memory servers that can hold a radix tree.
    pub const SERVERS_MAX: usize = 1 << 10;
    /// Bytes of a server's region that can hold nodes of a radix tree.
    pub const REGION_BYTES_MAX: u64 = (1 << LINE_BITS) * LINE_BYTES as u64;

    /// Makes the address as it stands in a slot; `None` if no node of a radix tree can be there.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Child;
    /// # use farwood_runtime::RemotePtr;
    /// assert!(Child::new(RemotePtr::from_bits(64)).is_some());
    /// assert!(Child::new(RemotePtr::from_bits(65)).is_none());
    /// ```
    pub fn new(at: RemotePtr) -> Option<Self> {
        let line = at.offset() / LINE_BYTES as u64;
        let fits = at.offset().is_multiple_of(LINE_BYTES as u64)
            && line < 1 << LINE_BITS
            && usize::from(at.server().0) < Self::SERVERS_MAX;
        fits.then_some(Child(u64::from(at.server().0) << LINE_BITS | line))
    }

    /// Yields the pointer to the node.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Child;
    /// # use farwood_runtime::RemotePtr;
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// assert_eq!(at.ptr(), RemotePtr::from_bits(64));
    /// ```
    pub fn ptr(self) -> RemotePtr {
        let server = ServerId((self.0 >> LINE_BITS) as u16);
        RemotePtr::new(server, (self.0 & ((1 << LINE_BITS) - 1)) * LINE_BYTES as u64)
    }

    /// Yields the 48 bits of the address; 0 is no address, since offset 0 of a region is its header.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Child;
    /// # use farwood_runtime::RemotePtr;
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// assert_eq!(at.bits(), 1, "the first line but one");
    /// ```
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Makes the address with these 48 bits; none for 0.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Child;
    /// # use farwood_runtime::RemotePtr;
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// assert_eq!((Child::of(at.bits()), Child::of(0)), (Some(at), None));
    /// ```
    pub const fn of(bits: u64) -> Option<Self> {
        match bits & CHILD_MASK {
            0 => None,
            bits => Some(Child(bits)),
        }
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Child(bits & CHILD_MASK)
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.ptr(), f)
    }
}

/// Distinction of the slots of a node: the end of a key, or its next byte. Ordered as keys are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Symbol {
    /// The key ends here.
    End,
    /// The key goes on with this byte.
    Byte(u8),
}

impl Symbol {
    /// Yields the symbol of `key` at `position`, which is at most its length.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Symbol;
    /// assert_eq!(Symbol::of(b"anna", 1), Symbol::Byte(b'n'));
    /// assert_eq!(Symbol::of(b"anna", 4), Symbol::End);
    /// ```
    #[inline]
    pub fn of(key: &[u8], position: usize) -> Self {
        key.get(position).map_or(Symbol::End, |&byte| Symbol::Byte(byte))
    }

    #[inline]
    const fn bits(self) -> u64 {
        match self {
            Symbol::End => END,
            Symbol::Byte(byte) => (byte as u64) << KEY_SHIFT,
        }
    }
}

/// A slot's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(u64);

impl Slot {
    /// Not claimed.
    pub const EMPTY: Slot = Slot(0);

    /// Makes a slot that leads to a leaf of that size class.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Child, Slot, Symbol};
    /// # use farwood_runtime::RemotePtr;
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// let slot = Slot::leaf(Symbol::End, at, 1);
    /// assert!(slot.is_claimed() && slot.is_of(Symbol::End));
    /// ```
    pub fn leaf(symbol: Symbol, at: Child, class: u8) -> Self {
        Slot(symbol.bits() | LEAF | u64::from(class) << CLASS_SHIFT | at.bits())
    }

    /// Makes a slot that leads to an inner node of that type.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Child, Slot, Symbol};
    /// # use farwood_runtime::RemotePtr;
    /// let at = Child::new(RemotePtr::from_bits(64)).expect("a node can be there");
    /// let slot = Slot::inner(Symbol::Byte(b'n'), at, 1);
    /// assert!(slot.is_of(Symbol::Byte(b'n')) && !slot.is_of(Symbol::End));
    /// ```
    pub fn inner(symbol: Symbol, at: Child, node_type: u8) -> Self {
        Slot(symbol.bits() | u64::from(node_type) << CLASS_SHIFT | at.bits())
    }

    /// Makes a slot that is claimed and leads nowhere.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Slot, Symbol};
    /// assert!(Slot::tombstone(Symbol::End).is_claimed());
    /// ```
    pub fn tombstone(symbol: Symbol) -> Self {
        Slot(symbol.bits() | LEAF)
    }

    /// Reads a slot's word.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(Slot::from_bits(slot.bits()), slot);
    /// # });
    /// ```
    pub const fn from_bits(bits: u64) -> Self {
        Slot(bits)
    }

    /// Yields the word that is stored.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(Slot::EMPTY.bits(), 0);
    /// assert_eq!(slot.bits() >> 56, u64::from(b'a'));
    /// # });
    /// ```
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Tells whether the slot was claimed for a symbol. A frozen one may not have been.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.is_claimed() && !Slot::EMPTY.is_claimed());
    /// # });
    /// ```
    #[inline]
    pub const fn is_claimed(self) -> bool {
        self.0 & !FROZEN != 0
    }

    /// Tells whether the slot's node is being replaced.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(!slot.is_frozen() && slot.frozen().is_frozen());
    /// # });
    /// ```
    #[inline]
    pub const fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Yields the slot, frozen.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.frozen().is_frozen() && slot.frozen().is_of(Symbol::Byte(b'a')));
    /// # });
    /// ```
    pub const fn frozen(self) -> Self {
        Slot(self.0 | FROZEN)
    }

    /// Yields the slot, not frozen.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(slot.frozen().thawed(), slot);
    /// # });
    /// ```
    pub const fn thawed(self) -> Self {
        Slot(self.0 & !FROZEN)
    }

    /// Tells whether the slot was claimed for `symbol`.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.is_of(Symbol::Byte(b'a')) && !slot.is_of(Symbol::End));
    /// # });
    /// ```
    #[inline]
    pub const fn is_of(self, symbol: Symbol) -> bool {
        self.is_claimed() && self.0 & SYMBOL_MASK == symbol.bits()
    }

    /// Yields the symbol that it was claimed for.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(slot.symbol(), Symbol::Byte(b'a'));
    /// # });
    /// ```
    pub const fn symbol(self) -> Symbol {
        match self.0 & END {
            0 => Symbol::Byte((self.0 >> KEY_SHIFT) as u8),
            _ => Symbol::End,
        }
    }

    /// Tells whether the slot leads to a leaf.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.is_leaf() && !Slot::tombstone(Symbol::End).is_leaf());
    /// # });
    /// ```
    #[inline]
    pub const fn is_leaf(self) -> bool {
        self.0 & LEAF != 0 && self.0 & CHILD_MASK != 0
    }

    /// Tells whether the slot leads to an inner node.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(!slot.is_inner());
    /// # });
    /// ```
    #[inline]
    pub const fn is_inner(self) -> bool {
        self.0 & LEAF == 0 && self.0 & CHILD_MASK != 0
    }

    /// Yields the size class of the leaf, or the type of the inner node.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(slot.class(), 1);
    /// # });
    /// ```
    #[inline]
    pub const fn class(self) -> u8 {
        (self.0 >> CLASS_SHIFT & CLASS_MASK) as u8
    }

    /// Yields the slot with another class.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert_eq!(slot.with_class(3).class(), 3);
    /// # });
    /// ```
    #[must_use]
    pub const fn with_class(self, class: u8) -> Self {
        Slot(self.0 & !(CLASS_MASK << CLASS_SHIFT) | (class as u64) << CLASS_SHIFT)
    }

    /// Yields the child that the slot leads to, if any.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.child().is_some());
    /// assert_eq!(Slot::tombstone(Symbol::End).child(), None);
    /// # });
    /// ```
    #[inline]
    pub const fn child(self) -> Option<Child> {
        match self.0 & CHILD_MASK {
            0 => None,
            bits => Some(Child(bits)),
        }
    }

    /// Tells whether the slot leads to the same node as `other`, whatever type each gives for it.
    ///
    /// ```
    /// # farwood_doctest::radix_slot!(|slot| {
    /// assert!(slot.leads_as(slot.with_class(3)) && !slot.leads_as(Slot::EMPTY));
    /// # });
    /// ```
    pub const fn leads_as(self, other: Slot) -> bool {
        const SAME: u64 = CHILD_MASK | LEAF;
        self.0 & SAME == other.0 & SAME
    }

    /// Checks that a claimed slot is one that a writer leaves: of a leaf, of an inner node of a known type, or a
    /// tombstone.
    pub(super) const fn check(self, types: u8) -> Result<(), Malformed> {
        let class = self.class();
        let leads = self.0 & CHILD_MASK != 0;
        let whole = match self.0 & LEAF {
            0 => leads && class >= 1 && class <= types,
            _ => leads == (class >= 1),
        };
        // Behind its end a key has no bytes that an inner node could be about.
        let end = self.0 & END == 0 || self.0 >> KEY_SHIFT == 0 && self.0 & LEAF != 0;
        if whole && end { Ok(()) } else { Err(Malformed::RadixSlot { word: self.0 }) }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frozen = if self.is_frozen() { " frozen" } else { "" };
        match (self.child(), self.is_claimed()) {
            (_, false) => write!(f, "vacant{frozen}"),
            (None, true) => write!(f, "{:?} -> tombstone{frozen}", self.symbol()),
            (Some(at), true) => {
                let kind = if self.is_leaf() { "leaf" } else { "inner" };
                write!(f, "{:?} -> {kind} {at:?} of class {}{frozen}", self.symbol(), self.class())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: [Symbol; 5] =
        [Symbol::End, Symbol::Byte(0), Symbol::Byte(1), Symbol::Byte(0x80), Symbol::Byte(255)];

    fn child() -> Child {
        Child::new(RemotePtr::new(ServerId(1023), Child::REGION_BYTES_MAX - 64)).unwrap()
    }

    #[test]
    fn addresses_come_back() {
        for (server, offset) in [(0, 64), (1, 4096), (1023, Child::REGION_BYTES_MAX - 64)] {
            let at = RemotePtr::new(ServerId(server), offset);
            assert_eq!(Child::new(at).map(Child::ptr), Some(at));
        }
        for (server, offset) in [(0, 8), (1024, 64), (0, Child::REGION_BYTES_MAX)] {
            assert_eq!(Child::new(RemotePtr::new(ServerId(server), offset)), None);
        }
    }

    #[test]
    fn every_part_of_a_slot_comes_back() {
        for symbol in SYMBOLS {
            for class in 1..=31 {
                let (leaf, inner) = (Slot::leaf(symbol, child(), class), Slot::inner(symbol, child(), class));
                for slot in [leaf, inner] {
                    assert_eq!((slot.symbol(), slot.class(), slot.child()), (symbol, class, Some(child())));
                    assert!(slot.is_claimed() && !slot.is_frozen() && slot.frozen().is_frozen());
                    assert_eq!(slot.frozen().thawed(), slot);
                    assert_eq!(slot.with_class(7).class(), 7);
                    assert!(slot.leads_as(slot.with_class(3).frozen()));
                    assert_eq!(slot.check(31).is_ok(), slot.is_leaf() || symbol != Symbol::End);
                }
                assert!(leaf.is_leaf() && !leaf.is_inner() && inner.is_inner() && !inner.is_leaf());
                assert!(!leaf.leads_as(inner));
                assert!(inner.check(class - 1).is_err());
            }
        }
    }

    #[test]
    fn slots_are_of_one_symbol() {
        for a in SYMBOLS {
            for b in SYMBOLS {
                assert_eq!(Slot::tombstone(a).is_of(b), a == b);
                assert_eq!(Slot::leaf(a, child(), 1).frozen().is_of(b), a == b);
            }
            assert!(!Slot::EMPTY.is_of(a) && !Slot::EMPTY.frozen().is_of(a));
        }
        assert!(SYMBOLS.is_sorted());
    }

    #[test]
    fn tombstones_are_claimed_and_lead_nowhere() {
        for symbol in SYMBOLS {
            let slot = Slot::tombstone(symbol);
            assert!(slot.is_claimed() && !slot.is_leaf() && !slot.is_inner());
            assert_eq!((slot.child(), slot.check(31)), (None, Ok(())));
        }
        assert!(!Slot::EMPTY.is_claimed() && !Slot::EMPTY.frozen().is_claimed());
        assert!(Slot::EMPTY.frozen() != Slot::EMPTY);
    }
}
