//! What the sessions of a control service share: the memory server, who is connected, which list of servers it belongs
//! to. It knows neither bytes nor sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use super::ServiceError;
use super::members::{Binding, Members};
use super::node_ids::NodeIds;
use crate::clock::Clock;
use crate::control::wire::{ConnectedNode, Entry, Offer, Welcome, WordRange};
use crate::control::{ControlError, IndexId, LockRegion, ServerUsage};
use crate::fabric::{Answer, Endpoint, PeerId, Responder};
use crate::memory::MemoryServer;
use crate::memory::chunks::Piece;
use crate::message::ShardId;
use crate::pointer::ServerId;

/// Compute nodes of one connection, at most. A process has one, or a few in tests.
const NODES_OF_ONE_MAX: usize = 256;
/// Ids that an error names.
const NODES_NAMED_MAX: usize = 16;
/// Longest reason for a refused queue pair, in bytes.
const REASON_BYTES_MAX: usize = 1024;
const PATH_BYTES_MAX: usize = 4096;
/// What a page of a list may hold: the rest of the frame is for its number and its kind.
const PAGE_BYTES_MAX: usize = crate::control::frame::FRAME_BYTES_MAX - 64;

/// What a control service serves.
pub struct Served {
    /// The memory.
    pub memory: MemoryServer,
    /// A random number of this run of the server ([`super::random_instance`]).
    pub instance: u128,
    /// How the region is reached.
    pub offer: Offer,
    /// Makes queue pairs, if the region is reached by them.
    pub responder: Option<Arc<dyn Responder>>,
}

impl Served {
    pub(super) fn check(&self) -> Result<(), ServiceError> {
        match &self.offer {
            Offer::Shm { path } if path.len() > PATH_BYTES_MAX => {
                Err(ServiceError::PathTooLong { bytes: path.len() })
            }
            _ => Ok(()),
        }
    }
}

/// The state of a control service.
pub struct ServiceCore {
    served: Served,
    clock: Clock,
    state: Mutex<CoreState>,
}

#[derive(Default)]
struct CoreState {
    connected: u64,
    /// By [`PeerId`].
    joined: BTreeMap<u64, Peer>,
    binding: Binding,
    node_ids: NodeIds,
}

/// A connection that has said who it is.
struct Peer {
    name: String,
    members: Members,
    /// This server's position in `members`.
    own: ServerId,
    nodes: Vec<u16>,
    open: BTreeSet<IndexId>,
    since_ns: u64,
    /// It has ended well: its ids may be given to others.
    leaving: bool,
}

impl ServiceCore {
    /// A service that nobody is connected to.
    pub fn new(served: Served) -> Self {
        ServiceCore { served, clock: Clock::new(), state: Mutex::default() }
    }

    pub(super) fn connect(&self) -> PeerId {
        let mut state = self.state();
        state.connected += 1;
        PeerId(state.connected)
    }

    pub(super) fn instance(&self) -> u128 {
        self.served.instance
    }

    pub(super) fn welcome(&self) -> Welcome {
        let info = self.served.memory.info(ServerId(0));
        let words = |region: LockRegion| WordRange { offset: region.base.offset(), count: region.count };
        Welcome {
            instance: self.served.instance,
            version: env!("CARGO_PKG_VERSION").into(),
            offer: self.served.offer.clone(),
            region_bytes: info.region_bytes,
            locks: words(info.locks),
            device_locks: info.device_locks.map(words),
            chunk_bytes: info.chunk_bytes,
        }
    }

    /// `members[own]` is this server.
    pub(super) fn join(&self, peer: PeerId, members: Members, own: ServerId, name: String) {
        let since_ns = self.clock.now();
        let (nodes, open) = (Vec::new(), BTreeSet::new());
        let joined = Peer { name, members, own, nodes, open, since_ns, leaving: false };
        let before = self.state().joined.insert(peer.0, joined);
        assert!(before.is_none(), "a session joins once");
    }

    pub(super) fn leaving(&self, peer: PeerId) {
        self.state().peer(peer).leaving = true;
    }

