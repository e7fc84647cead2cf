//! The second stage of allocation: nodes carved from chunks without the network (Sherman section 4.2.4).
//!
//! One allocator per shard and index. Chunks are taken from the servers in turn. Memory in use is never handed out
//! again; a node that a lost race leaves unpublished is returned by [`NodeAllocator::return_extent`]. Memory that was
//! never handed out goes back to its server when the allocator is dropped: a process that lives for one node costs no
//! whole chunk.
//!
//! A request for a chunk belongs to the allocator, not to the client that made it. All clients that need memory
//! meanwhile wait for its answer, and any of them continues with it: a client that is dropped, or that its task leaves
//! unpolled, keeps none of them waiting. Else a thousand clients that give up in time would take a thousand chunks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, Shared};
use thiserror::Error;

use crate::control::{Chunk, Control, ControlError, IndexId, REST_BYTES_MIN, ServerInfo};
use crate::pointer::{RemotePtr, ServerId};

/// Nodes are aligned to lines.
const NODE_ALIGN: u64 = 64;

/// Failures to allocate a node. The index is as it was.
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

/// Memory for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Address of the node.
    pub at: RemotePtr,
    /// True if nothing was ever written there.
    pub zeroed: bool,
}

/// The accounts of the chunks that an allocator has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Bytes of nodes allocated and not returned.
    pub used_bytes: u64,
    /// Bytes that are left of chunks, or were returned.
    pub free_bytes: u64,
    /// True while a request for a chunk is not answered: the server may have handed one out.
    pub asks: bool,
}

/// The allocator of one index's nodes on one shard.
pub struct NodeAllocator {
    control: Arc<dyn Control>,
    index: IndexId,
    state: Rc<RefCell<State>>,
    /// The request, of any client, that a server has not answered yet.
    request: RefCell<Option<ChunkRequest>>,
}

/// A request that keeps its chunk as soon as it arrives, and yields the chunk's bytes.
type ChunkRequest = Shared<LocalBoxFuture<'static, Result<u64, ControlError>>>;

#[derive(Default)]
struct State {
    /// Unused rests of the chunks that were taken, never written to. Nodes are carved from the last one while it lasts.
    pieces: Vec<Chunk>,
    /// The largest node that was asked for.
    largest: u64,
    next_server: usize,
    returned: BTreeMap<u64, Vec<RemotePtr>>,
    used_bytes: u64,
}

