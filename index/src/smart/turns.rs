//! Turns at replacing an inner node: one client of a compute node does it, and the others wait for the result. Each of
//! them could do it (`replace.rs`), but all but one would write a copy for nothing.
//!
//! It is only advice: a client waits for a bounded time, and then helps. So neither a client that is slow, nor one that
//! is not polled any more, holds up others for long; one that is dropped gives its turn back.

use std::sync::atomic::{AtomicU64, Ordering};

use farwood_runtime::Verbs;

use super::Tree;
use crate::layout::radix::Child;

/// Nodes that can be replaced at the same time; two that hash to one place are replaced without taking turns.
const PLACES: usize = 64;
/// Times that a client looks whether another one's turn is over.
const LOOKS_MAX: u32 = 24;
/// The first pause between two looks, in ns, doubled up to the longest: a millisecond in all.
const PAUSE_NS_MIN: u64 = 2_000;
const PAUSE_DOUBLINGS: u32 = 5;

/// The inner nodes that clients of a compute node replace now, by their addresses; 0 is none.
pub(super) struct Turns(Box<[AtomicU64]>);

impl Turns {
    pub(super) fn new() -> Self {
        Turns((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Yields the place for a node. Neighbours have different ones.
    fn place(&self, node: Child) -> &AtomicU64 {
        &self.0[node.bits() as usize % PLACES]
    }
}

/// A client's turn at a node, until it is dropped.
#[must_use]
pub(super) struct Turn<'t> {
    /// None if the client works without one.
    place: Option<&'t AtomicU64>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Ordering::Release);
        }
    }
}

impl<V: Verbs> Tree<V> {
    /// Waits for the caller's turn to replace `node`; none after another client had its turn: then the node has been
    /// replaced, or the caller asks again.
    pub(super) async fn turn_at(&self, node: Child) -> Option<Turn<'_>> {
        let (place, ptr) = (self.turns().place(node), node.ptr());
        for look in 0..LOOKS_MAX {
            match place.load(Ordering::Acquire) {
                0 if look > 0 => {
                    tracing::debug!(name: "smart.turn.waited", node = %ptr, "another client has replaced a node");
                    return None;
                }
                other if other != 0 && other != node.bits() => {
                    return (look == 0).then_some(Turn { place: None });
                }
                0 if place.compare_exchange(0, node.bits(), Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                    return Some(Turn { place: Some(place) });
                }
                _ => {}
            }
            self.verbs.pause(PAUSE_NS_MIN << look.min(PAUSE_DOUBLINGS)).await;
        }
        tracing::debug!(name: "smart.turn.overdue", node = %ptr, "a node's replacement takes long: one more helps");
        Some(Turn { place: None })
    }
}
