//! A compute node's side of the control plane: one connection per memory server, and the calls over them.
//!
//! Calls never block the shard that makes them: threads of the connections do the I/O and wake the waiters. A server
//! that closes its connection, or is silent, and does not let this client resume it (`resume.rs`), is gone for good;
//! every call to it ends with [`ControlError::ServerGone`].

mod connection;
mod dial;
mod epochs;
mod error;
mod fencing;
mod handed_out;
mod holdings;
mod resume;
mod sweeps;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{LocalBoxFuture, ready, try_join_all};

use self::connection::{Answered, Connection};
use self::dial::Dialled;
use self::epochs::ProcessEpochs;
pub use self::error::ConnectError;
use self::fencing::{Dead, census, fence_the_dead};
use self::handed_out::{HandedOut, Memory};
use self::resume::WayBack;
use super::names::{CONFIG_BYTES_MAX, KIND_BYTES_MAX, NAME_BYTES_MAX, check_name, check_new};
use super::nodes::{NodeBatch, WantedNodes};
use super::queue_pair::{Admission, Endpoint, Exchange, Exchanged};
use super::seal::Seal;
use super::wire::{ConnectedNode, Entry, MEMBERS_MAX, OfferKind, Reply, Request, Welcome, WordRange};
use super::{
    CatalogEntry, Chunk, Control, ControlError, Holdings, IndexId, LockRegion, REST_ALIGN, ServerAddress,
    ServerInfo, ServerUsage,
};
use crate::clock::Clock;
use crate::control::stream::Deadline;
use crate::control::sweep::{Lists, Step};
use crate::epoch::NodeEpochs;
use crate::message::ShardId;
use crate::pointer::{RemotePtr, ServerId};

/// Configuration of a compute node's connections.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Name of this client in usage reports: 1 to 255 bytes.
    pub name: String,
    /// Fabric by which the servers' memory has to be reached; `None` takes any, for clients that do not touch it.
    pub fabric: Option<OfferKind>,
    /// Time in which all servers together have to be connected.
    pub timeout: Duration,
    /// Silence after which a server is told that this client is alive.
    pub ping: Duration,
    /// Silence after which a server is gone, unless it lets this client resume the connection, which takes longer
    /// neither than this nor than `timeout`.
    pub silence: Duration,
    /// Makes the indexes that this connection creates temporary: no other connection can use them, and they are dropped
    /// when the connection ends, in whatever way.
    pub temporary_indexes: bool,
}

impl Default for ConnectConfig {
    fn default() -> Self {
        ConnectConfig {
            name: format!("process {} on {}", std::process::id(), host_name()),
            fabric: None,
            timeout: Duration::from_secs(5),
            ping: Duration::from_secs(1),
            silence: Duration::from_secs(10),
            temporary_indexes: false,
        }
    }
}

/// Yields the name that this host gives itself.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The control services of a cluster's memory servers, over sockets. Server 0 of the list keeps the catalog.
pub struct RemoteControl {
    servers: Arc<[Server]>,
    infos: Vec<ServerInfo>,
    /// Number of compute nodes that have got an id and not released it.
    nodes: AtomicUsize,
    temporary_indexes: bool,
    known: Arc<Known>,
    epochs: Arc<ProcessEpochs>,
}

/// Knowledge from the catalog of indexes and nodes.
#[derive(Default)]
struct Known {
    dead: Dead,
    /// Rights to take chunks for the indexes that were created or opened here.
    chunk_rights: Mutex<BTreeMap<IndexId, ChunkRight>>,
}

impl Known {
    fn rights(&self) -> MutexGuard<'_, BTreeMap<IndexId, ChunkRight>> {
        self.chunk_rights.lock().expect("nothing panics while it holds them")
    }

    /// Returns the right to take memory of that server for an index.
    fn right(&self, server: ServerId, index: IndexId) -> Result<ChunkRight, ControlError> {
        match self.rights().get(&index) {
            Some(right) => Ok(*right),
            // Server 0 knows what belongs to the index. The others do not, and no drop would free what they gave.
            None if server == ServerId(0) => Ok(ChunkRight::default()),
            None => Err(ControlError::NoSuchIndex { index }),
        }
    }
}

