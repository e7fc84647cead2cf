//! Finding the node of some level that answers for a key: from the cache, else down from the root.
//!
//! The root word holds the root's address; nodes are aligned to 64 bytes, so its low bits have room for the level.
//!
//! ```text
//!  63            48 47                              6 5      0
//! +----------------+---------------------------------+--------+
//! | memory server  | offset of the root, high bits   | level  |      0: no node yet
//! +----------------+---------------------------------+--------+
//! ```

use std::ops::Range;
use std::rc::Rc;

use farwood_cache::{NodeImage, Root};
use farwood_runtime::{Buf, Chain, Failed, Meter, RemotePtr, Verbs};

use super::Tree;
use super::lookup::RETRIES_BEFORE_LOCK;
use crate::error::IndexError;
use crate::layout::{EntryVersion, InnerRoute, LINE_BYTES, NodeHeader, NodeVersion, Rejection};
use crate::step::{Budget, Step};

const LEVEL_MASK: u64 = 0x3f;

/// A leaf that was split is followed by its other half, and for a moment by a quarter or two that the parent
/// does not know yet. Whoever has to go further right was led here by a cache from long ago.
const MOVES_BEFORE_DESCENT: u32 = 3;

/// A node that should answer for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) ptr: RemotePtr,
    pub(super) level: u8,
    pub(super) via: Via,
}

/// The node above that led to a target: what to drop from the cache if it was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// The root word did, or a left neighbour.
    Nothing,
    /// The cached copy of this one, which may be outdated.
    Cached(RemotePtr),
    /// This one, which the operation has just read.
    Read(RemotePtr),
}

pub(super) fn root_word(root: Root) -> u64 {
    root.ptr.to_bits() | u64::from(root.level)
}

pub(super) fn parse_root(word: u64) -> Option<Root> {
    let ptr = RemotePtr::from_bits(word & !LEVEL_MASK);
    (word != 0).then_some(Root { ptr, level: (word & LEVEL_MASK) as u8 })
}

/// The janitor asks so often what became of a new root, within two seconds, while the memory server does not answer.
const ATTEMPTS_MAX: u32 = 20;
/// Its pauses in ns, each twice as long as the one before.
const PAUSE_NS_MIN: u64 = 16_000;
const PAUSE_NS_MAX: u64 = 1 << 28;

/// A node on its way to become the root. If the future that holds it is dropped, the janitor finds out what came of
/// it: nodes that no client can reach go back to the allocator.
struct NewRoot<V: Verbs> {
    tree: Rc<Tree<V>>,
    root: Root,
    /// None once its fate is known.
    nodes: Vec<(RemotePtr, u64)>,
}

impl<V: Verbs> NewRoot<V> {
    fn settle(mut self, won: bool) {
        let nodes = std::mem::take(&mut self.nodes);
        if !won {
            self.tree.take_back(&nodes);
        }
    }
}

impl<V: Verbs> Drop for NewRoot<V> {
    fn drop(&mut self) {
        let (root, nodes) = (self.root, std::mem::take(&mut self.nodes));
        if nodes.is_empty() {
            return;
        }
        let tree = Rc::clone(&self.tree);
        self.tree.verbs.defer(async move {
            for attempt in 0..ATTEMPTS_MAX {
                // The READs go behind the CAS, on its queue pair.
                match tree.is_leftmost(&Meter::default(), root, &mut tree.budget()).await {
                    Ok(true) => return,
                    Ok(false) => {
                        tracing::debug!(name: "sherman.root.withdrawn", node = %root.ptr, "a new root is none");
                        return tree.take_back(&nodes);
                    }
                    Err(error) => tracing::debug!(%error, "what became of a new root is not known yet"),
                }
                tree.verbs.pause((PAUSE_NS_MIN << attempt).min(PAUSE_NS_MAX)).await;
            }
            tracing::warn!(name: "sherman.root.unknown", node = %root.ptr, "a new root may be lost");
        });
    }
}

