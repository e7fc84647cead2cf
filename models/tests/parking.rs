//! Parking, in every order.

mod kit;

use farwood_models::parking::a_message_and_a_poller;
use farwood_models::sync::{Ordering, Weakening};

#[test]
fn no_message_meets_a_sleeping_poller() {
    kit::explore(|| a_message_and_a_poller(1));
    kit::explore(|| a_message_and_a_poller(2));
}

#[test]
fn without_its_fences_one_does() {
    kit::must_fail(Weakening::Fence(Ordering::SeqCst), "sleeps beside a message", || {
        a_message_and_a_poller(1)
    });
}
