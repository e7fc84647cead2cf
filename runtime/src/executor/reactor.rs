//! Lets the poller step aside, so that the executor's reactor notices what happened outside: sockets, timers, wakes
//! from other threads.
//!
//! glommio looks at its I/O when no task is runnable, or when its preemption timer fires (100 ms by default). A poller
//! that spins is always runnable; a service on the same executor would wait 100 ms for each request of the network. So
//! a busy poller sleeps for half a microsecond once in a while. Its wake-up comes from the reactor itself, after that
//! has looked at everything else. A sleep costs the poller 7 to 9 us, nearly all of them the reactor's system calls.
//!
//! On a slow machine (emulated, or a build without optimisation) such a sleep may be over before the executor has
//! registered it. Then the next one is longer.
//!
//! If another task never rests either, such a sleep lasts until the preemption timer fires. Then the reactor runs no
//! more often than without Farwood, and the poller asks for it less often, to keep its share of the core.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use glommio::timer::Timer;

use crate::clock::Clock;

/// The shortest sleep, which most machines can register before it is over, and the longest.
const NAP_NS_MIN: u64 = 500;
const NAP_NS_MAX: u64 = 1_000_000;
/// A sleep that was long enough is followed by one that is shorter by one part in this many of what it is too long.
const NAP_PARTS: u64 = 16;
/// Ends a sleep of the executor although the poller is runnable: glommio may lose a wake-up when the reactor has run
/// (see `poller.rs`).
const GUARD: Duration = Duration::from_micros(100);
/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 8;
/// A sleep of this many periods is a long one: another task kept the executor busy.
const LONG_PERIODS: u64 = 8;
/// Long sleeps in a row that prove that it is not chance (the system may take the core away for a while).
const LONG_NAPS_MAX: u32 = 4;
/// From then on, a sleep takes at most one part in this many of the poller's time.
const PARTS: u64 = 16;

/// The time at which the reactor is to run next.
pub(super) struct Reactor {
    /// 0: only when glommio wants it.
    period_ns: u64,
    due_ns: u64,
    turns: u32,
    long_naps: u32,
    length: NapLength,
    guard: Option<Timer>,
}

impl Reactor {
    pub(super) fn new(period_ns: u64) -> Self {
        let length = NapLength { ns: NAP_NS_MIN };
        Reactor { period_ns, due_ns: 0, turns: 0, long_naps: 0, length, guard: None }
    }

    /// Tells whether the reactor should run now. Called once per turn.
    #[inline]
    pub(super) fn is_due(&mut self, clock: &Clock) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.period_ns > 0 && self.turns.is_multiple_of(TURNS_PER_LOOK) && clock.now() >= self.due_ns
    }

    /// Lets the reactor run.
    pub(super) async fn run(&mut self, clock: &Clock) {
        let begun = clock.now();
        let guard = self.guard.insert(Timer::new(GUARD));
        while !nap(clock, guard, self.length.ns).await && self.length.grow() {}
        self.length.shrink();
        self.ran(begun, clock.now());
    }

    /// Notes that the reactor ran between these two moments.
    pub(super) fn ran(&mut self, begun_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(begun_ns);
        self.long_naps = if took > LONG_PERIODS * self.period_ns { self.long_naps + 1 } else { 0 };
        let rest = if self.long_naps >= LONG_NAPS_MAX { took * PARTS } else { self.period_ns };
        self.due_ns = now_ns + rest;
    }
}

/// Adapts the length of naps: long enough to be registered before they are over.
struct NapLength {
    ns: u64,
}

impl NapLength {
    /// Lengthens naps after one that was too short. False if they have their greatest length.
    fn grow(&mut self) -> bool {
        let before = self.ns;
        self.ns = (2 * before).min(NAP_NS_MAX);
        self.ns > before
    }

    /// Shortens naps a little after one that was long enough.
    fn shrink(&mut self) {
        self.ns -= (self.ns - NAP_NS_MIN).div_ceil(NAP_PARTS);
    }
}

/// Waits until the reactor has run. False if it did not, because the timer was faster.
async fn nap(clock: &Clock, guard: &mut Timer, ns: u64) -> bool {
    let mut timer = pin!(Timer::new(Duration::from_nanos(ns)));
    let mut registered = false;
    poll_fn(|cx| {
        let fired = timer.as_mut().poll(cx).is_ready();
        if fired || registered {
            return if fired { Poll::Ready(registered) } else { Poll::Pending };
        }
        registered = true;
        // If it is over already, the core was taken away for longer than the nap, and the nap is over, too.
        let _ = Pin::new(&mut *guard).poll(cx);
        // The timer must have expired when the reactor looks at it, or the executor would go to sleep for the rest.
        let until = clock.now() + ns;
        while clock.now() < until {
            std::hint::spin_loop();
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_due_once_per_period() {
        let clock = Clock::new();
        let mut reactor = Reactor::new(1_000_000_000);
        assert!((0..TURNS_PER_LOOK).any(|_| reactor.is_due(&clock)));
        reactor.ran(clock.now(), clock.now());
        assert!((0..10 * TURNS_PER_LOOK).all(|_| !reactor.is_due(&clock)));
        assert!(!(0..TURNS_PER_LOOK).any(|_| Reactor::new(0).is_due(&clock)));
    }

    /// Naps of half a microsecond are always over too early where registering takes 30 us. They were tried again for as
    /// long as that was so: the poller of an emulated machine did hardly anything else.
    #[test]
    fn naps_get_as_long_as_a_slow_machine_needs() {
        let tries_of_naps = |length: &mut NapLength, registering_ns: u64, naps: u32| {
            let mut tries = 0;
            for _ in 0..naps {
                tries += 1;
                while length.ns <= registering_ns && length.grow() {
                    tries += 1;
                }
                length.shrink();
            }
            tries
        };
        let mut length = NapLength { ns: NAP_NS_MIN };
        assert_eq!(tries_of_naps(&mut length, 0, 100), 100);
        assert_eq!(length.ns, NAP_NS_MIN);
        assert!(tries_of_naps(&mut length, 30_000, 1) < 10);
        assert!(tries_of_naps(&mut length, 30_000, 1000) < 1150);
        assert!((30_000..64_000).contains(&length.ns));
        // Once it was only late.
        tries_of_naps(&mut length, 300, 200);
        assert_eq!(length.ns, NAP_NS_MIN);
        assert!(tries_of_naps(&mut length, u64::MAX, 1) < 20, "it ends where no nap is long enough");
    }

    #[test]
    fn asks_less_often_where_another_task_never_rests() {
        let mut reactor = Reactor::new(250_000);
        let mut now = 0;
        let mut nap = |reactor: &mut Reactor, took: u64| {
            now += took;
            reactor.ran(now - took, now);
            reactor.due_ns - now
        };
        for _ in 1..LONG_NAPS_MAX {
            assert_eq!(nap(&mut reactor, 100_000_000), 250_000);
        }
        assert_eq!(nap(&mut reactor, 100_000_000), 1_600_000_000);
        assert_eq!(nap(&mut reactor, 100_000_000), 1_600_000_000);
        assert_eq!(nap(&mut reactor, 10_000), 250_000);
    }
}
