//! Looking a key up (SMART section 4.4, "Search"): one READ of one leaf, no lock.

use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::Tree;
use super::decide::{LeafStep, SlotSnapshot, decide_leaf};
use super::descend::DescentResult;
use crate::error::AccessError;
use crate::layout::Rejection;
use crate::layout::radix::Slot;
use crate::step::Budget;
use crate::value::Value;

/// Torn READs of a leaf after which a reader takes its lock, under which nothing can be torn. Far beyond what happens
/// in practice, unless the leaf's writer has stopped in the middle.
pub(super) const TORN_BEFORE_LOCK: u32 = 64;
/// Torn READs from which on it pauses before the next one, in ns for each.
const TORN_BEFORE_PAUSE: u32 = 4;
const TORN_PAUSE_NS: u64 = 500;

impl<V: Verbs> Tree<V> {
    pub(super) async fn lookup(&self, meter: &Meter, key: &[u8]) -> Result<Option<Value>, AccessError> {
        let mut budget = self.budget();
        let mut torn = 0;
        let mut snapshot = self.begin(meter, key, &mut budget).await?;
        loop {
            let leaf = match self.descend(meter, key, snapshot, false, &mut budget).await? {
                DescentResult::Leaf(snapshot) => snapshot,
                DescentResult::Vacant(snapshot) if snapshot.fresh => return Ok(None),
                DescentResult::PrefixMismatch(mismatch) if mismatch.certain => return Ok(None),
                DescentResult::PrefixMismatch(mismatch) => {
                    snapshot = self.refresh(meter, key, &mismatch.snapshot, &mut budget).await?;
                    continue;
                }
                DescentResult::Vacant(stale)
                | DescentResult::Full(stale)
                | DescentResult::Replaced(stale) => {
                    snapshot = self.refresh(meter, key, &stale, &mut budget).await?;
                    continue;
                }
            };
            let buf = match self.read_leaf(meter, key.len(), &leaf, torn, &mut budget).await? {
                Ok(buf) => buf,
                Err(rejection) => {
                    snapshot = self.rejected(meter, key, &leaf, rejection, &mut budget).await?;
                    continue;
                }
            };
            let view = self.leaf().view(&buf);
            snapshot = match decide_leaf(view.as_ref().map_err(|rejection| *rejection), &leaf, key) {
                LeafStep::Here => match view.and_then(|view| Ok((view.link, view.value()?))) {
                    Ok((link, range)) => {
                        self.welcome(meter, &leaf, link);
                        return Ok(Some(Value::at(buf, range)));
                    }
                    Err(rejection) => {
                        torn += 1;
                        budget.spend(
                            meter,
                            leaf.slot.child().expect("it was read").ptr(),
                            Some(rejection),
                        )?;
                        leaf
                    }
                },
                LeafStep::Other | LeafStep::Gone => return Ok(None),
                LeafStep::Moved(to, class) => {
                    tracing::debug!(name: "smart.leaf.moved", leaf = %to.ptr(), "a reader follows a leaf");
                    budget.spend(meter, to.ptr(), None)?;
                    self.follow(meter, &leaf, Slot::leaf(leaf.symbol, to, class))
                }
                LeafStep::Stale => self.refresh(meter, key, &leaf, &mut budget).await?,
                LeafStep::Not(rejection) => self.rejected(meter, key, &leaf, rejection, &mut budget).await?,
            };
        }
    }

    /// Reads what a lookup of a key of `key_bytes` needs of a leaf, which was torn so many times: one round trip, in
    /// the end under its lock.
    #[inline]
    async fn read_leaf(
        &self,
        meter: &Meter,
        key_bytes: usize,
        snapshot: &SlotSnapshot,
        torn: u32,
        budget: &mut Budget,
    ) -> Result<Result<Buf, Rejection>, AccessError> {
        let class = match self.leaf().class_of(snapshot.slot) {
            Ok(class) => class,
            Err(rejection) => return Ok(Err(rejection)),
        };
        let node = snapshot.slot.child().expect("a leaf has an address").ptr();
        if torn >= TORN_BEFORE_LOCK {
            return self.read_whole(meter, node, class).await.map(Ok);
        }
        self.pause_after_torn(torn).await;
        self.read(meter, node, self.leaf().lookup_bytes(class, key_bytes), budget).await.map(Ok)
    }

    /// Waits before the next READ of a leaf that was torn so many times.
    pub(super) async fn pause_after_torn(&self, torn: u32) {
        if torn >= TORN_BEFORE_PAUSE {
            tracing::debug!(name: "smart.read.slow", torn, "a reader pauses");
            let most = TORN_PAUSE_NS * u64::from(torn.min(TORN_BEFORE_LOCK));
            self.verbs.pause(most - self.verbs.random() % (most / 2)).await;
        }
    }

    /// Reads a leaf that is torn again and again: under its lock, where no client writes.
    ///
    /// # Errors
    /// If the lock does not come free, or the leaf is torn there, too: its bytes are damaged.
    pub(super) async fn read_whole(
        &self,
        meter: &Meter,
        node: RemotePtr,
        class: u8,
    ) -> Result<Buf, AccessError> {
        let damaged = |where_| AccessError::Corrupt {
            node,
            what: format!("its checksum does not fit its bytes, {where_}: check the index"),
        };
        if !self.techniques.in_place_leaves {
            return Err(damaged("which no writer changes"));
        }
        tracing::debug!(name: "smart.read.locked", %node, "a reader takes the lock");
        let (held, image) = self.lock_leaf(meter, node, class).await?;
        self.unlock(meter, held).await?;
        match self.leaf().view(&image).and_then(|view| view.value()) {
            Err(Rejection::Torn) => Err(damaged("under its lock")),
            _ => Ok(image),
        }
    }

    /// Yields a snapshot that leads to the leaf that took the place of the one `snapshot` leads to, and updates the
    /// slot for later clients.
    pub(super) fn follow(&self, meter: &Meter, snapshot: &SlotSnapshot, slot: Slot) -> SlotSnapshot {
        let at = snapshot.at(self.shared.entry.root);
        self.cas_without_awaiting(meter, at, snapshot.slot.bits(), slot.bits());
        self.amend_cache(snapshot, slot);
        SlotSnapshot { direct: false, ..snapshot.with(slot) }
    }
}
