//! The control service over real sockets: several clients, every call, and every way in which one side can fail the
//! other. Unix and TCP go through the same bodies.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farwood_runtime::control::greeting::{GREETING_BYTES, VERSION, greeting};
use farwood_runtime::control::nodes::{NodeBatch, NodeClass, Waits, WantedNodes};
use farwood_runtime::control::wire::{OfferKind, Reply, Request};
use farwood_runtime::epoch::Pins;
use farwood_runtime::fabric::Admission;
use farwood_runtime::fabric::{Answer, Endpoint, Exchange, PeerId, Responder};
use farwood_runtime::message::ShardId;
use farwood_runtime::service::ServiceTimes;
use farwood_runtime::{
    CatalogEntry, Cluster, ComputeNode, ConnectConfig, ConnectError, Control, ControlError, EmbeddedConfig,
    IndexId, ListenAt, NodeAllocator, NodeConfig, RemoteControl, RemotePtr, Served, ServerAddress, ServerId,
    Service, ServiceConfig, ServiceError,
};
use futures::executor::block_on;

use crate::control_kit::{CHUNK_BYTES, Folder, eventually, held, opening, replies, served, served_verbs};

/// Long enough for a busy machine, short enough to wait for.
const SILENCE: Duration = Duration::from_millis(1500);

fn start_with(
    served: Served,
    at: ListenAt,
    change: impl FnOnce(&mut ServiceConfig),
) -> Result<Service, ServiceError> {
    let mut config = ServiceConfig::new(served, vec![at]);
    config.times = ServiceTimes {
        handshake: SILENCE,
        silence: SILENCE,
        linger: Duration::from_millis(500),
        ..ServiceTimes::default()
    };
    change(&mut config);
    Service::start(config)
}

fn start(served: Served, at: ListenAt) -> Service {
    start_with(served, at, |_| {}).unwrap()
}

fn tcp(chunks: u64) -> Service {
    start(served(chunks), ListenAt::Tcp("127.0.0.1:0".into()))
}

fn unix(chunks: u64, path: &Path) -> Service {
    start(served(chunks), ListenAt::Unix(path.into()))
}

fn config() -> ConnectConfig {
    ConnectConfig { ping: Duration::from_millis(200), silence: SILENCE, ..ConnectConfig::default() }
}

fn connect(servers: &[&Service]) -> Arc<RemoteControl> {
    let addresses: Vec<_> = servers.iter().map(|server| server.addresses()[0].clone()).collect();
    RemoteControl::connect(&addresses, &config()).unwrap()
}

fn refused(address: ServerAddress) -> ConnectError {
    let short = ConnectConfig { timeout: Duration::from_millis(500), ..config() };
    RemoteControl::connect(&[address], &short).err().expect("there is no server to connect to")
}

fn create(control: &RemoteControl, name: &str) -> CatalogEntry {
    block_on(control.create(name, "sherman", b"{}")).unwrap()
}

/// Connects a socket that is used by hand, in place of a client.
fn raw(service: &Service) -> TcpStream {
    let ServerAddress::Tcp(address) = &service.addresses()[0] else { panic!("a TCP service") };
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket
}

/// Reads all bytes until the server closes the connection.
fn read_to_end(socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("{error} after {} bytes", bytes.len()),
    }
}

