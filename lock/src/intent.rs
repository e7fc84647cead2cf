//! An intent: what a release is about to write to a node, so that another compute node can write it if this one dies in
//! the middle. Pure: bytes in, WRITEs out. It knows neither where intents are kept nor who reads them.
//!
//! ```text
//!          63             48 47                                            0
//!         +----------------+------------------------------------------------+
//! word 0  | checksum of all that follows; 0 is no intent                    |
//! word 1  | the lock word under which the node is written                   |
//! word 2  | address of the lock word                                        |
//! word 3  | what the lock word is to be after it                            |
//! word 4  | copies         | 0              | WRITEs, 2^16 - 1: not recorded |
//! word 5  | words          | offset         |  a WRITE, as many as there are
//!         | ...                                                             |
//!         | their words, one WRITE's after the other                        |
//!         +-----------------------------------------------------------------+
//! ```
//!
//! An intent is on the server of its lock, and so is all that it WRITEs. `copies` counts takers that have written it
//! anew under a word of their own. One that is *not recorded* says that the node may be torn, and nothing of how.

use farwood_runtime::{RemotePtr, ServerId};
use xxhash_rust::xxh3::xxh3_64;

use crate::word::{LockWord, WORD_BYTES};

/// Bytes that a fabric keeps whole.
const LINE_BYTES: usize = 64;
const HEADER_BYTES: usize = 5 * WORD_BYTES;
/// The number of WRITEs of an intent that does not say which they are.
const NOT_RECORDED: u64 = u16::MAX as u64;
const OFFSET_BITS: u32 = 48;

/// A WRITE of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patch {
    /// Where it goes, on the lock's server.
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

impl Patch {
    /// Tells whether it may arrive in part.
    pub(crate) fn crosses_lines(self) -> bool {
        self.at as usize % LINE_BYTES + self.bytes > LINE_BYTES
    }

    /// Tells whether an intent can say where it goes and how long it is.
    fn fits(self) -> bool {
        let words = self.bytes / WORD_BYTES;
        self.at >> OFFSET_BITS == 0 && words <= usize::from(u16::MAX) && self.bytes.is_multiple_of(WORD_BYTES)
    }
}

/// Tells whether a node can be left half written if these WRITEs, in their order, end after any line. With
/// `whole_steps` it is whole between any two of them.
pub(crate) fn can_be_torn(patches: &[Patch], whole_steps: bool) -> bool {
    let is_torn_between = patches.len() > 1 && !whole_steps;
    is_torn_between || patches.iter().any(|patch| patch.crosses_lines())
}

/// The acquisition that an intent belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Under {
    pub(crate) lock: RemotePtr,
    pub(crate) word: LockWord,
    pub(crate) vacant: u64,
    pub(crate) copies: u16,
}

/// Counts the bytes of the intent of those WRITEs; `None` if there is none for them.
pub(crate) fn recorded_bytes(patches: &[Patch]) -> Option<usize> {
    let is_sayable = patches.len() < NOT_RECORDED as usize && patches.iter().all(|patch| patch.fits());
    let data: usize = patches.iter().map(|patch| patch.bytes).sum();
    is_sayable.then_some(HEADER_BYTES + patches.len() * WORD_BYTES + data)
}

/// Yields where the words of the WRITEs begin in their intent.
pub(crate) fn data_begins(patches: &[Patch]) -> usize {
    HEADER_BYTES + patches.len() * WORD_BYTES
}

/// Completes an intent in `bytes`, which have the words of the WRITEs already.
pub(crate) fn record(bytes: &mut [u8], under: Under, patches: &[Patch]) {
    for (place, patch) in patches.iter().enumerate() {
        let words = (patch.bytes / WORD_BYTES) as u64;
        put(bytes, HEADER_BYTES + place * WORD_BYTES, words << OFFSET_BITS | patch.at);
    }
    seal(bytes, under, patches.len() as u64);
}

/// The bytes of an intent that is not recorded.
pub(crate) const UNRECORDED_BYTES: usize = HEADER_BYTES;

/// Writes an intent that says that the node may be torn, and no more.
pub(crate) fn record_nothing(bytes: &mut [u8], under: Under) {
    seal(bytes, under, NOT_RECORDED);
}

