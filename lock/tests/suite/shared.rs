//! Locks that are shared: clients add one to words of their own in a node, some beside others by a WRITE of that word,
//! some alone by a WRITE of the whole node. A client that works beside one which has the lock alone loses an update or
//! sees a torn node.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::shared::{Lanes, SharedLocks, SharedStats};
use farwood_lock::{LockConfig, LockError, LockTable, LockWord};
use farwood_runtime::{Buf, Chain, FabricError, Meter, RemotePtr, ServerId, Verbs};

use crate::clients::{Cut, DATA_BYTES, NODE_BYTES};
use crate::fake::{Fake, Fault, NODES, World, embedded, node};

/// The lane directory: between the lock words and the nodes.
const DIRECTORY: u64 = 256;
/// The first part of a node that is read: the lock's words.
const WORDS: std::ops::Range<usize> = DATA_BYTES..NODE_BYTES;
const STAMPS: [usize; 2] = [56, DATA_BYTES - 8];

/// The way in which a client works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It shares the lock and writes its word.
    Shares,
    /// It shares the lock and changes its word by an atomic.
    Swaps,
    /// It has the lock alone.
    Alone,
    /// The mistake of the negative control: it writes its word without the lock.
    Ignores,
}

fn lanes(count: u16) -> Lanes {
    Lanes { after: 0, ..Lanes::new(RemotePtr::new(ServerId(0), DIRECTORY), count) }
}

/// A cluster's shards with their shared locks.
struct Cluster {
    world: World,
    tables: Vec<(Fake, LockTable<Fake>)>,
    locks: Vec<SharedLocks<Fake>>,
}

impl Cluster {
    /// Makes a cluster whose shards have their lanes already.
    fn new(world: World, config: LockConfig, lanes: Lanes) -> Self {
        let cluster = Cluster::without_lanes(world, config, lanes);
        for client in (0..cluster.tables.len()).map(|shard| cluster.client(shard, 0, Way::Shares)) {
            cluster.world.spawn(async move {
                client.share(&Meter::default(), 9).await.expect("the fabric does not fail");
            });
        }
        cluster.world.run();
        cluster
    }

    fn without_lanes(world: World, config: LockConfig, lanes: Lanes) -> Self {
        let tables = world.attach(config);
        let locks = tables.iter().map(|(_, table)| SharedLocks::new(table, lanes)).collect();
        Cluster { world, tables, locks }
    }

    fn client(&self, shard: usize, word: usize, way: Way) -> Client {
        let (fake, locks) = (self.tables[shard].0.clone(), self.locks[shard].clone());
        Client { fake, locks, word, way, bounds: Rc::default(), lost: Rc::default() }
    }

    fn stats(&self) -> SharedStats {
        let mut total = SharedStats::default();
        self.locks.iter().for_each(|locks| total += &locks.stats());
        total
    }

    fn assert_at_rest(&self) {
        self.world.assert_at_rest(&self.tables);
        for index in 0..10 {
            assert_eq!(self.world.word(embedded(index).offset() + 8), 0, "a bit in node {index} stays set");
        }
        assert!(self.locks.iter().all(|locks| locks.in_use() == 0), "a presence is left");
    }
}

/// One client and what it knows of its own word.
#[derive(Clone)]
struct Client {
    fake: Fake,
    locks: SharedLocks<Fake>,
    word: usize,
    way: Way,
    /// The least and the most that the word may hold.
    bounds: Rc<Cell<(u64, u64)>>,
    /// Times that it held something else, or the node was torn.
    lost: Rc<Cell<u32>>,
}

impl Client {
    async fn add_one(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        match self.way {
            Way::Shares | Way::Swaps => self.share(meter, index).await,
            Way::Alone => self.have_alone(meter, index).await,
            Way::Ignores => self.ignore_the_lock(meter, index).await,
        }
    }

