//! Codecs of the radix tree's nodes (SMART section 4.1.1): bytes in, typed values out, and back. No async, no fabric,
//! no clock.
//!
//! ```text
//! inner   | link | header | slot 0 | slot 1 | .. | slot room-1 |       words of 8 bytes (`inner.rs`, `slot.rs`)
//! leaf    | link | body word | key | value | 0.. | lock |              (`leaf.rs`)
//! ```
//!
//! Invariants, which all writers keep:
//! - Every word of an inner node changes by CAS alone, after the node was published. Slots are claimed in order, for
//!   one symbol each, and stay claimed for it: so a symbol has at most one slot, and a reader of all slots up to the
//!   first that is not claimed knows whether a symbol is there.
//! - A node's *position*, the key byte that its slots are about, and the key bytes before it never change; nor does the
//!   key of a leaf, as long as it is in the tree. Addresses of leaves are used again for leaves of the same size, by
//!   SMART; those of its inner nodes when no cache leads there any more.
//! - The link of a node leads to its parent. Before a slot that leads to a node is changed to lead elsewhere, the
//!   node's link is changed: a leaf or inner node whose link names the parent that it was reached from is still that
//!   parent's child.
//! - Bytes that come from the fabric are untrusted: parsing returns a [`super::Rejection`] and does not panic.

mod inner;
mod leaf;
mod link;
mod slot;
mod types;

pub use inner::{Header, InnerView, PREFIX_BYTES_MAX, Sought, build_inner, slot_at};
pub use leaf::{LeafFormat, LeafView};
pub use link::{Link, Parent};
pub use slot::{Child, Slot, Symbol};
pub use types::NodeTypes;

/// The longest key of a radix tree, in bytes: positions have one byte.
pub const MAX_RADIX_KEY_BYTES: usize = 255;

/// Yields the word of eight bytes at `at`; the caller has checked the length.
fn word_at(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"))
}
