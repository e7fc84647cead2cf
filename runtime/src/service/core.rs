//! State that the sessions of a control service share: the memory server, its connections, and the list of servers that
//! it belongs to. It knows neither bytes nor sockets.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use super::members::Members;
use super::peers::{Peer, Peers, Users};
use super::{ServiceError, random_instance};
use crate::clock::Clock;
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::queue_pair::{Answer, Endpoint, PeerId, Responder};
use crate::control::seal::SealKey;
use crate::control::wire::{Census, ConnectedNode, Entry, Offer, Reply, Welcome, WordRange};
use crate::control::{ControlError, IndexId, LockRegion, ServerUsage};
use crate::memory::MemoryServer;
use crate::memory::catalog::NewIndex;
use crate::memory::chunks::{Extent, Owner};
use crate::message::ShardId;
use crate::pointer::ServerId;

/// Compute nodes of one connection, at most. A process has one, or a few in tests.
const NODES_OF_ONE_MAX: usize = 256;
/// Number of ids that an error names.
const NODES_NAMED_MAX: usize = 16;
/// Bounds silent connections: at this number no further client joins. Each is a process that was stopped, with the
/// memory mapped.
const SILENT_MAX: usize = 1024;
/// Longest reason for a refused queue pair, in bytes.
const REASON_BYTES_MAX: usize = 1024;
const PATH_BYTES_MAX: usize = 4096;
/// Time for which a client's word counts that memory waits for the next epoch.
const WAITS_NS: u64 = 1_000_000_000;
/// Largest content of a page of a list: the rest of the frame is for its number and its kind.
pub(super) const PAGE_BYTES_MAX: usize = crate::control::frame::FRAME_BYTES_MAX - 64;

/// The memory server that a control service serves, and the way to it.
pub struct Served {
    /// The memory.
    pub memory: MemoryServer,
    /// A random number of this run of the server ([`super::random_instance`]).
    pub instance: u128,
    /// Way to reach the region.
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
    state: Mutex<Peers>,
}

/// A sign of life from a process with compute nodes ([`crate::control::wire::Request::Epoch`]).
pub(super) struct Beat {
    pub(super) oldest: u64,
    pub(super) fenced: u32,
    pub(super) waits: bool,
    pub(super) flush: u64,
    pub(super) noting: u64,
}

/// An index that a connection wants to be created.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) config: &'a [u8],
    pub(super) fenced: u32,
    pub(super) temporary: bool,
}

impl ServiceCore {
    /// Makes a service without connections.
    pub fn new(served: Served) -> Self {
        ServiceCore { served, clock: Clock::new(), state: Mutex::default() }
    }

    pub(super) fn connect(&self) -> PeerId {
        self.state().connect()
    }

    pub(super) fn instance(&self) -> u128 {
        self.served.instance
    }

    pub(super) fn welcome(&self, peer: PeerId, pass: u128) -> Welcome {
        let info = self.served.memory.info(ServerId(0));
        let words = |region: LockRegion| WordRange { offset: region.base.offset(), count: region.count };
        Welcome {
            instance: self.served.instance,
            connection: peer.0,
            pass,
            version: env!("CARGO_PKG_VERSION").into(),
            offer: self.served.offer.clone(),
            region_bytes: info.region_bytes,
            locks: words(info.locks),
            device_locks: info.device_locks.map(words),
            chunk_bytes: info.chunk_bytes,
        }
    }

    /// Joins a connection to the service. `members[own]` is this server, and `home` the number of the client's
    /// connection at the first of them.
    pub(super) fn join(
        &self,
        peer: PeerId,
        (members, own): (Members, ServerId),
        home: u64,
        name: String,
        pass: u128,
    ) -> Result<(), ControlError> {
        let joined = Peer {
            name,
            members,
            own,
            // Server 0 knows the number itself, and believes no other.
            home: if own == ServerId(0) { peer.0 } else { home },
            nodes: Vec::new(),
            indexes: BTreeSet::new(),
            since_ns: self.clock.now(),
            pass,
            reached: false,
            returning: false,
            leaving: false,
            fenced: false,
        };
        let mut state = self.state();
        if state.silent.len() >= SILENT_MAX {
            return Err(ControlError::TooManyConnections { max: SILENT_MAX as u32 });
        }
        state.joins += 1;
        let before = state.joined.insert(peer.0, joined);
        assert!(before.is_none(), "a session joins once");
        Ok(())
    }

