//! Merges of leaves: one that has become nearly empty goes into its left neighbour, or takes its right one in. What
//! clients do that meet a leaf on its way out is in `freed.rs`, how its memory becomes another leaf in `reused.rs`.
//!
//! A remove that leaves few pairs leaves the rest to the janitor. It takes the lock of the left leaf L alone, and then
//! that of the right one R, if that is free at once. Inner nodes take no part.
//!
//! ```text
//!   WRITE R: frozen ── WRITE L: pairs of both, R's bound and link, unlock ── WRITE R: heir L, freed, unlock ── slots
//!          1                                2                                         3
//! ```
//!
//! 1. A frozen leaf answers for no key, and says where it begins and what is behind it. Only a client that has the
//!    locks of both, of R and of the leaf on its left, ends that: so whether L has taken the keys over is settled then.
//! 2. L is written whole under its own lock, with its intent, as by other writes. Before that has come to its end R
//!    stays frozen, whatever becomes of this client; if it has, R's keys are L's.
//! 3. From then on clients that come to R find L there. Slots that lead to R lead to L instead, and inner nodes go that
//!    are needless then: `lead_on.rs`. Slots that are left, or come late, lead there until a client comes by:
//!    `freed.rs`.
//!
//! A READ of R whose first line came before 1 has what R had then, or until then, and nothing was in L of it. A scan
//! that has read L before 2 and R after 1 looks for the key at which R begins, and finds it in L; one that has read L
//! after 2 is beyond R.
//!
//! R's memory is used again for leaves alone, when all operations of that time have ended.

use std::rc::Rc;

use farwood_lock::{Held, LockError};
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::leaf_plan::{Old, Pairs, pairs_of, share_prefix};
use super::lookup::Sought;
use super::root::begin_of;
use super::write::{build, whole_chain};
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{Child, Symbol};
use crate::layout::range_leaf::{RangeHeader, RangeLayout, Standing};
use crate::layout::{Bytes, Rejection};
use crate::shell::merging::{Attempt, MergeEnd, attempt_often, fits, is_low};
use crate::step::Budget;

/// The content of the left leaf after a merge.
#[derive(PartialEq, Eq, Debug)]
struct United {
    left: Old,
    right: Old,
    pairs: Pairs,
}

/// Decides whether the leaves in these images, both locked, are merged; none if they are not. With `deep` the keys of a
/// leaf share all but their last bytes.
fn plan(layout: &RangeLayout, (left, right): (&[u8], &[u8]), right_at: Child, deep: bool) -> Option<United> {
    let parse = |image| layout.parse(image).and_then(|view| Ok((Old::of(&view), pairs_of(&view)?)));
    let ((left, mut pairs), (right, more)) = (parse(left).ok()?, parse(right).ok()?);
    let are_neighbours = left.next() == Some(right_at) && left.high.as_ref() == Some(&right.low);
    let fit = fits(pairs.len() + more.len(), layout.slots());
    let share =
        !deep || pairs.first().zip(more.last()).is_none_or(|(one, other)| share_prefix(&one.0, &other.0));
    if !(are_neighbours && fit && share && left.holds(&pairs) && right.holds(&more)) {
        return None;
    }
    pairs.extend(more);
    Some(United { left, right, pairs })
}

impl<V: Verbs> Tree<V> {
    /// Has the janitor merge the leaf of `key`, in which a remove has left so many pairs, if these are few. Where it
    /// has enough to do, this waits until an empty leaf is merged.
    #[inline]
    pub(super) async fn note_removed(&self, leaf: Child, key: &[u8], pairs: usize) {
        if is_low(pairs, self.leaf().slots())
            && let Some(end) = self.begin_merge(leaf.ptr(), Bytes::from_slice(key), pairs == 0)
        {
            _ = end.await;
        }
    }

    #[cold]
    fn begin_merge(&self, leaf: RemotePtr, key: Bytes, is_empty: bool) -> Option<MergeEnd> {
        let merge = move |tree: Rc<Self>| {
            let key = key.clone();
            async move { tree.merge_around(&key).await }
        };
        self.merge_in_background(|tree| &tree.state.merging, (leaf, is_empty), merge)
    }

    /// Merges the leaf of `key` with a neighbour, if they fit and their locks can be had; yields whether it did.
    async fn merge_around(self: &Rc<Self>, key: &[u8]) -> Result<bool, WriteError> {
        let (meter, mut budget) = (Meter::default(), self.budget());
        attempt_often(&self.verbs, async || self.try_merge(&meter, key, &mut budget).await).await
    }