#[derive(Clone, Copy, Default)]
struct ChunkRight {
    seal: Seal,
    temporary: bool,
}

struct Server {
    connection: Connection,
    address: ServerAddress,
    welcome: Welcome,
}

impl RemoteControl {
    /// Connects to all servers of a list. Blocks. The order of the list determines the servers' ids: all clients of the
    /// cluster have to use one order.
    ///
    /// ```
    /// # use farwood_runtime::{ConnectConfig, Control, RemoteControl, ServerAddress};
    /// # use farwood_runtime::{ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-control-{}", std::process::id())).unwrap();
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone())).unwrap();
    /// let addresses = [ServerAddress::Unix(name.socket_path())];
    /// let control = RemoteControl::connect(&addresses, &ConnectConfig::default())?;
    /// assert_eq!(control.servers()[0].region_bytes, server.region().bytes());
    /// # Ok::<_, farwood_runtime::ConnectError>(())
    /// ```
    ///
    /// # Errors
    /// If one of the servers cannot be connected.
    pub fn connect(addresses: &[ServerAddress], config: &ConnectConfig) -> Result<Arc<Self>, ConnectError> {
        if !(1..=MEMBERS_MAX).contains(&addresses.len()) {
            return Err(ConnectError::Servers { servers: addresses.len() });
        }
        let address = addresses[0].clone();
        check_name(&config.name).map_err(|cause| ConnectError::Refused { address, cause })?;
        let clock = Clock::new();
        let dialled = dial::dial_all(addresses, config, &clock)?;
        let members: Vec<u128> = dialled.iter().map(|server| server.welcome.instance).collect();
        for (i, instance) in members.iter().enumerate() {
            if let Some(first) = members[..i].iter().position(|earlier| earlier == instance) {
                let (first, second) = (addresses[first].clone(), addresses[i].clone());
                return Err(ConnectError::SameServer { first, second });
            }
        }
        let mut servers = Vec::with_capacity(addresses.len());
        let epochs = Arc::<ProcessEpochs>::default();
        for (id, (Dialled { stream, welcome }, address)) in (0..).zip(dialled.into_iter().zip(addresses)) {
            let way_back = WayBack::to(address, &welcome);
            let beats = (id == 0).then(|| Arc::clone(&epochs));
            let connection = Connection::start(ServerId(id), (stream, way_back), beats, config, &clock)?;
            servers.push(Server { connection, address: address.clone(), welcome });
        }
        join_all(&servers, &members, config)?;
        let infos = (0..).zip(&servers).map(|(id, server)| info(ServerId(id), &server.welcome)).collect();
        let (servers, nodes, temporary_indexes) =
            (servers.into(), AtomicUsize::new(0), config.temporary_indexes);
        let known = Arc::default();
        Ok(Arc::new(RemoteControl { servers, infos, nodes, temporary_indexes, known, epochs }))
    }

    /// Returns a server's description of itself. There is one for every address of the list.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ServerId, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-welcome-{}", std::process::id()))?;
    /// let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// let welcome = cluster.remote().unwrap().welcome(ServerId(0));
    /// assert_eq!(welcome.region_bytes, server.region().bytes());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Panics
    /// If the list does not have that server.
    pub fn welcome(&self, server: ServerId) -> &Welcome {
        &self.servers[usize::from(server.0)].welcome
    }

    /// Returns the address by which a server of the list was connected.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ServerId, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-address-{}", std::process::id()))?;
    /// # let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// let address = cluster.remote().unwrap().address(ServerId(0));
    /// assert_eq!(address.to_string(), name.socket_path().to_str().unwrap());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Panics
    /// If the list does not have that server.
    pub fn address(&self, server: ServerId) -> &ServerAddress {
        &self.servers[usize::from(server.0)].address
    }

    /// Returns the flag that is set as soon as a server of the list is gone.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ServerId, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # use std::sync::atomic::Ordering;
    /// # let name = ShmName::new(&format!("doc-gone-{}", std::process::id()))?;
    /// # let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// let gone = cluster.remote().unwrap().gone(ServerId(0));
    /// assert!(!gone.load(Ordering::Acquire));
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    ///
    /// # Panics
    /// If the list does not have that server.
    pub fn gone(&self, server: ServerId) -> Arc<AtomicBool> {
        Arc::clone(self.servers[usize::from(server.0)].connection.gone())
    }

    /// Lists the servers that have ended, or are silent.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # let name = ShmName::new(&format!("doc-lost-{}", std::process::id()))?;
    /// # let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// assert!(cluster.remote().unwrap().lost().is_empty());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn lost(&self) -> Vec<ServerId> {
        let lost = |(id, server): (u16, &Server)| server.connection.is_lost().then_some(ServerId(id));
        (0..).zip(self.servers.iter()).filter_map(lost).collect()
    }

    /// Tells the servers that the compute nodes of this process have ended well: they hold no lock, and their ids may
    /// be given to others. Blocks until the servers know. Without it a client that ends counts as dead, and its ids are
    /// not used again. Calls that come later fail.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # use futures::executor::block_on;
    /// # let name = ShmName::new(&format!("doc-goodbye-{}", std::process::id()))?;
    /// # let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// cluster.remote().unwrap().goodbye();
    /// assert!(block_on(cluster.control().list()).is_err());
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn goodbye(&self) {
        // A sweep that is under way would be void else.
        let home = &self.servers[0].connection;
        let parts = self.epochs.parts().into_iter().map(|part| home.ask_blocking(part));
        let told: Vec<_> = parts.collect();
        told.iter().for_each(|heard| _ = home.wait(heard));
        self.servers.iter().for_each(|server| server.connection.leave());
        let said: Vec<_> =
            self.servers.iter().map(|server| server.connection.ask_blocking(Request::Goodbye)).collect();
        for (server, heard) in self.servers.iter().zip(&said) {
            server.connection.gone().store(true, Ordering::Release);
            if let Err(error) = server.connection.wait(heard) {
                tracing::debug!(address = %server.address, %error, "a server has not heard the goodbye");
            }
        }
    }

    /// Lists the connections to a server.
    ///
    /// ```
    /// # use farwood_runtime::{Fabric, ServerId, ShmCluster, ShmName, ShmServer, ShmServerConfig};
    /// # use futures::executor::block_on;
    /// # let name = ShmName::new(&format!("doc-peers-{}", std::process::id()))?;
    /// # let server = ShmServer::start(&ShmServerConfig::small(name.clone()))?;
    /// let cluster = ShmCluster::connect(&[name.as_str()])?;
    /// let nodes = block_on(cluster.remote().unwrap().nodes(ServerId(0))).unwrap();
    /// assert_eq!(nodes.len(), 1, "this process");
    /// # Ok::<_, farwood_runtime::shm::ShmError>(())
    /// ```
    pub fn nodes(
        &self,
        server: ServerId,
    ) -> LocalBoxFuture<'static, Result<Vec<ConnectedNode>, ControlError>> {
        let servers = Arc::clone(&self.servers);
        async move {
            let asked = servers.get(usize::from(server.0)).ok_or(ControlError::NoSuchServer { server })?;
            asked.nodes().await
        }
        .boxed_local()
    }

    /// Wakes the thread that sends signs of life, which may sleep until the next one for a second else.
    #[cold]
    fn hurry(&self) {
        self.servers[0].connection.call(Request::Ping, drop);
    }

    fn server(&self, server: ServerId) -> Result<&Server, ControlError> {
        self.servers.get(usize::from(server.0)).ok_or(ControlError::NoSuchServer { server })
    }

    /// Asks server 0 for an entry of the catalog, after all servers have agreed that they belong together: otherwise an
    /// index could be created that no chunk can be taken for, or a missing one be taken for one that was never created.
    fn entry(&self, request: Request) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        let (servers, known) = (Arc::clone(&self.servers), Arc::clone(&self.known));
        async move {
            agree(&servers).await?;
            let home = &servers[0];
            let request = match request {
                Request::Create { name, kind, config, temporary, .. } => {
                    let fenced = fence_the_dead(&servers).await?;
                    Request::Create { name, kind, config, fenced, temporary }
                }
                open => open,
            };
            let entry = match home.connection.ask(request).await? {
                Reply::Entry(entry) => entry,
                other => return Err(home.unexpected(&other)),
            };
            let (right, fenced) = (ChunkRight { seal: entry.seal, temporary: entry.temporary }, entry.fenced);
            let entry = home.check_entry(entry)?;
            known.rights().insert(entry.id, right);
            Ok(CatalogEntry { dead_owners: known.dead.first(home, fenced).await?, ..entry })
        }
        .boxed_local()
    }
}

