//! Where frequently read keys lie in their leaves (CHIME section 4.3, figure 11): a get of one reads its entry alone
//! instead of a neighbourhood. Shared by the shards of a compute node, without locks. It knows no leaves and no tree:
//! how large it should be is for its owner to say.
//!
//! ```text
//! set:      spot, spot, .. 8 of them: one line of 64 bytes       chosen by the key's hash
//! spot       63         24 23                12 11        0
//!           +-------------+--------------------+-----------+
//!           | fingerprint | slot in the leaf   | heat      |     one word; 0 is none
//!           +-------------+--------------------+-----------+
//! ```
//!
//! The paper's entry is 16 bytes with the leaf's address, two bytes of fingerprint and a counter, found by a map
//! beside it. Here leaf and key together make a fingerprint of 39 bits (its lowest is always set), and a wrong spot
//! costs its reader what an outdated one does, a round trip. So a spot takes 8 bytes in all. The set is the key's
//! alone, so what finds room does not depend on where leaves lie.
//!
//! A new spot takes the place of the coldest one of the set, if that is as cold as a new one. Each key that is no
//! hotspot yet cools down some spot of its set, so that what was hot long ago leaves (the paper's counters only grow).
//! Shards that write one word at the same time lose one of their updates, which costs some heat or a spot: no reader
//! relies on either.
//!
//! It grows by doubling. A set is chosen within the first part, and bits of the hash, one more after each doubling,
//! choose the part: so half of the spots are found where they were, and the others are learned anew.
//!
//! ```text
//! chosen   0        1        2, 3               4, 5, 6, 7
//!         +--------+--------+-----------------+-----------------------------------+
//!         | part 0 | part 1 | part 2          | part 3                            |   after three doublings
//!         +--------+--------+-----------------+-----------------------------------+
//! ```

use std::iter;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const WAYS: usize = 8;
const HEAT_BITS: u32 = 12;
const SLOT_BITS: u32 = 12;
const HEAT_MAX: u64 = (1 << HEAT_BITS) - 1;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// Of a spot that cools down this part of its heat is lost, and one more.
const COOLING: u64 = 16;
const FINGERPRINT_SHIFT: u32 = HEAT_BITS + SLOT_BITS;
/// Sets that a buffer begins with, if its budget has room for them.
const SETS_MIN: usize = 64;
const PARTS_MAX: usize = 24;
/// Of so many new keys that find no room one tells that the buffer is crowded.
const CROWDED_PART: u64 = 64;
/// Bits of a hash that are in the fingerprint; those above choose the part.
const FINGERPRINT_BITS: u32 = u64::BITS - FINGERPRINT_SHIFT;

/// One line of spots.
#[repr(align(64))]
#[derive(Default)]
struct Set([AtomicU64; WAYS]);

/// The hotspots of an index, as one compute node knows them.
pub struct HotspotBuffer {
    /// Each has as many sets as all before it; those in use are made.
    parts: [OnceLock<Box<[Set]>>; PARTS_MAX],
    /// Sets of the first part.
    first: usize,
    /// Parts in use.
    used: AtomicUsize,
    /// Parts that the budget has room for.
    parts_max: usize,
}

impl HotspotBuffer {
    /// The largest slot that a spot can have.
    pub const SLOT_MAX: usize = SLOT_MASK as usize;

    /// Makes an empty buffer that grows to `budget_bytes` at most ([`HotspotBuffer::grow`]). One with a budget of less
    /// than a line remembers nothing.
    ///
    /// ```
    /// # use farwood_cache::HotspotBuffer;
    /// assert_eq!(HotspotBuffer::new(1000).bytes(), 960, "lines of 64");
    /// assert_eq!(HotspotBuffer::new(1 << 20).bytes(), 4096);
    /// ```
    pub fn new(budget_bytes: usize) -> Self {
        let sets = budget_bytes / size_of::<Set>();
        let doublings = (sets / SETS_MIN).checked_ilog2().unwrap_or(0).min(PARTS_MAX as u32 - 1);
        let buffer = HotspotBuffer {
            parts: [const { OnceLock::new() }; PARTS_MAX],
            first: sets >> doublings,
            used: AtomicUsize::new(0),
            parts_max: doublings as usize + 1,
        };
        buffer.add_part();
        buffer
    }

    /// Counts the bytes that it takes now.
    ///
    /// ```
    /// # use farwood_cache::HotspotBuffer;
    /// let buffer = HotspotBuffer::new(1 << 12);
    /// buffer.met(640, 0x9e37_79b9_7f4a_7c15, 17);
    /// assert_eq!(buffer.bytes(), 1 << 12, "empty or not");
    /// ```
    pub fn bytes(&self) -> usize {
        (self.first << (self.used.load(Ordering::Relaxed) - 1)) * size_of::<Set>()
    }

