//! Steps of an operation: what it does next after it has read a node, as a value; and the budget that bounds them.
//! Pure: decided without I/O, tested without a fabric. Contention and torn reads end here.

use farwood_runtime::{Chain, Failed, Meter, RemotePtr};

use crate::error::AccessError;
use crate::layout::Rejection;

/// Next step after reading a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// The node answers.
    Done(T),
    /// The key belongs to the right neighbour: it was split off.
    MoveRight(RemotePtr),
    /// The bytes do not fit together: read the same node again.
    Reread(Option<Rejection>),
    /// The pointer that led here was wrong: start from the root.
    Restart(Option<Rejection>),
}

impl<T> Step<T> {
    /// Yields the step that a rejected image calls for.
    pub(crate) fn after(rejection: Rejection) -> Self {
        match rejection {
            Rejection::Torn | Rejection::Slow | Rejection::Malformed(_) => Step::Reread(Some(rejection)),
            Rejection::Freed
            | Rejection::Frozen
            | Rejection::WrongKind { .. }
            | Rejection::NotANode { .. } => Step::Restart(Some(rejection)),
        }
    }
}

/// Retries that one operation may spend.
#[derive(Debug)]
pub struct Budget {
    max: u32,
    spent: u32,
    moves_right: u32,
    freed: u32,
}

impl Budget {
    pub(crate) fn new(max: u32) -> Self {
        Budget { max, spent: 0, moves_right: 0, freed: 0 }
    }

    /// Spends one retry at `node`.
    ///
    /// ```
    /// # use farwood_index::shell::{Algorithm, Local};
    /// # use farwood_index::*;
    /// # use farwood_runtime::*;
    /// async fn await_value<A: Algorithm, V: Verbs>(local: &Local<A, V>, at: RemotePtr) -> Result<Buf, AccessError> {
    ///     let (meter, mut budget) = (Meter::default(), local.budget());
    ///     loop {
    ///         let word = local.verbs.read(&meter, at, 8).await?.into_buf();
    ///         if word[..8] != [0; 8] {
    ///             return Ok(word);
    ///         }
    ///         budget.spend(&meter, at, None)?;
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`AccessError::RetriesExhausted`] with what was wrong last.
    pub fn spend(
        &mut self,
        meter: &Meter,
        node: RemotePtr,
        last: Option<Rejection>,
    ) -> Result<(), AccessError> {
        meter.retry();
        if last == Some(Rejection::Torn) {
            tracing::debug!(name: "index.torn", %node, "a READ met a write: it is done again");
        }
        self.spent += 1;
        if self.spent > self.max {
            return Err(AccessError::RetriesExhausted { node, retries: self.spent - 1, last });
        }
        Ok(())
    }

    /// Yields the chain to post again after one to `node` failed that leaves nothing half done, or whose result tells
    /// what it did before. Spends a retry.
    ///
    /// ```
    /// # use farwood_index::shell::{Algorithm, Local};
    /// # use farwood_index::*;
    /// # use farwood_runtime::*;
    /// async fn read<A: Algorithm, V: Verbs>(local: &Local<A, V>, at: RemotePtr) -> Result<Buf, AccessError> {
    ///     let (meter, mut budget) = (Meter::default(), local.budget());
    ///     let mut posted = local.verbs.read(&meter, at, 8);
    ///     loop {
    ///         match posted.await {
    ///             Ok(done) => return Ok(done.into_buf()),
    ///             Err(failed) => posted = local.verbs.submit(&meter, budget.post_again(&meter, at, failed)?),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The cause, if asking again does not help or the budget is spent.
    #[cold]
    pub fn post_again(
        &mut self,
        meter: &Meter,
        node: RemotePtr,
        failed: Failed,
    ) -> Result<Chain, AccessError> {
        tracing::debug!(name: "index.failed", %node, cause = %failed, "a chain failed");
        if failed.cause().is_passing() && self.spend(meter, node, None).is_ok() {
            return Ok(failed.into_parts().1);
        }
        Err(failed.into())
    }

    /// Counts a step from a leaf to its right neighbour; yields the number of such steps.
    pub(crate) fn count_move_right(&mut self) -> u32 {
        self.moves_right += 1;
        self.moves_right
    }

    /// Counts a leaf that was met and that is gone; yields the number of such leaves.
    pub(crate) fn count_freed(&mut self) -> u32 {
        self.freed += 1;
        self.freed
    }

    /// Counts the retries that were spent.
    pub(crate) fn spent(&self) -> u32 {
        self.spent
    }
}

/// Consecutive READs of a reader that took longer than versions cover.
///
/// Where latency is that of a queue, reading again at once makes the queue longer: all readers whose READs are too slow
/// post more of them. So only the first slow READ is taken for chance (a core that was taken away); after that the
/// reader pauses, longer each time, which shortens the queue. In the end it takes the lock.
#[derive(Debug, Default)]
pub(crate) struct SlowReads(u32);

impl SlowReads {
    const MAX: u32 = 6;

    /// Makes the count of a reader with several READs under way, which is a part of the queue itself: it pauses from
    /// the first slow READ on.
    pub(crate) fn in_a_window() -> Self {
        SlowReads(1)
    }

    /// Counts another slow READ; yields the pause before the next one, as a multiple of the time that versions cover,
    /// or none if there should be no next.
    pub(crate) fn another(&mut self) -> Option<u64> {
        self.0 += 1;
        match self.0 {
            1 => Some(0),
            2..Self::MAX => Some(1 << self.0),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Kind;

    #[test]
    fn slow_reads_are_paced_and_end() {
        let mut slow = SlowReads::default();
        let pauses: Vec<_> = std::iter::from_fn(|| slow.another()).collect();
        assert_eq!(pauses, [0, 4, 8, 16, 32]);
        assert_eq!((slow.another(), SlowReads::in_a_window().another()), (None, Some(4)));
    }

    #[test]
    fn rejected_images_are_read_again_or_left() {
        assert_eq!(Step::<()>::after(Rejection::Torn), Step::Reread(Some(Rejection::Torn)));
        let wrong = Rejection::WrongKind { found: Kind::Inner };
        assert_eq!(Step::<()>::after(wrong), Step::Restart(Some(wrong)));
    }

    #[test]
    fn a_budget_ends_with_context() {
        let meter = Meter::default();
        let mut budget = Budget::new(2);
        let node = RemotePtr::from_bits(64);
        assert!(budget.spend(&meter, node, None).is_ok() && budget.spend(&meter, node, None).is_ok());
        let error = budget.spend(&meter, node, Some(Rejection::Torn)).unwrap_err();
        assert_eq!(error, AccessError::RetriesExhausted { node, retries: 2, last: Some(Rejection::Torn) });
        assert_eq!(meter.usage().retries, 3);
    }
}
