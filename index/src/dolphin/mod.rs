//! Dolphin: radix nodes above leaves of many keys (An et al., "Dolphin: A Resource-efficient Hybrid Index on
//! Disaggregated Memory").
//!
//! Leaves are those of a B-link tree: each has the keys of a range, in order of nothing, and leads to the leaf that was
//! split off from it last. Above them are inner nodes of SMART's format, whose slots of one byte may each lead to a
//! leaf for that byte and those behind (`separators.rs`). So one cached slot leads to many pairs. Clients that
//! write values in one leaf do so at the same time, under a lock that they share ([`farwood_lock::shared`]).
//!
//! # Round trips (warm cache, no conflict)
//!
//! | operation | all techniques | without `fused` | nor `shared_updates` |
//! |---|---|---|---|
//! | get | 1 | 1 | 1 |
//! | update, put of a present key | 2, others meanwhile | 2, others meanwhile | 3, alone |
//! | insert, put of an absent key | 2, alone | 3, alone | 3, alone |
//! | put of an absent key behind one of a present key | 4 | 5 | 3, alone |
//! | remove | 2, alone | 3, alone | 3, alone |
//! | insert into a full leaf | 3, and the separator's | 4, and the separator's | 4, and the separator's |
//! | scan | one for each window of leaves | the same | the same |
//!
//! A separator costs 2 for each node that changes (3 without `fused`), and one more where there are new nodes below it.
//! With `fused` and without `shared_updates` an update takes 2, alone. A shard that has no lane has locks alone, in as
//! many round trips. A separator mostly changes one node. A put does not know beforehand whether its key is present: it
//! takes the way that the last put of its shard turned out to need.
//!
//! Two kinds of updates write the whole leaf, and so have the lock alone:
//!
//! - A slot has room for the longest value in whole words, and a bit in the key's head says whether the value is
//!   shorter than that. An update that changes the bit takes 4, without `fused` 5: it finds that out when it shares the
//!   lock.
//! - Where values may have more than 56 bytes, no value is sure to lie within a line. Every update takes 2 then,
//!   without `fused` 3.
//!
//! A split whose new leaf is in the memory of a merged one takes two or three more. Merges are in the background: a
//! READ of each leaf, two round trips to lock both, three for their WRITEs, and those of slots (`lead_on.rs`).
//!
//! A get that comes to a leaf which another node has split meanwhile takes one more, for the leaf behind; without
//! `backtracking` one for each level of the tree. A write takes two more, since it gives the leaf's lock back first.
//! With `deep_special` the first key of a prefix mostly splits a
//! leaf.
//!
//! # Words
//!
//! | the paper's | here |
//! |---|---|
//! | Spear | a lock that can be shared ([`farwood_lock::shared`]) |
//! | special node | an inner node of which one slot is for several bytes |
//! | reverse pointer, backtracking | the leaf's link to the leaf that was split off from it last, and the way over it |
//!
//! # Bytes (keys and values of 8 bytes, leaves of 1 KiB with 50 slots)
//!
//! | operation | READ | WRITTEN |
//! |---|---|---|
//! | get | 1024 | 0 |
//! | update | 512 and two FAA | 8 |
//! | insert | 1024 and a CAS | 16, and the lock's word |
//! | remove | 512 and a CAS | 8, and the lock's word |
//!
//! # Who sees what
//!
//! A client knows a leaf by what it has read of it: its bounds say whether it answers for the key. A leaf's lower bound
//! never changes. So a slot that leads to a leaf of its own leads to the key's leaf or to one to the left of it, and
//! from there links lead to the right. This holds between the two steps of a split, and if its client dies between
//! them:
//!
//! ```text
//!   split    WRITE right     WRITE left: it ends, and leads, where right begins; unlock      slots above
//!   get      left answers                       left: beyond ── right answers                right answers
//! ```
//!
//! Leaves that are nearly empty are merged with a neighbour (`merge.rs`), and their memory becomes other leaves
//! (`reused.rs`). So there are slots, and copies of them, that lead to leaves of other keys, or that are none any more.
//! Bounds say so, and clients go on from the slot before (`freed.rs`). Inner nodes that lead to one leaf only go
//! (`lead_on.rs`), and their memory becomes any node's (`out.rs`): a client that comes to one goes on at that leaf.
//!
//! A change of a leaf takes effect with a write to one line that all readers agree on (`layout/range_leaf`): a value,
//! a key's head, or the first line's version. Updates are lost to no split, since sharers and a client that has the
//! lock alone exclude each other:
//!
//! ```text
//!   update   share, READ keys: slot 3              WRITE value 3, leave
//!   split                              CAS word; waits for the bit ·········· READ leaf: it is there
//! ```
//!
//! An update whose chain fails is not made again, unless it is known that it has taken no effect: another client may
//! have overwritten it meanwhile, and what readers have seen go would come back. So it fails, with an unknown
//! outcome; all other operations go on.
//!
//! # Differences from the paper
//!
//! - Leaves cover ranges between any two keys of one first byte, and not all keys that share all but the last byte:
//!   with sparse keys these would be leaves of one key. So nodes that lead several bytes to one leaf, the paper's
//!   "special" ones, are at any depth. With `deep_special` leaves hold what the paper's would (keys of different
//!   prefixes are parted by a split), and cover ranges all the same, which may be wider. Keys are of any length up to
//!   255 bytes, also where one is a prefix of another.
//! - The paper's reverse pointer leads back to the parent, which leads to the new leaf: two round trips. Here a leaf
//!   leads to the new leaf itself.
//! - Inserts and removals take the lock alone, in 2 round trips; in the paper an insert takes 3. (Without `fused` they
//!   take 3, and the paper's removal 2.) In the paper a key is visible before its value, two clients can insert one key
//!   twice, and an update may write into a slot that another key has taken meanwhile.
//! - Values of more than a line, and keys, are written with the whole leaf, by a client that has the lock alone: in the
//!   paper two WRITEs of several lines may leave a mixture.
//! - The lock's count of sharers has owners: a bit for each shard.
//! - A full leaf of keys that are close to each other, as numbers, is not divided in the middle but such that one part
//!   can become full and is never divided again (`divide.rs`): clients append in no strict order.
//! - No prefixes are compressed: a node is about one byte. (A leaf's separators are as short as can be.)
//! - Leaves are merged that removes have left nearly empty, and inner nodes go that lead to one leaf only.

