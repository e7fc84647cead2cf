//! The separator for a new node, which its split owes to the level above. Putting it in may split an inner node, which
//! owes one to the level above in turn; where there is none, the tree gets a new root.
//!
//! It knows only the addresses of children and where they begin.

use std::rc::Rc;

use farwood_cache::Root;
use farwood_lock::Held;
use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::BTree;
use super::descend::{Target, Via};
use super::split::{OldNode, halve};
use crate::error::{AccessError, WriteError};
use crate::layout::{Bytes, InnerLayout, LINE_BYTES, Position, Rejection, kind_of};
use crate::shell::handle::Local;
use crate::step::Budget;

/// A child that its parent does not know yet.
#[derive(Clone, Debug)]
pub(crate) struct Separator {
    /// The level of the parent.
    pub(crate) level: u8,
    pub(crate) key: Bytes,
    pub(crate) child: RemotePtr,
}

/// A change of a separator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// It is put in.
    In,
    /// It is taken out, if it leads to its child.
    Out,
}

/// The outcome of putting a separator in, or of taking it out.
enum Put {
    /// It was so before.
    Before,
    /// It is so now.
    Now,
    /// It cannot be taken out: its node begins with it.
    First,
    /// It is in, and its node was split for it, which owes this one to the level above.
    Owing(Separator),
}

/// The outcome of taking a separator out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TakenOut {
    /// There was none.
    Before,
    /// It is out.
    Now,
    /// Its node begins with it.
    Not,
}

/// A separator that is put in even if the operation that owes it is dropped.
pub(crate) struct Owed<A: BTree, V: Verbs> {
    tree: Rc<Local<A, V>>,
    /// The node that was split.
    node: RemotePtr,
    separator: Option<Separator>,
}

impl<A: BTree, V: Verbs> Owed<A, V> {
    /// Makes the debt of `separator`, from the moment when `node` is split, or may be.
    pub(crate) fn new(tree: &Rc<Local<A, V>>, node: RemotePtr, separator: Separator) -> Self {
        Owed { tree: Rc::clone(tree), node, separator: Some(separator) }
    }

    /// Puts the separator in, and in turn those that the levels above then owe; false if it was there.
    ///
    /// An error goes to the caller and nothing is tried again: it would meet the same error. Later operations try again
    /// (`repair.rs`).
    pub(crate) async fn pay(mut self, meter: &Meter) -> Result<bool, WriteError> {
        let mut budget = self.tree.budget();
        let mut was_missing = false;
        while let Some(separator) = self.separator.clone() {
            let put = self.tree.change_one(meter, &separator, Change::In, &mut budget).await;
            self.separator = None;
            match put? {
                Put::Before | Put::First => {}
                Put::Now => was_missing = true,
                Put::Owing(above) => {
                    was_missing = true;
                    self.separator = Some(above);
                }
            }
        }
        Ok(was_missing)
    }

    /// Pays for an operation that was dropped, maybe while the split itself was in flight, or whose split the janitor
    /// has to complete. The split releases the node's lock last: once that lock could be taken, the sibling may be made
    /// reachable.
    async fn pay_later(mut self) -> Result<(), WriteError> {
        let meter = Meter::default();
        // Not owed while it waits: an error would be met again and again.
        let separator = self.separator.take();
        if separator.as_ref().is_some_and(|separator| separator.level == 1) {
            A::settle_leaf(&self.tree, &meter, self.node).await?;
        } else {
            self.tree.settle_node(&meter, self.node).await?;
        }
        self.separator = separator;
        self.pay(&meter).await.map(drop)
    }
}

impl<A: BTree, V: Verbs> Drop for Owed<A, V> {
    fn drop(&mut self) {
        let Some(separator) = self.separator.take() else { return };
        let (tree, node) = (Rc::clone(&self.tree), self.node);
        self.tree.verbs.defer(async move {
            // The debt is made when this runs: a stopped compute node drops the task before, which would lead back here
            // for ever.
            tracing::debug!(name: "btree.separator.owed", %node, "a dropped split has its separator put in");
            let owed = Owed { tree, node, separator: Some(separator) };
            if let Err(error) = owed.pay_later().await {
                separator_is_missing(&error);
            }
        });
    }
}

