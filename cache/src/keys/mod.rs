//! Sorted byte strings packed into 64-bit words, searched without touching bytes.
//!
//! ```text
//! word 0          count (32) | prefix length in bytes (16) | exact suffix length or VARIED (8) | 0 (8)
//! count words     windows: the 8 bytes after the prefix, big-endian, zero padded
//! VARIED only     count / 2 words, rounded up: two locators each, 11 bits key length and 21 bits tail word
//! prefix words    the prefix that all keys share, big-endian, zero padded
//! tail words      per key what follows its window, big-endian, zero padded to a word
//! ```
//!
//! The windows, padded tails and then the lengths, compared in this order, order keys as their bytes do:
//! where a padded zero meets a byte, the shorter key loses, unless that byte is zero too, and then the
//! lengths decide ("a" < "a\0"). The prefix is left at zero while the first 8 bytes tell all keys apart, so
//! integers pay nothing for it. Knows nothing of nodes and addresses.

use std::cmp::Ordering;
use std::hint::select_unpredictable;

/// Longest key that a locator can describe, bytes.
pub(crate) const LENGTH_MAX: usize = (1 << LENGTH_BITS) - 1;

const LENGTH_BITS: u32 = 11;
const TAIL_WORDS_MAX: usize = 1 << (32 - LENGTH_BITS);
/// In place of the exact suffix length: the keys differ in length, or do not fit their windows.
const VARIED: u8 = u8::MAX;
const WINDOW: usize = 8;
/// Windows that are compared at once: a cache line's worth.
const BLOCK: usize = 8;

/// Packed keys inside borrowed words. Words after the keys are ignored.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    words: &'a [u64],
}

/// Words that [`prefetch`] asks for at most: sixteen lines.
const PREFETCH_WORDS_MAX: usize = 128;

/// Asks for all lines of a small array at once: a search in it would wait for three of them one after the other.
#[inline]
pub(crate) fn prefetch(words: &[u64]) {
    for line in words.chunks(8).take(PREFETCH_WORDS_MAX / 8) {
        farwood_runtime::prefetch(line.as_ptr());
    }
}

/// Appends `keys`, which must ascend strictly, to `words`. False, and nothing appended, if they do not ascend
/// or are longer than the format allows.
pub(crate) fn pack(keys: &[&[u8]], words: &mut Vec<u64>) -> bool {
    let ascending = keys.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || keys.iter().any(|key| key.len() > LENGTH_MAX) {
        return false;
    }
    let prefix = prefix_length(keys);
    let tail_words: usize = keys.iter().map(|key| words_after(key, prefix + WINDOW)).sum();
    if tail_words > TAIL_WORDS_MAX {
        return false;
    }
    let exact = exact_length(keys, prefix);
    words.push(keys.len() as u64 | (prefix as u64) << 32 | u64::from(exact) << 48);
    words.extend(keys.iter().map(|key| window(key, prefix)));
    if exact == VARIED {
        pack_locators(keys, prefix, words);
    }
    let shared = keys.first().map_or(&[][..], |first| &first[..prefix]);
    words.extend((0..prefix).step_by(WINDOW).map(|at| window(shared, at)));
    for key in keys {
        words.extend((prefix + WINDOW..key.len()).step_by(WINDOW).map(|at| window(key, at)));
    }
    true
}

/// Yields the 8 bytes of `key` from byte `at` as a big-endian number, zero padded behind the key's end.
#[inline]
pub(crate) fn window(key: &[u8], at: usize) -> u64 {
    let rest = key.get(at..).unwrap_or_default();
    match rest.first_chunk::<WINDOW>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => short_window(rest),
    }
}

#[inline(never)]
fn short_window(rest: &[u8]) -> u64 {
    let mut bytes = [0; WINDOW];
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(bytes)
}

