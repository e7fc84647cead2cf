//! Which keys the papers' clients ask for: YCSB's Zipfian, uniform and latest popularity over a key space of which a
//! part is stored.
//!
//! Experiments store fewer keys than the papers, but draw ranks from the papers' numbers: so the hottest key has the
//! share that it has there (4.2 % at 0.99 among a thousand million; among six million keys it would have 5.8 %). Ranks
//! beyond the keys that exist are spread evenly over them: in the papers, too, each of those is asked for almost never.

use std::cell::Cell;

use farwood_index::Bytes;
use farwood_runtime::Verbs;
use rand::Rng;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;

/// Ranks that popularity is drawn over in Sherman's experiments.
pub const KEYS_OF_SHERMAN: u64 = 1_000_000_000;
/// Ranks that popularity is drawn over in SMART's experiments; the keys of CHIME's.
pub const KEYS_OF_SMART: u64 = 60_000_000;
/// Ranks that popularity is drawn over in Dolphin's experiments.
pub const KEYS_OF_DOLPHIN: u64 = 512_000_000;

/// The popularity of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// All the same.
    Uniform,
    /// Zipfian with this exponent.
    Zipf(f64),
    /// Zipfian with this exponent, over the age of the keys: the newest is the hottest (YCSB D). The newest of a
    /// client's own: SMART's authors cut the list of operations into one piece for each client, and what a client reads
    /// follows what was inserted before it in that list.
    Latest(f64),
}

/// Where keys lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Sherman's: evenly over all 64-bit numbers, and every third key of the space is not stored in the beginning, so
    /// that of the puts about two thirds are updates (Sherman section 5.1.3).
    TwoThirds,
    /// YCSB's: at random, all stored, and as dense as if there were `of` of them. Those that are stored fill the lower
    /// part of the 64-bit numbers: a radix tree of them is a part of the large tree, with the same nodes but for
    /// those next to the root.
    #[expect(missing_docs, reason = "explained above")]
    Random { of: u64 },
    /// Likewise, but popularity is drawn over the keys that are stored: a cache that holds a part of them has the hits
    /// that it has where there are `of` keys and it holds the same part.
    #[expect(missing_docs, reason = "explained above")]
    Scaled { of: u64 },
    /// Dolphin's: the integers below a power of two, of which a quarter to a half are stored, at random; a half if the
    /// keys are a power of two ("50% full", Dolphin section IV-A). Popularity is drawn over `of` ranks.
    #[expect(missing_docs, reason = "explained above")]
    Dense { of: u64 },
}

/// A key space of numbers.
#[derive(Clone, Debug)]
pub struct KeySpace {
    stored: u64,
    /// Keys of the space that clients ask for in the beginning.
    keys: u64,
    spread: Spread,
    key_bytes: usize,
    popularity: Popularity,
    zipf: Option<Zipf<f64>>,
    /// Keys that were added since.
    tickets: Cell<u64>,
}

