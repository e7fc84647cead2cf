//! Inner nodes: sorted separators and children, always written as a whole.
//!
//! ```text
//! stream | header | entry 0 | entry 1 | .. | entry count-1 |
//!
//! entry    0              L           L+K            L+K+8
//!         +--------------+-----------+--------------+
//!         | key length   | key       | child        |          L = 1 if K <= 255, else 2; little-endian
//!         | u8 or u16    | K bytes   | u64, not 0   |
//!         +--------------+-----------+--------------+
//! ```
//!
//! Entry 0's key is the low fence. Child `i` answers for the keys from key `i` up to key `i + 1`, the last one up to
//! the high fence; children are at multiples of 64. Only the node version guards the image: there are no entry writes.
//! This file does not know the level of its children, nor how long a caller keeps a decoded node.

use std::cmp::Ordering;

use farwood_runtime::RemotePtr;

use super::header::{Header, Kind, NodeHeader, Position};
use super::stream::{self, StreamRange};
use super::{Bytes, LayoutError, MIN_INNER_SLOTS, Malformed, Rejection, Sizing, check_key_bytes, is_aligned};

const CHILD_BYTES: usize = 8;

/// The sizes of an index's inner nodes, from which the place of each field follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InnerLayout {
    node_bytes: usize,
    slots: usize,
    max_key: usize,
}

impl InnerLayout {
    /// Makes a layout of as many entries as fit into `node_bytes` (a multiple of 64) for keys of up to `max_key` bytes.
    ///
    /// ```
    /// # use farwood_index::layout::InnerLayout;
    /// assert_eq!(InnerLayout::for_node(1024, 8)?.node_bytes(), 1024);
    /// assert!(InnerLayout::for_node(64, 8).is_err(), "too few slots");
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size is out of range or fewer than [`super::MIN_INNER_SLOTS`] entries fit; the error says what to change.
    pub fn for_node(node_bytes: usize, max_key: usize) -> Result<Self, LayoutError> {
        let slots = Self::sizing(max_key)?.slots(node_bytes)?;
        Ok(InnerLayout { node_bytes, slots, max_key })
    }

    /// Makes a layout of `slots` entries, in as few lines as hold them.
    ///
    /// ```
    /// # use farwood_index::layout::InnerLayout;
    /// let layout = InnerLayout::for_slots(4, 8)?;
    /// assert_eq!((layout.slots(), layout.node_bytes()), (4, 128));
    /// # Ok::<_, farwood_index::layout::LayoutError>(())
    /// ```
    ///
    /// # Errors
    /// If a size or the number is out of range.
    pub fn for_slots(slots: usize, max_key: usize) -> Result<Self, LayoutError> {
        let node_bytes = Self::sizing(max_key)?.node_bytes(slots)?;
        Ok(InnerLayout { node_bytes, slots, max_key })
    }

    /// Counts the bytes of a node, a multiple of 64.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.node_bytes(), image.len());
    /// # });
    /// ```
    pub fn node_bytes(&self) -> usize {
        self.node_bytes
    }

