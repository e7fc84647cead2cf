//! Ends all shards of a run when one of them fails. It does not know the reason.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A failure of one shard that the others hear of.
#[derive(Default)]
pub(super) struct Downfall(Mutex<State>);

#[derive(Default)]
struct State {
    has_come: bool,
    waiting: Vec<Waker>,
}

impl Downfall {
    pub(super) fn bring(&self) {
        let waiting = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.has_come = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until the downfall has come.
    pub(super) async fn has_come(&self) {
        poll_fn(|cx| {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.has_come {
                return Poll::Ready(());
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Makes a guard that brings the downfall when it is dropped, unless all has gone well by then.
    pub(super) fn unless_well(&self) -> UnlessWell<'_> {
        UnlessWell { downfall: self, is_well: false }
    }
}

/// See [`Downfall::unless_well`].
pub(super) struct UnlessWell<'a> {
    downfall: &'a Downfall,
    is_well: bool,
}

impl UnlessWell<'_> {
    pub(super) fn disarm(mut self) {
        self.is_well = true;
    }
}

impl Drop for UnlessWell<'_> {
    fn drop(&mut self) {
        if !self.is_well {
            self.downfall.bring();
        }
    }
}
