//! Reasons why a lock could not be acquired or released.

use std::sync::Arc;

use farwood_runtime::{FabricError, Failed, RemotePtr, ShardId};
use thiserror::Error;

/// The reason why an acquisition or a release failed. What it leaves behind (a CAS of unknown outcome, a write-back
/// that is half done) is settled in the background; until it is, the global lock stays taken.
///
/// ```
/// # farwood_doctest::locks!(LockConfig { wait_max: std::time::Duration::from_millis(1), ..Default::default() },
/// #     |shard, locks, node, meter| {
/// let held = locks.acquire(&meter, node).await?;
/// let waited = locks.acquire(&meter, node).await;
/// assert!(matches!(waited, Err(LockError::Contended { owner, .. }) if owner == shard.node_id()));
/// # held.release(&meter, Chain::new(node.server()), true).await?;
/// # });
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockError {
    /// The fabric failed for good: the attempts were spent, or asking again does not help. Whether the write-back of a
    /// release took effect, or still will, is unknown.
    #[error("a lock operation failed on the fabric: {0}")]
    Fabric(#[from] FabricError),
    /// The shard of this compute node that keeps the queue of this lock has ended. The operation had no effect.
    #[error(
        "shard {} of this compute node has ended, though others work: its executor returned before `Shard::close`, or \
         its last handle was dropped. It kept the queues of some locks, and they cannot be had without it: close all \
         shards, and start the compute node anew",
        shard.0
    )]
    #[expect(missing_docs, reason = "the message names the field")]
    ShardEnded { shard: ShardId },
    /// The lock did not come free within the configured time or number of attempts. The operation had no effect under
    /// it.
    #[error(
        "index {index:?}: the lock of node {node}, word {lock}, is held by compute node {owner}{}, after {} ms and \
         {attempts} attempts: {}",
        if *other_index { " for another index, which shares it" } else { "" },
        waited_ns / 1_000_000,
        advice(*other_index, *recoverable)
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    Contended {
        index: Arc<str>,
        node: RemotePtr,
        lock: RemotePtr,
        owner: u16,
        other_index: bool,
        /// True if the word promises that others can take the lock over once its owner is dead, and fenced.
        recoverable: bool,
        attempts: u32,
        waited_ns: u64,
    },
}

/// Says what to do about a lock that does not come free.
fn advice(other_index: bool, recoverable: bool) -> &'static str {
    match (other_index, recoverable) {
        (true, _) => {
            "nothing of this index is half written; let that compute node go on, or end its process (`farwood stat` \
             shows who is connected): the locks of a dead one stop no other index"
        }
        (false, true) => {
            "if that compute node is only busy, wait longer (lock_wait_max or lock_attempts_max in the options of \
             an index); if it hangs, end its process (`farwood stat` shows who is connected): the locks of a dead one \
             are taken over"
        }
        (false, false) => {
            "if that compute node is only busy, wait longer (lock_wait_max or lock_attempts_max in the options of \
             an index); if it is dead (`farwood stat` shows who is connected), the node may be half written and stays \
             locked: copy what `farwood scan` still reads into a new index, and drop this one"
        }
    }
}

impl From<Failed> for LockError {
    fn from(failed: Failed) -> Self {
        LockError::Fabric(failed.into())
    }
}
