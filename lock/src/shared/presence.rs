//! The presence of one shard at the locks that it shares: whether its bit is there, how many of its clients rely on
//! that, which of them (or the janitor) is about to change it, and which ones wait. A pure state machine: it knows no
//! verbs and no time.
//!
//! ```text
//!             arrive: leads              entered                  depart, the last
//!   no entry ──────────────────> Led ──────────────> Present ──────────────────────> Led
//!                                │ ^                   │  ^ arrive: joins
//!            lay down, cleared   │ │ lay down, a       └──┘
//!   no entry <───────────────────┘ └─ client waits: leads
//!                                │ ^
//!            lay down, not known v │ arrive, pick up: leads
//!                              Abandoned
//! ```
//!
//! Invariants: one party at most leads, and only it changes the bit, with one chain at a time. The bit is set, and
//! stays, while the shard is present. Clients wait only while another one leads, or the shard is about to leave.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::wait_list::{WaitList, Waiters};

/// A leader's knowledge of the shard's bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Own {
    Clear,
    Set,
    /// A chain that changed it has failed.
    Unknown,
}

/// The part that a client has in its shard's presence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// It changes the bit for all of them.
    Lead(Own),
    /// It is counted: the bit is set.
    Join,
}

/// The next chain of a leader that wants to enter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// Set the bit, and read the node behind it.
    Enter,
    /// Read the lock's words.
    Look,
    /// Clear the bit.
    Retreat,
    /// None: the shard is present.
    Stay,
}

/// Decides what a leader does that knows this of its bit, and has seen last whether the lock was taken by a client that
/// wants it alone.
pub(crate) fn next_move(own: Own, taken: bool) -> Move {
    match (own, taken) {
        (Own::Clear, false) => Move::Enter,
        (Own::Clear, true) | (Own::Unknown, _) => Move::Look,
        (Own::Set, true) => Move::Retreat,
        (Own::Set, false) => Move::Stay,
    }
}

/// The locks that a shard shares, or tries to. Keys are addresses of lock words.
#[derive(Clone, Default, Debug)]
pub(crate) struct Presences {
    locks: FxHashMap<u64, Presence>,
    /// Clients that wait at any of them, by their tokens.
    waiters: Waiters<u32>,
}

#[derive(Clone, Debug)]
struct Presence {
    state: State,
    queue: WaitList,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// A client, or the janitor, changes the bit.
    Led,
    /// The bit is set, and so many clients rely on it. None joins them once one has seen that another client wants the
    /// lock alone.
    Present { users: u32, is_closing: bool },
    /// The janitor could not find out what became of the bit, and looks again later.
    Abandoned,
}

impl Presences {
    /// Admits a client; `None` if it has to wait ([`Presences::wait`]).
    #[inline]
    pub(crate) fn arrive(&mut self, key: u64) -> Option<Part> {
        match self.locks.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Presence { state: State::Led, queue: WaitList::EMPTY });
                Some(Part::Lead(Own::Clear))
            }
            Entry::Occupied(mut taken) => match &mut taken.get_mut().state {
                State::Present { users, is_closing: false } => {
                    *users += 1;
                    Some(Part::Join)
                }
                abandoned @ State::Abandoned => {
                    *abandoned = State::Led;
                    Some(Part::Lead(Own::Unknown))
                }
                State::Led | State::Present { .. } => None,
            },
        }
    }

    /// Adds a client that has to wait.
    pub(crate) fn wait(&mut self, key: u64, token: u32) {
        let Presences { locks, waiters } = self;
        let presence = locks.get_mut(&key).expect("a client waits for others");
        presence.queue.push(waiters, token);
    }

    /// Removes a client that waits no longer.
    pub(crate) fn leave_queue(&mut self, key: u64, token: u32) {
        let Presences { locks, waiters } = self;
        let presence = locks.get_mut(&key).expect("it has waited there");
        assert!(presence.queue.retain(waiters, |waiter| *waiter != token), "it has waited there");
    }

    /// Makes the shard present, with the leader as the first client that relies on it. Those that wait are to be told
    /// that they have joined: [`Presences::next_joiner`].
    #[inline]
    pub(crate) fn entered(&mut self, key: u64) {
        let presence = self.led(key);
        presence.state = State::Present { users: 1, is_closing: false };
    }

    /// Lets the client join that has waited longest, if any has.
    #[inline]
    pub(crate) fn next_joiner(&mut self, key: u64) -> Option<u32> {
        let Presences { locks, waiters } = self;
        let presence = locks.get_mut(&key)?;
        let State::Present { users, is_closing: false } = &mut presence.state else { return None };
        let token = presence.queue.pop(waiters)?;
        *users += 1;
        Some(token)
    }

    /// Notes that a client wants the lock alone: no others join.
    pub(crate) fn close(&mut self, key: u64) {
        if let Some(Presence { state: State::Present { is_closing, .. }, .. }) = self.locks.get_mut(&key) {
            *is_closing = true;
        }
    }

    /// Ends the part of a client that has joined, or entered. Yields whether it was the last: then it leads, and clears
    /// the bit or leaves that to the janitor.
    #[inline]
    pub(crate) fn depart(&mut self, key: u64) -> bool {
        let presence = self.locks.get_mut(&key).expect("the shard is present");
        let State::Present { users, .. } = &mut presence.state else { panic!("the shard is present") };
        *users -= 1;
        let is_last = *users == 0;
        if is_last {
            presence.state = State::Led;
        }
        is_last
    }

    /// Tells whether only one client is counted.
    #[inline]
    pub(crate) fn is_last(&self, key: u64) -> bool {
        matches!(self.locks.get(&key), Some(Presence { state: State::Present { users: 1, .. }, .. }))
    }

    /// Ends the lead. Yields the client that leads from now on, to be told so.
    #[inline]
    pub(crate) fn lay_down(&mut self, key: u64, own: Own) -> Option<u32> {
        let Presences { locks, waiters } = self;
        let Entry::Occupied(mut led) = locks.entry(key) else { panic!("there is a leader") };
        assert_eq!(led.get().state, State::Led, "there is a leader");
        let next = led.get_mut().queue.pop(waiters);
        match (next, own) {
            (Some(_), _) => {}
            (None, Own::Clear) => _ = led.remove(),
            (None, Own::Set | Own::Unknown) => led.get_mut().state = State::Abandoned,
        }
        next
    }

    /// Takes the lead of a lock whose bit the janitor has not settled; yields whether no client has since.
    pub(crate) fn pick_up(&mut self, key: u64) -> bool {
        match self.locks.get_mut(&key) {
            Some(presence) if presence.state == State::Abandoned => {
                presence.state = State::Led;
                true
            }
            _ => false,
        }
    }

    /// Counts the locks at which the shard is, may be, or is about to be.
    pub(crate) fn len(&self) -> usize {
        self.locks.len()
    }

    /// Counts the bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        let bucket_bytes = size_of::<(u64, Presence)>() + 1;
        self.locks.capacity() * bucket_bytes * 8 / 7 + self.waiters.bytes()
    }

    fn led(&mut self, key: u64) -> &mut Presence {
        let presence = self.locks.get_mut(&key).expect("there is a leader");
        assert_eq!(presence.state, State::Led, "there is a leader");
        presence
    }
}

#[cfg(test)]
mod exhaustive;