impl NodeAllocator {
    /// Makes an allocator without a chunk. `first` is the server where its turn begins; shards begin at different ones.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let entry = shard.control().create("mine", "my kind", b"").await?;
    /// let nodes = NodeAllocator::new(shard.control().clone(), entry.id, shard.shard().0.into());
    /// assert_eq!(nodes.used_bytes(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn new(control: Arc<dyn Control>, index: IndexId, first: usize) -> Self {
        let state = State { next_server: first, ..State::default() };
        let (state, request) = (Rc::new(RefCell::new(state)), RefCell::default());
        NodeAllocator { control, index, state, request }
    }

    /// Allocates a node of `bytes` bytes, aligned to 64. Its memory is zeroed unless it was returned before.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// let node = nodes.allocate(1000).await?;
    /// assert_eq!(node.offset() % 64, 0);
    /// let bytes = shard.read(&Meter::default(), node, 1000).await?.into_buf();
    /// assert_eq!(bytes[..], [0; 1000]);
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if no server has a chunk left.
    pub async fn allocate(&self, bytes: u64) -> Result<RemotePtr, AllocError> {
        Ok(self.allocate_of(None, bytes).await?.at)
    }

    /// Allocates a node on `server` if that has memory left, so that one chain can write it and other memory of the
    /// server; else on any server. Says whether the memory is zeroed.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// let node = nodes.allocate(1024).await?;
    /// let sibling = nodes.allocate_near(node.server(), 1024).await?;
    /// assert!(sibling.zeroed && sibling.at != node);
    /// assert_eq!(sibling.at.server(), node.server());
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`NodeAllocator::allocate`].
    pub async fn allocate_near(&self, server: ServerId, bytes: u64) -> Result<Allocated, AllocError> {
        match self.allocate_of(Some(server), bytes).await {
            Err(AllocError::OutOfMemory { .. }) => self.allocate_of(None, bytes).await,
            done => done,
        }
    }

    /// Allocates memory on `server`, and on no other. Says whether it is zeroed.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// let page = nodes.allocate_on(ServerId(0), 1024).await?;
    /// assert_eq!((page.at.server(), page.zeroed), (ServerId(0), true));
    /// assert!(nodes.allocate_on(ServerId(7), 1024).await.is_err());
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if that server has no chunk left.
    pub async fn allocate_on(&self, server: ServerId, bytes: u64) -> Result<Allocated, AllocError> {
        self.allocate_of(Some(server), bytes).await
    }

    async fn allocate_of(&self, near: Option<ServerId>, bytes: u64) -> Result<Allocated, AllocError> {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut search = Search::new(self.control.servers(), near, bytes);
        loop {
            if let Some(node) = self.carve(near, bytes) {
                return Ok(node);
            }
            // Another client's request comes first: else each of hundreds would take a chunk of its own.
            let asked = self.request.borrow().clone();
            let Some(request) = asked else {
                let asked = match search.next(|| self.next_server()) {
                    Ok(server) => search.go_on(self.answer(self.ask(server)).await),
                    Err(error) => Err(error),
                };
                if let Err(error) = asked {
                    // Another client of the shard may have returned a node meanwhile.
                    return self.carve(near, bytes).or_else(|| self.reuse(near, bytes)).ok_or(error);
                }
                continue;
            };
            if let Err(error) = self.answer(request).await {
                // The server repeats the error if it still applies.
                tracing::debug!(%error, "a chunk was asked for, and not had");
            }
        }
    }

    fn carve(&self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        self.state.borrow_mut().carve(server, bytes)
    }

    /// Makes a node of returned ones of other sizes: the last resort, where no server has a chunk left.
    fn reuse(&self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        let mut state = self.state.borrow_mut();
        state.divide(server, bytes).or_else(|| {
            state.join();
            state.carve(server, bytes).or_else(|| state.divide(server, bytes))
        })
    }

    /// Takes back a node that was allocated here and never became reachable.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// let node = nodes.allocate(1024).await?;
    /// nodes.return_extent(node, 1024); // Another client's node was linked first.
    /// let again = nodes.allocate_near(node.server(), 1024).await?;
    /// assert_eq!((again.at, again.zeroed), (node, false));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn return_extent(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut state = self.state.borrow_mut();
        state.used_bytes -= bytes;
        state.returned.entry(bytes).or_default().push(node);
    }

    /// Counts the bytes of nodes allocated here and not returned.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// nodes.allocate(1000).await?;
    /// assert_eq!(nodes.used_bytes(), 1024, "whole lines");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn used_bytes(&self) -> u64 {
        self.state.borrow().used_bytes
    }

    /// Accounts for the chunks that were taken: no byte of them is lost, they are the sum of this.
    ///
    /// ```
    /// # use farwood_runtime::alloc::{Books, NodeAllocator};
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let nodes = NodeAllocator::new(shard.control().clone(), IndexId(1), 0);
    /// nodes.allocate(1024).await?;
    /// let Books { used_bytes, free_bytes, .. } = nodes.books();
    /// assert_eq!(used_bytes + free_bytes, 64 << 10, "one chunk");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn books(&self) -> Books {
        let state = self.state.borrow();
        let pieces: u64 = state.pieces.iter().map(|piece| piece.bytes).sum();
        let returned: u64 = state.returned.iter().map(|(bytes, nodes)| bytes * nodes.len() as u64).sum();
        Books {
            used_bytes: state.used_bytes,
            free_bytes: pieces + returned,
            asks: self.request.borrow().is_some(),
        }
    }

    /// Returns the place of the server whose turn it is, and passes the turn on.
    fn next_server(&self) -> usize {
        let mut state = self.state.borrow_mut();
        state.next_server += 1;
        state.next_server - 1
    }

    /// Asks a server for a chunk.
    fn ask(&self, server: ServerId) -> ChunkRequest {
        let (answer, state) = (self.control.chunk(server, self.index), Rc::clone(&self.state));
        let keep = move |answer: Result<Chunk, ControlError>| {
            answer.map(|chunk| {
                state.borrow_mut().pieces.push(chunk);
                chunk.bytes
            })
        };
        let request = answer.map(keep).boxed_local().shared();
        *self.request.borrow_mut() = Some(request.clone());
        request
    }

    /// Awaits the answer to a request, which all clients that wait for it get.
    async fn answer(&self, request: ChunkRequest) -> Result<u64, ControlError> {
        let answer = request.clone().await;
        self.request.borrow_mut().take_if(|asked| asked.ptr_eq(&request));
        answer
    }
}

