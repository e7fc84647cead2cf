//! Merges of leaves: one that has become nearly empty goes into its left neighbour. For trees whose leaves can be
//! frozen, and written whole ([`MergedLeaf`]), wherever their locks are. What readers do that meet a leaf on its way
//! out is in `freed.rs`, what becomes of its memory in `retired.rs`.
//!
//! A remove that leaves few pairs leaves the rest to the janitor. It takes three locks: that of the left leaf L, and
//! then those of the right one R and of their parent P if they are free at once; it never waits while it has one. R is
//! not the first below P, so that its separator is P's own. All three have other lock words, or nothing happens.
//!
//! ```text
//!   WRITE R: frozen ── WRITE L: pairs of both, R's fence and sibling, unlock ──┬─ WRITE R: freed, heir L, unlock
//!          1                                    2                              └─ WRITE P: without R,     unlock
//!                                                                                            3
//! ```
//!
//! 1. A frozen leaf answers for no key, neither to readers nor to writers, whatever part of it they read, and it still
//!    says where it begins and ends and what its sibling is. That takes one word, or all of the leaf: then it is
//!    recorded as a release is. Only a client that has the locks of both, of R and of the leaf on its left, may end
//!    that: so whether L has taken the keys over is settled then, also where a client died that had begun to write L,
//!    since its lock comes with all that it had recorded. (R's lock alone tells nothing: it may be taken over before
//!    L's is.)
//! 2. L is written under its own lock and with its own intent, as by a split. Before that has come to its end, R stays
//!    frozen, whatever becomes of this client; if it has, R's keys are L's.
//! 3. Until P is written, readers come to R, and find L there.
//!
//! ```text
//!   merger   WRITE R: frozen ✗ dies                               R's pairs are in R: it thaws
//!   merger   WRITE R: frozen, WRITE intent, WRITE L: half ✗ dies  L's lock comes with all of L: R is freed
//! ```
//!
//! A READ of R that came before 1 has what R had then, and nothing was in L of it. A scan that has read L before 2 and
//! R after 1 looks R's first key up, and finds it in L; one that has read L after 2 is beyond R.
//!
//! A separator that is not in P yet is no merge's: P has R's own. But a client that split R off may put it into P once
//! more, long after: one whose separator another client has put in (`repair.rs`). So R's memory waits until all
//! operations of that time have ended, and P is asked once more (`retired.rs`).

use std::rc::Rc;

use farwood_lock::{Held, LockError};
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};
use futures::future::join;

use super::separator::Separator;
use super::split::OldNode;
use super::{BTree, LeafFormat};
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, Header, InnerLayout, NodeHeader, Rejection, mark_freed};
use crate::shell::handle::Local;
use crate::shell::merging::{Attempt, attempt_often, fits, is_low};
use crate::step::Budget;

/// A leaf that can be merged.
pub trait MergedLeaf: LeafFormat {
    /// Yields fences and neighbour of a whole leaf, and counts its pairs.
    ///
    /// # Errors
    /// If it is none, or is torn.
    fn fill<'a>(&'a self, image: &'a [u8]) -> Result<(Header<'a>, usize), Rejection>;

    /// Makes `image` a leaf with `header` and the pairs of both leaves; yields whether there is room for all of them.
    ///
    /// # Errors
    /// That of a pair that no writer leaves.
    fn unite(&self, image: &mut [u8], header: &NodeHeader<'_>, leaves: [&[u8]; 2])
    -> Result<bool, Rejection>;
}

/// Two neighbours below one parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    parent: RemotePtr,
    left: RemotePtr,
    right: RemotePtr,
}

/// The change that a merge makes.
#[derive(PartialEq, Debug)]
struct Plan {
    /// R's separator.
    low: Bytes,
    /// R's right edge, which becomes L's.
    high: Option<Bytes>,
    sibling: RemotePtr,
    /// The parent's entries without R.
    entries: Vec<(Bytes, RemotePtr)>,
}

