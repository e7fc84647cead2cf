//! One cached node: an immutable copy of an internal node's location information in a single allocation.
//!
//! ```text
//! word 0     address of the node
//! word 1     level (8) | bits per child (8) | offset bits (8) | shift (8) | has a high key (8) | 0
//!            and in the upper 24 bits: the word where the children begin
//! keys       low, the separators after the first, and the high key if there is one (see `keys`)
//! children   see `children`
//! ```
//!
//! The high key is one more key of the search: a rank of zero or behind the last child says that the node
//! does not cover the key, so that one search both checks the fences and finds the child.

use std::sync::Arc;

use farwood_runtime::RemotePtr;

use crate::children::Packing;
use crate::keys::{self, Keys};

/// An internal node as the tree read it, to be cached.
#[derive(Clone, Copy, Debug)]
pub struct NodeImage<'a> {
    /// Where the node is.
    pub address: RemotePtr,
    /// Its level; leaves are level 0.
    pub level: u8,
    /// The lower fence: the least key that the node covers.
    pub low: &'a [u8],
    /// The upper fence: the least key above those that the node covers, or none in the rightmost node of a
    /// level.
    pub high: Option<&'a [u8]>,
    /// The children in key order, each with the least key that it covers. The first one covers from `low` on,
    /// whatever its key here says. At least one child.
    pub separators: &'a [(&'a [u8], RemotePtr)],
}

/// A cached node. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Node {
    words: Arc<[u64]>,
}

const HEADER_WORDS: usize = 2;
/// Strong and weak count in front of the words.
const ARC_BYTES: usize = 2 * size_of::<usize>();
const CHILDREN_START_BITS: u32 = 24;

impl Node {
    /// Packs an image. None if its keys do not ascend, it has no child or is too large for the format: such a
    /// node is not worth an error, the tree reads it remotely.
    pub(crate) fn pack(image: &NodeImage<'_>) -> Option<Node> {
        let (_, later) = image.separators.split_first()?;
        let keys: Vec<&[u8]> =
            std::iter::once(image.low).chain(later.iter().map(|(key, _)| *key)).chain(image.high).collect();
        let packing = Packing::of(image.separators.iter().map(|(_, child)| *child));
        let mut words = vec![image.address.to_bits(), 0];
        if !keys::pack(&keys, &mut words) || words.len() >= 1 << CHILDREN_START_BITS {
            return None;
        }
        words[1] = u64::from(image.level)
            | u64::from(packing.bits) << 8
            | u64::from(packing.offset_bits) << 16
            | u64::from(packing.shift) << 24
            | u64::from(image.high.is_some()) << 32
            | (words.len() as u64) << (64 - CHILDREN_START_BITS);
        packing.pack(image.separators.iter().map(|(_, child)| *child), &mut words);
        Some(Node { words: words.into() })
    }

    pub(crate) fn address(&self) -> RemotePtr {
        RemotePtr::from_bits(self.words[0])
    }

    #[inline]
    pub(crate) fn level(&self) -> u8 {
        self.words[1] as u8
    }

    /// Asks for the node's memory.
    #[inline]
    pub(crate) fn prefetch(&self) {
        keys::prefetch(&self.words);
    }

    /// Finds the position of the child that covers `key`, if the node covers it.
    #[inline]
    pub(crate) fn position(&self, key: &[u8]) -> Option<usize> {
        let position = self.keys().rank(key).checked_sub(1)?;
        (position < self.len()).then_some(position)
    }

    /// Yields the child at `position`.
    #[inline]
    pub(crate) fn child(&self, position: usize) -> RemotePtr {
        let header = self.words[1];
        let packing = Packing {
            bits: (header >> 8) as u8,
            offset_bits: (header >> 16) as u8,
            shift: (header >> 24) as u8,
        };
        packing.get(&self.words[(header >> (64 - CHILDREN_START_BITS)) as usize..], position)
    }

    /// Yields the right neighbour of the child at `position`, null for the last one of the level; none if it has
    /// another parent.
    #[inline]
    pub(crate) fn neighbour(&self, position: usize) -> Option<RemotePtr> {
        if position + 1 < self.len() {
            Some(self.child(position + 1))
        } else {
            (!self.has_high()).then_some(RemotePtr::NULL)
        }
    }

