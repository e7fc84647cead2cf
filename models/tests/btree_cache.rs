//! The readers of the B+trees' cache, in every order.

mod kit;

use farwood_models::btree_cache::{lookups_and_a_division, lookups_and_a_merger};
use farwood_models::sync::Weakening;

#[test]
fn lookups_find_what_is_there() {
    kit::explore(lookups_and_a_division);
    kit::explore(lookups_and_a_merger);
}

#[test]
fn without_acquire_or_release_they_see_what_is_not_there_yet() {
    for by in [Weakening::Acquire, Weakening::Release] {
        kit::must_fail(by, "Causality", lookups_and_a_division);
        kit::must_fail(by, "Causality", lookups_and_a_merger);
    }
}
