//! Marks the memory that a tree reaches, while clients work: level by level from the leaves up, by keys. How lost
//! memory is found then is not known here (`shell/sweep.rs`).
//!
//! A node's low fence never changes, so a node that is in the tree all the while answers for that key all the while.
//! The walk asks at each level for the node that answers for the key at which the one before ended. None of those has
//! answered for another node's low fence, so it comes to all of them:
//!
//! ```text
//!   level 0     "" ── [  "", d ) ── [ d, k ) ── [ k, .. )     d is split meanwhile: [ d, f ) and [ f, k ), a new node
//!                                                             k is merged meanwhile: into one that answers for k
//! ```
//!
//! Children of inner nodes are marked as well, whatever is there: the separator of a node that was merged may be there
//! still, if its merger has died.

use std::rc::Rc;

use farwood_runtime::{Buf, Meter, RemotePtr, Verbs};

use super::descend::Target;
use super::observed_node::{Depth, ObservedNode};
use super::{BTree, LeafFormat, WholeLeaf};
use crate::error::AccessError;
use crate::layout::{Bytes, Rejection};
use crate::memory::Marks;
use crate::shell::handle::Local;
use crate::step::{Budget, Step};

/// Times that a node is read before it is read under its lock.
const READS_BEFORE_LOCK: u32 = 2;

/// Marks all nodes and blocks ([`Algorithm::mark`](crate::shell::Algorithm::mark)).
pub(crate) async fn mark<A: BTree, V: Verbs>(
    tree: &Rc<Local<A, V>>,
    meter: &Meter,
    marks: &mut Marks,
) -> Result<bool, AccessError> {
    for level in 0.. {
        let mut next = Some(Bytes::new());
        while let Some(key) = next {
            // Each step pins an epoch of its own: memory comes back meanwhile.
            let _pin = tree.verbs.pins().pin();
            match tree.read_root(meter).await? {
                Some(root) if root.level >= level => {}
                _ => return Ok(true),
            }
            next = tree.mark_one(meter, level, &key, marks).await?;
        }
    }
    unreachable!("a root has a level")
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Marks the node of `level` that answers for `key`, and what it leads to; yields where it ends.
    async fn mark_one(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        key: &[u8],
        marks: &mut Marks,
    ) -> Result<Option<Bytes>, AccessError> {
        let mut budget = self.budget();
        let (mut at, mut reads) = (None, 0);
        loop {
            let found = match at.take() {
                Some(found) => found,
                // The tree has become lower.
                None => match self.locate_from_root(meter, key, level, &mut budget).await? {
                    Some(found) => found,
                    None => return Ok(None),
                },
            };
            reads += 1;
            let (image, seen) =
                self.read_to_mark(meter, level, found.ptr, (marks, reads), &mut budget).await?;
            match seen {
                Ok(seen) if seen.low[..] > *key => {
                    budget.spend(meter, found.ptr, None)?;
                    self.invalidate_cached(found, key);
                    let root = self.restart(meter, found.ptr).await?;
                    at = self.down_to(meter, key, level, root, &mut budget).await?;
                }
                Ok(seen) if seen.high.as_ref().is_some_and(|high| high[..] <= *key) => {
                    budget.spend(meter, found.ptr, None)?;
                    at = Some(Target { ptr: seen.sibling, ..found });
                }
                Ok(seen) => match self.mark_seen(level, found.ptr, (&image, &seen), marks) {
                    Ok(()) => return Ok(seen.high),
                    Err(torn) => {
                        budget.spend(meter, found.ptr, Some(torn))?;
                        at = Some(found);
                    }
                },
                Err(rejection @ (Rejection::Freed | Rejection::Frozen)) => {
                    at = match level {
                        0 => {
                            let gone = (&image[..], rejection);
                            Some(self.leave_freed(meter, key, found, gone, &mut budget).await?)
                        }
                        _ => {
                            budget.spend(meter, found.ptr, Some(rejection))?;
                            self.invalidate_cached(found, key);
                            let from =
                                self.leave_freed_inner(meter, key, found, rejection, &mut budget).await?;
                            self.down_to(meter, key, level, from, &mut budget).await?
                        }
                    };
                }
                Err(rejection) if matches!(Step::<()>::after(rejection), Step::Restart(_)) => {
                    budget.spend(meter, found.ptr, Some(rejection))?;
                    self.invalidate_cached(found, key);
                    let root = self.restart(meter, found.ptr).await?;
                    at = self.down_to(meter, key, level, root, &mut budget).await?;
                }
                Err(rejection) => {
                    budget.spend(meter, found.ptr, Some(rejection))?;
                    at = Some(found);
                }
            }
        }
    }

    /// Goes down to `level`; none if the root is below that by now.
    async fn down_to(
        &self,
        meter: &Meter,
        key: &[u8],
        level: u8,
        from: Target,
        budget: &mut Budget,
    ) -> Result<Option<Target>, AccessError> {
        let found = self.descend(meter, key, level, from, budget).await?;
        Ok((found.level == level).then_some(found))
    }

    /// Reads a node: under its lock if it took too long, if it was torn before, or if a dead client has its lock.
    async fn read_to_mark(
        self: &Rc<Self>,
        meter: &Meter,
        level: u8,
        node: RemotePtr,
        (marks, reads): (&Marks, u32),
        budget: &mut Budget,
    ) -> Result<(Buf, Result<ObservedNode, Rejection>), AccessError> {
        if reads <= READS_BEFORE_LOCK {
            let read = self.fetch(meter, node, self.node_bytes(level), budget).await?;
            let is_timely = self.entry_version_holds(level, read.span_ns);
            let image = read.into_buf();
            let lock = if level == 0 { self.leaf().lock(&image) } else { None };
            let has_dead_owner = lock.is_some_and(|(_, word)| marks.is_dead(word.owner()));
            let seen = self.sight(level, &image, Depth::Shape);
            let is_whole = seen.as_ref().is_ok_and(|seen| !seen.has_torn_entry());
            if is_timely && !has_dead_owner && (is_whole || seen.is_err()) {
                return Ok((image, seen));
            }
        }
        let image = self.read_whole_locked(meter, level, node).await?;
        let seen = self.sight(level, &image, Depth::Shape);
        Ok((image, seen))
    }

    /// Marks a node of the tree, and what it leads to.
    ///
    /// # Errors
    /// If an entry is torn that leads to a block.
    fn mark_seen(
        &self,
        level: u8,
        node: RemotePtr,
        (image, seen): (&[u8], &ObservedNode),
        marks: &mut Marks,
    ) -> Result<(), Rejection> {
        marks.reach(node, self.node_bytes(level) as u64);
        for (_, child) in &seen.children {
            marks.reach(*child, self.node_bytes(level - 1) as u64);
        }
        if let (0, Some(format)) = (level, self.leaf().blocks()) {
            for (_, block) in self.leaf().view(image)?.blocks()? {
                marks.reach(block.address(), format.bytes(block) as u64);
            }
        }
        Ok(())
    }
}