impl KeySpace {
    /// Makes a key space of which `stored` keys of `key_bytes` bytes are stored.
    ///
    /// # Panics
    /// If the exponent of a Zipfian popularity is not positive, keys have less than 8 bytes, or the space is dense
    /// enough to hold a key twice.
    pub fn new(stored: u64, spread: Spread, key_bytes: usize, popularity: Popularity) -> Self {
        assert!(key_bytes >= size_of::<u64>(), "a key begins with its 64-bit number");
        let (keys, ranks) = match spread {
            Spread::TwoThirds => (stored / 2 * 3, KEYS_OF_SHERMAN),
            Spread::Random { of } | Spread::Dense { of } => (stored, of.max(stored)),
            Spread::Scaled { .. } => (stored, stored),
        };
        let zipf = match popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) | Popularity::Latest(exponent) => {
                Some(Zipf::new(ranks as f64, exponent).expect("exponents are positive"))
            }
        };
        KeySpace { stored, keys, spread, key_bytes, popularity, zipf, tickets: Cell::new(0) }
    }

    /// Draws the number of a key for a client that has added `own`, the newest last.
    pub fn draw(&self, rng: &mut SmallRng, own: &[u64]) -> u64 {
        match (&self.zipf, self.popularity) {
            (None, _) => rng.random_range(0..self.keys),
            (Some(zipf), Popularity::Latest(_)) => {
                let age = zipf.sample(rng) as u64 - 1;
                let newest_first = own.iter().rev().nth(age as usize);
                newest_first.copied().unwrap_or_else(|| self.place(age))
            }
            (Some(zipf), _) => self.place(zipf.sample(rng) as u64 - 1),
        }
    }

    /// Draws the number of a key that no client has asked for, of a random spread.
    pub fn draw_new(&self) -> u64 {
        let ticket = self.tickets.get();
        self.tickets.set(ticket + 1);
        self.keys + ticket
    }

    /// Writes the key of that number.
    pub fn write(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&self.prefix(number).to_be_bytes());
        let mut rest = number;
        while key.len() < self.key_bytes {
            rest = mixed(rest);
            let bytes = rest.to_be_bytes();
            key.extend_from_slice(&bytes[..bytes.len().min(self.key_bytes - key.len())]);
        }
    }

    /// Yields the keys that are stored in the beginning, ascending.
    pub fn stored(&self) -> Vec<Bytes> {
        let mut numbers: Vec<u64> = match self.spread {
            Spread::TwoThirds => (0..self.keys).filter(|number| number % 3 != 2).collect(),
            Spread::Random { .. } | Spread::Scaled { .. } | Spread::Dense { .. } => {
                (0..self.stored).collect()
            }
        };
        numbers.sort_by_cached_key(|number| self.prefix(*number));
        let mut key = Vec::new();
        let written = |number| {
            self.write(number, &mut key);
            Bytes::from_slice(&key)
        };
        let keys: Vec<Bytes> = numbers.into_iter().map(written).collect();
        assert!(keys.is_sorted_by(|a, b| a[..8] < b[..8]), "64-bit numbers are far more than keys");
        keys
    }

    /// Yields the place of the key of that rank in the key space: neighbours in rank are none in the tree.
    fn place(&self, rank: u64) -> u64 {
        // A prime beyond every number of keys: below it, different ranks have different places.
        const STEP: u128 = 982_451_653;
        (u128::from(rank) * STEP % u128::from(self.keys)) as u64
    }

    /// Yields the first 64 bits of the key of that number, as a number: different for different keys.
    fn prefix(&self, number: u64) -> u64 {
        match self.spread {
            Spread::TwoThirds => number * (u64::MAX / self.keys),
            Spread::Random { of } | Spread::Scaled { of } => {
                let scaled =
                    u128::from(mixed(number)) * u128::from(self.stored) / u128::from(of.max(self.stored));
                u64::try_from(scaled).unwrap_or(u64::MAX)
            }
            Spread::Dense { .. } => mixed_below(self.stored.next_power_of_two().ilog2() + 1, number),
        }
    }
}

/// Maps numbers one to one: their lowest bits, so many, without visible order, those above not at all.
fn mixed_below(bits: u32, number: u64) -> u64 {
    let mask = (1 << bits) - 1;
    let mut low = number & mask;
    // Each step can be undone within so many bits. Two of them leave patterns.
    let factors = [0xbf58_476d_1ce4_e5b9_u64, 0x94d0_49bb_1331_11eb];
    for factor in factors.into_iter().cycle().take(4) {
        low = low.wrapping_mul(factor) & mask;
        low ^= low >> (bits / 2).max(1);
    }
    number & !mask | low
}

