//! The change that an operation makes to a leaf whose lock it has alone: a few words of it, the whole leaf, or two
//! leaves instead of one. Pure.

use super::divide::{divide, shortest};
use crate::layout::radix::Child;
use crate::layout::range_leaf::{RangeFound, RangeHeader, RangeLayout, RangeView};
use crate::layout::{Bytes, Malformed, NodeVersion, Patch, Rejection};
use crate::write_op::WriteOp;

/// Pairs, ascending.
pub(super) type Pairs = Vec<(Bytes, Bytes)>;

/// The change of a leaf.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum LeafPlan {
    /// None: the leaf does not answer for the key, but for those between these bounds.
    Elsewhere(RangeFound, (Bytes, Option<Bytes>)),
    /// None: the operation has no effect.
    Nothing,
    /// These bytes of the image, which has been changed. True if the key was present.
    Patch(Patch, bool),
    /// The image, which has been changed, whole.
    Whole,
    /// It is written whole, with these pairs: removed keys give their slots up.
    Compact(Old, Pairs),
    /// It keeps the pairs before this key.
    Split {
        old: Old,
        left: Pairs,
        separator: Bytes,
        right: Pairs,
        /// True if the operation's pair is among them; if not, there will be a place for it.
        is_done: bool,
    },
}

/// The header of a leaf, as it was read.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Old {
    version: NodeVersion,
    next: Option<Child>,
    pub(super) low: Bytes,
    pub(super) high: Option<Bytes>,
    is_reused: bool,
}

impl Old {
    pub(super) fn of(view: &RangeView<'_>) -> Self {
        let (low, high) = view.bounds();
        Old { version: view.version(), next: view.next(), low, high, is_reused: view.is_reused() }
    }

    /// Yields the leaf behind, if there is one.
    pub(super) fn next(&self) -> Option<Child> {
        self.next
    }

    /// Tells whether a leaf with these bounds may have these pairs: ascending keys within them.
    pub(super) fn holds(&self, pairs: &Pairs) -> bool {
        let ascend = pairs.windows(2).all(|two| two[0].0 < two[1].0);
        let (first, last) = (pairs.first(), pairs.last());
        let begins = first.is_none_or(|(key, _)| *key >= self.low);
        ascend && begins && last.zip(self.high.as_ref()).is_none_or(|((key, _), high)| key < high)
    }

    /// Yields the header of the next write of the whole leaf.
    pub(super) fn whole(&self) -> RangeHeader<'_> {
        let Old { version, next, low, high, is_reused } = self;
        let (version, high) = (version.next(), high.as_deref());
        RangeHeader { version, next: *next, low, high, is_reused: *is_reused }
    }
}

/// Yields the pairs of a leaf, ascending.
///
/// # Errors
/// If one of them cannot be.
pub(super) fn pairs_of(view: &RangeView<'_>) -> Result<Pairs, Rejection> {
    let mut pairs: Pairs = view
        .present()
        .map(|slot| Ok((view.key(slot)?, view.value(slot)?)))
        .collect::<Result<_, Rejection>>()?;
    pairs.sort_unstable();
    Ok(pairs)
}

/// Tells whether two keys share all but their last bytes, as those of a leaf do with `deep_special`.
pub(super) fn share_prefix(one: &[u8], other: &[u8]) -> bool {
    let prefix = |key: &[u8]| key.len().saturating_sub(1);
    one[..prefix(one)] == other[..prefix(other)]
}

