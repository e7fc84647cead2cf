//! CHIME's leaves for the levels above: how they are built, what a scan takes of one, and what a check sees in it.
//! Pure; the format itself is [`crate::layout::hopscotch`]'s.

use std::ops::{Range, RangeBounds};

use crate::btree::observed_node::{Depth, ObservedNode};
use crate::btree::{LeafFormat, WholeLeaf};
use crate::check::Broken;
use crate::layout::hopscotch::{HopLayout, HopView, SHORT_VERSIONS};
use crate::layout::{
    BlockFormat, BlockPtr, EntryVersion, Glimpse, Header, NodeHeader, Rejection, SlotOrder, glimpse,
};
use crate::range_index::Pair;

impl LeafFormat for HopLayout {
    type View<'a> = HopView<'a>;

    const WRITES_NOTICED: u32 = EntryVersion::COUNT;
    const TOLD_BY_ADDRESS: bool = true;

    #[inline]
    fn node_bytes(&self) -> usize {
        HopLayout::node_bytes(self)
    }

    fn slots(&self) -> usize {
        self.ring().slots
    }

    /// Yields the bytes of the shortest neighbourhood.
    fn writer_reads(&self) -> usize {
        self.neighbourhood_bytes_min()
    }

    fn room_for<'k>(&self, keys: impl ExactSizeIterator<Item = &'k [u8]>) -> usize {
        HopLayout::room_for(self, keys)
    }

    fn blocks(&self) -> Option<&BlockFormat> {
        HopLayout::blocks(self)
    }

    fn build<'p>(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        pairs: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
    ) {
        HopLayout::build(self, image, header, pairs);
    }

    fn view<'a>(&'a self, image: &'a [u8]) -> Result<HopView<'a>, Rejection> {
        HopLayout::view(self, image)
    }

    fn glimpse(&self, line: &[u8]) -> Result<Glimpse, Rejection> {
        glimpse(line)
    }

    fn freeze(&self, image: &mut [u8]) -> Range<usize> {
        HopLayout::freeze(self, image)
    }

    fn thaw(&self, image: &mut [u8]) -> Range<usize> {
        HopLayout::thaw(self, image)
    }

    fn lock_place(&self) -> Option<usize> {
        Some(self.lock_at())
    }

    fn fill<'a>(&'a self, image: &'a [u8]) -> Result<(Header<'a>, usize), Rejection> {
        let leaf = HopLayout::view(self, image)?;
        Ok((*leaf.header(), leaf.present().count()))
    }

    fn unite(
        &self,
        image: &mut [u8],
        header: &NodeHeader<'_>,
        leaves: [&[u8]; 2],
    ) -> Result<bool, Rejection> {
        HopLayout::unite(self, image, header, leaves)
    }

    fn sight(&self, image: &[u8], depth: Depth) -> Result<ObservedNode, Rejection> {
        let view = HopLayout::view(self, image)?;
        let mut seen = ObservedNode::new(view.header());
        seen.keys = view.present().count() as u64;
        if let Some(blocks) = HopLayout::blocks(self) {
            let found = view.present().filter_map(|slot| self.block(image, slot).ok());
            seen.block_bytes = found.map(|block| blocks.bytes(block) as u64).sum();
        }
        if depth == Depth::Shape {
            return Ok(seen);
        }
        // Pairs in blocks are judged when these have been read.
        if HopLayout::blocks(self).is_none() {
            for slot in view.present() {
                match view.pair(slot) {
                    Ok(pair) => seen.pairs.push(pair),
                    Err(rejection) => seen.faults.push(Broken::Entry(rejection)),
                }
            }
            seen.keys = seen.pairs.len() as u64;
            seen.judge_pairs();
        }
        let rule = |what: &str| Broken::Rule { what: what.into() };
        if view.check_hops().is_err() {
            seen.faults
                .push(rule("its hop bits do not name the slots of its keys, which no lookup finds there"));
        }
        if view.check_sum().is_err() {
            seen.faults.push(rule("the sum of its keys is another one"));
        }
        if self.vacancy(image) != self.vacancy_of(image) {
            seen.faults.push(rule("its vacancy word does not name its vacancies"));
        }
        if !view.replicas_agree() {
            seen.faults.push(rule("its replicas do not say what its header says"));
        }
        // The holder's WRITEs may have arrived in part.
        if !seen.faults.is_empty() && LeafFormat::lock(self, image).is_some() {
            seen.faults = vec![Broken::Entry(Rejection::Torn)];
        }
        Ok(seen)
    }
}

