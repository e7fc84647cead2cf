//! The second stage of allocation: nodes carved from chunks without the network (Sherman section 4.2.4).
//!
//! One allocator per shard and index. Chunks are taken from the servers in turn. A node that a lost race leaves
//! unpublished is returned by [`NodeAllocator::return_extent`], and used again at once. One that is out of the index is
//! retired, and used again when no operation is left that may have its address ([`crate::epoch`]):
//!
//! ```text
//!   chunk ──> in use ──retire──> waits for an epoch ──> free ──> in use
//!                │                                       ^
//!                └──────────────return_extent────────────┘
//! ```
//!
//! Where caches have the address of a node from one operation to the next, its memory can be used again only for what
//! cannot be taken for the wrong thing. Nodes that are *of a kind* are used again for nodes of their size that are
//! asked for as such ([`NodeAllocator::allocate_of_kind`]), and for no others: they are neither divided nor joined. Of
//! some the index says when they are free (`kept.rs`). Other nodes wait for all caches to be emptied first
//! ([`NodeAllocator::retire_cached`]), and are asked no questions then.
//!
//! Free nodes of which a shard has many go to the server that they lie on, and so to other shards (`given.rs`). When
//! the allocator is dropped, all of them do, and what it has not used of its chunks: a process that lives for one node
//! costs no whole chunk.
//!
//! A request for memory (`request.rs`) belongs to the allocator, not to the client that made it. All clients that need
//! memory meanwhile wait for its answer, and any of them continues with it: a client that is dropped, or that its task
//! leaves unpolled, keeps none of them waiting. Else a thousand clients that give up in time would take a thousand
//! chunks.

mod awaited;
mod given;
mod kept;
mod request;
mod search;
mod state;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use thiserror::Error;

pub use self::awaited::Expected;
use self::request::Request;
use self::search::Search;
use self::state::{Retired, State, lock};
use crate::control::nodes::NodeClass;
use crate::control::sweep::List;
use crate::control::{Control, ControlError, IndexId, REST_BYTES_MIN};
use crate::epoch::Pins;
use crate::pointer::{RemotePtr, ServerId};

/// Nodes are aligned to lines.
const NODE_ALIGN: u64 = 64;
/// A flush is asked for when this part of the memory in use waits for one, and this part of a chunk at least. So each
/// node that a cache has to read anew is paid for by the work that took out an eighth as many.
const FLUSHED_PART: u64 = 8;

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

/// Memory for a node of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfKind {
    /// Address of the node.
    pub at: RemotePtr,
    /// The content that it had before.
    pub before: Before,
}

/// The content of memory before it was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing was ever written there.
    Zeros,
    /// Anything, but no node of a kind: nothing leads there.
    Anything,
    /// A node of this kind and size, to which caches may still lead. Its first word is this, if that is known.
    Node(Option<u64>),
}

/// The accounts of the chunks that an allocator has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Bytes of nodes that this shard has allocated, less those that came back to it: also others' nodes, which it has
    /// retired. So one shard's may be below zero; the sum over all shards is what is in use.
    pub used_bytes: i64,
    /// Bytes that are left of chunks, or came back.
    pub free_bytes: u64,
    /// Bytes of nodes, of any shard, that this one has taken out of the index, and that are not free yet, or never will
    /// be. They are in use all the same: stale pointers may lead there.
    pub retired_bytes: u64,
    /// Bytes of nodes that this shard has taken out, or another one, or none: the outcome of a CAS or of a WRITE is not
    /// known.
    pub unsettled_bytes: u64,
    /// Bytes of nodes that were retired and became free, so far.
    pub reclaimed_bytes: u64,
    /// Bytes of nodes that were allocated where others were before, so far.
    pub reused_bytes: u64,
    /// True while a request for memory is not answered: the server may have handed some out.
    pub asks: bool,
}

