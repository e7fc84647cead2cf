//! Free nodes that go to other shards, of any compute node: by way of the server that they lie on, which keeps them for
//! the index. It does not know which shards get them, nor how these ask for them.
//!
//! ```text
//!   shard A   free ··> more than it keeps ──batch──> server        A's allocator is dropped: all ──> server
//!   shard B                                          server ──batch──> free, or waits for an epoch, or a flush
//! ```
//!
//! A shard's own next node is written behind all WRITEs that the shard has on their way there, on the same queue pair.
//! Another shard's is not. So a batch says which epoch it waits for: the one in which a node last came back that was
//! not published, as a WRITE there may be on its way. A retired one has waited for three epochs already, and all chains
//! of those who had its address have ended with them:
//!
//! ```text
//!   A   WRITE x ·· is dropped: x is free ── gives x away                 WRITE x arrives
//!   B                                          takes x ── WRITE x, CAS a slot: leads to x ·· reads A's bytes
//! ```
//!
//! When an allocator is dropped, nodes go that are not free yet, too, each with what it waits for: the next shard that
//! has them waits for the same. What the index has to look at once more (`kept.rs`) does not go.

use super::NodeAllocator;
use super::state::{Retired, State};
use crate::control::ServerInfo;
use crate::control::nodes::{NodeBatch, NodeClass, Waits};
use crate::epoch::Pins;
use crate::pointer::{RemotePtr, ServerId};

/// A shard keeps this part of a chunk in free nodes of one class; it gives half of that away, and all that is more.
const KEPT_PART: u64 = 4;
/// Nodes that it keeps of a class at least.
const KEPT_MIN: usize = 4;
/// Nodes of a batch, and of one of an allocator that is dropped, at most.
const BATCH_MAX: usize = 64;
const LAST_BATCH_MAX: usize = 1024;

/// Batches on their way to servers.
type Batches = Vec<(ServerId, NodeBatch)>;

/// Tells how many free nodes of a size a shard keeps that are on that server.
fn kept(servers: &[ServerInfo], server: ServerId, bytes: u64) -> usize {
    let chunk_bytes = servers.get(usize::from(server.0)).map_or(0, |server| server.chunk_bytes);
    ((chunk_bytes / KEPT_PART / bytes) as usize).max(KEPT_MIN)
}

impl NodeAllocator {
    /// Notes that there is one more free node of a class; yields whether these are too many now.
    pub(super) fn is_surplus(&self, count: usize, server: ServerId, bytes: u64) -> bool {
        count > kept(self.control.servers(), server, bytes)
    }

    /// Gives free nodes to their servers of which there are more than this shard keeps.
    #[cold]
    pub(super) fn give_surplus(&self) {
        self.give(|state| state.take_surplus(self.control.servers()));
    }

    /// Gives all nodes that are free, or will be, to their servers.
    pub(super) fn give_all(&self) {
        self.give(State::take_all);
    }

    fn give(&self, take: impl FnOnce(&mut State) -> Batches) {
        // A sweep that begins now asks the server when this has arrived there.
        let _pin = self.pins.pin();
        let batches = {
            let mut state = self.state();
            let batches = take(&mut state);
            state.note_batches(&batches);
            batches
        };
        for (server, batch) in batches {
            let bytes = batch.bytes();
            tracing::debug!(name: "alloc.given_back", server = server.0, bytes, "free nodes go to their server");
            self.control.give_nodes(self.index, server, batch);
        }
    }
}

/// Makes batches of nodes of one class.
fn batches_of(
    (class, server): (NodeClass, ServerId),
    waits: Waits,
    nodes: impl IntoIterator<Item = (RemotePtr, Option<u64>)>,
    most: usize,
) -> Batches {
    let nodes: Vec<_> = nodes.into_iter().map(|(node, first_word)| (node.offset(), first_word)).collect();
    let batch = |nodes: &[_]| (server, NodeBatch { class, waits, nodes: nodes.to_vec() });
    nodes.chunks(most).map(batch).collect()
}

impl State {
    /// Yields what free nodes wait for before another shard may have them.
    fn free_waits(&self) -> Waits {
        Waits::Epoch(self.unpublished)
    }

