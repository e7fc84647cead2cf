//! Splits (Sherman figure 7, lines 18 to 39; Lehman and Yao's B-link tree): the right half of a full node moves to a
//! new sibling, then a separator for it goes into the parent, and so on upwards. One lock at a time.
//!
//! Between the two, and for as long as the separator is missing, the right half is reached over the left one's
//! sibling pointer. So an operation that is dropped after its split has taken effect leaves a correct tree; the
//! separator is then put in by the janitor. If its client has died, or there was no memory for an inner node, others
//! put it in later (`repair.rs`).
//!
//! This is for nodes of all levels that have a header, and a lock in the lock table. It does not know what is in the
//! halves.

use std::rc::Rc;

use farwood_lock::Held;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::BTree;
use super::node::Unpublished;
use super::separator::{Owed, Separator};
use crate::error::AccessError;
use crate::layout::{Bytes, Header, NodeHeader, NodeVersion, freeze};
use crate::shell::handle::Local;

/// The entries of a full node, divided.
pub(crate) struct Halves<T> {
    pub(crate) left: Vec<T>,
    pub(crate) right: Vec<T>,
}

/// Divides entries, the larger half left; either half has an entry.
pub(crate) fn halve<T>(mut entries: Vec<T>) -> Halves<T> {
    let right = entries.split_off(entries.len().div_ceil(2));
    Halves { left: entries, right }
}

impl<A: BTree, V: Verbs> Local<A, V> {
    /// Writes node and sibling, the halves of `buf`, and unlocks the node: one round trip where `combine` can put them
    /// in one chain; three for a sibling in the place of a merged leaf (`retired.rs`), whose lock is held, or two where
    /// both have one lock.
    pub(crate) async fn publish_split(
        self: &Rc<Self>,
        meter: &Meter,
        mut held: Held<V>,
        sibling: Unpublished<'_, A, V>,
        mut buf: Buf,
        separator: Separator,
    ) -> Result<Owed<A, V>, AccessError> {
        let node = held.node();
        let bytes = buf.len() / 2;
        let (new, is_again, has_lock) = (sibling.node, sibling.is_again(), sibling.has_lock());
        // Stale pointers may lead to memory that is used again: what is there is frozen until the node leads to it.
        let thawed = is_again.then(|| {
            let word = *buf[bytes..].first_chunk().expect("a node has more than one word");
            freeze(&mut buf[bytes..]);
            u64::from_le_bytes(word)
        });
        let together = self.chains().combine && node.server() == new.server() && !is_again;
        if !together {
            // If this fails nothing refers to the sibling: it goes back, and the janitor unlocks the node, which is
            // whole.
            buf = self.write_new(meter, new, buf, bytes..2 * bytes).await?;
        }
        let mut chain = Chain::with_buffer(node.server(), buf);
        if together {
            chain.write(new, bytes..2 * bytes);
        }
        chain.write(node, 0..bytes);
        if let Some(word) = thawed.filter(|_| !has_lock) {
            chain.write_word(new, word);
        }
        if together {
            // Every line of the node changes, since its version does.
            held.with_unpublished_prefix(1);
        }
        // From here on the split may take effect whatever happens to this future.
        let frozen = sibling.publish_frozen();
        let owed = Owed::new(self, node, separator);
        if let Err(error) = held.release(meter, chain, self.chains().combine).await {
            // The janitor goes on. The separator is put in once the node's lock can be taken again: then the split has
            // taken effect.
            tracing::debug!(name: "btree.split.unknown", %node, %error, "a split may have taken effect, or will");
            return Err(error.into());
        }
        if let Some((word, own)) = thawed.zip(frozen) {
            let mut chain = Chain::new(new.server());
            chain.write_word(new, word);
            if let Err(error) = own.release(meter, chain, true).await {
                tracing::debug!(name: "btree.split.frozen", %new, %error, "a new leaf is frozen until it is met");
            }
        }
        Ok(owed)
    }
}

/// Header fields that the images which replace a node take over from it.
pub(crate) struct OldNode {
    level: u8,
    low: Bytes,
    high: Option<Bytes>,
    sibling: RemotePtr,
    incarnation: u32,
    next_version: NodeVersion,
}

impl OldNode {
    pub(crate) fn of(header: &Header<'_>) -> Self {
        OldNode {
            level: header.level(),
            low: header.low(),
            high: header.high(),
            sibling: header.sibling(),
            incarnation: header.incarnation(),
            next_version: header.node_version().next(),
        }
    }

    /// Makes the header of the node with other entries.
    pub(super) fn same(&self) -> NodeHeader<'_> {
        NodeHeader {
            level: self.level,
            low: &self.low,
            high: self.high.as_deref(),
            sibling: self.sibling,
            incarnation: self.incarnation,
            node_version: self.next_version,
        }
    }

    /// Makes the header of the node with the keys of its right neighbour, too, which has that edge.
    pub(super) fn united<'a>(&'a self, high: Option<&'a [u8]>, sibling: RemotePtr) -> NodeHeader<'a> {
        NodeHeader { high, sibling, ..self.same() }
    }

    /// Makes the header of the left half, which ends at `middle`.
    pub(crate) fn left<'a>(&'a self, middle: &'a [u8], sibling: RemotePtr) -> NodeHeader<'a> {
        NodeHeader { high: Some(middle), sibling, ..self.same() }
    }

    /// Makes the header of the right half, a new node from `middle` on.
    pub(crate) fn right<'a>(&'a self, middle: &'a [u8], incarnation: u32) -> NodeHeader<'a> {
        NodeHeader { low: middle, incarnation, node_version: NodeVersion::default(), ..self.same() }
    }
}
