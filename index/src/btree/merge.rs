//! Merges: a node that has become nearly empty goes into its left neighbour, a leaf as well as an inner node. What
//! differs by level is in `format.rs`. What clients do that meet a node on its way out is in `freed.rs`, what becomes
//! of its memory in `retired.rs`; a root with one child is `lower.rs`'s.
//!
//! A remove that leaves few pairs leaves the rest to the janitor. It takes three locks: that of the left node L, and
//! then those of the right one R and of their parent P if they are free at once; it never waits while it has one. R is
//! not the first below P, so that its separator is P's own. All three have other lock words, or nothing happens.
//!
//! ```text
//!   WRITE R: frozen ── WRITE L: all of both, R's fence and sibling, unlock ──┬─ WRITE R: freed,     unlock
//!          1                                    2                            └─ WRITE P: without R, unlock
//!                                                                                          3
//! ```
//!
//! 1. A frozen node answers for no key, neither to readers nor to writers, whatever part of it they read, and it still
//!    says where it begins and ends and what its sibling is. That takes one word, or all of a leaf: then it is
//!    recorded as a release is. Only a client that has the locks of both, of R and of the node on its left, may end
//!    that: so whether L has taken the keys over is settled then, also where a client died that had begun to write L,
//!    since its lock comes with all that it had recorded. (R's lock alone tells nothing: it may be taken over before
//!    L's is.)
//! 2. L is written under its own lock and with its own intent, as by a split. Before that has come to its end, R stays
//!    frozen, whatever becomes of this client; if it has, R's keys are L's.
//! 3. Until P is written, readers come to R. A leaf tells them of L there; from an inner node they begin anew.
//!
//! ```text
//!   merger   WRITE R: frozen ✗ dies                               R's pairs are in R: it thaws
//!   merger   WRITE R: frozen, WRITE intent, WRITE L: half ✗ dies  L's lock comes with all of L: R is freed
//! ```
//!
//! A READ of R that came before 1 has what R had then, and nothing was in L of it. A scan that has read L before 2 and
//! R after 1 looks R's first key up, and finds it in L; one that has read L after 2 is beyond R. A copy of an inner
//! node that was R leads to children of the tree, as L does; nothing is written to R any more, since writers lock it
//! first.
//!
//! P has to lead to L and R, and behind R to where R ends, and to nothing between: no separator is missing there, and
//! none is left of a freed leaf. For that names the leaf before it as its heir:
//!
//! ```text
//!   P   .. K │ L │ F (freed, heir L) │ ..      if L went into K, F would lead to memory of another node
//! ```
//!
//! A separator that is not in P yet is no merge's: P has R's own. But a client that split R off may put it into P once
//! more, long after: one whose separator another client has put in (`repair.rs`). So R's memory waits until all
//! operations of that time have ended, and P is asked once more (`retired.rs`).
//!
//! A merge goes on: P may have few entries now, and so may L; and below L two nodes have become neighbours that had
//! two parents, one of which may have waited for that. The same janitor tries these, too. An inner node of which
//! another separator was taken out is noted as a leaf is.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};
use futures::future::join;

use super::format::Format;
use super::split::OldNode;
use super::{BTree, LeafFormat};
use crate::error::{AccessError, WriteError};
use crate::layout::Bytes;
use crate::shell::handle::Local;
use crate::shell::merging::{Attempt, MergeEnd, attempt_often};
use crate::step::Budget;

/// Two neighbours below one parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    level: u8,
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
    /// Pairs or entries of both.
    count: usize,
    /// The parent's entries without R.
    entries: Vec<(Bytes, RemotePtr)>,
}

/// Nodes that may have to be merged: a level, and a key of each.
type Work = Vec<(u8, Bytes)>;

