//! The journal keeps a line's counter from staying odd forever when the process that made it so is killed.
//!
//! In memory that several processes map, every writing thread owns a slot of a journal in the same file. Before it
//! takes a line, it writes into its slot what it is about to do; while it holds the line, the counter names the slot.
//! A thread that waits too long for a line asks the kernel for the lock on that slot's byte (see `range_lock.rs`). If
//! its owner lives, however long it has not run, the kernel refuses. If not, the one who asked owns the slot now,
//! finishes what the slot says, in the name of the dead, and releases the line.
//!
//! ```text
//! slot                                                             counter of a line
//!  0        8        12     16   64                         128     even: its version
//! +--------+--------+------+----+----------------------------+      odd:  2 * slot + 1, and its version is in
//! | place  | before | pid  |    | up to 8 words for the line |            the slot as `before`
//! +--------+--------+------+----+----------------------------+
//! place = 2 * address in the region + number of words (0: nothing to be done yet)
//!
//! owner, killed anywhere                                what its heir finds
//!   words, place = ..     what to do
//!   before = version                                      the counter does not name the slot: nothing happened
//!   CAS counter: version -> 2 * slot + 1
//!   store the words                                       it does: stores `words` at `place`, again or for the first
//!   counter = version + 2                                 time, and releases
//! ```
//!
//! An atomic's word is known only under the line. It takes the line with no words to be done, computes its word,
//! writes the word into its slot and then `place`. An heir that finds no words releases the line as it was; one that
//! finds a word stores it: what was computed is never computed again, so that no CAS or FAA takes effect twice.
//!
//! Why this is sound: a killed thread has executed a prefix of its program, and the kernel's lock, which it grants only
//! after that, makes the prefix visible to the heir. So only the compiler has to keep the order of these stores. A slot
//! has one owner at any time, heirs included, and only the owner touches the line whose counter names the slot. An heir
//! that is killed as well leaves a slot that says the same. Version numbers need no CAS against reuse for that reason.
//!
//! An owner that lives and does not go on (SIGSTOP, a frozen cgroup) cannot be inherited from: it would go on in the
//! middle. An access that waits for it fails, and names it: after [`ASKED_EVERY`] where `/proc` says that it is
//! stopped, after [`STOPPED_AFTER`] where nothing says so. Those that come after that fail at once, until the owner
//! goes on or dies. Chains wait longer (`stalled.rs`).
//!
//! The rest is bookkeeping of a process: which slots are its own (the kernel's locks do not exclude threads of one open
//! file), and which thread has which. A child of a fork that does not exec has no mapping, but while it lives it keeps
//! its parent's slots locked: lines that the parent held when it was killed stay held until then.

#![expect(unsafe_code, reason = "slots lie in shared memory")]

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::header::SLOT_BYTES;
use super::line::{LINE_BYTES, Lines, WriterStopped};
use super::order::{LINE_WORDS, STORE, Slot};
use super::process_state::is_stopped;
use super::range_lock::{self, Kind, SLOTS};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots of a file: threads that can write at a time without sharing a slot. 512 KiB.
pub(super) const SLOTS_MAX: u32 = 4096;

/// A writer that has been inside one line for that long is stopped: far longer than a busy machine keeps a thread from
/// its core.
const STOPPED_AFTER: Duration = Duration::from_secs(2);
/// Those that wait for a line ask the operating system this often whether its writer is stopped: a busy machine seldom
/// keeps a thread from its core for as long.
const ASKED_EVERY: Duration = Duration::from_millis(10);

const _: () = assert!(size_of::<Slot>() as u64 == SLOT_BYTES && LINE_WORDS * 8 == LINE_BYTES);

/// The journal of a region file, as one opening of it sees it. Dropping it gives all its slots back, as soon as the
/// mapping of the file is gone as well.
pub(super) struct Journal {
    /// Has the locks on this process's slots.
    file: File,
    slots: *const Slot,
    region: Lines<'static>,
    region_bytes: u64,
    /// A bit per slot that this opening owns.
    own: [AtomicU64; SLOTS_MAX as usize / 64],
    state: Mutex<State>,
    /// The slot that threads without one share, one at a time: there was none left, or they are ending.
    reserve: Mutex<u32>,
}

/// The holder of a line, as seen by one that waits for it.
#[derive(Default)]
pub(super) struct Held {
    /// The slot that held the line, and at which version.
    seen: u64,
    /// Since when it has been the same.
    since: Option<Instant>,
    /// Times that the operating system was asked about the writer meanwhile.
    asked: u32,
}