    /// Makes a silent connection joined again; its client continues over the connection `by`.
    pub(super) fn resume(&self, by: PeerId, silent: PeerId, pass: u128) -> Result<(), ControlError> {
        // Connections that have died meanwhile are not silent any more.
        let mut state = self.state();
        let Peer { name, nodes, .. } = state.resume(by, silent, pass)?;
        tracing::warn!(%name, ?nodes, "a client that was silent goes on");
        Ok(())
    }

    /// Tells whether the server that keeps the catalog no longer knows that connection.
    pub(super) fn is_fenced(&self, peer: PeerId) -> bool {
        self.state().peer(peer).fenced
    }

    pub(super) fn leaving(&self, peer: PeerId) {
        self.state().peer(peer).leaving = true;
    }

    /// Ends a connection: first its operations can take effect no more, then others may have what it held. Of shared
    /// memory only the kernel can say that: a silent client that has it mapped keeps what it held.
    pub(super) fn disconnect(&self, peer: PeerId) {
        if let Some(responder) = &self.served.responder {
            responder.forget(peer);
        }
        let mut state = self.state();
        let Some(gone) = state.disconnect(peer) else { return };
        if !gone.leaving && self.is_mapped(peer) {
            tracing::warn!(name = %gone.name, nodes = ?gone.nodes, "a client is silent, and has the memory mapped");
            state.silent.insert(peer.0, gone);
        } else {
            self.bury(&mut state, peer, &gone);
        }
    }

    /// Frees what that connection held for others.
    fn bury(&self, state: &mut Peers, peer: PeerId, gone: &Peer) {
        self.served.memory.drop_temporary(peer);
        self.served.memory.forget_peer(peer);
        state.sweep.leave(peer.0);
        let Peer { name, nodes, .. } = gone;
        if gone.leaving || !gone.reached {
            state.epochs.leave(peer.0);
            state.node_ids.give_back(nodes);
            tracing::info!(%name, ?nodes, "a compute node has left");
        } else {
            state.node_ids.died(nodes);
            // It may have queue pairs to other servers until it is fenced there. Mapped memory went with its
            // process.
            if self.is_by_mapping() || gone.members.len() == 1 {
                state.epochs.leave(peer.0);
            } else {
                state.hold_epoch_for(peer);
            }
            tracing::warn!(%name, ?nodes, "a compute node is dead");
        }
    }

    /// Asks the kernel whether the process at the other end still has the memory mapped.
    fn is_mapped(&self, peer: PeerId) -> bool {
        self.is_by_mapping() && self.served.memory.region().is_claimed(peer.0)
    }

    /// Tells whether the process at the other end may be about to unmap the memory because it ends, and will not
    /// resume.
    pub(super) fn may_unmap(&self, peer: PeerId) -> bool {
        let returning = self.state().joined.get(&peer.0).is_some_and(|peer| peer.returning);
        !returning && self.is_mapped(peer)
    }

    fn is_by_mapping(&self) -> bool {
        self.served.responder.is_none() && self.served.memory.region().is_file()
    }

    /// Notes that the peer can reach the memory from now on; a peer that has to map it must have done so.
    fn reach(&self, state: &mut Peers, peer: PeerId) -> Result<(), ControlError> {
        if !state.peer(peer).reached && self.is_by_mapping() && !self.is_mapped(peer) {
            return Err(ControlError::NotMapped);
        }
        state.peer(peer).reached = true;
        Ok(())
    }

    /// Admits a compute node; yields its id, the epoch that it begins with, and the sweep that it notes for.
    pub(super) fn admit(&self, peer: PeerId) -> Result<Reply, ControlError> {
        let mut state = self.state();
        let asking = state.home_peer(peer)?;
        if asking.nodes.len() >= NODES_OF_ONE_MAX {
            return Err(ControlError::TooManyNodesOfOne { max: NODES_OF_ONE_MAX as u32 });
        }
        asking.reached |= self.is_mapped(peer);
        let node = state.node_ids.take()?;
        state.peer(peer).nodes.push(node);
        let sweep = state.sweep.join(peer.0).map(|(number, index)| (number, index.0));
        Ok(Reply::Admitted { node, epoch: state.epochs.join(peer.0), sweep })
    }

    /// Takes a sign of life from a process with compute nodes: what they have acknowledged.
    pub(super) fn epoch(&self, peer: PeerId, beat: Beat) -> Result<Reply, ControlError> {
        let Beat { oldest, fenced, waits, flush, noting } = beat;
        let (now, mut state) = (self.clock.now(), self.state());
        state.home_peer(peer)?;
        state.note_fenced(fenced);
        if waits {
            self.hurry(&mut state);
        }
        if flush > 0 {
            state.epochs.want_flush(flush);
        }
        let before = state.epochs.epoch();
        let epoch = state.epochs.acknowledge(peer.0, oldest);
        if epoch > before {
            state.epoch_since_ns = now;
        }
        state.sweep.noted(peer.0, noting);
        let sweep = state.sweep.wanted(peer.0).map(|(number, index, step)| (number, index.0, step));
        let (dead, hurry) = (state.node_ids.dead().len() as u32, now < state.waits_until_ns);
        Ok(Reply::Epoch { epoch, dead, hurry, flushed: state.epochs.flushed(), sweep })
    }