impl<V: Verbs> Tree<V> {
    /// The leaf that should answer for `key`; none if the tree has no node yet. Costs no round trip when the cache
    /// knows.
    #[inline]
    pub(super) async fn locate_leaf(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Option<Target>, IndexError> {
        match self.reader.find(key) {
            Some(steer) if steer.child_level == 0 => {
                Ok(Some(Target { ptr: steer.child, level: 0, via: Via::Cached(steer.via) }))
            }
            Some(steer) => {
                let from = Target { ptr: steer.child, level: steer.child_level, via: Via::Cached(steer.via) };
                self.descend(meter, key, 0, from, budget).await.map(Some)
            }
            None => self.locate_from_root(meter, key, 0, budget).await,
        }
    }

    /// The node of `level` that should answer for `key`, found from the root; none if the tree is not that high.
    pub(super) async fn locate_from_root(
        &self,
        meter: &Meter,
        key: &[u8],
        level: u8,
        budget: &mut Budget,
    ) -> Result<Option<Target>, IndexError> {
        let known = self.cache().root().filter(|root| root.level >= level);
        let root = match known {
            Some(root) => Some(root),
            None => self.read_root(meter).await?,
        };
        let Some(root) = root.filter(|root| root.level >= level) else { return Ok(None) };
        let from = Target { ptr: root.ptr, level: root.level, via: Via::Nothing };
        self.descend(meter, key, level, from, budget).await.map(Some)
    }

    /// Reads the root word. One round trip.
    pub(super) async fn read_root(&self, meter: &Meter) -> Result<Option<Root>, IndexError> {
        let word = self.shared.entry.root;
        let mut budget = self.budget();
        let buf = loop {
            match self.verbs.read(meter, word, 8).await {
                Ok(read) => break read.into_buf(),
                Err(failed) => self.read_again(meter, word, failed, &mut budget)?,
            }
        };
        let word = u64::from_le_bytes(buf[..8].try_into().expect("eight bytes"));
        let root = parse_root(word);
        if let Some(root) = root {
            if root.ptr.is_null() {
                let node = self.shared.entry.root;
                return Err(IndexError::Corrupt { node, what: format!("the root word is {word:#x}") });
            }
            self.cache().set_root(root);
        }
        Ok(root)
    }

    /// Gives an empty tree its first leaf, unless somebody else does at the same time.
    pub(super) async fn plant(&self, meter: &Meter) -> Result<(), IndexError> {
        let bytes = self.leaf().node_bytes();
        let leaf = self.new_node(bytes).await?;
        let mut buf = self.verbs.lease(bytes);
        let header = NodeHeader {
            level: 0,
            low: b"",
            high: None,
            sibling: RemotePtr::NULL,
            incarnation: self.verbs.random() as u32,
            node_version: NodeVersion::default(),
        };
        self.leaf().build(&mut buf, &header, []);
        self.write_new(meter, leaf.node, buf, 0..bytes).await?;
        let root = Root { ptr: leaf.node, level: 0 };
        self.swap_root(meter, None, root, vec![(leaf.publish(), bytes as u64)]).await?;
        Ok(())
    }

    /// Makes `new` the root if `old` still is; yields whether it did, and else the `nodes` that no other client knows
    /// of go back to the allocator, with their sizes in bytes: it, and those below it. One round trip.
    ///
    /// A CAS of unknown outcome is posted again. If it had taken effect it finds its own word, which is nobody else's,
    /// or a root that was put above it since:
    ///
    /// ```text
    ///   here    CAS old -> new: it arrives ✗ ······························> CAS old -> new finds newer: not ours?
    ///   other                               splits new, CAS new -> newer                 giving it back would share it
    /// ```
    ///
    /// # Errors
    /// If the fabric fails for good. `new` may be the root then: the janitor finds out, as it does if the future is
    /// dropped.
    pub(super) async fn swap_root(
        &self,
        meter: &Meter,
        old: Option<Root>,
        new: Root,
        nodes: Vec<(RemotePtr, u64)>,
    ) -> Result<bool, IndexError> {
        let word = self.shared.entry.root;
        let tree = self.me.upgrade().expect("a tree that is at work is alive");
        let pending = NewRoot { tree, root: new, nodes };
        let expected = old.map_or(0, root_word);
        let mut budget = self.budget();
        let found = loop {
            let mut chain = Chain::new(word.server());
            chain.cas(word, expected, root_word(new));
            match self.verbs.submit(meter, chain).await {
                Ok(done) => break done.atomics[0],
                Err(failed) => self.read_again(meter, word, failed, &mut budget)?,
            }
        };
        let doubtful = budget.spent() > 0;
        if doubtful {
            tracing::debug!(name: "sherman.root.settled", "the root word tells what became of a CAS");
        }
        let won = found == expected || doubtful && self.is_leftmost(meter, new, &mut budget).await?;
        if won {
            self.cache().set_root(new);
        } else {
            tracing::debug!(name: "sherman.root.lost", level = new.level, "another client was first");
        }
        pending.settle(won);
        Ok(won)
    }

    /// Gives nodes that no client can reach back to the allocator.
    fn take_back(&self, nodes: &[(RemotePtr, u64)]) {
        nodes.iter().for_each(|&(node, bytes)| self.allocator.give_back(node, bytes));
    }

    /// Whether `node` is the leftmost of its level: once a root, always that, for a root that is split stays the left
    /// half.
    async fn is_leftmost(&self, meter: &Meter, node: Root, budget: &mut Budget) -> Result<bool, IndexError> {
        let Some(root) = self.read_root(meter).await?.filter(|root| root.level >= node.level) else {
            return Ok(false);
        };
        let from = Target { ptr: root.ptr, level: root.level, via: Via::Nothing };
        Ok(self.descend(meter, b"", node.level, from, budget).await?.ptr == node.ptr)
    }

    /// After a READ of `node` failed, or a CAS that finds out what it did: whether it is to be posted again. It leaves
    /// nothing half done, and all that a caller could do is to ask again.
    ///
    /// # Errors
    /// The cause, if asking again does not help or the budget is spent.
    #[cold]
    pub(super) fn read_again(
        &self,
        meter: &Meter,
        node: RemotePtr,
        failed: Failed,
        budget: &mut Budget,
    ) -> Result<(), IndexError> {
        budget.post_again(meter, node, failed).map(drop)
    }

    /// WRITEs `range` of `buf` to a node that nobody can reach yet: one round trip, and one more for each queue pair
    /// that breaks meanwhile. What a failed attempt has left there nobody reads, so it is simply posted again.
    ///
    /// # Errors
    /// As [`Tree::read_again`].
    pub(super) async fn write_new(
        &self,
        meter: &Meter,
        node: RemotePtr,
        buf: Buf,
        range: Range<usize>,
    ) -> Result<Buf, IndexError> {
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, range);
        self.until_written(meter, node, self.verbs.submit(meter, chain)).await
    }

