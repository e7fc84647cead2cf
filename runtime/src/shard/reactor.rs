//! When the poller steps aside, so that the executor's reactor notices what happened outside: sockets, timers, wakes
//! from other threads.
//!
//! glommio looks at its I/O when no task is runnable, or when its preemption timer fires (100 ms by default). A poller
//! that spins is always runnable; a service on the same executor would wait 100 ms for each request of the network. So
//! a busy poller sleeps for half a microsecond once in a while. Its wake-up comes from the reactor itself, after that
//! has looked at everything else. A sleep costs the poller 7 to 9 us, nearly all of them the reactor's system calls.
//!
//! If another task never rests either, such a sleep lasts until the preemption timer fires. Then the reactor runs no
//! more often than without Farwood, and the poller asks less often, lest it give away its share of the core.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use glommio::timer::Timer;

use crate::clock::Clock;

/// The sleep. Long enough that it is not over before the timer has been registered.
const NAP_NS: u64 = 500;
/// When the reactor has run, glommio may lose a wake-up (see `poller.rs`) and sleep although the poller is runnable. A
/// second timer ends that.
const GUARD: Duration = Duration::from_micros(100);
/// Turns between two looks at the clock.
const TURNS_PER_LOOK: u32 = 8;
/// A sleep of this many periods is a long one: somebody else kept the executor busy.
const LONG_PERIODS: u64 = 8;
/// Long sleeps in a row that prove that it is not chance (the system may take the core away for a while).
const LONG_NAPS_MAX: u32 = 4;
/// From then on, a sleep takes at most one part in this many of the poller's time.
const PARTS: u64 = 16;

/// When the reactor is to run next.
pub(super) struct Reactor {
    /// 0: only when glommio wants it.
    period_ns: u64,
    due_ns: u64,
    turns: u32,
    long_naps: u32,
    guard: Option<Timer>,
}

impl Reactor {
    pub(super) fn new(period_ns: u64) -> Self {
        Reactor { period_ns, due_ns: 0, turns: 0, long_naps: 0, guard: None }
    }

    /// Whether the reactor should run now. Called once per turn.
    #[inline]
    pub(super) fn is_due(&mut self, clock: &Clock) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.period_ns > 0 && self.turns.is_multiple_of(TURNS_PER_LOOK) && clock.now() >= self.due_ns
    }

    /// Lets it run.
    pub(super) async fn run(&mut self, clock: &Clock) {
        let begun = clock.now();
        let guard = self.guard.insert(Timer::new(GUARD));
        while !nap(clock, guard).await {}
        self.ran(begun, clock.now());
    }

    /// The reactor ran, between these two moments.
    pub(super) fn ran(&mut self, begun_ns: u64, now_ns: u64) {
        let took = now_ns.saturating_sub(begun_ns);
        self.long_naps = if took > LONG_PERIODS * self.period_ns { self.long_naps + 1 } else { 0 };
        let rest = if self.long_naps >= LONG_NAPS_MAX { took * PARTS } else { self.period_ns };
        self.due_ns = now_ns + rest;
    }
}

/// Is not runnable until the reactor has run. False if it did not come to that, because the timer was too fast.
async fn nap(clock: &Clock, guard: &mut Timer) -> bool {
    let mut timer = pin!(Timer::new(Duration::from_nanos(NAP_NS)));
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
        let until = clock.now() + NAP_NS;
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

    #[test]
    fn asks_less_often_where_somebody_else_never_rests() {
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
