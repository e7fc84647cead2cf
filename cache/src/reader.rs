//! The reader of a shard. Takes no lock and writes nothing shared, except a node's use stamp once per epoch.
//!
//! A reader keeps the directory of level 1, where nearly all lookups end, and revalidates it with one load.
//! Everything it returns is a hint: right for some version of the node, perhaps not for the current one.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::Arc;

use farwood_runtime::RemotePtr;
use smallvec::SmallVec;

use crate::chunk::{Chunk, Slot};
use crate::directory::Directory;
use crate::node_cache::NodeCache;
use crate::stats::CacheStats;
use crate::sync::{ArcSwap, Cache, Guard};

/// A reader moves the use clock on once in this many lookups, so that ages differ even while nothing is
/// inserted.
const LOOKUPS_PER_TICK: u64 = 1 << 20;

/// The node at which the search for a key goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedRoute {
    /// The node to read next.
    pub child: RemotePtr,
    /// The level that it should have; 0 is a leaf.
    pub child_level: u8,
    /// The address of the cached node that says so: what to invalidate at level `child_level + 1` if it is
    /// wrong.
    pub via: RemotePtr,
    /// The right neighbour of the child, [`RemotePtr::NULL`] if it is the last of its level: as far as the cached node
    /// says, which is silent about that of its last child.
    pub next: Option<RemotePtr>,
}

/// One shard's reader of a [`NodeCache`]. Not `Sync`; make one per shard.
pub struct CacheReader {
    cache: Arc<NodeCache>,
    parents: RefCell<Cache<Parents, Arc<Directory>>>,
    lookups: Cell<u64>,
    hits: Cell<u64>,
}

/// A level-1 node that probably covers a key: the first half of a lookup. Between the halves a coroutine may
/// yield, while the node's memory is fetched. Keeps its chunk alive; a thread that holds more than 8 at once
/// pays for a reference count each.
pub struct Located<'r> {
    reader: &'r CacheReader,
    place: Found,
}

/// A node in its chunk.
struct Found {
    chunk: Guard<Arc<Chunk>>,
    slot: usize,
}

/// The published directory of level 1.
struct Parents(Arc<NodeCache>);

impl Deref for Parents {
    type Target = ArcSwap<Directory>;

    fn deref(&self) -> &ArcSwap<Directory> {
        self.0.level(1).expect("level 1 always exists").published()
    }
}

impl CacheReader {
    pub(crate) fn new(cache: Arc<NodeCache>) -> Self {
        let parents = RefCell::new(Cache::new(Parents(cache.clone())));
        CacheReader { cache, parents, lookups: Cell::new(0), hits: Cell::new(0) }
    }

