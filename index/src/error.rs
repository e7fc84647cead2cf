//! Errors of an index, for its users: one type for each kind of call, so that a call names what it can fail with, and
//! one for all of them. Contention, torn reads and stale cache entries are steps of an operation, not errors; they show
//! here only when a budget is spent.
//!
//! ```text
//!   AccessError  of every operation: the fabric, a lock, a node   survey, check
//!    + ReadError    a key that is too long                        get, multi_get, scan
//!       + WriteError   a value that is too long, no memory        put, insert, update, remove
//!          + LoadError    input that cannot be loaded             bulk_load
//!   OpenError    of the catalog and the sizes                     create, open
//!   IndexError   any of them
//! ```
//!
//! Each converts into those below it in that list.

use farwood_lock::LockError;
use farwood_runtime::alloc::AllocError;
use farwood_runtime::{ControlError, FabricError, Failed, RemotePtr};
use thiserror::Error;

use crate::layout::{LayoutError, Rejection};

/// Failures of reaching the nodes of an index, which every operation can have. Unless it says otherwise the index is
/// intact. A queue pair that breaks is no error by itself: reads are done again, and so are writes.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum AccessError {
    /// A chain failed, and doing it again would not help or did not.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A lock could not be had or given back.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Too many retries: the node is damaged, or contention exceeds what the budget was made for.
    #[error("gave up after {retries} retries at node {node}{}", .last.map(|r| format!(" ({r})")).unwrap_or_default())]
    RetriesExhausted { node: RemotePtr, retries: u32, last: Option<Rejection> },
    /// The tree breaks one of its own rules.
    #[error("node {node} breaks an invariant: {what}")]
    Corrupt { node: RemotePtr, what: String },
}

impl AccessError {
    /// Makes the error of a node that breaks a rule.
    pub fn corrupt(node: RemotePtr, what: impl ToString) -> Self {
        AccessError::Corrupt { node, what: what.to_string() }
    }

    /// Tells what [`WriteError::outcome_unknown`] tells of a put, insert, update or remove that failed so.
    ///
    /// ```
    /// # use farwood_index::AccessError;
    /// # use farwood_runtime::{FabricError, ServerId};
    /// let error = AccessError::from(FabricError::QueuePair { server: ServerId(0) });
    /// assert!(error.outcome_unknown());
    /// ```
    pub fn outcome_unknown(&self) -> bool {
        match self {
            AccessError::Lock(LockError::Contended { .. } | LockError::ShardEnded { .. }) => false,
            AccessError::Fabric(_)
            | AccessError::Lock(_)
            | AccessError::RetriesExhausted { .. }
            | AccessError::Corrupt { .. } => true,
        }
    }
}

impl From<Failed> for AccessError {
    fn from(failed: Failed) -> Self {
        AccessError::Fabric(failed.into())
    }
}

/// Failures of a get or a scan.
///
/// ```
/// # use farwood_index::ReadError;
/// # farwood_doctest::index!(|index| {
/// let error = index.get(b"nine bytes").await.unwrap_err();
/// assert_eq!(error, ReadError::KeyTooLong { len: 10, max: 8 });
/// # });
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ReadError {
    /// The key exceeds the index's maximum.
    #[error("the key has {len} bytes, this index takes {max} at most: create it with a larger max_key")]
    KeyTooLong { len: usize, max: usize },
    /// The fabric, a lock or a node.
    #[error(transparent)]
    Access(AccessError),
}

impl<E: Into<AccessError>> From<E> for ReadError {
    fn from(error: E) -> Self {
        ReadError::Access(error.into())
    }
}

