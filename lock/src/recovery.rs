//! Takes over the locks of compute nodes that are dead, and fenced: nothing of theirs takes effect any more. What such
//! a node was about to write is in the pages of its intents, on the lock's server, if it can be torn at all.
//!
//! ```text
//!   dead     WRITE intent, WRITE node: half ✗
//!   taker             READ pages ── [WRITE copy of the intent, CAS dead -> own] ── WRITE node, unlock
//!
//!   dead     CAS 0 -> dead ✗
//!   taker             READ pages: no intent ── CAS dead -> 0
//! ```
//!
//! Of some releases the node itself tells, so nothing is recorded: [`crate::mending`] has the way of those.
//!
//! The copy is under the taker's own word, in its own slot, and there before its CAS: a taker that dies in the middle
//! is taken over as the first owner was. Of two takers one has its CAS; the other one's copy is for a word that no lock
//! has. A CAS of unknown outcome is posted again: it finds itself, or that another word is there.
//!
//! An owner whose word promises intents had a slot first. If no page has an intent for that word, nothing was begun
//! that is recorded, even where the owner's pages are another table's by now ([`crate::intents`]).
//!
//! A word stays as it is, and those who want the lock fail with an error that names its owner, if
//! - its owner keeps no intents;
//! - the intent says that the node may be torn, and not how;
//! - there is no intent, and the free word carried something: that is lost with its owner;
//! - there is no intent, and no release leaves a node like that.
//!
//! A taker that has no slot for the copy takes the lock with a word that promises none.
//!
//! It is a task of the shard, so no client that is dropped leaves it half done. It takes no local lock: clients of its
//! own compute node compete for the word as those of others do.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_runtime::{Buf, Chain, Completion, Failed, Meter, RemotePtr, Verbs};
use rustc_hash::FxHashSet;

use crate::held::PendingRelease;
use crate::intent::{self, Found, Patch, Under};
use crate::intents::{self, Intents, Slot, page};
use crate::janitor::{orphaned, persist, read_back};
use crate::mending::Mending;
use crate::pace::{ATTEMPTS_MAX, PATIENCE_MAX, Pace};
use crate::table::Table;
use crate::word::{Claim, FREE, LockWord, WordCodec};

/// The takeovers of one table.
#[derive(Default)]
pub(crate) struct Recoveries {
    under_way: RefCell<FxHashSet<(RemotePtr, LockWord)>>,
    /// Words that cannot be taken over: nothing changes in the pages of the dead.
    hopeless: RefCell<FxHashSet<(RemotePtr, LockWord)>>,
}

