//! Settings of a window table, and the kinds of access that clients want.

use std::time::Duration;

/// An operation that a client wants to do with a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// A read of its value.
    Read,
    /// A write that replaces its value, whatever it was. The index decides what the numbers mean; writes of one number
    /// may be combined: the last one stands for all of them. The module's documentation says what that requires of a
    /// kind.
    Write(u8),
}

/// Settings of windows. The same on every shard of a compute node.
///
/// ```
/// # use farwood_lock::window::WindowConfig;
/// let reads_only = WindowConfig { combining: false, ..WindowConfig::default() };
/// assert!(reads_only.delegation);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Reads come to windows. Off: every reader bypasses them.
    pub delegation: bool,
    /// Writes come to windows. Off: every writer bypasses them.
    pub combining: bool,
    /// The longest value, in bytes, that is sent to readers on other shards. They read for themselves if it is longer,
    /// so that where all values are longer, `delegation` costs more than it saves.
    pub value_bytes_max: usize,
    /// The longest time that a client waits, together with what it has waited for locks. After that it is told to
    /// work alone, up to 10 ms later. [`Duration::MAX`]: it waits for ever.
    pub wait_max: Duration,
    /// The seed of the keys' hash. To be drawn at random where keys come from strangers; the same seed gives the same
    /// hashes.
    pub seed: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        WindowConfig {
            delegation: true,
            combining: true,
            value_bytes_max: 128,
            wait_max: Duration::from_secs(5),
            seed: 0,
        }
    }
}

impl WindowConfig {
    /// Tells whether clients that want this come to windows.
    #[inline]
    pub(super) fn lets_in(&self, access: Access) -> bool {
        match access {
            Access::Read => self.delegation,
            Access::Write(_) => self.combining,
        }
    }
}
