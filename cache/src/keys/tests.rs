//! Packed keys against plain byte strings, on sets made to hurt: empty keys, zeros that look like padding,
//! prefixes longer than a window, keys that are prefixes of each other.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;

fn check(keys: &[&[u8]], probes: &[Vec<u8>]) {
    let mut words = vec![u64::MAX];
    assert!(pack(keys, &mut words));
    words.extend([u64::MAX; 2]);
    let packed = Keys::new(&words[1..]);
    assert_eq!(packed.len(), keys.len());
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(packed.to_vec(index), *key);
    }
    for probe in probes {
        assert_eq!(
            packed.rank(probe),
            keys.partition_point(|key| *key <= &probe[..]),
            "{probe:?} in {keys:?}"
        );
        assert_eq!(
            packed.rank_below(probe),
            keys.partition_point(|key| *key < &probe[..]),
            "{probe:?} in {keys:?}"
        );
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(
                packed.compare(index, probe),
                (*key).cmp(&probe[..]),
                "{key:?} against {probe:?} in {keys:?}"
            );
        }
    }
}

/// Yields all strings of at most `length` letters, behind `prefix`.
fn strings(prefix: &[u8], letters: &[u8], length: usize) -> Vec<Vec<u8>> {
    let mut all = vec![prefix.to_vec()];
    let mut start = 0;
    for _ in 0..length {
        for index in start..std::mem::replace(&mut start, all.len()) + all.len() - start {
            let longer = letters.iter().map(|letter| [&all[index][..], &[*letter]].concat());
            all.extend(longer.collect::<Vec<_>>());
        }
    }
    all.sort();
    all.dedup();
    all
}

#[test]
fn all_pairs_and_triples_of_short_strings() {
    for prefix in [&b""[..], b"1234567", b"12345678", b"123456789", b"\0\0\0\0\0\0\0\0\0"] {
        let all = strings(prefix, &[0, 1, 0xFF], 2);
        let mut probes = all.clone();
        probes.extend([
            b"".to_vec(),
            b"1".to_vec(),
            vec![0; 8],
            b"12345678\0\0\0\0".to_vec(),
            vec![0xFF; 20],
        ]);
        for (first, a) in all.iter().enumerate() {
            check(&[a], &probes);
            for (second, b) in all.iter().enumerate().skip(first + 1) {
                check(&[a, b], &probes);
                for c in &all[second + 1..] {
                    check(&[a, b, c], &probes);
                }
            }
        }
    }
}

#[test]
fn random_sets_with_shared_prefixes() {
    let mut rng = SmallRng::seed_from_u64(5);
    for round in 0..600 {
        let prefix: Vec<u8> = (0..rng.random_range(0..20)).map(|_| rng.random_range(0..2)).collect();
        let length = rng.random_range(0..if round % 10 == 0 { 200 } else { 20 });
        let fixed = rng.random_bool(0.3);
        let mut string = || {
            let length = if fixed { length } else { rng.random_range(0..=length) };
            let tail = (0..length).map(|_| [0, 0, 1, 0xFF][rng.random_range(0..4)]);
            prefix.iter().copied().chain(tail).collect::<Vec<u8>>()
        };
        let keys: BTreeSet<_> = (0..1 + round % 150).map(|_| string()).collect();
        let mut probes: Vec<_> = (0..20).map(|_| string()).collect();
        probes.extend(probes.clone().iter().map(|probe| probe[..probe.len() / 2].to_vec()));
        probes.extend(keys.iter().cloned());
        check(&keys.iter().map(Vec::as_slice).collect::<Vec<_>>(), &probes);
    }
}

#[test]
fn counts_in_arrays_of_every_length() {
    for length in 0..400 {
        let windows: Vec<u64> = (0..length).map(|index| 10 + index / 3 * 5).collect();
        for bound in 0..10 + length * 2 {
            assert_eq!(count_at_most(&windows, bound), windows.partition_point(|each| *each <= bound));
        }
        assert_eq!(count_at_most(&windows, u64::MAX), windows.len());
    }
}

#[test]
fn refuses_what_it_cannot_hold() {
    let mut words = Vec::new();
    assert!(!pack(&[b"b", b"a"], &mut words));
    assert!(!pack(&[b"a", b"a"], &mut words));
    assert!(!pack(&[&[7; LENGTH_MAX + 1]], &mut words));
    assert!(words.is_empty());
    let longest = [7; LENGTH_MAX];
    check(&[&longest[..LENGTH_MAX - 1], &longest], &[longest.to_vec(), vec![7; LENGTH_MAX + 9]]);
}
