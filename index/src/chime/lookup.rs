//! Looking a key up (CHIME section 4.4, "Search"): one READ of its neighbourhood, or of the entry alone where it was
//! met before; no lock. It does not know how a leaf is written.
//!
//! Of an indirect leaf the block is a second READ. What it has is in `btree/blocks.rs`: what an entry says of a block
//! is as good as what it says of a key, and a block is torn or the key's, whatever has become of the entry meanwhile.
//! If the block is another key's, the entry was none of the key's, and the neighbourhood is judged without it.
//!
//! # What a neighbourhood proves
//!
//! A key that is in it is in the leaf, whatever its fences are: a key leaves its leaf by a node write, whose lines
//! arrive in any order, but other clients reach its new leaf only after *its* lines have come:
//!
//! ```text
//!   split of A   WRITE A: line of j's neighbourhood arrives ·························· line of k's
//!   client 1                      k: absent there? no: it still reads k in A            |
//!   client 2                      j: not in A, sibling A': goes there, for j only       |
//!   client 3                                                       k: not in A: goes to A' -> updates k there
//! ```
//!
//! A key that is not in it is absent if the leaf answers for it: its sibling is the one that the parent has behind it,
//! which still begins where it did then, so this one ends there. For an address is one leaf's for as long as any copy
//! of a parent has it, and a leaf's low fence never changes; one that was merged answers for nothing. If the parent
//! does not say, or says something else, the fences tell, in a READ of the header with the neighbourhood.
//!
//! ```text
//!   merged, memory used at once    A ─> C ─> D    C goes into A    A is split elsewhere: A' ─> C' ─> D
//!   client with the parent of then                       A has the sibling C: "a key of C' is in A, or absent"
//! ```
//!
//! The entry of a hotspot is believed alone. It is in the leaf as long as it is present: a merge takes that from all
//! entries before the keys are the other leaf's.
//!
//! And only if no two writes of the leaf lie within the READ ([`HopLayout::lookup`]). After a READ that took longer the
//! client reads again: if all versions are those of before, and no entry was written so often meanwhile that its
//! version came back, then what both have read was there between them.

use std::rc::Rc;

use farwood_runtime::{Chain, Completion, Failed, Meter, RemotePtr, Verbs};

use super::Tree;
use crate::btree::descend::{RightEdge, Target};
use crate::btree::node::RETRIES_BEFORE_LOCK;
use crate::error::AccessError;
use crate::layout::hopscotch::{HopFound, HopLayout, Neighbourhood, Versions, WRITES_THAT_HIDE};
use crate::layout::{EntryVersion, LineRanges, Malformed, Position, Rejection, kind_of};
use crate::step::{Budget, SlowReads, Step};
use crate::value::Value;

/// Conclusion for a key from its neighbourhood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Found(HopFound),
    Absent,
    /// Absent, unless writes between the lines of the READ hide it.
    PerhapsAbsent,
    /// The fences say whether this leaf answers for the key.
    Doubt,
    /// Another step, as for all nodes.
    Go(Step<()>),
}

/// Decides what a neighbourhood says of a key, whose leaf has the right neighbour `next` if it has not been split.
/// `noticed` tells of a number of writes whether they took longer than the READ.
#[inline]
pub(super) fn judge(
    seen: Result<Neighbourhood, Rejection>,
    next: Option<RemotePtr>,
    noticed: impl Fn(u32) -> bool,
) -> Verdict {
    let Neighbourhood { found, sibling, position } = match seen {
        Ok(seen) => seen,
        Err(rejection) => return Verdict::Go(Step::after(rejection)),
    };
    if let Some(found) = found {
        return if !found.spans_lines || noticed(EntryVersion::COUNT) {
            Verdict::Found(found)
        } else {
            Verdict::Go(Step::Reread(Some(Rejection::Slow)))
        };
    }
    let in_time = noticed(WRITES_THAT_HIDE);
    match position {
        Some(Position::Left) => Verdict::Go(Step::Restart(None)),
        Some(Position::Right) if sibling.is_null() => Verdict::Go(Step::after(Malformed::NoSibling.into())),
        // The node's version tells of splits, and has more values than writes of entries have.
        Some(Position::Right) if noticed(EntryVersion::COUNT) => Verdict::Go(Step::MoveRight(sibling)),
        Some(Position::Right) => Verdict::Go(Step::Reread(Some(Rejection::Slow))),
        None if next != Some(sibling) => Verdict::Doubt,
        _ if in_time => Verdict::Absent,
        _ => Verdict::PerhapsAbsent,
    }
}

