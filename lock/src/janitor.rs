//! Completes what holders leave unfinished: releases whose chain failed, dropped acquisitions, lock words of unknown
//! state. The one place that brings a node and its lock word back to a known state after a failure.
//!
//! A release whose chain failed is *redone*: the node may be half written, and would be torn for ever if it were only
//! unlocked. WRITEs of the same bytes to the locked node may be posted any number of times while the lock is ours.
//! (Those to a new node may not: `without_reached`.)
//!
//! ```text
//!   holder   WRITE lines 0, 1, unlock: line 0 arrives ✗ ─> READ word: ours ─> WRITE lines 0, 1, unlock
//!   unlock only                                         ✗ ─> unlock      next holder: READ line 0 new, line 1 old
//! ```
//!
//! A chain that ended with the unlock is posted again only after the word was read back. If it is not ours, the unlock
//! took effect, and so did all before it, since WRITEs of one queue pair keep their order: the release succeeded. The
//! same holds of a rear lock, whose word is the last of one WRITE in address order (`Held::release_rear`).
//!
//! ```text
//!   holder   WRITE node, unlock: both arrive ✗ ····················· WRITE node, unlock: X is lost, its holder's
//!   other                                      CAS wins, WRITE X                         lock is cleared under it
//! ```
//!
//! A holder that is dropped may have an atomic of its own in flight. Rule 1 of the fabric contract lets a WRITE
//! overtake it, so the word is cleared behind a READ and a fence: the READ is executed after all READs and atomics of
//! the queue pair before it, of earlier chains too, and the fenced WRITE after the READ.
//!
//! ```text
//!   holder    CAS link (dropped) ···········································> takes effect under no lock
//!   janitor        unlock, without the fence ─> overtakes
//! ```
//!
//! The local lock stays held meanwhile, for [`ATTEMPTS_MAX`] attempts at a server that does not answer. If all fail it
//! is given back *without* the word, which stays taken: there may be a torn node under it, and only the word keeps
//! clients off that node, on this compute node as on others. Clients that waited for the local lock find the word
//! taken, or the server gone, and say so. The janitor goes on for [`PATIENCE_MAX`] attempts; if the server answers
//! again, the write-back is completed and the word cleared. After that the word stays taken, like those of dead
//! clients. Meanwhile other operations leave as much: `backlog` bounds that.

use std::ops::Range;
use std::rc::Rc;

use farwood_runtime::chain::Op;
use farwood_runtime::{Buf, Chain, Completion, Failed, Meter, RemotePtr, Verbs};

use crate::backlog::Task;
use crate::held::{Global, PendingRelease, UnlockMode};
use crate::intents::Slot;
use crate::pace::{ATTEMPTS_MAX, PATIENCE_MAX, Pace};
use crate::table::{LocalTicket, Table};
use crate::word::{Claim, WORD_BYTES};

/// Bytes that a fabric keeps whole.
const LINE_BYTES: usize = 64;

/// A release whose chain keeps failing. The word is ours, or the release has taken effect.
pub(crate) struct Unfinished {
    pub(crate) pending: PendingRelease,
    /// The chain, which writes only.
    pub(crate) failed: Failed,
}

/// The fate of a lock word.
enum Settled {
    /// It is not ours.
    Cleared,
    /// It stays taken for the next holder.
    Kept(Claim),
    /// Not known yet.
    Unfinished(Unfinished),
}

/// Settles the global half of a dropped acquisition, then gives the local half back. What is in its slot is needed
/// until the word is cleared.
pub(crate) async fn clean_up<V: Verbs>(
    table: Rc<Table<V>>,
    _task: Task,
    lock: RemotePtr,
    ticket: Option<LocalTicket>,
    slot: Option<Slot>,
    left: Global<V::Submission>,
) {
    tracing::debug!(name: "lock.janitor", %lock, left = left.name(), "a dropped lock is cleaned up");
    let settled = settle(&table, lock, left).await;
    if let Some(ticket) = ticket {
        let kept = if let Settled::Kept(claim) = settled { Some(claim) } else { None };
        table.give_back(lock, ticket, kept);
    }
    if !outlast(&table, lock, settled).await {
        slot.into_iter().for_each(Slot::keep);
    }
}

/// Clears a word that was kept for a waiter that is gone. The home holds the lock meanwhile.
pub(crate) async fn unlock_unclaimed<V: Verbs>(
    table: Rc<Table<V>>,
    _task: Task,
    lock: RemotePtr,
    kept: Claim,
) {
    tracing::debug!(name: "lock.handover.cancelled", %lock, "a lock kept for a cancelled waiter is cleared");
    let settled = unlock(&table, lock, kept).await;
    table.unlocked(lock);
    outlast(&table, lock, settled).await;
}

/// Tells whether the CAS of `claim` took the lock.
pub(crate) fn won(done: &Completion, claim: Claim) -> bool {
    done.atomics.first().is_some_and(|&found| claim.wins(found))
}

