//! Leaves of many sizes: what is written is read, in every mixture of two writes and whatever the bytes are.

use std::ops::Bound;

use super::*;
use crate::layout::{Bytes, Malformed, Rejection, SlotOrder};

fn header<'a>(version: u16, low: &'a [u8], high: Option<&'a [u8]>) -> RangeHeader<'a> {
    let is_reused = version % 2 == 1;
    RangeHeader { version: NodeVersion::new(version), next: Child::of(7), low, high, is_reused }
}

fn layouts() -> impl Iterator<Item = RangeLayout> {
    let sizes =
        [1, 7, 8, 9, 16, 33].into_iter().flat_map(|key| [0, 1, 8, 13, 56, 57, 130].map(|value| (key, value)));
    sizes
        .flat_map(|(key, value)| [1, 5].map(|presence| RangeLayout::new(2048, presence, key, value).unwrap()))
}

/// Yields the image of a leaf with so many pairs.
fn image(layout: &RangeLayout, version: u16, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut image = vec![0xEE; layout.node_bytes()];
    let pairs = pairs.iter().map(|(key, value)| (&key[..], &value[..]));
    layout.build(&mut image, &header(version, b"k", Some(b"l")), pairs);
    image
}

/// Makes pairs that fill the layout's leaf, of keys and values of all lengths.
fn pairs(layout: &RangeLayout, seed: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    let distinct = if layout.max_key == 1 { 1 } else { layout.slots.min(200) };
    let pair = |i: usize| {
        let mut key = vec![b'k'];
        if layout.max_key > 1 {
            key.push(i as u8);
            key.resize(2 + i % (layout.max_key - 1), i as u8);
        }
        (key, vec![seed ^ i as u8; (i + usize::from(seed)) % (layout.max_value + 1)])
    };
    (0..distinct).map(pair).collect()
}

#[test]
fn fields_do_not_overlap_and_values_that_fit_are_within_a_line() {
    for layout in layouts() {
        let mut owner = vec![None; layout.node_bytes()];
        let mut take = |range: Range<usize>, name: usize| {
            for byte in &mut owner[range] {
                assert_eq!(byte.replace(name), None, "{layout:?}");
            }
        };
        (0..layout.lines).for_each(|line| take(line * LINE_BYTES..line * LINE_BYTES + WORD_BYTES, 0));
        take(layout.lock(), 1);
        let next = at(1 + layout.presence_words);
        take(next..next + WORD_BYTES, 2);
        assert_eq!(next, layout.whole()[0].start);
        assert!(layout.lock().end <= LINE_BYTES);
        for slot in 0..layout.slots {
            let words = layout.key_word(slot)..layout.key_word(slot) + layout.key_words();
            if layout.has_whole_keys() {
                assert_eq!(at(words.start) / LINE_BYTES, at(words.end - 1) / LINE_BYTES);
            }
            words.for_each(|word| take(at(word)..at(word) + WORD_BYTES, 3 + slot));
            assert!(at(layout.key_word(slot)) + WORD_BYTES <= layout.key_part().end);
            let value = layout.value(slot);
            assert!(
                value.is_empty() || value.start >= layout.key_part().end && value.end <= layout.node_bytes()
            );
            if layout.has_whole_values() && !value.is_empty() {
                assert_eq!(value.start / LINE_BYTES, (value.end - 1) / LINE_BYTES);
                take(value, 3 + slot);
            }
        }
        assert!(layout.lines_needed() <= layout.lines);
        assert!(RangeLayout { slots: layout.slots + 1, ..layout }.lines_needed() > layout.lines);
    }
}