/// Makes every call, by two clients of two servers.
fn every_call(servers: &[&Service]) {
    let (one, two) = (connect(servers), connect(servers));
    assert_eq!((one.allocate_node_id(), two.allocate_node_id()), (Ok(1), Ok(2)));
    let info = &one.servers()[1];
    assert_eq!((info.id, info.chunk_bytes, info.locks.count), (ServerId(1), CHUNK_BYTES, 16));
    assert_eq!(info.locks.base.server(), ServerId(1));
    assert_eq!((one.welcome(ServerId(1)).region_bytes, info.device_locks), (info.region_bytes, None));

    let entry = create(&one, "a");
    let again = block_on(two.create("a", "sherman", b"other"));
    assert_eq!(again, Err(ControlError::Exists { name: "a".into() }));
    assert_eq!(block_on(two.open("a")), Ok(entry.clone()));
    assert_eq!(block_on(two.open("b")), Err(ControlError::NotFound { name: "b".into() }));
    assert_eq!(block_on(two.open("")), Err(ControlError::BadName { bytes: 0 }));
    assert_eq!(block_on(one.create("b", "k", &[0; 5000])), Err(ControlError::ConfigTooLong { bytes: 5000 }));
    let named: Vec<String> = (0..40).map(|i| format!("index {i:02}")).collect();
    for name in &named {
        block_on(two.create(name, "sherman", &[7; 4096])).unwrap();
    }
    let listed: Vec<String> = block_on(one.list()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!((&listed[0], &listed[1..]), (&"a".to_string(), &named[..]));

    // All chunks of server 1, by both at once, each handed out once; then there is none.
    let mut starts: Vec<RemotePtr> = Vec::new();
    let full = loop {
        let taken = [&one, &two].map(|control| control.chunk(ServerId(1), entry.id));
        let [first, second] = taken.map(block_on);
        starts.extend(first.iter().chain(&second).map(|chunk| chunk.start));
        if let Err(error) = first.and(second) {
            break error;
        }
    };
    assert_eq!(full, ControlError::OutOfMemory { server: ServerId(1), chunk_bytes: CHUNK_BYTES });
    let handed_out = starts.len();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!((handed_out, starts.len()), (7, 7));
    assert!(starts.iter().all(|start| start.server() == ServerId(1)));
    let nowhere = block_on(one.chunk(ServerId(2), entry.id));
    assert_eq!(nowhere, Err(ControlError::NoSuchServer { server: ServerId(2) }));
    let usage = block_on(one.usage()).unwrap();
    assert_eq!((usage[0].indexes, usage[1].chunk_bytes), (41, 7 * CHUNK_BYTES));
    assert_eq!((usage[0], usage[1]), (servers[0].usage(), servers[1].usage()));
    let ids: Vec<_> = block_on(two.nodes(ServerId(0))).unwrap().into_iter().map(|node| node.id).collect();
    assert_eq!(ids, [Some(1), Some(2)]);
    assert_eq!(servers[1].nodes().len(), 2);

    let in_use = ControlError::InUse { name: "a".into(), nodes: vec![2], connections: 1, silent: 0 };
    assert_eq!(block_on(one.drop_index("a")), Err(in_use));
    two.goodbye();
    assert_eq!(block_on(two.list()), Err(ControlError::ServerGone { server: ServerId(0) }));
    eventually("the goodbye has closed what was open", || {
        block_on(one.drop_index("a")) == Ok(7 * CHUNK_BYTES)
    });
    assert_eq!(block_on(one.drop_index("a")), Err(ControlError::NotFound { name: "a".into() }));
    assert_eq!(servers[1].usage().chunk_bytes, 0);
}

#[test]
fn two_clients_make_every_call_over_unix_and_tcp() {
    let folder = Folder::new();
    let (first, second) = (unix(4, &folder.path("0")), unix(7, &folder.path("1")));
    every_call(&[&first, &second]);
    every_call(&[&tcp(4), &tcp(7)]);
    first.stop();
    second.stop();
    assert!(!folder.path("0").exists(), "a socket file goes with its server");
}

#[test]
fn many_clients_at_once_take_each_chunk_once() {
    let service = tcp(64);
    let owner = connect(&[&service]);
    let index = create(&owner, "a").id;
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let control = connect(&[&service]);
            std::thread::spawn(move || {
                let chunks: Vec<_> =
                    (0..8).map(|_| block_on(control.chunk(ServerId(0), index)).unwrap().start).collect();
                (control.allocate_node_id().unwrap(), chunks)
            })
        })
        .collect();
    let (mut ids, mut chunks) = (Vec::new(), Vec::new());
    for client in clients {
        let (id, taken) = client.join().unwrap();
        ids.push(id);
        chunks.extend(taken);
    }
    ids.sort_unstable();
    chunks.sort_unstable();
    chunks.dedup();
    assert_eq!((ids, chunks.len()), ((1..=8).collect(), 64));
    assert!(matches!(block_on(owner.chunk(ServerId(0), index)), Err(ControlError::OutOfMemory { .. })));
}