/// Counts the ascending `windows` that are at most `bound`.
///
/// Compares with the last window of each block of 8, then with the middle of one block, then with one half:
/// comparisons within a round do not depend on each other, so that a node costs the latency of three loads
/// instead of six. Measured for 51 windows in L1: 7 ns, `partition_point` 13, comparing with all of them 13.
#[inline]
pub(crate) fn count_at_most(windows: &[u64], bound: u64) -> usize {
    const PIVOTS_MAX: usize = 16;
    let (mut base, mut rest) = (0, windows);
    while rest.len() > BLOCK * (PIVOTS_MAX + 1) {
        let (low, high) = rest.split_at(rest.len() / 2);
        let right = high[0] <= bound;
        base += if right { low.len() } else { 0 };
        rest = select_unpredictable(right, high, low);
    }
    if rest.len() < BLOCK {
        return base + rest.iter().filter(|each| **each <= bound).count();
    }
    let pivots = rest.chunks_exact(BLOCK);
    let full: usize = pivots.map(|block| usize::from(block[BLOCK - 1] <= bound)).sum();
    // Behind the last full block: then look at the last 8 windows, of which the first are known to be at most
    // `bound`.
    let start = (full * BLOCK).min(rest.len() - BLOCK);
    base + start + rest[start..].first_chunk().map_or(0, |block| count_in_block(block, bound))
}

/// Counts in two rounds: the compiler turns 8 comparisons at once into vector code that is twice as slow.
#[inline]
fn count_in_block(block: &[u64; BLOCK], bound: u64) -> usize {
    const HALF: usize = BLOCK / 2;
    let start = usize::from(block[HALF - 1] <= bound) * HALF;
    start + block[start..start + HALF].iter().map(|each| usize::from(*each <= bound)).sum::<usize>()
}

impl<'a> Keys<'a> {
    /// Views the keys that start at the first of `words`.
    #[inline]
    pub(crate) fn new(words: &'a [u64]) -> Self {
        Keys { words }
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        self.words[0] as u32 as usize
    }

    /// Counts the keys that are at most `key`: the position of the last of them plus one.
    #[inline]
    pub(crate) fn rank(self, key: &[u8]) -> usize {
        let prefix = self.prefix_len();
        if prefix > 0 {
            match self.compare_prefix(key) {
                Ordering::Less => return 0,
                Ordering::Equal => {}
                Ordering::Greater => return self.len(),
            }
        }
        let bound = window(key, prefix);
        let windows = self.windows();
        let at_most = count_at_most(windows, bound);
        let exact = self.exact();
        // Keys of one length that fit their windows: equal windows mean that the stored key begins `key`.
        if exact != VARIED && key.len() >= prefix + usize::from(exact) {
            return at_most;
        }
        if at_most == 0 || windows[at_most - 1] != bound {
            at_most
        } else {
            self.rank_in_tie(key, bound, at_most)
        }
    }

    /// Counts the keys that are less than `key`.
    pub(crate) fn rank_below(self, key: &[u8]) -> usize {
        let rank = self.rank(key);
        if rank > 0 && self.compare(rank - 1, key).is_eq() { rank - 1 } else { rank }
    }

    /// Compares the key at `index` with `key`.
    pub(crate) fn compare(self, index: usize, key: &[u8]) -> Ordering {
        let prefix = self.prefix_len();
        self.compare_prefix(key)
            .reverse()
            .then_with(|| self.windows()[index].cmp(&window(key, prefix)))
            .then_with(|| self.compare_tail(index, key))
    }

    /// Appends the bytes of the key at `index` to `out`.
    pub(crate) fn copy(self, index: usize, out: &mut impl Extend<u8>) {
        let (length, tail) = self.locate(index);
        let prefix = self.prefix_len();
        let mut left = prefix;
        for word in &self.words[self.prefix_start()..][..prefix.div_ceil(WINDOW)] {
            out.extend(word.to_be_bytes().into_iter().take(left));
            left = left.saturating_sub(WINDOW);
        }
        let mut left = length - prefix;
        for word in std::iter::once(&self.windows()[index]).chain(&self.words[tail..]) {
            out.extend(word.to_be_bytes().into_iter().take(left));
            left = left.saturating_sub(WINDOW);
            if left == 0 {
                break;
            }
        }
    }

