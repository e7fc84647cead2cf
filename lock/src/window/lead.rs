//! Results of entering a window: the client leads it, or another client worked for it.

use std::rc::Rc;

use farwood_runtime::{ShardId, Verbs};

use super::buffer_cache::SharedValue;
use super::config::Access;
use super::key::KeyId;
use super::table::Table;

/// The result of [`super::WindowTable::enter`].
#[must_use = "a leader has others waiting"]
pub enum Entered<V: Verbs> {
    /// It works itself, and the clients that have joined wait for it: [`LeaderGuard::finish`].
    Led(LeaderGuard<V>),
    /// A reader: the value that the key had, or that there was none, at a moment since the call began.
    Read(Option<SharedValue>),
    /// A writer: its write was overwritten, at a moment since the call began, by one of the same kind; whether that
    /// one was applied, and so would its own have been.
    #[expect(missing_docs, reason = "said above")]
    Written { applied: bool },
    /// It works itself, and no client waits for it: the value is too long to be sent, or the client has waited too
    /// long.
    Bypass,
}

/// The leader's result, for all clients that joined its window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome<'a> {
    access: Wanted,
    pub(super) applied: bool,
    pub(super) value: Option<&'a [u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Read,
    Write,
}

impl<'a> Outcome<'a> {
    /// Reports what the leader has read: the key's value, `None` if there is none.
    ///
    /// ```
    /// # use farwood_lock::window::Outcome;
    /// assert_ne!(Outcome::read(Some(b"1")), Outcome::read(None));
    /// ```
    pub fn read(value: Option<&'a [u8]>) -> Self {
        Outcome { access: Wanted::Read, applied: false, value }
    }

    /// Reports what the leader has written: `value` is the key's value now, if it was `applied`. If not, there is none.
    ///
    /// ```
    /// # use farwood_lock::window::Outcome;
    /// assert_eq!(Outcome::written(false, b"1"), Outcome::written(false, b"2"), "neither is the key's value");
    /// ```
    pub fn written(applied: bool, value: &'a [u8]) -> Self {
        Outcome { access: Wanted::Write, applied, value: applied.then_some(value) }
    }
}

/// An open window. Ends with [`LeaderGuard::finish`]; if it is dropped instead (the operation failed, or was
/// cancelled), the clients that joined wait on for another leader.
#[must_use = "a window ends with `finish`"]
pub struct LeaderGuard<V: Verbs> {
    table: Rc<Table<V>>,
    key: KeyId,
    home: ShardId,
    access: Access,
    /// True if a reader has joined, as far as is known here: on the home shard the home itself knows.
    readers: bool,
    ended: bool,
}

impl<V: Verbs> LeaderGuard<V> {
    #[inline]
    pub(super) fn new(table: Rc<Table<V>>, key: KeyId, home: ShardId, access: Access, readers: bool) -> Self {
        LeaderGuard { table, key, home, access, readers, ended: false }
    }

    /// Ends the window: every client of the group gets the outcome, and the next window starts. Costs no round trip and
    /// does not wait.
    ///
    /// ```
    /// # farwood_doctest::windows!(|shard, windows, meter| {
    /// let Entered::Led(lead) = windows.enter(&meter, b"anna", Access::Read).await else { panic!("it is alone") };
    /// let follower = windows.enter(&meter, b"anna", Access::Read);
    /// lead.finish(Outcome::read(Some(b"1")));
    /// assert!(matches!(follower.await, Entered::Led(_)), "the window had ended when it came");
    /// # });
    /// ```
    ///
    /// # Panics
    /// If the leader entered to read and the outcome is that of a write, or the other way round.
    #[inline]
    pub fn finish(mut self, outcome: Outcome<'_>) {
        let fits = (self.access == Access::Read) == (outcome.access == Wanted::Read);
        assert!(fits, "a reader has read, a writer has written");
        self.ended = true;
        self.table.finish(self.key, self.home, self.readers, outcome);
    }
}

impl<V: Verbs> Drop for LeaderGuard<V> {
    #[inline]
    fn drop(&mut self) {
        if !self.ended {
            self.table.fail(self.key, self.home);
        }
    }
}