/// Processes that live for one node take a node each, not a chunk.
#[test]
fn short_lived_processes_use_chunks_up() {
    const PROCESSES: usize = 2000;
    let folder = Folder::new();
    let service = unix(40, &folder.path("socket"));
    let index = create(&connect(&[&service]), "a").id;
    // As many as connect one after another in a second; the others share connections, as shards do.
    let mut nodes: Vec<u64> = (0..100)
        .flat_map(|_| {
            let control = connect(&[&service]);
            let node = || {
                let allocator =
                    NodeAllocator::new(Arc::<RemoteControl>::clone(&control), index, 0, Pins::alone());
                block_on(allocator.allocate(1000)).unwrap().offset()
            };
            (0..PROCESSES / 100).map(|_| node()).collect::<Vec<_>>()
        })
        .collect();
    nodes.sort_unstable();
    assert!(nodes.len() == PROCESSES && nodes.windows(2).all(|pair| pair[1] - pair[0] >= 1024));
    let needed = PROCESSES as u64 * 1024;
    // Of each chunk the last 3 KiB are not worth giving back.
    let taken = service.usage().chunk_bytes;
    assert!((needed..needed + needed / 10).contains(&taken), "{taken} bytes for {needed}");
}

/// A client that gives up while its request for a chunk is on its way: the chunk goes back, and to the next client that
/// asks.
#[test]
fn chunks_of_dropped_requests_go_back() {
    let service = tcp(4);
    let control = connect(&[&service]);
    let index = create(&control, "a").id;
    for _ in 0..100 {
        drop(control.chunk(ServerId(0), index));
        // Its answer comes after that of the chunk.
        block_on(control.usage()).unwrap();
    }
    // The answer is there, and is not looked at.
    for _ in 0..100 {
        let answered = control.chunk(ServerId(0), index);
        block_on(control.usage()).unwrap();
        drop(answered);
    }
    assert_eq!(service.usage().chunk_bytes, CHUNK_BYTES);
    assert_eq!(block_on(control.chunk(ServerId(0), index)).unwrap().bytes, CHUNK_BYTES);
    assert_eq!(service.usage().chunk_bytes, CHUNK_BYTES);
}

/// Free nodes go to the next process, on every server. Those of a client that gives up while its request is on its way
/// go back, and are there for the next client.
#[test]
fn free_nodes_go_from_process_to_process() {
    let (first, second) = (tcp(4), tcp(4));
    let (one, two) = (connect(&[&first, &second]), connect(&[&first, &second]));
    let index = create(&one, "a").id;
    block_on(two.open("a")).unwrap();
    let class = NodeClass { bytes: 1024, of_kind: true };
    for server in [ServerId(0), ServerId(1)] {
        let start = block_on(one.chunk(server, index)).unwrap().start.offset();
        let nodes: Vec<_> = (0..40).map(|node| (start + node * 1024, Some(node))).collect();
        let batch = NodeBatch { class, waits: Waits::Epoch(1), nodes };
        one.give_nodes(index, server, batch.clone());
        block_on(one.usage()).unwrap();
        let wanted = WantedNodes { class, epoch: 4, flushed: 0, last_resort: false };
        for _ in 0..100 {
            drop(two.take_nodes(server, index, wanted));
            // Its answer comes after that of the nodes, and the nodes go back before the next request.
            block_on(two.usage()).unwrap();
        }
        let held = &block_on(two.holdings(index)).unwrap()[usize::from(server.0)];
        assert_eq!(held.rests.iter().map(|piece| piece.bytes).sum::<u64>(), 40 << 10);
        assert_eq!(block_on(two.take_nodes(server, index, wanted)).unwrap(), Some(batch));
        assert_eq!(block_on(two.take_nodes(server, index, wanted)).unwrap(), None, "once");
        assert_eq!(block_on(one.take_nodes(server, index, wanted)).unwrap(), None, "once for all");
    }
}

