//! Images of nodes that holders leave for the next one, where a lock is handed over: shared by the shards of a compute
//! node. It knows no lock's state and no time of its own.
//!
//! A word that is handed over stays taken, so no other client writes the node between two holders, and what the one
//! before has written back is what the next one would read:
//!
//! ```text
//!   holder   CAS + READ node    WRITE ✓ leaves its image, tells the home
//!   next                                                 finds the image    WRITE
//! ```
//!
//! An image belongs to one hand-over ([`HandOver`]). If that leads to no holder, or to one of another node of the same
//! lock word, or to one that needs more of the node, the image is not taken, and another one takes its place later. So
//! nothing has to be undone where clients are cancelled. A holder that fails, or is dropped, leaves none.
//!
//! # Versions
//!
//! Readers rest on writes of a node being some time apart ([`write_interval_ns`]): a READ and a WRITE. A holder that
//! does not read waits instead ([`rest_ns`]), so that what readers believe does not depend on what writers do:
//!
//! ```text
//!   holder   WRITE ── takes effect ──> done: leaves its image ── half an interval ──> next   WRITE ── takes effect
//!                     |─────────────────────────── an interval ────────────────────────────────────|
//! ```
//!
//! The way of the first WRITE back and that of the second one there make the other half.
//!
//! [`write_interval_ns`]: farwood_runtime::Capabilities::write_interval_ns

use std::ops::Range;
use std::sync::Mutex;

use farwood_runtime::RemotePtr;

use crate::word::LockWord;

/// Images that are kept at once: about as many locks are handed over at a time. More of them replace each other.
const PLACES: usize = 32;
const LINE_BYTES: u64 = 64;

/// A hand-over of the global lock of `node`, unlike every other one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HandOver {
    /// Several nodes may share a lock word.
    pub(crate) node: RemotePtr,
    /// Of the acquisition that took the lock by CAS.
    pub(crate) word: LockWord,
    /// The number of hand-overs since then, with this one.
    pub(crate) depth: u8,
}

/// The images that the shards of a compute node leave for each other.
///
/// It takes memory from the first image on, a few of the largest nodes' bytes.
#[derive(Default)]
pub struct Images([Mutex<Place>; PLACES]);

#[derive(Default)]
struct Place {
    left: Option<Left>,
    /// Ranges of the node that are known, each to be found at the same place in the bytes.
    parts: Vec<Range<usize>>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Left {
    of: HandOver,
    at_ns: u64,
}

impl Images {
    /// Leaves those parts of the image of a node for the next holder. What they say is in memory since `now_ns` at the
    /// latest.
    pub(crate) fn leave(&self, of: HandOver, parts: &[Range<usize>], image: &[u8], now_ns: u64) {
        self.at(of.node, |place| {
            place.left = Some(Left { of, at_ns: now_ns });
            place.parts.clear();
            place.parts.extend_from_slice(parts);
            if place.bytes.len() < image.len() {
                place.bytes.resize(image.len(), 0);
            }
            parts.iter().for_each(|part| place.bytes[part.clone()].copy_from_slice(&image[part.clone()]));
        });
    }

    /// Copies the parts that the next holder wants to where they are in the node, if that hand-over has left them.
    /// Yields since when they are in memory.
    pub(crate) fn take(&self, of: HandOver, wanted: &[Range<usize>], image: &mut [u8]) -> Option<u64> {
        self.at(of.node, |place| {
            let left = place.left.filter(|left| left.of == of && covers(&place.parts, wanted))?;
            for part in wanted {
                image[part.clone()].copy_from_slice(&place.bytes[part.clone()]);
            }
            Some(left.at_ns)
        })
        .flatten()
    }

    /// Counts the bytes that the images take.
    ///
    /// ```
    /// assert_eq!(farwood_lock::Images::default().bytes() % 32, 0);
    /// ```
    pub fn bytes(&self) -> usize {
        let of_place = |place: &Mutex<Place>| {
            let place = place.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            size_of::<Mutex<Place>>()
                + place.bytes.capacity()
                + place.parts.capacity() * size_of::<Range<usize>>()
        };
        self.0.iter().map(of_place).sum()
    }

