//! Compute nodes: one process's view of a cluster, and the shards it consists of.
//!
//! Two ways in. [`ComputeNode::run`] starts one pinned executor per shard and runs a function on each. A service that
//! runs glommio executors already calls [`ComputeNode::attach`] on each of them instead.

mod downfall;

use std::any::Any;
use std::future::Future;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{Either, LocalBoxFuture, select};
use thiserror::Error;

use self::downfall::Downfall;
use crate::clock::{Clock, nanoseconds};
use crate::control::{Control, ControlError};
use crate::engine::Device;
use crate::epoch::NodeEpochs;
use crate::executor;
use crate::executor::{Borrowed, borrow};
use crate::fabric::{DeviceContext, DeviceError, Fabric};
use crate::message::{PortLease, ShardId};
pub use crate::node_context::NodeContext;
use crate::shard::{
    Abandoned, MeshEnds, PortBook, RING_MESSAGES, Remains, Roster, Shard, ShardParts, Taken, mesh,
};

/// The time between two looks of a shard that waits for the others to be attached.
const LOOK_EVERY: Duration = Duration::from_micros(500);

/// The time between two looks whether a closed shard is gone, and the number of looks.
const GONE_LOOK: Duration = Duration::from_micros(100);
const GONE_LOOKS: u32 = 50;

/// Lays out a compute node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Shards, one per executor, 1024 at most ([`NodeConfig::SHARDS_MAX`]); 0 means one per core of this machine.
    pub shards: usize,
    /// Chains in flight per queue pair; more wait in line.
    pub credits: NonZero<usize>,
    /// Time that an idle poller spins before it sleeps; twenty times as long while it waits for chains (on fabrics
    /// where it can sleep then).
    pub spin: Duration,
    /// Period at which a busy poller lets its executor's reactor run: the longest wait of the network and the timers of
    /// a service on the same executor. Each time takes 7 to 9 us. Zero leaves it to the executor's preemption timer
    /// (100 ms by default in glommio).
    pub reactor_interval: Duration,
    /// Time that a shard waits for the node's others to be attached. None works without them: each is home to locks
    /// that the others' clients wait for.
    pub attach_timeout: Duration,
    /// Time that clients that no task awaits may go on when their shard is closed. Then they are dropped.
    pub close_timeout: Duration,
    /// Seed of the shards' random generators (back-off jitter, eviction).
    pub seed: u64,
}

impl NodeConfig {
    /// The most shards of a compute node: every pair of them has rings of its own.
    pub const SHARDS_MAX: usize = 1024;
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig {
            shards: 0,
            credits: const { NonZero::new(4096).unwrap() },
            spin: Duration::from_micros(50),
            reactor_interval: Duration::from_micros(500),
            attach_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(1),
            seed: 1,
        }
    }
}

/// The reason why a node or one of its shards could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// A node of more shards than there can be.
    #[error("a compute node of {shards} shards is too large: {} are the most", NodeConfig::SHARDS_MAX)]
    #[expect(missing_docs, reason = "the message names the field")]
    TooManyShards { shards: usize },
    /// Every shard of the node has its executor already.
    #[error("all {shards} shards of this compute node are attached: make the node with more shards")]
    #[expect(missing_docs, reason = "the message names the field")]
    AllAttached { shards: usize },
    /// Other shards of the node were not attached in time.
    #[error(
        "{} of this compute node's {shards} shards {} not attached within {waited:?} (number {}): attach each of \
         them, on executors that run at the same time, or make the node with fewer shards",
        missing.len(), if missing.len() == 1 { "was" } else { "were" }, numbers(missing)
    )]
    #[expect(missing_docs, reason = "the message names the fields")]
    NotAttached { missing: Vec<ShardId>, shards: usize, waited: Duration },
    /// A shard was to be attached where no glommio executor runs.
    #[error(
        "a shard is attached on the glommio executor that it is to live on, and none runs on this thread"
    )]
    NoExecutor,
    /// glommio could not start an executor.
    #[error(
        "cannot start an executor: {cause}; it needs io_uring (Linux 5.8 or newer, not forbidden by a container's \
         seccomp profile) and 512 KiB of locked memory per shard (ulimit -l)"
    )]
    #[expect(missing_docs, reason = "the message names the field")]
    Executor { cause: String },
    /// The cluster did not take the node in, or has gone since.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A shard could not be given a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// One process's view of a cluster. Shared by its shards.
