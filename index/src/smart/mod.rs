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
//! slot leads to another key's leaf takes two more than an insert: it has locked the leaf.
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
//! - A leaf's link decides what became of it, and not its slot: whoever reads a leaf over an old copy of its parent
//!   would otherwise find a value that others no longer see.
//! - Read delegation joins no read that began before (`farwood_lock`, windows).
//! - Nodes and leaves that were replaced or removed are not reused in this release.

mod bulk_load;
mod check;
mod config;
mod descend;
mod insert;
mod lookup;
mod new_node;
mod pending;
mod replace;
mod scan;
mod split;
mod turns;
mod way;
mod write;

use std::cell::RefCell;
use std::ops::RangeBounds;
use std::rc::Rc;
use std::sync::Arc;

use farwood_cache::radix::{RadixCache, RadixConfig, RadixReader};
use farwood_lock::LockTable;
use farwood_lock::window::WindowConfig;
use farwood_runtime::alloc::Books;
use farwood_runtime::node::Host;
use farwood_runtime::{CatalogEntry, Meter, NodeAllocator, ServerInfo, Verbs};

use self::config::Agreed;
pub use self::config::{Geometry, Options, Techniques, Types};
use self::turns::Turns;
use crate::error::IndexError;
use crate::intent::Intent;
use crate::layout::radix::{Child, LeafFormat, NodeTypes};
use crate::meeting::Meeting;
use crate::range_index::{RangeIndex, Scan, Survey, owned_bounds};
use crate::sharing::Sharing;
use crate::stats::{CacheCounters, IndexStats, OpKind};
use crate::step::Budget;
use crate::value::Value;

/// The name of this kind of index in catalogs and on the command line.
pub const KIND: &str = "smart";

/// A SMART tree as a whole compute node sees it. Clones share cache and statistics; [`Smart::attach`] makes the handle
/// that one shard's clients use.
#[derive(Clone)]
pub struct Smart(Arc<Shared>);

pub(crate) struct Shared {
    entry: CatalogEntry,
    agreed: Agreed,
    options: Options,
    types: &'static NodeTypes,
    leaf: LeafFormat,
    cache: Arc<RadixCache>,
    meeting: Meeting,
    turns: Turns,
}

impl Smart {
    /// Creates a tree in the catalog under `name` and opens it. How its leaves are written is decided here, for all who
    /// will work on it ([`Techniques::in_place_leaves`]).
    ///
    /// # Errors
    /// If the geometry makes no node, the cluster is too large for slots to name its memory, or the catalog refuses.
    pub async fn create(
        host: &impl Host,
        name: &str,
        geometry: Geometry,
        options: Options,
    ) -> Result<Self, IndexError> {
        geometry.formats()?;
        let control = host.control();
        check_servers(control.servers())?;
        let agreed = Agreed::new(geometry, options.techniques);
        let entry = control.create(name, KIND, &agreed.to_bytes()).await?;
        Self::from_entry(host, entry, options)
    }

    /// Opens the tree that the catalog has under `name`. Its leaves are written as its creator chose, whatever the
    /// options say.
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
        Ok(Agreed::from_bytes(&entry.name, &entry.config)?.geometry)
    }

    fn from_entry(host: &impl Host, entry: CatalogEntry, options: Options) -> Result<Self, IndexError> {
        if entry.kind != KIND {
            return Err(IndexError::WrongKind { name: entry.name, kind: entry.kind });
        }
        check_servers(host.control().servers())?;
        let agreed = Agreed::from_bytes(&entry.name, &entry.config)?;
        let (types, leaf) = agreed.geometry.formats()?;
        let cache = RadixCache::new(RadixConfig {
            budget_bytes: options.cache_bytes,
            policy: options.eviction,
            seed: host.seed(),
        });
        let meeting = Meeting::new(host, &entry);
        let turns = Turns::new();
        Ok(Smart(Arc::new(Shared { entry, agreed, options, types, leaf, cache, meeting, turns })))
    }

    /// The handle for the clients of one shard. Call it once per shard and clone what it returns.
    ///
    /// # Panics
    /// If it was called on this shard before.
    pub fn attach<V: Verbs>(&self, verbs: V) -> SmartIndex<V> {
        let shared = Arc::clone(&self.0);
        let techniques = shared.options.techniques.on(&shared.agreed);
        let Techniques { delegation, combining, .. } = techniques;
        let windows = WindowConfig { delegation, combining, ..WindowConfig::default() };
        let (locks, sharing) = shared.meeting.attach(&verbs, shared.options.locks(), windows);
        let first_server = usize::from(verbs.shard().0);
        let allocator = NodeAllocator::new(Arc::clone(verbs.control()), shared.entry.id, first_server);
        let reader = shared.cache.reader();
        let stats = RefCell::default();
        SmartIndex(Rc::new(Tree { shared, techniques, verbs, locks, sharing, reader, allocator, stats }))
    }

    /// Sizes of the tree's nodes.
    pub fn geometry(&self) -> Geometry {
        self.0.agreed.geometry
    }

    /// Bytes of a leaf with the longest key and value.
    pub fn leaf_bytes(&self) -> usize {
        self.0.leaf.largest_bytes()
    }

    /// Bytes that this compute node's cache takes now.
    pub fn cache_bytes(&self) -> usize {
        self.0.cache.bytes()
    }
}

/// Fails if slots cannot name all memory of these servers.
fn check_servers(servers: &[ServerInfo]) -> Result<(), IndexError> {
    let most = Child::REGION_BYTES_MAX;
    if servers.len() > Child::SERVERS_MAX || servers.iter().any(|server| server.region_bytes > most) {
        let what = format!(
            "a radix tree takes {} memory servers of {} TiB at most: use smaller ones, or an index of another kind",
            Child::SERVERS_MAX,
            most >> 40
        );
        return Err(IndexError::Cluster { what });
    }
    Ok(())
}

/// A SMART tree on one shard.
pub struct SmartIndex<V: Verbs>(Rc<Tree<V>>);

impl<V: Verbs> Clone for SmartIndex<V> {
    fn clone(&self) -> Self {
        SmartIndex(Rc::clone(&self.0))
    }
}

impl<V: Verbs> SmartIndex<V> {
    /// The techniques in effect. How leaves are written was decided when the tree was created.
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
    shared: Arc<Shared>,
    techniques: Techniques,
    verbs: V,
    locks: LockTable<V>,
    sharing: Sharing<V>,
    reader: RadixReader,
    allocator: NodeAllocator,
    stats: RefCell<IndexStats>,
}

impl<V: Verbs> Tree<V> {
    fn types(&self) -> &'static NodeTypes {
        self.shared.types
    }

    fn leaf(&self) -> &LeafFormat {
        &self.shared.leaf
    }

    fn cache(&self) -> &RadixCache {
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

impl<V: Verbs> SmartIndex<V> {
    async fn write(&self, kind: OpKind, key: &[u8], intent: Intent<'_>) -> Result<bool, IndexError> {
        self.0.check_key(key)?;
        self.0.check_value(intent.value())?;
        let meter = Meter::default();
        let applied = self.0.sharing.write(&meter, key, intent, self.0.write(&meter, key, intent)).await?;
        self.0.record(kind, &meter, applied, 0);
        Ok(applied)
    }
}

impl<V: Verbs> RangeIndex for SmartIndex<V> {
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
        check::survey(&self.0).await
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
