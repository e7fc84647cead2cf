//! Memory on its way from a server to the allocator that asked for it: kept there, or given back if the allocator has
//! gone meanwhile.

use std::sync::Weak;

use super::Server;
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::wire::{Reply, Request};
use crate::control::{Chunk, ControlError, IndexId};
use crate::pointer::ServerId;

/// Memory of either sort.
pub(super) enum Memory {
    Chunk(Chunk),
    Nodes(NodeBatch),
}

/// Memory of one server for one index. Dropped, it goes back.
pub(super) struct HandedOut {
    servers: Weak<[Server]>,
    server: ServerId,
    index: IndexId,
    memory: Option<Memory>,
}

impl HandedOut {
    /// Checks the reply to a request for a chunk.
    pub(super) fn chunk(
        servers: Weak<[Server]>,
        server: ServerId,
        index: IndexId,
        reply: Reply,
    ) -> Result<Self, ControlError> {
        let known = servers.upgrade().ok_or(ControlError::ServerGone { server })?;
        let asked = &known[usize::from(server.0)];
        let Reply::Chunk { offset, bytes } = reply else { return Err(asked.unexpected(&reply)) };
        let memory = Some(Memory::Chunk(asked.check_chunk(server, offset, bytes)?));
        Ok(HandedOut { servers, server, index, memory })
    }

    /// Checks the reply to a request for nodes. No memory is handed out if there are none.
    pub(super) fn nodes(
        servers: Weak<[Server]>,
        server: ServerId,
        index: IndexId,
        wanted: &WantedNodes,
        reply: Reply,
    ) -> Result<Self, ControlError> {
        let known = servers.upgrade().ok_or(ControlError::ServerGone { server })?;
        let asked = &known[usize::from(server.0)];
        let Reply::Batch(batch) = reply else { return Err(asked.unexpected(&reply)) };
        if let Some(batch) = &batch {
            asked.check_nodes(batch, wanted)?;
        }
        Ok(HandedOut { servers, server, index, memory: batch.map(Memory::Nodes) })
    }

    pub(super) fn keep(mut self) -> Option<Memory> {
        self.memory.take()
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        let (Some(memory), Some(servers)) = (self.memory.take(), self.servers.upgrade()) else { return };
        let server = &servers[usize::from(self.server.0)];
        match memory {
            Memory::Chunk(chunk) => server.return_extent(self.index, chunk),
            Memory::Nodes(batch) => server.give_nodes(self.index, batch),
        }
    }
}

impl Server {
    /// Takes part of a chunk back to the server. Waits for nothing.
    pub(super) fn return_extent(&self, index: IndexId, rest: Chunk) {
        let (id, offset, bytes) = (rest.start.server(), rest.start.offset(), rest.bytes);
        // Later requests over this connection are answered later: the next chunk may be this rest.
        self.connection.call(Request::GiveBack { index: index.0, offset, bytes }, move |answer| {
            if answer != Ok(Reply::Done) {
                tracing::debug!(server = id.0, ?rest, ?answer, "a rest was not taken back");
            }
        });
    }

    /// Takes free nodes back to the server. Waits for nothing.
    pub(super) fn give_nodes(&self, index: IndexId, batch: NodeBatch) {
        let bytes = batch.bytes();
        self.connection.call(Request::GiveNodes { index: index.0, batch }, move |answer| {
            if answer != Ok(Reply::Done) {
                tracing::debug!(bytes, ?answer, "free nodes were not taken back");
            }
        });
    }

    /// Checks that the nodes lie in the server's region, and are what was asked for.
    fn check_nodes(&self, batch: &NodeBatch, wanted: &WantedNodes) -> Result<(), ControlError> {
        let (class, bytes, region) = (wanted.class, batch.class.bytes, self.welcome.region_bytes);
        let divides = wanted.last_resort && !class.of_kind && !batch.class.of_kind;
        let fits = batch.class == class || divides;
        let is_node = |offset: u64| {
            let end = offset.checked_add(bytes).filter(|end| *end <= region);
            end.is_some() && offset > 0 && offset.is_multiple_of(64)
        };
        let nodes = || batch.nodes.iter().map(|(offset, _)| *offset);
        if fits && bytes > 0 && bytes.is_multiple_of(64) && !batch.nodes.is_empty() && nodes().all(is_node) {
            return Ok(());
        }
        Err(self.broken("impossible free nodes"))
    }
}