/// A neighbourhood that was read too slowly to prove that the key is absent.
struct Seen {
    leaf: RemotePtr,
    versions: Versions,
    /// When its READ was posted.
    since_ns: u64,
}

impl Seen {
    /// Tells whether `later`, whose READ ended at `now_ns`, brought the versions of this one, so soon that none can
    /// have come back meanwhile: within `bound_ns`.
    fn is_unchanged_in(&self, later: &Seen, now_ns: u64, bound_ns: u64) -> bool {
        (self.leaf, &self.versions) == (later.leaf, &later.versions) && now_ns - self.since_ns < bound_ns
    }
}

impl<V: Verbs> Tree<V> {
    pub(super) async fn lookup(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
    ) -> Result<Option<Value>, AccessError> {
        let (mut budget, hash) = (self.budget(), HopLayout::hash(key));
        let Some(at) = self.locate_leaf(meter, key, &mut budget).await? else { return Ok(None) };
        match self.speculate(meter, key, hash, at.ptr, &mut budget).await? {
            Some(value) => Ok(Some(value)),
            None => self.lookup_from(meter, (key, hash), at, budget).await,
        }
    }

    /// Looks a key with that hash up in neighbourhoods, from the leaf `at` on.
    async fn lookup_from(
        self: &Rc<Self>,
        meter: &Meter,
        (key, hash): (&[u8], u64),
        mut at: Target,
        mut budget: Budget,
    ) -> Result<Option<Value>, AccessError> {
        let (layout, home) = (self.leaf(), self.leaf().home_of_hash(hash));
        let (mut slow, mut rereads, mut before, mut in_doubt) = (SlowReads::default(), 0, None, false);
        let without_it = loop {
            let has_header = in_doubt || self.needs_header(&at);
            let read = match self.read_neighbourhood(meter, at.ptr, home, has_header).await {
                Ok(read) => read,
                Err(failed) => {
                    self.read_again(meter, at.ptr, failed, &mut budget)?;
                    continue;
                }
            };
            let (span_ns, buf) = (read.span_ns, read.into_buf());
            let noticed = |writes| u64::from(span_ns) < self.version_bound(0, writes);
            let mut verdict = judge(layout.lookup(&buf, key, has_header), at.next, noticed);
            if self.is_in_block(verdict) {
                match self.judge_block(meter, (&buf, has_header), key, at.next, noticed, &mut budget).await? {
                    Ok(value) => return Ok(Some(value)),
                    Err(other) => verdict = other,
                }
            }
            if verdict == Verdict::PerhapsAbsent
                && !self.is_unchanged(&mut before, at.ptr, layout.versions(&buf, home), span_ns)
            {
                verdict = Verdict::Go(Step::Reread(Some(Rejection::Slow)));
            }
            match verdict {
                Verdict::Found(found) => {
                    self.note_hotspot(at.ptr, hash, found.slot);
                    return Ok(Some(Value::in_node(buf, found.value)));
                }
                Verdict::Absent | Verdict::PerhapsAbsent => break buf,
                Verdict::Doubt => {
                    tracing::debug!(name: "chime.leaf.doubt", node = %at.ptr, "a leaf's sibling is not the parent's");
                    budget.spend(meter, at.ptr, None)?;
                    in_doubt = true;
                }
                Verdict::Go(Step::MoveRight(sibling)) => {
                    let edge = RightEdge { high: || layout.high(&buf, home, has_header), sibling };
                    at = self.move_right(meter, key, at, edge, &mut budget).await?;
                    in_doubt = false;
                }
                Verdict::Go(Step::Restart(last)) => {
                    at = self.begin_anew(meter, key, at, last, &mut budget).await?;
                    in_doubt = false;
                }
                Verdict::Go(Step::Reread(last)) => {
                    budget.spend(meter, at.ptr, last)?;
                    rereads += 1;
                    let lock = last == Some(Rejection::Slow) && self.pause_or_lock(&mut slow).await;
                    if lock || rereads > RETRIES_BEFORE_LOCK {
                        return self.lookup_locked(meter, key, at).await;
                    }
                }
                Verdict::Go(Step::Done(())) => unreachable!("a verdict says what is done"),
            }
        };
        if in_doubt {
            self.check_parent(meter, key, at, &without_it).await?;
        }
        Ok(None)
    }

