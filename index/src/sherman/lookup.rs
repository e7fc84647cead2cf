//! Looking a key up (Sherman section 4.4, "Lookup operation"): one READ of one leaf, no lock.

use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::Target;
use crate::error::IndexError;
use crate::layout::{Found, LeafLookup, Rejection};
use crate::step::Step;
use crate::value::Value;

/// After so many retries a reader takes the leaf's lock, under which nothing can be torn. Far beyond what happens in
/// practice; it bounds reading on a machine so slow that every read exceeds the time its versions vouch for.
pub(super) const RETRIES_BEFORE_LOCK: u32 = 64;

impl<V: Verbs> Tree<V> {
    pub(super) async fn lookup(&self, meter: &Meter, key: &[u8]) -> Result<Option<Value>, IndexError> {
        let mut budget = self.budget();
        let Some(mut at) = self.locate_leaf(meter, key, &mut budget).await? else { return Ok(None) };
        loop {
            let read = self.verbs.read(meter, at.ptr, self.leaf().node_bytes()).await?;
            let span_ns = read.span_ns;
            let buf = read.into_buf();
            match self.decide_lookup(self.leaf().lookup(&buf, key), span_ns) {
                Step::Done(found) => return Ok(found.map(|found| Value::in_node(buf, found.value))),
                Step::MoveRight(sibling) => {
                    at = self.move_right(meter, key, at, sibling, &mut budget).await?;
                }
                Step::Reread(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    if budget.spent() > RETRIES_BEFORE_LOCK {
                        return self.lookup_locked(meter, key, at).await;
                    }
                }
                Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    self.forget(at, key);
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, key, 0, root, &mut budget).await?;
                }
            }
        }
    }

    /// The same under the leaf's lock, so that what is read cannot be torn.
    async fn lookup_locked(
        &self,
        meter: &Meter,
        key: &[u8],
        mut at: Target,
    ) -> Result<Option<Value>, IndexError> {
        let mut budget = self.budget();
        loop {
            let buf = self.read_leaf_locked(meter, at.ptr).await?;
            match self.decide_lookup(self.leaf().lookup(&buf, key), 0) {
                Step::Done(found) => return Ok(found.map(|found| Value::in_node(buf, found.value))),
                Step::MoveRight(sibling) => {
                    at = self.move_right(meter, key, at, sibling, &mut budget).await?;
                }
                Step::Reread(last) | Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    let root = self.restart(meter, at.ptr).await?;
                    at = self.descend(meter, key, 0, root, &mut budget).await?;
                }
            }
        }
    }

    /// A leaf's image, read while nobody can write it.
    pub(super) async fn read_leaf_locked(&self, meter: &Meter, leaf: RemotePtr) -> Result<Buf, IndexError> {
        let (held, image) = self.lock_leaf(meter, leaf).await?;
        self.unlock(meter, held).await?;
        Ok(image)
    }

    /// What an image that took `span_ns` to read says.
    #[inline]
    fn decide_lookup(&self, lookup: Result<LeafLookup, Rejection>, span_ns: u32) -> Step<Option<Found>> {
        if !self.node_version_holds(span_ns) {
            return Step::Reread(None);
        }
        match lookup {
            Ok(LeafLookup::Found(found)) if found.spans_lines && !self.entry_version_holds(span_ns) => {
                Step::Reread(None)
            }
            Ok(LeafLookup::Found(found)) => Step::Done(Some(found)),
            Ok(LeafLookup::Absent) => Step::Done(None),
            Ok(LeafLookup::MoveRight(sibling)) => Step::MoveRight(sibling),
            Ok(LeafLookup::Left) => Step::Restart(None),
            Err(rejection) => Step::after(rejection),
        }
    }
}
