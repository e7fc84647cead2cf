//! The vacancy word of a leaf: where a new key finds room (CHIME section 4.2.1). Pure; it belongs to the holder of the
//! leaf's lock.
//!
//! ```text
//!  63                                0
//! +-----------------------------------+
//! | bit i: group i has a vacant slot  |
//! +-----------------------------------+
//! ```
//!
//! The paper's 63 bits stand beside one bit that is the lock; ours beside a whole word of the lock, which names its
//! owner. Where there are more slots than bits, a group has several, as evenly as possible.

use super::Ring;

const BITS: usize = 64;

/// Knowledge of the lock's holder about the slots that it has not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vacancy(u64);

impl Vacancy {
    /// The most slots of a leaf.
    pub const SLOTS_MAX: usize = 4096;

    /// Makes the word of a leaf all of whose slots are known.
    pub(super) fn new(ring: Ring, is_vacant: impl Fn(usize) -> bool) -> Self {
        let vacant = (0..ring.slots).filter(|slot| is_vacant(*slot));
        Vacancy(vacant.fold(0, |groups, slot| groups | 1 << group_of(ring, slot)))
    }

    /// Reads the word; all have a meaning.
    pub(super) fn from_bits(bits: u64) -> Self {
        Vacancy(bits)
    }

    /// Yields the word.
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    /// Changes the bits of those groups that the ring's slots from `from` on, so many of them, have whole.
    #[must_use]
    pub(super) fn updated(
        self,
        ring: Ring,
        (from, count): (usize, usize),
        is_vacant: impl Fn(usize) -> bool,
    ) -> Self {
        let mut bits = self.0;
        for steps in 0..count {
            let slot = ring.ahead(from, steps);
            let bit = 1 << group_of(ring, slot);
            if is_vacant(slot) {
                bits |= bit;
                continue;
            }
            // With a bit a slot, the group is the slot.
            if ring.slots <= BITS {
                bits &= !bit;
                continue;
            }
            let mut others = (0..ring.slots).filter(|other| group_of(ring, *other) == group_of(ring, slot));
            if others.all(|other| ring.distance(from, other) < count && !is_vacant(other)) {
                bits &= !bit;
            }
        }
        Vacancy(bits)
    }

    /// Counts the slots that are taken: all of them if each has a bit of its own, else at least so many.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// assert_eq!(layout.vacancy(&image).taken(layout.ring()), 2);
    /// # });
    /// ```
    pub fn taken(self, ring: Ring) -> usize {
        if ring.slots <= BITS {
            return ring.slots.saturating_sub(self.0.count_ones() as usize);
        }
        (0..ring.slots).filter(|slot| self.0 >> group_of(ring, *slot) & 1 == 0).count()
    }

    /// Counts the slots from `home` on that have a vacancy among them if their first `full` have none. None if there is
    /// no other vacancy. As right as the word is.
    ///
    /// ```
    /// # farwood_doctest::hop_leaf!(|layout, image| {
    /// let (ring, vacancy) = (layout.ring(), layout.vacancy(&image));
    /// let count = vacancy.slots_to_vacancy(ring, 0, 0).expect("two of eight slots are taken");
    /// assert!(layout.is_vacant(&image, ring.ahead(0, count - 1)));
    /// # });
    /// ```
    pub fn slots_to_vacancy(self, ring: Ring, home: usize, full: usize) -> Option<usize> {
        let group = |steps: usize| group_of(ring, ring.ahead(home, steps));
        // Of the group that the home is in the middle of, the vacancy may be before the home: at the far end.
        let last = group(ring.slots - 1);
        let in_the_middle = (0..ring.slots).take_while(|steps| group(*steps) == last).count() % ring.slots;
        let mut open = (full.max(in_the_middle)..ring.slots).filter(|steps| self.0 >> group(*steps) & 1 != 0);
        let first = open.next()?;
        let rest = (first..ring.slots).take_while(|steps| group(*steps) == group(first));
        Some(first + rest.count())
    }
}

fn group_of(ring: Ring, slot: usize) -> usize {
    if ring.slots <= BITS { slot } else { slot * BITS / ring.slots }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_up_to_a_vacancy_have_one() {
        for slots in [2, 8, 48, 64, 66, 200] {
            let ring = Ring { slots, reach: 2 };
            for vacant in 0..slots {
                let word = Vacancy::new(ring, |slot| slot == vacant);
                assert_eq!(Vacancy::from_bits(word.bits()), word);
                for home in 0..slots {
                    let distance = ring.distance(home, vacant);
                    for full in 0..=distance {
                        let count = word.slots_to_vacancy(ring, home, full).unwrap();
                        assert!((distance + 1..=slots).contains(&count));
                        assert!(slots > BITS || count == distance + 1, "a bit a slot is exact");
                        let near = count <= distance + slots.div_ceil(BITS);
                        assert!(near || count == slots, "no more than the group is read");
                    }
                }
            }
            assert_eq!(Vacancy::new(ring, |_| false).slots_to_vacancy(ring, 1, 0), None);
        }
    }

    #[test]
    fn a_group_is_full_only_if_all_of_it_was_seen() {
        let ring = Ring { slots: 128, reach: 2 };
        let open = Vacancy::new(ring, |slot| slot == 10);
        // Slots 10 and 11 share a bit.
        assert_eq!(open.updated(ring, (9, 2), |_| false), open);
        let full = open.updated(ring, (10, 2), |_| false);
        assert_eq!(full.slots_to_vacancy(ring, 0, 0), None);
        assert_eq!(full.updated(ring, (127, 20), |slot| slot == 11), open);
    }
}
