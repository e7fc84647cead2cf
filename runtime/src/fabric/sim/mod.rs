//! The simulated fabric: compute nodes, memory servers and their NICs in one thread and in virtual time, for the very
//! code that runs on real ones.
//!
//! One seed determines everything that happens; the same seed gives the same [`Simulation::trace_hash`]. The fabric
//! does whatever the contract ([`crate::verbs`]) allows and nothing that it forbids; a model of the NICs says when.
//!
//! - `profile`: what NICs and cores cost, with sources; `rules`: how far verbs reorder, and which faults strike.
//! - `world`: the loop over `events`, from one to the next. `fabric`: a verb's way through the `nic`s; `flight`: what
//!   is on its way. `host_core`: the runner of a shard, in virtual time; `shard`: the shard's device and host.
//!   `control`: the memory servers' control services. `trace`: what happened.

mod control;
mod events;
mod fabric;
#[cfg(test)]
mod figures;
mod flight;
mod host_core;
mod nic;
mod profile;
mod rules;
mod shard;
mod trace;
mod world;

use std::cell::RefCell;
use std::future::Future;
use std::iter;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::Arc;

use self::control::SimControl;
use self::fabric::Fabric;
use self::host_core::HostCore;
pub use self::profile::Profile;
pub use self::rules::{Fault, FaultMix, Reordering, Rule};
pub use self::shard::{SimDevice, SimHost, SimShard};
use self::trace::Mark;
use self::world::World;
use crate::control::Control;
use crate::epoch::NodeEpochs;
use crate::fabric::Fabric as _;
use crate::fabric::embedded::{Cluster, EmbeddedConfig};
use crate::mapped::line::LineMode;
use crate::memory::ClusterError;
use crate::message::{PortLease, ShardId};
use crate::node_context::NodeContext;
use crate::shard::{MeshEnds, PortBook, Roster, Shard, ShardParts, Taken, mesh};
use crate::verbs::Capabilities;

/// Configuration of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Determines everything.
    pub seed: u64,
    /// Costs of NICs and cores.
    pub profile: Profile,
    /// Extent to which the fabric uses its freedom.
    pub reordering: Reordering,
    /// Compute nodes.
    pub nodes: u16,
    /// Shards per compute node, each with a core of its own.
    pub shards: u16,
    /// Memory servers.
    pub servers: u16,
    /// Set if memory server and compute node of the same number share a machine and its NIC.
    pub colocated: bool,
    /// Bytes of each server's region.
    pub bytes_per_server: u64,
    /// Lock words per server in host memory. On-chip memory has as many as fit.
    pub locks_per_server: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chains in flight per queue pair.
    pub credits: NonZero<usize>,
    /// Set if control services take a few turns to answer.
    pub slow_control: bool,
    /// Set if the NICs ignore fences, as none does: for tests that show what a fence is needed for.
    pub ignores_fences: bool,
    /// Set if a core goes on with any of its ready clients, rather than with the one that has been ready for longest.
    pub any_order: bool,
    /// Set if compute nodes that have stopped are found out: their queue pairs are cut after [`FENCED_AFTER_NS`], and
    /// the control services say that they are dead after [`DEAD_AFTER_NS`].
    pub finds_deaths: bool,
}

/// The time after which nothing of a stopped compute node takes effect any more, where that is found out, in ns.
pub const FENCED_AFTER_NS: u64 = 200_000;
/// The time after which the control services say so, in ns.
pub const DEAD_AFTER_NS: u64 = 400_000;
/// Time that clients may go on when their shard is closed.
const CLOSE_NS: u64 = 1_000_000_000;
/// Messages that a ring between two shards has room for: few, so that rings overflow.
const RING_MESSAGES: usize = 8;

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            seed: 1,
            profile: Profile::CONNECTX5,
            reordering: Reordering::NONE,
            nodes: 1,
            shards: 1,
            servers: 1,
            colocated: false,
            bytes_per_server: 1 << 30,
            locks_per_server: 131_072,
            chunk_bytes: 8 << 20,
            credits: const { NonZero::new(4096).unwrap() },
            slow_control: false,
            ignores_fences: false,
            any_order: false,
            finds_deaths: false,
        }
    }
}

