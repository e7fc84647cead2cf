//! Readers of images of which some lines are from before and some from after a write: they get what was there
//! before, what is there afterwards, or `Torn`.

use std::ops::Bound;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::{apply, excerpt, gather, get, header};
use crate::layout::SlotOrder;
use crate::layout::leaf::{Entry, LeafLayout, LeafLookup};
use crate::layout::stream::LINE_BYTES;
use crate::layout::version::{self, EntryVersion};
use crate::layout::{NodeHeader, Patch, Rejection, bump_node_version, tail_first};

/// Legal result of a lookup.
type Answer = Option<Vec<u8>>;

/// The images before and after, a key, and the legal results of its lookups.
type Write<'a> = (&'a [u8], &'a [u8], &'a [u8], [Answer; 2]);

/// Layouts whose entries lie in one to four lines.
const SHAPES: [(usize, usize, usize); 6] =
    [(4, 2, 3), (6, 8, 8), (4, 20, 30), (4, 60, 60), (3, 10, 150), (20, 3, 1)];

/// Makes the image that has the lines of `images[pick(line)]`.
fn mix(images: &[&[u8]], mut pick: impl FnMut(usize) -> usize) -> Vec<u8> {
    let lines = images[0].len() / LINE_BYTES;
    let line = |line: usize| &images[pick(line)][line * LINE_BYTES..][..LINE_BYTES];
    (0..lines).flat_map(line).copied().collect()
}

/// Calls `check` with all mixtures of two images; with random ones if there are too many.
fn for_each_mixture(old: &[u8], new: &[u8], mut check: impl FnMut(&[u8])) {
    let lines = old.len() / LINE_BYTES;
    let mut rng = SmallRng::seed_from_u64(2);
    let all = lines <= 8;
    for subset in 0..if all { 1_u64 << lines } else { 500 } {
        let subset = if all { subset } else { rng.random() };
        check(&mix(&[old, new], |line| (subset >> line & 1) as usize));
    }
}

/// Checks that the lookup and the entries of `image` both give one of `allowed` for `key`, or `Torn`. Returns whether
/// it was torn.
fn check(layout: &LeafLayout, image: &[u8], key: &[u8], allowed: &[Answer]) -> bool {
    let answer = get(layout, image, key);
    match &answer {
        Ok(answer) => assert!(allowed.contains(answer), "{answer:?} is none of {allowed:?}"),
        Err(rejection) => assert_eq!(*rejection, Rejection::Torn),
    }
    let entries: Result<Vec<_>, _> = layout.view(image).and_then(|view| view.entries().collect());
    let mut pairs = Vec::new();
    let sorted = layout.view(image).and_then(|view| {
        view.copy_sorted(
            &(Bound::Unbounded, Bound::Unbounded),
            usize::MAX,
            &mut SlotOrder::default(),
            &mut pairs,
        )
    });
    assert_eq!(sorted.err(), entries.as_ref().err().copied(), "scans and lookups distrust the same images");
    match entries {
        Ok(entries) => {
            assert_eq!(pairs.len(), entries.len());
            assert!(entries.iter().all(|entry| pairs.contains(&(entry.key.clone(), entry.value.clone()))));
            let entry = entries.iter().find(|entry| entry.key[..] == *key);
            let value = entry.map(|entry| entry.value.to_vec());
            assert!(allowed.contains(&value), "{value:?} is none of {allowed:?}");
        }
        Err(rejection) => assert_eq!(rejection, Rejection::Torn),
    }
    check_slots(layout, image, key, allowed);
    answer.is_err()
}

/// Looks into each slot alone, of which only its lines were read: it has one of `allowed` if it has the key. Yields how
/// many have it.
fn check_slots(layout: &LeafLayout, image: &[u8], key: &[u8], allowed: &[Answer]) -> usize {
    let mut found = 0;
    for slot in 0..layout.slots() {
        let part = excerpt(layout, image, slot);
        match layout.lookup_slot(&part, key, slot) {
            Ok(LeafLookup::Found(entry)) => {
                let value = Some(gather(&part, entry.value));
                assert!(allowed.contains(&value), "{value:?} is none of {allowed:?}");
                found += 1;
            }
            Ok(LeafLookup::Absent | LeafLookup::MoveRight(_)) => {}
            other => assert_eq!(other, Err(Rejection::Torn)),
        }
    }
    found
}

