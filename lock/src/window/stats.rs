//! Counters of a shard's windows.

/// Windows so far: reads and writes of this shard's clients, windows of the keys at home here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Reads whose value came from the leader of a window.
    pub reads_delegated: u64,
    /// Writes that the leader of a window did along with its own.
    pub writes_combined: u64,
    /// Operations that waited for a window and then bypassed it: the value is too long to be sent, or the wait took too
    /// long.
    pub bypassed: u64,
    /// Windows that were led, with or without a group.
    pub windows: u64,
}

farwood_runtime::counters!(WindowStats { sum: reads_delegated writes_combined bypassed windows; });
