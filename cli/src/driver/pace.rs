//! Pace of a shard's clients: the next operation starts at once (closed loop), or when the schedule says so (open
//! loop), until the operations are used up or time is over.
//!
//! The open loop's schedule belongs to the shard, not to a client: whichever client is free takes the next operation.
//! Latency counts from the intended start, so a stall shows in every operation that had to wait for it.

use std::cell::Cell;

use crate::driver::bench_shard::BenchShard;

const SECOND_NS: u128 = 1_000_000_000;

/// The pace of one shard in one phase.
pub(crate) struct Pace {
    stopped: Cell<bool>,
    /// Operations that may still be started.
    left: Cell<u64>,
    /// Operations that were started.
    started: Cell<u64>,
    schedule: Option<Schedule>,
    clients: Cell<usize>,
    ended_ns: Cell<u64>,
}

/// An open loop's times: of every `stride`-th operation of the whole node, beginning with `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Start of the phase.
    pub(crate) start_ns: u64,
    /// Operations a second of the whole node.
    pub(crate) rate: u64,
    /// The shard's place among those that have clients.
    pub(crate) first: u64,
    /// Number of shards that have clients.
    pub(crate) stride: u64,
}

impl Schedule {
    fn at(&self, ticket: u64) -> u64 {
        let place = u128::from(ticket) * u128::from(self.stride) + u128::from(self.first);
        self.start_ns.saturating_add((place * SECOND_NS / u128::from(self.rate)) as u64)
    }

    /// Counts the operations whose time came before `end_ns`.
    fn due(&self, end_ns: u64) -> u64 {
        let places = u128::from(end_ns.saturating_sub(self.start_ns)) * u128::from(self.rate);
        let places = places.div_ceil(SECOND_NS) as u64;
        places.saturating_sub(self.first).div_ceil(self.stride)
    }
}

/// Permission to start an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Time at which the operation should have started, in an open loop.
    pub(crate) intended_ns: Option<u64>,
}

impl Pace {
    /// Makes a pace for `clients` clients and at most `ops` operations.
    pub(crate) fn new(clients: usize, ops: Option<u64>, schedule: Option<Schedule>) -> Self {
        Pace {
            stopped: Cell::new(false),
            left: Cell::new(ops.unwrap_or(u64::MAX)),
            started: Cell::new(0),
            schedule,
            clients: Cell::new(clients),
            ended_ns: Cell::new(0),
        }
    }

    /// Waits for the permission to start the next operation; `None` if there is no next one.
    #[inline]
    pub(crate) async fn next<V: BenchShard>(&self, shard: &V) -> Option<Start> {
        if self.stopped.get() || !self.take() {
            return None;
        }
        match self.schedule {
            None => Some(Start { intended_ns: None }),
            Some(schedule) => self.wait(shard, schedule).await,
        }
    }

    /// Takes one more operation that belongs to one already started.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        let left = self.left.get();
        if left == 0 {
            return false;
        }
        self.left.set(left - 1);
        self.started.set(self.started.get() + 1);
        true
    }

    async fn wait<V: BenchShard>(&self, shard: &V, schedule: Schedule) -> Option<Start> {
        let intended_ns = schedule.at(self.started.get() - 1);
        loop {
            let now = shard.now();
            if self.stopped.get() {
                self.started.set(self.started.get() - 1);
                return None;
            }
            if now >= intended_ns {
                return Some(Start { intended_ns: Some(intended_ns) });
            }
            // Wakes every tick, to see whether the run has ended.
            shard.pause((intended_ns - now).min(V::TICK_NS)).await;
        }
    }

    /// Lets no further operation start.
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
    }

    /// Notes the end of a client; the time of the last one is the end of the phase on this shard.
    pub(crate) fn client_ended(&self, now_ns: u64) {
        self.clients.set(self.clients.get() - 1);
        self.ended_ns.set(now_ns);
    }

    /// Tells whether clients still run.
    pub(crate) fn is_running(&self) -> bool {
        self.clients.get() > 0
    }

    /// Returns the time at which the last client ended.
    pub(crate) fn ended_ns(&self) -> u64 {
        self.ended_ns.get()
    }

    /// Counts the operations started so far.
    pub(crate) fn started(&self) -> u64 {
        self.started.get()
    }

    /// Counts the operations of the schedule whose time came before `end_ns`, and that were not started.
    pub(crate) fn unstarted(&self, end_ns: u64) -> u64 {
        let due = self.schedule.map_or(0, |schedule| schedule.due(end_ns));
        due.saturating_sub(self.started.get()).min(self.left.get())
    }
}

/// Returns the part of `total` that falls to member `at` of `of`.
pub(crate) fn share(total: u64, at: usize, of: usize) -> u64 {
    let (at, of) = (at as u64, of as u64);
    total / of + u64::from(at < total % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_up() {
        for (total, of) in [(0, 1), (10, 3), (2, 5), (1 << 40, 7)] {
            assert_eq!((0..of).map(|at| share(total, at, of)).sum::<u64>(), total);
        }
    }

    #[test]
    fn a_schedule_is_even_over_the_shards() {
        let of = |first| Schedule { start_ns: 1000, rate: 1_000_000, first, stride: 2 };
        let mut times: Vec<u64> = (0..4).flat_map(|ticket| [of(0).at(ticket), of(1).at(ticket)]).collect();
        times.sort_unstable();
        assert_eq!(times, [1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000]);
        for end in [1000, 1001, 2500, 3000, 3001, 9000] {
            for first in [0, 1] {
                let due = of(first).due(end);
                assert_eq!(
                    due,
                    times.iter().filter(|&&t| t < end && (t / 1000 - 1) % 2 == first).count() as u64
                );
            }
        }
    }

    #[test]
    fn operations_are_used_up() {
        let pace = Pace::new(1, Some(2), None);
        assert!(pace.take() && pace.take() && !pace.take());
        assert_eq!(pace.started(), 2);
    }
}
