//! A memory server's control service: its connections, their rights, and the sockets. The memory itself is
//! [`crate::memory::MemoryServer`]'s business.
//!
//! ```text
//!  socket --bytes--> connection ----> session ----> core ----> MemoryServer: chunks, catalog
//!  (listen)          (a thread each)  (no I/O)      (shared)   Responder: queue pairs
//! ```
//!
//! A [`Session`] is pure: bytes in, bytes out. It survives any input, and no other session notices.

mod connection;
mod core;
mod listen;
mod members;
mod peers;
mod process;
mod session;
mod sweeps;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use self::connection::Connections;
pub use self::core::{Served, ServiceCore};
use self::listen::{Listener, Wake};
pub use self::session::{Close, Session};
use crate::control::wire::ConnectedNode;
use crate::control::{ServerAddress, ServerUsage};

/// Number of connections over the limit that are told so. Beyond, they are closed without a word.
const REFUSALS_MAX: u32 = 64;
/// Pause of an acceptor when the system cannot give it a connection (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The addresses at which a service can listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAt {
    /// A socket file, made with the permissions that the process's umask leaves.
    Unix(PathBuf),
    /// `address:port`; port 0 is any free one.
    Tcp(String),
}

/// The patience of a service with its clients.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTimes {
    /// Time from the connection to the first request.
    pub handshake: Duration,
    /// Time between two requests; after that the compute node is dead, or silent if it has the memory mapped.
    pub silence: Duration,
    /// Time for a client to read why its connection was closed.
    pub linger: Duration,
    /// True if the process of a client that is silent, and has the memory mapped, is ended by SIGKILL: it is dead then,
    /// and others may have what it held. That works over a Unix socket, for processes that this one may send signals
    /// and whose pids it sees, other than itself. Of others it says so, and they stay silent.
    pub ends_silent: bool,
}

impl Default for ServiceTimes {
    fn default() -> Self {
        ServiceTimes {
            handshake: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            ends_silent: false,
        }
    }
}

/// Configuration of a service.
pub struct ServiceConfig {
    /// Memory server, and the way to it.
    pub served: Served,
    /// Addresses at which it listens, at least one.
    pub listeners: Vec<ListenAt>,
    /// Its patience.
    pub times: ServiceTimes,
    /// Connections at the same time, at most.
    pub connections_max: u32,
}

impl ServiceConfig {
    /// Default for the connections that a service takes.
    pub const CONNECTIONS_MAX: u32 = 1024;

    /// Makes a configuration with the usual patience and limits.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let config = ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]);
    /// assert_eq!(config.connections_max, ServiceConfig::CONNECTIONS_MAX);
    /// ```
    pub fn new(served: Served, listeners: Vec<ListenAt>) -> Self {
        let (times, connections_max) = (ServiceTimes::default(), Self::CONNECTIONS_MAX);
        ServiceConfig { served, listeners, times, connections_max }
    }
}

/// Failures to start a service.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ServiceError {
    /// The configuration has no listener.
    #[error("a memory server needs an address to listen at: a socket file, or host:port")]
    NoListener,
    /// A path that is too long to be told to clients.
    #[error("the path of the region has {bytes} bytes, 4096 are the most: choose a shorter one")]
    PathTooLong { bytes: usize },
    /// Another process listens there.
    #[error("{address} is in use: stop the memory server that listens there, or choose another address")]
    InUse { address: String },
    /// Another memory server is being started with the same socket file.
    #[error("another memory server is starting in the folder of {path}: try again, or choose another path")]
    Starting { path: PathBuf },
    /// A socket file cannot have that path.
    #[error("{path} is too long for a socket file, whose path has at most 107 bytes: choose a shorter one")]
    SocketPath { path: PathBuf },
    /// There is a file of that name, and it is no socket.
    #[error("{path} is not a socket: remove it, or choose another path")]
    NotASocket { path: PathBuf },
    /// The system does not let this user listen there.
    #[error("no permission to listen at {address}: choose a folder that you may write, or a port above 1023")]
    Permission { address: String },
    /// The address is none of this host's.
    #[error("cannot listen at {address}: {cause}; use an address of this host, 0.0.0.0:PORT for all of them")]
    Address { address: String, cause: String },
    /// The system refuses otherwise.
    #[error("cannot listen at {address}: {cause}; see that its folder exists")]
    Listen { address: String, cause: String },
    /// The system gives no thread.
    #[error("cannot start a thread: {cause}; raise the limit of processes (ulimit -u)")]
    Thread { cause: String },
}

/// A running control service. It ends when it is dropped.
pub struct Service {
    core: Arc<ServiceCore>,
    shared: Arc<Shared>,
    addresses: Vec<ServerAddress>,
    acceptors: Vec<(Wake, JoinHandle<()>)>,
    times: ServiceTimes,
}

/// State that acceptors share with the service.
struct Shared {
    connections: Arc<Connections>,
    stopping: AtomicBool,
    /// Notified when the service stops.
    stopped: (Mutex<()>, Condvar),
    connections_max: u32,
}