#[test]
fn lists_of_servers_must_agree() {
    let (a, b) = (tcp(4), tcp(4));
    let right = connect(&[&a, &b]);
    let index = create(&right, "a").id;
    block_on(right.chunk(ServerId(1), index)).unwrap();
    let swapped = connect(&[&b, &a]);
    for refused in [block_on(swapped.open("a")), block_on(swapped.create("b", "sherman", b""))] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ControlError::OtherServers { .. }), "{error:?}");
        assert!(error.to_string().contains("same order"), "{error}");
    }
    let alone = connect(&[&b]);
    assert_eq!(block_on(alone.open("a")), Err(ControlError::OtherServers { server: ServerId(0) }));
    assert!(matches!(block_on(alone.drop_index("a")), Err(ControlError::OtherServers { .. })));
    let (a_address, b_address) = (a.addresses()[0].clone(), b.addresses()[0].clone());
    let twice = RemoteControl::connect(&[a_address.clone(), b_address, a_address.clone()], &config());
    let error = twice.err().expect("a list that names a server twice");
    assert_eq!(error, ConnectError::SameServer { first: a_address.clone(), second: a_address });
    assert_eq!(RemoteControl::connect(&[], &config()).err(), Some(ConnectError::Servers { servers: 0 }));
}

#[test]
fn a_restarted_server_is_gone_and_then_says_what_was_lost() {
    let folder = Folder::new();
    let (home, path) = (tcp(4), folder.path("socket"));
    let second = unix(4, &path);
    let before = connect(&[&home, &second]);
    let index = create(&before, "a").id;
    block_on(before.chunk(ServerId(1), index)).unwrap();
    let lost = before.gone(ServerId(1));
    assert!(!lost.load(Ordering::Acquire) && !before.is_gone(ServerId(1)));
    second.stop();
    let gone = ControlError::ServerGone { server: ServerId(1) };
    assert_eq!(block_on(before.chunk(ServerId(1), index)), Err(gone.clone()));
    eventually("the flag is set", || lost.load(Ordering::Acquire));
    assert!(block_on(before.chunk(ServerId(0), index)).is_ok(), "the other server is not concerned");

    let second = unix(4, &path);
    assert_eq!(block_on(before.chunk(ServerId(1), index)), Err(gone), "gone for good");
    let after = connect(&[&home, &second]);
    assert_ne!(before.welcome(ServerId(1)).instance, after.welcome(ServerId(1)).instance);
    let error = block_on(after.open("a")).unwrap_err();
    assert_eq!(error, ControlError::Restarted { server: ServerId(1) });
    assert!(error.to_string().contains("drop the indexes"), "{error}");
    drop(before);
    eventually("what the old client had open is free", || block_on(after.drop_index("a")).is_ok());
    let entry = create(&after, "a");
    assert!(block_on(after.chunk(ServerId(1), entry.id)).is_ok());

    // Server 0 takes the catalog with it: no client can drop the index of the other's chunks.
    home.stop();
    let home = tcp(4);
    let after = connect(&[&home, &second]);
    let error = block_on(after.create("b", "sherman", b"")).unwrap_err();
    assert_eq!(error, ControlError::Restarted { server: ServerId(0) });
    assert!(error.to_string().contains("restart the other"), "{error}");
}

