//! One acquisition: from the local lock through the global one to the release. Whatever is in flight is kept in the
//! [`Held`] itself, never only in a future, so dropping any of its futures, or itself, loses nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use farwood_runtime::chain::Op;
use farwood_runtime::{Buf, Chain, Completion, FabricError, Meter, RemotePtr, Verbs};

use crate::error::LockError;
use crate::handover::passes_on;
use crate::janitor::{clean_up, won};
use crate::message::Grant;
use crate::table::{Seat, Table};
use crate::word::{FREE, LockWord};

/// The lock of one node, held locally at least. Ends with [`Held::release`]; if it is dropped instead (a cancelled
/// operation), the shard's janitor undoes what it holds.
#[must_use = "a held lock ends with `release`"]
pub struct Held<V: Verbs> {
    table: Rc<Table<V>>,
    node: RemotePtr,
    lock: RemotePtr,
    /// `None` where locks are not hierarchical.
    seat: Option<Seat>,
    depth: u8,
    handed_over: bool,
    global: Global<V::Submission>,
}

/// The global half of an acquisition.
pub(crate) enum Global<S> {
    /// Not ours, as far as this acquisition is concerned.
    Free,
    /// A CAS is in flight.
    Asked { word: LockWord, cas: S },
    /// A CAS or an unlock failed: perhaps the word is in the lock region, perhaps not.
    Doubtful { word: LockWord },
    /// Ours.
    Taken { word: LockWord },
    /// Ours until the chain of a release completes.
    Leaving { word: LockWord, chain: S, exit: Exit },
    /// Given back, the local half too.
    Over,
}

/// What a release chain does with the global word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    /// It clears it.
    Unlocked,
    /// It leaves it taken for the next holder.
    Kept,
    /// It leaves it to a chain that follows.
    UnlockLater,
}

impl<S> Global<S> {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Global::Free => "free",
            Global::Asked { .. } => "asked",
            Global::Doubtful { .. } => "doubtful",
            Global::Taken { .. } => "taken",
            Global::Leaving { .. } => "leaving",
            Global::Over => "over",
        }
    }
}

impl<V: Verbs> Held<V> {
    #[inline]
    pub(crate) fn new(
        table: Rc<Table<V>>,
        node: RemotePtr,
        lock: RemotePtr,
        seat: Option<Seat>,
        grant: Grant,
    ) -> Self {
        let global = match grant.kept {
            Some(word) => {
                tracing::debug!(name: "lock.handover", %lock, depth = grant.depth, "a lock was handed over");
                table.counters.count(|stats| {
                    stats.acquired += 1;
                    stats.handed_over += 1;
                });
                Global::Taken { word }
            }
            None => Global::Free,
        };
        Held { table, node, lock, seat, depth: grant.depth, handed_over: grant.kept.is_some(), global }
    }

    /// The node whose lock it is.
    pub fn node(&self) -> RemotePtr {
        self.node
    }

    /// Whether the global lock came with the local one, from the holder before.
    pub fn was_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Takes the global lock and reads the first `len` bytes of the node into `buf`, at 0.
    ///
    /// With `fused` the READ travels behind the CAS: one round trip per attempt (the data of an attempt that lost is
    /// discarded). Otherwise the CAS goes alone, and the READ follows in a round trip of its own. A lock that was
    /// handed over needs the READ only.
    ///
    /// # Errors
    /// [`LockError::Contended`] if the lock does not come free, [`LockError::Fabric`] if the fabric fails. The local
    /// lock is still held then; drop it, or try again.
    pub async fn lock_and_read(
        &mut self,
        meter: &Meter,
        buf: Buf,
        len: usize,
        fused: bool,
    ) -> Result<Completion, LockError> {
        self.settle().await?;
        if fused && !self.is_taken() {
            return self.compete(meter, Some(buf), len).await;
        }
        if !self.is_taken() {
            self.compete(meter, None, 0).await?;
        }
        let mut chain = Chain::with_buffer(self.node.server(), buf);
        chain.read(self.node, 0..len);
        Ok(self.table.verbs.submit(meter, chain).await?)
    }

