//! Fences connections that have died, before a client relies on their death: server 0 lists the connections that it
//! has, and the other servers end what is left there of all others. After that the nodes that server 0 knows as dead
//! are fenced everywhere: none of their operations takes effect any more.

use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::try_join_all;

use super::Server;
use crate::control::ControlError;
use crate::control::wire::{Census, Reply, Request};

/// Dead nodes that this client has heard of, in the order of their deaths.
#[derive(Default)]
pub(super) struct Dead(Mutex<Vec<u16>>);

impl Dead {
    /// Lists the ids of the first `count` dead, ascending.
    pub(super) async fn first(&self, home: &Server, count: u32) -> Result<Arc<[u16]>, ControlError> {
        // Ids have 16 bits, and none dies twice.
        if count > u32::from(u16::MAX) {
            return Err(home.broken("more dead nodes than there are ids"));
        }
        loop {
            let known = self.known().len();
            if let Some(first) = self.known().get(..count as usize) {
                let mut first = first.to_vec();
                first.sort_unstable();
                return Ok(first.into());
            }
            match home.connection.ask(Request::Dead { after: known as u32 }).await? {
                Reply::Dead { nodes, .. } if nodes.is_empty() || nodes.contains(&0) => {
                    return Err(home.broken("an impossible list of dead nodes"));
                }
                Reply::Dead { nodes, .. } => self.add(known, &nodes),
                other => return Err(home.unexpected(&other)),
            }
        }
    }

    /// Adds the dead that follow the first `known`, unless another call has done so.
    fn add(&self, known: usize, nodes: &[u16]) {
        let mut all = self.known();
        let new = all.len().saturating_sub(known);
        all.extend(nodes.get(new..).unwrap_or_default());
    }

    fn known(&self) -> MutexGuard<'_, Vec<u16>> {
        self.0.lock().expect("nothing panics while it holds the dead")
    }
}

/// Asks server 0 for its connections, and for the number of nodes that have died.
pub(super) async fn census(home: &Server) -> Result<(Census, u32), ControlError> {
    match home.connection.ask(Request::Census).await? {
        Reply::Census { census, dead } => Ok((census, dead)),
        other => Err(home.unexpected(&other)),
    }
}

/// Fences all nodes that have died, on all servers; yields their number.
pub(super) async fn fence_the_dead(servers: &[Server]) -> Result<u32, ControlError> {
    let (census, dead) = census(&servers[0]).await?;
    let fencing = servers[1..].iter().map(|server| {
        let census = census.clone();
        async move { server.done(server.connection.ask(Request::Fence(census)).await) }
    });
    try_join_all(fencing).await.map(|_| dead)
}