#[test]
fn calls_that_wait_end_when_the_server_goes_silent() {
    // A server that greets, welcomes and joins, and then says nothing: its replies are written by a real one.
    let real = tcp(4);
    let ServerAddress::Tcp(real_address) = real.addresses()[0].clone() else { panic!("a TCP service") };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = ServerAddress::Tcp(listener.local_addr().unwrap().to_string());
    let relay = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut server = TcpStream::connect(real_address).unwrap();
        let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let upward = std::thread::spawn(move || {
            // The client waits for an answer to each of the three: greeting, Hello, Join.
            for _ in 0..3 {
                let mut bytes = [0; 4096];
                let len = up.read(&mut bytes).unwrap();
                server.write_all(&bytes[..len]).unwrap();
            }
            // From now on nothing gets through, and the client's end is waited for.
            let mut rest = Vec::new();
            up.read_to_end(&mut rest).unwrap();
            rest.len()
        });
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = down.read(&mut bytes) {
            if client.write_all(&bytes[..len]).is_err() {
                break;
            }
            if upward.is_finished() {
                break;
            }
        }
        // The real server has given this client up. The client must not learn it.
        upward.join().unwrap()
    });
    // Less patience than the real server has: it is the silence that ends the calls.
    let patience = ConnectConfig { silence: SILENCE / 3, ..config() };
    let control = RemoteControl::connect(&[address], &patience).unwrap();
    let gone = Err(ControlError::ServerGone { server: ServerId(0) });
    assert_eq!(block_on(control.list()), gone.clone().map(|()| vec![]));
    assert_eq!(control.allocate_node_id(), gone.clone().map(|()| 1));
    assert!(control.is_gone(ServerId(0)));
    drop(control);
    assert!(relay.join().unwrap() > 0, "pings and calls were sent");
}

#[test]
fn silent_and_stalling_clients_are_given_up() {
    let service = tcp(4);
    let steady = connect(&[&service]);
    let entry = create(&steady, "a");
    // Says nothing at all; stops within the greeting; within a frame, after joining.
    let open = [Request::Open { name: "a".into() }];
    let members = [steady.welcome(ServerId(0)).instance];
    let joined = opening(&members, &open);
    let mut half = opening(&members, &open);
    half.extend([200, 0, 0, 0, 1, 2, 3]);
    let mut clients: Vec<_> = [&[][..], &greeting()[..7], &joined, &half]
        .into_iter()
        .map(|bytes| {
            let mut client = raw(&service);
            client.write_all(bytes).unwrap();
            client
        })
        .collect();
    eventually("two have joined", || service.nodes().len() == 3);
    for client in &mut clients {
        let said = read_to_end(client);
        let replied = said.strip_prefix(&greeting()).map_or(0, |frames| replies(frames).len());
        assert!(replied == 0 || replied == 3);
    }
    eventually("the dead have nothing open", || service.nodes().len() == 1);
    assert_eq!(block_on(steady.drop_index("a")), Ok(0));
    assert!(
        !steady.is_gone(ServerId(0)) && entry.name == "a",
        "who pings lives, however long it asks nothing"
    );
}

#[test]
fn says_when_there_are_too_many_connections() {
    let at = ListenAt::Tcp("127.0.0.1:0".into());
    let service = start_with(served(4), at, |config| config.connections_max = 2).unwrap();
    let (one, two) = (connect(&[&service]), connect(&[&service]));
    let address = service.addresses()[0].clone();
    let error = refused(address.clone());
    assert_eq!(error, ConnectError::Refused { address, cause: ControlError::TooManyConnections { max: 2 } });
    // So many that they are closed without a word; the two are not affected.
    let crowd: Vec<_> = (0..200).map(|_| raw(&service)).collect();
    eventually("those over the limit are limited too", || service.connections() == 66);
    assert!(one.allocate_node_id().is_ok() && two.allocate_node_id().is_ok());
    drop((crowd, one));
    eventually("there is room again", || service.connections() == 1);
    assert!(connect(&[&service]).allocate_node_id().is_ok());
}

