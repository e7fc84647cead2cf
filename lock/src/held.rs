//! One acquisition: from the local lock through the global one to the release. Whatever is in flight is kept in the
//! [`Held`] itself, never only in a future, so dropping any of its futures, or itself, loses nothing.

mod image;
mod keeping;
mod rear;
mod recording;
mod taking;

use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::slice;
use std::task::{Context, Poll, ready};

use farwood_runtime::{Buf, Chain, Completion, FabricError, Failed, Meter, RemotePtr, Verbs};

use crate::error::LockError;
use crate::handover::passes_on;
use crate::intents::Slot;
use crate::janitor::{Unfinished, can_be_redone, clean_up, redo};
use crate::message::Grant;
use crate::table::{LocalTicket, Table};
use crate::word::{Claim, FREE, WORD_BYTES};

/// Bytes that every fabric keeps whole.
const LINE_BYTES: u64 = 64;

/// The lock of one node, held locally at least. Ends with [`Held::release`]; if it is dropped instead (a cancelled
/// operation), the shard's janitor undoes what it holds.
#[must_use = "a held lock ends with `release`"]
pub struct Held<V: Verbs> {
    table: Rc<Table<V>>,
    node: RemotePtr,
    lock: RemotePtr,
    /// `None` where locks are not hierarchical.
    ticket: Option<LocalTicket>,
    depth: u8,
    handed_over: bool,
    /// True until the holder has asked for the image that the one before may have left.
    may_have_image: bool,
    unpublished: u8,
    /// See [`Held::with_whole_steps`].
    has_whole_steps: bool,
    /// See [`Held::with_mending`].
    is_mended: bool,
    /// See [`LockTable::try_acquire`](crate::LockTable::try_acquire).
    pub(crate) tries_once: bool,
    /// See [`Held::with_words_behind`]: where it is in the buffer, and its bytes, 0 without it.
    behind_at: u32,
    behind_bytes: u8,
    /// Until the global lock is acquired, what its free word is assumed to hold; then what it is to hold after the
    /// release. A leftover that was taken over stays one.
    vacant: u64,
    /// A place for the intent of the release, where the word says that there is one.
    slot: Option<Slot>,
    global: Global<V::Submission>,
}

/// The global half of an acquisition.
pub(crate) enum Global<S> {
    /// Not held by this acquisition.
    Free,
    /// A CAS is in flight.
    CasInFlight { claim: Claim, cas: S },
    /// A chain failed that cannot be redone: perhaps the word is in the lock region, perhaps not.
    Unknown { claim: Claim },
    /// Ours.
    Taken { claim: Claim },
    /// Ours until the chain of a release completes.
    Releasing { chain: S, pending: PendingRelease },
    /// That chain failed and is being redone. In a box: if the holder is dropped, it goes to the janitor as it is.
    Redoing { pending: PendingRelease, redo: Pin<Box<dyn Future<Output = Result<Option<Buf>, Failed>>>> },
    /// That failed as well.
    Unfinished(Unfinished),
    /// Given back, the local half too.
    Released,
}

/// The facts about a release chain that are needed if it fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingRelease {
    pub(crate) claim: Claim,
    pub(crate) mode: UnlockMode,
    /// See [`Held::with_unpublished_prefix`].
    pub(crate) unpublished: u8,
    /// True if the WRITE behind those is that of the intent.
    pub(crate) recorded: bool,
}

impl PendingRelease {
    /// Makes the facts about a chain that does nothing but unlock.
    pub(crate) fn unlock(claim: Claim) -> Self {
        PendingRelease { claim, mode: UnlockMode::Unlocked, unpublished: 0, recorded: false }
    }
}

/// The effect of a release chain on the global word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnlockMode {
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
            Global::CasInFlight { .. } => "CAS in flight",
            Global::Unknown { .. } => "unknown",
            Global::Taken { .. } => "taken",
            Global::Releasing { .. } => "releasing",
            Global::Redoing { .. } => "redoing",
            Global::Unfinished(_) => "unfinished",
            Global::Released => "released",
        }
    }
}