/// Decides whether the leaves in these images, which are locked as their parent is, are merged; none if they are not.
fn plan<L: MergedLeaf>(
    leaf: &L,
    inner: &InnerLayout,
    pair: Pair,
    (left, right, parent): (&[u8], &[u8], &[u8]),
) -> Option<Plan> {
    let (left, left_pairs) = leaf.fill(left).ok()?;
    let (right, right_pairs) = leaf.fill(right).ok()?;
    let parent = inner.view(parent).ok().filter(|parent| parent.header().level() == 1)?;
    let low = right.low();
    let are_neighbours = left.sibling() == pair.right && left.high().as_ref() == Some(&low);
    let mut entries = parent.sorted_entries().ok()?;
    let place = entries.binary_search_by(|(key, _)| key.cmp(&low)).ok().filter(|place| *place > 0)?;
    let has_it = entries[place].1 == pair.right;
    if !are_neighbours || !has_it || !fits(left_pairs + right_pairs, leaf.slots()) {
        return None;
    }
    entries.remove(place);
    Some(Plan { low, high: right.high(), sibling: right.sibling(), entries })
}

impl<A: BTree<Leaf: MergedLeaf>, V: Verbs> Local<A, V> {
    /// Has the janitor merge the leaf of `key`, in which a remove has left so many pairs, if these are few.
    #[inline]
    pub(crate) async fn note_removed(&self, leaf: RemotePtr, key: &[u8], pairs: usize) {
        if is_low(pairs, self.leaf().slots()) {
            let key = Bytes::from_slice(key);
            let merge = async move |tree: Rc<Self>| tree.merge_around(&key).await;
            self.merge_in_background(|tree| &tree.merges().merging, (leaf, pairs == 0), merge).await;
        }
    }

    /// Merges the leaf of `key` with a neighbour, if they fit and their locks can be had; yields whether it did.
    async fn merge_around(self: &Rc<Self>, key: &[u8]) -> Result<bool, WriteError> {
        let (meter, mut budget) = (Meter::default(), self.budget());
        attempt_often(&self.verbs, async || self.try_merge(&meter, key, &mut budget).await).await
    }

    /// Tries the leaf of `key` with its left neighbour, and then with the right one: one round trip for the parent, and
    /// one for each of the leaves before a lock is taken.
    async fn try_merge(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let Some(parent) = self.locate_from_root(meter, key, 1, budget).await? else {
            return Ok(Attempt::Needless);
        };
        let image = self.read(meter, parent.ptr, self.inner().node_bytes(), budget).await?;
        let Ok(entries) = self.inner().view(&image).and_then(|inner| inner.sorted_entries()) else {
            return Ok(Attempt::Busy);
        };
        let Some(place) = entries.iter().rposition(|(low, _)| low[..] <= *key) else {
            return Ok(Attempt::Busy);
        };
        let mut attempt = Attempt::Needless;
        let neighbours = [place.checked_sub(1).map(|left| (left, place)), Some((place, place + 1))];
        for (left, right) in neighbours.into_iter().flatten().filter(|(_, right)| *right < entries.len()) {
            let pair = Pair { parent: parent.ptr, left: entries[left].1, right: entries[right].1 };
            match self.try_pair(meter, pair, budget).await? {
                Attempt::Merged => return Ok(Attempt::Merged),
                Attempt::Busy => attempt = Attempt::Busy,
                Attempt::Needless => {}
            }
        }
        Ok(attempt)
    }

