//! Accounts of an index's memory: what a walk has reached of the chunks that the servers have handed out, and what is
//! wrong with it. Pure: it is told what was reached, and what the servers hold.
//!
//! ```text
//!   chunks     [ node | node |  ?   | page of intents |     ?     | a rest: given back ]
//!                reached       │         reached           │
//!                              └────── unreached: of shards that work, in their lists; else lost ───
//! ```

use std::collections::BTreeSet;

use farwood_runtime::control::Chunk;
use farwood_runtime::{Extents, Holdings, RemotePtr};
use thiserror::Error;

use crate::layout::LINE_BYTES;

/// Smallest piece that a memory server hands out as a part of a chunk. What is smaller it hands out as a node.
const PART_BYTES_MIN: u64 = 4096;

/// Something that no node of an intact index does with memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MemoryFault {
    /// A node, or a part of one, where another one is.
    #[error("another node has these bytes, too")]
    Shared,
    /// A node, or a part of one, that the servers have not handed out for the index.
    #[error("a node has these bytes, and they lie in no chunk of the index")]
    OutsideOfChunks,
    /// A node, or a part of one, in memory that was given back.
    #[error("a node has these bytes, and they were given back")]
    GivenBack,
}

/// Accounts of an index's memory, as a check has found it. Chunks are the sum of what was reached, of rests, and of
/// what was not reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Bytes of the chunks that the servers have handed out for the index.
    pub chunk_bytes: u64,
    /// Bytes of them that were given back, and are handed out again first.
    pub rest_bytes: u64,
    /// Extents of these: rests of chunks, and free nodes.
    pub rests: Extents,
    /// Extents that the index reaches: its nodes, blocks, pages for intents.
    pub reached: Extents,
    /// Bytes that it does not reach. Shards that work on the index have some: what they have not used of their chunks,
    /// free nodes, retired ones. All else was lost with shards that ended, and with compute nodes that died.
    pub unreached_bytes: u64,
    /// Bytes of these that are not given back: no node is there, and something of the index leads there.
    pub led_to_bytes: u64,
    /// The largest number of other clients that one of the servers had, before the walk or after it. They may hold what
    /// was not reached.
    pub others: u32,
    /// Pieces that are not reached, and to which nothing leads.
    pub(crate) lost: Vec<Chunk>,
    /// Number of times that clients had joined each server before the walk; none if one has joined meanwhile.
    pub(crate) joins: Option<Vec<u64>>,
}

/// Balances what was reached with what the servers hold, which was asked before the walk and after it. What was not
/// reached and is `led_to` stays as it is. Yields what is wrong as well, each with the first byte of an extent.
pub(crate) fn balance(
    reached: Extents,
    led_to: &Extents,
    before: &[Holdings],
    after: &[Holdings],
) -> (MemoryReport, Vec<(RemotePtr, MemoryFault)>) {
    let (mut used, mut rests, mut faults) = (Extents::default(), Extents::default(), Vec::new());
    for Chunk { start, bytes } in after.iter().flat_map(|held| &held.used) {
        used.add(*start, *bytes);
    }
    for Chunk { start, bytes } in after.iter().flat_map(|held| &held.rests) {
        rests.add(*start, *bytes);
    }
    for (at, bytes) in reached.iter() {
        // In no piece that is in use: in a rest, or in none.
        for (at, bytes) in used.gaps(at, bytes) {
            let outside = rests.gaps(at, bytes).into_iter().map(|(at, _)| (at, MemoryFault::OutsideOfChunks));
            faults.extend(outside);
            faults.extend(rests.first_shared(at, bytes).map(|at| (at, MemoryFault::GivenBack)));
        }
    }
    let pieces = after.iter().flat_map(|held| &held.used);
    // Piece by piece, so that none lies in two chunks.
    let unreached: Vec<_> = pieces.flat_map(|piece| reached.gaps(piece.start, piece.bytes)).collect();
    let free = unreached.iter().flat_map(|(at, bytes)| led_to.gaps(*at, *bytes));
    let lost: Vec<_> = free.collect();
    let sum = |extents: &[(RemotePtr, u64)]| extents.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let joins = |held: &[Holdings]| held.iter().map(|held| held.joins).collect::<Vec<_>>();
    let report = MemoryReport {
        chunk_bytes: used.bytes() + rests.bytes(),
        rest_bytes: rests.bytes(),
        rests,
        reached,
        unreached_bytes: sum(&unreached),
        led_to_bytes: sum(&unreached) - sum(&lost),
        others: before.iter().chain(after).map(|held| held.others).max().unwrap_or(0),
        lost: lost.into_iter().map(|(start, bytes)| Chunk { start, bytes }).collect(),
        joins: (joins(before) == joins(after)).then(|| joins(before)),
    };
    (report, faults)
}

/// Memory that a walk has come to while clients work ([`crate::Algorithm::mark`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    extents: Extents,
    dead: BTreeSet<u16>,
}

impl Marks {
    /// Makes the marks of a walk before it begins; these compute nodes have died.
    pub(crate) fn new(dead: impl IntoIterator<Item = u16>) -> Self {
        Marks { dead: dead.into_iter().collect(), ..Marks::default() }
    }

