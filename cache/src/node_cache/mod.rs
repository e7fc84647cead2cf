//! The cache itself: the root, the levels, the byte budget and the one lock that writers take.
//!
//! Readers never take the lock; see `reader`. Writers hold it for a few microseconds: they pack the node
//! before, and look before they lock whether there is anything to do, because many clients of many shards
//! bring or reject the same node at the same time.

use std::array;
use std::sync::{Arc, PoisonError};

use farwood_runtime::RemotePtr;

use crate::chunk::Slot;
use crate::directory::Evictable;
use crate::eviction::{Eviction, Policy};
use crate::level::{Change, Level};
use crate::node::{Node, NodeImage};
use crate::reader::CacheReader;
use crate::stats::CacheStats;
use crate::sync::{ArcSwapOption, AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering};

/// Levels that the cache can hold, leaves included. A tree with more would have 2^32 leaves at the least
/// possible fan-out.
const LEVELS_MAX: usize = 33;
/// The level of the leaves' parents: the one that is evicted.
const LEVEL_EVICTED: u8 = 1;
/// The use clock ticks this often while the cache is renewed once: how finely two choices can tell ages
/// apart.
const EPOCHS_PER_RENEWAL: usize = 16;

/// Settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Bytes that the cache may take, its own directory and bookkeeping included. Allocators round up, which
    /// is not counted. The two top levels stay even where they alone exceed the budget.
    pub budget_bytes: usize,
    /// The choice of the node that leaves when the budget is full.
    pub policy: Policy,
    /// Determines all random choices.
    pub seed: u64,
}

/// The root of the tree: operations that find nothing else in the cache start there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// The address of the root node.
    pub ptr: RemotePtr,
    /// Its level; 0 while the root is a leaf.
    pub level: u8,
}

/// Copies of internal nodes, shared by the shards of a compute node: one per index.
pub struct NodeCache {
    root: ArcSwapOption<Root>,
    levels: [Level; LEVELS_MAX],
    /// Coarse clock of use. Wraps.
    epoch: AtomicU32,
    /// Read without the writer lock, written under it.
    counters: Counters,
    budget: usize,
    writer: Mutex<Writer>,
}

#[derive(Default)]
struct Counters {
    nodes: AtomicUsize,
    bytes: AtomicUsize,
    invalidated: AtomicUsize,
    evicted: AtomicUsize,
    inserted: AtomicUsize,
}

/// State that only writers touch.
struct Writer {
    policy: Box<dyn Eviction>,
    /// Bytes of everything but the policy.
    bytes: usize,
    /// Nodes of all levels, and those of level 1.
    nodes: usize,
    evictable: usize,
    born: u32,
    /// Insertions left until the epoch advances.
    until_tick: usize,
}

impl NodeCache {
    /// Makes an empty cache.
    ///
    /// ```
    /// # use farwood_cache::{CacheConfig, NodeCache, Policy};
    /// let cache = NodeCache::new(CacheConfig { budget_bytes: 1 << 20, policy: Policy::TwoChoices, seed: 1 });
    /// assert!(cache.root().is_none() && cache.reader().find(b"anna").is_none());
    /// ```
    pub fn new(config: CacheConfig) -> Arc<Self> {
        let mut bytes = 2 * size_of::<usize>() + size_of::<Self>();
        let levels = array::from_fn(|_| {
            let (level, empty) = Level::empty();
            bytes += empty;
            level
        });
        let policy = config.policy.start(config.seed);
        let writer = Writer { policy, bytes, nodes: 0, evictable: 0, born: 0, until_tick: 0 };
        let cache = NodeCache {
            root: ArcSwapOption::empty(),
            levels,
            epoch: AtomicU32::new(0),
            counters: Counters::default(),
            budget: config.budget_bytes,
            writer: Mutex::new(writer),
        };
        cache.report(&cache.lock());
        Arc::new(cache)
    }

    /// Yields the tree's root, as far as the cache knows it. Does not lock.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert_eq!(cache.root().map(|root| root.level), Some(2));
    /// # });
    /// ```
    pub fn root(&self) -> Option<Root> {
        self.root.load().as_deref().copied()
    }