    /// Doubles the buffer until it takes `bytes`, or as much of its budget as it can. About half of the spots are
    /// forgotten with each doubling.
    ///
    /// ```
    /// # use farwood_cache::HotspotBuffer;
    /// let buffer = HotspotBuffer::new(1 << 16);
    /// buffer.grow(10_000);
    /// assert_eq!(buffer.bytes(), 16_384);
    /// buffer.grow(1 << 20);
    /// assert_eq!(buffer.bytes(), 1 << 16, "its budget");
    /// ```
    pub fn grow(&self, bytes: usize) {
        while self.bytes() < bytes && self.used.load(Ordering::Relaxed) < self.parts_max {
            self.add_part();
        }
    }

    /// Two shards that add the same part do not wait for each other: one of them throws its own away.
    fn add_part(&self) {
        let used = self.used.load(Ordering::Relaxed);
        let sets = if used == 0 { self.first } else { self.first << (used - 1) };
        let _ = self.parts[used].set(iter::repeat_with(Set::default).take(sets).collect());
        self.used.fetch_max(used + 1, Ordering::Relaxed);
    }

    /// Yields the slot where the key with this hash, of 64 even bits, was last met in the leaf at `leaf`, if it is a
    /// hotspot.
    ///
    /// ```
    /// use farwood_cache::HotspotBuffer;
    ///
    /// let buffer = HotspotBuffer::new(1 << 12);
    /// buffer.met(640, 0x9e37_79b9_7f4a_7c15, 17);
    /// assert_eq!(buffer.find(640, 0x9e37_79b9_7f4a_7c15), Some(17));
    /// assert_eq!(buffer.find(704, 0x9e37_79b9_7f4a_7c15), None);
    /// ```
    #[inline]
    pub fn find(&self, leaf: u64, hash: u64) -> Option<usize> {
        let (set, fingerprint) = self.place(leaf, hash)?;
        let spot =
            set.0.iter().map(|spot| spot.load(Ordering::Relaxed)).find(|spot| is_of(*spot, fingerprint))?;
        Some((spot >> HEAT_BITS & SLOT_MASK) as usize)
    }

    /// Notes that the key with this hash was met in `slot` of the leaf at `leaf`: it is hotter by one, or new there.
    /// Tells whether the buffer is crowded: of new keys that find spots of other keys in all places, one in 64 does.
    ///
    /// ```
    /// # use farwood_cache::HotspotBuffer;
    /// let buffer = HotspotBuffer::new(1 << 12);
    /// assert!(!buffer.met(640, 0x9e37_79b9_7f4a_7c15, 17));
    /// buffer.met(640, 0x9e37_79b9_7f4a_7c15, 18);
    /// assert_eq!(buffer.find(640, 0x9e37_79b9_7f4a_7c15), Some(18), "it has moved");
    /// ```
    ///
    /// # Panics
    /// If the slot is above [`HotspotBuffer::SLOT_MAX`].
    #[inline]
    pub fn met(&self, leaf: u64, hash: u64, slot: usize) -> bool {
        assert!(slot <= Self::SLOT_MAX, "a leaf has fewer slots");
        let Some((set, fingerprint)) = self.place(leaf, hash) else { return false };
        let new = |heat| fingerprint << FINGERPRINT_SHIFT | (slot as u64) << HEAT_BITS | heat;
        let mut coldest = (&set.0[0], u64::MAX);
        for spot in &set.0 {
            let word = spot.load(Ordering::Relaxed);
            if is_of(word, fingerprint) {
                let heat = word & HEAT_MAX;
                let moved = word >> HEAT_BITS & SLOT_MASK != slot as u64;
                // The hottest ones are written no more: their line stays in all caches.
                if moved || heat < HEAT_MAX {
                    spot.store(new(if moved { 1 } else { heat + 1 }), Ordering::Relaxed);
                }
                return false;
            }
            if word & HEAT_MAX < coldest.1 & HEAT_MAX {
                coldest = (spot, word);
            }
        }
        let (coldest, displaced) = coldest;
        if displaced & HEAT_MAX <= 1 {
            coldest.store(new(1), Ordering::Relaxed);
        }
        // Any of them, by bits that are as good as random: also those that were hot long ago.
        let other = &set.0[hash as usize % WAYS];
        let word = other.load(Ordering::Relaxed);
        let heat = word & HEAT_MAX;
        if heat > 1 {
            other.store(word - 1 - heat / COOLING, Ordering::Relaxed);
        }
        displaced != 0 && (hash / WAYS as u64).is_multiple_of(CROWDED_PART)
    }

