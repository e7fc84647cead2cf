//! The client pool of a shard, for code that runs clients on the shards of any fabric. Knows nothing of how they are
//! polled.

use std::future::Future;

use super::{JoinHandle, Shard};
use crate::engine::Device;
use crate::verbs::Verbs;

/// A shard that runs clients, and says what they have not given back yet.
pub trait ClientPool: Verbs {
    /// Runs `client` as one of the shard's clients, to its end also if the handle is dropped.
    ///
    /// ```
    /// # use farwood_runtime::{ClientPool, on_one_shard};
    /// async fn twice_in_a_client<S: ClientPool>(shard: &S, n: u64) -> u64 {
    ///     shard.spawn(async move { 2 * n }).await
    /// }
    /// # on_one_shard(async |shard| {
    /// assert_eq!(twice_in_a_client(&shard, 21).await, 42);
    /// # Ok(()) }).unwrap();
    /// ```
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T>;

    /// Counts the buffers on lease. When no operation runs and no value is held, there are none.
    ///
    /// ```
    /// # use farwood_runtime::{ClientPool, Verbs, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let buf = shard.lease(64);
    /// assert_eq!(shard.buffers_leased(), 1);
    /// drop(buf);
    /// assert_eq!(shard.buffers_leased(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    fn buffers_leased(&self) -> usize;

    /// Counts the chains that were submitted and not executed yet.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # on_one_shard(async |shard| {
    /// # let at = shard.control().chunk(ServerId(0), IndexId(1)).await?.start;
    /// let read = shard.read(&Meter::default(), at, 64);
    /// assert_eq!(shard.chains_in_flight(), 1);
    /// read.await?;
    /// assert_eq!(shard.chains_in_flight(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    fn chains_in_flight(&self) -> usize;

    /// Counts the clients that have not ended, the janitor's tasks among them.
    ///
    /// ```
    /// # use farwood_runtime::{ClientPool, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// let client = shard.spawn(async {});
    /// assert_eq!(shard.clients_alive(), 1);
    /// client.await;
    /// assert_eq!(shard.clients_alive(), 0);
    /// # Ok(()) }).unwrap();
    /// ```
    fn clients_alive(&self) -> usize;
}

impl<D: Device> ClientPool for Shard<D> {
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        Shard::spawn(self, client)
    }

    fn buffers_leased(&self) -> usize {
        self.0.buffers.leased()
    }

    fn chains_in_flight(&self) -> usize {
        self.0.engine.borrow().in_flight()
    }

    fn clients_alive(&self) -> usize {
        self.0.clients.alive()
    }
}
