//! What a window table may be told, and what clients come to it for.

/// What a client wants of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// To have its value.
    Read,
    /// To replace its value, whatever it was. The index decides what the numbers mean; writes of one number may be
    /// combined: the last one stands for all of them. See the module's documentation for what that asks of a kind.
    Write(u8),
}

/// How windows are used. The same on every shard of a compute node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Reads come to windows. Off: every reader is told to work alone, at once.
    pub delegation: bool,
    /// Writes come to windows. Off: the same for writers.
    pub combining: bool,
    /// The longest value, in bytes, that is sent to readers on other shards. They are told to read for themselves if
    /// it is longer, so that where all values are longer, `delegation` costs more than it saves.
    pub value_bytes_max: usize,
    /// The longest time in ns that a client waits, together with what it has waited for locks. After that it is told to
    /// work alone, up to 10 ms later. `u64::MAX`: it waits for ever.
    pub wait_ns_max: u64,
    /// What keys are hashed with. To be drawn at random where keys come from strangers; the same seed gives the same
    /// hashes.
    pub seed: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        WindowConfig {
            delegation: true,
            combining: true,
            value_bytes_max: 128,
            wait_ns_max: 5_000_000_000,
            seed: 0,
        }
    }
}

impl WindowConfig {
    /// Whether clients who want that come to windows.
    #[inline]
    pub(super) fn lets_in(&self, access: Access) -> bool {
        match access {
            Access::Read => self.delegation,
            Access::Write(_) => self.combining,
        }
    }
}
