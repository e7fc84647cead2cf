//! Key sets: a key for every number, without an end. Numbers are spread over the key space, so that popular ranks and
//! new keys fall everywhere in key order; but for dense keys, of which new ones come behind all others.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::workload::key_file::FileKeys;
use crate::workload::trace::Trace;

/// A key or value on its way into a bulk load: short ones live in place.
pub(crate) type Bytes = SmallVec<[u8; 32]>;

/// Keys that a run uses.
pub(crate) enum KeySet {
    /// 8 bytes, big-endian: a bijective hash of the number.
    Int,
    /// 8 bytes, big-endian: the number itself, as ids that are counted up.
    Dense,
    /// Paths like `shop/invoice/8f3k2`: generated, of various lengths.
    String,
    /// Given by a file.
    File(FileKeys),
    /// Those of a trace, and no others.
    Trace(Arc<Trace>),
}

/// The longest key of [`KeySet::String`].
pub(crate) const STRING_BYTES_MAX: usize = 40;

const WORDS: [&[u8]; 32] = [
    b"a",
    b"app",
    b"archive",
    b"auth",
    b"backup",
    b"billing",
    b"cart",
    b"catalogue",
    b"cdn",
    b"chat",
    b"config",
    b"customer",
    b"device",
    b"event",
    b"feed",
    b"image",
    b"index",
    b"invoice",
    b"job",
    b"log",
    b"mail",
    b"metric",
    b"order",
    b"page",
    b"payment",
    b"profile",
    b"queue",
    b"session",
    b"shop",
    b"tmp",
    b"user",
    b"warehouse",
];

impl KeySet {
    /// Writes the key of that number into `out`, replacing what is there.
    #[inline]
    pub(crate) fn write(&self, number: u64, out: &mut Vec<u8>) {
        out.clear();
        match self {
            KeySet::Int => out.extend_from_slice(&int_key(number)),
            KeySet::Dense => out.extend_from_slice(&number.to_be_bytes()),
            KeySet::String => write_string(number, out),
            KeySet::File(keys) => keys.write(number, out),
            KeySet::Trace(trace) => out.extend_from_slice(trace.key(number as u32)),
        }
    }

    /// Returns the greatest length of a key of this set, whatever its number.
    pub(crate) fn bytes_max(&self, adds_keys: bool) -> usize {
        match self {
            KeySet::Int | KeySet::Dense => 8,
            KeySet::String => STRING_BYTES_MAX,
            KeySet::File(keys) => keys.bytes_max(adds_keys),
            KeySet::Trace(trace) => trace.longest_key(),
        }
    }

    /// Tells whether keys of different numbers always differ (a file may hold what looks like one of its own new keys).
    pub(crate) fn is_injective(&self) -> bool {
        !matches!(self, KeySet::File(_))
    }

    /// Returns the keys of the numbers below `count`, ascending; of a trace those that it needs in the beginning.
    pub(crate) fn sorted(&self, count: u64) -> SortedKeys {
        match self {
            KeySet::Int => {
                let mut keys: Vec<u64> = (0..count).map(mix64).collect();
                keys.sort_unstable();
                return SortedKeys::Int(keys);
            }
            KeySet::Dense => return SortedKeys::Int((0..count).collect()),
            KeySet::Trace(trace) => {
                return SortedKeys::Trace { trace: Arc::clone(trace), numbers: trace.loaded_sorted() };
            }
            KeySet::String | KeySet::File(_) => {}
        }
        let (mut key, mut bytes, mut keys) = (Vec::new(), Vec::new(), Vec::with_capacity(count as usize));
        for number in 0..count {
            self.write(number, &mut key);
            keys.push(Piece { prefix: prefix_of(&key), start: bytes.len() as u64, len: key.len() as u32 });
            bytes.extend_from_slice(&key);
        }
        keys.sort_unstable_by(|a, b| a.prefix.cmp(&b.prefix).then_with(|| a.of(&bytes).cmp(b.of(&bytes))));
        SortedKeys::Bytes { bytes, keys }
    }
}

/// Keys in ascending order.
pub(crate) enum SortedKeys {
    /// Integer keys.
    Int(Vec<u64>),
    /// Pieces of one buffer.
    Bytes {
        /// All keys, one after the other.
        bytes: Vec<u8>,
        /// Places of the keys.
        keys: Vec<Piece>,
    },
    /// Keys of a trace.
    Trace {
        /// The trace.
        trace: Arc<Trace>,
        /// Numbers of the keys.
        numbers: Vec<u32>,
    },
}

/// A key within a buffer.
pub(crate) struct Piece {
    /// Its first 8 bytes: most comparisons need no more.
    prefix: u64,
    start: u64,
    len: u32,
}

impl Piece {
    fn of<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.start as usize..][..self.len as usize]
    }
}

