//! The shm fabric: memory servers and compute nodes are processes of one host, and share a mapped file. A memory
//! server makes the file and listens at a socket; a compute node asks the socket which file it is, and maps it.
//! Chains are then executed as on the embedded fabric ([`crate::mapped`]). This file knows names and what belongs
//! together, no bytes.
//!
//! ```text
//!   shm:demo        region  /dev/shm/farwood-demo          socket  /dev/shm/farwood.demo.sock
//!   shm:/mnt/a/b    region  /mnt/a/b                       socket  /dev/shm/farwood.%2Fmnt%2Fa%2Fb.sock
//! ```

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use thiserror::Error;

use crate::control::queue_pair::Admission;
use crate::control::remote::{ConnectConfig, ConnectError, RemoteControl};
use crate::control::wire::{ConnectedNode, Offer, OfferKind};
use crate::control::{Control, ControlError, ServerAddress, ServerUsage};
use crate::epoch::NodeEpochs;
use crate::fabric::{DeviceContext, DeviceError, Fabric};
use crate::mapped::line::LineMode;
use crate::mapped::region::{HugePages, Region, RegionConfig, RegionError};
use crate::mapped::{MappedDevice, MappedServer};
use crate::memory::{ClusterError, MemoryServer, ServerParts};
use crate::pointer::ServerId;
use crate::service::{ListenAt, Served, Service, ServiceConfig, ServiceError, ServiceTimes, random_instance};

/// Where regions and sockets are unless a path says otherwise: memory that is gone after a reboot, as regions are.
const FOLDER: &str = "/dev/shm";
/// Where regions on reserved huge pages are.
const HUGE_FOLDER: &str = "/dev/hugepages";
/// Of the path of a socket, in the system's address structure.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Why a name, a server or a connection on the shm fabric could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A name that no file can have.
    #[error("{name:?} cannot name a memory server: {reason}")]
    #[expect(missing_docs, reason = "the message names the fields")]
    Name { name: String, reason: &'static str },
    /// The server could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The region could not be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The server's memory cannot be divided as asked.
    #[error(transparent)]
    Parts(#[from] ClusterError),
    /// The control service could not be started.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The system has no random numbers.
    #[error("cannot read /dev/urandom: {0}; a container must have it")]
    Random(std::io::Error),
}

/// The name of a memory server on this host: a word, or the path of a file or device if there is a slash in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmName(String);

impl ShmName {
    /// Takes a name as the command line has it behind `shm:`.
    ///
    /// ```
    /// # use farwood_runtime::ShmName;
    /// assert_eq!(ShmName::new("demo")?.to_string(), "shm:demo");
    /// assert!(ShmName::new("two,names").is_err());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Errors
    /// If it is empty, has a control character or a comma in it, or is too long for a socket's address.
    pub fn new(name: &str) -> Result<Self, ShmError> {
        let refused = |reason| Err(ShmError::Name { name: name.into(), reason });
        if name.is_empty() {
            return refused("it is empty");
        }
        if name.contains(|c: char| c == ',' || c.is_control()) || name.ends_with('/') {
            return refused("it has a comma or a control character in it, or a slash at its end");
        }
        // A path means the same in every folder: the name of the socket is made of it.
        let parsed = match name.contains('/') {
            true => std::path::absolute(name).ok().and_then(|path| path.into_os_string().into_string().ok()),
            false => Some(name.to_owned()),
        };
        let Some(parsed) = parsed.map(ShmName) else {
            return refused("the folder that it is relative to has no name");
        };
        if parsed.socket_path().as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return refused("it is too long for the address of a socket: choose a shorter one");
        }
        Ok(parsed)
    }

    /// Returns the name, without `shm:`.
    ///
    /// ```
    /// # use farwood_runtime::ShmName;
    /// assert_eq!(ShmName::new("demo")?.as_str(), "demo");
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path of the file or device that is to be the region.
    ///
    /// ```
    /// # use farwood_runtime::ShmName;
    /// # use std::path::Path;
    /// assert_eq!(ShmName::new("demo")?.region_path(), Path::new("/dev/shm/farwood-demo"));
    /// assert_eq!(ShmName::new("/dev/dax0.0")?.region_path(), Path::new("/dev/dax0.0"));
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn region_path(&self) -> PathBuf {
        if self.0.contains('/') { PathBuf::from(&self.0) } else { self.in_folder(FOLDER) }
    }

    /// Returns the path of the region's file on reserved huge pages. A path names its file system itself.
    ///
    /// ```
    /// # use farwood_runtime::ShmName;
    /// # use std::path::Path;
    /// assert_eq!(ShmName::new("demo")?.huge_region_path(), Path::new("/dev/hugepages/farwood-demo"));
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn huge_region_path(&self) -> PathBuf {
        if self.0.contains('/') { PathBuf::from(&self.0) } else { self.in_folder(HUGE_FOLDER) }
    }

    /// Returns the path of the control service's socket.
    ///
    /// ```
    /// # use farwood_runtime::ShmName;
    /// # use std::path::Path;
    /// assert_eq!(ShmName::new("demo")?.socket_path(), Path::new("/dev/shm/farwood.demo.sock"));
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn socket_path(&self) -> PathBuf {
        let escaped = self.0.replace('%', "%25").replace('/', "%2F");
        Path::new(FOLDER).join(format!("farwood.{escaped}.sock"))
    }

    fn in_folder(&self, folder: &str) -> PathBuf {
        Path::new(folder).join(format!("farwood-{}", self.0))
    }
}