#[test]
fn pairs_come_back() {
    for layout in layouts() {
        let pairs = pairs(&layout, 1);
        let image = image(&layout, 7, &pairs);
        let view = layout.parse(&image).unwrap();
        assert_eq!((view.version().number(), view.next()), (7, Child::of(7)));
        assert_eq!(view.bounds(), (Bytes::from_slice(b"k"), Some(Bytes::from_slice(b"l"))));
        for (slot, (key, value)) in pairs.iter().enumerate() {
            assert_eq!(view.find(key), RangeFound::Slot { slot, is_present: true });
            assert_eq!(*view.key(slot).unwrap(), key[..]);
            assert_eq!(*view.value(slot).unwrap(), value[..]);
            let mut copy = image.clone();
            let range = layout.value_in_place(&mut copy, slot).unwrap();
            assert_eq!(copy[range], value[..]);
            assert!(!layout.has_whole_values() || copy == image, "nothing is moved within a line");
        }
        let vacancy = (pairs.len() < layout.slots).then_some(pairs.len());
        let absent = if layout.max_key > 1 { &b"k"[..] } else { continue };
        assert_eq!(view.find(absent), RangeFound::Absent { vacancy });
        for before in [&b"j"[..], b""] {
            assert_eq!(view.find(before), RangeFound::Before);
        }
        assert_eq!(view.find(&[b'k'; 43]), RangeFound::Absent { vacancy: None }, "it is too long");
        assert_eq!(view.find(b"l"), RangeFound::Beyond(Child::of(7)));
        assert!(view.present().eq(0..pairs.len()));
        let keys = layout.parse(&image[layout.key_part()]).unwrap();
        assert_eq!(keys.find(&pairs[0].0), view.find(&pairs[0].0), "the key part alone");
    }
}

/// Bounds of all lengths, over words and lines, among them such that differ in length alone or in zeros at their ends.
#[test]
fn bounds_are_in_the_order_of_byte_strings() {
    for layout in [RangeLayout::new(512, 2, 17, 8), RangeLayout::new(2048, 5, 130, 0)].map(Result::unwrap) {
        let lengths = [1, 2, 7, 8, 9, 16, 17, 56, 57, 130].into_iter().filter(|len| *len <= layout.max_key);
        let mut strings: Vec<Vec<u8>> = vec![b"j".into(), b"l".into(), vec![]];
        for (len, last) in lengths.flat_map(|len| [0, 1, b'k', 0xFF].map(|last| (len, last))) {
            for middle in [0, 0xFF] {
                let mut string = vec![middle; len];
                string[len - 1] = last;
                string[0] = b'k';
                strings.push(string);
            }
        }
        strings.sort();
        strings.dedup();
        let bounds = || strings.iter().filter(|bound| bound.first() == Some(&b'k'));
        for (low, high) in bounds().flat_map(|low| bounds().map(move |high| (low, high))) {
            let mut image = vec![0; layout.node_bytes()];
            layout.build(&mut image, &header(7, low, Some(high)), []);
            let Ok(view) = layout.parse(&image) else {
                assert!(low >= high, "{low:?} {high:?}");
                continue;
            };
            assert!(low < high, "{low:?} {high:?}");
            for key in &strings {
                let expected = match () {
                    () if key >= high => RangeFound::Beyond(Child::of(7)),
                    () if key < low => RangeFound::Before,
                    () => RangeFound::Absent { vacancy: Some(0) },
                };
                assert_eq!(view.find(key), expected, "{key:?} in {low:?}..{high:?}");
            }
        }
    }
}

/// A key goes through its states, by single words; a pair becomes visible with the last range of its write.
#[test]
fn a_slot_is_filled_and_its_key_removed() {
    for layout in layouts().filter(|layout| layout.max_key > 1) {
        let (key, long, short) =
            (&b"k\x07"[..], vec![9; layout.max_value], vec![8; layout.max_value.saturating_sub(1)]);
        let is_small = layout.has_whole_keys() && layout.has_whole_values();
        let mut memory = image(&layout, 7, &[]);
        let found = |memory: &[u8]| layout.parse(memory).unwrap().find(key);
        assert_eq!(found(&memory), RangeFound::Absent { vacancy: Some(0) });
        let mut written = memory.clone();
        let patch = layout.write_pair(&mut written, 0, key, &long);
        assert_eq!(patch.is_some(), is_small);
        let Some(patch) = patch else {
            assert_eq!(written, memory);
            continue;
        };
        for range in patch {
            assert_eq!(
                found(&memory),
                RangeFound::Absent { vacancy: Some(0) },
                "visible before all is there"
            );
            memory[range.clone()].copy_from_slice(&written[range]);
        }
        assert_eq!(memory, written, "the patch has all that was written");
        assert_eq!(found(&memory), RangeFound::Slot { slot: 0, is_present: true });
        assert_eq!(*layout.parse(&memory).unwrap().value(0).unwrap(), long[..]);
        // A value of another length class changes the head.
        let fits = long.len() % WORD_BYTES != 0 || long.is_empty();
        let before = memory.clone();
        match layout.write_value(&mut memory, 0, &short) {
            Some(patch) => {
                assert!(fits && patch.len() == usize::from(layout.max_value > 0));
                assert_eq!(*layout.parse(&memory).unwrap().value(0).unwrap(), short[..]);
            }
            None => assert!(!fits && memory == before),
        }
        let patch = layout.remove(&mut memory, 0);
        assert_eq!((patch.len(), &patch[0]), (1, &(layout.key_at(0)..layout.key_at(0) + WORD_BYTES)));
        assert_eq!(found(&memory), RangeFound::Slot { slot: 0, is_present: false });
        assert_eq!(layout.parse(&memory).unwrap().present().count(), 0);
        let before = memory.clone();
        assert_eq!(layout.write_pair(&mut memory, 0, key, &short), None, "readers may have seen it present");
        assert_eq!(memory, before);
    }
}