/// The end of an attempt at a takeover.
enum Outcome {
    /// The word is another one.
    Over,
    Hopeless(&'static str),
}

/// Begins to take `lock` over from a dead owner whose word is in it, unless that is under way, or in vain.
#[cold]
pub(crate) fn begin<V: Verbs>(table: &Rc<Table<V>>, lock: RemotePtr, word: LockWord) {
    let Recoveries { under_way, hopeless } = &table.recoveries;
    let Some(intents) = &table.intents else { return };
    if !hopeless.borrow().contains(&(lock, word)) && under_way.borrow_mut().insert((lock, word)) {
        table.verbs.defer(recover(Rc::clone(table), Rc::clone(intents), lock, word));
    }
}

/// Tells whether a takeover of `lock` from that word is under way.
pub(crate) fn is_under_way<V: Verbs>(table: &Table<V>, lock: RemotePtr, word: LockWord) -> bool {
    table.recoveries.under_way.borrow().contains(&(lock, word))
}

async fn recover<V: Verbs>(table: Rc<Table<V>>, intents: Rc<Intents>, lock: RemotePtr, dead: LockWord) {
    let mut pace = Pace::after(0);
    loop {
        match try_once(&table, &intents, lock, dead).await {
            Ok(Outcome::Over) => break,
            Ok(Outcome::Hopeless(why)) => {
                tracing::debug!(name: "lock.recovery.hopeless", %lock, word = ?dead, why, "a lock is not taken over");
                table.recoveries.hopeless.borrow_mut().insert((lock, dead));
                break;
            }
            Err(failed) => {
                let pause_ns = pace.failed(failed.cause(), table.config.attempts_max);
                if pace.attempts() >= ATTEMPTS_MAX || failed.cause().is_refusal() {
                    break;
                }
                table.verbs.pause(pause_ns).await;
            }
        }
    }
    table.recoveries.under_way.borrow_mut().remove(&(lock, dead));
}

/// Makes one attempt. One that has the lock ends with it.
async fn try_once<V: Verbs>(
    table: &Rc<Table<V>>,
    intents: &Rc<Intents>,
    lock: RemotePtr,
    dead: LockWord,
) -> Result<Outcome, Failed> {
    let verbs = &table.verbs;
    if read_back(verbs, &Meter::default(), lock).await? != dead.to_bits() {
        return Ok(Outcome::Over);
    }
    let Some(pages) = page::list(verbs, intents.head()).await? else {
        return Ok(Outcome::Hopeless("the list of pages is broken"));
    };
    let of_owner = |page: &page::Page| page.owner.node() == dead.owner() && page.at.server() == lock.server();
    let mut found = None;
    for page in pages.into_iter().filter(of_owner) {
        for slot in page::read_slots(verbs, page).await? {
            if let Some(intent) = intent::parse(&slot, lock, dead) {
                found = Some((intent, slot));
            }
        }
    }
    match found {
        Some((Found::NotRecorded, _)) => {
            Ok(Outcome::Hopeless("the node may be torn, and how is not recorded"))
        }
        Some((Found::Recorded { under, .. }, _)) if !table.codec_of(lock).is_free(under.vacant) => {
            Ok(Outcome::Hopeless("the intent leaves no free word"))
        }
        Some((Found::Recorded { under, patches, bytes }, slot)) => {
            let own = intents::slot(verbs, intents, lock.server()).await;
            let own = own.filter(|slot| slot.bytes() >= bytes);
            take(table, own, under, &patches, &slot[..bytes]).await
        }
        None if table.codec_of(lock) != WordCodec::PLAIN => {
            Ok(Outcome::Hopeless("what the free word carried is lost"))
        }
        None => match intents.mending().filter(|_| table.carries(lock)) {
            Some(mending) => mend(table, mending, lock, dead).await,
            None => free(table, lock, dead).await,
        },
    }
}

/// Frees a lock under which nothing was begun.
async fn free<V: Verbs>(table: &Table<V>, lock: RemotePtr, dead: LockWord) -> Result<Outcome, Failed> {
    let mut chain = Chain::new(lock.server());
    chain.cas(lock, dead.to_bits(), FREE);
    let found = table.verbs.submit(&Meter::default(), chain).await?.atomics[0];
    if found == dead.to_bits() {
        tracing::debug!(name: "lock.recovered", %lock, owner = dead.owner(), "a dead node's lock is free");
        table.counters.count(|stats| stats.recovered += 1);
    }
    Ok(Outcome::Over)
}

/// Frees a lock without an intent, after its node was made whole, if it is not.
async fn mend<V: Verbs>(
    table: &Rc<Table<V>>,
    mending: &Mending,
    lock: RemotePtr,
    dead: LockWord,
) -> Result<Outcome, Failed> {
    let node = mending.node_of(lock);
    let mut image = table.verbs.read(&Meter::default(), node, mending.node_bytes).await?.into_buf();
    let Some(parts) = (mending.mend)(&mut image) else {
        return Ok(Outcome::Hopeless("no release leaves such a node"));
    };
    if parts.is_empty() {
        return free(table, lock, dead).await;
    }
    let claim = Claim { word: table.word().with_intents(), vacant: FREE };
    let mut cas = Chain::new(lock.server());
    cas.cas(lock, dead.to_bits(), claim.word.to_bits());
    let found = acquire(table, lock, claim, cas).await?.atomics[0];
    if ![dead, claim.word].map(LockWord::to_bits).contains(&found) {
        return Ok(Outcome::Over);
    }
    let mut chain = Chain::with_buffer(lock.server(), image);
    for part in parts {
        chain.write(node.add(part.start as u64), part);
    }
    table.add_unlock(&mut chain, lock, claim);
    if let Err(failed) = persist(table, lock, PendingRelease::unlock(claim), chain, 0..PATIENCE_MAX).await {
        orphaned(table, lock, claim, &failed);
        return Err(failed);
    }
    let owner = dead.owner();
    tracing::debug!(name: "lock.recovery.mended", %lock, owner, "a node is made whole that a dead node had begun");
    table.counters.count(|stats| {
        stats.recovered += 1;
        stats.mended += 1;
    });
    Ok(Outcome::Over)
}

/// Posts the chain with the CAS of `claim` until it is known what that has found.
async fn acquire<V: Verbs>(
    table: &Rc<Table<V>>,
    lock: RemotePtr,
    claim: Claim,
    mut chain: Chain,
) -> Result<Completion, Failed> {
    let mut pace = Pace::after(0);
    loop {
        match table.verbs.submit(&Meter::default(), chain).await {
            Ok(done) => return Ok(done),
            Err(failed) => {
                let pause_ns = pace.failed(failed.cause(), table.config.attempts_max);
                if pace.attempts() >= PATIENCE_MAX || failed.cause().is_refusal() {
                    orphaned(table, lock, claim, &failed);
                    return Err(failed);
                }
                table.verbs.pause(pause_ns).await;
                (_, chain) = failed.into_parts();
            }
        }
    }
}

/// Takes a lock whose node may be torn, and finishes the node. Without a slot nothing can be found out of a taker that
/// dies in the middle, and its word says so.
async fn take<V: Verbs>(
    table: &Rc<Table<V>>,
    slot: Option<Slot>,
    under: Under,
    patches: &[Patch],
    intent: &[u8],
) -> Result<Outcome, Failed> {
    let Under { lock, word: dead, vacant, copies } = under;
    let word = table.word();
    let claim = Claim { word: if slot.is_some() { word.with_intents() } else { word }, vacant };
    let mut buf = table.verbs.lease(intent.len());
    buf[..intent.len()].copy_from_slice(intent);
    let copy = Under { word: claim.word, copies: copies.saturating_add(1), ..under };
    intent::record(&mut buf[..intent.len()], copy, patches);
    let mut chain = Chain::with_buffer(lock.server(), buf);
    if let Some(slot) = &slot {
        chain.write(slot.at(), 0..intent.len());
    }
    chain.cas(lock, dead.to_bits(), claim.word.to_bits());
    let done = match acquire(table, lock, claim, chain).await {
        Ok(done) => done,
        Err(failed) => {
            slot.into_iter().for_each(Slot::keep);
            return Err(failed);
        }
    };
    if ![dead, claim.word].map(LockWord::to_bits).contains(&done.atomics[0]) {
        return Ok(Outcome::Over);
    }
    let chain = finishing(table, lock, claim, patches, done.into_buf());
    let pending = PendingRelease::unlock(claim);
    if let Err(failed) = persist(table, lock, pending, chain, 0..PATIENCE_MAX).await {
        orphaned(table, lock, claim, &failed);
        slot.into_iter().for_each(Slot::keep);
        return Err(failed);
    }
    let owner = dead.owner();
    tracing::debug!(name: "lock.recovery.redone", %lock, owner, "a node is finished that a dead node had begun");
    if copies > 0 {
        tracing::debug!(name: "lock.recovery.redone_again", %lock, owner, "its taker had died as well");
    }
    table.counters.count(|stats| {
        stats.recovered += 1;
        stats.redone += 1;
    });
    Ok(Outcome::Over)
}

/// Makes the chain that does what an intent says, and unlocks.
fn finishing<V: Verbs>(
    table: &Table<V>,
    lock: RemotePtr,
    claim: Claim,
    patches: &[Patch],
    intent: Buf,
) -> Chain {
    let mut chain = Chain::with_buffer(lock.server(), intent);
    let mut from = intent::data_begins(patches);
    for patch in patches {
        chain.write(patch.ptr(lock.server()), from..from + patch.bytes);
        from += patch.bytes;
    }
    table.add_unlock(&mut chain, lock, claim);
    chain
}
