//! Tests that what is written is read back: every length, slot, byte; patches; fences; sizes.

use std::collections::BTreeMap;

use farwood_runtime::{RemotePtr, ServerId};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{apply, gather, get, header, leaf};
use crate::layout::leaf::{LeafLayout, LeafLookup};
use crate::layout::{
    Kind, LayoutError, NodeHeader, NodeVersion, Position, Rejection, bump_node_version, freeze, heir_of,
    kind_of, mark_freed, thaw,
};

const WORDS: [&[u8]; 4] = [b"", b"\0", b"\xff\xff", b"\x01\0"];

#[test]
fn finds_every_key_length_in_every_slot() {
    let layout = LeafLayout::for_slots(4, 2, 3).unwrap();
    let values: [&[u8]; 4] = [b"", b"a", b"\0\0", b"\xff\xff\xff"];
    for key in WORDS {
        for value in values {
            for slot in 0..4 {
                let before = leaf(&layout, &[]);
                let mut after = before.clone();
                let patch = layout.write_entry(&mut after, slot, key, value);
                assert_eq!(apply(&patch, &before, &after), after);
                for other in WORDS {
                    let expected = (other == key).then(|| value.to_vec());
                    assert_eq!(
                        get(&layout, &after, other),
                        Ok(expected),
                        "{key:?} in {slot}, asked for {other:?}"
                    );
                }
                let mut cleared = after.clone();
                let patch = layout.clear_entry(&mut cleared, slot);
                assert_eq!(apply(&patch, &after, &cleared), cleared);
                assert_eq!(get(&layout, &cleared, key), Ok(None));
                assert!(layout.view(&cleared).unwrap().is_empty());
            }
        }
    }
}

#[test]
fn finds_every_byte_value() {
    let layout = LeafLayout::for_slots(4, 2, 3).unwrap();
    for byte in 0..=255 {
        let image = leaf(&layout, &[(&[byte], &[byte]), (&[byte, byte], &[byte; 3]), (&[], &[byte; 2])]);
        assert_eq!(get(&layout, &image, &[byte]), Ok(Some(vec![byte])));
        assert_eq!(get(&layout, &image, &[byte, byte]), Ok(Some(vec![byte; 3])));
        assert_eq!(get(&layout, &image, &[]), Ok(Some(vec![byte; 2])));
        assert_eq!(get(&layout, &image, &[byte, byte.wrapping_add(1)]), Ok(None));
    }
}

#[test]
fn keeps_every_length_of_large_slots() {
    for (max_key, max_value) in [(1, 0), (255, 254), (256, 300), (1024, 4096)] {
        let layout = LeafLayout::for_slots(2, max_key, max_value).unwrap();
        for room in [0, 1, 2, 3, 253, 254, 255, 256, 257, 1024, 4096] {
            let key = vec![7; max_key - room.min(max_key)];
            let value = vec![255; max_value - room.min(max_value)];
            let image = leaf(&layout, &[(&key, &value)]);
            assert_eq!(get(&layout, &image, &key), Ok(Some(value.clone())), "{max_key} {max_value} {room}");
            let entry = layout.view(&image).unwrap().entries().next().unwrap().unwrap();
            assert_eq!((&entry.key[..], &entry.value[..]), (&key[..], &value[..]));
        }
    }
}

/// Compares random puts and removes, each sent as its patch, with a map; so EVs wrap, and slots are reused.
#[test]
fn agrees_with_a_map() {
    let mut rng = SmallRng::seed_from_u64(1);
    for (slots, max_key, max_value) in
        [(4, 2, 3), (53, 8, 8), (36, 16, 8), (70, 3, 1), (200, 4, 0), (5, 40, 100)]
    {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        let mut remote = leaf(&layout, &[]);
        let mut map = BTreeMap::new();
        for _ in 0..4000 {
            let mut key = vec![9; rng.random_range(0..=max_key)];
            if let Some(last) = key.last_mut() {
                *last = rng.random_range(0..slots.min(255) as u8);
            }
            let value: Vec<u8> = (0..rng.random_range(0..=max_value)).map(|_| rng.random()).collect();
            let mut image = remote.clone();
            let view = layout.view(&image).unwrap();
            let found = view.find(&key).unwrap();
            assert_eq!(found.map(|found| gather(&image, found.value)), map.get(&key).cloned());
            let patch = match found {
                Some(found) if rng.random() => {
                    map.remove(&key);
                    layout.clear_entry(&mut image, found.slot)
                }
                _ => {
                    let Some(slot) = found.map(|found| found.slot).or(view.vacancy()) else { continue };
                    let new = map.insert(key.clone(), value.clone()).is_none();
                    let patch = layout.write_entry(&mut image, slot, &key, &value);
                    assert!(new || patch.len() == 1, "an update leaves the fingerprint alone");
                    patch
                }
            };
            remote = apply(&patch, &remote, &image);
            assert_eq!(remote, image);
            let view = layout.view(&remote).unwrap();
            assert_eq!((view.len(), view.vacancy().is_none()), (map.len(), map.len() == slots));
            let entries = view.entries().map(|entry| entry.unwrap());
            let entries: BTreeMap<_, _> =
                entries.map(|entry| (entry.key.to_vec(), entry.value.to_vec())).collect();
            assert_eq!(entries, map);
        }
    }
}

