//! The cache of a radix tree's inner nodes (SMART, section 4.3): shared by the shards of a compute node, read
//! without locks, under a byte budget that counts everything it holds.
//!
//! Cached nodes are found by their addresses, from the root down: what a cached slot says about the child (its
//! address) and what the cached child says about itself (depth and prefix) must fit, or the lookup ends there.
//! A copy may be stale; the tree notices that by the reverse check and calls [`RadixCache::invalidate`]. What a
//! lookup returns is always from one copy that was inserted for that node, as it was at one time, whatever writers
//! do meanwhile.
//!
//! ```text
//! amend     changing one slot of a copy
//! slot      the bits of a slot word
//! copy      one node in 16 to some thousand bytes; slots change, and are added, where it lies
//! bits      fields of any width in atomic words
//! arena     segments of memory for copies; why a reader needs no lock
//! table     hash table from a node's address to its copy
//! store     the writer: room, growth, emptying of segments
//! victim    which segment, and which copies in it, by policy
//! reader    RadixReader: a shard's way in
//! ```
//!
//! The paper indexes its cache by a local radix tree. A hash table by address takes about 6 bytes for each node
//! where a local tree needs a pointer to the node and one back (copies move), and it still finds a node after a
//! header split put a new one above it.

mod amend;
mod arena;
mod bits;
mod clock;
mod copy;
mod reader;
pub mod slot;
mod store;
mod table;
mod victim;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::eviction::Policy;
use crate::node_cache::CacheStats;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
pub use amend::AmendStats;
use arena::{Arena, Segment};
use clock::Clock;
use copy::Copy;
pub use copy::{PREFIX_BYTES_MAX, SLOTS_MAX};
pub use reader::{RadixReader, Steer};
use store::{Shared, Store};
use table::{Page, Table};
use victim::Chooser;

/// A lookup that finds a copy overwritten while it reads tries again this often, then takes it as not cached.
const ATTEMPTS_MAX: usize = 4;

/// What a cache is made with.
#[derive(Clone, Copy, Debug)]
pub struct RadixConfig {
    /// Bytes that the cache may take, its table and bookkeeping included. Allocators round up, which is not
    /// counted. Below about 12 KiB nothing is cached; the cache itself takes a few hundred bytes, even where that
    /// exceeds the budget. At most 16 GiB are used. What is not needed is not taken, except 1/800 of the budget at
    /// 600 MB for directories.
    pub budget_bytes: usize,
    /// Which copies leave when the budget is full. They leave many at a time: a segment (4 KiB, or 128 KiB of
    /// 600 MB) is emptied, and under [`Policy::TwoChoices`] those of its copies stay that were used more
    /// recently than another one picked at random.
    pub policy: Policy,
    /// Determines all random choices.
    pub seed: u64,
}

/// A node as it was read.
#[derive(Clone, Copy, Debug)]
pub struct RadixImage<'a> {
    /// Its address, in the form that slots have ([`slot::CHILD`]).
    pub node: u64,
    /// Its type, below 32.
    pub class: u8,
    /// Key bytes before its prefix.
    pub depth: u8,
    /// At most [`PREFIX_BYTES_MAX`] bytes.
    pub prefix: &'a [u8],
    /// The claimed slots in their order, at most [`SLOTS_MAX`].
    pub slots: &'a [u64],
}

/// Copies of a radix tree's inner nodes: one cache per index and compute node.
pub struct RadixCache {
    root: AtomicU64,
    arena: Arena,
    table: Table,
    clock: Clock,
    /// Read by anybody, written under the writer lock.
    counters: Counters,
    writer: Mutex<Store>,
}

#[derive(Default)]
struct Counters {
    nodes: AtomicUsize,
    bytes: AtomicUsize,
    invalidated: AtomicUsize,
    evicted: AtomicUsize,
    inserted: AtomicUsize,
    amended_in_place: AtomicUsize,
    amended_anew: AtomicUsize,
}

/// What came of looking at a copy.
enum Visit<R> {
    Seen(R),
    Absent,
    /// It was overwritten meanwhile, or got another slot.
    Torn,
}

impl RadixCache {
    /// An empty cache.
    pub fn new(config: RadixConfig) -> Arc<Self> {
        let arena = Arena::new(config.budget_bytes);
        let table = Table::new(&arena);
        // The counts of the Arc are in the same allocation.
        let fixed = 2 * size_of::<usize>() + size_of::<Self>() + arena.directory_bytes() + table.bytes();
        let chooser = Chooser::new(config.policy, config.seed);
        let store = Store::new(chooser, config.budget_bytes, fixed, &arena);
        let cache = RadixCache {
            root: AtomicU64::new(0),
            arena,
            table,
            clock: Clock::default(),
            counters: Counters::default(),
            writer: Mutex::new(store),
        };
        cache.report(&cache.lock());
        Arc::new(cache)
    }

    /// A shard's way to read the cache.
    pub fn reader(self: &Arc<Self>) -> RadixReader {
        RadixReader::new(self.clone())
    }

    /// Notes the word of the slot that leads to the root; its partial is 0. 0 if it is not known.
    pub fn set_root(&self, word: u64) {
        self.root.store(word, Ordering::Relaxed);
    }

