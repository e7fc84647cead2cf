//! Errors of an index, for its users. Contention, torn reads and stale cache entries are steps of an operation, not
//! errors; they show here only when a budget is spent.

use farwood_lock::LockError;
use farwood_runtime::alloc::AllocError;
use farwood_runtime::{ControlError, FabricError, Failed, RemotePtr};
use thiserror::Error;

use crate::layout::{LayoutError, Rejection};

/// Why an operation failed. Unless it says otherwise the index is intact. An operation that failed on the fabric has an
/// unknown outcome ([`IndexError::outcome_unknown`]), and a write may still take effect within seconds: what broke off
/// half-way is completed in the background if the server answers again. A queue pair that breaks is no error by itself:
/// reads are done again, and so are writes.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum IndexError {
    /// The key exceeds the index's maximum. Nothing is ever truncated.
    #[error("the key has {len} bytes, this index takes {max} at most: create it with a larger max_key")]
    KeyTooLong { len: usize, max: usize },
    /// The value exceeds the index's maximum.
    #[error("the value has {len} bytes, this index takes {max} at most: create it with a larger max_value")]
    ValueTooLong { len: usize, max: usize },
    /// No memory for a node. The operation had no effect.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A chain failed, and doing it again would not help or did not; the operation may or may not have taken effect.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A lock could not be had or given back.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The control service refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The sizes asked for make no node.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The catalog holds something else under that name.
    #[error("the index {name:?} is of kind {kind:?}: open it as such")]
    WrongKind { name: String, kind: String },
    /// The catalog's configuration of the index cannot be read.
    #[error("the configuration of index {name:?} in the catalog is unreadable: {cause}")]
    Config { name: String, cause: String },
    /// The cluster is not one that this kind of index can work on.
    #[error("{what}")]
    Cluster { what: String },
    /// Too many retries: the node is damaged, or contention exceeds what the budget was made for.
    #[error("gave up after {retries} retries at node {node}{}", .last.map(|r| format!(" ({r})")).unwrap_or_default())]
    RetriesExhausted { node: RemotePtr, retries: u32, last: Option<Rejection> },
    /// The tree breaks one of its own rules.
    #[error("node {node} breaks an invariant: {what}")]
    Corrupt { node: RemotePtr, what: String },
    /// Bulk loading needs an index that nothing was ever written to.
    #[error("bulk_load needs an empty index: use put, or create a new one")]
    NotEmpty,
    /// The input of a bulk load does not ascend strictly.
    #[error("the input of bulk_load is not in ascending order at pair {position} (counted from 0)")]
    Unsorted { position: u64 },
    /// A fill outside (0, 1].
    #[error("a fill of {fill} is not in (0, 1]")]
    Fill { fill: f64 },
}

impl IndexError {
    /// Tells whether a put, insert, update or remove that failed so may have taken effect all the same, or may do so
    /// within seconds. If not, it had no effect and never will: it can be done again without looking. Of creating,
    /// opening and loading an index it says nothing.
    pub fn outcome_unknown(&self) -> bool {
        match self {
            IndexError::Lock(LockError::Contended { .. } | LockError::ShardEnded { .. }) => false,
            IndexError::Fabric(_)
            | IndexError::Lock(_)
            | IndexError::Control(_)
            | IndexError::RetriesExhausted { .. }
            | IndexError::Corrupt { .. } => true,
            IndexError::KeyTooLong { .. }
            | IndexError::ValueTooLong { .. }
            | IndexError::Alloc(_)
            | IndexError::Layout(_)
            | IndexError::WrongKind { .. }
            | IndexError::Config { .. }
            | IndexError::Cluster { .. }
            | IndexError::NotEmpty
            | IndexError::Unsorted { .. }
            | IndexError::Fill { .. } => false,
        }
    }
}

impl From<Failed> for IndexError {
    fn from(failed: Failed) -> Self {
        IndexError::Fabric(failed.into())
    }
}

#[cfg(test)]
mod tests {
    use farwood_runtime::{ServerId, ShardId};

    use super::*;

    #[test]
    fn only_the_fabric_leaves_it_open_what_a_write_did() {
        let server = ServerId(0);
        let broken = FabricError::QueuePair { server };
        let node = RemotePtr::new(server, 64);
        let contended = LockError::Contended {
            index: "x".into(),
            node,
            lock: node,
            owner: 1,
            other_index: false,
            attempts: 1,
            waited_ns: 1,
        };
        for (error, is_unknown) in [
            (IndexError::Fabric(broken.clone()), true),
            (IndexError::Lock(LockError::Fabric(broken)), true),
            (IndexError::RetriesExhausted { node, retries: 1, last: None }, true),
            (IndexError::Corrupt { node, what: String::new() }, true),
            (IndexError::Lock(contended), false),
            (IndexError::Lock(LockError::ShardEnded { shard: ShardId(0) }), false),
            (IndexError::KeyTooLong { len: 9, max: 8 }, false),
            (IndexError::NotEmpty, false),
        ] {
            assert_eq!(error.outcome_unknown(), is_unknown, "{error}");
        }
    }
}
