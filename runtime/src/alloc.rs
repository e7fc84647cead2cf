//! The second stage of allocation: nodes carved from chunks without the network (Sherman section 4.2.4).
//!
//! One allocator per shard and index. Chunks are taken from the servers in turn. Memory in use is never handed out
//! again; what a lost race leaves unpublished goes back by [`NodeAllocator::give_back`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use crate::control::{Control, ControlError, IndexId};
use crate::pointer::{RemotePtr, ServerId};

/// Nodes are aligned to lines.
const NODE_ALIGN: u64 = 64;

/// Why no node could be allocated. The index is as it was.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// No server has a chunk left.
    #[error(
        "out of memory: none of the {servers} memory servers has a free chunk left; add memory or drop an index"
    )]
    #[expect(missing_docs, reason = "the message names the field")]
    OutOfMemory { servers: usize },
    /// A node is larger than a chunk.
    #[error("a node of {bytes} bytes does not fit into a chunk of {chunk_bytes} bytes: use larger chunks")]
    #[expect(missing_docs, reason = "the message names the fields")]
    TooLarge { bytes: u64, chunk_bytes: u64 },
    /// A control service failed otherwise.
    #[error(transparent)]
    Control(ControlError),
}

/// Carves nodes of one index on one shard.
pub struct NodeAllocator {
    control: Arc<dyn Control>,
    index: IndexId,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// What is left of the current chunk.
    next: Option<RemotePtr>,
    left: u64,
    next_server: usize,
    returned: BTreeMap<u64, Vec<RemotePtr>>,
    used_bytes: u64,
}

impl NodeAllocator {
    /// An allocator without a chunk. `first` is where it begins its turn over the servers; shards begin at different
    /// ones.
    pub fn new(control: Arc<dyn Control>, index: IndexId, first: usize) -> Self {
        let state = State { next_server: first, ..State::default() };
        NodeAllocator { control, index, state: RefCell::new(state) }
    }

    /// Memory for a node of `bytes` bytes, aligned to 64. It is zeroed unless it was given back before.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if no server has a chunk left.
    pub async fn allocate(&self, bytes: u64) -> Result<RemotePtr, AllocError> {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        loop {
            if let Some(node) = self.state.borrow_mut().carve(bytes) {
                return Ok(node);
            }
            self.take_chunk(bytes).await?;
        }
    }

    /// Takes back a node that was allocated here and never became reachable.
    pub fn give_back(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut state = self.state.borrow_mut();
        state.used_bytes -= bytes;
        state.returned.entry(bytes).or_default().push(node);
    }

    /// Bytes of nodes allocated here and not given back.
    pub fn used_bytes(&self) -> u64 {
        self.state.borrow().used_bytes
    }

    async fn take_chunk(&self, bytes: u64) -> Result<(), AllocError> {
        let servers = self.control.servers().len();
        for _ in 0..servers {
            let server = {
                let mut state = self.state.borrow_mut();
                state.next_server += 1;
                ServerId(((state.next_server - 1) % servers) as u16)
            };
            match self.control.chunk(server, self.index).await {
                Ok(chunk) if chunk.bytes < bytes => {
                    return Err(AllocError::TooLarge { bytes, chunk_bytes: chunk.bytes });
                }
                Ok(chunk) => {
                    let mut state = self.state.borrow_mut();
                    state.next = Some(chunk.start);
                    state.left = chunk.bytes;
                    return Ok(());
                }
                Err(ControlError::OutOfMemory { .. }) => {}
                Err(error) => return Err(AllocError::Control(error)),
            }
        }
        Err(AllocError::OutOfMemory { servers })
    }
}

impl State {
    fn carve(&mut self, bytes: u64) -> Option<RemotePtr> {
        if let Some(node) = self.returned.get_mut(&bytes).and_then(Vec::pop) {
            self.used_bytes += bytes;
            return Some(node);
        }
        let node = self.next.filter(|_| self.left >= bytes)?;
        self.left -= bytes;
        self.next = Some(node.add(bytes));
        self.used_bytes += bytes;
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::memory::{Cluster, EmbeddedConfig};

    fn cluster(servers: u16) -> Arc<dyn Control> {
        Cluster::embedded(EmbeddedConfig {
            servers,
            bytes_per_server: 256 << 10,
            chunk_bytes: 16 << 10,
            locks_per_server: 16,
            ..Default::default()
        })
        .unwrap()
    }

    fn allocate(allocator: &NodeAllocator, bytes: u64) -> Result<RemotePtr, AllocError> {
        allocator.allocate(bytes).now_or_never().expect("embedded control calls are direct")
    }

    #[test]
    fn nodes_never_overlap_and_memory_ends_with_an_error() {
        let control = cluster(2);
        let allocators: Vec<_> =
            (0..2).map(|i| NodeAllocator::new(Arc::clone(&control), IndexId(1), i)).collect();
        let mut nodes = Vec::new();
        'full: loop {
            for (i, bytes) in [100, 1024, 64, 4000].into_iter().enumerate() {
                match allocate(&allocators[i % 2], bytes) {
                    Ok(node) => nodes.push((node, bytes)),
                    Err(error) => {
                        assert_eq!(error, AllocError::OutOfMemory { servers: 2 });
                        break 'full;
                    }
                }
            }
        }
        nodes.sort();
        assert!(nodes.len() > 100);
        assert!(nodes.iter().any(|(n, _)| n.server().0 == 0) && nodes.iter().any(|(n, _)| n.server().0 == 1));
        for pair in nodes.windows(2) {
            let ((first, bytes), (second, _)) = (pair[0], pair[1]);
            assert!(first.server() != second.server() || first.offset() + bytes <= second.offset());
            assert_eq!(first.offset() % 64, 0);
        }
    }

    #[test]
    fn reuses_what_was_given_back_and_counts_what_is_in_use() {
        let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0);
        let node = allocate(&allocator, 1000).unwrap();
        assert_eq!(allocator.used_bytes(), 1024);
        allocator.give_back(node, 1000);
        assert_eq!(allocator.used_bytes(), 0);
        assert_eq!(allocate(&allocator, 1024), Ok(node));
    }

    #[test]
    fn says_when_a_node_exceeds_a_chunk() {
        let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0);
        assert_eq!(
            allocate(&allocator, 16385),
            Err(AllocError::TooLarge { bytes: 16448, chunk_bytes: 16384 })
        );
    }
}
