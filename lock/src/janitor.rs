//! What a dropped holder leaves to do, and how a lock word of unknown state is brought back to a known one. Runs as
//! deferred tasks of the shard; the local lock stays held until they are done, so nobody else of this compute node
//! meets a half-settled word.

use std::rc::Rc;

use farwood_runtime::{Chain, Completion, FabricError, Meter, RemotePtr, Verbs};

use crate::held::{Exit, Global};
use crate::table::{Seat, Table};
use crate::word::{FREE, LockWord};

/// How often a failing memory server is asked before its lock word is given up.
const ATTEMPTS_MAX: u32 = 16;

/// Settles the global half of a dropped acquisition, then gives the local half back.
pub(crate) async fn clean_up<V: Verbs>(
    table: Rc<Table<V>>,
    lock: RemotePtr,
    seat: Option<Seat>,
    left: Global<V::Submission>,
) {
    tracing::debug!(name: "lock.janitor", %lock, left = left.name(), "a dropped lock is cleaned up");
    let kept = settle(&table, lock, left).await;
    if let Some(seat) = seat {
        table.give_back(lock, seat, kept);
    }
}

/// Clears a word that was kept for a waiter who is gone. The home holds the lock meanwhile.
pub(crate) async fn unlock_for_nobody<V: Verbs>(table: Rc<Table<V>>, lock: RemotePtr, word: LockWord) {
    tracing::debug!(name: "lock.janitor", %lock, left = "kept", "a lock kept for nobody is cleared");
    unlock(&table, lock, word).await;
    table.unlocked(lock);
}

/// Whether a CAS from free to `word` took the lock. Finding the very word means that an earlier CAS of the same
/// acquisition, reported as failed, had taken it: nonces are not used twice.
pub(crate) fn won(done: &Completion, word: LockWord) -> bool {
    done.atomics.first().is_some_and(|&found| found == FREE || found == word.to_bits())
}

/// Yields the word if it stays taken for the next holder.
async fn settle<V: Verbs>(
    table: &Table<V>,
    lock: RemotePtr,
    left: Global<V::Submission>,
) -> Option<LockWord> {
    match left {
        Global::Free | Global::Over => {}
        Global::Taken { word } => unlock(table, lock, word).await,
        Global::Doubtful { word } => clear_if_ours(table, lock, word).await,
        Global::Asked { word, cas } => match cas.await {
            Ok(done) if won(&done, word) => unlock(table, lock, word).await,
            Ok(_) => {}
            Err(_) => clear_if_ours(table, lock, word).await,
        },
        Global::Leaving { word, chain, exit } => match (chain.await, exit) {
            (Ok(_), Exit::Unlocked) => {}
            (Ok(_), Exit::Kept) => return Some(word),
            (Err(_), Exit::Unlocked) => clear_if_ours(table, lock, word).await,
            (Ok(_), Exit::UnlockLater) | (Err(_), _) => unlock(table, lock, word).await,
        },
    }
    None
}

/// Clears a word that is ours for certain.
async fn unlock<V: Verbs>(table: &Table<V>, lock: RemotePtr, word: LockWord) {
    if clear(table, lock).await.is_err() {
        clear_if_ours(table, lock, word).await;
    }
}

/// Clears a word that may be ours: after a chain of unknown outcome only what is read back tells. Between the READ and
/// the WRITE the word cannot change hands, because nobody but its owner clears it.
async fn clear_if_ours<V: Verbs>(table: &Table<V>, lock: RemotePtr, word: LockWord) {
    for _ in 0..ATTEMPTS_MAX {
        match read_back(table, lock).await {
            Ok(found) if found != word.to_bits() => return,
            Ok(_) if clear(table, lock).await.is_ok() => return,
            Ok(_) | Err(_) => table.verbs.pause(table.config.backoff_ns_max).await,
        }
    }
    tracing::warn!(name: "lock.orphaned", %lock, ?word, "a memory server fails, a lock may stay taken on it");
}

async fn clear<V: Verbs>(table: &Table<V>, lock: RemotePtr) -> Result<(), FabricError> {
    let mut chain = Chain::new(lock.server());
    chain.write_word(lock, FREE);
    table.verbs.submit(&Meter::default(), chain).await.map(drop)
}

async fn read_back<V: Verbs>(table: &Table<V>, lock: RemotePtr) -> Result<u64, FabricError> {
    let mut chain = Chain::with_buffer(lock.server(), table.verbs.lease(8));
    chain.read(lock, 0..8);
    let buf = table.verbs.submit(&Meter::default(), chain).await?.into_buf();
    Ok(u64::from_le_bytes(buf[..8].try_into().expect("8 bytes were leased")))
}
