//! A cluster of the papers, running one workload for a while in virtual time: what the experiments measure with. What
//! is measured is for `tree` to say, what clients do for `client`.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_index::sherman::NodeSize;
use farwood_index::{IndexStats, RangeIndex};
use farwood_runtime::sim::{Profile, SimConfig, Simulation, Stop};
use hdrhistogram::Histogram;

use super::client::{Board, Client};
use super::tree::{self, Indexes, SHERMAN};
pub use super::tree::{Tree, Warm};
use super::workload::{KeySpace, Mix, Popularity, Spread};

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The costs of NICs.
    pub profile: Profile,
    /// The machines.
    pub machines: Machines,
    /// The index.
    pub tree: Tree,
    /// Logical clients of the whole cluster.
    pub clients: u32,
    /// Their operations.
    pub mix: Mix,
    /// With which keys.
    pub popularity: Popularity,
    /// Where these lie.
    pub spread: Spread,
    /// Keys in the tree.
    pub keys: u64,
    /// Bytes of a key, 8 at least.
    pub key_bytes: usize,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// The part of a leaf that the load fills.
    pub fill: f64,
    /// The byte budget of each compute node's cache.
    pub cache_bytes: usize,
    /// The contents of caches before the experiment.
    pub warm: Warm,
    /// Virtual time before anything is measured.
    pub warmup_ns: u64,
    /// Virtual time that is measured.
    pub measured_ns: u64,
    /// Determines everything.
    pub seed: u64,
}

/// The machines of a cluster. Each of the first ones is a memory server too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// Compute nodes.
    pub nodes: u16,
    /// Cores of each that run clients.
    pub cores: u16,
    /// Memory servers, on the machines of the first compute nodes.
    pub servers: u16,
}

/// The papers' trees are loaded by inserts of all clients, each with chunks of its own, so that neighbours lie on
/// different servers. A bulk load with chunks of 8 MiB would put whole ranges on one.
const CHUNK_BYTES: usize = 4096;
/// Chunks of many leaves.
const LEAVES_BYTES: u64 = 64 << 10;

impl Setup {
    /// More than any tree's inner nodes take.
    pub const CACHE_BYTES: usize = 512 << 20;

    /// Makes Sherman's cluster of 8 + 8 with 176 clients on `connectx5`, write-intensive, skewed, with all techniques.
    pub fn sherman() -> Self {
        Setup {
            profile: Profile::CONNECTX5,
            machines: Machines { nodes: 8, cores: 22, servers: 8 },
            tree: Tree::Sherman(SHERMAN, NodeSize::Bytes(1024)),
            clients: 8 * 22,
            mix: Mix::WRITE_INTENSIVE,
            popularity: Popularity::Zipf(0.99),
            spread: Spread::TwoThirds,
            keys: 2_000_000,
            key_bytes: 8,
            value_bytes: 8,
            fill: 0.8,
            cache_bytes: Self::CACHE_BYTES,
            warm: Warm::All,
            warmup_ns: 2_000_000,
            measured_ns: 10_000_000,
            seed: 1,
        }
    }

    /// Yields the bytes of a server's region: some times what the keys take. It costs nothing until it is used.
    fn bytes_per_server(&self) -> u64 {
        let per_key = 128 + 6 * (self.key_bytes + self.value_bytes) as u64;
        (self.keys * per_key / u64::from(self.machines.servers)).max(256 << 20)
    }

