//! Sherman's leaves for the levels above: how they are built, and what a check sees in one. Pure; the format itself is
//! [`crate::layout`]'s.

use std::ops::RangeBounds;

use crate::btree::observed_node::{Depth, ObservedNode};
use crate::btree::{LeafFormat, WholeLeaf};
use crate::check::Broken;
use crate::layout::{
    EntryVersion, Glimpse, Header, LeafLayout, LeafView, NodeHeader, NodeVersion, Rejection, SlotOrder,
    glimpse,
};
use crate::range_index::Pair;

impl LeafFormat for LeafLayout {
    type View<'a> = LeafView<'a>;

    const WRITES_NOTICED: u32 = EntryVersion::COUNT;

    #[inline]
    fn node_bytes(&self) -> usize {
        LeafLayout::node_bytes(self)
    }

    fn slots(&self) -> usize {
        LeafLayout::slots(self)
    }

    /// Yields the whole leaf.
    #[inline]
    fn writer_reads(&self) -> usize {
        LeafLayout::node_bytes(self)
    }

    fn build<'p>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) {
        LeafLayout::build(self, image, header, pairs);
    }

    fn view<'a>(&'a self, image: &'a [u8]) -> Result<LeafView<'a>, Rejection> {
        LeafLayout::view(self, image)
    }

    fn glimpse(&self, line: &[u8]) -> Result<Glimpse, Rejection> {
        glimpse(line)
    }

    fn fill<'a>(&'a self, image: &'a [u8]) -> Result<(Header<'a>, usize), Rejection> {
        let leaf = self.view(image)?;
        Ok((*leaf.header(), leaf.len()))
    }

    fn unite(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        [left, right]: [&[u8]; 2],
    ) -> Result<bool, Rejection> {
        let mut pairs = self.view(left)?.sorted_pairs()?;
        pairs.extend(self.view(right)?.sorted_pairs()?);
        LeafLayout::build(self, image, header, pairs.iter().map(|(key, value)| (&key[..], &value[..])));
        Ok(true)
    }

    fn sight(&self, image: &[u8], depth: Depth) -> Result<ObservedNode, Rejection> {
        let view = self.view(image)?;
        let mut seen = ObservedNode::new(view.header());
        if depth == Depth::Shape {
            seen.keys = view.len() as u64;
            return Ok(seen);
        }
        for entry in view.entries() {
            match entry {
                Ok(entry) => seen.pairs.push((entry.key, entry.value)),
                Err(rejection) => seen.faults.push(Broken::Entry(rejection)),
            }
        }
        seen.keys = seen.pairs.len() as u64;
        seen.judge_pairs();
        let keys = seen.pairs.iter().map(|(key, _)| key);
        let not_found = keys.filter(|key| matches!(view.find(key), Ok(None)));
        seen.faults.extend(not_found.map(|key| Broken::Fingerprint { key: key.clone() }));
        Ok(seen)
    }
}

impl WholeLeaf for LeafView<'_> {
    fn header(&self) -> &Header<'_> {
        LeafView::header(self)
    }

    fn writes_noticed(&self, bounds: &impl RangeBounds<[u8]>) -> u32 {
        if self.rests_on_entry_versions(bounds) { EntryVersion::COUNT } else { NodeVersion::COUNT }
    }

    fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), Rejection> {
        LeafView::copy_sorted(self, bounds, limit, order, pairs)
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::RemotePtr;

    use super::*;
    use crate::layout::{Bytes, NodeVersion};

    const HEADER: NodeHeader<'_> = NodeHeader {
        level: 0,
        low: b"b",
        high: Some(b"m"),
        sibling: RemotePtr::from_bits(640),
        incarnation: 1,
        node_version: NodeVersion::new(0),
    };

    fn key(bytes: &[u8]) -> Bytes {
        Bytes::from_slice(bytes)
    }

    #[test]
    fn keys_outside_the_fences_and_keys_twice_are_faults() {
        let layout = LeafLayout::for_slots(6, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let pairs: [(&[u8], &[u8]); 5] =
            [(b"m", b"1"), (b"c", b"2"), (b"a", b"3"), (b"c", b"4"), (b"b", b"5")];
        layout.build(&mut image, &HEADER, pairs);
        let seen = layout.sight(&image, Depth::Entries).unwrap();
        let outside = |bytes| Broken::KeyOutside { key: key(bytes) };
        assert_eq!(seen.faults, [Broken::DuplicateKey { key: key(b"c") }, outside(b"a"), outside(b"m")]);
        assert!(seen.pairs.is_sorted() && seen.keys == 5 && !seen.has_torn_entry());
        let shape = layout.sight(&image, Depth::Shape).unwrap();
        assert!(shape.keys == 5 && shape.faults.is_empty() && shape.pairs.is_empty());
    }

    #[test]
    fn a_key_that_no_lookup_finds_is_a_fault() {
        let layout = LeafLayout::for_slots(6, 4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let faults = |image: &[u8]| layout.sight(image, Depth::Entries).unwrap().faults;
        let pairs: [(&[u8], &[u8]); 2] = [(b"c", b"1"), (b"d", b"2")];
        layout.build(&mut image, &HEADER, pairs);
        assert_eq!(faults(&image), []);
        // The first fingerprint, behind the control word and the header.
        image[2 + 20 + 2 * 4] ^= 1;
        assert_eq!(faults(&image), [Broken::Fingerprint { key: key(b"c") }]);
    }
}
