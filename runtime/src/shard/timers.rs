//! Pauses: a heap of deadlines that each turn looks at while there are any.
//!
//! A pause has one entry however often it is polled. One that is dropped early (a time-out that was not needed) leaves
//! its deadline in the heap; when these are half of it, the heap is swept, so it stays in proportion to the pauses.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use slab::Slab;

use super::core::Core;
use crate::engine::Device;
use crate::host::Host;
use crate::waiter::Waiter;

/// Heaps smaller than this are not worth sweeping.
const SWEEP_MIN: usize = 64;

#[derive(Default)]
pub(super) struct Timers(RefCell<Inner>);

#[derive(Default)]
struct Inner {
    /// Deadlines; one whose place in the slab has another number by now is stale.
    heap: BinaryHeap<Reverse<(u64, Entry)>>,
    waiting: Slab<(u64, Waiter)>,
    added: u64,
}

/// A pause that waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Entry {
    number: u64,
    place: usize,
}

impl Timers {
    fn add(&self, at_ns: u64, waiter: Waiter) -> Entry {
        let mut inner = self.0.borrow_mut();
        inner.added += 1;
        let number = inner.added;
        let place = inner.waiting.insert((number, waiter));
        let entry = Entry { number, place };
        inner.heap.push(Reverse((at_ns, entry)));
        entry
    }

    /// Replaces the waiter for a deadline. False if it has fired.
    fn replace(&self, entry: Entry, waiter: Waiter) -> bool {
        let mut inner = self.0.borrow_mut();
        match inner.waiting.get_mut(entry.place) {
            Some((number, waiting)) if *number == entry.number => {
                *waiting = waiter;
                true
            }
            _ => false,
        }
    }

    fn cancel(&self, entry: Entry) {
        let mut inner = self.0.borrow_mut();
        if inner.waits(entry) {
            inner.waiting.remove(entry.place);
            inner.sweep();
        }
    }

    /// Yields the next deadline.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        self.0.borrow().heap.peek().map(|Reverse((at_ns, _))| *at_ns)
    }

    /// Takes a waiter whose deadline has come.
    pub(super) fn pop_due(&self, now_ns: u64) -> Option<Waiter> {
        let mut inner = self.0.borrow_mut();
        while inner.heap.peek().is_some_and(|Reverse((at_ns, _))| *at_ns <= now_ns) {
            let Some(Reverse((_, entry))) = inner.heap.pop() else { break };
            if inner.waits(entry) {
                return Some(inner.waiting.remove(entry.place).1);
            }
        }
        None
    }
}

impl Inner {
    fn waits(&self, entry: Entry) -> bool {
        self.waiting.get(entry.place).is_some_and(|(number, _)| *number == entry.number)
    }

    fn sweep(&mut self) {
        if self.heap.len() >= SWEEP_MIN && self.waiting.len() < self.heap.len() / 2 {
            let mut heap = std::mem::take(&mut self.heap);
            heap.retain(|Reverse((_, entry))| self.waits(*entry));
            self.heap = heap;
        }
    }
}

/// A wait until some moment of the shard's clock, and for a turn at least.
pub struct Pause<D: Device> {
    core: Rc<Core<D>>,
    until_ns: u64,
    entry: Option<Entry>,
}

impl<D: Device> Pause<D> {
    pub(super) fn new(core: Rc<Core<D>>, until_ns: u64) -> Self {
        Pause { core, until_ns, entry: None }
    }
}

impl<D: Device> Future for Pause<D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waiter = self.core.waiter(cx);
        match self.entry {
            Some(entry) => {
                // Without an entry it has fired, so its time is over: a clock that is read on two cores may be behind
                // itself.
                if self.core.host.now() >= self.until_ns || !self.core.timers.replace(entry, waiter) {
                    return Poll::Ready(());
                }
            }
            // Also if its time is over already: a thread that was held up must not turn a pause into none.
            None => self.entry = Some(self.core.timers.add(self.until_ns, waiter)),
        }
        self.core.work_arrived();
        Poll::Pending
    }
}

impl<D: Device> Drop for Pause<D> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry {
            self.core.timers.cancel(entry);
        }
        // As for the shard's handles: this may have been the last that held it.
        self.core.work_arrived();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &Timers, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| timers.pop_due(now))
            .map(|waiter| if let Waiter::Client(key) = waiter { key } else { u32::MAX })
            .collect()
    }

    #[test]
    fn fires_in_the_order_of_deadlines() {
        let timers = Timers::default();
        for (at, key) in [(30, 3), (10, 1), (20, 2), (20, 4)] {
            timers.add(at, Waiter::Client(key));
        }
        assert_eq!((timers.next(), due(&timers, 9)), (Some(10), vec![]));
        assert_eq!(due(&timers, 20), [1, 2, 4]);
        assert_eq!(due(&timers, u64::MAX), [3]);
    }

    #[test]
    fn a_cancelled_pause_wakes_no_waiter_and_a_replaced_one_its_last() {
        let timers = Timers::default();
        let first = timers.add(10, Waiter::Client(1));
        timers.cancel(first);
        // The next takes the same place in the slab.
        let second = timers.add(20, Waiter::Client(2));
        timers.cancel(first);
        assert!(!timers.replace(first, Waiter::Client(9)) && timers.replace(second, Waiter::Client(3)));
        assert_eq!(due(&timers, 100), [3]);
        assert!(!timers.replace(second, Waiter::Client(4)));
    }

    #[test]
    fn time_outs_that_are_not_needed_leave_no_heap_behind() {
        let timers = Timers::default();
        timers.add(5, Waiter::Client(0));
        for i in 0..100_000 {
            let entry = timers.add(1_000_000 + i, Waiter::Client(1));
            timers.cancel(entry);
        }
        assert!(timers.0.borrow().heap.len() <= SWEEP_MIN);
        assert_eq!(due(&timers, u64::MAX), [0]);
    }
}