///
/// Its id goes back to the cluster when all its shards have ended well, or when the node is dropped before any of them
/// began. A node whose executors ended without [`Shard::close`] keeps its id: lock words may bear it.
pub struct ComputeNode<F: Fabric> {
    fabric: Arc<F>,
    id: u16,
    config: NodeConfig,
    clock: Clock,
    epochs: Arc<NodeEpochs>,
    roster: Arc<Roster>,
    ports: Arc<PortBook>,
}

impl<F: Fabric> ComputeNode<F> {
    /// Makes a node without attached shards, with an id that no other compute node of the cluster has.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    /// let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..NodeConfig::default() })?;
    /// assert_eq!(node.shards(), 2);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// If there cannot be such a node, or the cluster does not take it in.
    pub fn new(fabric: Arc<F>, mut config: NodeConfig) -> Result<Arc<Self>, NodeError> {
        if config.shards == 0 {
            config.shards = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        }
        if config.shards > NodeConfig::SHARDS_MAX {
            return Err(NodeError::TooManyShards { shards: config.shards });
        }
        let id = fabric.allocate_node_id()?;
        let epochs = Arc::new(NodeEpochs::new(config.shards));
        fabric.join_epochs(id, &epochs);
        let admitted_by = Arc::clone(&fabric);
        let ends = mesh(config.shards, RING_MESSAGES);
        let ports = PortBook::new(ends.iter().map(MeshEnds::unpark).collect());
        let roster = Roster::new(ends, move || admitted_by.release_node_id(id));
        Ok(Arc::new(ComputeNode { fabric, id, config, clock: Clock::new(), epochs, roster, ports }))
    }

    /// Counts the node's shards, attached or not.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = ComputeNode::new(cluster, NodeConfig { shards: 3, ..Default::default() })?;
    /// assert_eq!(node.shards(), 3);
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    pub fn shards(&self) -> usize {
        self.config.shards
    }

