//! Chunks against a model that knows whose every line of 64 bytes is.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::control::nodes::{NodeClass, Waits};

const PEER: PeerId = PeerId(7);

fn owner(index: IndexId) -> Owner {
    Owner { index, seal: Seal::default() }
}

/// The number of an index may be known to all; its chunks are freed by its own key alone, and with its peer if they are
/// temporary.
#[test]
fn chunks_go_by_their_seal_or_with_their_peer() {
    use crate::control::seal::SealKey;
    let mut chunks = Chunks::new(0, 4 * 4096, 4096);
    let [one, other] = [1, 2].map(|key| Owner { index: IndexId(1), seal: SealKey(key).seal() });
    for owner in [one, other] {
        let reserved = chunks.reserve().unwrap();
        chunks.own(reserved, owner, PEER).unwrap();
    }
    assert_eq!(chunks.free_all(owner(IndexId(1))), 0);
    assert_eq!(chunks.bytes_of(&BTreeSet::from([IndexId(1)])), 2 * 4096);
    assert_eq!(chunks.free_all(one), 4096);
    let late = chunks.reserve().unwrap();
    assert_eq!(chunks.own(late, one, PEER), None, "it is dropped");
    chunks.tie(other, PEER);
    chunks.free_temporary(PeerId(8));
    assert_eq!(chunks.usage().1, 4096);
    chunks.free_temporary(PEER);
    assert_eq!(chunks.usage().1, 0);
}

#[test]
fn a_chunk_that_is_being_zeroed_has_no_owner() {
    let mut chunks = Chunks::new(4096, 4096 * 3, 4096);
    let piece = Some(Extent { offset: 4096, bytes: 4096 });
    let reserved = chunks.reserve().unwrap();
    assert_eq!(chunks.own(reserved, owner(IndexId(1)), PEER), piece);
    assert_eq!(chunks.free_all(owner(IndexId(1))), 4096);
    let again = chunks.reserve().unwrap();
    assert!(again.reused && again.offset == 4096);
    assert_eq!(chunks.free_all(owner(IndexId(2))), 0, "index 2 is dropped before its chunk is zeroed");
    assert_eq!(chunks.usage(), (8192, 4096), "and the chunk is not free meanwhile");
    assert_eq!(chunks.own(again, owner(IndexId(2)), PEER), None);
    assert_eq!(chunks.usage(), (8192, 0));
    chunks.forget_freed();
    let last = chunks.reserve().unwrap();
    assert_eq!(chunks.own(last, owner(IndexId(2)), PEER), piece);
}

/// However many pieces are given back, no more is remembered than the smallest ones that the region has room for.
#[test]
fn what_is_remembered_is_bounded() {
    let mut chunks = Chunks::new(0, 1 << 20, 1 << 20);
    let reserved = chunks.reserve().unwrap();
    chunks.own(reserved, owner(IndexId(1)), PEER).unwrap();
    let mut peers = 0;
    // Each peer takes the whole rest, uses one line of it and keeps its connection.
    let mut left = Extent { offset: 0, bytes: 1 << 20 };
    let mut by = PEER;
    while left.bytes - 64 >= REST_BYTES_MIN {
        left = Extent { offset: left.offset + 64, bytes: left.bytes - 64 };
        assert!(chunks.return_extent(IndexId(1), by, left));
        peers += 1;
        by = PeerId(100 + peers);
        assert_eq!(chunks.take_rest(owner(IndexId(1)), by), Some(left));
        assert_eq!(chunks.taken.len(), 1);
    }
    assert!(peers > 10_000);
    assert_eq!(chunks.usage(), (1 << 20, 1 << 20));
}

const LINE: u64 = 64;
const START: u64 = 8192;
const CHUNK: u64 = 16 << 10;
const CHUNKS: u64 = 5;

/// Owner of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    Free,
    /// An index's, handed out in the hand-out with that number.
    Held(IndexId, u64),
    /// An index's, given back in the giving-back with that number.
    Rest(IndexId, u64),
    /// An index's, in a free node that was given.
    Given(IndexId),
}

struct Model {
    lines: Vec<Line>,
    /// The peer that may give a hand-out back.
    takers: BTreeMap<u64, PeerId>,
    rests: BTreeMap<u64, (IndexId, u64)>,
    dropped: BTreeSet<IndexId>,
    number: u64,
}

