//! Read delegation and write combining (SMART section 4.2) for any index: an operation on one key, done by its client
//! or by another one for it. Knows no tree; the windows are `farwood_lock`'s.
//!
//! An operation whose key nobody else of the compute node is at works alone, without a window, and most do: a window
//! whose home is another shard takes two messages (measured: uniform gets on two shards 0.49 -> 0.28 Mops/s each if
//! all came to windows). Whether somebody is there, counters tell, by a hash of the key. It is only advice: whoever
//! works alone is right anyway, and the second one to come leads a window for the third.
//!
//! Counters that all shards change are lines that travel between cores with every operation. So a shard counts its own
//! operations by itself, and those that come to a key often also where other shards see it: a key that is rare on a
//! shard is rarely on another one's hands at the same moment.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farwood_lock::window::{Access, Entered, LeaderGuard, Outcome, WindowConfig, WindowTable};
use farwood_runtime::{Meter, Port, Verbs};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::intent::Intent;
use crate::stats::SharingCounters;
use crate::value::Value;

/// Writes that may be combined: each with its own kind.
const PUT: u8 = 0;
const UPDATE: u8 = 1;

/// Counters of each kind: of some hundred clients few meet by chance.
const COUNTERS: usize = 1 << 14;

/// How many operations of a compute node are at which keys that are hot, by their hashes. Shared by its shards: 64 KiB.
#[derive(Clone)]
pub(crate) struct Crowd(Arc<[AtomicU32]>);

impl Crowd {
    pub(crate) fn new() -> Self {
        Crowd((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Memory of the counters.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Counts the operations of one shard at all keys, and how often they come to each: 32 KiB.
struct Nearby {
    /// Operations that are there now, and a count of those that came, which is halved now and then.
    keys: Box<[Cell<[u8; 2]>]>,
    /// Operations that came, halved at the same times.
    came: Cell<u32>,
}

impl Nearby {
    /// The counts are halved when this many operations came.
    const AGE: u32 = 2 * COUNTERS as u32;
    /// A key is hot if one in so many operations comes to it, and came this often.
    const HOT_ONE_IN: u32 = 2048;
    const HOT_MIN: u8 = 4;
    const MOST: u8 = u8::MAX;

    fn new() -> Self {
        Nearby { keys: (0..COUNTERS).map(|_| Cell::new([0; 2])).collect(), came: Cell::new(0) }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.keys)
    }

    /// Adds an operation at `place`; yields how many others are there, and whether the place is hot. Beyond
    /// [`Nearby::MOST`] it is not added, and must not leave.
    #[inline]
    fn join(&self, place: usize) -> (u8, bool) {
        let came = self.came.get() + 1;
        self.came.set(came);
        if came == Self::AGE {
            self.age();
        }
        let [present, heat] = self.keys[place].get();
        let heat = heat.saturating_add(1);
        self.keys[place].set([present.saturating_add(1), heat]);
        (present, heat >= Self::HOT_MIN && u32::from(heat) * Self::HOT_ONE_IN >= came)
    }

    #[inline]
    fn leave(&self, place: usize) {
        let [present, heat] = self.keys[place].get();
        self.keys[place].set([present - 1, heat]);
    }

    #[cold]
    fn age(&self) {
        self.came.set(self.came.get() / 2);
        for key in &self.keys {
            let [present, heat] = key.get();
            key.set([present, heat / 2]);
        }
    }
}

/// An operation that is counted, until it is dropped.
struct Presence<'c> {
    nearby: &'c Nearby,
    /// None if more are there than can be counted.
    place: Option<usize>,
    /// Where other shards see it, if the key is hot.
    counter: Option<&'c AtomicU32>,
    /// Whether another one was there.
    met: bool,
}

impl Drop for Presence<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.nearby.leave(place);
        }
        if let Some(counter) = self.counter {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// How an operation gets its result.
pub(crate) enum Turn<'s, V: Verbs, T> {
    /// It is another client's, too.
    Served(T),
    /// It works itself.
    Own(Work<'s, V>),
}

impl<V: Verbs, T> Turn<'_, V, T> {
    /// It works itself, and nobody can know.
    const UNSEEN: Self = Turn::Own(Work { lead: None, presence: None });
}

/// That an operation works itself. Others that wait for it go on without it if this is dropped before
/// [`Work::finish`].
pub(crate) struct Work<'s, V: Verbs> {
    lead: Option<LeaderGuard<V>>,
    #[expect(dead_code, reason = "counts until it is dropped")]
    presence: Option<Presence<'s>>,
}

impl<V: Verbs> Work<'_, V> {
    /// The operation is done: those who wait for it have its outcome.
    #[inline]
    pub(crate) fn finish(self, outcome: Outcome<'_>) {
        if let Some(lead) = self.lead {
            lead.finish(outcome);
        }
    }
}

/// The windows of one shard, unless both switches are off.
pub(crate) struct Sharing<V: Verbs>(Option<Windows<V>>);

struct Windows<V: Verbs> {
    table: WindowTable<V>,
    crowd: Crowd,
    nearby: Nearby,
    delegation: bool,
    combining: bool,
}

