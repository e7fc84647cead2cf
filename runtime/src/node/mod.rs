//! Compute nodes: one process's view of a cluster, and the shards it consists of.
//!
//! Two ways in. [`ComputeNode::run`] starts one pinned executor per shard and runs a function on each. A service that
//! runs glommio executors already calls [`ComputeNode::attach`] on each of them instead.

use std::future::Future;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use thiserror::Error;

use crate::clock::Clock;
use crate::control::{Control, ControlError};
use crate::executor::run_executor;
use crate::fabric::{Fabric, Seat};
use crate::memory::Cluster;
use crate::message::{Port, ShardId};
use crate::shard::{MeshEnds, Shard, ShardParts, mesh};

/// Shorter timers lose wake-ups (see [`crate::shard`]'s poller); longer ones delay other executors' wake-ups.
const PREEMPT_TIMER: Duration = Duration::from_millis(10);

/// How often a shard that waits for the others to be attached looks.
const MUSTER_POLL: Duration = Duration::from_micros(100);

/// A compute node as a whole, as an index needs it when it is opened.
pub trait Host {
    /// The memory servers' control services.
    fn control(&self) -> Arc<dyn Control>;
    /// A port that no other actor of the node uses.
    fn allocate_port(&self) -> Port;
    /// The seed that the node was made with.
    fn seed(&self) -> u64;
}

/// How a compute node is laid out.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Shards, one per executor; 0 means one per core of this machine.
    pub shards: usize,
    /// Chains in flight per queue pair; more wait in line.
    pub credits: usize,
    /// How long an idle poller spins before it parks, in microseconds; twenty times as long while it waits for chains
    /// (on fabrics where it can sleep then).
    pub spin_us: u64,
    /// How often a busy poller lets its executor's reactor run, in microseconds: how long the network and the timers
    /// of a service on the same executor may wait. Each time takes 7 to 9 us. 0 leaves it to the executor's preemption
    /// timer (100 ms by default in glommio).
    pub reactor_us: u64,
    /// Seed of the shards' random generators (back-off jitter, eviction).
    pub seed: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        NodeConfig { shards: 0, credits: 4096, spin_us: 50, reactor_us: 500, seed: 1 }
    }
}

/// Why a node or one of its shards could not be started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// Every shard of the node has its executor already.
    #[error("all {shards} shards of this compute node are attached: make the node with more shards")]
    #[expect(missing_docs, reason = "the message names the field")]
    AllAttached { shards: usize },
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
    #[error("{0}")]
    Device(String),
}

/// One process's view of a cluster. Shared by its shards.
pub struct ComputeNode<F: Fabric = Cluster> {
    fabric: Arc<F>,
    id: Result<u16, ControlError>,
    config: NodeConfig,
    clock: Clock,
    /// The ends of the mesh that no shard has taken yet.
    unattached: Mutex<Vec<MeshEnds>>,
    ports: AtomicU16,
    closed: Arc<AtomicUsize>,
}

impl<F: Fabric> ComputeNode<F> {
    /// A node without attached shards. If the cluster does not take it in, attaching and running say why.
    pub fn new(fabric: Arc<F>, mut config: NodeConfig) -> Arc<Self> {
        if config.shards == 0 {
            config.shards = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        }
        let mut unattached = mesh(config.shards);
        unattached.reverse();
        let id = fabric.admit();
        Arc::new(ComputeNode {
            fabric,
            id,
            config,
            clock: Clock::new(),
            unattached: Mutex::new(unattached),
            ports: AtomicU16::new(0),
            closed: Arc::default(),
        })
    }

    /// How many shards the node has, attached or not.
    pub fn shards(&self) -> usize {
        self.config.shards
    }

    /// The node's id in its cluster, never 0.
    ///
    /// # Errors
    /// If the cluster did not take the node in.
    pub fn id(&self) -> Result<u16, NodeError> {
        Ok(self.id.clone()?)
    }

