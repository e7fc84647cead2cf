//! The release of a rear lock (SMART section 4.1.1): one WRITE for the data and for the word behind it. What becomes of
//! its chain is as with every other release.

use std::future::poll_fn;
use std::ops::Range;

use farwood_runtime::{Buf, Chain, Meter, RemotePtr, Verbs};

use super::{Held, LINE_BYTES, PendingRelease, UnlockMode, without_intent};
use crate::error::LockError;
use crate::word::WORD_BYTES;

impl<V: Verbs> Held<V> {
    /// Writes back what ends where an embedded lock word begins ([`crate::LockTable::acquire_embedded`]), and
    /// releases: one round trip. It is the rear lock of the SMART paper (section 4.1.1): one WRITE both stores the
    /// data and clears the word.
    ///
    /// `data` is that part of `buf`, which comes back; the word's place in `buf` is the 8 bytes behind `data`, of any
    /// content before and after. In the node, `data` goes right before the word.
    ///
    /// If the lock is handed over to a waiter, only `data` is written. Where lines of one WRITE may become visible in
    /// any order, the unlock is a WRITE of its own behind it in the chain, unless all is within one line:
    ///
    /// ```text
    ///   holder   WRITE line 0, line 1 with the word: line 1 arrives ······························ line 0 arrives: X
    ///   other                                        CAS wins, READ line 0 (old), WRITE X to line 0 ──^ is lost
    /// ```
    ///
    /// A chain that fails is redone as in [`Held::release`]. A single WRITE that cleared the word has arrived whole,
    /// as the word is its last; one that did not has cleared nothing, whatever of its lines arrived, so the lock is
    /// ours and they may be written again:
    ///
    /// ```text
    ///   holder   WRITE lines 0, 1, 2 ✗   READ word
    ///     lines 0, 1, 2 arrived                free, or another's: done; line 0 may be the next holder's by now
    ///     none, line 0, or lines 0, 1          ours: no other client wrote to the node; WRITE lines 0, 1, 2
    /// ```
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire_embedded(&meter, node, node.add(56)).await?;
    /// let mut buf = held.lock_and_read(&meter, shard.lease(64), 64, true).await?.into_buf();
    /// buf[..8].copy_from_slice(b"new data");
    /// held.release_rear(&meter, buf, 0..56).await?;
    /// assert_eq!(meter.usage().round_trips, 2);
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::release`].
    ///
    /// # Panics
    /// Without the global lock, if `data` is empty or the word's place is not in `buf`, or after
    /// [`Held::with_unpublished_prefix`], which is about several WRITEs.
    pub async fn release_rear(
        mut self,
        meter: &Meter,
        buf: Buf,
        data: Range<usize>,
    ) -> Result<Buf, LockError> {
        let claim = self.release_claim().expect("a write-back needs the global lock");
        assert!(!data.is_empty(), "without data there is nothing to write back: use `release`");
        assert!(data.end + WORD_BYTES <= buf.len(), "the lock word's place is behind the data in the buffer");
        assert_eq!(self.unpublished, 0, "there is one WRITE only, to the locked node");
        let mode = if self.passes_on(claim) { UnlockMode::Kept } else { UnlockMode::Unlocked };
        let pending = PendingRelease { claim, mode, unpublished: 0, recorded: false };
        let own_bytes = buf.len();
        match self.table.intents.is_some() {
            true => self.depart_recorded(meter, buf, data, pending),
            false => self.depart(meter, self.rear_chain(buf, data, None, pending), pending),
        }
        let buf = without_intent(poll_fn(|cx| self.poll_releasing(meter, cx)).await?, Some(own_bytes));
        self.part(mode, claim);
        Ok(buf.expect("the chain was posted with a buffer"))
    }

    /// Builds the chain of [`Held::release_rear`], with that part of the buffer as its intent.
    pub(super) fn rear_chain(
        &self,
        mut buf: Buf,
        data: Range<usize>,
        intent: Option<Range<usize>>,
        pending: PendingRelease,
    ) -> Chain {
        let PendingRelease { claim, mode, .. } = pending;
        let server = self.lock.server();
        let start = self.lock.offset() - data.len() as u64;
        // The place of the first byte in its line decides: the word is aligned, so it never crosses a line's end.
        let is_one_line = start / LINE_BYTES == self.lock.offset() / LINE_BYTES;
        let start = RemotePtr::new(server, start);
        let clears_at_once =
            self.table.unlocks_by_write() && (is_one_line || self.table.verbs.capabilities().in_order_write);
        let all = data.start..data.end + WORD_BYTES;
        if mode == UnlockMode::Unlocked && clears_at_once {
            buf[data.end..all.end].copy_from_slice(&claim.vacant.to_le_bytes());
        }
        let mut chain = Chain::with_buffer(server, buf);
        if let Some(intent) = intent {
            self.add_intent(&mut chain, intent);
        }
        match mode {
            UnlockMode::Unlocked if clears_at_once => _ = chain.write(start, all),
            UnlockMode::Unlocked => self.table.add_unlock(chain.write(start, data), self.lock, claim),
            UnlockMode::Kept | UnlockMode::UnlockLater => _ = chain.write(start, data),
        }
        chain
    }
}