    /// Merges two leaves, if they fit and the three locks can be had.
    async fn try_pair(
        self: &Rc<Self>,
        meter: &Meter,
        pair: Pair,
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let mut pairs = 0;
        for leaf in [pair.left, pair.right] {
            match self.leaf().fill(&self.read(meter, leaf, self.leaf().node_bytes(), budget).await?) {
                Ok((_, more)) => pairs += more,
                Err(_) => return Ok(Attempt::Busy),
            }
        }
        if !fits(pairs, self.leaf().slots()) {
            return Ok(Attempt::Needless);
        }
        let [left, right] = [pair.left, pair.right].map(|leaf| self.leaf_word(leaf));
        let parent = self.locks.word_of(pair.parent);
        if left == right || right == parent || parent == left {
            tracing::debug!(name: "btree.merge.same_lock", "nodes are not merged that have one lock");
            return Ok(Attempt::Needless);
        }
        let (held, left) = self.lock_whole_leaf(meter, pair.left).await?;
        let Some((held_right, right)) = self.try_lock_leaf(meter, pair.right).await? else {
            self.unlock(meter, held).await?;
            return Ok(Attempt::Busy);
        };
        let Some((held_parent, parent)) = self.try_lock_inner(meter, pair.parent).await? else {
            self.unlock(meter, held).await?;
            self.unlock(meter, held_right).await?;
            return Ok(Attempt::Busy);
        };
        let planned = match plan(self.leaf(), self.inner(), pair, (&left, &right, &parent)) {
            Some(plan) => self.united(&plan, pair.left, [&left, &right])?.map(|united| (plan, united)),
            None => Err(Attempt::Busy),
        };
        match planned {
            Ok((plan, united)) => {
                self.merge(meter, plan, (held, united), (held_right, right), (held_parent, parent)).await?;
                Ok(Attempt::Merged)
            }
            Err(attempt) => {
                self.unlock(meter, held).await?;
                self.unlock(meter, held_right).await?;
                self.unlock(meter, held_parent).await?;
                Ok(attempt)
            }
        }
    }

    /// Makes the image of the left leaf with the pairs of both; if there is no room for them, says so.
    fn united(
        &self,
        plan: &Plan,
        node: RemotePtr,
        [left, right]: [&[u8]; 2],
    ) -> Result<Result<Buf, Attempt>, AccessError> {
        let corrupt = |rejection| AccessError::corrupt(node, rejection);
        let mut united = self.verbs.lease(left.len());
        let old = OldNode::of(&self.leaf().fill(left).map_err(corrupt)?.0);
        let header = old.united(plan.high.as_deref(), plan.sibling);
        if self.leaf().unite(&mut united, &header, [left, right]).map_err(corrupt)? {
            return Ok(Ok(united));
        }
        tracing::debug!(name: "btree.merge.no_room", %node, "the pairs of two leaves have no room in one");
        Ok(Err(Attempt::Needless))
    }

    /// Merges two leaves that are locked, as their parent is; the image of the left one has the pairs of both.
    async fn merge(
        self: &Rc<Self>,
        meter: &Meter,
        plan: Plan,
        (held, united): (Held<V>, Buf),
        (mut held_right, mut right): (Held<V>, Buf),
        (held_parent, parent): (Held<V>, Buf),
    ) -> Result<(), WriteError> {
        let (node, freed, bytes) = (held.node(), held_right.node(), united.len());
        let marked = self.leaf().freeze(&mut right);
        let mut chain = Chain::with_buffer(freed.server(), right);
        self.write_leaf(&mut chain, freed, marked);
        let frozen = held_right.write(meter, chain).await.map_err(AccessError::from)?;
        right = frozen.expect("the leaf was in the chain's buffer");
        let mut chain = Chain::with_buffer(node.server(), united);
        self.write_leaf(&mut chain, node, 0..bytes);
        if let Err(error) = held.release(meter, chain, self.chains().combine).await {
            // The janitor goes on, with L's lock: R is out of the tree, or will be, or thaws when it is met.
            tracing::debug!(name: "btree.merge.unknown", %freed, %error, "a merge may have taken effect, or will");
            self.allocator.retire_unsettled(freed, bytes as u64);
            return Err(AccessError::from(error).into());
        }
        let marked = mark_freed(&mut right, node);
        let mut chain = Chain::with_buffer(freed.server(), right);
        chain.write(freed.add(marked.start as u64), marked);
        let (marked, unlinked) = join(
            held_right.release(meter, chain, true),
            self.rewrite_inner(meter, held_parent, parent, &plan.entries),
        )
        .await;
        tracing::debug!(name: "btree.leaf.merged", %node, %freed, "a leaf is merged into its left neighbour");
        if let Err(error) = marked {
            self.allocator.retire_unsettled(freed, bytes as u64);
            return Err(AccessError::from(error).into());
        }
        self.retire(freed, plan.low);
        Ok(unlinked?)
    }