    /// The connection has ended. First nothing of it can take effect any more, then others may have what it held.
    pub(super) fn disconnect(&self, peer: PeerId) {
        if let Some(responder) = &self.served.responder {
            responder.forget(peer);
        }
        self.served.memory.forget_peer(peer);
        let mut state = self.state();
        let Some(gone) = state.joined.remove(&peer.0) else { return };
        if gone.leaving {
            state.node_ids.give_back(&gone.nodes);
            tracing::info!(name = %gone.name, nodes = ?gone.nodes, "a compute node has left");
        } else {
            tracing::warn!(name = %gone.name, nodes = ?gone.nodes, "a compute node is dead");
        }
    }

    pub(super) fn admit(&self, peer: PeerId) -> Result<u16, ControlError> {
        let mut state = self.state();
        let asking = state.home_peer(peer)?;
        if asking.nodes.len() >= NODES_OF_ONE_MAX {
            return Err(ControlError::TooManyNodesOfOne { max: NODES_OF_ONE_MAX as u32 });
        }
        let id = state.node_ids.take()?;
        state.peer(peer).nodes.push(id);
        Ok(id)
    }

    pub(super) fn agree(&self, peer: PeerId) -> Result<(), ControlError> {
        self.agreed(&mut self.state(), peer)
    }

    pub(super) fn chunk(&self, peer: PeerId, index: IndexId) -> Result<Piece, ControlError> {
        let memory = &self.served.memory;
        let reserved = {
            let mut state = self.state();
            let own = self.usable(&mut state, peer, index)?;
            // The server is bound to the peer's list: it holds the chunk that this is the rest of.
            if let Some(rest) = memory.take_rest(index, peer) {
                return Ok(rest);
            }
            // Together with the binding: a server that holds nothing is bound to nobody.
            let reserved = memory.reserve(own)?;
            self.bind(&mut state, peer);
            reserved
        };
        memory.hand_out(reserved, index, peer)
    }

    pub(super) fn give_back(&self, peer: PeerId, index: IndexId, rest: Piece) -> Result<(), ControlError> {
        let mut state = self.state();
        self.usable(&mut state, peer, index)?;
        self.served.memory.give_back(index, peer, rest)
    }

    pub(super) fn create(
        &self,
        peer: PeerId,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> Result<Entry, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.agreed(&mut state, peer)?;
        let entry = self.served.memory.create(name, kind, config)?;
        self.bind(&mut state, peer);
        state.peer(peer).open.insert(IndexId(entry.id));
        Ok(entry)
    }

