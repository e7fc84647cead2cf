//! Coverage: how often a run took the rare paths. They say so themselves, by events of `tracing` with stable names,
//! which cost a comparison where no one listens; a run listens, and counts those that are listed here.
//!
//! Counts belong to the thread, and a run has one thread: the same seed counts the same. Whoever listened before hears
//! everything as before.

use std::cell::RefCell;
use std::ops::AddAssign;
use std::sync::OnceLock;

use tracing::dispatcher::{self, Dispatch};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::kind::Kind;

const BOTH: &[Kind] = &Kind::ALL;
const SHERMAN: &[Kind] = &[Kind::Sherman];
const SMART: &[Kind] = &[Kind::Smart];

/// The names of the events that are counted, in their order, and the kinds of index that have them.
const COUNTERS: [(&str, &[Kind]); 59] = [
    ("cache.evicted", BOTH),
    ("index.failed", BOTH),
    ("index.torn", BOTH),
    ("lock.cas.settled", BOTH),
    ("lock.contended", BOTH),
    ("lock.exhausted", BOTH),
    ("lock.grant.declined", BOTH),
    ("lock.handover", BOTH),
    ("lock.handover.cancelled", BOTH),
    ("lock.janitor", BOTH),
    ("lock.redo", BOTH),
    ("lock.redo.reached", SHERMAN),
    ("lock.redo.unreached", SHERMAN),
    ("lock.taken_over", BOTH),
    ("sherman.inner.right", SHERMAN),
    ("sherman.inner.split", SHERMAN),
    ("sherman.leaf.far_right", SHERMAN),
    ("sherman.leaf.right", SHERMAN),
    ("sherman.leaf.split", SHERMAN),
    ("sherman.read.entry", SHERMAN),
    ("sherman.read.locked", SHERMAN),
    ("sherman.read.slow", SHERMAN),
    ("sherman.root.grown", SHERMAN),
    ("sherman.root.lost", SHERMAN),
    ("sherman.root.settled", SHERMAN),
    ("sherman.separator.missing", SHERMAN),
    ("sherman.separator.owed", SHERMAN),
    ("sherman.separator.repaired", SHERMAN),
    ("sherman.split.unknown", SHERMAN),
    ("sim.read.overtaken", SHERMAN),
    ("smart.header.split", SMART),
    ("smart.leaf.estranged", SMART),
    ("smart.leaf.moved", SMART),
    ("smart.leaf.split", SMART),
    ("smart.leaf.superseded", SMART),
    ("smart.link.lost", SMART),
    ("smart.link.restored", SMART),
    ("smart.node.frozen", SMART),
    ("smart.node.full", SMART),
    ("smart.node.helped", SMART),
    ("smart.node.merged", SMART),
    ("smart.node.replaced", SMART),
    ("smart.node.taken_out", SMART),
    ("smart.nodes.lost", SMART),
    ("smart.read.locked", SMART),
    ("smart.read.slow", SMART),
    ("smart.replace.lost", SMART),
    ("smart.slot.lost", SMART),
    ("smart.split.lost", SMART),
    ("smart.split.vain", SMART),
    ("smart.swing.settled", SMART),
    ("smart.turn.overdue", SMART),
    ("smart.turn.waited", SMART),
    ("smart.type.switched", SMART),
    ("smart.way.stale", SMART),
    ("window.alone", BOTH),
    ("window.combined", BOTH),
    ("window.failed", BOTH),
    ("window.joined", BOTH),
];

thread_local! {
    static COUNTS: RefCell<Coverage> = const { RefCell::new(Coverage::NONE) };
}

/// How often each rare path was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; COUNTERS.len()]);

impl Coverage {
    const NONE: Coverage = Coverage([0; COUNTERS.len()]);

    /// The counters that indexes of `kind` have: their names and counts, in the order of the names.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = (&'static str, u64)> {
        let named = COUNTERS.iter().zip(self.0);
        named.filter(move |((_, kinds), _)| kinds.contains(&kind)).map(|((name, _), count)| (*name, count))
    }

    /// One for each path that was taken at all.
    #[must_use]
    pub fn taken(&self) -> Self {
        Coverage(self.0.map(|count| count.min(1)))
    }
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage::NONE
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Coverage) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }
}

/// Does `work`; yields also which paths it took on this thread.
pub(crate) fn counted<T>(work: impl FnOnce() -> T) -> (T, Coverage) {
    static LISTENER: OnceLock<Dispatch> = OnceLock::new();
    let listener = LISTENER.get_or_init(|| {
        let beneath = dispatcher::get_default(Dispatch::clone);
        Dispatch::new(Listener { beneath })
    });
    COUNTS.take();
    let done = dispatcher::with_default(listener, work);
    (done, COUNTS.take())
}

/// Counts the events that are listed, and passes everything on to whoever listened before.
struct Listener {
    beneath: Dispatch,
}

fn place_of(metadata: &Metadata<'_>) -> Option<usize> {
    COUNTERS.binary_search_by(|(name, _)| (*name).cmp(metadata.name())).ok()
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match place_of(metadata) {
            Some(_) => Interest::always(),
            None => self.beneath.register_callsite(metadata),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        place_of(metadata).is_some() || self.beneath.enabled(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(place) = place_of(event.metadata()) {
            COUNTS.with_borrow_mut(|counts| counts.0[place] += 1);
        }
        if self.beneath.enabled(event.metadata()) {
            self.beneath.event(event);
        }
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.beneath.new_span(span)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.beneath.record(span, values);
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        self.beneath.record_follows_from(span, follows);
    }

    fn enter(&self, span: &Id) {
        self.beneath.enter(span);
    }

    fn exit(&self, span: &Id) {
        self.beneath.exit(span);
    }

    fn clone_span(&self, span: &Id) -> Id {
        self.beneath.clone_span(span)
    }

    fn try_close(&self, span: Id) -> bool {
        self.beneath.try_close(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_for_they_are_searched() {
        assert!(COUNTERS.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    #[test]
    fn what_happens_is_counted_where_it_happens() {
        let ((), counts) = counted(|| {
            tracing::debug!(name: "lock.redo", "counted");
            tracing::debug!(name: "lock.redo", "and again");
            tracing::debug!(name: "unheard", "not listed");
            std::thread::spawn(|| tracing::debug!(name: "lock.redo", "elsewhere")).join().unwrap();
        });
        let counted_of = |kind| counts.of(kind).filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        for kind in Kind::ALL {
            assert_eq!(counted_of(kind), [("lock.redo", 2)]);
        }
        assert_eq!(counted(|| ()).1, Coverage::default());
        assert!(counts.taken().of(Kind::Smart).all(|(name, count)| count == u64::from(name == "lock.redo")));
    }
}
