//! Agreement of shards without messages: a barrier that all of them pass, and the first error of a run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use farwood::runtime::Verbs;

use crate::error::CliError;

const LOOK_AGAIN_NS: u64 = 20_000;

/// A point that no shard passes before all others have reached it, round after round.
pub(crate) struct Barrier {
    parties: usize,
    arrived: AtomicUsize,
}

impl Barrier {
    /// Makes a barrier for `parties` shards.
    pub(crate) fn new(parties: usize) -> Self {
        Barrier { parties, arrived: AtomicUsize::new(0) }
    }

    /// Waits until every shard has reached the barrier for the `round`-th time, counted from 1. Every shard must wait
    /// in every round, also one that has failed.
    pub(crate) async fn wait(&self, shard: &impl Verbs, round: usize) {
        // Arriving publishes what the shard did; leaving makes it see what all others did.
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < round * self.parties {
            shard.pause(LOOK_AGAIN_NS).await;
        }
    }
}

/// The first error of a run, which ends the run before its time.
#[derive(Default)]
pub(crate) struct FirstError {
    failed: AtomicBool,
    first: Mutex<Option<CliError>>,
}

impl FirstError {
    /// Records a failure of the run; only the first one counts.
    pub(crate) fn set(&self, error: CliError) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Release);
    }

    /// Tells whether the run has failed.
    pub(crate) fn is_set(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Takes the failure.
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
