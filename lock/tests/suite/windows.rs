//! Read delegation and write combining between many clients, under every schedule and with clients that are dropped
//! wherever they can be. What a client is told has to be of a moment within its call.
//!
//! A key is a word of the fake memory: FAA is a write that says which one it was, so it is known which of two values
//! is newer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farwood_lock::window::{Access, Entered, LeaderGuard, Outcome, WindowConfig, WindowStats, WindowTable};
use farwood_runtime::{Chain, Meter, RemotePtr, Verbs};
use futures::channel::oneshot;

use crate::clients::Cut;
use crate::fake::{Fake, World, node};

const PUT: Access = Access::Write(0);
const UPDATE: Access = Access::Write(1);
const SHARDS: u16 = 3;

type Tables = [(Fake, WindowTable<Fake>)];

/// One key, and what is known of it.
#[derive(Clone)]
struct Key {
    index: u64,
    /// The newest write that any client may know of.
    announced: Rc<Cell<u64>>,
    value_bytes: usize,
}

impl Key {
    fn new(index: u64, value_bytes: usize) -> Self {
        Key { index, announced: Rc::default(), value_bytes }
    }

    fn at(&self) -> RemotePtr {
        node(self.index)
    }

    fn name(&self) -> Vec<u8> {
        format!("key {}", self.index).into_bytes()
    }

    /// Makes the key's value after write `version`.
    fn value(&self, version: u64) -> Vec<u8> {
        let words = [version, self.index].into_iter().cycle();
        words.flat_map(u64::to_le_bytes).take(self.value_bytes).collect()
    }

    /// Yields the number of the write that a value is of.
    fn version(&self, value: &[u8]) -> u64 {
        let version = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
        assert_eq!(value, self.value(version), "the value of another key, or of several writes");
        version
    }

    fn announce(&self, version: u64) {
        self.announced.set(self.announced.get().max(version));
    }
}

#[derive(Clone)]
struct Client {
    fake: Fake,
    table: WindowTable<Fake>,
    /// Calls of the client that led a window.
    led: Rc<Cell<u32>>,
}

impl Client {
    fn new((fake, table): &(Fake, WindowTable<Fake>)) -> Self {
        Client { fake: fake.clone(), table: table.clone(), led: Rc::default() }
    }

    /// Runs one operation, and checks what it is told.
    async fn operate(&self, key: &Key, access: Access) {
        let least = key.announced.get();
        match self.table.enter(&Meter::default(), &key.name(), access).await {
            Entered::Led(lead) => {
                self.led.set(self.led.get() + 1);
                self.lead(key, access, least, lead).await;
            }
            Entered::Bypass => self.check(key, least, self.work(key, access).await),
            Entered::Read(value) => {
                assert_eq!(access, Access::Read);
                let value = value.expect("every key has a value");
                self.check(key, least, key.version(&value));
            }
            Entered::Written { applied } => {
                assert!(applied && access != Access::Read);
                let now = self.fake.read(&Meter::default(), key.at(), 8).await.expect("no faults").into_buf();
                let now = u64::from_le_bytes(now[..8].try_into().expect("8 bytes"));
                assert!(now > least, "no write since the call began");
            }
        }
    }

    async fn lead(&self, key: &Key, access: Access, least: u64, lead: LeaderGuard<Fake>) {
        let version = self.work(key, access).await;
        self.check(key, least, version);
        let value = key.value(version);
        lead.finish(match access {
            Access::Read => Outcome::read(Some(&value)),
            Access::Write(_) => Outcome::written(true, &value),
        });
    }

    fn check(&self, key: &Key, least: u64, version: u64) {
        assert!(version >= least, "write {version} is told of, and {least} was known when the call began");
        key.announce(version);
    }

    /// Runs the operation on the index; yields the key's version.
    async fn work(&self, key: &Key, access: Access) -> u64 {
        self.fake.pause(self.fake.random() % 1000).await;
        let meter = Meter::default();
        let version = match access {
            Access::Read => {
                let buf = self.fake.read(&meter, key.at(), 8).await.expect("no faults").into_buf();
                u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"))
            }
            Access::Write(_) => {
                let mut chain = Chain::new(key.at().server());
                chain.faa(key.at(), 1);
                self.fake.submit(&meter, chain).await.expect("no faults").atomics[0] + 1
            }
        };
        self.fake.pause(self.fake.random() % 1000).await;
        version
    }
}

fn assert_at_rest(tables: &Tables) {
    for (fake, table) in tables {
        assert_eq!(table.in_use(), (0, 0), "a client or a window is left");
        assert_eq!(fake.leased(), 0, "a buffer is lost");
    }
}