/// A simulated cluster. Dropping it drops all clients that have not ended.
pub struct Simulation {
    config: SimConfig,
    world: Rc<World>,
    cluster: Arc<Cluster>,
    control: Arc<SimControl>,
    nodes: RefCell<Vec<Rc<SimNode>>>,
}

/// Why a simulation came to a stop before what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing is left to happen: a client that still waits, waits forever.
    Idle,
    /// The time that was given is over.
    Late,
}

impl Simulation {
    /// Makes a cluster at rest, its memory zeroed.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 3, ..Default::default() })?;
    /// assert_eq!((simulation.nodes(), simulation.now()), (3, 0));
    /// # Ok::<_, farwood_runtime::memory::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// If the configuration makes no sense, or the system refuses the memory.
    pub fn new(config: &SimConfig) -> Result<Self, ClusterError> {
        if config.nodes == 0 || config.shards == 0 {
            return Err(ClusterError::Config(
                "a simulation needs at least one compute node and one shard".into(),
            ));
        }
        let cluster = Cluster::embedded(EmbeddedConfig {
            servers: config.servers,
            bytes_per_server: config.bytes_per_server,
            locks_per_server: config.locks_per_server,
            device_bytes: config.profile.device_bytes,
            chunk_bytes: config.chunk_bytes,
            line_mode: LineMode::Plain,
        })?;
        let server_machines: Vec<u16> = (0..config.servers).collect();
        let mut fabric = Fabric::new(
            mixed(config.seed, 1),
            config.profile,
            config.reordering,
            Arc::clone(&cluster),
            server_machines,
        );
        fabric.ignores_fences = config.ignores_fences;
        let first_machine = if config.colocated { 0 } else { config.servers };
        let machines = config.servers.max(first_machine + config.nodes);
        let cores = usize::from(config.nodes) * usize::from(config.shards);
        fabric.provide(machines.into(), cores * usize::from(config.servers));
        let late = Arc::default();
        let control = SimControl::new(Arc::clone(&cluster), config, Arc::clone(&late));
        let simulation = Simulation {
            config: config.clone(),
            world: World::new(fabric, late, config.finds_deaths.then(|| Arc::clone(&cluster))),
            cluster,
            control: Arc::new(control),
            nodes: RefCell::default(),
        };
        (0..config.nodes).for_each(|node| simulation.admit(first_machine + node));
        Ok(simulation)
    }

    /// Adds a compute node, with an id of its own: on the machine of another, whose id and clients it knows nothing
    /// of, or on a new one. Yields its place.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let place = simulation.add_node(Some(0)); // On the machine of the first.
    /// assert_eq!((place, simulation.nodes()), (1, 2));
    /// ```
    pub fn add_node(&self, beside: Option<u16>) -> u16 {
        let machine = match beside {
            Some(node) => self.node(node).machine,
            None => self.world.fabric.borrow().machines() as u16,
        };
        let place = self.nodes();
        let cores = usize::from(place + 1) * usize::from(self.config.shards);
        let machines = usize::from(machine) + 1;
        self.world.fabric.borrow_mut().provide(machines, cores * usize::from(self.config.servers));
        self.admit(machine);
        place
    }

