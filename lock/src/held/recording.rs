//! The intent of a release: the slot that it goes to, and the chain that writes it before the node. What is in an
//! intent knows [`crate::intent`], where slots come from [`crate::intents`].
//!
//! ```text
//!   WRITE new nodes, WRITE intent, WRITEs of the node, unlock       passed on: WRITE of a 0 over the intent, no unlock
//! ```
//!
//! The WRITEs of one chain take effect in their order. So where the first line of the node is, the whole intent is; and
//! where that is, the new nodes are whole, which the node leads to and the intent leaves out. An intent that is behind
//! its node is none:
//!
//! ```text
//!   holder   WRITE node: half ✗ dies                      other   no intent: nothing is torn, takes the lock: it is
//! ```
//!
//! The intent of a lock that is passed on goes before the next holder comes, which has the same word:
//!
//! ```text
//!   holder   WRITE intent: X, WRITE node: X      next   WRITE node: Y ✗ dies      other   finds X, and writes it again
//! ```

use std::ops::Range;

use farwood_runtime::chain::{Op, Verb};
use farwood_runtime::{Buf, Chain, FabricError, Meter, Verbs};
use smallvec::SmallVec;

use super::{Global, Held, PendingRelease, UnlockMode};
use crate::error::LockError;
use crate::intent::{self, Patch, UNRECORDED_BYTES, Under};
use crate::intents::{self, Slot};
use crate::word::{Claim, LockWord, WORD_BYTES};

/// WRITEs of a release, as an intent has them.
type Patches = SmallVec<[Patch; 8]>;

/// The intent of a release.
pub(super) enum Record {
    /// None, since the release leaves no node torn, or the word promises none.
    Needless,
    /// One of which nothing can be said, but that the node may be torn: it goes ahead, in a chain of its own.
    Unsayable,
    Whole(Recorded),
}

/// A release whose chain begins with the intent, behind what is unpublished.
pub(super) struct Recorded {
    pub(super) chain: Chain,
    /// See [`Held::with_words_behind`], in the chain's buffer.
    pub(super) behind: Option<Range<usize>>,
}

impl<V: Verbs> Held<V> {
    /// Takes a slot, if intents are kept and one is free; tells whether one has to be waited for. Apart from
    /// [`Held::wait_for_slot`], since to await it costs something even where no intents are kept.
    #[inline]
    pub(super) fn lacks_slot(&mut self) -> bool {
        let Some(intents) = self.table.intents.as_ref().filter(|_| self.slot.is_none()) else {
            return false;
        };
        self.slot = intents.take(self.lock.server());
        self.slot.is_none()
    }

    /// Sees to it that there is a slot, if one can be had: no round trip.
    #[cold]
    pub(super) async fn wait_for_slot(&mut self) {
        if let Some(intents) = &self.table.intents {
            self.slot = intents::slot(&self.table.verbs, intents, self.lock.server()).await;
        }
    }

    /// Makes the word of an acquisition, which says whether there is a slot.
    #[inline]
    pub(super) fn new_word(&self) -> LockWord {
        let word = self.table.word();
        if self.slot.is_some() { word.with_intents() } else { word }
    }

    /// Tells whether this is a lock that was handed over with a word that promises intents, and has no slot.
    #[inline]
    pub(super) fn owes_slot(&mut self) -> bool {
        matches!(self.global, Global::Taken { claim } if claim.word.keeps_intents()) && self.lacks_slot()
    }

    /// Waits for the slot that the word promises; if none can be had, gives the word back, and the lock is had with
    /// another one.
    #[cold]
    pub(super) async fn keep_promise(&mut self, meter: &Meter) -> Result<(), LockError> {
        self.wait_for_slot().await;
        if self.slot.is_none()
            && let Some(claim) = self.release_claim()
        {
            tracing::debug!(name: "lock.intent.declined", lock = %self.lock, "there is no slot for a lock's intents");
            let mut unlock = Chain::new(self.lock.server());
            self.add_unlock(&mut unlock, claim);
            self.depart(meter, unlock, PendingRelease::unlock(claim));
            std::future::poll_fn(|cx| self.poll_releasing(meter, cx)).await?;
            self.may_have_image = false;
        }
        Ok(())
    }

