//! Which keys the papers' clients ask for: YCSB's Zipfian and uniform popularity over a key space of which a part is
//! stored.
//!
//! Experiments store millions of keys where the papers store a thousand million, but draw ranks from the papers'
//! number ([`KEYS_OF_THE_PAPERS`]): so the hottest key has the share that it has there (4.2 % at 0.99; among six
//! million keys it would have 5.8 %). Ranks beyond the keys that exist are spread evenly over them: in the papers,
//! too, each of those is asked for almost never.

use farwood_runtime::Verbs;
use rand::Rng;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;

/// Ranks that popularity is drawn over.
pub const KEYS_OF_THE_PAPERS: u64 = 1_000_000_000;

/// How popular keys are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All the same.
    Uniform,
    /// Zipfian with this exponent.
    Zipf(f64),
}

/// A key space of numbers. Every third key is not stored in the beginning, so that of the puts about two thirds are
/// updates (Sherman section 5.1.3).
#[derive(Clone, Debug)]
pub struct KeySpace {
    keys: u64,
    zipf: Option<Zipf<f64>>,
}

impl KeySpace {
    /// A key space of which `stored` keys are stored.
    ///
    /// # Panics
    /// If the exponent of a Zipfian popularity is not positive.
    pub fn new(stored: u64, popularity: Popularity) -> Self {
        let zipf = match popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) => {
                Some(Zipf::new(KEYS_OF_THE_PAPERS as f64, exponent).expect("exponents are positive"))
            }
        };
        KeySpace { keys: stored / 2 * 3, zipf }
    }

    /// Draws a key.
    pub fn draw(&self, rng: &mut SmallRng) -> [u8; 8] {
        let number = match &self.zipf {
            None => rng.random_range(0..self.keys),
            Some(zipf) => self.place(zipf.sample(rng) as u64 - 1),
        };
        self.key(number)
    }

    /// The keys that are stored in the beginning, ascending.
    pub fn stored(&self) -> impl Iterator<Item = [u8; 8]> + '_ {
        (0..self.keys).filter(|number| number % 3 != 2).map(|number| self.key(number))
    }

    /// Where in the key space the key of that rank is: neighbours in rank are none in the tree.
    fn place(&self, rank: u64) -> u64 {
        // A prime beyond every number of keys: below it, different ranks have different places.
        const STEP: u128 = 982_451_653;
        (u128::from(rank) * STEP % u128::from(self.keys)) as u64
    }

    /// Keys are spread over all 64-bit numbers, in order.
    fn key(&self, number: u64) -> [u8; 8] {
        (number * (u64::MAX / self.keys)).to_be_bytes()
    }
}

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of puts.
    pub puts: f64,
    /// What is no put: a scan over so many keys of the key space, stored or not, or a get if that is 0. (The published
    /// benchmarks of these indexes query from k to k + the range's size.)
    pub scan_length: usize,
    /// Whether it is clients that are shared out, instead of the operations of each.
    pub by_client: bool,
}

impl Mix {
    /// Sherman table 3.
    pub const WRITE_ONLY: Mix = Mix { puts: 1.0, scan_length: 0, by_client: false };
    /// Sherman table 3.
    pub const WRITE_INTENSIVE: Mix = Mix { puts: 0.5, ..Mix::WRITE_ONLY };
    /// Sherman table 3.
    pub const READ_INTENSIVE: Mix = Mix { puts: 0.05, ..Mix::WRITE_ONLY };

    /// Sherman table 3: range-only.
    pub const fn range_only(scan_length: usize) -> Mix {
        Mix { puts: 0.0, scan_length, by_client: false }
    }

    /// Sherman table 3: range-write.
    pub const fn range_write(scan_length: usize) -> Mix {
        Mix { puts: 0.5, scan_length, by_client: true }
    }
}

/// How many pairs a scan over `keys` keys of the key space finds.
pub(super) fn pairs_in(keys: usize) -> usize {
    keys * 2 / 3
}

/// A generator of its own for each client.
pub(super) fn client_rng(verbs: &impl Verbs) -> SmallRng {
    use rand::SeedableRng;
    SmallRng::seed_from_u64(verbs.random())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn the_hottest_key_has_the_share_it_has_among_a_thousand_million() {
        let space = KeySpace::new(100_000, Popularity::Zipf(0.99));
        let mut rng = SmallRng::seed_from_u64(1);
        let mut seen: BTreeMap<[u8; 8], u32> = BTreeMap::new();
        for _ in 0..200_000 {
            *seen.entry(space.draw(&mut rng)).or_default() += 1;
        }
        let share = f64::from(*seen.values().max().unwrap()) / 200_000.0;
        assert!((0.040..0.045).contains(&share), "{share}");
    }

    #[test]
    fn two_thirds_are_stored_in_order() {
        let space = KeySpace::new(1000, Popularity::Uniform);
        let stored: Vec<_> = space.stored().collect();
        assert_eq!(stored.len(), 1000);
        assert!(stored.is_sorted());
        let mut rng = SmallRng::seed_from_u64(1);
        let hits = (0..3000).filter(|_| stored.binary_search(&space.draw(&mut rng)).is_ok()).count();
        assert!((1850..2150).contains(&hits), "{hits}");
    }
}
