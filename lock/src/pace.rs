//! The pace of the janitor's attempts at a memory server whose chains fail, and how many they are. Pure: it knows
//! neither locks nor what the chains are about.

use farwood_runtime::FabricError;

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

/// The pace of the attempts at one task.
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
