//! The clients of one shard that wait for windows, and what they were told. The client's half, pure like
//! [`super::home`]: `W` is whatever resumes a client.
//!
//! A token is a slot's position. A slot lives until its client has taken what it was told; that of a client who is
//! gone until the home has said the one thing that it says to everyone who waits, so that it cannot meet a later user
//! of the same token.
//!
//! ```text
//!   open ──> Waiting ── told ──> Told ── polled: closed
//!               │ dropped         │ dropped: pass a lead on, closed
//!               v                 v
//!           Cancelled ── told: pass a lead on, closed ── or ── Cancelled: closed
//! ```

use slab::Slab;

/// What somebody who waits is told in the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// It leads a window now.
    Lead { readers: bool },
    /// The value that was read for it; `None` if there is none.
    Read(Option<Vec<u8>>),
    /// Whether the write that overwrote its own was applied.
    Written(bool),
    /// To work for itself.
    Alone,
}

/// The slots of one shard.
#[derive(Clone, Debug)]
pub(crate) struct Slots<W> {
    slab: Slab<State<W>>,
}

#[derive(Clone, Debug)]
enum State<W> {
    /// `None` until the client has been polled; until when it waits.
    Waiting(Option<W>, u64),
    Told(Told),
    Cancelled,
}

/// What an answer finds.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Met<W> {
    /// A client that waits: resume it.
    Waiting(Option<W>),
    /// A client that is gone. The slot is closed.
    Nobody,
}

impl<W> Slots<W> {
    pub(crate) fn new() -> Self {
        Slots { slab: Slab::new() }
    }

    /// A slot for a client that begins to wait.
    pub(crate) fn open(&mut self) -> u32 {
        self.slab.insert(State::Waiting(None, u64::MAX)) as u32
    }

    /// The client is told something, which is made only if it is still there.
    pub(crate) fn tell(&mut self, token: u32, told: impl FnOnce() -> Told) -> Met<W> {
        let state = &mut self.slab[token as usize];
        match state {
            State::Waiting(waiter, _) => {
                let waiter = waiter.take();
                *state = State::Told(told());
                Met::Waiting(waiter)
            }
            State::Cancelled => {
                self.slab.remove(token as usize);
                Met::Nobody
            }
            State::Told(_) => panic!("told a client twice"),
        }
    }

    /// The client asks what it was told, which closes its slot; if nothing yet, `waiter` resumes it later.
    pub(crate) fn poll(&mut self, token: u32, waiter: impl FnOnce() -> W) -> Option<Told> {
        match &mut self.slab[token as usize] {
            State::Waiting(place, _) => {
                *place = Some(waiter());
                None
            }
            State::Told(_) => self.take(token),
            State::Cancelled => panic!("polled a client that is gone"),
        }
    }

    /// The waiting client waits until then.
    pub(crate) fn wait_until(&mut self, token: u32, until_ns: u64) {
        if let State::Waiting(_, until) = &mut self.slab[token as usize] {
            *until = until_ns;
        }
    }

    /// Takes out what resumes those who wait until `now_ns` at most; yields whether any client waits.
    pub(crate) fn find_overdue(&mut self, now_ns: u64, overdue: &mut Vec<W>) -> bool {
        let mut waits = false;
        for (_, state) in &mut self.slab {
            if let State::Waiting(waiter, until_ns) = state {
                waits = true;
                overdue.extend(if *until_ns <= now_ns { waiter.take() } else { None });
            }
        }
        waits
    }

    /// The waiting client was dropped, or waits no longer. Yields what it had been told, and then the slot is closed.
    /// Otherwise the home has to hear of it, and the slot stays until it has answered.
    pub(crate) fn abandon(&mut self, token: u32) -> Option<Told> {
        match &mut self.slab[token as usize] {
            state @ State::Waiting(..) => {
                *state = State::Cancelled;
                None
            }
            State::Told(_) => self.take(token),
            State::Cancelled => panic!("abandoned twice"),
        }
    }

    /// The home has forgotten the client.
    pub(crate) fn cancelled(&mut self, token: u32) {
        let state = self.slab.remove(token as usize);
        assert!(matches!(state, State::Cancelled), "only a client that is gone is told so");
    }

    /// Clients that wait, or are not yet known to be gone.
    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Memory that the slots take.
    pub(crate) fn bytes(&self) -> usize {
        self.slab.capacity() * (size_of::<State<W>>() + 8)
    }

    fn take(&mut self, token: u32) -> Option<Told> {
        match self.slab.remove(token as usize) {
            State::Told(told) => Some(told),
            State::Waiting(..) | State::Cancelled => unreachable!("it was told something"),
        }
    }
}
