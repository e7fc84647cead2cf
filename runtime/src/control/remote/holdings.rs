//! Asking memory servers what they have handed out for an index, page by page, and giving back what no node lies in.

use std::sync::Arc;

use futures::future::try_join_all;

use super::fencing::fence_the_dead;
use super::{Server, is_chunk};
use crate::control::wire::{Reply, Request};
use crate::control::{Chunk, ControlError, Holdings, IndexId};
use crate::pointer::{RemotePtr, ServerId};

/// Extents of one request, and the bytes of them that the server zeroes before it answers, but for the first.
const EXTENTS_MAX: usize = 1_000;
const ZEROED_BYTES_MAX: u64 = 64 << 20;

/// Asks all servers for what the index has there. Nodes that have died are fenced first: they are no other clients.
pub(super) async fn all(servers: Arc<[Server]>, index: IndexId) -> Result<Vec<Holdings>, ControlError> {
    fence_the_dead(&servers).await?;
    let asking = (0..).zip(servers.iter()).map(|(id, server)| server.holdings(ServerId(id), index));
    try_join_all(asking).await
}

/// Gives extents of one server back to it, some at a time.
pub(super) async fn take_back(
    servers: Arc<[Server]>,
    (index, id): (IndexId, ServerId),
    joins: Option<u64>,
    extents: Vec<Chunk>,
) -> Result<u64, ControlError> {
    let server = servers.get(usize::from(id.0)).ok_or(ControlError::NoSuchServer { server: id })?;
    let (mut left, mut freed) = (&extents[..], 0_u64);
    while !left.is_empty() {
        let (some, others) = left.split_at(count_of_a_request(left));
        left = others;
        let extents = some.iter().map(|extent| (extent.start.offset(), extent.bytes)).collect();
        match server.connection.ask(Request::TakeBack { index: index.0, joins, extents }).await? {
            Reply::Freed { bytes } => freed = freed.saturating_add(bytes),
            other => return Err(server.unexpected(&other)),
        }
    }
    Ok(freed)
}

/// Counts the first extents that one request has: one at least.
fn count_of_a_request(extents: &[Chunk]) -> usize {
    let mut bytes = 0_u64;
    let fitting = extents.iter().take(EXTENTS_MAX).take_while(|extent| {
        bytes = bytes.saturating_add(extent.bytes);
        bytes <= ZEROED_BYTES_MAX
    });
    fitting.count().max(1)
}

impl Server {
    async fn holdings(&self, id: ServerId, index: IndexId) -> Result<Holdings, ControlError> {
        let (mut held, mut from) = (Holdings::default(), 0);
        loop {
            let request = Request::Holdings { index: index.0, from };
            let (pieces, more) = match self.connection.ask(request).await? {
                Reply::Holdings { pieces, more, others, joins } => {
                    // Of who came between two pages the first one does not know.
                    held.joins = if from == 0 { joins } else { held.joins.min(joins) };
                    held.others = held.others.max(others);
                    (pieces, more)
                }
                other => return Err(self.unexpected(&other)),
            };
            if more && pieces.is_empty() {
                return Err(self.broken("an empty page of memory"));
            }
            for (offset, bytes, is_rest) in pieces {
                if offset < from || !is_chunk(&self.welcome, offset, bytes) {
                    return Err(self.broken("an impossible piece of memory"));
                }
                from = offset + bytes;
                let piece = Chunk { start: RemotePtr::new(id, offset), bytes };
                if is_rest { held.rests.push(piece) } else { held.used.push(piece) }
            }
            if !more {
                return Ok(held);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_few_extents_and_one_at_least() {
        let of = |bytes: &[u64]| {
            let extent = |&bytes| Chunk { start: RemotePtr::new(ServerId(1), 4096), bytes };
            bytes.iter().map(extent).collect::<Vec<_>>()
        };
        assert_eq!(count_of_a_request(&of(&[4096; 3])), 3);
        assert_eq!(count_of_a_request(&of(&[4096; 3000])), 1000);
        assert_eq!(count_of_a_request(&of(&[1 << 30, 4096])), 1);
        assert_eq!(count_of_a_request(&of(&[60 << 20, 4 << 20, 64])), 2);
    }
}
