//! Identities of keys, in the 128 bits that fit into a message, and the shard that is a key's home. Pure.
//!
//! ```text
//!           127   126                                  120 119                                      0
//!          +-----+----------------------------------------+------------------------------------------+
//!  short   | 0   | length in bytes, 0 to 15                | the key itself, zeros behind it          |
//!          +-----+----------------------------------------+------------------------------------------+
//!  long    | 1   | 127 bits of the key's XXH3                                                        |
//!          +-----+-----------------------------------------------------------------------------------+
//!                  XOR a mask that depends on the seed
//! ```
//!
//! Two keys with the same bits would share windows, and readers of the one would get values of the other. Keys of up
//! to 15 bytes are their own bits, so that there are no two. Longer ones would have to be open at the same time and
//! agree in 127 bits: with a million of them open at any moment, that is expected once in 10^26 moments, less often
//! than memory fails undetected. The hash is not a cryptographic one, so keys that strangers choose are hashed with a
//! seed that they cannot know; nothing that is computed from it leaves the compute node, so they cannot learn it
//! either.

use std::hash::{Hash, Hasher};

use farwood_runtime::ShardId;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::place::{mix, scale};

/// The longest key that is its own identity.
const EXACT_BYTES_MAX: usize = 15;

/// The identity of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyId {
    low: u64,
    high: u64,
}

/// The hash that makes identities of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash {
    seed: u64,
    mask: u128,
}

impl KeyHash {
    pub(crate) fn new(seed: u64) -> Self {
        let (low, high) = (mix(seed), mix(!seed));
        KeyHash { seed, mask: u128::from(high) << 64 | u128::from(low) }
    }

    /// Computes the identity of `key`.
    #[inline]
    pub(crate) fn identify(&self, key: &[u8]) -> KeyId {
        let bits = if key.len() <= EXACT_BYTES_MAX {
            let mut bytes = [0; 16];
            bytes[..key.len()].copy_from_slice(key);
            bytes[EXACT_BYTES_MAX] = key.len() as u8;
            u128::from_le_bytes(bytes)
        } else {
            xxh3_128_with_seed(key, self.seed) | 1 << 127
        };
        let bits = bits ^ self.mask;
        KeyId { low: bits as u64, high: (bits >> 64) as u64 }
    }
}

impl KeyId {
    pub(crate) const fn from_words(low: u64, high: u64) -> Self {
        KeyId { low, high }
    }

    pub(crate) const fn to_words(self) -> (u64, u64) {
        (self.low, self.high)
    }

    /// Yields the shard that keeps the key's windows.
    #[inline]
    pub(crate) fn home(self, shards: usize) -> ShardId {
        ShardId(scale(mix(self.spread()), shards as u64) as u16)
    }

    /// Mixes both halves into 64 bits.
    #[inline]
    fn spread(self) -> u64 {
        self.low ^ mix(self.high)
    }
}

/// Two words in one: the tables' hasher takes one, and what differs in `low` alone must not meet again.
impl Hash for KeyId {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.spread());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn different_keys_have_different_identities() {
        let hash = KeyHash::new(5);
        let mut seen = HashSet::new();
        let mut keys = 0;
        for len in 0..40 {
            // Every key with one byte that is not 0, and the one without.
            let mut key = vec![0; len];
            assert!(seen.insert(hash.identify(&key).to_words()), "{key:?}");
            keys += 1;
            for at in 0..len {
                for byte in [1, 15, 16, 0x80, 0xFF] {
                    key[at] = byte;
                    assert!(seen.insert(hash.identify(&key).to_words()), "{key:?}");
                    keys += 1;
                }
                key[at] = 0;
            }
        }
        assert_eq!(seen.len(), keys);
    }

    #[test]
    fn the_seed_decides() {
        for key in [b"short".as_slice(), b"a key that is longer than 15 bytes"] {
            let of = |seed| KeyHash::new(seed).identify(key);
            assert_eq!(of(1), of(1));
            assert_ne!(of(1), of(2));
            assert_ne!(of(0), of(1));
        }
    }

    #[test]
    fn keys_spread_over_homes() {
        let hash = KeyHash::new(3);
        for shards in [2, 5, 8] {
            let mut homes = [[0u32; 8]; 3];
            for i in 0u64..8000 {
                let long = format!("a longer key, number {i}");
                let keys = [i.to_be_bytes().to_vec(), i.to_le_bytes().to_vec(), long.into_bytes()];
                for (homes, key) in homes.iter_mut().zip(keys) {
                    homes[usize::from(hash.identify(&key).home(shards).0)] += 1;
                }
            }
            let expected = 8000 / shards as u32;
            let even = |n: &u32| (expected * 3 / 4..expected * 5 / 4).contains(n);
            assert!(homes.iter().all(|homes| homes[..shards].iter().all(even)), "{homes:?}");
        }
    }
}
