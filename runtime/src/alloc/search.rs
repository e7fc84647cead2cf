//! The order in which servers are asked for a chunk. Decides and does not ask, and knows no allocator.

use super::{AllocError, NODE_ALIGN};
use crate::control::{ControlError, ServerInfo};
use crate::pointer::ServerId;

/// One client's search for a chunk with room for its node: on one server, or on all of them in turn.
pub(super) struct Search<'s> {
    servers: &'s [ServerInfo],
    near: Option<ServerId>,
    bytes: u64,
    /// Number of servers that are still to be asked.
    left: usize,
    /// The server that was asked last, if it is to be asked again, and the bytes that it may have left.
    again: Option<(ServerId, u64)>,
}

impl<'s> Search<'s> {
    pub(super) fn new(servers: &'s [ServerInfo], near: Option<ServerId>, bytes: u64) -> Self {
        let left = if near.is_some() { 1 } else { servers.len() };
        Search { servers, near, bytes, left, again: None }
    }

    /// Chooses the server to ask. `turn` says which one's turn it is.
    pub(super) fn next(&mut self, mut turn: impl FnMut() -> usize) -> Result<ServerId, AllocError> {
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
    pub(super) fn go_on(&mut self, answer: Result<u64, ControlError>) -> Result<(), AllocError> {
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
