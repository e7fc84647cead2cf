//! The header of every node: what it is, which keys it answers for, where its right neighbour is.
//!
//! ```text
//! stream  0     1      2         4              8               16         18          20        20+K       20+2K
//!        +-----+------+---------+--------------+---------------+----------+-----------+---------+-----------+
//!        |kind |level | count   | incarnation  | sibling       | low len  | high len  | low     | high      |
//!        |u8   |u8    | u16     | u32          | u64, 0 = none | u16      | u16       | K bytes | K bytes   |
//!        +-----+------+---------+--------------+---------------+----------+-----------+---------+-----------+
//! ```
//!
//! Little-endian; siblings are at multiples of 64. The node answers for the keys `low <= key < high`; a high length
//! of 0xFFFF is plus infinity, an empty low fence is minus infinity. `count` is the number of entries of an inner
//! node, 0 in a leaf. The first 20 bytes lie in line 0, so they are never torn among themselves; that is why a node
//! can be marked as frozen by one aligned word, and as freed by one WRITE. This file does not know what follows the
//! header.

use std::cmp::Ordering;
use std::ops::Range;

use farwood_runtime::RemotePtr;

use super::stream::{self, LINE_BYTES, StreamRange};
use super::version::{self, NodeVersion};
use super::{Bytes, Malformed, Rejection, is_aligned};

/// Stream offset of the low fence: the bytes before it are all in line 0.
const FENCES: usize = 20;
/// Stream offset of the right neighbour.
const SIBLING: usize = 8;
const UNBOUNDED: u16 = u16::MAX;
const _: () = assert!(FENCES <= stream::PAYLOAD_BYTES);

/// Kinds of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A node that holds keys and values.
    Leaf,
    /// A node that holds separators and children.
    Inner,
}

// Bytes that zeroed, text-filled or otherwise unrelated memory is unlikely to hold.
pub(super) const LEAF: u8 = 0xA7;
const INNER: u8 = 0xB9;
const FREED: u8 = 0xDE;
/// The byte of a node that is whole, and that is being taken out of its tree or put into it.
pub(super) const FROZEN: u8 = 0xC5;

impl Kind {
    const fn to_byte(self) -> u8 {
        match self {
            Kind::Leaf => LEAF,
            Kind::Inner => INNER,
        }
    }
}

/// Reads which kind of node `image` claims to be, for a node whose kind the way to it does not tell (a root).
///
/// ```
/// # farwood_doctest::inner!(|layout, image| {
/// assert_eq!(kind_of(&image)?, Kind::Inner);
/// assert_eq!(kind_of(&[0; 64]), Err(Rejection::NotANode { found: 0 }));
/// # });
/// ```
///
/// # Errors
/// [`Rejection::Freed`], [`Rejection::Frozen`] or [`Rejection::NotANode`].
pub fn kind_of(image: &[u8]) -> Result<Kind, Rejection> {
    kind_of_byte(field::<1>(first_line(image), 0)[0])
}

/// Reads a node's kind from the byte that is its place.
pub(super) fn kind_of_byte(byte: u8) -> Result<Kind, Rejection> {
    match byte {
        LEAF => Ok(Kind::Leaf),
        INNER => Ok(Kind::Inner),
        FREED => Err(Rejection::Freed),
        FROZEN => Err(Rejection::Frozen),
        found => Err(Rejection::NotANode { found }),
    }
}

/// Content of line 0 of a node. A line is never torn, so this holds even if a writer has written only a part of the
/// node; the other lines may be older or newer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Glimpse {
    /// The kind of the node.
    pub kind: Kind,
    /// Distance from the leaves.
    pub level: u8,
    /// The right neighbour, [`RemotePtr::NULL`] for none.
    pub sibling: RemotePtr,
}

/// Reads line 0 of `image`, which has that at least.
///
/// ```
/// # farwood_doctest::inner!(|layout, image| {
/// assert_eq!(glimpse(&image[..64])?.level, 1);
/// # });
/// ```
///
/// # Errors
/// As [`kind_of`].
pub fn glimpse(image: &[u8]) -> Result<Glimpse, Rejection> {
    let kind = kind_of(image)?;
    let line = first_line(image);
    let sibling = RemotePtr::from_bits(u64::from_le_bytes(field(line, SIBLING)));
    Ok(Glimpse { kind, level: field::<1>(line, 1)[0], sibling })
}

/// Marks a node as frozen: every later parse is rejected with [`Rejection::Frozen`]. Returns the bytes of the image
/// that a WRITE must send: one word of line 0, which every reader looks at first; so versions may stay as they are.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// assert_eq!(freeze(&mut image), 0..8);
/// assert!(matches!(layout.view(&image), Err(Rejection::Frozen)));
/// # });
/// ```
pub fn freeze(image: &mut [u8]) -> Range<usize> {
    set_kind(image, FROZEN)
}

/// Makes a node of one that is frozen or freed, whose image has all else that it had before: its level tells the kind.
/// Returns the bytes of the image that a WRITE must send.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// freeze(&mut image);
/// assert_eq!(thaw(&mut image), 0..8);
/// assert!(layout.view(&image).is_ok());
/// # });
/// ```
pub fn thaw(image: &mut [u8]) -> Range<usize> {
    let level = field::<1>(first_line(image), 1)[0];
    set_kind(image, if level == 0 { LEAF } else { INNER })
}

