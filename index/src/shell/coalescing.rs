//! Read delegation and write combining (SMART section 4.2) for any index: an operation on one key is done by its
//! client, or by another one for it. Knows no tree; the windows are `farwood_lock`'s.
//!
//! An operation works alone, without a window, if no other operation of the compute node is at its key, and most are: a
//! window whose home is another shard takes two messages (measured: uniform gets on two shards 0.49 -> 0.28 Mops/s each
//! if all used windows). Counters by a hash of the key tell whether another operation is there. They are only advice:
//! an operation that works alone is right anyway, and the second one leads a window for the third.
//!
//! Counters that all shards change are lines that travel between cores with every operation. So a shard counts its own
//! operations by itself, and those on its hot keys also where other shards see it: a key that is rare on one shard is
//! rarely in use on another at the same moment.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use farwood_lock::window::{Access, Entered, LeaderGuard, Outcome, WindowConfig, WindowStats, WindowTable};
use farwood_runtime::{Meter, Port, Verbs};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::value::Value;
use crate::write_op::WriteOp;

/// Writes that may be combined: each with its own kind.
const PUT: u8 = 0;
const UPDATE: u8 = 1;

/// Counters of each kind: so many that few of some hundred clients meet by chance.
const COUNTERS: usize = 1 << 14;

/// Counters of a compute node's operations at hot keys, by the hashes of these. Shared by its shards: 64 KiB.
#[derive(Clone)]
pub(crate) struct InFlightSketch(Arc<[AtomicU32]>);

impl InFlightSketch {
    pub(crate) fn new() -> Self {
        InFlightSketch((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Counts the bytes of the counters.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}

/// Counters of one shard's operations at all keys, and of how often each is used: 32 KiB.
struct Nearby {
    /// Operations at a key now, and a count of those that came, which is halved now and then.
    keys: Box<[Cell<[u8; 2]>]>,
    /// Operations that came, halved at the same times.
    came: Cell<u32>,
}

impl Nearby {
    /// Operations after which the counts are halved.
    const AGE: u32 = 2 * COUNTERS as u32;
    /// A key is hot if at least one in so many operations is on it, and `HOT_MIN` were.
    const HOT_ONE_IN: u32 = 2048;
    const HOT_MIN: u8 = 4;
    const MOST: u8 = u8::MAX;

    fn new() -> Self {
        Nearby { keys: (0..COUNTERS).map(|_| Cell::new([0; 2])).collect(), came: Cell::new(0) }
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.keys)
    }

    /// Adds an operation at `place`; yields the number of others there, and whether the place is hot. Beyond
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
struct InFlightGuard<'c> {
    nearby: &'c Nearby,
    /// None if more are there than can be counted.
    place: Option<usize>,
    /// The counter that other shards see, if the key is hot.
    counter: Option<&'c AtomicU32>,
    /// True if another operation was there.
    met: bool,
}

impl Drop for InFlightGuard<'_> {
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

/// Way in which an operation gets its result.
pub(crate) enum Turn<'s, V: Verbs, T> {
    /// The result is another client's, too.
    Served(T),
    /// The operation works itself.
    Own(Work<'s, V>),
}

impl<V: Verbs, T> Turn<'_, V, T> {
    /// An operation that works itself, and is not counted.
    const UNSEEN: Self = Turn::Own(Work { lead: None, guard: None });
}

/// An operation that works itself. Others that wait for it go on without it if this is dropped before [`Work::finish`].
pub(crate) struct Work<'s, V: Verbs> {
    lead: Option<LeaderGuard<V>>,
    #[expect(dead_code, reason = "counts until it is dropped")]
    guard: Option<InFlightGuard<'s>>,
}

impl<V: Verbs> Work<'_, V> {
    /// Gives the outcome of the operation to those that wait for it.
    #[inline]
    pub(crate) fn finish(self, outcome: Outcome<'_>) {
        if let Some(lead) = self.lead {
            lead.finish(outcome);
        }
    }
}

/// The windows of one shard, unless both switches are off.
pub(crate) struct Coalescing<V: Verbs>(Option<Windows<V>>);

struct Windows<V: Verbs> {
    table: WindowTable<V>,
    sketch: InFlightSketch,
    nearby: Nearby,
    delegation: bool,
    combining: bool,
}

