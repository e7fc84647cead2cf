//! SMART: an adaptive radix tree (Luo et al., OSDI 2023).
//!
//! Inner nodes of 8-byte slots that change by CAS alone; one leaf per key, updated in place under a lock of its own. A
//! slot may lead to a leaf, so that lookups read one leaf and nothing else, once the inner nodes are in the cache.
//!
//! # Round trips (warm cache, no conflict)
//!
//! | operation | all techniques | without `fused` | nor `rear_lock` | nor `in_place_leaves` |
//! |---|---|---|---|---|
//! | get | 1 | 1 | 1 | 1 |
//! | put, update of a present key | 2 | 3 | 4 | 3 (2 with `fused`) and a CAS that is not awaited |
//! | insert into a slot that is free | 1 | 2 | 2 | 2 |
//! | insert beside another leaf (leaf split) | 3 | 3 | 3 | 3 |
//! | remove | 2 and a CAS that is not awaited | 2 | 2 | 2 |
//! | scan | levels below the root word, leaves included, in windows | | | |
//!
//! Without `lock_free_nodes` an insert takes two more: lock and unlock of the inner node. A put of an absent key whose
//! slot leads to another key's leaf takes two more than an insert: it has locked the leaf. A leaf in memory of another
//! one that was removed takes a CAS more that is not awaited (`new_node.rs`); that of one that has moved takes a round
//! trip more with `fused`. Leaves that are out are seen off in the background (`out.rs`): by one READ if the CAS of the
//! slot succeeded and their lock is free.
//!
//! # Words
//!
//! | paper | here |
//! |---|---|
//! | reverse pointer; *Valid* bit | the *link*, one word (`layout/radix/link.rs`) |
//! | in-header type 0, deleted node | a link that says removed, and frozen slots |
//! | NODE_4 to NODE_256 | node types by slots in use, and rooms they share (`layout/radix/types.rs`) |
//! | insert | `put` (insert or replace); `insert` fails if the key is present |
//!
//! # Differences from the paper
//!
//! - Keys of any length, one a prefix of another: a slot may be for the end of a key
//!   ([`crate::layout::radix::Symbol`]).
//! - Slots stay claimed for their symbol. The paper clears the slot of a removed key; then two clients that see two
//!   vacancies in different order can both put one symbol into the node.
//! - A node takes a larger type before the slot is claimed that calls for it (`insert.rs`), and not after.
//! - Nodes have the room of their type and move when it is full (`replace.rs`), instead of 2304 bytes each.
//! - A leaf's link decides what became of it, and not its slot: a client that reads a leaf over an old copy of its
//!   parent would otherwise find a value that others no longer see.
//! - Read delegation joins no read that began before (`farwood_lock`, windows).
//! - The memory of leaves that were removed, or replaced, is used again, for leaves of the same size (`out.rs`); that
//!   of inner nodes that were replaced, or taken out, when all caches were emptied (`replace.rs`).

mod bulk_load;
mod check;
mod config;
mod decide;
mod descend;
mod insert;
mod lookup;
mod mark;
mod new_node;
mod out;
mod pending;
mod replace;
mod scan;
mod sizes;
mod split;
mod turns;
mod write;

use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;
use std::sync::Arc;

use farwood_cache::CacheStats;
use farwood_cache::radix::{RadixCache, RadixConfig, RadixReader};
use farwood_lock::LockConfig;
use farwood_lock::window::WindowConfig;
use farwood_runtime::{Meter, ServerInfo, Verbs};

use self::config::PersistedConfig;
pub use self::config::{Geometry, Techniques, Types};
pub(crate) use self::new_node::child_at;
use self::turns::Turns;
use crate::check::{AtRest, CheckReport};
use crate::error::{AccessError, LoadError, OpenError, WriteError};
use crate::layout::Bytes;
use crate::layout::radix::{Child, LeafFormat, NodeTypes};
use crate::memory::Marks;
use crate::range_index::Scan;
use crate::shell::algorithm::{Algorithm, Filled, Trial};
use crate::shell::flushes::Flushes;
use crate::shell::handle::{Index, Local};
use crate::value::Value;
use crate::write_op::WriteOp;

