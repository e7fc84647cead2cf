//! Leaves that are no longer a part of their tree, or not yet, and slots that lead to them: what a client does that
//! meets one.
//!
//! A leaf is *frozen* while it is being merged (`merge.rs`), or made where another one was (`reused.rs`). It is *freed*
//! afterwards, and names the leaf that had its keys then, its heir. Mostly a client reads a frozen leaf again, or goes
//! on to the heir of a freed one, whose bounds say whether that is right. If it meets several such leaves, their client
//! has died: then it sees to it that the tree goes on without. A frozen leaf thaws if its left neighbour ends where it
//! begins and leads to it, and is freed if that covers where it begins. Both locks are held to tell: `merge.rs` says
//! why.
//!
//! # Slots that lead wrong
//!
//! A merge makes all slots that lead to its leaf lead on (`lead_on.rs`). If its client dies before it does, or another
//! one puts a separator in late, some are left; and there are copies.
//!
//! Memory that has been a leaf is memory of leaves for as long as there is the tree, so a slot or a copy of one may
//! lead there for good: what it leads to is a leaf, and says for which keys. A slot may lead to a leaf that was merged,
//! and when its memory is another leaf by now, to any leaf: one that begins behind the key, one far to the left of it,
//! or one of another first byte. Clients take such a slot for absent, and go on from the last one before it that leads
//! to a leaf that begins before the key ([`Tree::locate_past`]). There is one: the first leaf for a first byte is never
//! merged into another one, and slots that lead there are never wrong.
//!
//! ```text
//!   slots     a -> A  c -> C  e -> E         C is merged into A, its memory becomes a leaf for x
//!   get d     c -> [x, z): taken for absent, a -> [a, e): it is the key's, and c is to lead there
//! ```
//!
//! The client leaves it to its janitor to make the slot lead to where the one before it does: never too far to the
//! right.

use farwood_lock::Held;
use farwood_runtime::{Chain, Meter, Verbs};

use super::Tree;
use super::descend::{Located, Place, Successor, Unread};
use super::merge::is_gone;
use super::put_separator::Nodes;
use crate::error::AccessError;
use crate::layout::radix::{Child, Symbol};
use crate::layout::range_leaf::{RangeFound, Standing, heir_of};
use crate::layout::{Bytes, Rejection};
use crate::shell::merging::{Edge, Fate, decide};
use crate::step::Budget;

/// Leaves of this kind that one operation meets before it looks after one.
const MEETINGS: u32 = 8;
/// The longest pause in ns before a frozen leaf is read again.
const PAUSE_NS: u64 = 4_000;
/// Leaves that a client looks at behind slots, at least, before it takes the best of them.
const LOOKS: usize = 4;

/// A leaf that is not in the tree: why not, and its heir if it has one.
pub(super) struct Gone {
    rejection: Rejection,
    heir: Option<Child>,
}

/// A leaf, with the key of the slot that leads there, and the node of that slot.
struct Led {
    leaf: Child,
    path: Bytes,
    holder: Child,
}

/// The leaf to which a slot leads that is before some that may lead wrong.
pub(super) struct Past {
    /// Where it begins.
    pub(super) low: Bytes,
    place: Place,
    /// The keys of the slots that lead wrong, with the leaves that they lead to. They may lead to this one.
    wrong: Vec<(Bytes, Child)>,
}

/// The leaves to which the last slots lead that are not for keys behind a key, the last slot first.
#[derive(Default)]
struct Looks {
    seen: Vec<Led>,
    /// The one that begins last, but not behind the key: where, and how many were seen before it.
    best: Option<(Bytes, usize)>,
}

impl Looks {
    fn are_enough(&self) -> bool {
        self.best.is_some() && self.seen.len() >= LOOKS
    }

