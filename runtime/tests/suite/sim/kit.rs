//! Tools that the scenarios on the simulated fabric share: small clusters, reordering, and single verbs.

use std::cell::Cell;
use std::rc::Rc;

use farwood_runtime::sim::{Fault, Reordering, Rule, SimConfig, SimShard, Simulation};
use farwood_runtime::{Buf, Chain, Failed, IndexId, Meter, RemotePtr, ServerId, Verbs};
use futures::FutureExt;

/// A time far beyond what any scenario takes.
pub(crate) const LATE_NS: u64 = 60_000_000_000;

/// Reordering in which every line is accessed by itself, and messages are up to 2 us late.
pub(crate) const ROUGH: Reordering =
    Reordering { lines: true, scatter_one_in: 3, scatter_ns: 5_000, jitter_ns: 2_000, in_order_write: false };

/// Makes a configuration of two nodes of two shards and two memory servers.
pub(crate) fn config(seed: u64, reordering: Reordering) -> SimConfig {
    SimConfig {
        seed,
        reordering,
        nodes: 2,
        shards: 2,
        servers: 2,
        bytes_per_server: 8 << 20,
        locks_per_server: 1024,
        chunk_bytes: 1 << 20,
        ..SimConfig::default()
    }
}

pub(crate) fn simulation(seed: u64, reordering: Reordering) -> Simulation {
    Simulation::new(&config(seed, reordering)).unwrap()
}

/// Takes a chunk of `server`, zeroed.
pub(crate) fn area(simulation: &Simulation, server: u16) -> RemotePtr {
    let control = simulation.shard(0, 0).control().clone();
    control.chunk(ServerId(server), IndexId(1)).now_or_never().unwrap().unwrap().start
}

/// Makes a rule for a fault that strikes one in `one_in` verbs, `most` times.
pub(crate) fn rule(fault: Fault, one_in: u32, most: u32) -> Rule {
    Rule { fault, one_in, most }
}

/// Runs clients until all of them have ended; panics if one cannot.
pub(crate) fn run_all(simulation: &Simulation, clients: &Rc<Cell<usize>>) {
    simulation.run(LATE_NS, || clients.get() == 0).unwrap();
}

/// Starts a client that counts itself in `alive`.
pub(crate) fn start(v: &SimShard, alive: &Rc<Cell<usize>>, client: impl Future<Output = ()> + 'static) {
    alive.set(alive.get() + 1);
    let alive = Rc::clone(alive);
    drop(v.spawn(async move {
        client.await;
        alive.set(alive.get() - 1);
    }));
}

/// Starts a client that WRITEs `bytes` bytes of the words 1, 2, ... until the cell that it yields is false.
pub(crate) fn keep_writing(
    v: &SimShard,
    alive: &Rc<Cell<usize>>,
    at: RemotePtr,
    bytes: usize,
) -> Rc<Cell<bool>> {
    let goes_on = Rc::new(Cell::new(true));
    let (writer, writing) = (v.clone(), Rc::clone(&goes_on));
    start(v, alive, async move {
        let mut n = 0;
        while writing.get() {
            n += 1;
            write(&writer, at, bytes, n).await.unwrap();
        }
    });
    goes_on
}

/// Submits a chain that `build` makes with a buffer of `bytes` bytes.
pub(crate) fn submit<V: Verbs>(
    v: &V,
    server: ServerId,
    bytes: usize,
    build: impl FnOnce(&mut Chain),
) -> V::Submission {
    let mut chain = Chain::with_buffer(server, v.lease(bytes));
    build(&mut chain);
    v.submit(&Meter::default(), chain)
}

pub(crate) async fn read<V: Verbs>(v: &V, at: RemotePtr, bytes: usize) -> Result<Vec<u64>, Failed> {
    Ok(words(&v.read(&Meter::default(), at, bytes).await?.into_buf()))
}

/// WRITEs `bytes` bytes of which every word is `word`.
pub(crate) async fn write<V: Verbs>(v: &V, at: RemotePtr, bytes: usize, word: u64) -> Result<(), Failed> {
    v.submit(&Meter::default(), write_chain(v, at, bytes, word)).await.map(drop)
}

pub(crate) fn write_chain<V: Verbs>(v: &V, at: RemotePtr, bytes: usize, word: u64) -> Chain {
    let mut chain = Chain::with_buffer(at.server(), filled(v, bytes, word));
    chain.write(at, 0..bytes);
    chain
}

pub(crate) fn filled<V: Verbs>(v: &V, bytes: usize, word: u64) -> Buf {
    let mut buf = v.lease(bytes);
    for place in buf.chunks_exact_mut(8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    buf
}

pub(crate) async fn faa<V: Verbs>(v: &V, at: RemotePtr, add: u64) -> Result<u64, Failed> {
    let mut chain = Chain::new(at.server());
    chain.faa(at, add);
    Ok(v.submit(&Meter::default(), chain).await?.atomics[0])
}

pub(crate) async fn cas<V: Verbs>(v: &V, at: RemotePtr, expected: u64, desired: u64) -> Result<u64, Failed> {
    let mut chain = Chain::new(at.server());
    chain.cas(at, expected, desired);
    Ok(v.submit(&Meter::default(), chain).await?.atomics[0])
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}