/// Marks a node as freed: every later parse is rejected with [`Rejection::Freed`]. `heir` has its keys, and takes the
/// place of the right neighbour; [`RemotePtr::NULL`] names none. Returns the bytes of the image that a WRITE must send.
/// They lie in line 0, which every reader looks at first; so versions may stay as they are.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// let left = RemotePtr::from_bits(1280);
/// assert_eq!(mark_freed(&mut image, left), 0..24);
/// assert!(matches!(layout.view(&image), Err(Rejection::Freed)));
/// assert_eq!(heir_of(&image), Some(left));
/// # });
/// ```
pub fn mark_freed(image: &mut [u8], heir: RemotePtr) -> Range<usize> {
    stream::write(image, 0, &[FREED]);
    stream::write(image, SIBLING, &heir.to_bits().to_le_bytes());
    StreamRange::new(0, SIBLING + 8).write_range()
}

/// Yields the node that had the keys of a freed one when it was freed; none if that names none, or the image's first
/// line is of no freed node.
///
/// ```
/// # farwood_doctest::leaf!(|layout, image| {
/// assert_eq!(heir_of(&image), None);
/// # });
/// ```
pub fn heir_of(image: &[u8]) -> Option<RemotePtr> {
    let line = first_line(image);
    let heir = RemotePtr::from_bits(u64::from_le_bytes(field(line, SIBLING)));
    (field::<1>(line, 0)[0] == FREED && !heir.is_null() && is_aligned(heir)).then_some(heir)
}

fn set_kind(image: &mut [u8], kind: u8) -> Range<usize> {
    stream::write(image, 0, &[kind]);
    StreamRange::new(0, 1).write_range()
}

/// The fields of a new node's header.
#[derive(Clone, Copy, Debug)]
pub struct NodeHeader<'a> {
    /// Distance from the leaves: 0 for a leaf, at least 1 for an inner node.
    pub level: u8,
    /// The smallest key that the node answers for; empty is minus infinity.
    pub low: &'a [u8],
    /// The smallest key beyond the node; `None` is plus infinity.
    pub high: Option<&'a [u8]>,
    /// The right neighbour at the same level, [`RemotePtr::NULL`] for none.
    pub sibling: RemotePtr,
    /// Identity of this use of the address.
    pub incarnation: u32,
    /// The version of this image, in all of its lines. An image that replaces another at the same address takes
    /// that one's version's [`NodeVersion::next`].
    pub node_version: NodeVersion,
}

/// Place of a key relative to a node's fences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The node answers for it.
    Here,
    /// At or beyond the high fence.
    Right,
    /// Below the low fence.
    Left,
}

/// The header of a node that is whole: all lines of the image carry the same node version.
#[derive(Clone, Copy)]
pub struct Header<'a> {
    image: &'a [u8],
    line: &'a [u8; LINE_BYTES],
    low: StreamRange,
    high: Option<StreamRange>,
}

impl<'a> Header<'a> {
    /// Counts the stream bytes of a header whose fences have at most `max_key` bytes each.
    pub(super) const fn bytes(max_key: usize) -> usize {
        FENCES + 2 * max_key
    }

    /// Checks all that a lookup relies on: kind, versions of all lines, lengths. The kind goes first, because a freed
    /// node's versions mean nothing.
    #[inline]
    pub(super) fn parse(image: &'a [u8], max_key: usize, kind: Kind) -> Result<Self, Rejection> {
        let line = first_line(image);
        if field::<1>(line, 0)[0] != kind.to_byte() {
            return Err(wrong_kind(line));
        }
        if !version::node_versions_agree(image) {
            return Err(Rejection::Torn);
        }
        let [low, high] = [field(line, 16), field(line, 18)].map(u16::from_le_bytes);
        if usize::from(low) > max_key || (usize::from(high) > max_key && high != UNBOUNDED) {
            return Err(Malformed::FenceLength.into());
        }
        let low = StreamRange::new(FENCES, usize::from(low));
        let high = (high != UNBOUNDED).then(|| StreamRange::new(FENCES + max_key, usize::from(high)));
        Ok(Header { image, line, low, high })
    }

    /// Checks what a lookup does not need: that the level fits the kind and the fences are in order.
    pub(super) fn check(&self, kind: Kind) -> Result<(), Rejection> {
        if (self.level() == 0) != (kind == Kind::Leaf) {
            return Err(Malformed::Level.into());
        }
        // In place: a copy of a long fence would be an allocation in every insert.
        match self.high {
            Some(high) if stream::compare_ranges(self.image, high, self.low) != Ordering::Greater => {
                Err(Malformed::FenceOrder.into())
            }
            _ => Ok(()),
        }
    }

    /// Writes the header with no entries, the rest of the stream being zero, and the version of every line.
    pub(super) fn build(image: &mut [u8], max_key: usize, kind: Kind, header: &NodeHeader<'_>) {
        image.fill(0);
        Self::set(image, max_key, kind, header);
    }

