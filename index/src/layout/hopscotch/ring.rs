//! Where a new key of a hopscotch table goes (Herlihy, Shavit and Tzafrir, "Hopscotch Hashing", DISC 2008; CHIME
//! section 2.3). Pure: it knows slots and homes, neither keys nor bytes.
//!
//! Each key has a *home* slot and lies within its *neighbourhood*, the `reach` slots from the home on, around the end
//! of the table. A vacancy farther away comes nearer by *hops*: a key before it moves into it and leaves its own slot.
//!
//! ```text
//! reach 4     slot   0   1   2   3   4   5   6   7        X's home is 1, the first vacancy is 6
//!             home   0   1   1   2   4   4   -   .
//!                                    <--hop--^            4 moves to 6: the farthest that may
//!                        ^---- vacancy 4: home 1 reaches 1..=4, X goes there
//! ```
//!
//! Where no key before that vacancy may hop, one of the neighbourhood may hop back, towards the last vacancy before the
//! home, if its own home allows. (The paper does without: after a split its leaves have vacancies that new keys of most
//! homes cannot use.)

use smallvec::SmallVec;

/// The slots of a table, in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// The number of slots.
    pub slots: usize,
    /// The number of slots in a neighbourhood, at most that of all.
    pub reach: usize,
}

/// A key that moves, from a slot to a vacant one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hop {
    /// Its slot before.
    pub from: usize,
    /// Its slot afterwards.
    pub to: usize,
}

/// The place of a new key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The keys that move before, in this order.
    pub hops: SmallVec<[Hop; 4]>,
    /// The slot that is vacant then.
    pub slot: usize,
    /// The first slot of those that change, in the order of the ring.
    pub begin: usize,
}

