//! Copies against the images they were made of: random slot sets of every shape that a tree can have, the limits,
//! and nonsense.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::radix::slot::{CLASS_SHIFT, LEAF, PARTIAL_SHIFT};

/// Packs at bit `at`, between other bits, and checks all that can be asked. Returns the bits it takes.
fn round_trip(image: &RadixImage<'_>, at: usize) -> usize {
    let packed = pack(image).expect("the image is sound");
    assert!(packed.len() >= BITS_MIN && packed.len().is_multiple_of(GRANULE_BITS));
    let words: Vec<AtomicU64> = (0..packed.len() / 64 + 4).map(|_| AtomicU64::new(u64::MAX)).collect();
    packed.store(&words, at);
    let copy = Copy::at(&words, at);
    assert_eq!((copy.node(), copy.class(), copy.depth()), (image.node, image.class, image.depth));
    assert_eq!((copy.prefix_len(), copy.prefix()), (image.prefix.len(), prefix_word(image.prefix)));
    assert_eq!((copy.claimed(), copy.len()), (image.slots.len(), packed.len()));
    let slots: Vec<u64> = (0..copy.claimed()).map(|index| copy.slot(index)).collect();
    assert_eq!(slots, image.slots);
    for byte in 0..=255 {
        let is_about = |word: &u64| word & END == 0 && slot::partial(*word) == byte;
        assert_eq!(copy.find(Some(byte)), first(image.slots, is_about), "byte {byte}");
    }
    assert_eq!(copy.find(None), first(image.slots, |word| word & END != 0));
    for limit in 0..=256 {
        let symbol = |word: &u64| (slot::partial(*word), word & END == 0);
        let is_below = |word: &u64| u32::from(slot::partial(*word)) < limit || word & END != 0;
        let slots = image.slots.iter().copied().enumerate().filter(|(_, word)| is_below(word));
        let last = slots.max_by_key(|(_, word)| symbol(word));
        let found = u8::try_from(limit).map_or_else(|_| copy.last(), |byte| copy.last_before(byte));
        assert_eq!(found, last, "below {limit}");
    }
    for symbol in [None, Some(None)].into_iter().chain((0..=255).map(|byte| Some(Some(byte)))) {
        let of = |word: &u64| (word & END == 0).then_some(slot::partial(*word));
        let behind = image.slots.iter().filter(|word| symbol.is_none_or(|symbol| of(word) > symbol));
        assert_eq!(copy.first_behind(symbol), behind.min_by_key(|word| of(word)).copied(), "{symbol:?}");
    }
    assert_eq!(copy.is_upper(), image.slots.iter().any(|word| word & LEAF == 0));
    assert!(copy.is_copy_of(image));
    packed.len()
}

fn first(slots: &[u64], matches: impl Fn(&u64) -> bool) -> Option<(usize, u64)> {
    slots.iter().position(matches).map(|index| (index, slots[index]))
}

fn leaf(partial: u8, child: u64) -> u64 {
    slot::word(partial, (LEAF >> CLASS_SHIFT) as u8 | 1, child)
}

fn image<'a>(node: u64, prefix: &'a [u8], slots: &'a [u64]) -> RadixImage<'a> {
    RadixImage { node, class: 2, depth: 3, prefix, slots }
}

/// Draws children near the node, on some servers, anywhere, or gone.
fn random_children(rng: &mut SmallRng, node: u64, count: usize) -> Vec<u64> {
    let spread = rng.random_range(0..5);
    let gone = if rng.random_bool(0.3) { 0.2 } else { 0.0 };
    let stride = rng.random_range(1..4);
    let child = |index: u64| match spread {
        0 => node.wrapping_sub(stride * (index + 1)) & CHILD,
        1 => node.wrapping_add(stride * (index + 1)) & CHILD,
        2 => rng.random_range(0..8) << CHILD_SERVER_SHIFT | rng.random_range(0..1 << 24),
        3 => rng.random_range(0..1 << CHILD_BITS),
        _ => [0, CHILD, OFFSET_MASK, OFFSET_MASK + 1, 1][rng.random_range(0..5)],
    };
    let mut children: Vec<u64> = (0..count as u64).map(child).collect();
    children.iter_mut().filter(|_| rng.random_bool(gone)).for_each(|child| *child = 0);
    children
}

fn random_slots(rng: &mut SmallRng, node: u64) -> Vec<u64> {
    let count = match rng.random_range(0..10) {
        0 => rng.random_range(0..=256),
        1 => 256,
        _ => rng.random_range(0..12),
    };
    let mut partials: Vec<u8> = (0..=255).collect();
    partials.shuffle(rng);
    partials.truncate(count);
    if rng.random_bool(0.5) {
        partials.sort_unstable();
    }
    let kinds = [1, 2, 5, 32][rng.random_range(0..4)];
    let leaves = [0.0, 0.5, 1.0][rng.random_range(0..3)];
    let children = random_children(rng, node, count);
    let mut slots: Vec<u64> = partials
        .iter()
        .zip(children)
        .map(|(partial, child)| {
            let class = rng.random_range(0..kinds) << CLASS_SHIFT;
            // A tombstone is a leaf's.
            let leaf = if child == 0 || rng.random_bool(leaves) { LEAF } else { 0 };
            u64::from(*partial) << PARTIAL_SHIFT | leaf | class | child
        })
        .collect();
    if rng.random_bool(0.3) {
        let end = slots.choose_mut(rng).map_or(END | LEAF | 7, |word| *word & !(0xFF << PARTIAL_SHIFT) | END);
        slots.insert(rng.random_range(0..=slots.len()), end);
    }
    slots
}

