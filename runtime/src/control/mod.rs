//! The control plane: what a compute node asks of memory servers apart from reading and writing their memory. It takes
//! no part in index operations.
//!
//! Here is what a compute node sees: [`Control`] and its vocabulary. In the embedded fabric its calls are direct calls
//! ([`crate::fabric::embedded`]). Otherwise they are messages ([`wire`]) in frames ([`frame`]) after a [`greeting`],
//! over Unix or TCP sockets, between a [`remote::RemoteControl`] and the [`crate::service`] of each memory server.

pub mod address;
pub mod error;
pub mod frame;
pub mod greeting;
pub(crate) mod names;
pub(crate) mod node_ids;
pub mod nodes;
pub mod queue_pair;
pub mod remote;
pub mod seal;
pub(crate) mod stream;
pub mod sweep;
pub mod wire;

use std::sync::Arc;

use futures::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

pub use self::address::ServerAddress;
pub use self::error::ControlError;
use self::nodes::{NodeBatch, WantedNodes};
pub use self::remote::{ConnectConfig, ConnectError, RemoteControl};
use self::sweep::{Lists, Step};
use crate::pointer::{RemotePtr, ServerId};

const WORD_BYTES: u64 = 8;
/// Alignment of the beginning and the end of rests of chunks.
pub(crate) const REST_ALIGN: u64 = 64;
/// Smallest rest that is worth a request. It also bounds the number of pieces that a memory server remembers.
pub(crate) const REST_BYTES_MIN: u64 = 4096;

/// An index of the catalog, by a number that is not used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct IndexId(pub u32);

/// Description of what a memory server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The server's id in the cluster.
    pub id: ServerId,
    /// Size of its region.
    pub region_bytes: u64,
    /// Its lock words in host memory.
    pub locks: LockRegion,
    /// Its lock words in on-chip (device) memory, where it has any: atomics on them do not cross PCIe.
    pub device_locks: Option<LockRegion>,
    /// Size of the chunks that it hands out.
    pub chunk_bytes: u64,
}

/// Consecutive 64-bit lock words of one server, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRegion {
    /// The first word.
    pub base: RemotePtr,
    /// Number of words.
    pub count: u64,
}

impl LockRegion {
    /// Returns the length in bytes.
    ///
    /// ```
    /// # use farwood_runtime::{LockRegion, RemotePtr, ServerId};
    /// let locks = LockRegion { base: RemotePtr::new(ServerId(0), 4096), count: 16 };
    /// assert_eq!(locks.bytes(), 128);
    /// ```
    pub fn bytes(&self) -> u64 {
        self.count * WORD_BYTES
    }

    /// Tells whether the byte at `at` is part of the range.
    ///
    /// ```
    /// # use farwood_runtime::{LockRegion, RemotePtr, ServerId};
    /// let locks = LockRegion { base: RemotePtr::new(ServerId(0), 4096), count: 16 };
    /// assert!(locks.contains(locks.base.add(120)));
    /// assert!(!locks.contains(locks.base.add(128)));
    /// ```
    pub fn contains(&self, at: RemotePtr) -> bool {
        let (server, start) = (self.base.server(), self.base.offset());
        at.server() == server && (start..start + self.bytes()).contains(&at.offset())
    }
}

/// A piece of a server's region that belongs to one shard until the index that it was taken for is dropped: a whole
/// chunk, or the rest of one that another shard gave back unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First byte; aligned to 64 bytes, to 4096 if the chunk is whole.
    pub start: RemotePtr,
    /// Length: a multiple of 64; the server's `chunk_bytes` if the chunk is whole, else less.
    pub bytes: u64,
}

/// A named index of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Its number.
    pub id: IndexId,
    /// Kind of index, as the command line spells it.
    pub kind: String,
    /// Its configuration in the form that the kind of index writes and reads.
    pub config: Vec<u8>,
    /// The 8-byte word that holds the address of its root node, 0 before there is one.
    pub root: RemotePtr,
    /// Ids of compute nodes, ascending, that had died before the index was created, and none of whose operations can
    /// take effect any more: lock words that bear one of them guard nothing of this index, and may be taken over from
    /// exactly that word. All clients that create or open the index get the same ids; empty in lists.
    pub dead_owners: Arc<[u16]>,
}

/// Usage of a server's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerUsage {
    /// Bytes that can be handed out as chunks.
    pub capacity_bytes: u64,
    /// Bytes that were handed out as chunks.
    pub chunk_bytes: u64,
    /// Indexes in the catalog.
    pub indexes: u32,
    /// Bytes of those handed out that belong to indexes which silent connections have open: they cannot be had back
    /// before these have proved dead.
    pub silent_bytes: u64,
    /// The cluster's epoch ([`crate::epoch`]), of the server that counts it: the first one.
    pub epoch: u64,
    /// True if memory that is out of an index waits for the next epoch, as far as that server knows.
    pub waits: bool,
}