mod bulk_load;
mod check;
mod config;
mod descend;
mod divide;
mod freed;
mod lead_on;
mod leaf_plan;
mod lookup;
mod mark;
mod merge;
mod out;
mod put_separator;
mod reused;
mod root;
mod scan;
mod separators;
mod sizes;
mod write;

use std::cell::Cell;
use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;
use std::sync::Arc;

use farwood_cache::CacheStats;
use farwood_cache::radix::{RadixCache, RadixConfig, RadixReader};
use farwood_lock::LockConfig;
use farwood_lock::window::WindowConfig;
use farwood_runtime::control::Chunk;
use farwood_runtime::{Extents, Meter, ServerInfo, Verbs};

use self::config::PersistedConfig;
pub use self::config::{Geometry, Techniques, Types};
use self::put_separator::Suspects;
use crate::check::{AtRest, CheckReport};
use crate::error::{AccessError, LoadError, OpenError, WriteError};
use crate::layout::Bytes;
use crate::layout::radix::NodeTypes;
use crate::layout::range_leaf::RangeLayout;
use crate::memory::Marks;
use crate::range_index::Scan;
use crate::shell::algorithm::{Algorithm, Trial};
use crate::shell::flushes::Flushes;
use crate::shell::handle::{Index, Local};
use crate::shell::merging::Merging;
use crate::smart::check_servers;
use crate::value::Value;
use crate::write_op::WriteOp;

/// A Dolphin tree as a whole compute node sees it.
pub type Dolphin = crate::shell::handle::Tree<DolphinAlgorithm>;

/// A Dolphin tree on one shard.
pub type DolphinIndex<V> = Index<DolphinAlgorithm, V>;

/// Options of one compute node for a Dolphin tree.
pub type Options = crate::shell::options::Options<Techniques>;

/// A tree as one shard works on it.
type Tree<V> = Local<DolphinAlgorithm, V>;

/// Dolphin, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DolphinAlgorithm {}

/// Holds what the shards of a compute node share of a tree.
pub struct NodeState {
    types: &'static NodeTypes,
    leaf: RangeLayout,
    cache: Arc<RadixCache>,
    flushes: Flushes,
}

/// Holds what a shard remembers of a tree.
pub struct ShardState {
    reader: RadixReader,
    /// True if the last put has found no value that it could change as an update does.
    puts_insert: Cell<bool>,
    suspects: Suspects,
    merging: Merging,
}

impl<V: Verbs> Tree<V> {
    #[inline]
    fn types(&self) -> &'static NodeTypes {
        self.shared.state.types
    }

    #[inline]
    fn leaf(&self) -> &RangeLayout {
        &self.shared.state.leaf
    }

    /// Yields the cache, emptied since the last flush (`out.rs`).
    #[inline]
    fn cache(&self) -> &RadixCache {
        let state = &self.shared.state;
        state.flushes.keep_up(self.verbs.pins().flushed(), || state.cache.clear_nodes());
        &state.cache
    }

    /// Yields this shard's reader of the cache, which is emptied since the last flush, too.
    #[inline]
    fn reader(&self) -> &RadixReader {
        self.cache();
        &self.state.reader
    }
}

