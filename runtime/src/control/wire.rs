//! The messages of the control protocol. They carry offsets and no server ids: a memory server serves clients that list
//! it at different positions, until one of them makes it part of an index. Those of sweeps alone carry addresses of
//! indexes' memory ([`RemotePtr::to_bits`]).
//!
//! The order of variants and fields is the format: a change is a new [`super::greeting::VERSION`].

use serde::{Deserialize, Serialize};

use super::nodes::{NodeBatch, WantedNodes};
use super::queue_pair::{Answer, Endpoint};
use super::seal::{Seal, SealKey};
use super::{CatalogEntry, IndexId, ServerUsage};
use crate::control::sweep::Step;
use crate::pointer::{RemotePtr, ServerId};

/// Largest number of servers that a client can list.
pub const MEMBERS_MAX: usize = 256;

/// The requests of a client. The first request is `Hello`, the second `Join` or `Resume`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the variants say what the fields are")]
pub enum Request {
    /// Asks for the server's description.
    Hello,
    /// The client uses the servers with these instance numbers as one cluster, this server at `position`. `home` is the
    /// number that server 0 has given its connection there. `name` is the client's name in usage reports.
    Join { members: Vec<u128>, position: u16, home: u64, name: String },
    /// In place of `Join`: the client resumes the connection of that number, which the server has given up though the
    /// client lives (it was stopped for long). `pass` came with the `Welcome` of that connection.
    Resume { connection: u64, pass: u128 },
    /// An id for a compute node. Server 0 only, as all requests from here to `FinishDrop` except those marked *.
    Admit,
    /// * Checks that the indexes of which the server holds a part were made with this client's list of servers.
    Agree,
    /// * A chunk for an index, or the rest of one. Of a temporary index, it is freed when this connection has ended.
    Chunk { index: u32, seal: Seal, temporary: bool },
    /// * The rest of a chunk that this connection took for that index, and that was never written to.
    GiveBack { index: u32, offset: u64, bytes: u64 },
    /// * Free nodes of the index's chunks, which other shards and other clients may have.
    GiveNodes { index: u32, batch: NodeBatch },
    /// * Free nodes that were given back for that index.
    TakeNodes { index: u32, seal: Seal, wanted: WantedNodes },
    /// * The pieces of the index's chunks from `from` on, and what is known of other connections.
    Holdings { index: u32, from: u64 },
    /// * Zeroes pieces of the index's chunks that no node lies in: if `joins` is there, only if no other is connected
    ///   and none has joined since that was said.
    TakeBack { index: u32, joins: Option<u64>, extents: Vec<(u64, u64)> },
    /// A new index. `fenced` of the dead nodes, in the order of their deaths, have been fenced on all servers: the
    /// number of a `Census` whose `Fence` all servers have done. A temporary one goes with this connection, and only
    /// this connection can use it.
    Create { name: String, kind: String, config: Vec<u8>, fenced: u32, temporary: bool },
    /// An index.
    Open { name: String },
    /// * The indexes that follow `after` by name.
    List { after: Option<String> },
    /// Marks an index as being dropped, unless another connection has it open.
    BeginDrop { name: String },
    /// * Takes an index's chunks back, after a `Fence` by a census that was taken when the drop had begun.
    Free { index: u32, key: SealKey, census: Census },
    /// Takes an index that is being dropped out of the catalog.
    FinishDrop { name: String, index: u32 },
    /// Usage of the server's memory.
    Usage,
    /// The connections that follow `after` by their number.
    Nodes { after: Option<u64> },
    /// A queue pair for a shard of the client.
    QueuePair { shard: u16, endpoint: Endpoint },
    /// Asks for a sign of life from the server.
    Ping,
    /// The client's compute nodes have ended and hold no lock; their ids may be given to others.
    Goodbye,
    /// The connections that server 0 has. Server 0 only.
    Census,
    /// * Ends what is left here of connections that server 0 no longer has: their operations take no effect any more.
    Fence(Census),
    /// The ids of dead nodes, in the order of their deaths, after the first `after`. Server 0 only.
    Dead { after: u32 },
    /// A sign of life from a process with compute nodes: no operation of theirs pins an epoch before `oldest`. The
    /// first `fenced` of the dead are fenced on all servers, as far as it knows; `waits` if memory of its indexes waits
    /// for the next epoch; some that was retired in epoch `flush` waits for a flush, if that is not 0. It notes for the
    /// sweep of number `noting`, if that is not 0. Server 0 only.
    Epoch { oldest: u64, fenced: u32, waits: bool, flush: u64, noting: u64 },
    /// Begins a sweep of an index. Server 0 only, as all that follow.
    BeginSweep { index: u32 },
    /// Asks all processes for a step of a sweep.
    SweepStep { sweep: u64, step: Step },
    /// A part of what the process has in its lists, by addresses and lengths, for that sweep; the last one, or not.
    TellLists { sweep: u64, pieces: Vec<(u64, u64)>, is_last: bool },
    /// Asks for what processes have told, from that address on.
    SweptLists { sweep: u64, from: u64 },
    /// Ends a sweep of this process, the one of that number or any.
    EndSweep { sweep: Option<u64> },
}

