//! Sessions without sockets that resume a connection which the service has given up, because its client was stopped for
//! long: which clients may, which may not, and what a client has then.

use std::sync::Arc;

use farwood_runtime::control::greeting::greeting;
use farwood_runtime::control::wire::{Census, Reply, Request};
use farwood_runtime::mapped::region::{Region, RegionConfig};
use farwood_runtime::service::{Close, ServiceCore};
use farwood_runtime::{ControlError, MemoryServer, Served, ServerParts};

use crate::control_kit::{CHUNK_BYTES, Client, Folder, INSTANCE, chunk_of, create, free_of, join_of, served};

/// A service whose region is a file, and a list of two servers: this is the first one.
struct Mapped {
    core: Arc<ServiceCore>,
    folder: Folder,
}

/// A client that has the memory mapped.
struct Resumable {
    client: Client,
    connection: u64,
    pass: u128,
    _region: Region,
}

impl Mapped {
    fn new() -> Self {
        let folder = Folder::new();
        let config = RegionConfig::new(18 * 4096 + 4 * CHUNK_BYTES, INSTANCE);
        let region = Region::create(&folder.path("region"), &config).unwrap();
        let parts = ServerParts { locks: 16, device_bytes: 0, chunk_bytes: CHUNK_BYTES };
        let memory = MemoryServer::new(Arc::new(region), parts).unwrap();
        let core = ServiceCore::new(Served { memory, instance: INSTANCE, ..served(1) });
        Mapped { core: Arc::new(core), folder }
    }

    /// Makes a client that was welcomed, and has not joined.
    fn welcomed(&self) -> (Client, u64, u128) {
        let mut client = Client::silent(&self.core);
        client.session.receive(&greeting(), &mut Vec::new()).unwrap();
        let Ok(Reply::Welcome(welcome)) = client.ask(Request::Hello) else { panic!("it is welcome") };
        (client, welcome.connection, welcome.pass)
    }

    fn joined(&self) -> Resumable {
        let (mut client, connection, pass) = self.welcomed();
        let region = Region::open(&self.folder.path("region"), INSTANCE).unwrap();
        region.claim(connection).unwrap();
        assert_eq!(client.ask(join_of(&[INSTANCE, 2], 0, 0, "stopped")), Ok(Reply::Done));
        Resumable { client, connection, pass, _region: region }
    }

    /// Makes the service give up the client, which does not notice.
    fn silence(&self, stopped: &mut Resumable) {
        stopped.client = self.welcomed().0;
        assert!(self.core.nodes().iter().any(|node| node.silent));
    }

    /// Tells of each connection whether it is silent.
    fn silent(&self) -> Vec<bool> {
        self.core.nodes().iter().map(|node| node.silent).collect()
    }
}

impl Resumable {
    fn resume(&self) -> Request {
        Request::Resume { connection: self.connection, pass: self.pass }
    }
}

fn give_back(client: &mut Client, index: u32, (offset, bytes): (u64, u64)) {
    assert_eq!(client.ask(Request::GiveBack { index, offset, bytes }), Ok(Reply::Done));
}

fn chunk(client: &mut Client, index: u32) -> (u64, u64) {
    match client.ask(chunk_of(index)) {
        Ok(Reply::Chunk { offset, bytes }) => (offset, bytes),
        other => panic!("{other:?}"),
    }
}

