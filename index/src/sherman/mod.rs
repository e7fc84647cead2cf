//! Sherman: a write-optimised B+tree (Wang et al., SIGMOD 2022; extended in CACM).
//!
//! A B-link tree of fixed-size nodes. Leaves are unsorted; readers take no locks and trust versions; writers lock one
//! node at a time, in a lock table on the node's own memory server, through local queues that hand locks over. Splits
//! go from the leaf upwards, one lock at a time; between a split and its separator in the parent the right half is
//! reached over the sibling pointer.
//!
//! The levels above the leaves are `crate::btree`'s; here are the leaves, and the operations on them.
//!
//! # Round trips (warm cache, no conflict, no split)
//!
//! | operation | all techniques | without `fused` | nor `combine` (FG+) | handed over |
//! |---|---|---|---|---|
//! | get | 1 | 1 | 1 | |
//! | put, insert, update, remove | 2 | 3 | 4 | 1; 2 without the image |
//! | scan | 1 per window of leaves | 1 | 1 | |
//!
//! A write is CAS + READ, WRITE + unlock; without `fused` CAS, READ, WRITE + unlock; without `combine` the unlock comes
//! after the WRITE. With a lock that was handed over it is WRITE + unlock, or READ, WRITE + unlock if the leaf's image
//! did not come with it (`image_handover`): it comes from a writer of the same leaf that did not split it.
//!
//! An insert, update or remove that has no effect gives its lock back with a chain of its own: one round trip, or none
//! where it hands the lock over.
//!
//! # Words
//!
//! | paper | here |
//! |---|---|
//! | type 1 and type 2 cache | level 1 and top levels of `farwood_cache` |
//! | FNV/RNV, FEV/REV | node and entry version in every line (`layout`), sound where bookends are not |
//! | insert | `put` (insert or replace); `insert` fails if the key is present |
//! | HOCL | `farwood_lock` |
//!
//! # Differences from the paper
//!
//! Where intents are kept (`Options::intent_log`), an insert of an entry that goes over a line's end writes it as two
//! WRITEs, and what could leave the leaf torn is written once more, in the same chain. No round trip is added.
//!
//! Versions are per line, because one READ is not one access (ARCHITECTURE.md, "Torn reads"). `two_level = off` writes
//! whole leaves back but leaves them unsorted. `remove` clears the entry; a leaf in which it leaves few is merged into
//! the one before, in the background (`btree/merge.rs`). A split into memory of a merged leaf costs three round trips
//! more.

mod config;
mod leaf;
mod lookup;
mod sizes;
mod split;
mod write;

use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;

use farwood_cache::{CacheConfig, CacheStats};
use farwood_lock::window::WindowConfig;
use farwood_lock::{LockConfig, on_chip_possible};
use farwood_runtime::{Buf, Meter, RemotePtr, ServerInfo, Verbs};

use self::config::PersistedConfig;
pub use self::config::{Geometry, NodeSize, Techniques};
use crate::btree::blocks::Outside;
use crate::btree::{self, BTree, Chains};
use crate::check::{AtRest, CheckReport};
use crate::error::{AccessError, LoadError, OpenError, WriteError};
use crate::layout::{Bytes, LeafLayout};
use crate::memory::Marks;
use crate::range_index::Scan;
use crate::shell::algorithm::{Algorithm, Trial};
use crate::shell::handle::{Index, Local};
use crate::value::Value;
use crate::write_op::WriteOp;

/// A Sherman tree as a whole compute node sees it.
pub type Sherman = crate::shell::handle::Tree<ShermanAlgorithm>;

/// A Sherman tree on one shard.
pub type ShermanIndex<V> = Index<ShermanAlgorithm, V>;

/// Options of one compute node for a Sherman tree.
pub type Options = crate::shell::options::Options<Techniques>;

/// A tree as one shard works on it.
type Tree<V> = Local<ShermanAlgorithm, V>;

/// Sherman, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShermanAlgorithm {}

impl BTree for ShermanAlgorithm {
    type Leaf = LeafLayout;

    #[inline]
    fn node(state: &Self::NodeState) -> &btree::NodeState<LeafLayout> {
        state
    }

    #[inline]
    fn shard(state: &Self::ShardState) -> &btree::ShardState {
        state
    }

    #[inline]
    fn chains(Techniques { fused, combine, .. }: Techniques) -> Chains {
        Chains { fused, combine }
    }