    pub(super) fn open(&self, peer: PeerId, name: &str) -> Result<Entry, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.agreed(&mut state, peer)?;
        let entry = self.served.memory.open(name)?;
        state.peer(peer).open.insert(IndexId(entry.id));
        Ok(entry)
    }

    pub(super) fn page(&self, after: Option<&str>) -> (Vec<Entry>, bool) {
        self.served.memory.page(after, PAGE_BYTES_MAX)
    }

    pub(super) fn begin_drop(&self, peer: PeerId, name: &str) -> Result<IndexId, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let index = self.served.memory.id_of(name)?;
        let users = || state.joined.iter().filter(|(id, user)| **id != peer.0 && user.open.contains(&index));
        let connections = users().count() as u32;
        if connections > 0 {
            let nodes = users().flat_map(|(_, user)| &user.nodes).copied().take(NODES_NAMED_MAX).collect();
            return Err(ControlError::InUse { name: name.into(), nodes, connections });
        }
        self.served.memory.begin_drop(name)
    }

    /// Takes chunks back that belong to an index of the client's catalog. Another catalog may have given the same
    /// number to another index: of that nothing is touched.
    pub(super) fn free(&self, peer: PeerId, index: IndexId) -> Result<u64, ControlError> {
        let mut state = self.state();
        let asking = state.peer(peer);
        let (members, own) = (Members::clone(&asking.members), asking.own);
        if !state.binding.has_home_of(&members) {
            return Ok(0);
        }
        if own == ServerId(0) && !self.served.memory.is_dropping(index) {
            return Err(ControlError::NoSuchIndex { index });
        }
        Ok(self.served.memory.free(index))
    }

    pub(super) fn finish_drop(&self, peer: PeerId, name: &str, index: IndexId) -> Result<(), ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.served.memory.finish_drop(name, index)?;
        // A client that has left `Free` out must not leave chunks that nobody can free any more.
        self.served.memory.free(index);
        state.joined.values_mut().for_each(|user| {
            user.open.remove(&index);
        });
        Ok(())
    }

    /// What the server holds.
    pub fn usage(&self) -> ServerUsage {
        self.served.memory.usage()
    }

    /// Who has joined.
    pub fn nodes(&self) -> Vec<ConnectedNode> {
        let (now, state) = (self.clock.now(), self.state());
        state.joined.values().map(|peer| peer.seen_at(now)).collect()
    }

    pub(super) fn joined(&self) -> u32 {
        self.state().joined.len() as u32
    }

    /// The joined connections after that one, as many as fit a frame, and whether there are more.
    pub(super) fn nodes_page(&self, after: Option<u64>) -> (Vec<(u64, ConnectedNode)>, bool) {
        const NUMBERS_BYTES_MAX: usize = 32;
        let (now, state) = (self.clock.now(), self.state());
        let first = after.map_or(Some(0), |after| after.checked_add(1));
        let following = || first.into_iter().flat_map(|first| state.joined.range(first..));
        let (mut bytes, mut page) = (0, Vec::new());
        for (id, peer) in following() {
            bytes += peer.name.len() + NUMBERS_BYTES_MAX;
            if bytes > PAGE_BYTES_MAX {
                return (page, true);
            }
            page.push((*id, peer.seen_at(now)));
        }
        (page, false)
    }

    pub(super) fn queue_pair(
        &self,
        peer: PeerId,
        shard: ShardId,
        theirs: Endpoint,
    ) -> Result<Answer, ControlError> {
        let server = self.state().peer(peer).own;
        let answered = match &self.served.responder {
            // Takes milliseconds, without the state.
            Some(responder) => responder.answer(peer, shard, theirs),
            None => Err("its memory is not reached by queue pairs, but by mapping its file".into()),
        };
        answered.map_err(|mut reason| {
            let end =
                (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
            reason.truncate(end.unwrap_or(0));
            ControlError::QueuePair { server, reason }
        })
    }

    /// Whether the peer may take memory for that index and give it back; yields this server's position in its list.
    fn usable(&self, state: &mut CoreState, peer: PeerId, index: IndexId) -> Result<ServerId, ControlError> {
        self.agreed(state, peer)?;
        let own = state.peer(peer).own;
        if own == ServerId(0) {
            self.served.memory.is_usable(index)?;
        }
        Ok(own)
    }

    fn agreed(&self, state: &mut CoreState, peer: PeerId) -> Result<(), ControlError> {
        if self.served.memory.is_empty() {
            state.binding.release();
        }
        let asking = state.peer(peer);
        let (members, own) = (Members::clone(&asking.members), asking.own);
        state.binding.agree(&members, own)
    }

    fn bind(&self, state: &mut CoreState, peer: PeerId) {
        let members = Members::clone(&state.peer(peer).members);
        if state.binding.bind(&members) {
            self.served.memory.forget_freed();
        }
    }

    fn state(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().expect("no request panics while it holds the state")
    }
}

impl CoreState {
    fn peer(&mut self, peer: PeerId) -> &mut Peer {
        self.joined.get_mut(&peer.0).expect("a session asks after it has joined and before it ends")
    }

    /// A peer for which this is the server that keeps the catalog.
    fn home_peer(&mut self, peer: PeerId) -> Result<&mut Peer, ControlError> {
        let peer = self.peer(peer);
        if peer.own == ServerId(0) { Ok(peer) } else { Err(ControlError::NotHome) }
    }
}

impl Peer {
    fn seen_at(&self, now: u64) -> ConnectedNode {
        let seconds = now.saturating_sub(self.since_ns) / 1_000_000_000;
        ConnectedNode { id: self.nodes.last().copied(), name: self.name.clone(), seconds }
    }
}
