//! Wakers that the world's steps read: a task is polled only after it was woken, so a lost wake shows as a task that
//! waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

pub(super) struct Woken(AtomicBool);

impl Woken {
    /// Makes a waker that is woken once: for the first poll.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Woken(AtomicBool::new(true)))
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
