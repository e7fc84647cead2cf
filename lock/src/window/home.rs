//! The home's half of windows: which keys have one open, which clients wait for its end, which of them leads the next,
//! and which join it. A pure state machine like [`crate::handover`]: it knows no verbs, no messages, no values and no
//! time.
//!
//! ```text
//!              open               finish or fail, none waiting
//!   no entry ──────────> window ────────────────────────────────> no entry
//!                         │  ^
//!                         v  │ finish or fail, clients wait: a leader is chosen, those that fit join
//! ```
//!
//! The waiters are a list in the order in which they came. A client that joined stays in it, marked, until the window
//! has finished: so a window that fails gives every client its place back. The leader is in no list.

use std::collections::hash_map::Entry;

use farwood_runtime::ShardId;
use rustc_hash::FxHashMap;

use super::config::Access;
use super::key::KeyId;
use crate::handover::WaiterId;
use crate::wait_list::{WaitList, Waiters};

/// The home's reaction to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Action {
    Nothing,
    /// A window has started: tell `to` that it leads, and whether it has readers with it.
    Lead {
        to: WaiterId,
        readers: bool,
    },
    /// Tell `to` that it waits no longer.
    Cancelled {
        to: WaiterId,
    },
}

/// The keys at home on one shard that have a window.
#[derive(Clone, Default, Debug)]
pub(crate) struct Home {
    windows: FxHashMap<KeyId, Window>,
    /// Clients that wait for the windows of all keys.
    waiters: Waiters<Waiter>,
}

#[derive(Clone, Debug)]
struct Window {
    /// The shard of its leader.
    leader: ShardId,
    waiting: WaitList,
}

#[derive(Clone, Debug)]
struct Waiter {
    client: WaiterId,
    access: Access,
    /// True if it is in the group of the open window: decided anew at the start of each.
    joined: bool,
}

impl Home {
    /// Admits a client on shard `leader` that wants the key; tells whether it leads now: if no window was open it does,
    /// alone.
    #[inline]
    pub(crate) fn open(&mut self, key: KeyId, leader: ShardId) -> bool {
        match self.windows.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Window { leader, waiting: WaitList::EMPTY });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Adds a client that waits for the open window to end.
    pub(crate) fn wait(&mut self, key: KeyId, client: WaiterId, access: Access) {
        let window = self.windows.get_mut(&key).expect("a window is open");
        window.waiting.push(&mut self.waiters, Waiter { client, access, joined: false });
    }

    /// Ends a window whose leader, on shard `leader`, is done: `answer` gets each client of its group.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        key: KeyId,
        leader: ShardId,
        mut answer: impl FnMut(WaiterId, Access),
    ) -> Action {
        self.end(key, leader, |waiter| {
            if waiter.joined {
                answer(waiter.client, waiter.access);
            }
            !waiter.joined
        })
    }

    /// Ends a window whose leader, on shard `leader`, has given up: its group waits on.
    pub(crate) fn fail(&mut self, key: KeyId, leader: ShardId) -> Action {
        self.end(key, leader, |_| true)
    }

    /// Removes a waiter that wants nothing any more. If it is not in the list, it was told something in the meantime.
    pub(crate) fn cancel(&mut self, key: KeyId, client: WaiterId) -> Action {
        let Home { windows, waiters } = self;
        let leave = |window: &mut Window| window.waiting.retain(waiters, |waiter| waiter.client != client);
        if windows.get_mut(&key).is_some_and(leave) {
            Action::Cancelled { to: client }
        } else {
            Action::Nothing
        }
    }

    /// Counts the keys that have a window.
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// Counts the bytes that it takes: they grow with the largest number of concurrent clients, not with keys.
    pub(crate) fn bytes(&self) -> usize {
        // One control byte per bucket, and an eighth of the buckets stays free.
        let bucket_bytes = size_of::<(KeyId, Window)>() + 1;
        self.windows.capacity() * bucket_bytes * 8 / 7 + self.waiters.bytes()
    }

    /// Ends the window of `key`: waiters for which `waits` is true wait on, and the next window starts if there are
    /// any.
    #[inline]
    fn end(&mut self, key: KeyId, leader: ShardId, mut waits: impl FnMut(&Waiter) -> bool) -> Action {
        let Entry::Occupied(mut open) = self.windows.entry(key) else {
            panic!("ended a window that no client leads")
        };
        let window = open.get_mut();
        assert_eq!(window.leader, leader, "a window is ended by its leader");
        if !window.waiting.is_empty() {
            window.waiting.retain(&mut self.waiters, |waiter| waits(waiter));
            if let Some((to, readers)) = start(&mut window.waiting, &mut self.waiters) {
                window.leader = to.shard;
                return Action::Lead { to, readers };
            }
        }
        open.remove();
        Action::Nothing
    }
}

/// Starts a window among the waiters: takes out its leader, yields it and whether a reader has joined. All readers join
/// and all writers of the first writer's kind, of which the last leads: its value is the one that remains. Without
/// writers the first reader leads.
fn start(waiting: &mut WaitList, waiters: &mut Waiters<Waiter>) -> Option<(WaiterId, bool)> {
    let mut leader = waiting.iter(waiters).next()?.client;
    let mut kind = None;
    for waiter in waiting.iter(waiters) {
        if let Access::Write(_) = waiter.access
            && kind.is_none_or(|kind| kind == waiter.access)
        {
            (kind, leader) = (Some(waiter.access), waiter.client);
        }
    }
    let mut readers = false;
    waiting.retain(waiters, |waiter| {
        let stays = waiter.client != leader;
        waiter.joined = waiter.access == Access::Read || Some(waiter.access) == kind;
        readers |= stays && waiter.access == Access::Read;
        stays
    });
    Some((leader, readers))
}

#[cfg(test)]
impl Home {
    /// Makes the mistake of the paper, for the negative control: every waiter joins the window that is open already.
    pub(super) fn join_open_window(&mut self) {
        self.waiters.iter_mut().for_each(|waiter| waiter.joined = true);
    }
}

#[cfg(test)]
mod tests;
