//! Looking a key up: one READ of a leaf's keys and one of its values, in one chain, no lock.
//!
//! ```text
//!   split    WRITE right leaf     WRITE left leaf, unlock     slot above
//!   get a                                                               READ right: it is there
//!   get b                      READ left: it is there         READ left: it ends before the key ── READ right
//! ```
//!
//! A leaf that has answered for its key is the key's at some moment of the READ: its bounds, its keys and NV are of one
//! write of the whole leaf, or else it is torn, and is read again. NV wraps: a READ that takes longer than the fastest
//! wrap is made again, after pauses, and in the end under a shared lock.

use farwood_runtime::{Buf, Chain, Completion, Meter, RemotePtr, Verbs};

use super::Tree;
use super::descend::Located;
use super::freed::Gone;
use super::write::leave;
use crate::error::AccessError;
use crate::layout::radix::{Child, Symbol};
use crate::layout::range_leaf::RangeFound;
use crate::layout::{NodeVersion, Rejection, wrap_ns};
use crate::step::{Budget, SlowReads, Step};
use crate::value::Value;

/// READs of a leaf that found no whole one, before a reader asks for its lock.
const RETRIES_BEFORE_LOCK: u32 = 8;

/// The leaf of a key.
pub(super) enum Sought {
    /// The leaf, with its image and what that says of the key, for which it answers.
    Leaf { leaf: Child, image: Buf, found: RangeFound },
    /// There is none. The next symbol of the root that has leaves, if there is any.
    Nothing(Option<Symbol>),
}

impl<V: Verbs> Tree<V> {
    pub(super) async fn lookup(&self, meter: &Meter, key: &[u8]) -> Result<Option<Value>, AccessError> {
        let sought = self.seek(meter, key).await?;
        let Sought::Leaf { mut image, found: RangeFound::Slot { slot, is_present: true }, .. } = sought
        else {
            return Ok(None);
        };
        match self.leaf().value_in_place(&mut image, slot) {
            Ok(range) => Ok(Some(Value::at(image, range))),
            Err(rejection) => Err(AccessError::corrupt(self.shared.entry.root, rejection)),
        }
    }

    /// Reads the leaf that answers for `key`.
    pub(super) async fn seek(&self, meter: &Meter, key: &[u8]) -> Result<Sought, AccessError> {
        let mut budget = self.budget();
        let budget = &mut budget;
        let mut located = self.locate(meter, key, budget).await?;
        loop {
            let place = match located {
                Located::Leaf(place) => place,
                Located::Nothing(next) => return Ok(Sought::Nothing(next)),
            };
            let image = match self.read_leaf(meter, place.leaf, budget).await? {
                Ok(image) => image,
                Err(gone) => {
                    located = Box::pin(self.leave_gone(meter, key, &place, gone, budget)).await?;
                    continue;
                }
            };
            let view = self.leaf().parsed(&image);
            let found = view.find(key);
            if let RangeFound::Slot { .. } | RangeFound::Absent { .. } = found {
                let leaf = place.leaf;
                self.arrived(place);
                return Ok(Sought::Leaf { leaf, image, found });
            }
            let bounds = view.bounds();
            located = self.elsewhere(meter, key, &place, (found, bounds), budget).await?;
        }
    }

    /// Reads a leaf that is whole, or finds it frozen or freed.
    ///
    /// # Errors
    /// If there is none, or it stays torn.
    pub(super) async fn read_leaf(
        &self,
        meter: &Meter,
        leaf: Child,
        budget: &mut Budget,
    ) -> Result<Result<Buf, Gone>, AccessError> {
        let node = leaf.ptr();
        let (mut slow, mut rereads) = (SlowReads::default(), 0);
        loop {
            let read = self.fetch_leaf(meter, node, budget).await?;
            let is_slow = self.is_slow(&read);
            let image = read.into_buf();
            let rejection = match self.leaf().parse(&image).map(drop) {
                Ok(()) if !is_slow => return Ok(Ok(image)),
                Ok(()) => Rejection::Slow,
                Err(rejection) => rejection,
            };
            let Step::Reread(last) = Step::<()>::after(rejection) else {
                return self.gone(leaf, &image, rejection).map(Err);
            };
            budget.spend(meter, node, last)?;
            rereads += 1;
            let wants_lock = if is_slow { self.pause_or_lock(&mut slow).await } else { false };
            if wants_lock || rereads > RETRIES_BEFORE_LOCK {
                return self.read_leaf_sharing(meter, leaf).await;
            }
        }
    }

    /// READs a leaf, the values behind the keys: one round trip, and one more for each queue pair that breaks.
    pub(super) async fn fetch_leaf(
        &self,
        meter: &Meter,
        node: RemotePtr,
        budget: &mut Budget,
    ) -> Result<Completion, AccessError> {
        loop {
            match self.verbs.submit(meter, self.leaf_chain(node)).await {
                Ok(read) => return Ok(read),
                Err(failed) => drop(budget.post_again(meter, node, failed)?),
            }
        }
    }

    /// Makes the chain that reads a leaf, the values behind the keys.
    pub(super) fn leaf_chain(&self, node: RemotePtr) -> Chain {
        let (keys, end) = (self.leaf().key_part(), self.leaf().node_bytes());
        let mut chain = Chain::with_buffer(node.server(), self.verbs.lease(end));
        chain.read(node, keys.clone());
        if keys.end < end {
            chain.read(node.add(keys.end as u64), keys.end..end);
        }
        chain
    }

    /// Tells whether a READ took longer than versions vouch for.
    pub(super) fn is_slow(&self, read: &Completion) -> bool {
        u64::from(read.span_ns) >= self.version_bound()
    }

    /// Reads a leaf while no client can write it whole.
    #[cold]
    async fn read_leaf_sharing(&self, meter: &Meter, leaf: Child) -> Result<Result<Buf, Gone>, AccessError> {
        let node = leaf.ptr();
        tracing::debug!(name: "dolphin.read.locked", leaf = %node, "a leaf is read under its lock");
        let buf = self.verbs.lease(self.leaf().node_bytes());
        let parts = self.leaf().parts(true);
        let (shared, read) =
            self.leaf_locks().share_and_read(meter, node, self.lock_of(node), buf, &parts).await?;
        let image = read.into_buf();
        leave(meter, shared).await;
        match self.leaf().parse(&image).map(drop) {
            Ok(()) => Ok(Ok(image)),
            Err(rejection) => self.gone(leaf, &image, rejection).map(Err),
        }
    }

    /// Yields the least time in ns in which NV can wrap around.
    fn version_bound(&self) -> u64 {
        let interval_ns = self.verbs.capabilities().write_interval_ns;
        wrap_ns(NodeVersion::COUNT, interval_ns, self.leaf().node_bytes())
    }

    /// Tells whether to read under the lock after a READ that took longer than versions vouch for. If not, it pauses,
    /// and the reader reads again.
    async fn pause_or_lock(&self, slow: &mut SlowReads) -> bool {
        tracing::debug!(name: "dolphin.read.slow", "a READ took longer than versions vouch for");
        let Some(multiple) = slow.another() else { return true };
        let most = multiple * self.version_bound();
        if most > 0 {
            // Half of it is random: readers whose READs were slow together come back one by one.
            self.verbs.pause(most - self.verbs.random() % (most / 2 + 1)).await;
        }
        false
    }
}
