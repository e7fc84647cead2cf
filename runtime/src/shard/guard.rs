//! A second pair of eyes on executors. glommio 0.9 was seen asleep although timers of its were due, the heartbeat's
//! too. One thread per compute node looks at its executors' heartbeats a few times a second. Those that stand still
//! it wakes, which goes another way than timers (an eventfd); those that stand still all the same it interrupts by a
//! signal, since an interrupted `io_uring_enter` sees what it has missed. It knows nothing of what shards do.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use futures::task::AtomicWaker;
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::Signal;
use signal_hook::SigId;
use signal_hook::consts::SIGURG;

/// Several heartbeats: one that is late by that much will not come by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks in a row without a heartbeat after which waking has not helped.
const LOOKS_BEFORE_SIGNAL: u32 = 4;

/// An executor's heartbeat, as others see it.
pub(crate) struct Beat {
    count: AtomicU64,
    waker: AtomicWaker,
    executor: ThreadId,
    /// Where signals go; only as long as the thread is known to live.
    thread: Mutex<Option<Pthread>>,
}

impl Beat {
    /// The beat of the executor that this runs on.
    fn here(thread: Option<Pthread>) -> Arc<Self> {
        Arc::new(Beat {
            count: AtomicU64::new(0),
            waker: AtomicWaker::new(),
            executor: std::thread::current().id(),
            thread: Mutex::new(thread),
        })
    }

    /// Whoever is polled in this context is woken if there is no beat.
    fn wakes(&self, cx: &std::task::Context<'_>) {
        self.waker.register(cx.waker());
    }
}

/// Waits for `pause`, in such a way that the guard can wake who waits, and counts a beat. Holds nothing meanwhile: an
/// executor that ends does not drop its tasks.
pub(super) async fn after(beat: &Weak<Beat>, pause: impl Future<Output = ()>) {
    let mut pause = pin!(pause);
    poll_fn(|cx| {
        if let Some(beat) = beat.upgrade() {
            beat.wakes(cx);
        }
        pause.as_mut().poll(cx)
    })
    .await;
    if let Some(beat) = beat.upgrade() {
        beat.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The executor's thread is known to live while this is held on it.
pub(crate) struct Roused(Arc<Beat>);

impl Drop for Roused {
    fn drop(&mut self) {
        *locked(&self.0.thread) = None;
    }
}

struct Watched {
    beat: Weak<Beat>,
    count: Option<u64>,
    /// Looks since it last moved.
    stood: u32,
}

type List = Mutex<Vec<Watched>>;

/// The thread that looks. It ends when the guard is dropped.
pub(crate) struct Guard {
    list: Arc<List>,
    /// The handler that lets the signal interrupt instead of being ignored.
    signal: Option<SigId>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// A guard that watches nobody yet. Without a thread (the system has none left) it does nothing.
    pub(crate) fn start() -> Self {
        let list: Arc<List> = Arc::default();
        let (end, ended) = channel();
        let looked_at = Arc::clone(&list);
        let looking = move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(&looked_at);
            }
        };
        let signal = signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false))).ok();
        let thread = std::thread::Builder::new().name("farwood-guard".into()).spawn(looking).ok();
        Guard { list, signal, end: Some(end), thread }
    }

    /// The heartbeat of the executor that this runs on, watched as long as it is held.
    pub(super) fn watch(&self) -> Arc<Beat> {
        let here = std::thread::current().id();
        let mut list = locked(&self.list);
        if let Some(beat) = list.iter().filter_map(|w| w.beat.upgrade()).find(|beat| beat.executor == here) {
            return beat;
        }
        add(&mut list, None)
    }

    /// Has the executor that this runs on watched before its first heartbeat, and its thread interrupted if need be.
    pub(crate) async fn rouse(&self) -> Roused {
        let beat = add(&mut locked(&self.list), self.signal.map(|_| pthread_self()));
        poll_fn(|cx| {
            beat.wakes(cx);
            Poll::Ready(())
        })
        .await;
        Roused(beat)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.end.take());
        // It has nothing to say but that it has ended.
        let _ = self.thread.take().map(JoinHandle::join);
        if let Some(signal) = self.signal.take() {
            signal_hook::low_level::unregister(signal);
        }
    }
}

fn add(list: &mut Vec<Watched>, thread: Option<Pthread>) -> Arc<Beat> {
    let beat = Beat::here(thread);
    list.push(Watched { beat: Arc::downgrade(&beat), count: None, stood: 0 });
    beat
}

/// Wakes whoever has not beaten since the last look, and interrupts whom that does not help.
fn look(list: &List) {
    locked(list).retain_mut(|Watched { beat, count, stood }| {
        let Some(beat) = beat.upgrade() else { return false };
        let now = beat.count.load(Ordering::Relaxed);
        *stood = if count.replace(now) == Some(now) { *stood + 1 } else { 0 };
        if *stood > 0 {
            beat.waker.wake();
        }
        if *stood >= LOOKS_BEFORE_SIGNAL
            && let Some(thread) = *locked(&beat.thread)
        {
            tracing::debug!("an executor has had no heartbeat for a second and is interrupted");
            // The thread lives as long as the lock is held. A refusal leaves things as they are.
            let _ = pthread_kill(thread, Signal::SIGURG);
        }
        true
    });
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::task::{ArcWake, Context, waker};

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl ArcWake for Woken {
        fn wake_by_ref(woken: &Arc<Self>) {
            woken.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakes_those_that_stand_still() {
        let list = List::default();
        let beat = add(&mut locked(&list), None);
        let seen = Arc::downgrade(&beat);
        let woken = Arc::new(Woken::default());
        let stuck = waker(Arc::clone(&woken));
        let mut waits = Box::pin(after(&seen, std::future::pending()));
        let times = || woken.0.load(Ordering::Relaxed);
        for (looks, expected) in [(0, 0), (1, 1), (2, 2)] {
            assert!(waits.poll_unpin(&mut Context::from_waker(&stuck)).is_pending());
            look(&list);
            assert_eq!(times(), expected, "after {looks} looks before this one");
        }
        // A beat since the last look: nothing to do.
        assert!(waits.poll_unpin(&mut Context::from_waker(&stuck)).is_pending());
        after(&seen, std::future::ready(())).now_or_never().unwrap();
        look(&list);
        assert_eq!(times(), 2);
        // Who waits does not keep it alive: an executor that ends leaks its tasks.
        drop(beat);
        look(&list);
        assert!(locked(&list).is_empty());
    }

    /// A thread that neither beats nor can be woken is interrupted, until it is no more known to live.
    #[test]
    fn interrupts_those_that_do_not_wake() {
        let interrupted = Arc::new(AtomicBool::new(false));
        let id = signal_hook::flag::register(SIGURG, Arc::clone(&interrupted)).unwrap();
        let list = List::default();
        let roused = Roused(add(&mut locked(&list), Some(pthread_self())));
        for _ in 0..=LOOKS_BEFORE_SIGNAL {
            assert!(!interrupted.load(Ordering::SeqCst));
            look(&list);
        }
        assert!(interrupted.swap(false, Ordering::SeqCst));
        let beat = Arc::clone(&roused.0);
        drop(roused);
        look(&list);
        assert!(!interrupted.load(Ordering::SeqCst) && Arc::strong_count(&beat) == 1);
        signal_hook::low_level::unregister(id);
    }
}