fn total(tables: &Tables) -> WindowStats {
    let mut total = WindowStats::default();
    for (_, table) in tables {
        total += &table.stats();
    }
    total
}

/// Chooses what each client does, by its number and round: mostly reads.
fn mixed(client: usize, round: usize) -> Access {
    match (client + round * 5) % 7 {
        0 => UPDATE,
        1 | 2 => PUT,
        _ => Access::Read,
    }
}

/// Runs clients on two compute nodes, each with `rounds` operations on keys with values of different lengths, which are
/// cut after some polls where `cut` says so. Yields the counters, and what was led.
fn run(seed: u64, config: WindowConfig, rounds: usize, cut: Option<bool>) -> (WindowStats, u64) {
    let world = World::new(seed, 2, SHARDS);
    let tables = world.attach_windows(config);
    let keys: Vec<Key> = [8, 16, 40, 128, 200].into_iter().zip(0..).map(|(n, i)| Key::new(i, n)).collect();
    let clients: Vec<Client> = (0..18).map(|i| Client::new(&tables[i % tables.len()])).collect();
    for (i, client) in clients.iter().cloned().enumerate() {
        let keys = keys.clone();
        world.spawn(async move {
            for round in 0..rounds {
                let key = &keys[(seed as usize + round / 2) % keys.len()];
                let polls = (i + round) as u32 % 6;
                let operation = client.operate(key, mixed(i, round));
                match cut {
                    Some(at_once) => _ = Cut::after(polls, at_once, operation).await,
                    None => operation.await,
                }
            }
        });
    }
    world.run();
    assert_at_rest(&tables);
    (total(&tables), clients.iter().map(|client| u64::from(client.led.get())).sum())
}

#[test]
fn no_client_is_told_of_a_moment_before_its_call() {
    let mut sum = WindowStats::default();
    for seed in 0..100 {
        let (stats, led) = run(seed, WindowConfig::default(), 10, None);
        assert_eq!(stats.windows, led);
        assert_eq!(led + stats.reads_delegated + stats.writes_combined + stats.bypassed, 18 * 10);
        sum += &stats;
    }
    assert!(sum.reads_delegated > 4000 && sum.writes_combined > 1000 && sum.bypassed > 200, "{sum:?}");
}

#[test]
fn dropping_at_every_await_point_forgets_no_client() {
    let mut shared = 0;
    for seed in 0..100 {
        for at_once in [false, true] {
            let (stats, _) = run(seed, WindowConfig::default(), 12, Some(at_once));
            shared += stats.reads_delegated + stats.writes_combined;
        }
    }
    assert!(shared > 2000, "{shared} operations were shared");
}

/// The end of patience may cross with everything that a client can be told.
#[test]
fn impatience_forgets_no_client() {
    let (mut shared, mut alone) = (0, 0);
    for seed in 0..100 {
        let wait_max = Duration::from_nanos([300, 100_000, 8_000_000, 100_000_000][seed as usize % 4]);
        let config = WindowConfig { wait_max, ..WindowConfig::default() };
        let cut = [None, Some(false), Some(true)][seed as usize % 3];
        let (stats, _) = run(seed, config, 10, cut);
        shared += stats.reads_delegated + stats.writes_combined;
        alone += stats.bypassed;
    }
    assert!(shared > 300 && alone > 1000, "{shared} operations were shared, {alone} waited without a result");
}

/// Each switch alone: the other kind of operation works on the index at once, and is right.
#[test]
fn every_mix_of_the_switches_is_right() {
    for seed in 0..30 {
        for (delegation, combining) in [(true, false), (false, true), (false, false)] {
            let config = WindowConfig { delegation, combining, ..WindowConfig::default() };
            let (stats, led) = run(seed, config, 10, None);
            assert!(delegation != (stats.reads_delegated == 0), "{config:?}: {stats:?}");
            assert!(combining != (stats.writes_combined == 0), "{config:?}: {stats:?}");
            assert_eq!(stats.windows, led);
            run(seed, config, 10, Some(true));
        }
    }
}

