//! Keys that the run adds: the number of each new one, and which of them all clients may count on.
//!
//! Invariants: no two clients get the same number, without asking each other (shard s of S adds the keys `loaded + s,
//! loaded + s + S, ...`); a number below a shard's acknowledged count was inserted before any client reads of it here,
//! so a get of it must find it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys added so far, as far as all shards know.
pub(crate) struct Frontier {
    loaded: u64,
    acknowledged: Box<[Acknowledged]>,
}

/// A count on cache lines of its own (two: processors fetch them in pairs), since one shard writes what the others
/// read.
#[repr(align(128))]
struct Acknowledged(AtomicU64);

impl Frontier {
    /// Makes a frontier to whose `loaded` keys none of `shards` shards has added any.
    pub(crate) fn new(loaded: u64, shards: usize) -> Self {
        let acknowledged = (0..shards).map(|_| Acknowledged(AtomicU64::new(0))).collect();
        Frontier { loaded, acknowledged }
    }

    /// Returns the number of the key at `rank` in order of age, 0 for the newest: the shards' newest keys in turn,
    /// below them the loaded ones.
    #[inline]
    pub(crate) fn latest(&self, rank: u64) -> u64 {
        let shards = self.acknowledged.len() as u64;
        let (depth, shard) = (rank / shards, rank % shards);
        let added = self.acknowledged[shard as usize].0.load(Ordering::Acquire);
        if depth < added {
            return self.number(shard, added - 1 - depth);
        }
        let rank_loaded = (depth - added) * shards + shard;
        self.loaded.saturating_sub(1 + rank_loaded)
    }

    fn number(&self, shard: u64, ticket: u64) -> u64 {
        self.loaded + ticket * self.acknowledged.len() as u64 + shard
    }
}

/// One shard's part of the [`Frontier`].
pub(crate) struct ShardFrontier {
    shared: Arc<Frontier>,
    shard: usize,
    taken: Cell<u64>,
    /// Tickets from the acknowledged count on: true if the key is inserted.
    pending: RefCell<VecDeque<bool>>,
}

/// A new key's ticket within its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl ShardFrontier {
    /// Makes the part of shard number `shard`. There is one per shard for the whole run.
    pub(crate) fn new(shared: Arc<Frontier>, shard: usize) -> Self {
        ShardFrontier { shared, shard, taken: Cell::new(0), pending: RefCell::default() }
    }

    /// Returns the frontier of all shards.
    pub(crate) fn shared(&self) -> &Frontier {
        &self.shared
    }

    /// Takes an unused key: its number, and the ticket to acknowledge it with.
    pub(crate) fn take(&self) -> (Ticket, u64) {
        let ticket = self.taken.replace(self.taken.get() + 1);
        self.pending.borrow_mut().push_back(false);
        (Ticket(ticket), self.shared.number(self.shard as u64, ticket))
    }

    /// Notes that the key of that ticket is in the index.
    pub(crate) fn acknowledge(&self, ticket: Ticket) {
        let mut pending = self.pending.borrow_mut();
        let mut done = self.taken.get() - pending.len() as u64;
        pending[(ticket.0 - done) as usize] = true;
        let before = done;
        while pending.front() == Some(&true) {
            pending.pop_front();
            done += 1;
        }
        if done > before {
            self.shared.acknowledged[self.shard].0.store(done, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_unique_over_the_shards() {
        let shared = Arc::new(Frontier::new(10, 3));
        let shards: Vec<_> = (0..3).map(|s| ShardFrontier::new(shared.clone(), s)).collect();
        let mut numbers = HashSet::new();
        for round in 0..100 {
            for shard in &shards[round % 3..] {
                let (_, number) = shard.take();
                assert!(number >= 10 && numbers.insert(number));
            }
        }
    }

    #[test]
    fn only_acknowledged_keys_are_latest() {
        let shared = Arc::new(Frontier::new(100, 2));
        let shard = ShardFrontier::new(shared.clone(), 0);
        assert_eq!((shared.latest(0), shared.latest(99), shared.latest(1000)), (99, 0, 0));
        let (first, _) = shard.take();
        let (second, number_second) = shard.take();
        shard.acknowledge(second);
        assert_eq!(shared.latest(0), 99, "the first one is still on its way");
        shard.acknowledge(first);
        assert_eq!(shared.latest(0), number_second);
        assert_eq!(shared.latest(2), 100);
        assert_eq!(shared.latest(1), 98, "shard 1 has added nothing");
    }

    #[test]
    fn latest_reaches_every_loaded_key_once() {
        let shared = Frontier::new(64, 4);
        let seen: HashSet<u64> = (0..64).map(|rank| shared.latest(rank)).collect();
        assert_eq!(seen.len(), 64);
    }
}