impl SortedKeys {
    /// Counts the keys.
    pub(crate) fn len(&self) -> usize {
        match self {
            SortedKeys::Int(keys) => keys.len(),
            SortedKeys::Bytes { keys, .. } => keys.len(),
            SortedKeys::Trace { numbers, .. } => numbers.len(),
        }
    }

    /// Yields the keys, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Bytes> + '_ {
        (0..self.len()).map(|at| match self {
            SortedKeys::Int(keys) => Bytes::from_slice(&keys[at].to_be_bytes()),
            SortedKeys::Bytes { bytes, keys } => Bytes::from_slice(keys[at].of(bytes)),
            SortedKeys::Trace { trace, numbers } => Bytes::from_slice(trace.key(numbers[at])),
        })
    }

    /// Returns the bytes of the value of the key at that place, if each key has its own.
    pub(crate) fn value_bytes(&self, at: usize) -> Option<usize> {
        match self {
            SortedKeys::Trace { trace, numbers } => Some(trace.loaded_bytes(numbers[at])),
            SortedKeys::Int(_) | SortedKeys::Bytes { .. } => None,
        }
    }
}

fn prefix_of(key: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = key.len().min(8);
    word[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(word)
}

/// Returns the integer key of a number.
#[inline]
pub(crate) fn int_key(number: u64) -> [u8; 8] {
    mix64(number).to_be_bytes()
}

/// Permutes the words of 64 bits (the finaliser of SplitMix64, with its increment so that 0 is no fixed point).
#[inline]
pub(crate) fn mix64(word: u64) -> u64 {
    let mut x = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Writes two or three words, then the number's own name: a permutation of 40 bits (of all 64 beyond that) in base 36.
/// The last part alone tells numbers apart, and no word contains a slash.
fn write_string(number: u64, out: &mut Vec<u8>) {
    let random = mix64(number ^ 0x5747_1265);
    let word = |shift: u32| WORDS[(random >> shift) as usize % WORDS.len()];
    out.extend_from_slice(word(0));
    out.push(b'/');
    out.extend_from_slice(word(5));
    out.push(b'/');
    if random >> 62 == 0 {
        out.extend_from_slice(word(10));
        out.push(b'/');
    }
    const LOW: u64 = (1 << 40) - 1;
    // Multiplying by an odd number permutes the words of 40 bits.
    let low = number.wrapping_mul(0x9e_3779_b97f_4a7d) & LOW;
    push_base36((number & !LOW) | low, out);
}

/// Appends a number in base 36.
pub(crate) fn push_base36(mut number: u64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let start = out.len();
    loop {
        out.push(DIGITS[(number % 36) as usize]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn integer_keys_are_a_bijection() {
        // Invert the finaliser step by step: what can be undone is one-to-one.
        let unshift = |x: u64, by: u32| (0..64 / by).fold(x, |y, _| x ^ (y >> by));
        let inverse_of =
            |odd: u64| (0..6).fold(odd, |y, _| y.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(y))));
        for number in (0..1000).chain([u64::MAX, 1 << 40]) {
            let mut x = unshift(mix64(number), 31).wrapping_mul(inverse_of(0x94d0_49bb_1331_11eb));
            x = unshift(x, 27).wrapping_mul(inverse_of(0xbf58_476d_1ce4_e5b9));
            assert_eq!(unshift(x, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15), number);
        }
    }

    #[test]
    fn integer_keys_are_spread() {
        let mut buckets = [0; 16];
        for number in 0..16_000 {
            buckets[(int_key(number)[0] >> 4) as usize] += 1;
        }
        assert!(buckets.iter().all(|&n| (850..1150).contains(&n)), "{buckets:?}");
    }

    #[test]
    fn string_keys_are_unique_bounded_and_various() {
        let (mut key, mut seen, mut lengths) = (Vec::new(), HashSet::new(), HashSet::new());
        for number in (0..100_000).chain([1 << 39, 1 << 41, u64::MAX]) {
            KeySet::String.write(number, &mut key);
            assert!(key.len() <= STRING_BYTES_MAX, "{}", String::from_utf8_lossy(&key));
            lengths.insert(key.len());
            assert!(seen.insert(key.clone()));
        }
        assert!(lengths.len() > 15);
    }

    #[test]
    fn sorted_keys_ascend_strictly_and_are_all_there() {
        for set in [KeySet::Int, KeySet::Dense, KeySet::String] {
            let sorted: Vec<Bytes> = set.sorted(5_000).iter().collect();
            assert_eq!(sorted.len(), 5_000);
            assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]));
            let mut key = Vec::new();
            set.write(4_999, &mut key);
            assert!(sorted.iter().any(|k| k[..] == key[..]));
        }
    }

    #[test]
    fn base36_counts() {
        let mut out = Vec::new();
        push_base36(0, &mut out);
        push_base36(35, &mut out);
        push_base36(36, &mut out);
        assert_eq!(out, b"0z10");
    }
}