fn seal(bytes: &mut [u8], under: Under, writes: u64) {
    let Under { lock, word, vacant, copies } = under;
    put(bytes, 8, word.to_bits());
    put(bytes, 16, lock.to_bits());
    put(bytes, 24, vacant);
    put(bytes, 32, u64::from(copies) << OFFSET_BITS | writes);
    let sum = checksum(&bytes[WORD_BYTES..]);
    put(bytes, 0, sum);
}

/// An intent that was found valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The WRITEs that finish the node, and the bytes of the intent, at whose end their words are.
    Recorded { under: Under, patches: Vec<Patch>, bytes: usize },
    /// The node may be torn, and cannot be finished.
    NotRecorded,
}

/// Yields which acquisition the intent in a slot belongs to; `None` if it holds no whole intent.
pub(crate) fn under(slot: &[u8]) -> Option<(RemotePtr, LockWord)> {
    let word = LockWord::from_bits(get(slot.get(..HEADER_BYTES)?, 8))?;
    let lock = RemotePtr::from_bits(get(slot, 16));
    parse(slot, lock, word).map(|_| (lock, word))
}

/// Parses what a slot holds. `None` unless it is a whole intent for exactly that word of that lock.
pub(crate) fn parse(slot: &[u8], lock: RemotePtr, word: LockWord) -> Option<Found> {
    if slot.len() < HEADER_BYTES || get(slot, 8) != word.to_bits() || get(slot, 16) != lock.to_bits() {
        return None;
    }
    let (copies, writes) = ((get(slot, 32) >> OFFSET_BITS) as u16, get(slot, 32) & ((1 << OFFSET_BITS) - 1));
    let is_sealed = |bytes: usize| {
        bytes <= slot.len() && get(slot, 0) != 0 && get(slot, 0) == checksum(&slot[WORD_BYTES..bytes])
    };
    if writes >= NOT_RECORDED {
        return (writes == NOT_RECORDED && is_sealed(UNRECORDED_BYTES)).then_some(Found::NotRecorded);
    }
    let data = HEADER_BYTES + writes as usize * WORD_BYTES;
    let listed = slot.get(HEADER_BYTES..data)?;
    let patches: Vec<Patch> = listed.chunks_exact(WORD_BYTES).map(patch).collect();
    let bytes = recorded_bytes(&patches)?;
    let under = Under { lock, word, vacant: get(slot, 24), copies };
    is_sealed(bytes).then_some(Found::Recorded { under, patches, bytes })
}

fn patch(listed: &[u8]) -> Patch {
    let word = get(listed, 0);
    Patch { at: word & ((1 << OFFSET_BITS) - 1), bytes: (word >> OFFSET_BITS) as usize * WORD_BYTES }
}

impl Patch {
    /// Yields the address of the WRITE.
    pub(crate) fn ptr(self, server: ServerId) -> RemotePtr {
        RemotePtr::new(server, self.at)
    }
}