impl<V: Verbs> Held<V> {
    #[inline]
    pub(crate) fn new(
        table: Rc<Table<V>>,
        node: RemotePtr,
        lock: RemotePtr,
        ticket: Option<LocalTicket>,
        grant: Grant,
    ) -> Self {
        let global = match grant.kept {
            Some(claim) => {
                tracing::debug!(name: "lock.handover", %lock, depth = grant.depth, "a lock was handed over");
                table.counters.count(|stats| {
                    stats.acquired += 1;
                    stats.handed_over += 1;
                });
                Global::Taken { claim }
            }
            None => Global::Free,
        };
        Held {
            table,
            node,
            lock,
            ticket,
            depth: grant.depth,
            handed_over: grant.kept.is_some(),
            may_have_image: grant.kept.is_some(),
            unpublished: 0,
            has_whole_steps: false,
            is_mended: false,
            tries_once: false,
            behind_at: 0,
            behind_bytes: 0,
            vacant: grant.kept.map_or(FREE, |claim| claim.vacant),
            slot: None,
            global,
        }
    }

    /// Yields the node whose lock it is.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.acquire(&meter, node).await?;
    /// assert_eq!(held.node(), node);
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    pub fn node(&self) -> RemotePtr {
        self.node
    }

    /// Yields the lock word.
    pub(crate) fn word(&self) -> RemotePtr {
        self.lock
    }

    /// Tells whether the global lock came with the local one, from the holder before.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut first = locks.acquire(&meter, node).await?;
    /// first.lock(&meter).await?;
    /// let (next, released) = futures::join!(
    ///     locks.acquire(&meter, node),
    ///     first.release(&meter, Chain::new(node.server()), true),
    /// );
    /// assert!(released.is_ok() && next?.was_handed_over());
    /// # });
    /// ```
    pub fn was_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Sets what the free word is likely to carry: the first CAS starts from that. Without it, from 0; a wrong guess
    /// costs a round trip. A lock that was handed over needs no guess.
    ///
    /// ```
    /// # farwood_doctest::locks!(LockConfig { codec: WordCodec::carrying(16), ..Default::default() },
    /// #     |shard, locks, node, meter| {
    /// let mut held = locks.acquire_embedded(&meter, node, node.add(56)).await?;
    /// held.expect_payload(7);
    /// held.lock(&meter).await?;
    /// assert_eq!((held.payload(), meter.usage().cas), (0, 2), "the guess was wrong");
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Panics
    /// If words of this lock do not carry such a payload ([`crate::LockConfig::codec`]).
    pub fn expect_payload(&mut self, payload: u64) {
        self.check_payload(payload);
        if !self.is_taken() {
            self.vacant = payload;
        }
    }

    /// Yields what the word carried when the global lock was taken, or what the holder before has left in it.
    ///
    /// ```
    /// # farwood_doctest::locks!(LockConfig { codec: WordCodec::carrying(16), ..Default::default() },
    /// #     |shard, locks, node, meter| {
    /// let mut held = locks.acquire_embedded(&meter, node, node.add(56)).await?;
    /// held.lock(&meter).await?;
    /// assert_eq!(held.payload(), 0, "in a new node");
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Panics
    /// Without the global lock, or if it is a word of the lock region.
    pub fn payload(&self) -> u64 {
        let Global::Taken { claim } = self.global else { panic!("a payload is known to the holder only") };
        self.check_payload(claim.vacant);
        claim.vacant
    }

    /// Sets what the word is to carry from the coming release on. It takes effect with the write-back: a lock that is
    /// dropped before leaves the payload that it found, as does one for which this is not called.
    ///
    /// ```
    /// # farwood_doctest::locks!(LockConfig { codec: WordCodec::carrying(16), ..Default::default() },
    /// #     |shard, locks, node, meter| {
    /// let word = node.add(56);
    /// let mut held = locks.acquire_embedded(&meter, node, word).await?;
    /// held.lock(&meter).await?;
    /// held.set_payload(7);
    /// held.release(&meter, Chain::new(node.server()), true).await?;
    /// assert_eq!(shard.read(&meter, word, 8).await?.into_buf()[..8], 7_u64.to_le_bytes());
    /// # });
    /// ```
    ///
    /// # Panics
    /// Without the global lock, or if words of this lock do not carry such a payload ([`crate::LockConfig::codec`]).
    pub fn set_payload(&mut self, payload: u64) {
        assert!(self.is_taken(), "a payload is the holder's to change");
        self.check_payload(payload);
        self.vacant = payload;
    }

