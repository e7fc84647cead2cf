//! Counts a janitor's tasks on each memory server, and knows when there are enough. Otherwise a server that does not
//! answer would leave the janitor one task for each operation, as fast as clients ask, and each keeps its chain for
//! seconds. It knows no locks.
//!
//! Nothing that was begun is given up for that: while the backlog is full, no further lock word is asked for, so no
//! more work arises.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_runtime::{FabricError, ServerId};

/// The tasks of one table's janitor.
#[derive(Default)]
pub(crate) struct Backlog(RefCell<Vec<Load>>);

/// The tasks on one server.
#[derive(Default)]
struct Load {
    tasks: usize,
    /// Why the server did not do what it was asked last; `None` if it did.
    cause: Option<FabricError>,
    /// Set when a warning has said that there are too many of them.
    is_said: bool,
}

/// A task of the janitor, until it is dropped.
pub(crate) struct Task {
    of: Rc<Backlog>,
    server: ServerId,
}

/// Why nothing more may be begun on a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// It answers, as far as is known: there will be room soon.
    ForNow,
    /// It does not answer.
    InVain(FabricError),
}

impl Backlog {
    pub(crate) fn begin(self: &Rc<Self>, server: ServerId) -> Task {
        self.change(server, |load| load.tasks += 1);
        Task { of: Rc::clone(self), server }
    }

    /// Notes what a task has heard of its server. A queue pair that broke says nothing about the server.
    pub(crate) fn heard(&self, server: ServerId, answer: Result<(), &FabricError>) {
        let cause = answer.err();
        if !cause.is_some_and(FabricError::is_passing) {
            self.change(server, |load| load.cause = cause.cloned());
        }
    }

    /// Tells whether that server has `tasks_max` tasks, or more.
    #[inline]
    pub(crate) fn is_full(&self, server: ServerId, tasks_max: usize) -> bool {
        self.0.borrow().get(usize::from(server.0)).is_some_and(|load| load.tasks >= tasks_max)
    }

    /// Tells a client that wants to begin more whether to wait or to fail; warns of the latter once.
    #[cold]
    pub(crate) fn fullness(&self, server: ServerId) -> Full {
        self.change(server, |load| {
            let Some(cause) = load.cause.clone() else { return Full::ForNow };
            if !std::mem::replace(&mut load.is_said, true) {
                tracing::warn!(
                    name: "lock.janitor.full", server = server.0, tasks = load.tasks, %cause,
                    "a memory server does not answer, and as many locks wait to be undone there as may: operations \
                     that want more of its locks fail at once"
                );
            }
            Full::InVain(cause)
        })
    }

    fn change<T>(&self, server: ServerId, change: impl FnOnce(&mut Load) -> T) -> T {
        let (mut loads, place) = (self.0.borrow_mut(), usize::from(server.0));
        if loads.len() <= place {
            loads.resize_with(place + 1, Load::default);
        }
        change(&mut loads[place])
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.of.change(self.server, |load| {
            load.tasks -= 1;
            load.is_said &= load.tasks > 0;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerId = ServerId(2);

    #[test]
    fn counts_tasks_by_server() {
        let backlog = Rc::new(Backlog::default());
        let (first, second) = (backlog.begin(SERVER), backlog.begin(SERVER));
        assert!(backlog.is_full(SERVER, 2) && !backlog.is_full(SERVER, 3));
        assert!(!backlog.is_full(ServerId(1), 1) && !backlog.is_full(ServerId(9), 1));
        drop(first);
        assert!(!backlog.is_full(SERVER, 2));
        drop(second);
        assert!(!backlog.is_full(SERVER, 1));
    }

    #[test]
    fn knows_what_it_heard_last() {
        let backlog = Backlog::default();
        let (gone, broken) =
            (FabricError::ServerGone { server: SERVER }, FabricError::QueuePair { server: SERVER });
        assert_eq!(backlog.fullness(SERVER), Full::ForNow);
        backlog.heard(SERVER, Err(&broken));
        assert_eq!(backlog.fullness(SERVER), Full::ForNow, "a queue pair that breaks says nothing");
        backlog.heard(SERVER, Err(&gone));
        backlog.heard(SERVER, Err(&broken));
        assert_eq!(backlog.fullness(SERVER), Full::InVain(gone));
        assert_eq!(backlog.fullness(ServerId(0)), Full::ForNow);
        backlog.heard(SERVER, Ok(()));
        assert_eq!(backlog.fullness(SERVER), Full::ForNow);
    }
}