struct State {
    /// Slots whose threads have ended.
    idle: Vec<u32>,
    /// Writers that were found to be stopped: the last time of each slot.
    stopped: Vec<Stopped>,
}

/// A writer that is, or was, stopped in the middle of a line.
struct Stopped {
    /// The line. Other lines may have the same version.
    line: usize,
    /// The slot that held it, and at which version.
    seen: u64,
    /// Since when it has been waited for.
    since: Instant,
}

// SAFETY: the pointers are to memory that every access treats as shared: atomics.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

thread_local! {
    /// This thread's slots, one for each region that it has written to. A static, because a slot belongs to a thread
    /// and the accesses of a region do not know their thread in any other way.
    static SLOTS_OF_THREAD: RefCell<Vec<OfThread>> = const { RefCell::new(Vec::new()) };
}

struct OfThread {
    journal: Weak<Journal>,
    /// Nothing if there was none left.
    slot: Option<u32>,
}

impl Drop for OfThread {
    fn drop(&mut self) {
        if let (Some(journal), Some(slot)) = (self.journal.upgrade(), self.slot) {
            journal.state().idle.push(slot);
        }
    }
}

impl Journal {
    /// Opens the journal at `slots` for the lines of `region`. Yields nothing if all slots are taken.
    ///
    /// # Safety
    /// `slots` are [`SLOTS_MAX`] slots, and they and `region` stay mapped for as long as any method but `drop` is
    /// called. `file` is the open file that both are mapped from.
    pub(super) unsafe fn new(
        file: File,
        slots: *const Slot,
        region: Lines<'static>,
        region_bytes: u64,
    ) -> io::Result<Option<Arc<Self>>> {
        let journal = Journal {
            file,
            slots,
            region,
            region_bytes,
            own: [const { AtomicU64::new(0) }; SLOTS_MAX as usize / 64],
            state: Mutex::new(State { idle: Vec::new(), stopped: Vec::new() }),
            reserve: Mutex::new(0),
        };
        let Some(reserve) = journal.claim()? else { return Ok(None) };
        *journal.reserve.lock().expect("just made") = reserve;
        Ok(Some(Arc::new(journal)))
    }

    /// Runs `change` with a slot that is this thread's alone until it returns.
    #[inline]
    pub(super) fn with_slot<R>(self: &Arc<Self>, change: impl FnOnce(u32, &Slot) -> R) -> R {
        match SLOTS_OF_THREAD.try_with(|slots| self.slot_among(slots)) {
            Ok(Some(number)) => change(number, self.slot(number)),
            _ => {
                let number = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
                change(*number, self.slot(*number))
            }
        }
    }

    #[inline]
    fn slot_among(self: &Arc<Self>, slots: &RefCell<Vec<OfThread>>) -> Option<u32> {
        let mine = |of: &&OfThread| of.journal.as_ptr() == Arc::as_ptr(self);
        let known = slots.borrow().iter().find(mine).map(|of| of.slot);
        known.unwrap_or_else(|| self.first_slot_of(slots))
    }

    #[cold]
    fn first_slot_of(self: &Arc<Self>, slots: &RefCell<Vec<OfThread>>) -> Option<u32> {
        let idle = self.state().idle.pop();
        let slot = idle.or_else(|| {
            let claimed = self.claim().unwrap_or_else(|error| {
                tracing::warn!(%error, "no slot could be locked: this thread shares one");
                None
            });
            if claimed.is_none() {
                tracing::warn!("all {SLOTS_MAX} slots of a region are taken: this thread's writes share one");
            }
            claimed
        });
        let mut slots = slots.borrow_mut();
        slots.retain(|of| of.journal.strong_count() > 0);
        slots.push(OfThread { journal: Arc::downgrade(self), slot });
        slot
    }

