//! A line and its journal, in every order.

mod kit;

use farwood_models::line::{
    a_reader_and_a_writer_that_dies, a_reader_and_a_writer_that_plans_late, a_writer_and_a_reader,
    an_adder_and_one_that_dies, two_adders,
};
use farwood_models::sync::Weakening;

/// A number of stores that no writer reaches.
const STORES_MAX: u32 = 16;

#[test]
fn no_reader_takes_a_torn_line() {
    kit::explore(a_writer_and_a_reader);
}

#[test]
fn without_acquire_or_release_one_does() {
    kit::must_fail(Weakening::All, "torn", a_writer_and_a_reader);
    kit::must_fail(Weakening::Release, "torn", a_writer_and_a_reader);
    kit::must_fail(Weakening::Acquire, "torn", a_writer_and_a_reader);
}

#[test]
fn no_addition_is_lost() {
    kit::explore(two_adders);
}

#[test]
fn what_the_dead_leave_is_finished() {
    for stores in 0..STORES_MAX {
        kit::explore(move || a_reader_and_a_writer_that_dies(stores));
        kit::explore(move || an_adder_and_one_that_dies(stores));
    }
}

#[test]
fn a_plan_that_comes_late_leaves_torn_lines() {
    let failure = |stores| kit::failure(move || a_reader_and_a_writer_that_plans_late(stores));
    assert!((0..STORES_MAX).filter_map(failure).any(|found| found.contains("torn")));
}
