//! Sherman: a write-optimised B+tree (Wang et al., SIGMOD 2022; extended in CACM).
//!
//! A B-link tree of fixed-size nodes. Leaves are unsorted; readers take no locks and trust versions; writers lock one
//! node at a time, in a lock table on the node's own memory server, through local queues that hand locks over. Splits
//! go from the leaf upwards, one lock at a time; between a split and its separator in the parent the right half is
//! reached over the sibling pointer.
//!
//! # Round trips (warm cache, no conflict, no split)
//!
//! | operation | all techniques | without `fused` | nor `combine` (FG+) | handed over |
//! |---|---|---|---|---|
//! | get | 1 | 1 | 1 | |
//! | put, insert, update, remove | 2 | 3 | 4 | 2 |
//! | scan | 1 per window of leaves | 1 | 1 | |
//!
//! A write is CAS + READ, WRITE + unlock; without `fused` CAS, READ, WRITE + unlock; without `combine` the unlock comes
//! after the WRITE. With a lock that was handed over it is READ, WRITE + unlock.
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
//! Versions are per line, because one READ is not one access (TARGETS, "Torn reads"). `two_level = off` writes whole
//! leaves back but leaves them unsorted. `remove` clears the entry; merging of leaves and reclamation of nodes are
//! not in this release, so an emptied leaf stays.

mod bulk_load;
mod check;
mod config;
mod descend;
mod lookup;
mod repair;
mod root;
mod scan;
mod split;
mod survey;
mod write;

use std::cell::RefCell;
use std::ops::RangeBounds;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use farwood_cache::{CacheConfig, CacheReader, NodeCache};
use farwood_lock::window::WindowConfig;
use farwood_lock::{LockTable, on_chip_possible};
use farwood_runtime::alloc::Books;
use farwood_runtime::node::Host;
use farwood_runtime::{CatalogEntry, Meter, NodeAllocator, Verbs};

use self::config::Agreed;
pub use self::config::{Geometry, NodeSize, Options, Techniques};
use self::repair::Missing;
use crate::error::IndexError;
use crate::intent::Intent;
use crate::layout::{InnerLayout, LeafLayout};
use crate::meeting::Meeting;
use crate::range_index::{RangeIndex, Scan, Survey, owned_bounds};
use crate::sharing::Sharing;
use crate::stats::{CacheCounters, IndexStats, OpKind};
use crate::step::Budget;
use crate::value::Value;

/// The name of this kind of index in catalogs and on the command line.
pub const KIND: &str = "sherman";

/// A Sherman tree as a whole compute node sees it. Clones share cache and statistics; [`Sherman::attach`] makes the
/// handle that one shard's clients use.
#[derive(Clone)]
pub struct Sherman(Arc<Shared>);

pub(crate) struct Shared {
    entry: CatalogEntry,
    agreed: Agreed,
    options: Options,
    leaf: LeafLayout,
    inner: InnerLayout,
    cache: Arc<NodeCache>,
    meeting: Meeting,
}

impl Sherman {
    /// Creates a tree in the catalog under `name` and opens it. It has no node until something is written. Where its
    /// locks are is decided here, for all who will work on it ([`Techniques::on_chip`]).
    ///
    /// # Errors
    /// If the geometry makes no node, or the catalog refuses.
    pub async fn create(
        host: &impl Host,
        name: &str,
        geometry: Geometry,
        options: Options,
    ) -> Result<Self, IndexError> {
        geometry.layouts()?;
        let control = host.control();
        let on_chip = options.techniques.effective(on_chip_possible(control.servers())).on_chip;
        let agreed = Agreed { geometry, on_chip };
        let entry = control.create(name, KIND, &agreed.to_bytes()).await?;
        Self::from_entry(host, entry, options)
    }

    /// Opens the tree that the catalog has under `name`. Its locks are where its creator put them, whatever the options
    /// say of [`Techniques::on_chip`].
    ///
    /// # Errors
    /// If there is none, it is of another kind, or the catalog's configuration of it cannot be read.
    pub async fn open(host: &impl Host, name: &str, options: Options) -> Result<Self, IndexError> {
        let entry = host.control().open(name).await?;
        Self::from_entry(host, entry, options)
    }