    /// Yields the bytes of the key at `index`.
    pub(crate) fn to_vec(self, index: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.locate(index).0);
        self.copy(index, &mut bytes);
        bytes
    }

    /// Finds the rank within a run of keys with equal windows, where only tails and lengths tell.
    #[inline(never)]
    fn rank_in_tie(self, key: &[u8], bound: u64, at_most: usize) -> usize {
        let mut low = self.windows()[..at_most].partition_point(|each| *each < bound);
        let mut high = at_most;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.compare_tail(middle, key).is_le() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn compare_tail(self, index: usize, key: &[u8]) -> Ordering {
        let prefix = self.prefix_len();
        let (length, tail) = self.locate(index);
        let stored = (length - prefix).saturating_sub(WINDOW).div_ceil(WINDOW);
        for (step, word) in self.words[tail..][..stored].iter().enumerate() {
            match word.cmp(&window(key, prefix + WINDOW * (step + 1))) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        // Equal up to the stored key's end. Where `key` goes on, even with zeros, it is the longer one.
        length.cmp(&key.len())
    }

    /// Tells where `key` lies relative to the keys that have the prefix.
    #[inline(never)]
    fn compare_prefix(self, key: &[u8]) -> Ordering {
        let prefix = self.prefix_len();
        let start = if prefix == 0 { return Ordering::Equal } else { self.prefix_start() };
        let head = key.get(..prefix).unwrap_or(key);
        for (step, word) in self.words[start..][..prefix.div_ceil(WINDOW)].iter().enumerate() {
            match window(head, step * WINDOW).cmp(word) {
                Ordering::Equal => {}
                unequal => return unequal,
            }
        }
        head.len().cmp(&prefix)
    }

    #[inline]
    fn windows(self) -> &'a [u64] {
        &self.words[1..1 + self.len()]
    }

    #[inline]
    fn prefix_len(self) -> usize {
        usize::from((self.words[0] >> 32) as u16)
    }

    #[inline]
    fn exact(self) -> u8 {
        (self.words[0] >> 48) as u8
    }

    fn prefix_start(self) -> usize {
        let locators = if self.exact() == VARIED { self.len().div_ceil(2) } else { 0 };
        1 + self.len() + locators
    }

    /// Yields the length of the key at `index` in bytes, and the index of its first tail word.
    fn locate(self, index: usize) -> (usize, usize) {
        let tails = self.prefix_start() + self.prefix_len().div_ceil(WINDOW);
        match self.exact() {
            VARIED => {
                let pair = self.words[1 + self.len() + index / 2];
                let locator = (pair >> (32 * (index % 2))) as u32 as usize;
                (locator & LENGTH_MAX, tails + (locator >> LENGTH_BITS))
            }
            exact => (self.prefix_len() + usize::from(exact), tails),
        }
    }
}

fn pack_locators(keys: &[&[u8]], prefix: usize, words: &mut Vec<u64>) {
    let mut tail = 0;
    let mut locator = |key: &[u8]| {
        let bits = key.len() | tail << LENGTH_BITS;
        tail += words_after(key, prefix + WINDOW);
        bits as u64
    };
    for pair in keys.chunks(2) {
        let first = locator(pair[0]);
        words.push(first | pair.get(1).map_or(0, |key| locator(key) << 32));
    }
}

/// Yields the length of the prefix: zero while the first 8 bytes tell the keys apart, else what the first and
/// the last, and so all, have in common.
fn prefix_length(keys: &[&[u8]]) -> usize {
    let ties = keys.windows(2).any(|pair| window(pair[0], 0) == window(pair[1], 0));
    match (keys.first(), keys.last()) {
        (Some(first), Some(last)) if ties => first.iter().zip(*last).take_while(|(a, b)| a == b).count(),
        _ => 0,
    }
}

/// Yields the number of bytes that every key has after the prefix, if it is one number and they fit the
/// windows.
fn exact_length(keys: &[&[u8]], prefix: usize) -> u8 {
    let length = keys.first().map_or(0, |key| key.len());
    let same = keys.iter().all(|key| key.len() == length);
    if same && length - prefix <= WINDOW { (length - prefix) as u8 } else { VARIED }
}

fn words_after(key: &[u8], at: usize) -> usize {
    key.len().saturating_sub(at).div_ceil(WINDOW)
}

#[cfg(test)]
mod tests;
