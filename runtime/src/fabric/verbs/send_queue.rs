//! The chains that are posted on one queue pair and have not completed: how many work requests they take of its send
//! queue, and which of them a completion is for. Pure accounting; knows no device.
//!
//! A queue pair completes in posting order, and only the last work request of a chain is signalled: its completion
//! frees the requests of its chain and of all chains before it. When a queue pair breaks, every request that had not
//! completed comes back as an error, signalled or not, so the completion queue needs room for all of them.

use std::collections::VecDeque;

use super::post::Tag;
use crate::engine::SlotKey;

/// A posted chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    pub key: SlotKey,
    /// Its work requests.
    pub requests: u32,
    /// The running number of the first of them, which decides on the word that an atomic's finding goes to.
    pub first_request: u64,
    /// When it was posted, in ns.
    pub at: u64,
    /// The place of the first of them in the chain's plan. Not 0 for a later part of a chain that is posted in parts.
    pub first_place: u32,
    /// Set if the chain is complete with them.
    pub is_whole: bool,
}

/// Posted chains, oldest first.
pub(super) struct SendQueue {
    depth: u32,
    used: u32,
    chains: VecDeque<Posted>,
    /// The number of the oldest chain in flight, or of the next if there is none; modulo [`Tag::NUMBER_MASK`] + 1.
    head: u64,
    next_request: u64,
    /// When a chain completed last, in ns.
    moved_at: u64,
    /// Set if the last request of the newest chain has come back, after which nothing more comes.
    is_drained: bool,
}

impl SendQueue {
    /// Makes an empty send queue of `depth` work requests.
    pub(super) fn new(depth: u32) -> Self {
        let chains = VecDeque::new();
        SendQueue { depth, used: 0, chains, head: 0, next_request: 0, moved_at: 0, is_drained: true }
    }

    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Tells whether the send queue has room for that many more.
    pub(super) fn fits(&self, requests: u32) -> bool {
        requests <= self.depth - self.used
    }

    /// Returns the running number of the next work request.
    pub(super) fn next_request(&self) -> u64 {
        self.next_request
    }

    /// Returns the number of the next chain.
    pub(super) fn next_number(&self) -> u64 {
        self.head.wrapping_add(self.chains.len() as u64) & Tag::NUMBER_MASK
    }

    /// Takes in `posted` with the number [`SendQueue::next_number`]. Of a chain that is posted in parts only one is in
    /// flight at a time.
    pub(super) fn push(&mut self, posted: Posted) {
        let requests = posted.requests;
        assert!(requests > 0 && self.fits(requests), "the send queue has no room for {requests} more");
        self.used += requests;
        self.chains.push_back(posted);
        self.next_request += u64::from(requests);
        self.is_drained = false;
    }

    /// Counts the chains that are complete when the last request of chain `number` is: it and those before it. 0 for a
    /// number that is not in flight: a completion of a queue pair that was given up.
    pub(super) fn completed_by(&self, number: u64) -> usize {
        let ahead = number.wrapping_sub(self.head) & Tag::NUMBER_MASK;
        if ahead < self.chains.len() as u64 { ahead as usize + 1 } else { 0 }
    }