impl<V: Verbs> Windows<V> {
    /// Adds an operation on `key`.
    #[inline]
    fn join(&self, key: &[u8]) -> Presence<'_> {
        let place = xxh3_64_with_seed(key, 0) as usize % COUNTERS;
        let (present, hot) = self.nearby.join(place);
        let counter = hot.then(|| &self.crowd.0[place]);
        let elsewhere = counter.is_some_and(|counter| counter.fetch_add(1, Ordering::Relaxed) > 0);
        let (met, place) = (present > 0 || elsewhere, (present < Nearby::MOST).then_some(place));
        Presence { nearby: &self.nearby, place, counter, met }
    }
}

impl<V: Verbs> Sharing<V> {
    /// Once per shard, with the same configuration and the same crowd on all shards of a compute node.
    pub(crate) fn attach(verbs: V, port: Port, config: WindowConfig, crowd: &Crowd) -> Self {
        let WindowConfig { delegation, combining, .. } = config;
        Sharing((delegation || combining).then(|| Windows {
            table: WindowTable::attach(verbs, port, config),
            crowd: crowd.clone(),
            nearby: Nearby::new(),
            delegation,
            combining,
        }))
    }

    /// Begins a read of `key`; yields the value if somebody else has found or written it since this was called.
    #[inline]
    pub(crate) async fn read(&self, meter: &Meter, key: &[u8]) -> Turn<'_, V, Option<Value>> {
        let Some(windows) = self.0.as_ref().filter(|windows| windows.delegation) else { return Turn::UNSEEN };
        let presence = windows.join(key);
        if !presence.met {
            return Turn::Own(Work { lead: None, presence: Some(presence) });
        }
        let lead = match windows.table.enter(meter, key, Access::Read).await {
            Entered::Read(value) => return Turn::Served(value.map(Value::shared)),
            Entered::Led(lead) => Some(lead),
            Entered::Bypass => None,
            Entered::Written { .. } => unreachable!("readers are not told that they have written"),
        };
        Turn::Own(Work { lead, presence: Some(presence) })
    }

    /// Begins a write to `key`; yields whether it took effect if somebody else's write has overwritten it since this
    /// was called.
    #[inline]
    pub(crate) async fn write(&self, meter: &Meter, key: &[u8], intent: Intent<'_>) -> Turn<'_, V, bool> {
        let kind = match intent {
            Intent::Put(_) => PUT,
            Intent::Update(_) => UPDATE,
            // Of several inserts one has an effect, and of several removes: they are no matter of the last one.
            Intent::Insert(_) | Intent::Remove => return Turn::UNSEEN,
        };
        let Some(windows) = self.0.as_ref().filter(|windows| windows.combining) else { return Turn::UNSEEN };
        let presence = windows.join(key);
        if !presence.met {
            return Turn::Own(Work { lead: None, presence: Some(presence) });
        }
        let lead = match windows.table.enter(meter, key, Access::Write(kind)).await {
            Entered::Written { applied } => return Turn::Served(applied),
            Entered::Led(lead) => Some(lead),
            Entered::Bypass => None,
            Entered::Read(_) => unreachable!("writers are not told what was read"),
        };
        Turn::Own(Work { lead, presence: Some(presence) })
    }

    /// What was shared so far.
    pub(crate) fn counters(&self) -> SharingCounters {
        let stats = self.0.as_ref().map(|windows| windows.table.stats()).unwrap_or_default();
        SharingCounters { reads_delegated: stats.reads_delegated, writes_combined: stats.writes_combined }
    }

    /// Memory of this shard's windows.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |windows| windows.table.bytes() + windows.nearby.bytes())
    }

    /// Clients that wait and windows that are open: 0 at rest.
    pub(crate) fn in_use(&self) -> usize {
        self.0.as_ref().map_or(0, |windows| {
            let (waiting, open) = windows.table.in_use();
            waiting + open
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_meet_are_told() {
        let nearby = Nearby::new();
        assert_eq!([7, 8, 7].map(|place| nearby.join(place).0), [0, 0, 1]);
        nearby.leave(7);
        assert_eq!(nearby.join(7).0, 1);
        nearby.leave(7);
        nearby.leave(7);
        assert_eq!(nearby.join(7).0, 0);
    }

    /// More than a byte counts: those beyond are not counted, and do not leave.
    #[test]
    fn a_crowd_without_end() {
        let nearby = Nearby::new();
        let counted = (0..1000).filter(|_| nearby.join(7).0 < Nearby::MOST).count();
        (0..counted).for_each(|_| nearby.leave(7));
        assert_eq!((counted, nearby.join(7).0), (255, 0));
    }

    /// One operation in 500 comes to place 7, and the others anywhere.
    #[test]
    fn only_keys_that_many_come_to_are_hot() {
        let nearby = Nearby::new();
        let (mut hot, mut others) = ([0; 2], 0);
        for n in 0..1_000_000usize {
            if n.is_multiple_of(500) {
                hot[usize::from(nearby.join(7).1)] += 1;
                nearby.leave(7);
            }
            let place = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
            others += usize::from(nearby.join(place).1 && place != 7);
            nearby.leave(place);
        }
        assert!(hot[1] > 1900 && others < 1000, "hot {hot:?}, others {others}");
    }
}
