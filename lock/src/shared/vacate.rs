//! Clears bits that clients leave behind: dropped acquisitions and releases, and chains of unknown outcome. The one
//! place that brings a shard's presence back to a known state after a failure.
//!
//! A client that is dropped may have verbs of its own in flight, which must not take effect when the lock is no longer
//! shared. So it is counted until a READ behind them has been executed: all atomics and READs of the queue pair are
//! before that, and WRITEs are before the FAA in any case.
//!
//! ```text
//!   dropped   CAS entry ·······················> takes effect
//!   janitor        READ word ─────────────────────> FAA bit
//! ```
//!
//! Clients of the shard wait meanwhile, for [`ATTEMPTS_MAX`] attempts at a server that does not answer. Then the lead
//! is theirs between any two attempts: the first one looks for itself, and finds the server gone, or back.

use std::rc::Rc;

use farwood_runtime::{Chain, Failed, Meter, RemotePtr, Verbs};

use super::Sharing;
use super::guard::{Stage, take_bit};
use super::presence::Own;
use super::words::{Bit, LockWords};
use crate::backlog::Task;
use crate::pace::{ATTEMPTS_MAX, PATIENCE_MAX, Pace};
use crate::word::WORD_BYTES;

/// Undoes what a dropped client has left.
pub(super) async fn clean_up<V: Verbs>(
    sharing: Rc<Sharing<V>>,
    _task: Task,
    lock: RemotePtr,
    bit: Bit,
    left: Stage<V>,
) {
    tracing::debug!(name: "lock.shared.janitor", %lock, left = left.name(), "a dropped share is cleaned up");
    let own = match left {
        Stage::Lead(own) => own,
        Stage::Moving { chain, then, failed } => {
            if chain.await.is_ok() {
                then
            } else {
                failed
            }
        }
        Stage::Joined | Stage::Parting(_) => {
            match left {
                Stage::Parting(chain) => _ = chain.await,
                // If this fails, what was in flight has failed, too, or was executed.
                _ => _ = sharing.table().verbs.read(&Meter::default(), lock, WORD_BYTES).await,
            }
            if !sharing.presences.borrow_mut().depart(lock.to_bits()) {
                return;
            }
            Own::Set
        }
        Stage::Settling(settling) => match settling.await {
            Ok(_) => return,
            Err(_) => Own::Unknown,
        },
        Stage::Waiting(_) | Stage::Alone(_) | Stage::Over => unreachable!("there is nothing to clean up"),
    };
    if settle(Rc::clone(&sharing), lock, bit, own).await.is_err() {
        outlast(&sharing, lock, bit).await;
    }
}

/// Clears the bit of a shard whose lead it has, and ends the lead: another client of the shard may have it next. Yields
/// whether the bit was clear when it was looked at first. If the attempts are spent, the lead stays.
pub(super) async fn settle<V: Verbs>(
    sharing: Rc<Sharing<V>>,
    lock: RemotePtr,
    bit: Bit,
    mut own: Own,
) -> Result<bool, Failed> {
    let (table, mut pace, mut was_clear) = (sharing.table(), Pace::after(0), None);
    loop {
        match step(&sharing, lock, bit, own).await {
            Ok(next) => {
                was_clear = was_clear.or(Some(next == Own::Clear && own != Own::Set));
                own = next;
                table.backlog.heard(lock.server(), Ok(()));
            }
            Err(failed) => {
                own = Own::Unknown;
                table.backlog.heard(lock.server(), Err(failed.cause()));
                let pause_ns = pace.failed(failed.cause(), table.config.attempts_max);
                if pace.attempts() >= ATTEMPTS_MAX || failed.cause().is_refusal() {
                    return Err(failed);
                }
                table.verbs.pause(pause_ns).await;
            }
        }
        if own == Own::Clear {
            sharing.lay_down(lock, own);
            return Ok(was_clear == Some(true));
        }
    }
}

/// Goes on with a bit that could not be settled, as long as no client has the lead.
async fn outlast<V: Verbs>(sharing: &Rc<Sharing<V>>, lock: RemotePtr, bit: Bit) {
    let (table, mut pace) = (sharing.table(), Pace::after(ATTEMPTS_MAX));
    let mut own = Own::Unknown;
    while own != Own::Clear {
        match step(sharing, lock, bit, own).await {
            Ok(next) => {
                own = next;
                continue;
            }
            Err(failed) => {
                own = Own::Unknown;
                table.backlog.heard(lock.server(), Err(failed.cause()));
                let pause_ns = pace.failed(failed.cause(), table.config.attempts_max);
                sharing.lay_down(lock, own);
                if pace.attempts() >= PATIENCE_MAX || failed.cause().is_refusal() {
                    sharing.counters.count(|stats| stats.orphaned += 1);
                    tracing::warn!(
                        name: "lock.shared.orphaned", %lock, cause = %failed,
                        "a memory server fails: a shared lock may stay taken on it"
                    );
                    return;
                }
                table.verbs.pause(pause_ns).await;
            }
        }
        if !sharing.presences.borrow_mut().pick_up(lock.to_bits()) {
            return;
        }
    }
    table.backlog.heard(lock.server(), Ok(()));
    sharing.lay_down(lock, own);
}

/// Makes one step towards a bit that is clear: looks at it, or clears it.
async fn step<V: Verbs>(sharing: &Sharing<V>, lock: RemotePtr, bit: Bit, own: Own) -> Result<Own, Failed> {
    let verbs = &sharing.table().verbs;
    match own {
        Own::Clear => Ok(Own::Clear),
        Own::Set => {
            let mut chain = Chain::new(lock.server());
            take_bit(&mut chain, lock, bit);
            verbs.submit(&Meter::default(), chain).await?;
            Ok(Own::Clear)
        }
        Own::Unknown => {
            let bytes = sharing.lanes.lock_bytes();
            let words = verbs.read(&Meter::default(), lock, bytes).await?.into_buf();
            Ok(if bit.is_set(LockWords::new(&words[..bytes])) { Own::Set } else { Own::Clear })
        }
    }
}
