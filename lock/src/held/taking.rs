//! The CAS that takes the global lock, until it wins: what it found, what is done again, when a client gives up. Its
//! outcome stays in the [`Held`]. Knows nothing of releases.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use farwood_runtime::chain::MASKED_BYTES;
use farwood_runtime::{Buf, Completion, Failed, Meter, Verbs};

use super::{Global, Held, add_reads};
use crate::error::LockError;
use crate::janitor::won;
use crate::word::{Claim, FREE};

/// The held word that was found last.
struct Seen {
    word: u64,
    /// When it was first found, in nanoseconds of the fabric's clock.
    since_ns: u64,
}

impl Seen {
    /// Notes a held word, and yields for how many nanoseconds it has been the same.
    fn again(&mut self, found: u64, now_ns: u64) -> u64 {
        if self.word != found {
            *self = Seen { word: found, since_ns: now_ns };
        }
        now_ns - self.since_ns
    }
}

impl<V: Verbs> Held<V> {
    /// Repeats the CAS until it wins, each with READs of those parts of the node behind it if there is a
    /// buffer, or as a masked CAS that brings them.
    pub(super) async fn compete(
        &mut self,
        meter: &Meter,
        mut buf: Option<Buf>,
        parts: &[Range<usize>],
    ) -> Result<Completion, LockError> {
        // After a CAS of unknown outcome the same word is tried again: it finds itself if that one had won.
        let mut claim = match self.global {
            Global::Unknown { claim } => claim,
            _ => {
                if self.table.backlog.is_full(self.lock.server(), self.table.config.unsettled_max) {
                    self.table.wait_for_janitor(meter, (self.node, self.lock)).await?;
                }
                if self.lacks_slot() {
                    Box::pin(self.wait_for_slot()).await;
                }
                Claim { word: self.new_word(), vacant: self.vacant }
            }
        };
        let (mut cas_failures, mut outrun, mut fabric_failures) = (0, 0, 0);
        let mut seen = Seen { word: FREE, since_ns: 0 };
        let masked = self.comes_with_cas(parts);
        loop {
            let verbs = &self.table.verbs;
            let cas = verbs.submit_built(meter, self.lock.server(), buf.take(), |chain| {
                let (expected, desired) = (claim.vacant, claim.word.to_bits());
                match masked {
                    Some(to) => _ = chain.masked_cas(self.lock, expected, desired, to),
                    None => add_reads(chain.cas(self.lock, expected, desired), self.node, parts),
                }
            });
            self.global = Global::CasInFlight { claim, cas };
            match poll_fn(|cx| self.poll_cas(cx)).await {
                Ok(done) if self.is_taken() => {
                    meter.waits_no_more();
                    return Ok(done);
                }
                Ok(done) => {
                    let found = done.atomics[0];
                    buf = done.buf;
                    if self.table.is_vacant(self.lock, found) {
                        // Free, or a leftover: the next CAS starts from it.
                        self.outrun(meter, outrun, if seen.word == FREE { found } else { seen.word })?;
                        outrun += 1;
                        claim = claim.starting_from(found, self.table.config.codec);
                        continue;
                    }
                    (cas_failures, fabric_failures) = (cas_failures + 1, 0);
                    self.cas_failed(meter, cas_failures, found)?;
                    let (pauses, verbs) = (&self.table.pauses, &self.table.verbs);
                    let now_ns = verbs.now();
                    let unchanged_ns = seen.again(found, now_ns);
                    self.table.suspect(self.lock, found, unchanged_ns, now_ns);
                    verbs.pause(pauses.after_cas(cas_failures, unchanged_ns, verbs.random())).await;
                }
                Err(failed) => {
                    fabric_failures += 1;
                    buf = match self.table.again(meter, failed, fabric_failures).await {
                        // The owner that was seen last says more than the queue pair that broke just now.
                        Err(LockError::Fabric(cause)) if seen.word != FREE && cause.is_passing() => {
                            let at = (self.node, self.lock);
                            return Err(self.table.contended(meter, at, seen.word, cas_failures));
                        }
                        again => again?,
                    }
                }
            }
        }
    }

    /// Yields where in the node the bytes are that a masked CAS of the lock brings, if those are all that is wanted,
    /// and the fabric has masked CAS.
    fn comes_with_cas(&self, parts: &[Range<usize>]) -> Option<usize> {
        let [part] = parts else { return None };
        let around = self.lock.offset() - self.lock.offset() % MASKED_BYTES as u64;
        let is_around = part.len() == MASKED_BYTES && self.node.offset() + part.start as u64 == around;
        (is_around && self.table.verbs.capabilities().masked_atomic).then_some(part.start)
    }

    /// Counts a CAS that found the lock taken, and gives up when the time or the budget is spent.
    #[cold]
    fn cas_failed(&self, meter: &Meter, failed: u32, found: u64) -> Result<(), LockError> {
        meter.retry();
        self.table.counters.count(|stats| stats.remote_failed += 1);
        tracing::debug!(name: "lock.contended", lock = %self.lock, failed, "a global lock is taken");
        if self.tries_once {
            return Err(self.table.taken(meter, (self.node, self.lock), found, failed));
        }
        let (_, over) = self.table.patience.spent(&self.table.verbs, meter);
        if failed < self.table.config.attempts_max && !over {
            return Ok(());
        }
        Err(self.table.contended(meter, (self.node, self.lock), found, failed))
    }

    /// Counts a CAS that found the lock vacant, but not as assumed. The first assumption was a guess; when a later one
    /// is wrong, others have had the lock since, so it spends from the time and the budget. `word` is the held word
    /// that was found last.
    #[cold]
    fn outrun(&self, meter: &Meter, times: u32, word: u64) -> Result<(), LockError> {
        meter.retry();
        let (table, attempts) = (&self.table, times + 1);
        if times == 0 || attempts < table.config.attempts_max && !table.patience.spent(&table.verbs, meter).1
        {
            return Ok(());
        }
        Err(table.contended(meter, (self.node, self.lock), word, attempts))
    }

    /// Awaits a CAS that an earlier, dropped call left in flight. If that one failed with its queue pair, the next one
    /// finds out its outcome.
    pub(super) async fn settle(&mut self) -> Result<(), LockError> {
        if let Global::CasInFlight { .. } = self.global
            && let Err(failed) = poll_fn(|cx| self.poll_cas(cx)).await
            && !failed.cause().is_passing()
        {
            return Err(failed.into());
        }
        Ok(())
    }

    #[inline]
    fn poll_cas(&mut self, cx: &mut Context<'_>) -> Poll<Result<Completion, Failed>> {
        let Global::CasInFlight { claim, cas } = &mut self.global else {
            unreachable!("no CAS is in flight")
        };
        let claim = *claim;
        let done = ready!(Pin::new(cas).poll(cx));
        self.global = match &done {
            Ok(done) if won(done, claim) => {
                if done.atomics[0] == claim.word.to_bits() {
                    tracing::debug!(name: "lock.cas.settled", lock = %self.lock, "an earlier CAS had taken the lock");
                }
                self.table.counters.count(|stats| stats.acquired += 1);
                self.vacant = claim.vacant;
                if claim.takes_over(self.table.config.codec) {
                    self.table.taken_over(self.lock, claim);
                }
                Global::Taken { claim }
            }
            Ok(_) => Global::Free,
            Err(_) => Global::Unknown { claim },
        };
        Poll::Ready(done)
    }
}