/// Failures of a put, insert, update or remove. One that failed on the fabric has an unknown outcome
/// ([`WriteError::outcome_unknown`]), and may still take effect within seconds: what broke off half-way is completed in
/// the background if the server answers again.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum WriteError {
    /// The key exceeds the index's maximum. Nothing is ever truncated.
    #[error("the key has {len} bytes, this index takes {max} at most: create it with a larger max_key")]
    KeyTooLong { len: usize, max: usize },
    /// The value exceeds the index's maximum.
    #[error("the value has {len} bytes, this index takes {max} at most: create it with a larger max_value")]
    ValueTooLong { len: usize, max: usize },
    /// No memory for a node. The operation had no effect.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The fabric, a lock or a node.
    #[error(transparent)]
    Access(AccessError),
}

impl WriteError {
    /// Tells whether a put, insert, update or remove that failed so may have taken effect all the same, or may do so
    /// within seconds. If not, it had no effect and never will: it can be done again without looking.
    ///
    /// ```
    /// # use farwood_index::WriteError;
    /// # use farwood_runtime::{FabricError, ServerId};
    /// # farwood_doctest::index!(|index| {
    /// let error = index.put(b"anna", b"nine bytes").await.unwrap_err();
    /// assert_eq!(error, WriteError::ValueTooLong { len: 10, max: 8 });
    /// assert!(!error.outcome_unknown());
    ///
    /// let broken = FabricError::QueuePair { server: ServerId(0) };
    /// assert!(WriteError::from(broken).outcome_unknown());
    /// # });
    /// ```
    pub fn outcome_unknown(&self) -> bool {
        match self {
            WriteError::Access(error) => error.outcome_unknown(),
            WriteError::KeyTooLong { .. } | WriteError::ValueTooLong { .. } | WriteError::Alloc(_) => false,
        }
    }
}

impl<E: Into<ReadError>> From<E> for WriteError {
    fn from(error: E) -> Self {
        match error.into() {
            ReadError::KeyTooLong { len, max } => WriteError::KeyTooLong { len, max },
            ReadError::Access(error) => WriteError::Access(error),
        }
    }
}

/// Failures of a bulk load. Readers see all of its pairs or none, then too.
///
/// ```
/// # use farwood_index::LoadError;
/// # farwood_doctest::index!(|index| {
/// let pairs = [("berta", "2"), ("anna", "1")];
/// assert_eq!(index.bulk_load(pairs, 0.8).await, Err(LoadError::Unsorted { position: 1 }));
/// index.put(b"clara", b"3").await?;
/// assert_eq!(index.bulk_load([("dora", "4")], 0.8).await, Err(LoadError::NotEmpty));
/// # });
/// ```
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum LoadError {
    /// Bulk loading needs an index that nothing was ever written to.
    #[error("bulk_load needs an empty index: use put, or create a new one")]
    NotEmpty,
    /// The input does not ascend strictly.
    #[error("the input of bulk_load is not in ascending order at pair {position} (counted from 0)")]
    Unsorted { position: u64 },
    /// A fill outside (0, 1].
    #[error("a fill of {fill} is not in (0, 1]")]
    Fill { fill: f64 },
    /// A pair could not be written.
    #[error(transparent)]
    Write(WriteError),
}

impl<E: Into<WriteError>> From<E> for LoadError {
    fn from(error: E) -> Self {
        LoadError::Write(error.into())
    }
}

/// Reasons why memory that no node of an index lies in is not given back.
///
/// ```
/// # use farwood_index::{CheckOptions, GiveBackError};
/// # farwood_doctest::index!(|index| {
/// index.put(b"anna", b"1").await?;
/// let report = index.check(&CheckOptions::default()).await?;
/// assert_eq!(index.give_back(&report).await, Err(GiveBackError::HandleUsed));
/// # });
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum GiveBackError {
    /// The index is damaged: it is not known which memory it reaches.
    #[error(
        "{violations} broken invariants and {torn} torn nodes: what memory the index reaches is not known"
    )]
    NotIntact { violations: u64, torn: u64 },
    /// Dead compute nodes hold locks: what they had begun may lead to nodes that nothing else leads to.
    #[error(
        "{locks} lock(s) of compute nodes that are gone could not be taken over: what these had begun may lead there"
    )]
    LocksOfTheDead { locks: u64 },
    /// Other clients may have the memory in their lists, or addresses there in their caches.
    #[error("{others} other client(s) are connected, and may hold it: stop them first")]
    OthersConnected { others: u32 },
    /// Another client has come since the check began, and may have changed what is reached.
    #[error("another client has been there meanwhile: try again when no other client is connected")]
    OthersCame,
    /// The handle was used for more than checks, and so may have the memory in its own lists.
    #[error("the handle was used for more than checks: open the index anew")]
    HandleUsed,
    /// The memory servers have not said what they have handed out.
    #[error("the memory servers have not said what they have handed out for the index")]
    Unknown,
    /// A memory server refused, or did not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Reasons why lost memory is not looked for, or not given back, while clients work.
