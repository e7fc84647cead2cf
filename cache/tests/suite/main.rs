//! The caches through their public interface: a file per subject. Programs of their own have the tests that need all
//! cores (`concurrent_readers.rs`, `radix_concurrent.rs`) and those that count the bytes of the process (`memory.rs`,
//! `radix_memory.rs`).

#[path = "../radix_kit/keys.rs"]
mod keys;
#[path = "../radix_kit/node.rs"]
mod node;
#[path = "../radix_kit/mod.rs"]
mod radix_kit;

mod radix_amend_cost;
mod radix_eviction;
mod radix_find;
mod scan_hints;