    /// Sizes of the nodes of the tree that the catalog describes so, without opening it.
    ///
    /// # Errors
    /// If it is of another kind, or its configuration cannot be read.
    pub fn geometry_of(entry: &CatalogEntry) -> Result<Geometry, IndexError> {
        if entry.kind != KIND {
            return Err(IndexError::WrongKind { name: entry.name.clone(), kind: entry.kind.clone() });
        }
        // Whether its locks can be where it says does not matter here.
        Ok(Agreed::from_bytes(&entry.name, &entry.config, true)?.geometry)
    }

    fn from_entry(host: &impl Host, entry: CatalogEntry, options: Options) -> Result<Self, IndexError> {
        if entry.kind != KIND {
            return Err(IndexError::WrongKind { name: entry.name, kind: entry.kind });
        }
        let on_chip_possible = on_chip_possible(host.control().servers());
        let agreed = Agreed::from_bytes(&entry.name, &entry.config, on_chip_possible)?;
        let (leaf, inner) = agreed.geometry.layouts()?;
        let config =
            CacheConfig { budget_bytes: options.cache_bytes, policy: options.eviction, seed: host.seed() };
        let cache = NodeCache::new(config);
        let meeting = Meeting::new(host, &entry);
        Ok(Sherman(Arc::new(Shared { entry, agreed, options, leaf, inner, cache, meeting })))
    }

    /// The handle for the clients of one shard. Call it once per shard and clone what it returns.
    ///
    /// # Panics
    /// If it was called on this shard before.
    pub fn attach<V: Verbs>(&self, verbs: V) -> ShermanIndex<V> {
        let shared = Arc::clone(&self.0);
        let techniques = shared.options.techniques.on(&shared.agreed);
        let Techniques { delegation, combining, .. } = techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        let (locks, sharing) = shared.meeting.attach(&verbs, shared.options.locks(techniques), windows);
        let first_server = usize::from(verbs.shard().0);
        let allocator = NodeAllocator::new(Arc::clone(verbs.control()), shared.entry.id, first_server);
        let reader = shared.cache.reader();
        let stats = RefCell::default();
        let missing = Missing::default();
        ShermanIndex(Rc::new_cyclic(|me| {
            let me = Weak::clone(me);
            Tree { me, shared, techniques, verbs, locks, sharing, reader, allocator, missing, stats }
        }))
    }

    /// Sizes of the tree's nodes.
    pub fn geometry(&self) -> Geometry {
        self.0.agreed.geometry
    }

    /// Bytes of a leaf: what a get reads.
    pub fn leaf_bytes(&self) -> usize {
        self.0.leaf.node_bytes()
    }

    /// Slots of a leaf.
    pub fn leaf_slots(&self) -> usize {
        self.0.leaf.slots()
    }

    /// Bytes that this compute node's cache takes now.
    pub fn cache_bytes(&self) -> usize {
        self.0.cache.bytes()
    }
}

/// A Sherman tree on one shard.
pub struct ShermanIndex<V: Verbs>(Rc<Tree<V>>);

impl<V: Verbs> Clone for ShermanIndex<V> {
    fn clone(&self) -> Self {
        ShermanIndex(Rc::clone(&self.0))
    }
}

impl<V: Verbs> ShermanIndex<V> {
    /// The techniques in effect. Whether locks are in on-chip memory was decided when the tree was created.
    pub fn techniques(&self) -> Techniques {
        self.0.techniques
    }

    /// Tells what became of the memory that this shard has taken from the memory servers.
    pub fn books(&self) -> Books {
        self.0.allocator.books()
    }

    /// Local locks and windows that are held or waited for here: 0 when no operation runs.
    pub fn locks_in_use(&self) -> usize {
        let (held, waiting) = self.0.locks.in_use();
        held + waiting + self.0.sharing.in_use()
    }
}

