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
        if *once_dead == OnceDead::Unharmed { " for another index, which shares it" } else { "" },
        waited_ns / 1_000_000,
        once_dead.advice()
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    Contended {
        index: Arc<str>,
        node: RemotePtr,
        lock: RemotePtr,
        owner: u16,
        once_dead: OnceDead,
        attempts: u32,
        waited_ns: u64,
    },
}

/// The fate of a lock once its owner is dead, and fenced. One byte, which leaves the error one to spare: each `Result`
/// of an operation has room for the error, and without a spare byte SMART took 6 % more CPU (measured).
///
/// ```
/// # farwood_doctest::locks!(LockConfig { wait_max: std::time::Duration::from_millis(1), ..Default::default() },
/// #     |shard, locks, node, meter| {
/// # use farwood_lock::OnceDead;
/// let held = locks.acquire(&meter, node).await?;
/// let waited = locks.acquire(&meter, node).await.map(|_| ());
/// let Err(LockError::Contended { once_dead, .. }) = waited else { panic!("{waited:?}") };
/// assert_eq!(once_dead, OnceDead::Lost, "these clients do not record what they write");
/// # held.release(&meter, Chain::new(node.server()), true).await?;
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceDead {
    /// It is taken over: its owner holds it for another index, which shares it, and leaves nothing of this one torn.
    Unharmed,
    /// It is taken over: the word promises that what its owner was writing is recorded.
    Recovered,
    /// It stays taken, and the node may be half written: its owner records nothing, or is a client of this compute node
    /// whose word is not there yet.
    Lost,
}

impl OnceDead {
    /// Says what to do about such a lock that does not come free.
    fn advice(self) -> &'static str {
        match self {
            OnceDead::Unharmed => {
                "nothing of this index is half written; let that compute node go on, or end its process (`farwood \
                 stat` shows who is connected): the locks of a dead one stop no other index"
            }
            OnceDead::Recovered => {
                "if that compute node is only busy, wait longer (lock_wait_max or lock_attempts_max in the options of \
                 an index); if it hangs, end its process (`farwood stat` shows who is connected): the locks of a dead \
                 one are taken over"
            }
            OnceDead::Lost => {
                "if that compute node is only busy, wait longer (lock_wait_max or lock_attempts_max in the options of \
                 an index); if it is dead (`farwood stat` shows who is connected), the node may be half written and \
                 stays locked: copy what `farwood scan` still reads into a new index, and drop this one"
            }
        }
    }
}

impl From<Failed> for LockError {
    fn from(failed: Failed) -> Self {
        LockError::Fabric(failed.into())
    }
}
