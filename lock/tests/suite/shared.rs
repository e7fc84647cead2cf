//! Locks that are shared: clients add one to words of their own in a node, some beside others by a WRITE of that word,
//! some alone by a WRITE of the whole node. A client that works beside one which has the lock alone loses an update or
//! sees a torn node.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::shared::{Lanes, SharedLocks, SharedStats};
use farwood_lock::{LockConfig, LockError, LockTable, LockWord};
use farwood_runtime::{Buf, Chain, FabricError, Meter, RemotePtr, ServerId, Verbs};

use crate::clients::{Cut, DATA_BYTES, NODE_BYTES};
use crate::fake::{Fake, NODES, World, embedded, node};

/// The lane directory: between the lock words and the nodes.
pub(crate) const DIRECTORY: u64 = 256;
/// The first part of a node that is read: the lock's words.
pub(crate) const WORDS: std::ops::Range<usize> = DATA_BYTES..NODE_BYTES;
const STAMPS: [usize; 2] = [56, DATA_BYTES - 8];

/// The way in which a client works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It shares the lock and writes its word.
    Shares,
    /// It shares the lock and changes its word by an atomic.
    Swaps,
    /// It has the lock alone.
    Alone,
    /// It has the lock alone, and reads in a round trip of its own.
    AloneInTurn,
    /// The mistake of the negative control: it writes its word without the lock.
    Ignores,
}

pub(crate) fn lanes(count: u16) -> Lanes {
    Lanes { after: 0, ..Lanes::new(RemotePtr::new(ServerId(0), DIRECTORY), count) }
}

/// A cluster's shards with their shared locks.
pub(crate) struct Cluster {
    pub(crate) world: World,
    pub(crate) tables: Vec<(Fake, LockTable<Fake>)>,
    pub(crate) locks: Vec<SharedLocks<Fake>>,
}

impl Cluster {
    /// Makes a cluster whose shards have their lanes already.
    pub(crate) fn new(world: World, config: LockConfig, lanes: Lanes) -> Self {
        let tables = world.attach(config);
        Cluster::of(world, tables, lanes).with_its_lanes()
    }

    /// Makes a cluster whose shards have their lanes, and keep intents.
    pub(crate) fn with_intents(world: World, config: LockConfig, lanes: Lanes) -> Self {
        let tables = world.attach_with_intents(config);
        Cluster::of(world, tables, lanes).with_its_lanes()
    }

    fn with_its_lanes(self) -> Self {
        let cluster = self;
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
        Cluster::of(world, tables, lanes)
    }

    fn of(world: World, tables: Vec<(Fake, LockTable<Fake>)>, lanes: Lanes) -> Self {
        let locks = tables.iter().map(|(_, table)| SharedLocks::new(table, lanes)).collect();
        Cluster { world, tables, locks }
    }

    pub(crate) fn client(&self, shard: usize, word: usize, way: Way) -> Client {
        let (fake, locks) = (self.tables[shard].0.clone(), self.locks[shard].clone());
        Client { fake, locks, word, way, bounds: Rc::default(), lost: Rc::default() }
    }

    /// Counts the locks that were taken over.
    pub(crate) fn recovered(&self) -> u64 {
        self.tables.iter().map(|(_, table)| table.stats().recovered).sum()
    }

    pub(crate) fn stats(&self) -> SharedStats {
        let mut total = SharedStats::default();
        self.locks.iter().for_each(|locks| total += &locks.stats());
        total
    }

    pub(crate) fn assert_at_rest(&self) {
        self.world.assert_at_rest(&self.tables);
        for index in 0..10 {
            assert_eq!(self.world.word(embedded(index).offset() + 8), 0, "a bit in node {index} stays set");
        }
        assert!(self.locks.iter().all(|locks| locks.in_use() == 0), "a presence is left");
    }
}

/// One client and what it knows of its own word.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) fake: Fake,
    pub(crate) locks: SharedLocks<Fake>,
    pub(crate) word: usize,
    pub(crate) way: Way,
    /// The least and the most that the word may hold.
    pub(crate) bounds: Rc<Cell<(u64, u64)>>,
    /// Times that it held something else, or the node was torn.
    pub(crate) lost: Rc<Cell<u32>>,
}