    /// Goes down from the root again, after a leaf that should answer for `key` turned out to be another one; or on
    /// from there, if it is being merged, or was.
    pub(super) async fn begin_anew(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        at: Target,
        last: Option<Rejection>,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        if let Some(Rejection::Freed | Rejection::Frozen) = last {
            return self.leave_gone(meter, key, at, budget).await;
        }
        budget.spend(meter, at.ptr, last)?;
        self.invalidate_cached(at, key);
        let root = self.restart(meter, at.ptr).await?;
        self.descend(meter, key, 0, root, budget).await
    }

    /// Goes on from a leaf that a replica says is frozen or freed: which of them, and what has its keys, is in the
    /// header. One round trip for that.
    #[cold]
    async fn leave_gone(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        at: Target,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        let image = self.read(meter, at.ptr, self.leaf().node_bytes(), budget).await?;
        match kind_of(&image) {
            Err(gone @ (Rejection::Freed | Rejection::Frozen)) => {
                Box::pin(self.leave_freed(meter, key, at, (&image, gone), budget)).await
            }
            // It has thawed.
            _ => budget.spend(meter, at.ptr, Some(Rejection::Frozen)).map(|()| at),
        }
    }

    /// Looks a key up under the leaf's lock, so that what is read cannot be torn.
    #[cold]
    async fn lookup_locked(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        mut at: Target,
    ) -> Result<Option<Value>, AccessError> {
        tracing::debug!(name: "chime.read.locked", node = %at.ptr, "a reader takes the lock");
        let mut budget = self.budget();
        let (layout, home) = (self.leaf(), self.leaf().home(key));
        let parts = layout.with_header(&layout.neighbourhood(home));
        loop {
            let (held, buf) = self.lock_leaf(meter, at.ptr, &parts).await?;
            let mut verdict = judge(layout.lookup(&buf, key, true), at.next, |_| true);
            if self.is_in_block(verdict) {
                let image = (&buf, true);
                match self.judge_block(meter, image, key, at.next, |_| true, &mut budget).await? {
                    Ok(value) => {
                        self.unlock(meter, held).await?;
                        return Ok(Some(value));
                    }
                    Err(other) => verdict = other,
                }
            }
            self.unlock(meter, held).await?;
            match verdict {
                Verdict::Found(found) => return Ok(Some(Value::in_node(buf, found.value))),
                Verdict::Absent => return Ok(None),
                Verdict::Go(Step::MoveRight(sibling)) => {
                    let edge = RightEdge { high: || layout.high(&buf, home, true), sibling };
                    at = self.move_right(meter, key, at, edge, &mut budget).await?;
                }
                Verdict::Go(Step::Reread(last) | Step::Restart(last)) => {
                    at = self.begin_anew(meter, key, at, last, &mut budget).await?;
                }
                Verdict::PerhapsAbsent | Verdict::Doubt | Verdict::Go(Step::Done(())) => {
                    unreachable!("the fences were read, under the lock")
                }
            }
        }
    }

    /// Tells whether an entry was found whose block has to be read to know its key.
    fn is_in_block(&self, verdict: Verdict) -> bool {
        matches!(verdict, Verdict::Found(_)) && self.leaf().blocks().is_some()
    }