    /// Adds a leaf, with where it begins, and what it says of the key; none if it is frozen or freed. Yields whether it
    /// is the key's.
    ///
    /// A leaf of another first byte is never the best, though it may begin before the key: if the slots that are looked
    /// at all led to such leaves, a client would come back to one of them until its budget is spent.
    fn add(&mut self, key: &[u8], led: Led, found: Option<(Bytes, RangeFound)>) -> bool {
        let mut is_the_keys = false;
        if let Some((low, found)) = found {
            is_the_keys = !matches!(found, RangeFound::Before | RangeFound::Beyond(_));
            let may_lead = found != RangeFound::Before && low.first() == key.first();
            if may_lead && self.best.as_ref().is_none_or(|(begin, _)| low > *begin) {
                self.best = Some((low, self.seen.len()));
            }
        }
        self.seen.push(led);
        is_the_keys
    }

    /// Yields the best one, and of the slots behind its own those that may lead there: no slot is to lead to a leaf
    /// that begins behind the slot's key. None if none is good.
    fn past(mut self) -> Option<Past> {
        let (low, before) = self.best?;
        let right = self.seen.swap_remove(before);
        self.seen.truncate(before);
        let behind = self.seen.into_iter().filter(|led| low <= led.path);
        let wrong = behind.map(|led| (led.path, led.leaf)).collect();
        let place = Place { leaf: right.leaf, holder: right.holder, is_fresh: true, over: None };
        Some(Past { low, place, wrong })
    }
}

impl<V: Verbs> Tree<V> {
    /// Reads what is to be known of a leaf that was rejected.
    ///
    /// # Errors
    /// If it is none.
    pub(super) fn gone(&self, leaf: Child, image: &[u8], rejection: Rejection) -> Result<Gone, AccessError> {
        match is_gone(rejection) {
            true => Ok(Gone { rejection, heir: heir_of(self.leaf(), image) }),
            false => Err(AccessError::corrupt(leaf.ptr(), rejection)),
        }
    }

    /// Goes on from a leaf that is frozen or freed.
    #[cold]
    pub(super) async fn leave_gone(
        &self,
        meter: &Meter,
        key: &[u8],
        from: &Place,
        gone: Gone,
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        let (leaf, node) = (from.leaf, from.leaf.ptr());
        budget.spend(meter, node, Some(gone.rejection))?;
        self.forget(key, from);
        if budget.count_freed().is_multiple_of(MEETINGS) {
            tracing::debug!(name: "dolphin.leaf.looked_after", %node, "a leaf is not what leads to it");
            self.settle_frozen(meter, leaf, budget).await?;
            return self.locate_past(meter, key, budget).await;
        }
        let on =
            |leaf| Located::Leaf(Place { leaf, holder: from.holder, is_fresh: from.is_fresh, over: None });
        match gone.heir {
            Some(heir) => {
                tracing::debug!(name: "dolphin.leaf.freed", %node, "a leaf is another one's by now");
                if from.is_fresh && from.over.is_none() {
                    self.lead_on_later(key, leaf);
                }
                Ok(on(heir))
            }
            None if gone.rejection == Rejection::Frozen => {
                tracing::debug!(name: "dolphin.leaf.frozen", %node, "a leaf is read again that is frozen");
                self.verbs.pause(1 + self.verbs.random() % PAUSE_NS).await;
                Ok(on(leaf))
            }
            None => self.locate_past(meter, key, budget).await,
        }
    }

