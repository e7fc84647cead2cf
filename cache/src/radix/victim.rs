//! The choice of copies to evict: whole segments are emptied, and the policy decides which copies in one may
//! move on.
//!
//! Knows segments only by what is written down about them, and copies only by their use stamps.

use super::table::PAGES_PER_SEGMENT;
use crate::eviction::Policy;

/// The writer's record of a segment.
#[derive(Default)]
pub(super) struct Filled {
    /// Granules taken so far, from the first.
    pub(super) used: u32,
    /// Granules of copies that are in the table.
    pub(super) live: u32,
    /// The time when it was begun; 0 while it is free or belongs to the table.
    pub(super) begun: u64,
    /// Entries in each of its pages, if it belongs to the table.
    pub(super) pages: [u16; PAGES_PER_SEGMENT as usize],
}

/// A copy that may be evicted.
pub(super) struct Candidate {
    /// Epochs since its last use.
    pub(super) idle: u8,
    /// It leads to inner nodes: without it all copies below are of no use.
    pub(super) upper: bool,
}

pub(super) struct Chooser {
    policy: Policy,
    state: u64,
}

impl Chooser {
    pub(super) fn new(policy: Policy, seed: u64) -> Self {
        Chooser { policy, state: seed }
    }

    /// Chooses the segment that should be emptied to make room, never `open`.
    pub(super) fn segment(&mut self, filled: &[Filled], open: Option<u32>) -> Option<u32> {
        let may_go = |number: &u32| filled[*number as usize].begun > 0 && Some(*number) != open;
        let numbers = 0..filled.len() as u32;
        match self.policy {
            Policy::Fifo => numbers.filter(may_go).min_by_key(|number| filled[*number as usize].begun),
            Policy::TwoChoices => {
                let count = numbers.clone().filter(may_go).count() as u64;
                let index = self.random() % count.max(1);
                numbers.filter(may_go).nth(index as usize)
            }
        }
    }

    /// Tells whether a copy in a segment that is emptied stays. `other` looks at the copy that a random
    /// number stands for, and may find none.
    pub(super) fn keeps(&mut self, copy: &Candidate, other: impl Fn(u64) -> Option<u8>) -> bool {
        /// Tries for another copy. The table's pages are more than a quarter full, where they are many.
        const TRIES_MAX: usize = 16;
        match self.policy {
            Policy::Fifo => false,
            // Of two nodes picked at random the one used less recently goes: the segment is one's choice.
            Policy::TwoChoices => {
                let other = (0..TRIES_MAX).find_map(|_| other(self.random()));
                let margin = if copy.upper { 1 } else { -1 };
                other.is_some_and(|other| i16::from(copy.idle) <= i16::from(other) + margin)
            }
        }
    }

    /// Finds the segment with the most room that no copy uses, if so much is wasted that moving copies pays.
    pub(super) fn wasteful(&self, filled: &[Filled], granules: u32) -> Option<u32> {
        let wasted = |one: &Filled| u64::from(granules - one.live);
        let in_use = || filled.iter().filter(|one| one.begun > 0);
        let total = in_use().map(wasted).sum::<u64>();
        // First in, first out moves nothing, unless most of the memory is wasted: what moves seems younger.
        let share = match self.policy {
            Policy::Fifo => 2,
            Policy::TwoChoices => 6,
        };
        if total * share <= in_use().count() as u64 * u64::from(granules) {
            return None;
        }
        let numbers = (0..filled.len() as u32).filter(|number| filled[*number as usize].begun > 0);
        numbers.max_by_key(|number| wasted(&filled[*number as usize]))
    }

    /// Yields the next number of splitmix64, which takes any seed and needs one word.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(lives: &[u32]) -> Vec<Filled> {
        let one = |(index, live): (usize, &u32)| Filled {
            live: *live,
            begun: 9 - index as u64,
            ..Filled::default()
        };
        lives.iter().enumerate().map(one).collect()
    }

    #[test]
    fn fifo_empties_the_oldest_segment_and_keeps_nothing() {
        let mut chooser = Chooser::new(Policy::Fifo, 1);
        let filled = filled(&[90, 80, 95]);
        assert_eq!(chooser.segment(&filled, None), Some(2));
        assert_eq!(chooser.segment(&filled, Some(2)), Some(1));
        assert!(!chooser.keeps(&Candidate { idle: 0, upper: true }, |_| Some(9)));
        assert_eq!(chooser.segment(&filled[..1], Some(0)), None);
    }

    #[test]
    fn two_choices_reach_every_segment_and_keep_the_younger_copy() {
        let mut chooser = Chooser::new(Policy::TwoChoices, 1);
        let mut filled = filled(&[90, 80, 95, 99]);
        filled[1].begun = 0;
        let mut seen = [0; 4];
        (0..300).for_each(|_| seen[chooser.segment(&filled, Some(3)).unwrap() as usize] += 1);
        assert!(seen[0] > 100 && seen[2] > 100 && seen[1] == 0 && seen[3] == 0, "{seen:?}");
        let mut keeps = |idle, upper, other| chooser.keeps(&Candidate { idle, upper }, |_| other);
        assert!(keeps(3, false, Some(4)) && !keeps(3, false, Some(3)) && !keeps(0, false, None));
        assert!(keeps(3, true, Some(3)) && keeps(3, true, Some(2)) && !keeps(3, true, Some(1)));
    }

    #[test]
    fn moving_copies_must_pay() {
        let chooser = |policy| Chooser::new(policy, 1);
        assert_eq!(chooser(Policy::TwoChoices).wasteful(&filled(&[90, 80, 95]), 100), None);
        assert_eq!(chooser(Policy::TwoChoices).wasteful(&filled(&[90, 60, 95]), 100), Some(1));
        assert_eq!(chooser(Policy::Fifo).wasteful(&filled(&[90, 10, 95]), 100), None);
        assert_eq!(chooser(Policy::Fifo).wasteful(&filled(&[40, 10, 95]), 100), Some(1));
        assert_eq!(chooser(Policy::Fifo).wasteful(&[], 100), None);
    }
}
