//! Waits for locks that timed out, by compute node, and whether a death explains them. It does not know their lengths.
//!
//! They are heard from the lock table's event, not read off the errors of operations: a split that cannot have its
//! parent's lock has waited for it, too, with its own node's lock in hand, and is done all the same.
//!
//! ```text
//!   3 ── waits for ──> 2 ── waits for ──> 1 (dead)      explained, both of them
//!   5 <── wait for each other ──> 4                     not: both live
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tracing::Event;
use tracing::field::{Field, Visit};

thread_local! {
    /// The waits of the run that this thread is at.
    static HEARD: RefCell<Waits> = RefCell::default();
}

/// Forgets all waits: a run begins.
pub(crate) fn forget() {
    HEARD.take();
}

/// Remembers the wait that `event` tells of, if it is the lock table's about one that timed out.
pub(crate) fn hear(event: &Event<'_>) {
    if event.metadata().name() == "lock.exhausted" {
        let mut wait = Wait::default();
        event.record(&mut wait);
        HEARD.with_borrow_mut(|waits| waits.note(wait));
    }
}

/// Describes a wait since the last [`forget`] that the deaths of those compute nodes do not explain.
pub(crate) fn unexplained(dead: BTreeSet<u16>) -> Option<String> {
    HEARD.with_borrow(|waits| waits.unexplained(dead).map(Wait::to_string))
}

/// A wait of a compute node's operation that timed out, for a lock of another node, or of another client of its own.
#[derive(Default)]
struct Wait {
    waiter: u16,
    owner: u16,
    lock: String,
}

