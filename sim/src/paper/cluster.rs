//! A cluster of the papers, running one workload for a while in virtual time: what the experiments measure with.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood_index::sherman::{Geometry, Options, Sherman, ShermanIndex, Techniques};
use farwood_index::{IndexError, IndexStats, RangeIndex};
use farwood_runtime::Verbs;
use farwood_runtime::sim::{Profile, SimConfig, SimShard, Simulation, Stop};
use futures::StreamExt;
use hdrhistogram::Histogram;
use rand::Rng;

use super::workload::{KeySpace, Mix, Popularity, client_rng, pairs_in};

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What NICs cost.
    pub profile: Profile,
    /// Which techniques Sherman uses.
    pub techniques: Techniques,
    /// Logical clients of the whole cluster.
    pub clients: u32,
    /// What they do.
    pub mix: Mix,
    /// With which keys.
    pub popularity: Popularity,
    /// Keys in the tree.
    pub keys: u64,
    /// Virtual time before anything is measured.
    pub warmup_ns: u64,
    /// Virtual time that is measured.
    pub measured_ns: u64,
    /// Determines everything.
    pub seed: u64,
}

/// Compute nodes of Sherman's cluster, on the machines of as many memory servers.
const NODES: u16 = 8;
/// Cores of each that run clients.
const CORES: u16 = 22;
/// Nobody waits longer for the load.
const LOAD_NS: u64 = 1_000_000_000_000;
/// Fewer than an inner node has below it.
const KEYS_PER_INNER_NODE: usize = 500;

/// The handles of all shards.
type Indexes = Vec<(SimShard, ShermanIndex<SimShard>)>;

impl Setup {
    /// Sherman's cluster of 8 + 8 with 176 clients on `connectx5`, write-intensive and skewed, all of its techniques.
    pub fn sherman() -> Self {
        Setup {
            profile: Profile::CONNECTX5,
            techniques: Techniques { fused: false, ..Techniques::ALL },
            clients: u32::from(NODES * CORES),
            mix: Mix::WRITE_INTENSIVE,
            popularity: Popularity::Zipf(0.99),
            keys: 2_000_000,
            warmup_ns: 2_000_000,
            measured_ns: 10_000_000,
            seed: 1,
        }
    }
}

/// What a run showed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations that ended in the measured time.
    pub ops: u64,
    /// How long that was.
    pub seconds: f64,
    /// Latencies in ns of gets (and scans), of puts, and of all.
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
    /// What the index counted in the measured time.
    pub stats: IndexStats,
    /// Everything that happened.
    pub trace_hash: u64,
}

impl Measured {
    /// Million operations per second.
    pub fn mops(&self) -> f64 {
        self.ops as f64 / self.seconds / 1e6
    }
}

/// Where the clients of a run put what they measure.
struct Board {
    begins_ns: u64,
    ends_ns: u64,
    ops: Cell<u64>,
    lanes: RefCell<Lanes>,
}

struct Lanes {
    reads: Histogram<u64>,
    writes: Histogram<u64>,
    write_round_trips: Histogram<u64>,
    write_bytes: Histogram<u64>,
    read_retries: Histogram<u64>,
}

impl Lanes {
    fn new() -> Self {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        Lanes {
            reads: histogram(),
            writes: histogram(),
            write_round_trips: histogram(),
            write_bytes: histogram(),
            read_retries: histogram(),
        }
    }
}