impl std::fmt::Display for ShmName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shm:{}", self.0)
    }
}

/// Configuration of a memory server on the shm fabric.
#[derive(Clone, Debug)]
pub struct ShmServerConfig {
    /// Name by which compute nodes connect to it.
    pub name: ShmName,
    /// Bytes of its region, all of which are taken at the start.
    pub memory_bytes: u64,
    /// Parts that the region is divided into.
    pub parts: ServerParts,
    /// Set if the region has to be on reserved huge pages (hugetlbfs).
    pub reserved_huge_pages: bool,
    /// Mechanism of line atomicity.
    pub line_mode: LineMode,
    /// Once it is set, a server that is being started is given up, which leaves nothing behind.
    pub stop: Option<Arc<AtomicBool>>,
    /// When its control service loses its patience.
    pub times: ServiceTimes,
}

impl ShmServerConfig {
    /// Makes the configuration of a server with the usual parts.
    ///
    /// ```
    /// # use farwood_runtime::{ServerParts, ShmName, ShmServerConfig};
    /// let config = ShmServerConfig::new(ShmName::new("demo")?, 1 << 30);
    /// assert_eq!(config.parts, ServerParts::default());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn new(name: ShmName, memory_bytes: u64) -> Self {
        let (parts, line_mode, times) = (ServerParts::default(), LineMode::Auto, ServiceTimes::default());
        let (reserved_huge_pages, stop) = (false, None);
        ShmServerConfig { name, memory_bytes, parts, reserved_huge_pages, line_mode, stop, times }
    }

    /// Makes the configuration of a server of 4 MiB ([`ServerParts::SMALL`]), for examples and tests.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServerConfig};
    /// let config = ShmServerConfig::small(ShmName::new("demo")?);
    /// assert_eq!(config.memory_bytes, 4 << 20);
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn small(name: ShmName) -> Self {
        ShmServerConfig { parts: ServerParts::SMALL, ..Self::new(name, 4 << 20) }
    }
}

/// A memory server that compute nodes of this host can connect to. Dropping it ends the service and removes its files.
pub struct ShmServer {
    // The service ends before the region goes.
    service: Service,
    region: Arc<Region>,
    path: PathBuf,
    name: ShmName,
}