    fn admit(&self, machine: u16) {
        let SimConfig { shards, credits, any_order, ref profile, reordering, seed, .. } = self.config;
        let node_id = self.cluster.allocate_node_id().expect("a simulation has fewer than 65,536 nodes");
        let epochs = Arc::new(NodeEpochs::new(usize::from(shards)));
        self.cluster.join_epochs(node_id, &epochs);
        let control = Arc::clone(&self.control) as Arc<dyn Control>;
        let capabilities = Capabilities {
            fabric: "sim",
            in_order_write: reordering.in_order_write,
            atomic_writes: true,
            masked_atomic: true,
            device_memory: profile.device_bytes as usize,
            write_interval_ns: profile.write_interval_ns,
        };
        let node = self.nodes();
        let ends = mesh(usize::from(shards), RING_MESSAGES);
        let ports = PortBook::new(ends.iter().map(MeshEnds::unpark).collect());
        let roster = Roster::new(ends, || {});
        let places: Vec<Taken> = iter::from_fn(|| roster.take()).collect();
        places.iter().for_each(Taken::attach);
        for (shard, place) in (0..shards).map(ShardId).zip(places) {
            let id = u32::from(node) * u32::from(shards) + u32::from(shard.0);
            let host = SimHost::new(id, shard, (node, node_id), Rc::clone(&self.world));
            let (membership, ends) = place.join().expect("all shards are attached");
            let (_, driver) = Shard::new(ShardParts {
                id: shard,
                node_id,
                control: Arc::clone(&control),
                epochs: Arc::clone(&epochs),
                device: SimDevice::new(Rc::clone(&host), capabilities),
                credits,
                mesh: ends,
                ports: Arc::clone(&ports),
                membership,
                host: Rc::clone(&host),
                seed: mixed(seed, 1000 + u64::from(id)),
                spin_ns: 0,
                close_ns: CLOSE_NS,
            });
            let core = HostCore::new(host, driver, machine, usize::from(shards), any_order);
            self.world.cores.borrow_mut().push(Rc::new(core));
        }
        let seed = mixed(seed, 100 + u64::from(node));
        let node = SimNode { control, ports, machine, seed };
        self.nodes.borrow_mut().push(Rc::new(node));
    }

    /// Counts the compute nodes that there are, and have been.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 3, ..Default::default() }).unwrap();
    /// simulation.stop_node(1);
    /// assert_eq!(simulation.nodes(), 3);
    /// ```
    pub fn nodes(&self) -> u16 {
        self.nodes.borrow().len() as u16
    }

    /// Counts those of them that have stopped.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 3, ..Default::default() }).unwrap();
    /// simulation.stop_node(1);
    /// assert_eq!(simulation.nodes_stopped(), 1);
    /// ```
    pub fn nodes_stopped(&self) -> u16 {
        self.world.nodes_stopped()
    }