fn census(client: &mut Client) -> Census {
    match client.ask(Request::Census) {
        Ok(Reply::Census { census, dead: 0 }) => census,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_silent_client_that_goes_on_has_all_that_it_had() {
    let server = Mapped::new();
    let mut other = server.joined();
    let mut stopped = server.joined();
    let node = stopped.client.ask(Request::Admit);
    assert_eq!(node, Ok(Reply::Admitted { node: 1, epoch: 1, sweep: None }));
    let index = create(&mut stopped.client, "a").unwrap().id;
    let first = chunk(&mut stopped.client, index);
    let drop = Request::BeginDrop { name: "a".into() };
    let in_use = |silent| {
        let (name, nodes) = ("a".into(), vec![1]);
        Err(ControlError::InUse { name, nodes, connections: 1, silent })
    };
    // More than once, and with the pass of the first connection.
    for _ in 0..3 {
        server.silence(&mut stopped);
        assert_eq!(other.client.ask(drop.clone()), in_use(1));
        assert_eq!(server.core.usage().silent_bytes, CHUNK_BYTES);
        assert_eq!(stopped.client.ask(stopped.resume()), Ok(Reply::Done));
        assert_eq!(other.client.ask(drop.clone()), in_use(0));
        assert_eq!((server.silent(), server.core.usage().silent_bytes), (vec![false; 2], 0));
        // The numbers of the connections that it was resumed by are in no census: they have ended.
        assert_eq!(census(&mut other.client).open, [other.connection, stopped.connection]);
        assert_eq!(census(&mut stopped.client).open, [other.connection, stopped.connection]);
        // It returns what it took before, and takes it again.
        give_back(&mut stopped.client, index, first);
        assert_eq!(chunk(&mut stopped.client, index), first);
    }
    let second = chunk(&mut stopped.client, index);
    assert_ne!(first, second);
    assert_eq!(stopped.client.ask(Request::Admit), Ok(Reply::Admitted { node: 2, epoch: 1, sweep: None }));
    assert_eq!(stopped.client.send_frame(Request::Goodbye).1, Err(Close::Goodbye));
    std::mem::drop(stopped);
    assert_eq!(server.silent(), [false]);
    assert_eq!(other.client.ask(Request::Dead { after: 0 }), Ok(Reply::Dead { nodes: vec![], more: false }));
    assert_eq!(census(&mut other.client).open, [other.connection]);
    assert!(matches!(other.client.ask(drop), Ok(Reply::Dropping { .. })));
    assert_eq!(other.client.ask(free_of(index)), Ok(Reply::Freed { bytes: 2 * CHUNK_BYTES }));
}

#[test]
fn only_its_own_client_goes_on_with_a_connection() {
    let server = Mapped::new();
    let (mut stopped, mut other) = (server.joined(), server.joined());
    let index = create(&mut stopped.client, "a").unwrap().id;
    let taken = chunk(&mut stopped.client, index);
    // A connection that has not ended, for its own client.
    let (mut new, own, own_pass) = server.welcomed();
    let not_ended = ControlError::NotEnded { connection: other.connection };
    assert_eq!(new.ask(other.resume()), Err(not_ended));
    server.silence(&mut stopped);
    let before = (server.core.nodes(), server.core.usage(), census(&mut other.client));
    for (what, connection, pass) in [
        ("another pass", stopped.connection, stopped.pass ^ 1),
        ("no pass", stopped.connection, 0),
        ("another's pass", stopped.connection, other.pass),
        ("its own pass", stopped.connection, own_pass),
        ("another connection", other.connection, stopped.pass),
        ("a connection that has not joined", own, own_pass),
        ("a connection that never was", 99, stopped.pass),
        ("the last number", u64::MAX, stopped.pass),
    ] {
        let refused = Err(ControlError::NotResumed { connection });
        assert_eq!(new.ask(Request::Resume { connection, pass }), refused, "{what}");
        assert_eq!((server.core.nodes(), server.core.usage()), (before.0.clone(), before.1), "{what}");
        assert_eq!(census(&mut other.client), before.2, "{what}");
    }
    // Nor after `Join`.
    let late = other.client.send_frame(stopped.resume()).1;
    assert!(matches!(late, Err(Close::Request { what }) if what.contains("at the beginning")), "{late:?}");
    assert_eq!(stopped.client.ask(stopped.resume()), Ok(Reply::Done));
    // A client that was refused may join, and one that has resumed may not do so again.
    assert_eq!(new.ask(join_of(&[INSTANCE, 2], 0, 0, "new")), Ok(Reply::Done));
    let (mut thief, ..) = server.welcomed();
    let not_ended = ControlError::NotEnded { connection: stopped.connection };
    assert_eq!(thief.ask(stopped.resume()), Err(not_ended));
    give_back(&mut stopped.client, index, taken);
    let twice = stopped.client.send_frame(stopped.resume()).1;
    assert!(matches!(twice, Err(Close::Request { .. })), "{twice:?}");
}

#[test]
fn the_dead_do_not_go_on() {
    let server = Mapped::new();
    let mut stopped = server.joined();
    create(&mut stopped.client, "a").unwrap();
    server.silence(&mut stopped);
    let (resume, connection) = (stopped.resume(), stopped.connection);
    drop(stopped);
    let (mut late, ..) = server.welcomed();
    assert_eq!(late.ask(resume.clone()), Err(ControlError::NotResumed { connection }));
    // Nor a client that has said goodbye, although it still has the memory mapped.
    let mut polite = server.joined();
    assert_eq!(polite.client.send_frame(Request::Goodbye).1, Err(Close::Goodbye));
    polite.client = server.welcomed().0;
    assert_eq!(late.ask(polite.resume()), Err(ControlError::NotResumed { connection: polite.connection }));
    assert_eq!(server.core.nodes(), []);
}