    /// Tries the leaf of `key` with its right neighbour, and then with the left one.
    async fn try_merge(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let Sought::Leaf { leaf, image, .. } = self.seek(meter, key).await? else {
            return Ok(Attempt::Needless);
        };
        let view = self.leaf().parsed(&image);
        let (pairs, low, next) = (view.present().count(), view.bounds().0, view.next());
        if !fits(pairs, self.leaf().slots()) {
            return Ok(Attempt::Needless);
        }
        let mut attempt = Attempt::Needless;
        if let Some(right) = next {
            attempt = self.try_pair(meter, (leaf, right), (right, pairs), budget).await?;
        }
        if attempt == Attempt::Merged || low == begin_of(Symbol::of(&low, 0)) {
            return Ok(attempt);
        }
        let Some(left) = self.left_of(meter, &low, leaf, budget).await? else { return Ok(Attempt::Busy) };
        match self.try_pair(meter, (left, leaf), (left, pairs), budget).await? {
            Attempt::Needless => Ok(attempt),
            other => Ok(other),
        }
    }

    /// Merges two leaves, if they fit and both locks can be had. `other` is the one of them that has not been read yet,
    /// with the count of the pairs that the first one has.
    async fn try_pair(
        self: &Rc<Self>,
        meter: &Meter,
        (left, right): (Child, Child),
        (other, pairs): (Child, usize),
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let Ok(image) = self.read_leaf(meter, other, budget).await? else { return Ok(Attempt::Busy) };
        let more = self.leaf().parsed(&image).present().count();
        if !fits(pairs + more, self.leaf().slots()) {
            return Ok(Attempt::Needless);
        }
        let (held, image) = self.lock_leaf(meter, left.ptr(), true).await?;
        let Some((held_right, image_right)) = self.try_lock_leaf(meter, right.ptr()).await? else {
            held.unlock(meter).await?;
            return Ok(Attempt::Busy);
        };
        let deep = self.techniques.deep_special;
        let Some(united) = plan(self.leaf(), (&image, &image_right), right, deep) else {
            held.unlock(meter).await?;
            held_right.unlock(meter).await?;
            return Ok(Attempt::Needless);
        };
        self.merge(meter, united, (left, held, image), (right, held_right, image_right)).await?;
        Ok(Attempt::Merged)
    }

    /// Merges two leaves that are locked.
    async fn merge(
        self: &Rc<Self>,
        meter: &Meter,
        United { left, right, pairs }: United,
        (at, held, mut image): (Child, Held<V>, Buf),
        (freed, held_right, mut image_right): (Child, Held<V>, Buf),
    ) -> Result<(), WriteError> {
        let (layout, node) = (self.leaf(), freed.ptr());
        let header = RangeHeader { next: right.next(), high: right.high.as_deref(), ..left.whole() };
        build(layout, &mut image, &header, &pairs);
        self.write_word(meter, node, layout.set_standing(&mut image_right, Standing::Frozen)).await?;
        if let Err(error) = held.release(meter, whole_chain(layout, at.ptr(), image), true).await {
            // The janitor goes on, with L's lock: R is out of the tree, or will be, or thaws when it is met.
            tracing::debug!(name: "dolphin.merge.unknown", %node, %error, "a merge may have taken effect, or will");
            self.allocator.retire_unsettled(node, layout.node_bytes() as u64);
            return Err(AccessError::from(error).into());
        }
        let freed_word = self.free(meter, held_right, &mut image_right, at).await;
        tracing::debug!(name: "dolphin.leaf.merged", left = %at.ptr(), freed = %node, "a leaf is merged into another");
        let bytes = layout.node_bytes() as u64;
        match freed_word {
            Ok(word) => self.allocator.retire_of_kind(node, bytes, word),
            Err(error) => {
                self.allocator.retire_unsettled(node, bytes);
                return Err(error.into());
            }
        }
        Ok(self.lead_past_merged(meter, (&right.low, right.high.as_ref()), (freed, at)).await?)
    }

