//! The shell around the algorithms of all indexes. It knows no algorithm: those implement [`Algorithm`], and the
//! registry names them.
//!
//! - [`algorithm`]: the part that differs from kind to kind; [`techniques`]: its switches.
//! - [`handle`]: [`Tree`], an index as a compute node sees it, and [`Index`], the handle of one shard's clients;
//!   [`options`]: how a compute node works on it.
//! - `accounts`: checks, with the accounts of the memory, and giving back what was lost of it.
//! - [`nodes`]: READs, locks, and nodes that nothing refers to yet.
//! - `bulk`: the nodes that a bulk load writes.
//! - [`scan`]: scans as streams of windows.
//! - `meeting`: the locks and windows in which clients of an index meet.
//! - `coalescing`: one client's work done for several: read delegation, write combining.
//! - `flushes`: when caches are emptied.
//! - `merging`: which leaves are merged, and what becomes of a frozen one.
//! - `sweep`: finding lost memory while clients work.
//! - `full`: writes that find no memory, and wait for some that comes back.

mod accounts;
pub mod algorithm;
pub(crate) mod bulk;
mod coalescing;
pub(crate) mod flushes;
mod full;
pub mod handle;
mod meeting;
pub(crate) mod merging;
pub mod nodes;
pub mod options;
pub mod scan;
pub mod sweep;
pub mod techniques;

pub use algorithm::{Algorithm, Filled, Geometry, Limits, Nodes, Trial};
pub use handle::{Index, Local, Shared, Tree};
pub use nodes::NewNodes;
pub use options::Options;
pub use techniques::Switches;
