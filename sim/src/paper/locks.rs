//! Locks alone (Sherman figure 16): 176 clients on 8 compute nodes, 10,240 locks on one memory server, Zipfian 0.99.
//! The one experiment that the model was calibrated with: it shows what waiting atomics do to everything else at a
//! responder.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farwood_lock::{Backoff, LockConfig, LockTable};
use farwood_runtime::sim::{Profile, SimConfig, SimShard, Simulation, Stop};
use farwood_runtime::{Chain, IndexId, Meter, Port, RemotePtr, Verbs};
use hdrhistogram::Histogram;
use rand::distr::Distribution;
use rand_distr::Zipf;

use super::workload::client_rng;
use super::{Class, Effort, Row};

const NODES: u16 = 8;
const CORES: u16 = 22;
const LOCKS: u64 = 10_240;

struct Shown {
    mops: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Simulates figure 16: what each part of the hierarchical on-chip locks is worth.
pub(super) fn fig16(effort: &Effort) -> Result<Vec<Row>, String> {
    const NAME: &str = "sherman-fig16";
    let base = LockConfig {
        hierarchical: false,
        handover: false,
        on_chip: false,
        wait_max: Duration::MAX,
        attempts_max: u32::MAX,
        backoff: Backoff::NONE,
        ..LockConfig::default()
    };
    let on_chip = LockConfig { on_chip: true, ..base.clone() };
    let hierarchical = LockConfig { hierarchical: true, ..on_chip.clone() };
    let handover = LockConfig { handover: true, ..hierarchical.clone() };
    let steps: Vec<Shown> = [base, on_chip, hierarchical, handover]
        .iter()
        .map(|config| run(effort, config))
        .collect::<Result<_, _>>()?;
    let row = |figure: &str, paper, simulated| Row::new(NAME, figure, paper, simulated, Class::Calibration);
    Ok(vec![
        row("+on-chip, throughput", 2.89, steps[1].mops / steps[0].mops),
        row("+on-chip, p50 lower", 3.01, steps[0].p50_us / steps[1].p50_us),
        row("+on-chip, p99 lower", 2.88, steps[0].p99_us / steps[1].p99_us),
        row("+hierarchical, throughput", 3.85, steps[2].mops / steps[1].mops),
        row("+hierarchical with queues, p99 us", 372.0, steps[2].p99_us),
        row("+hand-over, throughput", 2.34, steps[3].mops / steps[2].mops),
        row("+hand-over, p99 lower", 3.19, steps[2].p99_us / steps[3].p99_us),
    ])
}

fn run(effort: &Effort, locks: &LockConfig) -> Result<Shown, String> {
    const WARMUP_NS: u64 = 3_000_000;
    let measured_ns = 30_000_000 * effort.time_percent / 100;
    let config = SimConfig {
        seed: effort.seed,
        // As many on the chip as in host memory.
        profile: Profile { device_bytes: LOCKS * 8, ..Profile::CONNECTX5 },
        nodes: NODES,
        shards: CORES,
        servers: 1,
        colocated: true,
        bytes_per_server: 256 << 20,
        locks_per_server: LOCKS,
        chunk_bytes: 64 << 20,
        ..SimConfig::default()
    };
    let simulation = Simulation::new(&config).map_err(|error| error.to_string())?;
    let shards: Vec<SimShard> = (0..NODES)
        .flat_map(|node| (0..CORES).map(move |core| (node, core)))
        .map(|(n, c)| simulation.shard(n, c))
        .collect();
    let tables: Vec<LockTable<SimShard>> =
        shards.iter().map(|shard| LockTable::attach(shard.clone(), Port(0), locks.clone())).collect();
    let nodes = Rc::new(nodes_of_all_locks(&shards[0], &tables[0]));
    let window = (WARMUP_NS, WARMUP_NS + measured_ns);
    let ops = Rc::new(Cell::new(0u64));
    let latency = Rc::new(RefCell::new(Histogram::new(3).expect("three digits are possible")));
    for (shard, table) in shards.iter().zip(&tables) {
        let client = client(
            shard.clone(),
            table.clone(),
            Rc::clone(&nodes),
            window,
            (Rc::clone(&ops), Rc::clone(&latency)),
        );
        drop(shard.spawn(client));
    }
    match simulation.run(window.1, || false) {
        Err(Stop::Late) => {}
        _ => return Err("all clients wait for ever".into()),
    }
    let latency = latency.borrow();
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Shown { mops: ops.get() as f64 * 1000.0 / measured_ns as f64, p50_us: us(0.5), p99_us: us(0.99) })
}

/// Yields one node for each lock word: nodes find their words by a hash.
fn nodes_of_all_locks(shard: &SimShard, table: &LockTable<SimShard>) -> Vec<RemotePtr> {
    let server = shard.control().servers()[0].id;
    let chunk = futures::executor::block_on(shard.control().chunk(server, IndexId(1)));
    let start = chunk.expect("a fresh server has a chunk").start;
    let mut words = std::collections::BTreeMap::new();
    for i in 0..1_000_000 {
        let node = start.add(i * 64);
        words.entry(table.word_of(node).to_bits()).or_insert(node);
        if words.len() as u64 == LOCKS {
            break;
        }
    }
    words.into_values().collect()
}

async fn client(
    shard: SimShard,
    table: LockTable<SimShard>,
    nodes: Rc<Vec<RemotePtr>>,
    window: (u64, u64),
    board: (Rc<Cell<u64>>, Rc<RefCell<Histogram<u64>>>),
) {
    let mut rng = client_rng(&shard);
    let zipf = Zipf::new(nodes.len() as f64, 0.99).expect("the exponent is positive");
    let meter = Meter::default();
    loop {
        let node = nodes[zipf.sample(&mut rng) as usize - 1];
        let start_ns = shard.now();
        let mut held = table.acquire(&meter, node).await.expect("it waits for ever");
        held.lock(&meter).await.expect("nothing fails here");
        held.release(&meter, Chain::new(node.server()), true).await.expect("nothing fails here");
        let end_ns = shard.now();
        if (window.0..window.1).contains(&end_ns) {
            board.0.set(board.0.get() + 1);
            board.1.borrow_mut().record(end_ns - start_ns).expect("histograms grow with their values");
        }
    }
}
