//! CHIME: a B+tree whose leaves are hopscotch tables (Luo et al., SOSP 2024).
//!
//! A get reads the neighbourhood of its key, about an eighth of a leaf, and the cache has a B+tree's inner nodes and
//! the slots of keys that are read often. Readers take no locks; what they trust is in `lookup.rs`. Writers lock one
//! leaf at a time, by a word in it, and read what they need of it behind the CAS.
//!
//! The levels above the leaves are `crate::btree`'s, and the bytes of a leaf [`crate::layout::hopscotch`]'s; here are
//! the operations.
//!
//! # Round trips (warm cache, no conflict, no split)
//!
//! | operation | all techniques | without `fused` | indirect |
//! |---|---|---|---|
//! | get | 1; 2 after a wrong speculation | 1 | 2 |
//! | get of an absent key | 1; 2 where a READ takes longer than writes of one leaf are apart | 1; 2 | 1; 2 |
//! | update, remove | 2 | 3 | 3 |
//! | put with a vacancy in the neighbourhood, insert with one in three | 2 | 3 | 2 |
//! | put that finds none there | 3 | 4 | 3 |
//! | insert that finds none in three | 3 | 3 | 3 |
//! | scan | 1 per window of leaves | 1 | 2 |
//!
//! The last column is that of all techniques, on an indirect tree. A write is CAS + READ of the words and the
//! neighbourhood, WRITE + unlock. Without `fused` it is the paper's: CAS + words, READ, WRITE + unlock, where the words
//! come with the CAS if the fabric has masked CAS (simulated ones do), else by a READ behind it, and an insert reads as
//! far as they say. If a writer is handed the lock on its compute node with what the one before knew of the
//! leaf (`image_handover`), and that is all that it would read, WRITE + unlock alone. The words that an insert or a
//! remove changes lie behind the lock's, and one WRITE has them all; an update needs none of them. A neighbourhood
//! around the table's end is two READs of one chain. An insert reads three neighbourhoods, so that the keys that have
//! to hop are mostly there; where all of that is full, it reads as far as the vacancy word says. Where no hop to that
//! vacancy makes room, it reads the whole leaf, and looks for one back to the vacancy before its home.
//!
//! Where a leaf's sibling is not what the parent has behind it (it was split, or is the last below its parent), a
//! client that does not find its key reads the header with the fences: for the last leaf of a parent with the
//! neighbourhood, in one chain, and else in a round trip of its own.
//!
//! # Long pairs
//!
//! Each of a get's eight entries has room for the longest pair, and so has each slot of a leaf. Where that is more than
//! 128 bytes a tree is *indirect* if its creator does not say ([`Geometry::indirect`], in the catalog; `farwood bench`
//! and `farwood sim run` have `--technique indirect=off`, or `on` for shorter pairs): an entry has the key's hash as a
//! fingerprint and the address of a block, which has the whole key and the value, and is as large as they need, in
//! lines of 64 bytes.
//!
//! - *get*: the neighbourhood, then the block. Without an entry of the fingerprint the key is absent; one of another
//!   key costs a round trip, and is a coincidence of 64 bits.
//! - *update*: under the leaf's lock the block is read as far as the key goes. A value that fits is written in place;
//!   else a new block is, and behind it in the chain the entry.
//! - *insert*: WRITE of a new block on the leaf's server, of entries and words, and unlock, in one chain.
//! - *remove*: reads as an update does; then the entry goes.
//! - *scan*: the leaves of a window, then all of their blocks at once: which of a leaf's come before the limit cannot
//!   be told before.
//! - *split*: all keys of the leaf are read from their blocks, in one round trip. Blocks stay where they are.
//! - *bulk load*: blocks lie on their leaf's server. *Check*: every block is read, and has the key of its fingerprint.
//!
//! Blocks that were outgrown, or whose key was removed, are retired; so is one on another server than its leaf when its
//! value is updated (`write.rs` says why). A merge of leaves moves what leads to them. `layout/block.rs` has
//! the bytes, `block.rs` the operations, `btree/blocks.rs` what reads many of them. Gets of indirect trees do not
//! speculate: a hotspot names a slot and not a block, so it would save bytes and no round trip.
//!
//! # What readers do not see
//!
//! Hops move keys while readers look. One write is noticed: the bits of the home do not name the slots of its keys.
//! Two writes within one READ may hide a key ([`crate::layout::hopscotch::HopLayout::lookup`] has the interleaving),
//! so that a READ which took longer than from one write to the next proves no absence. A scan, which reads
//! whole leaves, compares the keys that it has seen with their sum.
//!
//! # Words
//!
//! | paper | here |
//! |---|---|
//! | lock with vacancy bitmap and argmax | words: a lock as all others are, and vacancies; fences in the header |
//! | masked CAS of the word | one of all words that compares and swaps the lock's, or a READ behind a CAS |
//! | hotspot buffer | [`farwood_cache::HotspotBuffer`] |
//! | RDWC | `delegation`, `combining` |
//! | CHIME-Indirect | [`Geometry::indirect`] |
//!
//! # Differences from the paper
//!
//! Versions have 8 bits (nodes) and 5 (entries) in place of 4 and are bounded in time. A scan reads whole leaves: which
//! entries it wants cannot be told before, except by enumerating keys, which integers allow and strings do not. The
//! fingerprint of a long key is a hash of all of it, not its first 8 bytes, which many strings share. Hop bits do not
//! count for the version of their home's entry: readers compare them with the keys, and an entry with two versions is
//! one that a dead writer has half written (`layout/hopscotch/mend.rs`). Of merges the paper says nothing.
//!
//! # Merges
//!
//! A remove that leaves few keys, as the vacancy word says, has its leaf merged into the one before
//! (`btree/merge.rs`): a leaf that is being merged, or was, says so in each part that is read alone
//! (`layout/hopscotch/frozen.rs`). An operation that meets such a replica reads the whole leaf, to know which of the
//! two it is and where its keys are: a round trip, and from there on it goes as one of Sherman's. Because readers
//! conclude from addresses (`lookup.rs`), its memory waits for a flush of all caches that may lead there.