    /// Gives an image another header, and all its lines the version. The number of entries stays.
    pub(super) fn set(image: &mut [u8], max_key: usize, kind: Kind, header: &NodeHeader<'_>) {
        assert_eq!(header.level == 0, kind == Kind::Leaf, "level 0 is the leaves' and theirs only");
        assert!(header.low.len() <= max_key, "a fence is a key");
        assert!(header.high.is_none_or(|high| high.len() <= max_key), "a fence is a key");
        assert!(header.high.is_none_or(|high| header.low < high), "a node answers for some key");
        version::set_node_version(image, header.node_version);
        stream::write(image, 0, &[kind.to_byte(), header.level]);
        stream::write(image, 4, &header.incarnation.to_le_bytes());
        stream::write(image, SIBLING, &header.sibling.to_bits().to_le_bytes());
        stream::write(image, 16, &(header.low.len() as u16).to_le_bytes());
        let high_len = header.high.map_or(UNBOUNDED, |high| high.len() as u16);
        stream::write(image, 18, &high_len.to_le_bytes());
        stream::write(image, FENCES, header.low);
        stream::write(image, FENCES + max_key, header.high.unwrap_or_default());
    }

    /// Sets the number of entries of an inner node.
    pub(super) fn set_count(image: &mut [u8], count: u16) {
        stream::write(image, 2, &count.to_le_bytes());
    }

    /// Yields the distance from the leaves.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().level(), 1);
    /// # });
    /// ```
    pub fn level(&self) -> u8 {
        field::<1>(self.line, 1)[0]
    }

    /// Counts the entries of an inner node.
    pub(super) fn count(&self) -> usize {
        usize::from(u16::from_le_bytes(field(self.line, 2)))
    }

    /// Yields the identity of this use of the address.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().incarnation(), 1);
    /// # });
    /// ```
    pub fn incarnation(&self) -> u32 {
        u32::from_le_bytes(field(self.line, 4))
    }

    /// Yields the right neighbour, [`RemotePtr::NULL`] for none. It is not checked: [`Header::right`] is.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().sibling(), RemotePtr::from_bits(640));
    /// # });
    /// ```
    pub fn sibling(&self) -> RemotePtr {
        RemotePtr::from_bits(u64::from_le_bytes(field(self.line, SIBLING)))
    }

    /// Yields the version that all lines carry.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().node_version(), NodeVersion::new(7));
    /// # });
    /// ```
    pub fn node_version(&self) -> NodeVersion {
        version::node_version(self.image)
    }

    /// Yields the smallest key that the node answers for; empty is minus infinity.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().low()[..], *b"a");
    /// # });
    /// ```
    pub fn low(&self) -> Bytes {
        stream::to_bytes(self.image, self.low)
    }

    /// Yields the smallest key beyond the node; `None` is plus infinity.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().high().as_deref(), Some(&b"m"[..]));
    /// # });
    /// ```
    pub fn high(&self) -> Option<Bytes> {
        self.high.map(|range| stream::to_bytes(self.image, range))
    }

    /// Tells whether the node is the last of its level: it has no high fence.
    pub(super) fn is_last(&self) -> bool {
        self.high.is_none()
    }

    /// Tells where `key` lies relative to the fences.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().position(b"anna"), Position::Here);
    /// assert_eq!(node.header().position(b"zoe"), Position::Right);
    /// # });
    /// ```
    #[inline]
    pub fn position(&self, key: &[u8]) -> Position {
        if stream::compare(self.image, self.low, key) == Ordering::Greater {
            return Position::Left;
        }
        match self.high {
            Some(high) if stream::compare(self.image, high, key) != Ordering::Greater => Position::Right,
            _ => Position::Here,
        }
    }

    /// Yields the right neighbour of a node with a high fence.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let node = layout.view(&image)?;
    /// assert_eq!(node.header().right()?, RemotePtr::from_bits(640));
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Malformed::NoSibling`] if there is none: some node must answer for the keys beyond the fence.
    /// [`Malformed::MisalignedSibling`] if no node can be there.
    pub fn right(&self) -> Result<RemotePtr, Rejection> {
        let sibling = self.sibling();
        if sibling.is_null() {
            Err(Malformed::NoSibling.into())
        } else if !is_aligned(sibling) {
            Err(Malformed::MisalignedSibling.into())
        } else {
            Ok(sibling)
        }
    }
}

#[cold]
#[inline(never)]
fn wrong_kind(line: &[u8; LINE_BYTES]) -> Rejection {
    kind_of(line).map_or_else(|rejection| rejection, |found| Rejection::WrongKind { found })
}

/// Yields line 0 as an array: its fields then need no bounds check. Every layout has at least one line.
#[inline]
fn first_line(image: &[u8]) -> &[u8; LINE_BYTES] {
    image.first_chunk().expect("a node has at least one line")
}

/// Yields `N` bytes from stream offset `offset`, in line 0.
#[inline]
fn field<const N: usize>(line: &[u8; LINE_BYTES], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| line[stream::CONTROL_BYTES + offset + i])
}
