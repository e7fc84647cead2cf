//! The clients of one shard that want something of a home, a lock or a window, and the answers they got. The client's
//! half of both protocols, pure like [`crate::handover`]: `A` is a client's answer, `W` what resumes it, `M` what else
//! is remembered of it. None of these types is known here.
//!
//! A token is a slot's position. A slot lives until its client closes it. If the client is gone, it lives until the
//! home has sent the one answer that every waiting client gets, so that this cannot meet a later user of the same
//! token.
//!
//! ```text
//!   open ──> Waiting ── told ──> Answered ── polled ──> Done ── close
//!               │ dropped, overdue │ dropped: undone by the caller, closed
//!               v                  v
//!           Cancelled ── told: undone by the caller, closed ── or ── cancelled: closed
//! ```

use slab::Slab;

/// The slots of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Slots<A, W, M = ()> {
    slab: Slab<Slot<A, W, M>>,
}

#[derive(Clone, Debug)]
struct Slot<A, W, M> {
    memo: M,
    state: State<A, W>,
}

#[derive(Clone, Debug)]
enum State<A, W> {
    /// `None` until the client has been polled; until when it waits.
    Waiting(Option<W>, u64),
    Answered(A),
    /// The client knows its answer.
    Done,
    Cancelled,
}

/// The recipient that an answer finds.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Delivery<W> {
    /// A client that waits: resume it.
    Waiting(Option<W>),
    /// A client that is gone. The slot is closed.
    Gone,
}

impl<A, W, M> Slots<A, W, M> {
    pub(crate) fn new() -> Self {
        Slots { slab: Slab::new() }
    }

    /// Opens a slot for a client that begins to wait.
    #[inline]
    pub(crate) fn open(&mut self, memo: M) -> u32 {
        self.slab.insert(Slot { memo, state: State::Waiting(None, u64::MAX) }) as u32
    }

    /// Notes that the client need not wait: it knows its answer.
    #[inline]
    pub(crate) fn skip_waiting(&mut self, token: u32) {
        self.slab[token as usize].state = State::Done;
    }

    /// Gives the client its answer, which is made only if the client is still there.
    pub(crate) fn tell(&mut self, token: u32, answer: impl FnOnce() -> A) -> Delivery<W> {
        let state = &mut self.slab[token as usize].state;
        match state {
            State::Waiting(waiter, _) => {
                let waiter = waiter.take();
                *state = State::Answered(answer());
                Delivery::Waiting(waiter)
            }
            State::Cancelled => {
                self.slab.remove(token as usize);
                Delivery::Gone
            }
            State::Answered(_) | State::Done => panic!("told a client twice"),
        }
    }

    /// Yields the client's answer; if there is none yet, `waiter` resumes it later.
    pub(crate) fn poll(&mut self, token: u32, waiter: impl FnOnce() -> W) -> Option<A> {
        let state = &mut self.slab[token as usize].state;
        match state {
            State::Waiting(place, _) => {
                *place = Some(waiter());
                None
            }
            State::Answered(_) => match std::mem::replace(state, State::Done) {
                State::Answered(answer) => Some(answer),
                _ => unreachable!("it was told something"),
            },
            State::Done | State::Cancelled => panic!("polled a client that waits no longer"),
        }
    }

    /// Sets how long the client waits.
    pub(crate) fn wait_until(&mut self, token: u32, until_ns: u64) {
        if let State::Waiting(_, until) = &mut self.slab[token as usize].state {
            *until = until_ns;
        }
    }

    /// Takes out what resumes the clients that wait until `now_ns` at most; yields whether any client waits.
    pub(crate) fn find_overdue(&mut self, now_ns: u64, overdue: &mut Vec<W>) -> bool {
        let mut waits = false;
        for (_, slot) in &mut self.slab {
            if let State::Waiting(waiter, until_ns) = &mut slot.state {
                waits = true;
                overdue.extend(if *until_ns <= now_ns { waiter.take() } else { None });
            }
        }
        waits
    }

    /// Gives up the wait of a client that was dropped, or waits no longer. Yields the answer if it has come, and then
    /// the slot is closed. Otherwise the home has to be told, and the slot stays until it has answered.
    pub(crate) fn abandon(&mut self, token: u32) -> Option<A> {
        let state = &mut self.slab[token as usize].state;
        match std::mem::replace(state, State::Cancelled) {
            State::Waiting(..) => None,
            State::Answered(answer) => {
                self.slab.remove(token as usize);
                Some(answer)
            }
            State::Done | State::Cancelled => panic!("abandoned a client that waits no longer"),
        }
    }

    /// Closes the slot of a client that the home has forgotten.
    pub(crate) fn cancelled(&mut self, token: u32) {
        let slot = self.slab.remove(token as usize);
        assert!(matches!(slot.state, State::Cancelled), "only a client that is gone is told so");
    }

    /// Closes the slot of a client that waits no longer.
    #[inline]
    pub(crate) fn close(&mut self, token: u32) {
        let slot = self.slab.remove(token as usize);
        assert!(matches!(slot.state, State::Done), "only a client that knows its answer closes its slot");
    }

    /// Yields what else is remembered of the client.
    #[inline]
    pub(crate) fn memo(&self, token: u32) -> &M {
        &self.slab[token as usize].memo
    }

    /// Yields the same for changing it; `None` if no client has that token.
    pub(crate) fn memo_mut(&mut self, token: u32) -> Option<&mut M> {
        Some(&mut self.slab.get_mut(token as usize)?.memo)
    }

    /// Counts the clients that have not closed their slots, or are not yet known to be gone.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Counts the bytes that the slots take.
    pub(crate) fn bytes(&self) -> usize {
        self.slab.capacity() * (size_of::<Slot<A, W, M>>() + 8)
    }
}