    /// Yields the chain of a release with its intent, if it needs one. `chain` has all WRITEs but the unlock, and what
    /// is behind the word.
    #[inline(never)]
    pub(super) fn record(&self, chain: &Chain, claim: Claim, behind: Option<Range<usize>>) -> Record {
        let (prefix, node) = chain.verbs().split_at(usize::from(self.unpublished).min(chain.verbs().len()));
        // The usual case, without a list: few WRITEs, none of which can be torn.
        let is_single = behind.is_none() && (self.has_whole_steps || node.len() < 2);
        if is_single && node.iter().all(|verb| patch_of(verb.op).is_some_and(|patch| !patch.crosses_lines()))
        {
            return Record::Needless;
        }
        let Some(mut patches) = patches_of(node) else { return Record::Unsayable };
        let behind_bytes = behind.as_ref().map_or(0, |behind| behind.len());
        if behind_bytes > 0 {
            patches.push(Patch { at: self.lock.offset() + WORD_BYTES as u64, bytes: behind_bytes });
        }
        if !self.has_to_record(&patches, claim) {
            return Record::Needless;
        }
        let intent = self.intent_bytes(&patches);
        let prefix_bytes: usize = prefix.iter().map(|verb| bytes_of(verb.op)).sum();
        let source = chain.buffer().map_or(&[][..], |buf| &buf[..]);
        let data_at = intent.map_or(UNRECORDED_BYTES, |_| intent::data_begins(&patches));
        let data_end = data_at + patches.iter().map(|patch| patch.bytes).sum::<usize>();
        // The word's place, and once more what is behind it: the unlock writes both.
        let behind_at = data_end + WORD_BYTES;
        let prefix_at = behind_at + behind_bytes;
        let mut buf = self.table.verbs.lease(prefix_at + prefix_bytes);
        let mut at = data_at;
        for verb in node {
            at += copy(verb.op, source, &mut buf[at..]);
        }
        if let Some(behind) = &behind {
            buf[at..data_end].copy_from_slice(&source[behind.clone()]);
            buf[behind_at..prefix_at].copy_from_slice(&source[behind.clone()]);
        }
        at = prefix_at;
        for verb in prefix {
            at += copy(verb.op, source, &mut buf[at..]);
        }
        let written = self.fill(&mut buf, &patches, intent, claim);
        let mut built = Chain::with_buffer(chain.server(), buf);
        add_writes(&mut built, prefix, prefix_at);
        self.add_intent(&mut built, 0..written);
        add_writes(&mut built, node, data_at);
        Record::Whole(Recorded { chain: built, behind: behind.map(|_| behind_at..prefix_at) })
    }

    /// Posts the chain of a release of a rear lock, with its intent, if it needs one. Apart from the release, which is
    /// the faster for it where no intents are kept.
    #[inline(never)]
    pub(super) fn depart_recorded(
        &mut self,
        meter: &Meter,
        buf: Buf,
        data: Range<usize>,
        mut pending: PendingRelease,
    ) {
        let claim = pending.claim;
        let patches = [Patch { at: self.lock.offset() - data.len() as u64, bytes: data.len() }];
        if !self.has_to_record(&patches, claim) {
            return self.depart(meter, self.rear_chain(buf, data, None, pending), pending);
        }
        let intent = self.intent_bytes(&patches);
        let data_at = intent.map_or(UNRECORDED_BYTES, |_| intent::data_begins(&patches));
        let data_end = data_at + data.len();
        let mut copy = self.table.verbs.lease(data_end + WORD_BYTES);
        copy[data_at..data_end].copy_from_slice(&buf[data]);
        let written = self.fill(&mut copy, &patches, intent, claim);
        self.promised_slot().park(Some(buf));
        pending.recorded = true;
        let mut chain = self.rear_chain(copy, data_at..data_end, Some(0..written), pending);
        self.end_record(&mut chain, pending);
        self.depart(meter, chain, pending);
    }

    /// Puts the buffer that a client gave for its release in the place of the one that its chain has come back with, if
    /// that had a copy.
    #[inline]
    pub(super) fn unpark(&self, buf: &mut Option<Buf>) {
        if let Some(slot) = &self.slot {
            slot.unpark(buf);
        }
    }

    /// Adds the WRITE of an intent.
    pub(super) fn add_intent(&self, chain: &mut Chain, intent: Range<usize>) {
        chain.write(self.promised_slot().at(), intent);
    }

    /// Takes the intent of a release back behind a write-back that does not clear the lock.
    pub(super) fn end_record(&self, chain: &mut Chain, pending: PendingRelease) {
        if pending.mode != UnlockMode::Unlocked {
            chain.write_word(self.promised_slot().at(), 0);
        }
    }

