//! The keys of a scenario, ascending, the empty one first.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::scenario::Work;

/// The bytes that keys with shared prefixes mostly consist of, so that they meet.
const FEW: [u8; 4] = [0x00, b'a', b'b', 0xff];
/// The bound of all other bytes: more than the smallest nodes have slots.
const SEVERAL: u8 = 40;

/// Yields as many keys as `work` has, of up to `bytes_max` bytes. `seed` determines those with shared prefixes.
pub(crate) fn keys(work: &Work, bytes_max: usize, seed: u64) -> Vec<Vec<u8>> {
    if work.shared_prefixes {
        shared_prefixes(work.keys as usize, bytes_max, seed)
    } else {
        (0..work.keys).map(|number| numbered(number, bytes_max)).collect()
    }
}

/// Yields the key with that number: keys are of all lengths, and the first one is empty.
fn numbered(number: u32, bytes_max: usize) -> Vec<u8> {
    if number == 0 {
        return Vec::new();
    }
    let mut key = number.to_be_bytes().to_vec();
    let more = number.wrapping_mul(0x9e37_79b1) as usize % (bytes_max - 3);
    key.extend((0..more).map(|at| at as u8 ^ number as u8));
    key
}

/// Draws keys each of which is a part of an earlier one with more bytes behind: keys are prefixes of each other, and
/// what they have in common is as long as keys are.
fn shared_prefixes(count: usize, bytes_max: usize, seed: u64) -> Vec<Vec<u8>> {
    let rng = &mut SmallRng::seed_from_u64(seed ^ 0x7a26_1ed0_7a26_1ed0);
    // Half of the time most keys share all but a few bytes.
    let stem = match rng.random() {
        true => vec![*FEW.choose(rng).expect("not empty"); bytes_max - bytes_max.min(4)],
        false => Vec::new(),
    };
    let mut found = vec![stem.clone()];
    let mut all = BTreeSet::from([Vec::new()]);
    while all.len() < count {
        let from: &Vec<u8> = found.choose(rng).expect("the empty key is there");
        // Mostly the whole of it, now and then nothing.
        let kept = match rng.random_range(0..10) {
            0..6 => from.len(),
            6..8 => rng.random_range(stem.len().min(from.len())..=from.len()),
            8 => stem.len().min(from.len()),
            _ => 0,
        };
        let mut key = from[..kept].to_vec();
        let more = *[1, 1, 2, 9].choose(rng).expect("not empty");
        let few = rng.random_bool(0.6);
        key.extend(
            (0..more).map(|_| {
                if few { *FEW.choose(rng).expect("not empty") } else { rng.random_range(0..SEVERAL) }
            }),
        );
        key.truncate(bytes_max);
        // Few keys leave the stem, and none grows from those.
        if all.insert(key.clone()) && kept >= stem.len() {
            found.push(key);
        }
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use farwood_index::IndexKind;

    use super::*;
    use crate::scenario::{Overrides, Scenario};

    #[test]
    fn keys_ascend_and_are_short_enough() {
        for bytes_max in [4, 8, 30, 255] {
            for shared_prefixes in [false, true] {
                let work =
                    Scenario::draw(1, &Overrides { kind: IndexKind::Sherman, ..Overrides::default() }).work;
                let work = Work { keys: 200, shared_prefixes, ..work };
                let keys = keys(&work, bytes_max, 5);
                assert_eq!(keys.len(), 200);
                assert!(keys.is_sorted_by(|a, b| a < b) && keys[0].is_empty());
                assert!(keys.iter().all(|key| key.len() <= bytes_max));
            }
        }
    }

    /// Tells whether most keys are alike but for their last four bytes.
    fn has_stem(keys: &[Vec<u8>]) -> bool {
        let is_like_the_next = |pair: &&[Vec<u8>]| pair[0].len() >= 26 && pair[1].starts_with(&pair[0][..26]);
        keys.windows(2).filter(is_like_the_next).count() > 100
    }

    #[test]
    fn half_of_the_seeds_have_keys_that_share_all_but_a_few_bytes() {
        let stems = (0..100).filter(|&seed| has_stem(&shared_prefixes(200, 30, seed))).count();
        assert!((35..65).contains(&stems), "{stems}");
    }

    #[test]
    fn tangled_keys_are_prefixes_of_each_other_and_share_long_ones() {
        let keys = (0..).map(|seed| shared_prefixes(200, 30, seed)).find(|keys| !has_stem(keys)).unwrap();
        let prefixes = keys.windows(2).filter(|pair| pair[1].starts_with(&pair[0])).count();
        assert!(prefixes > 40, "{prefixes} of 200");
        let shared = |pair: &[Vec<u8>]| pair[0].iter().zip(&pair[1]).take_while(|(a, b)| a == b).count();
        let longest = keys.windows(2).map(shared).max().unwrap();
        assert!(longest > 12, "{longest}");
        let begun: BTreeSet<u8> = keys.iter().filter_map(|key| key.first().copied()).collect();
        assert!(begun.len() > 8, "{} bytes to begin with", begun.len());
    }
}