    /// Has signs of life come sooner, for a while.
    pub(super) fn hurry(&self, state: &mut Peers) {
        state.waits_until_ns = self.clock.now() + WAITS_NS;
    }

    pub(super) fn agree(&self, peer: PeerId) -> Result<(), ControlError> {
        self.agreed(&mut self.state(), peer).map(|_| ())
    }

    /// Takes a chunk for an index. For a temporary index, whose catalog is kept elsewhere, it is freed with this
    /// connection.
    pub(super) fn chunk(&self, peer: PeerId, wanted: Owner, temporary: bool) -> Result<Extent, ControlError> {
        let memory = &self.served.memory;
        let (reserved, owner) = {
            let mut state = self.state();
            self.reach(&mut state, peer)?;
            let own = self.agreed(&mut state, peer)?;
            let elsewhere = own != ServerId(0);
            let owner = if elsewhere { wanted } else { memory.usable(wanted.index, peer)? };
            // The server is bound to the peer's list: it holds the chunk that this is the rest of.
            if let Some(rest) = memory.take_rest(owner, peer) {
                return Ok(rest);
            }
            // Together with the binding: a server that holds nothing is bound to no list.
            let reserved = memory.reserve(own)?;
            self.bind(&mut state, peer);
            state.peer(peer).indexes.insert(owner.index);
            if temporary && elsewhere {
                memory.tie(owner, peer);
            }
            (reserved, owner)
        };
        memory.hand_out(reserved, owner, peer)
    }

    pub(super) fn return_extent(
        &self,
        peer: PeerId,
        index: IndexId,
        rest: Extent,
    ) -> Result<(), ControlError> {
        let mut state = self.state();
        if self.agreed(&mut state, peer)? == ServerId(0) {
            self.served.memory.usable(index, peer)?;
        }
        self.served.memory.return_extent(index, peer, rest)
    }

    /// Takes free nodes of the index's chunks, of any client.
    pub(super) fn give_nodes(
        &self,
        peer: PeerId,
        index: IndexId,
        batch: NodeBatch,
    ) -> Result<(), ControlError> {
        let mut state = self.state();
        if self.agreed(&mut state, peer)? == ServerId(0) {
            self.served.memory.usable(index, peer)?;
        }
        self.served.memory.give_nodes(index, batch)
    }

    /// Hands out free nodes of the index's chunks, if some were given back.
    pub(super) fn take_nodes(
        &self,
        peer: PeerId,
        wanted_of: Owner,
        wanted: &WantedNodes,
    ) -> Result<Option<NodeBatch>, ControlError> {
        let mut state = self.state();
        self.reach(&mut state, peer)?;
        let owner = match self.agreed(&mut state, peer)? {
            ServerId(0) => self.served.memory.usable(wanted_of.index, peer)?,
            _ => wanted_of,
        };
        Ok(self.served.memory.take_nodes(owner, wanted))
    }

    /// Lists pieces of the index's chunks from `from` on, if they belong to the client's catalog, as many as fit
    /// a frame, and says who else may use the server's memory.
    pub(super) fn holdings(&self, peer: PeerId, index: IndexId, from: u64) -> Reply {
        const PIECES_OF_A_PAGE: usize = PAGE_BYTES_MAX / 24;
        let mut state = self.state();
        let members = Members::clone(&state.peer(peer).members);
        let (pieces, more) = match state.binding.has_home_of(&members) {
            true => self.served.memory.pieces(index, from, PIECES_OF_A_PAGE),
            false => (Vec::new(), false),
        };
        let pieces = pieces.into_iter().map(|(piece, is_rest)| (piece.offset, piece.bytes, is_rest));
        let (others, joins) = (state.others(peer), state.joins);
        Reply::Holdings { pieces: pieces.collect(), more, others, joins }
    }

