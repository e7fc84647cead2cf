//! Random byte strings against the control service, over sockets and straight into sessions: no crash, nothing left
//! behind, other connections unaffected. Many begin well, so that they get far. The only test of its process, since it
//! counts the process's threads, files and memory.
//!
//! 20,000 strings each way, or as many as `FARWOOD_GARBAGE` says.

mod control_kit;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use control_kit::{Client, Folder, INSTANCE, core, create_of, eventually, held, join_of, served};
use farwood_runtime::control::frame;
use farwood_runtime::control::greeting::greeting;
use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
use farwood_runtime::control::seal::SealKey;
use farwood_runtime::control::wire::{Census, Reply, Request};
use farwood_runtime::fabric::Endpoint;
use farwood_runtime::service::{ServiceCore, ServiceTimes, Session};
use farwood_runtime::sweep::Step;
use farwood_runtime::{
    ConnectConfig, Control, IndexId, ListenAt, RemoteControl, Served, ServerAddress, ServerId, Service,
    ServiceConfig,
};
use futures::executor::block_on;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

const THREADS: u64 = 4;
const CHUNKS: u64 = 48;
/// Memory that a process may take for 20,000 or for a million strings alike.
const GROWTH_KIB_MAX: u64 = 64 << 10;
/// One of this many strings goes over TCP, whose ports all of them would exhaust.
const TCP_EVERY: u64 = 16;

fn name(random: &mut SmallRng) -> String {
    match random.random_range(0..10) {
        0 => "steady".into(),
        1 => random_bytes(random, 400).into_iter().map(char::from).collect(),
        _ => format!("garbage {}", random.random_range(0..50)),
    }
}

fn random_bytes(random: &mut SmallRng, len_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(0..=len_max)];
    random.fill_bytes(&mut bytes);
    bytes
}

fn census(random: &mut SmallRng) -> Census {
    let open = (0..random.random_range(0..5)).map(|_| random.random()).collect();
    Census { newest: random.random(), open }
}

/// Makes a request about free nodes.
fn nodes_request(random: &mut SmallRng, index: u32) -> Request {
    let class = NodeClass { bytes: random.random_range(0..20) * 64, of_kind: random.random_bool(0.5) };
    let since = random.random::<u64>() >> random.random_range(0..64);
    let waits = if random.random_bool(0.5) { Waits::Epoch(since) } else { Waits::Flush(since) };
    if random.random_bool(0.5) {
        let (epoch, flushed) = (random.random(), random.random());
        let wanted = WantedNodes { class, epoch, flushed, last_resort: random.random_bool(0.5) };
        return Request::TakeNodes { index, seal: SealKey(random.random_range(0..3)).seal(), wanted };
    }
    let node = |random: &mut SmallRng| {
        ((18 * 64 + random.random_range(0..1024 * CHUNKS)) * 64, random.random_bool(0.5).then_some(7))
    };
    let nodes = (0..random.random_range(0..5)).map(|_| node(random)).collect();
    Request::GiveNodes { index, batch: NodeBatch { class, waits, nodes } }
}

fn request(random: &mut SmallRng) -> Request {
    let index = if random.random_bool(0.9) { random.random_range(0..60) } else { random.random() };
    match random.random_range(0..25) {
        0 => Request::Hello,
        1 => join_of(&[random.random(); 2], random.random(), random.random(), &name(random)),
        2 => Request::Admit,
        3 => Request::Agree,
        4 => Request::Chunk {
            index,
            seal: SealKey(random.random_range(0..3)).seal(),
            temporary: random.random(),
        },
        5 => {
            let (fenced, temporary) = (random.random(), random.random_bool(0.1));
            let (name, config) = (name(random), random_bytes(random, 5000));
            Request::Create { name, kind: "garbage".into(), config, fenced, temporary }
        }
        6 => Request::Open { name: name(random) },
        7 => Request::List { after: random.random_bool(0.5).then(|| name(random)) },
        8 => Request::BeginDrop { name: name(random) },
        9 => Request::Free { index, key: SealKey(random.random_range(0..3)), census: census(random) },
        10 => Request::FinishDrop { name: name(random), index },
        11 => Request::Usage,
        12 => Request::Nodes { after: random.random_bool(0.5).then(|| random.random()) },
        13 => {
            let endpoint = Endpoint {
                gid: random.random(),
                lid: random.random(),
                queue_pair: random.random(),
                first_packet: random.random(),
                mtu: random.random(),
                reads_max: random.random(),
            };
            Request::QueuePair { shard: random.random(), endpoint }
        }
        14 => {
            // Chunks begin at multiples of 4096 behind the eighteen pages of the other parts.
            let offset = (18 + random.random_range(0..16 * CHUNKS)) * 4096 + random.random_range(0..4) * 64;
            let bytes = random.random_range(0..1100) * 64;
            Request::GiveBack { index, offset, bytes }
        }
        15 => Request::Fence(census(random)),
        16 => Request::Dead { after: random.random_range(0..10) },
        17 => Request::Resume { connection: random.random_range(0..60), pass: random.random() },
        18 => sign_of_life(random),
        19 => Request::Holdings { index, from: random.random::<u64>() >> random.random_range(0..64) },
        20 => {
            let extent = |random: &mut SmallRng| {
                ((18 + random.random_range(0..16 * CHUNKS)) * 4096, random.random_range(0..17) * 4096)
            };
            let extents = (0..random.random_range(0..3)).map(|_| extent(random)).collect();
            Request::TakeBack {
                index,
                joins: random.random_bool(0.5).then(|| random.random_range(0..60)),
                extents,
            }
        }
        21 | 22 => nodes_request(random, index),
        23 => sweep_request(random, index),
        _ => [Request::Ping, Request::Goodbye, Request::Census]
            .choose(random)
            .cloned()
            .expect("three to choose from"),
    }
}