impl Ring {
    /// Counts the steps from a slot on to another one.
    pub(super) fn distance(self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots - from }
    }

    /// Yields the slot `steps` behind `from`, both less than the number of slots.
    ///
    /// ```
    /// # use farwood_index::layout::hopscotch::Ring;
    /// assert_eq!(Ring { slots: 8, reach: 4 }.ahead(6, 3), 1);
    /// ```
    pub fn ahead(self, from: usize, steps: usize) -> usize {
        let slot = from + steps;
        if slot < self.slots { slot } else { slot - self.slots }
    }

    /// Yields the slots of the neighbourhood of `home`, nearest first.
    pub(super) fn neighbourhood(self, home: usize) -> impl Iterator<Item = usize> {
        (0..self.reach).map(move |steps| self.ahead(home, steps))
    }

    /// Yields the first vacant slot from `home` on.
    fn first_vacancy(self, home: usize, mut is_vacant: impl FnMut(usize) -> bool) -> Option<usize> {
        (0..self.slots).map(|steps| self.ahead(home, steps)).find(|slot| is_vacant(*slot))
    }

    /// Places a key with this `home`. `home_of` yields the home of the key in a slot, none if that is vacant; of the
    /// slots behind the first vacancy it is not asked. None if the table has no room for the key.
    ///
    /// Of the keys that may hop the farthest does. So the key that comes into a slot that another one has left has
    /// another home: else it could have hopped farther itself. CHIME's readers rely on it (section 4.1.2).
    pub(super) fn place(
        self,
        home: usize,
        mut home_of: impl FnMut(usize) -> Option<usize>,
    ) -> Option<Placement> {
        let mut slot = self.first_vacancy(home, |slot| home_of(slot).is_none())?;
        let mut hops = SmallVec::new();
        while self.distance(home, slot) >= self.reach {
            // Nearer to the home than the vacancy there is no slot that has changed.
            let from = (1..self.reach).rev().map(|steps| self.ahead(slot, self.slots - steps));
            let from = from
                .into_iter()
                .find(|from| home_of(*from).is_some_and(|other| self.distance(other, slot) < self.reach))?;
            hops.push(Hop { from, to: slot });
            slot = from;
        }
        Some(Placement { hops, slot, begin: home })
    }

    /// Places a key with this `home`, in whose neighbourhood there is no vacancy, by hops back from there to the last
    /// vacancy before it. `home_of` is as [`Ring::place`] has it, and is asked of all slots. None if no key may hop.
    ///
    /// Here, too, of the keys that may hop the farthest does, for the same reason.
    pub(super) fn place_back(
        self,
        home: usize,
        home_of: impl Fn(usize) -> Option<usize>,
    ) -> Option<Placement> {
        let before = |slot, steps| self.ahead(slot, self.slots - steps);
        let vacancy =
            (1..self.slots).map(|steps| before(home, steps)).find(|slot| home_of(*slot).is_none())?;
        let (mut slot, mut hops) = (vacancy, SmallVec::new());
        while self.distance(home, slot) >= self.reach {
            let from = (1..self.reach)
                .rev()
                .map(|steps| self.ahead(slot, steps))
                .find(|from| home_of(*from).is_some_and(|other| self.distance(other, slot) < self.reach))?;
            hops.push(Hop { from, to: slot });
            slot = from;
        }
        Some(Placement { hops, slot, begin: before(vacancy, self.reach - 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `check` with each table of these slots: the home of the key in each slot, none if it is vacant.
    fn for_each_table(ring: Ring, check: &mut impl FnMut(&[Option<usize>])) {
        fn fill(ring: Ring, table: &mut Vec<Option<usize>>, check: &mut impl FnMut(&[Option<usize>])) {
            let slot = table.len();
            if slot == ring.slots {
                return check(table);
            }
            let homes = (0..ring.reach).map(|steps| Some((slot + ring.slots - steps) % ring.slots));
            for home in homes.chain([None]) {
                table.push(home);
                fill(ring, table, check);
                table.pop();
            }
        }
        fill(ring, &mut Vec::new(), check);
    }

    const RINGS: [Ring; 6] = [
        Ring { slots: 1, reach: 1 },
        Ring { slots: 3, reach: 1 },
        Ring { slots: 4, reach: 2 },
        Ring { slots: 4, reach: 4 },
        Ring { slots: 6, reach: 3 },
        Ring { slots: 7, reach: 2 },
    ];

    #[test]
    fn every_table_of_tiny_rings() {
        let (mut placed, mut hopped, mut back, mut refused) = (0, 0, 0, 0);
        for ring in RINGS {
            for_each_table(ring, &mut |table| {
                for home in 0..ring.slots {
                    if let Some(placement) = ring.place(home, |slot| table[slot]) {
                        check_placement(ring, table, home, &placement);
                        assert_eq!(placement.begin, home);
                        placed += 1;
                        hopped += placement.hops.len();
                        continue;
                    }
                    let near = ring.neighbourhood(home).all(|slot| table[slot].is_some());
                    assert!(near, "{table:?} has room in the neighbourhood of {home}");
                    let Some(placement) = ring.place_back(home, |slot| table[slot]) else {
                        refused += 1;
                        continue;
                    };
                    check_placement(ring, table, home, &placement);
                    assert!(!placement.hops.is_empty(), "there is no vacancy near");
                    back += 1;
                }
            });
        }
        let counts = [placed > 10_000, hopped > 1_000, back > 100, refused > 1_000];
        assert_eq!(counts, [true; 4], "{placed} {hopped} {back} {refused}");
    }

    /// Asserts that keys hop into vacancies and stay in reach of their homes, and that each slot which one has left
    /// gets a key of another home.
    fn check_placement(ring: Ring, table: &[Option<usize>], home: usize, placement: &Placement) {
        let mut after = table.to_vec();
        for Hop { from, to } in placement.hops.iter().copied() {
            assert_eq!(after[to], None, "a key hops into a vacancy");
            after[to] = after[from].take();
        }
        assert_eq!(after[placement.slot].replace(home), None);
        for (slot, home) in after.iter().enumerate() {
            assert!(home.is_none_or(|home| ring.distance(home, slot) < ring.reach), "{after:?}");
        }
        let others = placement.hops.iter().filter(|hop| after[hop.from] == table[hop.from]);
        assert_eq!(others.count(), 0, "a slot that a key has left gets one of another home");
    }

    #[test]
    fn no_slot_behind_the_vacancy_is_looked_at() {
        let ring = Ring { slots: 64, reach: 8 };
        let home_of = |slot: usize| {
            assert!(slot <= 20, "the vacancy is 20");
            (slot != 20).then_some(slot)
        };
        let placement = ring.place(4, home_of).unwrap();
        assert_eq!(placement.slot, 6);
        assert_eq!(placement.hops[..], [Hop { from: 13, to: 20 }, Hop { from: 6, to: 13 }]);
    }
}
