//! Coverage: how often a run took the rare paths. They say so themselves, by events of `tracing` with stable names,
//! which cost a comparison where no one listens; a run listens, and counts those that are listed here.
//!
//! Counts belong to the thread, and a run has one thread: the same seed counts the same. An earlier listener hears
//! everything as before.

use std::cell::RefCell;
use std::ops::AddAssign;
use std::sync::{LazyLock, OnceLock};

use farwood_index::IndexKind;
use farwood_index::shell::Trial;
use tracing::dispatcher::{self, Dispatch};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::waits;

/// Events of every kind of index; those of one kind are in its [`Trial`](farwood_index::shell::Trial).
const COMMON: [&str; 16] = [
    "index.failed",
    "index.memory.given_back",
    "index.torn",
    "lock.cas.settled",
    "lock.contended",
    "lock.exhausted",
    "lock.grant.declined",
    "lock.handover",
    "lock.handover.cancelled",
    "lock.janitor",
    "lock.redo",
    "lock.taken_over",
    "window.bypassed",
    "window.combined",
    "window.failed",
    "window.joined",
];

/// Events of takeovers, for swarms that are run with them; those of one kind are in its trial, too.
const TAKEOVER: [&str; 8] = [
    "index.sweep.void",
    "lock.intent.inherited",
    "lock.intent.needed",
    "lock.intent.recorded",
    "lock.intent.unrecorded",
    "lock.recovered",
    "lock.recovery.redone",
    "lock.recovery.redone_again",
];

/// At most so many events are counted: kinds may share some.
const COUNTERS_MAX: usize = {
    let (mut most, mut kind) = (COMMON.len() + TAKEOVER.len(), 0);
    while kind < IndexKind::ALL.len() {
        let trial = IndexKind::ALL[kind].trial();
        most += trial.rare_paths.len() + trial.takeover_paths.len();
        kind += 1;
    }
    most
};

/// The names of the events that are counted, in their order.
static COUNTERS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let of_kinds = |kind: &IndexKind| [kind.trial().rare_paths, kind.trial().takeover_paths];
    let of_kinds = IndexKind::ALL.iter().flat_map(of_kinds).flatten();
    let mut names: Vec<_> = COMMON.iter().chain(&TAKEOVER).chain(of_kinds).copied().collect();
    names.sort_unstable();
    names.dedup();
    names
});

thread_local! {
    static COUNTS: RefCell<Coverage> = const { RefCell::new(Coverage::NONE) };
}

/// Counts of how often each rare path was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage([u64; COUNTERS_MAX]);

impl Coverage {
    const NONE: Coverage = Coverage([0; COUNTERS_MAX]);

    /// Yields the counters that indexes of `kind` have, those of takeovers too if there are any: their names and
    /// counts, in the order of the names.
    pub fn of(&self, kind: IndexKind, takeover: bool) -> impl Iterator<Item = (&'static str, u64)> {
        let Trial { rare_paths, takeover_paths, .. } = kind.trial();
        let named = COUNTERS.iter().copied().zip(self.0);
        let [common, own]: [&[&str]; 2] = if takeover { [&TAKEOVER, takeover_paths] } else { [&[], &[]] };
        named.filter(move |(name, _)| {
            [&COMMON[..], rare_paths, common, own].iter().any(|names| names.contains(name))
        })
    }

    /// Yields one for each path that was taken at all.
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
    waits::forget();
    let done = dispatcher::with_default(listener, work);
    (done, COUNTS.take())
}

/// Counts the events that are listed, and passes everything on to the earlier listener.
struct Listener {
    beneath: Dispatch,
}

fn place_of(metadata: &Metadata<'_>) -> Option<usize> {
    COUNTERS.binary_search(&metadata.name()).ok()
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
            waits::hear(event);
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
    fn what_happens_is_counted_where_it_happens() {
        let ((), counts) = counted(|| {
            tracing::debug!(name: "lock.redo", "counted");
            tracing::debug!(name: "lock.redo", "and again");
            tracing::debug!(name: "unheard", "not listed");
            std::thread::spawn(|| tracing::debug!(name: "lock.redo", "elsewhere")).join().unwrap();
        });
        let counted_of = |kind| counts.of(kind, true).filter(|(_, count)| *count > 0).collect::<Vec<_>>();
        for &kind in IndexKind::ALL {
            assert_eq!(counted_of(kind), [("lock.redo", 2)]);
        }
        assert_eq!(counted(|| ()).1, Coverage::default());
        assert!(
            counts
                .taken()
                .of(IndexKind::Smart, false)
                .all(|(name, count)| count == u64::from(name == "lock.redo"))
        );
    }
}