    /// Finds the leaf for `key`, or one to the left of it, by READs, whatever slots lead wrong, and leaves those to the
    /// janitor.
    #[cold]
    pub(super) async fn locate_past(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Located, AccessError> {
        match self.look_past(meter, key, budget).await? {
            Some(past) => Ok(Located::Leaf(self.believe(past))),
            None => self.descend_from_root(meter, key, budget).await,
        }
    }

    /// Yields the place to go on at, and leaves it to the janitor to make the slots that lead wrong lead there.
    pub(super) fn believe(&self, past: Past) -> Place {
        for (path, leaf) in past.wrong {
            self.lead_to_later(path, (leaf, past.place.leaf));
        }
        past.place
    }

    /// Looks at the leaves to which the last slots lead that are not for keys behind `key`: yields the one that begins
    /// last, but not behind `key`. None if no slot is for the key's first byte.
    pub(super) async fn look_past(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Option<Past>, AccessError> {
        tracing::debug!(name: "dolphin.leaf.past", "a client looks for a slot before one that leads wrong");
        let mut looks = Looks::default();
        while !looks.are_enough() {
            let but: Vec<Child> = looks.seen.iter().map(|led| led.leaf).collect();
            let Some(led) = self.leaf_before(meter, key, (&but, Nodes::Read), budget).await? else { break };
            budget.spend(meter, led.leaf.ptr(), None)?;
            let found = self.read_leaf(meter, led.leaf, budget).await?.ok().map(|image| {
                let view = self.leaf().parsed(&image);
                (view.bounds().0, view.find(key))
            });
            if looks.add(key, led, found) {
                break;
            }
        }
        Ok(looks.past())
    }

    /// Finds the last slot that is not for keys behind `key`, and leads to a leaf that is none of these: a round trip
    /// for each node on the way there that is read. None if there is no such slot for the key's first byte.
    async fn leaf_before(
        &self,
        meter: &Meter,
        key: &[u8],
        (but, nodes): (&[Child], Nodes),
        budget: &mut Budget,
    ) -> Result<Option<Led>, AccessError> {
        let Some(root) = self.read_root(meter, budget).await? else { return Ok(None) };
        // Slots on the way that were not tried yet, the last one first.
        let mut ahead = Vec::new();
        let mut next = Some((self.unread_root(root), Bytes::new()));
        loop {
            if let Some((at, path)) = next.take() {
                let cached = (nodes == Nodes::Cached).then(|| self.cached_inner(at)).flatten();
                let inner = match cached {
                    Some(inner) => inner,
                    None => self.read_and_cache(meter, at, budget).await?,
                };
                if let Some(successor) = inner.successor {
                    budget.spend(meter, at.node.ptr(), None)?;
                    self.forget_gone(at);
                    match successor {
                        Successor::Node(node, class) => next = Some((Unread { node, class, ..at }, path)),
                        Successor::Leaf(node) => ahead.push((Unread { node, ..at }, true, path, at.node)),
                    }
                    continue;
                }
                let (symbol, is_on_way) = (Symbol::of(key, inner.position), key.starts_with(&path));
                let mut slots = inner.slots.clone();
                slots.retain(|slot| match inner.position {
                    0 => slot.is_of(symbol),
                    _ => !is_on_way || slot.symbol() <= symbol,
                });
                slots.sort_unstable_by_key(|slot| slot.symbol());
                for slot in slots {
                    let mut path = path.clone();
                    if let Symbol::Byte(byte) = slot.symbol() {
                        path.push(byte);
                    }
                    ahead.extend(
                        at.below(inner.position, slot).map(|below| (below, slot.is_leaf(), path, at.node)),
                    );
                }
            }
            match ahead.pop() {
                None => return Ok(None),
                Some((at, false, path, _)) => next = Some((at, path)),
                Some((at, true, path, holder)) if !but.contains(&at.node) => {
                    return Ok(Some(Led { leaf: at.node, path, holder }));
                }
                Some(_) => {}
            }
        }
    }

    /// Finds the leaf that ends at `low`, where `leaf` begins or began, or behind it; none if that is not to be found
    /// now. Mostly a cached slot leads there, which the leaf tells.
    pub(super) async fn left_of(
        &self,
        meter: &Meter,
        low: &Bytes,
        leaf: Child,
        budget: &mut Budget,
    ) -> Result<Option<Child>, AccessError> {
        if let Some(led) = self.leaf_before(meter, low, (&[leaf], Nodes::Cached), budget).await?
            && let Ok(image) = self.read_leaf(meter, led.leaf, budget).await?
            && let (begin, end) = self.leaf().parsed(&image).bounds()
            && begin < *low
            && begin.first() == low.first()
            && end.is_none_or(|end| end >= *low)
        {
            return Ok(Some(led.leaf));
        }
        let (mut but, mut settled) = (vec![leaf], Vec::new());
        while let Some(led) = self.leaf_before(meter, low, (&but, Nodes::Read), budget).await? {
            let mut at = led.leaf;
            loop {
                budget.spend(meter, at.ptr(), None)?;
                let image = match self.read_leaf(meter, at, budget).await? {
                    Ok(image) => image,
                    Err(Gone { rejection: Rejection::Frozen, .. }) if at != leaf => {
                        if settled.contains(&at) {
                            return Ok(None);
                        }
                        Box::pin(self.settle_frozen(meter, at, budget)).await?;
                        settled.push(at);
                        at = led.leaf;
                        continue;
                    }
                    Err(_) => break,
                };
                let view = self.leaf().parsed(&image);
                let (begin, end) = view.bounds();
                // The links of another first byte end before `low`, but that may be more leaves than the budget has.
                if begin >= *low || begin.first() != low.first() {
                    break;
                }
                match (end, view.next()) {
                    (Some(end), Some(next)) if end < *low => at = next,
                    (Some(end), None) if end < *low => break,
                    _ => return Ok(Some(at)),
                }
            }
            but.push(led.leaf);
        }
        Ok(None)
    }

    /// Sees to it that a leaf is frozen no longer, unless nothing leads to it, or another client has its lock.
    async fn settle_frozen(
        &self,
        meter: &Meter,
        leaf: Child,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        // What its last holder has begun is done then, or will not be.
        let (held, image) = self.lock_leaf(meter, leaf.ptr(), true).await?;
        held.unlock(meter).await?;
        let Some(low) = self.frozen_low(&image) else { return Ok(()) };
        let Some(left) = self.left_of(meter, &low, leaf, budget).await? else { return Ok(()) };
        let (held, image) = self.lock_leaf(meter, left.ptr(), false).await?;
        let edge = match self.leaf().parse(&image[self.leaf().key_part()]) {
            Ok(view) => match (view.bounds(), view.next()) {
                ((begin, _), _) if begin >= low => Edge::Beyond,
                ((_, Some(end)), Some(next)) if end < low => Edge::Before(next.ptr()),
                ((_, Some(end)), Some(next)) if end == low => Edge::There(next.ptr()),
                _ => Edge::Behind,
            },
            Err(_) => Edge::Beyond,
        };
        self.settle_between(meter, (leaf, &low), (left, held, edge)).await
    }

    /// Settles a frozen leaf, with the lock of the one that is before where it begins.
    async fn settle_between(
        &self,
        meter: &Meter,
        (leaf, low): (Child, &Bytes),
        (left, held, edge): (Child, Held<V>, Edge),
    ) -> Result<(), AccessError> {
        let node = leaf.ptr();
        let Some((own, mut image)) = self.try_lock_leaf(meter, node).await? else {
            return Ok(held.unlock(meter).await?);
        };
        match decide(self.frozen_low(&image).as_ref(), low, node, edge) {
            Fate::Left => own.unlock(meter).await?,
            Fate::Thawed => {
                tracing::debug!(name: "dolphin.leaf.thawed", %node, "a frozen leaf is one of the tree again");
                let mut chain = Chain::new(node.server());
                chain.write_word(node, self.leaf().set_standing(&mut image, Standing::Live));
                drop(own.release(meter, chain, true).await?);
            }
            Fate::Freed => {
                tracing::debug!(name: "dolphin.leaf.let_go", %node, "a frozen leaf is freed");
                // Its memory is not used again: who had begun to free it may have noted it.
                self.free(meter, own, &mut image, left).await?;
            }
        }
        Ok(held.unlock(meter).await?)
    }

    /// Yields where a leaf begins that is frozen; none if it is not, or is not whole.
    fn frozen_low(&self, image: &[u8]) -> Option<Bytes> {
        let is_frozen = self.leaf().parse(image).err() == Some(Rejection::Frozen);
        self.low_of_gone(image).filter(|_| is_frozen)
    }

    /// Yields where a leaf began that is frozen or freed; none if it is not, or is not whole.
    pub(super) fn low_of_gone(&self, image: &[u8]) -> Option<Bytes> {
        let is_gone = self.leaf().parse(image).err().is_some_and(is_gone);
        let mut thawed = image.to_vec();
        self.leaf().set_standing(&mut thawed, Standing::Live);
        let view = self.leaf().parse(&thawed).ok().filter(|_| is_gone)?;
        Some(view.bounds().0)
    }

    /// Leaves it to the janitor to make the slot for `key` that leads to a freed leaf lead on. Most often its merger is
    /// about to: so it pauses first.
    fn lead_on_later(&self, key: &[u8], freed: Child) {
        let key = Bytes::from_slice(key);
        self.see_to_later(freed, async move |tree: &Self| {
            let (meter, mut budget) = (Meter::default(), tree.budget());
            if let Some(past) = tree.look_past(&meter, &key, &mut budget).await? {
                for (path, leaf) in past.wrong {
                    tree.lead_on(&meter, &path, (leaf, past.place.leaf), &mut budget).await?;
                }
            }
            Ok::<_, AccessError>(())
        });
    }

    /// Leaves it to the janitor to make the slot of `path` that leads to a wrong leaf lead to the right one.
    fn lead_to_later(&self, path: Bytes, (wrong, right): (Child, Child)) {
        self.see_to_later(wrong, async move |tree: &Self| {
            tree.lead_on(&Meter::default(), &path, (wrong, right), &mut tree.budget()).await
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(n: u64) -> Child {
        Child::of(n).unwrap()
    }

    /// Looks for "m" at leaves by their slots, the last slot first: each leaf has the number of its place there, from 1
    /// on. Yields the leaf to go on at, the slots that are to lead there, and how many leaves were looked at.
    fn look(leaves: &[(&str, Option<(&str, RangeFound)>)]) -> (Option<u64>, Vec<String>, usize) {
        let (mut looks, mut count) = (Looks::default(), 0);
        for (n, (path, found)) in (1..).zip(leaves) {
            if looks.are_enough() {
                break;
            }
            count += 1;
            let path = Bytes::from_slice(path.as_bytes());
            let led = Led { leaf: child(n), path, holder: child(100 + n) };
            let found = found.map(|(low, found)| (Bytes::from_slice(low.as_bytes()), found));
            if looks.add(b"m5", led, found) {
                break;
            }
        }
        let past = looks.past();
        let wrong = past.iter().flat_map(|past| &past.wrong);
        let wrong = wrong.map(|(path, _)| String::from_utf8(path.to_vec()).unwrap()).collect();
        let leaf = past.map(|past| {
            assert_eq!(past.place.holder.bits(), past.place.leaf.bits() + 100);
            past.place.leaf.bits()
        });
        (leaf, wrong, count)
    }

    const ITS_OWN: RangeFound = RangeFound::Absent { vacancy: None };
    const BEYOND: RangeFound = RangeFound::Beyond(None);

    #[test]
    fn the_keys_own_leaf_ends_the_search_and_slots_behind_lead_there() {
        let gone = ("m5", None);
        let found =
            look(&[gone, ("m4", Some(("m7", RangeFound::Before))), ("m", Some(("m", ITS_OWN))), gone]);
        assert_eq!(found, (Some(3), vec!["m5".into(), "m4".into()], 3));
    }

    #[test]
    fn among_leaves_to_the_left_the_last_one_is_the_best() {
        let leaves = [("m5", "m1"), ("m4", "m0"), ("m3", "m2"), ("m2", "m"), ("m1", "m4")];
        let leaves = leaves.map(|(path, low)| (path, Some((low, BEYOND))));
        assert_eq!(look(&leaves), (Some(3), vec!["m5".into(), "m4".into()], 4));
    }

    /// A slot that leads to a leaf behind its own key is a wrong one, too, but good for this key. Between the two there
    /// are keys to the left of that leaf.
    #[test]
    fn no_slot_is_led_too_far_to_the_right() {
        let found = look(&[("m4", None), ("m2", None), ("m1", Some(("m3", ITS_OWN)))]);
        assert_eq!(found, (Some(3), vec!["m4".into()], 3));
    }

    #[test]
    fn leaves_of_another_first_byte_are_none_of_the_looks_that_are_enough() {
        let far = |path| (path, Some(("k", BEYOND)));
        let behind = ("m1", Some(("x", RangeFound::Before)));
        let leaves = [far("m5"), far("m4"), far("m3"), far("m2"), behind, ("m", Some(("m", BEYOND)))];
        let wrong = ["m5", "m4", "m3", "m2", "m1"].map(String::from).to_vec();
        assert_eq!(look(&leaves), (Some(6), wrong, 6));
        assert_eq!(look(&leaves[..5]), (None, vec![], 5));
    }
}