#[test]
fn every_way_not_to_reach_a_server_has_its_own_error() {
    let folder = Folder::new();
    let at = |path: &Path| ServerAddress::Unix(path.into());
    let missing = folder.path("missing");
    assert_eq!(refused(at(&missing)), ConnectError::NoSocket { path: missing });
    let dead = folder.path("dead");
    drop(UnixListener::bind(&dead).unwrap());
    assert_eq!(refused(at(&dead)), ConnectError::NotListening { address: at(&dead) });
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let closed = ServerAddress::Tcp(free.to_string());
    assert_eq!(refused(closed.clone()), ConnectError::NotListening { address: closed });
    for unresolved in ["nowhere.invalid:1", "127.0.0.1", "127.0.0.1:99999"] {
        let error = refused(ServerAddress::Tcp(unresolved.into()));
        let slow = matches!(error, ConnectError::Timeout { .. }) && unresolved.starts_with("nowhere");
        assert!(slow || matches!(error, ConnectError::Resolve { .. }), "{unresolved}: {error:?}");
    }

    // Servers that answer something else.
    let answering = |answer: &'static [u8], close: bool| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = ServerAddress::Tcp(listener.local_addr().unwrap().to_string());
        let thread = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; GREETING_BYTES]).unwrap();
            client.write_all(answer).unwrap();
            if !close {
                // All other bytes are awaited, so that nothing is reset.
                let _sent = client.read_to_end(&mut Vec::new());
            }
        });
        let error = refused(address.clone());
        thread.join().unwrap();
        (error, address)
    };
    let (error, address) = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n", true);
    assert_eq!(error, ConnectError::NotFarwood { address });
    let (error, address) = answering(b"", true);
    assert_eq!(error, ConnectError::Closed { address });
    let (error, address) = answering(b"", false);
    assert_eq!(error, ConnectError::Timeout { address });
    let mut newer = greeting().to_vec();
    newer[8..10].copy_from_slice(&(VERSION + 5).to_le_bytes());
    let (error, address) = answering(newer.leak(), false);
    assert_eq!(error, ConnectError::Version { address, theirs: VERSION + 5, ours: VERSION });
    let (error, address) = answering([&greeting()[..], &[1, 0, 0, 0, 0xff]].concat().leak(), false);
    assert_eq!(error, ConnectError::NotFarwood { address });

    let service = tcp(4);
    let address = service.addresses()[0].clone();
    let verbs = ConnectConfig { fabric: Some(OfferKind::Verbs), ..config() };
    let error = RemoteControl::connect(std::slice::from_ref(&address), &verbs).err();
    let (offered, asked) = (OfferKind::Shm, OfferKind::Verbs);
    assert_eq!(error, Some(ConnectError::Fabric { address: address.clone(), offered, asked }));
    let nameless = ConnectConfig { name: "a\nb".into(), ..config() };
    let error = RemoteControl::connect(std::slice::from_ref(&address), &nameless).err();
    assert_eq!(error, Some(ConnectError::Refused { address, cause: ControlError::BadName { bytes: 3 } }));
}

#[test]
fn a_client_of_another_version_is_told_so() {
    let service = tcp(4);
    let mut client = raw(&service);
    let mut newer = greeting();
    newer[8] += 1;
    client.write_all(&newer).unwrap();
    assert_eq!(read_to_end(&mut client), greeting());
}