    fn note_batches(&mut self, batches: &Batches) {
        for (server, batch) in batches {
            let node = |offset| RemotePtr::new(*server, offset);
            batch.nodes.iter().for_each(|(offset, _)| self.note(node(*offset), batch.class.bytes));
        }
    }

    /// Takes what is more than a shard keeps, of all classes.
    fn take_surplus(&mut self, servers: &[ServerInfo]) -> Batches {
        let (waits, mut batches) = (self.free_waits(), Vec::new());
        // The oldest are the first of a list.
        let surplus = |count: usize, server, bytes| {
            let kept = kept(servers, server, bytes);
            if count > kept { count - kept / 2 } else { 0 }
        };
        for (&(bytes, server), nodes) in &mut self.returned {
            let (class, count) = (NodeClass { bytes, of_kind: false }, surplus(nodes.len(), server, bytes));
            let nodes = nodes.drain(..count).map(|node| (node, None));
            batches.extend(batches_of((class, server), waits, nodes, BATCH_MAX));
        }
        for (&(bytes, server), nodes) in &mut self.of_kind {
            let (class, count) = (NodeClass { bytes, of_kind: true }, surplus(nodes.len(), server, bytes));
            batches.extend(batches_of((class, server), waits, nodes.drain(..count), BATCH_MAX));
        }
        batches
    }

    /// Takes all nodes that are free, or will be.
    fn take_all(&mut self) -> Batches {
        let (waits, mut batches) = (self.free_waits(), Vec::new());
        for ((bytes, server), nodes) in std::mem::take(&mut self.returned) {
            let class = NodeClass { bytes, of_kind: false };
            let nodes = nodes.into_iter().map(|node| (node, None));
            batches.extend(batches_of((class, server), waits, nodes, LAST_BATCH_MAX));
        }
        for ((bytes, server), nodes) in std::mem::take(&mut self.of_kind) {
            let class = NodeClass { bytes, of_kind: true };
            batches.extend(batches_of((class, server), waits, nodes, LAST_BATCH_MAX));
        }
        for (waits, retired) in [
            (Waits::Epoch as fn(u64) -> Waits, std::mem::take(&mut self.waiting)),
            (Waits::Flush, std::mem::take(&mut self.cached)),
        ] {
            let Some(last) = retired.iter().map(|retired| retired.since).max() else { continue };
            let mut by_class = std::collections::BTreeMap::<_, Vec<_>>::new();
            for retired in retired {
                let class = NodeClass { bytes: retired.bytes, of_kind: retired.of_kind };
                let of_class = by_class.entry((class, retired.node.server())).or_default();
                of_class.push((retired.node, retired.first_word));
            }
            for (class, nodes) in by_class {
                batches.extend(batches_of(class, waits(last), nodes, LAST_BATCH_MAX));
            }
        }
        batches
    }

    /// Takes nodes that others have given back. Those that still wait are in use until then, as far as books go.
    pub(super) fn adopt(&mut self, server: ServerId, batch: NodeBatch, pins: &Pins) {
        let NodeBatch { class: NodeClass { bytes, of_kind }, waits, nodes } = batch;
        tracing::debug!(name: "alloc.from_others", server = server.0, bytes, "free nodes come from their server");
        let (since, is_cached) = match waits {
            Waits::Epoch(since) => (since, false),
            Waits::Flush(since) => match pins.flushed_since(since) {
                Some(since) => (since, false),
                None => (since, true),
            },
        };
        let is_free = !is_cached && pins.is_over(since);
        for (offset, first_word) in nodes {
            let node = RemotePtr::new(server, offset);
            if is_free {
                _ = self.give_back_as(node, bytes, of_kind, first_word);
                continue;
            }
            self.used_bytes += bytes as i64;
            self.retired_bytes += bytes;
            let retired = Retired { since, node, bytes, of_kind, first_word };
            if is_cached {
                self.cached_bytes += bytes;
                self.cached.push_back(retired);
            } else {
                self.waiting.push_back(retired);
            }
        }
    }
}

#[cfg(test)]
#[path = "given_tests.rs"]
mod tests;
