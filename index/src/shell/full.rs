//! Writes that find no memory, where servers are full: memory that is out of the index already may be on its way back,
//! and is waited for. What takes it out, and when it is free, is not known here.

use farwood_runtime::alloc::AllocError;
use farwood_runtime::{Meter, Verbs};

use super::algorithm::Algorithm;
use super::handle::{Index, Local};
use crate::error::WriteError;
use crate::write_op::WriteOp;

/// The time in ns between two looks whether memory has come back.
const PAUSE_NS: u64 = 100_000;

pub(super) fn is_out_of_memory(error: &WriteError) -> bool {
    matches!(error, WriteError::Alloc(AllocError::OutOfMemory { .. }))
}

impl<A: Algorithm, V: Verbs> Index<A, V> {
    /// Writes as soon as memory that this shard has retired is free. Between the attempts the operation pins no epoch,
    /// which it would hold back. Fails with `full` if no memory is on its way, or not in time.
    #[cold]
    pub(super) async fn write_in_time(
        &self,
        meter: &Meter,
        key: &[u8],
        op: WriteOp<'_>,
        full: WriteError,
    ) -> Result<bool, WriteError> {
        tracing::debug!(name: "index.memory.awaited", "servers are full: memory may be on its way back");
        let local = self.local();
        let most_ns = u64::try_from(local.shared.options.lock_wait_max.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = local.verbs.now().saturating_add(most_ns);
        while local.memory_comes_back(until_ns).await {
            match Box::pin(self.try_write(meter, key, op)).await {
                Err(error) if is_out_of_memory(&error) => {}
                done => return done,
            }
        }
        Err(full)
    }
}

impl<A: Algorithm, V: Verbs> Local<A, V> {
    /// Waits until memory that this shard has retired is free. Yields false if none is on its way, or if an operation
    /// has waited for too long since the epoch moved on: a compute node holds it back, and others need not wait, too.
    async fn memory_comes_back(&self, until_ns: u64) -> bool {
        let before = self.allocator.reclaimed_bytes();
        while self.allocator.awaits_memory() && self.allocator.reclaimed_bytes() == before {
            let epoch = self.verbs.pins().retired_now();
            if self.verbs.now() >= until_ns {
                self.vain_epoch.set(epoch);
            }
            if self.vain_epoch.get() == epoch {
                return false;
            }
            A::look_after_memory(self);
            self.verbs.pause(PAUSE_NS).await;
        }
        self.allocator.reclaimed_bytes() > before
    }
}