    /// Returns a compute node as a whole.
    ///
    /// ```
    /// # use farwood_runtime::NodeContext;
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 2, ..Default::default() }).unwrap();
    /// assert_ne!(simulation.node(0).seed(), simulation.node(1).seed());
    /// ```
    pub fn node(&self, node: u16) -> Rc<SimNode> {
        Rc::clone(&self.nodes.borrow()[usize::from(node)])
    }

    /// Returns a shard of a compute node.
    ///
    /// ```
    /// # use farwood_runtime::{ShardId, Verbs};
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { shards: 4, ..Default::default() }).unwrap();
    /// assert_eq!(simulation.shard(0, 3).shard(), ShardId(3));
    /// ```
    pub fn shard(&self, node: u16, shard: u16) -> SimShard {
        let shards = self.config.shards;
        assert!(shard < shards, "nodes have {shards} shards");
        self.world.core(u32::from(node) * u32::from(shards) + u32::from(shard)).shard()
    }

    /// Returns the memory servers.
    ///
    /// ```
    /// # use farwood_runtime::Control;
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { servers: 2, ..Default::default() }).unwrap();
    /// assert_eq!(simulation.cluster().servers().len(), 2);
    /// ```
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Counts the bytes that control services have handed out as chunks in replies that were lost.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// assert_eq!(simulation.bytes_lost(), 0);
    /// ```
    pub fn bytes_lost(&self) -> u64 {
        self.control.bytes_lost()
    }

    /// Counts the bytes that servers have taken back which no client gave back: what was lost, and found
    /// ([`Control::take_back`]).
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// assert_eq!(simulation.bytes_taken_back(), 0);
    /// ```
    pub fn bytes_taken_back(&self) -> u64 {
        self.control.bytes_taken_back()
    }

    /// Returns the virtual time in ns.
    ///
    /// ```
    /// # use farwood_runtime::Verbs;
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let hour_ns = 3_600_000_000_000;
    /// simulation.block_on(&shard, u64::MAX, shard.pause(hour_ns)).unwrap();
    /// assert!(simulation.now() >= hour_ns);
    /// ```
    pub fn now(&self) -> u64 {
        self.world.now()
    }

    /// Lets things happen until `done` says so, at most until `until_ns`.
    ///
    /// ```
    /// # use farwood_runtime::Verbs;
    /// # use farwood_runtime::sim::{SimConfig, Simulation, Stop};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// drop(shard.spawn(shard.pause(5_000)));
    /// assert_eq!(simulation.run(1_000, || false), Err(Stop::Late));
    /// assert_eq!(simulation.run(u64::MAX, || simulation.now() >= 3_000), Ok(()));
    /// assert_eq!(simulation.run(u64::MAX, || false), Err(Stop::Idle));
    /// ```
    ///
    /// # Errors
    /// [`Stop::Idle`] if nothing is left to happen, [`Stop::Late`] if the time is over.
    pub fn run(&self, until_ns: u64, mut done: impl FnMut() -> bool) -> Result<(), Stop> {
        while !done() {
            if self.world.now() > until_ns {
                return Err(Stop::Late);
            }
            if !self.world.step() {
                return Err(Stop::Idle);
            }
        }
        Ok(())
    }

    /// Runs `client` on `shard`, and the simulation until it has ended.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let shard = simulation.shard(0, 0);
    /// let at = shard.control().servers()[0].locks.base;
    /// let read = simulation.block_on(&shard, 1_000_000, shard.read(&Meter::default(), at, 64));
    /// assert_eq!(read.unwrap().unwrap().into_buf()[..], [0; 64]);
    /// assert!(simulation.now() > 1_000, "a round trip takes its time");
    /// ```
    ///
    /// # Errors
    /// If the simulation stops before, see [`Simulation::run`].
    pub fn block_on<T: 'static>(
        &self,
        shard: &SimShard,
        until_ns: u64,
        client: impl Future<Output = T> + 'static,
    ) -> Result<T, Stop> {
        let result = Rc::new(std::cell::RefCell::new(None));
        let slot = Rc::clone(&result);
        drop(shard.spawn(async move {
            let value = client.await;
            *slot.borrow_mut() = Some(value);
        }));
        self.run(until_ns, || result.borrow().is_some())?;
        let value = result.borrow_mut().take();
        Ok(value.expect("the client has ended"))
    }

    /// Lets these faults strike from now on, and no others. Servers that are away stay so.
    ///
    /// ```
    /// # use farwood_runtime::sim::{Fault, Rule, SimConfig, Simulation};
    /// # use farwood_runtime::{FabricError, Meter, ServerId, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// # let at = shard.control().servers()[0].locks.base;
    /// simulation.set_faults(&[Rule { fault: Fault::QueuePairError(1_000), one_in: 1, most: 1 }]);
    /// let read = simulation.block_on(&shard, 1_000_000_000, shard.read(&Meter::default(), at, 64));
    /// let failed = read.unwrap().unwrap_err();
    /// assert_eq!(*failed.cause(), FabricError::QueuePair { server: ServerId(0) });
    /// ```
    pub fn set_faults(&self, rules: &[Rule]) {
        self.control.set_rules(rules);
        self.world.fabric.borrow_mut().set_rules(rules);
    }

    /// Ends all faults, and brings servers back that were away.
    ///
    /// ```
    /// # use farwood_runtime::sim::{Fault, Rule, SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// # let at = shard.control().servers()[0].locks.base;
    /// simulation.set_faults(&[Rule { fault: Fault::QueuePairError(1_000), one_in: 1, most: u32::MAX }]);
    /// simulation.heal();
    /// let read = simulation.block_on(&shard, 1_000_000_000, shard.read(&Meter::default(), at, 64));
    /// assert!(read.unwrap().is_ok());
    /// ```
    pub fn heal(&self) {
        self.control.set_rules(&[]);
        let mut fabric = self.world.fabric.borrow_mut();
        fabric.set_rules(&[]);
        fabric.heal();
    }

    /// Stops compute node `node` for good.
    ///
    /// ```
    /// # use farwood_runtime::Verbs;
    /// # use farwood_runtime::sim::{SimConfig, Simulation, Stop};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// simulation.stop_node(0);
    /// let client = simulation.block_on(&shard, u64::MAX, shard.pause(1_000));
    /// assert_eq!(client, Err(Stop::Idle), "it is not polled any more");
    /// ```
    pub fn stop_node(&self, node: u16) {
        self.world.stop_node(node);
    }

    /// Returns a number for everything that has happened so far.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// let hash = |seed| {
    ///     let simulation = Simulation::new(&SimConfig { seed, ..Default::default() }).unwrap();
    ///     let shard = simulation.shard(0, 0);
    ///     let at = shard.control().servers()[0].locks.base;
    ///     let read = shard.read(&Meter::default(), at, 64);
    ///     simulation.block_on(&shard, 1_000_000, read).unwrap().unwrap();
    ///     simulation.trace_hash()
    /// };
    /// assert_eq!(hash(7), hash(7));
    /// ```
    pub fn trace_hash(&self) -> u64 {
        self.world.fabric.borrow().trace.hash()
    }

    /// Lets something of the caller's be part of the trace: a result that a client got.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let before = simulation.trace_hash();
    /// simulation.mark(1, 7);
    /// assert_ne!(simulation.trace_hash(), before);
    /// ```
    pub fn mark(&self, what: u64, value: u64) {
        let now = self.world.now();
        self.world.fabric.borrow_mut().trace.mark(now, Mark::Caller, what, value);
    }

    /// Keeps the last `most` notable events (faults that struck) as text from now on.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// simulation.keep_notes(10);
    /// assert!(simulation.notes().is_empty(), "no fault has struck");
    /// ```
    pub fn keep_notes(&self, most: usize) {
        self.world.fabric.borrow_mut().trace.keep_notes(most);
    }

    /// Returns what [`Simulation::keep_notes`] has kept.
    ///
    /// ```
    /// # use farwood_runtime::sim::{Fault, Rule, SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// # let at = shard.control().servers()[0].locks.base;
    /// simulation.keep_notes(10);
    /// simulation.set_faults(&[Rule { fault: Fault::QueuePairError(1_000), one_in: 1, most: 1 }]);
    /// let read = simulation.block_on(&shard, 1_000_000_000, shard.read(&Meter::default(), at, 64));
    /// assert!(read.unwrap().is_err());
    /// assert_eq!(simulation.notes().len(), 1);
    /// ```
    pub fn notes(&self) -> Vec<String> {
        self.world.fabric.borrow().trace.notes().map(String::from).collect()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.world.end();
    }
}

/// A simulated compute node as a whole.
pub struct SimNode {
    control: Arc<dyn Control>,
    ports: Arc<PortBook>,
    machine: u16,
    seed: u64,
}

impl NodeContext for SimNode {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.control)
    }

    fn allocate_port(&self) -> PortLease {
        self.ports.lease()
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}

/// Derives a seed for each purpose.
fn mixed(seed: u64, purpose: u64) -> u64 {
    let word = (seed ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (word ^ (word >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ purpose
}
