//! Lists of waiters, first come first: those of one lock, or of one window. All lists of a home share one slab, so that
//! a list costs no allocation; it knows neither what a waiter is nor what it waits for.
//!
//! ```text
//!   list       head ───┐                       tail ──┐
//!                      v                              v
//!   slab   │ ... │ waiter, next ──> ... ──> waiter, END │ ... │
//! ```
//!
//! Invariant: a node of the slab belongs to one list. A list is always used with the same slab.

use slab::Slab;

/// The waiters of many lists; nodes are recycled.
#[derive(Clone, Debug)]
pub(crate) struct Waiters<T>(Slab<WaiterNode<T>>);

#[derive(Clone, Debug)]
struct WaiterNode<T> {
    waiter: T,
    next: u32,
}

/// The ends of a list among the [`Waiters`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitList {
    head: u32,
    tail: u32,
}

const END: u32 = u32::MAX;

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Waiters(Slab::new())
    }
}

impl<T> Waiters<T> {
    /// Counts the bytes that the lists take: they grow with the largest number of concurrent waiters.
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * (size_of::<WaiterNode<T>>() + 8)
    }
}

#[cfg(test)]
impl<T> Waiters<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Goes through the waiters of all lists, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, node)| &mut node.waiter)
    }
}

impl WaitList {
    pub(crate) const EMPTY: WaitList = WaitList { head: END, tail: END };

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.head == END
    }

    /// Adds a waiter at the end.
    #[inline]
    pub(crate) fn push<T>(&mut self, waiters: &mut Waiters<T>, waiter: T) {
        let at = waiters.0.insert(WaiterNode { waiter, next: END }) as u32;
        match self.tail {
            END => self.head = at,
            tail => waiters.0[tail as usize].next = at,
        }
        self.tail = at;
    }

    /// Takes out the waiter that came first.
    #[inline]
    pub(crate) fn pop<T>(&mut self, waiters: &mut Waiters<T>) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let first = waiters.0.remove(self.head as usize);
        self.head = first.next;
        if self.is_empty() {
            self.tail = END;
        }
        Some(first.waiter)
    }

    /// Goes through the list from its head.
    pub(crate) fn iter<T>(self, waiters: &Waiters<T>) -> impl Iterator<Item = &T> {
        let node = |at: u32| waiters.0.get(at as usize);
        std::iter::successors(node(self.head), move |last| node(last.next)).map(|node| &node.waiter)
    }

    /// Takes out the waiters for which `stays` is false; the others keep their order. Yields whether there were any.
    pub(crate) fn retain<T>(
        &mut self,
        waiters: &mut Waiters<T>,
        mut stays: impl FnMut(&mut T) -> bool,
    ) -> bool {
        let (mut before, mut at, mut removed) = (END, self.head, false);
        while at != END {
            let node = &mut waiters.0[at as usize];
            let next = node.next;
            if stays(&mut node.waiter) {
                before = at;
            } else {
                removed = true;
                waiters.0.remove(at as usize);
                match before {
                    END => self.head = next,
                    _ => waiters.0[before as usize].next = next,
                }
                if self.tail == at {
                    self.tail = before;
                }
            }
            at = next;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Two lists in one slab, and what they should be.
    #[derive(Clone)]
    struct World {
        waiters: Waiters<u8>,
        lists: [WaitList; 2],
        expected: [VecDeque<u8>; 2],
    }

    impl World {
        fn check(&self) {
            for (list, expected) in self.lists.iter().zip(&self.expected) {
                assert!(list.iter(&self.waiters).eq(expected));
                assert_eq!(list.is_empty(), expected.is_empty());
            }
            assert_eq!(self.waiters.len(), self.expected.iter().map(VecDeque::len).sum::<usize>());
        }

        /// Yields the results of every operation on list `i`, `waiter` being one that is in no list.
        fn steps(&self, i: usize, waiter: u8) -> Vec<World> {
            let mut pushed = self.clone();
            pushed.lists[i].push(&mut pushed.waiters, waiter);
            pushed.expected[i].push_back(waiter);
            let mut popped = self.clone();
            let first = popped.lists[i].pop(&mut popped.waiters);
            assert_eq!(first, popped.expected[i].pop_front());
            let mut all = vec![pushed, popped];
            // Every set of those to be taken out, a bit for each node.
            for set in 1..1_u32 << self.expected[i].len() {
                let mut next = self.clone();
                let mut bits = (0..).map(|bit| set >> bit & 1 == 0);
                let stays = |_: &mut u8| bits.next().expect("without end");
                assert!(next.lists[i].retain(&mut next.waiters, stays));
                let mut bits = (0..).map(|bit| set >> bit & 1 == 0);
                next.expected[i].retain(|_| bits.next().expect("without end"));
                all.push(next);
            }
            all
        }
    }

    #[test]
    fn every_run_of_six_steps_on_two_lists() {
        let first = World {
            waiters: Waiters::default(),
            lists: [WaitList::EMPTY; 2],
            expected: [VecDeque::new(), VecDeque::new()],
        };
        let mut worlds = vec![first];
        for waiter in 0..6 {
            let next = |world: &World| [world.steps(0, waiter), world.steps(1, waiter)].concat();
            worlds = worlds.iter().flat_map(next).collect();
            worlds.iter().for_each(World::check);
        }
        assert!(worlds.len() > 10_000, "{} worlds", worlds.len());
    }

    #[test]
    fn no_waiter_is_taken_out_if_all_stay() {
        let (mut waiters, mut list) = (Waiters::default(), WaitList::EMPTY);
        assert!(!list.retain(&mut waiters, |_| false), "the list is empty");
        list.push(&mut waiters, 1);
        assert!(!list.retain(&mut waiters, |waiter| {
            *waiter += 1;
            true
        }));
        assert_eq!(list.pop(&mut waiters), Some(2));
    }
}