fn sign_of_life(random: &mut SmallRng) -> Request {
    Request::Epoch {
        oldest: random.random(),
        fenced: random.random(),
        waits: random.random(),
        flush: random.random(),
        noting: random.random_range(0..4),
    }
}

fn sweep_request(random: &mut SmallRng, index: u32) -> Request {
    let sweep = random.random_range(0..4);
    match random.random_range(0..5) {
        0 => Request::BeginSweep { index },
        1 => Request::SweepStep { sweep, step: if random.random() { Step::Notes } else { Step::Lists } },
        2 => {
            let bits = random.random_range(0..64);
            let pieces = (0..random.random_range(0..5)).map(|_| {
                (random.random::<u64>() >> bits, random.random::<u64>() >> random.random_range(0..64))
            });
            Request::TellLists { sweep, pieces: pieces.collect(), is_last: random.random() }
        }
        3 => Request::SweptLists { sweep, from: random.random() },
        _ => Request::EndSweep { sweep: random.random_bool(0.5).then_some(sweep) },
    }
}

/// Makes a string that begins well up to some point, and is then random, damaged, or cut off.
fn garbage(random: &mut SmallRng, instance: u128) -> Vec<u8> {
    let depth = random.random_range(0..5);
    let mut bytes = Vec::new();
    if depth >= 1 {
        bytes.extend(greeting());
    }
    let mut number = 0u32;
    let mut put = |request: Request, bytes: &mut Vec<u8>| {
        frame::put(&(number, request), bytes);
        number += 1;
    };
    if depth >= 2 {
        put(Request::Hello, &mut bytes);
    }
    if depth >= 3 {
        let members = if random.random_bool(0.9) { vec![instance] } else { vec![instance, random.random()] };
        put(join_of(&members, 0, random.random(), "garbage"), &mut bytes);
    }
    if depth >= 4 {
        for _ in 0..random.random_range(0..12) {
            put(request(random), &mut bytes);
        }
    }
    match random.random_range(0..4) {
        0 => bytes.extend(random_bytes(random, 300)),
        1 if !bytes.is_empty() => {
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= 1 << random.random_range(0..8);
        }
        2 if !bytes.is_empty() => bytes.truncate(random.random_range(0..bytes.len())),
        _ => {
            // A frame of random content, which may well be a message.
            let content = random_bytes(random, 40);
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend(content);
        }
    }
    bytes
}

fn into_session(core: &Arc<ServiceCore>, bytes: &[u8], random: &mut SmallRng) {
    let (mut session, mut left, mut out) = (Session::new(core), bytes, Vec::new());
    while !left.is_empty() {
        let (piece, rest) = left.split_at(random.random_range(1..=left.len()));
        left = rest;
        let mut received = session.receive(piece, &mut out);
        out.clear();
        while received.is_ok() && session.pending() {
            received = session.receive(&[], &mut out);
            out.clear();
        }
        if received.is_err() {
            return;
        }
    }
}

