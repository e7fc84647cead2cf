//! Farwood's ordered indexes in disaggregated memory, over the one seam [`farwood_runtime::Verbs`].
//!
//! A map:
//!
//! - [`range_index`]: [`RangeIndex`], what every index does; [`KeyRange`], what scans take; [`registry`]: all kinds
//!   behind one type.
//! - [`shell`]: what all share around their algorithms: create, open, attach, checks, metering, options, techniques.
//! - [`sherman`]: the B+tree of the Sherman paper; [`smart`]: the radix tree of the SMART paper; [`chime`]: the B+tree
//!   of the CHIME paper, whose leaves are hopscotch tables; [`dolphin`]: the Dolphin paper's radix nodes above
//!   leaves of ranges. Their `mod.rs` tabulate their round trips.
//! - `btree`: what B+trees have above their leaves; its `mod.rs` tabulates what a tree supplies.
//! - [`check`]: what a check of an index at rest finds.
//! - [`layout`]: node formats as pure code over bytes: views, builders, patches.
//! - `step`: what an operation does next, as a value, and the [`Budget`] that bounds it.
//! - [`error`], [`stats`], [`value`]: what users see.
//!
//! Nothing here knows an executor, a clock or a fabric.
#![forbid(unsafe_code)]

// An index may call this crate by its name wherever its file lies (docs/own-index.md).
extern crate self as farwood_index;

mod btree;
pub mod check;
pub mod chime;
pub mod dolphin;
pub mod error;
mod key_range;
pub mod layout;
mod memory;
pub mod range_index;
pub mod registry;
pub mod shell;
pub mod sherman;
pub mod smart;
pub mod stats;
mod step;
pub mod value;
pub mod write_op;

pub use check::{CheckOptions, CheckReport, Violation};
pub use chime::{Chime, ChimeIndex};
pub use dolphin::{Dolphin, DolphinIndex};
pub use error::{
    AccessError, GiveBackError, IndexError, LoadError, OpenError, ReadError, SweepError, WriteError,
};
pub use farwood_lock::Backoff;
pub use farwood_runtime::Extents;
pub use key_range::KeyRange;
pub use layout::Bytes;
pub use memory::{Marks, MemoryFault, MemoryReport};
pub use range_index::{Pair, RangeIndex, Scan, TreeShape};
pub use registry::{AnyIndex, AnyTree, IndexKind, IndexSpec};
pub use shell::sweep::SweepReport;
pub use shell::{Algorithm, Limits, Nodes, Switches};
pub use sherman::{Sherman, ShermanIndex};
pub use smart::{Smart, SmartIndex};
pub use stats::{IndexStats, KindStats, MemoryStats, OpKind};
pub use step::Budget;
pub use value::Value;
