//! The connections of a control service: those that are open, and *silent* ones, which are not heard while their
//! process still has the memory mapped. Bookkeeping only: it asks neither the system nor the memory.
//!
//! ```text
//!   connect ──> open ──> joined ──────────────> ended: ids returned (said goodbye, or never reached the memory),
//!                        │  ^                     ^        or dead, for good
//!                        v  │ resumed             │
//!                       silent ───────────────────┘ proved dead
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::members::{Binding, Members};
use crate::control::node_ids::NodeIds;
use crate::control::queue_pair::PeerId;
use crate::control::sweep::{Ended, SweepHome};
use crate::control::wire::{Census, ConnectedNode};
use crate::control::{ControlError, IndexId};
use crate::epoch::EpochHome;
use crate::pointer::ServerId;

/// The connections that the sessions of a service share.
#[derive(Default)]
pub(super) struct Peers {
    connected: u64,
    /// Number of times that a connection has joined, or was resumed.
    pub(super) joins: u64,
    /// Connections that have not ended, joined or not.
    open: BTreeSet<u64>,
    /// Joined connections by [`PeerId`].
    pub(super) joined: BTreeMap<u64, Peer>,
    pub(super) silent: BTreeMap<u64, Peer>,
    pub(super) binding: Binding,
    pub(super) node_ids: NodeIds,
    /// The cluster's epoch, at the server that keeps the catalog: joined and silent connections with compute nodes are
    /// its members, and dead ones until they are fenced.
    pub(super) epochs: EpochHome<u64>,
    /// Dead connections that are to be fenced on other servers, and how many nodes had died with each.
    unfenced: Vec<(u32, u64)>,
    /// When it moved on last.
    pub(super) epoch_since_ns: u64,
    /// Until when it is to move on sooner.
    pub(super) waits_until_ns: u64,
    /// The sweep that is under way, at the server that keeps the catalog.
    pub(super) sweep: SweepHome,
}

/// A connection that has joined.
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) members: Members,
    /// This server's position in `members`.
    pub(super) own: ServerId,
    /// The number of its connection at the server that keeps the catalog.
    pub(super) home: u64,
    pub(super) nodes: Vec<u16>,
    /// Indexes that it may be using: at the server that keeps the catalog all of them, elsewhere those that it has
    /// taken chunks for.
    pub(super) indexes: BTreeSet<IndexId>,
    pub(super) since_ns: u64,
    /// Secret that a client shows to resume the connection when it is silent.
    pub(super) pass: u128,
    /// True if the connection could reach the memory at some time: its nodes may have left locks there.
    pub(super) reached: bool,
    /// Set when its client wants to resume it, and waits for its end.
    pub(super) returning: bool,
    /// Set when it ends well: its ids may be given to others.
    pub(super) leaving: bool,
    /// Set when it is over: the server that keeps the catalog no longer knows it.
    pub(super) fenced: bool,
}

impl Peers {
    pub(super) fn connect(&mut self) -> PeerId {
        self.connected += 1;
        self.open.insert(self.connected);
        PeerId(self.connected)
    }

    /// Takes out a connection that has ended. Yields its peer, if it had joined.
    pub(super) fn disconnect(&mut self, peer: PeerId) -> Option<Peer> {
        self.open.remove(&peer.0);
        self.joined.remove(&peer.0)
    }

    /// Makes a silent connection joined again, if the pass is right. Its client uses the connection `by` from then on,
    /// whose own number is given up.
    pub(super) fn resume(&mut self, by: PeerId, silent: PeerId, pass: u128) -> Result<&Peer, ControlError> {
        let (connection, knows) = (silent.0, |peer: &Peer| peer.pass == pass);
        if let Some(peer) = self.joined.get_mut(&connection).filter(|peer| knows(peer)) {
            peer.returning = true;
            return Err(ControlError::NotEnded { connection });
        }
        let peer = match self.silent.entry(connection) {
            Entry::Occupied(silent) if knows(silent.get()) => silent.remove(),
            _ => return Err(ControlError::NotResumed { connection }),
        };
        let peer = Peer { returning: false, ..peer };
        self.joins += 1;
        self.open.remove(&by.0);
        self.open.insert(connection);
        Ok(self.joined.entry(connection).or_insert(peer))
    }

    pub(super) fn peer(&mut self, peer: PeerId) -> &mut Peer {
        self.joined.get_mut(&peer.0).expect("a session asks after it has joined and before it ends")
    }

    /// Returns a peer for which this is the server that keeps the catalog.
    pub(super) fn home_peer(&mut self, peer: PeerId) -> Result<&mut Peer, ControlError> {
        let peer = self.peer(peer);
        if peer.own == ServerId(0) { Ok(peer) } else { Err(ControlError::NotHome) }
    }

    /// Lists the connections that the catalog's other servers must not forget. One that has not joined yet is among
    /// them: it may have joined elsewhere.
    pub(super) fn census(&self) -> Census {
        Census { newest: self.connected, open: self.open.iter().chain(self.silent.keys()).copied().collect() }
    }