fn join_all(servers: &[Server], members: &[u128], config: &ConnectConfig) -> Result<(), ConnectError> {
    let join = |(position, server): (u16, &Server)| {
        let (members, name) = (members.to_vec(), config.name.clone());
        let home = servers[0].welcome.connection;
        server.connection.ask_blocking(Request::Join { members, position, home, name })
    };
    let joining: Vec<_> = (0..).zip(servers).map(join).collect();
    let deadline = Deadline::after(&Clock::new(), config.timeout);
    for (server, joined) in servers.iter().zip(joining) {
        let address = server.address.clone();
        let joined = match joined.recv_timeout(deadline.left().unwrap_or_default()) {
            Ok(joined) => joined,
            Err(_) => return Err(ConnectError::Timeout { address }),
        };
        server.done(joined).map_err(|cause| ConnectError::Refused { address, cause })?;
    }
    Ok(())
}

fn info(id: ServerId, welcome: &Welcome) -> ServerInfo {
    let locks = |words: WordRange| LockRegion { base: RemotePtr::new(id, words.offset), count: words.count };
    ServerInfo {
        id,
        region_bytes: welcome.region_bytes,
        locks: locks(welcome.locks),
        device_locks: welcome.device_locks.map(locks),
        chunk_bytes: welcome.chunk_bytes,
    }
}

