//! Orders the reads and writes of a line, its counter and the journal, so that no reader takes a line for whole that
//! never was. Knows no memory: words are reached through what callers pass in, and `models/` explores this very code.

use crate::sync::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

/// Words of a line.
pub(super) const LINE_WORDS: usize = 8;
/// Ordering by which words of a line are loaded: keeps READ-READ order on weakly ordered CPUs.
pub(super) const LOAD: Ordering = Ordering::Acquire;
/// Ordering by which they are stored: keeps WRITE-WRITE order.
pub(super) const STORE: Ordering = Ordering::Release;

/// Reads a part of a line: `copy` copies it, more than once if it was written meanwhile. `patience` makes the pause for
/// those that have to wait, which is called with what the counter was found to be. Where a pause fails, so does this,
/// and nothing was changed; the same holds below.
#[inline]
pub(super) fn read<E, P: FnMut(u32) -> Result<(), E>>(
    counter: &AtomicU32,
    mut copy: impl FnMut(),
    patience: impl FnOnce() -> P,
) -> Result<(), E> {
    let attempt = move || {
        let before = counter.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            copy();
            fence(Ordering::Acquire);
            if counter.load(Ordering::Relaxed) == before {
                return Ok(());
            }
        }
        Err(before)
    };
    until_done(attempt, patience)
}

/// Waits until no writer is in the line and puts `mark(version)`, which is odd, into its counter. Yields the version.
/// `mark` may be called for versions at which the line is not had.
#[inline]
pub(super) fn take<E, P: FnMut(u32) -> Result<(), E>>(
    counter: &AtomicU32,
    mark: impl Fn(u32) -> u32,
    patience: impl FnOnce() -> P,
) -> Result<u32, E> {
    let attempt = move || {
        let now = counter.load(Ordering::Relaxed);
        let taken = now.is_multiple_of(2)
            && counter.compare_exchange_weak(now, mark(now), Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken { Ok(now) } else { Err(now) }
    };
    let before = until_done(attempt, patience)?;
    // Keeps the stores that follow behind the odd counter for readers on weakly ordered CPUs.
    fence(Ordering::Release);
    Ok(before)
}

/// Tries until it succeeds. What a pause needs is not set up before the first has failed, for nearly none does.
#[inline]
fn until_done<T, E, P: FnMut(u32) -> Result<(), E>>(
    mut attempt: impl FnMut() -> Result<T, u32>,
    patience: impl FnOnce() -> P,
) -> Result<T, E> {
    match attempt() {
        Ok(done) => Ok(done),
        Err(found) => until_done_at_last(found, attempt, patience()),
    }
}

#[cold]
fn until_done_at_last<T, E>(
    mut found: u32,
    mut attempt: impl FnMut() -> Result<T, u32>,
    mut pause: impl FnMut(u32) -> Result<(), E>,
) -> Result<T, E> {
    loop {
        pause(found)?;
        match attempt() {
            Ok(done) => return Ok(done),
            Err(now) => found = now,
        }
    }
}

/// Gives back a line that was taken at version `before`.
#[inline]
pub(super) fn release(counter: &AtomicU32, before: u32) {
    counter.store(before.wrapping_add(2), Ordering::Release);
}

/// Runs `change` while this thread alone is inside the line. For lines that no other process writes.
#[inline]
pub(super) fn alone<E, P: FnMut(u32) -> Result<(), E>>(
    counter: &AtomicU32,
    change: impl FnOnce(),
    patience: impl FnOnce() -> P,
) -> Result<(), E> {
    let before = take(counter, |version| version.wrapping_add(1), patience)?;
    change();
    release(counter, before);
    Ok(())
}

/// A slot of the journal, as it lies in the file. Its number is in the counter of the line that its owner holds.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Slot {
    pub(super) place: AtomicU64,
    /// The version at which the line was taken, or was to be.
    pub(super) before: AtomicU32,
    /// For humans with a debugger. Owners are known by their locks.
    pub(super) pid: AtomicU32,
    _rest: [u64; 6],
    words: [AtomicU64; LINE_WORDS],
}