    async fn ignore_the_lock(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        let mut buf = self.fake.read(meter, node(index), NODE_BYTES).await?.into_buf();
        let value = self.see(&buf);
        buf[self.place()..][..8].copy_from_slice(&(value + 1).to_le_bytes());
        let at = node(index).add(self.place() as u64);
        let mut chain = Chain::with_buffer(at.server(), buf);
        chain.write(at, self.place()..self.place() + 8);
        self.fake.submit(meter, chain).await?;
        self.bounds.set((value + 1, value + 1));
        Ok(())
    }

    async fn share(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        let (buf, parts) = (self.fake.lease(NODE_BYTES), [WORDS, 0..DATA_BYTES]);
        let (shared, read) =
            self.locks.share_and_read(meter, node(index), embedded(index), buf, &parts).await?;
        let mut buf = read.into_buf();
        let value = self.see(&buf);
        let at = node(index).add(self.place() as u64);
        let mut chain = Chain::new(at.server());
        if self.way == Way::Swaps {
            chain.cas(at, value, value + 1);
        } else {
            buf[self.place()..][..8].copy_from_slice(&(value + 1).to_le_bytes());
            chain = Chain::with_buffer(at.server(), buf);
            chain.write(at, self.place()..self.place() + 8);
        }
        let done = shared.release(meter, chain).await?;
        assert_eq!(done.atomics.len(), usize::from(self.way == Way::Swaps));
        self.lost.set(self.lost.get() + u32::from(done.atomics.iter().any(|found| *found != value)));
        self.bounds.set((value + 1, value + 1));
        Ok(())
    }