/// Sends a string and waits until the server has closed the connection. It may do so before it has read everything.
fn over_socket(path: &Path, tcp: Option<&str>, bytes: &[u8]) {
    fn send<S: Read + Write>(socket: &mut S, bytes: &[u8], end: impl Fn(&S)) {
        let _sent_all = socket.write_all(bytes);
        end(socket);
        let ended = socket.read_to_end(&mut Vec::new());
        // Closing with unread bytes resets the connection.
        let reset = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(
            ended.as_ref().err().is_none_or(reset),
            "the server has not closed the connection: {ended:?}"
        );
    }
    let patience = Some(Duration::from_secs(60));
    match tcp {
        Some(address) => {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_read_timeout(patience).unwrap();
            send(&mut socket, bytes, |socket| drop(socket.shutdown(Shutdown::Write)));
        }
        None => {
            let mut socket = UnixStream::connect(path).unwrap();
            socket.set_read_timeout(patience).unwrap();
            send(&mut socket, bytes, |socket| drop(socket.shutdown(Shutdown::Write)));
        }
    }
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn service(path: &Path) -> Service {
    let listeners = vec![ListenAt::Unix(path.into()), ListenAt::Tcp("127.0.0.1:0".into())];
    let served = Served { instance: INSTANCE, ..served(CHUNKS) };
    let mut config = ServiceConfig::new(served, listeners);
    config.times = ServiceTimes { linger: Duration::from_millis(100), ..ServiceTimes::default() };
    Service::start(config).unwrap()
}

/// Checks that a steady client notices nothing of the garbage that others send to its service.
fn steady_round(control: &RemoteControl, index: IndexId) {
    let entry = block_on(control.open("steady")).expect("it is open here, so no client can drop it");
    assert_eq!(entry.id, index);
    assert!(block_on(control.usage()).unwrap()[0].chunk_bytes >= control_kit::CHUNK_BYTES);
    let listed = block_on(control.list()).unwrap();
    assert!(listed.iter().any(|listed| listed == &entry));
    assert_eq!(
        block_on(control.chunk(ServerId(1), index)).unwrap_err().to_string(),
        "there is no memory server 1"
    );
}

fn attack(count: u64, seed: u64, path: &Path, tcp: &str, core: &Arc<ServiceCore>, done: &AtomicU64) {
    let mut random = SmallRng::seed_from_u64(seed);
    for i in 0..count {
        let bytes = garbage(&mut random, INSTANCE);
        into_session(core, &bytes, &mut random);
        over_socket(path, i.is_multiple_of(TCP_EVERY).then_some(tcp), &bytes);
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn garbage_harms_no_client() {
    static PANICS: AtomicU64 = AtomicU64::new(0);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        report(panic);
    }));
    let count =
        std::env::var("FARWOOD_GARBAGE").map_or(20_000, |count| count.parse().expect("a number of strings"));
    let folder = Folder::new();
    let path = folder.path("socket");
    let (threads, files) = held();
    let service = service(&path);
    let ServerAddress::Tcp(tcp) = service.addresses()[1].clone() else { panic!("the second is TCP") };
    let core = core(CHUNKS);
    let mut steady_session = Client::alone(&core);
    let create = create_of("steady".into(), "", vec![]);
    let Ok(Reply::Entry(entry)) = steady_session.ask(create) else { panic!("it is the first") };
    let connect =
        || RemoteControl::connect(&[service.addresses()[0].clone()], &ConnectConfig::default()).unwrap();
    let steady = connect();
    let index = block_on(steady.create("steady", "", &[])).unwrap().id;
    block_on(steady.chunk(ServerId(0), index)).unwrap();
    let with_steady = held();

    let done = AtomicU64::new(0);
    // Stacks, arenas and the catalog's entries come with the first strings.
    let mut resident = None;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (path, tcp, core, done) = (&path, &tcp, &core, &done);
            let share = count / THREADS + u64::from(thread < count % THREADS);
            scope.spawn(move || attack(share, thread, path, tcp, core, done));
        }
        while done.load(Ordering::Relaxed) < count && PANICS.load(Ordering::Relaxed) == 0 {
            steady_round(&steady, index);
            let opened = steady_session.ask(Request::Open { name: "steady".into() });
            assert_eq!(opened, Ok(Reply::Entry(entry.clone())));
            if resident.is_none() && done.load(Ordering::Relaxed) > count / 10 {
                resident = Some(resident_kib());
            }
        }
    });
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "something panicked");
    assert_eq!(done.load(Ordering::Relaxed), count);
    let growth = resident_kib().saturating_sub(resident.expect("it was read at a tenth"));
    assert!(growth < GROWTH_KIB_MAX, "memory grew by {growth} KiB");

    eventually("only the steady connection is left", || {
        service.connections() == 1 && core.nodes().len() == 1
    });
    eventually("threads and files are those of the beginning", || held() == with_steady);
    steady_round(&steady, index);
    // Whatever the garbage has created can be dropped, and no chunk is lost.
    for entry in block_on(steady.list()).unwrap() {
        block_on(steady.drop_index(&entry.name)).unwrap();
    }
    assert_eq!((service.usage().indexes, service.usage().chunk_bytes), (0, 0));
    drop(steady);
    service.stop();
    eventually("all threads and files are gone", || held() == (threads, files));
}
