//! A part of the cache, for the nodes whose addresses hash to it: memory, table, clock and writer of its own.
//! Knows no root word.
//!
//! Readers take no lock. Writers do, and there are many: every insert into the tree amends a copy. One lock for all
//! would let shards wait for each other at nearly every insert, and while a segment is emptied. So a writer that finds
//! a part's lock taken leaves out what only helps: a copy that could not be amended or replaced is out of date, as
//! those are of nodes that other compute nodes change, and the tree notices that. Only the copy that was found out to
//! be out of date has to go: that is left to the writer at work.
//!
//! ```text
//!   invalidate                         writer
//!   note the node; fence               unlock; fence
//!   try the lock: taken -> return      look for notes: some -> lock, remove them
//! ```
//! One of them sees the other's store, so no note is left behind.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::arena::{Arena, Segment};
use super::clock::Clock;
use super::copy::{self, Copy};
use super::store::{Shared, Store};
use super::table::{Page, Table};
use super::victim::Chooser;
use super::{RadixConfig, RadixImage};
use crate::sync::{AtomicU8, AtomicU64, AtomicUsize, Mutex, MutexGuard, NOTES_MAX, Ordering, fence};

/// A lookup that finds a copy overwritten while it reads tries again this often, then takes it as not cached.
const ATTEMPTS_MAX: usize = 4;

pub(super) struct Part {
    pub(super) arena: Arena,
    pub(super) table: Table,
    pub(super) clock: Clock,
    /// Read by all threads, written under the writer lock.
    pub(super) counters: Counters,
    writer: Mutex<Store>,
    /// Nodes whose copies have to go, plus 1, where another thread had the writer lock; 0: none. Beyond that, one that
    /// finds a copy out of date waits for the writer.
    notes: [AtomicU64; NOTES_MAX],
    /// 1 if there may be any.
    has_notes: AtomicU8,
}

/// The writer lock of a part. Giving it back removes the copies that were noted meanwhile.
pub(super) struct Writer<'a> {
    part: &'a Part,
    /// Nothing once it is given back.
    store: Option<MutexGuard<'a, Store>>,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) nodes: AtomicUsize,
    pub(super) bytes: AtomicUsize,
    pub(super) invalidated: AtomicUsize,
    pub(super) evicted: AtomicUsize,
    pub(super) inserted: AtomicUsize,
    pub(super) amended_in_place: AtomicUsize,
    pub(super) amended_anew: AtomicUsize,
}

/// The outcome of looking at a copy.
enum Visit<R> {
    Seen(R),
    Absent,
    /// It was overwritten meanwhile, or got another slot.
    Torn,
}

impl Part {
    /// Makes an empty part with that budget.
    pub(super) fn new(config: RadixConfig) -> Self {
        let arena = Arena::new(config.budget_bytes);
        let table = Table::new(&arena);
        let fixed = size_of::<Self>() + arena.directory_bytes() + table.bytes();
        let chooser = Chooser::new(config.policy, config.seed);
        let store = Store::new(chooser, config.budget_bytes, fixed, &arena);
        let (clock, counters) = (Clock::default(), Counters::default());
        let part = Part {
            arena,
            table,
            clock,
            counters,
            writer: Mutex::new(store),
            notes: Default::default(),
            has_notes: Default::default(),
        };
        part.report(&part.lock());
        part
    }

    /// Caches a node: see [`super::RadixCache::insert`].
    pub(super) fn insert(&self, hash: u64, image: &RadixImage<'_>) -> bool {
        if self.visit(hash, image.node, |copy| copy.is_copy_of(image)) == Some(true) {
            return true;
        }
        let Some(copy) = copy::pack(image) else { return false };
        let Some(mut writer) = self.try_lock() else { return false };
        let inserted = writer.insert(self.shared(), image.node, &copy);
        if inserted {
            self.counters.inserted.fetch_add(1, Ordering::Relaxed);
        }
        self.clock.follow(writer.renewal());
        self.report(&writer);
        inserted
    }

    /// Drops a node's copy: see [`super::RadixCache::invalidate`].
    pub(super) fn invalidate(&self, hash: u64, node: u64) {
        if self.visit(hash, node, |_| ()).is_none() {
            return;
        }
        match self.try_lock() {
            Some(mut writer) => self.remove(&mut writer, node),
            // Giving the lock back removes it, here or where it is held.
            None if self.note(node) => drop(self.try_lock()),
            None => self.remove(&mut self.lock(), node),
        }
    }

