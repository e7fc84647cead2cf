//! Inner nodes: link, header, slots. Pure.
//!
//! ```text
//! offset 0       8        16       24
//!        | link  | header | slot 0 | slot 1 | .. | slot room-1 |
//!
//! header  63      56 55     51 50      48 47                                   0
//!        +----------+---------+----------+--------------------------------------+
//!        | depth    | type    | prefix   | prefix bytes, the first one highest  |
//!        |          |         | length   |                                      |
//!        +----------+---------+----------+--------------------------------------+
//! ```
//!
//! The prefix are the key bytes from `depth` on; the slots are about the byte behind them, the node's position. Depth
//! only grows (a header split moves the prefix's first bytes to a new node above), and so does the type.

use super::link::Link;
use super::slot::{Slot, Symbol};
use super::types::NodeTypes;
use super::word_at;
use crate::layout::{Malformed, Rejection};

/// Prefix bytes in a header. Longer ones take nodes of their own.
pub const PREFIX_BYTES_MAX: usize = 6;

const HEADER_AT: usize = 8;
const SLOTS_AT: usize = 16;
const DEPTH_SHIFT: u32 = 56;
const TYPE_SHIFT: u32 = 51;
const TYPE_MASK: u64 = 0x1f;
const LENGTH_SHIFT: u32 = 48;

/// Tells where the slot with that index is, from the beginning of the node.
///
/// ```
/// # use farwood_index::layout::radix::slot_at;
/// assert_eq!((slot_at(0), slot_at(1)), (16, 24));
/// ```
pub const fn slot_at(index: usize) -> u64 {
    (SLOTS_AT + 8 * index) as u64
}

/// An inner node's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The key byte that the prefix begins with.
    pub depth: u8,
    /// The node's type.
    pub node_type: u8,
    length: u8,
    prefix: [u8; PREFIX_BYTES_MAX],
}

impl Header {
    /// Offset from the beginning of the node.
    pub const AT: u64 = HEADER_AT as u64;

    /// Makes the header of a node for keys that have `prefix`, of [`PREFIX_BYTES_MAX`] bytes at most, from `depth` on.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// let header = Header::new(2, 1, b"na");
    /// assert_eq!((header.depth, header.prefix()), (2, &b"na"[..]));
    /// ```
    pub fn new(depth: usize, node_type: u8, prefix: &[u8]) -> Self {
        let mut bytes = [0; PREFIX_BYTES_MAX];
        bytes[..prefix.len()].copy_from_slice(prefix);
        let depth = u8::try_from(depth).expect("keys have 255 bytes at most");
        Header { depth, node_type, length: prefix.len() as u8, prefix: bytes }
    }

