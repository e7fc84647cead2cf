//! The lists of one allocator: what is left of chunks, free nodes, retired ones. They are of its shard's thread, but
//! for a sweep, which is told what is in them. No memory is asked for here.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard};

use super::{Allocated, Before, OfKind};
use crate::control::Chunk;
use crate::control::nodes::NodeClass;
use crate::control::sweep::{List, Noted};
use crate::extents::Extents;
use crate::pointer::{RemotePtr, ServerId};

/// The lists.
#[derive(Default)]
pub(super) struct State {
    /// Unused rests of the chunks that were taken, never written to. Nodes are carved from the last one while it lasts.
    pub(super) pieces: Vec<Chunk>,
    /// The largest node that was asked for.
    pub(super) largest: u64,
    pub(super) next_server: usize,
    /// Free nodes that were in use, by size and server.
    pub(super) returned: Returned,
    /// Free nodes of a kind, by size and server, each with its first word if that is known.
    pub(super) of_kind: BTreeMap<(u64, ServerId), Vec<FreeOfKind>>,
    /// Nodes that were retired: the oldest first.
    pub(super) waiting: VecDeque<Retired>,
    /// Nodes that were retired and to which caches may lead: they wait for a flush first. The oldest first.
    pub(super) cached: VecDeque<Retired>,
    pub(super) cached_bytes: u64,
    /// The epoch in which a node last came back that was not published: WRITEs of this shard may be on their way there.
    pub(super) unpublished: u64,
    /// Servers that have said that they have no nodes of a class, each with the epoch.
    pub(super) without: BTreeMap<(ServerId, NodeClass), u64>,
    pub(super) used_bytes: i64,
    pub(super) retired_bytes: u64,
    pub(super) unsettled_bytes: u64,
    pub(super) reclaimed_bytes: u64,
    pub(super) reused_bytes: u64,
    /// Nodes that are out of the index, of which it is not known yet, or never will be, when they are free.
    pub(super) leaving: BTreeMap<RemotePtr, u64>,
    /// Nodes that may be out of the index, and are about to be retired.
    pub(super) expected: BTreeMap<RemotePtr, u64>,
    /// True while a request for memory is not answered: what it brings is in no list yet.
    pub(super) asks: bool,
    /// Extents that have left the lists since a sweep began, if there is one.
    pub(super) noted: Noted,
}

/// A free node of a kind, and its first word if that is known.
pub(super) type FreeOfKind = (RemotePtr, Option<u64>);

/// A node that was retired.
pub(super) struct Retired {
    pub(super) since: u64,
    pub(super) node: RemotePtr,
    pub(super) bytes: u64,
    pub(super) of_kind: bool,
    /// The first word of a node of a kind, if it is known.
    pub(super) first_word: Option<u64>,
}

/// Free nodes that were in use, by size and server. Lists that become empty stay, so that they need no memory again.
pub(super) type Returned = BTreeMap<(u64, ServerId), Vec<RemotePtr>>;

impl State {
    pub(super) fn carve(&mut self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        self.largest = self.largest.max(bytes);
        if let Some(node) = self.take_returned(server, bytes..=bytes).map(|(node, _)| node) {
            tracing::debug!(name: "alloc.reused", %node, bytes, "memory is used again");
            self.used_bytes += bytes as i64;
            self.reused_bytes += bytes;
            self.note(node, bytes);
            return Some(Allocated { at: node, zeroed: false });
        }
        let is_there = |at: RemotePtr| server.is_none_or(|server| at.server() == server);
        let place = self.pieces.iter().rposition(|piece| piece.bytes >= bytes && is_there(piece.start))?;
        let mut piece = self.pieces.swap_remove(place);
        let node = piece.start;
        piece.bytes -= bytes;
        if piece.bytes > 0 {
            piece.start = node.add(bytes);
            self.pieces.push(piece);
        }
        self.used_bytes += bytes as i64;
        self.note(node, bytes);
        Some(Allocated { at: node, zeroed: true })
    }

    /// Counts a retired node as free.
    pub(super) fn free_retired(&mut self, node: RemotePtr, bytes: u64) {
        tracing::debug!(name: "alloc.reclaimed", %node, bytes, "a retired node is free");
        self.retired_bytes -= bytes;
        self.reclaimed_bytes += bytes;
        self.used_bytes -= bytes as i64;
    }

    /// Takes a free node; yields how many there are now of its size and server.
    pub(super) fn give_back(&mut self, node: RemotePtr, bytes: u64) -> usize {
        let nodes = self.returned.entry((bytes, node.server())).or_default();
        nodes.push(node);
        nodes.len()
    }

    pub(super) fn give_back_of_kind(
        &mut self,
        node: RemotePtr,
        bytes: u64,
        first_word: Option<u64>,
    ) -> usize {
        let nodes = self.of_kind.entry((bytes, node.server())).or_default();
        nodes.push((node, first_word));
        nodes.len()
    }

