//! Failures of control calls, whether direct or over a socket. Errors travel: they are bounded in size, and carry no
//! text of unbounded length back to the side that sent it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::IndexId;
use crate::pointer::ServerId;

/// Failures of a control call: refusals of the service, and connections that ended.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ControlError {
    /// No chunk is left on that server.
    #[error("memory server {} has no free chunk of {chunk_bytes} bytes left: give it more memory", server.0)]
    OutOfMemory { server: ServerId, chunk_bytes: u64 },
    /// The catalog has that name already.
    #[error("there is an index named {name:?} already: open it, or choose another name")]
    Exists { name: String },
    /// The catalog does not have that name.
    #[error("there is no index named {name:?}: create it first")]
    NotFound { name: String },
    /// The catalog has no free place.
    #[error("the catalog is full ({indexes} indexes): drop one that is not needed")]
    CatalogFull { indexes: u32 },
    /// All ids of compute nodes are taken.
    #[error(
        "no id is left for another compute node: 65,535 work, or have died, since their ids are not used again; end \
         some, or restart the memory servers"
    )]
    TooManyNodes,
    /// The cluster has no such server.
    #[error("there is no memory server {}", server.0)]
    NoSuchServer { server: ServerId },
    /// A name that indexes and compute nodes cannot have.
    #[error(
        "a name has 1 to 255 bytes and no control characters, this one has {bytes} bytes: choose another"
    )]
    BadName { bytes: u64 },
    /// A kind of index that no catalog takes.
    #[error("a kind of index has at most 32 bytes and no control characters, this one has {bytes} bytes")]
    BadKind { bytes: u64 },
    /// A configuration that no catalog takes.
    #[error("the configuration of an index has at most 4096 bytes, this one has {bytes}")]
    ConfigTooLong { bytes: u64 },
    /// Chunks were asked for an index that the catalog does not have.
    #[error("there is no index with number {}: it was dropped, or never created", index.0)]
    NoSuchIndex { index: IndexId },
    /// A drop of that index has begun and not ended.
    #[error("index {name:?} is being dropped: if no client is at it any more, run drop again")]
    BeingDropped { name: String },
    /// Other connections have the index open. `nodes` are the ids of their compute nodes, some of them if there are
    /// many; a connection without a compute node has none. Those that are silent have not said anything for long, and
    /// could go on at any moment.
    #[error(
        "index {name:?} is in use by {connections} other connection(s) of compute nodes {nodes:?}: stop them first{}",
        if *silent == 0 {
            String::new()
        } else {
            format!(
                " ({silent} of them silent: stopped or cut off, but the process is there and has the memory mapped; \
                 let it go on, or kill it)"
            )
        }
    )]
    InUse { name: String, nodes: Vec<u16>, connections: u32, silent: u32 },
    /// A temporary index of another connection.
    #[error(
        "index {name:?} is temporary: only the process that created it can use it, and it goes with that"
    )]
    Temporary { name: String },
    /// A client of shared memory has not mapped it for this connection.
    #[error(
        "the region is not mapped for this connection: map it and lock the connection's byte, so that the memory \
         server can tell when this process has ended"
    )]
    NotMapped,
    /// The server holds indexes of compute nodes that list the servers otherwise.
    #[error(
        "memory server {} holds parts of indexes that were created with other memory servers, or with the same in \
         another order: list the same servers in the same order as those who created the indexes", server.0
    )]
    OtherServers { server: ServerId },
    /// A server is not the one that the indexes were created with.
    #[error(
        "memory server {} was restarted and lost what it held of the indexes: {}",
        server.0,
        if server.0 == 0 {
            "it kept their catalog, so restart the other memory servers too"
        } else {
            "drop the indexes, or restart all memory servers"
        }
    )]
    Restarted { server: ServerId },
    /// The connection to a server ended, or it is silent.
    #[error(
        "memory server {} is gone: it was stopped, or cannot be reached. See whether it runs, and start this program \
         again; if it was restarted, what it held is lost", server.0
    )]
    ServerGone { server: ServerId },
    /// The connection to a server ended while a request was under way, and was resumed by another one.
    #[error(
        "the connection to memory server {} broke off, and was taken up again: whether the server did what it was \
         asked is unknown. See, and try again", server.0
    )]
    BrokenOff { server: ServerId },
    /// The connection that a client wants to resume has not ended yet for the server.
    #[error("connection {connection} has not ended: close it, and ask once more")]
    NotEnded { connection: u64 },
    /// The connection that a client wants to resume cannot be resumed.
    #[error(
        "connection {connection} cannot be resumed: it has ended for good, its client has not mapped the memory, or \
         another client has it"
    )]
    NotResumed { connection: u64 },
    /// The server's side of a queue pair could not be had.
    #[error("memory server {} refused the queue pair: {reason}", server.0)]
    QueuePair { server: ServerId, reason: String },
    /// The server has as many connections as it takes.
    #[error(
        "the memory server has {max} connections, as many as it takes: stop compute nodes that are not needed"
    )]
    TooManyConnections { max: u32 },
    /// A connection asked for more ids of compute nodes than one process can need.
    #[error("one connection has at most {max} compute nodes: connect anew for more")]
    TooManyNodesOfOne { max: u32 },
    /// A request that this server cannot answer, because of its position in the list of servers.
    #[error("only memory server 0 of a list of servers keeps the catalog and the ids of compute nodes")]
    NotHome,
    /// Memory was returned that the connection did not take, or has returned before.
    #[error(
        "bytes {offset} to {offset} + {bytes} are no unused part of a chunk that this connection took for index {}: \
         give back what was taken, once, at multiples of 64 bytes and no less than 4096", index.0
    )]
    NotTaken { index: IndexId, offset: u64, bytes: u64 },
    /// Memory that no node of an index lies in was to be given back, while other clients are connected: compute nodes
    /// among them may have it in their lists.
    #[error(
        "{others} other client(s) are connected to memory server {}, and may hold memory that no node lies in: stop \
         them first", server.0
    )]
    OthersConnected { server: ServerId, others: u32 },
    /// As above, but another client has joined since the memory was looked for.
    #[error(
        "another client has joined memory server {} meanwhile, and may have changed what memory is in use: try again \
         when no other client is connected", server.0
    )]
    OthersCame { server: ServerId },
    /// A sweep was to begin while another one was under way.
    #[error("lost memory is being looked for already, by {by}: try again when that has ended")]
    Sweeping { by: String },
    /// A sweep does not go on: a process has ended that had not told what memory it had in its lists, or the sweep had
    /// ended before.
    #[error(
        "a process that works on the memory servers has ended meanwhile, or the sweep has: begin it again"
    )]
    SweepVoid,
    /// Memory was to be given back that is none of the index's.
    #[error(
        "bytes {offset} to {offset} + {bytes} are not handed out for index {}, in one chunk, at multiples of 64 bytes",
        index.0
    )]
    NotHeld { index: IndexId, offset: u64, bytes: u64 },
    /// A free node was to be given back that does not lie in the index's chunks, or is free there already.
    #[error(
        "bytes {offset} to {offset} + {bytes} are no node that can be given back for index {}: they are not handed out \
         for it, or were given back before, or are not at multiples of 64 bytes", index.0
    )]
    NotFree { index: IndexId, offset: u64, bytes: u64 },
    /// A client of shared memory is stopped in the middle of a line that the server has to zero.
    #[error(
        "process {process} is stopped in the middle of a line of memory: let it go on (kill -CONT {process}), \
         or kill it"
    )]
    WriterStopped { process: u32 },
    /// The server has no random numbers.
    #[error("the memory server cannot read /dev/urandom: {cause}; a container must have it")]
    NoRandom { cause: String },
    /// One side did not keep to the protocol, and the connection has ended.
    #[error("the control protocol was broken: {what}; use the same version of the program on all hosts")]
    Protocol { what: String },
}
