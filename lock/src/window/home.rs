//! The home's half of windows: which keys have one open, who waits for its end, who leads the next and who joins it. A
//! pure state machine like [`crate::handover`]: it knows no verbs, no messages, no values and no time.
//!
//! ```text
//!              open               finish or fail, nobody waits
//!   no entry ──────────> window ────────────────────────────────> no entry
//!                         │  ^
//!                         v  │ finish or fail, somebody waits: a leader is chosen, those who fit join
//! ```
//!
//! Those who wait are a list in the order in which they came. Who joined stays in it, marked, until the window has
//! finished: so a window that fails gives everyone their place back. The leader is in no list.

use std::collections::hash_map::Entry;

use farwood_runtime::ShardId;
use rustc_hash::FxHashMap;
use slab::Slab;

use super::config::Access;
use super::key::KeyId;
use crate::handover::Party;

/// What the home has to do about an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum Action {
    Nothing,
    /// A window has started: tell `to` that it leads, and whether it has readers with it.
    Lead {
        to: Party,
        readers: bool,
    },
    /// Tell `to` that it waits no longer.
    Cancelled {
        to: Party,
    },
}

/// The keys at home on one shard that have a window.
#[derive(Clone, Default, Debug)]
pub(crate) struct Home {
    windows: FxHashMap<KeyId, Window>,
    /// Who waits for the windows of all keys; places are recycled.
    places: Slab<Place>,
}

#[derive(Clone, Debug)]
struct Window {
    /// The shard of its leader.
    leader: ShardId,
    waiting: List,
}

#[derive(Clone, Debug)]
struct Place {
    party: Party,
    access: Access,
    /// Whether it is in the group of the open window: decided anew at the start of each.
    joined: bool,
    next: u32,
}

impl Home {
    /// A client on shard `leader` wants the key. Whether it leads now: if no window was open it does, alone.
    #[inline]
    pub(crate) fn open(&mut self, key: KeyId, leader: ShardId) -> bool {
        match self.windows.entry(key) {
            Entry::Vacant(free) => {
                free.insert(Window { leader, waiting: List::EMPTY });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// A client waits for the open window to end.
    pub(crate) fn wait(&mut self, key: KeyId, party: Party, access: Access) {
        let window = self.windows.get_mut(&key).expect("a window is open");
        window.waiting.push(&mut self.places, Place { party, access, joined: false, next: END });
    }

    /// The leader, on shard `leader`, is done: `answer` gets each of its group.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        key: KeyId,
        leader: ShardId,
        mut answer: impl FnMut(Party, Access),
    ) -> Action {
        self.end(key, leader, |place| {
            if place.joined {
                answer(place.party, place.access);
            }
            !place.joined
        })
    }

    /// The leader, on shard `leader`, has given up: its group waits on.
    pub(crate) fn fail(&mut self, key: KeyId, leader: ShardId) -> Action {
        self.end(key, leader, |_| true)
    }

    /// One who waits wants nothing any more. If it is not in the list, it was told something in the meantime.
    pub(crate) fn cancel(&mut self, key: KeyId, party: Party) -> Action {
        let mut found = false;
        if let Some(window) = self.windows.get_mut(&key) {
            window.waiting.retain(&mut self.places, |_, place| {
                found |= place.party == party;
                place.party != party
            });
        }
        if found { Action::Cancelled { to: party } } else { Action::Nothing }
    }

    /// Keys that have a window.
    pub(crate) fn len(&self) -> usize {
        self.windows.len()
    }

    /// Memory that it takes: it grows with the largest number of concurrent clients, not with keys.
    pub(crate) fn bytes(&self) -> usize {
        // One control byte per bucket, and an eighth of the buckets stays free.
        let bucket_bytes = size_of::<(KeyId, Window)>() + 1;
        self.windows.capacity() * bucket_bytes * 8 / 7 + self.places.capacity() * (size_of::<Place>() + 8)
    }

    /// Ends the window of `key`: those of whom `waits` is true wait on, and the next window starts if there are any.
    #[inline]
    fn end(&mut self, key: KeyId, leader: ShardId, mut waits: impl FnMut(&Place) -> bool) -> Action {
        let Entry::Occupied(mut open) = self.windows.entry(key) else {
            panic!("ended a window that nobody leads")
        };
        let window = open.get_mut();
        assert_eq!(window.leader, leader, "a window is ended by its leader");
        if !window.waiting.is_empty() {
            window.waiting.retain(&mut self.places, |_, place| waits(place));
            if let Some((to, readers)) = window.waiting.start(&mut self.places) {
                window.leader = to.shard;
                return Action::Lead { to, readers };
            }
        }
        open.remove();
        Action::Nothing
    }
}

/// Who waits for one key, first come first: a list through the shared slab, so that it costs no allocation.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
}

const END: u32 = u32::MAX;

impl List {
    const EMPTY: List = List { head: END, tail: END };

    fn is_empty(self) -> bool {
        self.head == END
    }

    fn push(&mut self, places: &mut Slab<Place>, place: Place) {
        let at = places.insert(place) as u32;
        match self.tail {
            END => self.head = at,
            tail => places[tail as usize].next = at,
        }
        self.tail = at;
    }

    /// Starts a window among those who wait: takes out who leads it, yields it and whether a reader has joined. All
    /// readers join and all writers of the first writer's kind, of whom the last leads: its value is the one that
    /// remains. Without writers the first reader leads.
    fn start(&mut self, places: &mut Slab<Place>) -> Option<(Party, bool)> {
        let (mut kind, mut leader) = (None, self.head);
        let mut at = self.head;
        while at != END {
            let place = &places[at as usize];
            if let Access::Write(_) = place.access
                && kind.is_none_or(|kind| kind == place.access)
            {
                (kind, leader) = (Some(place.access), at);
            }
            at = place.next;
        }
        let leading = places.get(leader as usize)?.party;
        let mut readers = false;
        self.retain(places, |at, place| {
            place.joined = place.access == Access::Read || Some(place.access) == kind;
            readers |= at != leader && place.access == Access::Read;
            at != leader
        });
        Some((leading, readers))
    }

    /// Takes out those of whom `stays` is false.
    fn retain(&mut self, places: &mut Slab<Place>, mut stays: impl FnMut(u32, &mut Place) -> bool) {
        let (mut before, mut at) = (END, self.head);
        while at != END {
            let place = &mut places[at as usize];
            let next = place.next;
            if stays(at, place) {
                before = at;
            } else {
                places.remove(at as usize);
                match before {
                    END => self.head = next,
                    _ => places[before as usize].next = next,
                }
                if self.tail == at {
                    self.tail = before;
                }
            }
            at = next;
        }
    }
}

#[cfg(test)]
impl Home {
    /// The mistake of the paper, for the negative control: whoever waits joins the window that is open already.
    pub(super) fn join_open_window(&mut self) {
        self.places.iter_mut().for_each(|(_, place)| place.joined = true);
    }
}

#[cfg(test)]
mod tests;
