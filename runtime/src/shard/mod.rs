//! Shards: one per core of a compute node. A shard owns its queue pairs, buffers, client pool, timers and mailboxes;
//! nothing of it is shared with another core but rings and wake-ups.
//!
//! ```text
//!   clients (futures in the pool)      tasks of the executor that runs the shard
//!        │ submit, wait                       │ submit, wait
//!        v                                    v
//!   +----------------------------- shard -----------------------------+
//!   | core: engine, clients, timers, mailboxes, ports, janitor        |
//!   +-----------------------------------------------------------------+
//!        ^ one turn of the driver: rings -> timers -> chains -> clients
//! ```
//!
//! - `core`: what a shard owns, and one turn of its work; `driver`: turns, spinning, and how long the shard may sleep;
//!   `pieces`: turns in pieces, for the simulator; `contract`: the fabric contract over the core.
//! - Parts of the core: `clients`, the client pool, and `client_pool`, the trait of shards that have one; `mesh`, rings
//!   to the other shards; `timers`, pauses; `parking`, waking a shard that sleeps.
//! - The end: `shutdown` decides on its steps, `closing` carries them out.
//! - Shared by the shards of a node: `roster`, their places; `port_book`, the ports that are leased.
//!
//! A shard knows nothing of the executor that runs it, of the node that puts it together, nor of the fabric that its
//! device belongs to.

mod client_pool;
mod clients;
mod closing;
mod contract;
mod core;
mod driver;
mod mesh;
mod parking;
#[cfg(feature = "sim")]
mod pieces;
mod port_book;
mod roster;
mod shutdown;
mod timers;

use std::future::Future;
use std::rc::Rc;

pub use self::client_pool::ClientPool;
use self::clients::Panic;
pub use self::clients::{JoinError, JoinHandle};
pub use self::closing::Abandoned;
pub use self::contract::Submission;
use self::core::Core;
pub(crate) use self::core::{Remains, ShardParts};
pub(crate) use self::driver::{Driver, Turn};
pub(crate) use self::mesh::{MeshEnds, RING_MESSAGES, mesh};
pub use self::parking::Unpark;
pub(crate) use self::port_book::PortBook;
pub(crate) use self::roster::{Membership, Roster, Taken};
pub use self::timers::Pause;
use crate::engine::Device;
use crate::message::ShardId;

/// A handle to a shard. Clones are cheap and stay on the shard's thread.
///
/// End a shard by [`Shard::close`]. Dropping handles waits for nothing, and so does less:
///
/// - When the last handle is dropped, the shard is closed. Nothing is left to be done then: clients, operations under
///   way and indexes that are attached have handles of their own, and keep the shard at work.
/// - So a shard with an attached index serves the node's other shards until its executor ends. After that their
///   operations that need it fail at once, with an error that says so (`LockError::ShardEnded`), and the node's id
///   is not used again ([`ComputeNode::abandoned`](crate::node::ComputeNode::abandoned)).
pub struct Shard<D: Device>(Rc<Core<D>>);

impl<D: Device> Shard<D> {
    /// Makes a shard, and the driver that takes its turns. Nothing moves without it.
    pub(crate) fn new(parts: ShardParts<D>) -> (Self, Driver<D>) {
        let core = Core::new(parts);
        let driver = Driver::new(Rc::clone(&core));
        (Shard(core), driver)
    }

    /// Yields the shard's place in its node.
    ///
    /// ```
    /// # use farwood_runtime::{ShardId, on_one_shard};
    /// # on_one_shard(async |shard| {
    /// assert_eq!(shard.id(), ShardId(0));
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn id(&self) -> ShardId {
        self.0.id
    }

    /// Runs `client` in the shard's own client pool: a persistent future that is polled directly when its chain is
    /// done, several times cheaper than a task of the executor. It goes on also if the handle is dropped, to its end or
    /// until the shard is closed.
    ///
    /// If it panics, the task that awaits the handle hears of it. If there is none, [`crate::ComputeNode::run`] ends
    /// with the panic, and [`Shard::close`] counts it.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..Default::default() })?;
    /// let sums = node.run(async |shard: Shard| {
    ///     let clients: Vec<_> = (0..100).map(|n| shard.spawn(async move { n })).collect();
    ///     futures::future::join_all(clients).await.into_iter().sum::<u64>()
    /// })?;
    /// assert_eq!(sums, [4950, 4950]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn spawn<T: 'static>(&self, client: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let core = Rc::downgrade(&self.0);
        let unheard = move |panic| {
            if let Some(core) = core.upgrade() {
                core.hear_of(panic);
            }
        };
        let (task, on_panic, handle) = JoinHandle::guarded(client, unheard);
        self.0.clients.spawn_guarded(task, on_panic);
        self.0.work_arrived();
        handle
    }

    /// Ends this shard's part in its node, and yields what it had to abandon. It gives clients that no task awaits
    /// [`NodeConfig::close_timeout`](crate::NodeConfig::close_timeout) to end, then drops them; waits for its janitor
    /// and for chains; and then until no shard of the node has anything to do for itself, for a shard is home to locks
    /// that clients of other shards wait for.
    ///
    /// [`crate::ComputeNode::run`] does it by itself; a service that attached its shards does it on each before its
    /// executors end ([`crate::run_executor`] has an example). Afterwards no actor listens on this shard any more.
    /// [`Shard`] says what becomes of a shard that is not closed.
    pub async fn close(self) -> Abandoned {
        self.end().await.0
    }

    /// Ends the shard as [`Shard::close`] does, and also yields the panic of a client that no task awaited.
    pub(crate) async fn end(self) -> (Abandoned, Option<Panic>) {
        closing::close(self).await
    }

    /// Waits until a client that no task awaits has panicked.
    pub(crate) async fn unheard_panic(&self) {
        self.0.unheard_panic().await;
    }

    pub(crate) fn remains(&self) -> Remains<D> {
        Remains::of(&self.0)
    }

    /// Counts actors that listen on this shard.
    ///
    /// ```
    /// # use farwood_runtime::{Port, Verbs, on_one_shard};
    /// # use std::rc::Rc;
    /// # on_one_shard(async |shard| {
    /// shard.listen(Port(0), Rc::new(|_from, _message| ()));
    /// assert_eq!(shard.actors(), 1);
    /// # Ok(()) }).unwrap();
    /// ```
    pub fn actors(&self) -> usize {
        self.0.ports.actors()
    }
}

impl<D: Device> Clone for Shard<D> {
    #[inline]
    fn clone(&self) -> Self {
        Shard(Rc::clone(&self.0))
    }
}

impl<D: Device> Drop for Shard<D> {
    #[inline]
    fn drop(&mut self) {
        // A shard that sleeps would not notice that this was its last handle.
        self.0.work_arrived();
    }
}