    /// Counts the children.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.keys().len() - usize::from(self.has_high())
    }

    /// Tells whether the lower fence is `key`.
    pub(crate) fn begins_at(&self, key: &[u8]) -> bool {
        self.keys().compare(0, key).is_eq()
    }

    /// Tells whether the node covers keys from `key` on: its upper fence is above `key`, or it has none.
    pub(crate) fn ends_above(&self, key: &[u8]) -> bool {
        !self.has_high() || self.keys().compare(self.keys().len() - 1, key).is_gt()
    }

    /// Yields the lower fence.
    pub(crate) fn low(&self) -> Vec<u8> {
        self.keys().to_vec(0)
    }

    /// Appends the upper fence to `out`; false if there is none.
    pub(crate) fn copy_high(&self, out: &mut impl Extend<u8>) -> bool {
        if self.has_high() {
            self.keys().copy(self.keys().len() - 1, out);
        }
        self.has_high()
    }

    /// Tells whether both copies are equal.
    pub(crate) fn same_as(&self, other: &Node) -> bool {
        self.words == other.words
    }

    /// Counts the bytes that the node takes.
    pub(crate) fn bytes(&self) -> usize {
        ARC_BYTES + size_of_val(&*self.words)
    }

    #[inline]
    fn has_high(&self) -> bool {
        self.words[1] >> 32 & 1 == 1
    }

    /// Yields the lower fence, the separators and the upper fence.
    #[inline]
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys::new(&self.words[HEADER_WORDS..])
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    fn leaf(index: u64) -> RemotePtr {
        RemotePtr::new(ServerId((index % 3) as u16), index * 64)
    }

    #[test]
    fn covers_its_fences_and_nothing_else() {
        let image = NodeImage {
            address: leaf(9),
            level: 1,
            low: b"b",
            high: Some(b"f"),
            separators: &[(b"b", leaf(1)), (b"c", leaf(2)), (b"c\0", leaf(3))],
        };
        let node = Node::pack(&image).unwrap();
        let child = |key: &[u8]| node.position(key).map(|position| node.child(position));
        assert_eq!((node.address(), node.level(), node.len()), (leaf(9), 1, 3));
        assert_eq!((child(b""), child(b"az"), child(b"f"), child(b"f\0")), (None, None, None, None));
        assert_eq!((child(b"b"), child(b"bzzzzzzzzzzz")), (Some(leaf(1)), Some(leaf(1))));
        assert_eq!(
            (child(b"c"), child(b"c\0"), child(b"c\0\0")),
            (Some(leaf(2)), Some(leaf(3)), Some(leaf(3)))
        );
        assert_eq!(child(b"ezzzzzzzz"), Some(leaf(3)));
        assert_eq!([0, 1, 2].map(|position| node.neighbour(position)), [Some(leaf(2)), Some(leaf(3)), None]);
        assert!(node.begins_at(b"b") && !node.begins_at(b"b\0"));
        assert!(node.ends_above(b"ezzz") && !node.ends_above(b"f"));
    }

    #[test]
    fn the_rightmost_node_has_no_end() {
        let separators: &[(&[u8], RemotePtr)] = &[(b"", leaf(1))];
        let node =
            Node::pack(&NodeImage { address: leaf(9), level: 1, low: b"", high: None, separators }).unwrap();
        assert_eq!(node.position(&[0xFF; 100]), Some(0));
        assert_eq!(node.position(b""), Some(0));
        assert_eq!(node.neighbour(0), Some(RemotePtr::NULL));
    }

    #[test]
    fn refuses_images_that_could_mislead() {
        let two: &[(&[u8], RemotePtr)] = &[(b"b", leaf(1)), (b"a", leaf(2))];
        for separators in [&[], two] {
            assert!(
                Node::pack(&NodeImage { address: leaf(9), level: 1, low: b"b", high: None, separators })
                    .is_none()
            );
        }
        let high: Option<&[u8]> = Some(b"b");
        assert!(
            Node::pack(&NodeImage { address: leaf(9), level: 1, low: b"b", high, separators: &two[..1] })
                .is_none()
        );
    }
}