    /// Reads the entry alone where the key was met last (section 4.3), if it is a hotspot, of which there are none
    /// without `speculative`: one round trip, for nothing if it is not there any more.
    #[inline]
    async fn speculate(
        &self,
        meter: &Meter,
        key: &[u8],
        hash: u64,
        leaf: RemotePtr,
        budget: &mut Budget,
    ) -> Result<Option<Value>, AccessError> {
        let layout = self.leaf();
        let Some(slot) =
            self.hotspots().find(leaf.to_bits(), hash).filter(|slot| *slot < layout.ring().slots)
        else {
            return Ok(None);
        };
        let range = layout.entry_range(slot);
        let mut chain = Chain::with_buffer(leaf.server(), self.verbs.lease(layout.node_bytes()));
        chain.read(leaf.add(range.start as u64), range);
        let read = match self.verbs.submit(meter, chain).await {
            Ok(read) => read,
            Err(failed) => {
                self.read_again(meter, leaf, failed, budget)?;
                return Ok(None);
            }
        };
        let in_time = u64::from(read.span_ns) < self.version_bound(0, EntryVersion::COUNT);
        let buf = read.into_buf();
        let found = layout.lookup_slot(&buf, key, slot);
        let is_right = matches!(found, Ok(Some(found)) if !found.spans_lines || in_time);
        self.state.count_speculation(is_right);
        match found {
            Ok(Some(found)) if is_right => {
                self.note_hotspot(leaf, hash, slot);
                Ok(Some(Value::in_node(buf, found.value)))
            }
            Ok(None) => {
                tracing::debug!(name: "chime.speculation.wrong", node = %leaf, "a hotspot is not where it was");
                self.hotspots().missed(leaf.to_bits(), hash);
                budget.spend(meter, leaf, None)?;
                Ok(None)
            }
            // Torn, or read too slowly: the neighbourhood tells.
            found => {
                budget.spend(meter, leaf, found.err())?;
                Ok(None)
            }
        }
    }

    /// Notes where a key was met, if gets look there. Hotspots may take as much memory as the cached nodes.
    #[inline]
    pub(super) fn note_hotspot(&self, leaf: RemotePtr, hash: u64, slot: usize) {
        if self.techniques.speculative && self.hotspots().met(leaf.to_bits(), hash, slot) {
            self.hotspots().grow(self.shared.state.tree.cache_bytes());
        }
    }

    /// Tells whether a client reads the header of a leaf with the neighbourhood: replicas without fences tell nothing
    /// where the parent does not say what is behind the leaf.
    pub(super) fn needs_header(&self, at: &Target) -> bool {
        !self.techniques.replicas || self.techniques.sibling_validation && at.next.is_none()
    }

    /// Notes that the leaf in `image`, which answers for `key` and whose header was read, was split, if what led to it
    /// has another leaf behind it. Else all operations on keys that are left of the split read the header, as long as
    /// the cached parent stays.
    pub(super) async fn check_parent(
        &self,
        meter: &Meter,
        key: &[u8],
        at: Target,
        image: &[u8],
    ) -> Result<(), AccessError> {
        let (layout, home) = (self.leaf(), self.leaf().home(key));
        let sibling = layout.sibling(image, home);
        if at.next.is_none_or(|next| next == sibling) {
            return Ok(());
        }
        let edge = RightEdge { high: || layout.high(image, home, true), sibling };
        self.note_split(meter, key, at, edge).await
    }

    /// Reads a neighbourhood, and the header if wanted. One round trip.
    fn read_neighbourhood(
        &self,
        meter: &Meter,
        leaf: RemotePtr,
        home: usize,
        with_header: bool,
    ) -> impl Future<Output = Result<Completion, Failed>> {
        let layout = self.leaf();
        let mut parts: LineRanges = layout.neighbourhood(home);
        if with_header {
            parts = layout.with_header(&parts);
        }
        let mut chain = Chain::with_buffer(leaf.server(), self.verbs.lease(layout.node_bytes()));
        for part in parts {
            chain.read(leaf.add(part.start as u64), part);
        }
        self.verbs.submit(meter, chain)
    }