    /// Yields the prefix.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// assert_eq!(Header::new(2, 1, b"na").prefix(), b"na");
    /// ```
    #[inline]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[..usize::from(self.length)]
    }

    /// Yields the key byte that the slots are about.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// assert_eq!(Header::new(2, 1, b"na").position(), 4);
    /// ```
    #[inline]
    pub fn position(&self) -> usize {
        usize::from(self.depth) + usize::from(self.length)
    }

    /// Counts the bytes of the prefix that `key` shares: all of them if it belongs below.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// let header = Header::new(2, 1, b"na");
    /// assert_eq!((header.matches(b"anna"), header.matches(b"annie")), (2, 1));
    /// ```
    #[inline]
    pub fn matches(&self, key: &[u8]) -> usize {
        let rest = key.get(usize::from(self.depth)..).unwrap_or_default();
        self.prefix().iter().zip(rest).take_while(|(own, other)| own == other).count()
    }

    /// Makes the header of the same node without the key bytes before `depth`, which a node above has taken over.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// let header = Header::new(2, 1, b"na").from_depth(3);
    /// assert_eq!((header.depth, header.prefix()), (3, &b"a"[..]));
    /// ```
    pub fn from_depth(&self, depth: usize) -> Self {
        let gone = depth.saturating_sub(usize::from(self.depth)).min(self.prefix().len());
        Header::new(usize::from(self.depth) + gone, self.node_type, &self.prefix()[gone..])
    }

    /// Makes the same header for a node of another type.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// assert_eq!(Header::new(2, 1, b"na").with_type(3).node_type, 3);
    /// ```
    #[must_use]
    pub fn with_type(self, node_type: u8) -> Self {
        Header { node_type, ..self }
    }

    /// Yields the word that is stored.
    ///
    /// ```
    /// # use farwood_index::layout::radix::Header;
    /// assert_eq!(Header::new(2, 1, b"na").bits(), 0x020a_6e61_0000_0000);
    /// ```
    pub fn bits(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes[2..].copy_from_slice(&self.prefix);
        u64::from(self.depth) << DEPTH_SHIFT
            | u64::from(self.node_type) << TYPE_SHIFT
            | u64::from(self.length) << LENGTH_SHIFT
            | u64::from_be_bytes(bytes)
    }

    /// Reads a header's word.
    ///
    /// ```
    /// # use farwood_index::layout::radix::{Header, NodeTypes};
    /// let header = Header::new(2, 1, b"na");
    /// assert_eq!(Header::from_bits(header.bits(), &NodeTypes::LINES), Ok(header));
    /// assert!(Header::from_bits(0, &NodeTypes::LINES).is_err());
    /// ```
    ///
    /// # Errors
    /// If no node of `types` has it.
    pub fn from_bits(bits: u64, types: &NodeTypes) -> Result<Self, Rejection> {
        let malformed = Malformed::RadixHeader { word: bits };
        let node_type = (bits >> TYPE_SHIFT & TYPE_MASK) as u8;
        let length = (bits >> LENGTH_SHIFT & 7) as u8;
        let bytes = bits.to_be_bytes();
        let prefix: [u8; PREFIX_BYTES_MAX] = bytes[2..].try_into().expect("six of eight bytes");
        let header = Header { depth: bytes[0], node_type, length, prefix };
        let whole = usize::from(length) <= PREFIX_BYTES_MAX
            && (1..=types.largest()).contains(&node_type)
            && header.position() <= super::MAX_RADIX_KEY_BYTES
            && prefix[usize::from(length)..].iter().all(|&byte| byte == 0);
        if whole { Ok(header) } else { Err(malformed.into()) }
    }
}

/// Result of seeking a symbol in an inner node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// The slot of the symbol.
    Slot {
        /// The slot's index.
        index: usize,
        /// The slot.
        slot: Slot,
    },
    /// None: the first slot that is not claimed has this index. It may be beyond those in use.
    Vacant {
        /// The slot's index.
        index: usize,
    },
    /// The image holds only the first slots: the node has grown since its type was learnt.
    Beyond,
}

/// An inner node as it was read.
#[derive(Clone, Copy, Debug)]
pub struct InnerView<'a> {
    image: &'a [u8],
    /// Parent.
    pub link: Link,
    /// Header.
    pub header: Header,
    /// Slots in the image that are in use.
    slots: usize,
    whole: bool,
    frozen: bool,
}

impl<'a> InnerView<'a> {
    /// Parses the node in `image`, which is its beginning.
    ///
    /// ```
    /// # farwood_doctest::radix_inner!(|image| {
    /// let node = InnerView::new(&image, &NodeTypes::LINES)?;
    /// assert_eq!((node.header.depth, node.link), (0, Link::Live(Parent::Root)));
    /// # });
    /// ```
    ///
    /// # Errors
    /// If no writer leaves such bytes.
    pub fn new(image: &'a [u8], types: &NodeTypes) -> Result<Self, Rejection> {
        let link = Link::from_bits(word_at(image, 0))?;
        let header = Header::from_bits(word_at(image, HEADER_AT), types)?;
        let (held, used) = ((image.len() - SLOTS_AT) / 8, types.slots(header.node_type));
        let mut view =
            InnerView { image, link, header, slots: held.min(used), whole: held >= used, frozen: false };
        let mut all = 0;
        for index in 0..view.slots {
            let slot = view.slot(index);
            all |= slot.bits();
            if slot.is_claimed() {
                slot.check(types.largest())?;
            }
        }
        view.frozen = Slot::from_bits(all).is_frozen();
        Ok(view)
    }