    /// Counts the users of an index except `but`, and the silent ones among them, and lists their nodes.
    pub(super) fn users(&self, index: IndexId, but: PeerId) -> Users {
        let uses = |(number, user): &(&u64, &Peer)| **number != but.0 && user.indexes.contains(&index);
        let (joined, silent) = (self.joined.iter().filter(uses), self.silent.iter().filter(uses));
        let users: Vec<&Peer> = joined.chain(silent.clone()).map(|(_, user)| user).collect();
        let nodes = users.iter().flat_map(|user| &user.nodes).copied().collect();
        Users { connections: users.len() as u32, silent: silent.count() as u32, nodes }
    }

    /// Counts the connections except `but` that may use the server's memory: those that have joined and not said
    /// goodbye, and silent ones.
    pub(super) fn others(&self, but: PeerId) -> u32 {
        let is_other = |(number, peer): &(&u64, &Peer)| **number != but.0 && !peer.fenced && !peer.leaving;
        let joined = self.joined.iter().filter(is_other);
        (joined.count() + self.silent.len()) as u32
    }

    /// Fences joined connections whose catalog is kept by the server that keeps that of `asking`, and which that server
    /// no longer knows; yields them.
    pub(super) fn fence(&mut self, asking: PeerId, census: &Census) -> Vec<PeerId> {
        let home = self.peer(asking).members.first().copied();
        let open: BTreeSet<u64> = census.open.iter().copied().collect();
        let gone = |(number, peer): &(&u64, &mut Peer)| {
            **number != asking.0
                && peer.members.first().copied() == home
                && peer.home <= census.newest
                && !open.contains(&peer.home)
        };
        let fenced = self.joined.iter_mut().filter(gone).map(|(number, peer)| {
            peer.fenced = true;
            PeerId(*number)
        });
        fenced.collect()
    }

    /// Lets the epoch wait for a connection that has died, until it is fenced on all servers.
    pub(super) fn hold_epoch_for(&mut self, peer: PeerId) {
        self.unfenced.push((self.node_ids.dead().len() as u32, peer.0));
    }

    /// Notes that the first `fenced` of the dead are fenced on all servers.
    pub(super) fn note_fenced(&mut self, fenced: u32) {
        let Peers { unfenced, epochs, .. } = self;
        unfenced.retain(|(dead, peer)| {
            let waits = *dead > fenced;
            if !waits {
                epochs.leave(*peer);
            }
            waits
        });
    }

    /// Describes a connection that has joined or is silent.
    pub(super) fn seen(&self, number: u64, now: u64) -> ConnectedNode {
        let silent = self.silent.get(&number);
        let peer = silent.or_else(|| self.joined.get(&number)).expect("it was listed");
        let seconds = now.saturating_sub(peer.since_ns) / 1_000_000_000;
        let (id, name, silent) = (peer.nodes.last().copied(), peer.name.clone(), silent.is_some());
        let waited = now.saturating_sub(self.epoch_since_ns) / 1_000_000_000;
        let late_seconds = if self.epochs.waits_for(number) { waited } else { 0 };
        ConnectedNode { id, name, seconds, silent, late_seconds }
    }

    /// Begins a sweep by that peer, of which all processes with compute nodes take part.
    pub(super) fn begin_sweep(&mut self, by: PeerId, index: IndexId) -> Result<u64, ControlError> {
        let all = self.joined.iter().chain(&self.silent);
        let processes: Vec<u64> =
            all.filter(|(_, peer)| !peer.nodes.is_empty()).map(|(process, _)| *process).collect();
        self.sweep.begin(index, by.0, processes).map_err(|ended| match ended {
            Ended::Other(other) => {
                let other = self.joined.get(&other).or_else(|| self.silent.get(&other));
                ControlError::Sweeping { by: other.map_or_else(String::new, |peer| peer.name.clone()) }
            }
            Ended::Void => ControlError::SweepVoid,
        })
    }

    /// Lists the compute nodes of a process.
    pub(super) fn nodes_of(&self, process: u64) -> Vec<u16> {
        let peer = self.joined.get(&process).or_else(|| self.silent.get(&process));
        peer.map_or_else(Vec::new, |peer| peer.nodes.clone())
    }

    /// Lists the indexes that silent connections may use again.
    pub(super) fn kept_for_silent(&self) -> BTreeSet<IndexId> {
        self.silent.values().flat_map(|peer| &peer.indexes).copied().collect()
    }

    /// Lists the connections after that one by their numbers, the silent ones among them.
    pub(super) fn after(&self, after: Option<u64>) -> Vec<(u64, &Peer, bool)> {
        let Some(first) = after.map_or(Some(0), |after| after.checked_add(1)) else { return Vec::new() };
        let joined = self.joined.range(first..).map(|(number, peer)| (*number, peer, false));
        let silent = self.silent.range(first..).map(|(number, peer)| (*number, peer, true));
        let mut all: Vec<_> = joined.chain(silent).collect();
        all.sort_unstable_by_key(|(number, ..)| *number);
        all
    }
}

/// The users of an index.
pub(super) struct Users {
    pub(super) connections: u32,
    pub(super) silent: u32,
    pub(super) nodes: Vec<u16>,
}