use rand::seq::IndexedMutRandom;

#[test]
fn random_nodes_survive() {
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..if cfg!(debug_assertions) { 3_000 } else { 30_000 } {
        let node = rng.random_range(1..=CHILD) >> rng.random_range(0..40);
        let node = node.max(1);
        let slots = random_slots(&mut rng, node);
        let prefix: Vec<u8> = (0..rng.random_range(0..=PREFIX_BYTES_MAX)).map(|_| rng.random()).collect();
        let (class, depth) = (rng.random_range(0..32), rng.random());
        round_trip(&RadixImage { node, class, depth, prefix: &prefix, slots: &slots }, round % 4 * 32);
    }
}

#[test]
fn a_node_with_leaves_beside_it_takes_few_bytes() {
    let bytes = |leaves: u64, stride: u64| {
        let slots: Vec<u64> =
            (0..leaves).map(|index| leaf(index as u8 * 9, 70_000 + index * stride)).collect();
        round_trip(&image(70_000 + leaves * stride, &[], &slots), 32) / 8
    };
    assert_eq!([2, 3, 4, 5, 8].map(|leaves| bytes(leaves, 1)), [16, 20, 20, 20, 24]);
    // Two units a leaf: the low bit that is always 0 takes nothing.
    assert_eq!([2, 3, 4, 5, 8].map(|leaves| bytes(leaves, 2)), [16, 20, 20, 20, 24]);
    // A tombstone costs a bit, not an address.
    let slots = [leaf(1, 70_000), leaf(2, 0), leaf(3, 70_001), leaf(4, 70_002)];
    assert_eq!(round_trip(&image(70_003, &[], &slots), 0) / 8, 20);
}

#[test]
fn a_full_node_has_a_bitmap_if_its_slots_ascend() {
    let ascending: Vec<u64> = (0..=255).map(|index| leaf(index, 1_000 + u64::from(index))).collect();
    let mut mixed = ascending.clone();
    mixed.swap(3, 200);
    let [ascending, mixed] = [&ascending, &mixed].map(|slots| round_trip(&image(999, &[1, 2], slots), 96));
    assert_eq!(mixed - ascending, 256 * 8 - BITMAP_BITS);
}

#[test]
fn the_limits_survive() {
    round_trip(&image(CHILD, &[255; PREFIX_BYTES_MAX], &[]), 0);
    round_trip(&image(1, &[], &[LEAF]), 0);
    round_trip(&image(1, &[], &[leaf(255, CHILD), leaf(0, 0), leaf(7, 1)]), 32);
    round_trip(&image(1, &[], &[leaf(1, 0), leaf(2, OFFSET_MASK), leaf(3, 1 << CHILD_SERVER_SHIFT)]), 0);
    // The same partial twice: the first one counts.
    let many: Vec<u64> = (0..SLOTS_MAX as u64).map(|index| leaf(index as u8, index * 12_345)).collect();
    round_trip(&image(1, &[], &many), 0);
    let kinds: Vec<u64> = (0..128).map(|kind| slot::word(0, kind, 77 + u64::from(kind))).collect();
    round_trip(&image(1, &[0], &kinds), 0);
}

#[test]
fn nonsense_is_refused() {
    let sound = leaf(1, 5);
    let refused = |image: RadixImage<'_>| assert!(pack(&image).is_none(), "{image:?}");
    let many = [sound; SLOTS_MAX + 1];
    refused(image(0, &[], &[sound]));
    refused(image(CHILD + 1, &[], &[sound]));
    refused(RadixImage { class: 32, ..image(1, &[], &[sound]) });
    refused(image(1, &[0; PREFIX_BYTES_MAX + 1], &[sound]));
    refused(image(1, &[], &many));
    refused(image(1, &[], &[sound, 0]));
    refused(image(1, &[], &[sound, leaf(2, 5) | FROZEN]));
    refused(image(1, &[], &[leaf(1, 5) | END]));
}

#[test]
fn a_changed_image_is_not_the_same() {
    let slots = [leaf(1, 5), leaf(2, 6)];
    let packed = pack(&image(9, &[1, 2], &slots)).unwrap().atomics();
    let copy = Copy::at(&packed, 0);
    let same = |image: RadixImage<'_>| copy.is_copy_of(&image);
    assert!(same(image(9, &[1, 2], &slots)));
    assert!(
        !same(image(8, &[1, 2], &slots)) && !same(image(9, &[1, 3], &slots)) && !same(image(9, &[1], &slots))
    );
    assert!(!same(image(9, &[1, 2], &slots[..1])) && !same(image(9, &[1, 2], &[slots[0], leaf(2, 7)])));
    assert!(!same(RadixImage { depth: 4, ..image(9, &[1, 2], &slots) }));
    assert!(!same(RadixImage { class: 3, ..image(9, &[1, 2], &slots) }));
}