    /// Locks and reads a whole leaf as [`Local::lock_whole_leaf`] does, if its lock is free: for a client that holds
    /// another one.
    pub(super) async fn try_lock_leaf(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<Option<(Held<V>, Buf)>, AccessError> {
        let held = match self.leaf().lock_place() {
            Some(at) => self.locks.try_acquire_embedded(leaf, leaf.add(at as u64)).await?,
            None => self.locks.try_acquire(leaf).await?,
        };
        self.try_lock_and_read(meter, held, self.leaf().node_bytes()).await
    }

    /// Locks and reads an inner node, if its lock is free.
    async fn try_lock_inner(
        &self,
        meter: &Meter,
        node: RemotePtr,
    ) -> Result<Option<(Held<V>, Buf)>, AccessError> {
        let held = self.locks.try_acquire(node).await?;
        self.try_lock_and_read(meter, held, self.inner().node_bytes()).await
    }

    async fn try_lock_and_read(
        &self,
        meter: &Meter,
        held: Option<Held<V>>,
        bytes: usize,
    ) -> Result<Option<(Held<V>, Buf)>, AccessError> {
        let Some(mut held) = held else { return Ok(None) };
        let buf = self.verbs.lease(bytes);
        match held.lock_and_read(meter, buf, bytes, self.chains().fused).await {
            Ok(read) => Ok(Some((held, read.into_buf()))),
            Err(LockError::Contended { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Yields the separator of a leaf.
    pub(super) fn leaf_separator(low: &Bytes, leaf: RemotePtr) -> Separator {
        Separator { level: 1, key: low.clone(), child: leaf }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{LeafLayout, NodeVersion, freeze};

    #[test]
    fn what_was_split_or_merged_is_not_merged_or_split_at_once() {
        for slots in 2..200 {
            let fitting = (0..=slots).filter(|pairs| fits(*pairs, slots)).max().unwrap();
            let low = (0..=slots).filter(|pairs| is_low(*pairs, slots)).max().unwrap();
            // A full leaf and one pair more, in two halves.
            assert!(low < slots.div_ceil(2), "{slots}: a half is not low");
            assert!(slots - fitting >= slots * 2 / 5 && 2 * low <= fitting, "{slots}: {low} {fitting}");
            assert!(is_low(0, slots) && (1..=low).all(|pairs| is_low(pairs, slots)));
        }
    }

    const KEYS: [&[u8]; 4] = [b"b", b"d", b"h", b"p"];

    fn node(n: u64) -> RemotePtr {
        RemotePtr::from_bits(64 * n)
    }

    fn header(
        level: u8,
        low: &'static [u8],
        high: Option<&'static [u8]>,
        sibling: u64,
    ) -> NodeHeader<'static> {
        let node_version = NodeVersion::new(3);
        NodeHeader { level, low, high, sibling: node(sibling), incarnation: 1, node_version }
    }

    /// Makes leaves 1 and 2, from "b" and "h" on, with so many pairs each, and their parent.
    struct Site {
        leaf: LeafLayout,
        inner: InnerLayout,
        images: [Vec<u8>; 3],
    }

    impl Site {
        fn new(
            pairs: [usize; 2],
            separators: &[(&[u8], u64)],
            left_sibling: u64,
            left_high: &'static [u8],
        ) -> Self {
            let (leaf, inner) =
                (LeafLayout::for_slots(5, 4, 4).unwrap(), InnerLayout::for_slots(4, 4).unwrap());
            let mut images =
                [leaf.node_bytes(), leaf.node_bytes(), inner.node_bytes()].map(|len| vec![0; len]);
            let few = |keys: [&'static [u8]; 4], n| keys.into_iter().take(n).map(|key| (key, &b"1"[..]));
            leaf.build(&mut images[0], &header(0, b"b", Some(left_high), left_sibling), few(KEYS, pairs[0]));
            let right: [&[u8]; 4] = [b"h", b"i", b"j", b"k"];
            leaf.build(&mut images[1], &header(0, b"h", Some(b"p"), 7), few(right, pairs[1]));
            let entries = separators.iter().map(|(key, child)| (*key, node(*child)));
            inner.build(&mut images[2], &header(1, b"b", None, 0), entries);
            Site { leaf, inner, images }
        }

        fn plan(&self) -> Option<Plan> {
            let pair = Pair { parent: node(9), left: node(1), right: node(2) };
            let [left, right, parent] = &self.images;
            plan(&self.leaf, &self.inner, pair, (left, right, parent))
        }
    }

    const LINKED: [(&[u8], u64); 3] = [(b"b", 1), (b"h", 2), (b"p", 7)];

    #[test]
    fn neighbours_that_fit_are_merged_and_others_are_not() {
        for left in 0..=4 {
            for right in 0..=4 {
                let found = Site::new([left, right], &LINKED, 2, b"h").plan();
                assert_eq!(found.is_some(), left + right <= 3, "{left} {right}");
                let Some(found) = found else { continue };
                let key = Bytes::from_slice;
                let entries = vec![(key(b"b"), node(1)), (key(b"p"), node(7))];
                assert_eq!(found, Plan { low: key(b"h"), high: Some(key(b"p")), sibling: node(7), entries });
            }
        }
    }

    #[test]
    fn what_is_linked_otherwise_is_not_merged() {
        let plan =
            |separators: &[(&[u8], u64)], sibling, high| Site::new([1, 1], separators, sibling, high).plan();
        assert!(plan(&LINKED, 2, b"h").is_some());
        assert_eq!(plan(&LINKED, 3, b"h"), None, "another sibling");
        assert_eq!(plan(&LINKED, 2, b"g"), None, "another fence");
        assert_eq!(plan(&[(b"b", 1), (b"p", 7)], 2, b"h"), None, "no separator");
        assert_eq!(plan(&[(b"b", 1), (b"h", 5)], 2, b"h"), None, "the separator of another leaf");
        for leaf in 0..2 {
            let mut site = Site::new([1, 1], &LINKED, 2, b"h");
            freeze(&mut site.images[leaf]);
            assert_eq!(site.plan(), None);
            mark_freed(&mut site.images[leaf], node(4));
            assert_eq!(site.plan(), None);
        }
    }

    #[test]
    fn the_first_leaf_of_a_parent_is_not_merged_into_the_one_before() {
        let mut site = Site::new([1, 1], &LINKED, 2, b"h");
        let entries: [(&[u8], _); 2] = [(b"h", node(2)), (b"p", node(7))];
        site.inner.build(&mut site.images[2], &header(1, b"h", None, 0), entries);
        assert_eq!(site.plan(), None);
    }

    #[test]
    fn a_merged_leaf_has_the_pairs_of_both() {
        let Site { leaf, images, .. } = Site::new([2, 1], &LINKED, 2, b"h");
        let mut united = vec![0; leaf.node_bytes()];
        leaf.unite(&mut united, &header(0, b"b", Some(b"p"), 7), [&images[0], &images[1]]).unwrap();
        let pairs = leaf.view(&united).unwrap().sorted_pairs().unwrap();
        let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
        assert_eq!(keys, [&b"b"[..], b"d", b"h"]);
    }
}
