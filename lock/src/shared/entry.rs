//! The way into a lock that is shared: a client joins its shard, or waits for the leader, or leads and sets the bit.
//! Chains in flight are kept in the [`Shared`], so that dropping it loses nothing. Knows nothing of releases.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};

use farwood_runtime::{Buf, Chain, Completion, Failed, Meter, RemotePtr, Verbs};

use super::guard::{Shared, Stage};
use super::presence::{Move, Own, next_move};
use super::words::{Bit, LockWords};
use super::{SharedLocks, Sharing};
use crate::error::LockError;
use crate::held::add_reads;
use crate::patience::is_over;
use crate::word::{FREE, LockWord};

/// The end of a leader's way.
enum Entered {
    /// The shard is present, and the node was read behind the FAA.
    Read(Completion),
    /// The shard is present: an earlier FAA of unknown outcome had set the bit.
    Stay(Buf),
    /// Too many others have had the lock alone meanwhile.
    Overtaken(Buf),
}

impl<V: Verbs> SharedLocks<V> {
    /// Shares the lock of `node`, whose lock is at `lock`, with other clients that do, and reads those parts of the
    /// node, each to where it is in the node: one round trip, unless a client has the lock alone. The first part has
    /// the lock's words, and is read before the others: what is in these has not been changed by a client that has the
    /// lock alone, and will not be until the release. Clients that share the lock may change it at any time.
    ///
    /// A client has one lock at a time. A shard without a lane has the lock alone ([`Shared::is_alone`]).
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let parts = [0..16, 16..64];
    /// let (first, _) = locks.share_and_read(&meter, node, node, shard.lease(64), &parts).await?;
    /// let (second, _) = locks.share_and_read(&meter, node, node, shard.lease(64), &parts).await?;
    /// assert_eq!((meter.usage().round_trips, meter.usage().faa), (2, 1), "one bit for both");
    /// first.release(&meter, Chain::new(node.server())).await?;
    /// second.release(&meter, Chain::new(node.server())).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::Contended`] if a client has the lock alone for too long; [`LockError::Fabric`] if the fabric fails
    /// for good; [`LockError::ShardEnded`] as [`crate::LockTable::acquire`]. The operation had no effect.
    ///
    /// # Panics
    /// If the lock is not in one line, or not on the node's server, or the first part does not have all of its words.
    pub async fn share_and_read(
        &self,
        meter: &Meter,
        node: RemotePtr,
        lock: RemotePtr,
        mut buf: Buf,
        parts: &[Range<usize>],
    ) -> Result<(Shared<V>, Completion), LockError> {
        let sharing = &self.0;
        sharing.check((node, lock));
        sharing.words_in(node, lock, parts);
        let Some(lane) = sharing.lane() else {
            sharing.want_lane();
            return Box::pin(sharing.have_alone(meter, (node, lock), buf, parts)).await;
        };
        let mut shared = sharing.arrive(node, lock, Bit::of(lane));
        shared.wait(meter).await?;
        if let Stage::Lead(_) = shared.stage {
            match shared.enter(meter, buf, parts).await? {
                Entered::Read(done) => {
                    sharing.counters.count(|stats| stats.shared += 1);
                    return Ok((shared, done));
                }
                Entered::Stay(unread) => buf = unread,
                Entered::Overtaken(unread) => {
                    drop(shared);
                    return Box::pin(sharing.have_alone(meter, (node, lock), unread, parts)).await;
                }
            }
        } else {
            sharing.counters.count(|stats| stats.joined += 1);
        }
        let done = shared.read(meter, buf, parts).await?;
        Ok((shared, done))
    }
}

impl<V: Verbs> Sharing<V> {
    /// Yields where in the node the lock's words are, which the first part has.
    pub(super) fn words_in(&self, node: RemotePtr, lock: RemotePtr, parts: &[Range<usize>]) -> Range<usize> {
        let at = lock.offset().wrapping_sub(node.offset()) as usize;
        let words = at..at.saturating_add(self.lanes.lock_bytes());
        let has_all = parts.first().is_some_and(|part| part.start <= words.start && words.end <= part.end);
        assert!(has_all, "the first part has all words of the lock");
        words
    }

