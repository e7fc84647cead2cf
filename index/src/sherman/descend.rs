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

use farwood_cache::{NodeImage, Root};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::Tree;
use crate::error::IndexError;
use crate::layout::{EntryVersion, InnerRoute, LINE_BYTES, NodeHeader, NodeVersion};
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
    /// The node above that led here: what to drop from the cache if it was wrong.
    pub(super) via: Option<RemotePtr>,
}

pub(super) fn root_word(root: Root) -> u64 {
    root.ptr.to_bits() | u64::from(root.level)
}

fn parse_root(word: u64) -> Option<Root> {
    let ptr = RemotePtr::from_bits(word & !LEVEL_MASK);
    (word != 0).then_some(Root { ptr, level: (word & LEVEL_MASK) as u8 })
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
                Ok(Some(Target { ptr: steer.child, level: 0, via: Some(steer.via) }))
            }
            Some(steer) => {
                let from = Target { ptr: steer.child, level: steer.child_level, via: Some(steer.via) };
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
        let from = Target { ptr: root.ptr, level: root.level, via: None };
        self.descend(meter, key, level, from, budget).await.map(Some)
    }

    /// Reads the root word. One round trip.
    pub(super) async fn read_root(&self, meter: &Meter) -> Result<Option<Root>, IndexError> {
        let word = self.shared.entry.root;
        let buf = self.verbs.read(meter, word, 8).await?.into_buf();
        let word = u64::from_le_bytes(buf[..8].try_into().expect("eight bytes"));
        let root = parse_root(word);
        if let Some(root) = root {
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
        let mut chain = Chain::with_buffer(leaf.node.server(), buf);
        chain.write(leaf.node, 0..bytes);
        self.verbs.submit(meter, chain).await?;
        // The swap may take effect even if this future is dropped meanwhile: better lose the leaf than share it.
        let leaf = leaf.publish();
        if !self.swap_root(meter, None, Root { ptr: leaf, level: 0 }).await? {
            self.allocator.give_back(leaf, bytes as u64);
        }
        Ok(())
    }

    /// Makes `new` the root if `old` still is. One round trip.
    pub(super) async fn swap_root(
        &self,
        meter: &Meter,
        old: Option<Root>,
        new: Root,
    ) -> Result<bool, IndexError> {
        let word = self.shared.entry.root;
        let expected = old.map_or(0, root_word);
        let mut chain = Chain::new(word.server());
        chain.cas(word, expected, root_word(new));
        let swapped = self.verbs.submit(meter, chain).await?.atomics[0] == expected;
        if swapped {
            self.cache().set_root(new);
        }
        Ok(swapped)
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
        while at.level > level {
            let read = self.verbs.read(meter, at.ptr, self.inner().node_bytes()).await?;
            let span_ns = read.span_ns;
            let buf = read.into_buf();
            match self.route(&buf, key, at.level, span_ns) {
                Step::Done(child) => {
                    self.show_cache(at.ptr, &buf);
                    at = Target { ptr: child, level: at.level - 1, via: Some(at.ptr) };
                }
                Step::MoveRight(sibling) => {
                    budget.spend(meter, at.ptr, None)?;
                    self.forget(at, key);
                    if self.cache().root().is_some_and(|root| root.ptr == at.ptr) {
                        // A root with a right neighbour is the root no more.
                        self.read_root(meter).await?;
                    }
                    at = Target { ptr: sibling, via: None, ..at };
                }
                Step::Reread(last) => budget.spend(meter, at.ptr, last)?,
                Step::Restart(last) => {
                    budget.spend(meter, at.ptr, last)?;
                    self.forget(at, key);
                    at = self.restart(meter, at.ptr).await?;
                }
            }
        }
        Ok(at)
    }

    /// Where to go on from the leaf `from`, which ends before `key`: its right neighbour. The third step of
    /// an operation goes down from the root instead, once: other compute nodes may have put any number of
    /// leaves in between.
    pub(super) async fn move_right(
        &self,
        meter: &Meter,
        key: &[u8],
        from: Target,
        sibling: RemotePtr,
        budget: &mut Budget,
    ) -> Result<Target, IndexError> {
        budget.spend(meter, from.ptr, None)?;
        self.forget(from, key);
        if budget.count_move_right() != MOVES_BEFORE_DESCENT {
            return Ok(Target { ptr: sibling, level: from.level, via: None });
        }
        let root = self.restart(meter, from.ptr).await?;
        self.descend(meter, key, from.level, root, budget).await
    }

    /// Where to begin anew after what led to `node` was wrong. One round trip.
    pub(super) async fn restart(&self, meter: &Meter, node: RemotePtr) -> Result<Target, IndexError> {
        let root = self.read_root(meter).await?;
        let root = root.ok_or_else(|| IndexError::Corrupt { node, what: "the tree lost its root".into() })?;
        Ok(Target { ptr: root.ptr, level: root.level, via: None })
    }

    /// Drops the cached node that led to `target` for `key`.
    pub(super) fn forget(&self, target: Target, key: &[u8]) {
        if let Some(via) = target.via {
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
    fn version_bound(&self, versions: u32) -> u64 {
        let node_ns = (self.leaf().node_bytes() / LINE_BYTES) as u64;
        u64::from(versions) * (u64::from(self.verbs.capabilities().write_interval_ns) + node_ns)
    }

    fn route(&self, image: &[u8], key: &[u8], level: u8, span_ns: u32) -> Step<RemotePtr> {
        if !self.node_version_holds(span_ns) {
            return Step::Reread(None);
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