/// Tells whether a server with that description can have handed out that range as a chunk or the rest of one.
fn is_chunk(welcome: &Welcome, offset: u64, bytes: u64) -> bool {
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= welcome.region_bytes);
    let aligned = offset.is_multiple_of(REST_ALIGN) && bytes.is_multiple_of(REST_ALIGN);
    inside && aligned && offset > 0 && (1..=welcome.chunk_bytes).contains(&bytes)
}

async fn agree(servers: &[Server]) -> Result<(), ControlError> {
    let agreeing = servers.iter().map(|server| async move {
        let agreed = server.connection.ask(Request::Agree).await;
        server.done(agreed)
    });
    try_join_all(agreeing).await.map(|_| ())
}

impl Server {
    fn done(&self, answer: Answered) -> Result<(), ControlError> {
        match answer? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, reply: &Reply) -> ControlError {
        tracing::debug!(?reply, "an unexpected reply");
        self.broken("a reply to another request")
    }

    fn broken(&self, what: &str) -> ControlError {
        ControlError::Protocol { what: format!("{} sent {what}", self.address) }
    }

    fn check_entry(&self, entry: Entry) -> Result<CatalogEntry, ControlError> {
        let bounded = entry.name.len() <= NAME_BYTES_MAX
            && entry.kind.len() <= KIND_BYTES_MAX
            && entry.config.len() <= CONFIG_BYTES_MAX;
        let inside = entry.root.checked_add(8).is_some_and(|end| end <= self.welcome.region_bytes);
        if bounded && inside && entry.root > 0 && entry.root.is_multiple_of(8) {
            return Ok(entry.of(ServerId(0)));
        }
        Err(self.broken("an impossible catalog entry"))
    }

    fn check_chunk(&self, id: ServerId, offset: u64, bytes: u64) -> Result<Chunk, ControlError> {
        if is_chunk(&self.welcome, offset, bytes) {
            return Ok(Chunk { start: RemotePtr::new(id, offset), bytes });
        }
        Err(self.broken("an impossible chunk"))
    }