    /// Makes the next shard on the glommio executor that this runs on, and starts its poller there. The executor should
    /// have been begun by [`run_executor`].
    ///
    /// # Errors
    /// When all shards are attached, or the shard cannot be connected.
    ///
    /// # Panics
    /// Outside a glommio executor, as everything of glommio does.
    pub fn attach(&self) -> Result<Shard<F::Device>, NodeError> {
        let node_id = self.id()?;
        let ends = self.unattached.lock().expect("nothing panics while it takes a shard").pop();
        let ends = ends.ok_or(NodeError::AllAttached { shards: self.config.shards })?;
        let id = ends.shard();
        let seat = Seat {
            shard: id,
            node_id,
            credits: self.config.credits,
            clock: self.clock.clone(),
            unpark: ends.unpark(),
        };
        let parts = ShardParts {
            id,
            node_id,
            control: self.control(),
            device: self.fabric.device(&seat)?,
            credits: self.config.credits,
            mesh: ends,
            closed: Arc::clone(&self.closed),
            clock: self.clock.clone(),
            seed: self.config.seed ^ (u64::from(id.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            spin_ns: self.config.spin_us * 1000,
            reactor_ns: self.config.reactor_us * 1000,
        };
        Ok(Shard::start(parts))
    }

    /// Starts one executor per shard, pinned to cores of their own where there are enough, runs `main` on each with
    /// its shard, and waits for all of them. Yields what they returned, in the order of the shards. Every shard keeps
    /// working for the others until the last `main` has returned.
    ///
    /// # Errors
    /// If an executor could not be started, or the shards were attached before.
    ///
    /// # Panics
    /// If `main` panics on a shard.
    pub fn run<M, R, T>(self: &Arc<Self>, main: M) -> Result<Vec<T>, NodeError>
    where
        M: Fn(Shard<F::Device>) -> R + Clone + Send + 'static,
        R: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let muster = Arc::new(Muster::new(self.config.shards));
        let mut threads = Vec::with_capacity(self.config.shards);
        for (number, placement) in self.placements()?.into_iter().enumerate() {
            let (node, main, expected) = (Arc::clone(self), main.clone(), muster.expect());
            let thread = std::thread::Builder::new().name(format!("farwood-{number}"));
            let started = thread.spawn(move || node.run_shard(placement, expected, main));
            threads.push(started.map_err(executor_error));
        }
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.map(JoinHandle::join)).collect();
        let mut results: Vec<(ShardId, T)> = Vec::with_capacity(self.config.shards);
        let mut failed = None;
        for end in ends {
            match end.map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))) {
                Ok(Ok(result)) => results.extend(result),
                Ok(Err(error)) | Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        // Every shard was closed, janitor and all.
        self.fabric.ended();
        results.sort_by_key(|(id, _)| *id);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    /// Where the executors run: on cores of their own, as far from each other as can be, or anywhere if there are too
    /// few.
    fn placements(&self) -> Result<Vec<Placement>, NodeError> {
        let shards = self.config.shards;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        if shards > cores {
            return Ok(vec![Placement::Unbound; shards]);
        }
        let mut cores = PoolPlacement::MaxSpread(shards, None).generate_cpu_set().map_err(executor_error)?;
        let core = |_| cores.next().next().map_or(Placement::Unbound, |core| Placement::Fixed(core.cpu));
        Ok((0..shards).map(core).collect())
    }

    /// The whole life of an executor and its shard, on this thread. None if another shard of the node failed.
    fn run_shard<M, R, T>(
        self: Arc<Self>,
        placement: Placement,
        expected: Expected,
        main: M,
    ) -> Result<Option<(ShardId, T)>, NodeError>
    where
        M: Fn(Shard<F::Device>) -> R,
        R: Future<Output = T>,
    {
        let executor = LocalExecutorBuilder::new(placement).preempt_timer(PREEMPT_TIMER).make();
        let executor = executor.map_err(executor_error)?;
        run_executor(&executor, async {
            let shard = self.attach()?;
            if !expected.all_are_well().await {
                return Ok(None);
            }
            let id = shard.id();
            let leave = shard.leave_on_drop();
            let result = main(shard.clone()).await;
            shard.close_with(leave).await;
            Ok(Some((id, result)))
        })
    }
}

/// Shards that wait for each other before any of them begins: the others' messages to one that never came would stay
/// unanswered.
struct Muster {
    shards: usize,
    arrived: AtomicUsize,
    failed: AtomicUsize,
}

impl Muster {
    fn new(shards: usize) -> Self {
        Muster { shards, arrived: AtomicUsize::new(0), failed: AtomicUsize::new(0) }
    }

    /// A shard that the others wait for.
    fn expect(self: &Arc<Self>) -> Expected {
        Expected { muster: Arc::clone(self), is_well: false }
    }
}

/// A shard that the others wait for. One that is dropped before it was well has failed.
struct Expected {
    muster: Arc<Muster>,
    is_well: bool,
}

impl Expected {
    /// This one is well. Waits for the others; yields whether every one of them is.
    async fn all_are_well(mut self) -> bool {
        self.is_well = true;
        let muster = Arc::clone(&self.muster);
        drop(self);
        while muster.arrived.load(Ordering::Acquire) < muster.shards {
            glommio::timer::sleep(MUSTER_POLL).await;
        }
        muster.failed.load(Ordering::Acquire) == 0
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.is_well {
            self.muster.failed.fetch_add(1, Ordering::AcqRel);
        }
        self.muster.arrived.fetch_add(1, Ordering::AcqRel);
    }
}

fn executor_error(cause: impl std::fmt::Display) -> NodeError {
    NodeError::Executor { cause: cause.to_string() }
}

impl<F: Fabric> Host for ComputeNode<F> {
    fn control(&self) -> Arc<dyn Control> {
        self.fabric.control()
    }

    fn allocate_port(&self) -> Port {
        Port(self.ports.fetch_add(1, Ordering::Relaxed))
    }

    fn seed(&self) -> u64 {
        self.config.seed
    }
}

impl<H: Host + ?Sized> Host for Arc<H> {
    fn control(&self) -> Arc<dyn Control> {
        (**self).control()
    }

    fn allocate_port(&self) -> Port {
        (**self).allocate_port()
    }

    fn seed(&self) -> u64 {
        (**self).seed()
    }
}