/// A SMART tree as a whole compute node sees it.
pub type Smart = crate::shell::handle::Tree<SmartAlgorithm>;

/// A SMART tree on one shard.
pub type SmartIndex<V> = Index<SmartAlgorithm, V>;

/// Options of one compute node for a SMART tree.
pub type Options = crate::shell::options::Options<Techniques>;

/// A tree as one shard works on it.
type Tree<V> = Local<SmartAlgorithm, V>;

/// SMART, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SmartAlgorithm {}

/// Holds what the shards of a compute node share of a tree.
pub struct NodeState {
    types: &'static NodeTypes,
    leaf: LeafFormat,
    cache: Arc<RadixCache>,
    flushes: Flushes,
    turns: Turns,
}

impl<V: Verbs> Tree<V> {
    #[inline]
    fn types(&self) -> &'static NodeTypes {
        self.shared.state.types
    }

    #[inline]
    fn leaf(&self) -> &LeafFormat {
        &self.shared.state.leaf
    }

    /// Yields the cache, emptied since the last flush (`replace.rs`).
    #[inline]
    fn cache(&self) -> &RadixCache {
        let state = &self.shared.state;
        state.flushes.keep_up(self.verbs.pins().flushed(), || state.cache.clear());
        &state.cache
    }

    #[inline]
    fn turns(&self) -> &Turns {
        &self.shared.state.turns
    }

    /// Yields this shard's reader of the cache.
    #[inline]
    fn reader(&self) -> &RadixReader {
        self.cache();
        &self.state
    }
}

/// Fails if slots cannot name all memory of these servers.
pub(crate) fn check_servers(servers: &[ServerInfo]) -> Result<(), OpenError> {
    let most = Child::REGION_BYTES_MAX;
    if servers.len() > Child::SERVERS_MAX || servers.iter().any(|server| server.region_bytes > most) {
        let what = format!(
            "a radix tree takes {} memory servers of {} TiB at most: use smaller ones, or an index of another kind",
            Child::SERVERS_MAX,
            most >> 40
        );
        return Err(OpenError::Cluster { what });
    }
    Ok(())
}

impl Algorithm for SmartAlgorithm {
    const KIND: &'static str = "smart";
    const FILLED: Filled = Filled::InnerNodes;
    const TRIAL: Trial = Trial {
        rare_paths: &[
            "alloc.flushed",
            "alloc.from_others",
            "alloc.given_back",
            "alloc.reclaimed",
            "alloc.retired",
            "alloc.reused",
            "alloc.unsettled",
            "cache.evicted",
            "cache.flushed",
            "index.sweep.given_back",
            "index.swept",
            "janitor.again",
            "smart.header.split",
            "smart.leaf.estranged",
            "smart.leaf.locked",
            "smart.leaf.moved",
            "smart.leaf.recycled",
            "smart.leaf.retired",
            "smart.leaf.sought",
            "smart.leaf.split",
            "smart.leaf.superseded",
            "smart.leaf.welcomed",
            "smart.link.lost",
            "smart.link.restored",
            "smart.node.frozen",
            "smart.node.full",
            "smart.node.helped",
            "smart.node.merged",
            "smart.node.replaced",
            "smart.node.taken_out",
            "smart.read.locked",
            "smart.read.slow",
            "smart.redirect.settled",
            "smart.replace.lost",
            "smart.scan.resumed",
            "smart.slot.lost",
            "smart.snapshot.stale",
            "smart.split.lost",
            "smart.split.vain",
            "smart.turn.overdue",
            "smart.turn.waited",
            "smart.type.switched",
        ],
        // Nothing is used again where the epoch does not move on.
        bytes_per_server: 16 << 20,
        // Caches hold nothing below some 12 KiB, and segments of 4 KiB.
        cache_bytes: &[600, 13_000, 15_000, 17_000, 21_000, 1 << 20],
        is_radix: true,
        inserts_in_place: false,
        // The CAS that publishes a new leaf may be in flight on another queue pair than a read of that leaf.
        finishes_what_was_dropped: true,
        fails_with_queue_pairs: false,
        takeover_paths: &[],
        long_key: 255,
        // What keys have in common is in headers, six bytes each: a tree is as high as its keys differ in bytes.
        height_min: 3,
        load_factor_min: 0.25,
    };
    const SCAN_WINDOW: usize = 64;

