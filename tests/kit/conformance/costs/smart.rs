//! SMART's table of costs (`index/src/smart/mod.rs`) with the bytes.

use farwood::OpKind;
use farwood::smart::Techniques;

use super::{Cost, Costs, Work};

/// A leaf: link, body word, key, value, the rest of a line, and the lock.
const LEAF_BYTES: u64 = 64;
const LOCK_BYTES: u64 = 8;
const LINK_BYTES: u64 = 8;
/// Bytes of a leaf that a get reads: up to the end of the value.
const LOOKUP_BYTES: u64 = 32;
/// Inner nodes above the leaves, of which the last one has fewer of them: their types have 190 and 46 slots.
const INNER_BYTES: [u64; 2] = [16 + 8 * 190, 16 + 8 * 46];
/// All of them, the root included.
const INNER_NODES: u64 = 8000u64.div_ceil(256) + 1;
const CAS: Cost = Cost { cas: 1, ..NOTHING };
const NOTHING: Cost =
    Cost { round_trips: 0, reads: 0, writes: 0, cas: 0, faa: 0, bytes_read: 0, bytes_written: 0 };

pub(super) fn costs(techniques: Techniques, work: Work) -> Costs {
    match work {
        Work::Get { present: true } => Costs::OneOf(vec![read(LOOKUP_BYTES)]),
        Work::Get { present: false } => Costs::OneOf(INNER_BYTES.map(read).to_vec()),
        Work::ScanOf100 => scan_of_100(),
        Work::Change(OpKind::Insert) => Costs::OneOf(vec![insert(techniques)]),
        Work::Change(OpKind::Remove) => Costs::OneOf(vec![remove()]),
        Work::Change(_) => Costs::OneOf(vec![update(techniques)]),
        Work::VainChange(OpKind::Insert) => Costs::OneOf(vec![read(LEAF_BYTES - LOCK_BYTES)]),
        Work::VainChange(_) => Costs::OneOf(INNER_BYTES.map(read).to_vec()),
    }
}

/// Counts second reads: a key without a slot in a cached node has perhaps one by now.
pub(super) fn second_looks(work: Work) -> u64 {
    match work {
        Work::Get { present: false } | Work::VainChange(OpKind::Update | OpKind::Remove) => 1,
        _ => 0,
    }
}

fn read(bytes: u64) -> Cost {
    Cost { round_trips: 1, reads: 1, bytes_read: bytes, ..NOTHING }
}

fn write(bytes: u64) -> Cost {
    Cost { round_trips: 1, writes: 1, bytes_written: bytes, ..NOTHING }
}

/// Yields the cost of verbs in chains of others, or not awaited.
fn along(cost: Cost) -> Cost {
    Cost { round_trips: 0, ..cost }
}

fn sum<const N: usize>(parts: [Cost; N]) -> Cost {
    parts.iter().fold(NOTHING, |sum, part| sum.and(part))
}

/// Yields a round trip more where two are not fused.
fn unless(fused: bool) -> Cost {
    Cost { round_trips: u64::from(!fused), ..NOTHING }
}

fn update(techniques: Techniques) -> Cost {
    let Techniques { in_place_leaves, rear_lock, fused, .. } = techniques;
    let body = LEAF_BYTES - LOCK_BYTES;
    match (in_place_leaves, rear_lock) {
        (true, true) => sum([CAS, unless(fused), read(body), write(LEAF_BYTES - LINK_BYTES)]),
        (true, false) => sum([CAS, unless(fused), read(body), write(body - LINK_BYTES), write(LOCK_BYTES)]),
        // A new leaf with the CAS that shows it, and a hint.
        (false, _) => sum([read(body), write(LEAF_BYTES), unless(fused), CAS, along(CAS)]),
    }
}

fn insert(techniques: Techniques) -> Cost {
    let Techniques { lock_free_nodes, fused, .. } = techniques;
    let new_leaf = sum([write(LEAF_BYTES), unless(fused), CAS]);
    match lock_free_nodes {
        true => new_leaf,
        false => sum([new_leaf, CAS, write(LOCK_BYTES), unless(false)]),
    }
}

/// Yields the leaves, and of the inner nodes at least the root and the one or two that lead to them, but also those
/// behind: whether they are needed is only known when the ones before were read.
fn scan_of_100() -> Costs {
    let leaves = Cost { reads: 100, bytes_read: 100 * (LEAF_BYTES - LOCK_BYTES), ..NOTHING };
    let inner = |nodes| Cost { reads: nodes, bytes_read: nodes * INNER_BYTES[0], ..NOTHING };
    let round_trips = |n| Cost { round_trips: n, ..NOTHING };
    let last = Cost { reads: 1, bytes_read: INNER_BYTES[1], ..NOTHING };
    Costs::Between(sum([leaves, last, round_trips(3)]), sum([leaves, inner(INNER_NODES), round_trips(4)]))
}

fn remove() -> Cost {
    let link = Cost { round_trips: 1, ..CAS };
    sum([read(LEAF_BYTES - LOCK_BYTES), link, along(CAS)])
}
