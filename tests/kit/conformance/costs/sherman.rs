//! Sherman's table of costs (`index/src/sherman/mod.rs`) with the bytes.

use farwood::sherman::{Options, Techniques};
use farwood::{OpKind, Switches};

use super::{Cost, Costs, Work};

/// Of usual nodes.
const LEAF_BYTES: u64 = 1024;

pub(super) fn costs(options: &Options, work: Work) -> Costs {
    let techniques = options.techniques;
    // 17 bytes of entry, widened to words: 24 or 32. With a fingerprint of its own a word more.
    let entry =
        |writes: u64| [24, 32].map(|entry| change(techniques, writes, entry + 8 * (writes - 1).min(1)));
    let mut costs = match work {
        Work::Get { .. } => vec![reads(1)],
        // 100 pairs are at most four leaves of 37.
        Work::ScanOf100 => vec![reads(4)],
        Work::Change(OpKind::Remove) => vec![change(techniques, 2, 16)],
        // With intents, an entry that goes over a line's end is two WRITEs.
        Work::Change(OpKind::Insert) if options.intent_log => [entry(2), entry(3)].concat(),
        Work::Change(OpKind::Insert) => entry(2).to_vec(),
        Work::Change(_) => entry(1).to_vec(),
        Work::VainChange(_) => vec![no_change(techniques)],
    };
    if options.intent_log && !techniques.combine {
        // An intent is taken back if no unlock is behind it.
        let with_end =
            |cost: &Cost| Cost { writes: cost.writes + 1, bytes_written: cost.bytes_written + 8, ..*cost };
        costs.extend(costs.clone().iter().map(with_end));
    }
    Costs::OneOf(costs)
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
