//! New leaves in the memory of merged ones. Slots, and copies of them, may lead there for good (`freed.rs`), so a new
//! leaf must not answer before the tree has it:
//!
//! ```text
//!   splitter   WRITE new leaf R: live ················ WRITE L: leads to R      (or dies before)
//!   other                  old slot ─> R: writes X there, which no other client finds yet
//!
//!   splitter   WRITE R: frozen ── WRITE L: leads to R, unlock ── WRITE R: live, unlock
//! ```
//!
//! The splitter has R's lock from before it writes there until R is live, so that no other client thaws it meanwhile.
//! If the splitter dies, R is frozen, and others thaw it (`freed.rs`), or nothing leads there. R has a version behind
//! all that were written at this address: what a READ brings of two leaves is torn.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use super::merge::is_gone;
use crate::error::AccessError;
use crate::layout::radix::Child;
use crate::layout::range_leaf::Standing;
use crate::layout::{NodeVersion, version_behind};
use crate::smart::child_at;
use crate::step::Budget;

/// Merged leaves whose locks a split tries at most.
const TRIES_MAX: usize = 4;

/// Memory of a merged leaf, with its lock. Goes back to the allocator if it is dropped before the tree may have it.
pub(super) struct Reused<V: Verbs> {
    tree: Rc<Tree<V>>,
    pub(super) leaf: Child,
    /// The version of the new leaf.
    pub(super) version: NodeVersion,
    held: Option<Held<V>>,
    is_published: bool,
}

impl<V: Verbs> Drop for Reused<V> {
    fn drop(&mut self) {
        if !self.is_published {
            // A WRITE there may be in flight: the lock is given back behind it.
            self.tree.allocator.return_of_kind(self.leaf.ptr(), self.tree.leaf().node_bytes() as u64);
        }
    }
}

impl<V: Verbs> Reused<V> {
    /// Writes the new leaf, frozen: one round trip, and one more for each queue pair that breaks meanwhile. Yields the
    /// first word that it is to have.
    pub(super) async fn write(
        &self,
        meter: &Meter,
        mut image: Buf,
        budget: &mut Budget,
    ) -> Result<u64, AccessError> {
        let (layout, node) = (self.tree.leaf(), self.leaf.ptr());
        let live = layout.set_standing(&mut image, Standing::Live);
        layout.set_standing(&mut image, Standing::Frozen);
        let mut chain = Chain::with_buffer(node.server(), image);
        for range in layout.whole() {
            chain.write(node.add(range.start as u64), range);
        }
        loop {
            match self.tree.verbs.submit(meter, chain).await {
                Ok(_) => return Ok(live),
                Err(failed) => chain = budget.post_again(meter, node, failed)?,
            }
        }
    }

    /// Marks the leaf as one that the tree may have from here on.
    pub(super) fn publish(&mut self) {
        self.is_published = true;
    }

    /// Makes the leaf live, to which another one leads, and gives its lock back: one round trip. If that fails it is
    /// frozen until it is met.
    pub(super) async fn thaw(mut self, meter: &Meter, live: u64) {
        let node = self.leaf.ptr();
        let mut chain = Chain::new(node.server());
        chain.write_word(node, live);
        let held = self.held.take().expect("it thaws once");
        if let Err(error) = held.release(meter, chain, true).await {
            tracing::debug!(name: "dolphin.split.frozen", %node, %error, "a new leaf is frozen until it is met");
        }
    }
}

impl<V: Verbs> Tree<V> {
    /// Takes memory of a merged leaf, by preference beside `near`, if there is some whose lock can be had at once: a
    /// round trip or two.
    pub(super) async fn leaf_again(self: &Rc<Self>, meter: &Meter, near: RemotePtr) -> Option<Reused<V>> {
        let (bytes, mut others) = (self.leaf().node_bytes() as u64, Vec::new());
        while others.len() < TRIES_MAX
            && let Some(memory) = self.allocator.reuse_of_kind(near.server(), bytes).await
        {
            let leaf = child_at(memory.at).expect("a leaf was there before");
            let (tree, version) = (Rc::clone(self), NodeVersion::default());
            let mut again = Reused { tree, leaf, version, held: None, is_published: false };
            // Where the lock is taken, or the server does not answer, other memory will do.
            if let Ok(Some((held, image))) = self.try_lock_leaf(meter, memory.at).await {
                // Frozen: by a split that came to nothing.
                let is_free = self.leaf().parse(&image).err().is_some_and(is_gone);
                (again.held, again.version) = (Some(held), version_behind(&image));
                if is_free {
                    tracing::debug!(name: "dolphin.leaf.again", leaf = %memory.at, "a leaf is made where one was");
                    return Some(again);
                }
            }
            others.push(again);
        }
        None
    }
}
