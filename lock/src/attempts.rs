//! Attempts at a memory server whose chains fail: how often the janitor makes them and at what pace, and whether an
//! operation makes one more. It knows neither locks nor what the chains are about.

use farwood_runtime::{Buf, FabricError, Failed, Meter, RemotePtr, Verbs};

use crate::backlog::Full;
use crate::error::LockError;
use crate::table::Table;
use crate::word::FREE;

/// Attempts at a server that does not answer while an operation, or the next holder on this compute node, waits: 16 ms
/// of pauses.
pub(crate) const ATTEMPTS_MAX: u32 = 10;
/// Attempts altogether: several seconds. A shard that is being closed waits for them.
pub(crate) const PATIENCE_MAX: u32 = 40;
/// Bounds how often a queue pair may break meanwhile.
const BROKEN_MAX: u32 = 100_000;
/// The first pause after a failed attempt, in ns, doubled after each further one up to the longest.
pub(crate) const PAUSE_NS_MIN: u64 = 16_000;
const PAUSE_NS_MAX: u64 = 1 << 28;
/// Bounds how many chains in a row may fail once a client's time is over.
const FABRIC_FAILURES_WHEN_OVER: u32 = 8;

/// The pace of the janitor's attempts at one task. Pure.
pub(crate) struct Pace {
    attempts: u32,
    broken: u32,
}

impl Pace {
    /// Makes the pace of a task at which so many attempts have failed.
    pub(crate) fn after(attempts: u32) -> Self {
        Pace { attempts, broken: 0 }
    }

    /// Counts a failed attempt, and yields the pause before the next one in ns. A queue pair that breaks says nothing
    /// about the server, which may be back: up to `broken_max` times that is no attempt.
    pub(crate) fn failed(&mut self, cause: &FabricError, broken_max: u32) -> u64 {
        if cause.is_passing() && self.broken < broken_max.min(BROKEN_MAX) {
            self.broken += 1;
            return PAUSE_NS_MIN;
        }
        self.attempts += 1;
        (PAUSE_NS_MIN << self.attempts.min(32)).min(PAUSE_NS_MAX)
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }
}

impl<V: Verbs> Table<V> {
    /// Decides whether a chain is posted again that has failed `fabric_failures` times in a row. Nothing of it can be
    /// half done: it is a READ, or an atomic whose outcome the next chain finds out. Yields its buffer, after a pause.
    #[cold]
    pub(crate) async fn again(
        &self,
        meter: &Meter,
        failed: Failed,
        fabric_failures: u32,
    ) -> Result<Option<Buf>, LockError> {
        meter.retry();
        let (_, over) = self.patience.spent(&self.verbs, meter);
        // A client whose time is over asks a few times more, to learn which compute node holds the lock, rather than
        // that a queue pair broke just then.
        let is_last = fabric_failures >= self.config.attempts_max
            || (over && fabric_failures >= FABRIC_FAILURES_WHEN_OVER);
        if !failed.cause().is_passing() || is_last {
            return Err(failed.into());
        }
        self.verbs.pause(self.pauses.after_chain(fabric_failures, self.verbs.random())).await;
        Ok(failed.into_parts().1.into_buffer())
    }

    /// Waits until the janitor has less to undo on the lock's server, where a further lock word may become its task,
    /// too. `at` are the node and its lock.
    #[cold]
    pub(crate) async fn wait_for_janitor(
        &self,
        meter: &Meter,
        at: (RemotePtr, RemotePtr),
    ) -> Result<(), LockError> {
        let server = at.1.server();
        while self.backlog.is_full(server, self.config.unsettled_max) {
            if let Full::InVain(cause) = self.backlog.fullness(server) {
                self.counters.count(|stats| stats.refused += 1);
                return Err(cause.into());
            }
            if let (_, true) = self.patience.spent(&self.verbs, meter) {
                return Err(self.contended(meter, at, FREE, 0));
            }
            self.verbs.pause(PAUSE_NS_MIN).await;
        }
        Ok(())
    }
}
