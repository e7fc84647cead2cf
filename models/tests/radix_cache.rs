//! The radix cache's readers without locks, and what a writer does for others, in every order.

mod kit;

use farwood_models::radix_cache::{a_lookup_and_a_writer, an_invalidation_and_a_writer};
use farwood_models::sync::{Ordering, Weakening};

/// Copies before and during the lookup, so many that a segment is reused in the midst of it: with fewer the model has a
/// handful of orders and no control fails.
const COPIES: (u64, u64) = (2, 3);

#[test]
fn a_lookup_sees_one_copy() {
    kit::explore(|| a_lookup_and_a_writer(0, 2));
    kit::explore(|| a_lookup_and_a_writer(COPIES.0, COPIES.1));
}

#[test]
fn without_its_fences_acquires_or_releases_it_sees_two() {
    let weakenings = [
        Weakening::Fence(Ordering::Release),
        Weakening::Fence(Ordering::Acquire),
        Weakening::Release,
        Weakening::Acquire,
    ];
    for by in weakenings {
        kit::must_fail(by, "never was", || a_lookup_and_a_writer(COPIES.0, COPIES.1));
    }
}

#[test]
fn no_copy_stays_that_has_to_go() {
    kit::explore(an_invalidation_and_a_writer);
}

#[test]
fn without_its_fences_one_is_left_behind() {
    kit::must_fail(Weakening::Fence(Ordering::SeqCst), "left behind", an_invalidation_and_a_writer);
}