/// Decides whether the nodes in these images, which are locked as their parent is, are merged; none if they are not.
fn plan<L: LeafFormat>(
    format: &Format<'_, L>,
    pair: Pair,
    (left, right, parent): (&[u8], &[u8], &[u8]),
) -> Option<Plan> {
    let (left, left_count) = format.fill(left).ok()?;
    let (right, right_count) = format.fill(right).ok()?;
    let parent = format.inner.view(parent).ok().filter(|parent| parent.header().level() == pair.level + 1)?;
    let (low, high, count) = (right.low(), right.high(), left_count + right_count);
    let are_neighbours = left.sibling() == pair.right && left.high().as_ref() == Some(&low);
    let mut entries = parent.sorted_entries().ok()?;
    let place = entries.binary_search_by(|(key, _)| key.cmp(&low)).ok().filter(|place| *place > 0)?;
    let are_linked = entries[place - 1..=place] == [(left.low(), pair.left), (low.clone(), pair.right)];
    let behind = entries.get(place + 1).map(|(key, _)| key.clone()).or_else(|| parent.header().high());
    if !are_neighbours || !are_linked || behind != high || !format.fits(count) {
        return None;
    }
    entries.remove(place);
    Some(Plan { low, high, sibling: right.sibling(), count, entries })
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Has the janitor merge the leaf of `key`, in which a remove has left so many pairs, if these are few. Where it
    /// has enough to do, this waits until an empty leaf is merged.
    #[inline]
    pub(crate) async fn note_removed(&self, leaf: RemotePtr, key: &[u8], pairs: usize) {
        if self.format(0).is_low(pairs)
            && let Some(end) = self.begin_merge(0, leaf, key, pairs == 0)
        {
            _ = end.await;
        }
    }

    /// Has the janitor merge the inner node of `key`, in which so many entries are left, if these are few.
    pub(super) fn note_taken_out(&self, level: u8, node: RemotePtr, key: &[u8], entries: usize) {
        if self.format(level).is_low(entries) {
            // Another merge has taken the entry out, or might have: there are no more of these than of those.
            drop(self.begin_merge(level, node, key, entries == 1));
        }
    }

    #[cold]
    fn begin_merge(&self, level: u8, node: RemotePtr, key: &[u8], is_last_call: bool) -> Option<MergeEnd> {
        let key = Bytes::from_slice(key);
        let merge = move |tree: Rc<Self>| {
            let key = key.clone();
            async move {
                let merged = tree.merge_around(level, key).await;
                tree.look_after_retired();
                merged
            }
        };
        self.merge_in_background(|tree| &tree.merges().merging, (node, is_last_call), merge)
    }

    /// Merges the node of `key` with a neighbour, if they fit and their locks can be had, and then those that may have
    /// to be merged because of that; yields whether it did the first. Each merge makes the tree a node smaller.
    async fn merge_around(self: &Rc<Self>, level: u8, key: Bytes) -> Result<bool, WriteError> {
        let (meter, mut more) = (Meter::default(), Work::new());
        let mut budget = self.budget();
        let attempt = async || self.try_merge(&meter, level, &key, &mut more, &mut budget).await;
        let merged = attempt_often(&self.verbs, attempt).await?;
        while let Some((level, key)) = more.pop() {
            let mut budget = self.budget();
            let attempt = async || self.try_merge(&meter, level, &key, &mut more, &mut budget).await;
            attempt_often(&self.verbs, attempt).await?;
        }
        Ok(merged)
    }

    /// Tries the node of `key` with its left neighbour, and then with the right one: one round trip for the parent, and
    /// one for each of the nodes before a lock is taken. A root has no parent: it may get lower.
    async fn try_merge(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        key: &[u8],
        more: &mut Work,
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let Some(parent) = self.locate_from_root(meter, key, level + 1, budget).await? else {
            self.lower_root(meter).await?;
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
            let pair = Pair { level, parent: parent.ptr, left: entries[left].1, right: entries[right].1 };
            match self.try_pair(meter, pair, more, budget).await? {
                Attempt::Merged => return Ok(Attempt::Merged),
                Attempt::Busy => attempt = Attempt::Busy,
                Attempt::Needless => {}
            }
        }
        Ok(attempt)
    }

    /// Merges two nodes, if they fit and the three locks can be had; adds those that may have to be merged then.
    async fn try_pair(
        self: &Rc<Self>,
        meter: &Meter,
        pair: Pair,
        more: &mut Work,
        budget: &mut Budget,
    ) -> Result<Attempt, WriteError> {
        let Pair { level, .. } = pair;
        let mut count = 0;
        for node in [pair.left, pair.right] {
            let image = self.read(meter, node, self.node_bytes(level), budget).await?;
            match self.format(level).fill(&image) {
                Ok((_, more)) => count += more,
                Err(_) => return Ok(Attempt::Busy),
            }
        }
        if !self.format(level).fits(count) {
            return Ok(Attempt::Needless);
        }
        let [left, right] = [pair.left, pair.right].map(|node| self.lock_word(level, node));
        let parent = self.locks.word_of(pair.parent);
        if left == right || right == parent || parent == left {
            tracing::debug!(name: "btree.merge.same_lock", "nodes are not merged that have one lock");
            return Ok(Attempt::Needless);
        }
        let (held, left) = self.lock_whole(meter, level, pair.left).await?;
        let Some((held_right, right)) = self.try_lock_whole(meter, level, pair.right).await? else {
            self.unlock(meter, held).await?;
            return Ok(Attempt::Busy);
        };
        let Some((held_parent, parent)) = self.try_lock_whole(meter, level + 1, pair.parent).await? else {
            self.unlock(meter, held).await?;
            self.unlock(meter, held_right).await?;
            return Ok(Attempt::Busy);
        };
        let planned = match plan(&self.format(level), pair, (&left, &right, &parent)) {
            Some(plan) => self.united(&plan, pair, [&left, &right])?.map(|united| (plan, united)),
            None => Err(Attempt::Busy),
        };
        match planned {
            Ok((plan, united)) => {
                more.extend(self.goes_on_with(level, &plan));
                self.merge(meter, level, plan, (held, united), (held_right, right), (held_parent, parent))
                    .await?;
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

    /// Yields the nodes that may have to be merged behind a merge, the lowest last.
    fn goes_on_with(&self, level: u8, plan: &Plan) -> impl Iterator<Item = (u8, Bytes)> + use<A, V> {
        let low = plan.low.clone();
        let is_parent_low = self.format(level + 1).is_low(plan.entries.len());
        let is_united_low = self.format(level).is_low(plan.count);
        let levels =
            [is_parent_low.then_some(level + 1), is_united_low.then_some(level), level.checked_sub(1)];
        levels.into_iter().flatten().map(move |level| (level, low.clone()))
    }

    /// Makes the image of the left node with all that is in both; if there is no room for it, says so.
    fn united(
        &self,
        plan: &Plan,
        pair: Pair,
        [left, right]: [&[u8]; 2],
    ) -> Result<Result<Buf, Attempt>, AccessError> {
        let (format, node) = (self.format(pair.level), pair.left);
        let corrupt = |rejection| AccessError::corrupt(node, rejection);
        let mut united = self.verbs.lease(left.len());
        let old = OldNode::of(&format.fill(left).map_err(corrupt)?.0);
        let header = old.united(plan.high.as_deref(), plan.sibling);
        if format.unite(&mut united, &header, [left, right]).map_err(corrupt)? {
            return Ok(Ok(united));
        }
        tracing::debug!(name: "btree.merge.no_room", %node, "what two nodes have finds no room in one");
        Ok(Err(Attempt::Needless))
    }

    /// Merges two nodes that are locked, as their parent is; the image of the left one has all that is in both.
    async fn merge(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        plan: Plan,
        (held, united): (Held<V>, Buf),
        (mut held_right, mut right): (Held<V>, Buf),
        (held_parent, parent): (Held<V>, Buf),
    ) -> Result<(), WriteError> {
        let (node, freed, bytes) = (held.node(), held_right.node(), united.len());
        let marked = self.format(level).freeze(&mut right);
        let mut chain = Chain::with_buffer(freed.server(), right);
        self.write_whole(&mut chain, level, freed, marked);
        let frozen = held_right.write(meter, chain).await.map_err(AccessError::from)?;
        right = frozen.expect("the node was in the chain's buffer");
        let mut chain = Chain::with_buffer(node.server(), united);
        self.write_whole(&mut chain, level, node, 0..bytes);
        match held.release(meter, chain, self.chains().combine).await {
            Ok(Some(united)) if level > 0 => self.cache_node(node, &united),
            Ok(_) => {}
            Err(error) => {
                // The janitor goes on, with L's lock: R is out of the tree, or will be, or thaws when it is met.
                tracing::debug!(name: "btree.merge.unknown", %freed, %error, "a merge may have taken effect, or will");
                self.allocator.retire_unsettled(freed, bytes as u64);
                return Err(AccessError::from(error).into());
            }
        }
        let marked = self.format(level).free(&mut right, node);
        let mut chain = Chain::with_buffer(freed.server(), right);
        self.write_whole(&mut chain, level, freed, marked);
        let (marked, unlinked) = join(
            held_right.release(meter, chain, true),
            self.rewrite_inner(meter, held_parent, parent, &plan.entries),
        )
        .await;
        match level {
            0 => {
                tracing::debug!(name: "btree.leaf.merged", %node, %freed, "a leaf is merged into its neighbour")
            }
            _ => tracing::debug!(name: "btree.inner.merged", %node, %freed, level, "an inner node is merged"),
        }
        if let Err(error) = marked {
            self.allocator.retire_unsettled(freed, bytes as u64);
            return Err(AccessError::from(error).into());
        }
        self.retire(level, freed, plan.low);
        Ok(unlinked?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{
        InnerLayout, LeafLayout, NodeHeader, NodeVersion, Rejection, freeze, heir_of, mark_freed,
    };
    use crate::shell::merging::{fits, is_low};

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
            let pair = Pair { level: 0, parent: node(9), left: node(1), right: node(2) };
            let [left, right, parent] = &self.images;
            let format = Format { level: 0, leaf: &self.leaf, inner: &self.inner };
            plan(&format, pair, (left, right, parent))
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
                let (high, sibling, count) = (Some(key(b"p")), node(7), left + right);
                assert_eq!(found, Plan { low: key(b"h"), high, sibling, count, entries });
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
        assert_eq!(
            plan(&[(b"b", 1), (b"d", 5), (b"h", 2), (b"p", 7)], 2, b"h"),
            None,
            "a freed leaf is linked"
        );
        assert_eq!(plan(&[(b"b", 5), (b"h", 2), (b"p", 7)], 2, b"h"), None, "the left leaf is not");
        assert_eq!(
            plan(&[(b"b", 1), (b"h", 2), (b"k", 5), (b"p", 7)], 2, b"h"),
            None,
            "one is linked behind"
        );
        assert_eq!(plan(&[(b"b", 1), (b"h", 2)], 2, b"h"), None, "the parent ends elsewhere");
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

    /// Inner nodes of three slots: such ones with one entry each are merged, and no others.
    #[test]
    fn inner_nodes_are_merged_as_leaves_are() {
        let (leaf, inner) = (LeafLayout::for_slots(5, 4, 4).unwrap(), InnerLayout::for_slots(3, 4).unwrap());
        let format = Format { level: 1, leaf: &leaf, inner: &inner };
        let build = |header: &NodeHeader<'_>, entries: &[(&[u8], u64)]| {
            let mut image = vec![0; inner.node_bytes()];
            inner.build(&mut image, header, entries.iter().map(|(key, child)| (*key, node(*child))));
            image
        };
        let left = build(&header(1, b"b", Some(b"h"), 2), &[(b"b", 21)]);
        let one = build(&header(1, b"h", Some(b"p"), 7), &[(b"h", 22)]);
        let two = build(&header(1, b"h", Some(b"p"), 7), &[(b"h", 22), (b"k", 23)]);
        let parent = build(&header(2, b"b", Some(b"p"), 8), &[(b"b", 1), (b"h", 2)]);
        let pair = Pair { level: 1, parent: node(9), left: node(1), right: node(2) };
        assert_eq!(plan(&format, pair, (&left, &two, &parent)), None);
        let plan = plan(&format, pair, (&left, &one, &parent)).unwrap();
        assert_eq!((plan.count, plan.entries), (2, vec![(Bytes::from_slice(b"b"), node(1))]));
        assert!(format.is_low(1) && !format.is_low(2), "a half is not low");
        let mut united = vec![0; inner.node_bytes()];
        assert!(format.unite(&mut united, &header(1, b"b", Some(b"p"), 7), [&left, &one]).unwrap());
        let entries = [(b"b", 21), (b"h", 22)].map(|(key, child)| (Bytes::from_slice(key), node(child)));
        assert_eq!(inner.view(&united).unwrap().sorted_entries(), Ok(entries.into()));
        let mut gone = one.clone();
        for (mark, rejection) in [(0, Rejection::Frozen), (1, Rejection::Freed)] {
            match mark {
                0 => _ = format.freeze(&mut gone),
                _ => _ = format.free(&mut gone, node(1)),
            }
            assert_eq!(format.low_of(&gone), Some((Bytes::from_slice(b"h"), rejection)));
            assert!(format.fill(&gone).is_err() && heir_of(&gone).is_none());
        }
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
