//! Filling an empty tree from sorted pairs: leaves from left to right, then level by level upwards, then the
//! root word.
//!
//! Nothing can be read before the root word is swapped, so readers see all pairs or none. The cache is given the nodes
//! only after the swap: before, it would lead other clients to them, and for ever after a load that failed. A load that
//! fails, is dropped, or loses the swap to a writer gives its nodes back.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use farwood_cache::Root;
use farwood_runtime::{Buf, Chain, Meter, RemotePtr, ServerId, Verbs};

use super::{BTree, LeafFormat};
use crate::error::{AccessError, LoadError, WriteError};
use crate::layout::Bytes;
use crate::shell::handle::Local;
use crate::shell::nodes::NewNodes;

/// Nodes that are written at the same time.
const WRITES_IN_FLIGHT: usize = 32;

/// Loads `pairs`; yields their number.
pub(crate) async fn run<A: BTree, V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
    tree: &Rc<Local<A, V>>,
    pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
    fill: f64,
) -> Result<u64, LoadError> {
    let meter = Meter::default();
    if tree.read_root(&meter).await?.is_some() {
        return Err(LoadError::NotEmpty);
    }
    let new = tree.new_nodes();
    let mut loader = Loader { tree, meter, writes: VecDeque::new(), new, inner_images: Vec::new() };
    let (count, mut children) = loader.leaves(pairs, slots(tree.leaf().slots(), fill)).await?;
    if count == 0 {
        return Ok(0);
    }
    let mut level = 0;
    let inner_slots = slots(tree.inner().slots(), fill).max(2);
    while children.len() > 1 {
        level += 1;
        children = loader.inner_level(level, children, inner_slots).await?;
    }
    loader.drain(0).await?;
    let root = Root { ptr: children[0].1, level };
    if !tree.cas_root(&loader.meter, None, root, loader.new.publish()).await? {
        return Err(LoadError::NotEmpty);
    }
    for (node, image) in &loader.inner_images {
        tree.cache_node(*node, image);
    }
    Ok(count)
}

fn slots(of: usize, fill: f64) -> usize {
    ((of as f64 * fill).round() as usize).clamp(1, of)
}

/// A node and the least key below it.
type Child = (Bytes, RemotePtr);

struct Loader<'t, A: BTree, V: Verbs> {
    tree: &'t Rc<Local<A, V>>,
    meter: Meter,
    writes: VecDeque<(RemotePtr, V::Submission)>,
    new: NewNodes<'t, A, V>,
    /// Inner nodes for the cache, once the load is published.
    inner_images: Vec<(RemotePtr, Box<[u8]>)>,
}