#[test]
fn reading_nonsense_does_not_fail() {
    let mut rng = SmallRng::seed_from_u64(2);
    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
        let words: Vec<AtomicU64> =
            (0..rng.random_range(0..6)).map(|_| AtomicU64::new(rng.random())).collect();
        let at = rng.random_range(0..12) * GRANULE_BITS;
        let copy = Copy::at(&words, at);
        let slots: Vec<u64> = (0..copy.claimed()).map(|index| copy.slot(index)).collect();
        let found = (copy.find(Some(rng.random())), copy.find(None));
        let is_copy = copy.is_copy_of(&image(copy.node(), &[], &slots));
        assert!(copy.len() >= BITS_MIN && copy.prefix() < 1 << 56, "{found:?} {is_copy} {}", copy.is_upper());
    }
}

/// Changes of copies where they lie, with and without room, against a list; the bits around stay.
#[test]
fn changed_copies_are_as_if_packed_anew() {
    let mut rng = SmallRng::seed_from_u64(2);
    let (mut made, mut unfit) = (0, 0);
    for round in 0..if cfg!(debug_assertions) { 1_000 } else { 10_000 } {
        let node = (rng.random_range(1..=CHILD) >> rng.random_range(0..40)).max(1);
        let target = random_slots(&mut rng, node);
        let mut slots = target[..rng.random_range(0..=target.len())].to_vec();
        let prefix: Vec<u8> = (0..rng.random_range(0..=PREFIX_BYTES_MAX)).map(|_| rng.random()).collect();
        let at = round % 4 * 32;
        let mut place = if rng.random() {
            lay(&image(node, &prefix, &slots), at, pack)
        } else {
            lay(&image(node, &prefix, &slots), at, pack_growing)
        };
        for _ in 0..40 {
            let (index, word) = match target.get(slots.len()) {
                Some(next) if rng.random_bool(0.6) => (slots.len(), *next),
                _ if slots.is_empty() => break,
                _ => {
                    let (index, other) =
                        (rng.random_range(0..slots.len()), rng.random_range(0..target.len()));
                    // Another child and kind; rarely another partial.
                    let kept = if rng.random_bool(0.9) { 0xFF << PARTIAL_SHIFT | END } else { 0 };
                    (index, slots[index] & kept | target[other] & !kept)
                }
            };
            if !is_sound_slot(word) {
                continue;
            }
            let copy = Copy::at(&place.0, at);
            let (news, change) = (copy.is_news(index, word), copy.change(index, word));
            assert_eq!(
                (news, copy.is_still()),
                (change != Change::None, index < slots.len() || change != Change::Made)
            );
            match slots.get_mut(index) {
                Some(slot) => *slot = word,
                None => slots.push(word),
            }
            let image = image(node, &prefix, &slots);
            match change {
                Change::None => {}
                Change::Made => made += 1,
                Change::DoesNotFit => {
                    unfit += 1;
                    place = lay(&image, at, pack_growing);
                }
            }
            check(&place.0, at, &image, place.1);
        }
    }
    assert!(made > 5_000 && unfit > 5_000, "{made} made, {unfit} did not fit");
}

/// Lays a copy at bit `at`, between ones, and yields its bits.
fn lay(
    image: &RadixImage<'_>,
    at: usize,
    pack: fn(&RadixImage<'_>) -> Option<Bits>,
) -> (Vec<AtomicU64>, usize) {
    let packed = pack(image).expect("the image is sound");
    let words: Vec<AtomicU64> = (0..packed.len() / 64 + 4).map(|_| AtomicU64::new(u64::MAX)).collect();
    packed.store(&words, at);
    // Storing may spoil what follows up to the next word.
    bits::write(&words, at + packed.len(), u64::MAX, 32);
    check(&words, at, image, packed.len());
    (words, packed.len())
}

fn check(words: &[AtomicU64], at: usize, image: &RadixImage<'_>, len: usize) {
    let copy = Copy::at(words, at);
    assert!(copy.is_copy_of(image) && copy.len() == len);
    for index in [0, image.slots.len() / 2, image.slots.len().saturating_sub(1)] {
        let Some(word) = image.slots.get(index) else { continue };
        let (byte, is_end) = (slot::partial(*word), word & END != 0);
        let same = |other: &u64| (other & END != 0) == is_end && slot::partial(*other) == byte;
        assert_eq!(copy.find((!is_end).then_some(byte)), first(image.slots, same));
    }
    let around = (0..at).chain(at + len..at + len + 64);
    for bit in around {
        assert_eq!(bits::read(words, bit) & 1, 1, "bit {bit} beside a copy of {len} at {at}");
    }
}
