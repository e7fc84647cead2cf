//! Waking a parked shard, from its own thread or another.
//!
//! ```text
//!   a shard that falls asleep       another shard
//!   parked = true                   push message into ring
//!   fence                           fence
//!   look at rings: empty -> sleep   parked? -> wake
//! ```
//! The second fence sees the other side's store, whichever of both it is, so no message is left to a shard that sleeps.

use std::sync::Arc;
use std::task::Waker;

use futures::task::AtomicWaker;

use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes a shard from any thread.
#[derive(Clone)]
pub struct Unpark(Arc<Parking>);

impl Unpark {
    pub(super) fn new(parking: Arc<Parking>) -> Self {
        Unpark(parking)
    }

    /// Wakes the shard if it sleeps. The caller has made its work visible before.
    pub fn unpark(&self) {
        self.0.unpark();
    }
}

/// State of a shard, asleep or awake, and the waker that ends its sleep.
#[derive(Default)]
pub(crate) struct Parking {
    parked: AtomicBool,
    waker: AtomicWaker,
}

impl Parking {
    /// Announces that the shard is about to sleep. It must look for work once more before it does.
    pub(crate) fn prepare(&self, waker: &Waker) {
        self.waker.register(waker);
        self.parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Notes that the shard is awake.
    pub(super) fn cancel(&self) {
        self.parked.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    /// Wakes the shard if it sleeps. The caller has made its work visible before.
    #[inline]
    pub(crate) fn unpark(&self) {
        fence(Ordering::SeqCst);
        if self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}
