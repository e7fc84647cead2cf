//! A coarse clock of use: how old the use of a copy is, in epochs. Knows no time; it goes by what comes in and,
//! while little does, by lookups.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Epochs while the memory is filled once: how finely copies' ages can be told apart.
const EPOCHS_PER_RENEWAL: u64 = 16;
/// Lookups move the clock on by so many epochs at most before something has to come in: stamps have 8 bits and
/// must not wrap around while their copies stay.
const EPOCHS_BY_LOOKUPS_MAX: u32 = 8;

#[derive(Default)]
pub(super) struct Clock {
    epoch: AtomicU32,
    /// The epoch up to which lookups may move the clock.
    latest: AtomicU32,
    /// Segments that had been begun at the last epoch of the writer. Only touched under the writer lock.
    begun: AtomicU64,
}

impl Clock {
    /// Yields the epoch, as stamps have it.
    #[inline]
    pub(super) fn epoch(&self) -> u8 {
        self.epoch.load(Ordering::Relaxed) as u8
    }

    /// Goes on when enough segments have been begun: `begun` since ever, `segments` are in use. Only under the
    /// writer lock.
    pub(super) fn follow(&self, (begun, segments): (u64, usize)) {
        if begun - self.begun.load(Ordering::Relaxed) > segments as u64 / EPOCHS_PER_RENEWAL {
            self.begun.store(begun, Ordering::Relaxed);
            let epoch = self.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            self.latest.store(epoch.wrapping_add(EPOCHS_BY_LOOKUPS_MAX), Ordering::Relaxed);
        }
    }

    /// Goes on because there were many lookups.
    pub(super) fn advance(&self) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch != self.latest.load(Ordering::Relaxed) {
            // If another thread was faster, the clock has moved on anyway.
            let next = epoch.wrapping_add(1);
            let _ = self.epoch.compare_exchange(epoch, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_comes_in_and_lets_lookups_go_a_little_ahead() {
        let clock = Clock::default();
        (0..100).for_each(|_| clock.advance());
        assert_eq!(clock.epoch(), 0, "nothing is in");
        clock.follow((1, 1));
        clock.follow((1, 1));
        assert_eq!(clock.epoch(), 1);
        (0..100).for_each(|_| clock.advance());
        assert_eq!(u32::from(clock.epoch()), 1 + EPOCHS_BY_LOOKUPS_MAX);
        clock.follow((3, 32));
        assert_eq!(u32::from(clock.epoch()), 1 + EPOCHS_BY_LOOKUPS_MAX, "a sixteenth is two segments");
        clock.follow((4, 32));
        assert_eq!(u32::from(clock.epoch()), 2 + EPOCHS_BY_LOOKUPS_MAX);
    }
}