impl ShmServer {
    /// Makes the region, which takes seconds if it is large, and starts the control service.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-start-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// assert!(name.region_path().exists());
    /// drop(server);
    /// assert!(!name.region_path().exists());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Errors
    /// If the region or the socket cannot be had.
    pub fn start(config: &ShmServerConfig) -> Result<Self, ShmError> {
        let ShmServerConfig { name, memory_bytes, parts, reserved_huge_pages, line_mode, stop, times } =
            config;
        parts.check(*memory_bytes)?;
        let path = if *reserved_huge_pages { name.huge_region_path() } else { name.region_path() };
        let failed = |cause| RegionError::Io { action: "find", path: path.clone(), cause };
        let path = std::path::absolute(&path).map_err(failed)?;
        let instance = random_instance().map_err(ShmError::Random)?;
        let huge_pages = if *reserved_huge_pages { HugePages::Reserved } else { HugePages::Try };
        let region = RegionConfig::new(*memory_bytes, instance);
        let region = RegionConfig { line_mode: *line_mode, huge_pages, stop: stop.clone(), ..region };
        let region = Arc::new(Region::create(&path, &region)?);
        let memory = MemoryServer::new(Arc::clone(&region), *parts)?;
        let offer = Offer::Shm { path: path.display().to_string() };
        let served = Served { memory, instance, offer, responder: None };
        let listeners = vec![ListenAt::Unix(name.socket_path())];
        let service =
            Service::start(ServiceConfig { times: *times, ..ServiceConfig::new(served, listeners) })?;
        Ok(ShmServer { service, region, path, name: name.clone() })
    }

    /// Returns the name by which compute nodes connect to it.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-name-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// assert_eq!(*server.name(), name);
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn name(&self) -> &ShmName {
        &self.name
    }

    /// Returns the path of the region's file.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-path-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// assert_eq!(server.path(), name.region_path());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the region.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-region-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name))?;
    /// assert_eq!(server.region().bytes(), 4 << 20);
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns what the server holds.
    ///
    /// ```
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-usage-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name))?;
    /// assert_eq!((server.usage().chunk_bytes, server.usage().indexes), (0, 0));
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn usage(&self) -> ServerUsage {
        self.service.usage()
    }

    /// Lists the compute nodes that are connected.
    ///
    /// ```
    /// # use farwood_runtime::{ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-nodes-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// assert_eq!(server.nodes().len(), 1);
    /// # drop(cluster);
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn nodes(&self) -> Vec<ConnectedNode> {
        self.service.nodes()
    }

    /// Ends it. What it holds is lost.
    ///
    /// ```
    /// # use farwood_runtime::{ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-stop-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// server.stop();
    /// assert!(ShmCluster::connect(&[name.as_str()]).is_err());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn stop(self) {
        drop(self);
    }
}

/// Remains of a memory server that has ended without removing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remains {
    /// Its region and its socket, as far as they are there.
    pub files: Vec<PathBuf>,
    /// Bytes that they take.
    pub bytes: u64,
}

impl Remains {
    /// Finds what is left of a memory server of this host whose process has ended. None while there is one that answers
    /// at its address, and of servers on other fabrics.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ServerId, ShmCluster, ShmName, ShmServer, ShmServerConfig, shm};
    /// # let name = ShmName::new(&format!("doc-of-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// let control = cluster.remote().expect("it is in another process, as a rule");
    /// assert_eq!(shm::Remains::of(control, ServerId(0)), None, "it is alive");
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such server among those that `control` is connected to.
    pub fn of(control: &RemoteControl, server: ServerId) -> Option<Self> {
        let (ServerAddress::Unix(socket), Offer::Shm { path }) =
            (control.address(server), &control.welcome(server).offer)
        else {
            return None;
        };
        if UnixStream::connect(socket).is_ok() {
            return None;
        }
        let mut remains = Remains::default();
        for file in [Path::new(path), socket] {
            if let Ok(found) = file.metadata() {
                remains.files.push(file.to_owned());
                remains.bytes += found.len();
            }
        }
        Some(remains)
    }
}

/// Memory servers of this host that a process is connected to.
pub struct ShmCluster {
    control: Arc<RemoteControl>,
    /// As long as one of them is mapped, its server does not take this process for dead.
    servers: Arc<[MappedServer]>,
}