    /// Takes pieces of the index's chunks back that the client has found no node in. No other client may have an
    /// address there, or the memory in a list: with `joins`, none is connected, and none was since the client began to
    /// look, else something that it has left may lead there; without, the client has swept. A client that joins from
    /// now on finds nothing that leads there, and gets the memory zeroed.
    pub(super) fn take_back(
        &self,
        peer: PeerId,
        index: IndexId,
        joins: Option<u64>,
        extents: Vec<Extent>,
    ) -> Result<u64, ControlError> {
        let memory = &self.served.memory;
        let cleaning = {
            let mut state = self.state();
            let server = self.agreed(&mut state, peer)?;
            if server == ServerId(0) {
                memory.usable(index, peer)?;
            }
            if let Some(joins) = joins {
                let others = state.others(peer);
                if others > 0 {
                    return Err(ControlError::OthersConnected { server, others });
                }
                if state.joins != joins {
                    return Err(ControlError::OthersCame { server });
                }
            }
            memory.take_back(index, extents)?
        };
        memory.clean(cleaning)
    }

    pub(super) fn create(&self, peer: PeerId, wanted: Wanted<'_>) -> Result<Entry, ControlError> {
        let Wanted { name, kind, config, fenced, temporary } = wanted;
        // The only random number here; a server without random numbers seals nothing, and so creates nothing.
        let key = random_instance().map_err(|error| ControlError::NoRandom { cause: error.to_string() })?;
        let fenced = fenced.min(self.at_home(peer)?.node_ids.dead().len() as u32);
        let (key, temporary_of) = (SealKey(key), temporary.then_some(peer));
        let new = NewIndex { name, kind, config, key, fenced, temporary_of };
        // Without the state: this may wait for a writer that is stopped.
        let root = self.served.memory.reserve_root(&new)?;
        let mut state = self.at_home(peer)?;
        let entry = self.served.memory.create(new, root)?;
        self.bind(&mut state, peer);
        state.peer(peer).indexes.insert(IndexId(entry.id));
        Ok(entry)
    }

    pub(super) fn open(&self, peer: PeerId, name: &str) -> Result<Entry, ControlError> {
        let mut state = self.at_home(peer)?;
        let entry = self.served.memory.open(name, peer)?;
        state.peer(peer).indexes.insert(IndexId(entry.id));
        Ok(entry)
    }