    /// Does `work` at the place of a node's image, unless another shard is there: no shard waits for one.
    fn at<R>(&self, node: RemotePtr, work: impl FnOnce(&mut Place) -> R) -> Option<R> {
        // Nodes begin at lines.
        let hash = (node.to_bits() / LINE_BYTES).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = self.0[(hash >> 32) as usize % PLACES].try_lock();
        place.ok().map(|mut place| work(&mut place))
    }
}

/// Tells whether what is wanted of a node is within what is known of it.
fn covers(known: &[Range<usize>], wanted: &[Range<usize>]) -> bool {
    let is_known =
        |want: &Range<usize>| known.iter().any(|part| part.start <= want.start && want.end <= part.end);
    wanted.iter().all(is_known)
}

/// Yields the ns that are left until a holder may write which has taken an image of so many `bytes` in place of a READ,
/// that is in memory since `written_ns` at the latest. As readers have it, none reads more than a line per ns.
pub(crate) fn rest_ns(write_interval_ns: u32, bytes: usize, written_ns: u64, now_ns: u64) -> u64 {
    let least_ns = u64::from(write_interval_ns.div_ceil(2)) + bytes as u64 / LINE_BYTES;
    (written_ns + least_ns).saturating_sub(now_ns)
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    const NODE: RemotePtr = RemotePtr::new(ServerId(1), 640);

    fn one(part: Range<usize>) -> [Range<usize>; 1] {
        [part]
    }

    fn hand_over(depth: u8) -> HandOver {
        HandOver { node: NODE, word: LockWord::new(7, 1, 9), depth }
    }

    #[test]
    fn an_image_is_for_one_hand_over() {
        let images = Images::default();
        images.leave(hand_over(2), &one(0..4), b"abcd", 5);
        let mut image = *b"....";
        let others = [hand_over(1), hand_over(3), HandOver { word: LockWord::new(7, 1, 10), ..hand_over(2) }];
        // Many enough that some have the same place.
        let of_other_nodes = (1..1000).map(|n| HandOver { node: NODE.add(n * 64), ..hand_over(2) });
        for other in others.into_iter().chain(of_other_nodes) {
            assert_eq!(images.take(other, &one(0..4), &mut image), None);
        }
        assert_eq!((images.take(hand_over(2), &one(1..3), &mut image), &image), (Some(5), b".bc."));
        images.leave(hand_over(3), &one(0..1), b"e", 6);
        assert_eq!(images.take(hand_over(2), &one(0..1), &mut image), None, "it was replaced");
        assert_eq!((images.take(hand_over(3), &one(0..1), &mut image), &image), (Some(6), b"ebc."));
    }

    /// All pairs of up to two parts of a node of four bytes: as bytes, one by one, would have it, but that two parts
    /// which touch are not one.
    #[test]
    fn what_is_not_known_is_not_taken() {
        let ranges = || (0..4_usize).flat_map(|start| (start + 1..=4).map(move |end| start..end));
        let parts = || ranges().flat_map(|first| ranges().map(move |second| [first.clone(), second]));
        for known in parts() {
            for wanted in parts() {
                let is_known = |byte: usize| known.iter().any(|part| part.contains(&byte));
                let bytes_known = wanted.iter().all(|part| part.clone().all(is_known));
                let touch = known[0].start <= known[1].end && known[1].start <= known[0].end;
                let is_taken = covers(&known, &wanted);
                assert!(is_taken == bytes_known || bytes_known && touch, "{known:?} {wanted:?}");
            }
        }
        assert!(covers(&[], &[]) && !covers(&[], &one(0..1)));
    }

    #[test]
    fn places_are_few_and_kept() {
        let images = Images::default();
        let empty = images.bytes();
        let image = [7; 1024];
        for n in 0..10_000 {
            let of = HandOver { node: NODE.add(n * 64), ..hand_over(1) };
            images.leave(of, &one(0..1024), &image, n);
            assert_eq!(images.take(of, &one(0..8), &mut [0; 8]), Some(n));
        }
        assert!((PLACES * 1024..=PLACES * 1100).contains(&(images.bytes() - empty)), "{}", images.bytes());
    }

    #[test]
    fn a_holder_that_reads_nothing_waits_for_half_an_interval() {
        assert_eq!(rest_ns(2_000, 1024, 500, 500), 1_016);
        assert_eq!(rest_ns(2_000, 1024, 500, 1_515), 1);
        assert_eq!(rest_ns(2_000, 1024, 500, 1_516), 0);
        assert_eq!((rest_ns(151, 63, 0, 0), rest_ns(u32::MAX, 0, 0, u64::MAX)), (76, 0));
    }
}
