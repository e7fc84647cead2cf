//! Chains that have met a line whose writer is stopped (see `journal.rs`): each is put aside where it is, and goes on
//! there when the writer has, or is dead. Nothing of it is executed twice, lines of a WRITE included, and the shard
//! does other things meanwhile. It fails if the writer has been waited for too long, or no future awaits it any more.
//!
//! The fabric contract orders chains, so some of those that were posted later have to wait, too:
//!
//! | what is left of the chain | chains posted later to its server |
//! |---|---|
//! | WRITEs, whatever else | wait behind it: what follows a WRITE takes effect after it |
//! | READs and atomics | go on: WRITEs and atomics may overtake those, and READs do here |
//!
//! By the second line most of a shard's work goes on. A READ that overtakes an atomic would be seen by a client that
//! does not await the atomic and relies on the order: a janitor behind a chain that was dropped. So a chain that was
//! dropped does not go on.
//!
//! ```text
//!   dropped   CAS link ··(stalled)·····················> would take effect under no lock
//!   janitor        READ word, unlock ──> lock is free
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use smallvec::SmallVec;

use super::MappedDevice;
use super::line::WriterStopped;
use crate::chain::{Op, Verb};
use crate::engine::{SlotKey, Slots};
use crate::pointer::ServerId;
use crate::verbs::FabricError;

/// Chains fail when the first of them has waited for a writer for so long: as long as clients wait for a lock
/// (`LockConfig::wait_max`), and longer than a memory server takes to end a silent process if it is told to be quick.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks after the chains that wait. One at a line that is still held costs some 10 us.
const LOOK_EVERY_NS: u64 = 10_000_000;

/// Why a chain was not executed to its end.
pub(super) enum Stop {
    Failed(FabricError),
    /// Its rest may be executed when the writer has gone on.
    Stalled(Rest, WriterStopped),
}

impl From<FabricError> for Stop {
    fn from(error: FabricError) -> Self {
        Stop::Failed(error)
    }
}

/// The rest of a chain.
#[derive(Clone, Copy, Default)]
pub(super) struct Rest {
    /// The first verb that was not executed to its end.
    pub(super) verb: usize,
    /// Bytes of it, a WRITE, that are written.
    pub(super) done: usize,
}

impl Rest {
    /// Yields what is left of `op`, which is the verb at `place`.
    #[inline(always)]
    pub(super) fn of(self, place: usize, op: Op) -> Op {
        match op {
            Op::Write { at, from, len } if self.done > 0 && place == self.verb => {
                let done = self.done as u32;
                Op::Write { at: at + u64::from(done), from: from + done, len: len - done }
            }
            op => op,
        }
    }

    /// Yields what is left now that the verb at `place` was refused, with so many bytes of it done.
    #[cold]
    pub(super) fn after(self, place: usize, done: usize) -> Self {
        let before = if place == self.verb { self.done } else { 0 };
        Rest { verb: place, done: before + done }
    }
}

/// A chain that waits for a writer to go on.
struct Stalled {
    key: SlotKey,
    server: ServerId,
    rest: Rest,
    /// The writer's process.
    process: u32,
    /// When its first verb was executed.
    begun_ns: u64,
    /// True if those that were posted later wait behind it.
    holds: bool,
}

/// The chains of a device that wait.
#[derive(Default)]
pub(super) struct Stalls {
    chains: Vec<Stalled>,
    /// Those that wait behind one of them, in posting order.
    behind: VecDeque<SlotKey>,
    look_at_ns: u64,
}

impl Stalls {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    fn holds(&self, server: ServerId) -> bool {
        self.chains.iter().any(|stalled| stalled.holds && stalled.server == server)
    }

    /// Takes out of `posted` what has to wait behind other chains.
    fn hold_back(&mut self, posted: &mut VecDeque<SlotKey>, slots: &mut Slots) {
        let is_held = |&key: &SlotKey| self.holds(slots.chain_mut(key).server());
        let (held, free): (VecDeque<_>, _) = posted.drain(..).partition(is_held);
        *posted = free;
        self.behind.extend(held);
    }

    /// Puts what need not wait any more in front of `posted`, all of which was posted later.
    fn let_go(&mut self, posted: &mut VecDeque<SlotKey>, slots: &mut Slots) {
        let behind = std::mem::take(&mut self.behind);
        let is_held = |&key: &SlotKey| self.holds(slots.chain_mut(key).server());
        let (held, mut free): (_, VecDeque<_>) = behind.into_iter().partition(is_held);
        self.behind = held;
        free.append(posted);
        *posted = free;
    }
}

