//! Roots that get lower: one that has a single child takes it for the root. Merges leave such roots (`merge.rs`). It
//! knows nothing of leaves, and of inner nodes only their first child.
//!
//! ```text
//!   lock root ── WRITE root: frozen ── CAS root word: (root, h) -> (child, h - 1) ── WRITE root: freed, unlock
//!                        1                               2                                    3
//! ```
//!
//! 1. Copies of the root's address stay: with clients on their way, in caches. Were it alive behind 2, it would be
//!    asked for separators that the tree's own nodes have, and get some that these lack. It has one entry, and neither
//!    a neighbour nor a fence on the right, when it is frozen: nothing of its level is left behind.
//! 2. If the word has another root, one was put above this one: it thaws. That can only be by a client which had
//!    read the word before and came late: what it puts in has been merged since (`merge.rs`).
//! 3. It names no heir: who meets it begins anew.
//!
//! A frozen root whose client has died has no left neighbour that would tell. It is of the tree if it is the first of
//! its level still, on the way down from the root word; only a client that has its lock changes that. So it is settled
//! under its lock, which a living client gives back when its CAS has come to its end: what failed does not take effect
//! afterwards.
//!
//! ```text
//!   here    WRITE root: frozen ─ CAS root word ✗ dies: it arrives, or not
//!   other                         meets it 8 times: its lock, once this client is fenced ─ is it the first?
//! ```
//!
//! The root's memory waits for a flush: no node has its address (its parent would be a root), but copies may.

use std::rc::Rc;

use farwood_cache::Root;
use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::BTree;
use super::root::root_word;
use crate::error::AccessError;
use crate::layout::{InnerLayout, Rejection, kind_of, thaw};
use crate::shell::handle::Local;
use crate::step::Budget;