    fn check_payload(&self, payload: u64) {
        assert!(self.table.carries(self.lock), "words of the lock region carry nothing");
        assert!(
            self.table.config.codec.is_free(payload),
            "the payload is larger than the table's codec has it"
        );
    }

    /// Takes the global lock and reads the first `len` bytes of the node into `buf`, at 0.
    ///
    /// With `fused` the READ travels behind the CAS: one round trip per attempt (the data of an attempt that lost is
    /// discarded). Otherwise the CAS goes alone, and the READ follows in a round trip of its own. A lock that was
    /// handed over needs the READ only, or not even that, if the holder before has left the image
    /// ([`Held::release_with_image`]).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// let read = held.lock_and_read(&meter, shard.lease(64), 64, true).await?;
    /// assert_eq!((read.into_buf().len(), meter.usage().round_trips), (64, 1));
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::Contended`] if the lock does not come free, [`LockError::Fabric`] if the fabric fails for good: a
    /// queue pair that breaks costs an attempt. The local lock is still held then; drop it, or try again.
    pub async fn lock_and_read(
        &mut self,
        meter: &Meter,
        buf: Buf,
        len: usize,
        fused: bool,
    ) -> Result<Completion, LockError> {
        self.lock_and_read_parts(meter, buf, slice::from_ref(&(0..len)), fused).await
    }

    /// Takes the global lock as [`Held::lock_and_read`] does, and reads those parts of the node, each to where it is in
    /// the node. With `fused`, the aligned 32 bytes that an embedded word is among, and no more, come with the CAS
    /// itself where the fabric has masked CAS ([`farwood_runtime::Capabilities::masked_atomic`]).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock_and_read_parts(&meter, shard.lease(64), &[0..8, 48..64], true).await?;
    /// assert_eq!((meter.usage().bytes_read, meter.usage().round_trips), (24, 1));
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::lock_and_read`].
    pub async fn lock_and_read_parts(
        &mut self,
        meter: &Meter,
        buf: Buf,
        parts: &[Range<usize>],
        fused: bool,
    ) -> Result<Completion, LockError> {
        self.settle().await?;
        if self.owes_slot() {
            Box::pin(self.keep_promise(meter)).await?;
        }
        if fused && !self.is_taken() {
            return self.compete(meter, Some(buf), parts).await;
        }
        if !self.is_taken() {
            self.compete(meter, None, &[]).await?;
        }
        meter.waits_no_more();
        let mut buf = match self.take_image(buf, parts).await {
            Ok(taken) => return Ok(taken),
            Err(buf) => buf,
        };
        let mut fabric_failures = 0;
        loop {
            let mut chain = Chain::with_buffer(self.node.server(), buf);
            add_reads(&mut chain, self.node, parts);
            match self.table.verbs.submit(meter, chain).await {
                Ok(done) => return Ok(done),
                Err(failed) => {
                    fabric_failures += 1;
                    buf = self
                        .table
                        .again(meter, failed, fabric_failures)
                        .await?
                        .expect("a READ is posted with a buffer");
                }
            }
        }
    }

    /// Takes the global lock, which costs one round trip per attempt, or none if it was handed over.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// assert_eq!(meter.usage().round_trips, 1);
    /// # held.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::lock_and_read`].
    pub async fn lock(&mut self, meter: &Meter) -> Result<(), LockError> {
        self.settle().await?;
        if self.owes_slot() {
            Box::pin(self.keep_promise(meter)).await?;
        }
        if !self.is_taken() {
            self.compete(meter, None, &[]).await?;
        }
        meter.waits_no_more();
        Ok(())
    }

    /// Declares that the first `verbs` WRITEs of the coming write-back are to memory that no client can reach before
    /// the WRITE behind them takes effect: a new node, and the locked one that leads to it. That WRITE must change
    /// every line that it covers.
    ///
    /// The lock protects the new node only until then, so redoing those WRITEs later would be wrong:
    ///
    /// ```text
    ///   holder   WRITE new, WRITE node, unlock: both WRITEs arrive ✗ ················ WRITE new: X is lost
    ///   other                       READ node ─> new: locks it, WRITE X, unlock ─────^
    /// ```
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let new = RemotePtr::new(node.server(), node.offset() - 64);
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// let mut chain = Chain::with_buffer(node.server(), shard.lease(64));
    /// chain.write(new, 0..64).write_word(node, new.to_bits());
    /// held.with_unpublished_prefix(1);
    /// held.release(&meter, chain, true).await?;
    /// assert_eq!(shard.read(&meter, node, 8).await?.into_buf()[..8], new.to_bits().to_le_bytes());
    /// # });
    /// ```
    pub fn with_unpublished_prefix(&mut self, verbs: u8) {
        self.unpublished = verbs;
    }

    /// Declares that the node is whole after each of the WRITEs of the coming release, in their order: if this compute
    /// node dies between two of them, other clients go on from there. So nothing of them is recorded, unless one goes
    /// over a line's end.
    ///
    /// ```text
    ///   holder   WRITE fingerprint, WRITE entry ✗ dies           other   the slot is vacant: it writes its own entry
    /// ```
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// let mut chain = Chain::new(node.server());
    /// chain.write_word(node.add(56), 7).write_word(node, 9);
    /// held.with_whole_steps();
    /// held.release(&meter, chain, true).await?;
    /// # });
    /// ```
    pub fn with_whole_steps(&mut self) {
        self.has_whole_steps = true;
    }

    /// Declares that the node tells what the coming release was about, whatever part of it has arrived: if this compute
    /// node dies, the one that takes the lock over mends it ([`crate::Mending`]). So nothing of it is recorded, if this
    /// table's intents came with a way to mend nodes. Only for a lock word in the node.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire_embedded(&meter, node, node.add(56)).await?;
    /// held.lock(&meter).await?;
    /// let mut chain = Chain::with_buffer(node.server(), shard.lease(64));
    /// chain.write(node, 0..56);
    /// held.with_mending();
    /// held.release(&meter, chain, true).await?;
    /// # });
    /// ```
    pub fn with_mending(&mut self) {
        self.is_mended = self.table.intents.as_ref().is_some_and(|intents| intents.mending().is_some());
    }

    /// Tells whether this compute node records what it is about to write, where it would leave a node torn if it died
    /// ([`IntentLog`](crate::IntentLog)).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let held = locks.acquire(&meter, node).await?;
    /// assert!(!held.keeps_intents(), "these locks have no memory for intents");
    /// # });
    /// ```
    pub fn keeps_intents(&self) -> bool {
        self.table.intents.is_some()
    }

    /// Declares that the coming release also writes what lies right behind an embedded lock word, in its line: these
    /// bytes of the chain's buffer, in which the word's place is the 8 bytes before them, of any content before and
    /// after. The unlock and they are one WRITE, the last of the chain; if the lock is not cleared behind the
    /// write-back, they are the last WRITE of that.
    ///
    /// No reader sees one without the other, since a line arrives whole. So a chain that fails is redone as without
    /// them.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire_embedded(&meter, node, node).await?;
    /// let mut buf = held.lock_and_read(&meter, shard.lease(64), 64, true).await?.into_buf();
    /// buf[8..16].copy_from_slice(b"new data");
    /// let before = meter.usage().writes;
    /// held.with_words_behind(8..16);
    /// held.release(&meter, Chain::with_buffer(node.server(), buf), true).await?;
    /// assert_eq!(meter.usage().writes - before, 1);
    /// assert_eq!(shard.read(&meter, node, 16).await?.into_buf()[..], *b"\0\0\0\0\0\0\0\0new data");
    /// # });
    /// ```
    ///
    /// # Panics
    /// If there is nothing in `data`, no place for the word before, or more than the line has behind the word.
    pub fn with_words_behind(&mut self, data: Range<usize>) {
        let in_line = self.lock.offset() % LINE_BYTES + WORD_BYTES as u64 + data.len() as u64 <= LINE_BYTES;
        assert!(
            !data.is_empty() && data.start >= WORD_BYTES && in_line,
            "what is behind the word in its line"
        );
        (self.behind_at, self.behind_bytes) = (data.start as u32, data.len() as u8);
    }

    /// Gives the lock back under which nothing was changed: one round trip, or none if it is handed over.
    ///
    /// # Errors
    /// See [`Held::release`].
    pub async fn unlock(self, meter: &Meter) -> Result<(), LockError> {
        let nothing = Chain::new(self.lock.server());
        self.release(meter, nothing, true).await.map(drop)
    }

    /// Writes `image` to the node, from its begin, and releases. It comes back. See [`Held::release`].
    ///
    /// # Errors
    /// See [`Held::release`].
    pub async fn write_back(
        self,
        meter: &Meter,
        image: Buf,
        combine: bool,
    ) -> Result<Option<Buf>, LockError> {
        let bytes = image.len();
        let mut chain = Chain::with_buffer(self.node.server(), image);
        chain.write(self.node, 0..bytes);
        self.release(meter, chain, combine).await
    }

    /// Writes back and releases. `chain` is the write-back, to the node's own server, and may be empty; its buffer
    /// comes back.
    ///
    /// With `combine` the unlock travels behind the write-back: one round trip. Otherwise the write-back is awaited
    /// and the unlock is a round trip of its own. If the lock is handed over to a waiter, nothing is unlocked, and an
    /// empty chain costs no round trip at all.
    ///
    /// A chain that fails is redone while the lock is still ours, so that no node stays half written: that succeeds,
    /// or costs a pause and a few round trips more (counted as one retry). `chain` should WRITE only: one with a READ
    /// or an atomic in it is not redone.
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut held = locks.acquire(&meter, node).await?;
    /// held.lock(&meter).await?;
    /// let mut chain = Chain::new(node.server());
    /// chain.write_word(node, 7);
    /// held.release(&meter, chain, true).await?;
    /// assert_eq!(meter.usage().round_trips, 2);
    /// assert!(locks.words_held(&meter).await?.is_empty());
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::Fabric`] if the server does not answer any more: whether the write-back took effect is unknown.
    /// The janitor goes on redoing it. Until it succeeds the global lock stays taken, for the node may be torn.
    ///
    /// A holder may post verbs of its own before, such as a CAS on another word of the node, and release with an empty
    /// chain. It awaits them first: the unlock may overtake an atomic that is in flight. (The janitor's does not.)
    ///
    /// # Panics
    /// If `chain` goes to another server than the lock, or writes without the global lock, or has no buffer for what
    /// [`Held::with_words_behind`] declared.
    pub fn release(
        self,
        meter: &Meter,
        chain: Chain,
        combine: bool,
    ) -> impl Future<Output = Result<Option<Buf>, LockError>> {
        self.release_with_image(meter, chain, combine, &[])
    }

    /// Releases as [`Held::release`] does, and leaves what is known of the node to the next holder, if the lock is
    /// handed over: the `known` parts of the chain's buffer say what those parts of the node hold once the chain is
    /// done, all of which was read under this lock, or written. A holder of the same node that wants no more than that
    /// reads nothing ([`Held::lock_and_read_parts`]).
    ///
    /// ```
    /// # farwood_doctest::locks!(|shard, locks, node, meter| {
    /// let mut first = locks.acquire(&meter, node).await?;
    /// let mut image = first.lock_and_read(&meter, shard.lease(64), 64, true).await?.into_buf();
    /// let (next, _) = futures::join!(locks.acquire(&meter, node), async {
    ///     image[..8].copy_from_slice(b"new data");
    ///     let mut chain = Chain::with_buffer(node.server(), image);
    ///     chain.write(node, 0..8);
    ///     first.release_with_image(&meter, chain, true, &[0..64]).await
    /// });
    /// let (mut next, before) = (next?, meter.usage().round_trips);
    /// let image = next.lock_and_read(&meter, shard.lease(64), 64, true).await?.into_buf();
    /// assert_eq!((&image[..8], meter.usage().round_trips - before), (&b"new data"[..], 0));
    /// # next.release(&meter, Chain::new(node.server()), true).await?;
    /// # });
    /// ```
    ///
    /// # Errors
    /// See [`Held::release`].
    ///
    /// # Panics
    /// As [`Held::release`], or if the chain has no buffer for what is known.
    pub async fn release_with_image(
        mut self,
        meter: &Meter,
        mut chain: Chain,
        combine: bool,
        known: &[Range<usize>],
    ) -> Result<Option<Buf>, LockError> {
        assert_eq!(chain.server(), self.lock.server(), "the write-back goes to the lock's server");
        let Some(claim) = self.release_claim() else {
            assert!(chain.is_empty() && self.behind_bytes == 0, "a write-back needs the global lock");
            return Ok(chain.into_buffer());
        };
        let mut mode = match self.passes_on(claim) {
            true => UnlockMode::Kept,
            false if combine => UnlockMode::Unlocked,
            false => UnlockMode::UnlockLater,
        };
        let (behind, mut recorded) = (self.take_behind(), false);
        let own_bytes = chain.buffer().map(|buf| buf.len());
        if self.table.intents.is_some() && !self.is_mended {
            recorded = self.record_or_say(meter, &mut chain, claim, behind.as_ref()).await?;
        }
        match (mode, behind) {
            (UnlockMode::Unlocked, Some(behind)) => self.add_unlock_with(&mut chain, claim, behind),
            (UnlockMode::Unlocked, None) => self.add_unlock(&mut chain, claim),
            (_, Some(behind)) => self.add_words_behind(&mut chain, behind),
            (_, None) => {}
        }
        let pending = PendingRelease { claim, mode, unpublished: self.unpublished, recorded };
        if recorded {
            self.end_record(&mut chain, pending);
        }
        let buf = match chain.is_empty() {
            true => chain.into_buffer(),
            false => {
                self.depart(meter, chain, pending);
                without_intent(poll_fn(|cx| self.poll_releasing(meter, cx)).await?, own_bytes)
            }
        };
        if mode == UnlockMode::UnlockLater {
            // A waiter may have come while the write-back was on its way.
            if self.passes_on(claim) {
                mode = UnlockMode::Kept;
            } else {
                let mut unlock = Chain::new(self.lock.server());
                self.add_unlock(&mut unlock, claim);
                self.depart(meter, unlock, PendingRelease::unlock(claim));
                poll_fn(|cx| self.poll_releasing(meter, cx)).await?;
            }
        }
        if mode == UnlockMode::Kept && !known.is_empty() {
            self.leave_image(claim, known, buf.as_ref().expect("what is known is in the chain's buffer"));
        }
        self.part(mode, claim);
        Ok(buf)
    }

    fn take_behind(&mut self) -> Option<Range<usize>> {
        let (at, bytes) = (self.behind_at as usize, usize::from(std::mem::take(&mut self.behind_bytes)));
        (bytes > 0).then_some(at..at + bytes)
    }

    /// Yields the claim that ends with a release, and leaves the word as the holder wants it. `None` without the global
    /// lock.
    #[inline]
    fn release_claim(&self) -> Option<Claim> {
        let Global::Taken { claim } = self.global else { return None };
        Some(Claim { vacant: self.vacant, ..claim })
    }

    /// Ends the acquisition, whose last chain has completed.
    ///
    /// Only now: the next holder may use another queue pair, and between queue pairs there is no order. Were it told
    /// when the write-back is posted (as in the paper's figure 6), it could read the node before the write-back:
    ///
    /// ```text
    ///   holder, shard 0   WRITE node ·······························> takes effect
    ///   next,   shard 1       told ──> READ node (old) ──> WRITE node: the first write is lost
    /// ```
    fn part(&mut self, mode: UnlockMode, claim: Claim) {
        self.global = Global::Released;
        self.give_back((mode == UnlockMode::Kept).then_some(claim));
    }

    /// Posts a chain of a release.
    fn depart(&mut self, meter: &Meter, chain: Chain, pending: PendingRelease) {
        let chain = self.table.verbs.submit(meter, chain);
        self.global = Global::Releasing { chain, pending };
    }

    /// Polls the chain that was posted last. If it fails it is redone.
    #[inline]
    fn poll_releasing(
        &mut self,
        meter: &Meter,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Buf>, FabricError>> {
        let Global::Releasing { chain, pending } = &mut self.global else { return self.poll_redoing(cx) };
        let pending = *pending;
        match ready!(Pin::new(chain).poll(cx)) {
            Ok(done) => {
                self.global = Self::left(pending);
                Poll::Ready(Ok(done.buf))
            }
            Err(failed) => {
                meter.retry();
                let redo = Box::pin(redo(Rc::clone(&self.table), self.lock, pending, failed));
                self.global = Global::Redoing { pending, redo };
                self.poll_redoing(cx)
            }
        }
    }

    #[cold]
    fn poll_redoing(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Buf>, FabricError>> {
        let Global::Redoing { pending, redo } = &mut self.global else {
            unreachable!("no release is in flight")
        };
        let pending = *pending;
        let (global, done) = match ready!(redo.as_mut().poll(cx)) {
            Ok(buf) => (Self::left(pending), Ok(buf)),
            Err(failed) if can_be_redone(self.lock, &failed) => {
                let cause = failed.cause().clone();
                (Global::Unfinished(Unfinished { pending, failed }), Err(cause))
            }
            Err(failed) => (Global::Unknown { claim: pending.claim }, Err(failed.into())),
        };
        self.global = global;
        Poll::Ready(done)
    }

    /// Yields the state that a release chain leaves when it has taken effect.
    #[inline]
    fn left(pending: PendingRelease) -> Global<V::Submission> {
        match pending.mode {
            UnlockMode::Unlocked => Global::Free,
            UnlockMode::Kept | UnlockMode::UnlockLater => Global::Taken { claim: pending.claim },
        }
    }

    fn add_unlock(&self, chain: &mut Chain, claim: Claim) {
        self.table.add_unlock(chain.fence_if_needed(), self.lock, claim);
    }

    fn add_words_behind(&self, chain: &mut Chain, behind: Range<usize>) {
        chain.write(self.lock.add(WORD_BYTES as u64), behind);
    }

    /// Adds the unlock with what goes right behind the word.
    fn add_unlock_with(&self, chain: &mut Chain, claim: Claim, behind: Range<usize>) {
        if !self.table.unlocks_by_write() {
            self.add_words_behind(chain, behind);
            return self.add_unlock(chain, claim);
        }
        let word = behind.start - WORD_BYTES..behind.start;
        let buf = chain.buffer_mut().expect("what is behind the word is in the chain's buffer");
        buf[word.clone()].copy_from_slice(&claim.vacant.to_le_bytes());
        chain.fence_if_needed().write(self.lock, word.start..behind.end);
    }

    fn is_taken(&self) -> bool {
        matches!(self.global, Global::Taken { .. })
    }

    fn passes_on(&self, claim: Claim) -> bool {
        let config = &self.table.config;
        let hinted = self.ticket.is_some_and(|ticket| self.table.hinted(ticket));
        // Only the taker of a leftover knows what it was: the next holder has to find it in the word again.
        config.handover
            && !claim.takes_over(config.codec)
            && passes_on(hinted, self.depth, config.handovers_max)
    }

    fn give_back(&mut self, kept: Option<Claim>) {
        if let Some(ticket) = self.ticket.take() {
            self.table.give_back(self.lock, ticket, kept);
        }
    }
}

/// Yields the buffer of a release, which had so many bytes, if it had one, as it was before its intent was added.
fn without_intent(buf: Option<Buf>, own_bytes: Option<usize>) -> Option<Buf> {
    let (mut buf, bytes) = buf.zip(own_bytes)?;
    buf.truncate(bytes);
    Some(buf)
}

/// Adds READs of those parts of a node, each to where it is in the node.
pub(crate) fn add_reads(chain: &mut Chain, node: RemotePtr, parts: &[Range<usize>]) {
    for part in parts {
        chain.read(node.add(part.start as u64), part.clone());
    }
}

impl<V: Verbs> Drop for Held<V> {
    #[inline]
    fn drop(&mut self) {
        match std::mem::replace(&mut self.global, Global::Released) {
            Global::Released => {}
            Global::Free => self.give_back(None),
            left => {
                let (table, task) = (Rc::clone(&self.table), self.table.backlog.begin(self.lock.server()));
                let slot = self.slot.take();
                self.table.verbs.defer(clean_up(table, task, self.lock, self.ticket, slot, left));
            }
        }
    }
}
