//! Hopscotch leaves as readers, writers and splits see them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use farwood_runtime::RemotePtr;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::super::header::{NodeHeader, Position};
use super::super::stream::LINE_BYTES;
use super::super::{LayoutError, NodeVersion, Rejection, SlotOrder, make_contiguous};
use super::{HopLayout, Ring};

/// Span, neighbourhood, key and value bytes.
pub(super) type Shape = (usize, usize, usize, usize);

/// Entries within a line, over two, and over several.
const SHAPES: [Shape; 8] = [
    (2, 2, 2, 2),
    (4, 2, 8, 8),
    (8, 4, 3, 40),
    (16, 8, 8, 8),
    (64, 8, 8, 8),
    (32, 16, 20, 90),
    (4, 4, 30, 150),
    (24, 24, 8, 8),
];

fn layouts() -> impl Iterator<Item = HopLayout> {
    layouts_of(&SHAPES, &[false, true])
}

/// Makes direct and indirect leaves of each shape, with fences in their replicas or without.
pub(super) fn layouts_of(shapes: &[Shape], fences: &[bool]) -> impl Iterator<Item = HopLayout> {
    shapes.iter().flat_map(move |&(slots, reach, key, value)| {
        [HopLayout::new, HopLayout::indirect].into_iter().flat_map(move |make| {
            fences.iter().map(move |&fences| make(Ring { slots, reach }, key, value, fences).unwrap())
        })
    })
}

pub(super) fn header(version: u16) -> NodeHeader<'static> {
    NodeHeader {
        level: 0,
        low: b"",
        high: Some(b"\xf0"),
        sibling: RemotePtr::from_bits(640),
        incarnation: 7,
        node_version: NodeVersion::new(version),
    }
}

pub(super) fn key(layout: &HopLayout, number: usize) -> Vec<u8> {
    let mut key = vec![number as u8; layout.max_key - number % 2];
    key[0] = (number % 200) as u8;
    key
}

pub(super) fn value(layout: &HopLayout, number: usize) -> Vec<u8> {
    vec![number as u8; layout.value_bytes - number % 2]
}

/// Keeps of an image what a lookup of `key` reads; the other bytes are none that writers leave.
fn read_for(layout: &HopLayout, image: &[u8], key: &[u8]) -> Vec<u8> {
    let mut part = vec![0xEE; image.len()];
    for range in layout.neighbourhood(layout.home(key)) {
        part[range.clone()].copy_from_slice(&image[range]);
    }
    part
}

pub(super) fn get(layout: &HopLayout, image: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, Rejection> {
    let part = read_for(layout, image, key);
    let seen = layout.lookup(&part, key, false)?;
    assert_eq!(seen.sibling, RemotePtr::from_bits(640));
    Ok(seen.found.map(|found| {
        let mut part = part;
        let at = make_contiguous(&mut part, found.value);
        part[at].to_vec()
    }))
}

/// Yields the keys that a scan of the leaf sees.
pub(super) fn keys(layout: &HopLayout, image: &[u8]) -> Result<Vec<Vec<u8>>, Rejection> {
    let (mut order, mut pairs) = (SlotOrder::default(), Vec::new());
    let leaf = layout.view(image)?;
    leaf.check_sum()?;
    leaf.copy_sorted(&.., usize::MAX, &mut order, &mut pairs)?;
    Ok(pairs.into_iter().map(|(key, _)| key.to_vec()).collect())
}

/// Yields what a leaf has of these keys, in order.
fn stored<'k>(layout: &HopLayout, keys: impl Iterator<Item = &'k Vec<u8>>) -> Vec<Vec<u8>> {
    let fingerprint = |key: &Vec<u8>| HopLayout::hash(key).to_le_bytes().to_vec();
    let is_indirect = layout.blocks().is_some();
    let mut stored: Vec<_> =
        keys.map(|key| if is_indirect { fingerprint(key) } else { key.clone() }).collect();
    stored.sort();
    stored
}