/// Memory of one index on one server, and what the server knows of those who may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pieces of the index's chunks, without what was given back of them, ascending. None lies in two chunks.
    pub used: Vec<Chunk>,
    /// Pieces that were given back of the index's chunks, unused or as free nodes: no node lies there, and they are
    /// handed out again.
    pub rests: Vec<Chunk>,
    /// Number of clients beside the asking one that may use the server's memory: they are connected, or silent.
    pub others: u32,
    /// Number of times that a client has joined the server, so far. Where it is what it was, none has come and gone.
    pub joins: u64,
}

/// The control services of a cluster's memory servers.
pub trait Control: Send + Sync {
    /// Lists the cluster's servers, in the order of their ids.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let first = &shard.control().servers()[0];
    /// assert!(first.locks.contains(first.locks.base));
    /// assert_eq!((first.region_bytes, first.chunk_bytes), (4 << 20, 64 << 10));
    /// # Ok(()) }).unwrap();
    /// ```
    fn servers(&self) -> &[ServerInfo];

    /// Hands out a chunk of `server`'s region for `index`, all zero: rests of chunks that were returned come first.
    ///
    /// ```
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let entry = control.create("mine", "my kind", b"").await?;
    /// let chunk = control.chunk(ServerId(0), entry.id).await?;
    /// assert_eq!((chunk.start.server(), chunk.bytes), (ServerId(0), 64 << 10));
    /// # Ok(()) }).unwrap();
    /// ```
    fn chunk(&self, server: ServerId, index: IndexId)
    -> LocalBoxFuture<'static, Result<Chunk, ControlError>>;

    /// Returns the part of a chunk that the caller took for `index` and never wrote to, so that the next request for a
    /// chunk gets it. Waits for nothing and is only an attempt: a part of less than 4096 bytes, a server that is gone
    /// or an index that was dropped leave it as it was.
    ///
    /// ```
    /// # use farwood_runtime::{control::Chunk, ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// # let id = control.create("mine", "my kind", b"").await?.id;
    /// let chunk = control.chunk(ServerId(0), id).await?;
    /// let unused = Chunk { start: chunk.start.add(8192), bytes: chunk.bytes - 8192 };
    /// control.return_extent(id, unused);
    /// assert_eq!(control.chunk(ServerId(0), id).await?, unused);
    /// # Ok(()) }).unwrap();
    /// ```
    fn return_extent(&self, index: IndexId, rest: Chunk);

    /// Gives free nodes of `index` on `server` back, for any allocator of any compute node: until then, no other list
    /// has them. Waits for nothing and is only an attempt: if the server is gone or the index was dropped, they stay as
    /// they are.
    ///
    /// ```
    /// # use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// # let id = control.create("mine", "my kind", b"").await?.id;
    /// # let (class, waits) = (NodeClass { bytes: 1024, of_kind: false }, Waits::Epoch(1));
    /// let node = control.chunk(ServerId(0), id).await?.start.offset();
    /// let batch = NodeBatch { class, waits, nodes: vec![(node, None)] };
    /// control.give_nodes(id, ServerId(0), batch.clone());
    /// let wanted = WantedNodes { class, epoch: 4, flushed: 0, last_resort: false };
    /// assert_eq!(control.take_nodes(ServerId(0), id, wanted).await?, Some(batch));
    /// assert_eq!(control.take_nodes(ServerId(0), id, wanted).await?, None, "once");
    /// # Ok(()) }).unwrap();
    /// ```
    fn give_nodes(&self, index: IndexId, server: ServerId, batch: NodeBatch);

    /// Hands out free nodes of `index` on `server` that were given back, if there are such ([`Control::give_nodes`]).
    /// No other gets them, also if the answer does not arrive.
    ///
    /// ```
    /// # use farwood_runtime::control::nodes::{NodeClass, WantedNodes};
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// # let id = control.create("mine", "my kind", b"").await?.id;
    /// let class = NodeClass { bytes: 1024, of_kind: false };
    /// let wanted = WantedNodes { class, epoch: shard.pins().retired_now(), flushed: 0, last_resort: false };
    /// assert_eq!(control.take_nodes(ServerId(0), id, wanted).await?, None);
    /// # Ok(()) }).unwrap();
    /// ```
    fn take_nodes(
        &self,
        server: ServerId,
        index: IndexId,
        wanted: WantedNodes,
    ) -> LocalBoxFuture<'static, Result<Option<NodeBatch>, ControlError>>;

