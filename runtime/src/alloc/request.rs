//! The request of an allocator for memory: one at a time, which no client owns. What it brings is the allocator's as
//! soon as it arrives: free nodes that others have given back ([`super::given`]), or else a chunk.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{LocalBoxFuture, Shared};

use super::state::lock;
use super::{AllocError, NodeAllocator, OfKind};
use crate::control::nodes::{NodeClass, WantedNodes};
use crate::control::{Chunk, ControlError};
use crate::pointer::ServerId;

/// A request that keeps what it brings, and yields its bytes.
pub(super) type Request = Shared<LocalBoxFuture<'static, Result<u64, ControlError>>>;

impl NodeAllocator {
    /// Asks a server for free nodes of a class, and then, if it has none, for a chunk.
    pub(super) fn ask(&self, server: ServerId, bytes: u64) -> Request {
        if self.awaits_epochs() {
            self.control.want_epoch();
        }
        let class = NodeClass { bytes, of_kind: false };
        let nodes = (!self.is_known_to_have_none(server, class)).then(|| self.nodes(server, class, false));
        let (control, index, state) = (self.control.clone(), self.index, Arc::clone(&self.state));
        self.request(async move {
            if let Some(nodes) = nodes
                && let bytes @ 1.. = nodes.await?
            {
                return Ok(bytes);
            }
            let chunk: Chunk = control.chunk(server, index).await?;
            lock(&state).pieces.push(chunk);
            Ok(chunk.bytes)
        })
    }

    /// Takes a free node of a kind that others have given back to `server`, if this shard would need a chunk else.
    pub(super) async fn others_of_kind(&self, server: ServerId, bytes: u64) -> Option<OfKind> {
        let class = NodeClass { bytes, of_kind: true };
        let has_room = self.state().has_room(server, bytes);
        if has_room || self.is_known_to_have_none(server, class) {
            return None;
        }
        let asked = self.request.borrow().clone();
        let request = asked.unwrap_or_else(|| self.request(self.nodes(server, class, false)));
        if let Err(error) = self.answer(request).await {
            tracing::debug!(%error, "free nodes were asked for, and not had");
        }
        self.state().take_of_kind(Some(server), bytes)
    }

    /// Asks servers that have no chunk left for free nodes of others, one server or all of them, until one has some.
    /// Yields false if none has.
    pub(super) async fn gather(&self, only: Option<ServerId>, class: NodeClass) -> Result<bool, AllocError> {
        for server in self.control.servers().iter().map(|server| server.id) {
            if only.is_some_and(|only| only != server) {
                continue;
            }
            let asked = self.request.borrow().clone();
            let is_of_others = asked.is_some();
            let request = asked.unwrap_or_else(|| self.request(self.nodes(server, class, true)));
            match self.answer(request).await {
                _ if is_of_others => return Ok(true),
                Ok(1..) => return Ok(true),
                Ok(_) | Err(ControlError::OutOfMemory { .. }) => {}
                Err(error) => return Err(AllocError::Control(error)),
            }
        }
        Ok(false)
    }

    /// Asks a server for free nodes of a class, or, as a last resort, for what they can be made of.
    fn nodes(
        &self,
        server: ServerId,
        class: NodeClass,
        last_resort: bool,
    ) -> impl Future<Output = Result<u64, ControlError>> + use<> {
        let (epoch, flushed) = (self.pins.retired_now(), self.pins.flushed());
        let wanted = WantedNodes { class, epoch, flushed, last_resort };
        let (control, index) = (self.control.clone(), self.index);
        let (state, pins) = (Arc::clone(&self.state), Rc::clone(&self.pins));
        async move {
            let Some(batch) = control.take_nodes(server, index, wanted).await? else {
                lock(&state).without.insert((server, class), epoch);
                return Ok(0);
            };
            let bytes = batch.bytes();
            lock(&state).adopt(server, batch, &pins);
            Ok(bytes)
        }
    }

    /// Tells whether a server has said in this epoch that it has no such nodes: it is not asked for each node.
    fn is_known_to_have_none(&self, server: ServerId, class: NodeClass) -> bool {
        self.state().without.get(&(server, class)) == Some(&self.pins.retired_now())
    }

    fn request(&self, asks: impl Future<Output = Result<u64, ControlError>> + 'static) -> Request {
        let request = asks.boxed_local().shared();
        self.state().asks = true;
        *self.request.borrow_mut() = Some(request.clone());
        request
    }

    /// Awaits the answer to a request, which all clients that wait for it get.
    pub(super) async fn answer(&self, request: Request) -> Result<u64, ControlError> {
        let answer = request.clone().await;
        if self.request.borrow_mut().take_if(|asked| asked.ptr_eq(&request)).is_some() {
            self.state().asks = false;
        }
        answer
    }
}
