//! An operation's further attempts: whether a chain that failed is posted again, and when more may be begun on a memory
//! server. It does not know what the chains are about.

use farwood_runtime::{Buf, Failed, Meter, RemotePtr, Verbs};

use super::Table;
use crate::backlog::Full;
use crate::error::LockError;
use crate::pace::PAUSE_NS_MIN;
use crate::word::FREE;

/// Bounds how many chains in a row may fail once a client's time is over. Chains of many verbs fail more
/// often than not in a storm of broken queue pairs: with eight, clients of 2 in 5,000 simulated clusters gave up.
const FABRIC_FAILURES_WHEN_OVER: u32 = 32;

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