///
/// ```
/// # use farwood_index::SweepError;
/// let late = SweepError::Late { nodes: vec![3] };
/// assert!(late.to_string().starts_with("compute nodes [3] have not"));
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum SweepError {
    /// This kind of index cannot be walked while clients work.
    #[error(
        "indexes of this kind are not swept while clients work: check it when no other client is connected"
    )]
    Unsupported,
    /// Compute nodes have not said what is in their lists: their processes are stopped, or a client that asked for
    /// memory does not take it.
    #[error("compute nodes {nodes:?} have not said in time what memory they have in their lists")]
    Late { nodes: Vec<u16> },
    /// The cluster's epoch did not move on.
    #[error(
        "operations that had begun before did not end in time: `farwood stat` names who holds the epoch back"
    )]
    Epoch,
    /// Dead compute nodes hold locks: what they had begun may lead to nodes that nothing else leads to.
    #[error(
        "{locks} lock(s) of compute nodes that are gone could not be taken over: what these had begun may lead there"
    )]
    LocksOfTheDead { locks: u64 },
    /// The list of pages for intents is damaged.
    #[error("the list of the index's pages for intents does not come to an end")]
    Intents,
    /// Processes have ended, again and again, that had not said what is in their lists.
    #[error("processes that work on the index have ended meanwhile, each time that it was swept: try again")]
    Void,
    /// A memory server could not be read, or the index is damaged.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A memory server refused, or did not answer.
    #[error(transparent)]
    Control(ControlError),
}

impl From<ControlError> for SweepError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::SweepVoid => SweepError::Void,
            error => SweepError::Control(error),
        }
    }
}

/// Failures of creating an index, or of opening one.
///
/// ```
/// # use farwood_index::{OpenError, Sherman, Smart};
/// # farwood_doctest::run(async |node, _| {
/// Smart::create(&node, "words", Default::default(), Default::default()).await?;
/// let opened = Sherman::open(&node, "words", Default::default()).await;
/// assert!(matches!(opened, Err(OpenError::WrongKind { kind, .. }) if kind == "smart"));
/// # Ok(()) });
/// ```
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum OpenError {
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
}

