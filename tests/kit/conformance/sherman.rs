//! Sherman, as the body asks for it, and its table of costs (`index/src/sherman/mod.rs`) with the bytes.

use farwood::{Geometry, NodeSize, OpKind, Options, Techniques};

use super::counts::{Cost, Work};
use super::kind::{Nodes, Shape};

const LEAF_BYTES: u64 = 1024;

pub(super) fn geometry(shape: Shape) -> Geometry {
    let Shape { max_key, max_value, nodes } = shape;
    let size = match nodes {
        Nodes::Least => NodeSize::Slots { leaf: 2, inner: 3 },
        Nodes::Tiny => NodeSize::Slots { leaf: 4, inner: 4 },
        Nodes::Usual => NodeSize::Bytes(LEAF_BYTES as usize),
    };
    Geometry { max_key, max_value, size }
}

fn options(techniques: Techniques) -> Options {
    Options { techniques, ..Options::default() }
}

/// Everything on, and everything off.
pub(super) fn extremes() -> [Options; 2] {
    [Techniques::ALL, Techniques::NONE].map(options)
}

pub(super) fn mixes() -> Vec<Options> {
    let mut mixes = extremes().to_vec();
    for name in Techniques::NAMES {
        let mut techniques = Techniques::ALL;
        assert!(techniques.set(name, false));
        mixes.push(options(techniques));
    }
    mixes.push(Options { cache_bytes: 1, ..Options::default() });
    mixes
}

pub(super) fn every_mix() -> Vec<Options> {
    let mixes = (0..1u32 << Techniques::NAMES.len()).rev().map(|bits| {
        let mut techniques = Techniques::NONE;
        for (i, name) in Techniques::NAMES.into_iter().enumerate() {
            techniques.set(name, bits >> i & 1 == 1);
        }
        options(techniques)
    });
    mixes.collect()
}

/// Windows of one leaf and of many, caches that hold nothing, little and everything.
pub(super) fn scan_mixes() -> Vec<Options> {
    let mixes = [32, 2, 1].into_iter().flat_map(|scan_window| {
        [1 << 20, 1, 2000].map(|cache_bytes| Options { scan_window, cache_bytes, ..Options::default() })
    });
    mixes.collect()
}

pub(super) fn costs(techniques: Techniques, work: Work) -> Vec<Cost> {
    // 17 bytes of entry, widened to words: 24 or 32. With a fingerprint of its own a word more.
    let entries = |fingerprint: u64| {
        [24, 32].map(|entry| change(techniques, 1 + fingerprint, entry + 8 * fingerprint)).to_vec()
    };
    match work {
        Work::Get => vec![reads(1)],
        // 100 pairs are at most four leaves of 37.
        Work::ScanOf100 => vec![reads(4)],
        Work::Change(OpKind::Remove) => vec![change(techniques, 2, 16)],
        Work::Change(OpKind::Insert) => entries(1),
        Work::Change(_) => entries(0),
        Work::VainChange => vec![no_change(techniques)],
    }
}

fn reads(leaves: u64) -> Cost {
    Cost { round_trips: 1, reads: leaves, bytes_read: leaves * LEAF_BYTES, ..Cost::default() }
}

/// What a change costs, with the techniques' part of the table spelled out.
fn change(techniques: Techniques, patch_writes: u64, patch_bytes: u64) -> Cost {
    let Techniques { fused, combine, two_level, .. } = techniques;
    let (writes, bytes) = if two_level { (patch_writes, patch_bytes) } else { (1, LEAF_BYTES) };
    Cost {
        round_trips: if fused { 1 } else { 2 } + if combine { 1 } else { 2 },
        writes: writes + 1,
        cas: 1,
        bytes_written: bytes + 8,
        ..reads(1)
    }
}

/// What a change without effect costs: the lock is given back in a chain of its own.
fn no_change(techniques: Techniques) -> Cost {
    let round_trips = if techniques.fused { 2 } else { 3 };
    Cost { round_trips, writes: 1, cas: 1, bytes_written: 8, ..reads(1) }
}

/// The figures of the table themselves, so that they stand somewhere as numbers.
#[test]
fn the_table() {
    let without = |names: &[&str]| {
        let mut techniques = Techniques::ALL;
        for name in names {
            assert!(techniques.set(name, false));
        }
        techniques
    };
    assert_eq!(change(Techniques::ALL, 1, 24).round_trips, 2);
    assert_eq!(change(without(&["fused"]), 1, 24).round_trips, 3);
    assert_eq!(change(without(&["fused", "combine"]), 1, 24).round_trips, 4);
    assert_eq!(change(Techniques::NONE, 1, 24).round_trips, 4);
    assert_eq!(change(without(&["two_level"]), 1, 24).bytes_written, 1032);
}