/// Maps 64-bit numbers one to one, without visible order (the finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The operations of the clients, by shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of puts.
    pub puts: f64,
    /// Share of updates of stored keys.
    pub updates: f64,
    /// Share of inserts of new keys.
    pub inserts: f64,
    /// The length of scans, if the remaining operations are scans; they are gets otherwise.
    pub scan: Option<Length>,
    /// True if the shares are those of clients, instead of those of each client's operations.
    pub by_client: bool,
}

/// The length of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The stored ones of so many keys of Sherman's key space. (The published benchmarks of these indexes query from k
    /// to k + the range's size.)
    OfSpace(usize),
    /// From one pair to so many, uniform (YCSB E).
    UpTo(usize),
    /// So many pairs.
    Pairs(usize),
}

impl Mix {
    /// Only gets (YCSB C).
    pub const READ_ONLY: Mix = Mix { puts: 0.0, updates: 0.0, inserts: 0.0, scan: None, by_client: false };
    /// Sherman table 3.
    pub const WRITE_ONLY: Mix = Mix { puts: 1.0, ..Mix::READ_ONLY };
    /// Sherman table 3; YCSB A.
    pub const WRITE_INTENSIVE: Mix = Mix { puts: 0.5, ..Mix::READ_ONLY };
    /// Sherman table 3; YCSB B.
    pub const READ_INTENSIVE: Mix = Mix { puts: 0.05, ..Mix::READ_ONLY };
    /// YCSB D, with [`Popularity::Latest`].
    pub const READ_LATEST: Mix = Mix { inserts: 0.05, ..Mix::READ_ONLY };
    /// YCSB LOAD.
    pub const LOAD: Mix = Mix { inserts: 1.0, ..Mix::READ_ONLY };
    /// YCSB E.
    pub const SCANS: Mix = Mix { scan: Some(Length::UpTo(100)), ..Mix::READ_LATEST };

    /// Makes range-only of Sherman's table 3.
    pub const fn range_only(scan_length: usize) -> Mix {
        Mix { scan: Some(Length::OfSpace(scan_length)), ..Mix::READ_ONLY }
    }

    /// Makes range-write of Sherman's table 3.
    pub const fn range_write(scan_length: usize) -> Mix {
        Mix { puts: 0.5, by_client: true, ..Mix::range_only(scan_length) }
    }
}

impl Length {
    /// Draws the number of pairs that the next scan asks for.
    pub(super) fn pairs(self, rng: &mut SmallRng) -> usize {
        match self {
            Length::OfSpace(keys) => keys * 2 / 3,
            Length::UpTo(pairs) => rng.random_range(1..=pairs),
            Length::Pairs(pairs) => pairs,
        }
    }
}