    type Geometry = Geometry;
    type Techniques = Techniques;
    type PersistedConfig = PersistedConfig;
    type NodeState = NodeState;
    type ShardState = RadixReader;

    fn agree(
        geometry: Geometry,
        techniques: Techniques,
        servers: &[ServerInfo],
    ) -> Result<PersistedConfig, OpenError> {
        check_servers(servers)?;
        Ok(PersistedConfig::new(geometry, techniques))
    }

    fn check_persisted(persisted: &PersistedConfig) -> Result<(), String> {
        if persisted.rear_lock && !persisted.in_place_leaves {
            return Err("its leaves have locks, but are not updated in place".into());
        }
        Ok(())
    }

    fn check_cluster(_: &str, _: &PersistedConfig, servers: &[ServerInfo]) -> Result<(), OpenError> {
        check_servers(servers)
    }

    #[inline]
    fn geometry(persisted: &PersistedConfig) -> Geometry {
        persisted.geometry
    }

    fn in_effect(techniques: Techniques, persisted: &PersistedConfig) -> Techniques {
        techniques.on(persisted)
    }

    fn effective(techniques: Techniques, _: bool) -> Techniques {
        techniques.effective()
    }

    fn round_trips(
        _geometry: Geometry,
        techniques: Techniques,
    ) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        let Techniques { fused, rear_lock, in_place_leaves, .. } = techniques;
        if in_place_leaves {
            let update = 2 + u64::from(!fused) + u64::from(!rear_lock);
            (1..=1, update..=update)
        } else {
            // A leaf in memory of another one that has moved takes one more.
            (1..=1, 2..=3)
        }
    }

    fn updates_in_place(_geometry: Geometry, techniques: Techniques) -> bool {
        techniques.in_place_leaves
    }

    /// Yields table locks with hand-over, which is Sherman's. A leaf's own lock passes on by itself, with the WRITE
    /// that releases it, and combining does the rest.
    fn meet(techniques: Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        let Techniques { delegation, combining, .. } = techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        (LockConfig { hierarchical: true, handover: true, on_chip: false, ..locks }, windows)
    }

    fn node_state(persisted: &PersistedConfig, options: &Options, seed: u64) -> Result<NodeState, OpenError> {
        let (types, leaf) = persisted.geometry.formats()?;
        let config = RadixConfig { budget_bytes: options.cache_bytes, policy: options.eviction, seed };
        Ok(NodeState {
            types,
            leaf,
            cache: RadixCache::new(config),
            flushes: Flushes::default(),
            turns: Turns::new(),
        })
    }

    fn shard_state(node: &NodeState) -> RadixReader {
        node.cache.reader()
    }

    fn cache_bytes(node: &NodeState) -> usize {
        node.cache.bytes()
    }

    fn empty_caches(node: &NodeState) {
        node.cache.clear();
    }

    fn cache_stats(_node: &NodeState, reader: &RadixReader) -> CacheStats {
        reader.stats()
    }

    #[inline]
    fn lookup<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<Value>, AccessError>> {
        local.lookup(meter, key)
    }

    #[inline]
    fn write<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
    ) -> impl Future<Output = Result<bool, WriteError>> {
        local.write(meter, key, op)
    }

    fn scan<V: Verbs>(local: Rc<Tree<V>>, range: (Bound<Bytes>, Bound<Bytes>), limit: Option<usize>) -> Scan {
        scan::stream(local, range, limit)
    }

    fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Tree<V>>,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, LoadError>> {
        bulk_load::run(local, pairs, fill)
    }

    fn walk<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        at_rest: Option<AtRest<'_>>,
        report: &mut CheckReport,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> impl Future<Output = Result<(), AccessError>> {
        check::walk(local, meter, at_rest, report, visit)
    }

    async fn mark<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        marks: &mut Marks,
    ) -> Result<bool, AccessError> {
        mark::mark(local, meter, marks).await
    }
}
