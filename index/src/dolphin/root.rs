//! The root: an inner node about the first key byte that has room for every symbol, so it never moves, and behind it
//! the directory of lanes ([`farwood_lock::shared`]). The root word leads there, from the first write on, for good.

use std::rc::Rc;

use farwood_cache::radix::RadixImage;
use farwood_lock::shared::{Lanes, SharedLocks};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use smallvec::SmallVec;

use super::Tree;
use super::descend::{Inner, Unread};
use super::separators::leaf_slot;
use crate::error::{AccessError, WriteError};
use crate::layout::radix::{Child, Header, Link, Parent, Slot, Symbol, build_inner, slot_at};
use crate::layout::range_leaf::RangeHeader;
use crate::layout::{Bytes, Malformed, NodeVersion};
use crate::shell::nodes::{NewNodes, NodeList};
use crate::smart::{Types, child_at};
use crate::step::Budget;

/// Lanes of an index: a word of them in each leaf.
const LANES: u16 = 64;
/// Acquisitions before a shard asks for a lane, where nodes are tiny and so is all else.
const LANES_AFTER_TINY: u32 = 2;

/// Yields the least key that begins with another symbol than the keys of `symbol`.
pub(super) fn end_of(symbol: Symbol) -> Option<Bytes> {
    let next = match symbol {
        Symbol::End => 0,
        Symbol::Byte(byte) => byte.checked_add(1)?,
    };
    Some(Bytes::from_slice(&[next]))
}

/// Yields the least key that begins with `symbol`.
pub(super) fn begin_of(symbol: Symbol) -> Bytes {
    match symbol {
        Symbol::End => Bytes::new(),
        Symbol::Byte(byte) => Bytes::from_slice(&[byte]),
    }
}

impl<V: Verbs> Tree<V> {
    /// Yields the root, if there is one: no round trip once it is known.
    pub(super) async fn read_root(
        &self,
        meter: &Meter,
        budget: &mut Budget,
    ) -> Result<Option<Child>, AccessError> {
        let known = Slot::from_bits(self.cache().root());
        if let Some(root) = known.child() {
            return Ok(Some(root));
        }
        let at = self.shared.entry.root;
        let word = self.read_word(meter, at, budget).await?;
        let slot = Slot::from_bits(word);
        match slot.child() {
            None if word == 0 => Ok(None),
            Some(root) if word == self.root_slot(root).bits() => {
                self.cache().set_root(word);
                Ok(Some(root))
            }
            _ => Err(AccessError::corrupt(at, Malformed::RadixSlot { word })),
        }
    }

    /// Yields the content of the root word.
    pub(super) fn root_slot(&self, root: Child) -> Slot {
        Slot::inner(Symbol::Byte(0), root, self.types().largest())
    }

    pub(super) fn unread_root(&self, root: Child) -> Unread {
        Unread { node: root, class: self.types().largest(), above: None }
    }

    /// Counts the bytes of the root, with the directory of lanes.
    pub(super) fn root_bytes(&self) -> usize {
        self.directory_at() + Lanes::new(RemotePtr::NULL, LANES).directory_bytes()
    }

    fn directory_at(&self) -> usize {
        self.types().node_bytes(self.types().largest())
    }

    /// Writes the image of a root with these slots.
    pub(super) fn build_root(&self, image: &mut [u8], slots: &[Slot]) {
        image.fill(0);
        let header = Header::new(0, self.types().largest(), b"");
        build_inner(
            &mut image[..self.directory_at()],
            Link::Live(Parent::Root),
            &header,
            slots.iter().copied(),
        );
    }

    /// Yields the locks that clients share, of a tree with a root.
    pub(super) fn leaf_locks(&self) -> &SharedLocks<V> {
        self.shared_locks.get_or_init(|| {
            let root = Slot::from_bits(self.cache().root()).child().expect("a tree with a leaf has a root");
            let lanes = Lanes::new(root.ptr().add(self.directory_at() as u64), LANES);
            let after = match self.shared.persisted.geometry.types {
                Types::Lines => lanes.after,
                Types::Tiny => LANES_AFTER_TINY,
            };
            SharedLocks::new(&self.locks, Lanes { after, ..lanes })
        })
    }

    /// Yields the root; makes it if there is none.
    async fn need_root(&self, meter: &Meter, budget: &mut Budget) -> Result<Child, WriteError> {
        loop {
            if let Some(root) = self.read_root(meter, budget).await? {
                return Ok(root);
            }
            let mut image = self.verbs.lease(self.root_bytes());
            self.build_root(&mut image, &[]);
            let mut nodes = self.new_nodes();
            let root = child_at(nodes.write(meter, image, budget).await?)?;
            let tree = self.me.upgrade().expect("a tree that is at work is alive");
            let pending = NewRoot { tree, root, nodes: nodes.publish() };
            let won = self.publish_root(meter, root, budget).await?;
            if !won {
                tracing::debug!(name: "dolphin.root.lost", "another client has made the root");
            }
            pending.settle(won);
        }
    }

