//! Operations in flight that can be given up: one may wait for a lock, or a server, that never comes. What is dropped
//! of an index cleans up behind itself.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use farwood::runtime::Waiter;

use crate::driver::bench_shard::BenchShard;

/// The time that operations may still take when their run is cut short, in ns.
pub(crate) const PATIENCE_NS: u64 = 200_000_000;

/// The operations in flight of one shard's clients.
#[derive(Default)]
pub(crate) struct InFlight {
    abandoned: Cell<bool>,
    /// Clients to be woken when their operations are abandoned.
    clients: RefCell<Vec<Waiter>>,
}

impl InFlight {
    /// The client that this runs in is woken when operations are abandoned. Once, before its first one.
    pub(crate) async fn enlist<V: BenchShard>(&self, shard: &V) {
        let waiter = poll_fn(|cx| Poll::Ready(shard.waiter(cx))).await;
        self.clients.borrow_mut().push(waiter);
    }

    /// Runs `operations`, one client's, one after another. Yields their result; `None` if they were abandoned.
    ///
    /// The client's loop is wrapped as one: an operation's future takes kilobytes, and wrapping each would move it.
    pub(crate) async fn until_abandoned<T>(&self, operations: impl Future<Output = T>) -> Option<T> {
        let mut operations = pin!(operations);
        poll_fn(|cx| match operations.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.abandoned.get() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Gives up what has not ended.
    pub(crate) fn abandon<V: BenchShard>(&self, shard: &V) {
        self.abandoned.set(true);
        self.clients.take().into_iter().for_each(|client| shard.wake(client));
    }
}
