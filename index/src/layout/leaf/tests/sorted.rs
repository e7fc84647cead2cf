//! Entries in the order of their keys: what `sort` and `dedup` make of them, within bounds.

use std::ops::Bound;

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

use super::leaf;
use crate::layout::SlotOrder;
use crate::layout::leaf::LeafLayout;
use crate::layout::stream::physical;
use crate::layout::{Bytes, Rejection};

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

const ALL: Bounds<'static> = (Bound::Unbounded, Bound::Unbounded);

fn sorted(
    layout: &LeafLayout,
    image: &[u8],
    bounds: Bounds<'_>,
    limit: usize,
) -> Result<Vec<(Bytes, Bytes)>, Rejection> {
    // As a leaf before this one left it.
    let before = (Bytes::from_slice(b"k"), Bytes::from_slice(b"v"));
    let mut pairs = vec![before.clone()];
    let copied =
        layout.view(image).unwrap().copy_sorted(&bounds, limit, &mut SlotOrder::default(), &mut pairs);
    assert_eq!(pairs[0], before);
    copied.inspect_err(|_| assert_eq!(pairs.len(), 1, "nothing is appended"))?;
    Ok(pairs.split_off(1))
}

/// Checks that the keys come out as slices sort, whatever the slots.
fn check_order(layout: &LeafLayout, ascending: &[&[u8]]) {
    assert!(ascending.is_sorted());
    let mut rng = SmallRng::seed_from_u64(4);
    for _ in 0..20 {
        let mut keys = ascending.to_vec();
        keys.shuffle(&mut rng);
        let entries: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (*key, &key[..key.len().min(1)])).collect();
        let pairs = sorted(layout, &leaf(layout, &entries), ALL, usize::MAX).unwrap();
        let found: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
        assert_eq!(found, ascending);
        assert!(pairs.iter().all(|(key, value)| value[..] == key[..key.len().min(1)]));
    }
}

#[test]
fn zeros_at_the_end_of_a_key_count() {
    let layout = LeafLayout::for_slots(12, 20, 1).unwrap();
    let zeros = [0; 20];
    let keys = [0, 1, 7, 8, 9, 15, 16, 17, 20].map(|len| &zeros[..len]);
    check_order(&layout, &keys);
    check_order(
        &layout,
        &[b"", b"\0", b"a", b"a\0", b"a\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0\0", b"a\x01", b"b"],
    );
    check_order(&LeafLayout::for_slots(4, 2, 1).unwrap(), &[b"", b"a", b"a\0", b"b"]);
}

#[test]
fn equal_beginnings_of_any_length_are_told_apart() {
    let layout = LeafLayout::for_slots(20, 40, 1).unwrap();
    let long = [b'x'; 40];
    for shared in 0..=34 {
        let ends: [&[u8]; 8] = [b"", b"\0", b"\0\xff", b"a", b"aa", b"b", b"\xff", b"\xff\xff"];
        let with_ends = |shared| ends.map(|end| [&long[..shared], end].concat());
        // Ties within ties: the second family has eight bytes more in common.
        let mut keys: Vec<Vec<u8>> =
            with_ends(shared).into_iter().chain(with_ends((shared + 8).min(36))).collect();
        keys.sort();
        keys.dedup();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        check_order(&layout, &keys);
    }
}

#[test]
fn a_key_in_two_slots_comes_once() {
    for (first, second) in
        [(&b"aaaaaaaabbbbbbbbc"[..], &b"aaaaaaaabbbbbbbbd"[..]), (b"c", b"c\0"), (b"", b"aaaaaaaab")]
    {
        let layout = LeafLayout::for_slots(6, 20, 1).unwrap();
        let image =
            leaf(&layout, &[(second, b"2"), (first, b"1"), (second, b"3"), (first, b"4"), (first, b"5")]);
        let pairs = sorted(&layout, &image, ALL, usize::MAX).unwrap();
        let expected =
            [(first, b"1"), (second, b"2")].map(|(k, v)| (Bytes::from_slice(k), Bytes::from_slice(v)));
        assert_eq!(pairs, expected);
        assert_eq!(sorted(&layout, &image, ALL, 2).unwrap(), expected, "the second time does not count");
        assert_eq!(sorted(&layout, &image, ALL, 1).unwrap(), expected[..1]);
        assert_eq!(sorted(&layout, &image, ALL, 0).unwrap(), []);
    }
}