    fn remove(&self, store: &mut Store, node: u64) {
        if store.remove(self.shared(), node) {
            self.counters.invalidated.fetch_add(1, Ordering::Relaxed);
            self.report(store);
        }
    }

    /// Notes that a node's copy has to go. False if there is no room for that.
    #[cold]
    fn note(&self, node: u64) -> bool {
        let has_room = |note: &AtomicU64| {
            note.compare_exchange(0, node + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let is_noted = self.notes.iter().any(has_room);
        self.has_notes.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        is_noted
    }

    /// Removes copies that were noted, unless another thread has the writer lock: then it does that.
    fn remove_noted(&self) {
        loop {
            fence(Ordering::SeqCst);
            if self.has_notes.load(Ordering::Relaxed) == 0 {
                return;
            }
            let Some(mut store) = self.try_store() else { return };
            // Before it looks: what is noted from now on says so again.
            self.has_notes.swap(0, Ordering::Acquire);
            for note in &self.notes {
                if let Some(node) = note.swap(0, Ordering::Relaxed).checked_sub(1) {
                    self.remove(&mut store, node);
                }
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        let mut writer = self.lock();
        writer.clear(self.shared());
        self.report(&writer);
    }

    /// Yields what `look` makes of the copy of a node; it may see nonsense, which is then not returned. None if the
    /// node is not cached.
    #[inline(always)]
    pub(super) fn visit<R>(&self, hash: u64, node: u64, look: impl Fn(&Copy<'_>) -> R) -> Option<R> {
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(hash, node, &look) {
                Visit::Seen(result) => return Some(result),
                Visit::Absent => return None,
                Visit::Torn => {}
            }
        }
        None
    }

    /// Makes one attempt; `arena` says why this is right.
    #[inline(always)]
    fn attempt<R>(&self, hash: u64, node: u64, look: &impl Fn(&Copy<'_>) -> R) -> Visit<R> {
        let number = self.table.page_number(hash);
        let Some(page) = number.and_then(|number| self.table.page(&self.arena, number)) else {
            return Visit::Absent;
        };
        let tag = self.table.tag(hash);
        let mut start = page.start(hash);
        // Bounded, since a writer may put entries wherever this looks next.
        for _ in 0..page.capacity() {
            let Some((index, entry)) = self.table.seek(page, start, tag) else { return Visit::Absent };
            let place = self.arena.decode(entry);
            let Some(segment) = self.arena.get(place.segment) else { return Visit::Absent };
            segment.prefetch(place.granule);
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
            start = page.next(index);
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

    pub(super) fn shared(&self) -> Shared<'_> {
        Shared { arena: &self.arena, table: &self.table, epoch: self.clock.epoch() }
    }

    pub(super) fn lock(&self) -> Writer<'_> {
        // A writer that panicked broke an invariant of its books; entries are still right or absent.
        let store = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Writer { part: self, store: Some(store) }
    }

    /// Takes the writer lock, unless another writer has it.
    pub(super) fn try_lock(&self) -> Option<Writer<'_>> {
        self.try_store().map(|store| Writer { part: self, store: Some(store) })
    }

    fn try_store(&self) -> Option<MutexGuard<'_, Store>> {
        match self.writer.try_lock() {
            Ok(writer) => Some(writer),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn report(&self, writer: &Store) {
        self.counters.nodes.store(writer.nodes(), Ordering::Relaxed);
        self.counters.bytes.store(writer.bytes(), Ordering::Relaxed);
        self.counters.evicted.store(writer.evicted(), Ordering::Relaxed);
    }
}

impl Deref for Writer<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        self.store.as_ref().expect("it is held until it is dropped")
    }
}

impl DerefMut for Writer<'_> {
    fn deref_mut(&mut self) -> &mut Store {
        self.store.as_mut().expect("it is held until it is dropped")
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.store = None;
        self.part.remove_noted();
    }
}

/// Yields the segment's generation for which this entry, which was read before, is right. None if it has
/// left.
#[inline]
pub(super) fn settled(page: Page<'_>, index: usize, entry: u32, segment: &Segment) -> Option<u64> {
    let generation = segment.generation();
    (page.entry(index) == entry).then_some(generation)
}