impl Algorithm for DolphinAlgorithm {
    const KIND: &'static str = "dolphin";
    const TRIAL: Trial = Trial {
        rare_paths: &[
            "alloc.flushed",
            "alloc.given_back",
            "alloc.reclaimed",
            "alloc.retired",
            "alloc.reused",
            "cache.evicted",
            "cache.flushed",
            "dolphin.leaf.again",
            "dolphin.leaf.compacted",
            "dolphin.leaf.freed",
            "dolphin.leaf.frozen",
            "dolphin.leaf.lost",
            "dolphin.leaf.merged",
            "dolphin.leaf.parted",
            "dolphin.leaf.past",
            "dolphin.leaf.right",
            "dolphin.leaf.split",
            "dolphin.leaf.whole",
            "dolphin.node.grown",
            "dolphin.node.moved",
            "dolphin.node.needless",
            "dolphin.node.new",
            "dolphin.put.inserts",
            "dolphin.read.locked",
            "dolphin.read.slow",
            "dolphin.root.lost",
            "dolphin.separator.late",
            "dolphin.separator.missing",
            "dolphin.separator.owed",
            "dolphin.slot.led_on",
            "dolphin.split.unknown",
            "index.sweep.given_back",
            "index.swept",
            "janitor.again",
            "lock.lane.claimed",
            "lock.shared.awaited",
            "lock.shared.barred",
            "lock.shared.closing",
            "lock.shared.settled",
            "merge.busy",
        ],
        // The root has room for all symbols.
        bytes_per_server: 4 << 20,
        // Caches hold nothing below some 12 KiB, and segments of 4 KiB.
        cache_bytes: &[600, 13_000, 15_000, 17_000, 21_000, 1 << 20],
        is_radix: true,
        // An update under a shared lock.
        fails_with_queue_pairs: true,
        takeover_paths: &["dolphin.leaf.looked_after", "lock.shared.recovered"],
        long_key: 255,
        height_min: 3,
        load_factor_min: 0.2,
        ..Trial::COMMON
    };

    const SCAN_WINDOW: usize = 32;

    type Geometry = Geometry;
    type Techniques = Techniques;
    type PersistedConfig = PersistedConfig;
    type NodeState = NodeState;
    type ShardState = ShardState;

    fn agree(
        geometry: Geometry,
        Techniques { deep_special, .. }: Techniques,
        servers: &[ServerInfo],
    ) -> Result<PersistedConfig, OpenError> {
        check_servers(servers)?;
        Ok(PersistedConfig { geometry, deep_special })
    }

    fn in_effect(techniques: Techniques, persisted: &PersistedConfig) -> Techniques {
        techniques.on(persisted)
    }

    fn check_cluster(_: &str, _: &PersistedConfig, servers: &[ServerInfo]) -> Result<(), OpenError> {
        check_servers(servers)
    }

    #[inline]
    fn geometry(persisted: &PersistedConfig) -> Geometry {
        persisted.geometry
    }

    fn round_trips(
        geometry: Geometry,
        Techniques { shared_updates, fused, .. }: Techniques,
    ) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        let shares = shared_updates && geometry.formats().is_ok_and(|(_, leaf)| leaf.has_whole_values());
        let update = 2 + u64::from(!shares && !fused);
        (1..=1, update..=update)
    }

    fn meet(techniques: Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        let Techniques { delegation, combining, .. } = techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        (LockConfig { hierarchical: true, handover: true, on_chip: false, ..locks }, windows)
    }

    fn node_state(persisted: &PersistedConfig, options: &Options, seed: u64) -> Result<NodeState, OpenError> {
        let (types, leaf) = persisted.geometry.formats()?;
        let config = RadixConfig { budget_bytes: options.cache_bytes, policy: options.eviction, seed };
        Ok(NodeState { types, leaf, cache: RadixCache::new(config), flushes: Flushes::default() })
    }

    fn shard_state(node: &NodeState) -> ShardState {
        let reader = node.cache.reader();
        ShardState {
            reader,
            puts_insert: Cell::new(true),
            suspects: Suspects::default(),
            merging: Merging::default(),
        }
    }

    fn cache_bytes(node: &NodeState) -> usize {
        node.cache.bytes()
    }

    fn empty_caches(node: &NodeState) {
        node.cache.clear();
    }

    fn cache_stats(_node: &NodeState, shard: &ShardState) -> CacheStats {
        shard.reader.stats()
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

    fn mark<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        marks: &mut Marks,
    ) -> impl Future<Output = Result<bool, AccessError>> {
        mark::mark(local, meter, marks)
    }

    fn kept_of<V: Verbs>(
        local: &Tree<V>,
        meter: &Meter,
        piece: Chunk,
    ) -> impl Future<Output = Result<Extents, AccessError>> {
        local.leaves_of(meter, piece)
    }
}