impl<A: BTree, V: Verbs> Loader<'_, A, V> {
    async fn leaves<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &mut self,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
        slots: usize,
    ) -> Result<(u64, Vec<Child>), LoadError> {
        let mut leaves: Vec<Child> = Vec::new();
        let mut pending: Vec<(K, U)> = Vec::with_capacity(slots);
        let mut count = 0;
        for pair in pairs {
            let (key, value) = pair?;
            if pending.len() == slots {
                let room = self.room_for(&pending);
                let high = pending.get(room).map_or(key.as_ref(), |(key, _)| key.as_ref());
                self.leaf(&mut leaves, &pending[..room], Some(high)).await?;
                pending.drain(..room);
            }
            pending.push((key, value));
            count += 1;
        }
        while !pending.is_empty() {
            let room = self.room_for(&pending);
            let high = pending.get(room).map(|(key, _)| key.as_ref());
            self.leaf(&mut leaves, &pending[..room], high).await?;
            pending.drain(..room);
        }
        Ok((count, leaves))
    }

    /// Counts those of the pairs, at least the first one, that a leaf has room for.
    fn room_for<K: AsRef<[u8]>, U>(&self, pairs: &[(K, U)]) -> usize {
        self.tree.leaf().room_for(pairs.iter().map(|(key, _)| key.as_ref()))
    }

    /// Writes one leaf. Its right neighbour, which begins at `high`, is allocated with it.
    async fn leaf<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &mut self,
        leaves: &mut Vec<Child>,
        pairs: &[(K, U)],
        high: Option<&[u8]>,
    ) -> Result<(), WriteError> {
        let layout = self.tree.leaf();
        let (low, node, sibling) = self.chain_up(leaves, high, layout.node_bytes()).await?;
        let mut buf = self.tree.verbs.lease(layout.node_bytes());
        let header = self.tree.new_header(0, &low, high, sibling);
        if layout.blocks().is_some() {
            let blocks = self.blocks(node.server(), pairs).await?;
            let entries = pairs.iter().zip(&blocks).map(|((key, _), block)| (key.as_ref(), &block[..]));
            layout.build(&mut buf, &header, entries);
        } else {
            layout.build(&mut buf, &header, pairs.iter().map(|(key, value)| (key.as_ref(), value.as_ref())));
        }
        self.write(node, buf).await?;
        Ok(())
    }

    /// Writes a block for each of the pairs, on the server of their leaf; yields what the leaf has of them.
    async fn blocks<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &mut self,
        server: ServerId,
        pairs: &[(K, U)],
    ) -> Result<Vec<[u8; 8]>, WriteError> {
        let format = *self.tree.blocks();
        let mut blocks = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            let bytes = format.block_bytes(key.len(), value.len());
            let at = self.new.allocate(Some(server), bytes).await?;
            let mut buf = self.tree.verbs.lease(bytes);
            let sent = format.build(&mut buf, key, value);
            self.write_part(at, buf, sent).await?;
            blocks.push(format.pointer(at, bytes).bits().to_le_bytes());
        }
        Ok(blocks)
    }

    async fn inner_level(
        &mut self,
        level: u8,
        children: Vec<Child>,
        slots: usize,
    ) -> Result<Vec<Child>, WriteError> {
        let layout = self.tree.inner();
        let mut nodes: Vec<Child> = Vec::with_capacity(children.len().div_ceil(slots));
        let mut rest = children.as_slice();
        while !rest.is_empty() {
            // A last node with a single child would be legal, but a waste.
            let take = if rest.len() == slots + 1 { slots.div_ceil(2) } else { slots.min(rest.len()) };
            let (these, after) = rest.split_at(take);
            rest = after;
            let high = rest.first().map(|(key, _)| key.clone());
            let bytes = layout.node_bytes();
            let (low, node, sibling) = self.chain_up(&mut nodes, high.as_deref(), bytes).await?;
            let mut buf = self.tree.verbs.lease(bytes);
            let header = self.tree.new_header(level, &low, high.as_deref(), sibling);
            layout.build(&mut buf, &header, these.iter().map(|(key, child)| (key.as_slice(), *child)));
            self.inner_images.push((node, Box::from(&buf[..])));
            self.write(node, buf).await?;
        }
        Ok(nodes)
    }

    /// Yields the place of the next node of a level, which was allocated with its left neighbour. Allocates the right
    /// neighbour's place if there will be one.
    async fn chain_up(
        &mut self,
        nodes: &mut Vec<Child>,
        high: Option<&[u8]>,
        bytes: usize,
    ) -> Result<(Bytes, RemotePtr, RemotePtr), WriteError> {
        if nodes.is_empty() {
            // The leftmost node of a level answers for everything below.
            nodes.push((Bytes::new(), self.new.allocate(None, bytes).await?));
        }
        let (low, node) = nodes.last().cloned().expect("not empty");
        let sibling = match high {
            None => RemotePtr::NULL,
            Some(high) => {
                let sibling = self.new.allocate(None, bytes).await?;
                nodes.push((Bytes::from_slice(high), sibling));
                sibling
            }
        };
        Ok((low, node, sibling))
    }

    async fn write(&mut self, node: RemotePtr, buf: Buf) -> Result<(), AccessError> {
        let all = 0..buf.len();
        self.write_part(node, buf, all).await
    }

    async fn write_part(&mut self, node: RemotePtr, buf: Buf, part: Range<usize>) -> Result<(), AccessError> {
        self.drain(WRITES_IN_FLIGHT - 1).await?;
        let mut chain = Chain::with_buffer(node.server(), buf);
        chain.write(node, part);
        self.writes.push_back((node, self.tree.verbs.post(&self.meter, chain)));
        Ok(())
    }

    /// Waits until at most `left` writes are in flight.
    async fn drain(&mut self, left: usize) -> Result<(), AccessError> {
        while self.writes.len() > left {
            let (node, first) = self.writes.pop_front().expect("there are more than `left`");
            self.tree.until_written(&self.meter, node, first).await?;
        }
        Ok(())
    }
}