    /// Takes the global lock, which costs one round trip per attempt, or none if it was handed over.
    ///
    /// # Errors
    /// As [`Held::lock_and_read`].
    pub async fn lock(&mut self, meter: &Meter) -> Result<(), LockError> {
        self.settle().await?;
        if !self.is_taken() {
            self.compete(meter, None, 0).await?;
        }
        Ok(())
    }

    /// Writes back and releases. `chain` is the write-back, to the node's own server, and may be empty; its buffer
    /// comes back.
    ///
    /// With `combine` the unlock travels behind the write-back: one round trip. Otherwise the write-back is awaited
    /// and the unlock is a round trip of its own. If the lock is handed over to a waiter, nothing is unlocked, and an
    /// empty chain costs no round trip at all.
    ///
    /// # Errors
    /// [`LockError::Fabric`] if the fabric fails: whether the write-back took effect is unknown. The lock is released
    /// all the same, in the background.
    ///
    /// # Panics
    /// If `chain` goes to another server than the lock, or writes without the global lock.
    pub async fn release(
        mut self,
        meter: &Meter,
        mut chain: Chain,
        combine: bool,
    ) -> Result<Option<Buf>, LockError> {
        assert_eq!(chain.server(), self.lock.server(), "the write-back goes to the lock's server");
        let Global::Taken { word } = self.global else {
            assert!(chain.is_empty(), "a write-back needs the global lock");
            return Ok(chain.into_buffer());
        };
        let mut exit = match self.passes_on() {
            true => Exit::Kept,
            false if combine => Exit::Unlocked,
            false => Exit::UnlockLater,
        };
        if exit == Exit::Unlocked {
            self.add_unlock(&mut chain);
        }
        let buf = match chain.is_empty() {
            true => chain.into_buffer(),
            false => {
                self.depart(meter, chain, word, exit);
                poll_fn(|cx| self.poll_leaving(cx)).await?.buf
            }
        };
        if exit == Exit::UnlockLater {
            // A waiter may have come while the write-back was on its way.
            if self.passes_on() {
                exit = Exit::Kept;
            } else {
                let mut unlock = Chain::new(self.lock.server());
                self.add_unlock(&mut unlock);
                self.depart(meter, unlock, word, Exit::Unlocked);
                poll_fn(|cx| self.poll_leaving(cx)).await?;
            }
        }
        // Only now: the next holder may use another queue pair, and between queue pairs there is no order. Were it told
        // when the write-back is posted (as in the paper's figure 6), it could read the node before the write-back:
        //   holder, shard 0:  WRITE node ·······························> takes effect
        //   next,   shard 1:      told ──> READ node (old) ──> WRITE node: the first write is lost
        self.global = Global::Over;
        self.give_back((exit == Exit::Kept).then_some(word));
        Ok(buf)
    }

    /// CAS until it wins, each with a READ of `len` bytes behind it if there is a buffer.
    async fn compete(
        &mut self,
        meter: &Meter,
        mut buf: Option<Buf>,
        len: usize,
    ) -> Result<Completion, LockError> {
        // After a CAS of unknown outcome the same word is tried again: it finds itself if that one had won.
        let word = match self.global {
            Global::Doubtful { word } => word,
            _ => self.table.word(),
        };
        let mut failed = 0;
        loop {
            let reads = buf.is_some();
            let verbs = &self.table.verbs;
            let cas = verbs.submit_built(meter, self.lock.server(), buf.take(), |chain| {
                chain.cas(self.lock, FREE, word.to_bits());
                if reads {
                    chain.read(self.node, 0..len);
                }
            });
            self.global = Global::Asked { word, cas };
            let done = poll_fn(|cx| self.poll_cas(cx)).await?;
            if self.is_taken() {
                return Ok(done);
            }
            failed += 1;
            self.lost(meter, failed, &done)?;
            buf = done.buf;
            let backoff_ns = self.table.config.backoff_ns(failed, self.table.verbs.random());
            self.table.verbs.pause(backoff_ns).await;
        }
    }

