//! Looking a key up (Sherman section 4.4, "Lookup operation"): one READ of one leaf, no lock.

use std::rc::Rc;

use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::{ShermanAlgorithm, Tree};
use crate::btree::BTree;
use crate::btree::descend::{RightEdge, Target};
use crate::btree::node::RETRIES_BEFORE_LOCK;
use crate::error::AccessError;
use crate::layout::{Bytes, Found, LeafLookup, Rejection};
use crate::step::{Budget, SlowReads, Step};
use crate::value::Value;

/// The way a lookup goes on after a READ that took too long.
enum Again {
    /// With the key's value.
    Found(Value),
    /// By reading the leaf.
    Leaf,
    /// By reading it under its lock.
    Locked,
}

impl<V: Verbs> Tree<V> {
    pub(super) async fn lookup(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
    ) -> Result<Option<Value>, AccessError> {
        let mut budget = self.budget();
        let mut slow = SlowReads::default();
        let mut rereads = 0;
        let Some(mut at) = self.locate_leaf(meter, key, &mut budget).await? else { return Ok(None) };
        loop {
            let read = match self.verbs.read(meter, at.ptr, self.leaf().node_bytes()).await {
                Ok(read) => read,
                Err(failed) => {
                    self.read_again(meter, at.ptr, failed, &mut budget)?;
                    continue;
                }
            };
            let span_ns = read.span_ns;
            let buf = read.into_buf();
            match self.decide_lookup(self.leaf().lookup(&buf, key), span_ns) {
                Step::Done(found) => return Ok(found.map(|found| Value::in_node(buf, found.value))),
                Step::MoveRight(sibling) => {
                    at = self.move_right(meter, key, at, self.edge_of(&buf, sibling), &mut budget).await?;
                }
                Step::Reread(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    rereads += 1;
                    let again = if last == Some(Rejection::Slow) {
                        self.after_slow_read(meter, key, at.ptr, (&buf, span_ns), &mut slow, &mut budget)
                            .await?
                    } else {
                        Again::Leaf
                    };
                    match again {
                        Again::Found(value) => return Ok(Some(value)),
                        Again::Leaf if rereads <= RETRIES_BEFORE_LOCK => {}
                        _ => return self.lookup_locked(meter, key, at).await,
                    }
                }
                Step::Restart(Some(gone @ (Rejection::Freed | Rejection::Frozen))) => {
                    let gone = (&buf[..], gone);
                    at = Box::pin(self.leave_freed(meter, key, at, gone, &mut budget)).await?;
                }
                Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    self.invalidate_cached(at, key);
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, key, 0, root, &mut budget).await?;
                }
            }
        }
    }

    /// Pauses and reads again after a READ of `leaf` that took `span_ns`, too long for what it has found. Of an entry
    /// whose own version is in doubt it reads only the lines with its versions, until a READ is quick enough; one round
    /// trip each. READs take long where many bytes are queued before them: most of these would be retries if every
    /// reader in doubt asked for whole leaves.
    #[cold]
    async fn after_slow_read(
        &self,
        meter: &Meter,
        key: &[u8],
        leaf: RemotePtr,
        (image, span_ns): (&[u8], u32),
        slow: &mut SlowReads,
        budget: &mut Budget,
    ) -> Result<Again, AccessError> {
        let slot = match self.leaf().lookup(image, key) {
            Ok(LeafLookup::Found(found)) if self.node_version_holds(0, span_ns) => found.slot,
            _ if self.pause_or_lock(slow).await => return Ok(Again::Locked),
            _ => return Ok(Again::Leaf),
        };
        let layout = self.leaf();
        while !self.pause_or_lock(slow).await {
            let mut chain = Chain::with_buffer(leaf.server(), self.verbs.lease(layout.node_bytes()));
            for lines in layout.lines_of(slot) {
                chain.read(leaf.add(lines.start as u64), lines);
            }
            let read = match self.verbs.submit(meter, chain).await {
                Ok(read) => read,
                Err(failed) => {
                    self.read_again(meter, leaf, failed, budget)?;
                    continue;
                }
            };
            let span_ns = read.span_ns;
            let buf = read.into_buf();
            match self.decide_lookup(layout.lookup_slot(&buf, key, slot), span_ns) {
                Step::Done(Some(found)) => {
                    tracing::debug!(name: "sherman.read.entry", "an entry was read again without its leaf");
                    return Ok(Again::Found(Value::in_node(buf, found.value)));
                }
                Step::Reread(last) => {
                    budget.spend(meter, leaf, last)?;
                    if last != Some(Rejection::Slow) {
                        return Ok(Again::Leaf);
                    }
                }
                // It was removed or moved: the whole leaf knows.
                _ => return Ok(Again::Leaf),
            }
        }
        Ok(Again::Locked)
    }

    /// Looks a key up under the leaf's lock, so that what is read cannot be torn.
    async fn lookup_locked(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        mut at: Target,
    ) -> Result<Option<Value>, AccessError> {
        let mut budget = self.budget();
        loop {
            let (buf, _) = ShermanAlgorithm::read_leaf_locked(self, meter, at.ptr).await?;
            match self.decide_lookup(self.leaf().lookup(&buf, key), 0) {
                Step::Done(found) => return Ok(found.map(|found| Value::in_node(buf, found.value))),
                Step::MoveRight(sibling) => {
                    at = self.move_right(meter, key, at, self.edge_of(&buf, sibling), &mut budget).await?;
                }
                Step::Restart(Some(gone @ (Rejection::Freed | Rejection::Frozen))) => {
                    let gone = (&buf[..], gone);
                    at = Box::pin(self.leave_freed(meter, key, at, gone, &mut budget)).await?;
                }
                Step::Reread(last) | Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, key, 0, root, &mut budget).await?;
                }
            }
        }
    }

    /// Yields the right edge of the leaf in `image`, which has `sibling` behind it.
    pub(super) fn edge_of<'a>(
        &'a self,
        image: &'a [u8],
        sibling: RemotePtr,
    ) -> RightEdge<impl FnOnce() -> Option<Bytes> + 'a> {
        RightEdge { high: || self.leaf().view(image).ok().and_then(|leaf| leaf.header().high()), sibling }
    }

    /// Decides what follows from an image that took `span_ns` to read.
    #[inline]
    fn decide_lookup(&self, lookup: Result<LeafLookup, Rejection>, span_ns: u32) -> Step<Option<Found>> {
        if !self.node_version_holds(0, span_ns) {
            return Step::Reread(Some(Rejection::Slow));
        }
        match lookup {
            Ok(LeafLookup::Found(found)) if found.spans_lines && !self.entry_version_holds(0, span_ns) => {
                Step::Reread(Some(Rejection::Slow))
            }
            Ok(LeafLookup::Found(found)) => Step::Done(Some(found)),
            Ok(LeafLookup::Absent) => Step::Done(None),
            Ok(LeafLookup::MoveRight(sibling)) => Step::MoveRight(sibling),
            Ok(LeafLookup::Left) => Step::Restart(None),
            Err(rejection) => Step::after(rejection),
        }
    }
}