#[test]
fn every_address_that_cannot_be_had_has_its_own_error() {
    let folder = Folder::new();
    let error = |at: ListenAt| start_with(served(4), at, |_| {}).err().expect("it cannot listen there");
    let path = folder.path("socket");
    let live = unix(4, &path);
    assert!(matches!(error(ListenAt::Unix(path.clone())), ServiceError::InUse { .. }));
    assert!(connect(&[&live]).allocate_node_id().is_ok(), "the live one keeps its socket");
    let ServerAddress::Tcp(taken) = tcp(4).addresses()[0].clone() else { panic!() };
    let _held = TcpListener::bind(&taken).unwrap();
    assert!(matches!(error(ListenAt::Tcp(taken)), ServiceError::InUse { .. }));
    let file = folder.path("file");
    fs::write(&file, "precious").unwrap();
    assert!(matches!(error(ListenAt::Unix(file.clone())), ServiceError::NotASocket { .. }));
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(matches!(error(ListenAt::Unix(folder.path("no/folder"))), ServiceError::Listen { .. }));
    assert!(matches!(error(ListenAt::Unix(folder.path(&"x".repeat(200)))), ServiceError::SocketPath { .. }));
    assert!(matches!(error(ListenAt::Tcp("203.0.113.1:1".into())), ServiceError::Address { .. }));
    assert!(matches!(error(ListenAt::Tcp("127.0.0.1".into())), ServiceError::Address { .. }));
    let none = Service::start(ServiceConfig::new(served(4), vec![])).err();
    assert!(matches!(none, Some(ServiceError::NoListener)));

    // A socket file that a dead server has left is replaced; a file of another server is not removed at the end.
    let stale = folder.path("stale");
    drop(UnixListener::bind(&stale).unwrap());
    let replaced = unix(4, &stale);
    assert!(connect(&[&replaced]).allocate_node_id().is_ok());
    fs::remove_file(&stale).unwrap();
    let other = unix(4, &stale);
    replaced.stop();
    assert!(connect(&[&other]).allocate_node_id().is_ok());
}

#[test]
fn one_service_listens_at_several_addresses() {
    let folder = Folder::new();
    let listeners = vec![ListenAt::Unix(folder.path("socket")), ListenAt::Tcp("127.0.0.1:0".into())];
    let service = Service::start(ServiceConfig::new(served(4), listeners)).unwrap();
    let [unix, tcp] = service.addresses() else { panic!("two addresses") };
    let clients = [unix, tcp].map(|at| RemoteControl::connect(std::slice::from_ref(at), &config()).unwrap());
    let entry = create(&clients[0], "a");
    assert_eq!(block_on(clients[1].open("a")), Ok(entry));
}

struct Echo;

impl Responder for Echo {
    fn answer(&self, peer: PeerId, shard: ShardId, theirs: Endpoint) -> Result<Answer, String> {
        match theirs.queue_pair {
            0 => Err("no memory for it".into()),
            _ => Ok(Answer {
                endpoint: theirs,
                region_address: peer.0,
                region_key: shard.0.into(),
                write_ns: 300,
            }),
        }
    }

    fn forget(&self, _: PeerId) {}
}

#[test]
fn queue_pairs_are_exchanged() {
    let service = start(served_verbs(4, Arc::new(Echo)), ListenAt::Tcp("127.0.0.1:0".into()));
    let control = connect(&[&service]);
    let own =
        |queue_pair| Endpoint { gid: [3; 16], lid: 1, queue_pair, first_packet: 2, mtu: 4096, reads_max: 8 };
    let ask = |server, queue_pair| {
        block_on(control.exchange(ServerId(server), ShardId(5), own(queue_pair))).unwrap()
    };
    let answer = ask(0, 77).unwrap();
    assert_eq!((answer.endpoint, answer.region_key, answer.write_ns), (own(77), 5, 300));
    let error = ask(0, 0).unwrap_err();
    assert!(error.to_string().contains("no memory for it"), "{error}");
    assert_eq!(ask(1, 1), Err(ControlError::NoSuchServer { server: ServerId(1) }));
    service.stop();
    eventually("the server is gone", || control.is_gone(ServerId(0)));
    assert_eq!(ask(0, 1), Err(ControlError::ServerGone { server: ServerId(0) }));
}