impl Visit for Wait {
    fn record_u64(&mut self, field: &Field, value: u64) {
        let id = u16::try_from(value).unwrap_or(u16::MAX);
        match field.name() {
            "waiter" => self.waiter = id,
            "owner" => self.owner = id,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "lock" {
            self.lock = format!("{value:?}");
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wait { waiter, owner, lock } = self;
        write!(f, "compute node {waiter} waited in vain for the lock {lock} of compute node {owner}")
    }
}

/// Waits for a lock that timed out, by the ids of the waiting and the owning compute node: the first of each pair.
#[derive(Default)]
struct Waits(BTreeMap<(u16, u16), Wait>);

impl Waits {
    fn note(&mut self, wait: Wait) {
        self.0.entry((wait.waiter, wait.owner)).or_insert(wait);
    }

    /// Yields a wait that no death explains: neither that of the owner that it names, nor that of another node that
    /// operations of that owner wait for in vain (a client keeps a leaf's lock while it waits for its parent's, which
    /// the dead may hold), or those of the waiter's own compute node (it may have spent its time in a window whose
    /// leader did). Where others wait for the dead, a wait behind a client of the own compute node is explained, too:
    /// that client may have waited for one of them, and had its lock just before its own time was over.
    fn unexplained(&self, dead: BTreeSet<u16>) -> Option<&Wait> {
        let deaths = dead.len();
        let mut explained = dead;
        // A wait for a waiter is explained by a longer way each time.
        for _ in 0..self.0.len() {
            let of_explained = self.0.keys().filter(|(_, owner)| explained.contains(owner));
            let waiters: Vec<u16> = of_explained.map(|(waiter, _)| *waiter).collect();
            explained.extend(waiters);
        }
        let others_wait = explained.len() > deaths;
        let is_explained =
            |&(waiter, owner): &(u16, u16)| explained.contains(&waiter) || waiter == owner && others_wait;
        let left = self.0.iter().find(|(wait, _)| !is_explained(wait));
        left.map(|(_, wait)| wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::counted;

    fn wait(waiter: u16, owner: u16, lock: &str) -> Wait {
        Wait { waiter, owner, lock: lock.into() }
    }

    /// Yields the wait that is not explained, of (waiter, owner) pairs.
    fn unexplained(waits: &[(u16, u16)], dead: &[u16]) -> Option<String> {
        let mut noted = Waits::default();
        waits.iter().for_each(|&(waiter, owner)| noted.note(wait(waiter, owner, "")));
        let left = noted.unexplained(dead.iter().copied().collect());
        left.map(|wait| format!("{} for {}", wait.waiter, wait.owner))
    }

    #[test]
    fn a_dead_owner_explains_a_wait_and_a_living_one_does_not() {
        assert_eq!(unexplained(&[], &[1]), None);
        assert_eq!(unexplained(&[(2, 1)], &[1]), None);
        assert_eq!(unexplained(&[(2, 1)], &[]), Some("2 for 1".into()));
        assert_eq!(unexplained(&[(2, 3)], &[1]), Some("2 for 3".into()));
        assert_eq!(unexplained(&[(2, 1), (3, 4)], &[1]), Some("3 for 4".into()));
    }

    /// The ids run against the order in which the waits are explained.
    #[test]
    fn a_death_explains_waits_for_waiters_however_many_are_between() {
        let line = [(2, 3), (3, 4), (4, 5), (5, 6)];
        assert_eq!(unexplained(&line, &[6]), None);
        assert_eq!(unexplained(&line, &[7]), Some("2 for 3".into()));
    }

    #[test]
    fn waiters_in_a_circle_explain_each_other_only_if_one_of_them_waits_for_the_dead() {
        let circle = [(2, 3), (3, 4), (4, 2)];
        assert_eq!(unexplained(&circle, &[1]), Some("2 for 3".into()));
        assert_eq!(unexplained(&[&circle[..], &[(4, 1)]].concat(), &[1]), None);
        assert_eq!(unexplained(&[(2, 2)], &[1]), Some("2 for 2".into()));
    }

    /// The leader of the window waits for the dead, and an operation in the window for a living node's lock.
    #[test]
    fn a_death_that_holds_up_a_compute_node_explains_its_other_waits() {
        assert_eq!(unexplained(&[(2, 1), (2, 3)], &[1]), None);
        // A death explains no wait of those that its waiters wait for.
        assert_eq!(unexplained(&[(2, 1), (2, 3), (3, 4)], &[1]), Some("3 for 4".into()));
    }

    /// A client of 3 holds its lock locally, waits for one of 2, which waits for the dead, and has it at last.
    #[test]
    fn a_death_that_others_wait_for_explains_waits_behind_a_client_of_the_own_compute_node() {
        assert_eq!(unexplained(&[(3, 3), (2, 1)], &[1]), None);
        assert_eq!(unexplained(&[(3, 3), (3, 2), (2, 1)], &[1]), None);
        assert_eq!(unexplained(&[(3, 3), (3, 4), (2, 1)], &[1]), Some("3 for 4".into()));
    }

    #[test]
    fn the_first_of_the_same_waits_is_told() {
        let mut waits = Waits::default();
        waits.note(wait(2, 1, "0:0x40"));
        waits.note(wait(2, 1, "0:0x80"));
        let told = waits.unexplained(BTreeSet::new()).map(Wait::to_string);
        assert_eq!(
            told.as_deref(),
            Some("compute node 2 waited in vain for the lock 0:0x40 of compute node 1")
        );
    }

    #[test]
    fn waits_are_heard_from_the_lock_tables_event() {
        let ((), _) = counted(|| {
            let (lock, waiter, owner, attempts) = ("0:0x40", 3_u16, 2_u16, 7_u32);
            tracing::debug!(name: "lock.exhausted", %lock, waiter, owner, attempts, "a lock is not had");
            tracing::debug!(name: "lock.redo", waiter = 4_u16, owner = 5_u16, "another event");
            let told = super::unexplained(BTreeSet::new());
            assert_eq!(
                told.as_deref(),
                Some("compute node 3 waited in vain for the lock 0:0x40 of compute node 2")
            );
            assert_eq!(super::unexplained(BTreeSet::from([2])), None);
        });
        counted(|| assert_eq!(super::unexplained(BTreeSet::new()), None, "a run hears only its own"));
    }
}
