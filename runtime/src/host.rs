//! The host of a shard's core: its time, and the ways of its messages. It knows nothing of shards.

use crate::clock::Clock;
use crate::message::ShardId;

/// The host of a shard's core: a thread of the machine, which a [`Clock`] is enough for, or a simulated core.
pub trait Host: 'static {
    /// Yields the time in ns. It never goes back.
    ///
    /// ```
    /// # use farwood_runtime::clock::Clock;
    /// # use farwood_runtime::host::Host;
    /// fn passed_since<H: Host>(host: &H, then: u64) -> u64 {
    ///     host.now() - then
    /// }
    /// let clock = Clock::new();
    /// let then = clock.now();
    /// assert!(passed_since(&clock, then) < 60_000_000_000);
    /// ```
    fn now(&self) -> u64;

    /// Hears that a message has left for shard `to` of the node, where messages take a time that the host decides on. A
    /// machine's host has nothing to decide.
    ///
    /// ```
    /// # use farwood_runtime::ShardId;
    /// # use farwood_runtime::clock::Clock;
    /// # use farwood_runtime::host::Host;
    /// Clock::new().sent(ShardId(1));
    /// ```
    fn sent(&self, _to: ShardId) {}
}

impl Host for Clock {
    #[inline]
    fn now(&self) -> u64 {
        Clock::now(self)
    }
}