    /// The word that was set last.
    pub fn root(&self) -> u64 {
        self.root.load(Ordering::Relaxed)
    }

    /// Caches a node, in place of the copy that there is. Refuses images with a frozen slot, and those that make
    /// no sense: with an unclaimed slot, an END slot that has a partial, or beyond one of the limits. True if the
    /// node is cached now; false as well if the budget has no room for it. Does not lock if there is such a copy
    /// already.
    pub fn insert(&self, image: &RadixImage<'_>) -> bool {
        if self.visit(image.node, |copy| copy.is_copy_of(image)) == Some(true) {
            return true;
        }
        let Some(copy) = copy::pack(image) else { return false };
        let mut writer = self.lock();
        let inserted = writer.insert(self.shared(), image.node, &copy);
        if inserted {
            self.counters.inserted.fetch_add(1, Ordering::Relaxed);
        }
        self.clock.follow(writer.renewal());
        self.report(&writer);
        inserted
    }

    /// Drops the copy of the node at this address: it has steered somebody to a wrong place.
    pub fn invalidate(&self, node: u64) {
        if self.visit(node, |_| ()).is_none() {
            return;
        }
        let mut writer = self.lock();
        if writer.remove(self.shared(), node) {
            self.counters.invalidated.fetch_add(1, Ordering::Relaxed);
            self.report(&writer);
        }
    }

    /// Forgets everything, the root included. Keeps the memory for what comes.
    pub fn clear(&self) {
        let mut writer = self.lock();
        self.set_root(0);
        writer.clear(self.shared());
        self.report(&writer);
    }

    /// Bytes that the cache takes now, everything included except what allocators round up and the few dozen
    /// bytes of a reader.
    pub fn bytes(&self) -> usize {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// What the cache holds and what has happened to it.
    pub fn stats(&self) -> CacheStats {
        let read = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        CacheStats {
            nodes: read(&self.counters.nodes),
            bytes: read(&self.counters.bytes),
            invalidated: read(&self.counters.invalidated),
            evicted: read(&self.counters.evicted),
            inserted: read(&self.counters.inserted),
        }
    }

    /// What `look` makes of the copy of a node; it may see nonsense, which is then not returned. None if the node
    /// is not cached.
    #[inline]
    fn visit<R>(&self, node: u64, look: impl Fn(&Copy<'_>) -> R) -> Option<R> {
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(node, &look) {
                Visit::Seen(result) => return Some(result),
                Visit::Absent => return None,
                Visit::Torn => {}
            }
        }
        None
    }

    /// See `arena` for why this is right.
    #[inline]
    fn attempt<R>(&self, node: u64, look: &impl Fn(&Copy<'_>) -> R) -> Visit<R> {
        let hash = table::hash(node);
        let number = self.table.page_number(hash);
        let Some(page) = number.and_then(|number| self.table.page(&self.arena, number)) else {
            return Visit::Absent;
        };
        let tag = self.table.tag(hash);
        let mut index = page.start(hash);
        for _ in 0..page.capacity() {
            let entry = page.entry(index);
            if entry == 0 {
                return Visit::Absent;
            }
            if self.table.has_tag(entry, tag) {
                let place = self.arena.decode(entry);
                let Some(segment) = self.arena.get(place.segment) else { return Visit::Absent };
                let Some(generation) = settled(page, index, entry, segment) else { return Visit::Torn };
                let copy = segment.copy(place.granule);
                if copy.node() == node {
                    let seen = look(&copy);
                    if !segment.is_still(generation) || !copy.is_still() {
                        return Visit::Torn;
                    }
                    self.touch(segment, place.granule);
                    return Visit::Seen(seen);
                }
                // Overwritten before it could be recognised, rather than another node's with the same tag?
                if !segment.is_still(generation) {
                    return Visit::Torn;
                }
            }
            index = page.next(index);
        }
        Visit::Absent
    }

    /// Notes a use. Writes only once per epoch, so that the line of a hot node's stamp stays shared between cores.
    /// If the segment has begun anew meanwhile, some other copy seems used.
    #[inline]
    fn touch(&self, segment: &Segment, granule: u32) {
        let (stamp, epoch) = (segment.stamp(granule), self.clock.epoch());
        if stamp.load(Ordering::Relaxed) != epoch {
            stamp.store(epoch, Ordering::Relaxed);
        }
    }

    fn shared(&self) -> Shared<'_> {
        Shared { arena: &self.arena, table: &self.table, epoch: self.clock.epoch() }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // A writer that panicked broke an invariant of its books; entries are still right or absent.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, writer: &Store) {
        self.counters.nodes.store(writer.nodes(), Ordering::Relaxed);
        self.counters.bytes.store(writer.bytes(), Ordering::Relaxed);
        self.counters.evicted.store(writer.evicted(), Ordering::Relaxed);
    }
}

/// The segment's generation for which this entry, which was read before, is right. None if it has left.
#[inline]
fn settled(page: Page<'_>, index: usize, entry: u32, segment: &Segment) -> Option<u64> {
    let generation = segment.generation();
    (page.entry(index) == entry).then_some(generation)
}

#[cfg(test)]
mod tests;