    /// Tells whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.chains.is_empty()
    }

    /// Takes the oldest chain out.
    pub(super) fn pop(&mut self) -> Option<Posted> {
        let posted = self.chains.pop_front()?;
        self.used -= posted.requests;
        self.head = self.head.wrapping_add(1) & Tag::NUMBER_MASK;
        Some(posted)
    }

    /// Notes that a chain has completed at `now`, in ns.
    #[inline]
    pub(super) fn moved(&mut self, now: u64) {
        self.moved_at = now;
    }

    /// Returns the time since which the oldest chain in flight could have been executed, in ns: it was posted, and
    /// nothing before it was in its way. `None` if nothing is in flight.
    pub(super) fn stands_since(&self) -> Option<u64> {
        self.chains.front().map(|oldest| oldest.at.max(self.moved_at))
    }

    /// Yields the chains in flight, oldest first.
    pub(super) fn keys(&self) -> impl Iterator<Item = SlotKey> {
        self.chains.iter().map(|posted| posted.key)
    }

    /// Notes that the last request of chain `number` came back as an error.
    pub(super) fn flushed(&mut self, number: u64) {
        self.is_drained |= self.completed_by(number) == self.chains.len() && !self.chains.is_empty();
    }

    /// Tells whether nothing more comes back, once the queue pair is broken.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained || self.chains.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::chain::Chain;
    use crate::clock::Clock;
    use crate::engine::{Device, Engine, Slots};
    use crate::pointer::ServerId;
    use crate::verbs::Capabilities;

    struct Idle;

    impl Device for Idle {
        type Host = Clock;

        fn capabilities(&self) -> &Capabilities {
            &crate::mapped::MappedDevice::EMBEDDED
        }

        fn post(&mut self, _: SlotKey, _: &Chain) {}

        fn poll(&mut self, _: &mut Slots) -> usize {
            0
        }
    }

    fn push(queue: &mut SendQueue, key: SlotKey, requests: u32, at: u64) {
        let first_request = queue.next_request();
        queue.push(Posted { key, requests, first_request, at, first_place: 0, is_whole: true });
    }

    fn keys<const N: usize>() -> [SlotKey; N] {
        let mut engine = Engine::new(Idle, 1, NonZero::new(N).unwrap());
        std::array::from_fn(|_| engine.submit(Chain::new(ServerId(0))))
    }

    #[test]
    fn the_send_queue_never_overflows() {
        let mut queue = SendQueue::new(8);
        let [a, b, c] = keys();
        push(&mut queue, a, 3, 0);
        push(&mut queue, b, 5, 0);
        assert!(!queue.fits(1));
        assert_eq!(queue.pop().map(|posted| posted.key), Some(a));
        assert!(queue.fits(3) && !queue.fits(4));
        push(&mut queue, c, 3, 9);
        let last = [queue.pop(), queue.pop(), queue.pop()];
        assert_eq!(last[0].map(|posted| (posted.key, posted.first_request)), Some((b, 3)));
        assert_eq!(
            last[1],
            Some(Posted { key: c, requests: 3, first_request: 8, at: 9, first_place: 0, is_whole: true })
        );
        assert!(last[2].is_none() && queue.fits(8) && !queue.fits(9));
    }

    #[test]
    #[should_panic(expected = "no room")]
    fn refuses_what_does_not_fit() {
        let [a, b] = keys();
        let mut queue = SendQueue::new(4);
        push(&mut queue, a, 3, 0);
        push(&mut queue, b, 2, 0);
    }

    #[test]
    fn completions_are_found_across_the_wrap_and_stale_ones_are_none() {
        let keys: [SlotKey; 6] = keys();
        for start in [0, 5, Tag::NUMBER_MASK - 2, Tag::NUMBER_MASK] {
            let mut queue = SendQueue::new(64);
            queue.head = start;
            let mut numbers = Vec::new();
            for key in keys {
                numbers.push(queue.next_number());
                push(&mut queue, key, 2, 0);
            }
            for (i, &number) in numbers.iter().enumerate() {
                assert_eq!(queue.completed_by(Tag::decode(number << 16).number), i + 1);
            }
            queue.pop();
            assert_eq!(queue.completed_by(numbers[0]), 0, "it was complete before");
            assert_eq!(queue.completed_by(numbers[1]), 1);
            assert_eq!(queue.completed_by(queue.next_number()), 0, "it was not posted");
            assert_eq!(queue.completed_by(start.wrapping_sub(1) & Tag::NUMBER_MASK), 0);
        }
    }

    #[test]
    fn stands_since_the_oldest_chain_could_have_been_executed() {
        let [a, b] = keys();
        let mut queue = SendQueue::new(64);
        assert_eq!(queue.stands_since(), None);
        push(&mut queue, a, 1, 100);
        push(&mut queue, b, 1, 120);
        assert_eq!(queue.stands_since(), Some(100));
        queue.pop();
        queue.moved(500);
        assert_eq!(queue.stands_since(), Some(500), "it had to wait for the one before");
        queue.pop();
        assert_eq!(queue.stands_since(), None);
        push(&mut queue, a, 1, 900);
        assert_eq!(queue.stands_since(), Some(900));
    }

    #[test]
    fn is_drained_when_the_newest_chain_has_come_back() {
        let [a, b] = keys();
        let mut queue = SendQueue::new(64);
        assert!(queue.is_drained());
        push(&mut queue, a, 1, 0);
        let first = queue.next_number() - 1;
        push(&mut queue, b, 1, 0);
        queue.flushed(first);
        assert!(!queue.is_drained());
        queue.flushed(first + 7);
        assert!(!queue.is_drained(), "a stale completion drains nothing");
        queue.flushed(first + 1);
        assert!(queue.is_drained());
        while queue.pop().is_some() {}
        push(&mut queue, a, 1, 0);
        assert!(!queue.is_drained());
    }
}
