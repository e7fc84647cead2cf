//! Tests of the leaf codec. `mixing.rs` has the mixtures of lines that concurrent readers may see.

mod entries;
mod mixing;
mod sorted;
mod untrusted;

use farwood_runtime::RemotePtr;

use super::{LeafLayout, LeafLookup};
use crate::layout::{LINE_BYTES, NodeHeader, NodeVersion, Patch, Rejection, StreamRange, make_contiguous};

/// Makes a header without fences.
pub(super) fn header(node_version: u16) -> NodeHeader<'static> {
    NodeHeader {
        level: 0,
        low: &[],
        high: None,
        sibling: RemotePtr::NULL,
        incarnation: 7,
        node_version: NodeVersion::new(node_version),
    }
}

/// Makes a leaf with `entries` in its first slots.
pub(super) fn leaf(layout: &LeafLayout, entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut image = vec![0xEE; layout.node_bytes()];
    layout.build(&mut image, &header(0), entries.iter().copied());
    image
}

/// Yields the value that a lookup finds, `None` if the key is absent.
pub(super) fn get(layout: &LeafLayout, image: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, Rejection> {
    match layout.lookup(image, key)? {
        LeafLookup::Found(found) => {
            assert_eq!(layout.value_range(image, found.slot), Ok(found.value));
            let part = excerpt(layout, image, found.slot);
            assert_eq!(layout.lookup_slot(&part, key, found.slot), Ok(LeafLookup::Found(found)));
            Ok(Some(gather(image, found.value)))
        }
        LeafLookup::Absent => Ok(None),
        other => panic!("the leaf has no fences, but {other:?}"),
    }
}

/// Copies only the lines of `image` that an answer about `slot` needs.
pub(super) fn excerpt(layout: &LeafLayout, image: &[u8], slot: usize) -> Vec<u8> {
    let mut part = vec![0xDD; image.len()];
    for lines in layout.lines_of(slot) {
        assert!(lines.start % LINE_BYTES == 0 && lines.len() % LINE_BYTES == 0, "{lines:?}");
        part[lines.clone()].copy_from_slice(&image[lines]);
    }
    part
}

/// Yields the bytes of a range, as a caller gets them.
pub(super) fn gather(image: &[u8], range: StreamRange) -> Vec<u8> {
    let mut copy = image.to_vec();
    let at = make_contiguous(&mut copy, range);
    copy[at].to_vec()
}

/// Checks the form of a patch and applies it to `before`: what the memory server has after the WRITEs.
pub(super) fn apply(patch: &Patch, before: &[u8], after: &[u8]) -> Vec<u8> {
    let mut image = before.to_vec();
    assert!(!patch.is_empty());
    for range in patch {
        assert!(range.start < range.end && range.end <= image.len());
        assert!(range.start % 8 == 0 && range.end % 8 == 0, "{range:?} is not aligned");
        image[range.clone()].copy_from_slice(&after[range.clone()]);
    }
    image
}