/// Yields the child of a root that has no other one, and no neighbour.
fn only_child(inner: &InnerLayout, image: &[u8], level: u8) -> Option<RemotePtr> {
    let view = inner.view(image).ok()?;
    let header = view.header();
    let is_alone = header.low().is_empty() && header.high().is_none() && view.len() == 1;
    let entries = view.sorted_entries().ok()?;
    (is_alone && header.level() == level).then(|| entries[0].1)
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Lowers the root for as long as it has one child.
    pub(super) async fn lower_root(self: &Rc<Self>, meter: &Meter) -> Result<(), AccessError> {
        while let Some(root) = self.read_root(meter).await?.filter(|root| root.level > 0) {
            let (held, image) = self.lock_whole(meter, root.level, root.ptr).await?;
            let Some(child) = only_child(self.inner(), &image, root.level) else {
                return self.unlock(meter, held).await;
            };
            let child = Root { ptr: child, level: root.level - 1 };
            if !self.lower_once(meter, root, child, (held, image)).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Makes `child` the root in place of `root`, whose lock is held; yields whether that still was the root.
    async fn lower_once(
        self: &Rc<Self>,
        meter: &Meter,
        root: Root,
        child: Root,
        (mut held, mut image): (Held<V>, Buf),
    ) -> Result<bool, AccessError> {
        let (word, format, mut budget) = (self.shared.entry.root, self.format(root.level), self.budget());
        let frozen = format.freeze(&mut image);
        let mut chain = Chain::with_buffer(root.ptr.server(), image);
        self.write_whole(&mut chain, root.level, root.ptr, frozen);
        let mut image = held.write(meter, chain).await?.expect("the root was in the chain's buffer");
        let found = loop {
            let mut chain = Chain::new(word.server());
            chain.cas(word, root_word(root), root_word(child));
            match self.verbs.submit(meter, chain).await {
                Ok(done) => break done.atomics[0],
                // If this is the end, it stays frozen until it is met.
                Err(failed) => self.read_again(meter, word, failed, &mut budget)?,
            }
        };
        // A CAS that failed may have been the one.
        let is_doubtful = budget.spent() > 0;
        let lowered = found == root_word(root)
            || is_doubtful && self.first_of(meter, root.level, &mut budget).await? != Some(root.ptr);
        let marked = match lowered {
            true => {
                tracing::debug!(name: "btree.root.lowered", node = %root.ptr, level = child.level, "the root is lower");
                // It believes in no lower root.
                self.cache().clear();
                self.cache().set_root(child);
                format.free(&mut image, RemotePtr::NULL)
            }
            false => format.thaw(&mut image),
        };
        let mut chain = Chain::with_buffer(root.ptr.server(), image);
        self.write_whole(&mut chain, root.level, root.ptr, marked);
        let released = held.release(meter, chain, true).await;
        let bytes = self.inner().node_bytes() as u64;
        match (lowered, &released) {
            (true, Ok(_)) => self.allocator.retire_cached(root.ptr, bytes),
            (true, Err(_)) => self.allocator.retire_unsettled(root.ptr, bytes),
            (false, _) => {}
        }
        released?;
        Ok(lowered)
    }

    /// Sees to it that a node that begins where the tree does is frozen no longer.
    pub(super) async fn settle_root(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
        budget: &mut Budget,
    ) -> Result<(), AccessError> {
        let (held, mut image) = self.lock_whole(meter, level, node).await?;
        let format = self.format(level);
        let is_frozen = format
            .low_of(&image)
            .is_some_and(|(low, rejection)| low.is_empty() && rejection == Rejection::Frozen);
        if !is_frozen {
            return self.unlock(meter, held).await;
        }
        let marked = if self.first_of(meter, level, budget).await? == Some(node) {
            tracing::debug!(name: "btree.root.thawed", %node, "a frozen root is one of the tree again");
            format.thaw(&mut image)
        } else {
            tracing::debug!(name: "btree.root.let_go", %node, "a frozen root is freed");
            format.free(&mut image, RemotePtr::NULL)
        };
        let mut chain = Chain::with_buffer(node.server(), image);
        self.write_whole(&mut chain, level, node, marked);
        Ok(held.release(meter, chain, true).await.map(drop)?)
    }

    /// Finds the first node of `level`; none if the tree is not that high. Takes no lock, since its client has one, and
    /// looks through nodes that are frozen. One round trip per level and one.
    async fn first_of(
        &self,
        meter: &Meter,
        level: u8,
        budget: &mut Budget,
    ) -> Result<Option<RemotePtr>, AccessError> {
        'anew: loop {
            let root = self.read_root(meter).await?;
            let Some(mut at) = root.filter(|root| root.level >= level) else { return Ok(None) };
            while at.level > level {
                let read = self.fetch(meter, at.ptr, self.inner().node_bytes(), budget).await?;
                let (span_ns, mut image) = (read.span_ns, read.into_buf());
                if kind_of(&image) == Err(Rejection::Frozen) {
                    thaw(&mut image);
                }
                let first = self.inner().view(&image).and_then(|view| {
                    let is_first = view.header().low().is_empty() && view.header().level() == at.level;
                    Ok(view.sorted_entries()?.first().map(|(_, child)| *child).filter(|_| is_first))
                });
                match first {
                    Ok(Some(child)) if self.node_version_holds(at.level, span_ns) => {
                        at = Root { ptr: child, level: at.level - 1 };
                    }
                    other => {
                        budget.spend(meter, at.ptr, other.err())?;
                        continue 'anew;
                    }
                }
            }
            return Ok(Some(at.ptr));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeHeader, NodeVersion, freeze};

    #[test]
    fn a_root_has_one_child_and_no_neighbour() {
        let inner = InnerLayout::for_slots(4, 4).unwrap();
        let child = |n: u64| RemotePtr::from_bits(64 * n);
        let root = |low: &[u8], high: Option<&[u8]>, entries: &[(&[u8], u64)]| {
            let mut image = vec![0; inner.node_bytes()];
            let (sibling, node_version) = (RemotePtr::NULL, NodeVersion::default());
            let header = NodeHeader { level: 2, low, high, sibling, incarnation: 1, node_version };
            inner.build(&mut image, &header, entries.iter().map(|(key, n)| (*key, child(*n))));
            image
        };
        let mut alone = root(b"", None, &[(b"", 1)]);
        assert_eq!(only_child(&inner, &alone, 2), Some(child(1)));
        assert_eq!(only_child(&inner, &alone, 1), None, "it is of another level");
        assert_eq!(only_child(&inner, &root(b"", None, &[(b"", 1), (b"m", 2)]), 2), None);
        assert_eq!(only_child(&inner, &root(b"", Some(b"x"), &[(b"", 1)]), 2), None, "it was split");
        assert_eq!(only_child(&inner, &root(b"m", None, &[(b"m", 1)]), 2), None, "it is not the first");
        freeze(&mut alone);
        assert_eq!(only_child(&inner, &alone, 2), None);
    }
}