    /// Yields the cache that this reads.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert_eq!(reader.cache().root(), cache.root());
    /// # });
    /// ```
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.cache
    }

    /// Finds where the deepest cached node that covers `key` leads: level 1, else the level below the root,
    /// else the root.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let route = CachedRoute { child: at(64), child_level: 0, via: at(640), next: Some(at(128)) };
    /// assert_eq!(reader.find(b"anna"), Some(route));
    /// # });
    /// ```
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<CachedRoute> {
        match self.locate(key).and_then(|located| located.finish(key)) {
            Some(route) => Some(route),
            None => self.find_above(key),
        }
    }

    /// Finds the level-1 node that covers `key`, if any does: the first half of a lookup. Counts as a lookup.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let located = reader.locate(b"anna").expect("it is cached");
    /// let route = located.finish(b"anna").expect("the node covers the key");
    /// assert_eq!((route.child, route.via), (at(64), at(640)));
    /// # });
    /// ```
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Option<Located<'_>> {
        let lookups = self.lookups.get() + 1;
        self.lookups.set(lookups);
        if lookups.is_multiple_of(LOOKUPS_PER_TICK) {
            self.cache.advance();
        }
        Some(Located { reader: self, place: self.parent(key)? })
    }

    /// Finds where the cached node of the two top levels that covers `key` leads, the lower one first: the
    /// last resort when level 1 does not know.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let children = [(&b""[..], at(640)), (b"m", at(704))];
    /// cache.insert(&NodeImage { address: at(768), level: 2, low: b"", high: None, separators: &children });
    /// assert_eq!(reader.find_above(b"zoe").map(|route| route.child), Some(at(704)));
    /// # });
    /// ```
    #[cold]
    pub fn find_above(&self, key: &[u8]) -> Option<CachedRoute> {
        let root = self.cache.root()?.level;
        [root.saturating_sub(1), root]
            .into_iter()
            .filter(|level| *level > 1)
            .find_map(|level| self.find_at(level, key))
    }

    /// Finds where the cached node of `level` that covers `key` leads. Not counted as a lookup.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert_eq!(reader.find_at(1, b"zoe").map(|route| route.child), Some(at(192)));
    /// assert_eq!(reader.lookups(), 0);
    /// # });
    /// ```
    pub fn find_at(&self, level: u8, key: &[u8]) -> Option<CachedRoute> {
        self.found(level, key)?.route(key, self.cache.epoch())
    }

    /// Finds the address of the cached node of `level` that covers `key`: where to insert a separator after a
    /// split below.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// assert_eq!(reader.node_of(1, b"anna"), Some(at(640)));
    /// # });
    /// ```
    pub fn node_of(&self, level: u8, key: &[u8]) -> Option<RemotePtr> {
        self.find_at(level, key).map(|route| route.via)
    }

    /// Appends to `out` the leaves from the one that covers `from` on, in key order, at most `max`: as far as
    /// the cached level-1 nodes follow each other without a gap. Returns how many. None at all if no node
    /// covers `from`.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let mut leaves = Vec::new();
    /// assert_eq!(reader.children_in(b"greta", 10, &mut leaves), 2);
    /// assert_eq!(leaves, [at(128), at(192)]);
    /// # });
    /// ```
    pub fn children_in(&self, from: &[u8], max: usize, out: &mut impl Extend<RemotePtr>) -> usize {
        let epoch = self.cache.epoch();
        let mut key = SmallVec::<[u8; 64]>::from_slice(from);
        let mut count = 0;
        while count < max {
            let Some(found) = self.parent(&key) else { break };
            let slot = found.slot();
            let Some(first) = slot.node.position(&key) else { break };
            // A node that begins before the end of the one before it is of another version: stop there.
            if count > 0 && !slot.node.begins_at(&key) {
                break;
            }
            slot.touch(epoch);
            let positions = first..slot.node.len().min(first + max - count);
            count += positions.len();
            out.extend(positions.map(|position| slot.node.child(position)));
            key.clear();
            if !slot.node.copy_high(&mut key) {
                break;
            }
        }
        count
    }

    /// Yields what the cache holds, what has happened to it, and how often this reader found something.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// reader.find(b"anna");
    /// assert_eq!((reader.stats().hits, reader.stats().nodes), (1, 2));
    /// # });
    /// ```
    pub fn stats(&self) -> CacheStats {
        CacheStats { lookups: self.lookups(), hits: self.hits(), ..self.cache.stats() }
    }

    /// Counts the lookups so far: calls of [`CacheReader::find`] and [`CacheReader::locate`].
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// reader.find(b"anna");
    /// assert_eq!(reader.lookups(), 1);
    /// # });
    /// ```
    pub fn lookups(&self) -> u64 {
        self.lookups.get()
    }

    /// Counts the lookups that were answered by a level-1 node.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// reader.find(b"anna");
    /// cache.clear();
    /// reader.find(b"anna");
    /// assert_eq!((reader.lookups(), reader.hits()), (2, 1));
    /// # });
    /// ```
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }

    #[inline]
    fn parent(&self, key: &[u8]) -> Option<Found> {
        Found::in_directory(self.parents.borrow_mut().load(), key)
    }

    fn found(&self, level: u8, key: &[u8]) -> Option<Found> {
        match level {
            1 => self.parent(key),
            _ => Found::in_directory(&self.cache.level(level)?.directory(), key),
        }
    }
}

impl Located<'_> {
    /// Yields where the node leads: the second half of a lookup. None if the node ends before `key`, which
    /// must be the key it was located for.
    ///
    /// ```
    /// # farwood_doctest::cache!(|cache, reader| {
    /// let located = reader.locate(b"zoe").expect("it is cached");
    /// assert_eq!(located.finish(b"zoe").map(|route| route.child), Some(at(192)));
    /// # });
    /// ```
    #[inline]
    pub fn finish(self, key: &[u8]) -> Option<CachedRoute> {
        let route = self.place.route(key, self.reader.cache.epoch())?;
        self.reader.hits.set(self.reader.hits.get() + 1);
        Some(route)
    }
}

impl Found {
    #[inline(always)]
    fn in_directory(directory: &Directory, key: &[u8]) -> Option<Self> {
        let chunk = directory.chunk(key)?;
        let slot = chunk.floor(key)?;
        Some(Found { chunk, slot })
    }

    #[inline]
    fn slot(&self) -> &Slot {
        &self.chunk.slots()[self.slot]
    }

    #[inline]
    fn route(&self, key: &[u8], epoch: u32) -> Option<CachedRoute> {
        let slot = self.slot();
        let node = &slot.node;
        node.prefetch();
        let position = node.position(key)?;
        slot.touch(epoch);
        let (child, next) = (node.child(position), node.neighbour(position));
        Some(CachedRoute { child, child_level: node.level() - 1, via: node.address(), next })
    }
}