    /// Tells whether those WRITEs may leave a node torn of which the word says that its intent is recorded.
    fn has_to_record(&self, patches: &[Patch], claim: Claim) -> bool {
        if self.table.intents.is_none() || !intent::can_be_torn(patches, self.has_whole_steps) {
            return false;
        }
        if !claim.word.keeps_intents() {
            self.unrecorded();
            return false;
        }
        true
    }

    /// Yields the slot that the word of a recorded release promises.
    pub(super) fn promised_slot(&self) -> &Slot {
        self.slot.as_ref().expect("a lock that was handed over is had by `lock` or `lock_and_read` first")
    }

    /// Counts the bytes of the intent, if it fits into the slot.
    fn intent_bytes(&self, patches: &[Patch]) -> Option<usize> {
        intent::recorded_bytes(patches).filter(|bytes| *bytes <= self.promised_slot().bytes())
    }

    /// Writes the intent in the beginning of the buffer, which has the bytes of the node behind it; yields its bytes.
    fn fill(&self, buf: &mut Buf, patches: &[Patch], intent: Option<usize>, claim: Claim) -> usize {
        let under = Under { lock: self.lock, word: claim.word, vacant: claim.vacant, copies: 0 };
        match intent {
            Some(bytes) => {
                intent::record(&mut buf[..bytes], under, patches);
                tracing::debug!(name: "lock.intent.recorded", lock = %self.lock, bytes, "an intent is recorded");
                self.table.counters.count(|stats| {
                    stats.recorded += 1;
                    stats.record_bytes += bytes as u64;
                });
                bytes
            }
            None => {
                intent::record_nothing(&mut buf[..UNRECORDED_BYTES], under);
                self.unrecorded();
                UNRECORDED_BYTES
            }
        }
    }

    /// Says in the slot that the node may be torn: for a release with a verb that no intent can say. One round trip.
    #[cold]
    pub(super) async fn record_nothing(&self, meter: &Meter, claim: Claim) -> Result<(), FabricError> {
        let Some(slot) = self.slot.as_ref().filter(|_| claim.word.keeps_intents()) else { return Ok(()) };
        let mut buf = self.table.verbs.lease(UNRECORDED_BYTES);
        let under = Under { lock: self.lock, word: claim.word, vacant: claim.vacant, copies: 0 };
        intent::record_nothing(&mut buf[..UNRECORDED_BYTES], under);
        let mut chain = Chain::with_buffer(self.lock.server(), buf);
        chain.write(slot.at(), 0..UNRECORDED_BYTES);
        self.unrecorded();
        self.table.verbs.submit(meter, chain).await?;
        Ok(())
    }

    fn unrecorded(&self) {
        tracing::debug!(name: "lock.intent.unrecorded", lock = %self.lock, "a write-back is not recorded");
        self.table.counters.count(|stats| stats.unrecorded += 1);
    }
}

/// Lists WRITEs; `None` if another verb is among them.
fn patches_of(verbs: &[Verb]) -> Option<Patches> {
    let mut patches = Patches::new();
    for verb in verbs {
        patches.push(patch_of(verb.op)?);
    }
    Some(patches)
}

fn patch_of(op: Op) -> Option<Patch> {
    match op {
        Op::Write { at, .. } | Op::WriteWord { at, .. } => Some(Patch { at, bytes: bytes_of(op) }),
        Op::Read { .. } | Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => None,
    }
}

fn bytes_of(op: Op) -> usize {
    match op {
        Op::Write { len, .. } => len as usize,
        Op::WriteWord { .. } => WORD_BYTES,
        Op::Read { .. } | Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => 0,
    }
}

/// Copies what a WRITE writes; yields how much that is.
fn copy(op: Op, source: &[u8], to: &mut [u8]) -> usize {
    let bytes = bytes_of(op);
    match op {
        Op::Write { from, .. } => to[..bytes].copy_from_slice(&source[from as usize..][..bytes]),
        Op::WriteWord { word, .. } => to[..bytes].copy_from_slice(&word.to_le_bytes()),
        Op::Read { .. } | Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => {}
    }
    bytes
}

/// Adds WRITEs again, whose bytes are in the chain's buffer one after the other.
fn add_writes(chain: &mut Chain, verbs: &[Verb], mut from: usize) {
    let server = chain.server();
    for verb in verbs {
        let (Op::Write { at, .. } | Op::WriteWord { at, .. }) = verb.op else { continue };
        let bytes = bytes_of(verb.op);
        chain.write(Patch { at, bytes }.ptr(server), from..from + bytes);
        from += bytes;
    }
}