    /// Tells whether a slot is frozen: the node is being replaced, or has been.
    ///
    /// ```
    /// # farwood_doctest::radix_inner!(|image| {
    /// assert!(!InnerView::new(&image, &NodeTypes::LINES)?.is_frozen());
    /// # });
    /// ```
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Tells whether the image holds all slots that are in use.
    ///
    /// ```
    /// # farwood_doctest::radix_inner!(|image| {
    /// assert!(InnerView::new(&image, &NodeTypes::LINES)?.is_whole());
    /// assert!(!InnerView::new(&image[..32], &NodeTypes::LINES)?.is_whole());
    /// # });
    /// ```
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Yields the slot with that index.
    #[inline]
    fn slot(&self, index: usize) -> Slot {
        Slot::from_bits(word_at(self.image, SLOTS_AT + 8 * index))
    }

    /// Yields the slots in use that are claimed, with their indices, in order. Ends at the first that is not.
    ///
    /// ```
    /// # farwood_doctest::radix_inner!(|image| {
    /// let node = InnerView::new(&image, &NodeTypes::LINES)?;
    /// assert_eq!(node.claimed().count(), 1);
    /// # });
    /// ```
    pub fn claimed(&self) -> impl Iterator<Item = (usize, Slot)> + use<'a> {
        let view = *self;
        (0..view.slots).map(move |index| (index, view.slot(index))).take_while(|(_, slot)| slot.is_claimed())
    }

    /// Looks for the slot of `symbol`.
    ///
    /// ```
    /// # farwood_doctest::radix_inner!(|image| {
    /// let node = InnerView::new(&image, &NodeTypes::LINES)?;
    /// assert!(matches!(node.seek(Symbol::of(b"anna", 0)), Sought::Slot { index: 0, .. }));
    /// assert_eq!(node.seek(Symbol::of(b"berta", 0)), Sought::Vacant { index: 1 });
    /// # });
    /// ```
    #[inline]
    pub fn seek(&self, symbol: Symbol) -> Sought {
        for index in 0..self.slots {
            let slot = self.slot(index);
            if !slot.is_claimed() {
                return Sought::Vacant { index };
            }
            if slot.is_of(symbol) {
                return Sought::Slot { index, slot };
            }
        }
        if self.whole { Sought::Vacant { index: self.slots } } else { Sought::Beyond }
    }
}