/// Lets clients enter one after the other behind a leader that waits for them, and then runs them all. Yields for each,
/// in the order in which they entered, how it ended; the leader is the first.
fn endings(
    world: &World,
    tables: &Tables,
    key: &Key,
    clients: &[(usize, Access)],
    fails: bool,
) -> Vec<String> {
    let endings = Rc::new(RefCell::new(vec![String::new(); clients.len()]));
    let (go, gate) = oneshot::channel::<()>();
    let mut gate = Some(gate);
    for (i, &(shard, access)) in clients.iter().enumerate() {
        let (client, key) = (Client::new(&tables[shard]), key.clone());
        let (endings, gate) = (Rc::clone(&endings), gate.take());
        world.spawn(async move {
            let ending = match client.table.enter(&Meter::default(), &key.name(), access).await {
                Entered::Led(lead) => {
                    let first = gate.is_some();
                    if let Some(gate) = gate {
                        gate.await.expect("it is opened");
                    }
                    match first && fails {
                        true => drop(lead),
                        false => client.lead(&key, access, 0, lead).await,
                    }
                    "led".to_owned()
                }
                Entered::Read(value) => format!("read {}", key.version(&value.expect("every key has one"))),
                Entered::Written { applied } => format!("written {applied}"),
                Entered::Bypass => "alone".to_owned(),
            };
            endings.borrow_mut()[i] = ending;
        });
        world.run_until_idle();
    }
    go.send(()).expect("the leader waits");
    world.run();
    assert_at_rest(tables);
    endings.take()
}

#[test]
fn a_window_serves_the_clients_that_waited_when_it_began() {
    for shard in 0..usize::from(SHARDS) {
        for fails in [false, true] {
            let world = World::new(shard as u64, 1, SHARDS);
            let tables = world.attach_windows(WindowConfig::default());
            let all = |accesses: &[Access]| -> Vec<(usize, Access)> {
                let elsewhere = |i: usize| (shard + i) % usize::from(SHARDS);
                accesses.iter().enumerate().map(|(i, &access)| (elsewhere(i), access)).collect()
            };
            let read = Access::Read;
            let key = Key::new(1, 40);
            let ended = |accesses: &[Access]| endings(&world, &tables, &key, &all(accesses), fails);
            assert_eq!(ended(&[read, read, read, read]), ["led", "led", "read 0", "read 0"]);
            // The last of the puts is write 1, whatever the failed leader was.
            let ends = ended(&[read, read, PUT, read, UPDATE, PUT, read]);
            assert_eq!(ends, ["led", "read 1", "written true", "read 1", "led", "led", "read 1"]);
            assert_eq!(ended(&[UPDATE, UPDATE, PUT, UPDATE])[1..], ["written true", "led", "led"]);
            assert_eq!(ended(&[PUT]), ["led"]);
        }
    }
}

/// Not only when its turn comes: the window that it waits for may be open for long.
#[test]
fn a_client_that_is_gone_is_forgotten_at_once() {
    for leader in 0..usize::from(SHARDS) {
        let world = World::new(leader as u64, 1, SHARDS);
        let tables = world.attach_windows(WindowConfig::default());
        let (go, gate) = oneshot::channel::<()>();
        let table = tables[leader].1.clone();
        world.spawn(async move {
            let Entered::Led(lead) = table.enter(&Meter::default(), b"key", Access::Read).await else {
                panic!("it came first")
            };
            gate.await.expect("it is opened");
            lead.finish(Outcome::read(None));
        });
        world.run_until_idle();
        for (_, table) in &tables {
            let table = table.clone();
            world.spawn(async move {
                assert!(Cut::after(1, true, table.enter(&Meter::default(), b"key", PUT)).await.is_none());
            });
        }
        world.run_until_idle();
        assert!(tables.iter().all(|(_, table)| table.in_use().0 == 0), "a client that is gone has a slot");
        go.send(()).expect("the leader waits");
        world.run();
        assert_at_rest(&tables);
        assert_eq!(total(&tables).windows, 1);
    }
}

/// An update that finds no key has this outcome for all that joined, and readers of its window find none either.
#[test]
fn what_was_not_applied_is_absent() {
    for shard in 0..usize::from(SHARDS) {
        let world = World::new(3, 1, SHARDS);
        let tables = world.attach_windows(WindowConfig::default());
        let (go, gate) = oneshot::channel::<()>();
        let told = Rc::new(Cell::new(0));
        let mut gate = Some(gate);
        for (i, access) in [UPDATE, Access::Read, UPDATE, UPDATE, Access::Read].into_iter().enumerate() {
            let table = tables[(shard + i) % usize::from(SHARDS)].1.clone();
            let (gate, told) = (gate.take(), Rc::clone(&told));
            world.spawn(async move {
                match table.enter(&Meter::default(), b"none", access).await {
                    Entered::Led(lead) => {
                        if let Some(gate) = gate {
                            gate.await.expect("it is opened");
                        }
                        lead.finish(Outcome::written(false, b"not written"));
                    }
                    Entered::Read(value) => {
                        assert!(value.is_none(), "{value:?}");
                        told.set(told.get() + 1);
                    }
                    Entered::Written { applied } => {
                        assert!(!applied);
                        told.set(told.get() + 1);
                    }
                    Entered::Bypass => panic!("there is nothing to read"),
                }
            });
            world.run_until_idle();
        }
        go.send(()).expect("the leader waits");
        world.run();
        assert_eq!(told.get(), 3);
        assert_at_rest(&tables);
    }
}

