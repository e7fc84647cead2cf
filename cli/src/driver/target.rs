//! The thing that is measured: an index, the locks, or the bare fabric. One seam, so that phases, pace and progress are
//! the same for all.

use std::rc::Rc;

use futures::future::LocalBoxFuture;

use crate::driver::counters::Counters;
use crate::driver::pace::{Pace, Start};
use crate::driver::recorder::Recorder;
use crate::error::CliError;
use crate::report::MemoryFigures;

/// Access to the thing that is measured, from one shard `V`.
pub(crate) trait BenchTarget<V> {
    /// A logical client.
    type Client: Client;

    /// Fills the target before the run, or begins to, if the run is cut short. Yields how many keys it loaded. Called
    /// on the first shard only, while the others wait.
    fn load<'a>(&'a self, recorder: &'a Recorder<V>) -> LocalBoxFuture<'a, Result<u64, CliError>>;

    /// Makes the client with that number (of the whole node), for one phase.
    fn client(&self, number: u32, seed: u64, pace: &Rc<Pace>, recorder: &Rc<Recorder<V>>) -> Self::Client;

    /// Returns the counters so far.
    fn counters(&self) -> Counters;

    /// Surveys what the target occupies on the memory servers. Called on the first shard only, at rest.
    fn survey(&self) -> LocalBoxFuture<'_, Result<MemoryFigures, CliError>>;
}

/// A logical client: one operation after the other.
pub(crate) trait Client: 'static {
    /// Does the next operation. An error ends the run.
    async fn step(&mut self, start: Start) -> Result<(), CliError>;

    /// Notes that the last operation was dropped before it had ended.
    fn abandoned(&mut self) {}
}
