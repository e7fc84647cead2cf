//! The atomics of the protocols that are modelled: `models/` compiles the same files with atomics whose every order can
//! be explored.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
