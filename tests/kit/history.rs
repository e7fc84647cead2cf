//! Whether what clients saw of one key is linearizable, for keys that are only put and read and whose written
//! values are all different: then the check is complete and takes a sort (Gibbons and Korach, "Testing shared
//! memories", 1997).
//!
//! All operations on one value form a zone, from the first of their ends to the last of their starts. If a zone is
//! forward (the end comes before the start), the register must have held the value throughout it. Linearizable
//! means: no two forward zones overlap, no backward zone lies inside a forward one, and nothing is read before its
//! write began.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// What orders operations of different shards: `end < start` is "before", as all of them see it.
#[derive(Default)]
pub(crate) struct Ticks(AtomicU64);

impl Ticks {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// A finished operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) write: bool,
    pub(crate) value: u64,
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    first_end: u64,
    last_start: u64,
}

impl Zone {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_start
    }

    fn span(&self) -> (u64, u64) {
        (self.first_end.min(self.last_start), self.first_end.max(self.last_start))
    }
}

/// Checks one key's history. Its first value must be written by an event as well.
pub(crate) fn check(history: &[Event]) -> Result<(), String> {
    let mut writes = BTreeMap::new();
    for event in history.iter().filter(|event| event.write) {
        if let Some(other) = writes.insert(event.value, *event) {
            return Err(format!(
                "the value {} is written twice, the check needs different ones: {other:?}",
                event.value
            ));
        }
    }
    let mut zones: BTreeMap<u64, Zone> = BTreeMap::new();
    for event in history {
        let Some(write) = writes.get(&event.value) else {
            return Err(format!("{event:?} read a value that nobody wrote"));
        };
        if event.end < write.start {
            return Err(format!("{event:?} read a value before {write:?} began"));
        }
        let zone = zones.entry(event.value).or_insert(Zone {
            value: event.value,
            first_end: u64::MAX,
            last_start: 0,
        });
        zone.first_end = zone.first_end.min(event.end);
        zone.last_start = zone.last_start.max(event.start);
    }
    let (mut forward, backward): (Vec<_>, Vec<_>) = zones.into_values().partition(Zone::is_forward);
    forward.sort_by_key(Zone::span);
    for pair in forward.windows(2) {
        if pair[0].span().1 > pair[1].span().0 {
            return Err(format!("both values were current at once, in turns: {:?} {:?}", pair[0], pair[1]));
        }
    }
    for inner in backward {
        let (from, to) = inner.span();
        let before = forward.partition_point(|zone| zone.span().0 < from);
        if let Some(outer) = forward[..before].last().filter(|zone| to < zone.span().1) {
            return Err(format!(
                "{} was current inside the time of {}: {inner:?} {outer:?}",
                inner.value, outer.value
            ));
        }
    }
    Ok(())
}