/// Tells whether posting the failed chain of a release of `lock` again can complete it: it WRITEs only, and unlocks.
pub(crate) fn can_be_redone(lock: RemotePtr, failed: &Failed) -> bool {
    let can_be = |op| match op {
        Op::Write { .. } | Op::WriteWord { .. } => true,
        // The unlock, where it is a CAS.
        Op::Cas { at, .. } => at == lock.offset(),
        Op::Read { .. } | Op::MaskedCas { .. } | Op::Faa { .. } => false,
    };
    failed.chain().verbs().iter().all(|verb| can_be(verb.op)) && !failed.cause().is_refusal()
}

/// Redoes the failed chain of a release until it has taken effect or the attempts are spent; yields its buffer.
pub(crate) async fn redo<V: Verbs>(
    table: Rc<Table<V>>,
    lock: RemotePtr,
    pending: PendingRelease,
    failed: Failed,
) -> Result<Option<Buf>, Failed> {
    if !can_be_redone(lock, &failed) {
        return Err(failed);
    }
    tracing::debug!(name: "lock.redo", %lock, cause = %failed, "the chain of a release failed: it is redone");
    let (_, chain) = failed.into_parts();
    persist(&table, lock, pending, chain, 0..ATTEMPTS_MAX).await
}

async fn settle<V: Verbs>(table: &Rc<Table<V>>, lock: RemotePtr, left: Global<V::Submission>) -> Settled {
    match left {
        Global::Free | Global::Released => Settled::Cleared,
        Global::Taken { claim } => unlock_behind_all(table, lock, claim).await,
        Global::Unknown { claim } => clear_if_ours(table, lock, claim).await,
        Global::CasInFlight { claim, cas } => match cas.await {
            Ok(done) if won(&done, claim) => unlock(table, lock, claim).await,
            Ok(_) => Settled::Cleared,
            Err(_) => clear_if_ours(table, lock, claim).await,
        },
        Global::Releasing { chain, pending } => {
            let left = match chain.await {
                Ok(done) => Ok(done.buf),
                Err(failed) => redo(Rc::clone(table), lock, pending, failed).await,
            };
            settle_release(table, lock, pending, left).await
        }
        Global::Redoing { pending, redo } => {
            let left = redo.await;
            settle_release(table, lock, pending, left).await
        }
        Global::Unfinished(unfinished) => Settled::Unfinished(unfinished),
    }
}

/// Does what is left after the chain of a dropped release, which was redone if need be.
async fn settle_release<V: Verbs>(
    table: &Table<V>,
    lock: RemotePtr,
    pending: PendingRelease,
    left: Result<Option<Buf>, Failed>,
) -> Settled {
    let claim = pending.claim;
    match (left, pending.mode) {
        (Ok(_), UnlockMode::Unlocked) => Settled::Cleared,
        (Ok(_), UnlockMode::Kept) => Settled::Kept(claim),
        (Ok(_), UnlockMode::UnlockLater) => unlock(table, lock, claim).await,
        (Err(failed), _) if can_be_redone(lock, &failed) => {
            Settled::Unfinished(Unfinished { pending, failed })
        }
        (Err(_), _) => clear_if_ours(table, lock, claim).await,
    }
}

/// Clears a word that is ours for certain, with nothing to write back.
async fn unlock<V: Verbs>(table: &Table<V>, lock: RemotePtr, claim: Claim) -> Settled {
    match table.verbs.submit(&Meter::default(), unlock_chain(table, lock, claim)).await {
        Ok(_) => Settled::Cleared,
        Err(_) => clear_if_ours(table, lock, claim).await,
    }
}

/// Clears a word that is ours for certain, where the holder may have posted verbs that the unlock must not overtake.
async fn unlock_behind_all<V: Verbs>(table: &Table<V>, lock: RemotePtr, claim: Claim) -> Settled {
    let mut chain = Chain::with_buffer(lock.server(), table.verbs.lease(WORD_BYTES));
    table.add_unlock(chain.read(lock, 0..WORD_BYTES).fence(), lock, claim);
    match table.verbs.submit(&Meter::default(), chain).await {
        Ok(_) => Settled::Cleared,
        Err(_) => clear_if_ours(table, lock, claim).await,
    }
}

/// Clears a word that may be ours: what is read back tells.
async fn clear_if_ours<V: Verbs>(table: &Table<V>, lock: RemotePtr, claim: Claim) -> Settled {
    let pending = PendingRelease::unlock(claim);
    match persist(table, lock, pending, unlock_chain(table, lock, claim), 0..ATTEMPTS_MAX).await {
        Ok(_) => Settled::Cleared,
        Err(failed) => Settled::Unfinished(Unfinished { pending, failed }),
    }
}

/// Goes on with what is unfinished, now that no operation waits for it: the lock ends cleared, over a node that is
/// whole. Yields whether it does.
async fn outlast<V: Verbs>(table: &Table<V>, lock: RemotePtr, settled: Settled) -> bool {
    let Settled::Unfinished(Unfinished { pending, failed }) = settled else { return true };
    let (_, mut chain) = failed.into_parts();
    if pending.mode != UnlockMode::Unlocked {
        table.add_unlock(&mut chain, lock, pending.claim);
    }
    let pending = PendingRelease { mode: UnlockMode::Unlocked, ..pending };
    let outlasted = persist(table, lock, pending, chain, ATTEMPTS_MAX..PATIENCE_MAX).await;
    if let Err(failed) = &outlasted {
        orphaned(table, lock, pending.claim, failed);
    }
    outlasted.is_ok()
}