/// Makes a new node in `image`, which is as long as the node's memory or as its slots: the rest is zero.
///
/// ```
/// # farwood_doctest::radix_inner!(|image| {
/// build_inner(&mut image, Link::Live(Parent::Root), &Header::new(0, 1, b"an"), []);
/// assert_eq!(InnerView::new(&image, &NodeTypes::LINES)?.header.prefix(), b"an");
/// # });
/// ```
pub fn build_inner(image: &mut [u8], link: Link, header: &Header, slots: impl IntoIterator<Item = Slot>) {
    image.fill(0);
    image[..8].copy_from_slice(&link.bits().to_le_bytes());
    image[HEADER_AT..SLOTS_AT].copy_from_slice(&header.bits().to_le_bytes());
    for (index, slot) in slots.into_iter().enumerate() {
        let at = SLOTS_AT + 8 * index;
        image[at..at + 8].copy_from_slice(&slot.bits().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::{RemotePtr, ServerId};

    use super::super::link::Parent;
    use super::super::slot::Child;
    use super::*;

    const TYPES: &NodeTypes = &NodeTypes::TINY;

    fn leaf(symbol: Symbol) -> Slot {
        Slot::leaf(symbol, Child::new(RemotePtr::new(ServerId(1), 640)).unwrap(), 1)
    }

    fn node(node_type: u8, slots: &[Slot]) -> Vec<u8> {
        let mut image = vec![0xff; TYPES.node_bytes(node_type)];
        let header = Header::new(3, node_type, b"ab");
        build_inner(&mut image, Link::Live(Parent::Root), &header, slots.iter().copied());
        image
    }

    #[test]
    fn headers_come_back() {
        for depth in [0, 1, 249] {
            for length in 0..=6 {
                let header = Header::new(depth, 2, &b"abcdef"[..length]);
                assert_eq!(Header::from_bits(header.bits(), TYPES), Ok(header));
                assert_eq!(header.position(), depth + length);
            }
        }
    }

    #[test]
    fn a_prefix_is_compared_from_its_depth_on() {
        let header = Header::new(2, 1, b"cde");
        for (key, shared) in
            [(&b"abcde"[..], 3), (b"abcdx", 2), (b"abx", 0), (b"abc", 1), (b"a", 0), (b"", 0)]
        {
            assert_eq!(header.matches(key), shared, "{key:?}");
        }
    }

    #[test]
    fn a_header_split_takes_the_first_bytes() {
        let header = Header::new(2, 3, b"cde");
        assert_eq!(header.from_depth(4), Header::new(4, 3, b"e"));
        assert_eq!(header.from_depth(2), header);
        assert_eq!(header.from_depth(1), header);
        assert_eq!(header.from_depth(5).position(), header.position());
    }

    #[test]
    fn slots_are_found_until_the_first_that_is_not_claimed() {
        let image = node(2, &[leaf(Symbol::Byte(7)), Slot::tombstone(Symbol::End)]);
        let view = InnerView::new(&image, TYPES).unwrap();
        assert_eq!(view.seek(Symbol::Byte(7)), Sought::Slot { index: 0, slot: leaf(Symbol::Byte(7)) });
        assert!(matches!(view.seek(Symbol::End), Sought::Slot { index: 1, .. }));
        assert_eq!(view.seek(Symbol::Byte(8)), Sought::Vacant { index: 2 });
        assert_eq!(view.claimed().count(), 2);
        assert!(!view.is_frozen());
    }

    #[test]
    fn a_node_that_has_grown_is_beyond_its_image() {
        let slots: Vec<_> = (0..4).map(|byte| leaf(Symbol::Byte(byte))).collect();
        let image = node(3, &slots);
        let part = &image[..TYPES.read_bytes(2)];
        let view = InnerView::new(part, TYPES).unwrap();
        assert!(!view.is_whole());
        assert!(matches!(view.seek(Symbol::Byte(2)), Sought::Slot { index: 2, .. }));
        assert_eq!(view.seek(Symbol::Byte(3)), Sought::Beyond);
        let view = InnerView::new(&image, TYPES).unwrap();
        assert!(matches!(view.seek(Symbol::Byte(3)), Sought::Slot { index: 3, .. }));
        assert_eq!(view.seek(Symbol::Byte(9)), Sought::Vacant { index: 4 });
    }

    #[test]
    fn a_full_node_has_its_vacancy_behind() {
        let image = node(1, &[leaf(Symbol::Byte(0)), leaf(Symbol::Byte(1))]);
        let view = InnerView::new(&image, TYPES).unwrap();
        assert_eq!(view.seek(Symbol::End), Sought::Vacant { index: 2 });
    }

    #[test]
    fn frozen_slots_show() {
        let image = node(2, &[leaf(Symbol::Byte(7)), Slot::EMPTY.frozen()]);
        let view = InnerView::new(&image, TYPES).unwrap();
        assert!(view.is_frozen());
        assert_eq!(view.seek(Symbol::Byte(8)), Sought::Vacant { index: 1 });
    }

    #[test]
    fn whatever_is_there_is_parsed_or_rejected() {
        use rand::rngs::SmallRng;
        use rand::{Rng, SeedableRng};
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let mut image = node(2, &[leaf(Symbol::Byte(7)), leaf(Symbol::Byte(9))]);
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..image.len());
                image[at] = rng.random();
            }
            if let Ok(view) = InnerView::new(&image, TYPES) {
                assert!(view.claimed().count() <= TYPES.slots(view.header.node_type));
                view.seek(Symbol::Byte(rng.random()));
            }
        }
    }
}
