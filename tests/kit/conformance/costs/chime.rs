//! CHIME's table of costs (`index/src/chime/mod.rs`) with bounds of the bytes: they depend on where a key's home is.

use farwood::OpKind;
use farwood::chime::Techniques;

use super::{Cost, Costs, Work};

/// Of usual nodes.
const LEAF_BYTES: u64 = 1408;
/// A neighbourhood with its replica, at the most.
const NEIGHBOURHOOD: u64 = 184;
/// The words of lock, vacancies and sum, or the header, and what lies between if they are read in one.
const ASIDE: u64 = 96;
/// An entry, widened to words.
const ENTRY: u64 = 24;
/// An entry write from a home to the end of its neighbourhood.
const ENTRIES: u64 = 8 * 20 + 32;
const WORD: u64 = 8;
/// Keys that hop for another one, at the most: where intents are kept, each is a WRITE of its own.
const HOPS: u64 = 8;
/// The half of a line with the words.
const WORDS: u64 = 32;
/// A block of a pair of 8 + 8 bytes, as a scan reads it.
const BLOCK: u64 = 64;
/// Its part with the key, and that with the pair.
const BLOCK_KEY: u64 = 16;
const BLOCK_PAIR: u64 = 24;
/// The leaves that a scan of 100 pairs reads at the least and at the most, and their pairs at the most.
const SCANNED: (u64, u64) = (3, 9);
const PAIRS_PER_LEAF: u64 = 45;

/// Yields the costs on an indirect tree, whose pairs of 8 + 8 bytes lie in blocks beside their leaves: those of an
/// inline one, whose entries are as large, and of the blocks.
pub(super) fn indirect(techniques: Techniques, work: Work) -> Costs {
    // No leaf is speculated upon.
    let techniques = Techniques { speculative: false, ..techniques };
    let (least, most) = match costs(techniques, work) {
        Costs::Between(least, most) => (least, most),
        Costs::OneOf(_) => unreachable!("the table has bounds"),
    };
    let read = |bytes_read| Cost { round_trips: 1, reads: 1, bytes_read, ..Cost::default() };
    let wrote = Cost { writes: 1, bytes_written: BLOCK_PAIR, ..Cost::default() };
    let both = |more: Cost| Costs::Between(least.and(&more), most.and(&more));
    match work {
        // A neighbourhood, and no less.
        Work::Get { present: true } => {
            let neighbourhood = Cost { bytes_read: NEIGHBOURHOOD - 32, ..least };
            Costs::Between(neighbourhood.and(&read(BLOCK_PAIR)), most.and(&read(BLOCK_PAIR)))
        }
        Work::Get { present: false } => Costs::Between(least, most),
        Work::ScanOf100 => {
            let of_blocks = |round_trips, blocks| Cost {
                round_trips,
                reads: blocks,
                bytes_read: blocks * BLOCK,
                ..Cost::default()
            };
            let (fewest, leaves) = SCANNED;
            let blocks = of_blocks(2, leaves * PAIRS_PER_LEAF);
            Costs::Between(least.and(&of_blocks(1, fewest * (PAIRS_PER_LEAF - 1))), most.and(&blocks))
        }
        Work::Change(OpKind::Insert) => both(wrote),
        // The entry stays as it is.
        Work::Change(OpKind::Update) => {
            let least = Cost { writes: 2, bytes_written: BLOCK_PAIR + WORD, ..least };
            let most = Cost { writes: 2, bytes_written: BLOCK_PAIR + WORD, ..most };
            Costs::Between(least.and(&read(BLOCK_KEY)), most.and(&read(BLOCK_KEY)))
        }
        Work::Change(_) | Work::VainChange(OpKind::Insert) => both(read(BLOCK_KEY)),
        Work::VainChange(_) => Costs::Between(least, most),
    }
}

pub(super) fn costs(techniques: Techniques, work: Work) -> Costs {
    let (get, update) = (reads(1, techniques), 2 + u64::from(!techniques.fused));
    // The words, where they come with the lock and the rest does not: by a READ or a masked CAS.
    let apart = u64::from(techniques.piggyback && !techniques.fused);
    let change = |writes: u64, bytes: u64, cas: u64| Cost {
        round_trips: update,
        reads: get.reads + apart,
        writes,
        cas,
        bytes_read: get.bytes_read + apart * WORDS,
        bytes_written: bytes,
        ..get
    };
    let least = |least: Cost| Cost { reads: 1, bytes_read: ENTRY, ..least };
    let between = |most: Cost, fewest: Cost| Costs::Between(least(fewest), most);
    match work {
        Work::Get { present: true } => between(get, get),
        Work::Get { present: false } => between(reads(2, techniques), get),
        // 100 pairs are three leaves of 44, or one more: then there is a second window, of twice as many.
        Work::ScanOf100 => {
            let scan = |round_trips, reads| Cost {
                round_trips,
                reads,
                bytes_read: reads * LEAF_BYTES,
                ..Cost::default()
            };
            Costs::Between(scan(1, 3), scan(2, 9))
        }
        // The entry, which may be around the table's end or go to a vacancy that keys have made by hops, and the words
        // with the lock. Without `piggyback` an insert reads the leaf.
        Work::Change(OpKind::Insert) => {
            let most = change(3 + HOPS, LEAF_BYTES + HOPS * (ENTRY + WORD), 1);
            let most = Cost { round_trips: update + 1, reads: 6, bytes_read: 2 * LEAF_BYTES, ..most };
            between(most, change(2, ENTRY + 3 * WORD, 1))
        }
        Work::Change(OpKind::Remove) => between(change(3, ENTRIES + 3 * WORD, 1), change(2, 4 * WORD, 1)),
        Work::Change(_) => between(change(2, ENTRY + 2 * WORD, 1), change(2, ENTRY + WORD, 1)),
        Work::VainChange(_) => {
            let most = Cost { reads: 6, bytes_read: 2 * LEAF_BYTES, ..change(1, WORD, 1) };
            between(most, change(1, WORD, 1))
        }
    }
}

/// Counts second reads at the most: a key is absent by one READ that is shorter than the interval between two writes,
/// as in this process, or by two.
pub(super) fn second_looks_max(work: Work) -> u64 {
    u64::from(matches!(work, Work::Get { present: false }))
}

/// Yields the most that a get reads in so many round trips: a neighbourhood, which may be two parts, and the header.
fn reads(round_trips: u64, Techniques { hopscotch, .. }: Techniques) -> Cost {
    let bytes_read = if hopscotch { NEIGHBOURHOOD + ASIDE } else { LEAF_BYTES };
    Cost { round_trips, reads: 3 * round_trips, bytes_read: bytes_read * round_trips, ..Cost::default() }
}