    /// Notes the tree's root. A root of a lower level than the known one is out of date and ignored: call
    /// [`NodeCache::clear`] first if the tree really has shrunk or was replaced. When the tree has grown, the
    /// level that is no longer one of the two top ones is dropped, or, if it is level 1, kept as far as the
    /// budget goes.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let (old, new) = (Root { ptr: at(64), level: 1 }, Root { ptr: at(832), level: 3 });
    /// cache.set_root(old);
    /// assert_ne!(cache.root(), Some(old), "it is out of date");
    /// cache.set_root(new);
    /// assert_eq!(cache.root(), Some(new));
    /// # });
    /// ```
    pub fn set_root(&self, root: Root) {
        if self.root() == Some(root) {
            return;
        }
        let mut writer = self.lock();
        if self.root().is_some_and(|known| known.level > root.level) {
            return;
        }
        self.root.store(Some(Arc::new(root)));
        for (number, level) in self.levels.iter().enumerate() {
            if !self.keeps(number as u8) {
                writer.count(number as u8, level.clear());
            }
        }
        self.keep_budget(&mut writer);
        self.report(&writer);
    }

    /// Caches a node, in place of all cached nodes of its level whose ranges overlap its own. Ignores nodes
    /// of levels that the cache does not keep (see the crate's documentation; before the first
    /// [`NodeCache::set_root`] only level 1), and images that make no sense (keys that do not ascend, no
    /// child) or whose keys are too long. True if the node was taken; it may have been evicted again at once
    /// where the budget is tiny.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let leaves = [(&b"m"[..], at(192)), (b"s", at(256))];
    /// let node = NodeImage { address: at(704), level: 1, low: b"m", high: None, separators: &leaves };
    /// assert!(cache.insert(&node));
    /// assert_eq!(reader.find(b"zoe").map(|route| route.child), Some(at(256)));
    /// # });
    /// ```
    pub fn insert(&self, image: &NodeImage<'_>) -> bool {
        if !self.keeps(image.level) {
            return false;
        }
        let Some(node) = Node::pack(image) else { return false };
        let level = &self.levels[usize::from(image.level)];
        if level.covering(image.low).is_some_and(|known| known.same_as(&node)) {
            return true;
        }
        let mut writer = self.lock();
        // The tree may have grown since.
        if !self.keeps(image.level) {
            return false;
        }
        let born = writer.next_born();
        self.tick(&mut writer);
        writer.count(image.level, level.insert(Slot::new(node, self.epoch(), born)));
        if image.level == LEVEL_EVICTED {
            let evictable = writer.evictable;
            self.with_evictable(|cached| writer.policy.inserted(image.low, born, cached, evictable));
        }
        self.keep_budget(&mut writer);
        self.counters.inserted.fetch_add(1, Ordering::Relaxed);
        self.report(&writer);
        true
    }

    /// Drops the cached node of `level` that covers `key` if its address is `node`: it has led a client to a
    /// wrong place. Does nothing if it has been replaced meanwhile by a node with another address.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let route = reader.find(b"anna").expect("it is cached");
    /// cache.invalidate(route.child_level + 1, route.via, b"anna");
    /// assert_eq!(reader.find(b"anna"), None);
    /// # });
    /// ```
    pub fn invalidate(&self, level: u8, node: RemotePtr, key: &[u8]) {
        let Some(cached) = self.levels.get(usize::from(level)) else { return };
        let find = || cached.place(key, |found| found.address() == node);
        if find().is_none() {
            return;
        }
        let mut writer = self.lock();
        if let Some(place) = find() {
            writer.count(level, cached.remove(place));
            self.counters.invalidated.fetch_add(1, Ordering::Relaxed);
            self.report(&writer);
        }
    }