    /// Yields the node's id in its cluster, never 0.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let one = ComputeNode::new(cluster.clone(), NodeConfig::default())?;
    /// let other = ComputeNode::new(cluster, NodeConfig::default())?;
    /// assert_ne!(one.id(), other.id());
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Counts ports that are leased, or that actors still listen on.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, NodeContext};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// # let node = ComputeNode::new(cluster, NodeConfig::default())?;
    /// let lease = node.allocate_port();
    /// assert_eq!(node.ports_in_use(), 1);
    /// drop(lease);
    /// assert_eq!(node.ports_in_use(), 0);
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    pub fn ports_in_use(&self) -> usize {
        self.ports.in_use()
    }

    /// Yields the work that the shards that have ended so far had not done. The node's id is given to another only if
    /// no lock may be left that bears it ([`Abandoned::may_hold_locks`]).
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard};
    /// # use std::future::pending;
    /// # use std::time::Duration;
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let config = NodeConfig { shards: 1, close_timeout: Duration::ZERO, ..Default::default() };
    /// let node = ComputeNode::new(cluster, config)?;
    /// node.run(async |shard: Shard| drop(shard.spawn(pending::<()>())))?;
    /// assert_eq!(node.abandoned().clients, 1);
    /// # Ok::<_, farwood_runtime::NodeError>(())
    /// ```
    pub fn abandoned(&self) -> Abandoned {
        self.roster.abandoned()
    }

    /// Makes the next shard on the glommio executor that this runs on, waits until all shards of the node are attached,
    /// and starts this one's poller. The executor should have been begun by
    /// [`run_executor`](crate::executor::run_executor).
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, NodeError, run_executor};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..Default::default() })?;
    /// let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
    /// run_executor(&executor, async {
    ///     let shard = node.attach().await?;
    ///     assert!(matches!(node.attach().await, Err(NodeError::AllAttached { shards: 1 })));
    ///     shard.close().await;
    ///     Ok::<_, NodeError>(())
    /// })?;
    /// # Ok::<_, NodeError>(())
    /// ```
    ///
    /// # Errors
    /// When all shards are attached, the shard cannot be connected, others are not attached within
    /// [`NodeConfig::attach_timeout`], or no executor runs here. All but the first leave the shard to be attached
    /// again.
    pub async fn attach(&self) -> Result<Shard<F::Device>, NodeError> {
        if !executor::is_here() {
            return Err(NodeError::NoExecutor);
        }
        let taken = self.roster.take().ok_or(NodeError::AllAttached { shards: self.config.shards })?;
        let id = taken.ends().shard();
        let context = DeviceContext {
            shard: id,
            node_id: self.id,
            credits: self.config.credits,
            clock: self.clock.clone(),
            unpark: taken.ends().unpark(),
        };
        let device = self.fabric.device(&context)?;
        taken.attach();
        self.others(&taken).await;
        let (membership, ends) = taken.join().map_err(|missing| NodeError::NotAttached {
            missing,
            shards: self.config.shards,
            waited: self.config.attach_timeout,
        })?;
        let parts = ShardParts {
            id,
            node_id: self.id,
            control: self.control(),
            epochs: Arc::clone(&self.epochs),
            device,
            credits: self.config.credits,
            mesh: ends,
            ports: Arc::clone(&self.ports),
            membership,
            host: self.clock.clone(),
            seed: self.config.seed ^ (u64::from(id.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            spin_ns: nanoseconds(self.config.spin),
            close_ns: nanoseconds(self.config.close_timeout),
        };
        let (shard, driver) = Shard::new(parts);
        executor::run_shard(driver, nanoseconds(self.config.reactor_interval));
        Ok(shard)
    }

    /// Waits for the other shards, as long as they may take.
    async fn others(&self, taken: &Taken) {
        let deadline = self.clock.now().saturating_add(nanoseconds(self.config.attach_timeout));
        while !taken.is_complete() && self.clock.now() < deadline {
            executor::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts one executor per shard, pinned to cores of their own where there are enough, runs `main` on each with
    /// its shard, and waits for all of them. Yields what they returned, in the order of the shards. Every shard keeps
    /// working for the others until the last `main` has returned.
    ///
    /// Then the shards are closed ([`Shard::close`]). Tasks of glommio's that `main` left stand still; threads and
    /// executors are kept for nodes that run later, which such tasks may go on beside.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..Default::default() })?;
    /// let numbers = node.run(async |shard: Shard| shard.id().0)?;
    /// assert_eq!(numbers, [0, 1]);
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// If an executor could not be started, or the shards were attached before.
    ///
    /// # Panics
    /// If `main` panics on a shard, or a client that no task awaits does. The others' `main` are dropped then.
    pub fn run<M, R, T>(self: &Arc<Self>, main: M) -> Result<Vec<T>, NodeError>
    where
        M: Fn(Shard<F::Device>) -> R + Clone + Send + 'static,
        R: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.try_run(move |shard| main(shard).map(Ok))
    }

    /// Runs `main` on each shard as [`ComputeNode::run`] does, until one of them fails: then the others' `main` are
    /// dropped, all shards are closed, and the error is returned. Of several that fail before they hear of each other
    /// it is the error of the first shard.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Shard, Verbs};
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    /// # let node = ComputeNode::new(cluster, NodeConfig { shards: 2, ..Default::default() })?;
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    /// let ran = node.try_run(async |shard: Shard| match shard.id().0 {
    ///     0 => std::future::pending().await,
    ///     _ => Err::<(), Failure>("shard 1 does not like it".into()),
    /// });
    /// assert_eq!(ran.unwrap_err().to_string(), "shard 1 does not like it");
    /// # Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// As `main` has it, or if an executor could not be started, or the shards were attached before.
    ///
    /// # Panics
    /// As [`ComputeNode::run`] does.
    pub fn try_run<M, R, T, E>(self: &Arc<Self>, main: M) -> Result<Vec<T>, E>
    where
        M: Fn(Shard<F::Device>) -> R + Clone + Send + 'static,
        R: Future<Output = Result<T, E>> + 'static,
        T: Send + 'static,
        E: From<NodeError> + Send + 'static,
    {
        // The caller's types end here, so that what follows is compiled once for each fabric and not for each `main`.
        let works = std::iter::repeat_with(|| {
            let main = main.clone();
            let work = move |shard| main(shard).map(|end| end.map(packed).map_err(packed)).boxed_local();
            Box::new(work) as Work<F::Device>
        });
        match self.run_works(works.take(self.config.shards).collect()) {
            Ok(results) => Ok(results.into_iter().map(unpacked).collect()),
            Err(Failure::Main(error)) => Err(unpacked(error)),
            Err(Failure::Node(error)) => Err(error.into()),
            Err(Failure::Panic(panic)) => resume_unwind(panic),
        }
    }

    /// Runs one work on each shard; yields what they returned, in the order of the shards.
    fn run_works(self: &Arc<Self>, works: Vec<Work<F::Device>>) -> Result<Vec<Parcel>, Failure> {
        let downfall = Arc::new(Downfall::default());
        let start = |(place, work)| {
            let (node, heard) = (Arc::clone(self), Arc::clone(&downfall));
            borrow(place, Box::new(move || node.run_shard(heard, work).boxed_local())).map_err(|cause| {
                // Those that were started wait for this one.
                downfall.bring();
                Failure::Node(NodeError::Executor { cause })
            })
        };
        let places = executor::places(self.config.shards);
        let places = places.map_err(|cause| Failure::Node(NodeError::Executor { cause }))?;
        let started: Vec<_> = places.into_iter().zip(works).map(start).collect();
        let end =
            |shard: Result<Borrowed<_>, _>| shard?.join().unwrap_or_else(|panic| Err(Failure::Panic(panic)));
        outcome(started.into_iter().map(end).collect())
    }

    /// Runs a shard for its whole life, on this executor; yields nothing if another shard of the node failed. Also
    /// yields whether nothing of the shard is left.
    async fn run_shard(self: Arc<Self>, downfall: Arc<Downfall>, work: Work<F::Device>) -> (Ended, bool) {
        // Also if this very executor panics.
        let guard = downfall.unless_well();
        let shard = match select(pin!(self.attach()), pin!(downfall.has_come())).await {
            Either::Left((Ok(shard), _)) => shard,
            Either::Left((Err(error), _)) => return (Err(Failure::Node(error)), true),
            Either::Right(_) => return (Ok(None), true),
        };
        let id = shard.id();
        let mut ended = {
            let work = AssertUnwindSafe(async { work(shard.clone()).await }).catch_unwind();
            let (unheard, fallen) = (pin!(shard.unheard_panic()), pin!(downfall.has_come()));
            match select(pin!(work), select(unheard, fallen)).await {
                Either::Left((Ok(Ok(result)), _)) => Ok(Some((id, result))),
                Either::Left((Ok(Err(error)), _)) => Err(Failure::Main(error)),
                Either::Left((Err(panic), _)) => Err(Failure::Panic(panic)),
                Either::Right(_) => Ok(None),
            }
        };
        if !matches!(ended, Ok(Some(_))) {
            // Closing waits for the others.
            downfall.bring();
        }
        let remains = shard.remains();
        let (_, unheard) = shard.end().await;
        if let Some(panic) = unheard {
            ended = Err(Failure::Panic(panic));
        } else {
            guard.disarm();
        }
        (ended, are_gone(remains).await)
    }
}

/// Waits a little until nothing is left of a shard; false if something still is.
async fn are_gone<D: Device>(remains: Remains<D>) -> bool {
    for _ in 0..GONE_LOOKS {
        if remains.are_gone() {
            return true;
        }
        executor::sleep(GONE_LOOK).await;
    }
    false
}

/// A value of a type that the caller of [`ComputeNode::try_run`] knows.
type Parcel = Box<dyn Any + Send>;

/// The caller's `main` for one shard.
type Work<D> = Box<dyn FnOnce(Shard<D>) -> LocalBoxFuture<'static, Result<Parcel, Parcel>> + Send>;

/// The end of a shard; nothing if it ended because another one failed.
type Ended = Result<Option<(ShardId, Parcel)>, Failure>;

/// The reason why a shard did not end well.
enum Failure {
    Main(Parcel),
    Node(NodeError),
    Panic(Parcel),
}

fn packed<T: Send + 'static>(value: T) -> Parcel {
    Box::new(value)
}

fn unpacked<T: 'static>(parcel: Parcel) -> T {
    *parcel.downcast().expect("a parcel is unpacked where it was packed")
}

/// Yields the results in the order of the shards, or the first panic, or the first failure.
fn outcome(ends: Vec<Ended>) -> Result<Vec<Parcel>, Failure> {
    let (mut results, mut failed, mut panicked) = (Vec::new(), None, None);
    for end in ends {
        match end {
            Ok(result) => results.extend(result),
            Err(Failure::Panic(panic)) => panicked = panicked.or(Some(panic)),
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    if let Some(failure) = panicked.map(Failure::Panic).or(failed) {
        return Err(failure);
    }
    results.sort_by_key(|(id, _)| *id);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

fn numbers(shards: &[ShardId]) -> String {
    shards.iter().map(|shard| shard.0.to_string()).collect::<Vec<_>>().join(", ")
}

impl<F: Fabric> NodeContext for ComputeNode<F> {
    fn control(&self) -> Arc<dyn Control> {
        self.fabric.control()
    }

    fn allocate_port(&self) -> PortLease {
        self.ports.lease()
    }

    fn seed(&self) -> u64 {
        self.config.seed
    }
}