    async fn list(&self) -> Result<Vec<CatalogEntry>, ControlError> {
        let mut all: Vec<CatalogEntry> = Vec::new();
        loop {
            let after = all.last().map(|entry| entry.name.clone());
            match self.connection.ask(Request::List { after }).await? {
                Reply::Page { entries, more } => {
                    if more && entries.is_empty() {
                        return Err(self.broken("an empty page of the catalog"));
                    }
                    for entry in entries {
                        if all.last().is_some_and(|last| last.name >= entry.name) {
                            return Err(self.broken("a page of the catalog that goes back"));
                        }
                        all.push(self.check_entry(entry)?);
                    }
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    async fn nodes(&self) -> Result<Vec<ConnectedNode>, ControlError> {
        let (mut all, mut last) = (Vec::new(), None);
        loop {
            match self.connection.ask(Request::Nodes { after: last }).await? {
                Reply::Nodes { nodes, more } => {
                    if more && nodes.is_empty() {
                        return Err(self.broken("an empty page of connections"));
                    }
                    for (number, node) in nodes {
                        if last >= Some(number) {
                            return Err(self.broken("a page of connections that goes back"));
                        }
                        last = Some(number);
                        all.push(node);
                    }
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
        }
    }
}

async fn drop_index(servers: &[Server], known: &Known, name: String) -> Result<u64, ControlError> {
    let home = &servers[0];
    let (index, key) = match home.connection.ask(Request::BeginDrop { name: name.clone() }).await {
        Ok(Reply::Dropping { index, key }) => (index, key),
        Ok(other) => return Err(home.unexpected(&other)),
        Err(error @ ControlError::NotFound { .. }) => {
            // Another server 0 has another catalog.
            agree(servers).await?;
            return Err(error);
        }
        Err(error) => return Err(error),
    };
    // From here on no client opens it. Clients that had it open and are dead for server 0 are fenced on the other
    // servers first.
    let (census, _) = census(home).await?;
    let freeing = servers.iter().map(|server| {
        let census = census.clone();
        async move {
            match server.connection.ask(Request::Free { index, key, census }).await? {
                Reply::Freed { bytes } => Ok(bytes),
                other => Err(server.unexpected(&other)),
            }
        }
    });
    let freed = try_join_all(freeing).await?;
    home.done(home.connection.ask(Request::FinishDrop { name, index }).await)?;
    known.rights().remove(&IndexId(index));
    Ok(freed.into_iter().fold(0, u64::saturating_add))
}

/// Says goodbye for nodes that ended well: no shard uses the connections any more.
impl Drop for RemoteControl {
    fn drop(&mut self) {
        if self.nodes.load(Ordering::Acquire) == 0 {
            self.goodbye();
        }
    }
}

impl Admission for RemoteControl {
    /// Asks server 0 for an id. Blocks until it has answered.
    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        let home = &self.servers[0];
        match home.connection.wait(&home.connection.ask_blocking(Request::Admit))? {
            // 0 is the owner in a free lock word.
            Reply::Admitted { node, epoch, sweep } if node != 0 => {
                self.epochs.admitted(epoch, sweep);
                self.nodes.fetch_add(1, Ordering::AcqRel);
                Ok(node)
            }
            other => Err(home.unexpected(&other)),
        }
    }

    /// Counts one node less. When none is left, dropping the connections says goodbye.
    fn release_node_id(&self) {
        self.nodes.fetch_sub(1, Ordering::AcqRel);
    }

    fn join_epochs(&self, _: u16, epochs: &Arc<NodeEpochs>) {
        self.epochs.join(epochs);
    }
}

impl Control for RemoteControl {
    fn servers(&self) -> &[ServerInfo] {
        &self.infos
    }

    fn chunk(
        &self,
        server: ServerId,
        index: IndexId,
    ) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
        let asked = match self.server(server) {
            Ok(asked) => asked,
            Err(error) => return ready(Err(error)).boxed_local(),
        };
        let (take, answered) = oneshot::channel();
        let servers = Arc::downgrade(&self.servers);
        let ChunkRight { seal, temporary } = match self.known.right(server, index) {
            Ok(right) => right,
            Err(error) => return ready(Err(error)).boxed_local(),
        };
        let request = Request::Chunk { index: index.0, seal, temporary };
        let connected = Arc::clone(&self.servers);
        let epochs = self.epochs.is_held_by_the_dead().then(|| Arc::clone(&self.epochs));
        asked.connection.call(request, move |answer| {
            let answer = answer.and_then(|reply| HandedOut::chunk(servers, server, index, reply));
            // If the allocator has gone, the chunk is dropped here, and so goes back.
            let _unheard = take.send(answer);
        });
        async move {
            let handed_out = answered.await.unwrap_or(Err(ControlError::ServerGone { server }))?;
            // The next one may not be needed, then. That it fails is no matter of this one.
            if let Some(epochs) = epochs
                && let Ok(fenced) = fence_the_dead(&connected).await
            {
                epochs.note_fenced(fenced);
            }
            match handed_out.keep() {
                Some(Memory::Chunk(chunk)) => Ok(chunk),
                _ => unreachable!("a chunk was asked for"),
            }
        }
        .boxed_local()
    }

    fn want_epoch(&self) {
        if self.epochs.want() {
            self.hurry();
        }
    }

    fn want_flush(&self, since: u64) {
        if self.epochs.want_flush(since) {
            self.hurry();
        }
    }

    fn holdings(&self, index: IndexId) -> LocalBoxFuture<'static, Result<Vec<Holdings>, ControlError>> {
        holdings::all(Arc::clone(&self.servers), index).boxed_local()
    }

    fn take_back(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: Vec<Chunk>,
    ) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        holdings::take_back(Arc::clone(&self.servers), (index, server), joins, extents).boxed_local()
    }

    fn lists(&self) -> &Lists {
        &self.epochs.lists
    }

    fn begin_sweep(&self, index: IndexId) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        sweeps::begin(Arc::clone(&self.servers), index).boxed_local()
    }

    fn sweep_waits_for(
        &self,
        sweep: u64,
        step: Step,
    ) -> LocalBoxFuture<'static, Result<Vec<u16>, ControlError>> {
        self.want_epoch();
        sweeps::late(Arc::clone(&self.servers), sweep, step).boxed_local()
    }

