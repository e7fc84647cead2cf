//! Parties to be resumed: a client of the shard's own pool by its key, or any other task by its waker.

use std::task::Waker;

/// A party that waits for something on its shard. Made by [`crate::verbs::Verbs::waiter`], consumed by
/// [`crate::verbs::Verbs::wake`]. Waking one that waits no longer is harmless.
#[derive(Debug)]
pub enum Waiter {
    /// A client of the shard's pool: resumed by its key, without touching a waker.
    Client(u32),
    /// A task of whatever executor polls it.
    Task(Waker),
}