/// The connections of server 0, by the numbers that it has given them: `open`, and none else up to `newest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Census {
    /// The number of the last connection that was made.
    pub newest: u64,
    /// Connections that have not ended, or not provably so.
    pub open: Vec<u64>,
}

/// The replies of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the variants say what the fields are")]
pub enum Reply {
    /// Reply to `Hello`.
    Welcome(Welcome),
    /// Reply to `Join`, `Resume`, `Agree`, `GiveBack`, `GiveNodes`, `FinishDrop`, `Ping`, `Goodbye`, `Fence`,
    /// `TellLists` and `EndSweep`.
    Done,
    /// Reply to `Admit`, with the cluster's epoch, and the number and index of the sweep that is under way.
    Admitted { node: u16, epoch: u64, sweep: Option<(u64, u32)> },
    /// Reply to `Chunk`: its first byte and its length.
    Chunk { offset: u64, bytes: u64 },
    /// Reply to `TakeNodes`: a batch, at least one node, if there is one.
    Batch(Option<NodeBatch>),
    /// Reply to `Holdings`: pieces of the index's chunks, ascending, each within one chunk: where they begin, their
    /// lengths, and whether they were given back. `others` are the connections beside the asking one that may use
    /// memory of the server, and `joins` is how often a connection has joined or was resumed.
    Holdings { pieces: Vec<(u64, u64, bool)>, more: bool, others: u32, joins: u64 },
    /// Reply to `Create` and `Open`.
    Entry(Entry),
    /// Reply to `List`.
    Page { entries: Vec<Entry>, more: bool },
    /// Reply to `BeginDrop`.
    Dropping { index: u32, key: SealKey },
    /// Reply to `Free` and `TakeBack`.
    Freed { bytes: u64 },
    /// Reply to `Usage`: with the number of joined connections.
    Usage { usage: ServerUsage, connections: u32 },
    /// Reply to `Nodes`: connections by their number.
    Nodes { nodes: Vec<(u64, ConnectedNode)>, more: bool },
    /// Reply to `QueuePair`.
    Answer(Answer),
    /// Reply to `Census`, with the number of nodes that have died.
    Census { census: Census, dead: u32 },
    /// Reply to `Dead`.
    Dead { nodes: Vec<u16>, more: bool },
    /// Reply to `Epoch`: the cluster's epoch, the number of nodes that have died, whether memory of others waits for
    /// the next one, and the epoch of the last flush; the number and index of the sweep that is under way, and what it
    /// wants of this process.
    Epoch { epoch: u64, dead: u32, hurry: bool, flushed: u64, sweep: Option<(u64, u32, Step)> },
    /// Reply to `BeginSweep`: its number.
    Sweep { number: u64 },
    /// Reply to `SweepStep`: compute nodes of processes that have not done it.
    Late { nodes: Vec<u16> },
    /// Reply to `SweptLists`: pieces, ascending, by addresses and lengths.
    SweptLists { pieces: Vec<(u64, u64)>, more: bool },
}