impl ShmCluster {
    /// Connects to the servers with these names and maps their regions. Blocks. All compute nodes list the same servers
    /// in the same order: it makes the servers' ids.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-connect-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// assert_eq!(cluster.control().servers()[0].region_bytes, server.region().bytes());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Errors
    /// If one of the servers is not there, or its region is not what it should be.
    pub fn connect<S: AsRef<str>>(names: &[S]) -> Result<Arc<Self>, ShmError> {
        Self::connect_with(names, ConnectConfig::default())
    }

    /// Connects as [`ShmCluster::connect`] does, with another name or patience.
    ///
    /// ```
    /// # use farwood_runtime::{ConnectConfig, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-connect-with-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let config = ConnectConfig { name: "nightly import".into(), ..Default::default() };
    /// let cluster = ShmCluster::connect_with(&[name.as_str()], config)?;
    /// assert_eq!(server.nodes()[0].name, "nightly import");
    /// # drop(cluster);
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn connect_with<S: AsRef<str>>(names: &[S], config: ConnectConfig) -> Result<Arc<Self>, ShmError> {
        let address = |name: &S| Ok(ServerAddress::Unix(ShmName::new(name.as_ref())?.socket_path()));
        let addresses = names.iter().map(address).collect::<Result<Vec<_>, ShmError>>()?;
        let config = ConnectConfig { fabric: Some(OfferKind::Shm), ..config };
        let control = RemoteControl::connect(&addresses, &config)?;
        let mapped = control.servers().iter().map(|info| {
            let welcome = control.welcome(info.id);
            let Offer::Shm { path } = &welcome.offer else {
                unreachable!("the connection was made for servers that offer shm");
            };
            let region = Region::open(Path::new(path), welcome.instance)?;
            region.claim(welcome.connection)?;
            if region.bytes() != info.region_bytes {
                let path = PathBuf::from(path);
                let reason =
                    format!("it has {} bytes, and its server has {}", region.bytes(), info.region_bytes);
                return Err(RegionError::NotFarwood { path, reason });
            }
            Ok(MappedServer::new(Arc::new(region), control.gone(info.id)))
        });
        let servers = mapped.collect::<Result<_, _>>()?;
        Ok(Arc::new(ShmCluster { control, servers }))
    }
}

impl Fabric for ShmCluster {
    type Device = MappedDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        Arc::clone(&self.control) as Arc<dyn Control>
    }

    fn remote(&self) -> Option<&Arc<RemoteControl>> {
        Some(&self.control)
    }

    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.control.allocate_node_id()
    }

    fn release_node_id(&self, _: u16) {
        self.control.release_node_id();
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        self.control.join_epochs(node, epochs);
    }

    fn device(&self, context: &DeviceContext) -> Result<MappedDevice, DeviceError> {
        Ok(MappedDevice::new(Arc::clone(&self.servers), MappedDevice::SHM, context.clock.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_file_in_shared_memory_and_a_path_is_itself() {
        let word = ShmName::new("demo").unwrap();
        assert_eq!(word.region_path(), Path::new("/dev/shm/farwood-demo"));
        assert_eq!(word.huge_region_path(), Path::new("/dev/hugepages/farwood-demo"));
        assert_eq!(word.socket_path(), Path::new("/dev/shm/farwood.demo.sock"));
        let path = ShmName::new("/mnt/100%/b").unwrap();
        assert_eq!(path.region_path(), Path::new("/mnt/100%/b"));
        assert_eq!(path.huge_region_path(), Path::new("/mnt/100%/b"));
        assert_eq!(path.socket_path(), Path::new("/dev/shm/farwood.%2Fmnt%2F100%25%2Fb.sock"));
        assert_eq!(path.to_string(), "shm:/mnt/100%/b");
        let here = std::env::current_dir().unwrap();
        assert_eq!(ShmName::new("./x").unwrap().region_path(), here.join("x"));
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        for name in ["", "a,b", "a\0", "/mnt/", &"x".repeat(100)] {
            let error = ShmName::new(name).unwrap_err().to_string();
            assert!(error.contains("cannot name a memory server"), "{error}");
        }
    }
}