    /// Puts the root word, which is 0, by a CAS; false if another client has put another one.
    pub(super) async fn publish_root(
        &self,
        meter: &Meter,
        root: Child,
        budget: &mut Budget,
    ) -> Result<bool, AccessError> {
        let (at, word) = (self.shared.entry.root, self.root_slot(root).bits());
        loop {
            let mut chain = Chain::new(at.server());
            chain.cas(at, 0, word);
            match self.verbs.submit(meter, chain).await {
                Ok(done) => return Ok([0, word].contains(&done.atomics[0])),
                // It has taken effect, or nothing of it will.
                Err(failed) => drop(budget.post_again(meter, at, failed)?),
            }
            match self.read_word(meter, at, budget).await? {
                0 => {}
                found => return Ok(found == word),
            }
        }
    }

    /// Makes the first leaf for keys with the first byte of `key`, with that key in it; false if there is one. Two
    /// round trips and those of the root's lock.
    pub(super) async fn make_leaf(
        &self,
        meter: &Meter,
        key: &[u8],
        value: &[u8],
        budget: &mut Budget,
    ) -> Result<bool, WriteError> {
        let root = self.need_root(meter, budget).await?;
        let (at, symbol) = (self.unread_root(root), Symbol::of(key, 0));
        let (bytes, fused) = (self.inner_bytes(at)?, self.techniques.fused);
        let (held, image) = self.lock_and_read(meter, root.ptr(), bytes, fused).await?;
        let mut inner = match self.judge_inner(at, &image) {
            Ok(inner) if !inner.slots.iter().any(|slot| slot.is_of(symbol)) => inner,
            judged => {
                held.unlock(meter).await?;
                let inner = judged?;
                self.cache_node(at, &inner);
                return Ok(false);
            }
        };
        let mut leaf = self.verbs.lease(self.leaf().node_bytes());
        let (low, high) = (begin_of(symbol), end_of(symbol));
        let (version, high) = (NodeVersion::default(), high.as_deref());
        let header = RangeHeader { version, next: None, low: &low, high, is_reused: false };
        self.leaf().build(&mut leaf, &header, [(key, value)]);
        let mut nodes = self.new_nodes();
        let written = nodes.write(meter, leaf, budget).await;
        let leaf = match written.and_then(|leaf| Ok(child_at(leaf)?)) {
            Ok(leaf) => leaf,
            Err(error) => {
                held.unlock(meter).await?;
                return Err(error);
            }
        };
        let mut chain = Chain::new(root.ptr().server());
        let slot = leaf_slot(symbol, leaf);
        chain.write_word(root.ptr().add(slot_at(inner.slots.len())), slot.bits());
        nodes.publish();
        held.release(meter, chain, true).await?;
        inner.slots.push(slot);
        self.cache_node(at, &inner);
        Ok(true)
    }

    /// Offers an inner node to the cache.
    pub(super) fn cache_node(&self, at: Unread, inner: &Inner) {
        let mut slots: SmallVec<[u64; 32]> = inner.slots.iter().map(|slot| slot.bits()).collect();
        // Ascending ones take less room.
        slots.sort_unstable_by_key(|word| Slot::from_bits(*word).symbol());
        self.cache().insert(&RadixImage {
            node: at.node.bits(),
            class: at.class,
            depth: inner.position as u8,
            prefix: b"",
            slots: &slots,
        });
    }
}

/// A node that is about to become the root. If the future that holds it is dropped, the janitor makes it the root, or
/// gives it back to the allocator.
struct NewRoot<V: Verbs> {
    tree: Rc<Tree<V>>,
    root: Child,
    /// Empty once its fate is known.
    nodes: NodeList,
}

impl<V: Verbs> NewRoot<V> {
    fn settle(mut self, won: bool) {
        let nodes = std::mem::take(&mut self.nodes);
        if !won {
            drop(NewNodes::of(&self.tree, nodes));
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
            let made =
                tree.persist(async || tree.publish_root(&Meter::default(), root, &mut tree.budget()).await);
            match made.await {
                Ok(true) => {}
                Ok(false) => drop(NewNodes::of(&tree, nodes)),
                Err(error) => tracing::warn!(name: "dolphin.root.unknown", %error, "a new root may be lost"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_bound_their_keys() {
        for byte in 0..=255 {
            let symbol = Symbol::Byte(byte);
            assert_eq!(*begin_of(symbol), [byte]);
            assert_eq!(end_of(symbol), byte.checked_add(1).map(|byte| begin_of(Symbol::Byte(byte))));
        }
        assert_eq!((begin_of(Symbol::End).len(), end_of(Symbol::End)), (0, Some(begin_of(Symbol::Byte(0)))));
    }
}