    /// Tells whether a compute node has died before the walk. A lock of such a one is to be taken over before its node
    /// is looked at: the dead may have recorded that it was about to lead to another node from there.
    ///
    /// ```
    /// # use farwood_index::Marks;
    /// assert!(!Marks::default().is_dead(3));
    /// ```
    pub fn is_dead(&self, node: u16) -> bool {
        self.dead.contains(&node)
    }

    /// Notes that something of the index leads to `bytes` bytes at `at`. The same may be noted more than once.
    ///
    /// ```
    /// # use farwood_index::Marks;
    /// # use farwood_runtime::RemotePtr;
    /// let mut marks = Marks::default();
    /// marks.reach(RemotePtr::from_bits(4096), 1000);
    /// marks.reach(RemotePtr::from_bits(4096), 1000);
    /// assert_eq!(marks.bytes(), 1024, "whole lines");
    /// ```
    pub fn reach(&mut self, at: RemotePtr, bytes: u64) {
        self.extents.add(at, bytes.next_multiple_of(LINE_BYTES as u64));
    }

    /// Counts the bytes.
    ///
    /// ```
    /// # use farwood_index::Marks;
    /// assert_eq!(Marks::default().bytes(), 0);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.extents.bytes()
    }
}

/// Yields what was lost, after a walk while clients work: what the servers had handed out before it, and what neither
/// lies with them, nor was marked, nor was in a list at any time. None of the pieces lies in two chunks.
pub(crate) fn lost_of(
    before: &[Holdings],
    after: &[Holdings],
    marks: &Marks,
    listed: &Extents,
) -> Vec<Chunk> {
    let mut known = marks.extents.clone();
    known.add_all(listed);
    for Chunk { start, bytes } in after.iter().flat_map(|held| &held.rests) {
        known.add(*start, *bytes);
    }
    let used = before.iter().flat_map(|held| &held.used);
    let lost = used.flat_map(|piece| known.gaps(piece.start, piece.bytes));
    lost.map(|(start, bytes)| Chunk { start, bytes }).collect()
}

