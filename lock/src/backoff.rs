//! Pauses between attempts at a lock. Pure: it is told what is random, and how long a lock has not changed.

use std::time::Duration;

use farwood_runtime::clock::nanoseconds;

/// A word that stays in a lock for this long belongs to a client that is slow, or dead: others do not keep a lock as
/// long.
pub(crate) const LONG_NS: u64 = 1_000_000;
/// Its waiters pause for the time that they have seen it, divided by this,
const LONG_SHARE: u64 = 16;
/// and for this long at most.
const LONG_PAUSE_NS_MAX: u64 = 10_000_000;

/// Bounds of pauses that double from one attempt to the next. A part of each is random.
///
/// ```
/// # use farwood_lock::{Backoff, LockConfig};
/// # use std::time::Duration;
/// let backoff = Backoff { max: Duration::from_micros(100), ..LockConfig::default().backoff };
/// assert!(backoff.min < backoff.max);
/// assert_eq!(Backoff::NONE.max, Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// The first pause.
    pub min: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Backoff {
    /// No pauses: attempts follow at once, as in FG+ of Sherman's paper.
    pub const NONE: Backoff = Backoff { min: Duration::ZERO, max: Duration::ZERO };
}

/// The pauses of one table's clients: a [`Backoff`] in nanoseconds.
pub(crate) struct Pauses {
    min_ns: u64,
    max_ns: u64,
}

impl Pauses {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Pauses { min_ns: nanoseconds(backoff.min), max_ns: nanoseconds(backoff.max) }
    }

    /// Computes the pause after the `failed`-th failed CAS (from 1), which found the word that was there `unchanged_ns`
    /// before: a lock of a dead client costs a waiter some 600 CASes until it gives up after 5 s, not some 300,000.
    pub(crate) fn after_cas(&self, failed: u32, unchanged_ns: u64, random: u64) -> u64 {
        let long_ns = if unchanged_ns < LONG_NS { 0 } else { unchanged_ns / LONG_SHARE };
        self.after_chain(failed, random).max(long_ns.min(LONG_PAUSE_NS_MAX))
    }

    /// Computes the pause after the `failed`-th chain that failed in a row (from 1): exponential, of which the upper
    /// half is random, so that spinners that collided once do not collide again.
    pub(crate) fn after_chain(&self, failed: u32, random: u64) -> u64 {
        let doublings = failed.saturating_sub(1).min(20);
        let most = (self.min_ns << doublings).min(self.max_ns).max(self.min_ns);
        most - random % (most / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LockConfig;

    #[test]
    fn pauses_double_up_to_their_bound_and_keep_half() {
        let pauses = Pauses { min_ns: 100, max_ns: 1000 };
        for (failed, most) in [(1, 100), (2, 200), (4, 800), (5, 1000), (50, 1000), (u32::MAX, 1000)] {
            assert_eq!(pauses.after_chain(failed, 0), most);
            assert!((0..2000).all(|random| (most / 2..=most).contains(&pauses.after_chain(failed, random))));
        }
        assert_eq!(Pauses::new(Backoff::NONE).after_chain(3, 12345), 0);
    }

    #[test]
    fn a_word_that_stays_is_asked_for_ever_more_rarely() {
        let config = LockConfig::default();
        let pauses = Pauses::new(config.backoff);
        assert_eq!(pauses.after_cas(9, LONG_NS - 1, 0), pauses.max_ns);
        assert_eq!(pauses.after_cas(9, 8 * LONG_NS, 0), LONG_NS / 2);
        assert_eq!(pauses.after_cas(9, u64::MAX, 0), LONG_PAUSE_NS_MAX);
        let (mut waited_ns, mut attempts) = (0, 0);
        while waited_ns < nanoseconds(config.wait_max) {
            attempts += 1;
            waited_ns += 2_000 + pauses.after_cas(attempts, waited_ns, 0);
        }
        assert!((600..800).contains(&attempts), "{attempts}");
    }
}
