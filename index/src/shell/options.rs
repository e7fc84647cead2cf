//! Options of a compute node that works on an index of any kind. Knows no algorithm, and no technique.

use std::time::Duration;

use farwood_cache::Policy;
use farwood_lock::{Backoff, LockConfig};

/// Options of a compute node that works on an index with the techniques `T`. Compute nodes with different options may
/// work on the same index.
///
/// Those of an index of any kind are `Options<dyn Switches>` ([`IndexSpec::options`](crate::IndexSpec::options)).
///
/// ```
/// # use farwood_index::Sherman;
/// use farwood_index::sherman::{Options, Techniques};
///
/// # farwood_doctest::run(async |node, shard| {
/// let techniques = Techniques { fused: false, ..Techniques::ALL };
/// let options = Options { techniques, cache_bytes: 64 << 20, ..Options::default() };
/// let tree = Sherman::create(&node, "users", Default::default(), options).await?;
/// assert!(!tree.attach(shard).techniques().fused);
/// # Ok(()) });
/// ```
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options<T: ?Sized> {
    /// Byte budget of the cache of inner nodes, all overhead included.
    pub cache_bytes: usize,
    /// Policy by which cached nodes leave when the budget is full.
    pub eviction: Policy,
    /// Retries that one operation may spend on torn reads, moved nodes, lost races and stale cache entries.
    pub retries_max: u32,
    /// Pauses of a writer that finds a lock taken.
    pub backoff: Backoff,
    /// The longest time that an operation waits for a lock, or for another client that works for it: after that a lock
    /// is an error that names its owner ([`farwood_lock::LockError::Contended`]). [`Duration::MAX`]: it waits for ever.
    /// Where servers are full, a write waits for as long for memory that is out of the index already.
    pub lock_wait_max: Duration,
    /// Attempts at a lock before an operation gives up with that error. At least 1.
    pub lock_attempts_max: u32,
    /// Nodes that a scan reads in parallel at most; none: as many as suit the index.
    pub scan_window: Option<usize>,
    /// Records what is about to be written to a node that could be left half written, on the node's memory server, and
    /// takes over the locks of compute nodes that have died. On by default. A compute node with this off leaves locks
    /// that stay taken when it dies, and takes none over.
    pub intent_log: bool,
    /// Techniques that are used. Those that say where locks are or what protects a node count when the index is
    /// created; opening it with other values is no error and changes nothing
    /// ([`Index::techniques`](crate::shell::handle::Index::techniques) tells what is in effect).
    pub techniques: T,
}

impl<T: ?Sized> Options<T> {
    /// Yields the configuration of lock tables by these options. The algorithm decides which kinds of locks there are.
    pub(crate) fn locks(&self) -> LockConfig {
        LockConfig {
            wait_max: self.lock_wait_max,
            attempts_max: self.lock_attempts_max,
            backoff: self.backoff,
            ..LockConfig::default()
        }
    }
}

impl<T: Default> Default for Options<T> {
    fn default() -> Self {
        let locks = LockConfig::default();
        Options {
            cache_bytes: 512 << 20,
            eviction: Policy::TwoChoices,
            retries_max: 100_000,
            backoff: locks.backoff,
            lock_wait_max: locks.wait_max,
            lock_attempts_max: locks.attempts_max,
            scan_window: None,
            intent_log: true,
            techniques: T::default(),
        }
    }
}