/// A write of the whole leaf changes one pair, from any state of its slot.
#[test]
fn a_pair_is_rewritten_with_the_whole_leaf() {
    for layout in layouts() {
        let (old, new) = (pairs(&layout, 1), pairs(&layout, 2));
        let before = image(&layout, 7, &old);
        for (slot, (key, value)) in new.iter().enumerate() {
            let mut image = before.clone();
            layout.rewrite_pair(&mut image, slot, key, value);
            let view = layout.parse(&image).unwrap();
            assert_eq!((view.version().number(), view.next(), view.bounds()), {
                let view = layout.parse(&before).unwrap();
                (8, view.next(), view.bounds())
            });
            for (other, (key, value)) in
                old.iter().enumerate().map(|(i, pair)| (i, if i == slot { &new[i] } else { pair }))
            {
                assert_eq!(
                    (&view.key(other).unwrap()[..], &view.value(other).unwrap()[..]),
                    (&key[..], &value[..])
                );
            }
            let mut removed = before.clone();
            layout.remove(&mut removed, slot);
            layout.rewrite_pair(&mut removed, slot, key, value);
            assert_eq!(removed, image, "a removed key comes back");
        }
    }
}

#[test]
fn the_empty_key_has_a_leaf_of_its_own() {
    for layout in layouts() {
        let mut image = vec![0; layout.node_bytes()];
        layout.build(&mut image, &header(7, b"", Some(&[0])), [(&b""[..], &b""[..])]);
        let view = layout.parse(&image).unwrap();
        assert_eq!(view.find(b""), RangeFound::Slot { slot: 0, is_present: true });
        assert_eq!((view.key(0).unwrap().len(), view.value(0).unwrap().len()), (0, 0));
        assert_eq!(view.find(&[0]), RangeFound::Beyond(Child::of(7)));
        layout.build(&mut image, &header(7, b"", None), []);
        assert_eq!(layout.parse(&image).err(), Some(Malformed::FenceOrder.into()));
    }
}

/// The lines of a whole write, and a READ that meets every one of its WRITEs at every line: what was there before, the
/// new leaf, or torn.
#[test]
fn a_whole_write_is_seen_whole_or_torn() {
    let layout = RangeLayout::new(256, 1, 8, 8).unwrap();
    let (old, new) = (image(&layout, 7, &pairs(&layout, 1)), image(&layout, 8, &pairs(&layout, 2)));
    let mut states = vec![old.clone()];
    let mut memory = old.clone();
    memory[..WORD_BYTES].copy_from_slice(&RangeLayout::TORN.to_le_bytes());
    states.push(memory.clone());
    for range in layout.whole() {
        memory[range.clone()].copy_from_slice(&new[range]);
        states.push(memory.clone());
    }
    assert_eq!(memory, new);
    let lines = layout.node_bytes() / LINE_BYTES;
    for moments in 0..states.len().pow(lines as u32) {
        let line = |i: usize| {
            let state = &states[moments / states.len().pow(i as u32) % states.len()];
            state[i * LINE_BYTES..][..LINE_BYTES].to_vec()
        };
        let read: Vec<u8> = (0..lines).flat_map(line).collect();
        let is_whole = read == old || read == new;
        assert_eq!(layout.parse(&read).err(), (!is_whole).then_some(Rejection::Torn));
    }
}