    /// Counts a CAS that found the lock taken, and gives up when the budget is spent.
    fn lost(&self, meter: &Meter, failed: u32, done: &Completion) -> Result<(), LockError> {
        meter.retry();
        self.table.counters.count(|stats| stats.remote_failed += 1);
        let owner =
            done.atomics.first().and_then(|&found| LockWord::from_bits(found)).map_or(0, LockWord::owner);
        tracing::debug!(name: "lock.contended", lock = %self.lock, owner, failed, "a global lock is taken");
        if failed < self.table.config.attempts_max {
            return Ok(());
        }
        Err(LockError::Contended { lock: self.lock, owner, attempts: failed })
    }

    /// Awaits a CAS that an earlier, dropped call left in flight.
    async fn settle(&mut self) -> Result<(), FabricError> {
        if let Global::Asked { .. } = self.global {
            poll_fn(|cx| self.poll_cas(cx)).await?;
        }
        Ok(())
    }

    fn poll_cas(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion, FabricError>> {
        let Global::Asked { word, cas } = &mut self.global else { unreachable!("no CAS is in flight") };
        let word = *word;
        let done = ready!(Pin::new(cas).poll(cx));
        self.global = match &done {
            Ok(done) if won(done, word) => {
                self.table.counters.count(|stats| stats.acquired += 1);
                Global::Taken { word }
            }
            Ok(_) => Global::Free,
            Err(_) => Global::Doubtful { word },
        };
        Poll::Ready(done)
    }

    /// Posts a chain of a release.
    fn depart(&mut self, meter: &Meter, chain: Chain, word: LockWord, exit: Exit) {
        let chain = self.table.verbs.submit(meter, chain);
        self.global = Global::Leaving { word, chain, exit };
    }

    /// Whether the chain that was posted last has completed.
    fn poll_leaving(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion, FabricError>> {
        let Global::Leaving { word, chain, exit } = &mut self.global else {
            unreachable!("no release is in flight")
        };
        let (word, exit) = (*word, *exit);
        let done = ready!(Pin::new(chain).poll(cx));
        self.global = match (&done, exit) {
            (Ok(_), Exit::Unlocked) => Global::Free,
            (Err(_), Exit::Unlocked) => Global::Doubtful { word },
            _ => Global::Taken { word },
        };
        Poll::Ready(done)
    }

    fn add_unlock(&self, chain: &mut Chain) {
        // A WRITE stays behind WRITEs by itself, but may overtake a READ or an atomic.
        let overtakes = |op| matches!(op, Op::Read { .. } | Op::Cas { .. } | Op::Faa { .. });
        if chain.verbs().iter().any(|verb| overtakes(verb.op)) {
            chain.fence();
        }
        chain.write_word(self.lock, FREE);
    }

    fn is_taken(&self) -> bool {
        matches!(self.global, Global::Taken { .. })
    }

    fn passes_on(&self) -> bool {
        let config = &self.table.config;
        let hinted = self.seat.is_some_and(|seat| self.table.hinted(seat));
        config.handover && passes_on(hinted, self.depth, config.handovers_max)
    }

    fn give_back(&mut self, kept: Option<LockWord>) {
        if let Some(seat) = self.seat.take() {
            self.table.give_back(self.lock, seat, kept);
        }
    }
}

impl<V: Verbs> Drop for Held<V> {
    #[inline]
    fn drop(&mut self) {
        match std::mem::replace(&mut self.global, Global::Over) {
            Global::Over => {}
            Global::Free => self.give_back(None),
            left => {
                let table = Rc::clone(&self.table);
                self.table.verbs.defer(clean_up(table, self.lock, self.seat, left));
            }
        }
    }
}