/// Values up to the bound reach every shard; longer ones those on the home shard only, if the leader is there too.
#[test]
fn long_values_are_read_alone_on_other_shards() {
    for value_bytes in [8, 16, 24, 128, 136, 1000] {
        for leader in 0..usize::from(SHARDS) {
            let world = World::new(value_bytes as u64, 1, SHARDS);
            let tables = world.attach_windows(WindowConfig::default());
            let key = Key::new(2, value_bytes);
            let readers: Vec<(usize, Access)> = (0..8)
                .map(|i| (if i < 2 { leader } else { i % usize::from(SHARDS) }, Access::Read))
                .collect();
            let ended = endings(&world, &tables, &key, &readers, false);
            assert_eq!(ended[..2], ["led", "led"]);
            let delegated = ended[2..].iter().filter(|how| *how == "read 0").count();
            let alone = ended[2..].iter().filter(|how| *how == "alone").count();
            assert_eq!(delegated + alone, 6);
            let home = (0..usize::from(SHARDS)).find(|&shard| tables[shard].1.stats().windows > 0);
            match value_bytes <= 128 {
                true => assert_eq!(alone, 0),
                false => assert_eq!(delegated, if home == Some(leader) { 2 } else { 0 }),
            }
            let stats = total(&tables);
            assert_eq!((stats.reads_delegated, stats.bypassed), (delegated as u64, alone as u64));
        }
    }
}

#[test]
fn a_group_on_the_home_shard_needs_no_message() {
    let world = World::new(1, 1, 1);
    let tables = world.attach_windows(WindowConfig::default());
    let readers = [(0, Access::Read); 10];
    let ended = endings(&world, &tables, &Key::new(0, 500), &readers, false);
    assert_eq!(ended.iter().filter(|how| *how == "read 0").count(), 8);
    assert_eq!(world.sent(), 0);
}

/// A value of up to 16 bytes travels in one message, and once to a shard.
#[test]
fn values_are_sent_once_to_each_shard() {
    for (value_bytes, pieces) in [(8, 1), (16, 1), (40, 3)] {
        let world = World::new(1, 1, 2);
        let tables = world.attach_windows(WindowConfig::default());
        let key = Key::new(0, value_bytes);
        endings(&world, &tables, &key, &[(0, Access::Read)], false);
        let home = (0..2).find(|&shard| tables[shard].1.stats().windows > 0).expect("it was led");
        let before = world.sent();
        let elsewhere = 1 - home;
        let mut readers = vec![(home, Access::Read); 2];
        readers.extend([(elsewhere, Access::Read); 5]);
        endings(&world, &tables, &key, &readers, false);
        // Each of the five enters and is answered; the value goes ahead.
        assert_eq!(world.sent() - before, 5 + 5 + pieces);
    }
}

#[test]
fn memory_is_bounded_by_concurrent_clients() {
    let world = World::new(3, 1, 2);
    let tables = world.attach_windows(WindowConfig::default());
    let bytes = || -> usize { tables.iter().map(|(_, table)| table.bytes()).sum() };
    let mut most = 0;
    for round in 0..60u64 {
        for i in 0..20 {
            let client = Client::new(&tables[i % 2]);
            let key = Key::new(round % 50, 100);
            world.spawn(async move { client.operate(&key, mixed(i, 0)).await });
        }
        world.run();
        assert_at_rest(&tables);
        match round < 30 {
            true => most = most.max(bytes()),
            false => assert!(bytes() <= most, "{} bytes after {most}", bytes()),
        }
    }
    assert!(most < 16 << 10, "{most} bytes");
}

/// A leader finishes with what it came for.
#[test]
#[should_panic(expected = "a reader has read")]
fn a_reader_has_not_written() {
    let world = World::new(3, 1, 1);
    let tables = world.attach_windows(WindowConfig::default());
    let table = tables[0].1.clone();
    world.spawn(async move {
        if let Entered::Led(lead) = table.enter(&Meter::default(), b"key", Access::Read).await {
            lead.finish(Outcome::written(true, b"value"));
        }
    });
    world.run();
}