/// The change that the owner of a slot was making last.
pub(super) struct Plan {
    /// The first word, by its address in the region.
    pub(super) at: usize,
    /// Number of words.
    pub(super) words: usize,
}

/// Encodes that so many words are to be stored there.
#[inline]
pub(super) fn place(at: usize, words: usize) -> u64 {
    debug_assert!(at.is_multiple_of(8) && words <= LINE_WORDS);
    (at as u64) << 1 | words as u64
}

/// Returns the counter of a line while the owner of `slot` holds it.
#[inline]
pub(super) fn held_by(slot: u32) -> u32 {
    slot << 1 | 1
}

impl Slot {
    /// Stores `words` at `at` by `store`, in the name of slot `number`, which is this one.
    #[inline]
    pub(super) fn write<E, P: FnMut(u32) -> Result<(), E>>(
        &self,
        number: u32,
        (at, counter): (usize, &AtomicU32),
        words: impl ExactSizeIterator<Item = u64>,
        store: impl FnOnce(),
        patience: impl FnOnce() -> P,
    ) -> Result<(), E> {
        self.plan(at, words);
        let before = self.take(number, counter, patience)?;
        store();
        release(counter, before);
        Ok(())
    }

    /// Changes `word`, which is at `at`, to what `next` makes of it, if anything. Yields what was there.
    #[inline]
    pub(super) fn change<E, P: FnMut(u32) -> Result<(), E>>(
        &self,
        number: u32,
        (at, counter): (usize, &AtomicU32),
        word: &AtomicU64,
        next: impl FnOnce(u64) -> Option<u64>,
        patience: impl FnOnce() -> P,
    ) -> Result<u64, E> {
        self.plan(at, std::iter::empty());
        let before = self.take(number, counter, patience)?;
        let found = word.load(Ordering::Acquire);
        if let Some(next) = next(found) {
            // From here on the change will happen, once, whatever becomes of this process.
            self.plan(at, std::iter::once(next));
            word.store(next, Ordering::Release);
        }
        release(counter, before);
        Ok(found)
    }

    /// Returns what its last owner meant to do; nothing that makes sense if it never did anything.
    pub(super) fn planned(&self) -> Plan {
        let place = self.place.load(Ordering::Relaxed);
        Plan { at: (place >> 4 << 3) as usize, words: (place & 0xf) as usize }
    }

    /// Finishes the `plan` of its dead owner and releases the line, if it holds it. `store` stores a word of the plan.
    pub(super) fn finish(
        &self,
        number: u32,
        plan: &Plan,
        counter: &AtomicU32,
        mut store: impl FnMut(usize, u64),
    ) {
        if counter.load(Ordering::Acquire) != held_by(number) {
            return;
        }
        for (i, word) in self.words[..plan.words].iter().enumerate() {
            store(i, word.load(Ordering::Relaxed));
        }
        let before = self.before.load(Ordering::Relaxed) & !1;
        release(counter, before);
    }

    /// Notes that `words` are to be stored at `at`. They fit into one line.
    #[inline]
    pub(super) fn plan(&self, at: usize, words: impl ExactSizeIterator<Item = u64>) {
        // Not before the release of the line that the thread held last: that slot's entry must stay as it was.
        compiler_fence(Ordering::SeqCst);
        let count = words.len();
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.place.store(place(at, count), Ordering::Relaxed);
    }

    /// Notes the version at which the line is about to be taken.
    #[inline]
    pub(super) fn note_version(&self, before: u32) {
        self.before.store(before, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn take<E, P: FnMut(u32) -> Result<(), E>>(
        &self,
        number: u32,
        counter: &AtomicU32,
        patience: impl FnOnce() -> P,
    ) -> Result<u32, E> {
        let mark = |version| {
            self.note_version(version);
            held_by(number)
        };
        take(counter, mark, patience)
    }
}
