//! A write-back under a lock that is kept: a node's next state, which others are to find before the holder goes on.
//! Its chain ends as that of a release which clears the lock later. This file does not know what is written.

use std::future::poll_fn;

use farwood_runtime::{Buf, Chain, Meter, Verbs};

use super::{Held, PendingRelease, UnlockMode, without_intent};
use crate::error::LockError;

impl<V: Verbs> Held<V> {
    /// Writes to the node as [`Held::release`] does, in one round trip, and keeps the lock. If it fails, or is dropped,
    /// so is the lock to be: the janitor goes on with both.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// let mut chain = Chain::new(node.server());
    /// chain.write_word(node, 7);
    /// held.write(&meter, chain).await?;
    /// assert_eq!(locks.words_held(&meter).await?.len(), 1);
    /// held.unlock(&meter).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::release`].
    ///
    /// # Panics
    /// Without the global lock, or if `chain` goes to another server than the lock.
    pub async fn write(&mut self, meter: &Meter, mut chain: Chain) -> Result<Option<Buf>, LockError> {
        assert_eq!(chain.server(), self.lock.server(), "the write-back goes to the lock's server");
        let claim = self.release_claim().expect("a write-back needs the global lock");
        let own_bytes = chain.buffer().map(|buf| buf.len());
        let recorded =
            self.table.intents.is_some() && self.record_or_say(meter, &mut chain, claim, None).await?;
        let pending = PendingRelease { claim, mode: UnlockMode::UnlockLater, unpublished: 0, recorded };
        if recorded {
            self.end_record(&mut chain, pending);
        }
        self.depart(meter, chain, pending);
        Ok(without_intent(poll_fn(|cx| self.poll_releasing(meter, cx)).await?, own_bytes))
    }
}