    fn swept_lists(&self, sweep: u64) -> LocalBoxFuture<'static, Result<Vec<Chunk>, ControlError>> {
        sweeps::lists(Arc::clone(&self.servers), sweep).boxed_local()
    }

    fn end_sweep(&self, sweep: Option<u64>) {
        self.servers[0].connection.call(Request::EndSweep { sweep }, drop);
    }

    fn return_extent(&self, index: IndexId, rest: Chunk) {
        match self.server(rest.start.server()) {
            Ok(server) => server.return_extent(index, rest),
            Err(_) => tracing::debug!(?rest, "a rest of no server of this cluster"),
        }
    }

    fn give_nodes(&self, index: IndexId, server: ServerId, batch: NodeBatch) {
        match self.server(server) {
            Ok(server) => server.give_nodes(index, batch),
            Err(_) => tracing::debug!(server = server.0, "free nodes of no server of this cluster"),
        }
    }

    fn take_nodes(
        &self,
        server: ServerId,
        index: IndexId,
        wanted: WantedNodes,
    ) -> LocalBoxFuture<'static, Result<Option<NodeBatch>, ControlError>> {
        let (asked, seal) = match (self.server(server), self.known.right(server, index)) {
            (Ok(asked), Ok(ChunkRight { seal, .. })) => (asked, seal),
            (Err(error), _) | (_, Err(error)) => return ready(Err(error)).boxed_local(),
        };
        let (take, answered) = oneshot::channel();
        let servers = Arc::downgrade(&self.servers);
        asked.connection.call(Request::TakeNodes { index: index.0, seal, wanted }, move |answer| {
            let answer = answer.and_then(|reply| HandedOut::nodes(servers, server, index, &wanted, reply));
            // If the allocator has gone, the nodes are dropped here, and so go back.
            let _unheard = take.send(answer);
        });
        async move {
            match answered.await.unwrap_or(Err(ControlError::ServerGone { server }))?.keep() {
                Some(Memory::Nodes(batch)) => Ok(Some(batch)),
                None => Ok(None),
                Some(Memory::Chunk(_)) => unreachable!("nodes were asked for"),
            }
        }
        .boxed_local()
    }

    fn create(
        &self,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        // Else the request might not fit into a frame.
        if let Err(error) = check_new(name, kind, config) {
            return ready(Err(error)).boxed_local();
        }
        let (name, kind, config) = (name.into(), kind.into(), config.into());
        // `fenced` is filled in after the fencing.
        self.entry(Request::Create { name, kind, config, fenced: 0, temporary: self.temporary_indexes })
    }

    fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        if let Err(error) = check_name(name) {
            return ready(Err(error)).boxed_local();
        }
        self.entry(Request::Open { name: name.into() })
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        let servers = Arc::clone(&self.servers);
        async move { servers[0].list().await }.boxed_local()
    }

    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        if let Err(error) = check_name(name) {
            return ready(Err(error)).boxed_local();
        }
        let (servers, known, name) = (Arc::clone(&self.servers), Arc::clone(&self.known), name.to_string());
        async move { drop_index(&servers, &known, name).await }.boxed_local()
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        let servers = Arc::clone(&self.servers);
        async move {
            let asking = servers.iter().map(|server| async move {
                match server.connection.ask(Request::Usage).await? {
                    Reply::Usage { usage, .. } => Ok(usage),
                    other => Err(server.unexpected(&other)),
                }
            });
            try_join_all(asking).await
        }
        .boxed_local()
    }

    fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>> {
        let (servers, known) = (Arc::clone(&self.servers), Arc::clone(&self.known));
        let epochs = Arc::clone(&self.epochs);
        async move {
            let fenced = fence_the_dead(&servers).await?;
            epochs.note_fenced(fenced);
            known.dead.first(&servers[0], fenced).await
        }
        .boxed_local()
    }
}