/// The allocator of one index's nodes on one shard.
pub struct NodeAllocator {
    control: Arc<dyn Control>,
    index: IndexId,
    pins: Rc<Pins>,
    state: Arc<Mutex<State>>,
    /// The request, of any client, that a server has not answered yet.
    request: RefCell<Option<Request>>,
    /// Shared with each node that is about to be retired.
    leaving: Rc<()>,
}

impl NodeAllocator {
    /// Makes an allocator without a chunk, for the shard of these `pins`. `first` is the server where its turn begins;
    /// shards begin at different ones.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// let entry = shard.control().create("mine", "my kind", b"").await?;
    /// let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// let nodes = NodeAllocator::new(control, entry.id, shard.shard().0.into(), pins);
    /// assert_eq!(nodes.used_bytes(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn new(control: Arc<dyn Control>, index: IndexId, first: usize, pins: Rc<Pins>) -> Self {
        let state = Arc::new(Mutex::new(State { next_server: first, ..State::default() }));
        let list: Weak<dyn List> = Arc::<Mutex<State>>::downgrade(&state);
        control.lists().add(index, pins.node(), list);
        let request = RefCell::default();
        NodeAllocator { control, index, pins, state, request, leaving: Rc::default() }
    }

    /// Allocates a node of `bytes` bytes, aligned to 64. Its memory is zeroed unless it was returned before.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
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
        Ok(self.allocate_of(None, bytes, true).await?.at)
    }

    /// Allocates a node on `server` if that has memory left, so that one chain can write it and other memory of the
    /// server; else on any server. Says whether the memory is zeroed.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
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
        match self.allocate_of(Some(server), bytes, false).await {
            Err(AllocError::OutOfMemory { .. }) => self.allocate_of(None, bytes, true).await,
            done => done,
        }
    }

    /// Allocates memory on `server`, and on no other. Says whether it is zeroed.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let page = nodes.allocate_on(ServerId(0), 1024).await?;
    /// assert_eq!((page.at.server(), page.zeroed), (ServerId(0), true));
    /// assert!(nodes.allocate_on(ServerId(7), 1024).await.is_err());
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] if that server has no chunk left.
    pub async fn allocate_on(&self, server: ServerId, bytes: u64) -> Result<Allocated, AllocError> {
        self.allocate_of(Some(server), bytes, true).await
    }

    /// Allocates a node of a kind, on `server` if that has memory left, else on any server: memory of such a node, of
    /// the same size, or else memory to which nothing leads.
    ///
    /// ```
    /// # use farwood_runtime::alloc::{Before, NodeAllocator};
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate_of_kind(ServerId(0), 1000).await?;
    /// assert_eq!(node.before, Before::Zeros);
    /// nodes.return_of_kind(node.at, 1000);
    /// assert_ne!(nodes.allocate(1000).await?, node.at, "it is for such nodes alone");
    /// let again = nodes.allocate_of_kind(ServerId(0), 1000).await?;
    /// assert_eq!((again.at, again.before), (node.at, Before::Node(None)));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`NodeAllocator::allocate`].
    pub async fn allocate_of_kind(&self, server: ServerId, bytes: u64) -> Result<OfKind, AllocError> {
        self.reclaim();
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let of_kind = |server| self.state().take_of_kind(server, bytes);
        if let Some(node) = of_kind(Some(server)) {
            return Ok(node);
        }
        if let Some(node) = self.others_of_kind(server, bytes).await {
            return Ok(node);
        }
        let error = match self.allocate_near(server, bytes).await {
            Ok(Allocated { at, zeroed: true }) => return Ok(OfKind { at, before: Before::Zeros }),
            Ok(Allocated { at, zeroed: false }) => return Ok(OfKind { at, before: Before::Anything }),
            Err(error) => error,
        };
        loop {
            // Another server's will do, or one that came back meanwhile.
            self.reclaim();
            if let Some(node) = of_kind(None) {
                return Ok(node);
            }
            if !self.gather(None, NodeClass { bytes, of_kind: true }).await? {
                return Err(error);
            }
        }
    }

    /// Allocates on one server or on any. `is_last` if there is no other way: then what others have given back is
    /// divided and joined, too.
    async fn allocate_of(
        &self,
        near: Option<ServerId>,
        bytes: u64,
        is_last: bool,
    ) -> Result<Allocated, AllocError> {
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
                    Ok(server) => search.go_on(self.answer(self.ask(server, bytes)).await),
                    Err(error) => Err(error),
                };
                if let Err(error) = asked {
                    self.want_flush();
                    // Another client of the shard may have returned a node meanwhile.
                    if let Some(node) = self.carve(near, bytes).or_else(|| self.reuse(near, bytes)) {
                        return Ok(node);
                    }
                    let is_full = is_last && matches!(error, AllocError::OutOfMemory { .. });
                    if !is_full || !self.gather(near, NodeClass { bytes, of_kind: false }).await? {
                        return Err(error);
                    }
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
        self.reclaim();
        self.state().carve(server, bytes)
    }

    /// Makes a node of returned ones of other sizes: the last resort, where no server has a chunk left.
    fn reuse(&self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        let mut state = self.state();
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
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1024).await?;
    /// nodes.return_extent(node, 1024); // Another client's node was linked first.
    /// let again = nodes.allocate_near(node.server(), 1024).await?;
    /// assert_eq!((again.at, again.zeroed), (node, false));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn return_extent(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut state = self.state();
        state.used_bytes -= bytes as i64;
        state.unpublished = self.pins.retired_now();
        state.give_back(node, bytes);
    }

    /// Takes back a node of a kind that had such a node's memory ([`Before::Node`]), and never became reachable there.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate_of_kind(ServerId(0), 64).await?;
    /// nodes.return_of_kind(node.at, 64);
    /// assert_eq!(nodes.allocate_of_kind(ServerId(0), 64).await?.at, node.at);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn return_of_kind(&self, node: RemotePtr, bytes: u64) {
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        let mut state = self.state();
        state.used_bytes -= bytes as i64;
        state.unpublished = self.pins.retired_now();
        state.give_back_of_kind(node, bytes, None);
    }

    /// Takes back a node, of any shard, that is out of the index for good: others have taken its place, or its pair was
    /// removed. It is used again when all operations have ended that may have its address. To be called when it is
    /// known that the node is out, and only if no cache, of any compute node, has its address.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1000).await?;
    /// nodes.retire(node, 1000);
    /// assert_eq!((nodes.books().retired_bytes, nodes.books().used_bytes), (1024, 1024));
    /// let since = shard.pins().retired_now();
    /// while !shard.pins().is_over(since) {
    ///     shard.control().want_epoch();
    ///     shard.pause(1_000).await;
    /// }
    /// assert_eq!(nodes.allocate_near(node.server(), 1000).await?.at, node);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn retire(&self, node: RemotePtr, bytes: u64) {
        self.wait_for_epoch(node, bytes, None);
    }

    /// Takes back a node of a kind, of any shard, as [`NodeAllocator::retire`] does. Caches may keep its address: it is
    /// used again for nodes of the kind alone ([`NodeAllocator::allocate_of_kind`]). `first_word` is what it begins
    /// with, and will until it is used again.
    ///
    /// ```
    /// # use farwood_runtime::alloc::{Before, NodeAllocator};
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate_of_kind(ServerId(0), 64).await?.at;
    /// nodes.retire_of_kind(node, 64, 7);
    /// let since = shard.pins().retired_now();
    /// while !shard.pins().is_over(since) {
    ///     shard.control().want_epoch();
    ///     shard.pause(1_000).await;
    /// }
    /// let again = nodes.allocate_of_kind(ServerId(0), 64).await?;
    /// assert_eq!((again.at, again.before), (node, Before::Node(Some(7))));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn retire_of_kind(&self, node: RemotePtr, bytes: u64, first_word: u64) {
        self.wait_for_epoch(node, bytes, Some(first_word));
    }

    fn wait_for_epoch(&self, node: RemotePtr, bytes: u64, first_word: Option<u64>) {
        let bytes = self.note_retired(node, bytes);
        let since = self.pins.retired_now();
        self.state().waiting.push_back(Retired {
            since,
            node,
            bytes,
            of_kind: first_word.is_some(),
            first_word,
        });
        self.control.want_epoch();
    }

    /// Takes back a node, of any shard, as [`NodeAllocator::retire`] does, to which caches of any compute node may lead
    /// that are emptied at every flush ([`Pins::flushed`]). It is used again, for anything, behind the next flush but
    /// three epochs: this asks for one when enough waits for it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(64 << 10).await?;
    /// nodes.retire_cached(node, 64 << 10);
    /// while nodes.books().reclaimed_bytes == 0 {
    ///     shard.control().want_epoch();
    ///     shard.pause(1_000).await;
    ///     nodes.reclaim();
    /// }
    /// assert!(shard.pins().flushed() > 0);
    /// assert_eq!(nodes.allocate_near(node.server(), 64 << 10).await?.at, node);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn retire_cached(&self, node: RemotePtr, bytes: u64) {
        let bytes = self.note_retired(node, bytes);
        self.wait_for_flush(node, bytes);
    }

    fn wait_for_flush(&self, node: RemotePtr, bytes: u64) {
        let since = self.pins.retired_now();
        let is_enough = {
            let mut state = self.state();
            state.cached.push_back(Retired { since, node, bytes, of_kind: false, first_word: None });
            state.cached_bytes += bytes;
            let chunk = self.control.servers().iter().map(|server| server.chunk_bytes).max().unwrap_or(0);
            state.cached_bytes >= chunk.max(state.used_bytes.max(0) as u64) / FLUSHED_PART
        };
        self.control.want_epoch();
        if is_enough {
            self.want_flush();
        }
    }

    /// Asks for a flush if anything waits for one.
    fn want_flush(&self) {
        let since = self.state().cached.front().map(|oldest| oldest.since);
        since.into_iter().for_each(|since| self.control.want_flush(since));
    }

    /// Counts a node that is out of the index; yields the bytes that it takes.
    fn note_retired(&self, node: RemotePtr, bytes: u64) -> u64 {
        tracing::debug!(name: "alloc.retired", %node, bytes, "a node is out of the index");
        let bytes = bytes.next_multiple_of(NODE_ALIGN);
        self.state().retired_bytes += bytes;
        bytes
    }

    /// Frees the retired nodes that no operation can have the address of any more. Allocating does so by itself.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// nodes.retire(nodes.allocate(64).await?, 64);
    /// nodes.reclaim();
    /// assert_eq!(nodes.books().reclaimed_bytes, 0, "its epoch is not over");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn reclaim(&self) {
        let mut state = self.state();
        while let Some(since) = state.cached.front().and_then(|node| self.pins.flushed_since(node.since)) {
            let node = state.cached.pop_front().expect("it was looked at");
            tracing::debug!(name: "alloc.flushed", node = %node.node, "no cache leads to a retired node");
            state.cached_bytes -= node.bytes;
            state.waiting.push_back(Retired { since, ..node });
        }
        let mut is_surplus = false;
        while let Some(&Retired { since, node, bytes, of_kind, first_word }) = state.waiting.front()
            && self.pins.is_over(since)
        {
            state.waiting.pop_front();
            state.free_retired(node, bytes);
            let count = state.give_back_as(node, bytes, of_kind, first_word);
            is_surplus |= self.is_surplus(count, node.server(), bytes);
        }
        drop(state);
        if is_surplus {
            self.give_surplus();
        }
    }

    /// Notes that a node, of any shard, is out of the index, and that the outcome of a CAS is not known: this shard has
    /// taken it out, or another one, which has retired it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// # let node = nodes.allocate(1000).await?;
    /// nodes.retire_unsettled(node, 1000);
    /// assert_eq!((nodes.books().retired_bytes, nodes.books().unsettled_bytes), (0, 1024));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn retire_unsettled(&self, node: RemotePtr, bytes: u64) {
        tracing::debug!(name: "alloc.unsettled", %node, bytes, "nothing tells who has taken a node out");
        let (mut state, bytes) = (self.state(), bytes.next_multiple_of(NODE_ALIGN));
        state.unsettled_bytes += bytes;
        state.leaving.insert(node, bytes);
    }

    /// Counts the bytes of nodes allocated here, less those that came back here.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// nodes.allocate(1000).await?;
    /// assert_eq!(nodes.used_bytes(), 1024, "whole lines");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn used_bytes(&self) -> i64 {
        self.state().used_bytes
    }

    /// Accounts for the chunks that were taken: no byte of them is lost, they are the sum of this.
    ///
    /// ```
    /// # use farwood_runtime::alloc::{Books, NodeAllocator};
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// nodes.allocate(1024).await?;
    /// let Books { used_bytes, free_bytes, .. } = nodes.books();
    /// assert_eq!(used_bytes + free_bytes as i64, 64 << 10, "one chunk");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn books(&self) -> Books {
        let state = self.state();
        let pieces: u64 = state.pieces.iter().map(|piece| piece.bytes).sum();
        let returned: u64 = state.returned.iter().map(|((bytes, _), nodes)| bytes * nodes.len() as u64).sum();
        let of_kind: u64 = state.of_kind.iter().map(|((bytes, _), nodes)| bytes * nodes.len() as u64).sum();
        Books {
            used_bytes: state.used_bytes,
            free_bytes: pieces + returned + of_kind,
            retired_bytes: state.retired_bytes,
            unsettled_bytes: state.unsettled_bytes,
            reclaimed_bytes: state.reclaimed_bytes,
            reused_bytes: state.reused_bytes,
            asks: self.request.borrow().is_some(),
        }
    }

    /// Lists the memory that is free here, or will be as soon as no operation has its address: no node lies in it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let (control, pins) = (shard.control().clone(), shard.pins().clone());
    /// # let nodes = NodeAllocator::new(control, IndexId(1), 0, pins);
    /// let node = nodes.allocate(1024).await?;
    /// assert_eq!(nodes.free_extents(), [(node.add(1024), 63 << 10)], "the rest of a chunk");
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn free_extents(&self) -> Vec<(RemotePtr, u64)> {
        self.state().free().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the place of the server whose turn it is, and passes the turn on.
    fn next_server(&self) -> usize {
        let mut state = self.state();
        state.next_server += 1;
        state.next_server - 1
    }

    /// Tells whether retired nodes wait for an epoch or a flush.
    fn awaits_epochs(&self) -> bool {
        let state = self.state();
        !state.waiting.is_empty() || !state.cached.is_empty()
    }
}

impl Drop for NodeAllocator {
    fn drop(&mut self) {
        let _pin = self.pins.pin();
        {
            let mut state = self.state();
            let largest = state.largest;
            for rest in std::mem::take(&mut state.pieces) {
                // A client that needs a node as large as the largest here would be handed the smaller rests first, over
                // and over, before a whole chunk.
                match rest.bytes >= largest.max(REST_BYTES_MIN) {
                    true => {
                        state.note(rest.start, rest.bytes);
                        self.control.return_extent(self.index, rest);
                    }
                    false => _ = state.give_back(rest.start, rest.bytes),
                }
            }
        }
        self.give_all();
        // It stays in the list as well, until that is gone: a sweep is told of it here or there.
        let noted = self.state().noted.clone();
        noted.into_iter().for_each(|noted| self.control.lists().leave(self.index, &noted));
    }
}

#[cfg(test)]
mod tests;