#[test]
fn an_update_of_a_small_entry_sends_24_or_32_bytes() {
    let layout = LeafLayout::for_node(1024, 8, 8).unwrap();
    assert_eq!(layout.slots(), 53);
    for slot in 0..layout.slots() {
        let mut image = leaf(&layout, &[]);
        let insert = layout.write_entry(&mut image, slot, &[1; 8], &[2; 8]);
        let update = layout.write_entry(&mut image, slot, &[1; 8], &[3; 8]);
        assert!(update.len() == 1 && [24, 32].contains(&update[0].len()), "{update:?}");
        assert!(insert.len() == 2 || insert[0].start <= update[0].start, "{insert:?}");
        assert_eq!(get(&layout, &image, &[1; 8]), Ok(Some(vec![3; 8])));
    }
}

#[test]
fn fences_steer() {
    for max_key in [3, 8, 30, 60] {
        let layout = LeafLayout::for_slots(4, max_key, 8).unwrap();
        let sibling = RemotePtr::new(ServerId(3), 4096);
        let (low, high) = (vec![5; max_key], vec![6; max_key - 1]);
        let fences = NodeHeader { low: &low, high: Some(&high), sibling, ..header(2047) };
        let mut image = vec![0; layout.node_bytes()];
        layout.build(&mut image, &fences, []);
        let view = layout.view(&image).unwrap();
        assert_eq!((&view.header().low()[..], &view.header().high().unwrap()[..]), (&low[..], &high[..]));
        assert_eq!(
            (view.header().sibling(), view.header().incarnation(), view.header().level()),
            (sibling, 7, 0)
        );
        let last = [&high[..high.len() - 1], &[5]].concat();
        for key in [&low[..], &last] {
            assert_eq!(layout.lookup(&image, key), Ok(LeafLookup::Absent));
            assert_eq!(view.header().position(key), Position::Here);
        }
        for key in [&high[..], &[6; 60][..max_key], &[7]] {
            assert_eq!(layout.lookup(&image, key), Ok(LeafLookup::MoveRight(sibling)));
        }
        for key in [&low[..max_key - 1], &[], &[4; 60][..max_key]] {
            assert_eq!(layout.lookup(&image, key), Ok(LeafLookup::Left));
        }
        assert_eq!(bump_node_version(&mut image), NodeVersion::new(0));
        assert_eq!(layout.view(&image).unwrap().header().node_version(), NodeVersion::new(2048));
    }
}

#[test]
fn rejects_freed_and_foreign_nodes() {
    let layout = LeafLayout::for_slots(4, 2, 3).unwrap();
    let before = leaf(&layout, &[(b"a", b"b")]);
    assert_eq!(kind_of(&before), Ok(Kind::Leaf));
    let mut after = before.clone();
    let range = mark_freed(&mut after, RemotePtr::from_bits(640));
    assert_eq!(range, 0..24);
    assert_eq!(before[24..], after[24..]);
    assert_eq!(layout.lookup(&after, b"a"), Err(Rejection::Freed));
    assert_eq!((heir_of(&after), heir_of(&before)), (Some(RemotePtr::from_bits(640)), None));
    let mut frozen = before.clone();
    assert_eq!(freeze(&mut frozen), 0..8);
    assert_eq!(before[8..], frozen[8..]);
    assert_eq!((layout.lookup(&frozen, b"a"), heir_of(&frozen)), (Err(Rejection::Frozen), None));
    assert_eq!((thaw(&mut frozen), frozen), (0..8, before.clone()));
    let zeros = vec![0; layout.node_bytes()];
    assert_eq!(layout.lookup(&zeros, b"a"), Err(Rejection::NotANode { found: 0 }));
}

#[test]
fn sizes_out_of_range_say_what_to_change() {
    let too_few = LeafLayout::for_node(128, 100, 100).unwrap_err();
    let LayoutError::TooFewSlots { slots: 0, least_node_bytes, .. } = too_few else { panic!("{too_few:?}") };
    assert_eq!(LeafLayout::for_node(least_node_bytes, 100, 100).unwrap().slots(), 2);
    assert!(LeafLayout::for_node(least_node_bytes - 64, 100, 100).is_err());
    assert!(matches!(LeafLayout::for_node(1000, 8, 8), Err(LayoutError::NodeBytes { node_bytes: 1000 })));
    assert!(matches!(LeafLayout::for_node(1024, 0, 8), Err(LayoutError::KeyBytes { max_key: 0 })));
    assert!(matches!(LeafLayout::for_node(1024, 8, 4097), Err(LayoutError::ValueBytes { max_value: 4097 })));
    assert!(matches!(LeafLayout::for_slots(1, 8, 8), Err(LayoutError::SlotCount { slots: 1, least: 2 })));
    assert!(matches!(LeafLayout::for_slots(usize::MAX, 8, 8), Err(LayoutError::NodeBytes { .. })));
}