/// The ways to reach a memory server's region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offer {
    /// A file of the server's host, to be mapped.
    Shm {
        /// The file. Its header bears the server's instance number.
        path: String,
    },
    /// Queue pairs.
    Verbs,
}

/// The kind of an [`Offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferKind {
    /// [`Offer::Shm`].
    Shm,
    /// [`Offer::Verbs`].
    Verbs,
}

impl Offer {
    /// Returns the kind of the offer.
    pub fn kind(&self) -> OfferKind {
        match self {
            Offer::Shm { .. } => OfferKind::Shm,
            Offer::Verbs => OfferKind::Verbs,
        }
    }
}

impl std::fmt::Display for OfferKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OfferKind::Shm => "shm",
            OfferKind::Verbs => "verbs",
        })
    }
}

/// A memory server's description of itself and of what it offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// A random number of this run of the server: every restart draws a new one.
    pub instance: u128,
    /// The number of this connection, of which the server gives none twice.
    pub connection: u64,
    /// A random number that only this client hears: with it, and only with it, the connection can be resumed.
    pub pass: u128,
    /// The server's program version.
    pub version: String,
    /// Way to reach its region.
    pub offer: Offer,
    /// Size of the region.
    pub region_bytes: u64,
    /// Lock words in host memory.
    pub locks: WordRange,
    /// Lock words in on-chip memory.
    pub device_locks: Option<WordRange>,
    /// Size of a chunk.
    pub chunk_bytes: u64,
}

/// Consecutive 64-bit words of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordRange {
    /// First byte of the first word.
    pub offset: u64,
    /// Number of words.
    pub count: u64,
}

/// An index of the catalog, of a server that does not know its position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Its kind.
    pub kind: String,
    /// Its configuration.
    pub config: Vec<u8>,
    /// Offset of its root word in the region of the server that keeps the catalog.
    pub root: u64,
    /// Seal with which its chunks are taken.
    pub seal: Seal,
    /// Number of nodes that had died, and were fenced on all servers, when it was created: the first in the order of
    /// their deaths.
    pub fenced: u32,
    /// True if it is dropped with the connection that created it.
    pub temporary: bool,
}

impl Entry {
    /// Converts the entry for compute nodes that list the server as `home`.
    ///
    /// # Panics
    /// If `root` is no offset; entries from the network are checked before.
    pub(crate) fn of(self, home: ServerId) -> CatalogEntry {
        let Entry { name, id, kind, config, root, .. } = self;
        let (id, root) = (IndexId(id), RemotePtr::new(home, root));
        CatalogEntry { name, id, kind, config, root, dead_owners: Default::default() }
    }

    /// Bounds the bytes that the entry has on the wire.
    pub(crate) fn encoded_bytes_max(&self) -> usize {
        const NUMBERS_BYTES_MAX: usize = 64;
        self.name.len() + self.kind.len() + self.config.len() + NUMBERS_BYTES_MAX
    }
}

/// A connection to a memory server: usually a compute node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectedNode {
    /// The id of its last compute node. Only the first server of the client's list knows it.
    pub id: Option<u16>,
    /// Name that it gave itself.
    pub name: String,
    /// Seconds since it joined.
    pub seconds: u64,
    /// True if it is not heard of any more while its process still has the memory mapped.
    pub silent: bool,
    /// Seconds for which the cluster's epoch has waited for operations of this connection's compute nodes, and memory
    /// that is out of an index with it. 0 if it does not wait for them.
    pub late_seconds: u64,
}