/// Clients and services end with their threads and sockets. Alone in the process it could compare more closely; with
/// other tests beside it, it looks for its own leftovers.
#[test]
fn a_unix_client_that_vanishes_leaves_nothing() {
    let folder = Folder::new();
    let service = unix(4, &folder.path("socket"));
    let clients: Vec<_> = (0..20).map(|_| connect(&[&service])).collect();
    assert_eq!(service.connections(), 20);
    assert!(held().0 > 60, "each has a thread there and two here");
    drop(clients);
    eventually("they are gone", || service.connections() == 0 && service.nodes().is_empty());
    let mut half = UnixStream::connect(folder.path("socket")).unwrap();
    half.write_all(&greeting()[..3]).unwrap();
    eventually("one has connected", || service.connections() == 1);
    service.stop();
    assert_eq!(half.read(&mut [0; 16]).unwrap(), 0, "stopping does not wait for it");
}

/// Calls are made on shards, and answered by other threads: the shard sleeps meanwhile, and wakes.
#[test]
fn a_parked_shard_is_woken_by_an_answer() {
    let service = tcp(8);
    let control = connect(&[&service]);
    let small = EmbeddedConfig {
        bytes_per_server: 1 << 20,
        chunk_bytes: CHUNK_BYTES,
        locks_per_server: 16,
        ..EmbeddedConfig::default()
    };
    let config = NodeConfig { shards: 2, spin: Duration::ZERO, ..NodeConfig::default() };
    let node = ComputeNode::new(Cluster::embedded(small).unwrap(), config).unwrap();
    let taken = node.run(move |shard| {
        let control = Arc::clone(&control);
        async move {
            let index = control.create(&format!("{:?}", shard.id()), "sherman", &[]).await.unwrap().id;
            let mut chunks = Vec::new();
            for _ in 0..4 {
                chunks.push(control.chunk(ServerId(0), index).await.unwrap().start);
            }
            chunks
        }
    });
    let mut chunks = taken.unwrap().concat();
    chunks.sort_unstable();
    chunks.dedup();
    assert_eq!(chunks.len(), 8);
}

#[test]
fn dropped_indexes_are_dropped_although_a_drop_was_cut_short() {
    let (a, b) = (tcp(4), tcp(4));
    let control = connect(&[&a, &b]);
    let entry = create(&control, "a");
    for server in [0, 1] {
        block_on(control.chunk(ServerId(server), entry.id)).unwrap();
    }
    drop(control);
    eventually("the first client is gone", || a.nodes().is_empty() && b.nodes().is_empty());
    // A client that dies after the first step of a drop.
    let instances = [&a, &b].map(|server| connect(&[server]).welcome(ServerId(0)).instance);
    let mut dying = raw(&a);
    dying.write_all(&opening(&instances, &[Request::BeginDrop { name: "a".into() }])).unwrap();
    let mut bytes = vec![0; GREETING_BYTES];
    dying.read_exact(&mut bytes).unwrap();
    let mut said = Vec::new();
    while replies(&said).len() < 3 {
        let mut more = [0; 256];
        let len = dying.read(&mut more).unwrap();
        assert!(len > 0);
        said.extend(&more[..len]);
    }
    assert!(matches!(replies(&said)[2], (2, Ok(Reply::Dropping { index, .. })) if index == entry.id.0));
    drop(dying);
    let control = connect(&[&a, &b]);
    assert_eq!(block_on(control.open("a")), Err(ControlError::BeingDropped { name: "a".into() }));
    let index = IndexId(entry.id.0);
    let refused = block_on(control.chunk(ServerId(0), index));
    assert_eq!(refused, Err(ControlError::BeingDropped { name: "a".into() }));
    assert_eq!(block_on(control.drop_index("a")), Ok(2 * CHUNK_BYTES));
    assert_eq!(block_on(control.list()), Ok(vec![]));
}