/// Failures of any call of an index, for functions that make calls of several kinds: `?` converts each.
///
/// ```
/// # use farwood_index::{IndexError, LoadError, RangeIndex};
/// async fn fill(index: &impl RangeIndex) -> Result<(), IndexError> {
///     index.put(b"anna", b"1").await?;
///     index.survey().await?;
///     index.bulk_load([("berta", "2")], 1.0).await?;
///     Ok(())
/// }
/// # farwood_doctest::index!(|index| {
/// assert_eq!(fill(&index).await, Err(IndexError::Load(LoadError::NotEmpty)));
/// # });
/// ```
#[derive(Clone, Debug, Error, PartialEq)]
#[error(transparent)]
#[non_exhaustive]
pub enum IndexError {
    /// Of a survey or a check.
    Access(#[from] AccessError),
    /// Of a get or a scan.
    Read(#[from] ReadError),
    /// Of a put, insert, update or remove.
    Write(#[from] WriteError),
    /// Of a bulk load.
    Load(#[from] LoadError),
    /// Of creating or opening an index.
    Open(#[from] OpenError),
}

impl IndexError {
    /// Tells what [`WriteError::outcome_unknown`] tells of a write, or of one of a bulk load. No other call changes
    /// pairs.
    ///
    /// ```
    /// # use farwood_index::{IndexError, LoadError, WriteError};
    /// # use farwood_runtime::{FabricError, ServerId};
    /// let broken = WriteError::from(FabricError::QueuePair { server: ServerId(0) });
    /// assert!(IndexError::Write(broken).outcome_unknown());
    /// assert!(!IndexError::Load(LoadError::NotEmpty).outcome_unknown());
    /// ```
    pub fn outcome_unknown(&self) -> bool {
        match self {
            IndexError::Write(error) | IndexError::Load(LoadError::Write(error)) => error.outcome_unknown(),
            _ => false,
        }
    }

    /// Yields the failure of the fabric, a lock or a node, whatever the call, if it was one.
    ///
    /// ```
    /// # use farwood_index::{AccessError, IndexError, LoadError, ReadError};
    /// # use farwood_runtime::{FabricError, ServerId};
    /// let broken = FabricError::QueuePair { server: ServerId(0) };
    /// let error = IndexError::Read(ReadError::from(broken.clone()));
    /// assert_eq!(error.access(), Some(&AccessError::Fabric(broken)));
    /// assert_eq!(IndexError::Load(LoadError::NotEmpty).access(), None);
    /// ```
    pub fn access(&self) -> Option<&AccessError> {
        match self {
            IndexError::Access(error)
            | IndexError::Read(ReadError::Access(error))
            | IndexError::Write(WriteError::Access(error))
            | IndexError::Load(LoadError::Write(WriteError::Access(error))) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use farwood_lock::OnceDead;
    use farwood_runtime::{ServerId, ShardId};

    use super::*;
    use crate::range_index::Pair;
    use crate::value::Value;

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
            once_dead: OnceDead::Lost,
            attempts: 1,
            waited_ns: 1,
        };
        let gone = ControlError::ServerGone { server };
        for (error, is_unknown) in [
            (WriteError::from(broken.clone()), true),
            (LockError::Fabric(broken).into(), true),
            (AccessError::RetriesExhausted { node, retries: 1, last: None }.into(), true),
            (AccessError::Corrupt { node, what: String::new() }.into(), true),
            (contended.into(), false),
            (LockError::ShardEnded { shard: ShardId(0) }.into(), false),
            (WriteError::Alloc(AllocError::Control(gone)), false),
            (ReadError::KeyTooLong { len: 9, max: 8 }.into(), false),
            (WriteError::ValueTooLong { len: 9, max: 8 }, false),
        ] {
            assert_eq!(error.outcome_unknown(), is_unknown, "{error}");
        }
    }

    /// Converting an error neither changes its message nor loses its cause.
    #[test]
    fn errors_of_one_call_are_errors_of_larger_ones() {
        let access = AccessError::Fabric(FabricError::QueuePair { server: ServerId(3) });
        let read = ReadError::from(access.clone());
        let write = WriteError::from(read.clone());
        let load = LoadError::from(write.clone());
        for error in [access.clone().into(), read.into(), write.into(), IndexError::from(load)] {
            assert_eq!((error.access(), error.to_string()), (Some(&access), access.to_string()));
        }
        let long = ReadError::KeyTooLong { len: 9, max: 8 };
        assert_eq!(LoadError::from(long.clone()).to_string(), long.to_string());
        assert_eq!(IndexError::from(long).access(), None);
    }

    /// Futures of operations carry their results, and each await moves one: these are the sizes of when all calls had
    /// one error, of 64 bytes.
    #[test]
    fn errors_make_results_no_larger() {
        assert!(size_of::<ReadError>() <= 56 && size_of::<WriteError>() <= 64);
        assert!(
            size_of::<Result<Option<Value>, ReadError>>() <= 64 && size_of::<Result<Pair, ReadError>>() <= 72
        );
    }
}
