//! The decisions at a lock's home: which client of this compute node holds it, which ones wait, which is next, and
//! whether the next one gets the global lock with it. A pure state machine: events in, at most one [`Action`] out. It
//! knows no verbs, no messages and no time.
//!
//! ```text
//!             request                      release(not kept), none waiting
//!   free ───────────────────> held ─────────────────────────────────────────> free
//!                             │  ^  release, clients wait: the first of them holds
//!          release(kept),     v  │
//!          none waiting    unlocking ──── unlocked, none waiting ────────────> free
//! ```
//!
//! Invariants: exactly one client holds a lock of the table, or the janitor does; waiters are served in the order in
//! which they came; a lock that is neither held nor waited for takes no memory. `depth` counts consecutive hand-overs
//! since the last CAS; whether one more is allowed is the holder's decision ([`passes_on`]), taken before it posts its
//! write-back.

use std::collections::hash_map::Entry;

use farwood_runtime::ShardId;
use rustc_hash::FxHashMap;

use crate::message::{Grant, Release};
use crate::wait_list::{WaitList, Waiters};
use crate::word::Claim;

/// An acquisition: the shard of its client and its token there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WaiterId {
    pub(crate) shard: ShardId,
    pub(crate) token: u32,
}

/// The home's reaction to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Action {
    Nothing,
    /// Tell `to` that it holds the lock now.
    Grant {
        to: WaiterId,
        grant: Grant,
    },
    /// Tell the holder that another client waits.
    Hint {
        to: WaiterId,
    },
    /// Tell `to` that it waits no longer.
    Cancelled {
        to: WaiterId,
    },
    /// Clear the global word, which was kept under that claim, then report [`Home::unlocked`].
    Unlock {
        kept: Claim,
    },
}

/// Tells whether a holder leaves the global word taken for the next.
///
/// The limit keeps clients of other compute nodes from starving: they can win the word only when it is cleared.
pub(crate) fn passes_on(hinted: bool, depth: u8, handovers_max: u8) -> bool {
    hinted && depth < handovers_max
}

/// The locks at home on one shard that are held or waited for. Keys are addresses of lock words.
#[derive(Clone, Default, Debug)]
pub(crate) struct Home {
    locks: FxHashMap<u64, Lock>,
    /// The waiters of all locks.
    waiters: Waiters<WaiterId>,
}

#[derive(Clone, Debug)]
struct Lock {
    holder: Holder,
    depth: u8,
    /// True if the holder was told that another client waits.
    hinted: bool,
    queue: WaitList,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Client(WaiterId),
    /// The home itself, while its janitor clears a word that was kept for a cancelled waiter.
    Janitor,
}

impl Home {
    /// Admits a client that wants the lock.
    #[inline]
    pub(crate) fn request(&mut self, key: u64, client: WaiterId) -> Action {
        match self.locks.entry(key) {
            Entry::Vacant(free) => {
                let holder = Holder::Client(client);
                free.insert(Lock { holder, depth: 0, hinted: false, queue: WaitList::EMPTY });
                Action::Grant { to: client, grant: Grant::default() }
            }
            Entry::Occupied(mut taken) => {
                let lock = taken.get_mut();
                lock.queue.push(&mut self.waiters, client);
                match lock.holder {
                    Holder::Client(to) if !lock.hinted => {
                        lock.hinted = true;
                        Action::Hint { to }
                    }
                    _ => Action::Nothing,
                }
            }
        }
    }

    /// Takes the lock back from its holder, whose chain has completed.
    #[inline]
    pub(crate) fn release(&mut self, key: u64, client: WaiterId, release: Release) -> Action {
        let Entry::Occupied(mut taken) = self.locks.entry(key) else {
            panic!("released a lock that is not held")
        };
        let lock = taken.get_mut();
        assert_eq!(lock.holder, Holder::Client(client), "a lock is released by its holder");
        match (lock.queue.pop(&mut self.waiters), release.kept) {
            (Some(to), kept) => {
                let used = u8::from(!release.unused);
                let depth = if kept.is_some() { lock.depth.saturating_add(used) } else { 0 };
                lock.grant(to, kept, depth)
            }
            // It was kept for a waiter that has been cancelled since.
            (None, Some(kept)) => {
                lock.holder = Holder::Janitor;
                Action::Unlock { kept }
            }
            (None, None) => {
                taken.remove();
                Action::Nothing
            }
        }
    }

    /// Removes a waiter that wants the lock no more. If it is not in the queue, the lock was granted to it in the
    /// meantime: it will find that out by itself and release.
    pub(crate) fn cancel(&mut self, key: u64, client: WaiterId) -> Action {
        let Home { locks, waiters } = self;
        let leave = |lock: &mut Lock| lock.queue.retain(waiters, |waiter| *waiter != client);
        if locks.get_mut(&key).is_some_and(leave) {
            Action::Cancelled { to: client }
        } else {
            Action::Nothing
        }
    }

    /// Goes on after the janitor has cleared the global word.
    pub(crate) fn unlocked(&mut self, key: u64) -> Action {
        let Entry::Occupied(mut taken) = self.locks.entry(key) else {
            panic!("unlocked a lock that is not held")
        };
        let lock = taken.get_mut();
        assert_eq!(lock.holder, Holder::Janitor, "only the janitor reports unlocked");
        match lock.queue.pop(&mut self.waiters) {
            Some(to) => lock.grant(to, None, 0),
            None => {
                taken.remove();
                Action::Nothing
            }
        }
    }

    /// Counts the locks that are held or waited for.
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Counts the bytes that the table takes: they grow with the largest number of concurrent acquisitions, not with
    /// locks.
    pub(crate) fn bytes(&self) -> usize {
        // One control byte per bucket, and an eighth of the buckets stays free.
        let bucket_bytes = size_of::<(u64, Lock)>() + 1;
        self.locks.capacity() * bucket_bytes * 8 / 7 + self.waiters.bytes()
    }
}

impl Lock {
    #[inline]
    fn grant(&mut self, to: WaiterId, kept: Option<Claim>, depth: u8) -> Action {
        let hinted = !self.queue.is_empty();
        self.holder = Holder::Client(to);
        self.depth = depth;
        self.hinted = hinted;
        Action::Grant { to, grant: Grant { kept, depth, hinted } }
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(test)]
mod tests;