    async fn have_alone(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        let buf = self.fake.lease(NODE_BYTES);
        let mut held = self.locks.acquire(meter, node(index), embedded(index)).await?;
        let read = self.locks.lock_and_read(meter, &mut held, buf, &[WORDS, 0..DATA_BYTES]).await?;
        let mut buf = read.into_buf();
        let value = self.see(&buf);
        let stamp = word_in(&buf, STAMPS[0]) + 1;
        for (at, word) in [(self.place(), value + 1), (STAMPS[0], stamp), (STAMPS[1], stamp)] {
            buf[at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        let mut chain = Chain::with_buffer(node(index).server(), buf);
        chain.write(node(index), 0..DATA_BYTES);
        held.release(meter, chain, true).await?;
        self.bounds.set((value + 1, value + 1));
        Ok(())
    }

    /// Compares what was read with what may be there; yields what its word holds.
    fn see(&self, buf: &Buf) -> u64 {
        let [first, second] = STAMPS.map(|at| word_in(buf, at));
        let value = word_in(buf, self.place());
        self.lost.set(self.lost.get() + u32::from(first != second));
        self.compare(value);
        self.bounds.set((value, value + 1));
        value
    }

    fn compare(&self, value: u64) {
        let (least, most) = self.bounds.get();
        self.lost.set(self.lost.get() + u32::from(!(least..=most).contains(&value)));
    }

    /// Counts what was lost of its word in node 0, for good.
    fn lost(&self, world: &World) -> u32 {
        self.compare(self.value(world));
        self.lost.get()
    }

    fn value(&self, world: &World) -> u64 {
        world.word(NODES + self.place() as u64)
    }

    /// Yields the offset of its word in a node, around the stamps.
    fn place(&self) -> usize {
        (self.word + usize::from(self.word >= STAMPS[0] / 8)) * 8
    }
}

fn word_in(buf: &Buf, at: usize) -> u64 {
    u64::from_le_bytes(buf[at..][..8].try_into().expect("8 bytes"))
}

/// What befalls the clients of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    fault_rate: f64,
    /// The number of polls after which operations are dropped goes round up to this; 0 drops none.
    polls_max: u32,
    at_once: bool,
}

/// Runs twelve clients on 2 compute nodes x 2 shards, `rounds` operations each; those of which `way` says so share.
/// Yields the cluster, and how many updates were lost.
fn run(seed: u64, lanes: Lanes, trouble: Trouble, rounds: u32, way: impl Fn(usize) -> Way) -> (Cluster, u32) {
    let cluster =
        Cluster::new(World::new(seed, 2, 2).with_lines(seed % 2 == 0), LockConfig::default(), lanes);
    cluster.world.set_fault_rate(trouble.fault_rate);
    let clients: Vec<Client> = (0..12).map(|word| cluster.client(word % 4, word, way(word))).collect();
    for (i, client) in clients.iter().cloned().enumerate() {
        cluster.world.spawn(async move {
            for round in 0..rounds {
                let cut =
                    if trouble.polls_max == 0 { u32::MAX } else { (round + i as u32) % trouble.polls_max };
                let meter = Meter::default();
                match Cut::after(cut, trouble.at_once, client.add_one(&meter, 0)).await {
                    None | Some(Ok(())) => {}
                    // Of a write-back that is shared the outcome may stay unknown.
                    Some(Err(LockError::Fabric(FabricError::QueuePair { .. }))) => {
                        assert!(trouble.fault_rate > 0.0 && client.way != Way::Alone);
                    }
                    Some(Err(error)) => panic!("{error}"),
                }
            }
        });
    }
    cluster.world.run();
    let lost = clients.iter().map(|client| client.lost(&cluster.world)).sum();
    if trouble.fault_rate == 0.0 && trouble.polls_max == 0 && lost == 0 {
        assert!(clients.iter().all(|client| client.value(&cluster.world) == u64::from(rounds)));
    }
    (cluster, lost)
}

fn mixed(word: usize) -> Way {
    [Way::Shares, Way::Swaps, Way::Alone][word % 3]
}

#[test]
fn sharers_and_clients_alone_exclude_each_other() {
    let mut total = SharedStats::default();
    for seed in 0..150 {
        let (cluster, lost) = run(seed, lanes(64), Trouble::default(), 6, mixed);
        assert_eq!(lost, 0, "lost updates with seed {seed}");
        cluster.assert_at_rest();
        total += &cluster.stats();
    }
    assert!(total.joined > 500 && total.barred > 500 && total.awaited > 500, "{total:?}");
}

#[test]
fn sharers_need_no_turns() {
    for seed in 0..30 {
        let (cluster, lost) = run(seed, lanes(64), Trouble::default(), 6, |_| Way::Shares);
        assert_eq!((lost, cluster.stats().barred, cluster.stats().awaited), (0, 0, 0), "seed {seed}");
        cluster.assert_at_rest();
    }
}

#[test]
fn writing_without_the_lock_is_caught() {
    let ways = |word: usize| if word % 3 == 0 { Way::Ignores } else { Way::Alone };
    let lost = |seed| run(seed, lanes(64), Trouble::default(), 6, ways).1 > 0;
    let caught = (0..20).filter(|&seed| lost(seed)).count();
    assert!(
        caught >= 15,
        "updates beside a client that has the lock alone went unnoticed: {caught} of 20 seeds"
    );
}

#[test]
fn dropping_at_every_await_point_leaves_nothing_behind() {
    for seed in 0..120 {
        for at_once in [false, true] {
            let trouble = Trouble { polls_max: 7, at_once, ..Trouble::default() };
            let (cluster, lost) = run(seed, lanes(64), trouble, 8, mixed);
            assert_eq!(lost, 0, "lost updates with seed {seed}");
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn chains_that_fail_are_settled() {
    for seed in 0..120 {
        for (fault_rate, polls_max) in [(0.1, 0), (0.3, 0), (0.1, 7)] {
            let trouble = Trouble { fault_rate, polls_max, at_once: seed % 3 == 0 };
            let (cluster, lost) = run(seed, lanes(64), trouble, 8, mixed);
            assert_eq!(lost, 0, "lost updates with seed {seed}, {trouble:?}");
            cluster.world.set_fault_rate(0.0);
            cluster.assert_at_rest();
        }
    }
}

#[test]
fn shards_without_a_lane_have_locks_alone() {
    for seed in 0..40 {
        let (cluster, lost) = run(seed, lanes(1), Trouble::default(), 6, mixed);
        assert_eq!(lost, 0, "lost updates with seed {seed}");
        let stats = cluster.stats();
        assert!(stats.laneless > 0 && stats.shared > 0, "{stats:?}");
        assert_eq!(cluster.locks.iter().filter(|locks| locks.lane().is_some()).count(), 1);
        cluster.assert_at_rest();
    }
}

#[test]
fn a_sharer_that_is_overtaken_queues_up() {
    let mut overtaken = 0;
    for seed in 0..40 {
        let lanes = Lanes { overtaken_max: 1, ..lanes(64) };
        let ways = |word| if word % 4 == 0 { Way::Shares } else { Way::Alone };
        let (cluster, lost) = run(seed, lanes, Trouble::default(), 6, ways);
        assert_eq!(lost, 0, "lost updates with seed {seed}");
        overtaken += cluster.stats().overtaken;
        cluster.assert_at_rest();
    }
    assert!(overtaken > 20, "{overtaken}");
}

#[test]
fn lanes_are_given_back() {
    for fault_rate in [0.0, 0.3] {
        for seed in 0..20 {
            let cluster = Cluster::without_lanes(World::new(seed, 2, 2), LockConfig::default(), lanes(3));
            cluster.world.set_fault_rate(fault_rate);
            let Cluster { world, tables, locks } = cluster;
            for (shard, own) in locks.iter().enumerate() {
                let (fake, locks) = (tables[shard].0.clone(), own.clone());
                let client = Client { fake, locks, word: shard, way: Way::Shares, ..blank(own, &tables) };
                world.spawn(async move {
                    let _ = client.share(&Meter::default(), 0).await;
                });
            }
            world.run();
            let own: Vec<u16> = locks.iter().filter_map(SharedLocks::lane).collect();
            assert_eq!(own.len(), 3, "seed {seed}");
            let words: Vec<u64> = (0..3).map(|lane| world.word(DIRECTORY + lane * 8)).collect();
            assert!(words.iter().all(|word| LockWord::from_bits(*word).is_some()));
            drop(locks);
            world.run();
            assert!((0..4).all(|lane| world.word(DIRECTORY + lane * 8) == 0), "seed {seed}");
            world.assert_at_rest(&tables);
        }
    }
}

fn blank(locks: &SharedLocks<Fake>, tables: &[(Fake, LockTable<Fake>)]) -> Client {
    let (bounds, lost) = Default::default();
    Client { fake: tables[0].0.clone(), locks: locks.clone(), word: 0, way: Way::Shares, bounds, lost }
}

/// The costs of one operation: round trips, READs, WRITEs and FAAs.
fn costs(meter: &Meter) -> (u32, u32, u32, u32) {
    let usage = meter.usage();
    (usage.round_trips, usage.reads, usage.writes, usage.faa)
}

#[test]
fn round_trips_are_as_promised() {
    let cluster = Cluster::new(World::new(1, 1, 1), LockConfig::default(), lanes(64));
    let [first, second] = [0, 1].map(|word| cluster.client(0, word, Way::Shares));
    cluster.world.spawn(async move {
        let meter = Meter::default();
        first.share(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!(costs(&meter), (2, 2, 1, 2), "FAA, READ, READ; WRITE, FAA");
        let (outer, meter) = (Meter::default(), Meter::default());
        let (buf, parts) = (first.fake.lease(NODE_BYTES), [WORDS, 0..DATA_BYTES]);
        let shared = first.locks.share_and_read(&outer, node(0), embedded(0), buf, &parts);
        let (shared, _) = shared.await.expect("the fabric does not fail");
        second.share(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!(costs(&meter), (2, 2, 1, 0), "READ, READ; WRITE: its shard is present");
        shared.release(&outer, Chain::new(node(0).server())).await.expect("the fabric does not fail");
        assert_eq!(costs(&outer), (2, 2, 0, 2), "nothing to write, but the bit");
        let meter = Meter::default();
        first.have_alone(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!((costs(&meter), meter.usage().cas), ((2, 2, 2, 0), 1), "CAS, READ, READ; WRITE, unlock");
    });
    cluster.world.run();
    cluster.assert_at_rest();
}

/// One client alone on its shard, one operation, cut at each await point or failing at each chain in each way: nothing
/// is left behind, and the next operation goes through.
#[test]
fn every_await_point_and_every_failure_of_a_lone_operation() {
    let cuts = (0..5).flat_map(|polls| [(Some(polls), None)]);
    let faults = (0..4).flat_map(|chain| {
        (0..=3).map(move |verbs| Fault { verbs, lines: 1, gone: false }).map(move |fault| (chain, fault))
    });
    let faults = faults.map(|fault| (None, Some(fault)));
    for (polls, fault) in cuts.chain(faults) {
        for way in [Way::Shares, Way::Swaps, Way::Alone] {
            for at_once in [false, true] {
                lone(way, polls, at_once, fault);
            }
        }
    }
}

fn lone(way: Way, polls: Option<u32>, at_once: bool, fault: Option<(usize, Fault)>) {
    let cluster = Cluster::new(World::new(7, 1, 1), LockConfig::default(), lanes(64));
    if let Some((chain, fault)) = fault {
        cluster.world.fail(chain, fault);
    }
    let client = cluster.client(0, 0, way);
    let (again, posted) = (client.clone(), cluster.world.posted());
    cluster.world.spawn(async move {
        let done = Cut::after(polls.unwrap_or(u32::MAX), at_once, client.add_one(&Meter::default(), 0)).await;
        let is_unknown = |error: LockError| matches!(error, LockError::Fabric(FabricError::QueuePair { .. }));
        assert!(
            done.is_none_or(|done| done.map_or_else(|error| fault.is_some() && is_unknown(error), |()| true))
        );
    });
    cluster.world.run();
    cluster.assert_at_rest();
    assert_eq!(again.lost(&cluster.world), 0, "{way:?}, {polls:?}, {fault:?}");
    let before = again.value(&cluster.world);
    if fault.is_some_and(|(chain, _)| cluster.world.posted() - posted <= chain) {
        return;
    }
    for next in [way, Way::Alone] {
        let next = Client { way: next, ..again.clone() };
        cluster.world.spawn(async move {
            next.add_one(&Meter::default(), 0).await.expect("the lock is free");
        });
        cluster.world.run();
    }
    assert_eq!(again.value(&cluster.world), before + 2);
    cluster.assert_at_rest();
}

/// The chain of the last client of a shard fails. Its bit is looked at:
/// ```text
///   WRITE, FAA ✗   clear: both took effect
///   WRITE ✗ FAA    set: the WRITE may have taken effect
/// ```
#[test]
fn a_release_that_took_effect_succeeds_though_it_failed() {
    for (verbs, ends_well) in [(2, true), (1, false), (0, false)] {
        let cluster = Cluster::new(World::new(3, 1, 1), LockConfig::default(), lanes(64));
        cluster.world.fail(1, Fault { verbs, ..Fault::default() });
        let client = cluster.client(0, 0, Way::Shares);
        let writer = client.clone();
        cluster.world.spawn(async move {
            let done = writer.share(&Meter::default(), 0).await;
            assert_eq!(done.is_ok(), ends_well, "{done:?}");
        });
        cluster.world.run();
        assert_eq!(client.value(&cluster.world), u64::from(verbs > 0));
        // FAA and READs; the release; the look, and the FAA again where it is needed.
        assert_eq!(cluster.world.posted() - warm_up(), if ends_well { 3 } else { 4 });
        cluster.assert_at_rest();
    }
}

/// Counts the chains that a cluster of one shard posts before a test begins.
fn warm_up() -> usize {
    Cluster::new(World::new(3, 1, 1), LockConfig::default(), lanes(64)).world.posted()
}

/// A holder and a sharer of a compute node that is gone: errors name it.
#[test]
fn errors_name_the_compute_node_that_has_the_lock() {
    let config = LockConfig { wait_max: std::time::Duration::from_millis(20), ..LockConfig::default() };
    for (at, way) in [(0, Way::Shares), (8, Way::Alone)] {
        let cluster = Cluster::new(World::new(5, 1, 2), config.clone(), lanes(64));
        let dead = LockWord::new(9, 1, 77).to_bits();
        cluster.world.set_word(DIRECTORY + 5 * 8, dead);
        let (lock, held) = (embedded(0).offset() + at, if at == 0 { dead } else { 1 << 5 });
        cluster.world.set_word(lock, held);
        for shard in [0, 0, 1] {
            let client = cluster.client(shard, shard, way);
            cluster.world.spawn(async move {
                let done = client.add_one(&Meter::default(), 0).await;
                assert!(matches!(done, Err(LockError::Contended { owner: 9, .. })), "{done:?}");
            });
        }
        cluster.world.run();
        assert_eq!(cluster.world.word(lock), held, "it is left alone");
        cluster.world.set_word(lock, 0);
        cluster.assert_at_rest();
    }
}

/// A client of this compute node shares the lock and does not go on: the clients behind it do not wait for ever.
#[test]
fn a_client_that_does_not_go_on_is_named_too() {
    let config = LockConfig { wait_max: std::time::Duration::from_millis(20), ..LockConfig::default() };
    let cluster = Cluster::new(World::new(5, 1, 1), config, lanes(64));
    let [first, alone, late] = [Way::Shares, Way::Alone, Way::Shares].map(|way| cluster.client(0, 0, way));
    cluster.world.spawn(async move {
        let (meter, buf) = (Meter::default(), first.fake.lease(NODE_BYTES));
        let shared = first.locks.share_and_read(&meter, node(0), embedded(0), buf, &[WORDS]);
        let (shared, _) = shared.await.expect("the fabric does not fail");
        let waits = alone.add_one(&Meter::default(), 0).await;
        assert!(matches!(waits, Err(LockError::Contended { owner: 1, .. })), "{waits:?}");
        late.add_one(&Meter::default(), 0).await.expect("the client alone has given up");
        shared.release(&meter, Chain::new(node(0).server())).await.expect("the fabric does not fail");
    });
    cluster.world.run();
    cluster.assert_at_rest();
}

/// A memory server does not answer for a while: operations say so, and the bit is cleared when it is back, by the
/// janitor or by the next client.
#[test]
fn a_server_that_is_gone_ends_operations_and_leaves_bits_to_be_settled() {
    let mut orphaned = 0;
    for gone in [1, 5, 12, 21, 40, 45, 100] {
        for begins in 0..2 {
            let cluster = Cluster::new(World::new(5, 1, 1), LockConfig::default(), lanes(64));
            (begins..begins + gone).for_each(|chain| cluster.world.fail(chain, Fault::GONE));
            let client = cluster.client(0, 0, Way::Shares);
            let first = client.clone();
            cluster.world.spawn(async move {
                let done = first.share(&Meter::default(), 0).await;
                assert!(matches!(done, Err(LockError::Fabric(FabricError::ServerGone { .. }))), "{done:?}");
            });
            cluster.world.run();
            assert!(cluster.stats().orphaned > 0 || cluster.locks[0].in_use() == 0);
            let again = client.clone();
            cluster.world.spawn(async move {
                for _ in 0..100 {
                    match again.share(&Meter::default(), 0).await {
                        Ok(()) => return,
                        Err(LockError::Fabric(FabricError::ServerGone { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                panic!("the server is back");
            });
            cluster.world.run();
            assert_eq!(client.lost(&cluster.world), 0);
            orphaned += cluster.stats().orphaned;
            cluster.assert_at_rest();
        }
    }
    assert!(orphaned > 0);
}