    /// Forgets where the key with this hash was in the leaf at `leaf`: it was not there.
    ///
    /// ```
    /// # use farwood_cache::HotspotBuffer;
    /// let buffer = HotspotBuffer::new(1 << 12);
    /// buffer.met(640, 0x9e37_79b9_7f4a_7c15, 17);
    /// buffer.missed(640, 0x9e37_79b9_7f4a_7c15);
    /// assert_eq!(buffer.find(640, 0x9e37_79b9_7f4a_7c15), None);
    /// ```
    pub fn missed(&self, leaf: u64, hash: u64) {
        let Some((set, fingerprint)) = self.place(leaf, hash) else { return };
        for spot in &set.0 {
            if is_of(spot.load(Ordering::Relaxed), fingerprint) {
                spot.store(0, Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn place(&self, leaf: u64, hash: u64) -> Option<(&Set, u64)> {
        let within = ((u128::from(hash) * self.first as u128) >> 64) as usize;
        let parts = 1 << (self.used.load(Ordering::Relaxed) - 1);
        let chosen = (hash >> FINGERPRINT_BITS) as usize & (parts - 1);
        let (part, before) = chosen.checked_ilog2().map_or((0, 0), |bit| (bit as usize + 1, 1 << bit));
        // An odd constant spreads addresses, which differ in few bits, over all of them.
        let mixed = (hash ^ leaf).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Never 0: that is no spot.
        let fingerprint = (mixed ^ mixed >> 32) & (u64::MAX >> FINGERPRINT_SHIFT) | 1;
        Some((self.parts[part].get()?.get((chosen - before) * self.first + within)?, fingerprint))
    }
}

#[inline]
fn is_of(spot: u64, fingerprint: u64) -> bool {
    spot >> FINGERPRINT_SHIFT == fingerprint
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn a_budget_is_kept() {
        for budget in [0, 63, 64, 1000, 1 << 20] {
            let buffer = HotspotBuffer::new(budget);
            buffer.grow(usize::MAX);
            assert!(buffer.bytes() <= budget && budget - buffer.bytes() < 64);
            buffer.met(64, 1, 3);
            assert_eq!(buffer.find(64, 1).is_some(), budget >= 64);
            buffer.missed(64, 1);
            assert_eq!(buffer.find(64, 1), None);
        }
    }

    #[test]
    fn a_key_that_moves_is_found_where_it_is() {
        let buffer = HotspotBuffer::new(64);
        for slot in [3, 3, 3, 9, HotspotBuffer::SLOT_MAX] {
            buffer.met(640, 77, slot);
            assert_eq!(buffer.find(640, 77), Some(slot));
        }
    }

    #[test]
    fn a_buffer_that_grows_keeps_a_part_of_its_spots() {
        let mut rng = SmallRng::seed_from_u64(3);
        let buffer = HotspotBuffer::new(1 << 20);
        let keys: Vec<u64> = (0..256).map(|_| rng.random()).collect();
        let crowded = keys.iter().filter(|key| buffer.met(64, **key, 1)).count();
        assert_eq!(crowded, 0, "512 spots");
        buffer.grow(buffer.bytes() + 1);
        assert_eq!(buffer.bytes(), 2 * SETS_MIN * size_of::<Set>());
        let kept = keys.iter().filter(|key| buffer.find(64, **key) == Some(1)).count();
        assert!((96..160).contains(&kept), "{kept}");
        assert!((0..10_000).any(|_| buffer.met(64, rng.random(), 1)), "1,024 spots");
        // Each part is used.
        buffer.grow(usize::MAX);
        (0..200_000).for_each(|_| _ = buffer.met(64, rng.random(), 1));
        let taken = |set: &Set| set.0.iter().any(|spot| spot.load(Ordering::Relaxed) != 0);
        let parts = &buffer.parts[..buffer.parts_max];
        assert!(parts.iter().all(|part| part.get().unwrap().iter().all(taken)));
    }

    /// One key in 64 is read as often as all others together: those keys stay.
    #[test]
    fn hot_keys_stay_and_what_was_hot_goes() {
        let mut rng = SmallRng::seed_from_u64(1);
        let buffer = HotspotBuffer::new(64 * 64);
        let keys: Vec<u64> = (0..16_384).map(|_| rng.random()).collect();
        let mut read = |hot: std::ops::Range<usize>, reads: usize| {
            let mut found = 0;
            for n in 0..reads {
                let key =
                    if n % 2 == 0 { rng.random_range(hot.clone()) } else { rng.random_range(0..keys.len()) };
                found += usize::from(n % 2 == 0 && buffer.find(64, keys[key]).is_some());
                buffer.met(64, keys[key], key % 64);
            }
            found as f64 / (reads / 2) as f64
        };
        read(0..256, 100_000);
        let before = read(0..256, 100_000);
        read(1024..1280, 200_000);
        let after = read(1024..1280, 100_000);
        assert!(before > 0.9 && after > 0.9, "{before} {after}");
    }

    #[test]
    fn different_keys_are_told_apart() {
        let mut rng = SmallRng::seed_from_u64(2);
        let buffer = HotspotBuffer::new(1 << 16);
        buffer.grow(1 << 16);
        for _ in 0..100_000 {
            buffer.met(64 * rng.random_range(1..1000), rng.random(), 5);
        }
        let wrong = (0..100_000).filter(|_| buffer.find(64 * 7, rng.random()).is_some()).count();
        assert_eq!(wrong, 0, "of 2^39 fingerprints");
    }
}
