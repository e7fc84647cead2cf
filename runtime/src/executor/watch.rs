//! The thread that interrupts executors whose heart stands still. One for the process, there while any of them runs.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use signal_hook::consts::SIGURG;

/// Two beats. A heart that is only late is interrupted for nothing, which does no harm.
const LOOK_EVERY: Duration = super::HEARTBEAT.saturating_mul(2);

/// A heart that stands still at so many looks in a row, for 5 s, is worth a warning.
const LOOKS_BEFORE_WARNING: u32 = 50;

static WATCH: Watch =
    Watch { hearts: Mutex::new(Hearts { list: Vec::new(), has_watcher: false }), ended: Condvar::new() };

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

struct Watch {
    hearts: Mutex<Hearts>,
    /// The last heart has left the list.
    ended: Condvar,
}

struct Hearts {
    list: Vec<Heart>,
    has_watcher: bool,
}

/// A thread that runs an executor. It is on the list only while it lives.
struct Heart {
    thread: Pthread,
    beats: Arc<AtomicU64>,
    seen: u64,
    /// Looks in a row at which it stood still.
    still: u32,
}

impl Heart {
    /// Looks whether the heart has beaten since the look before; yields the number of looks in a row at which it had
    /// not.
    fn look(&mut self) -> u32 {
        let beats = self.beats.load(Ordering::Relaxed);
        self.still = if beats == self.seen { self.still.saturating_add(1) } else { 0 };
        self.seen = beats;
        self.still
    }
}

/// Tells whether this thread runs an executor that is watched.
pub(super) fn is_watched() -> bool {
    IS_WATCHED.get()
}

/// Keeps this thread watched until it is dropped, which must be on the same thread.
pub(super) struct Watched {
    beats: Arc<AtomicU64>,
    stays_here: PhantomData<*const ()>,
}

impl Watched {
    pub(super) fn begin() -> Self {
        let beats = Arc::new(AtomicU64::new(0));
        let mut hearts = WATCH.hearts();
        hearts.list.push(Heart { thread: pthread_self(), beats: Arc::clone(&beats), seen: 0, still: 0 });
        if !hearts.has_watcher {
            let thread = std::thread::Builder::new().name("farwood-watch".into());
            match thread.spawn(watch) {
                Ok(_) => hearts.has_watcher = true,
                Err(error) => tracing::warn!(
                    name: "executor.unwatched", %error,
                    "no thread that watches executors: one may fall asleep over its tasks"
                ),
            }
        }
        drop(hearts);
        IS_WATCHED.set(true);
        Watched { beats, stays_here: PhantomData }
    }

    /// Yields the counter that the executor's heart counts its beats in.
    pub(super) fn beats(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.beats)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        IS_WATCHED.set(false);
        let mut hearts = WATCH.hearts();
        hearts.list.retain(|heart| !Arc::ptr_eq(&heart.beats, &self.beats));
        if hearts.list.is_empty() {
            WATCH.ended.notify_all();
        }
    }
}

impl Watch {
    fn hearts(&self) -> MutexGuard<'_, Hearts> {
        self.hearts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interrupts executors that sleep too long, until there is none left to watch.
fn watch() {
    // The handler lets the signal interrupt instead of being ignored.
    let handler = signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false)));
    if let Err(error) = &handler {
        tracing::warn!(
            name: "executor.unwatched", %error,
            "no handler for SIGURG: an executor may fall asleep over its tasks"
        );
    }
    let mut hearts = WATCH.hearts();
    loop {
        let waited = WATCH.ended.wait_timeout_while(hearts, LOOK_EVERY, |hearts| !hearts.list.is_empty());
        hearts = waited.unwrap_or_else(PoisonError::into_inner).0;
        if hearts.list.is_empty() {
            hearts.has_watcher = false;
            break;
        }
        for heart in &mut hearts.list {
            let still = heart.look();
            if still > 0 && handler.is_ok() {
                // It leaves the list before it ends. A refusal leaves things as they are.
                let _ = pthread_kill(heart.thread, Signal::SIGURG);
            }
            if still == LOOKS_BEFORE_WARNING {
                tracing::warn!(
                    name: "executor.still",
                    "an executor has run none of its tasks for 5 s: one of them blocks its thread, or its preemption \
                     timer is shorter than a scheduling round takes, which is some 10 to 100 us"
                );
            }
        }
    }
    drop(hearts);
    if let Ok(handler) = handler {
        signal_hook::low_level::unregister(handler);
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use nix::poll::{PollTimeout, poll};

    use super::*;

    const LONG: u16 = 5 * LOOK_EVERY.as_millis() as u16;

    /// Interrupts a system call that waits again and again while the heart stands still, and none afterwards.
    #[test]
    fn interrupts_a_thread_whose_heart_stands_still() {
        let watched = Watched::begin();
        for _ in 0..3 {
            assert_eq!(poll(&mut [], PollTimeout::NONE), Err(Errno::EINTR));
        }
        drop(watched);
        assert_eq!(poll(&mut [], LONG), Ok(0));
    }

    #[test]
    fn counts_the_looks_at_which_a_heart_stands_still() {
        let beats = Arc::new(AtomicU64::new(0));
        let mut heart = Heart { thread: pthread_self(), beats: Arc::clone(&beats), seen: 0, still: 0 };
        assert_eq!([heart.look(), heart.look()], [1, 2]);
        beats.fetch_add(1, Ordering::Relaxed);
        assert_eq!([heart.look(), heart.look()], [0, 1]);
    }

    #[test]
    fn watches_as_many_as_there_are() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let watched = Watched::begin();
                    assert_eq!(poll(&mut [], PollTimeout::NONE), Err(Errno::EINTR));
                    drop(watched);
                });
            }
        });
    }
}
