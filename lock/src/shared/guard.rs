//! One client's part in a lock that is shared, and its end. Whatever is in flight is kept in the [`Shared`] itself, so
//! dropping it, or a future of it, loses nothing.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, ready};

use farwood_runtime::{Chain, Completion, Failed, Meter, RemotePtr, Verbs};

use super::Sharing;
use super::presence::{Own, Part};
use super::vacate::{clean_up, settle};
use super::words::Bit;
use crate::error::LockError;
use crate::held::Held;

/// A lock that is shared with other clients. Ends with [`Shared::release`]; if it is dropped instead (a cancelled
/// operation), the shard's janitor undoes what it stands for.
#[must_use = "a shared lock ends with `release`"]
pub struct Shared<V: Verbs> {
    pub(super) sharing: Rc<Sharing<V>>,
    pub(super) node: RemotePtr,
    pub(super) lock: RemotePtr,
    pub(super) bit: Bit,
    pub(super) stage: Stage<V>,
}

/// A client's part in the lock, with what it has in flight.
pub(super) enum Stage<V: Verbs> {
    /// It waits for the leader, with that token.
    Waiting(u32),
    /// It leads, and knows that of the bit.
    Lead(Own),
    /// It leads, with a chain in flight, and what it knows when that was executed or has failed.
    Moving {
        chain: V::Submission,
        then: Own,
        failed: Own,
    },
    /// It is one of those for whom the bit is set.
    Joined,
    /// It still is, until a write-back with atomics has been executed.
    Parting(V::Submission),
    /// It leads, and finds out whether the chain of its release has taken effect.
    Settling(Settling),
    /// It has the lock alone.
    Alone(Box<Held<V>>),
    Over,
}

/// Yields whether the bit was clear already. The lead has ended then.
pub(super) type Settling = Pin<Box<dyn Future<Output = Result<bool, Failed>>>>;

impl<V: Verbs> From<Part> for Stage<V> {
    fn from(part: Part) -> Self {
        match part {
            Part::Lead(own) => Stage::Lead(own),
            Part::Join => Stage::Joined,
        }
    }
}

impl<V: Verbs> Stage<V> {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Stage::Waiting(_) => "waiting",
            Stage::Lead(_) => "leading",
            Stage::Moving { .. } => "moving",
            Stage::Joined => "joined",
            Stage::Parting(_) => "parting",
            Stage::Settling(_) => "settling",
            Stage::Alone(_) => "alone",
            Stage::Over => "over",
        }
    }
}

impl<V: Verbs> Shared<V> {
    /// Yields the node whose lock it is.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let (shared, _) = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// assert_eq!(shared.node(), node);
    /// # shared.release(&meter, Chain::new(node.server())).await?;
    /// # });
    /// ```
    pub fn node(&self) -> RemotePtr {
        self.node
    }

    /// Tells whether the client has the lock alone after all: its shard has no lane yet, or it was overtaken too often.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let (shared, _) = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// assert!(!shared.is_alone());
    /// # shared.release(&meter, Chain::new(node.server())).await?;
    /// # });
    /// ```
    pub fn is_alone(&self) -> bool {
        matches!(self.stage, Stage::Alone(_))
    }

