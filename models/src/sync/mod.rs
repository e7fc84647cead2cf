//! `crate::sync` of the files that are modelled: atomics and cells whose every order loom explores, and sizes so small
//! that little happens before they matter.

mod atomics;
mod cells;

pub(crate) use loom::sync::{Mutex, MutexGuard};

pub(crate) use self::atomics::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, compiler_fence, fence, killed_at,
};
pub use self::atomics::{Ordering, Weakening, weakened};
pub(crate) use self::cells::{ArcSwap, ArcSwapOption, Cache, Guard};

/// Most nodes of a chunk of the B+trees' cache: the fifth node divides it.
pub(crate) const NODES_MAX: usize = 4;
/// Smallest segment of the radix cache: a few copies.
pub(crate) const SEGMENT_BYTES_MIN: usize = 128;
/// The square of a segment's bytes is about this often the budget: small segments, which are soon reused.
pub(crate) const SEGMENT_SCALE: usize = 8;
/// Nodes that can be left to the radix cache's writer: no model leaves it more.
pub(crate) const NOTES_MAX: usize = 1;

/// Does nothing: models have no use for the hint.
pub(crate) fn prefetch<T: ?Sized>(_: *const T) {}
