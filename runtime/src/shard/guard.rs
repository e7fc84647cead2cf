//! A second pair of eyes on executors. glommio 0.9 was seen asleep although timers of its were due, the heartbeat's
//! too; a wake-up from another thread goes another way (an eventfd) and ends such a sleep. One thread per compute
//! node looks at its shards' heartbeats a few times a second and wakes those that stand still. It knows nothing of
//! what shards do.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::task::AtomicWaker;

/// Several heartbeats: one that is late by that much will not come by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A shard's heartbeat, as others see it.
#[derive(Default)]
pub(crate) struct Beat {
    count: AtomicU64,
    waker: AtomicWaker,
}

impl Beat {
    /// Waits for `pause`, in such a way that the guard can wake who waits, and counts a beat.
    pub(super) async fn after(&self, pause: impl Future<Output = ()>) {
        let mut pause = pin!(pause);
        poll_fn(|cx| {
            self.waker.register(cx.waker());
            pause.as_mut().poll(cx)
        })
        .await;
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

type Watched = Mutex<Vec<(Weak<Beat>, Option<u64>)>>;

/// The thread that looks. It ends when the guard is dropped.
pub(crate) struct Guard {
    watched: Arc<Watched>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// A guard that watches nobody yet. Without a thread (the system has none left) it does nothing.
    pub(crate) fn start() -> Self {
        let watched: Arc<Watched> = Arc::default();
        let (end, ended) = channel();
        let looked_at = Arc::clone(&watched);
        let look = move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look(&looked_at);
            }
        };
        let thread = std::thread::Builder::new().name("farwood-guard".into()).spawn(look).ok();
        Guard { watched, end: Some(end), thread }
    }

    /// A heartbeat that is watched as long as it is held.
    pub(super) fn watch(&self) -> Arc<Beat> {
        let beat = Arc::new(Beat::default());
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.push((Arc::downgrade(&beat), None));
        beat
    }

    /// Has the task that awaits this woken once, some looks later, unless what it yields is dropped before: an executor
    /// that went to sleep before its first heartbeat is roused by that.
    pub(crate) async fn rouse(&self) -> Arc<Beat> {
        let beat = self.watch();
        poll_fn(|cx| {
            beat.waker.register(cx.waker());
            Poll::Ready(())
        })
        .await;
        beat
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.end.take());
        // It has nothing to say but that it has ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Wakes whoever has not beaten since the last look.
fn look(watched: &Watched) {
    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
    watched.retain_mut(|(beat, last)| {
        let Some(beat) = beat.upgrade() else { return false };
        let count = beat.count.load(Ordering::Relaxed);
        if last.replace(count) == Some(count) {
            beat.waker.wake();
        }
        true
    });
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
        let watched: Watched = Mutex::default();
        let beat = Arc::new(Beat::default());
        watched.lock().unwrap().push((Arc::downgrade(&beat), None));
        let woken = Arc::new(Woken::default());
        let stuck = waker(Arc::clone(&woken));
        let mut waits = Box::pin(beat.after(std::future::pending()));
        let times = || woken.0.load(Ordering::Relaxed);
        for (looks, expected) in [(0, 0), (1, 1), (2, 2)] {
            assert!(waits.poll_unpin(&mut Context::from_waker(&stuck)).is_pending());
            look(&watched);
            assert_eq!(times(), expected, "after {looks} looks before this one");
        }
        // A beat since the last look: nothing to do.
        assert!(waits.poll_unpin(&mut Context::from_waker(&stuck)).is_pending());
        beat.after(std::future::ready(())).now_or_never().unwrap();
        look(&watched);
        assert_eq!(times(), 2);
        drop(waits);
        drop(beat);
        look(&watched);
        assert!(watched.lock().unwrap().is_empty());
    }
}
