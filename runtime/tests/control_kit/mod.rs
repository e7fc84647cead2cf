//! Tools that the tests of the control service share: small memory servers, a client that speaks to a session without a
//! socket, folders that are removed, and counts of what this process holds of the system.
#![allow(dead_code, clippy::allow_attributes, reason = "every test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use farwood_runtime::control::frame::{self, FrameBuffer};
use farwood_runtime::control::greeting::{GREETING_BYTES, greeting};
use farwood_runtime::control::seal::SealKey;
use farwood_runtime::control::wire::{Census, Entry, Offer, Reply, Request};
use farwood_runtime::fabric::Responder;
use farwood_runtime::mapped::line::LineMode;
use farwood_runtime::mapped::region::Region;
use farwood_runtime::service::{Close, ServiceCore, Session, random_instance};
use farwood_runtime::{ControlError, MemoryServer, Served, ServerParts};

pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
/// The instance number of servers that need no random one.
pub(crate) const INSTANCE: u128 = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;

/// Key of the seals of indexes on servers without the catalog.
pub(crate) const KEY: SealKey = SealKey(7);

/// Makes a request for a chunk.
pub(crate) fn chunk_of(index: u32) -> Request {
    Request::Chunk { index, seal: KEY.seal(), temporary: false }
}

/// Makes a request to create an index that is not temporary, before which no node has died.
pub(crate) fn create_of(name: String, kind: &str, config: Vec<u8>) -> Request {
    Request::Create { name, kind: kind.into(), config, fenced: 0, temporary: false }
}

/// Creates an index that is not temporary.
pub(crate) fn create(client: &mut Client, name: &str) -> Result<Entry, ControlError> {
    match client.ask(create_of(name.into(), "sherman", b"{}".to_vec()))? {
        Reply::Entry(entry) => Ok(entry),
        other => panic!("{other:?}"),
    }
}

/// Makes a request to free an index, with an empty census: it lists no connection, and ends none.
pub(crate) fn free_of(index: u32) -> Request {
    Request::Free { index, key: KEY, census: Census::default() }
}

/// Makes a request to join a list of servers.
pub(crate) fn join_of(members: &[u128], position: u16, home: u64, name: &str) -> Request {
    Request::Join { members: members.into(), position, home, name: name.into() }
}

/// Makes a memory server with `chunks` chunks.
pub(crate) fn memory(chunks: u64) -> MemoryServer {
    let parts = ServerParts { locks: 16, device_bytes: 0, chunk_bytes: CHUNK_BYTES };
    // 17 pages of header and root words, one of locks.
    let bytes = 18 * 4096 + chunks * CHUNK_BYTES;
    MemoryServer::new(Arc::new(Region::anonymous(bytes, LineMode::Auto).unwrap()), parts).unwrap()
}

pub(crate) fn served(chunks: u64) -> Served {
    let offer = Offer::Shm { path: "/dev/shm/farwood".into() };
    Served { memory: memory(chunks), instance: random_instance().unwrap(), offer, responder: None }
}

pub(crate) fn served_verbs(chunks: u64, responder: Arc<dyn Responder>) -> Served {
    Served { offer: Offer::Verbs, responder: Some(responder), ..served(chunks) }
}

/// Makes a service without sockets, whose instance number is [`INSTANCE`].
pub(crate) fn core(chunks: u64) -> Arc<ServiceCore> {
    Arc::new(ServiceCore::new(Served { instance: INSTANCE, ..served(chunks) }))
}

/// A client of a session without a socket.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) next_number: u32,
}

impl Client {
    /// Makes a client that has sent nothing.
    pub(crate) fn silent(core: &Arc<ServiceCore>) -> Self {
        Client { session: Session::new(core), next_number: 0 }
    }

    /// Makes a client that has joined.
    pub(crate) fn joined(core: &Arc<ServiceCore>, members: &[u128], position: u16) -> Self {
        Self::of_home(core, members, position, 1)
    }

    /// Makes a client that has joined, and whose number at server 0 is `home`.
    pub(crate) fn of_home(core: &Arc<ServiceCore>, members: &[u128], position: u16, home: u64) -> Self {
        let mut client = Client::silent(core);
        let mut out = Vec::new();
        client.session.receive(&greeting(), &mut out).unwrap();
        assert_eq!(out, greeting());
        assert!(matches!(client.ask(Request::Hello), Ok(Reply::Welcome(_))));
        assert_eq!(client.ask(join_of(members, position, home, "a client")), Ok(Reply::Done));
        client
    }

    /// Makes a client of a cluster of one server.
    pub(crate) fn alone(core: &Arc<ServiceCore>) -> Self {
        Client::joined(core, &[INSTANCE], 0)
    }

    /// Returns the bytes of the next request.
    pub(crate) fn frame(&mut self, request: Request) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::put(&(self.next_number, request), &mut bytes);
        self.next_number += 1;
        bytes
    }

    /// Sends a request that does not end the conversation.
    pub(crate) fn ask(&mut self, request: Request) -> Result<Reply, ControlError> {
        let (replies, ended) = self.send_frame(request);
        assert_eq!(ended, Ok(()));
        let [(number, reply)] = replies.try_into().unwrap();
        assert_eq!(number, self.next_number - 1);
        reply
    }

    pub(crate) fn send_frame(&mut self, request: Request) -> (Vec<Numbered>, Result<(), Close>) {
        let bytes = self.frame(request);
        self.send(&bytes)
    }

    /// Sends bytes; yields the replies, and whether the session has ended.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> (Vec<Numbered>, Result<(), Close>) {
        let (mut out, mut all) = (Vec::new(), Vec::new());
        let mut ended = self.session.receive(bytes, &mut out);
        all.append(&mut out);
        while ended.is_ok() && self.session.pending() {
            ended = self.session.receive(&[], &mut out);
            assert!(!out.is_empty(), "a session that has work makes progress");
            all.append(&mut out);
        }
        let all = all.strip_prefix(&greeting()).unwrap_or(&all);
        (replies(all), ended)
    }
}

pub(crate) type Numbered = (u32, Result<Reply, ControlError>);

/// Parses the replies of a stream without its greeting.
pub(crate) fn replies(bytes: &[u8]) -> Vec<Numbered> {
    let (mut buffer, mut replies) = (FrameBuffer::default(), Vec::new());
    buffer.extend(bytes);
    while let Some(frame) = buffer.next_frame().unwrap() {
        replies.push(frame::parse(frame).unwrap());
    }
    replies
}

/// Makes the bytes of a client that joins a cluster of this one server, and asks for `more`.
pub(crate) fn opening(members: &[u128], more: &[Request]) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    assert_eq!(bytes.len(), GREETING_BYTES);
    let join = join_of(members, 0, 0, "raw");
    for (number, request) in (0u32..).zip([Request::Hello, join].iter().chain(more)) {
        frame::put(&(number, request), &mut bytes);
    }
    bytes
}

/// A folder of this test, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farwood-control-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let removed = fs::remove_dir_all(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// Counts the threads and file descriptors of this process.
pub(crate) fn held() -> (usize, usize) {
    let entries = |path: &str| fs::read_dir(Path::new(path)).unwrap().count();
    (entries("/proc/self/task"), entries("/proc/self/fd"))
}

/// Waits until a condition holds that other threads bring about. Fails after a long time.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let (_open, never) = channel::<()>();
    for _ in 0..3000 {
        if so() {
            return;
        }
        assert_eq!(never.recv_timeout(Duration::from_millis(10)), Err(RecvTimeoutError::Timeout));
    }
    panic!("after 30 s it is still not so: {what}");
}