    /// Locks the state, if that peer may use indexes whose catalog is kept here.
    fn at_home(&self, peer: PeerId) -> Result<MutexGuard<'_, Peers>, ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        self.reach(&mut state, peer)?;
        self.agreed(&mut state, peer)?;
        Ok(state)
    }

    pub(super) fn page(&self, after: Option<&str>) -> (Vec<Entry>, bool) {
        drop(self.state());
        self.served.memory.page(after, PAGE_BYTES_MAX)
    }

    pub(super) fn begin_drop(&self, peer: PeerId, name: &str) -> Result<(IndexId, SealKey), ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let index = self.served.memory.id_of(name)?;
        let Users { connections, silent, mut nodes } = state.users(index, peer);
        if connections > 0 {
            nodes.truncate(NODES_NAMED_MAX);
            return Err(ControlError::InUse { name: name.into(), nodes, connections, silent });
        }
        self.served.memory.begin_drop(name)
    }

    /// Lists the connections of the server that keeps the catalog, which is this one, and counts the nodes that have
    /// died.
    pub(super) fn census(&self, peer: PeerId) -> Result<(Census, u32), ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        Ok((state.census(), state.node_ids.dead().len() as u32))
    }

    /// Lists the dead after the first `after`, as many as fit a frame, and tells whether there are more.
    pub(super) fn dead(&self, peer: PeerId, after: u32) -> Result<(Vec<u16>, bool), ControlError> {
        const NODES_OF_A_PAGE: usize = PAGE_BYTES_MAX / 4;
        let mut state = self.state();
        state.home_peer(peer)?;
        let left = state.node_ids.dead().get(after as usize..).unwrap_or_default();
        let page = &left[..left.len().min(NODES_OF_A_PAGE)];
        Ok((page.to_vec(), page.len() < left.len()))
    }

    /// Ends what is left here of connections that the server which keeps the catalog no longer knows: none of their
    /// operations takes effect afterwards. (Mapped memory needs none of this: that server has forgotten no client whose
    /// process lives.)
    pub(super) fn fence(&self, peer: PeerId, census: &Census) {
        if self.state().peer(peer).own == ServerId(0) {
            return;
        }
        let gone = self.state().fence(peer, census);
        if let Some(responder) = &self.served.responder {
            gone.iter().for_each(|gone| responder.forget(*gone));
        }
    }

    /// Takes chunks back that belong to an index of the client's catalog. Another catalog may have given the same
    /// number to another index: that one is not touched.
    pub(super) fn free(
        &self,
        peer: PeerId,
        index: IndexId,
        key: SealKey,
        census: &Census,
    ) -> Result<u64, ControlError> {
        self.fence(peer, census);
        let mut state = self.state();
        let asking = state.peer(peer);
        let (members, own) = (Members::clone(&asking.members), asking.own);
        if !state.binding.has_home_of(&members) {
            return Ok(0);
        }
        let owner = match own {
            ServerId(0) => self.served.memory.dropping(index).ok_or(ControlError::NoSuchIndex { index })?,
            _ => Owner { index, seal: key.seal() },
        };
        Ok(self.served.memory.free(owner))
    }

    pub(super) fn finish_drop(&self, peer: PeerId, name: &str, index: IndexId) -> Result<(), ControlError> {
        let mut state = self.state();
        state.home_peer(peer)?;
        let owner = self.served.memory.dropping(index);
        self.served.memory.finish_drop(name, index)?;
        // A client that has omitted `Free` must not leave chunks that no client can free any more.
        owner.map(|owner| self.served.memory.free(owner));
        state.joined.values_mut().for_each(|user| {
            user.indexes.remove(&index);
        });
        Ok(())
    }

    /// Reports what the server holds.
    pub fn usage(&self) -> ServerUsage {
        let (now, state) = (self.clock.now(), self.state());
        let (kept, epoch, waits) =
            (state.kept_for_silent(), state.epochs.epoch(), now < state.waits_until_ns);
        drop(state);
        let silent_bytes = self.served.memory.bytes_of(&kept);
        ServerUsage { silent_bytes, epoch, waits, ..self.served.memory.usage() }
    }

    /// Lists the nodes that have joined, the silent ones too.
    pub fn nodes(&self) -> Vec<ConnectedNode> {
        let (now, state) = (self.clock.now(), self.state());
        state.after(None).into_iter().map(|(number, ..)| state.seen(number, now)).collect()
    }

    pub(super) fn joined(&self) -> u32 {
        self.state().joined.len() as u32
    }

    /// Lists the connections after that one, as many as fit a frame, and tells whether there are more.
    pub(super) fn nodes_page(&self, after: Option<u64>) -> (Vec<(u64, ConnectedNode)>, bool) {
        const NUMBERS_BYTES_MAX: usize = 32;
        let (now, state) = (self.clock.now(), self.state());
        let (mut bytes, mut page) = (0, Vec::new());
        for (number, peer, _) in state.after(after) {
            bytes += peer.name.len() + NUMBERS_BYTES_MAX;
            if bytes > PAGE_BYTES_MAX {
                return (page, true);
            }
            page.push((number, state.seen(number, now)));
        }
        (page, false)
    }

    pub(super) fn queue_pair(
        &self,
        peer: PeerId,
        shard: ShardId,
        theirs: Endpoint,
    ) -> Result<Answer, ControlError> {
        let server = {
            let mut state = self.state();
            let asking = state.peer(peer);
            asking.reached = true;
            asking.own
        };
        let answered = match &self.served.responder {
            // Takes milliseconds, without the state.
            Some(responder) => {
                let answered = responder.answer(peer, shard, theirs);
                // A peer that was fenced meanwhile has not heard of its new queue pair.
                if self.is_fenced(peer) {
                    responder.forget(peer);
                }
                answered
            }
            None => Err("its memory is not reached by queue pairs, but by mapping its file".into()),
        };
        answered.map_err(|mut reason| {
            let end =
                (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|&end| reason.is_char_boundary(end));
            reason.truncate(end.unwrap_or(0));
            ControlError::QueuePair { server, reason }
        })
    }

    /// Checks that the peer may use what the server holds; yields this server's position in its list.
    fn agreed(&self, state: &mut Peers, peer: PeerId) -> Result<ServerId, ControlError> {
        if self.served.memory.is_empty() {
            state.binding.release();
        }
        let asking = state.peer(peer);
        let (members, own) = (Members::clone(&asking.members), asking.own);
        state.binding.agree(&members, own).map(|()| own)
    }

    fn bind(&self, state: &mut Peers, peer: PeerId) {
        let members = Members::clone(&state.peer(peer).members);
        if state.binding.bind(&members) {
            self.served.memory.forget_freed();
        }
    }

    /// Locks the state, and removes silent connections that have died from it.
    pub(super) fn state(&self) -> MutexGuard<'_, Peers> {
        let mut state = self.state.lock().expect("no request panics while it holds the state");
        if !state.silent.is_empty() {
            let dead: Vec<u64> =
                state.silent.keys().copied().filter(|silent| !self.is_mapped(PeerId(*silent))).collect();
            for number in dead {
                let gone = state.silent.remove(&number).expect("it was just found");
                self.bury(&mut state, PeerId(number), &gone);
            }
        }
        state
    }
}