/// Cuts pieces up as they are given back: the small ones into leaves of `leaf_bytes`, for which there is most use, and
/// what is left over of each.
pub(crate) fn cut(pieces: impl IntoIterator<Item = Chunk>, leaf_bytes: u64) -> Vec<Chunk> {
    let mut cut = Vec::new();
    for Chunk { mut start, mut bytes } in pieces {
        while bytes < PART_BYTES_MIN && bytes > leaf_bytes {
            cut.push(Chunk { start, bytes: leaf_bytes });
            (start, bytes) = (start.add(leaf_bytes), bytes - leaf_bytes);
        }
        cut.push(Chunk { start, bytes });
    }
    cut
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    const PAGE: u64 = 4096;

    fn chunk(page: u64, pages: u64) -> Chunk {
        Chunk { start: RemotePtr::new(ServerId(0), page * PAGE), bytes: pages * PAGE }
    }

    /// Two chunks of four pages, from page 4 on, with these pages as rests.
    fn held(rests: &[u64]) -> Holdings {
        let pages = |is_rest: bool| (4..12).filter(move |page| rests.contains(page) == is_rest);
        Holdings {
            used: pages(false).map(|page| chunk(page, 1)).collect(),
            rests: pages(true).map(|page| chunk(page, 1)).collect(),
            others: 0,
            joins: 1,
        }
    }

    fn reached(pages: impl IntoIterator<Item = u64>) -> Extents {
        let mut reached = Extents::default();
        pages.into_iter().for_each(|page| _ = reached.add(chunk(page, 1).start, PAGE));
        reached
    }

    /// All that can be reached of 10 pages, of which 8 are handed out, and all rests.
    #[test]
    fn every_page_is_accounted_for() {
        for rest_bits in 0..1_u32 << 8 {
            let rests: Vec<u64> = (4..12).filter(|page| rest_bits >> (page - 4) & 1 == 1).collect();
            let held = [held(&rests)];
            for bits in 0..1_u32 << 10 {
                let pages: Vec<u64> = (3..13).filter(|page| bits >> (page - 3) & 1 == 1).collect();
                let (report, faults) = balance(reached(pages.clone()), &Extents::default(), &held, &held);
                let is_fault = |page: &u64| !(4..12).contains(page) || rests.contains(page);
                let wrong: Vec<u64> = pages.iter().copied().filter(is_fault).collect();
                assert_eq!(faults.is_empty(), wrong.is_empty(), "{pages:?} {rests:?}: {faults:?}");
                for (at, fault) in faults {
                    let page = at.offset() / PAGE;
                    assert!(wrong.contains(&page), "{page} of {wrong:?}");
                    assert_eq!(fault == MemoryFault::GivenBack, (4..12).contains(&page));
                }
                let lost = (4..12).filter(|page| !pages.contains(page) && !rests.contains(page));
                let lost: Vec<Chunk> = lost.map(|page| chunk(page, 1)).collect();
                assert_eq!(report.unreached_bytes, lost.len() as u64 * PAGE);
                assert_eq!((report.lost, report.led_to_bytes), (lost, 0));
                assert_eq!((report.chunk_bytes, report.rest_bytes), (8 * PAGE, rests.len() as u64 * PAGE));
            }
        }
    }

    #[test]
    fn small_pieces_are_lost_too() {
        let held = [Holdings { used: vec![chunk(4, 4)], ..Holdings::default() }];
        let mut nodes = Extents::default();
        nodes.add(chunk(4, 1).start.add(64), PAGE);
        nodes.add(chunk(6, 1).start, PAGE);
        let (report, faults) = balance(nodes, &Extents::default(), &held, &held);
        assert!(faults.is_empty());
        assert_eq!((report.unreached_bytes, report.led_to_bytes), (2 * PAGE, 0));
        let part = |page, from, bytes| Chunk { start: chunk(page, 1).start.add(from), bytes };
        assert_eq!(report.lost, [part(4, 0, 64), part(5, 64, PAGE - 64), chunk(7, 1)]);
    }

    #[test]
    fn what_something_leads_to_is_not_lost() {
        let held = [Holdings { used: vec![chunk(4, 4)], ..Holdings::default() }];
        let (report, faults) = balance(Extents::default(), &reached([5]), &held, &held);
        assert!(faults.is_empty());
        assert_eq!((report.unreached_bytes, report.led_to_bytes), (4 * PAGE, PAGE));
        assert_eq!(report.lost, [chunk(4, 1), chunk(6, 2)]);
    }

    /// All lengths of pieces, and of leaves.
    #[test]
    fn small_pieces_are_cut_into_leaves() {
        for (bytes, leaf_bytes) in
            (1..=80).flat_map(|lines| (1..=80).map(move |leaf| (64 * lines, 64 * leaf)))
        {
            let piece = Chunk { bytes, ..chunk(5, 1) };
            let cut = cut([piece], leaf_bytes);
            let mut end = piece.start;
            for part in &cut {
                assert_eq!(part.start, end, "no byte is left out, and none is in two");
                end = part.start.add(part.bytes);
            }
            assert_eq!(end, piece.start.add(bytes));
            let (left_over, leaves) = cut.split_last().unwrap();
            match bytes >= PART_BYTES_MIN {
                true => assert_eq!(cut, [piece]),
                false => assert!(
                    left_over.bytes <= leaf_bytes && leaves.iter().all(|leaf| leaf.bytes == leaf_bytes)
                ),
            }
        }
    }

    #[test]
    fn what_is_lost_lies_in_one_chunk() {
        let held = [Holdings { used: vec![chunk(4, 4), chunk(8, 4)], ..Holdings::default() }];
        let report = balance(Extents::default(), &Extents::default(), &held, &held).0;
        assert_eq!(report.lost, [chunk(4, 4), chunk(8, 4)]);
    }

    /// All of three pages, each with any of what a sweep can learn of it.
    #[test]
    fn what_is_lost_was_handed_out_before_and_is_known_of_nowhere() {
        let facts =
            |bits: u32, fact: u32| (0..3).filter(move |page| bits >> (page * 5 + u64::from(fact)) & 1 == 1);
        for bits in 0..1_u32 << 15 {
            let [rests, after, marked, listed] =
                [0, 1, 2, 3].map(|fact| facts(bits, fact).collect::<Vec<u64>>());
            let is_new: Vec<u64> = facts(bits, 4).collect();
            let used = |rests: &[u64]| {
                (0..3).filter(|page| !rests.contains(page)).map(|page| chunk(page, 1)).collect()
            };
            let of = |rests: &[u64]| {
                [Holdings {
                    used: used(rests),
                    rests: rests.iter().map(|page| chunk(*page, 1)).collect(),
                    ..Holdings::default()
                }]
            };
            let mut before = of(&rests);
            before[0].used.retain(|piece| !is_new.contains(&(piece.start.offset() / PAGE)));
            let mut marks = Marks::default();
            marked.iter().for_each(|page| marks.reach(chunk(*page, 1).start, PAGE));
            let lost = lost_of(&before, &of(&after), &marks, &reached(listed.clone()));
            let is_lost =
                |page: &u64| ![&rests, &after, &marked, &listed, &is_new].iter().any(|of| of.contains(page));
            let expected: Vec<Chunk> = (0..3).filter(is_lost).map(|page| chunk(page, 1)).collect();
            assert_eq!(lost, expected, "{bits:b}");
        }
    }

    #[test]
    fn others_are_not_overlooked() {
        let of = |others, joins| [Holdings { others, joins, ..Holdings::default() }];
        let look = |before: [Holdings; 1], after: [Holdings; 1]| {
            let report = balance(Extents::default(), &Extents::default(), &before, &after).0;
            (report.others, report.joins)
        };
        assert_eq!(look(of(0, 3), of(0, 3)), (0, Some(vec![3])));
        assert_eq!(look(of(1, 3), of(0, 3)), (1, Some(vec![3])));
        assert_eq!(look(of(0, 3), of(2, 5)), (2, None));
        assert_eq!(look(of(0, 3), of(0, 4)), (0, None), "one has come and gone");
    }
}