impl Exchange for RemoteControl {
    fn exchange(&self, server: ServerId, shard: ShardId, own: Endpoint) -> Exchanged {
        let (take, answered) = oneshot::channel();
        match self.server(server) {
            Err(error) => {
                let _unheard = take.send(Err(error));
            }
            Ok(asked) => {
                let broken = asked.broken("a reply to another request");
                let request = Request::QueuePair { shard: shard.0, endpoint: own };
                asked.connection.call(request, move |answer| {
                    let _unheard = take.send(match answer {
                        Ok(Reply::Answer(theirs)) => Ok(theirs),
                        Ok(_) => Err(broken),
                        Err(error) => Err(error),
                    });
                });
            }
        }
        answered
    }

    fn is_gone(&self, server: ServerId) -> bool {
        self.server(server).map_or(true, |server| server.connection.is_gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::Offer;

    #[test]
    fn knows_impossible_chunks() {
        let welcome = Welcome {
            instance: 1,
            connection: 1,
            pass: 1,
            version: String::new(),
            offer: Offer::Verbs,
            region_bytes: 1 << 20,
            locks: WordRange { offset: 4096, count: 1 },
            device_locks: None,
            chunk_bytes: 64 << 10,
        };
        let end = 1 << 20;
        for (offset, bytes) in
            [(8192, 64 << 10), (8192 + 64, 64), (end - 64, 64), (end - (64 << 10), 64 << 10)]
        {
            assert!(is_chunk(&welcome, offset, bytes), "{bytes} bytes at {offset}");
        }
        for (offset, bytes) in [
            (0, 64),
            (8192, 0),
            (8192, (64 << 10) + 64),
            (8192 + 32, 64),
            (8192, 96),
            (end, 64),
            (end - 64, 128),
            (u64::MAX - 63, 64),
            (8192, u64::MAX - 63),
        ] {
            assert!(!is_chunk(&welcome, offset, bytes), "{bytes} bytes at {offset}");
        }
    }
}