    /// Writes back and stops sharing the lock. `chain` is the write-back, to the node's own server, and may be empty.
    /// It is executed while the lock is shared; its buffer and what its atomics found come back. One round trip, of
    /// which the last client of its shard clears the bit; none if there is nothing to do. (With atomics in `chain`, a
    /// client that turns out to be the last meanwhile leaves the bit to the janitor, and one that has the lock alone
    /// unlocks in a round trip of its own.)
    ///
    /// Verbs of its own that the client has posted before have been awaited.
    ///
    /// ```
    /// # farwood_doctest::shared_locks!(|shard, locks, node, meter| {
    /// let (shared, _) = locks.share_and_read(&meter, node, node, shard.lease(64), &[0..64]).await?;
    /// let mut chain = Chain::new(node.server());
    /// chain.cas(node.add(56), 0, 7);
    /// assert_eq!(shared.release(&meter, chain).await?.atomics[..], [0]);
    /// assert_eq!(meter.usage().round_trips, 2);
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`LockError::Fabric`] if the chain fails, and it is not known that it has taken effect. It is not posted again:
    /// other clients may have changed since what it writes. Nothing of it takes effect later, so what is read from the
    /// node now may tell. The lock is given back in any case.
    ///
    /// # Panics
    /// If `chain` goes to another server than the lock.
    pub async fn release(mut self, meter: &Meter, mut chain: Chain) -> Result<Completion, LockError> {
        assert_eq!(chain.server(), self.lock.server(), "the write-back goes to the lock's server");
        let (sharing, key) = (Rc::clone(&self.sharing), self.lock.to_bits());
        let (verbs, writes_only) = (&sharing.table().verbs, chain.is_idempotent());
        if let Stage::Alone(held) = std::mem::replace(&mut self.stage, Stage::Over) {
            return release_alone(verbs, meter, *held, chain).await;
        }
        self.stage = Stage::Joined;
        if sharing.presences.borrow().is_last(key) {
            sharing.presences.borrow_mut().depart(key);
            self.take_bit(chain.fence_if_needed());
            let chain = verbs.submit(meter, chain);
            self.stage = Stage::Moving { chain, then: Own::Clear, failed: Own::Unknown };
            return self.leave(meter, writes_only).await;
        }
        // WRITEs keep their order with the FAA of a client that leaves later: it is on the same queue pair.
        if writes_only {
            sharing.presences.borrow_mut().depart(key);
            self.stage = Stage::Over;
            if chain.is_empty() {
                return Ok(done(chain));
            }
            return Ok(verbs.submit(meter, chain).await?);
        }
        self.stage = Stage::Parting(verbs.submit(meter, chain));
        let done = poll_fn(|cx| {
            let Stage::Parting(chain) = &mut self.stage else { unreachable!("a write-back is in flight") };
            let done = ready!(Pin::new(chain).poll(cx));
            self.stage = Stage::Over;
            Poll::Ready(done)
        });
        let done = done.await;
        if sharing.presences.borrow_mut().depart(key) {
            // The janitor clears the bit.
            self.stage = Stage::Lead(Own::Set);
        }
        Ok(done?)
    }

    /// Awaits the last chain of a shard that leaves. If it fails, the bit tells whether it has taken effect: the FAA
    /// comes after everything else.
    async fn leave(&mut self, meter: &Meter, writes_only: bool) -> Result<Completion, LockError> {
        let failed = match self.gone().await {
            Ok(mut done) => {
                done.atomics.pop();
                self.stage = Stage::Over;
                self.sharing.lay_down(self.lock, Own::Clear);
                return Ok(done);
            }
            Err(failed) => failed,
        };
        meter.retry();
        self.stage =
            Stage::Settling(Box::pin(settle(Rc::clone(&self.sharing), self.lock, self.bit, Own::Unknown)));
        let settled = poll_fn(|cx| {
            let Stage::Settling(settling) = &mut self.stage else { unreachable!("it is being settled") };
            let settled = ready!(settling.as_mut().poll(cx));
            self.stage = if settled.is_ok() { Stage::Over } else { Stage::Lead(Own::Unknown) };
            Poll::Ready(settled)
        });
        match settled.await {
            Ok(true) if writes_only => {
                tracing::debug!(name: "lock.shared.settled", lock = %self.lock, "a release had taken effect");
                Ok(done(failed.into_parts().1))
            }
            _ => Err(failed.into()),
        }
    }

    pub(super) fn add_bit(&self, chain: &mut Chain) {
        chain.faa(self.lock.add(self.bit.at as u64), self.bit.mask);
    }

    pub(super) fn take_bit(&self, chain: &mut Chain) {
        take_bit(chain, self.lock, self.bit);
    }
}

/// Adds the FAA that clears a bit which is set.
pub(super) fn take_bit(chain: &mut Chain, lock: RemotePtr, bit: Bit) {
    chain.faa(lock.add(bit.at as u64), bit.mask.wrapping_neg());
}

/// Makes the completion of a chain of WRITEs that need not be posted, or is known to have been executed.
fn done(chain: Chain) -> Completion {
    Completion { buf: chain.into_buffer(), atomics: Default::default(), span_ns: 0 }
}

/// Releases a lock that is held alone. Atomics have their outcome before the unlock, which would not bring it.
async fn release_alone<V: Verbs>(
    verbs: &V,
    meter: &Meter,
    held: Held<V>,
    chain: Chain,
) -> Result<Completion, LockError> {
    if chain.is_idempotent() {
        let buf = held.release(meter, chain, true).await?;
        return Ok(Completion { buf, atomics: Default::default(), span_ns: 0 });
    }
    let done = verbs.submit(meter, chain).await?;
    held.unlock(meter).await?;
    Ok(done)
}

impl<V: Verbs> Drop for Shared<V> {
    fn drop(&mut self) {
        let (sharing, key) = (&self.sharing, self.lock.to_bits());
        let left = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over | Stage::Alone(_) => return,
            Stage::Waiting(token) => {
                let told = sharing.slots.borrow_mut().abandon(token);
                let Some(part) = told else {
                    sharing.presences.borrow_mut().leave_queue(key, token);
                    sharing.slots.borrow_mut().cancelled(token);
                    return;
                };
                Stage::from(part)
            }
            left => left,
        };
        if let Stage::Lead(Own::Clear) = left {
            sharing.lay_down(self.lock, Own::Clear);
            return;
        }
        let task = sharing.table().backlog.begin(self.lock.server());
        sharing.table().verbs.defer(clean_up(Rc::clone(sharing), task, self.lock, self.bit, left));
    }
}
