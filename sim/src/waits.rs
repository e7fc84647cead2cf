//! Waits for locks in vain, by compute node, and whether a death explains them. It knows nothing of how long they were.
//!
//! ```text
//!   3 ── waits for ──> 2 ── waits for ──> 1 (dead)      explained, both of them
//!   5 <── wait for each other ──> 4                     not: both live
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// Who has waited for a lock in vain, and for whom, by the ids of the compute nodes; and the first such error.
#[derive(Default)]
pub(crate) struct Waits(BTreeMap<(u16, u16), String>);

impl Waits {
    /// Remembers that an operation of compute node `waiter` has waited for `owner` in vain.
    pub(crate) fn note(&mut self, waiter: u16, owner: u16, error: impl ToString) {
        self.0.entry((waiter, owner)).or_insert_with(|| error.to_string());
    }

    /// The error of a wait that no death explains: neither that of the owner that it names, nor that of another whom
    /// operations of that owner wait for in vain (a client keeps a leaf's lock while it waits for its parent's, which
    /// the dead may hold), or those of the waiter's own compute node (it may have spent its time in a window whose
    /// leader did). Where others wait for the dead, a wait behind a client of the own compute node is explained, too:
    /// that client may have waited for one of them, and had its lock just before its own time was over.
    pub(crate) fn unexplained(&self, dead: BTreeSet<u16>) -> Option<&str> {
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
        left.map(|(_, error)| error.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait that is not explained, of (waiter, owner) pairs.
    fn unexplained(waits: &[(u16, u16)], dead: &[u16]) -> Option<String> {
        let mut noted = Waits::default();
        waits.iter().for_each(|&(waiter, owner)| noted.note(waiter, owner, format!("{waiter} for {owner}")));
        noted.unexplained(dead.iter().copied().collect()).map(str::to_owned)
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

    /// The leader of the window waits for the dead, and who waits in it for a living node's lock.
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
    fn the_first_error_of_a_wait_is_told() {
        let mut waits = Waits::default();
        waits.note(2, 1, "first");
        waits.note(2, 1, "second");
        assert_eq!(waits.unexplained(BTreeSet::new()), Some("first"));
    }
}