impl Client {
    pub(crate) async fn add_one(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        match self.way {
            Way::Shares | Way::Swaps => self.share(meter, index).await,
            Way::Alone | Way::AloneInTurn => self.have_alone(meter, index).await,
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

    pub(crate) async fn share(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
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

    pub(crate) async fn have_alone(&self, meter: &Meter, index: u64) -> Result<(), LockError> {
        let (buf, fused) = (self.fake.lease(NODE_BYTES), self.way != Way::AloneInTurn);
        let mut held = self.locks.acquire(meter, node(index), embedded(index)).await?;
        let read = self.locks.lock_and_read(meter, &mut held, buf, &[WORDS, 0..DATA_BYTES], fused).await?;
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
    pub(crate) fn lost(&self, world: &World) -> u32 {
        self.compare(self.value(world));
        self.lost.get()
    }

    pub(crate) fn value(&self, world: &World) -> u64 {
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

/// The faults and drops that befall the clients of a run.
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
        Cluster::new(World::new(seed, 2, 2).with_lines(seed.is_multiple_of(2)), LockConfig::default(), lanes);
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
                        assert!(trouble.fault_rate > 0.0 && matches!(client.way, Way::Shares | Way::Swaps));
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
    [Way::Shares, Way::Swaps, Way::Alone, Way::Shares, Way::Swaps, Way::AloneInTurn][word % 6]
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
        let stats = cluster.stats();
        assert_eq!((lost, stats.barred, stats.awaited), (0, 0, 0), "seed {seed}");
        assert_eq!(
            stats.shared,
            12 * 6,
            "each operation has shared the lock, but those that came before the lanes"
        );
        cluster.assert_at_rest();
    }
}

#[test]
fn writing_without_the_lock_is_caught() {
    let ways = |word: usize| if word.is_multiple_of(3) { Way::Ignores } else { Way::Alone };
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
            for shard in 0..4 {
                let client = cluster.client(shard, shard, Way::Shares);
                cluster.world.spawn(async move {
                    // It may find out no outcome: only its lane counts here.
                    let _ = client.share(&Meter::default(), 0).await;
                });
            }
            let Cluster { world, tables, locks } = cluster;
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

/// Six clients of a shard share the lock by turns, so that it is never without one of them, while another client wants
/// it alone: once one of them has seen that, no other joins.
#[test]
fn a_shard_makes_way() {
    for seed in 0..20 {
        let cluster = Cluster::new(World::new(seed, 2, 1), LockConfig::default(), lanes(64));
        let (rounds, is_done) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        for word in 0..6 {
            let (client, rounds, is_done) =
                (cluster.client(0, word, Way::Shares), Rc::clone(&rounds), Rc::clone(&is_done));
            cluster.world.spawn(async move {
                while !is_done.get() && rounds.get() < 1_000 {
                    let (meter, buf) = (Meter::default(), client.fake.lease(NODE_BYTES));
                    let shared = client.locks.share_and_read(&meter, node(0), embedded(0), buf, &[WORDS]);
                    let (shared, _) = shared.await.expect("the fabric does not fail");
                    client.fake.pause(2_000).await;
                    shared
                        .release(&meter, Chain::new(node(0).server()))
                        .await
                        .expect("the fabric does not fail");
                    rounds.set(rounds.get() + 1);
                }
            });
        }
        let alone = cluster.client(1, 6, Way::Alone);
        cluster.world.spawn(async move {
            alone.add_one(&Meter::default(), 0).await.expect("the shard makes way");
            is_done.set(true);
        });
        cluster.world.run();
        assert!(rounds.get() < 100, "{} rounds with seed {seed}", rounds.get());
        cluster.assert_at_rest();
    }
}

/// Clients of a shard come at the same time, again and again: all but the first wait for it. None of them leaves
/// anything behind.
#[test]
fn those_that_have_waited_for_their_leader_take_no_memory() {
    for seed in 0..10 {
        let cluster = Cluster::new(World::new(seed, 1, 1), LockConfig::default(), lanes(64));
        let crowds = |count| {
            for _ in 0..count {
                for word in 0..8 {
                    let client = cluster.client(0, word, Way::Shares);
                    cluster.world.spawn(async move {
                        client.share(&Meter::default(), 0).await.expect("the fabric does not fail");
                    });
                }
                cluster.world.run();
            }
            cluster.locks[0].bytes()
        };
        let bytes = crowds(10);
        assert_eq!(crowds(100), bytes, "seed {seed}");
        let stats = cluster.stats();
        assert!(stats.joined > stats.shared / 2, "{stats:?}");
        cluster.assert_at_rest();
    }
}
