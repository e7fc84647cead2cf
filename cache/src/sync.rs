//! The atomics of the radix cache, and the least size of its segments: `models/` compiles the same files with atomics
//! whose every order can be explored, and with segments so small that they are.

pub(crate) use farwood_runtime::prefetch;
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Segments of the radix cache are at least so big, bytes.
pub(crate) const SEGMENT_BYTES_MIN: usize = 4 << 10;