    fn arrive(self: &Rc<Self>, node: RemotePtr, lock: RemotePtr, bit: Bit) -> Shared<V> {
        let part = self.presences.borrow_mut().arrive(lock.to_bits());
        let stage = part.map_or_else(
            || {
                let token = self.slots.borrow_mut().open(());
                self.presences.borrow_mut().wait(lock.to_bits(), token);
                Stage::Waiting(token)
            },
            Stage::from,
        );
        Shared { sharing: Rc::clone(self), node, lock, bit, stage }
    }

    /// Takes the lock alone for a client that would share it.
    #[cold]
    async fn have_alone(
        self: &Rc<Self>,
        meter: &Meter,
        at: (RemotePtr, RemotePtr),
        buf: Buf,
        parts: &[Range<usize>],
    ) -> Result<(Shared<V>, Completion), LockError> {
        let mut held = Box::new(self.acquire(meter, at).await?);
        let done = self.lock_and_read(meter, &mut held, buf, parts, true).await?;
        let ((node, lock), bit, stage) = (at, Bit::of(0), Stage::Alone(held));
        Ok((Shared { sharing: Rc::clone(self), node, lock, bit, stage }, done))
    }
}

impl<V: Verbs> Shared<V> {
    /// Waits for the leader of the shard, if there is one.
    async fn wait(&mut self, meter: &Meter) -> Result<(), LockError> {
        let Stage::Waiting(token) = self.stage else { return Ok(()) };
        let (sharing, slots) = (&self.sharing, &self.sharing.slots);
        let part = poll_fn(|cx| {
            let polled = slots.borrow_mut().poll(token, || sharing.table().verbs.waiter(cx));
            let note = |until_ns| slots.borrow_mut().wait_until(token, until_ns);
            match polled {
                Some(part) => Poll::Ready(Some(part)),
                None if is_over(sharing, meter, note) => Poll::Ready(None),
                None => Poll::Pending,
            }
        });
        let Some(part) = part.await else {
            return Err(sharing.overdue(meter, (self.node, self.lock), 0).await);
        };
        slots.borrow_mut().close(token);
        self.stage = Stage::from(part);
        Ok(())
    }

    /// Sets the shard's bit while no client has the lock alone, and reads the node behind that.
    async fn enter(&mut self, meter: &Meter, buf: Buf, parts: &[Range<usize>]) -> Result<Entered, LockError> {
        let table = Rc::clone(self.sharing.table());
        let words = self.sharing.words_in(self.node, self.lock, parts);
        let mut buf = Some(buf);
        let mut seen = Seen::default();
        let (mut looks, mut failures) = (0, 0);
        loop {
            let Stage::Lead(own) = self.stage else { unreachable!("a leader leads until it has entered") };
            if own == Own::Clear && seen.holders > self.sharing.lanes.overtaken_max {
                self.sharing.counters.count(|stats| stats.overtaken += 1);
                tracing::debug!(name: "lock.shared.overtaken", lock = %self.lock, "a sharer queues up");
                return Ok(Entered::Overtaken(buf.expect("it has come back")));
            }
            let next = next_move(own, seen.word != FREE);
            match next {
                Move::Stay => {
                    self.has_entered();
                    return Ok(Entered::Stay(buf.expect("it has come back")));
                }
                Move::Enter if table.backlog.is_full(self.lock.server(), table.config.unsettled_max) => {
                    table.wait_for_janitor(meter, (self.node, self.lock)).await?;
                }
                Move::Look if own == Own::Clear => {
                    let pause_ns = table.pauses.after_cas(
                        looks,
                        seen.unchanged_ns(table.verbs.now()),
                        table.verbs.random(),
                    );
                    table.verbs.pause(pause_ns).await;
                }
                Move::Enter | Move::Look | Move::Retreat => {}
            }
            self.go(meter, next, own, &mut buf, parts);
            match self.gone().await {
                Err(failed) => {
                    failures += 1;
                    let left = table.again(meter, failed, failures).await?;
                    buf = buf.or(left);
                }
                Ok(_) if next == Move::Retreat => failures = 0,
                Ok(done) => {
                    failures = 0;
                    let found =
                        LockWords::new(&done.buf.as_ref().expect("READs have a buffer")[words.clone()]);
                    let now_ns = table.verbs.now();
                    seen.see(found.holder(), now_ns);
                    table.suspect(self.lock, seen.word, seen.unchanged_ns(now_ns), now_ns);
                    if next == Move::Enter && seen.word == FREE {
                        self.has_entered();
                        meter.waits_no_more();
                        return Ok(Entered::Read(done));
                    }
                    if next == Move::Look {
                        self.stage = Stage::Lead(if self.bit.is_set(found) { Own::Set } else { Own::Clear });
                    }
                    if seen.word != FREE {
                        looks += 1;
                        self.barred(meter, next, looks).await?;
                    }
                    buf = done.buf;
                }
            }
        }
    }

