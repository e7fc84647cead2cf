//! Pauses: a heap of deadlines that the poller looks at in each turn while there are any.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::Core;
use crate::engine::Device;
use crate::waiter::Waiter;

#[derive(Default)]
pub(super) struct Timers {
    heap: RefCell<BinaryHeap<Reverse<Deadline>>>,
}

struct Deadline {
    at_ns: u64,
    waiter: Waiter,
}

impl PartialEq for Deadline {
    fn eq(&self, other: &Self) -> bool {
        self.at_ns == other.at_ns
    }
}

impl Eq for Deadline {}

impl PartialOrd for Deadline {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Deadline {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at_ns.cmp(&other.at_ns)
    }
}

impl Timers {
    fn add(&self, at_ns: u64, waiter: Waiter) {
        self.heap.borrow_mut().push(Reverse(Deadline { at_ns, waiter }));
    }

    /// The next deadline.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.heap.borrow().peek().map(|Reverse(deadline)| deadline.at_ns)
    }

    /// A waiter whose deadline has come.
    pub(super) fn pop_due(&self, now_ns: u64) -> Option<Waiter> {
        let mut heap = self.heap.borrow_mut();
        let due = heap.peek().is_some_and(|Reverse(deadline)| deadline.at_ns <= now_ns);
        if due { heap.pop().map(|Reverse(deadline)| deadline.waiter) } else { None }
    }
}

/// A wait until some moment of the shard's clock.
pub struct Pause<D> {
    core: Rc<Core<D>>,
    until_ns: u64,
}

impl<D> Pause<D> {
    pub(super) fn new(core: Rc<Core<D>>, until_ns: u64) -> Self {
        Pause { core, until_ns }
    }
}

impl<D: Device> Future for Pause<D> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.core.clock.now() >= self.until_ns {
            return Poll::Ready(());
        }
        self.core.timers.add(self.until_ns, self.core.waiter(cx));
        self.core.work_arrived();
        Poll::Pending
    }
}