    async fn settle_leaf<V: Verbs>(
        tree: &Tree<V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<(), AccessError> {
        tree.settle_node(meter, leaf).await
    }

    async fn read_leaf_locked<V: Verbs>(
        tree: &Tree<V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<(Buf, Outside), AccessError> {
        Ok((tree.read_node_locked(meter, leaf, tree.leaf().node_bytes()).await?, None))
    }
}

impl Algorithm for ShermanAlgorithm {
    const KIND: &'static str = "sherman";
    const TRIAL: Trial = Trial {
        rare_paths: &[
            "alloc.given_back",
            "alloc.reclaimed",
            "alloc.retired",
            "alloc.reused",
            "btree.inner.freed",
            "btree.inner.frozen",
            "btree.inner.merged",
            "btree.inner.right",
            "btree.inner.split",
            "btree.leaf.again",
            "btree.leaf.far_right",
            "btree.leaf.freed",
            "btree.leaf.frozen",
            "btree.leaf.merged",
            "btree.leaf.right",
            "btree.merge.same_lock",
            "btree.read.locked",
            "btree.read.slow",
            "btree.root.grown",
            "btree.root.lost",
            "btree.root.lowered",
            "btree.root.settled",
            "btree.separator.missing",
            "btree.separator.owed",
            "btree.separator.repaired",
            "btree.split.unknown",
            "cache.evicted",
            "index.sweep.given_back",
            "index.swept",
            "lock.handover.image",
            "lock.redo.reached",
            "lock.redo.unreached",
            "merge.busy",
            "sherman.leaf.split",
            "sherman.read.entry",
            "sim.read.overtaken",
        ],
        takeover_paths: &[
            "btree.inner.looked_after",
            "btree.leaf.looked_after",
            "btree.root.let_go",
            "btree.root.thawed",
        ],
        cache_bytes: &[600, 1_000, 2_000, 4_000, 1 << 20, 1 << 20],
        height_min: 5,
        ..Trial::COMMON
    };
    const SCAN_WINDOW: usize = 32;

    type Geometry = Geometry;
    type Techniques = Techniques;
    type PersistedConfig = PersistedConfig;
    type NodeState = btree::NodeState<LeafLayout>;
    type ShardState = btree::ShardState;

    fn agree(
        geometry: Geometry,
        techniques: Techniques,
        servers: &[ServerInfo],
    ) -> Result<PersistedConfig, OpenError> {
        Ok(PersistedConfig { geometry, on_chip: techniques.effective(on_chip_possible(servers)).on_chip })
    }

    fn check_cluster(
        name: &str,
        persisted: &PersistedConfig,
        servers: &[ServerInfo],
    ) -> Result<(), OpenError> {
        if persisted.on_chip && !on_chip_possible(servers) {
            let what = format!(
                "the index {name:?} has its locks in on-chip memory, which not all memory servers have: open it \
                 where they do, or copy it into a new one"
            );
            return Err(OpenError::Cluster { what });
        }
        Ok(())
    }

    #[inline]
    fn geometry(persisted: &PersistedConfig) -> Geometry {
        persisted.geometry
    }

    fn in_effect(techniques: Techniques, persisted: &PersistedConfig) -> Techniques {
        techniques.on(persisted)
    }

    fn effective(techniques: Techniques, on_chip_possible: bool) -> Techniques {
        techniques.effective(on_chip_possible)
    }

    fn round_trips(
        _geometry: Geometry,
        Techniques { fused, combine, .. }: Techniques,
    ) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        let update = 2 + u64::from(!fused) + u64::from(!combine);
        (1..=1, update..=update)
    }

    fn meet(techniques: Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        let Techniques { on_chip, hierarchical, handover, image_handover, delegation, combining, .. } =
            techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        (LockConfig { hierarchical, handover, image_handover, on_chip, ..locks }, windows)
    }

    fn node_state(
        persisted: &PersistedConfig,
        options: &Options,
        seed: u64,
    ) -> Result<Self::NodeState, OpenError> {
        let (leaf, inner) = persisted.geometry.layouts()?;
        let config = CacheConfig { budget_bytes: options.cache_bytes, policy: options.eviction, seed };
        Ok(btree::NodeState::new(leaf, inner, config))
    }

    fn locked_bytes(_: &PersistedConfig, node: &Self::NodeState) -> usize {
        node.largest_bytes()
    }

    fn shard_state(node: &Self::NodeState) -> btree::ShardState {
        node.shard()
    }

    fn cache_bytes(node: &Self::NodeState) -> usize {
        node.cache_bytes()
    }

    fn empty_caches(node: &Self::NodeState) {
        node.empty_cache();
    }

    fn cache_stats(_node: &Self::NodeState, shard: &btree::ShardState) -> CacheStats {
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

    fn look_after_memory<V: Verbs>(local: &Tree<V>) {
        local.look_after_retired();
    }

    fn leave<V: Verbs>(local: &Tree<V>) {
        local.look_after_all_retired();
    }

    fn scan<V: Verbs>(local: Rc<Tree<V>>, range: (Bound<Bytes>, Bound<Bytes>), limit: Option<usize>) -> Scan {
        btree::scan::stream(local, range, limit)
    }

    fn bulk_load<V: Verbs, K: AsRef<[u8]>, U: AsRef<[u8]>>(
        local: &Rc<Tree<V>>,
        pairs: &mut dyn Iterator<Item = Result<(K, U), LoadError>>,
        fill: f64,
    ) -> impl Future<Output = Result<u64, LoadError>> {
        btree::bulk_load::run(local, pairs, fill)
    }

    fn walk<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        at_rest: Option<AtRest<'_>>,
        report: &mut CheckReport,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> impl Future<Output = Result<(), AccessError>> {
        btree::check::walk(local, meter, at_rest, report, visit)
    }

    fn mark<V: Verbs>(
        local: &Rc<Tree<V>>,
        meter: &Meter,
        marks: &mut Marks,
    ) -> impl Future<Output = Result<bool, AccessError>> {
        btree::mark::mark(local, meter, marks)
    }
}
