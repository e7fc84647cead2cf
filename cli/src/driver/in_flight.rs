//! Operations in flight that can be given up: one may wait for a lock, or a server, that never comes. An index
//! operation that is dropped cleans up behind itself.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use farwood::runtime::Waiter;

use crate::driver::bench_shard::BenchShard;

/// Time that operations may still take when their run is cut short, in ns.
pub(crate) const PATIENCE_NS: u64 = 200_000_000;

/// The operations in flight of one shard's clients.
#[derive(Default)]
pub(crate) struct InFlight {
    abandoned: Cell<bool>,
    /// Clients to be woken when their operations are abandoned.
    clients: RefCell<Vec<Waiter>>,
}

impl InFlight {
    /// Registers the client that this runs in, to be woken when operations are abandoned. Called once, before its first
    /// one.
    pub(crate) async fn enlist<V: BenchShard>(&self, shard: &V) {
        let waiter = poll_fn(|cx| Poll::Ready(shard.waiter(cx))).await;
        self.clients.borrow_mut().push(waiter);
    }

    /// Runs the `operations` of one client, one after another. Yields their result; `None` if they were abandoned.
    ///
    /// The client's loop is wrapped as one: an operation's future takes kilobytes, and wrapping each would move it.
    pub(crate) fn until_abandoned<'a, F: Future>(
        &'a self,
        operations: Pin<&'a mut F>,
    ) -> UntilAbandoned<'a, F> {
        UntilAbandoned { abandoned: &self.abandoned, operations }
    }

    /// Abandons the operations that have not ended.
    pub(crate) fn abandon<V: BenchShard>(&self, shard: &V) {
        self.abandoned.set(true);
        self.clients.take().into_iter().for_each(|client| shard.wake(client));
    }
}

/// The future of [`InFlight::until_abandoned`].
pub(crate) struct UntilAbandoned<'a, F> {
    abandoned: &'a Cell<bool>,
    operations: Pin<&'a mut F>,
}

impl<F: Future> Future for UntilAbandoned<'_, F> {
    type Output = Option<F::Output>;

    // All that clients run is polled through here: a call would be one more for each poll of an operation.
    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.operations.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.abandoned.get() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