    /// Tells whether a READ of this leaf, which has just ended, brought the versions of the one before, and none can
    /// have come back meanwhile. It is the one before for the next.
    fn is_unchanged(
        &self,
        before: &mut Option<Seen>,
        leaf: RemotePtr,
        versions: Versions,
        span_ns: u32,
    ) -> bool {
        let now_ns = self.verbs.now();
        let bound_ns = self.version_bound(0, EntryVersion::COUNT);
        let seen = Seen { leaf, versions, since_ns: now_ns - u64::from(span_ns) };
        let is_unchanged =
            before.as_ref().is_some_and(|before| before.is_unchanged_in(&seen, now_ns, bound_ns));
        *before = Some(seen);
        if is_unchanged {
            tracing::debug!(name: "chime.read.twice", "two slow READs brought the same versions");
        }
        is_unchanged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::hopscotch::Ring;
    use crate::layout::{NodeHeader, NodeVersion};

    const SIBLING: RemotePtr = RemotePtr::from_bits(640);

    fn seen(position: Option<Position>) -> Result<Neighbourhood, Rejection> {
        Ok(Neighbourhood { found: None, sibling: SIBLING, position })
    }

    #[test]
    fn an_absent_key_needs_a_leaf_that_answers_for_it() {
        let other = Some(RemotePtr::from_bits(704));
        for (position, next, verdict) in [
            (None, Some(SIBLING), Verdict::Absent),
            (None, other, Verdict::Doubt),
            (None, None, Verdict::Doubt),
            (Some(Position::Here), other, Verdict::Absent),
            (Some(Position::Right), Some(SIBLING), Verdict::Go(Step::MoveRight(SIBLING))),
            (Some(Position::Left), Some(SIBLING), Verdict::Go(Step::Restart(None))),
        ] {
            assert_eq!(judge(seen(position), next, |_| true), verdict, "{position:?} {next:?}");
        }
        let last = Neighbourhood { found: None, sibling: RemotePtr::NULL, position: Some(Position::Right) };
        assert!(matches!(judge(Ok(last), None, |_| true), Verdict::Go(Step::Reread(Some(_)))));
    }

    #[test]
    fn two_reads_prove_an_absence_if_no_version_can_have_come_back() {
        let read = |leaf, version, since_ns| {
            let versions = Versions::from_slice(&[7, version]);
            Seen { leaf: RemotePtr::from_bits(leaf), versions, since_ns }
        };
        let before = read(64, 3, 1_000);
        for (later, now_ns, is_unchanged) in [
            (read(64, 3, 1_400), 1_499, true),
            (read(64, 3, 1_400), 1_500, false),
            (read(64, 3, 900_000), 1_000_000, false),
            (read(64, 4, 1_400), 1_499, false),
            (read(128, 3, 1_400), 1_499, false),
        ] {
            assert_eq!(before.is_unchanged_in(&later, now_ns, 500), is_unchanged, "{now_ns}");
        }
    }

    fn found_in_a_leaf() -> HopFound {
        let layout = HopLayout::new(Ring { slots: 2, reach: 2 }, 2, 2, false).unwrap();
        let header = NodeHeader {
            level: 0,
            low: b"",
            high: None,
            sibling: SIBLING,
            incarnation: 1,
            node_version: NodeVersion::default(),
        };
        let mut image = vec![0; layout.node_bytes()];
        layout.build(&mut image, &header, [(&b"a"[..], &b"1"[..])]);
        layout.lookup(&image, b"a", false).unwrap().found.unwrap()
    }

    #[test]
    fn slow_reads_prove_what_is_in_one_line() {
        let slow = |_| false;
        let found = |spans_lines| {
            let found = HopFound { spans_lines, ..found_in_a_leaf() };
            (Ok(Neighbourhood { found: Some(found), sibling: SIBLING, position: None }), found)
        };
        let again = Verdict::Go(Step::Reread(Some(Rejection::Slow)));
        let (one_line, value) = found(false);
        assert_eq!(judge(one_line, None, slow), Verdict::Found(value));
        assert_eq!(judge(found(true).0, None, slow), again);
        assert_eq!(judge(seen(None), Some(SIBLING), slow), Verdict::PerhapsAbsent);
        assert_eq!(judge(seen(Some(Position::Right)), None, slow), again);
        // Short enough for versions of entries, too long for hops.
        assert_eq!(judge(seen(None), Some(SIBLING), |writes| writes > 2), Verdict::PerhapsAbsent);
        assert_eq!(judge(Err(Rejection::Torn), None, slow), Verdict::Go(Step::Reread(Some(Rejection::Torn))));
    }
}