/// Plans what `op` changes for `key`. With `deep`, keys get into a leaf only if they share a prefix with those there.
///
/// # Errors
/// If the image is no leaf.
pub(super) fn plan(
    layout: &RangeLayout,
    image: &mut [u8],
    key: &[u8],
    op: WriteOp<'_>,
    deep: bool,
) -> Result<LeafPlan, Rejection> {
    let view = layout.parse(image)?;
    let found = view.find(key);
    let (slot, is_present) = match found {
        RangeFound::Before | RangeFound::Beyond(_) => {
            return Ok(LeafPlan::Elsewhere(found, view.bounds()));
        }
        RangeFound::Slot { slot, is_present } => (Some(slot), is_present),
        RangeFound::Absent { vacancy } => (vacancy, false),
    };
    if !op.applies(is_present) {
        return Ok(LeafPlan::Nothing);
    }
    if deep && !is_present && has_others(&view, key)? {
        return part(&view, key, op.value());
    }
    let patch = match (op, slot) {
        (WriteOp::Remove, Some(slot)) => Some(layout.remove(image, slot)),
        (_, Some(slot)) if is_present => layout.write_value(image, slot, op.value()),
        (_, Some(slot)) => layout.write_pair(image, slot, key, op.value()),
        (_, None) => None,
    };
    if let Some(patch) = patch {
        return Ok(LeafPlan::Patch(patch, is_present));
    }
    if let Some(slot) = slot {
        layout.rewrite_pair(image, slot, key, op.value());
        return Ok(LeafPlan::Whole);
    }
    let view = layout.parse(image)?;
    let (old, mut pairs) = (Old::of(&view), pairs_of(&view)?);
    if !old.holds(&pairs) {
        return Err(Malformed::KeyOrder.into());
    }
    let place = place_of(&pairs, key)?;
    pairs.insert(place, pair(key, op.value()));
    if pairs.len() <= layout.slots() {
        return Ok(LeafPlan::Compact(old, pairs));
    }
    let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
    let (at, separator) = divide(&keys, place, (&old.low, old.high.as_deref()));
    let right = pairs.split_off(at);
    Ok(LeafPlan::Split { old, left: pairs, separator, right, is_done: true })
}

/// Tells whether a leaf has keys that do not share their prefix with `key`.
fn has_others(view: &RangeView<'_>, key: &[u8]) -> Result<bool, Rejection> {
    view.present().try_fold(false, |found, slot| Ok(found || !share_prefix(&view.key(slot)?, key)))
}

/// Plans the split of a leaf whose keys are of another prefix than `key`. If there are some on both sides of it, they
/// are divided there first, as keys of different lengths call for: `ab | abc | ac`.
fn part(view: &RangeView<'_>, key: &[u8], value: &[u8]) -> Result<LeafPlan, Rejection> {
    let (old, mut left) = (Old::of(view), pairs_of(view)?);
    if !old.holds(&left) {
        return Err(Malformed::KeyOrder.into());
    }
    let place = place_of(&left, key)?;
    let mut right = left.split_off(place);
    let separator = match left.last() {
        Some((before, _)) => shortest(before, key),
        None => shortest(key, &right[0].0),
    };
    let is_done = left.is_empty() || right.is_empty();
    if is_done {
        let to = if left.is_empty() { &mut left } else { &mut right };
        to.push(pair(key, value));
    }
    Ok(LeafPlan::Split { old, left, separator, right, is_done })
}

/// Yields where a key belongs that was not found.
///
/// # Errors
/// If it is there all the same, in a slot as no writer leaves it.
fn place_of(pairs: &Pairs, key: &[u8]) -> Result<usize, Rejection> {
    let place = pairs.partition_point(|(other, _)| other[..] < *key);
    let is_there = pairs.get(place).is_some_and(|(other, _)| other[..] == *key);
    if is_there { Err(Malformed::KeyOrder.into()) } else { Ok(place) }
}

