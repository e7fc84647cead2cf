//! Memory of the copies: segments of equal size that are allocated one by one and then used again and again.
//! Knows nothing of what is in a copy.
//!
//! Copies are appended to a segment. Single slots of them may change later, which `copy` makes safe for readers; all
//! else stays. When a segment is used anew its generation goes up,
//! *after* every entry that points into it has left the table and *before* anything is overwritten:
//!
//! ```text
//! writer:  entries leave the table   generation + 1   fence   new words ..          new entries enter
//! reader:                 entry   generation   the entry is still there   words ..   fence   generation
//! ```
//!
//! A reader whose two generations are equal, and that has seen the entry once more after the first, has read
//! the copy that the entry stands for. If the entry entered after the reader's first generation, the second
//! one is newer; if it left because of a generation that the reader saw first, it is no longer there.

use std::sync::OnceLock;

use super::copy::{Copy, GRANULE_BITS};
use crate::sync::{AtomicU8, AtomicU64, Ordering, SEGMENT_BYTES_MIN, SEGMENT_SCALE, fence, prefetch};

const GRANULE_BYTES: usize = GRANULE_BITS / 8;
/// Bytes that a CPU fetches at a time.
const LINE_BYTES: usize = 64;
/// A copy has at least four granules: each has a stamp of its own.
const GRANULES_PER_STAMP: u32 = 4;
/// The budget of which 32 bits can address every granule.
const BUDGET_BYTES_MAX: usize = GRANULE_BYTES << 32;

/// The place where a copy begins: segment and granule. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) segment: u32,
    pub(super) granule: u32,
}

/// Memory for copies, or for pages of the table.
pub(super) struct Segment {
    words: Box<[AtomicU64]>,
    /// The time of each copy's last use, by its first granule.
    stamps: Box<[AtomicU8]>,
    generation: AtomicU64,
}

impl Segment {
    fn new(bytes: usize) -> Self {
        Segment {
            words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
            stamps: (0..bytes / GRANULE_BYTES / GRANULES_PER_STAMP as usize)
                .map(|_| AtomicU8::new(0))
                .collect(),
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Yields the generation, for [`Segment::is_still`] when all has been read.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Tells whether nothing that was read since the segment had this generation was overwritten.
    #[inline]
    pub(super) fn is_still(&self, generation: u64) -> bool {
        fence(Ordering::Acquire);
        self.generation.load(Ordering::Relaxed) == generation
    }

    /// Starts a new generation: readers that still read here will notice. No entry may point into the segment
    /// any more.
    pub(super) fn begin_anew(&self) {
        let generation = self.generation.load(Ordering::Relaxed);
        self.generation.store(generation + 1, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Asks for what a copy that is about to be read has beside its first words: its use stamp, and the line behind,
    /// where the slots of most are. Each would be a miss as long as that of the first words, behind it.
    #[inline]
    pub(super) fn prefetch(&self, granule: u32) {
        prefetch(self.stamp(granule));
        if let Some(word) = self.words.get(granule as usize / 2 + LINE_BYTES / 8) {
            prefetch(word);
        }
    }

    #[inline]
    pub(super) fn copy(&self, granule: u32) -> Copy<'_> {
        Copy::at(&self.words, granule as usize * GRANULE_BITS)
    }

    #[inline]
    pub(super) fn stamp(&self, granule: u32) -> &AtomicU8 {
        // The place is below the segment's end: the field that it came from has as many bits.
        &self.stamps[(granule / GRANULES_PER_STAMP) as usize]
    }
}

/// All segments, those that exist and those that the budget allows.
pub(super) struct Arena {
    segments: Box<[OnceLock<Segment>]>,
    granules_log2: u32,
    place_bits: u32,
}

impl Arena {
    pub(super) fn new(budget_bytes: usize) -> Self {
        let budget_bytes = budget_bytes.min(BUDGET_BYTES_MAX);
        let segment_bytes = (budget_bytes * SEGMENT_SCALE).isqrt().max(SEGMENT_BYTES_MIN).next_power_of_two();
        let granules_log2 = (segment_bytes / GRANULE_BYTES).ilog2();
        let segments = budget_bytes / segment_bytes;
        let place_bits = granules_log2 + segments.max(1).next_power_of_two().ilog2();
        Arena { segments: (0..segments).map(|_| OnceLock::new()).collect(), granules_log2, place_bits }
    }

    /// Yields the largest number of segments.
    pub(super) fn segments_max(&self) -> usize {
        self.segments.len()
    }

    /// Counts the granules in a segment.
    pub(super) fn granules(&self) -> u32 {
        1 << self.granules_log2
    }

    /// Counts the bytes that a segment takes.
    pub(super) fn segment_bytes(&self) -> usize {
        let words = GRANULE_BYTES << self.granules_log2;
        words + words / GRANULE_BYTES / GRANULES_PER_STAMP as usize
    }

    /// Counts the bytes that the arena takes without its segments.
    pub(super) fn directory_bytes(&self) -> usize {
        self.segments.len() * size_of::<OnceLock<Segment>>()
    }

    /// Counts the low bits of an entry that are the place; the rest is free for a tag.
    pub(super) fn place_bits(&self) -> u32 {
        self.place_bits
    }

    #[inline]
    pub(super) fn encode(&self, place: Place) -> u32 {
        place.segment.checked_shl(self.granules_log2).unwrap_or(0) | place.granule
    }

    #[inline]
    pub(super) fn decode(&self, entry: u32) -> Place {
        let place = entry & (u64::MAX >> (64 - self.place_bits)) as u32;
        Place { segment: place >> self.granules_log2, granule: place & (self.granules() - 1) }
    }

    /// Yields the segment with this number, if there is one yet.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Segment> {
        self.segments.get(number as usize)?.get()
    }

    /// Yields a segment that is known to exist.
    pub(super) fn segment(&self, number: u32) -> &Segment {
        self.get(number).expect("places are only in segments that exist")
    }

    /// Allocates the segment with this number.
    pub(super) fn add(&self, number: u32) {
        let bytes = GRANULE_BYTES << self.granules_log2;
        self.segments[number as usize].get_or_init(|| Segment::new(bytes));
    }

    /// Yields the node whose copy is at `place`. For the writer: a reader must validate.
    pub(super) fn node_at(&self, place: Place) -> u64 {
        self.segment(place.segment).copy(place.granule).node()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_survives_and_none_is_zero() {
        for budget in [0, 5_000, 1 << 20, 600_000_000, 5 << 30, usize::MAX] {
            let arena = Arena::new(budget);
            assert!(arena.place_bits() <= 32 && arena.segments_max() <= budget / SEGMENT_BYTES_MIN);
            let last = (arena.segments_max() as u32).saturating_sub(1);
            for place in [(0, 1), (last, 1), (last, arena.granules() - 1)] {
                let place = Place { segment: place.0, granule: place.1 };
                let entry = arena.encode(place);
                assert_ne!(entry, 0);
                assert_eq!(arena.decode(entry), place, "budget {budget}");
                let tagged = entry | u32::MAX.checked_shl(arena.place_bits()).unwrap_or(0);
                assert_eq!(arena.decode(tagged), place, "budget {budget}");
            }
        }
    }

    #[test]
    fn a_generation_lasts_until_the_segment_begins_anew() {
        let arena = Arena::new(SEGMENT_BYTES_MIN);
        assert!(arena.get(0).is_none());
        arena.add(0);
        let segment = arena.segment(0);
        let generation = segment.generation();
        assert!(segment.is_still(generation));
        segment.begin_anew();
        assert!(!segment.is_still(generation));
    }
}