/// Lines of two writes of the whole leaf, in every mixture of a small one: one of the two, or torn.
#[test]
fn every_mixture_of_two_writes_is_one_of_them_or_torn() {
    let layout = RangeLayout::new(512, 1, 8, 8).unwrap();
    let (old, new) = (image(&layout, 7, &pairs(&layout, 1)), image(&layout, 8, &pairs(&layout, 2)));
    for mixture in 0_u32..1 << layout.lines {
        let line = |i: usize| {
            let from = if mixture >> i & 1 == 1 { &new } else { &old };
            from[i * LINE_BYTES..][..LINE_BYTES].to_vec()
        };
        let mixed: Vec<u8> = (0..layout.lines).flat_map(line).collect();
        let is_whole = mixture == 0 || mixture == (1 << layout.lines) - 1;
        assert_eq!(layout.parse(&mixed).err(), (!is_whole).then_some(Rejection::Torn));
    }
}

/// Every byte of a leaf changed in turn, to each of some values: no panic, and no key out of the leaf's bounds.
#[test]
fn bytes_are_not_trusted() {
    for layout in [RangeLayout::new(256, 1, 8, 8), RangeLayout::new(512, 2, 17, 60)].map(Result::unwrap) {
        let whole = image(&layout, 7, &pairs(&layout, 1));
        for at in 0..whole.len() {
            for value in [0, 1, 7, 0x7F, 0x80, 0xC0, 0xFF] {
                let mut image = whole.clone();
                image[at] = value;
                let Ok(view) = layout.parse(&image) else { continue };
                _ = view.find(b"k\x01");
                for slot in 0..layout.slots {
                    let _ = (view.key(slot), view.value(slot), view.state(slot));
                }
            }
        }
        assert_eq!(layout.parse(&vec![0; layout.node_bytes()]).err(), Some(Rejection::NotANode { found: 0 }));
    }
}

/// Keys of all lengths, many of which are prefixes of each other, in one word and in several: in the order of slices.
#[test]
fn pairs_are_copied_in_the_order_of_their_keys() {
    for layout in [RangeLayout::new(512, 1, 8, 8), RangeLayout::new(2048, 2, 30, 60)].map(Result::unwrap) {
        let lengths = [1, 2, 7, 8, 9, 15, 16, 17, 24, 30];
        let lengths = lengths.into_iter().filter(|length| *length <= layout.max_key);
        let mut keys: Vec<Vec<u8>> = lengths
            .flat_map(|length| [0, 1, 0xFF].map(|last| [vec![b'k'; length - 1], vec![last]].concat()))
            .map(|mut key| {
                key[0] = b'k';
                key
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.truncate(layout.slots);
        let values: Vec<Vec<u8>> = (0..keys.len()).map(|n| vec![n as u8; n % 9]).collect();
        let mut image = vec![0; layout.node_bytes()];
        let header = header(7, b"k", Some(b"l"));
        // In another order than that of keys.
        let order = (0..keys.len()).map(|n| n * 11 % keys.len());
        let mixed: Vec<usize> = order.collect();
        assert_eq!(mixed.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
        layout.build(&mut image, &header, mixed.iter().map(|n| (&keys[*n][..], &values[*n][..])));
        layout.remove(&mut image, 3);
        let mut expected: Vec<(Vec<u8>, Vec<u8>)> = keys.iter().cloned().zip(values).collect();
        expected.remove(mixed[3]);
        let mut slots = SlotOrder::default();
        for limit in [0, 1, 5, 100] {
            for from in &keys {
                for to in &keys {
                    let bounds = (Bound::Excluded(&from[..]), Bound::Included(&to[..]));
                    let mut pairs = Vec::new();
                    layout
                        .parse(&image)
                        .unwrap()
                        .copy_sorted(&bounds, limit, &mut slots, &mut pairs)
                        .unwrap();
                    let wanted = expected.iter().filter(|(key, _)| from < key && key <= to).take(limit);
                    let pairs = pairs.iter().map(|(key, value)| (&key[..], &value[..]));
                    assert!(pairs.eq(wanted.map(|(key, value)| (&key[..], &value[..]))), "{from:?} {to:?}");
                }
            }
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (node, key, value) in
        [(1000, 8, 8), (0, 8, 8), (64, 8, 8), (1 << 17, 8, 8), (1024, 0, 8), (1024, 8, 5000)]
    {
        assert!(RangeLayout::new(node, 1, key, value).is_err(), "{node}, {key}, {value}");
    }
    assert_eq!(RangeLayout::new(1024, 1, 8, 8).unwrap().slots(), 50);
    assert_eq!(
        RangeLayout::new(128, 1, 32, 8),
        Err(LayoutError::TooFewSlots { node_bytes: 128, slots: 0, least: 2, least_node_bytes: 320 })
    );
}