mod block;
mod config;
mod leaf;
mod lookup;
mod sizes;
mod split;
mod write;

use std::cell::Cell;
use std::iter;
use std::ops::{Bound, RangeInclusive};
use std::rc::Rc;

use farwood_cache::{CacheConfig, CacheStats, HotspotBuffer};
use farwood_lock::window::WindowConfig;
use farwood_lock::{LockConfig, Mending};
use farwood_runtime::{Buf, Meter, RemotePtr, ServerInfo, Verbs};

use self::config::PersistedConfig;
pub use self::config::{Geometry, Techniques};
use crate::btree::blocks::Outside;
use crate::btree::{self, BTree, Chains};
use crate::check::{AtRest, CheckReport};
use crate::error::{AccessError, LoadError, OpenError, WriteError};
use crate::layout::hopscotch::HopLayout;
use crate::layout::{Bytes, LineRanges};
use crate::memory::Marks;
use crate::range_index::Scan;
use crate::shell::algorithm::{Algorithm, Trial};
use crate::shell::handle::{Index, Local};
use crate::value::Value;
use crate::write_op::WriteOp;

/// A CHIME tree as a whole compute node sees it.
pub type Chime = crate::shell::handle::Tree<ChimeAlgorithm>;

/// A CHIME tree on one shard.
pub type ChimeIndex<V> = Index<ChimeAlgorithm, V>;

/// Options of one compute node for a CHIME tree.
pub type Options = crate::shell::options::Options<Techniques>;

/// A tree as one shard works on it.
type Tree<V> = Local<ChimeAlgorithm, V>;

/// The part of the cache's budget that hotspots may take, as in the paper (30 MB of 100 MB and more); the rest is for
/// inner nodes. They take less as long as the cached nodes do: in the paper either takes 30 MB of 60 M keys.
const HOTSPOTS_PART: usize = 4;
/// The paper's hotspot buffer.
const HOTSPOT_BYTES_MAX: usize = 30 << 20;

/// CHIME, for the shell that all indexes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChimeAlgorithm {}

/// State that the shards of a compute node share.
pub struct NodeState {
    tree: btree::NodeState<HopLayout>,
    hotspots: HotspotBuffer,
}

/// State of one shard.
pub struct ShardState {
    tree: btree::ShardState,
    /// READs of a hotspot's entry alone that found its key there, and those that were in vain.
    speculations: Cell<[u64; 2]>,
}

impl ShardState {
    fn count_speculation(&self, is_right: bool) {
        let [right, wrong] = self.speculations.get();
        self.speculations.set([right + u64::from(is_right), wrong + u64::from(!is_right)]);
    }
}

impl<V: Verbs> Tree<V> {
    #[inline]
    fn hotspots(&self) -> &HotspotBuffer {
        &self.shared.state.hotspots
    }
}

impl BTree for ChimeAlgorithm {
    type Leaf = HopLayout;

    #[inline]
    fn node(state: &NodeState) -> &btree::NodeState<HopLayout> {
        &state.tree
    }

    #[inline]
    fn shard(state: &ShardState) -> &btree::ShardState {
        &state.tree
    }

    #[inline]
    fn chains(Techniques { fused, .. }: Techniques) -> Chains {
        Chains { fused, combine: true }
    }

