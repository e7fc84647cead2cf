//! Where a full leaf is divided, and the separator of its parts. Pure.
//!
//! Keys of one length are numbers, and those of a leaf are often close: counters, times, addresses. Clients that insert
//! such keys in order are a little before or behind each other. If leaves were divided in the middle of what is there,
//! each part would have slots for keys that do not exist. So, where keys are dense, a part gets as many numbers as it
//! has slots: it can become full, and is never divided again.
//!
//! ```text
//!   [0, ..)  0 2 3 5    and 6, while 1 and 4 are late:    [0, 4)  0 2 3 _    [4, ..)  5 6 _ _
//! ```

use crate::layout::Bytes;

/// Yields the shortest key that is above `left` and not above `right`.
pub(super) fn shortest(left: &[u8], right: &[u8]) -> Bytes {
    let shared = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    Bytes::from_slice(&right[..shared + 1])
}

/// Chooses where to divide the ascending keys of a full leaf with these bounds, of which the one at `new` comes in
/// addition: the first index of the right part, and where that begins.
///
/// Dense keys are divided by their numbers. Of others, those that come in order leave full leaves behind; otherwise
/// both parts get a third at least, such that the separator is as short as can be.
pub(super) fn divide(keys: &[&[u8]], new: usize, (low, high): (&[u8], Option<&[u8]>)) -> (usize, Bytes) {
    let (slots, comes_last) = (keys.len() - 1, new + 1 == keys.len());
    // With half of its numbers in use a dense part would stay half empty, while keys that come in order fill theirs: so
    // more has to be in use then.
    let least = if comes_last { (2 * slots).div_ceil(3) } else { (2 * slots).div_ceil(5) };
    if let Some(division) = divide_dense(keys, (low, high), least) {
        return division;
    }
    let at = if comes_last { new } else { near_middle(keys) };
    (at, shortest(keys[at - 1], keys[at]))
}

/// Divides keys such that the part at one of the bounds has as many numbers as slots. `None` where fewer than `least`
/// of these are keys of the leaf.
fn divide_dense(keys: &[&[u8]], (low, high): (&[u8], Option<&[u8]>), least: usize) -> Option<(usize, Bytes)> {
    let (len, slots) = (keys[0].len(), keys.len() as i64 - 1);
    if keys.iter().any(|key| key.len() != len) {
        return None;
    }
    let divide_at = |number: Option<Bytes>, is_left_dense: bool| {
        let mut separator = number?;
        let at = keys.partition_point(|key| *key < &separator[..]);
        let used = if is_left_dense { at } else { keys.len() - at };
        // Without zeros at its end it is not above the number, and no key of that length is between.
        separator.truncate(separator.iter().rposition(|byte| *byte != 0)? + 1);
        ((1..keys.len()).contains(&at) && used >= least).then_some((at, separator))
    };
    let from_high = || divide_at(high.and_then(|high| number_from(high, len, -slots)), false);
    divide_at(number_from(low, len, slots), true).or_else(from_high)
}

/// Yields the key of `len` bytes whose number is `by` more than that of the first such key that is not below `bound`.
/// `None` if another byte than the last eight would change, or the bound is longer.
fn number_from(bound: &[u8], len: usize, by: i64) -> Option<Bytes> {
    const BYTES: usize = size_of::<u64>();
    if bound.len() > len {
        return None;
    }
    let mut key = Bytes::from_slice(bound);
    key.resize(len, 0);
    let tail = &mut key[len.saturating_sub(BYTES)..];
    let mut number = [0; BYTES];
    number[BYTES - tail.len()..].copy_from_slice(tail);
    let number = u64::from_be_bytes(number).checked_add_signed(by)?.to_be_bytes();
    let (above, below) = number.split_at(BYTES - tail.len());
    tail.copy_from_slice(below);
    above.iter().all(|byte| *byte == 0).then_some(key)
}

