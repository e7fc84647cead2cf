//! Why a lock could not be had or given back.

use farwood_runtime::{FabricError, RemotePtr};
use thiserror::Error;

/// Why an acquisition or a release failed. What it leaves behind (a CAS or an unlock of unknown outcome) is settled in
/// the background before the lock can be had again on this compute node.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// The fabric failed. Whether the write-back of a release took effect is unknown.
    #[error("a lock operation failed on the fabric: {0}")]
    Fabric(#[from] FabricError),
    /// The lock did not come free within the configured number of attempts.
    #[error(
        "the lock word at {lock} is still held by compute node {owner} after {attempts} attempts: \
         if that node is gone, recover its locks; if it is only busy, raise attempts_max or backoff_ns_max"
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    Contended { lock: RemotePtr, owner: u16, attempts: u32 },
}