    /// Counts the entries that fit into a node.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.slots(), 4);
    /// # });
    /// ```
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Yields the longest key, in bytes.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.max_key(), 8);
    /// # });
    /// ```
    pub fn max_key(&self) -> usize {
        self.max_key
    }

    /// Parses an image of [`InnerLayout::node_bytes`] bytes (others panic).
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert!(layout.view(&image).is_ok());
    /// image[64] ^= 1;
    /// assert!(matches!(layout.view(&image), Err(Rejection::Torn)), "a line of another version");
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Rejection::Torn`] if the lines' node versions differ; other rejections if the image is no inner node, or
    /// has a header that no writer leaves.
    pub fn view<'a>(&'a self, image: &'a [u8]) -> Result<InnerView<'a>, Rejection> {
        let view = self.parse(image)?;
        view.header.check(Kind::Inner)?;
        Ok(view)
    }

    /// Yields the way of `key` from an image of [`InnerLayout::node_bytes`] bytes (others panic).
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert!(matches!(layout.route(&image, b"anna")?, InnerRoute::Child { child, .. } if child.to_bits() == 64));
    /// assert_eq!(layout.route(&image, b"zoe")?, InnerRoute::MoveRight(RemotePtr::from_bits(640)));
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`InnerLayout::view`], which checks more than this does.
    pub fn route(&self, image: &[u8], key: &[u8]) -> Result<InnerRoute, Rejection> {
        let view = self.parse(image)?;
        match view.header.position(key) {
            Position::Here => view.route(key),
            Position::Right => Ok(InnerRoute::MoveRight(view.header.right()?)),
            Position::Left => Ok(InnerRoute::Left),
        }
    }

    /// Makes `image`, whatever it held, an inner node with `header` (of level 1 or more) and `entries`, in
    /// ascending order of their keys, the first of which is the low fence. No entries, more than there is room
    /// for, wrong order or null children panic. The image is to be written as a whole.
    ///
    /// ```
    /// # use farwood_index::layout::*;
    /// # use farwood_runtime::RemotePtr;
    /// let layout = InnerLayout::for_slots(4, 8)?;
    /// let mut image = vec![0; layout.node_bytes()];
    /// let header = NodeHeader {
    ///     level: 1,
    ///     low: b"",
    ///     high: None,
    ///     sibling: RemotePtr::NULL,
    ///     incarnation: 1,
    ///     node_version: NodeVersion::default(),
    /// };
    /// let (left, right) = (RemotePtr::from_bits(64), RemotePtr::from_bits(128));
    /// layout.build(&mut image, &header, [(&b""[..], left), (b"m", right)]);
    /// let next = Some(RemotePtr::NULL);
    /// assert_eq!(layout.route(&image, b"zoe"), Ok(InnerRoute::Child { child: right, next }));
    /// # Ok::<_, LayoutError>(())
    /// ```
    pub fn build<'e>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        entries: impl IntoIterator<Item = (&'e [u8], RemotePtr)>,
    ) {
        self.check_len(image);
        // The number of entries is known only after the last of them.
        Header::build(image, self.max_key, Kind::Inner, header);
        let mut previous = None;
        let mut count = 0;
        for (key, child) in entries {
            assert!(count < self.slots, "an inner node has room for {} entries", self.slots);
            assert!(key.len() <= self.max_key, "a separator is a key");
            assert!(!child.is_null(), "an entry has a child");
            match previous {
                Some(previous) => assert!(previous < key, "separators ascend"),
                None => assert_eq!(key, header.low, "the first separator is the low fence"),
            }
            let entry = self.entry(count);
            stream::write(image, entry, &(key.len() as u16).to_le_bytes()[..self.length_bytes()]);
            stream::write(image, entry + self.length_bytes(), key);
            stream::write(image, self.child(count), &child.to_bits().to_le_bytes());
            previous = Some(key);
            count += 1;
        }
        assert!(count > 0, "an inner node has a child");
        assert!(header.high.is_none_or(|high| previous < Some(high)), "separators lie below the high fence");
        Header::set_count(image, count as u16);
    }

    fn parse<'a>(&'a self, image: &'a [u8]) -> Result<InnerView<'a>, Rejection> {
        self.check_len(image);
        let header = Header::parse(image, self.max_key, Kind::Inner)?;
        let count = header.count();
        if count == 0 || count > self.slots {
            return Err(Malformed::Count.into());
        }
        Ok(InnerView { layout: self, image, header, count })
    }

    fn check_len(&self, image: &[u8]) {
        assert_eq!(image.len(), self.node_bytes, "an inner node's image has the layout's length");
    }

    fn sizing(max_key: usize) -> Result<Sizing, LayoutError> {
        check_key_bytes(max_key)?;
        let slot_bytes = length_bytes(max_key) + max_key + CHILD_BYTES;
        Ok(Sizing { header_bytes: Header::bytes(max_key), slot_bytes, least: MIN_INNER_SLOTS })
    }

    fn length_bytes(&self) -> usize {
        length_bytes(self.max_key)
    }

    /// Yields the stream offset of the entry in `slot`.
    fn entry(&self, slot: usize) -> usize {
        Header::bytes(self.max_key) + slot * (self.length_bytes() + self.max_key + CHILD_BYTES)
    }

    /// Yields the stream offset of the child in `slot`.
    fn child(&self, slot: usize) -> usize {
        self.entry(slot) + self.length_bytes() + self.max_key
    }
}

fn length_bytes(max_key: usize) -> usize {
    if max_key <= usize::from(u8::MAX) { 1 } else { 2 }
}