    /// Posts the chain of a move.
    fn go(&mut self, meter: &Meter, next: Move, own: Own, buf: &mut Option<Buf>, parts: &[Range<usize>]) {
        let words = self.sharing.words_in(self.node, self.lock, parts);
        let (then, failed) = match next {
            Move::Enter => (Own::Set, Own::Unknown),
            Move::Retreat => (Own::Clear, Own::Unknown),
            Move::Look | Move::Stay => (own, own),
        };
        let buf = if next == Move::Retreat { None } else { buf.take() };
        let chain =
            self.sharing.table().verbs.submit_built(meter, self.lock.server(), buf, |chain| match next {
                Move::Enter => {
                    self.add_bit(chain);
                    add_reads(chain, self.node, parts);
                }
                Move::Retreat => self.take_bit(chain),
                Move::Look | Move::Stay => _ = chain.read(self.lock, words),
            });
        self.stage = Stage::Moving { chain, then, failed };
    }

    /// Awaits the chain of a leader: it leads on, and knows its outcome or not.
    pub(super) async fn gone(&mut self) -> Result<Completion, Failed> {
        poll_fn(|cx| {
            let Stage::Moving { chain, then, failed } = &mut self.stage else {
                unreachable!("a chain of the leader is in flight")
            };
            let (then, failed) = (*then, *failed);
            let done = ready!(Pin::new(chain).poll(cx));
            self.stage = Stage::Lead(if done.is_ok() { then } else { failed });
            Poll::Ready(done)
        })
        .await
    }

    /// Reads the node, at which the shard is present.
    async fn read(
        &mut self,
        meter: &Meter,
        mut buf: Buf,
        parts: &[Range<usize>],
    ) -> Result<Completion, LockError> {
        let words = self.sharing.words_in(self.node, self.lock, parts);
        let (table, mut failures) = (Rc::clone(self.sharing.table()), 0);
        loop {
            let mut chain = Chain::with_buffer(self.node.server(), buf);
            add_reads(&mut chain, self.node, parts);
            match table.verbs.submit(meter, chain).await {
                Ok(done) => {
                    let buf = done.buf.as_ref().expect("READs have a buffer");
                    if LockWords::new(&buf[words]).holder().is_some() {
                        tracing::debug!(name: "lock.shared.closing", lock = %self.lock, "a shard makes way");
                        self.sharing.presences.borrow_mut().close(self.lock.to_bits());
                    }
                    self.sharing.counters.count(|stats| stats.shared += 1);
                    meter.waits_no_more();
                    return Ok(done);
                }
                Err(failed) => {
                    failures += 1;
                    buf =
                        table.again(meter, failed, failures).await?.expect("a READ is posted with a buffer");
                }
            }
        }
    }

    fn has_entered(&mut self) {
        self.stage = Stage::Joined;
        self.sharing.enter(self.lock);
    }

    /// Counts a look that found the lock taken, and gives up when the time or the budget is spent.
    #[cold]
    async fn barred(&self, meter: &Meter, made: Move, looks: u32) -> Result<(), LockError> {
        meter.retry();
        if made == Move::Enter {
            self.sharing.counters.count(|stats| stats.barred += 1);
            tracing::debug!(name: "lock.shared.barred", lock = %self.lock, "a client has the lock alone");
        }
        let table = self.sharing.table();
        if looks < table.config.attempts_max && !table.patience.spent(&table.verbs, meter).1 {
            return Ok(());
        }
        Err(self.sharing.overdue(meter, (self.node, self.lock), looks).await)
    }
}

/// The clients that a leader has seen having the lock alone.
#[derive(Default)]
struct Seen {
    /// The word that was read last.
    word: u64,
    since_ns: u64,
    /// Words that were read, without those that stayed.
    holders: u32,
}

impl Seen {
    fn see(&mut self, holder: Option<LockWord>, now_ns: u64) {
        let word = holder.map_or(FREE, LockWord::to_bits);
        if word != self.word {
            self.holders += u32::from(word != FREE);
            (self.word, self.since_ns) = (word, now_ns);
        }
    }

    fn unchanged_ns(&self, now_ns: u64) -> u64 {
        now_ns - self.since_ns
    }
}