    pub(super) fn give_back_as(
        &mut self,
        node: RemotePtr,
        bytes: u64,
        of_kind: bool,
        first_word: Option<u64>,
    ) -> usize {
        match of_kind {
            true => self.give_back_of_kind(node, bytes, first_word),
            false => self.give_back(node, bytes),
        }
    }

    /// Tells whether a node can be had on that server without asking for memory.
    pub(super) fn has_room(&self, server: ServerId, bytes: u64) -> bool {
        let is_there = |piece: &Chunk| piece.start.server() == server && piece.bytes >= bytes;
        let returned = self.returned.get(&(bytes, server)).is_some_and(|nodes| !nodes.is_empty());
        returned || self.pieces.iter().any(is_there)
    }

    /// Takes a free node of a kind, of that server if one is named.
    pub(super) fn take_of_kind(&mut self, server: Option<ServerId>, bytes: u64) -> Option<OfKind> {
        let (first, last) = (server.unwrap_or(ServerId(0)), server.unwrap_or(ServerId(u16::MAX)));
        let mut lists = self.of_kind.range_mut((bytes, first)..=(bytes, last)).map(|(_, nodes)| nodes);
        let (node, first_word) = lists.find_map(Vec::pop)?;
        tracing::debug!(name: "alloc.reused", %node, bytes, "memory is used again");
        self.used_bytes += bytes as i64;
        self.reused_bytes += bytes;
        self.note(node, bytes);
        Some(OfKind { at: node, before: Before::Node(first_word) })
    }

    /// Takes a free node of the smallest of these sizes that there is, and yields its size.
    pub(super) fn take_returned(
        &mut self,
        server: Option<ServerId>,
        sizes: RangeInclusive<u64>,
    ) -> Option<(RemotePtr, u64)> {
        let (least, most) = (*sizes.start(), *sizes.end());
        let first = server.unwrap_or(ServerId(0));
        let last = server.unwrap_or(ServerId(u16::MAX));
        let mut lists = self.returned.range_mut((least, first)..=(most, last));
        let (&(size, _), nodes) =
            lists.find(|((_, at), nodes)| server.is_none_or(|server| *at == server) && !nodes.is_empty())?;
        nodes.pop().map(|node| (node, size))
    }

    /// Divides the smallest node of a larger size that was returned.
    pub(super) fn divide(&mut self, server: Option<ServerId>, bytes: u64) -> Option<Allocated> {
        let (at, size) = self.take_returned(server, bytes + 1..=u64::MAX)?;
        self.give_back(at.add(bytes), size - bytes);
        self.used_bytes += bytes as i64;
        self.reused_bytes += bytes;
        self.note(at, bytes);
        Some(Allocated { at, zeroed: false })
    }

    /// Makes one of returned nodes that lie side by side.
    pub(super) fn join(&mut self) {
        let returned = std::mem::take(&mut self.returned);
        let sizes = returned.into_iter();
        let mut nodes: Vec<(RemotePtr, u64)> =
            sizes.flat_map(|((bytes, _), nodes)| nodes.into_iter().map(move |node| (node, bytes))).collect();
        nodes.sort_unstable_by_key(|(node, _)| node.to_bits());
        let mut joined: Vec<(RemotePtr, u64)> = Vec::new();
        for (node, bytes) in nodes {
            match joined.last_mut() {
                Some((first, size)) if first.add(*size) == node => *size += bytes,
                _ => joined.push((node, bytes)),
            }
        }
        joined.into_iter().for_each(|(node, bytes)| _ = self.give_back(node, bytes));
    }

    /// Notes that a node leaves the lists, for a sweep.
    #[inline]
    pub(super) fn note(&mut self, node: RemotePtr, bytes: u64) {
        if let Some(noted) = &mut self.noted {
            noted.add(node, bytes);
        }
    }

    /// Yields what is in the lists: no node of the index lies there.
    pub(super) fn free(&self) -> impl Iterator<Item = (RemotePtr, u64)> {
        let pieces = self.pieces.iter().map(|piece| (piece.start, piece.bytes));
        let returned =
            self.returned.iter().flat_map(|((bytes, _), nodes)| nodes.iter().map(|node| (*node, *bytes)));
        let of_kind =
            self.of_kind.iter().flat_map(|((bytes, _), nodes)| nodes.iter().map(|(node, _)| (*node, *bytes)));
        let retired = self.waiting.iter().chain(&self.cached);
        let waiting = retired.map(|retired| (retired.node, retired.bytes));
        pieces.chain(returned).chain(of_kind).chain(waiting)
    }
}

impl List for Mutex<State> {
    fn note(&self, is_on: bool) {
        lock(self).noted = is_on.then(Extents::default);
    }

    fn tell(&self, extents: &mut Extents) -> bool {
        let state = lock(self);
        let leaving = state.leaving.iter().chain(&state.expected).map(|(node, bytes)| (*node, *bytes));
        state.free().chain(leaving).for_each(|(node, bytes)| _ = extents.add(node, bytes));
        state.noted.iter().for_each(|noted| extents.add_all(noted));
        !state.asks
    }
}

/// Locks the lists, which a sweep looks at from another thread.
#[inline]
pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics while it holds the lists")
}
