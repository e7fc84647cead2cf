//! Codecs of nodes: bytes in, typed values out, and back. No async, no fabric, no clock. Those of the B+tree are here,
//! its leaves that are hopscotch tables in [`hopscotch`], pairs outside of them in `block.rs`, those of the radix tree
//! in [`radix`], and leaves of many keys in ranges, which hang below one, in [`range_leaf`].
//!
//! A node is a sequence of 64-byte lines. The fabric promises that an access to one line is atomic, and nothing
//! about the order or the time in which the lines of one READ or WRITE are accessed (`farwood_runtime::verbs`). So each
//! line carries versions (`version.rs`), and all other bytes form one payload stream (`stream.rs`):
//!
//! ```text
//! leaf    | header | fingerprint of slot 0..n | entry 0 | entry 1 | .. | entry n-1 |    unsorted, some vacant
//! inner   | header | entry 0 | entry 1 | .. | entry count-1 |                           sorted
//! ```
//!
//! Invariants:
//! - Writers hold the node's exclusive lock. A *node write* sends all lines and increments the node version in
//!   each. An *entry write* sends the lines' parts that the [`Patch`] names and leaves the node version alone.
//! - A reader of a mixture of lines from before and after some writes finds the content before, the content afterwards,
//!   or [`Rejection::Torn`]. `leaf/tests/mixing.rs` tries the mixtures. Of a hopscotch leaf this holds for one write.
//! - Bytes that come from the fabric are untrusted: parsing returns a [`Rejection`] and does not panic, whatever
//!   they are. Lengths of images and keys come from our own code, and wrong ones panic.

mod block;
mod header;
pub mod hopscotch;
mod inner;
mod leaf;
pub mod radix;
pub mod range_leaf;
mod slot;
mod slot_order;
mod stream;
mod version;

use std::ops::Range;

use farwood_runtime::RemotePtr;
use smallvec::SmallVec;

pub use block::{BlockFormat, BlockPtr, BlockView};
pub use header::{
    Glimpse, Header, Kind, NodeHeader, Position, freeze, glimpse, heir_of, kind_of, mark_freed, thaw,
};
pub use inner::{InnerLayout, InnerRoute, InnerView};
pub use leaf::{Entry, Found, LeafLayout, LeafLookup, LeafView, tail_first};
pub use slot_order::SlotOrder;
pub use stream::{LINE_BYTES, StreamRange, make_contiguous};
pub use version::{EntryVersion, NodeVersion, bump_node_version, version_behind, wrap_ns};

/// A key or value that had to be copied out of a node, because a line boundary may run through it.
pub type Bytes = SmallVec<[u8; INLINE_BYTES]>;

/// Bytes of the longest key or value that is kept without an allocation.
const INLINE_BYTES: usize = 24;

/// The byte ranges of the image that a writer must send, offsets and lengths multiples of 8: one WRITE each, in
/// this order on one queue pair.
pub type Patch = SmallVec<[Range<usize>; 3]>;

/// Parts of an image, in bytes of it, for a reader that needs no more: offsets and lengths are multiples of 8.
pub type LineRanges = SmallVec<[Range<usize>; 3]>;

/// The longest key that a layout can be made for, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value that a layout can be made for, in bytes.
pub const MAX_VALUE_BYTES: usize = 4096;
/// The largest node, in bytes.
pub const MAX_NODE_BYTES: usize = 64 * 1024;
/// The fewest entries that a leaf must have room for: a split leaves at least one on either side.
pub const MIN_SLOTS: usize = 2;
/// The fewest entries that an inner node must have room for: a split leaves at least two on either side.
/// Nodes with a single child would let a tree grow a level per insert (2 slots, keys that descend: each
/// level's leftmost node is always full, so a split of the leaf goes through all levels).
pub const MIN_INNER_SLOTS: usize = 3;