/// A leaf and what is in it.
struct Table {
    layout: HopLayout,
    image: Vec<u8>,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Table {
    fn new(layout: HopLayout) -> Self {
        let mut image = vec![0xAB; layout.node_bytes()];
        assert_eq!(layout.build(&mut image, &header(5), []), 0);
        Table { layout, image, pairs: BTreeMap::new() }
    }

    /// Inserts, updates or removes a key as a writer does; yields the image before, unless there was no room.
    fn step(&mut self, number: usize, rng: &mut SmallRng) -> Option<Vec<u8>> {
        let (layout, before) = (self.layout, self.image.clone());
        let (key, new) = (key(&layout, number), value(&layout, rng.random_range(0..250)));
        let found = layout.lookup(&self.image, &key, true).unwrap().found;
        assert_eq!(found.is_some(), self.pairs.contains_key(&key));
        let mut ranges = match found {
            Some(found) if rng.random() => {
                self.pairs.remove(&key);
                layout.remove(&mut self.image, found.slot).unwrap()
            }
            Some(found) => {
                self.pairs.insert(key, new.clone());
                layout.update(&mut self.image, found.slot, &new)
            }
            None => {
                let home = layout.home(&key);
                let placement = match layout.place(&self.image, home).unwrap() {
                    Some(placement) => placement,
                    None => layout.place_back(&self.image, home).unwrap()?,
                };
                let ranges = layout.insert(&mut self.image, &placement, &key, &new);
                self.pairs.insert(key, new);
                ranges
            }
        };
        ranges.push(layout.note_vacancies(&mut self.image, 0, layout.ring().slots));
        let mut sent = before.clone();
        for range in ranges {
            assert!(range.start % 8 == 0 && range.end % 8 == 0);
            sent[range.clone()].copy_from_slice(&self.image[range]);
        }
        assert_eq!(sent, self.image, "what has changed is sent");
        Some(before)
    }
}

#[test]
fn random_changes_are_found_by_partial_reads() {
    for layout in layouts() {
        let (mut table, mut rng) = (Table::new(layout), SmallRng::seed_from_u64(3));
        let numbers = 2 * layout.ring().slots;
        let mut refused = 0;
        for _ in 0..2000 {
            refused += usize::from(table.step(rng.random_range(0..numbers), &mut rng).is_none());
            let number = rng.random_range(0..numbers);
            let key = key(&layout, number);
            assert_eq!(get(&layout, &table.image, &key), Ok(table.pairs.get(&key).cloned()));
        }
        assert!(refused > 0, "{layout:?} was never full");
    }
}

/// All mixtures of lines from before and after a write, or random ones: old, new, or torn.
#[test]
fn a_write_is_seen_whole_or_not_at_all() {
    let (mut torn, mut torn_leaves, mut seen) = (0, 0, 0);
    for layout in layouts() {
        let (mut table, mut rng) = (Table::new(layout), SmallRng::seed_from_u64(4));
        let (numbers, lines) = (2 * layout.ring().slots, layout.node_bytes() / LINE_BYTES);
        for _ in 0..300 {
            let old_pairs = table.pairs.clone();
            let Some(before) = table.step(rng.random_range(0..numbers), &mut rng) else { continue };
            let key = key(&layout, rng.random_range(0..numbers));
            let allowed = [old_pairs.get(&key).cloned(), table.pairs.get(&key).cloned()];
            for mixture in 0..1_u64 << lines.min(6) {
                let pick = if lines <= 6 { mixture } else { rng.random() };
                let mut image = before.clone();
                for line in (0..lines).filter(|line| pick >> line & 1 != 0).map(|line| line * LINE_BYTES) {
                    image[line..line + LINE_BYTES].copy_from_slice(&table.image[line..line + LINE_BYTES]);
                }
                match get(&layout, &image, &key) {
                    Ok(found) => assert!(allowed.contains(&found), "{found:?} is none of {allowed:?}"),
                    Err(rejection) => {
                        assert_eq!(rejection, Rejection::Torn);
                        torn += 1;
                    }
                }
                match keys(&layout, &image) {
                    Ok(keys) => {
                        let mut moments = [&old_pairs, &table.pairs].into_iter();
                        assert!(moments.any(|pairs| stored(&layout, pairs.keys()) == keys));
                    }
                    Err(_) => torn_leaves += 1,
                }
                seen += 1;
            }
        }
    }
    assert!(torn > 1000 && torn_leaves > torn && seen > 50_000, "{torn} {torn_leaves} {seen}");
}

#[test]
fn halves_of_a_split_keep_their_slots() {
    for layout in layouts() {
        let (mut table, mut rng) = (Table::new(layout), SmallRng::seed_from_u64(5));
        for number in 0..2 * layout.ring().slots {
            if !table.pairs.contains_key(&key(&layout, number)) {
                table.step(number, &mut rng);
            }
        }
        let middle = table.pairs.keys().nth(table.pairs.len() / 2).unwrap().clone();
        let (mut left, mut right) = (table.image.clone(), table.image.clone());
        let slot = |key: &Vec<u8>| layout.lookup(&table.image, key, true).unwrap().found.unwrap().slot;
        let right_slots: BTreeSet<usize> =
            table.pairs.range(middle.clone()..).map(|pair| slot(pair.0)).collect();
        layout.keep(&mut left, &header(6), |slot| !right_slots.contains(&slot)).unwrap();
        layout.keep(&mut right, &header(6), |slot| right_slots.contains(&slot)).unwrap();
        for (key, value) in &table.pairs {
            let found = [&left, &right].map(|image| get(&layout, image, key).unwrap());
            let expected =
                if *key < middle { [Some(value.clone()), None] } else { [None, Some(value.clone())] };
            assert_eq!(found, expected);
        }
        // A reader never takes lines of two node writes.
        let lines = layout.node_bytes() / LINE_BYTES;
        for _ in 0..200 {
            let mut image = table.image.clone();
            for line in (0..lines).filter(|_| rng.random()).map(|line| line * LINE_BYTES) {
                image[line..line + LINE_BYTES].copy_from_slice(&left[line..line + LINE_BYTES]);
            }
            for (key, value) in &table.pairs {
                match get(&layout, &image, key) {
                    Ok(found) => assert!(found.is_none_or(|found| found == *value)),
                    Err(rejection) => assert_eq!(rejection, Rejection::Torn),
                }
            }
        }
    }
}

/// Two keys with one fingerprint, which the table cannot tell apart.
#[test]
fn entries_with_one_fingerprint_are_all_candidates() {
    for (slots, reach, ..) in SHAPES {
        let layout = HopLayout::indirect(Ring { slots, reach }, 8, 8, false).unwrap();
        let blocks = layout.blocks().unwrap();
        let at = |n: u64| blocks.pointer(RemotePtr::from_bits(640 * n), 64);
        let (mut image, key) = (vec![0; layout.node_bytes()], b"anna");
        layout.build(&mut image, &header(1), []);
        for n in 1..=2 {
            layout.insert_near(&mut image, key, &at(n).bits().to_le_bytes()).unwrap();
        }
        let found = |image: &[u8]| -> Vec<_> {
            layout.candidates(image, key).unwrap().into_iter().map(|(_, block)| block).collect()
        };
        assert_eq!(found(&image), [at(1), at(2)]);
        let part = read_for(&layout, &image, key);
        assert!(layout.lookup(&part, key, false).unwrap().found.is_some());
        assert_eq!(layout.lookup_others(&part, key, false).unwrap().found, None);
        let leaf = layout.view(&image).unwrap();
        assert_eq!(leaf.blocks().unwrap().len(), 2);
        assert!(leaf.present().all(|slot| leaf.has_fingerprint(slot, key)));
        let (first, _) = layout.candidates(&image, key).unwrap()[0];
        layout.remove(&mut image, first).unwrap();
        assert_eq!((found(&image), layout.view(&image).unwrap().check_hops()), (vec![at(2)], Ok(())));
        let (last, _) = layout.candidates(&image, key).unwrap()[0];
        // An address that no block has.
        layout.update(&mut image, last, &640_u64.to_le_bytes());
        assert!(layout.candidates(&image, key).is_err() && layout.view(&image).unwrap().blocks().is_err());
    }
}

#[test]
fn small_pairs_take_no_more_than_three_lines() {
    let layout = HopLayout::new(Ring { slots: 64, reach: 8 }, 8, 8, false).unwrap();
    let bytes = |home| layout.neighbourhood(home).iter().map(|range| range.len()).sum::<usize>();
    let all: Vec<usize> = (0..64).map(bytes).collect();
    assert!(all.iter().all(|bytes| *bytes <= 192), "{all:?}");
    assert_eq!(layout.node_bytes(), 1408);
    let mean = all.iter().sum::<usize>() as f64 / 64.0;
    assert!((170.0..=184.0).contains(&mean), "{mean}");
}

#[test]
fn a_leaf_is_filled_as_far_as_the_paper_says() {
    let mut rng = SmallRng::seed_from_u64(6);
    // Section 3.1.2, figure 3d: the maximum load factors of 128 entries. Ours are the mean when the first key finds no
    // room.
    for (reach, published, tolerance) in [(2, 0.377, 0.09), (8, 0.881, 0.03), (16, 0.998, 0.03)] {
        let layout = HopLayout::new(Ring { slots: 128, reach }, 8, 8, false).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let mut placed = 0;
        for _ in 0..200 {
            let keys: Vec<[u8; 8]> = (0..128).map(|_| rng.random()).collect();
            placed += layout.build(&mut image, &header(0), keys.iter().map(|key| (&key[..], &key[..])));
        }
        let load = placed as f64 / (200.0 * 128.0);
        assert!((load - published).abs() < tolerance, "{reach}: {load} {published}");
    }
}

#[test]
fn a_leaf_is_split_as_near_to_its_median_as_leaves_a_vacancy_for_the_new_key() {
    let mut rng = SmallRng::seed_from_u64(7);
    for (slots, reach) in [(2, 2), (4, 2), (8, 4), (64, 8)] {
        let layout = HopLayout::new(Ring { slots, reach }, 8, 8, false).unwrap();
        let mut at_the_median = 0;
        for _ in 0..200 {
            let mut image = vec![0; layout.node_bytes()];
            layout.build(&mut image, &NodeHeader { low: b"", high: None, ..header(0) }, []);
            let full = iter::repeat_with(|| rng.random::<[u8; 8]>())
                .find(|key| layout.insert_near(&mut image, key, key).is_err());
            let (new, leaf) = (full.unwrap(), layout.view(&image).unwrap());
            let mut keys = leaf.keys().unwrap();
            let first = leaf.split_key(&new, &keys).unwrap();
            let is_near = |slot| layout.ring().distance(layout.home(&new), slot) < reach;
            keys.sort_by(|(_, one), (_, other)| one.cmp(other));
            let near: Vec<usize> = (0..keys.len()).filter(|&i| is_near(keys[i].0)).collect();
            let split = keys.iter().position(|(_, key)| *key == first).unwrap();
            assert!(near[0] < split && split <= near[reach - 1], "either half has a near key");
            let middle = keys.len() / 2;
            assert_eq!(split, middle.clamp(near[0] + 1, near[reach - 1]));
            at_the_median += usize::from(split == middle);
        }
        assert!(at_the_median >= if reach == 8 { 190 } else { 1 }, "{slots}, {reach}: {at_the_median}");
    }
}

#[test]
fn fences_place_a_key() {
    let layout = HopLayout::new(Ring { slots: 4, reach: 2 }, 4, 4, true).unwrap();
    let mut image = vec![0; layout.node_bytes()];
    let header = NodeHeader { low: b"b", high: Some(b"m"), ..header(1) };
    layout.build(&mut image, &header, []);
    for (key, position) in [(b"a", Position::Left), (b"b", Position::Here), (b"m", Position::Right)] {
        assert_eq!(layout.lookup(&image, key, false).unwrap().position, Some(position));
        assert_eq!(layout.lookup(&image, key, true).unwrap().position, Some(position));
    }
}

#[test]
fn other_bytes_are_refused_without_a_panic() {
    let mut rng = SmallRng::seed_from_u64(8);
    for layout in layouts() {
        let (mut table, mut steps) = (Table::new(layout), SmallRng::seed_from_u64(9));
        for number in 0..layout.ring().slots {
            table.step(number, &mut steps);
        }
        for _ in 0..500 {
            let mut image = table.image.clone();
            for _ in 0..rng.random_range(1..20) {
                let at = rng.random_range(0..image.len());
                image[at] = rng.random();
            }
            for number in 0..4 {
                let _ = layout.lookup(&image, &key(&layout, number), number % 2 == 0);
            }
            let _ = layout.vacancy_of(&image);
        }
        assert!(layout.lookup(&vec![0; layout.node_bytes()], b"a", false).is_err());
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    let new = |slots, reach, key, value| HopLayout::new(Ring { slots, reach }, key, value, false);
    assert!(matches!(new(64, 1, 8, 8), Err(LayoutError::Neighbourhood { entries: 1 })));
    assert!(matches!(new(64, 17, 8, 8), Err(LayoutError::Neighbourhood { .. })));
    assert!(matches!(new(60, 8, 8, 8), Err(LayoutError::Span { .. })));
    assert!(matches!(new(4096, 16, 100, 100), Err(LayoutError::NodeBytes { .. })));
    assert!(matches!(new(64, 8, 0, 8), Err(LayoutError::KeyBytes { .. })));
    assert!(matches!(new(64, 8, 8, 1 << 20), Err(LayoutError::ValueBytes { .. })));
    assert!(new(2, 2, 8, 0).is_ok());
}