/// One client's search for a chunk with room for its node: on one server, or on all of them in turn.
struct Search<'s> {
    servers: &'s [ServerInfo],
    near: Option<ServerId>,
    bytes: u64,
    /// Number of servers that are still to be asked.
    left: usize,
    /// The server that was asked last, if it is to be asked again, and the bytes that it may have left.
    again: Option<(ServerId, u64)>,
}

impl<'s> Search<'s> {
    fn new(servers: &'s [ServerInfo], near: Option<ServerId>, bytes: u64) -> Self {
        let left = if near.is_some() { 1 } else { servers.len() };
        Search { servers, near, bytes, left, again: None }
    }

    /// Chooses the server to ask. `turn` says which one's turn it is.
    fn next(&mut self, mut turn: impl FnMut() -> usize) -> Result<ServerId, AllocError> {
        let Search { servers, near, bytes, .. } = *self;
        let chunk_bytes = servers.iter().map(|server| server.chunk_bytes).max().unwrap_or(0);
        if chunk_bytes < bytes {
            return Err(AllocError::TooLarge { bytes, chunk_bytes });
        }
        if let Some((server, _)) = self.again {
            return Ok(server);
        }
        while self.left > 0 {
            self.left -= 1;
            let server = match near {
                Some(near) => servers.get(usize::from(near.0)),
                None => Some(&servers[turn() % servers.len()]),
            };
            if let Some(server) = server.filter(|server| server.chunk_bytes >= bytes) {
                self.again = Some((server.id, server.region_bytes));
                return Ok(server.id);
            }
        }
        Err(AllocError::OutOfMemory { servers: if near.is_some() { 1 } else { servers.len() } })
    }

    /// Continues after the answer of the server that was asked last. It is asked again after a chunk that is too small:
    /// the allocator keeps those for smaller nodes, so the server does not hand them out again, and their number is
    /// bounded.
    fn go_on(&mut self, answer: Result<u64, ControlError>) -> Result<(), AllocError> {
        let asked = self.again.take();
        match answer {
            // A server that has handed out more than it has would do so for ever.
            Ok(bytes) if bytes < self.bytes => {
                self.again =
                    asked.and_then(|(server, left)| Some((server, left.checked_sub(bytes.max(NODE_ALIGN))?)));
                Ok(())
            }
            // Other clients that waited for it may use it up: then the search begins anew.
            Ok(_) => {
                *self = Search::new(self.servers, self.near, self.bytes);
                Ok(())
            }
            Err(ControlError::OutOfMemory { .. }) => Ok(()),
            Err(error) => Err(AllocError::Control(error)),
        }
    }
}

impl Drop for NodeAllocator {
    fn drop(&mut self) {
        let State { pieces, largest, .. } = self.state.take();
        // A client that needs a node as large as the largest here would be handed the smaller rests first, over and
        // over, before a whole chunk.
        let useful = |rest: &Chunk| rest.bytes >= largest.max(REST_BYTES_MIN);
        for rest in pieces.into_iter().filter(useful) {
            self.control.return_extent(self.index, rest);
        }
    }
}

impl State {
    fn carve(&mut self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        self.largest = self.largest.max(bytes);
        let is_there = |at: RemotePtr| server.is_none_or(|server| at.server() == server);
        if let Some(nodes) = self.returned.get_mut(&bytes)
            && let Some(place) = nodes.iter().rposition(|&node| is_there(node))
        {
            self.used_bytes += bytes;
            return Some(Allocated { at: nodes.swap_remove(place), zeroed: false });
        }
        let place = self.pieces.iter().rposition(|piece| piece.bytes >= bytes && is_there(piece.start))?;
        let mut piece = self.pieces.swap_remove(place);
        let node = piece.start;
        piece.bytes -= bytes;
        if piece.bytes > 0 {
            piece.start = node.add(bytes);
            self.pieces.push(piece);
        }
        self.used_bytes += bytes;
        Some(Allocated { at: node, zeroed: true })
    }

    /// Divides the smallest node of a larger size that was returned.
    fn divide(&mut self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        let is_there = |at: RemotePtr| server.is_none_or(|server| at.server() == server);
        let (&size, nodes) = self
            .returned
            .range_mut(bytes + 1..)
            .find(|(_, nodes)| nodes.iter().any(|&node| is_there(node)))?;
        let place = nodes.iter().rposition(|&node| is_there(node))?;
        let at = nodes.swap_remove(place);
        self.returned.entry(size - bytes).or_default().push(at.add(bytes));
        self.used_bytes += bytes;
        Some(Allocated { at, zeroed: false })
    }

