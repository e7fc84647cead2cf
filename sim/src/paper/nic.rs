//! Micro-measurements of the NIC model itself, without any index: latencies, message rates over payload sizes, and
//! CAS on host and on-chip memory. They show that the model gives back what it was calibrated with.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::{Profile, SimConfig, SimShard, Simulation, Stop};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use rand::Rng;
use rand::distr::Distribution;
use rand::rngs::SmallRng;
use rand_distr::Zipf;

use super::workload::client_rng;
use super::{Class, Effort, Row};

const NAME: &str = "nic";
const CORES: u16 = 22;
const MACHINES: u16 = 8;
/// Verbs behind one doorbell, where rates are measured.
const BATCH: usize = 16;
/// Lock words for CAS on different addresses.
const WORDS: u64 = 10_240;

/// The verbs that a machine's cores post without end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// WRITEs of so many bytes.
    Write(usize),
    /// READs of so many bytes.
    Read(usize),
    /// CAS on host or on-chip memory, one at a time, on one word or on many. Taking a word that is free, or trying
    /// one that is not.
    Cas { on_chip: bool, words: Words, wins: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Words {
    One,
    Even,
    Skewed,
}

pub(super) fn run(effort: &Effort) -> Result<Vec<Row>, String> {
    let (write_ns, read_ns) = latencies(effort)?;
    let mut rows = vec![
        Row::new(NAME, "WRITE of 8 B one way, us", 0.99, write_ns as f64 / 1e3, Class::Calibration),
        Row::new(NAME, "READ of 1 KiB with post and poll, us", 2.6, read_ns as f64 / 1e3, Class::Calibration),
    ];
    for (from, to, side) in [(1, MACHINES, "outbound"), (MACHINES, 1, "inbound")] {
        for bytes in [16, 64, 128] {
            let mops = rate(effort, Load::Write(bytes), from, to)?;
            rows.push(Row::new(NAME, format!("{side} WRITE of {bytes} B, Mops"), 50.0, mops, Class::AtLeast));
        }
        for bytes in [256usize, 1024] {
            // "Hardware bandwidth restricts throughput": the link's bytes over the message's.
            let header = Profile::CONNECTX5.header_bytes + Profile::CONNECTX5.request_bytes;
            let bound = 12_500.0 / (bytes as u64 + header) as f64;
            let mops = rate(effort, Load::Write(bytes), from, to)?;
            let figure = format!("{side} WRITE of {bytes} B, Mops (link bandwidth)");
            rows.push(Row::new(NAME, figure, bound, mops, Class::Calibration));
        }
    }
    rows.push(Row::new(
        NAME,
        "inbound READ of 16 B, Mops",
        67.0,
        rate(effort, Load::Read(16), MACHINES, 1)?,
        Class::Calibration,
    ));
    for (figure, paper, load) in [
        ("host CAS on one address that wins, Mops", 2.04, (false, Words::One, true)),
        ("host CAS on one address that fails, Mops", 1000.0 / 290.0, (false, Words::One, false)),
        ("on-chip CAS on one address, Mops", 8.65, (true, Words::One, true)),
        ("on-chip CAS on 10,240 addresses, Mops", 67.0, (true, Words::Even, true)),
    ] {
        let (on_chip, words, wins) = load;
        let mops = rate(effort, Load::Cas { on_chip, words, wins }, MACHINES, 1)?;
        rows.push(Row::new(NAME, figure, paper, mops, Class::Calibration));
    }
    // No published figure: the hottest of 10,240 words is asked for in 10.2 % of the cases under a skew of 0.99; its
    // own rate bounds the whole on the host, the responder's on the chip.
    for (figure, on_chip, bound) in [("host", false, 2.04 / 0.102), ("on-chip", true, 67.0)] {
        let mops = rate(effort, Load::Cas { on_chip, words: Words::Skewed, wins: true }, MACHINES, 1)?;
        let figure = format!("{figure} CAS on 10,240 addresses, skew 0.99, Mops (bound)");
        rows.push(Row::new(NAME, figure, bound, mops, Class::Calibration));
    }
    Ok(rows)
}

fn simulation(effort: &Effort) -> Result<Simulation, String> {
    // Nothing is searched here, and nothing computed.
    let profile = Profile { search_ps_per_byte: 0, ..Profile::CONNECTX5 };
    let config = SimConfig {
        seed: effort.seed,
        profile,
        nodes: MACHINES,
        shards: CORES,
        servers: MACHINES,
        bytes_per_server: 16 << 20,
        chunk_bytes: 1 << 20,
        ..SimConfig::default()
    };
    Simulation::new(&config).map_err(|error| error.to_string())
}

/// Yields the place where everything is read and written.
fn area(server: usize, shard: &SimShard) -> RemotePtr {
    let info = &shard.control().servers()[server];
    RemotePtr::new(info.id, info.region_bytes / 2)
}

/// Measures, with one idle client, the time until a WRITE is in the server's memory, and until a READ is back.
fn latencies(effort: &Effort) -> Result<(u64, u64), String> {
    let simulation = simulation(effort)?;
    let (writer, reader) = (simulation.shard(0, 0), simulation.shard(1, 0));
    let seen = Rc::new(Cell::new(0));
    // A second machine would see the WRITE when it is in memory; the completion comes one wire later.
    let inner = writer.clone();
    let write = simulation.block_on(&writer, u64::MAX, async move {
        let start = inner.now();
        let mut chain = Chain::new(area(0, &inner).server());
        chain.write_word(area(0, &inner), 1);
        let done = inner.submit(&Meter::default(), chain).await;
        done.map(|_| inner.now() - start)
    });
    let write_ns = write.map_err(stopped)?.map_err(|failed| failed.cause().to_string())?;
    let (inner, end) = (reader.clone(), Rc::clone(&seen));
    let read = simulation.block_on(&reader, u64::MAX, async move {
        let start = inner.now();
        let done = inner.read(&Meter::default(), area(0, &inner), 1024).await;
        end.set(inner.now() - start);
        done.map(|_| ())
    });
    read.map_err(stopped)?.map_err(|failed| failed.cause().to_string())?;
    let profile = Profile::CONNECTX5;
    // Of the WRITE's round trip: the way back, the completion's DMA, post and poll do not belong to the way there;
    // the DMA into the server's memory, behind which the response does not wait, does.
    let ack_ns = profile.header_bytes * 10 / 125;
    let back_ns = profile.wire_ns + ack_ns + profile.pcie_write_ns + profile.post_ns + profile.poll_ns;
    Ok((write_ns - back_ns + profile.pcie_write_ns, seen.get()))
}

fn stopped(stop: Stop) -> String {
    format!("the simulation came to a stop: {stop:?}")
}

/// Measures million verbs per second between so many machines.
fn rate(effort: &Effort, load: Load, nodes: u16, servers: u16) -> Result<f64, String> {
    const WARMUP_NS: u64 = 1_000_000;
    /// Chains that a core has in flight: enough to be bound by the NICs, few enough not to wait for long.
    const PER_CORE: u16 = 2;
    let simulation = simulation(effort)?;
    let measured_ns = 4_000_000 * effort.time_percent / 100;
    let (begins_ns, ends_ns) = (WARMUP_NS, WARMUP_NS + measured_ns);
    let verbs = Rc::new(Cell::new(0));
    for client in 0..nodes * CORES * PER_CORE {
        let shard = simulation.shard(client % nodes, client / nodes % CORES);
        let (inner, verbs) = (shard.clone(), Rc::clone(&verbs));
        drop(shard.spawn(async move {
            let mut rng = client_rng(&inner);
            loop {
                let done = post(&inner, load, servers, &mut rng).await;
                if (begins_ns..ends_ns).contains(&inner.now()) {
                    verbs.set(verbs.get() + done);
                }
            }
        }));
    }
    match simulation.run(ends_ns, || false) {
        Err(Stop::Late) => Ok(verbs.get() as f64 * 1000.0 / measured_ns as f64),
        _ => Err("the clients have stopped".into()),
    }
}

/// Posts one chain and waits for it; yields how many verbs it had.
async fn post(shard: &SimShard, load: Load, servers: u16, rng: &mut SmallRng) -> u64 {
    let meter = Meter::default();
    let server = rng.random_range(0..usize::from(servers));
    let (chain, verbs) = match load {
        Load::Write(bytes) | Load::Read(bytes) => {
            let at = area(server, shard).add(rng.random_range(0..512) * 4096);
            let mut chain = Chain::with_buffer(at.server(), shard.lease(bytes * BATCH));
            for i in 0..BATCH {
                let local = i * bytes..(i + 1) * bytes;
                let at = at.add(local.start as u64);
                if matches!(load, Load::Write(_)) {
                    chain.write(at, local)
                } else {
                    chain.read(at, local)
                };
            }
            (chain, BATCH as u64)
        }
        Load::Cas { on_chip, words, wins } => {
            let word = match words {
                Words::One => 0,
                Words::Even => rng.random_range(0..WORDS),
                Words::Skewed => {
                    let zipf = Zipf::new(WORDS as f64, 0.99).expect("the exponent is positive");
                    zipf.sample(rng) as u64 - 1
                }
            };
            let info = &shard.control().servers()[server];
            let region = if on_chip { info.device_locks.unwrap_or(info.locks) } else { info.locks };
            let mut chain = Chain::new(info.id);
            // Words stay 0: swapping 0 for 0 wins, expecting 1 fails.
            chain.cas(region.base.add(word % region.count * 8), u64::from(!wins), 0);
            (chain, 1)
        }
    };
    shard.submit(&meter, chain).await.expect("nothing fails here");
    verbs
}