/// Chooses the first index of the right part such that both get a third at least, and the separator is short.
fn near_middle(keys: &[&[u8]]) -> usize {
    let count = keys.len();
    let third = (count / 3).max(1);
    let cost = |at: &usize| (shortest(keys[*at - 1], keys[*at]).len(), (2 * at).abs_diff(count));
    (third..=count - third).min_by_key(cost).expect("there are two keys at least")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Divides keys of eight bytes, numbers; yields the left part's count, and the first number of the right part.
    fn divided(numbers: &[u64], new: u64, low: u64, high: Option<u64>) -> (usize, u64) {
        let keys: Vec<[u8; 8]> = numbers.iter().map(|number| number.to_be_bytes()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let place = numbers.iter().position(|number| *number == new).unwrap();
        let [low, high] = [Some(low), high].map(|bound| bound.map(u64::to_be_bytes));
        let bounds = (&low.as_ref().unwrap()[..], high.as_ref().map(|high| &high[..]));
        let (at, separator) = divide(&keys, place, bounds);
        assert!(keys[at - 1] < &separator[..] && &separator[..] <= keys[at], "{numbers:?}: {separator:?}");
        assert_ne!(separator.last(), Some(&0), "a zero at its end tells nothing");
        let mut first = [0; 8];
        first[..separator.len()].copy_from_slice(&separator);
        (at, u64::from_be_bytes(first))
    }

    #[test]
    fn separators_are_short() {
        for (left, right, separator) in
            [("ab", "abc", "abc"), ("abc", "abx", "abx"), ("aaaa", "bzz", "b"), ("", "a", "a")]
        {
            assert_eq!(*shortest(left.as_bytes(), right.as_bytes()), *separator.as_bytes());
        }
    }

    #[test]
    fn leaves_are_divided_where_separators_are_short() {
        let at = |keys: &[&str], new| {
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            let (at, separator) = divide(&keys, new, (b"", None));
            assert_eq!(separator, shortest(keys[at - 1], keys[at]));
            at
        };
        let keys = ["a1", "a2", "a3", "b1", "b2", "b3", "b4"];
        assert_eq!(at(&keys, 2), 3);
        assert_eq!(at(&keys, 6), 6, "the last one is new");
        assert_eq!(at(&keys[..2], 0), 1);
        assert_eq!(at(&["a1", "a2", "a3", "a4"], 0), 2);
    }

    #[test]
    fn dense_keys_are_divided_where_a_part_can_become_full() {
        // Ten slots, but for the last.
        let late = [500, 501, 503, 504, 505, 506, 507, 508, 511, 512, 513];
        let each = |step: u64, keys: u64| (0..keys).map(|n| step * n).collect::<Vec<_>>();
        for (numbers, new, low, high, divided_at) in [
            (late.to_vec(), 508, 500, None, (8, 510)),
            (late.to_vec(), 513, 500, None, (8, 510)),
            // From the upper bound, where the lower one is far.
            (late.to_vec(), 508, 0, Some(515), (4, 505)),
            (vec![3, 505, 506, 507, 508, 509, 510, 511, 512, 513, 514], 508, 0, Some(515), (1, 505)),
            // Few are near it, or neither bound is near.
            (vec![100, 200, 300, 400, 450, 460, 470, 480, 490, 507, 512], 450, 0, Some(515), (5, 460)),
            (late.to_vec(), 508, 0, Some(9000), (5, 506)),
            (late.to_vec(), 513, 0, Some(9000), (10, 513)),
            // Six of ten numbers are too few where keys come in order.
            (vec![500, 501, 502, 503, 504, 505, 510, 511, 512, 513, 514], 514, 500, None, (10, 514)),
            // Every other number is missing, and comes late or never: in order, one by one, never.
            (each(2, 11), 10, 0, None, (5, 10)),
            (each(2, 11), 20, 0, None, (10, 20)),
            (each(3, 11), 15, 0, None, (4, 10)),
            (each(4, 11), 20, 0, None, (5, 20)),
            (each(3, 13), 15, 0, None, (6, 18)),
        ] {
            assert_eq!(divided(&numbers, new, low, high), divided_at, "{numbers:?}, {new} is new");
        }
    }

    /// All leaves of three slots with these numbers, in all bounds: both parts get keys, and the separator is between.
    #[test]
    fn every_small_leaf_is_divided_between_two_keys() {
        let sets = (0..1_u64 << 9).filter(|set| set.count_ones() == 4);
        for numbers in
            sets.map(|set| (0..9).filter(|n| set >> n & 1 == 1).map(|n| n + 253).collect::<Vec<_>>())
        {
            for low in 250..=numbers[0] {
                for high in (numbers[3] + 1..266).map(Some).chain([None]) {
                    for new in &numbers {
                        divided(&numbers, *new, low, high);
                    }
                }
            }
        }
    }

    /// A key that ends where another one goes on with zeros is before it: such keys are no numbers.
    #[test]
    fn keys_of_different_lengths_are_divided_between_two_of_them() {
        let keys: [&[u8]; 4] = [b"a\0\xFE", b"a\0\xFF", b"a\x01", b"a\x01\0"];
        for new in 0..keys.len() {
            let (at, separator) = divide(&keys, new, (b"a\0\xFD", None));
            assert!(keys[at - 1] < &separator[..] && &separator[..] <= keys[at], "{separator:?}");
        }
    }

    #[test]
    fn numbers_of_keys_stay_within_their_lengths() {
        for (bound, len, by, key) in [
            (&b"a"[..], 2, 3, Some(&b"a\x03"[..])),
            (b"a\xFE", 2, 3, Some(b"b\x01")),
            (b"b\x01", 2, -3, Some(b"a\xFE")),
            (b"\xFF\xFE", 2, 3, None),
            (b"", 1, -1, None),
            (b"abc", 2, 1, None),
            (b"a12345678", 9, 1, Some(b"a12345679")),
            (b"a\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 9, 1, None),
            (b"b", 9, -1, None),
        ] {
            assert_eq!(number_from(bound, len, by).as_deref(), key, "{bound:?} of {len} and {by}");
        }
    }
}