/// Gives a lock up whose memory server does not answer.
pub(crate) fn orphaned<V: Verbs>(table: &Table<V>, lock: RemotePtr, claim: Claim, failed: &Failed) {
    table.counters.count(|stats| stats.orphaned += 1);
    tracing::warn!(
        name: "lock.orphaned", %lock, word = ?claim.word, cause = %failed,
        "a memory server fails: a lock may stay taken on it, over a node that may be torn"
    );
}

/// Posts the chain of a release again and again, until it has taken effect or the attempts are spent.
pub(crate) async fn persist<V: Verbs>(
    table: &Table<V>,
    lock: RemotePtr,
    pending: PendingRelease,
    mut chain: Chain,
    attempts: Range<u32>,
) -> Result<Option<Buf>, Failed> {
    let mut pace = Pace::after(attempts.start);
    loop {
        let failed = match post_again(table, lock, pending, chain).await {
            Ok(buf) => {
                table.backlog.heard(lock.server(), Ok(()));
                return Ok(buf);
            }
            Err(failed) => failed,
        };
        table.backlog.heard(lock.server(), Err(failed.cause()));
        let pause_ns = pace.failed(failed.cause(), table.config.attempts_max);
        if pace.attempts() >= attempts.end || failed.cause().is_refusal() {
            return Err(failed);
        }
        table.verbs.pause(pause_ns).await;
        (_, chain) = failed.into_parts();
    }
}

/// Makes one attempt. Between the READ and the WRITEs the word cannot change hands: only its owner clears it.
async fn post_again<V: Verbs>(
    table: &Table<V>,
    lock: RemotePtr,
    pending: PendingRelease,
    chain: Chain,
) -> Result<Option<Buf>, Failed> {
    if pending.mode == UnlockMode::Unlocked {
        match read_back(&table.verbs, &Meter::default(), lock).await {
            Ok(found) if found != pending.claim.word.to_bits() => return Ok(chain.into_buffer()),
            Ok(_) => {}
            Err(failed) => return Err(Failed::new(failed.into(), chain)),
        }
    }
    let chain = if pending.unpublished == 0 { chain } else { without_reached(table, pending, chain).await? };
    Ok(table.verbs.submit(&Meter::default(), chain).await?.buf)
}

/// Removes the unpublished WRITEs from the chain's beginning if others may have reached what they write
/// ([`Held::with_unpublished_prefix`]): the WRITE that leads there follows them, and the intent's if there is one, and
/// has begun if one of its lines is there. Then they are all done, too, since WRITEs of one queue pair keep their
/// order. No other client writes those lines: the lock is ours.
///
/// [`Held::with_unpublished_prefix`]: crate::held::Held::with_unpublished_prefix
async fn without_reached<V: Verbs>(
    table: &Table<V>,
    PendingRelease { unpublished, recorded, .. }: PendingRelease,
    mut chain: Chain,
) -> Result<Chain, Failed> {
    let unpublished = usize::from(unpublished);
    let leading = unpublished + usize::from(recorded);
    let Some(Op::Write { at, from, len }) = chain.verbs().get(leading).map(|verb| verb.op) else {
        // Taken away by an earlier attempt.
        return Ok(chain);
    };
    let (at, len) = (RemotePtr::new(chain.server(), at), len as usize);
    let found = match table.verbs.read(&Meter::default(), at, len).await {
        Ok(read) => read.into_buf(),
        Err(failed) => return Err(Failed::new(failed.into(), chain)),
    };
    let written = &chain.buffer().expect("a WRITE has a buffer")[from as usize..][..len];
    let mut lines = found.chunks(LINE_BYTES).zip(written.chunks(LINE_BYTES));
    if lines.any(|(found, written)| found == written) {
        tracing::debug!(name: "lock.redo.reached", node = %at, "what leads to a new node is there: it is not redone");
        chain.skip(unpublished);
    } else {
        tracing::debug!(name: "lock.redo.unreached", node = %at, "a new node that no client can reach is redone too");
    }
    Ok(chain)
}

/// READs a lock word: one round trip.
pub(crate) async fn read_back<V: Verbs>(verbs: &V, meter: &Meter, lock: RemotePtr) -> Result<u64, Failed> {
    let buf = verbs.read(meter, lock, WORD_BYTES).await?.into_buf();
    Ok(u64::from_le_bytes(buf[..WORD_BYTES].try_into().expect("8 bytes were leased")))
}

fn unlock_chain<V: Verbs>(table: &Table<V>, lock: RemotePtr, claim: Claim) -> Chain {
    let mut chain = Chain::new(lock.server());
    table.add_unlock(&mut chain, lock, claim);
    chain
}
