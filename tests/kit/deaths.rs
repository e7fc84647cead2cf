//! A process that dies while it writes, beside three others: none of their operations fails, what it had acknowledged
//! is there, and what it had not is there or not, whole. The index is intact
//! afterwards, and what was lost with the dead can be given back and is used again.
//!
//! `FARWOOD_TEST_DEATHS` says how many processes die in either way for each kind of index.
#![allow(dead_code, clippy::allow_attributes, reason = "on the simulated fabric no process dies")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use farwood::index::GiveBackError;
use farwood::runtime::control::Chunk;
use farwood::runtime::service::ServiceTimes;
use farwood::runtime::{Fabric, NodeContext, ServerParts};
use farwood::{CheckOptions, ComputeNode, IndexKind, IndexSpec, NodeConfig, Nodes, RangeIndex, Shard, Verbs};
use futures::TryStreamExt;
use futures::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Shape;

const DEATHS: u64 = 1;
const WRITERS: u64 = 4;
const VICTIM: u64 = 0;
const CLIENTS: u64 = 4;
/// Keys of each client. Those of all clients lie next to each other.
const KEYS: u64 = 10;
/// Each value is its number, so many times: it does not fit into a line.
const VALUE_WORDS: usize = 12;
/// One write in so many is a removal.
const REMOVAL_ONE_IN: u64 = 4;
/// The writers' environment: their number, and the kind and the servers of the index.
const ROLE: &str = "FARWOOD_TEST_WRITER";
/// The writers work for so long before the death, and after it.
const WORK: std::ops::Range<u64> = 10..60;
const WORK_ON: Duration = Duration::from_millis(100);
/// Writers say something every second.
const SILENCE: Duration = Duration::from_secs(2);

/// The way in which a writer dies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Death {
    Killed,
    /// It is stopped, and the memory servers give it up.
    Silent,
}

/// A fabric whose memory servers are in this process, and its compute nodes in others.
pub(crate) trait Deadly: 'static {
    type Server;
    type Cluster: Fabric;
    type Verbs: Verbs;

    /// True if the memory servers end the process of a client that is given up: else that can harm others no more.
    const ENDS_SILENT: bool;

    /// Starts a memory server; `name` is no other's in this process.
    fn server(name: &str, parts: ServerParts, times: ServiceTimes) -> Self::Server;

    /// Counts the compute nodes that it knows.
    fn nodes(server: &Self::Server) -> usize;

    /// Yields the address by which clients find it.
    fn address(server: &Self::Server) -> &str;

    fn connect(servers: &[&str]) -> Arc<Self::Cluster>;

    /// Yields the shard that trees are compiled for.
    fn shard(shard: Shard<<Self::Cluster as Fabric>::Device>) -> Self::Verbs;
}

/// Makes the tests of a fabric, in a module `deaths`.
macro_rules! death_tests {
    ($fabric:ty) => {
        mod deaths {
            use super::*;

            #[test]
            #[ignore = "the writer of the tests below, in a process of its own"]
            fn writer() {
                crate::kit::deaths::writer::<$fabric>();
            }

            fn writers_name() -> String {
                let (_, module) = module_path!().split_once("::").expect("it is in a crate");
                format!("{module}::writer")
            }

            #[test]
            fn a_writer_may_be_killed_at_any_time() {
                crate::kit::deaths::each_killed::<$fabric>(&writers_name());
            }

            #[test]
            fn a_writer_may_be_stopped_for_long_at_any_time() {
                crate::kit::deaths::each_silent::<$fabric>(&writers_name());
            }
        }
    };
}
pub(crate) use death_tests;

fn spec(kind: IndexKind) -> IndexSpec {
    let shape = Shape { max_key: 8, max_value: 8 * VALUE_WORDS, nodes: Nodes::Tiny };
    shape.usual(kind).with_options(|options| options.intent_log = true)
}

fn node<F: Deadly>(servers: &[&str]) -> Arc<ComputeNode<F::Cluster>> {
    ComputeNode::new(F::connect(servers), NodeConfig { shards: 1, ..NodeConfig::default() }).unwrap()
}

/// Yields the value of a key after its `number`-th write, which is `None` if that has removed it.
fn value_after(number: u64) -> Option<Vec<u8>> {
    (!number.is_multiple_of(REMOVAL_ONE_IN)).then(|| number.to_be_bytes().repeat(VALUE_WORDS))
}

