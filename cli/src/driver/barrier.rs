//! How shards agree without talking: meetings that all of them attend, and the one verdict on the run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use farwood::runtime::Verbs;

use crate::error::CliError;

const LOOK_AGAIN_NS: u64 = 20_000;

/// Places in time that no shard passes before all others have come there.
pub(crate) struct Barrier {
    parties: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    /// Meetings of `parties` shards.
    pub(crate) fn new(parties: usize) -> Self {
        Barrier { parties, arrived: AtomicUsize::new(0) }
    }

    /// Waits until every shard has come to its `round`-th meeting, counted from 1. Every shard must come to every one:
    /// also one that has failed.
    pub(crate) async fn wait(&self, shard: &impl Verbs, round: usize) {
        // Who comes first publishes its phase; who leaves has seen all of them.
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < round * self.parties {
            shard.pause(LOOK_AGAIN_NS).await;
        }
    }
}

/// What ended the run before its time, if anything did. The first one counts.
#[derive(Default)]
pub(crate) struct FirstError {
    failed: AtomicBool,
    first: Mutex<Option<CliError>>,
}

impl FirstError {
    /// The run has failed.
    pub(crate) fn set(&self, error: CliError) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Whether the run has failed.
    pub(crate) fn is_set(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The failure.
    pub(crate) fn take(&self) -> Option<CliError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts() {
        let first_error = FirstError::default();
        assert!(!first_error.is_set());
        first_error.set(CliError::Check("first".into()));
        first_error.set(CliError::Check("second".into()));
        assert!(first_error.is_set());
        assert!(first_error.take().unwrap().one_line().ends_with("first"));
    }
}
