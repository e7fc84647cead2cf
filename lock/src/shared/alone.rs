//! The lock alone: what is added to a [`Held`] lock where others may share it, which is to wait for them.

use std::ops::Range;

use farwood_runtime::{Buf, Chain, Completion, Meter, Verbs};

use super::words::LockWords;
use super::{SharedLocks, Sharing};
use crate::backoff::LONG_NS;
use crate::error::LockError;
use crate::held::{Held, add_reads};

impl<V: Verbs> SharedLocks<V> {
    /// Takes the global lock alone, and reads those parts of the node, each to where it is in the node. The first part
    /// has the lock's words, and is read before the others: what is in these has not changed since the lock is held.
    ///
    /// With `fused` one round trip per attempt; otherwise the CAS goes alone, and the READs follow in one more. While
    /// others share the lock one for each look at it, which reads all parts.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node, node).await?;
    /// let read = locks.lock_and_read(&meter, &mut held, shard.lease(64), &[0..16, 16..64], true).await?;
    /// assert_eq!((read.into_buf().len(), meter.usage().round_trips), (64, 1));
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::lock_and_read`]. The owner in the error may be a compute node that shares the lock.
    ///
    /// # Panics
    /// If the first part does not have all words of the lock.
    pub async fn lock_and_read(
        &self,
        meter: &Meter,
        held: &mut Held<V>,
        buf: Buf,
        parts: &[Range<usize>],
        fused: bool,
    ) -> Result<Completion, LockError> {
        self.0.lock_and_read(meter, held, buf, parts, fused).await
    }
}

impl<V: Verbs> Sharing<V> {
    pub(super) async fn lock_and_read(
        &self,
        meter: &Meter,
        held: &mut Held<V>,
        buf: Buf,
        parts: &[Range<usize>],
        fused: bool,
    ) -> Result<Completion, LockError> {
        let done = held.lock_and_read_parts(meter, buf, parts, fused).await?;
        let Some(lane) = self.sharer(held, &done, parts) else { return Ok(done) };
        self.counters.count(|stats| stats.awaited += 1);
        tracing::debug!(name: "lock.shared.awaited", lock = %held.word(), lane, "a lock is shared: a client waits");
        self.await_sharers(meter, held, done.into_buf(), parts).await
    }

    /// Yields a lane whose shard shared the lock when the parts were read.
    fn sharer(&self, held: &Held<V>, done: &Completion, parts: &[Range<usize>]) -> Option<u16> {
        let words = self.words_in(held.node(), held.word(), parts);
        let buf = done.buf.as_ref().expect("the parts were read into a buffer");
        LockWords::new(&buf[words]).lanes().next()
    }

    /// Reads the parts until no client shares the lock. None comes in addition, since the word is taken.
    async fn await_sharers(
        &self,
        meter: &Meter,
        held: &Held<V>,
        mut buf: Buf,
        parts: &[Range<usize>],
    ) -> Result<Completion, LockError> {
        let (table, at) = (self.table(), (held.node(), held.word()));
        let (mut looks, mut failures) = (0, 0);
        let since_ns = table.verbs.now();
        loop {
            let unchanged_ns = table.verbs.now() - since_ns;
            table.verbs.pause(table.pauses.after_cas(looks + 1, unchanged_ns, table.verbs.random())).await;
            let mut chain = Chain::with_buffer(at.0.server(), buf);
            add_reads(&mut chain, at.0, parts);
            let done = match table.verbs.submit(meter, chain).await {
                Ok(done) => done,
                Err(failed) => {
                    failures += 1;
                    buf =
                        table.again(meter, failed, failures).await?.expect("a READ is posted with a buffer");
                    continue;
                }
            };
            if self.sharer(held, &done, parts).is_none() {
                meter.waits_no_more();
                return Ok(done);
            }
            if unchanged_ns >= LONG_NS {
                let words = self.words_in(at.0, at.1, parts);
                let found = LockWords::new(&done.buf.as_ref().expect("it was read into a buffer")[words]);
                // If that fails, the next look tells.
                let _ = self.bury(meter, at.1, found).await;
            }
            (buf, failures, looks) = (done.into_buf(), 0, looks + 1);
            meter.retry();
            if looks >= table.config.attempts_max || table.patience.spent(&table.verbs, meter).1 {
                return Err(self.overdue(meter, at, looks).await);
            }
        }
    }
}