/// Works until its standard input ends. Each line of its standard error is a key and the number of its last write that
/// was acknowledged, or what has gone wrong.
pub(crate) fn writer<F: Deadly>() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let (number, kind): (u64, IndexKind) = (words[0].parse().unwrap(), IndexKind::named(words[1]).unwrap());
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        over.store(true, Ordering::Relaxed);
    });
    let node = node::<F>(&words[2..]);
    let opening = Arc::clone(&node);
    let done: Result<Vec<()>, Box<dyn Error + Send + Sync>> = node.try_run(move |shard| {
        let (opening, is_over) = (Arc::clone(&opening), Arc::clone(&is_over));
        async move {
            let index = spec(kind).open(&*opening, "t").await?.attach(F::shard(shard.clone()));
            tell("ready");
            let clients = (0..CLIENTS).map(|client| {
                let (index, own, is_over) = (index.clone(), shard.clone(), Arc::clone(&is_over));
                let first = client * WRITERS + number;
                shard.spawn(async move { write(index, own, first, &is_over).await })
            });
            join_all(clients).await;
            Ok(())
        }
    });
    if let Err(error) = done {
        tell(&format!("failed: {error}"));
    }
}

fn tell(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("the test listens");
}

/// Writes to keys of one client, in turn, and reads keys of all.
async fn write(index: impl RangeIndex, shard: impl Verbs, first: u64, is_over: &AtomicBool) {
    let clients = WRITERS * CLIENTS;
    let (mut number, mut slowest_ns) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        for key in (0..KEYS).map(|key| key * clients + first) {
            let begun_ns = shard.now();
            let written = match value_after(number) {
                Some(value) => index.put(&key.to_be_bytes(), &value).await.map_err(|error| error.to_string()),
                None => index.remove(&key.to_be_bytes()).await.map(drop).map_err(|error| error.to_string()),
            };
            match written {
                Ok(()) => tell(&format!("{key} {number}")),
                Err(error) => return tell(&format!("failed: write {number} of key {key}: {error}")),
            }
            let other = shard.random() % (KEYS * clients);
            match index.get(&other.to_be_bytes()).await {
                Ok(value) if value.as_ref().is_none_or(|value| is_whole(value)) => {}
                Ok(_) => return tell(&format!("failed: the value of key {other} is of two writes")),
                Err(error) => return tell(&format!("failed: a get of key {other}: {error}")),
            }
            slowest_ns = slowest_ns.max(shard.now() - begun_ns);
        }
        let from = (shard.random() % (KEYS * clients)).to_be_bytes();
        match index.scan(from.., Some(20)).try_collect::<Vec<_>>().await {
            Ok(pairs) if pairs.iter().all(|(_, value)| is_whole(value)) => {}
            Ok(_) => return tell("failed: a scan has met a value that is of two writes"),
            Err(error) => return tell(&format!("failed: a scan: {error}")),
        }
    }
    tell(&format!("slowest {}", slowest_ns / 1_000_000));
}

fn is_whole(value: &[u8]) -> bool {
    value.len() == 8 * VALUE_WORDS && value.chunks(8).all(|word| *word == value[..8])
}

/// A writer's process, and what it has told.
struct Writer {
    process: Child,
    told: JoinHandle<Vec<String>>,
}

