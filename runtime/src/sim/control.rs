//! The control services of simulated memory servers: those of the embedded ones, answered some turns later, so that
//! clients of the same shard come in between.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use crate::control::{CatalogEntry, Chunk, Control, ControlError, IndexId, ServerInfo, ServerUsage};
use crate::memory::Cluster;
use crate::pointer::ServerId;

/// How many turns an answer takes at most.
const TURNS_MAX: u64 = 4;

/// Control services with slow answers.
pub(super) struct SlowControl {
    cluster: Arc<Cluster>,
    random: AtomicU64,
}

impl SlowControl {
    pub(super) fn new(cluster: Arc<Cluster>, seed: u64) -> Self {
        SlowControl { cluster, random: AtomicU64::new(seed | 1) }
    }

    fn late<T: 'static>(&self, answer: LocalBoxFuture<'static, T>) -> LocalBoxFuture<'static, T> {
        // Called on one thread only: the steps of a plain generator.
        let random = self.random.load(Ordering::Relaxed).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        self.random.store(random, Ordering::Relaxed);
        let turns = (random >> 33) % (TURNS_MAX + 1);
        async move {
            for _ in 0..turns {
                next_turn().await;
            }
            answer.await
        }
        .boxed_local()
    }
}

async fn next_turn() {
    let mut waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Control for SlowControl {
    fn servers(&self) -> &[ServerInfo] {
        self.cluster.servers()
    }

    fn chunk(
        &self,
        server: ServerId,
        index: IndexId,
    ) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
        self.late(self.cluster.chunk(server, index))
    }

    /// At once: nobody hears when it is done, and nothing random is drawn, whoever ends when.
    fn give_back(&self, index: IndexId, rest: Chunk) {
        self.cluster.give_back(index, rest);
    }

    fn create(
        &self,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        self.late(self.cluster.create(name, kind, config))
    }

    fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        self.late(self.cluster.open(name))
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        self.late(self.cluster.list())
    }

    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        self.late(self.cluster.drop_index(name))
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        self.late(self.cluster.usage())
    }
}