/// Makes keys of different lengths; values differ in every byte.
fn key(layout: &LeafLayout, number: usize) -> Vec<u8> {
    let mut key = vec![number as u8; layout.max_key() - number % 2];
    key[0] = 100 + number as u8;
    key
}

fn value(layout: &LeafLayout, number: usize) -> Vec<u8> {
    vec![number as u8; layout.max_value() - number % layout.max_value().min(2)]
}

fn full_leaf(layout: &LeafLayout, node_version: u16) -> Vec<u8> {
    let pairs: Vec<_> = (0..layout.slots()).map(|slot| (key(layout, slot), value(layout, slot))).collect();
    let mut image = vec![0; layout.node_bytes()];
    layout.build(&mut image, &header(node_version), pairs.iter().map(|(key, value)| (&key[..], &value[..])));
    image
}

/// Each kind of entry write, in each slot: all other entries stay as they are, this one is old, new or torn.
#[test]
fn an_entry_write_is_seen_whole_or_not_at_all() {
    let mut torn = 0;
    for (slots, max_key, max_value) in SHAPES {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        let full = full_leaf(&layout, 5);
        for slot in 0..slots {
            let (old_key, old_value) = (key(&layout, slot), value(&layout, slot));
            let (new_key, new_value) = (key(&layout, slots), value(&layout, slots + 1));

            let mut updated = full.clone();
            layout.write_entry(&mut updated, slot, &old_key, &new_value);
            let mut removed = full.clone();
            layout.clear_entry(&mut removed, slot);
            let mut inserted = removed.clone();
            layout.write_entry(&mut inserted, slot, &new_key, &new_value);

            let (old, new) = (Some(old_value), Some(new_value));
            let writes: [Write<'_>; 5] = [
                (&full, &updated, &old_key, [old.clone(), new.clone()]),
                (&full, &removed, &old_key, [old.clone(), None]),
                (&full, &inserted, &old_key, [old, None]),
                (&removed, &inserted, &new_key, [None, new.clone()]),
                (&full, &inserted, &new_key, [None, new]),
            ];
            for (before, after, key_written, allowed) in writes {
                for_each_mixture(before, after, |image| {
                    torn += usize::from(check(&layout, image, key_written, &allowed));
                    for other in (0..slots).filter(|other| *other != slot) {
                        let untouched = [Some(value(&layout, other))];
                        assert!(!check(&layout, image, &key(&layout, other), &untouched));
                    }
                });
            }
        }
    }
    assert!(torn > 0, "no mixture was torn: the shapes do not try what they should");
}

/// Many writes during one read, up to the number that EV can count.
#[test]
fn a_slow_reader_sees_a_value_that_was_there() {
    let mut rng = SmallRng::seed_from_u64(3);
    for (slots, max_key, max_value) in SHAPES {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        for _ in 0..20 {
            let slot = rng.random_range(0..slots);
            let (key, first) = (key(&layout, slot), value(&layout, slot));
            let mut images = vec![full_leaf(&layout, 0)];
            let mut allowed = vec![Some(first)];
            for write in 1..EntryVersion::COUNT as usize {
                let mut image = images[write - 1].clone();
                let value = vec![write as u8 + 50; max_value];
                layout.write_entry(&mut image, slot, &key, &value);
                images.push(image);
                allowed.push(Some(value));
            }
            let images: Vec<&[u8]> = images.iter().map(|image| &image[..]).collect();
            for _ in 0..50 {
                check(&layout, &mix(&images, |_| rng.random_range(0..images.len())), &key, &allowed);
            }
        }
    }
}

