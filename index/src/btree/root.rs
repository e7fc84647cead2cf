//! The root: the word that holds it, how it is read, and how a node becomes it.
//!
//! The root word holds the root's address; nodes are aligned to 64 bytes, so its low bits have room for the level.
//!
//! ```text
//!  63            48 47                              6 5      0
//! +----------------+---------------------------------+--------+
//! | memory server  | offset of the root, high bits   | level  |      0: no node yet
//! +----------------+---------------------------------+--------+
//! ```
//!
//! A root that is split stays the left half, so a node that was the root once is the leftmost of its level for as long
//! as it is of the tree, and is marked as frozen or freed afterwards (`lower.rs`): that tells what became of a CAS on
//! the word whose outcome is not known. Nodes of a new root that lost the race go back to the allocator; those of one
//! that other clients may have reached never do.

use std::rc::Rc;

use farwood_cache::Root;
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};

use super::descend::Target;
use super::{BTree, LeafFormat};
use crate::error::{AccessError, WriteError};
use crate::layout::{LINE_BYTES, Rejection, kind_of};
use crate::shell::handle::Local;
use crate::shell::nodes::NodeList;
use crate::step::Budget;

const LEVEL_MASK: u64 = 0x3f;

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Reads the root word. One round trip.
    pub(super) async fn read_root(&self, meter: &Meter) -> Result<Option<Root>, AccessError> {
        let word = self.shared.entry.root;
        let mut budget = self.budget();
        let word = self.read_word(meter, word, &mut budget).await?;
        let root = parse_root(word);
        if let Some(root) = root {
            if root.ptr.is_null() {
                let node = self.shared.entry.root;
                return Err(AccessError::corrupt(node, format!("the root word is {word:#x}")));
            }
            self.cache().set_root(root);
        }
        Ok(root)
    }

    /// Gives an empty tree its first leaf, unless another client does at the same time.
    pub(crate) async fn create_root_leaf(&self, meter: &Meter) -> Result<(), WriteError> {
        let bytes = self.leaf().node_bytes();
        let leaf = self.new_node(bytes).await?;
        let mut buf = self.verbs.lease(bytes);
        let header = self.new_header(0, b"", None, RemotePtr::NULL);
        self.leaf().build(&mut buf, &header, []);
        self.write_new(meter, leaf.node, buf, 0..bytes).await?;
        let root = Root { ptr: leaf.node, level: 0 };
        self.cas_root(meter, None, root, leaf.publish()).await?;
        Ok(())
    }

    /// Makes `new` the root if `old` still is; yields whether it did. If not, `nodes` (the new root and those below it,
    /// with their sizes in bytes), which no other client knows of, go back to the allocator. One round trip.
    ///
    /// A CAS of unknown outcome has taken effect, or will not any more. If it has, `new` may be the root no longer: one
    /// was put above it, or it was taken down. So this asks whether it has been one before the CAS is posted again:
    ///
    /// ```text
    ///   here    CAS old -> new: it arrives ✗ ·····························> CAS old -> new finds newer: not ours?
    ///   other                              splits new, CAS new -> newer                 giving it back would share it
    ///   other                              lowers the root: CAS new -> old, frees new   it would be put up once more
    /// ```
    ///
    /// # Errors
    /// If the fabric fails for good. `new` may be the root then: the janitor finds out, as it does if the future is
    /// dropped.
    pub(super) async fn cas_root(
        &self,
        meter: &Meter,
        old: Option<Root>,
        new: Root,
        nodes: NodeList,
    ) -> Result<bool, AccessError> {
        let word = self.shared.entry.root;
        let tree = self.me.upgrade().expect("a tree that is at work is alive");
        let pending = NewRoot { tree, root: new, nodes };
        let expected = old.map_or(0, root_word);
        let mut budget = self.budget();
        let won = loop {
            let mut chain = Chain::new(word.server());
            chain.cas(word, expected, root_word(new));
            match self.verbs.submit(meter, chain).await {
                Ok(done) => break done.atomics[0] == expected,
                Err(failed) => self.read_again(meter, word, failed, &mut budget)?,
            }
            tracing::debug!(name: "btree.root.settled", "the root word tells what became of a CAS");
            if self.has_been_root(meter, new, &mut budget).await? {
                break true;
            }
        };
        if won {
            self.cache().set_root(new);
        } else {
            tracing::debug!(name: "btree.root.lost", level = new.level, "another client was first");
        }
        pending.settle(won);
        Ok(won)
    }

    /// Tells whether `node`, which this client has made, was made the root: then it is the leftmost of its level, or
    /// was marked since, as no node is that none has found. Its memory is not used again while the client is at work.
    async fn has_been_root(
        &self,
        meter: &Meter,
        node: Root,
        budget: &mut Budget,
    ) -> Result<bool, AccessError> {
        let root = self.read_root(meter).await?;
        if let Some(root) = root.filter(|root| root.level >= node.level) {
            let leftmost = self.descend(meter, b"", node.level, Target::root(root), budget).await?;
            if leftmost.ptr == node.ptr {
                return Ok(true);
            }
        }
        let line = self.read(meter, node.ptr, LINE_BYTES, budget).await?;
        Ok(matches!(kind_of(&line), Err(Rejection::Frozen | Rejection::Freed)))
    }

    /// Gives nodes that no client can reach back to the allocator.
    fn take_back(&self, nodes: &[(RemotePtr, u64)]) {
        nodes.iter().for_each(|&(node, bytes)| self.allocator.return_extent(node, bytes));
    }
}

/// A node that is about to become the root. If the future that holds it is dropped, the janitor finds out what became
/// of it: nodes that no client can reach go back to the allocator.
struct NewRoot<A: BTree, V: Verbs> {
    tree: Rc<Local<A, V>>,
    root: Root,
    /// Empty once its fate is known.
    nodes: NodeList,
}

impl<A: BTree, V: Verbs> NewRoot<A, V> {
    fn settle(mut self, won: bool) {
        let nodes = std::mem::take(&mut self.nodes);
        if !won {
            self.tree.take_back(&nodes);
        }
    }
}

impl<A: BTree, V: Verbs> Drop for NewRoot<A, V> {
    fn drop(&mut self) {
        let (root, nodes) = (self.root, std::mem::take(&mut self.nodes));
        if nodes.is_empty() {
            return;
        }
        let tree = Rc::clone(&self.tree);
        self.tree.verbs.defer(async move {
            // The READs go behind the CAS, on its queue pair.
            let found = tree.persist(async || {
                tree.has_been_root(&Meter::default(), root, &mut tree.budget()).await
            });
            match found.await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::debug!(name: "btree.root.withdrawn", node = %root.ptr, "a new root is none");
                    tree.take_back(&nodes);
                }
                Err(error) => {
                    tracing::warn!(name: "btree.root.unknown", node = %root.ptr, %error, "a new root may be lost");
                }
            }
        });
    }
}

pub(super) fn root_word(root: Root) -> u64 {
    root.ptr.to_bits() | u64::from(root.level)
}

pub(super) fn parse_root(word: u64) -> Option<Root> {
    let ptr = RemotePtr::from_bits(word & !LEVEL_MASK);
    (word != 0).then_some(Root { ptr, level: (word & LEVEL_MASK) as u8 })
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