fn pair(key: &[u8], value: &[u8]) -> (Bytes, Bytes) {
    (Bytes::from_slice(key), Bytes::from_slice(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"kx";

    fn layout(max_value: usize) -> RangeLayout {
        (64..).step_by(64).find_map(|bytes| RangeLayout::new(bytes, 1, 8, max_value).ok()).unwrap()
    }

    fn leaf(layout: &RangeLayout, keys: &[&[u8]]) -> Vec<u8> {
        let mut image = vec![0; layout.node_bytes()];
        let (version, is_reused) = (NodeVersion::new(3), false);
        let header = RangeHeader { version, next: None, low: b"k", high: Some(b"l"), is_reused };
        layout.build(&mut image, &header, keys.iter().map(|key| (*key, &b"12345678"[..])));
        image
    }

    fn bytes(pairs: &Pairs) -> Vec<&[u8]> {
        pairs.iter().map(|(key, _)| &key[..]).collect()
    }

    #[test]
    fn operations_without_effect_change_nothing() {
        let layout = layout(8);
        for (keys, op) in
            [(&[KEY][..], WriteOp::Insert(b"1")), (&[], WriteOp::Update(b"1")), (&[], WriteOp::Remove)]
        {
            let (mut image, before) = (leaf(&layout, keys), leaf(&layout, keys));
            assert_eq!(plan(&layout, &mut image, KEY, op, true), Ok(LeafPlan::Nothing));
            assert_eq!(image, before);
        }
        for (key, found) in [(&b"l"[..], RangeFound::Beyond(None)), (b"j", RangeFound::Before)] {
            let elsewhere = plan(&layout, &mut leaf(&layout, &[]), key, WriteOp::Put(b""), false);
            let bounds = (Bytes::from_slice(b"k"), Some(Bytes::from_slice(b"l")));
            assert_eq!(elsewhere, Ok(LeafPlan::Elsewhere(found, bounds)));
        }
    }

    #[test]
    fn a_change_of_one_slot_is_small_where_it_can_be() {
        for (max_value, keys, op, is_small) in [
            (8, &[][..], WriteOp::Put(b"12345678"), true),
            (8, &[][..], WriteOp::Insert(b"1"), true),
            (8, &[KEY][..], WriteOp::Put(b"87654321"), true),
            (8, &[KEY][..], WriteOp::Update(b"1"), false),
            (8, &[KEY][..], WriteOp::Remove, true),
            (60, &[KEY][..], WriteOp::Update(b"12345678"), false),
            (60, &[][..], WriteOp::Insert(b"1"), false),
            (60, &[KEY][..], WriteOp::Remove, true),
        ] {
            let layout = layout(max_value);
            let planned = plan(&layout, &mut leaf(&layout, keys), KEY, op, false).unwrap();
            let is_there = keys.contains(&KEY);
            let patches = matches!(planned, LeafPlan::Patch(_, was_present) if was_present == is_there);
            assert_eq!(patches, is_small, "{op:?}: {planned:?}");
            assert_eq!(planned == LeafPlan::Whole, !is_small, "{op:?}");
        }
    }

    #[test]
    fn prefixes_are_all_but_the_last_byte() {
        for (one, other, share) in [
            ("abc", "abd", true),
            ("abc", "acc", false),
            ("abc", "ab", false),
            ("ab", "ac", true),
            ("abc", "abcd", false),
            ("", "", true),
        ] {
            assert_eq!(share_prefix(one.as_bytes(), other.as_bytes()), share, "{one:?} {other:?}");
            assert_eq!(share_prefix(other.as_bytes(), one.as_bytes()), share, "{other:?} {one:?}");
        }
    }

    #[test]
    fn keys_of_different_prefixes_are_parted() {
        let layout = layout(8);
        let of = |keys: &[&[u8]], key: &[u8], op| plan(&layout, &mut leaf(&layout, keys), key, op, true);
        let insert = WriteOp::Insert(b"12345678");
        for (keys, key, parts, done) in [
            (
                &[&b"kba"[..], b"kbb"][..],
                &b"kac"[..],
                (&[&b"kac"[..]][..], &b"kb"[..], &[&b"kba"[..], b"kbb"][..]),
                true,
            ),
            (&[b"kba", b"kbb"], b"kca", (&[b"kba", b"kbb"], b"kc", &[b"kca"]), true),
            (&[b"kb", b"kc"], b"kba", (&[b"kb"], b"kba", &[b"kc"]), false),
        ] {
            let Ok(LeafPlan::Split { left, separator, right, is_done, .. }) = of(keys, key, insert) else {
                panic!("{key:?} is of another prefix")
            };
            assert_eq!((&bytes(&left)[..], &*separator, &bytes(&right)[..]), parts, "{key:?}");
            assert_eq!(is_done, done, "{key:?}");
        }
        for op in [insert, WriteOp::Put(b"12345678")] {
            let patched = |keys: &[&[u8]], key| matches!(of(keys, key, op), Ok(LeafPlan::Patch(_, false)));
            assert!(patched(&[b"kba", b"kbb"], b"kbc") && patched(&[], b"kbc"));
        }
        let update = of(&[b"kba", b"kc"], b"kba", WriteOp::Update(b"12345678"));
        assert!(matches!(update, Ok(LeafPlan::Patch(_, true))), "the key is present: {update:?}");
    }

    /// A removed key that comes back may find keys of another prefix there; one that is gone keeps none away.
    #[test]
    fn removed_keys_have_a_prefix_when_they_come_back() {
        let layout = layout(8);
        let mut image = leaf(&layout, &[b"kba"]);
        layout.remove(&mut image, 0);
        let insert = WriteOp::Insert(b"12345678");
        assert!(matches!(plan(&layout, &mut image, b"kca", insert, true), Ok(LeafPlan::Patch(_, false))));
        let back = plan(&layout, &mut image, b"kba", insert, true).unwrap();
        let LeafPlan::Split { left, right, is_done: true, .. } = back else { panic!("{back:?}") };
        assert_eq!((bytes(&left), bytes(&right)), (vec![&b"kba"[..]], vec![&b"kca"[..]]));
    }

    #[test]
    fn a_full_leaf_gets_rid_of_removed_keys_before_it_is_split() {
        let layout = layout(8);
        let names: Vec<[u8; 2]> = (0..layout.slots() as u8).map(|i| [b'k', i]).collect();
        let keys: Vec<&[u8]> = names.iter().map(|key| &key[..]).collect();
        let mut image = leaf(&layout, &keys);
        let LeafPlan::Split { left, separator, right, .. } =
            plan(&layout, &mut image, KEY, WriteOp::Put(b""), false).unwrap()
        else {
            panic!("it is full")
        };
        assert_eq!(
            ([bytes(&left), bytes(&right)].concat(), &*separator),
            ([&keys[..], &[KEY]].concat(), &[b'k', layout.slots() as u8][..])
        );
        layout.remove(&mut image, 0);
        let LeafPlan::Compact(_, pairs) = plan(&layout, &mut image, KEY, WriteOp::Put(b""), false).unwrap()
        else {
            panic!("it has room")
        };
        assert_eq!(bytes(&pairs), [&keys[1..], &[KEY]].concat());
        let again = plan(&layout, &mut image, keys[0], WriteOp::Put(b"12345678"), false).unwrap();
        assert_eq!(again, LeafPlan::Whole, "readers may have seen the removed key present");
    }

    /// Every byte of a full leaf changed in turn, to each of some values: whatever a client then plans, it does not
    /// panic, and no leaf has a key twice.
    #[test]
    fn bytes_are_not_trusted() {
        let layout = layout(8);
        let names: Vec<[u8; 3]> = (0..layout.slots() as u8).map(|i| [b'k', 2 * i, 7]).collect();
        let keys: Vec<&[u8]> = names.iter().map(|key| &key[..]).collect();
        let whole = leaf(&layout, &keys);
        let mut refused = 0;
        for at in 0..whole.len() {
            for value in [0, 1, 5, 7, 0x7F, 0x80, 0xC0, 0xFF] {
                for (key, deep) in keys.iter().flat_map(|key| [(key, false), (key, true)]) {
                    for op in [WriteOp::Insert(b"12345678"), WriteOp::Put(b"1"), WriteOp::Remove] {
                        let mut image = whole.clone();
                        image[at] = value;
                        match plan(&layout, &mut image, key, op, deep) {
                            Ok(LeafPlan::Compact(_, pairs)) => assert!(pairs.is_sorted_by(|a, b| a.0 < b.0)),
                            Ok(LeafPlan::Split { left, right, .. }) => {
                                assert!([left, right].concat().is_sorted_by(|a, b| a.0 < b.0));
                            }
                            Ok(_) => {}
                            Err(_) => refused += 1,
                        }
                    }
                }
            }
        }
        assert!(refused > 1_000, "{refused}");
    }
}
