//! Why a lock could not be had or given back.

use farwood_runtime::{FabricError, Failed, RemotePtr};
use thiserror::Error;

/// Why an acquisition or a release failed. What it leaves behind (a CAS of unknown outcome, a write-back that is half
/// done) is settled in the background; until it is, the global lock stays taken.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// The fabric failed for good: the attempts were spent, or asking again does not help. Whether the write-back of a
    /// release took effect, or still will, is unknown.
    #[error("a lock operation failed on the fabric: {0}")]
    Fabric(#[from] FabricError),
    /// The lock did not come free within the configured number of attempts.
    #[error(
        "the lock word at {lock} is still held by compute node {owner} after {attempts} attempts: \
         if that node is gone, recover its locks; if it is only busy, try more often or pause longer: raise \
         attempts_max or backoff_ns_max (lock_attempts_max or backoff_ns in the options of an index)"
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    Contended { lock: RemotePtr, owner: u16, attempts: u32 },
}

impl From<Failed> for LockError {
    fn from(failed: Failed) -> Self {
        LockError::Fabric(failed.into())
    }
}
