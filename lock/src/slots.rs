//! The acquisitions of one shard's clients: what each waits for, and what it was told. The client's half of the
//! hand-over protocol, pure like [`crate::handover`]: `W` is whatever resumes a client.
//!
//! A token is a slot's position. A slot lives from the request until the lock has been given back; that of a
//! cancelled waiter until a Grant or a Cancelled has arrived, so that neither can meet a later user of the same
//! token. A Hint may: it names its lock, and is only advice.
//!
//! ```text
//!   open ──> Waiting ── Grant ──> Granted ── polled ──> Holding ── close
//!               │ dropped, overdue   │ dropped: give back, close
//!               v                    v
//!           Cancelled ── Grant: give back, close ── or ── Cancelled: close
//! ```

use slab::Slab;

use crate::message::Grant;

/// The slots of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Slots<W> {
    slab: Slab<Slot<W>>,
}

#[derive(Clone, Debug)]
struct Slot<W> {
    key: u64,
    hinted: bool,
    /// When a client that waits is to be resumed in any case.
    until_ns: u64,
    state: State<W>,
}

#[derive(Clone, Debug)]
enum State<W> {
    /// `None` until the client has been polled.
    Waiting(Option<W>),
    Granted(Grant),
    Holding,
    Cancelled,
}

/// What a Grant finds.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Met<W> {
    /// A client that waits: resume it.
    Waiting(Option<W>),
    /// A client that is gone: the lock has to be given back. The slot is closed.
    Nobody,
}

/// What a dropped waiter leaves.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Left {
    /// It was in the queue: the home has to be told. The slot stays until the home has answered.
    Queued,
    /// It had been granted the lock, which has to be given back. The slot is closed.
    Granted(Grant),
}

impl<W> Slots<W> {
    pub(crate) fn new() -> Self {
        Slots { slab: Slab::new() }
    }

    /// A slot for a client that begins to wait for the lock `key`.
    #[inline]
    pub(crate) fn open(&mut self, key: u64) -> u32 {
        self.slab.insert(Slot { key, hinted: false, until_ns: u64::MAX, state: State::Waiting(None) }) as u32
    }

    /// The client got the lock without waiting.
    #[inline]
    pub(crate) fn hold(&mut self, token: u32) {
        self.slab[token as usize].state = State::Holding;
    }

    /// A Grant has come.
    pub(crate) fn granted(&mut self, token: u32, grant: Grant) -> Met<W> {
        let slot = &mut self.slab[token as usize];
        match std::mem::replace(&mut slot.state, State::Granted(grant)) {
            State::Waiting(waiter) => {
                slot.hinted = grant.hinted;
                Met::Waiting(waiter)
            }
            State::Cancelled => {
                self.slab.remove(token as usize);
                Met::Nobody
            }
            State::Granted(_) | State::Holding => panic!("granted a lock to one who has it"),
        }
    }

    /// The client asks whether it has the lock; if not, `waiter` resumes it later.
    pub(crate) fn poll(&mut self, token: u32, waiter: impl FnOnce() -> W) -> Option<Grant> {
        let state = &mut self.slab[token as usize].state;
        match *state {
            State::Granted(grant) => {
                *state = State::Holding;
                Some(grant)
            }
            State::Waiting(_) => {
                *state = State::Waiting(Some(waiter()));
                None
            }
            State::Holding | State::Cancelled => panic!("polled an acquisition that is over"),
        }
    }

    /// The client waits until then.
    pub(crate) fn wait_until(&mut self, token: u32, until_ns: u64) {
        self.slab[token as usize].until_ns = until_ns;
    }

    /// Takes out what resumes those who wait until `now_ns` at most; yields whether any client waits.
    pub(crate) fn find_overdue(&mut self, now_ns: u64, overdue: &mut Vec<W>) -> bool {
        let mut waits = false;
        for (_, slot) in &mut self.slab {
            if let State::Waiting(waiter) = &mut slot.state {
                waits = true;
                overdue.extend(if slot.until_ns <= now_ns { waiter.take() } else { None });
            }
        }
        waits
    }

    /// The waiting client was dropped, or waits no longer.
    pub(crate) fn abandon(&mut self, token: u32) -> Left {
        let slot = &mut self.slab[token as usize];
        match std::mem::replace(&mut slot.state, State::Cancelled) {
            State::Waiting(_) => Left::Queued,
            State::Granted(grant) => {
                self.slab.remove(token as usize);
                Left::Granted(grant)
            }
            State::Holding | State::Cancelled => panic!("abandoned an acquisition that is over"),
        }
    }

    /// The home has taken the cancelled waiter from the queue.
    pub(crate) fn cancelled(&mut self, token: u32) {
        let slot = self.slab.remove(token as usize);
        assert!(matches!(slot.state, State::Cancelled), "only a cancelled waiter is told so");
    }

    /// Somebody waits for `key`. Advice that comes late is ignored.
    pub(crate) fn hint(&mut self, token: u32, key: u64) {
        if let Some(slot) = self.slab.get_mut(token as usize)
            && slot.key == key
        {
            slot.hinted = true;
        }
    }

    /// Whether the holder was told that somebody waits.
    #[inline]
    pub(crate) fn hinted(&self, token: u32) -> bool {
        self.slab[token as usize].hinted
    }

    /// The holder gives the lock back.
    #[inline]
    pub(crate) fn close(&mut self, token: u32) {
        let slot = self.slab.remove(token as usize);
        assert!(matches!(slot.state, State::Holding), "only a holder gives a lock back");
    }

    /// Acquisitions that are under way, held, or not yet known to be cancelled.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Memory that the slots take.
    pub(crate) fn bytes(&self) -> usize {
        self.slab.capacity() * (size_of::<Slot<W>>() + 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_hint_does_not_meet_another_lock() {
        let mut slots = Slots::<()>::new();
        let token = slots.open(8);
        slots.hint(token, 16);
        slots.hint(token + 1, 8);
        assert!(!slots.hinted(token));
        slots.hint(token, 8);
        assert!(slots.hinted(token));
    }
}
