//! The 64-bit slot words of a radix node, as far as the cache understands them. The tree has a codec of its
//! own; it asserts that both agree.
//!
//! ```text
//! 63      56   55    54   53   49    48    47          0
//! | partial | LEAF | END | class | FROZEN |    CHILD    |
//! ```
//!
//! A word of 0 is not claimed. CHILD 0 with LEAF is a tombstone: claimed, but the key is gone.

/// The key byte that the slot is about, in the word's top bits.
pub const PARTIAL_SHIFT: u32 = 56;
/// The child is a leaf.
pub const LEAF: u64 = 1 << 55;
/// The key ends at this node: matches when no key byte is left. The partial is 0 then.
pub const END: u64 = 1 << 54;
/// Where the class begins: the type of the inner node or the size class of the leaf. Opaque here.
pub const CLASS_SHIFT: u32 = 49;
/// Bits of the class.
pub const CLASS_BITS: u32 = 5;
/// A slot that may not be cached: its node is being replaced.
pub const FROZEN: u64 = 1 << 48;
/// The child's address. Opaque here, except that it packs best when it is as [`CHILD_SERVER_SHIFT`] says.
pub const CHILD: u64 = (1 << CHILD_BITS) - 1;
/// Bits of a child.
pub const CHILD_BITS: u32 = 48;
/// Where the server begins in a child's address; what is below is an offset within its memory. Only decides
/// how few bits a copy takes.
pub const CHILD_SERVER_SHIFT: u32 = 38;

/// LEAF, END and class: what the slots of a node mostly have in common.
pub(super) const KIND_BITS: u32 = 7;

const _: () = assert!(LEAF >> CLASS_SHIFT == 1 << (KIND_BITS - 1) && END >> CLASS_SHIFT == 1 << CLASS_BITS);
const _: () = assert!(FROZEN == 1 << (CLASS_SHIFT - 1) && FROZEN == 1 << CHILD_BITS);

#[inline]
pub(super) fn partial(word: u64) -> u8 {
    (word >> PARTIAL_SHIFT) as u8
}

#[inline]
pub(super) fn kind(word: u64) -> u8 {
    (word >> CLASS_SHIFT) as u8 & ((1 << KIND_BITS) - 1)
}

#[inline]
pub(super) fn word(partial: u8, kind: u8, child: u64) -> u64 {
    u64::from(partial) << PARTIAL_SHIFT | u64::from(kind) << CLASS_SHIFT | child
}