    /// Lists the memory of `index` on each server, in the order of their ids.
    ///
    /// ```
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let id = control.create("mine", "my kind", b"").await?.id;
    /// let chunk = control.chunk(ServerId(0), id).await?;
    /// let held = &control.holdings(id).await?[0];
    /// assert_eq!((&held.used[..], &held.rests[..]), (&[chunk][..], &[][..]));
    /// assert_eq!(held.others, 0, "this compute node alone");
    /// # Ok(()) }).unwrap();
    /// ```
    fn holdings(&self, index: IndexId) -> LocalBoxFuture<'static, Result<Vec<Holdings>, ControlError>>;

    /// Gives memory of `index` back to `server` that no node of the index lies in and no client has in a list: what
    /// the dead have left. The server zeroes it, and hands it out again. With `joins` it refuses if any other client
    /// is connected, or has joined since [`Control::holdings`] said so; without, the caller has swept ([`sweep`]).
    /// Each extent lies in one chunk; those of less than 4096 bytes are handed out as nodes of their size
    /// ([`Control::take_nodes`]). Yields the bytes that were taken back. The caller ensures that no client of its own
    /// process uses the memory.
    ///
    /// ```
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let id = control.create("mine", "my kind", b"").await?.id;
    /// let chunk = control.chunk(ServerId(0), id).await?;
    /// let joins = control.holdings(id).await?[0].joins;
    /// assert_eq!(control.take_back(id, ServerId(0), Some(joins), vec![chunk]).await?, chunk.bytes);
    /// assert_eq!(control.holdings(id).await?[0].rests, [chunk]);
    /// # Ok(()) }).unwrap();
    /// ```
    fn take_back(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: Vec<Chunk>,
    ) -> LocalBoxFuture<'static, Result<u64, ControlError>>;

    /// Returns the lists of this process's allocators, which a sweep is told of.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # use std::ptr;
    /// # on_one_shard(async |shard| {
    /// assert!(ptr::eq(shard.control().lists(), shard.control().lists()), "they are all of the process");
    /// # Ok(()) }).unwrap();
    /// ```
    fn lists(&self) -> &Lists;

    /// Begins a sweep of `index` ([`sweep`]): all processes are to note what passes through their lists, until it
    /// ends. Yields its number. There is one sweep at a time, of all indexes.
    ///
    /// ```
    /// # use farwood_runtime::{ControlError, Verbs, on_one_shard};
    /// # use farwood_runtime::sweep::Step;
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let id = control.create("mine", "my kind", b"").await?.id;
    /// let sweep = control.begin_sweep(id).await?;
    /// assert!(matches!(control.begin_sweep(id).await, Err(ControlError::Sweeping { .. })));
    /// while !control.sweep_waits_for(sweep, Step::Notes).await?.is_empty() {
    ///     shard.pause(1_000).await;
    /// }
    /// control.end_sweep(Some(sweep));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`ControlError::Sweeping`] if another one is under way.
    fn begin_sweep(&self, index: IndexId) -> LocalBoxFuture<'static, Result<u64, ControlError>>;

    /// Asks all processes for a step of a sweep. Yields compute nodes of those that have not done it yet: it is to be
    /// asked again, until there are none.
    ///
    /// ```
    /// # use farwood_runtime::{NodeAllocator, Verbs, on_one_shard};
    /// # use farwood_runtime::sweep::Step;
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let id = control.create("mine", "my kind", b"").await?.id;
    /// let nodes = NodeAllocator::new(control.clone(), id, 0, shard.pins().clone());
    /// let sweep = control.begin_sweep(id).await?;
    /// let node = nodes.allocate(1024).await?;
    /// while !control.sweep_waits_for(sweep, Step::Lists).await?.is_empty() {
    ///     shard.pause(1_000).await;
    /// }
    /// let told = control.swept_lists(sweep).await?;
    /// assert_eq!((told[0].start, told[0].bytes), (node, 64 << 10), "what was allocated, and the rest of the chunk");
    /// control.end_sweep(Some(sweep));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`ControlError::SweepVoid`] if a process has ended that has not told what is in its lists.
    fn sweep_waits_for(
        &self,
        sweep: u64,
        step: Step,
    ) -> LocalBoxFuture<'static, Result<Vec<u16>, ControlError>>;

    /// Lists what processes have told of their lists, ascending.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// # let id = control.create("mine", "my kind", b"").await?.id;
    /// let sweep = control.begin_sweep(id).await?;
    /// assert_eq!(control.swept_lists(sweep).await?, [], "none was asked yet");
    /// control.end_sweep(Some(sweep));
    /// # Ok(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`Control::sweep_waits_for`].
    fn swept_lists(&self, sweep: u64) -> LocalBoxFuture<'static, Result<Vec<Chunk>, ControlError>>;