    fn chunk_bytes(&self) -> u64 {
        match self.tree {
            Tree::Sherman(..) => {
                let leaf = self.tree.spec(self.key_bytes, self.value_bytes).leaf_bytes();
                leaf.next_multiple_of(CHUNK_BYTES) as u64
            }
            Tree::Smart(_) => CHUNK_BYTES as u64,
            // Locks are in leaves, and wait for each other where the low bits of their addresses are the same.
            Tree::Chime(..) | Tree::Usual(_) => LEAVES_BYTES,
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations that ended in the measured time.
    pub ops: u64,
    /// The measured time in seconds.
    pub seconds: f64,
    /// Latencies in ns of gets (and scans), of puts, updates and inserts, and of all.
    pub reads: Histogram<u64>,
    /// See `reads`.
    pub writes: Histogram<u64>,
    /// See `reads`.
    pub all: Histogram<u64>,
    /// Round trips of each put, where a shard has one client.
    pub write_round_trips: Histogram<u64>,
    /// Bytes that each put wrote, its unlock included, where a shard has one client.
    pub write_bytes: Histogram<u64>,
    /// Retries of each get, where a shard has one client.
    pub read_retries: Histogram<u64>,
    /// The index's counters over the measured time.
    pub stats: IndexStats,
    /// Everything that happened.
    pub trace_hash: u64,
}

impl Measured {
    /// Yields the throughput in million operations per second.
    pub fn mops(&self) -> f64 {
        self.ops as f64 / self.seconds / 1e6
    }
}

/// Runs a setup.
///
/// # Errors
/// A sentence, if the cluster cannot be made or the index fails.
pub fn run(setup: &Setup) -> Result<Measured, String> {
    let (simulation, space, indexes) = start(setup)?;
    let begins_ns = simulation.now() + setup.warmup_ns;
    let ends_ns = begins_ns + setup.measured_ns;
    let board = Rc::new(Board::new(begins_ns, ends_ns));
    let failure = start_clients(setup, &indexes, &space, &board);
    advance(&simulation, begins_ns, &failure)?;
    let before = stats_of(&indexes);
    advance(&simulation, ends_ns, &failure)?;
    let mut stats = stats_of(&indexes);
    stats -= &before;
    Ok(board.measured(stats, simulation.trace_hash()))
}

/// Bytes per key of an index that no client works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Bytes of one compute node's cache.
    pub(super) cached: f64,
    /// Bytes of nodes on all memory servers.
    pub(super) stored: f64,
}

/// Measures what an index takes that has been loaded, with caches as warm as the setup says.
///
/// # Errors
/// A sentence, if the cluster cannot be made or the index fails.
pub(super) fn sizes(setup: &Setup) -> Result<Sizes, String> {
    let (simulation, _, indexes) = start(setup)?;
    let (shard, index) = &indexes[0];
    let cached = index.stats().cache.bytes;
    let index = index.clone();
    let surveyed = simulation.block_on(shard, u64::MAX, async move { index.survey().await });
    let shape = surveyed
        .map_err(|stop| format!("the survey came to a stop: {stop:?}"))?
        .map_err(|error| error.to_string())?;
    let per_key = |bytes: u64| bytes as f64 / shape.keys as f64;
    Ok(Sizes { cached: per_key(cached), stored: per_key(shape.used_bytes) })
}

/// Makes a cluster, and an index on it that is loaded.
fn start(setup: &Setup) -> Result<(Simulation, Rc<KeySpace>, Indexes), String> {
    let config = SimConfig {
        seed: setup.seed,
        profile: setup.profile,
        nodes: setup.machines.nodes,
        shards: setup.machines.cores,
        servers: setup.machines.servers,
        colocated: true,
        bytes_per_server: setup.bytes_per_server(),
        chunk_bytes: setup.chunk_bytes(),
        ..SimConfig::default()
    };
    let simulation = Simulation::new(&config).map_err(|error| error.to_string())?;
    let space = Rc::new(KeySpace::new(setup.keys, setup.spread, setup.key_bytes, setup.popularity));
    let indexes = tree::open(&simulation, setup, &space.stored())?;
    Ok((simulation, space, indexes))
}

/// Starts the clients. Yields the place of the first sentence that one of them ends with.
fn start_clients(
    setup: &Setup,
    indexes: &Indexes,
    space: &Rc<KeySpace>,
    board: &Rc<Board>,
) -> Rc<RefCell<Option<String>>> {
    let failure = Rc::new(RefCell::new(None));
    for number in 0..setup.clients as usize {
        let (shard, index) = &indexes[number % indexes.len()];
        // Neighbours share a compute node: each has clients of both kinds.
        let puts = if setup.mix.by_client { (number % 2) as f64 } else { setup.mix.puts };
        let client = Client {
            shard: shard.clone(),
            index: index.clone(),
            space: Rc::clone(space),
            mix: Mix { puts, ..setup.mix },
            value_bytes: setup.value_bytes,
            board: Rc::clone(board),
            op_ns: setup.profile.op_ns,
            is_alone: setup.clients as usize <= indexes.len(),
        };
        let failure = Rc::clone(&failure);
        drop(shard.spawn(async move {
            if let Err(error) = client.run().await {
                *failure.borrow_mut() = Some(error.to_string());
            }
        }));
    }
    failure
}

fn advance(simulation: &Simulation, until_ns: u64, failure: &RefCell<Option<String>>) -> Result<(), String> {
    match simulation.run(until_ns, || failure.borrow().is_some()) {
        Err(Stop::Late) => Ok(()),
        Err(Stop::Idle) => Err("all clients wait for ever".into()),
        Ok(()) => Err(failure.borrow_mut().take().unwrap_or_default()),
    }
}

fn stats_of(indexes: &Indexes) -> IndexStats {
    let mut sum = IndexStats::default();
    for (_, index) in indexes {
        sum += &index.stats();
    }
    sum
}