/// A split: keys leave, the high fence moves. And a write-back of the whole node for one changed entry.
#[test]
fn a_node_write_is_seen_whole_or_not_at_all() {
    for (slots, max_key, max_value) in SHAPES {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        for node_version in [5, 2047] {
            let full = full_leaf(&layout, node_version);
            let mut written_back = full.clone();
            layout.write_entry(&mut written_back, 0, &key(&layout, 0), &value(&layout, 77));
            let next = bump_node_version(&mut written_back);

            let kept: Vec<_> =
                (0..slots / 2).map(|slot| (key(&layout, slot), value(&layout, slot + 9))).collect();
            let high = key(&layout, slots / 2);
            let fences = NodeHeader {
                high: Some(&high),
                sibling: farwood_runtime::RemotePtr::from_bits(64),
                ..header(0)
            };
            let mut split = vec![0; layout.node_bytes()];
            let entries = kept.iter().map(|(key, value)| (&key[..], &value[..]));
            layout.build(&mut split, &NodeHeader { node_version: next, ..fences }, entries);

            for after in [&written_back, &split] {
                for_each_mixture(&full, after, |image| {
                    for slot in 0..slots / 2 {
                        let key = key(&layout, slot);
                        let allowed = [&full, after].map(|image| get(&layout, image, &key).unwrap());
                        let found = check_slots(&layout, image, &key, &allowed);
                        assert!(found == 1 || image != full && image != *after);
                    }
                    if image == full || image == *after {
                        assert!(layout.view(image).is_ok());
                    } else {
                        assert_eq!(layout.lookup(image, &key(&layout, 0)), Err(Rejection::Torn));
                        assert_eq!(layout.view(image).err(), Some(Rejection::Torn));
                    }
                });
            }
        }
    }
}

/// Appends what the memory server has after each line of a WRITE has become visible, the WRITEs in order, the lines of
/// each in the order that `rng` draws. The first image is the last one of `history`, where the others go.
fn become_visible(history: &mut Vec<Vec<u8>>, patch: &Patch, after: &[u8], rng: &mut SmallRng) {
    for range in patch {
        let mut lines: Vec<usize> = (range.start / LINE_BYTES..range.end.div_ceil(LINE_BYTES)).collect();
        lines.shuffle(rng);
        for line in lines {
            let mut image = history.last().expect("it begins with an image").clone();
            let part = range.start.max(line * LINE_BYTES)..range.end.min((line + 1) * LINE_BYTES);
            image[part.clone()].copy_from_slice(&after[part]);
            history.push(image);
        }
    }
}

/// A key goes and comes back to its slot, or another one's; readers begin at any time, one after the other. Once one
/// of them has found what was inserted last, all that begin later find it, though the insert has not completed: they
/// read by fingerprints and, as scans do, without. Once one has found that the removed key is gone, none finds its old
/// value.
///
/// ```text
///   writer     remove(k)       entry k ───────────────────────> fingerprint k ✗ too late
///   reader 1   fingerprint k            entry k: found
///   reader 2                                     fingerprint 0: absent
/// ```
#[test]
fn a_key_that_was_found_is_not_absent_afterwards() {
    let mut rng = SmallRng::seed_from_u64(6);
    for (slots, max_key, max_value) in SHAPES {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        for slot in 0..slots {
            let key = key(&layout, slot);
            let (old, new) = (value(&layout, slot), value(&layout, slots + 1));
            for leftover in [false, true] {
                let mut image = full_leaf(&layout, 5);
                let mut history = vec![image.clone()];
                let mut removed = layout.clear_entry(&mut image, slot);
                if leftover {
                    // Its client died before the fingerprint was cleared.
                    removed.truncate(1);
                }
                become_visible(&mut history, &removed, &image, &mut rng);
                image = history.last().unwrap().clone();
                let inserted = layout.write_entry(&mut image, slot, &key, &new);
                become_visible(&mut history, &inserted, &image, &mut rng);
                assert_eq!(history.last(), Some(&image), "the patches are all that has changed");
                for _ in 0..400 {
                    let mut times = [0; 3].map(|_| rng.random_range(0..history.len()));
                    times.sort();
                    let [first, second] = [times[0]..=times[1], times[1]..=times[2]].map(|read| {
                        let images: Vec<&[u8]> = history[read].iter().map(|image| &image[..]).collect();
                        let image = mix(&images, |_| rng.random_range(0..images.len()));
                        let scanned = layout.view(&image).unwrap().entries().collect::<Result<Vec<_>, _>>();
                        let found = |entries: Vec<Entry>| entries.into_iter().find(|e| e.key[..] == key);
                        let scanned = scanned.map(|entries| found(entries).map(|entry| entry.value.to_vec()));
                        [get(&layout, &image, &key), scanned]
                    });
                    for (earlier, later) in
                        first.iter().flat_map(|first| second.iter().map(move |s| (first, s)))
                    {
                        let (Ok(earlier), Ok(later)) = (earlier, later) else { continue };
                        if earlier.as_ref() == Some(&new) {
                            assert_eq!(later.as_ref(), Some(&new), "slot {slot}: it was found before");
                        }
                        if earlier.is_none() {
                            assert_ne!(later.as_ref(), Some(&old), "slot {slot}: it was gone before");
                        }
                    }
                }
            }
        }
    }
}

