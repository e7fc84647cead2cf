//! Futures that are dropped on the way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// When a cancelled future is dropped, after so many polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drops {
    /// Right after its last poll: what it posted is still under way.
    AtOnce,
    /// When it would be polled again: what it waited for has come.
    WhenWoken,
}

/// Polls `future` up to `polls` times; `None` if it was dropped unfinished.
pub(crate) fn after_polls<F: Future>(future: F, polls: usize, drops: Drops) -> Cancelled<F> {
    Cancelled { future: Some(Box::pin(future)), polls, drops }
}

pub(crate) struct Cancelled<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
    drops: Drops,
}

impl<F: Future> Future for Cancelled<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let future = this.future.as_mut().expect("polled after it was ready");
        if this.polls > 0 {
            this.polls -= 1;
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if this.polls > 0 || this.drops == Drops::WhenWoken {
                return Poll::Pending;
            }
        }
        this.future = None;
        Poll::Ready(None)
    }
}