impl Writer {
    /// Starts a writer, and waits until it works.
    fn start(test: &str, number: u64, kind: IndexKind, servers: &[&str]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env(ROLE, format!("{number} {kind} {}", servers.join(" ")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(process.stderr.take().unwrap());
        let mut first = String::new();
        told.read_line(&mut first).unwrap();
        assert_eq!(first, "ready\n");
        let listen = |told: BufReader<ChildStderr>| told.lines().map(Result::unwrap).collect();
        Writer { process, told: thread::spawn(move || listen(told)) }
    }

    /// Waits for its end; yields the numbers of the last writes of its keys, as it has acknowledged them. One that was
    /// given up `may_fail`.
    fn ended(mut self, may_fail: bool) -> BTreeMap<u64, u64> {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
        let mut acknowledged = BTreeMap::new();
        for line in self.told.join().unwrap() {
            let words: Vec<&str> = line.split(' ').collect();
            match (words[0].parse(), words.get(1).and_then(|number| number.parse().ok())) {
                (Ok(key), Some(number)) => _ = acknowledged.insert(key, number),
                _ if words[0] == "slowest" => println!("{line} ms"),
                _ => assert!(may_fail && words[0] == "failed:", "a writer has told: {line}"),
            }
        }
        acknowledged
    }
}

fn deaths() -> u64 {
    std::env::var("FARWOOD_TEST_DEATHS").map_or(DEATHS, |deaths| deaths.parse().unwrap())
}

pub(crate) fn each_killed<F: Deadly>(test: &str) {
    for &kind in IndexKind::ALL {
        for number in 0..deaths() {
            a_death::<F>(test, kind, Death::Killed, number);
        }
    }
}

pub(crate) fn each_silent<F: Deadly>(test: &str) {
    // All kinds at once: most of the time nothing happens.
    thread::scope(|scope| {
        for &kind in IndexKind::ALL {
            let run =
                move || (0..deaths()).for_each(|number| a_death::<F>(test, kind, Death::Silent, number));
            scope.spawn(run);
        }
    });
}

#[expect(clippy::disallowed_methods, reason = "no shard is on this thread")]
fn a_death<F: Deadly>(test: &str, kind: IndexKind, how: Death, number: u64) {
    let server = |place| {
        let name = format!("deaths-{}-{kind}-{}-{number}-{place}", std::process::id(), how as u8);
        let parts = ServerParts { locks: 64, chunk_bytes: 64 << 10, ..ServerParts::default() };
        let times = ServiceTimes { silence: SILENCE, ends_silent: F::ENDS_SILENT, ..ServiceTimes::default() };
        F::server(&name, parts, times)
    };
    let servers = [server(0), server(1)];
    let names: Vec<&str> = servers.iter().map(F::address).collect();
    let maker = node::<F>(&names);
    let making = Arc::clone(&maker);
    let made = maker.run(move |_| {
        let making = Arc::clone(&making);
        async move { drop(spec(kind).create(&*making, "t").await.unwrap()) }
    });
    made.unwrap();
    let start = |number| Writer::start(test, number, kind, &names);
    let mut writers: Vec<_> = (0..WRITERS).map(start).collect();
    thread::sleep(Duration::from_millis(
        SmallRng::seed_from_u64(u64::from(std::process::id()) << 32 | number).random_range(WORK),
    ));
    let victim = &mut writers[VICTIM as usize].process;
    let signal = |victim: &Child, signal| kill(Pid::from_raw(victim.id() as i32), signal).unwrap();
    match how {
        Death::Killed => victim.kill().unwrap(),
        Death::Silent => {
            let known = servers.each_ref().map(F::nodes);
            signal(victim, Signal::SIGSTOP);
            while servers.iter().zip(known).any(|(server, known)| F::nodes(server) >= known) {
                thread::sleep(Duration::from_millis(10));
            }
            if F::ENDS_SILENT {
                assert_eq!(victim.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
            }
        }
    }
    thread::sleep(WORK_ON);
    let goes_on = how == Death::Silent && !F::ENDS_SILENT;
    if goes_on {
        signal(&writers[VICTIM as usize].process, Signal::SIGCONT);
        thread::sleep(WORK_ON);
    }
    let numbered = (0..WRITERS).zip(writers);
    let ended = numbered.flat_map(|(number, writer)| writer.ended(number == VICTIM && goes_on));
    let acknowledged: BTreeMap<u64, u64> = ended.collect();
    assert!(acknowledged.len() as u64 > KEYS, "all writers have written");
    check::<F>(&node::<F>(&names), kind, acknowledged);
    let kept = give_back::<F>(&node::<F>(&names), kind);
    assert_eq!(kept, Err(GiveBackError::OthersConnected { others: 1 }), "the maker is still connected");
    drop(maker);
    let lost = give_back::<F>(&node::<F>(&names), kind).unwrap();
    assert!(lost >= 4096, "{kind}: {lost} bytes, though a writer has died with most of a chunk");
    use_again::<F>(&node::<F>(&names), kind, lost);
}

/// Gives back what was lost with the dead. Yields the bytes, all that can be given back, or why none were.
fn give_back<F: Deadly>(node: &Arc<ComputeNode<F::Cluster>>, kind: IndexKind) -> Result<u64, GiveBackError> {
    let opening = Arc::clone(node);
    let given_back = node.run(move |shard| {
        let opening = Arc::clone(&opening);
        async move {
            let spec = spec(kind).with_options(|options| options.intent_log = false);
            let index = spec.open(&*opening, "t").await.unwrap().attach(F::shard(shard));
            let report = index.check(&CheckOptions::default()).await.unwrap();
            let memory = report.memory.as_ref().expect("the servers say what they have handed out");
            let freed = index.give_back(&report).await?;
            assert_eq!(freed, memory.unreached_bytes - memory.led_to_bytes, "{kind}");
            let after = index.check(&CheckOptions::default()).await.unwrap();
            assert!(after.is_intact(), "{kind}: {:?}", after.violations);
            let left = after.memory.expect("they say it again");
            assert_eq!((left.unreached_bytes, left.chunk_bytes), (memory.led_to_bytes, memory.chunk_bytes));
            assert_eq!(left.rest_bytes, memory.rest_bytes + freed, "{kind}");
            Ok(freed)
        }
    });
    given_back.unwrap().remove(0)
}

/// Writes half as much as was given back: a server hands out no chunk while it has anything of that left, what was
/// there is there, and the index is intact.
fn use_again<F: Deadly>(node: &Arc<ComputeNode<F::Cluster>>, kind: IndexKind, lost: u64) {
    let opening = Arc::clone(node);
    let used = node.run(move |shard| {
        let opening = Arc::clone(&opening);
        async move {
            let id = opening.control().open("t").await.unwrap().id;
            let sum = |pieces: &[Chunk]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
            // Bytes of chunks and of rests, of each server.
            let handed_out = || async {
                let held = opening.control().holdings(id).await.unwrap();
                held.iter()
                    .map(|held| (sum(&held.used) + sum(&held.rests), sum(&held.rests)))
                    .collect::<Vec<_>>()
            };
            let spec = spec(kind).with_options(|options| options.intent_log = false);
            let index = spec.open(&*opening, "t").await.unwrap().attach(F::shard(shard));
            let before: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
            let (held, value) = (handed_out().await, value_after(1).expect("it is no removal"));
            let mut new = 0;
            while index.books().used_bytes < lost as i64 / 2 {
                // Behind all keys of the writers.
                index.put(&(1_000_000 + new as u64).to_be_bytes(), &value).await.unwrap();
                new += 1;
            }
            let held_then = handed_out().await;
            for ((chunks_before, _), (chunks, rests)) in held.iter().zip(&held_then) {
                assert!(chunks == chunks_before || *rests == 0, "{kind}: what was given back is used first");
            }
            // On one server, where that is little.
            let rests = |held: &[(u64, u64)]| held.iter().map(|(_, rests)| rests).sum::<u64>();
            assert!(rests(&held_then) < rests(&held), "{kind}: it is used");
            let after: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
            assert!(
                new > 0 && after.len() == before.len() + new && after[..before.len()] == before,
                "{kind}"
            );
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact(), "{kind}: {:?}", report.violations);
        }
    });
    used.unwrap();
}

/// Looks at all that is left: the last acknowledged write of each key, or one more of the writer that was killed.
fn check<F: Deadly>(node: &Arc<ComputeNode<F::Cluster>>, kind: IndexKind, acknowledged: BTreeMap<u64, u64>) {
    let (opening, acknowledged) = (Arc::clone(node), Arc::new(acknowledged));
    let checked = node.run(move |shard| {
        let (opening, acknowledged) = (Arc::clone(&opening), Arc::clone(&acknowledged));
        async move {
            let index = spec(kind).open(&*opening, "t").await.unwrap().attach(F::shard(shard));
            for key in 0..KEYS * WRITERS * CLIENTS {
                let last = acknowledged.get(&key).copied().unwrap_or(0);
                let found = index.get(&key.to_be_bytes()).await.unwrap().map(|value| value.to_vec());
                let is_next = key % WRITERS == VICTIM && found == value_after(last + 1);
                assert!(found == value_after(last) || is_next, "{kind}: key {key}, write {last}: {found:?}");
            }
            let dead = opening.control().dead().await.unwrap();
            assert_eq!(dead.len(), 1, "the writer that was killed");
            let options = CheckOptions { dead: dead.iter().copied().collect(), ..CheckOptions::default() };
            for held in index.check(&options).await.unwrap().orphaned.iter() {
                assert!(index.take_over(held).await.unwrap(), "{kind}: {held:?}");
            }
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact(), "{kind}: {:?}", report.violations);
        }
    });
    checked.unwrap();
}