    async fn settle_leaf<V: Verbs>(
        tree: &Tree<V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<(), AccessError> {
        let mut held = tree.acquire_leaf(meter, leaf).await?;
        held.lock(meter).await?;
        tree.unlock(meter, held).await
    }

    async fn read_leaf_locked<V: Verbs>(
        tree: &Tree<V>,
        meter: &Meter,
        leaf: RemotePtr,
    ) -> Result<(Buf, Outside), AccessError> {
        let whole: LineRanges = iter::once(0..tree.leaf().node_bytes()).collect();
        let (held, image) = tree.lock_leaf(meter, leaf, &whole).await?;
        let outside = match tree.leaf().blocks() {
            Some(_) => tree.pairs_of(meter, &image).await?,
            None => None,
        };
        tree.unlock(meter, held).await?;
        Ok((image, outside))
    }
}

impl Algorithm for ChimeAlgorithm {
    const KIND: &'static str = "chime";
    const TRIAL: Trial = Trial {
        rare_paths: &[
            "alloc.flushed",
            "alloc.from_others",
            "alloc.given_back",
            "alloc.reclaimed",
            "alloc.retired",
            "alloc.reused",
            "btree.inner.freed",
            "btree.inner.frozen",
            "btree.inner.merged",
            "btree.inner.right",
            "btree.inner.split",
            "btree.leaf.far_right",
            "btree.leaf.freed",
            "btree.leaf.frozen",
            "btree.leaf.merged",
            "btree.leaf.right",
            "btree.merge.no_room",
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
            "cache.flushed",
            "chime.block.grown",
            "chime.block.settled",
            "chime.block.torn",
            "chime.insert.hops",
            "chime.insert.hops_back",
            "chime.leaf.doubt",
            "chime.leaf.split",
            "chime.read.locked",
            "chime.read.twice",
            "chime.speculation.wrong",
            "chime.write.reads",
            "index.sweep.given_back",
            "index.swept",
            "lock.handover.image",
            "lock.redo.reached",
            "lock.redo.unreached",
            "merge.busy",
            "sim.read.overtaken",
        ],
        takeover_paths: &[
            "btree.inner.looked_after",
            "btree.leaf.looked_after",
            "btree.root.let_go",
            "btree.root.thawed",
            "lock.recovery.mended",
        ],
        cache_bytes: &[600, 1_000, 2_000, 4_000, 1 << 20, 1 << 20],
        height_min: 5,
        // Of a table in which a key has few places, and of a leaf that is split at a key out of few.
        load_factor_min: 0.3,
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
        techniques: Techniques,
        _servers: &[ServerInfo],
    ) -> Result<PersistedConfig, OpenError> {
        Ok(PersistedConfig::new(geometry, techniques))
    }

    #[inline]
    fn geometry(persisted: &PersistedConfig) -> Geometry {
        persisted.geometry
    }

    fn in_effect(techniques: Techniques, persisted: &PersistedConfig) -> Techniques {
        techniques.on(persisted)
    }

    fn round_trips(
        Geometry { indirect, .. }: Geometry,
        Techniques { fused, speculative, .. }: Techniques,
    ) -> (RangeInclusive<u64>, RangeInclusive<u64>) {
        let block = u64::from(indirect);
        let update = 2 + u64::from(!fused) + block;
        (1 + block..=1 + u64::from(indirect || speculative), update..=update)
    }

    /// Yields false for an indirect tree: a block that is not on its leaf's server is replaced.
    fn updates_in_place(Geometry { indirect, .. }: Geometry, _techniques: Techniques) -> bool {
        !indirect
    }

    fn meet(techniques: Techniques, locks: LockConfig) -> (LockConfig, WindowConfig) {
        let Techniques { image_handover, delegation, combining, .. } = techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        (LockConfig { on_chip: false, image_handover, ..locks }, windows)
    }

    fn node_state(persisted: &PersistedConfig, options: &Options, seed: u64) -> Result<NodeState, OpenError> {
        let (leaf, inner) = persisted.layouts()?;
        let hotspots = match options.techniques.on(persisted).speculative {
            true => (options.cache_bytes / HOTSPOTS_PART).min(HOTSPOT_BYTES_MAX),
            false => 0,
        };
        let config =
            CacheConfig { budget_bytes: options.cache_bytes - hotspots, policy: options.eviction, seed };
        Ok(NodeState {
            tree: btree::NodeState::new(leaf, inner, config),
            hotspots: HotspotBuffer::new(hotspots),
        })
    }

    fn locked_bytes(_: &PersistedConfig, node: &Self::NodeState) -> usize {
        node.tree.largest_bytes()
    }

    fn mending(node: &NodeState) -> Option<Mending> {
        let layout = *node.tree.leaf();
        let mend = move |image: &mut [u8]| match layout.mend(image) {
            Ok(patch) => Some(patch.into_vec()),
            Err(rejection) => {
                tracing::warn!(%rejection, "the leaf of a dead writer is not mended");
                None
            }
        };
        let (lock_at, node_bytes) = (layout.lock_at() as u64, layout.node_bytes());
        Some(Mending { lock_at, node_bytes, mend: Rc::new(mend) })
    }

    fn shard_state(node: &NodeState) -> ShardState {
        ShardState { tree: node.tree.shard(), speculations: Cell::default() }
    }

    fn cache_bytes(node: &NodeState) -> usize {
        node.tree.cache_bytes() + node.hotspots.bytes()
    }

    /// Hotspots are of leaves that inner nodes lead to: without these they lead nowhere.
    fn empty_caches(node: &NodeState) {
        node.tree.empty_cache();
    }

    fn cache_stats(node: &NodeState, shard: &ShardState) -> CacheStats {
        let [speculations_right, speculations_wrong] = shard.speculations.get();
        CacheStats {
            bytes: Self::cache_bytes(node) as u64,
            hotspot_bytes: node.hotspots.bytes() as u64,
            speculations_right,
            speculations_wrong,
            ..shard.tree.reader.stats()
        }
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
