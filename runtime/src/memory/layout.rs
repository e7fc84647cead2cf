//! Where the parts of a memory server's region are. Arithmetic only: it knows no region and no server.

use super::ClusterError;
use crate::mapped::line::LINE_BYTES;

/// Where the first root word is.
pub(super) const ROOTS_START: u64 = 4096;
/// Indexes that a catalog has room for.
pub(super) const INDEXES_MAX: u32 = 1024;
pub(crate) const LOCKS_START: u64 = ROOTS_START + INDEXES_MAX as u64 * LINE_BYTES as u64;
/// Parts, and chunks, begin at multiples of it.
pub(crate) const CHUNK_ALIGN: u64 = 4096;

/// Parts of a region, apart from its header and its root words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerParts {
    /// Lock words; the paper has 131,072 (Sherman section 4.3).
    pub locks: u64,
    /// Bytes of the device area, a multiple of 8; 0 is none.
    pub device_bytes: u64,
    /// Bytes of a chunk, a multiple of 4096. The paper has 8 MiB.
    pub chunk_bytes: u64,
}

impl Default for ServerParts {
    fn default() -> Self {
        ServerParts { locks: 131_072, device_bytes: 0, chunk_bytes: 8 << 20 }
    }
}

impl ServerParts {
    /// Parts of a region of a few MiB, for examples and tests: 1024 locks, and chunks of 64 KiB.
    pub const SMALL: ServerParts = ServerParts { locks: 1024, device_bytes: 0, chunk_bytes: 64 << 10 };

    /// Tells whether a region of `region_bytes` bytes can be divided so.
    ///
    /// ```
    /// # use farwood_runtime::ServerParts;
    /// assert!(ServerParts::SMALL.check(1 << 20).is_ok());
    /// assert!(ServerParts::default().check(1 << 20).is_err(), "a chunk has 8 MiB");
    /// ```
    ///
    /// # Errors
    /// If a part has an impossible size, or no chunk fits.
    pub fn check(&self, region_bytes: u64) -> Result<(), ClusterError> {
        let ServerParts { locks, device_bytes, chunk_bytes } = *self;
        if locks == 0 {
            return Err(ClusterError::Config("a memory server needs at least one lock".into()));
        }
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(CHUNK_ALIGN) {
            return Err(ClusterError::Config(format!(
                "chunk_bytes {chunk_bytes} is not a multiple of {CHUNK_ALIGN}"
            )));
        }
        if !device_bytes.is_multiple_of(8) {
            return Err(ClusterError::Config(format!(
                "device_bytes {device_bytes} is not a multiple of 8, the size of a lock word"
            )));
        }
        let needed = self.chunks_start().saturating_add(chunk_bytes);
        if needed > region_bytes {
            return Err(ClusterError::Config(format!(
                "{region_bytes} bytes per memory server are too few: {locks} locks, {device_bytes} \
                 bytes of device area and one chunk of {chunk_bytes} bytes need {needed}"
            )));
        }
        Ok(())
    }

    pub(super) fn device_start(&self) -> u64 {
        part_after(LOCKS_START, self.locks.saturating_mul(8))
    }

    pub(super) fn chunks_start(&self) -> u64 {
        part_after(self.device_start(), self.device_bytes)
    }
}

/// Returns where the root word of a catalog's place is.
pub(super) fn root_word(place: u32) -> u64 {
    ROOTS_START + u64::from(place) * LINE_BYTES as u64
}

/// Returns where the part of a region begins that follows one of `bytes` bytes at `start`. Sizes come from users: what
/// would overflow saturates, and is then more than any region has.
fn part_after(start: u64, bytes: u64) -> u64 {
    start.saturating_add(bytes).checked_next_multiple_of(CHUNK_ALIGN).unwrap_or(u64::MAX)
}