impl Model {
    fn new() -> Self {
        Model {
            lines: vec![Line::Free; (CHUNKS * CHUNK / LINE) as usize],
            takers: BTreeMap::new(),
            rests: BTreeMap::new(),
            dropped: BTreeSet::new(),
            number: 0,
        }
    }

    fn lines(&mut self, piece: Extent) -> Option<&mut [Line]> {
        let first = piece.offset.checked_sub(START)? / LINE;
        let end = first.checked_add(piece.bytes / LINE)?;
        self.lines.get_mut(first as usize..end as usize)
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn held(&mut self, piece: Extent, index: IndexId, by: PeerId) {
        let number = self.next_number();
        self.takers.insert(number, by);
        self.lines(piece).unwrap().fill(Line::Held(index, number));
    }

    fn take(&mut self, chunks: &mut Chunks, index: IndexId, by: PeerId) {
        let largest = self.rests.values().filter(|(of, _)| *of == index).map(|(_, bytes)| *bytes).max();
        if let Some(piece) = chunks.take_rest(owner(index), by) {
            assert_eq!(Some(piece.bytes), largest);
            let lines = self.lines(piece).unwrap();
            let Line::Rest(of, number) = lines[0] else { panic!("{:?} is no rest", lines[0]) };
            assert!(of == index && lines.iter().all(|line| *line == lines[0]));
            self.rests.remove(&number).unwrap();
            return self.held(piece, index, by);
        }
        assert_eq!(largest, None, "a rest that is not handed out");
        let Some(reserved) = chunks.reserve() else {
            let free = self.lines.chunks((CHUNK / LINE) as usize).any(|chunk| chunk[0] == Line::Free);
            return assert!(!free, "a chunk that is not handed out");
        };
        let piece = Extent { offset: reserved.offset, bytes: CHUNK };
        assert!(self.lines(piece).unwrap().iter().all(|line| *line == Line::Free), "owned twice");
        let expected = (!self.dropped.contains(&index)).then_some(piece);
        assert_eq!(chunks.own(reserved, owner(index), by), expected);
        if expected.is_some() {
            self.held(piece, index, by);
        }
    }

    fn return_extent(&mut self, chunks: &mut Chunks, index: IndexId, by: PeerId, rest: Extent) -> bool {
        let takers = self.takers.clone();
        let fits = rest.offset.is_multiple_of(LINE)
            && rest.bytes.is_multiple_of(LINE)
            && rest.bytes >= REST_BYTES_MIN
            && self.lines(rest).is_some_and(|lines| {
                let Line::Held(of, number) = lines[0] else { return false };
                of == index && takers.get(&number) == Some(&by) && lines.iter().all(|line| *line == lines[0])
            });
        assert_eq!(chunks.return_extent(index, by, rest), fits, "{rest:?} of {index:?} by {by:?}");
        if fits {
            let number = self.next_number();
            self.rests.insert(number, (index, rest.bytes));
            self.lines(rest).unwrap().fill(Line::Rest(index, number));
        }
        fits
    }

    /// Takes a piece back as a repair does. The index may be dropped before it is zero.
    fn take_back(&mut self, chunks: &mut Chunks, index: IndexId, piece: Extent, drops: bool) -> bool {
        let in_one = piece.offset.checked_sub(START).is_some_and(|inside| {
            piece.bytes > 0 && inside / CHUNK == inside.saturating_add(piece.bytes - 1) / CHUNK
        });
        let is_held = |line: &Line| matches!(line, Line::Held(of, _) if *of == index);
        let fits = piece.offset.is_multiple_of(LINE)
            && piece.bytes.is_multiple_of(LINE)
            && piece.bytes > 0
            && in_one
            && self.lines(piece).is_some_and(|lines| lines.iter().all(is_held));
        let cleaning = match chunks.take_back(index, vec![piece]) {
            Ok(cleaning) => cleaning,
            Err(refused) => {
                assert_eq!((refused, fits), (piece, false), "{piece:?} of {index:?}");
                return false;
            }
        };
        assert!(fits, "{piece:?} of {index:?}");
        assert!(chunks.take_back(index, vec![piece]).is_err(), "it is being zeroed");
        if drops {
            self.free(chunks, index);
            let used = chunks.usage().1;
            assert_eq!(chunks.cleaned(cleaning, true), 0);
            assert_eq!(chunks.usage().1, used - CHUNK, "it is free when nothing zeroes it any more");
            return true;
        }
        assert_eq!(chunks.cleaned(cleaning, true), piece.bytes);
        if piece.bytes < REST_BYTES_MIN {
            self.lines(piece).unwrap().fill(Line::Given(index));
            return true;
        }
        let number = self.next_number();
        self.rests.insert(number, (index, piece.bytes));
        self.lines(piece).unwrap().fill(Line::Rest(index, number));
        true
    }

    /// Gives a node, if that can be: it lies in chunks of one index, and in nothing that was given back.
    fn give_nodes(
        &mut self,
        chunks: &mut Chunks,
        index: IndexId,
        node: Extent,
        random: &mut SmallRng,
    ) -> bool {
        let class = NodeClass { bytes: node.bytes, of_kind: random.random_bool(0.5) };
        let batch = NodeBatch { class, waits: Waits::Epoch(1), nodes: vec![(node.offset, None)] };
        let is_held = |line: &Line| matches!(line, Line::Held(of, _) if *of == index);
        let fits = node.offset.is_multiple_of(LINE)
            && node.bytes.is_multiple_of(LINE)
            && node.bytes > 0
            && self.lines(node).is_some_and(|lines| lines.iter().all(is_held));
        let given = chunks.give_nodes(index, batch);
        assert_eq!(given, if fits { Ok(()) } else { Err(node) }, "{node:?} of {index:?}");
        if fits {
            self.lines(node).unwrap().fill(Line::Given(index));
        }
        fits
    }

    fn take_nodes(&mut self, chunks: &mut Chunks, index: IndexId, random: &mut SmallRng) -> bool {
        let class = NodeClass {
            bytes: random.random_range(1..CHUNK / LINE) * LINE,
            of_kind: random.random_bool(0.1),
        };
        let wanted = WantedNodes { class, epoch: 9, flushed: 0, last_resort: random.random_bool(0.9) };
        let Some(batch) = chunks.take_nodes(owner(index), &wanted) else { return false };
        assert!(!wanted.class.of_kind || batch.class == class);
        assert!(!batch.class.of_kind || class.of_kind);
        for &(offset, _) in &batch.nodes {
            let (node, number) = (Extent { offset, bytes: batch.class.bytes }, self.next_number());
            let lines = self.lines(node).unwrap();
            assert!(lines.iter().all(|line| *line == Line::Given(index)), "{node:?} is handed out");
            // Nothing that a connection may give back unused.
            lines.fill(Line::Held(index, number));
        }
        true
    }

    /// Compares the list of pieces, page by page, with whose the lines are.
    fn compare(&self, chunks: &Chunks, index: IndexId, page: usize) {
        let (mut listed, mut from) = (vec![None; self.lines.len()], 0);
        loop {
            let (pieces, more) = chunks.pieces(index, from, page);
            assert!(pieces.len() <= page && (!more || !pieces.is_empty()));
            for (Extent { offset, bytes }, is_rest) in pieces {
                assert!(offset >= from && bytes > 0);
                from = offset + bytes;
                let lines = ((offset - START) / LINE) as usize..((from - START) / LINE) as usize;
                listed[lines].fill(Some(is_rest));
            }
            if !more {
                break;
            }
        }
        let expected = self.lines.iter().map(|line| match line {
            Line::Held(of, _) if *of == index => Some(false),
            Line::Rest(of, _) | Line::Given(of) if *of == index => Some(true),
            _ => None,
        });
        assert!(expected.eq(listed));
    }

    fn free(&mut self, chunks: &mut Chunks, index: IndexId) {
        let of = |line: &Line| matches!(line, Line::Held(of, _) | Line::Rest(of, _) | Line::Given(of) if *of == index);
        let bytes = self.lines.iter().filter(|line| of(line)).count() as u64 * LINE;
        assert_eq!(chunks.free_all(owner(index)), bytes);
        self.lines.iter_mut().filter(|line| of(line)).for_each(|line| *line = Line::Free);
        self.rests.retain(|_, (rest_of, _)| *rest_of != index);
        self.dropped.insert(index);
    }
}

/// Draws a piece to give back: mostly a part of one that is held, sometimes anything.
fn some_piece(random: &mut SmallRng, model: &Model) -> (IndexId, PeerId, Extent) {
    let lines = model.lines.len() as u64;
    let at = random.random_range(0..lines);
    let bytes = random.random_range(0..CHUNK / LINE + 2) * LINE;
    match model.lines[at as usize] {
        Line::Held(index, number) if random.random_bool(0.8) => {
            let end = model.lines[at as usize..].iter().position(|line| *line != Line::Held(index, number));
            let end = end.map_or(lines, |count| at + count as u64);
            // Mostly up to its end, as allocators do.
            let bytes = if random.random_bool(0.5) { (end - at) * LINE } else { bytes };
            let by = model.takers.get(&number).copied().unwrap_or(PeerId(0));
            (index, by, Extent { offset: START + at * LINE, bytes })
        }
        _ => {
            let skewed = [0, 1, 8, 32].map(|skew| if random.random_bool(0.1) { skew } else { 0 });
            let offset = (START + at * LINE).wrapping_add(skewed[1]).wrapping_sub(skewed[2] * 4096);
            let offset = if random.random_bool(0.02) { u64::MAX - 4095 } else { offset };
            let bytes = if random.random_bool(0.02) { u64::MAX - 63 } else { bytes + skewed[3] };
            let index = IndexId(random.random_range(0..4));
            (index, PeerId(random.random_range(0..4)), Extent { offset, bytes })
        }
    }
}

/// No byte is ever two owners', and what is handed out, taken back and refused is what the model says.
#[test]
fn no_byte_has_two_owners() {
    let (mut given_back, mut refused, mut taken_back) = (0, 0, 0);
    let (mut nodes_given, mut nodes_taken, mut small_taken_back) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut chunks = Chunks::new(START, START + CHUNKS * CHUNK + 4096, CHUNK);
        let mut model = Model::new();
        let mut indexes: Vec<IndexId> = (0..3).map(IndexId).collect();
        for _ in 0..400 {
            let place = random.random_range(0..indexes.len());
            let peer = PeerId(random.random_range(0..4));
            match random.random_range(0..100) {
                0..45 => model.take(&mut chunks, indexes[place], peer),
                45..60 => {
                    let (index, _, piece) = some_piece(&mut random, &model);
                    let bytes =
                        if random.random_bool(0.3) { piece.bytes % REST_BYTES_MIN } else { piece.bytes };
                    let piece = Extent { bytes, ..piece };
                    let drops = random.random_bool(0.05);
                    if model.take_back(&mut chunks, index, piece, drops) {
                        taken_back += 1;
                        small_taken_back += u64::from(bytes < REST_BYTES_MIN);
                        if drops {
                            indexes.iter_mut().filter(|other| **other == index).for_each(|other| {
                                *other = IndexId(model.dropped.len() as u32 + 2);
                            });
                        }
                    }
                    model.compare(&chunks, index, random.random_range(1..9));
                }
                60..72 => {
                    let (index, _, node) = some_piece(&mut random, &model);
                    let bytes = if random.random_bool(0.8) { node.bytes % 2048 } else { node.bytes };
                    let node = Extent { bytes, ..node };
                    nodes_given += u64::from(model.give_nodes(&mut chunks, index, node, &mut random));
                }
                72..78 => {
                    nodes_taken += u64::from(model.take_nodes(&mut chunks, indexes[place], &mut random));
                }
                78..93 => {
                    let (index, by, rest) = some_piece(&mut random, &model);
                    let taken_back = model.return_extent(&mut chunks, index, by, rest);
                    *(if taken_back { &mut given_back } else { &mut refused }) += 1;
                }
                93..96 => {
                    chunks.forget_peer(peer);
                    model.takers.retain(|_, by| *by != peer);
                }
                96..99 => {
                    model.free(&mut chunks, indexes[place]);
                    indexes[place] = IndexId(model.dropped.len() as u32 + 2);
                }
                _ => {
                    // A request that comes late.
                    if let Some(index) = model.dropped.last().copied() {
                        model.take(&mut chunks, index, peer);
                    }
                }
            }
            let taken = model.lines.chunks((CHUNK / LINE) as usize).filter(|chunk| chunk[0] != Line::Free);
            assert_eq!(chunks.usage(), (CHUNKS * CHUNK, taken.count() as u64 * CHUNK), "seed {seed}");
        }
    }
    assert!(nodes_given > 1000 && nodes_taken > 1000, "{nodes_given} nodes given, {nodes_taken} taken");
    assert!(taken_back > 1000 && small_taken_back > 1000, "{taken_back} were taken back");
    assert!(given_back > 1000 && refused > 1000, "{given_back} were given back, {refused} refused");
}
