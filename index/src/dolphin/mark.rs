//! Marks the memory that a tree reaches, while clients work. How lost memory is found then is not known here
//! (`shell/sweep.rs`).
//!
//! Inner nodes are walked by their prefixes: the node of a prefix is, at any time, where the way down from the root
//! leads by then. A leaf's lower bound never changes, so leaves are walked by keys: the next one is that which answers
//! for the key at which the one before has ended.
//!
//! Slots may lead to a leaf that was merged, and clients copy them to nodes that they make. So a walk cannot tell which
//! freed leaves are led to: lost ones are left to a check at rest, and all else is given back.

use std::rc::Rc;

use farwood_lock::shared::LockWords;
use farwood_runtime::control::Chunk;
use farwood_runtime::{Extents, Meter, Verbs};

use super::Tree;
use super::descend::{Inner, Successor, Unread};
use super::lookup::Sought;
use super::root::{begin_of, end_of};
use crate::check::in_lines;
use crate::error::AccessError;
use crate::layout::radix::{Child, Symbol};
use crate::layout::{Bytes, LINE_BYTES, Rejection};
use crate::memory::Marks;
use crate::step::Budget;

/// Inner nodes that are read in one epoch, before the next one is looked for from the root again.
const NODES_OF_ONE_PIN: usize = 256;

/// Marks all nodes ([`Algorithm::mark`](crate::shell::Algorithm::mark)).
pub(super) async fn mark<V: Verbs>(
    tree: &Rc<Tree<V>>,
    meter: &Meter,
    marks: &mut Marks,
) -> Result<bool, AccessError> {
    let mut ahead = vec![Bytes::new()];
    while let Some(path) = ahead.pop() {
        let _pin = tree.verbs.pins().pin();
        tree.mark_inner_nodes(meter, path, &mut ahead, marks).await?;
    }
    for symbol in tree.first_symbols(meter).await? {
        let (mut key, end) = (begin_of(symbol), end_of(symbol));
        loop {
            let _pin = tree.verbs.pins().pin();
            match tree.mark_leaf(meter, &key, marks).await? {
                Some(high) if Some(&high) != end.as_ref() => key = high,
                _ => break,
            }
        }
    }
    Ok(true)
}

impl<V: Verbs> Tree<V> {
    /// Yields the root, with the budget of what follows; none if there is none yet.
    async fn root_to_mark(&self, meter: &Meter) -> Result<Option<(Unread, Budget)>, AccessError> {
        let mut budget = self.budget();
        let root = self.read_root(meter, &mut budget).await?;
        Ok(root.map(|root| (self.unread_root(root), budget)))
    }

    /// Yields the symbols of the root's slots: those of first bytes that keys have.
    async fn first_symbols(&self, meter: &Meter) -> Result<Vec<Symbol>, AccessError> {
        let _pin = self.verbs.pins().pin();
        let Some((root, mut budget)) = self.root_to_mark(meter).await? else { return Ok(Vec::new()) };
        let root = self.read_inner(meter, root, &mut budget).await?;
        Ok(root.slots.iter().map(|slot| slot.symbol()).collect())
    }

    /// Marks the inner node of a prefix, and those below it, or adds their prefixes to `ahead`.
    async fn mark_inner_nodes(
        &self,
        meter: &Meter,
        path: Bytes,
        ahead: &mut Vec<Bytes>,
        marks: &mut Marks,
    ) -> Result<(), AccessError> {
        let Some((root, mut budget)) = self.root_to_mark(meter).await? else { return Ok(()) };
        marks.reach(root.node.ptr(), self.root_bytes() as u64);
        let mut at = root;
        for byte in &path {
            let (inner, found) = self.inner_to_mark(meter, at, marks, &mut budget).await?;
            let slot = inner.slots.iter().find(|slot| slot.is_of(Symbol::Byte(*byte)) && slot.is_inner());
            match slot.and_then(|slot| found.below(inner.position, *slot)) {
                Some(below) => at = below,
                // Keys of this prefix have no node any more.
                None => return Ok(()),
            }
        }
        let (mut nodes, mut stack) = (0, vec![(at, path)]);
        while let Some((at, path)) = stack.pop() {
            if nodes == NODES_OF_ONE_PIN {
                ahead.push(path);
                continue;
            }
            nodes += 1;
            let (inner, found) = self.inner_to_mark(meter, at, marks, &mut budget).await?;
            for slot in &inner.slots {
                let Symbol::Byte(byte) = slot.symbol() else { continue };
                if let Some(below) = found.below(inner.position, *slot).filter(|_| slot.is_inner()) {
                    let mut path = path.clone();
                    path.push(byte);
                    stack.push((below, path));
                }
            }
        }
        Ok(())
    }

    /// Reads an inner node, or the one that has taken its place, and marks both.
    async fn inner_to_mark(
        &self,
        meter: &Meter,
        mut at: Unread,
        marks: &mut Marks,
        budget: &mut Budget,
    ) -> Result<(Inner, Unread), AccessError> {
        loop {
            let inner = self.read_inner(meter, at, budget).await?;
            marks.reach(at.node.ptr(), in_lines(self.types().node_bytes(at.class)));
            // One that was needless has slots as before: they lead to one leaf.
            let Some(Successor::Node(node, class)) = inner.successor else { return Ok((inner, at)) };
            budget.spend(meter, at.node.ptr(), None)?;
            at = Unread { node, class, ..at };
        }
    }

    /// Marks the leaf that answers for `key`, and yields where it ends. A lock that a dead client has is taken over
    /// first.
    async fn mark_leaf(
        self: &Rc<Self>,
        meter: &Meter,
        key: &[u8],
        marks: &mut Marks,
    ) -> Result<Option<Bytes>, AccessError> {
        loop {
            let Sought::Leaf { leaf, image, .. } = self.seek(meter, key).await? else { return Ok(None) };
            let holder = LockWords::new(&image[self.leaf().lock()]).holder();
            if holder.is_some_and(|word| marks.is_dead(word.owner())) {
                let (held, _) = self.lock_leaf(meter, leaf.ptr(), true).await?;
                held.unlock(meter).await?;
                continue;
            }
            marks.reach(leaf.ptr(), self.leaf().node_bytes() as u64);
            return Ok(self.leaf().parsed(&image).bounds().1);
        }
    }

    /// Yields what of a lost piece looks like a leaf, whole or not.
    pub(super) async fn leaves_of(&self, meter: &Meter, piece: Chunk) -> Result<Extents, AccessError> {
        let (bytes, mut leaves, mut budget) = (self.leaf().node_bytes(), Extents::default(), self.budget());
        let mut at = 0;
        while at + bytes as u64 <= piece.bytes {
            let start = piece.start.add(at);
            let Some(leaf) = Child::new(start) else { break };
            let image = self.fetch_leaf(meter, leaf.ptr(), &mut budget).await?.into_buf();
            if image.iter().all(|byte| *byte == 0) {
                at += bytes as u64;
                continue;
            }
            let parsed = self.leaf().parse(&image).map(drop);
            let is_leaf =
                matches!(parsed, Ok(()) | Err(Rejection::Freed | Rejection::Frozen | Rejection::Torn));
            if is_leaf {
                leaves.add(start, bytes as u64);
            }
            at += if is_leaf { bytes as u64 } else { LINE_BYTES as u64 };
        }
        Ok(leaves)
    }
}