/// Way of a key from an inner node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InnerRoute {
    /// Down, to this child.
    Child {
        /// The child.
        child: RemotePtr,
        /// Its right neighbour, [`RemotePtr::NULL`] for the last one of its level; none if it has another parent.
        next: Option<RemotePtr>,
    },
    /// The key lies at or beyond the high fence: go on at the right neighbour.
    MoveRight(RemotePtr),
    /// The key lies below the low fence: the pointer that led here was wrong.
    Left,
}

/// An image whose header is that of an inner node and whose lines carry the same node version.
#[derive(Clone, Copy)]
pub struct InnerView<'a> {
    layout: &'a InnerLayout,
    image: &'a [u8],
    header: Header<'a>,
    count: usize,
}

impl<'a> InnerView<'a> {
    /// Yields fences, level, neighbour, identity and version.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.header().level(), 1);
    /// # });
    /// ```
    pub fn header(&self) -> &Header<'a> {
        &self.header
    }

    /// Counts the entries, at least 1.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.len(), 2);
    /// # });
    /// ```
    #[expect(clippy::len_without_is_empty, reason = "an inner node is never empty")]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Yields the way down for `key`, which must not lie below the low fence.
    ///
    /// # Errors
    /// [`Rejection::Malformed`] if there is none, or the node is one that no writer leaves.
    fn route(&self, key: &[u8]) -> Result<InnerRoute, Rejection> {
        // The first entry beyond the key; entries that are out of order end the search somewhere, which is
        // harmless.
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match stream::compare(self.image, self.key(middle)?, key) {
                Ordering::Greater => high = middle,
                _ => low = middle + 1,
            }
        }
        let child = self.child(low.checked_sub(1).ok_or(Malformed::FenceOrder)?)?;
        let next = if low < self.count {
            Some(self.child(low)?)
        } else {
            self.header.is_last().then_some(RemotePtr::NULL)
        };
        Ok(InnerRoute::Child { child, next })
    }

    /// Yields all separators and children, ascending. An item is an error if no writer leaves such an entry.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// let entries = layout.view(&image)?.entries().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(entries[1], (Bytes::from_slice(b"f"), RemotePtr::from_bits(128)));
    /// # });
    /// ```
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Result<(Bytes, RemotePtr), Rejection>> + 'a {
        let view = *self;
        (0..self.count).map(move |slot| {
            let key = stream::to_bytes(view.image, view.key(slot)?);
            Ok((key, view.child(slot)?))
        })
    }

    /// Collects all separators and children, checked to ascend from the low fence to below the high fence: a node can
    /// be built anew from them.
    ///
    /// ```
    /// # farwood_doctest::inner!(|layout, image| {
    /// assert_eq!(layout.view(&image)?.sorted_entries()?.len(), 2);
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Malformed::KeyOrder`], or that of an entry.
    pub fn sorted_entries(&self) -> Result<Vec<(Bytes, RemotePtr)>, Rejection> {
        let entries = self.entries().collect::<Result<Vec<_>, _>>()?;
        let begins = entries.first().is_some_and(|(key, _)| *key == self.header.low());
        let ends = entries.last().is_some_and(|(key, _)| self.header.position(key) == Position::Here);
        let ascend = entries.is_sorted_by(|(a, _), (b, _)| a < b);
        if begins && ends && ascend { Ok(entries) } else { Err(Malformed::KeyOrder.into()) }
    }

    fn key(&self, slot: usize) -> Result<StreamRange, Rejection> {
        let entry = self.layout.entry(slot);
        let len = match self.layout.length_bytes() {
            1 => usize::from(stream::byte(self.image, entry)),
            _ => usize::from(u16::from_le_bytes(stream::array(self.image, entry))),
        };
        if len > self.layout.max_key {
            return Err(Malformed::KeyLength { slot }.into());
        }
        Ok(StreamRange::new(entry + self.layout.length_bytes(), len))
    }

    fn child(&self, slot: usize) -> Result<RemotePtr, Rejection> {
        let child = u64::from_le_bytes(stream::array(self.image, self.layout.child(slot)));
        let child = RemotePtr::from_bits(child);
        if child.is_null() {
            Err(Malformed::NoChild { slot }.into())
        } else if !is_aligned(child) {
            Err(Malformed::MisalignedChild { slot }.into())
        } else {
            Ok(child)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeVersion, bump_node_version, kind_of};

    fn child(number: usize) -> RemotePtr {
        RemotePtr::from_bits((number as u64).wrapping_mul(0x0101_0101_0101_0040))
    }

    fn header<'a>(low: &'a [u8], high: Option<&'a [u8]>) -> NodeHeader<'a> {
        let node_version = NodeVersion::new(3);
        NodeHeader { level: 1, low, high, sibling: child(999), incarnation: 1, node_version }
    }

    /// Makes separators 0, 10, 20, .. of varying length, the low fence first.
    fn separators(layout: &InnerLayout, count: usize) -> Vec<Vec<u8>> {
        (0..count)
            .map(|number| vec![number as u8 * 10; layout.max_key() - number % layout.max_key()])
            .collect()
    }

    fn inner(layout: &InnerLayout, separators: &[Vec<u8>], high: Option<&[u8]>) -> Vec<u8> {
        let mut image = vec![0xEE; layout.node_bytes()];
        let entries = separators.iter().enumerate().map(|(number, key)| (&key[..], child(number + 1)));
        layout.build(&mut image, &header(&separators[0], high), entries);
        image
    }

    #[test]
    fn routes_each_key_to_the_last_separator_not_beyond_it() {
        for max_key in [1, 7, 8, 61, 255, 300] {
            let layout = InnerLayout::for_slots(20, max_key).unwrap();
            for count in [1, 2, 3, 20] {
                let separators = separators(&layout, count);
                let image = inner(&layout, &separators, Some(&[250]));
                let view = layout.view(&image).unwrap();
                assert_eq!((view.len(), view.header().level()), (count, 1));
                let entries: Vec<_> = view.entries().map(|entry| entry.unwrap()).collect();
                assert!(entries.iter().map(|(key, _)| &key[..]).eq(separators.iter().map(|key| &key[..])));
                for byte in 0..=255_u8 {
                    for len in [1, max_key / 2, max_key] {
                        let key = vec![byte; len];
                        let expected = match separators.iter().rposition(|separator| *separator <= key) {
                            None => InnerRoute::Left,
                            Some(_) if key[..] >= [250][..] => InnerRoute::MoveRight(child(999)),
                            Some(number) => InnerRoute::Child {
                                child: child(number + 1),
                                next: (number + 1 < count).then(|| child(number + 2)),
                            },
                        };
                        assert_eq!(layout.route(&image, &key), Ok(expected));
                    }
                }
            }
        }
    }

    #[test]
    fn a_mixture_of_two_images_is_torn() {
        let layout = InnerLayout::for_slots(8, 8).unwrap();
        let old = inner(&layout, &separators(&layout, 4), None);
        let mut new = inner(&layout, &separators(&layout, 5), None);
        bump_node_version(&mut new);
        for subset in 1..(1_u32 << (old.len() / 64)) - 1 {
            let mut image = old.clone();
            for line in (0..old.len() / 64).filter(|line| subset >> line & 1 == 1) {
                image[line * 64..][..64].copy_from_slice(&new[line * 64..][..64]);
            }
            assert_eq!(layout.route(&image, b"a"), Err(Rejection::Torn));
        }
    }

    #[test]
    fn damaged_nodes_never_panic() {
        let layout = InnerLayout::for_slots(6, 8).unwrap();
        let valid = inner(&layout, &separators(&layout, 6), Some(&[250]));
        for at in 0..valid.len() {
            for byte in [0, 1, 0x7f, 0xA7, 0xff] {
                let mut image = valid.clone();
                image[at] = byte;
                let _ = (kind_of(&image), layout.route(&image, b"key"));
                if let Ok(view) = layout.view(&image) {
                    let _ = (view.entries().count(), view.route(b""), view.route(&[255; 8]));
                }
            }
        }
    }

    #[test]
    fn a_kilobyte_holds_56_small_separators() {
        assert_eq!(InnerLayout::for_node(1024, 8).unwrap().slots(), 56);
        assert!(matches!(InnerLayout::for_node(64, 300), Err(LayoutError::TooFewSlots { least: 3, .. })));
        assert_eq!(InnerLayout::for_slots(2, 8), Err(LayoutError::SlotCount { slots: 2, least: 3 }));
    }
}