/// Yields a generator of its own for each client.
pub(super) fn client_rng(verbs: &impl Verbs) -> SmallRng {
    use rand::SeedableRng;
    SmallRng::seed_from_u64(verbs.random())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng;

    use super::*;

    fn share_of_the_hottest(space: &KeySpace) -> f64 {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..200_000 {
            *seen.entry(space.draw(&mut rng, &[])).or_default() += 1;
        }
        f64::from(*seen.values().max().unwrap()) / 200_000.0
    }

    #[test]
    fn the_hottest_key_has_the_share_it_has_in_the_paper() {
        let share =
            share_of_the_hottest(&KeySpace::new(100_000, Spread::TwoThirds, 8, Popularity::Zipf(0.99)));
        assert!((0.040..0.045).contains(&share), "{share}");
        // One over the sum of n to the power of -0.99 up to 60 million.
        let spread = Spread::Random { of: KEYS_OF_SMART };
        let share = share_of_the_hottest(&KeySpace::new(100_000, spread, 8, Popularity::Zipf(0.99)));
        assert!((0.048..0.053).contains(&share), "{share}");
    }

    #[test]
    fn two_thirds_are_stored_in_order() {
        let space = KeySpace::new(1000, Spread::TwoThirds, 8, Popularity::Uniform);
        let stored = space.stored();
        assert_eq!(stored.len(), 1000);
        assert!(stored.is_sorted());
        let (mut rng, mut key) = (SmallRng::seed_from_u64(1), Vec::new());
        let mut hits = 0;
        for _ in 0..3000 {
            space.write(space.draw(&mut rng, &[]), &mut key);
            hits += usize::from(stored.iter().any(|stored| stored[..] == key[..]));
        }
        assert!((1850..2150).contains(&hits), "{hits}");
    }

    #[test]
    fn random_keys_are_as_dense_as_in_the_large_tree() {
        const STORED: u64 = 50_000;
        let space = KeySpace::new(STORED, Spread::Random { of: KEYS_OF_SMART }, 32, Popularity::Zipf(0.99));
        let stored = space.stored();
        assert_eq!(stored.len() as u64, STORED);
        assert!(stored.iter().all(|key| key.len() == 32));
        // Below every 24 bits of the large tree lie 60 M / 2^24 = 3.6 keys, below one in e^3.6 none.
        let mut nodes: Vec<&[u8]> = stored.iter().map(|key| &key[..3]).collect();
        nodes.dedup();
        let per_node = STORED as f64 / nodes.len() as f64;
        assert!((3.5..3.8).contains(&per_node), "{per_node}");
        // All that is asked for is there.
        let (mut rng, mut key) = (SmallRng::seed_from_u64(1), Vec::new());
        for _ in 0..1000 {
            space.write(space.draw(&mut rng, &[]), &mut key);
            assert!(stored.binary_search_by(|stored| stored[..].cmp(&key)).is_ok());
        }
    }

    #[test]
    fn dense_keys_are_a_random_half() {
        const STORED: u64 = 1 << 14;
        let spread = Spread::Dense { of: KEYS_OF_DOLPHIN };
        let space = KeySpace::new(STORED, spread, 8, Popularity::Zipf(0.99));
        let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
        let stored: Vec<u64> = space.stored().iter().map(|key| number(key)).collect();
        assert!(
            stored.is_sorted() && stored.len() as u64 == STORED && stored[STORED as usize - 1] < 2 * STORED
        );
        // As many in each piece of 256 as chance would have: 128, and 8 more or less.
        let mut pieces = vec![0_u32; 2 * STORED as usize / 256];
        stored.iter().for_each(|number| pieces[*number as usize / 256] += 1);
        let variance =
            pieces.iter().map(|&n| (f64::from(n) - 128.0).powi(2)).sum::<f64>() / pieces.len() as f64;
        assert!((32.0..128.0).contains(&variance), "{variance}");
        // New keys fill the gaps, then what is above.
        let mut key = Vec::new();
        let mut seen: std::collections::BTreeSet<u64> = stored.into_iter().collect();
        for _ in 0..2 * STORED {
            space.write(space.draw_new(), &mut key);
            assert!(seen.insert(number(&key)));
            assert!(seen.len() as u64 > 2 * STORED || number(&key) < 2 * STORED);
        }
    }

    #[test]
    fn the_newest_key_is_the_hottest() {
        let spread = Spread::Random { of: KEYS_OF_SMART };
        let space = KeySpace::new(1000, spread, 8, Popularity::Latest(0.99));
        let mut rng = SmallRng::seed_from_u64(1);
        let own = [space.draw_new(), space.draw_new()];
        assert_eq!(own, [1000, 1001]);
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        (0..5000).for_each(|_| *seen.entry(space.draw(&mut rng, &own)).or_default() += 1);
        let mut hottest: Vec<(u32, u64)> = seen.into_iter().map(|(number, count)| (count, number)).collect();
        hottest.sort_unstable();
        // Before the first of these comes what was there in the beginning.
        let newest: Vec<u64> = hottest.iter().rev().take(3).map(|(_, number)| *number).collect();
        assert_eq!(newest[..2], [1001, 1000]);
        assert!(newest[2] < 1000);
    }
}