/// Runs a setup.
///
/// # Errors
/// A sentence, if the cluster cannot be made or the index fails.
pub fn run(setup: &Setup) -> Result<Measured, String> {
    let config = SimConfig {
        seed: setup.seed,
        profile: setup.profile,
        nodes: NODES,
        shards: CORES,
        servers: NODES,
        colocated: true,
        // Four times what the keys take.
        bytes_per_server: (setup.keys * 100 / u64::from(NODES)).max(64 << 20),
        // The papers' trees are loaded by inserts of all clients, each with chunks of its own, so that neighbours lie
        // on different servers. A bulk load with chunks of 8 MiB would put whole ranges on one.
        chunk_bytes: 4096,
        ..SimConfig::default()
    };
    let simulation = Simulation::new(&config).map_err(|error| error.to_string())?;
    let space = Rc::new(KeySpace::new(setup.keys, setup.popularity));
    let indexes = open(&simulation, setup, &space)?;
    let begins_ns = simulation.now() + setup.warmup_ns;
    let board = Rc::new(Board {
        begins_ns,
        ends_ns: begins_ns + setup.measured_ns,
        ops: Cell::new(0),
        lanes: RefCell::new(Lanes::new()),
    });
    let failure = Rc::new(RefCell::new(None));
    let is_alone = setup.clients as usize <= indexes.len();
    for client in 0..setup.clients as usize {
        let (shard, index) = &indexes[client % indexes.len()];
        // Neighbours share a compute node: each has clients of both kinds.
        let puts = if setup.mix.by_client { (client % 2) as f64 } else { setup.mix.puts };
        let client = Client {
            shard: shard.clone(),
            index: index.clone(),
            space: Rc::clone(&space),
            puts,
            scan_length: setup.mix.scan_length,
            board: Rc::clone(&board),
            op_ns: setup.profile.op_ns,
            is_alone,
        };
        let failure = Rc::clone(&failure);
        drop(shard.spawn(async move {
            if let Err(error) = client.run().await {
                *failure.borrow_mut() = Some(error.to_string());
            }
        }));
    }
    advance(&simulation, board.begins_ns, &failure)?;
    let before = stats_of(&indexes);
    advance(&simulation, board.ends_ns, &failure)?;
    let mut stats = stats_of(&indexes);
    stats -= &before;
    Ok(board.measured(setup, stats, simulation.trace_hash()))
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

/// Makes and loads the tree, and attaches every shard to it, caches warm.
fn open(simulation: &Simulation, setup: &Setup, space: &KeySpace) -> Result<Indexes, String> {
    // The papers' clients spin without a pause, for as long as it takes.
    let options = Options {
        techniques: setup.techniques,
        backoff_ns: (0, 0),
        lock_attempts_max: u32::MAX,
        ..Options::default()
    };
    let first = simulation.shard(0, 0);
    let mut indexes = Vec::new();
    for node in 0..NODES {
        let tree = futures::executor::block_on(async {
            match node {
                0 => Sherman::create(simulation.node(0), "paper", Geometry::default(), options).await,
                _ => Sherman::open(simulation.node(node), "paper", options).await,
            }
        });
        let tree = tree.map_err(|error| error.to_string())?;
        for shard in 0..CORES {
            let shard = simulation.shard(node, shard);
            let index = tree.attach(shard.clone());
            indexes.push((shard, index));
        }
        if node == 0 {
            let (index, pairs) = (indexes[0].1.clone(), space.stored().collect::<Vec<_>>());
            let load = async move { index.bulk_load(pairs.into_iter().map(|key| (key, key)), 0.8).await };
            let loaded = simulation.block_on(&first, LOAD_NS, load);
            loaded
                .map_err(|stop| format!("the load came to a stop: {stop:?}"))?
                .map_err(|error| error.to_string())?;
        }
    }
    warm(simulation, &indexes, space)?;
    Ok(indexes)
}

/// Gets a key below every inner node from every compute node, which fills its cache.
fn warm(simulation: &Simulation, indexes: &Indexes, space: &KeySpace) -> Result<(), String> {
    for node in 0..usize::from(NODES) {
        let (shard, index) = &indexes[node * usize::from(CORES)];
        let index = index.clone();
        let keys: Vec<_> = space.stored().step_by(KEYS_PER_INNER_NODE).collect();
        let gets = async move {
            for key in keys {
                index.get(&key).await?;
            }
            Ok::<_, IndexError>(())
        };
        let warmed = simulation.block_on(shard, u64::MAX, gets);
        warmed
            .map_err(|stop| format!("the warm-up came to a stop: {stop:?}"))?
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// One closed-loop client.
struct Client {
    shard: SimShard,
    index: ShermanIndex<SimShard>,
    space: Rc<KeySpace>,
    /// Share of puts.
    puts: f64,
    /// 0 for gets.
    scan_length: usize,
    board: Rc<Board>,
    op_ns: u64,
    /// Whether no other client shares the shard: then the shard's counters are its own.
    is_alone: bool,
}

impl Client {
    async fn run(self) -> Result<(), IndexError> {
        let mut rng = client_rng(&self.shard);
        loop {
            let key = self.space.draw(&mut rng);
            let choice: f64 = rng.random();
            let start_ns = self.shard.now();
            let before = (self.shard.chains_posted(), self.shard.bytes_written());
            // What the operation costs beside posting and polling; no two take exactly as long.
            let work_ns = rng.random_range(self.op_ns * 8 / 10..=self.op_ns * 12 / 10);
            self.shard.work(work_ns / 2);
            let is_write = choice < self.puts;
            if is_write {
                self.index.put(&key, &start_ns.to_be_bytes()).await?;
            } else if self.scan_length > 0 {
                let mut scan = self.index.scan(&key[..].., Some(pairs_in(self.scan_length)));
                while let Some(pair) = scan.next().await {
                    pair?;
                }
            } else {
                self.index.get(&key).await?;
            }
            self.shard.work(work_ns / 2);
            let traffic = self.is_alone.then(|| Traffic {
                chains: self.shard.chains_posted() - before.0,
                bytes: self.shard.bytes_written() - before.1,
            });
            self.board.record(is_write, start_ns, self.shard.now(), traffic);
        }
    }
}

/// What one operation of a client that has its shard to itself put on the wire.
struct Traffic {
    chains: u64,
    bytes: u64,
}

impl Board {
    fn record(&self, is_write: bool, start_ns: u64, end_ns: u64, traffic: Option<Traffic>) {
        if end_ns < self.begins_ns || end_ns >= self.ends_ns {
            return;
        }
        self.ops.set(self.ops.get() + 1);
        let mut lanes = self.lanes.borrow_mut();
        let Lanes { reads, writes, write_round_trips, write_bytes, read_retries } = &mut *lanes;
        let lane = if is_write { writes } else { reads };
        record(lane, end_ns - start_ns);
        match traffic {
            Some(traffic) if is_write => {
                record(write_round_trips, traffic.chains);
                record(write_bytes, traffic.bytes);
            }
            Some(traffic) => record(read_retries, traffic.chains.saturating_sub(1)),
            None => {}
        }
    }

    fn measured(&self, setup: &Setup, stats: IndexStats, trace_hash: u64) -> Measured {
        let lanes = self.lanes.replace(Lanes::new());
        let mut all = lanes.reads.clone();
        all.add(&lanes.writes).expect("histograms of one kind add up");
        Measured {
            ops: self.ops.get(),
            seconds: setup.measured_ns as f64 / 1e9,
            reads: lanes.reads,
            writes: lanes.writes,
            all,
            write_round_trips: lanes.write_round_trips,
            write_bytes: lanes.write_bytes,
            read_retries: lanes.read_retries,
            stats,
            trace_hash,
        }
    }
}

fn record(histogram: &mut Histogram<u64>, value: u64) {
    histogram.record(value).expect("histograms grow with their values");
}