/// Never 0, which is no intent.
fn checksum(bytes: &[u8]) -> u64 {
    xxh3_64(bytes).max(1)
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..][..WORD_BYTES].copy_from_slice(&word.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..][..WORD_BYTES].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::under as under_of;

    const LOCK: RemotePtr = RemotePtr::new(ServerId(3), 4096);

    fn under() -> Under {
        Under { lock: LOCK, word: LockWord::new(7, 1, 9), vacant: 5, copies: 2 }
    }

    fn patches() -> Vec<Patch> {
        vec![Patch { at: 64_000, bytes: 16 }, Patch { at: 72_000, bytes: 72 }]
    }

    /// Makes the intent of [`patches`] whose words count up, in a slot that is larger.
    fn slot() -> Vec<u8> {
        let patches = patches();
        let bytes = recorded_bytes(&patches).unwrap();
        let mut slot = vec![0xAA; 256];
        (data_begins(&patches)..bytes).for_each(|at| slot[at] = at as u8);
        record(&mut slot[..bytes], under(), &patches);
        slot
    }

    #[test]
    fn an_intent_comes_back() {
        let bytes = 40 + 2 * 8 + 16 + 72;
        assert_eq!((recorded_bytes(&patches()), data_begins(&patches())), (Some(bytes), 56));
        let found = Found::Recorded { under: under(), patches: patches(), bytes };
        assert_eq!(parse(&slot(), LOCK, under().word), Some(found.clone()));
        assert_eq!(parse(&slot()[..bytes], LOCK, under().word), Some(found));
    }

    #[test]
    fn layout_is_fixed() {
        let slot = slot();
        let words: Vec<u64> = (8..56).step_by(8).map(|at| get(&slot, at)).collect();
        let lock = 3 << 48 | 4096;
        assert_eq!(words, [0x0007_0001_0000_0009, lock, 5, 2 << 48 | 2, 2 << 48 | 64_000, 9 << 48 | 72_000]);
        assert_eq!(get(&slot, 0), xxh3_64(&slot[8..144]));
    }

    #[test]
    fn an_intent_that_is_not_whole_is_none() {
        let whole = slot();
        for at in 0..144 {
            let mut torn = whole.clone();
            torn[at] ^= 1;
            assert_eq!(parse(&torn, LOCK, under().word), None, "byte {at} is another");
        }
        for bytes in 0..144 {
            assert_eq!(parse(&whole[..bytes], LOCK, under().word), None, "{bytes} bytes of it");
        }
        let mut cleared = whole.clone();
        cleared[..8].fill(0);
        assert_eq!(parse(&cleared, LOCK, under().word), None);
    }

    #[test]
    fn an_intent_says_for_which_word_it_is() {
        let whole = slot();
        assert_eq!(under_of(&whole), Some((LOCK, under().word)));
        let mut unrecorded = vec![0; 64];
        record_nothing(&mut unrecorded[..UNRECORDED_BYTES], under());
        assert_eq!(under_of(&unrecorded), Some((LOCK, under().word)));
        let mut torn = whole.clone();
        torn[100] ^= 1;
        assert_eq!([&torn[..], &whole[..143], &whole[..8], &[0; 256]].map(under_of), [None; 4]);
    }

    #[test]
    fn an_intent_is_for_one_word_of_one_lock() {
        assert_eq!(parse(&slot(), LOCK.add(8), under().word), None);
        assert_eq!(parse(&slot(), LOCK, LockWord::new(7, 1, 10)), None);
        assert_eq!(parse(&slot(), RemotePtr::new(ServerId(2), 4096), under().word), None);
    }

    #[test]
    fn an_intent_may_say_that_nothing_is_recorded() {
        let mut slot = vec![0xAA; 64];
        record_nothing(&mut slot[..UNRECORDED_BYTES], under());
        assert_eq!(parse(&slot, LOCK, under().word), Some(Found::NotRecorded));
        for at in 0..UNRECORDED_BYTES {
            let mut torn = slot.clone();
            torn[at] ^= 1;
            assert_eq!(parse(&torn, LOCK, under().word), None, "byte {at} is another");
        }
    }

    #[test]
    fn writes_that_end_after_any_line_may_tear_a_node() {
        let patch = |at, bytes| Patch { at, bytes };
        for whole_steps in [false, true] {
            let can_be_torn = |patches: &[Patch]| can_be_torn(patches, whole_steps);
            assert!(!can_be_torn(&[]));
            assert!(![patch(64, 64), patch(72, 56), patch(120, 8)].iter().any(|&one| can_be_torn(&[one])));
            assert!([patch(72, 64), patch(64, 128)].iter().all(|&one| can_be_torn(&[one])));
            assert!(can_be_torn(&[patch(64, 8), patch(72, 64)]));
            assert_eq!(can_be_torn(&[patch(64, 8), patch(72, 8)]), !whole_steps);
        }
    }

    #[test]
    fn what_an_intent_cannot_say_is_not_recorded() {
        assert_eq!(recorded_bytes(&[Patch { at: 0, bytes: 8 << 16 }]), None, "too long");
        assert_eq!(recorded_bytes(&[Patch { at: 1 << 48, bytes: 8 }]), None, "too far");
        assert_eq!(recorded_bytes(&[Patch { at: 64, bytes: 7 }]), None, "no words");
        let longest = Patch { at: (1 << 48) - 8, bytes: (8 << 16) - 8 };
        assert_eq!(recorded_bytes(&[longest]), Some(48 + longest.bytes));
        assert_eq!(recorded_bytes(&vec![Patch { at: 0, bytes: 8 }; usize::from(u16::MAX)]), None, "too many");
    }
}