/// What one shard needs to work on a tree.
pub(crate) struct Tree<V: Verbs> {
    /// For what the janitor is asked to do.
    me: Weak<Tree<V>>,
    shared: Arc<Shared>,
    techniques: Techniques,
    verbs: V,
    locks: LockTable<V>,
    sharing: Sharing<V>,
    reader: CacheReader,
    allocator: NodeAllocator,
    missing: Missing,
    stats: RefCell<IndexStats>,
}

impl<V: Verbs> Tree<V> {
    fn leaf(&self) -> &LeafLayout {
        &self.shared.leaf
    }

    fn inner(&self) -> &InnerLayout {
        &self.shared.inner
    }

    fn cache(&self) -> &NodeCache {
        &self.shared.cache
    }

    fn budget(&self) -> Budget {
        Budget::new(self.shared.options.retries_max)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), IndexError> {
        let max = self.shared.agreed.geometry.max_key;
        if key.len() > max { Err(IndexError::KeyTooLong { len: key.len(), max }) } else { Ok(()) }
    }

    fn check_value(&self, value: &[u8]) -> Result<(), IndexError> {
        let max = self.shared.agreed.geometry.max_value;
        if value.len() > max { Err(IndexError::ValueTooLong { len: value.len(), max }) } else { Ok(()) }
    }

    fn record(&self, kind: OpKind, meter: &Meter, found: bool, entries: u64) {
        self.stats.borrow_mut().record(kind, meter.usage(), found, entries);
    }
}

impl<V: Verbs> ShermanIndex<V> {
    async fn write(&self, kind: OpKind, key: &[u8], intent: Intent<'_>) -> Result<bool, IndexError> {
        self.0.check_key(key)?;
        self.0.check_value(intent.value())?;
        let meter = Meter::default();
        let write = Tree::write(&self.0, &meter, key, intent);
        let applied = self.0.sharing.write(&meter, key, intent, write).await?;
        self.0.record(kind, &meter, applied, 0);
        Ok(applied)
    }
}

impl<V: Verbs> RangeIndex for ShermanIndex<V> {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        self.0.check_key(key)?;
        let meter = Meter::default();
        let value = self.0.sharing.get(&meter, key, self.0.lookup(&meter, key)).await?;
        self.0.record(OpKind::Get, &meter, value.is_some(), 0);
        Ok(value)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), IndexError> {
        self.write(OpKind::Put, key, Intent::Put(value)).await.map(|_| ())
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        self.write(OpKind::Insert, key, Intent::Insert(value)).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, IndexError> {
        self.write(OpKind::Update, key, Intent::Update(value)).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, IndexError> {
        self.write(OpKind::Remove, key, Intent::Remove).await
    }

    fn scan<'k>(&self, range: impl RangeBounds<&'k [u8]>, limit: Option<usize>) -> Scan {
        scan::stream(Rc::clone(&self.0), owned_bounds(&range), limit)
    }

    async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, IndexError> {
        futures::future::try_join_all(keys.iter().map(|key| self.get(key.as_ref()))).await
    }

    async fn bulk_load<K: AsRef<[u8]>, U: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, U)>,
        fill: f64,
    ) -> Result<u64, IndexError> {
        bulk_load::run(&self.0, pairs, fill).await
    }

    async fn survey(&self) -> Result<Survey, IndexError> {
        survey::run(&self.0).await
    }

    fn stats(&self) -> IndexStats {
        let tree = &self.0;
        let mut stats = tree.stats.borrow().clone();
        tree.shared.meeting.count(&tree.locks, &tree.sharing, tree.verbs.shards(), &mut stats);
        let cache = tree.cache().stats();
        stats.cache = CacheCounters {
            lookups: tree.reader.lookups(),
            hits: tree.reader.hits(),
            invalidated: cache.invalidated as u64,
            evicted: cache.evicted as u64,
            bytes: cache.bytes as u64,
        };
        stats
    }
}