impl MappedDevice {
    /// Decides about a chain that was not executed to its end. Yields true if it waits; else it has its outcome.
    #[cold]
    pub(super) fn stall(&mut self, slots: &mut Slots, key: SlotKey, stop: Stop, begun_ns: u64) -> bool {
        let (rest, process) = match self.may_wait(slots, key, stop) {
            Ok(stalled) => stalled,
            Err(error) => {
                slots.set_outcome(key, Err(error));
                return false;
            }
        };
        let chain = slots.chain_mut(key);
        let (server, holds) = (chain.server(), must_be_first(&chain.verbs()[rest.verb..]));
        tracing::debug!(
            process,
            holds,
            "a chain waits for a process that is stopped in the middle of a line"
        );
        if self.stalls.is_empty() {
            self.stalls.look_at_ns = begun_ns + LOOK_EVERY_NS;
        }
        self.stalls.chains.push(Stalled { key, server, rest, process, begun_ns, holds });
        if holds {
            self.stalls.hold_back(&mut self.posted, slots);
        }
        true
    }

    /// Lets the chains that wait go on, if it is time for a look at them. Yields how many were completed.
    #[cold]
    pub(super) fn look_after_stalled(&mut self, slots: &mut Slots) -> usize {
        self.stalls.hold_back(&mut self.posted, slots);
        if self.clock.now() < self.stalls.look_at_ns {
            return 0;
        }
        let waiting = std::mem::take(&mut self.stalls.chains);
        let count = waiting.len();
        let mut stopped: SmallVec<[(ServerId, u32); 4]> = SmallVec::new();
        let mut again = Vec::new();
        for mut stalled in waiting {
            // One look at a process is enough, unless it has gone on.
            let still = stopped.contains(&(stalled.server, stalled.process));
            if still && !slots.is_orphaned(stalled.key) {
                self.stalls.chains.push(stalled);
            } else if !self.goes_on(slots, &mut stalled) {
                stopped.push((stalled.server, stalled.process));
                again.push(stalled);
            }
        }
        // Behind the others: the next look is at one of them, whose line may be another.
        self.stalls.chains.append(&mut again);
        self.stalls.let_go(&mut self.posted, slots);
        self.stalls.look_at_ns = self.clock.now() + LOOK_EVERY_NS;
        count - self.stalls.chains.len()
    }

    /// Executes the rest of a chain. False if it has to wait still.
    fn goes_on(&mut self, slots: &mut Slots, stalled: &mut Stalled) -> bool {
        let key = stalled.key;
        let outcome = if slots.is_orphaned(key) {
            Err(FabricError::WriterStopped { server: stalled.server, process: stalled.process })
        } else {
            let (chain, atomics) = slots.parts(key);
            match self.execute_from(stalled.rest, chain, atomics) {
                Ok(()) => Ok(()),
                Err(stop) => match self.may_wait(slots, key, stop) {
                    Ok((rest, process)) => {
                        let holds = must_be_first(&slots.chain_mut(key).verbs()[rest.verb..]);
                        *stalled = Stalled { rest, process, holds, ..*stalled };
                        return false;
                    }
                    Err(error) => Err(error),
                },
            }
        };
        slots.complete(key, outcome, super::span_ns(stalled.begun_ns, self.clock.now()));
        true
    }

    /// Yields what is left of a chain, and whom it waits for, or why it fails.
    fn may_wait(&self, slots: &mut Slots, key: SlotKey, stop: Stop) -> Result<(Rest, u32), FabricError> {
        let (rest, writer) = match stop {
            Stop::Failed(error) => return Err(error),
            Stop::Stalled(rest, writer) => (rest, writer),
        };
        let process = writer.process;
        if writer.waited >= self.patience || slots.is_orphaned(key) {
            return Err(FabricError::WriterStopped { server: slots.chain_mut(key).server(), process });
        }
        Ok((rest, process))
    }
}

/// Tells whether verbs have to take effect before all that is posted later.
fn must_be_first(rest: &[Verb]) -> bool {
    rest.iter().any(|verb| !verb.op.returns_data())
}

#[cfg(test)]
#[path = "stalled_tests.rs"]
mod tests;