impl WholeLeaf for HopView<'_> {
    fn header(&self) -> &Header<'_> {
        HopView::header(self)
    }

    fn writes_noticed(&self, _bounds: &impl RangeBounds<[u8]>) -> u32 {
        if self.rests_on_entry_versions() { EntryVersion::COUNT } else { SHORT_VERSIONS }
    }

    fn blocks(&self) -> Result<Vec<(usize, BlockPtr)>, Rejection> {
        HopView::blocks(self)
    }

    fn leads_to(&self, slot: usize, key: &[u8]) -> bool {
        self.has_fingerprint(slot, key)
    }

    fn copy_sorted(
        &self,
        bounds: &impl RangeBounds<[u8]>,
        limit: usize,
        order: &mut SlotOrder,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), Rejection> {
        self.check_sum()?;
        HopView::copy_sorted(self, bounds, limit, order, pairs)
    }
}

#[cfg(test)]
mod tests {
    use farwood_lock::LockWord;
    use farwood_runtime::RemotePtr;

    use super::*;
    use crate::layout::hopscotch::Ring;
    use crate::layout::{Bytes, NodeVersion};

    const HEADER: NodeHeader<'_> = NodeHeader {
        level: 0,
        low: b"b",
        high: Some(b"m"),
        sibling: RemotePtr::from_bits(640),
        incarnation: 1,
        node_version: NodeVersion::new(0),
    };

    fn layout() -> HopLayout {
        HopLayout::new(Ring { slots: 8, reach: 4 }, 4, 4, false).unwrap()
    }

    fn rules(seen: &ObservedNode) -> Vec<String> {
        seen.faults.iter().map(|broken| broken.to_string()).collect()
    }

    #[test]
    fn keys_that_lookups_do_not_find_are_faults() {
        let layout = layout();
        let mut image = vec![0; layout.node_bytes()];
        let pairs: [(&[u8], &[u8]); 5] =
            [(b"m", b"1"), (b"c", b"2"), (b"a", b"3"), (b"d", b"4"), (b"b", b"5")];
        HopLayout::build(&layout, &mut image, &HEADER, pairs);
        let seen = layout.sight(&image, Depth::Entries).unwrap();
        let outside = |key: &[u8]| Broken::KeyOutside { key: Bytes::from_slice(key) };
        assert_eq!(seen.faults, [outside(b"a"), outside(b"m")]);
        assert!(seen.pairs.is_sorted() && seen.keys == 5);
        assert_eq!(layout.sight(&image, Depth::Shape).unwrap().keys, 5);
        // Another key in the place of `c`: its home has not the bit.
        let behind = layout.node_bytes() - image.iter().rev().position(|byte| *byte == b'c').unwrap();
        let other = (b'd'..b'm').find(|other| layout.home(&[*other]) != layout.home(b"c")).unwrap();
        image[behind - 1] = other;
        assert!(
            rules(&layout.sight(&image, Depth::Entries).unwrap())
                .iter()
                .any(|rule| rule.contains("hop bits"))
        );
    }

    #[test]
    fn words_and_replicas_that_are_wrong_are_faults() {
        let layout = layout();
        let mut image = vec![0; layout.node_bytes()];
        HopLayout::build(&layout, &mut image, &HEADER, [(&b"c"[..], &b"1"[..])]);
        assert_eq!(rules(&layout.sight(&image, Depth::Entries).unwrap()), [""; 0]);
        assert_eq!(layout.lock(&image), None);
        let mut held = image.clone();
        let word = LockWord::new(3, 1, 7);
        held[layout.lock_at()..][..8].copy_from_slice(&word.to_bits().to_le_bytes());
        assert_eq!(layout.lock(&held), Some((layout.lock_at(), word)));
        let mut full = image.clone();
        full[layout.vacancy_at()] ^= 1;
        assert!(rules(&layout.sight(&full, Depth::Entries).unwrap())[0].contains("vacancy word"));
        let mut other = image.clone();
        other[layout.vacancy_at() + 8] ^= 1;
        assert!(rules(&layout.sight(&other, Depth::Entries).unwrap())[0].contains("sum of its keys"));
        // The header's sibling, at stream offset 8.
        image[2 + 8] ^= 64;
        assert!(rules(&layout.sight(&image, Depth::Entries).unwrap())[0].contains("replicas"));
    }
}