    /// Ends a sweep of this process, the one of that number or any: processes note nothing any more. Waits for nothing.
    /// It ends with the process, too.
    ///
    /// ```
    /// # use farwood_runtime::{ControlError, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// # let id = control.create("mine", "my kind", b"").await?.id;
    /// let sweep = control.begin_sweep(id).await?;
    /// control.end_sweep(Some(sweep));
    /// assert_eq!(control.swept_lists(sweep).await, Err(ControlError::SweepVoid));
    /// # Ok(()) }).unwrap();
    /// ```
    fn end_sweep(&self, sweep: Option<u64>);

    /// Says that retired memory waits for the cluster's next epoch ([`crate::epoch`]), as often as some is retired.
    /// Waits for nothing: nodes hear of the epoch when it has come.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let since = shard.pins().retired_now();
    /// while !shard.pins().is_over(since) {
    ///     shard.control().want_epoch();
    ///     shard.pause(1_000).await;
    /// }
    /// # Ok(()) }).unwrap();
    /// ```
    fn want_epoch(&self);

    /// Says that memory which was retired in epoch `since` waits for a flush ([`crate::epoch`]): all compute nodes are
    /// to forget what caches keep from one operation to the next. Waits for nothing.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let since = shard.pins().retired_now();
    /// while shard.pins().flushed_since(since).is_none() {
    ///     shard.control().want_flush(since);
    ///     shard.pause(1_000).await;
    /// }
    /// assert!(shard.pins().flushed() > since);
    /// # Ok(()) }).unwrap();
    /// ```
    fn want_flush(&self, since: u64);

    /// Adds an index to the catalog.
    ///
    /// ```
    /// # use farwood_runtime::{ControlError, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let entry = control.create("mine", "my kind", b"its sizes").await?;
    /// assert_eq!((entry.name.as_str(), &entry.config[..]), ("mine", &b"its sizes"[..]));
    /// let again = control.create("mine", "my kind", b"").await;
    /// assert_eq!(again, Err(ControlError::Exists { name: "mine".into() }));
    /// # Ok(()) }).unwrap();
    /// ```
    fn create(
        &self,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>>;

    /// Looks an index up by its name.
    ///
    /// ```
    /// # use farwood_runtime::{ControlError, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let created = control.create("mine", "my kind", b"").await?;
    /// assert_eq!(control.open("mine").await?, created);
    /// let other = control.open("other").await;
    /// assert_eq!(other, Err(ControlError::NotFound { name: "other".into() }));
    /// # Ok(()) }).unwrap();
    /// ```
    fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>>;

    /// Lists all indexes of the catalog, by name.
    ///
    /// ```
    /// # use farwood_runtime::{Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// control.create("b", "my kind", b"").await?;
    /// control.create("a", "my kind", b"").await?;
    /// let names: Vec<_> = control.list().await?.into_iter().map(|entry| entry.name).collect();
    /// assert_eq!(names, ["a", "b"]);
    /// # Ok(()) }).unwrap();
    /// ```
    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>>;

    /// Takes an index out of the catalog and its chunks back; yields the bytes freed. The caller ensures that no client
    /// of its own process uses the index any more; a control service refuses while other processes have it open.
    ///
    /// ```
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let entry = control.create("mine", "my kind", b"").await?;
    /// let chunk = control.chunk(ServerId(0), entry.id).await?;
    /// assert_eq!(control.drop_index("mine").await?, chunk.bytes);
    /// assert!(control.open("mine").await.is_err());
    /// # Ok(()) }).unwrap();
    /// ```
    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>>;

    /// Reports the usage of each server, in the order of their ids.
    ///
    /// ```
    /// # use farwood_runtime::{ServerId, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// # let control = shard.control();
    /// let entry = control.create("mine", "my kind", b"").await?;
    /// control.chunk(ServerId(0), entry.id).await?;
    /// let usage = control.usage().await?[0];
    /// assert_eq!((usage.indexes, usage.chunk_bytes), (1, 64 << 10));
    /// # Ok(()) }).unwrap();
    /// ```
    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>>;

    /// Lists the ids of the compute nodes, ascending, that have died so far, and none of whose operations can take
    /// effect any more.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, Control, EmbeddedConfig, Fabric};
    /// # use futures::executor::block_on;
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = cluster.allocate_node_id()?;
    /// assert!(block_on(cluster.dead())?.is_empty());
    /// cluster.died(node);
    /// assert_eq!(block_on(cluster.dead())?[..], [node]);
    /// # Ok::<_, farwood_runtime::ControlError>(())
    /// ```
    fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>>;
}
