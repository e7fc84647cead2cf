//! A simulated shard: a [`Shard`] whose device is the simulated fabric, and whose host is a simulated core.

use std::cell::Cell;
use std::rc::Rc;

use super::world::World;
use crate::chain::{Chain, Op};
use crate::engine::{Device, SlotKey, Slots};
use crate::host::Host;
use crate::message::ShardId;
use crate::shard::Shard;
use crate::verbs::{Capabilities, FabricError};

/// A handle to a simulated shard. Clones are cheap.
pub type SimShard = Shard<SimDevice>;

impl SimShard {
    /// Lets the core compute for `ns` nanoseconds: what a client does beside posting and waiting.
    ///
    /// ```
    /// # use farwood_runtime::Verbs;
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let me = shard.clone();
    /// let took = simulation.block_on(&shard, 1_000_000, async move {
    ///     let before = me.now();
    ///     me.work(5_000);
    ///     me.pause(0).await;
    ///     me.now() - before
    /// });
    /// assert!(took.unwrap() >= 5_000);
    /// ```
    pub fn work(&self, ns: u64) {
        self.host().work(ns);
    }

    /// Returns the compute node's place in the simulation.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// let simulation = Simulation::new(&SimConfig { nodes: 2, ..Default::default() }).unwrap();
    /// assert_eq!(simulation.shard(1, 0).node(), 1);
    /// ```
    pub fn node(&self) -> u16 {
        self.host().node
    }

    /// Tells whether its compute node has stopped.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// let shard = simulation.shard(0, 0);
    /// assert!(!shard.is_dead());
    /// simulation.stop_node(0);
    /// assert!(shard.is_dead());
    /// ```
    pub fn is_dead(&self) -> bool {
        self.host().is_dead.get()
    }

    /// Chains that were submitted so far. Where one client has the shard to itself and posts nothing in parallel, they
    /// are its round trips.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let at = shard.control().servers()[0].locks.base;
    /// let read = shard.read(&Meter::default(), at, 64);
    /// assert!(simulation.block_on(&shard, 1_000_000, read).unwrap().is_ok());
    /// assert_eq!(shard.chains_posted(), 1);
    /// ```
    pub fn chains_posted(&self) -> u64 {
        self.host().posted.get()
    }

    /// Counts the payload bytes that those chains write, unlocks included.
    ///
    /// ```
    /// # use farwood_runtime::sim::{SimConfig, Simulation};
    /// # use farwood_runtime::{Meter, Verbs};
    /// # let simulation = Simulation::new(&SimConfig::default()).unwrap();
    /// # let shard = simulation.shard(0, 0);
    /// let at = shard.control().servers()[0].locks.base;
    /// let write = shard.submit_built(&Meter::default(), at.server(), None, |chain| {
    ///     chain.write_word(at, 7);
    /// });
    /// assert!(simulation.block_on(&shard, 1_000_000, write).unwrap().is_ok());
    /// assert_eq!(shard.bytes_written(), 8);
    /// ```
    pub fn bytes_written(&self) -> u64 {
        self.host().written.get()
    }
}

/// State that a simulated core shares with its shard: with the shard's device, and with its handles.
pub struct SimHost {
    pub(super) id: u32,
    pub(super) shard: ShardId,
    /// The compute node, by its place in the simulation, and by its id in the cluster.
    pub(super) node: u16,
    pub(super) node_id: u16,
    pub(super) world: Rc<World>,
    /// The core's own time while it computes.
    pub(super) clock_ns: Cell<u64>,
    /// The latest time that a client or handler was told.
    told_ns: Cell<u64>,
    /// Chains so far.
    posted: Cell<u64>,
    /// Payload bytes that they write.
    written: Cell<u64>,
    pub(super) is_dead: Cell<bool>,
}

impl SimHost {
    pub(super) fn new(id: u32, shard: ShardId, (node, node_id): (u16, u16), world: Rc<World>) -> Rc<Self> {
        let (clock_ns, told_ns, posted, written) = Default::default();
        Rc::new(SimHost {
            id,
            shard,
            node,
            node_id,
            world,
            clock_ns,
            told_ns,
            posted,
            written,
            is_dead: Cell::new(false),
        })
    }

    /// Returns the core's own time, which goes back when a handler interrupts a client's turn.
    #[inline]
    fn clock(&self) -> u64 {
        self.clock_ns.get().max(self.world.now())
    }

    fn work(&self, ns: u64) {
        self.clock_ns.set(self.clock() + ns);
    }
}

impl Host for Rc<SimHost> {
    #[inline]
    fn now(&self) -> u64 {
        let now = self.clock().max(self.told_ns.get());
        self.told_ns.set(now);
        now
    }

    fn sent(&self, to: ShardId) {
        self.world.send(self, to, self.clock());
    }
}

/// Hands chains to the fabric, and hears from it what became of them.
pub struct SimDevice {
    host: Rc<SimHost>,
    capabilities: Capabilities,
    finished: Vec<(SlotKey, Result<(), FabricError>, u32)>,
}

impl SimDevice {
    pub(super) fn new(host: Rc<SimHost>, capabilities: Capabilities) -> Self {
        SimDevice { host, capabilities, finished: Vec::new() }
    }

    /// Takes a chain's outcome from the fabric, for the engine's next look.
    pub(super) fn finish(&mut self, slot: SlotKey, outcome: Result<(), FabricError>, span_ns: u32) {
        self.finished.push((slot, outcome, span_ns));
    }
}

impl Device for SimDevice {
    type Host = Rc<SimHost>;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn post(&mut self, key: SlotKey, chain: &Chain) {
        let host = &*self.host;
        host.posted.set(host.posted.get() + 1);
        host.written.set(host.written.get() + written_by(chain));
        let mut fabric = host.world.fabric.borrow_mut();
        host.work(fabric.profile.post_ns);
        fabric.post(host.id, host.clock_ns.get(), key, chain.server());
    }

    fn poll(&mut self, slots: &mut Slots) -> usize {
        let finished = self.finished.len();
        for (key, outcome, span_ns) in self.finished.drain(..) {
            slots.complete(key, outcome, span_ns);
        }
        finished
    }
}

fn written_by(chain: &Chain) -> u64 {
    let bytes = chain.verbs().iter().map(|verb| match verb.op {
        Op::Write { len, .. } => u64::from(len),
        Op::WriteWord { .. } => 8,
        _ => 0,
    });
    bytes.sum()
}