#[test]
fn bounds_and_limit_hold_for_random_leaves() {
    let mut rng = SmallRng::seed_from_u64(5);
    for (slots, max_key, max_value) in [(4, 2, 3), (53, 8, 8), (36, 16, 8), (70, 3, 1), (30, 40, 100)] {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        for _ in 0..200 {
            let random_key = |rng: &mut SmallRng| -> Vec<u8> {
                let same = rng.random_range(0..=max_key);
                (0..rng.random_range(0..=max_key)).map(|i| if i < same { 7 } else { rng.random() }).collect()
            };
            let mut model: Vec<(Vec<u8>, Vec<u8>)> = (0..rng.random_range(0..=slots))
                .map(|_| (random_key(&mut rng), vec![rng.random(); rng.random_range(0..=max_value)]))
                .collect();
            let entries: Vec<_> = model.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            let image = leaf(&layout, &entries);
            model.sort_by(|a, b| a.0.cmp(&b.0));
            model.dedup_by(|a, b| a.0 == b.0);

            let limit = rng.random_range(0..=slots + 1);
            let mut bound = |other: &[u8]| {
                let key = model.choose(&mut rng).map_or(other, |pair| &pair.0).to_vec();
                [Bound::Unbounded, Bound::Included(key.clone()), Bound::Excluded(key)][rng.random_range(0..3)]
                    .clone()
            };
            let (start, end) = (bound(b"a"), bound(b"b"));
            let bounds = (start.as_ref().map(|key| &key[..]), end.as_ref().map(|key| &key[..]));
            let within = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&bounds, key);
            let expected = model.iter().filter(|(key, _)| within(key)).take(limit);
            let pairs = sorted(&layout, &image, bounds, limit).unwrap();
            assert!(expected.map(|(k, v)| (&k[..], &v[..])).eq(pairs.iter().map(|(k, v)| (&k[..], &v[..]))));
        }
    }
}

/// Its bytes may be a mixture of two keys: that it lies outside the bounds proves nothing.
#[test]
fn a_torn_entry_outside_the_bounds_makes_the_leaf_torn() {
    let layout = LeafLayout::for_slots(6, 8, 60).unwrap();
    let mut image = leaf(&layout, &[(b"a", b"1"), (b"m", b"2")]);
    let bounds = (Bound::Included(&b"k"[..]), Bound::Unbounded);
    assert_eq!(sorted(&layout, &image, bounds, 9).unwrap().len(), 1);
    assert!(!layout.entry(0).further_lines().is_empty());
    image[physical(layout.entry(0).start())] ^= 1;
    assert_eq!(sorted(&layout, &image, bounds, 9), Err(Rejection::Torn));
}

/// Scans need the versions of entries if they want one that crosses lines, or cannot tell whether they do.
#[test]
fn entries_in_one_line_need_no_version() {
    let rests = |layout: &LeafLayout, image: &[u8], from: &[u8]| {
        layout.view(image).unwrap().rests_on_entry_versions(&(Bound::Included(from), Bound::Unbounded))
    };
    // Four entries of 17 bytes in line 0 and 1, the fifth from line 1 to line 2.
    let layout = LeafLayout::for_slots(9, 8, 8).unwrap();
    let entries: Vec<(&[u8], &[u8])> =
        [b"a", b"b", b"c", b"d", b"e", b"f"].map(|key| (&key[..], &b"value"[..])).to_vec();
    assert!(!rests(&layout, &leaf(&layout, &entries[..4]), b""));
    assert!(rests(&layout, &leaf(&layout, &entries), b""));
    // Its key is in line 1: it proves that a scan from behind it does not want it.
    assert!(rests(&layout, &leaf(&layout, &entries), b"e"));
    assert!(!rests(&layout, &leaf(&layout, &entries), b"f"));
    let mut removed = leaf(&layout, &entries);
    layout.clear_entry(&mut removed, 4);
    assert!(!rests(&layout, &removed, b""));
    // A key that crosses lines itself proves nothing.
    let layout = LeafLayout::for_slots(9, 16, 8).unwrap();
    let image = leaf(&layout, &entries);
    let crosses = |slot: &usize| !layout.entry(*slot).further_lines().is_empty();
    assert!((0..6).any(|slot| crosses(&slot)) && rests(&layout, &image, b"z"));
}