impl<V: Verbs> Windows<V> {
    /// Adds an operation on `key`.
    #[inline]
    fn join(&self, key: &[u8]) -> InFlightGuard<'_> {
        let place = xxh3_64_with_seed(key, 0) as usize % COUNTERS;
        let (present, hot) = self.nearby.join(place);
        let counter = hot.then(|| &self.sketch.0[place]);
        let elsewhere = counter.is_some_and(|counter| counter.fetch_add(1, Ordering::Relaxed) > 0);
        let (met, place) = (present > 0 || elsewhere, (present < Nearby::MOST).then_some(place));
        InFlightGuard { nearby: &self.nearby, place, counter, met }
    }
}

impl<V: Verbs> Coalescing<V> {
    /// Makes the windows of one shard. Call it once per shard, with the same configuration and sketch on all shards of
    /// a compute node.
    pub(crate) fn attach(verbs: V, port: Port, config: WindowConfig, sketch: &InFlightSketch) -> Self {
        let WindowConfig { delegation, combining, .. } = config;
        Coalescing((delegation || combining).then(|| Windows {
            table: WindowTable::attach(verbs, port, config),
            sketch: sketch.clone(),
            nearby: Nearby::new(),
            delegation,
            combining,
        }))
    }

    /// Begins a read of `key`; yields the value if another client has read or written it since this was called.
    #[inline]
    pub(crate) async fn read(&self, meter: &Meter, key: &[u8]) -> Turn<'_, V, Option<Value>> {
        let Some(windows) = self.0.as_ref().filter(|windows| windows.delegation) else { return Turn::UNSEEN };
        let guard = windows.join(key);
        if !guard.met {
            return Turn::Own(Work { lead: None, guard: Some(guard) });
        }
        let lead = match windows.table.enter(meter, key, Access::Read).await {
            Entered::Read(value) => return Turn::Served(value.map(Value::shared)),
            Entered::Led(lead) => Some(lead),
            Entered::Bypass => None,
            Entered::Written { .. } => unreachable!("readers are not told that they have written"),
        };
        Turn::Own(Work { lead, guard: Some(guard) })
    }

    /// Begins a write to `key`; yields whether it took effect if another client's write has overwritten it since this
    /// was called.
    #[inline]
    pub(crate) async fn write(&self, meter: &Meter, key: &[u8], op: WriteOp<'_>) -> Turn<'_, V, bool> {
        let kind = match op {
            WriteOp::Put(_) => PUT,
            WriteOp::Update(_) => UPDATE,
            // Of several inserts, or removes, only the first has an effect: the last one cannot stand for them.
            WriteOp::Insert(_) | WriteOp::Remove => return Turn::UNSEEN,
        };
        let Some(windows) = self.0.as_ref().filter(|windows| windows.combining) else { return Turn::UNSEEN };
        let guard = windows.join(key);
        if !guard.met {
            return Turn::Own(Work { lead: None, guard: Some(guard) });
        }
        let lead = match windows.table.enter(meter, key, Access::Write(kind)).await {
            Entered::Written { applied } => return Turn::Served(applied),
            Entered::Led(lead) => Some(lead),
            Entered::Bypass => None,
            Entered::Read(_) => unreachable!("writers are not told what was read"),
        };
        Turn::Own(Work { lead, guard: Some(guard) })
    }

    /// Yields the counters of operations done for others.
    pub(crate) fn stats(&self) -> WindowStats {
        self.0.as_ref().map(|windows| windows.table.stats()).unwrap_or_default()
    }

    /// Counts the bytes of this shard's windows.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |windows| windows.table.bytes() + windows.nearby.bytes())
    }

    /// Counts the clients that wait and the windows that are open: 0 at rest.
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
    fn operations_that_meet_are_told() {
        let nearby = Nearby::new();
        assert_eq!([7, 8, 7].map(|place| nearby.join(place).0), [0, 0, 1]);
        nearby.leave(7);
        assert_eq!(nearby.join(7).0, 1);
        nearby.leave(7);
        nearby.leave(7);
        assert_eq!(nearby.join(7).0, 0);
    }

    /// Operations beyond the largest byte are not counted, and do not leave.
    #[test]
    fn more_operations_than_a_byte_counts() {
        let nearby = Nearby::new();
        let counted = (0..1000).filter(|_| nearby.join(7).0 < Nearby::MOST).count();
        (0..counted).for_each(|_| nearby.leave(7));
        assert_eq!((counted, nearby.join(7).0), (255, 0));
    }

    /// One operation in 500 is at place 7, and the others anywhere.
    #[test]
    fn only_keys_of_many_operations_are_hot() {
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
