//! The client pool of a shard, for code that runs clients on the shards of any fabric. Knows nothing of how they are
//! polled.

use std::future::Future;

use super::{JoinHandle, Shard};
use crate::engine::Device;
use crate::verbs::Verbs;

/// A shard that runs clients, and says what they have not given back yet.
pub trait ClientPool: Verbs {
    /// Runs `client` as one of the shard's clients, to its end also if the handle is dropped.
    fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T>;
    /// Counts the buffers on lease. When no operation runs and no value is held, there are none.
    fn buffers_leased(&self) -> usize;
    /// Counts the chains that were submitted and not executed yet.
    fn chains_in_flight(&self) -> usize;
    /// Counts the clients that have not ended, the janitor's tasks among them.
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
