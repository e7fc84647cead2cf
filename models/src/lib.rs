//! Models of the state that threads and processes share without locks: the very files of `runtime` and `cache`,
//! compiled with atomics whose every order loom explores, orders of weakly ordered CPUs included. A simulation of one
//! thread cannot see such mistakes, and a stress test on x86 sees few.
//!
//! ```text
//! epochs       runtime/src/epoch/                no operation reads what is used again
//! parking      runtime/src/shard/parking.rs      no message meets a shard that falls asleep
//! line         runtime/src/mapped/order.rs       no reader takes a torn line; what the dead leave is finished, once
//! radix_cache  cache/src/radix/                  a lookup sees one copy as it was at one moment; what has to go goes
//! btree_cache  cache/src/{reader,level,..}.rs    a lookup finds what is there, and nothing older than before
//! ```
//!
//! Why loom: it models the orderings of C11, so that a fence or an Acquire that is missing is found. shuttle, which
//! scales better, runs all atomics as sequentially consistent. Each model has controls: weakened by
//! [`sync::Weakening`], it must fail.
//!
//! Where one thread reads what another writes, the writer is the thread that goes first. loom remembers one access to
//! each atomic, the last: a writer that loads an atomic before it stores to it hides a reader that came before, and the
//! other order of these two is not explored.

#![forbid(unsafe_code)]

/// Stands for the runtime, from which the caches take what is at the root of this crate.
extern crate self as farwood_runtime;

pub mod btree_cache;
pub mod epochs;
pub mod line;
pub mod parking;
pub mod radix_cache;
pub mod sync;

use pointer::{RemotePtr, ServerId};
use sync::prefetch;

/// The modules that the cache's files expect of their crate.
#[path = "../../cache/src/eviction/mod.rs"]
#[expect(unreachable_pub, reason = "the caches need the names of the policies")]
mod eviction;

#[path = "../../cache/src/radix/mod.rs"]
#[expect(dead_code, unreachable_pub, unused_imports, reason = "the rest of it is for the index")]
mod radix;

#[path = "../../cache/src/stats.rs"]
#[expect(unreachable_pub, reason = "the caches yield them")]
mod stats;

#[path = "../../runtime/src/pointer.rs"]
#[expect(dead_code, unreachable_pub, reason = "the cache has a use for half of it")]
mod pointer;

#[path = "../../cache/src/children.rs"]
mod children;

#[path = "../../cache/src/chunk.rs"]
mod chunk;

#[path = "../../cache/src/directory.rs"]
mod directory;

#[path = "../../cache/src/key_list.rs"]
mod key_list;

#[path = "../../cache/src/keys/mod.rs"]
mod keys;

#[path = "../../cache/src/level.rs"]
mod level;

#[path = "../../cache/src/node.rs"]
#[expect(unreachable_pub, reason = "indexes make images")]
mod node;

#[path = "../../cache/src/node_cache/mod.rs"]
#[expect(dead_code, unreachable_pub, reason = "the rest of it is for the index")]
mod node_cache;

#[path = "../../cache/src/reader.rs"]
#[expect(dead_code, unreachable_pub, reason = "the rest of it is for the index")]
mod reader;