/// A client that inserts dies after any of its WRITEs: the leaf is whole, without its key, and neither then nor when
/// the slot has another entry does a reader take the tail that it has left for a part of an entry.
#[test]
fn what_dead_writers_leave_of_an_entry_is_never_read() {
    let (mut rng, mut tails) = (SmallRng::seed_from_u64(7), 0);
    for (slots, max_key, max_value) in SHAPES {
        let layout = LeafLayout::for_slots(slots, max_key, max_value).unwrap();
        for slot in 0..slots {
            let [old, dead, new] = [slot, slots, slots + 1].map(|n| (key(&layout, n), value(&layout, n)));
            let mut image = full_leaf(&layout, 5);
            let mut history = vec![image.clone()];
            let removed = layout.clear_entry(&mut image, slot);
            become_visible(&mut history, &removed, &image, &mut rng);
            for _ in 0..3 {
                image = history.last().unwrap().clone();
                let mut patch = layout.write_entry(&mut image, slot, &dead.0, &dead.1);
                tail_first(&mut patch);
                assert_eq!(
                    apply(&patch, history.last().unwrap(), &image),
                    image,
                    "the patch is all that has changed"
                );
                if patch.iter().any(|range| range.start / LINE_BYTES != (range.end - 1) / LINE_BYTES) {
                    break;
                }
                tails += usize::from(patch.len() == 3);
                for write in &patch[..patch.len() - 1] {
                    become_visible(&mut history, &Patch::from_iter([write.clone()]), &image, &mut rng);
                    let left = history.last().unwrap();
                    assert!(!check(&layout, left, &dead.0, &[None]), "the leaf is whole");
                }
            }
            image = history.last().unwrap().clone();
            let inserted = layout.write_entry(&mut image, slot, &new.0, &new.1);
            become_visible(&mut history, &inserted, &image, &mut rng);
            let images: Vec<&[u8]> = history.iter().map(|image| &image[..]).collect();
            for _ in 0..300 {
                let mixture = mix(&images, |_| rng.random_range(0..images.len()));
                check(&layout, &mixture, &dead.0, &[None]);
                check(&layout, &mixture, &old.0, &[None, Some(old.1.clone())]);
                check(&layout, &mixture, &new.0, &[None, Some(new.1.clone())]);
            }
            assert_eq!(get(&layout, &image, &new.0), Ok(Some(new.1)));
        }
    }
    assert!(tails > 0, "no entry goes over a line's end");
}

/// The tests above can fail: without EV (all set to the head's, which hides every difference) a lookup of a
/// mixture returns a value that was never there, and without NV likewise.
#[test]
fn without_versions_mixtures_would_be_believed() {
    let layout = LeafLayout::for_slots(4, 60, 60).unwrap();
    let full = full_leaf(&layout, 5);
    let (key, old, new) = (key(&layout, 1), value(&layout, 1), value(&layout, 30));
    let mut updated = full.clone();
    layout.write_entry(&mut updated, 1, &key, &new);
    let mut rewritten = updated.clone();
    bump_node_version(&mut rewritten);
    for after in [&updated, &rewritten] {
        let mut wrong = 0;
        for_each_mixture(&full, after, |image| {
            let mut image = image.to_vec();
            version::set_node_version(&mut image, Default::default());
            let head =
                EntryVersion::from_bits(image[crate::layout::stream::physical(layout.entry(1).start())]);
            for line in layout.entry(1).further_lines() {
                version::set_entry_version(&mut image, line, head);
            }
            if let Ok(Some(value)) = get(&layout, &image, &key) {
                wrong += usize::from(value != old && value != new);
            }
        });
        assert!(wrong > 0);
    }
}