impl Service {
    /// Starts listening.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// let control = RemoteControl::connect(service.addresses(), &ConnectConfig::default()).unwrap();
    /// assert_eq!(control.servers()[0].region_bytes, 4 << 20);
    /// # drop(control);
    /// # Ok::<_, ServiceError>(())
    /// ```
    ///
    /// # Errors
    /// If one of the addresses cannot be had; then none is kept.
    pub fn start(config: ServiceConfig) -> Result<Service, ServiceError> {
        let ServiceConfig { served, listeners, times, connections_max } = config;
        served.check()?;
        if listeners.is_empty() {
            return Err(ServiceError::NoListener);
        }
        let listeners: Vec<Listener> = listeners.iter().map(Listener::bind).collect::<Result<_, _>>()?;
        let core = Arc::new(ServiceCore::new(served));
        let connections = Arc::new(Connections::new(Arc::clone(&core), times));
        let shared = Arc::new(Shared {
            connections,
            stopping: AtomicBool::new(false),
            stopped: Default::default(),
            connections_max,
        });
        let addresses = listeners.iter().map(Listener::address).collect();
        let mut service = Service { core, shared, addresses, acceptors: Vec::new(), times };
        for listener in listeners {
            let listen = |cause: std::io::Error| ServiceError::Listen {
                address: listener.address().to_string(),
                cause: cause.to_string(),
            };
            let wake = listener.wake().map_err(listen)?;
            let shared = Arc::clone(&service.shared);
            let thread = std::thread::Builder::new().name("farwood-accept".into());
            let acceptor = thread.spawn(move || shared.accept(&listener));
            let acceptor = acceptor.map_err(|cause| ServiceError::Thread { cause: cause.to_string() })?;
            service.acceptors.push((wake, acceptor));
        }
        Ok(service)
    }

    /// Returns the addresses at which the service listens; port 0 has become the one that the system chose.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// let address = service.addresses()[0].to_string();
    /// assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"));
    /// # Ok::<_, ServiceError>(())
    /// ```
    pub fn addresses(&self) -> &[ServerAddress] {
        &self.addresses
    }

    /// Reports what the server holds.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// assert_eq!((service.usage().chunk_bytes, service.usage().indexes), (0, 0));
    /// # Ok::<_, ServiceError>(())
    /// ```
    pub fn usage(&self) -> ServerUsage {
        self.core.usage()
    }

    /// Lists the connections that have joined.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// let config = ConnectConfig { name: "nightly import".into(), ..Default::default() };
    /// let control = RemoteControl::connect(service.addresses(), &config).unwrap();
    /// assert_eq!(service.nodes()[0].name, "nightly import");
    /// # drop(control);
    /// # Ok::<_, ServiceError>(())
    /// ```
    pub fn nodes(&self) -> Vec<ConnectedNode> {
        self.core.nodes()
    }

    /// Counts the open connections, those included that have not joined.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// assert_eq!(service.connections(), 0);
    /// # Ok::<_, ServiceError>(())
    /// ```
    pub fn connections(&self) -> u32 {
        self.shared.connections.count()
    }

    /// Ends all connections and removes the socket files. The content of the memory server is lost with it.
    ///
    /// ```
    /// # use farwood_runtime::*;
    /// # use farwood_runtime::{control::wire::Offer, mapped::{line::LineMode, region::Region}};
    /// # let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// # let memory = MemoryServer::new(region.into(), ServerParts::SMALL).unwrap();
    /// # let served = Served { memory, instance: 7, offer: Offer::Verbs, responder: None };
    /// let service = Service::start(ServiceConfig::new(served, vec![ListenAt::Tcp("127.0.0.1:0".into())]))?;
    /// let addresses = service.addresses().to_vec();
    /// service.stop();
    /// assert!(RemoteControl::connect(&addresses, &ConnectConfig::default()).is_err());
    /// # Ok::<_, ServiceError>(())
    /// ```
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        {
            let _stopped = self.shared.stopped.0.lock().expect("nothing panics while it holds this");
            self.shared.stopping.store(true, Ordering::SeqCst);
            self.shared.stopped.1.notify_all();
        }
        for (wake, acceptor) in self.acceptors.drain(..) {
            wake.wake();
            if acceptor.join().is_err() {
                tracing::error!("an acceptor of the control service has panicked");
            }
        }
        self.shared.connections.end(self.times.silence);
    }
}

impl Shared {
    fn accept(&self, listener: &Listener) {
        while !self.stopping.load(Ordering::SeqCst) {
            match listener.accept() {
                Ok(stream) => self.admit(stream),
                Err(_) if self.stopping.load(Ordering::SeqCst) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(address = %listener.address(), %error, "cannot accept a connection");
                    self.pause();
                }
            }
        }
    }

    fn admit(&self, stream: crate::control::stream::Stream) {
        let count = self.connections.count();
        if count >= self.connections_max.saturating_add(REFUSALS_MAX) {
            tracing::warn!(connections = count, "a connection was closed: there are too many");
            return;
        }
        let refused = (count >= self.connections_max).then_some(self.connections_max);
        if let Err(error) = Connections::start(&self.connections, stream, refused) {
            tracing::warn!(%error, "a connection was closed: the system gives no thread for it");
            self.pause();
        }
    }

    fn pause(&self) {
        let stopped = self.stopped.0.lock().expect("nothing panics while it holds this");
        let stopping = |_: &mut ()| !self.stopping.load(Ordering::SeqCst);
        let waited = self.stopped.1.wait_timeout_while(stopped, ACCEPT_PAUSE, stopping);
        drop(waited.expect("nothing panics while it holds this"));
    }
}

/// Draws a number for [`Served::instance`] that no other run of a server has, and that cannot be guessed.
///
/// ```
/// # use farwood_runtime::service::random_instance;
/// assert_ne!(random_instance()?, random_instance()?);
/// # Ok::<_, std::io::Error>(())
/// ```
///
/// # Errors
/// If the system has no random bytes.
pub fn random_instance() -> std::io::Result<u128> {
    let mut bytes = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}