/// Reason why an image cannot be used. The first four happen in normal operation and are a reason to read again or
/// elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// The lines come from different moments and do not fit together.
    #[error("the lines of the node are from different versions")]
    Torn,
    /// The READ took so long that versions may have wrapped around meanwhile: they prove nothing.
    #[error(
        "the READ took longer than versions vouch for: the fabric is slow, or too much waits in line at a server"
    )]
    Slow,
    /// The node at this address has been freed.
    #[error("the node has been freed")]
    Freed,
    /// The leaf at this address is being taken out of its tree, or put into it.
    #[error("the leaf is frozen: it is being taken out of the tree, or put into it")]
    Frozen,
    /// A node, but not of the expected kind.
    #[error("the node is of kind {found:?}, which was not expected here")]
    WrongKind {
        /// The kind of the node.
        found: Kind,
    },
    /// No node at all.
    #[error("there is no node: its first byte is {found:#04x}")]
    NotANode {
        /// The byte at the place of a node's kind.
        found: u8,
    },
    /// Bytes that no writer leaves.
    #[error("malformed node: {0}")]
    Malformed(#[from] Malformed),
}

/// Fault of a malformed node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// A fence is longer than the index's keys.
    #[error("a fence is longer than a key can be")]
    FenceLength,
    /// The high fence is not above the low fence.
    #[error("the fences are out of order")]
    FenceOrder,
    /// The level does not fit the kind.
    #[error("the level does not fit the kind of node")]
    Level,
    /// An inner node with no entries, or more than it has room for.
    #[error("the number of entries is impossible")]
    Count,
    /// A high fence, but no right neighbour.
    #[error("there is a high fence, but no right neighbour")]
    NoSibling,
    /// A right neighbour where no node can be: nodes begin at lines.
    #[error("the right neighbour's address is within a line")]
    MisalignedSibling,
    /// Keys or separators that no writer leaves in one node.
    #[error("keys or separators are out of order, twice there, or outside the fences")]
    KeyOrder,
    /// The length of the key in a slot.
    #[error("the key length in slot {slot} is impossible")]
    KeyLength {
        /// The slot's index.
        slot: usize,
    },
    /// The length of the value in a slot.
    #[error("the value length in slot {slot} is impossible")]
    ValueLength {
        /// The slot's index.
        slot: usize,
    },
    /// The null pointer as a child.
    #[error("the child in slot {slot} is null")]
    NoChild {
        /// The slot's index.
        slot: usize,
    },
    /// A child where no node can be: nodes begin at lines.
    #[error("the address of the child in slot {slot} is within a line")]
    MisalignedChild {
        /// The slot's index.
        slot: usize,
    },
    /// The slot of a radix tree's node that leads to no kind of node.
    #[error("the slot {word:#x} leads to no kind of node")]
    RadixSlot {
        /// The slot.
        word: u64,
    },
    /// The header of a radix tree's node.
    #[error("no node has the header {word:#x}")]
    RadixHeader {
        /// The header.
        word: u64,
    },
    /// The body word of a radix tree's leaf.
    #[error("no leaf has the lengths in {word:#x}")]
    RadixLeaf {
        /// The body word.
        word: u64,
    },
    /// The word of an entry that leads to no block.
    #[error("no block is at {word:#x}")]
    BlockPointer {
        /// The word.
        word: u64,
    },
    /// The head of a block.
    #[error("no block has the lengths in {word:#x}")]
    Block {
        /// The head.
        word: u64,
    },
    /// The key in a block.
    #[error("the block of the entry in slot {slot} has a key of another fingerprint")]
    BlockKey {
        /// The slot's index.
        slot: usize,
    },
}

