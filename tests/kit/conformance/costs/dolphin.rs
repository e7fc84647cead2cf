//! Dolphin's table of costs (`index/src/dolphin/mod.rs`), with bounds: a shard shares locks when it has a lane, and has
//! them alone before.

use farwood::OpKind;
use farwood::dolphin::Techniques;

use super::{Cost, Costs, Work};

/// Of usual nodes.
const LEAF_BYTES: u64 = 1024;
const KEYS_BYTES: u64 = 512;
const WORD: u64 = 8;

pub(super) fn costs(Techniques { shared_updates, fused, .. }: Techniques, work: Work) -> Costs {
    let leaf = Cost { round_trips: 1, reads: 2, bytes_read: LEAF_BYTES, ..Cost::default() };
    let between = |least: Cost, most: Cost| Costs::Between(least, most);
    // The lock's word is cleared by a CAS, or by a WRITE.
    let round_trips = 2 + u64::from(!fused);
    let alone = |writes: u64, bytes: u64| Cost { round_trips, writes, cas: 1, bytes_written: bytes, ..leaf };
    let with_unlock = |cost: Cost| Cost {
        writes: cost.writes + 1,
        cas: cost.cas + 1,
        bytes_written: cost.bytes_written + WORD,
        ..cost
    };
    match work {
        Work::Get { .. } => between(leaf, leaf),
        // Three leaves or four, in windows of two and more, of which the last may read some for nothing.
        Work::ScanOf100 => {
            let scan = |round_trips, leaves| Cost { round_trips, ..leaf.times(leaves) };
            between(scan(1, 3), scan(3, 8))
        }
        // A put that finds no value gives the shared lock back and takes it alone. A key that was removed takes a write
        // of the whole leaf, with its mark.
        Work::Change(OpKind::Insert) => {
            let shared = Cost { round_trips: 2, reads: 2, faa: 2, bytes_read: KEYS_BYTES, ..Cost::default() };
            let whole = with_unlock(with_unlock(alone(3, LEAF_BYTES + WORD)));
            between(alone(2, 2 * WORD), with_unlock(whole.and(&shared)))
        }
        Work::Change(OpKind::Remove) => {
            let least = Cost { bytes_read: KEYS_BYTES, ..alone(1, WORD) };
            between(least, with_unlock(least))
        }
        Work::Change(_) if !shared_updates => between(alone(1, WORD), with_unlock(alone(1, WORD))),
        Work::Change(_) => {
            let least = Cost {
                round_trips: 2,
                reads: 2,
                writes: 1,
                bytes_read: KEYS_BYTES,
                bytes_written: WORD,
                ..Cost::default()
            };
            let most = Cost { faa: 2, ..with_unlock(alone(1, WORD)) };
            between(least, most)
        }
        Work::VainChange(OpKind::Remove) => {
            let least = Cost { bytes_read: KEYS_BYTES, ..alone(0, 0) };
            between(least, with_unlock(least))
        }
        Work::VainChange(op) if !(shared_updates && op == OpKind::Update) => {
            between(alone(0, 0), with_unlock(alone(0, 0)))
        }
        Work::VainChange(_) => {
            let least = Cost { round_trips: 1, reads: 2, bytes_read: KEYS_BYTES, ..Cost::default() };
            between(least, Cost { faa: 2, ..with_unlock(alone(0, 0)) })
        }
    }
}
