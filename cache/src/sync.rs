//! The atomics, locks and cells of the caches, and the sizes on which it depends how soon they change what readers are
//! in: `models/` compiles the same files with such whose every order can be explored, and with sizes so small that
//! they are.

pub(crate) use arc_swap::cache::Cache;
pub(crate) use arc_swap::{ArcSwap, ArcSwapOption, Guard};
pub(crate) use farwood_runtime::prefetch;
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Most nodes of a chunk of the B+trees' cache.
pub(crate) const NODES_MAX: usize = 64;

/// Segments of the radix cache are at least so big, bytes.
pub(crate) const SEGMENT_BYTES_MIN: usize = 4 << 10;

/// The square of a segment of its in bytes is about this often the budget, so that both grow: a 16th of 600 MB are
/// 570 segments of 64 KiB, one of which is emptied in some 100 us. Measured with 2 M keys on one shard: gets are 11 %
/// slower with half of it, and not faster with twice as much.
pub(crate) const SEGMENT_SCALE: usize = 32;

/// Nodes that can be left to the writer of a part of the radix cache.
pub(crate) const NOTES_MAX: usize = 8;
