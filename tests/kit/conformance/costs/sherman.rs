//! Sherman's table of costs (`index/src/sherman/mod.rs`) with the bytes.

use farwood::sherman::Techniques;
use farwood::{OpKind, Switches};

use super::{Cost, Costs, Work};

/// Of usual nodes.
const LEAF_BYTES: u64 = 1024;

pub(super) fn costs(techniques: Techniques, work: Work) -> Costs {
    // 17 bytes of entry, widened to words: 24 or 32. With a fingerprint of its own a word more.
    let entries = |fingerprint: u64| {
        [24, 32].map(|entry| change(techniques, 1 + fingerprint, entry + 8 * fingerprint)).to_vec()
    };
    Costs::OneOf(match work {
        Work::Get { .. } => vec![reads(1)],
        // 100 pairs are at most four leaves of 37.
        Work::ScanOf100 => vec![reads(4)],
        Work::Change(OpKind::Remove) => vec![change(techniques, 2, 16)],
        Work::Change(OpKind::Insert) => entries(1),
        Work::Change(_) => entries(0),
        Work::VainChange(_) => vec![no_change(techniques)],
    })
}

fn reads(leaves: u64) -> Cost {
    Cost { round_trips: 1, reads: leaves, bytes_read: leaves * LEAF_BYTES, ..Cost::default() }
}

/// Yields the cost of a change, with the techniques' part of the table spelled out.
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

/// Yields the cost of a change without effect: the lock is given back in a chain of its own.
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