    /// [`Tree::write_new`] for a WRITE that was posted.
    pub(super) async fn until_written(
        &self,
        meter: &Meter,
        node: RemotePtr,
        mut write: V::Submission,
    ) -> Result<Buf, IndexError> {
        let mut budget = self.budget();
        loop {
            match write.await {
                Ok(done) => return Ok(done.into_buf()),
                Err(failed) => {
                    let chain = budget.post_again(meter, node, failed)?;
                    write = self.verbs.submit(meter, chain);
                }
            }
        }
    }

    /// Goes down from `from` to `level`, one round trip per inner node, and shows the cache what it reads.
    pub(super) async fn descend(
        &self,
        meter: &Meter,
        key: &[u8],
        level: u8,
        from: Target,
        budget: &mut Budget,
    ) -> Result<Target, IndexError> {
        let mut at = from;
        // Of the node `at`: only they say that it needs the lock.
        let mut rereads = 0;
        while at.level > level {
            let bytes = self.inner().node_bytes();
            let (buf, span_ns) = if rereads > RETRIES_BEFORE_LOCK {
                (self.read_node_locked(meter, at.ptr, bytes).await?, 0)
            } else {
                match self.verbs.read(meter, at.ptr, bytes).await {
                    Ok(read) => {
                        let span_ns = read.span_ns;
                        (read.into_buf(), span_ns)
                    }
                    Err(failed) => {
                        self.read_again(meter, at.ptr, failed, budget)?;
                        continue;
                    }
                }
            };
            match self.route(&buf, key, at.level, span_ns) {
                Step::Reread(last) => {
                    rereads += 1;
                    budget.spend(meter, at.ptr, last)?;
                    continue;
                }
                Step::Done(child) => {
                    self.show_cache(at.ptr, &buf);
                    at = Target { ptr: child, level: at.level - 1, via: Via::Read(at.ptr) };
                }
                Step::MoveRight(sibling) => {
                    tracing::debug!(name: "sherman.inner.right", node = %at.ptr, "an inner node ends before the key");
                    budget.spend(meter, at.ptr, None)?;
                    at = self.step_right(meter, key, at, &buf, sibling).await?;
                }
                Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    self.forget(at, key);
                    at = self.restart(meter, at.ptr).await?;
                }
            }
            rereads = 0;
        }
        Ok(at)
    }

    /// Where to go on from the leaf `from`, which ends before `key`, as its image says: its right neighbour. The third
    /// step of an operation goes down from the root instead, once: other compute nodes may have put any number of
    /// leaves in between.
    pub(super) async fn move_right(
        &self,
        meter: &Meter,
        key: &[u8],
        from: Target,
        image: &[u8],
        sibling: RemotePtr,
        budget: &mut Budget,
    ) -> Result<Target, IndexError> {
        budget.spend(meter, from.ptr, None)?;
        let right = self.step_right(meter, key, from, image, sibling).await?;
        if budget.count_move_right() != MOVES_BEFORE_DESCENT {
            tracing::debug!(name: "sherman.leaf.right", node = %from.ptr, "a leaf ends before the key");
            return Ok(right);
        }
        tracing::debug!(name: "sherman.leaf.far_right", node = %from.ptr, "the key is many leaves further right");
        let root = self.restart(meter, from.ptr).await?;
        self.descend(meter, key, from.level, root, budget).await
    }

    /// Where to begin anew after what led to `node` was wrong. One round trip.
    pub(super) async fn restart(&self, meter: &Meter, node: RemotePtr) -> Result<Target, IndexError> {
        let root = self.read_root(meter).await?;
        let root = root.ok_or_else(|| IndexError::Corrupt { node, what: "the tree lost its root".into() })?;
        Ok(Target { ptr: root.ptr, level: root.level, via: Via::Nothing })
    }

    /// Drops the cached node that led to `target` for `key`.
    pub(super) fn forget(&self, target: Target, key: &[u8]) {
        if let Via::Cached(via) | Via::Read(via) = target.via {
            self.cache().invalidate(target.level + 1, via, key);
        }
    }

    /// Whether node versions cannot have wrapped around during a read of that duration.
    #[inline]
    pub(super) fn node_version_holds(&self, span_ns: u32) -> bool {
        u64::from(span_ns) < self.version_bound(NodeVersion::COUNT)
    }

    /// Whether entry versions cannot have wrapped around during a read of that duration.
    #[inline]
    pub(super) fn entry_version_holds(&self, span_ns: u32) -> bool {
        u64::from(span_ns) < self.version_bound(EntryVersion::COUNT)
    }

    /// The time in ns that so many writes take at least: each locks, reads a node, and writes. No fabric reads more
    /// than a line per ns.
    #[inline]
    pub(super) fn version_bound(&self, versions: u32) -> u64 {
        let node_ns = (self.leaf().node_bytes() / LINE_BYTES) as u64;
        u64::from(versions) * (u64::from(self.verbs.capabilities().write_interval_ns) + node_ns)
    }

    fn route(&self, image: &[u8], key: &[u8], level: u8, span_ns: u32) -> Step<RemotePtr> {
        if !self.node_version_holds(span_ns) {
            return Step::Reread(Some(Rejection::Slow));
        }
        match self.inner().view(image) {
            Ok(view) if view.header().level() == level => {}
            Ok(_) => return Step::Restart(None),
            Err(rejection) => return Step::after(rejection),
        }
        match self.inner().route(image, key) {
            Ok(InnerRoute::Child(child)) => Step::Done(child),
            Ok(InnerRoute::MoveRight(sibling)) => Step::MoveRight(sibling),
            Ok(InnerRoute::Left) => Step::Restart(None),
            Err(rejection) => Step::after(rejection),
        }
    }

    /// Offers the inner node in `image` to the cache. One that does not parse is not offered.
    pub(super) fn show_cache(&self, address: RemotePtr, image: &[u8]) {
        let Ok(view) = self.inner().view(image) else { return };
        let entries: Result<Vec<_>, _> = view.entries().collect();
        let Ok(entries) = entries else { return };
        let header = view.header();
        let (low, high) = (header.low(), header.high());
        let separators: Vec<(&[u8], RemotePtr)> =
            entries.iter().map(|(key, child)| (key.as_slice(), *child)).collect();
        self.cache().insert(&NodeImage {
            address,
            level: header.level(),
            low: &low,
            high: high.as_deref(),
            separators: &separators,
        });
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::ServerId;

    use super::*;

    #[test]
    fn a_root_word_holds_address_and_level() {
        let root = Root { ptr: RemotePtr::new(ServerId(9), 0xabc0), level: 33 };
        assert_eq!(parse_root(root_word(root)), Some(root));
        assert_eq!(parse_root(0), None);
    }
}
