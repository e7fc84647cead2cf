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
enum Record {
    /// None, since the release leaves no node torn, or the word promises none.
    Needless,
    /// One of which nothing can be said, but that the node may be torn: it goes ahead, in a chain of its own.
    Unsayable,
    /// In the chain, behind what is unpublished, and in its buffer, behind what was there.
    Whole,
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

    /// Sees to it that a release which may leave the node torn has an intent, or that it is known to have none; yields
    /// whether it is in the chain, whose content is as [`Held::record`] has it. A round trip if nothing can be said.
    pub(super) async fn record_or_say(
        &self,
        meter: &Meter,
        chain: &mut Chain,
        claim: Claim,
        behind: Option<&Range<usize>>,
    ) -> Result<bool, FabricError> {
        Ok(match self.record(chain, claim, behind) {
            Record::Needless => false,
            Record::Unsayable => {
                Box::pin(self.record_nothing(meter, claim)).await?;
                false
            }
            Record::Whole => true,
        })
    }

    /// Adds the intent of a release to its chain, if it needs one. `chain` has all WRITEs but the unlock, and what is
    /// behind the word in its buffer ([`Held::with_words_behind`]).
    #[inline(never)]
    fn record(&self, chain: &mut Chain, claim: Claim, behind: Option<&Range<usize>>) -> Record {
        let (prefix, node) = chain.verbs().split_at(usize::from(self.unpublished).min(chain.verbs().len()));
        // The usual case, without a list: few WRITEs, none of which can be torn.
        let is_single = behind.is_none() && (self.has_whole_steps || node.len() < 2);
        if is_single && node.iter().all(|verb| patch_of(verb.op).is_some_and(|patch| !patch.crosses_lines()))
        {
            return Record::Needless;
        }
        let (Some(mut patches), place) = (patches_of(node), prefix.len()) else { return Record::Unsayable };
        if let Some(behind) = behind {
            patches.push(Patch { at: self.lock.offset() + WORD_BYTES as u64, bytes: behind.len() });
        }
        if !self.has_to_record(&patches, claim) {
            return Record::Needless;
        }
        let intent = self.intent_bytes(&patches);
        let bytes = intent.unwrap_or(UNRECORDED_BYTES);
        let (buf, start) = self.with_room(chain.replace_buffer(None), bytes);
        chain.replace_buffer(Some(buf));
        let (verbs, buf) = chain.parts_mut();
        let buf = buf.expect("it has one now");
        if intent.is_some() {
            let mut at = start + intent::data_begins(&patches);
            for verb in &verbs[place..] {
                at += copy(verb.op, buf, at);
            }
            if let Some(behind) = behind {
                buf.copy_within(behind.clone(), at);
            }
        }
        self.fill(&mut buf[start..start + bytes], &patches, intent.is_some(), claim);
        chain.insert_write(place, self.promised_slot().at(), start..start + bytes);
        Record::Whole
    }

    /// Lengthens a buffer by `bytes`, or puts a larger one with its content in its place; yields also where they begin.
    fn with_room(&self, buf: Option<Buf>, bytes: usize) -> (Buf, usize) {
        let before = buf.as_ref().map_or(0, |buf| buf.len());
        let start = before.next_multiple_of(WORD_BYTES);
        if let Some(mut buf) = buf {
            if buf.extend(start - before + bytes) {
                return (buf, start);
            }
            let mut larger = self.table.verbs.lease(start + bytes);
            larger[..before].copy_from_slice(&buf);
            return (larger, start);
        }
        (self.table.verbs.lease(bytes), 0)
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
        let bytes = intent.unwrap_or(UNRECORDED_BYTES);
        let (mut buf, start) = self.with_room(Some(buf), bytes);
        if intent.is_some() {
            buf.copy_within(data.clone(), start + intent::data_begins(&patches));
        }
        self.fill(&mut buf[start..start + bytes], &patches, intent.is_some(), claim);
        pending.recorded = true;
        let mut chain = self.rear_chain(buf, data, Some(start..start + bytes), pending);
        self.end_record(&mut chain, pending);
        self.depart(meter, chain, pending);
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

    /// Completes an intent, which has the words of the WRITEs already if it is to say which they are.
    fn fill(&self, intent: &mut [u8], patches: &[Patch], is_said: bool, claim: Claim) {
        let under = Under { lock: self.lock, word: claim.word, vacant: claim.vacant, copies: 0 };
        if !is_said {
            intent::record_nothing(intent, under);
            return self.unrecorded();
        }
        let bytes = intent.len();
        intent::record(intent, under, patches);
        tracing::debug!(name: "lock.intent.recorded", lock = %self.lock, bytes, "an intent is recorded");
        self.table.counters.count(|stats| {
            stats.recorded += 1;
            stats.record_bytes += bytes as u64;
        });
    }

    /// Says in the slot that the node may be torn: for a release with a verb that no intent can say. One round trip.
    #[cold]
    async fn record_nothing(&self, meter: &Meter, claim: Claim) -> Result<(), FabricError> {
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

/// Copies what a WRITE writes to that place of the buffer; yields how much that is.
fn copy(op: Op, buf: &mut [u8], to: usize) -> usize {
    let bytes = bytes_of(op);
    match op {
        Op::Write { from, .. } => buf.copy_within(from as usize..from as usize + bytes, to),
        Op::WriteWord { word, .. } => buf[to..to + bytes].copy_from_slice(&word.to_le_bytes()),
        Op::Read { .. } | Op::Cas { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => {}
    }
    bytes
}
