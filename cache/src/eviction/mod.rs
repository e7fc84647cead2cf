//! Eviction: which level-1 node leaves when the budget is full. One policy per file; the tests that every
//! policy must pass are in `test_kit`.
//!
//! Policies run under the cache's writer lock, never on a lookup. They see the cache through [`Cached`], so
//! that they are tested without one, and take their randomness from the configured seed.

mod fifo;
#[cfg(test)]
mod test_kit;
mod two_choices;

/// The rule by which the cache chooses the node that makes room for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// Of two nodes picked at random, the one that was used less recently (Sherman, section 4.2.3).
    #[default]
    TwoChoices,
    /// The one that has been in the cache for the longest time. Costs about 40 bytes per node for its queue.
    Fifo,
}

impl Policy {
    pub(crate) fn start(self, seed: u64) -> Box<dyn Eviction> {
        match self {
            Policy::TwoChoices => Box::new(two_choices::TwoChoices::new(seed)),
            Policy::Fifo => Box::new(fifo::Fifo::default()),
        }
    }
}

/// A node's position in the current directory of its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) chunk: usize,
    pub(crate) slot: usize,
}

/// A node that might go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) place: Place,
    /// Epochs since its last use.
    pub(crate) idle: u32,
}

/// The nodes that may be evicted.
pub(crate) trait Cached {
    /// Yields a node, each with the same probability for a random number, or none: then another number may
    /// find one.
    fn sample(&self, random: u64) -> Option<Candidate>;

    /// Yields the first node, if there is any.
    fn first(&self) -> Option<Candidate>;

    /// Finds the node that begins at `low` and came with insertion number `born`, if it is still there.
    fn find(&self, low: &[u8], born: u32) -> Option<Place>;
}

/// An eviction policy and what it remembers.
pub(crate) trait Eviction: Send {
    /// Notes that a node that begins at `low` came in. `nodes` are in the cache now.
    fn inserted(&mut self, low: &[u8], born: u32, cached: &dyn Cached, nodes: usize);

    /// Chooses the node that should go. None if it finds none, which the caller takes as an empty cache.
    fn victim(&mut self, cached: &dyn Cached) -> Option<Place>;

    /// Notes that everything was thrown away.
    fn cleared(&mut self);

    /// Counts the bytes that the policy takes, for the budget.
    fn bytes(&self) -> usize;
}