    /// Forgets everything, the root included.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// cache.clear();
    /// assert_eq!((cache.root(), reader.find(b"anna")), (None, None));
    /// # });
    /// ```
    pub fn clear(&self) {
        let mut writer = self.lock();
        self.root.store(None);
        for (number, level) in self.levels.iter().enumerate() {
            writer.count(number as u8, level.clear());
        }
        writer.policy.cleared();
        self.report(&writer);
    }

    /// Counts the bytes that the cache takes now, everything included except what allocators round up and
    /// what readers hold (a few dozen bytes each, and the chunk that a lookup is in).
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert!(cache.bytes() < 1 << 20);
    /// # });
    /// ```
    pub fn bytes(&self) -> usize {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// Yields what the cache holds and what has happened to it.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert_eq!((cache.stats().nodes, cache.stats().inserted), (2, 2));
    /// # });
    /// ```
    pub fn stats(&self) -> CacheStats {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed) as u64;
        CacheStats {
            nodes: read(&self.counters.nodes),
            bytes: read(&self.counters.bytes),
            invalidated: read(&self.counters.invalidated),
            evicted: read(&self.counters.evicted),
            inserted: read(&self.counters.inserted),
            ..CacheStats::default()
        }
    }

    /// Makes a reader for a shard.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let of_another_shard = cache.reader();
    /// assert_eq!(of_another_shard.find(b"anna"), reader.find(b"anna"));
    /// # });
    /// ```
    pub fn reader(self: &Arc<Self>) -> CacheReader {
        CacheReader::new(self.clone())
    }

    pub(crate) fn level(&self, level: u8) -> Option<&Level> {
        self.levels.get(usize::from(level))
    }

    /// Yields the use clock.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Moves the use clock on.
    pub(crate) fn advance(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells whether nodes of `level` are kept: level 1 and the two top levels; leaves never.
    fn keeps(&self, level: u8) -> bool {
        let top = || self.root().is_some_and(|root| root.level == level || root.level == level + 1);
        level >= 1 && usize::from(level) < LEVELS_MAX && (level == LEVEL_EVICTED || top())
    }

    /// Evicts until the budget is kept, or nothing is left that may go.
    fn keep_budget(&self, writer: &mut Writer) {
        let pinned = self.root().is_some_and(|root| root.level <= LEVEL_EVICTED + 1);
        while !pinned && writer.total() > self.budget {
            let Some(place) = self.with_evictable(|cached| writer.policy.victim(cached)) else { return };
            writer.count(LEVEL_EVICTED, self.levels[usize::from(LEVEL_EVICTED)].remove(place));
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(name: "cache.evicted", "a node goes for want of room");
        }
    }

    fn with_evictable<R>(&self, act: impl FnOnce(&Evictable<'_>) -> R) -> R {
        let directory = self.levels[usize::from(LEVEL_EVICTED)].directory();
        act(&Evictable { directory: &directory, epoch: self.epoch() })
    }

    fn tick(&self, writer: &mut Writer) {
        match writer.until_tick.checked_sub(1) {
            Some(left) => writer.until_tick = left,
            None => {
                writer.until_tick = writer.evictable / EPOCHS_PER_RENEWAL;
                self.advance();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // A writer that panicked left the published chunks whole; at worst the count of bytes is off by a
        // chunk.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, writer: &Writer) {
        self.counters.nodes.store(writer.nodes, Ordering::Relaxed);
        self.counters.bytes.store(writer.total(), Ordering::Relaxed);
    }
}

impl Writer {
    fn count(&mut self, level: u8, change: Change) {
        self.nodes = self.nodes.checked_add_signed(change.nodes).expect("no more nodes leave than came");
        self.bytes = self.bytes.checked_add_signed(change.bytes).expect("no more bytes leave than came");
        if level == LEVEL_EVICTED {
            self.evictable =
                self.evictable.checked_add_signed(change.nodes).expect("they are among the nodes");
        }
    }

    fn total(&self) -> usize {
        self.bytes + self.policy.bytes()
    }

    fn next_born(&mut self) -> u32 {
        self.born = self.born.wrapping_add(1);
        self.born
    }
}

#[cfg(test)]
mod tests;
