//! Finding the node of some level that answers for a key: from the cache, else down from the root.

use farwood_cache::{CachedRoute, NodeImage, Root};
use farwood_runtime::{Meter, RemotePtr, Verbs};

use super::BTree;
use super::node::RETRIES_BEFORE_LOCK;
use crate::error::AccessError;
use crate::layout::{Bytes, InnerRoute, Rejection};
use crate::shell::handle::Local;
use crate::step::{Budget, Step};

/// A leaf that was split is followed by its other half, and for a moment by a quarter or two that the parent does not
/// know yet. An operation that has to go further right was led here by a cache entry that is long outdated.
const MOVES_BEFORE_DESCENT: u32 = 3;

/// A node that should answer for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) ptr: RemotePtr,
    pub(crate) level: u8,
    pub(crate) via: Via,
    /// The node's right neighbour as the node above has it, null for the last one of its level: none if that does not
    /// say. Where addresses tell ([`super::LeafFormat::TOLD_BY_ADDRESS`]), a leaf that has this neighbour answers for
    /// the keys that led to it.
    pub(crate) next: Option<RemotePtr>,
}

impl Target {
    /// Makes the target of the root word.
    pub(super) fn root(root: Root) -> Self {
        Target { ptr: root.ptr, level: root.level, via: Via::Nothing, next: None }
    }
}

/// The right edge of a node that ends before what led to it says.
pub(crate) struct RightEdge<H: FnOnce() -> Option<Bytes>> {
    /// Yields the key that the node ends before; none if the fence cannot be read.
    pub(crate) high: H,
    /// The node behind it.
    pub(crate) sibling: RemotePtr,
}

/// The node above that led to a target: what to drop from the cache if it was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// The root word, or a left neighbour.
    Nothing,
    /// The cached copy of this node, which may be outdated.
    Cached(RemotePtr),
    /// This node, which the operation has just read.
    Read(RemotePtr),
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Finds the leaf that should answer for `key`; none if the tree has no node yet. Costs no round trip when the
    /// cache knows.
    #[inline]
    pub(crate) async fn locate_leaf(
        &self,
        meter: &Meter,
        key: &[u8],
        budget: &mut Budget,
    ) -> Result<Option<Target>, AccessError> {
        let Some(CachedRoute { child, child_level, via, next }) = self.reader().find(key) else {
            return self.locate_from_root(meter, key, 0, budget).await;
        };
        let from = Target { ptr: child, level: child_level, via: Via::Cached(via), next };
        if child_level == 0 {
            Ok(Some(from))
        } else {
            self.descend(meter, key, 0, from, budget).await.map(Some)
        }
    }

    /// Finds the node of `level` that should answer for `key`, from the root; none if the tree is not that high.
    pub(super) async fn locate_from_root(
        &self,
        meter: &Meter,
        key: &[u8],
        level: u8,
        budget: &mut Budget,
    ) -> Result<Option<Target>, AccessError> {
        let known = self.cache().root().filter(|root| root.level >= level);
        let root = match known {
            Some(root) => Some(root),
            None => self.read_root(meter).await?,
        };
        let Some(root) = root.filter(|root| root.level >= level) else { return Ok(None) };
        let found = self.descend(meter, key, level, Target::root(root), budget).await?;
        Ok((found.level == level).then_some(found))
    }

    /// Goes down from `from` to `level`, one round trip per inner node, and shows the cache what it reads. Where the
    /// root got lower than that meanwhile, it yields the root.
    pub(crate) async fn descend(
        &self,
        meter: &Meter,
        key: &[u8],
        level: u8,
        from: Target,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        let mut at = from;
        // Of the node `at` only: they decide when it is read under its lock.
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
                Step::Done((child, next)) => {
                    self.cache_node(at.ptr, &buf);
                    at = Target { ptr: child, level: at.level - 1, via: Via::Read(at.ptr), next };
                }
                Step::MoveRight(sibling) => {
                    tracing::debug!(name: "btree.inner.right", node = %at.ptr, "an inner node ends before the key");
                    budget.spend(meter, at.ptr, None)?;
                    let high = || self.inner().view(&buf).ok().and_then(|inner| inner.header().high());
                    at = self.step_right(meter, key, at, RightEdge { high, sibling }).await?;
                }
                Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    self.invalidate_cached(at, key);
                    at = match last {
                        Some(gone @ (Rejection::Freed | Rejection::Frozen)) => {
                            Box::pin(self.leave_freed_inner(meter, key, at, gone, budget)).await?
                        }
                        _ => self.restart(meter, at.ptr).await?,
                    };
                }
            }
            rereads = 0;
        }
        Ok(at)
    }

    /// Goes on from the leaf `from`, which ends before `key`: to its right neighbour. The third step of an operation
    /// goes down from the root instead, once: other compute nodes may have put any number of leaves in between.
    pub(crate) async fn move_right(
        &self,
        meter: &Meter,
        key: &[u8],
        from: Target,
        edge: RightEdge<impl FnOnce() -> Option<Bytes>>,
        budget: &mut Budget,
    ) -> Result<Target, AccessError> {
        budget.spend(meter, from.ptr, None)?;
        let right = self.step_right(meter, key, from, edge).await?;
        if budget.count_move_right() != MOVES_BEFORE_DESCENT {
            tracing::debug!(name: "btree.leaf.right", node = %from.ptr, "a leaf ends before the key");
            return Ok(right);
        }
        tracing::debug!(name: "btree.leaf.far_right", node = %from.ptr, "the key is many leaves further right");
        let root = self.restart(meter, from.ptr).await?;
        self.descend(meter, key, from.level, root, budget).await
    }

    /// Yields the root, to begin anew there after a wrong pointer led to `node`. One round trip.
    pub(crate) async fn restart(&self, meter: &Meter, node: RemotePtr) -> Result<Target, AccessError> {
        let root = self.read_root(meter).await?;
        let root = root.ok_or_else(|| AccessError::corrupt(node, "the tree lost its root"))?;
        Ok(Target::root(root))
    }

    /// Drops the cached node that led to `target` for `key`.
    pub(crate) fn invalidate_cached(&self, target: Target, key: &[u8]) {
        if let Via::Cached(via) | Via::Read(via) = target.via {
            self.cache().invalidate(target.level + 1, via, key);
        }
    }

    /// Yields the child for `key` and its right neighbour.
    fn route(
        &self,
        image: &[u8],
        key: &[u8],
        level: u8,
        span_ns: u32,
    ) -> Step<(RemotePtr, Option<RemotePtr>)> {
        if !self.node_version_holds(level, span_ns) {
            return Step::Reread(Some(Rejection::Slow));
        }
        match self.inner().view(image) {
            Ok(view) if view.header().level() == level => {}
            Ok(_) => return Step::Restart(None),
            Err(rejection) => return Step::after(rejection),
        }
        match self.inner().route(image, key) {
            Ok(InnerRoute::Child { child, next }) => Step::Done((child, next)),
            Ok(InnerRoute::MoveRight(sibling)) => Step::MoveRight(sibling),
            Ok(InnerRoute::Left) => Step::Restart(None),
            Err(rejection) => Step::after(rejection),
        }
    }

    /// Offers the inner node in `image` to the cache. One that does not parse is not offered.
    pub(super) fn cache_node(&self, address: RemotePtr, image: &[u8]) {
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