    /// Takes a slot that has no owner, and finishes what its last owner left.
    fn claim(&self) -> io::Result<Option<u32>> {
        let _state = self.state();
        for number in 0..SLOTS_MAX {
            let byte = SLOTS + i64::from(number);
            if !self.owns(number) && range_lock::try_lock(&self.file, byte, Kind::Exclusive)? {
                self.finish(number);
                self.slot(number).pid.store(std::process::id(), Ordering::Relaxed);
                self.own[number as usize / 64].fetch_or(1 << (number % 64), Ordering::Release);
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// Helps a thread that waits for the line of `at`, whose counter has been `held` for long, and calls this now and
    /// then: releases it if its holder is dead.
    ///
    /// # Errors
    /// If the holder lives and has not gone on for long.
    #[cold]
    pub(super) fn help(&self, at: usize, held: u32, wait: &mut Held) -> Result<(), WriterStopped> {
        let number = held >> 1;
        // No writer that follows the protocol writes such a counter; there is no way on from memory that others spoil.
        assert!(number < SLOTS_MAX, "the counter of the line at {at:#x} is spoilt: {held:#x}");
        if !self.owns(number) && self.inherit(number, at, held) {
            tracing::info!("finished what a process that has died left in the line at {at:#x}");
            return Ok(());
        }
        self.check_goes_on(number, at / LINE_BYTES, held, wait)?;
        // The holder may wait for this very core.
        std::thread::yield_now();
        Ok(())
    }

    /// Fails if the owner of slot `number` is in the middle of the same line as long ago. A new line, or the same line
    /// again, has another version or shows another moment of the slot.
    #[expect(
        clippy::disallowed_methods,
        reason = "the operating system's time, of another process that is stopped"
    )]
    fn check_goes_on(
        &self,
        number: u32,
        line: usize,
        held: u32,
        wait: &mut Held,
    ) -> Result<(), WriterStopped> {
        let slot = self.slot(number);
        let seen = u64::from(slot.before.load(Ordering::Relaxed)) << 32 | u64::from(held);
        let now = Instant::now();
        let since = match wait.since {
            Some(since) if wait.seen == seen => since,
            _ => {
                *wait = Held { seen, since: Some(now), asked: 0 };
                now
            }
        };
        let process = slot.pid.load(Ordering::Relaxed);
        let stopped = |since| WriterStopped::new(process, now.duration_since(since));
        let known = |state: &State| {
            let mut all = state.stopped.iter();
            all.find(|stopped| (stopped.line, stopped.seen) == (line, seen)).map(|stopped| stopped.since)
        };
        if let Some(since) = known(&self.state()) {
            return Err(stopped(since));
        }
        let waited = now.duration_since(since);
        let asks = waited >= ASKED_EVERY * (wait.asked + 1);
        wait.asked += u32::from(asks);
        if waited < STOPPED_AFTER && !(asks && is_stopped(process)) {
            return Ok(());
        }
        tracing::warn!(process, "a process is stopped in the middle of a line");
        let mut state = self.state();
        state.stopped.retain(|stopped| stopped.seen as u32 != held);
        state.stopped.push(Stopped { line, seen, since });
        Err(stopped(since))
    }

    /// Finishes what the owner of slot `number` left, if it is dead.
    fn inherit(&self, number: u32, at: usize, held: u32) -> bool {
        // Threads of this process exclude each other by this, since the kernel's locks do not.
        let _state = self.state();
        let byte = SLOTS + i64::from(number);
        if self.owns(number) || !matches!(range_lock::try_lock(&self.file, byte, Kind::Exclusive), Ok(true)) {
            return false;
        }
        self.finish(number);
        let left = self.counter(at).load(Ordering::Acquire);
        let unlocked = range_lock::unlock(&self.file, byte);
        assert!(
            left != held,
            "the line at {at:#x} is held in the name of slot {number}, which knows nothing of it"
        );
        unlocked.expect("a lock can be given back: that takes no memory");
        true
    }

    /// Finishes what the last owner of slot `number`, which is now locked by this opening, was doing when it died.
    fn finish(&self, number: u32) {
        let slot = self.slot(number);
        let plan = slot.planned();
        let first = plan.at % LINE_BYTES / 8;
        // What others wrote is not to be trusted with this process's memory.
        if plan.at as u64 >= self.region_bytes || first + plan.words > LINE_WORDS {
            return;
        }
        slot.finish(number, &plan, self.counter(plan.at), |i, word| {
            // SAFETY: inside the line, which is inside the region.
            let to = unsafe { AtomicU64::from_ptr(self.region.base.add(plan.at + i * 8).cast()) };
            to.store(word, STORE);
        });
    }

    fn owns(&self, slot: u32) -> bool {
        self.own[slot as usize / 64].load(Ordering::Acquire) & 1 << (slot % 64) != 0
    }

    #[inline]
    fn slot(&self, number: u32) -> &Slot {
        debug_assert!(number < SLOTS_MAX);
        // SAFETY: one of the slots, which stay mapped while this is in use.
        unsafe { &*self.slots.add(number as usize) }
    }

    fn counter(&self, at: usize) -> &AtomicU32 {
        assert!((at as u64) < self.region_bytes);
        // SAFETY: one counter per line of the region.
        unsafe { &*self.region.counters.add(at / LINE_BYTES) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
pub(super) mod tests;