/// Logs that a separator could not be put in.
pub(crate) fn separator_is_missing(error: &WriteError) {
    tracing::warn!(name: "btree.separator.missing", %error, "a node stays reachable over its neighbour only");
}

/// Change that a separator makes to the inner node that answers for it.
#[derive(Debug, PartialEq)]
enum InnerPlan {
    /// The node is written with these entries.
    Rewrite(Vec<(Bytes, RemotePtr)>),
    /// These are more entries than fit: the node is split.
    Split(Vec<(Bytes, RemotePtr)>),
    /// The separator is there already, or is not.
    Nothing,
    /// It is there with another child. If that is gone, the node is written with these entries.
    Instead(RemotePtr, Vec<(Bytes, RemotePtr)>),
    /// It is the node's first one, which does not go.
    First,
    MoveRight(RemotePtr),
    /// The node does not answer for the separator, or is no node.
    Restart(Option<Rejection>),
}

fn plan_separator(layout: &InnerLayout, image: &[u8], separator: &Separator, change: Change) -> InnerPlan {
    let view = match layout.view(image) {
        Ok(view) if view.header().level() == separator.level => view,
        Ok(_) => return InnerPlan::Restart(None),
        Err(rejection) => return InnerPlan::Restart(Some(rejection)),
    };
    match view.header().position(&separator.key) {
        Position::Here => {}
        Position::Left => return InnerPlan::Restart(None),
        Position::Right => match view.header().right() {
            Ok(sibling) => return InnerPlan::MoveRight(sibling),
            Err(rejection) => return InnerPlan::Restart(Some(rejection)),
        },
    }
    let mut entries = match view.sorted_entries() {
        Ok(entries) => entries,
        Err(rejection) => return InnerPlan::Restart(Some(rejection)),
    };
    let found = entries.binary_search_by(|(key, _)| key.cmp(&separator.key));
    match (found, change) {
        (Ok(place), Change::Out) if entries[place].1 == separator.child => {
            if place == 0 {
                return InnerPlan::First;
            }
            entries.remove(place);
            InnerPlan::Rewrite(entries)
        }
        (Ok(place), Change::In) if entries[place].1 != separator.child => {
            let other = std::mem::replace(&mut entries[place].1, separator.child);
            InnerPlan::Instead(other, entries)
        }
        (Ok(_), _) | (Err(_), Change::Out) => InnerPlan::Nothing,
        (Err(place), Change::In) => {
            entries.insert(place, (separator.key.clone(), separator.child));
            if entries.len() <= layout.slots() {
                InnerPlan::Rewrite(entries)
            } else {
                InnerPlan::Split(entries)
            }
        }
    }
}

