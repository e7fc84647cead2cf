//! Plants the same mistakes in scenarios that the swarm draws, which are made for none of them. (Not those whose
//! wrapper holds for its own scenario only: versions of four bits, and a cache without the reverse check.)

use std::ops::Range;

use farwood_index::IndexKind;
use farwood_runtime::sim::FaultMix;
use farwood_sim::scenario::{Overrides, Scenario};

use crate::is_caught;
use crate::sabotage::Act;

/// Tries seeds as `farwood sim run` draws them for that index, without a technique that covers the mistake.
#[track_caller]
fn is_caught_as_drawn(act: Act, kind: IndexKind, off: Option<&str>, seeds: Range<u64>) {
    let techniques: Vec<_> = off.map(|name| (name.to_owned(), false)).into_iter().collect();
    let overrides = Overrides { kind, techniques, ..Overrides::default() };
    is_caught(act, seeds, |seed| Scenario::draw(seed, &overrides));
}

/// Tries seeds as `farwood sim run --takeover --faults crashes` draws them for that index.
#[track_caller]
fn is_caught_with_takeover(act: Act, kind: IndexKind, seeds: Range<u64>) {
    let mix = FaultMix::named("crashes");
    let overrides = Overrides { kind, mix, takeover: true, ..Overrides::default() };
    is_caught(act, seeds, |seed| Scenario::draw(seed, &overrides));
}

#[test]
fn an_intent_behind_its_node() {
    is_caught_with_takeover(Act::IntentLast, IndexKind::Sherman, 0..20);
    is_caught_with_takeover(Act::IntentLast, IndexKind::Chime, 0..60);
}

#[test]
fn versions_in_the_first_and_last_line_only() {
    is_caught_as_drawn(Act::Bookends, IndexKind::Sherman, None, 0..100);
}

#[test]
fn an_unlock_before_the_write_back() {
    is_caught_as_drawn(Act::UnlockFirst, IndexKind::Sherman, None, 2..22);
    is_caught_as_drawn(Act::UnlockFirst, IndexKind::Smart, None, 250..450);
}

#[test]
fn a_lost_hand_over() {
    is_caught_as_drawn(Act::LostGrant(40), IndexKind::Sherman, None, 0..20);
}

#[test]
fn a_scan_that_does_not_notice_a_gap() {
    is_caught_as_drawn(Act::NoLowFence, IndexKind::Sherman, None, 0..20);
}

#[test]
fn a_lost_unlock() {
    is_caught_as_drawn(Act::LostUnlock(100), IndexKind::Sherman, None, 0..10);
    is_caught_as_drawn(Act::LostUnlock(100), IndexKind::Smart, None, 0..10);
}

#[test]
fn a_write_back_that_is_not_done_again() {
    is_caught_as_drawn(Act::NoRedo, IndexKind::Sherman, Some("combine"), 0..10);
}

#[test]
fn leaves_without_a_checksum() {
    is_caught_as_drawn(Act::AnyChecksum, IndexKind::Smart, None, 0..20);
}

#[test]
fn delegation_that_joins_an_earlier_read() {
    is_caught_as_drawn(Act::EarlierRead, IndexKind::Smart, Some("delegation"), 20..420);
}

/// Simulated READs are longer than one that proves an absence may be, and two equal ones prove it whatever their
/// versions say. So this control is of readers that know no time.
#[test]
fn versions_of_entries_that_are_not_compared_with_the_replicas() {
    is_caught_as_drawn(Act::AnyReplica, IndexKind::Chime, None, 60..160);
}
