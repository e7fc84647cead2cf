//! Epochs, in every order.

mod kit;

use farwood_models::epochs::a_reader_and_a_node_that_is_used_again;
use farwood_models::sync::Weakening;

/// Of the four times that the two threads take turns until memory comes back, each costs one that could go on its turn.
const PREEMPTIONS: usize = 4;

#[test]
fn no_operation_reads_what_is_used_again() {
    kit::explore_to(PREEMPTIONS, || a_reader_and_a_node_that_is_used_again(false));
    kit::explore(|| a_reader_and_a_node_that_is_used_again(true));
}

#[test]
fn without_its_orderings_one_does() {
    for by in [Weakening::Acquire, Weakening::Release] {
        kit::must_fail_to(PREEMPTIONS, by, "reads what is used again", || {
            a_reader_and_a_node_that_is_used_again(false)
        });
    }
}