pub(super) fn borrowed(entries: &[(Bytes, RemotePtr)]) -> impl Iterator<Item = (&[u8], RemotePtr)> {
    entries.iter().map(|(key, child)| (key.as_slice(), *child))
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Takes the separator of a child out that is no node of the tree any more. Yields what was found.
    pub(super) async fn take_out(
        self: &Rc<Self>,
        meter: &Meter,
        separator: &Separator,
        budget: &mut Budget,
    ) -> Result<TakenOut, WriteError> {
        Ok(match self.change_one(meter, separator, Change::Out, budget).await? {
            Put::Before => TakenOut::Before,
            Put::Now | Put::Owing(_) => TakenOut::Now,
            Put::First => TakenOut::Not,
        })
    }

    /// Puts one separator in, or takes it out.
    async fn change_one(
        self: &Rc<Self>,
        meter: &Meter,
        separator: &Separator,
        change: Change,
        budget: &mut Budget,
    ) -> Result<Put, WriteError> {
        loop {
            let known = self.reader().node_of(separator.level, &separator.key);
            let known =
                known.map(|ptr| Target { ptr, level: separator.level, via: Via::Nothing, next: None });
            let at = match known {
                Some(at) => Some(at),
                None => self.locate_from_root(meter, &separator.key, separator.level, budget).await?,
            };
            let put = match at {
                Some(at) => self.change_at(meter, separator, change, at, budget).await?,
                None if change == Change::Out => Some(Put::Before),
                None => self.grow(meter, separator).await?,
            };
            match put {
                Some(put) => return Ok(put),
                None => budget.spend(meter, separator.child, None)?,
            }
        }
    }

    /// Puts a separator in, or takes it out, at the node `at` or where that leads; none if the tree is not that high
    /// any more.
    async fn change_at(
        self: &Rc<Self>,
        meter: &Meter,
        separator: &Separator,
        change: Change,
        mut at: Target,
        budget: &mut Budget,
    ) -> Result<Option<Put>, WriteError> {
        let bytes = self.inner().node_bytes();
        while at.level == separator.level {
            let (held, image) = self.lock_node(meter, at.ptr, bytes).await?;
            match plan_separator(self.inner(), &image, separator, change) {
                InnerPlan::Nothing => {
                    self.unlock(meter, held).await?;
                    return Ok(Some(Put::Before));
                }
                InnerPlan::Instead(other, entries) => {
                    // A node that was merged, whose client died before it was taken out: here, one was split at the
                    // same key since.
                    let line = self.read(meter, other, LINE_BYTES, budget).await?;
                    if kind_of(&line) != Err(Rejection::Freed) {
                        self.unlock(meter, held).await?;
                        return Ok(Some(Put::Before));
                    }
                    tracing::debug!(name: "btree.separator.instead", node = %other, "a freed node gives way");
                    self.rewrite_inner(meter, held, image, &entries).await?;
                    return Ok(Some(Put::Now));
                }
                InnerPlan::First => {
                    self.unlock(meter, held).await?;
                    return Ok(Some(Put::First));
                }
                InnerPlan::Rewrite(entries) => {
                    let node = held.node();
                    self.rewrite_inner(meter, held, image, &entries).await?;
                    if change == Change::Out {
                        self.note_taken_out(separator.level, node, &separator.key, entries.len());
                    }
                    return Ok(Some(Put::Now));
                }
                InnerPlan::Split(entries) => {
                    let above = self.split_inner(meter, held, image, entries, separator.level).await?;
                    return Ok(Some(Put::Owing(above)));
                }
                InnerPlan::MoveRight(sibling) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, at.ptr, None)?;
                    self.cache().invalidate(at.level, at.ptr, &separator.key);
                    at = Target { ptr: sibling, ..at };
                }
                InnerPlan::Restart(last) => {
                    self.unlock(meter, held).await?;
                    budget.spend(meter, at.ptr, last)?;
                    self.cache().invalidate(at.level, at.ptr, &separator.key);
                    let from = match last {
                        Some(gone @ (Rejection::Freed | Rejection::Frozen)) => {
                            Box::pin(self.leave_freed_inner(meter, &separator.key, at, gone, budget)).await?
                        }
                        _ => self.restart(meter, at.ptr).await?,
                    };
                    at = self.descend(meter, &separator.key, separator.level, from, budget).await?;
                }
            }
        }
        Ok(None)
    }

    /// Writes the inner node in `image`, which is locked, with other entries.
    pub(super) async fn rewrite_inner(
        &self,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        entries: &[(Bytes, RemotePtr)],
    ) -> Result<(), AccessError> {
        let node = held.node();
        let old = OldNode::of(self.inner().view(&image).expect("it was parsed for the plan").header());
        let mut buf = image;
        self.inner().build(&mut buf, &old.same(), borrowed(entries));
        if let Some(buf) = held.write_back(meter, buf, self.chains().combine).await? {
            self.cache_node(node, &buf);
        }
        Ok(())
    }

    async fn split_inner(
        self: &Rc<Self>,
        meter: &Meter,
        held: Held<V>,
        image: Buf,
        entries: Vec<(Bytes, RemotePtr)>,
        level: u8,
    ) -> Result<Separator, WriteError> {
        let node = held.node();
        let old = OldNode::of(self.inner().view(&image).expect("it was parsed for the plan").header());
        let bytes = self.inner().node_bytes();
        let sibling = match self.new_node(bytes).await {
            Ok(sibling) => sibling,
            Err(error) => {
                self.unlock(meter, held).await?;
                return Err(error);
            }
        };
        tracing::debug!(name: "btree.inner.split", %node, level, "an inner node is split");
        let halves = halve(entries);
        let middle = halves.right[0].0.clone();
        let mut buf = self.verbs.lease(2 * bytes);
        let (left_image, right_image) = buf.split_at_mut(bytes);
        let right_header = old.right(&middle, self.verbs.random() as u32);
        self.inner().build(left_image, &old.left(&middle, sibling.node), borrowed(&halves.left));
        self.inner().build(right_image, &right_header, borrowed(&halves.right));
        let images = (left_image.to_vec(), right_image.to_vec());
        let sibling_node = sibling.node;
        let separator = Separator { level: level + 1, key: middle, child: sibling_node };
        let mut owed = self.publish_split(meter, held, sibling, buf, separator).await?;
        self.cache_node(node, &images.0);
        self.cache_node(sibling_node, &images.1);
        Ok(owed.separator.take().expect("a split owes its separator"))
    }

    /// Puts a new root above the current one, for a separator of a level that the tree does not have. If the tree does
    /// not have the child's level either, the child was merged since. Yields none if the tree has grown meanwhile.
    async fn grow(&self, meter: &Meter, separator: &Separator) -> Result<Option<Put>, WriteError> {
        let old = match self.read_root(meter).await? {
            Some(root) if root.level + 1 == separator.level => root,
            Some(root) if root.level < separator.level => {
                tracing::debug!(name: "btree.separator.late", "a separator is of a level that is gone");
                return Ok(Some(Put::Before));
            }
            _ => return Ok(None),
        };
        let bytes = self.inner().node_bytes();
        let node = self.new_node(bytes).await?;
        let header = self.new_header(separator.level, b"", None, RemotePtr::NULL);
        let mut buf = self.verbs.lease(bytes);
        let entries = [(&b""[..], old.ptr), (&separator.key[..], separator.child)];
        self.inner().build(&mut buf, &header, entries);
        let buf = self.write_new(meter, node.node, buf, 0..bytes).await?;
        let root = Root { ptr: node.node, level: separator.level };
        let grown = self.cas_root(meter, Some(old), root, node.publish()).await?;
        if grown {
            tracing::debug!(name: "btree.root.grown", level = separator.level, "the tree has a new root");
            self.cache_node(root.ptr, &buf);
        }
        Ok(grown.then_some(Put::Now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{NodeHeader, NodeVersion};

    fn node(n: u64) -> RemotePtr {
        RemotePtr::from_bits(64 * n)
    }

    #[test]
    fn separators_are_taken_out_but_for_the_first_and_those_of_others() {
        let layout = InnerLayout::for_slots(4, 4).unwrap();
        let mut image = vec![0; layout.node_bytes()];
        let node_version = NodeVersion::default();
        let header = NodeHeader {
            level: 1,
            low: b"b",
            high: Some(b"z"),
            sibling: node(9),
            incarnation: 1,
            node_version,
        };
        let entries: [(&[u8], _); 3] = [(b"b", node(1)), (b"h", node(2)), (b"p", node(3))];
        layout.build(&mut image, &header, entries);
        let plan = |key: &[u8], child, change| {
            let separator = Separator { level: 1, key: Bytes::from_slice(key), child: node(child) };
            plan_separator(&layout, &image, &separator, change)
        };
        let rest = [entries[0], entries[2]].map(|(key, child)| (Bytes::from_slice(key), child));
        assert_eq!(plan(b"h", 2, Change::Out), InnerPlan::Rewrite(rest.into()));
        assert_eq!(plan(b"h", 7, Change::Out), InnerPlan::Nothing);
        assert_eq!(plan(b"i", 2, Change::Out), InnerPlan::Nothing);
        assert_eq!(plan(b"b", 1, Change::Out), InnerPlan::First);
        assert_eq!(plan(b"b", 7, Change::Out), InnerPlan::Nothing);
        assert_eq!(plan(b"z", 2, Change::Out), InnerPlan::MoveRight(node(9)));
        assert_eq!(plan(b"a", 2, Change::Out), InnerPlan::Restart(None));
        assert_eq!(plan(b"h", 2, Change::In), InnerPlan::Nothing);
        let instead =
            [(b"b", 1), (b"h", 7), (b"p", 3)].map(|(key, child)| (Bytes::from_slice(key), node(child)));
        assert_eq!(plan(b"h", 7, Change::In), InnerPlan::Instead(node(2), instead.into()));
        assert!(matches!(plan(b"i", 7, Change::In), InnerPlan::Rewrite(entries) if entries.len() == 4));
    }
}