    /// Makes one of returned nodes that lie side by side.
    fn join(&mut self) {
        let returned = std::mem::take(&mut self.returned);
        let sizes = returned.into_iter();
        let mut nodes: Vec<(RemotePtr, u64)> =
            sizes.flat_map(|(bytes, nodes)| nodes.into_iter().map(move |node| (node, bytes))).collect();
        nodes.sort_unstable_by_key(|(node, _)| node.to_bits());
        let mut joined: Vec<(RemotePtr, u64)> = Vec::new();
        for (node, bytes) in nodes {
            match joined.last_mut() {
                Some((first, size)) if first.add(*size) == node => *size += bytes,
                _ => joined.push((node, bytes)),
            }
        }
        for (node, bytes) in joined {
            self.returned.entry(bytes).or_default().push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::task::Poll;

    use futures::future::poll_fn;

    use super::*;
    use crate::control::{CatalogEntry, ServerUsage};
    use crate::fabric::embedded::{Cluster, EmbeddedConfig};

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

    /// A control plane that answers each request for a chunk after `looks` polls.
    struct Slow {
        cluster: Arc<Cluster>,
        looks: u32,
    }

    impl Control for Slow {
        fn servers(&self) -> &[ServerInfo] {
            self.cluster.servers()
        }

        fn chunk(
            &self,
            server: ServerId,
            index: IndexId,
        ) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
            // The server does it at once; its answer takes its time.
            let (mut left, mut answer) = (self.looks, self.cluster.chunk(server, index));
            poll_fn(move |cx| {
                if left == 0 {
                    return answer.poll_unpin(cx);
                }
                left -= 1;
                Poll::Pending
            })
            .boxed_local()
        }

        fn return_extent(&self, index: IndexId, rest: Chunk) {
            self.cluster.return_extent(index, rest);
        }

        fn create(
            &self,
            name: &str,
            kind: &str,
            config: &[u8],
        ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
            self.cluster.create(name, kind, config)
        }

        fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
            self.cluster.open(name)
        }

        fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
            self.cluster.list()
        }

        fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
            self.cluster.drop_index(name)
        }

        fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
            self.cluster.usage()
        }

        fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>> {
            self.cluster.dead()
        }
    }

    #[test]
    fn dropped_operations_lose_no_chunk() {
        const CHUNK_BYTES: u64 = 16 << 10;
        let config = EmbeddedConfig {
            servers: 2,
            bytes_per_server: 256 << 10,
            chunk_bytes: CHUNK_BYTES,
            locks_per_server: 16,
            ..Default::default()
        };
        let cluster = Cluster::embedded(config).unwrap();
        let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 10_000 });
        let allocator = NodeAllocator::new(slow, IndexId(1), 0);
        let (mut nodes, mut dropped) = (0, 0);
        // Some want a certain server, others any.
        while dropped < 100_000 {
            let had = match dropped % 3 {
                0 => allocator.allocate_near(ServerId(1), 4096).now_or_never().map(|node| node.is_ok()),
                _ => allocator.allocate(4096).now_or_never().map(|node| node.is_ok()),
            };
            match had {
                Some(had) => {
                    assert!(had, "after {nodes} nodes and {dropped} dropped operations");
                    nodes += 1;
                }
                None => dropped += 1,
            }
        }
        let usage = cluster.usage().now_or_never().unwrap().unwrap();
        let taken: u64 = usage.iter().map(|server| server.chunk_bytes).sum();
        let kept: u64 = allocator.state.borrow().pieces.iter().map(|piece| piece.bytes).sum();
        let asked = allocator.request.borrow().iter().count() as u64 * CHUNK_BYTES;
        assert!(nodes >= 32, "{nodes} nodes");
        assert_eq!(taken, nodes * 4096 + kept + asked, "{nodes} nodes, {kept} bytes kept");
    }

    /// A client that asked for a chunk, and is not polled any more, does not keep others from it.
    #[test]
    fn a_client_that_stands_still_keeps_none_from_memory() {
        let config =
            EmbeddedConfig { bytes_per_server: 4 << 20, chunk_bytes: 16 << 10, ..Default::default() };
        let cluster = Cluster::embedded(EmbeddedConfig { locks_per_server: 16, ..config }).unwrap();
        let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 3 });
        let allocator = NodeAllocator::new(slow, IndexId(1), 0);
        let mut still = Box::pin(allocator.allocate(4096));
        assert!((&mut still).now_or_never().is_none());
        let mut other = Box::pin(allocator.allocate(4096));
        let had = (0..10).find_map(|_| (&mut other).now_or_never());
        assert!(had.is_some_and(|node| node.is_ok()), "it waits for a client that does not go on");
        assert!((&mut still).now_or_never().is_some_and(|node| node.is_ok()), "its chunk is there");
        let books = allocator.books();
        assert_eq!(
            (books.used_bytes, books.free_bytes, books.asks),
            (8192, 8192, false),
            "one chunk for both"
        );
    }

    /// Clients that waited for a chunk use it up before the one that asked for it: that one asks once more.
    #[test]
    fn a_chunk_that_others_use_up_is_asked_for_again() {
        let config =
            EmbeddedConfig { bytes_per_server: 4 << 20, chunk_bytes: 16 << 10, ..Default::default() };
        let cluster = Cluster::embedded(EmbeddedConfig { locks_per_server: 16, ..config }).unwrap();
        for near in [None, Some(ServerId(0))] {
            let slow = Arc::new(Slow { cluster: Arc::clone(&cluster), looks: 3 });
            let allocator = NodeAllocator::new(slow, IndexId(1), 0);
            let mut clients: Vec<_> = (0..9).map(|_| Box::pin(allocator.allocate_of(near, 8192))).collect();
            // The one that asks comes last each time.
            for _ in 0..100 {
                clients.reverse();
                clients.retain_mut(|client| match client.now_or_never() {
                    Some(node) => {
                        node.expect("there is memory");
                        false
                    }
                    None => true,
                });
            }
            assert!(clients.is_empty());
            drop(clients);
            assert_eq!(allocator.books().used_bytes, 9 * 8192);
        }
    }

    #[test]
    fn reuses_what_was_given_back_and_counts_what_is_in_use() {
        let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0);
        let node = allocate(&allocator, 1000).unwrap();
        assert_eq!(allocator.used_bytes(), 1024);
        allocator.return_extent(node, 1000);
        assert_eq!(allocator.used_bytes(), 0);
        assert_eq!(allocate(&allocator, 1024), Ok(node));
    }

    /// The nodes of a load that failed are as small as leaves are; the next one wants larger ones, too.
    #[test]
    fn small_nodes_that_were_given_back_are_joined_when_all_else_is_used_up() {
        let control = cluster(2);
        let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0);
        let nodes: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 192).ok()).collect();
        let sum = |books: Books| books.used_bytes + books.free_bytes;
        let all = sum(allocator.books());
        assert_eq!(allocate(&allocator, 1024), Err(AllocError::OutOfMemory { servers: 2 }));
        // Every second one is as good as none.
        let (kept, given): (Vec<_>, Vec<_>) = (0..).zip(nodes).partition(|(i, _)| i % 2 == 0);
        let give = |nodes: Vec<(usize, RemotePtr)>| {
            nodes.into_iter().for_each(|(_, node)| allocator.return_extent(node, 192));
        };
        give(given);
        assert_eq!(allocate(&allocator, 1024), Err(AllocError::OutOfMemory { servers: 2 }));
        give(kept);
        let mut taken = BTreeSet::new();
        while let Ok(node) = allocate(&allocator, 1024) {
            assert!((0..1024).step_by(64).all(|at| taken.insert(node.add(at))), "{node} overlaps");
        }
        let books = allocator.books();
        assert_eq!((books.used_bytes, sum(books)), (taken.len() as u64 * 64, all));
        assert!(books.free_bytes < all / 8, "{books:?}");
    }

    /// A load that failed has returned leaves only; the next one wants inner nodes, too.
    #[test]
    fn large_nodes_that_were_given_back_are_divided_when_all_else_is_used_up() {
        let allocator = NodeAllocator::new(cluster(1), IndexId(1), 0);
        let nodes: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 192).ok()).collect();
        nodes.iter().for_each(|&node| allocator.return_extent(node, 192));
        let mut small: Vec<_> = std::iter::from_fn(|| allocate(&allocator, 64).ok()).collect();
        small.sort();
        small.dedup();
        assert!(small.len() >= 3 * nodes.len(), "each of them gives three");
        assert!(allocate(&allocator, 192).is_err());
    }

    fn taken(control: &Arc<dyn Control>) -> u64 {
        let usage = control.usage().now_or_never().expect("embedded control calls are direct").unwrap();
        usage.iter().map(|server| server.chunk_bytes).sum()
    }

    /// A process that lives for one node takes a node, not a chunk.
    #[test]
    fn what_was_not_used_goes_to_the_next() {
        const CHUNK: u64 = 1 << 20;
        let control: Arc<dyn Control> = Cluster::embedded(EmbeddedConfig {
            bytes_per_server: 4 << 20,
            chunk_bytes: CHUNK,
            locks_per_server: 16,
            ..Default::default()
        })
        .unwrap();
        let nodes: BTreeSet<_> = (0..2000)
            .map(|_| {
                let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0);
                let node = allocate(&allocator, 1000).unwrap();
                assert_eq!(allocator.used_bytes(), 1024);
                node.offset()
            })
            .collect();
        assert_eq!(nodes.len(), 2000);
        assert!(nodes.iter().zip(nodes.iter().skip(1)).all(|(node, next)| next - node >= 1024));
        assert_eq!(taken(&control), (2000u64 * 1024).next_multiple_of(CHUNK));
        // Another index has no part in it.
        let other = NodeAllocator::new(Arc::clone(&control), IndexId(2), 0);
        let node = allocate(&other, 1000).unwrap();
        assert!(
            !nodes
                .range(node.offset() + 1 - CHUNK..node.offset() + CHUNK)
                .any(|at| at + 1024 > node.offset())
        );
        assert_eq!(taken(&control), 3 * CHUNK);
    }

    /// Rests that are too small for one node serve smaller ones, and cost no client a chunk that is there.
    #[test]
    fn small_rests_are_passed_over_and_used_up() {
        let control = cluster(1);
        let chunk = 16 << 10;
        let chunks = taken_all(&control) / chunk;
        let new = |bytes: u64| {
            let allocator = NodeAllocator::new(Arc::clone(&control), IndexId(1), 0);
            let node = allocate(&allocator, bytes);
            (allocator, node)
        };
        // All but one were taken by a client that used 10 KiB of each.
        let used: Vec<_> = (1..chunks)
            .map(|_| control.chunk(ServerId(0), IndexId(1)).now_or_never().unwrap().unwrap().start)
            .collect();
        used.iter().for_each(|start| {
            control.return_extent(IndexId(1), Chunk { start: start.add(10 << 10), bytes: 6 << 10 });
        });
        assert_eq!(taken(&control), (chunks - 1) * chunk);
        let (large, node) = new(16 << 10);
        let node = node.expect("the last chunk, behind many rests that are too small");
        assert_eq!((large.used_bytes(), taken(&control)), (16 << 10, chunks * chunk));
        assert_eq!(allocate(&large, 8 << 10), Err(AllocError::OutOfMemory { servers: 1 }));
        let mut all = vec![node];
        while let Ok(node) = allocate(&large, 6 << 10) {
            assert!(all.iter().all(|other| other != &node));
            all.push(node);
        }
        assert_eq!(all.len() as u64, chunks);
        assert_eq!(large.used_bytes(), (16 << 10) + (chunks - 1) * (6 << 10));
        // They are smaller than its largest node and used up besides: nothing is left for others.
        drop(large);
        assert_eq!(new(4096).1, Err(AllocError::OutOfMemory { servers: 1 }));
    }

    /// Returns the bytes of all chunks.
    fn taken_all(control: &Arc<dyn Control>) -> u64 {
        control.usage().now_or_never().expect("direct").unwrap()[0].capacity_bytes
    }

    /// Memory that a dropped index returned belongs to no index, and memory that it has not returned goes nowhere.
    #[test]
    fn allocators_may_outlive_their_index() {
        let control = cluster(1);
        let entry = |name: &str| control.create(name, "sherman", b"").now_or_never().unwrap().unwrap().id;
        let (first, second) = (entry("first"), entry("second"));
        let allocator = NodeAllocator::new(Arc::clone(&control), first, 0);
        let node = allocate(&allocator, 64).unwrap();
        control.drop_index("first").now_or_never().unwrap().unwrap();
        let heir = NodeAllocator::new(Arc::clone(&control), second, 0);
        assert_eq!(allocate(&heir, 64), Ok(node), "the same chunk");
        drop(allocator);
        let other = NodeAllocator::new(Arc::clone(&control), second, 0);
        assert!(allocate(&other, 64).unwrap().offset() >= node.offset() + (16 << 10));
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
