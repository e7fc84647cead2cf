//! Sweeps of this process, as server 0 keeps them ([`crate::control::sweep`]): beginning one, asking who is late, and
//! what all have told.

use std::sync::Arc;

use super::Server;
use crate::control::sweep::Step;
use crate::control::wire::{Reply, Request};
use crate::control::{Chunk, ControlError, IndexId};
use crate::pointer::RemotePtr;

pub(super) async fn begin(servers: Arc<[Server]>, index: IndexId) -> Result<u64, ControlError> {
    let home = &servers[0];
    match home.connection.ask(Request::BeginSweep { index: index.0 }).await? {
        Reply::Sweep { number } => Ok(number),
        other => Err(home.unexpected(&other)),
    }
}

pub(super) async fn late(servers: Arc<[Server]>, sweep: u64, step: Step) -> Result<Vec<u16>, ControlError> {
    let home = &servers[0];
    match home.connection.ask(Request::SweepStep { sweep, step }).await? {
        Reply::Late { nodes } => Ok(nodes),
        other => Err(home.unexpected(&other)),
    }
}

/// Asks for what all have told, page by page.
pub(super) async fn lists(servers: Arc<[Server]>, sweep: u64) -> Result<Vec<Chunk>, ControlError> {
    let home = &servers[0];
    let (mut all, mut from): (Vec<Chunk>, u64) = (Vec::new(), 0);
    loop {
        let (pieces, more) = match home.connection.ask(Request::SweptLists { sweep, from }).await? {
            Reply::SweptLists { pieces, more } => (pieces, more),
            other => return Err(home.unexpected(&other)),
        };
        for &(at, bytes) in &pieces {
            let end = at.checked_add(bytes).filter(|_| at >= from && bytes > 0);
            from = end.ok_or_else(|| home.broken("a page of lists that goes back"))?;
            all.push(Chunk { start: RemotePtr::from_bits(at), bytes });
        }
        if !more {
            return Ok(all);
        }
        if pieces.is_empty() {
            return Err(home.broken("an empty page of lists"));
        }
    }
}
