//! The event queue: what happens next, in the order of virtual time, and at one moment in the order of posting.
//!
//! Nearly all events lie a few microseconds ahead, so the queue is a wheel of one slot per nanosecond with a bitmap
//! over it; what lies beyond the wheel waits in a heap. At one moment the heap's events come first: they are the older
//! ones, for the wheel turns only forwards. It knows nothing of what events mean.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nanoseconds that the wheel spans.
const SPAN: u64 = 1 << 12;
const WORDS: usize = (SPAN / 64) as usize;
const NONE: u32 = u32::MAX;
const _: () = assert!(WORDS <= 64, "the summary is one word");

/// Events of type `T` by their time in ns.
pub(super) struct Events<T> {
    now: u64,
    /// First and last entry of each nanosecond.
    slots: Vec<(u32, u32)>,
    /// A bit per slot, and a bit per word of those.
    occupied: [u64; WORDS],
    summary: u64,
    entries: Vec<Entry<T>>,
    free: u32,
    in_wheel: usize,
    beyond: BinaryHeap<Reverse<Beyond<T>>>,
    posted: u64,
}

#[derive(Clone, Copy)]
struct Entry<T> {
    event: T,
    next: u32,
}

struct Beyond<T> {
    at: u64,
    order: u64,
    event: T,
}

impl<T> PartialEq for Beyond<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<T> Eq for Beyond<T> {}

impl<T> PartialOrd for Beyond<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Beyond<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<T: Copy> Events<T> {
    pub(super) fn new() -> Self {
        Events {
            now: 0,
            slots: vec![(NONE, NONE); SPAN as usize],
            occupied: [0; WORDS],
            summary: 0,
            entries: Vec::new(),
            free: NONE,
            in_wheel: 0,
            beyond: BinaryHeap::new(),
            posted: 0,
        }
    }

    /// Returns the time of the last event that was taken.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Lets `event` happen at `at`, or now if that is past.
    #[inline]
    pub(super) fn post(&mut self, at: u64, event: T) {
        let at = at.max(self.now);
        if at - self.now >= SPAN {
            self.posted += 1;
            self.beyond.push(Reverse(Beyond { at, order: self.posted, event }));
            return;
        }
        let entry = self.new_entry(event);
        let place = (at % SPAN) as usize;
        let (first, last) = &mut self.slots[place];
        if *first == NONE {
            *first = entry;
            self.occupied[place / 64] |= 1 << (place % 64);
            self.summary |= 1 << (place / 64);
        } else {
            self.entries[*last as usize].next = entry;
        }
        *last = entry;
        self.in_wheel += 1;
    }

    /// Takes the next event; time moves on to it.
    #[inline]
    pub(super) fn next(&mut self) -> Option<T> {
        let in_wheel = self.next_in_wheel();
        if let Some(Reverse(beyond)) = self.beyond.peek()
            && in_wheel.is_none_or(|at| beyond.at <= at)
        {
            let Reverse(beyond) = self.beyond.pop()?;
            self.now = beyond.at;
            return Some(beyond.event);
        }
        self.now = in_wheel?;
        let place = (self.now % SPAN) as usize;
        let entry = self.slots[place].0;
        let Entry { event, next } = self.entries[entry as usize];
        self.slots[place].0 = next;
        if next == NONE {
            self.occupied[place / 64] &= !(1 << (place % 64));
            if self.occupied[place / 64] == 0 {
                self.summary &= !(1 << (place / 64));
            }
        }
        self.entries[entry as usize].next = self.free;
        self.free = entry;
        self.in_wheel -= 1;
        Some(event)
    }

    fn new_entry(&mut self, event: T) -> u32 {
        if self.free == NONE {
            self.entries.push(Entry { event, next: NONE });
            return self.entries.len() as u32 - 1;
        }
        let entry = self.free;
        self.free = self.entries[entry as usize].next;
        self.entries[entry as usize] = Entry { event, next: NONE };
        entry
    }

    /// Returns the time of the next event in the wheel.
    #[inline]
    fn next_in_wheel(&self) -> Option<u64> {
        if self.in_wheel == 0 {
            return None;
        }
        let from = (self.now % SPAN) as usize;
        let place =
            self.first_from(from).or_else(|| self.first_from(0)).expect("the wheel is not empty") as u64;
        Some(self.now + (place + SPAN - from as u64) % SPAN)
    }

    /// Finds the first occupied slot at or after `from`.
    #[inline]
    fn first_from(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let bits = self.occupied[word] & (!0 << (from % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let words = if word + 1 < WORDS { self.summary & (!0 << (word + 1)) } else { 0 };
        if words == 0 {
            return None;
        }
        let word = words.trailing_zeros() as usize;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    #[test]
    fn events_come_by_time_and_then_by_posting() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut events = Events::new();
        let mut expected = std::collections::BTreeMap::new();
        let mut order = 0u64;
        for round in 0..50_000 {
            for _ in 0..rng.random_range(0..3) {
                let ahead = match rng.random_range(0..4) {
                    0 => rng.random_range(0..4),
                    1 => rng.random_range(0..1000),
                    2 => SPAN - 2 + rng.random_range(0..4),
                    _ => rng.random_range(0..10 * SPAN),
                };
                let at = events.now() + ahead;
                events.post(at, order);
                expected.insert((at, order), ());
                order += 1;
            }
            if round % 3 != 0 {
                let next = events.next();
                let wanted = expected.pop_first().map(|((at, order), ())| (at, order));
                assert_eq!(next.map(|event| (events.now(), event)), wanted);
            }
        }
    }

    #[test]
    fn what_is_past_happens_now() {
        let mut events = Events::new();
        events.post(100, 'a');
        assert_eq!(events.next(), Some('a'));
        events.post(5, 'b');
        assert_eq!((events.next(), events.now()), (Some('b'), 100));
        assert_eq!(events.next(), None);
    }
}