/// Reason why there is no layout for the sizes asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The key size is out of range.
    #[error("keys of up to {max_key} bytes are not supported: choose 1 to {MAX_KEY_BYTES}")]
    KeyBytes {
        /// The key size asked for.
        max_key: usize,
    },
    /// The key size is out of range for a radix tree.
    #[error(
        "a radix tree takes keys of up to {} bytes, not {max_key}: choose 1 to that, or an index of another kind",
        radix::MAX_RADIX_KEY_BYTES
    )]
    RadixKeyBytes {
        /// The key size asked for.
        max_key: usize,
    },
    /// The value size is out of range.
    #[error("values of up to {max_value} bytes are not supported: choose 0 to {MAX_VALUE_BYTES}")]
    ValueBytes {
        /// The value size asked for.
        max_value: usize,
    },
    /// The node size is out of range or no multiple of a line.
    #[error(
        "nodes of {node_bytes} bytes are not supported: choose a multiple of {LINE_BYTES} up to {MAX_NODE_BYTES}"
    )]
    NodeBytes {
        /// The node size asked for, or the size that the slots asked for would need.
        node_bytes: usize,
    },
    /// Too few entries fit.
    #[error(
        "a node of {node_bytes} bytes has room for {slots} entries of the chosen key and value sizes and needs \
         {least}: choose nodes of at least {least_node_bytes} bytes, or smaller keys or values"
    )]
    TooFewSlots {
        /// The node size asked for.
        node_bytes: usize,
        /// Entries that fit into it.
        slots: usize,
        /// Entries that it needs.
        least: usize,
        /// The smallest node size that would do.
        least_node_bytes: usize,
    },
    /// The neighbourhood is out of range.
    #[error(
        "neighbourhoods of {entries} entries are not supported: choose 2 to {}",
        hopscotch::HopLayout::REACH_MAX
    )]
    Neighbourhood {
        /// The number asked for.
        entries: usize,
    },
    /// The span is out of range.
    #[error(
        "leaves of {entries} entries are not supported: choose a multiple of the neighbourhood, which is \
         {neighbourhood}, up to {}",
        hopscotch::Vacancy::SLOTS_MAX
    )]
    Span {
        /// The number asked for.
        entries: usize,
        /// The entries of a neighbourhood.
        neighbourhood: usize,
    },
    /// Fewer slots asked for than a node needs.
    #[error("{slots} slots are too few: choose at least {least}")]
    SlotCount {
        /// The number asked for.
        slots: usize,
        /// The least number.
        least: usize,
    },
}

/// Sizing that `LeafLayout` and `InnerLayout` share: the entries of a given size in a number of lines.
#[derive(Clone, Copy)]
struct Sizing {
    header_bytes: usize,
    /// Stream bytes that one slot takes, wherever they lie.
    slot_bytes: usize,
    /// The fewest slots that make a node.
    least: usize,
}

impl Sizing {
    /// Yields the node size for `slots` slots.
    fn node_bytes(self, slots: usize) -> Result<usize, LayoutError> {
        if slots < self.least {
            return Err(LayoutError::SlotCount { slots, least: self.least });
        }
        let payload = slots.saturating_mul(self.slot_bytes).saturating_add(self.header_bytes);
        let node_bytes = payload.div_ceil(stream::PAYLOAD_BYTES).saturating_mul(LINE_BYTES);
        if node_bytes > MAX_NODE_BYTES { Err(LayoutError::NodeBytes { node_bytes }) } else { Ok(node_bytes) }
    }

    /// Counts the slots in a node of `node_bytes`.
    fn slots(self, node_bytes: usize) -> Result<usize, LayoutError> {
        if node_bytes == 0 || !node_bytes.is_multiple_of(LINE_BYTES) || node_bytes > MAX_NODE_BYTES {
            return Err(LayoutError::NodeBytes { node_bytes });
        }
        let payload = node_bytes / LINE_BYTES * stream::PAYLOAD_BYTES;
        let slots = payload.saturating_sub(self.header_bytes) / self.slot_bytes;
        if slots < self.least {
            let least_node_bytes = self.node_bytes(self.least)?;
            return Err(LayoutError::TooFewSlots { node_bytes, slots, least: self.least, least_node_bytes });
        }
        Ok(slots)
    }
}

/// Tells whether a node can be at `address`, as far as its bits tell. Chains take only aligned addresses.
#[inline]
fn is_aligned(address: RemotePtr) -> bool {
    address.to_bits().is_multiple_of(LINE_BYTES as u64)
}

/// Checks the key size against its limits.
fn check_key_bytes(max_key: usize) -> Result<(), LayoutError> {
    if (1..=MAX_KEY_BYTES).contains(&max_key) { Ok(()) } else { Err(LayoutError::KeyBytes { max_key }) }
}