    /// Marks a leaf as freed whose lock is held alone, in two steps that leave it whole, and gives the lock back: one
    /// round trip. Yields its first word.
    pub(super) async fn free(
        &self,
        meter: &Meter,
        mut held: Held<V>,
        image: &mut [u8],
        heir: Child,
    ) -> Result<u64, AccessError> {
        let (layout, node) = (self.leaf(), held.node());
        let word = layout.set_standing(image, Standing::Freed);
        let mut chain = Chain::new(node.server());
        chain.write_word(node.add(layout.next_at() as u64), heir.bits()).write_word(node, word);
        held.with_whole_steps();
        held.release(meter, chain, true).await?;
        Ok(word)
    }

    /// Locks a leaf alone and reads it as [`Tree::lock_leaf`] does, if its lock is free: for a client that holds
    /// another one.
    pub(super) async fn try_lock_leaf(
        &self,
        meter: &Meter,
        node: RemotePtr,
    ) -> Result<Option<(Held<V>, Buf)>, AccessError> {
        let (locks, layout) = (self.leaf_locks(), self.leaf());
        let Some(mut held) = locks.try_acquire(node, self.lock_of(node)).await? else { return Ok(None) };
        let buf = self.verbs.lease(layout.node_bytes());
        let parts = layout.parts(true);
        match locks.lock_and_read(meter, &mut held, buf, &parts, self.techniques.fused).await {
            Ok(read) => Ok(Some((held, read.into_buf()))),
            Err(LockError::Contended { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Tells whether a leaf was rejected as one that is not in the tree.
pub(super) fn is_gone(rejection: Rejection) -> bool {
    matches!(rejection, Rejection::Frozen | Rejection::Freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NodeVersion;

    const KEYS: [&[u8]; 8] = [b"ka", b"kb", b"kc", b"kd", b"ke", b"kf", b"kg", b"kh"];

    fn child(n: u64) -> Child {
        Child::of(n + 1).unwrap()
    }

    fn leaf(layout: &RangeLayout, keys: &[&[u8]], (low, high): (&[u8], &[u8]), next: u64) -> Vec<u8> {
        let mut image = vec![0; layout.node_bytes()];
        let (version, next, high) = (NodeVersion::new(3), Some(child(next)), Some(high));
        let header = RangeHeader { version, next, low, high, is_reused: false };
        layout.build(&mut image, &header, keys.iter().map(|key| (*key, &b"12345678"[..])));
        image
    }

    /// All numbers of pairs in two neighbours.
    #[test]
    fn leaves_are_merged_that_are_neighbours_and_fit() {
        let layout = RangeLayout::new(256, 1, 8, 8).unwrap();
        assert_eq!(layout.slots(), 8);
        for (first, second) in (0..=4).flat_map(|first| (0..=4).map(move |second| (first, second))) {
            let left = leaf(&layout, &KEYS[..first], (b"k", b"ke"), 2);
            let right = leaf(&layout, &KEYS[4..4 + second], (b"ke", b"l"), 3);
            let united = plan(&layout, (&left, &right), child(2), false);
            assert_eq!(united.is_some(), first + second <= 4, "{first} and {second}");
            if let Some(United { left, right, pairs }) = united {
                let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
                assert_eq!(keys, [&KEYS[..first], &KEYS[4..4 + second]].concat());
                assert_eq!((&left.low[..], right.high.as_deref()), (&b"k"[..], Some(&b"l"[..])));
            }
        }
        let (left, right) = (leaf(&layout, &[], (b"k", b"ke"), 2), leaf(&layout, &[], (b"ke", b"l"), 3));
        assert!(plan(&layout, (&left, &right), child(4), false).is_none(), "it leads to another leaf");
        let other = leaf(&layout, &[], (b"kf", b"l"), 3);
        assert!(plan(&layout, (&left, &other), child(2), false).is_none(), "it ends elsewhere");
        for standing in [Standing::Frozen, Standing::Freed] {
            let mut gone = right.clone();
            layout.set_standing(&mut gone, standing);
            assert!(plan(&layout, (&left, &gone), child(2), false).is_none(), "{standing:?}");
        }
    }

    #[test]
    fn deep_leaves_keep_to_one_prefix() {
        let layout = RangeLayout::new(256, 1, 8, 8).unwrap();
        let left = leaf(&layout, &[b"ka"], (b"k", b"kb"), 2);
        for (key, share) in [(&b"kb"[..], true), (b"kbx", false)] {
            let right = leaf(&layout, &[key], (b"kb", b"l"), 3);
            assert_eq!(plan(&layout, (&left, &right), child(2), true).is_some(), share);
            assert!(plan(&layout, (&left, &right), child(2), false).is_some());
        }
    }
}
