//! How one compute node works on an index of any kind. Knows no algorithm.

use farwood_cache::Policy;
use farwood_lock::LockConfig;

use crate::shell::algorithm::Algorithm;

/// Sets how one compute node works on an index. Compute nodes with different options work on the same index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options<A: Algorithm> {
    /// Which techniques are used. Those that say where locks are or what protects a node count when the index is
    /// created; opening it with other values is no error and changes nothing
    /// ([`Index::techniques`](crate::shell::handle::Index::techniques) tells what is in effect).
    pub techniques: A::Techniques,
    /// Byte budget of the cache of inner nodes; it counts everything.
    pub cache_bytes: usize,
    /// Which cached node leaves when the budget is full.
    pub eviction: Policy,
    /// Retries that one operation may spend on torn reads, moved nodes, lost races and stale cache entries.
    pub retries_max: u32,
    /// Pauses of a writer that finds a lock taken, in ns: the first and the longest; they double in between, and a
    /// part of it is chance. (0, 0) tries again at once, as FG+ does in Sherman's paper.
    pub backoff_ns: (u64, u64),
    /// The longest time in ns that an operation waits for a lock, or for another client that works for it: after that a
    /// lock is an error that names its owner ([`farwood_lock::LockError::Contended`]). `u64::MAX`: it waits for ever.
    pub lock_wait_ns_max: u64,
    /// Attempts at a lock before an operation gives up with that error. At least 1.
    pub lock_attempts_max: u32,
    /// Nodes that a scan reads in parallel at most.
    pub scan_window: usize,
}

impl<A: Algorithm> Options<A> {
    /// Yields what lock tables are told by these options. Which kinds of locks there are is the algorithm's to say.
    pub(crate) fn locks(&self) -> LockConfig {
        LockConfig {
            wait_ns_max: self.lock_wait_ns_max,
            attempts_max: self.lock_attempts_max,
            backoff_ns_min: self.backoff_ns.0,
            backoff_ns_max: self.backoff_ns.1,
            ..LockConfig::default()
        }
    }
}

impl<A: Algorithm> Default for Options<A> {
    fn default() -> Self {
        let locks = LockConfig::default();
        Options {
            techniques: A::Techniques::default(),
            cache_bytes: 512 << 20,
            eviction: Policy::TwoChoices,
            retries_max: 100_000,
            backoff_ns: (locks.backoff_ns_min, locks.backoff_ns_max),
            lock_wait_ns_max: locks.wait_ns_max,
            lock_attempts_max: locks.attempts_max,
            scan_window: A::SCAN_WINDOW,
        }
    }
}
