//! Memory servers of this process, and the cluster they make up: the embedded fabric's far side.
//!
//! ```text
//! region of a memory server
//! +------------+--------------------+--------------+--------------------+----------------------------------+
//! | header     | root words         | host locks   | device area        | chunks, handed out front to back |
//! | 4096 bytes | one line per index | 64-bit words | 64-bit lock words  | and again after an index's drop  |
//! +------------+--------------------+--------------+--------------------+----------------------------------+
//! 0            4096                 69632          next multiple of     next multiple of 4096
//!                                                  4096; may be empty
//! ```
//!
//! The device area stands for the on-chip memory of the server's NIC. It is memory like the rest of the region; a
//! fabric may treat addresses in it as on-chip (the simulator's NIC model makes them cheap). The embedded fabric does
//! not, so its clusters have none unless they are asked for one.
//!
//! A server's CPU never touches a word that verbs change, but for zeroing chunks and root words that no index uses.

mod catalog;
mod chunks;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use thiserror::Error;

use self::catalog::Catalog;
use self::chunks::Chunks;
use crate::control::{
    CatalogEntry, Chunk, Control, ControlError, IndexId, LockRegion, ServerInfo, ServerUsage,
};
use crate::fabric::{Fabric, Seat};
use crate::mapped::line::{LINE_BYTES, LineMode};
use crate::mapped::region::{Region, RegionError};
use crate::mapped::{MappedDevice, MappedServer};
use crate::node::NodeError;
use crate::pointer::{RemotePtr, ServerId};

const ROOTS_START: u64 = 4096;
/// Indexes that a catalog has room for.
const INDEXES_MAX: u32 = 1024;
const LOCKS_START: u64 = ROOTS_START + INDEXES_MAX as u64 * LINE_BYTES as u64;
const CHUNK_ALIGN: u64 = 4096;

/// What an embedded cluster consists of.
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// Memory servers, 1 to 65,535.
    pub servers: u16,
    /// Bytes of each server's region, all included. Memory is taken from the system when it is first touched.
    pub bytes_per_server: u64,
    /// Lock words per server; the paper has 131,072 (Sherman section 4.3).
    pub locks_per_server: u64,
    /// Bytes of each server's device area, a multiple of 8: lock words that a fabric may treat as on-chip memory. 0 is
    /// none. A ConnectX-5 has 256 KiB: 32,768 words of 64 bits (the paper has words of 16, Sherman section 4.3).
    pub device_bytes: u64,
    /// Bytes of a chunk, the unit of the first stage of allocation; a multiple of 4096. The paper has 8 MiB.
    pub chunk_bytes: u64,
    /// How line atomicity is provided.
    pub line_mode: LineMode,
}

impl Default for EmbeddedConfig {
    fn default() -> Self {
        EmbeddedConfig {
            servers: 1,
            bytes_per_server: 4 << 30,
            locks_per_server: 131_072,
            device_bytes: 0,
            chunk_bytes: 8 << 20,
            line_mode: LineMode::Auto,
        }
    }
}

/// Why a cluster could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The system gave no memory.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A memory server whose region is mapped into this process.
pub struct MemoryServer {
    region: Arc<Region>,
    info: ServerInfo,
    state: Mutex<ServerState>,
}

struct ServerState {
    chunks: Chunks,
    catalog: Catalog,
}

impl MemoryServer {
    fn new(id: ServerId, config: &EmbeddedConfig) -> Result<Self, ClusterError> {
        let EmbeddedConfig { bytes_per_server, locks_per_server, device_bytes, chunk_bytes, .. } = *config;
        let device_start = part_after(LOCKS_START, locks_per_server.saturating_mul(8));
        let chunks_start = part_after(device_start, device_bytes);
        let needed = chunks_start.saturating_add(chunk_bytes);
        if needed > bytes_per_server {
            return Err(ClusterError::Config(format!(
                "{bytes_per_server} bytes per memory server are too few: {locks_per_server} locks, {device_bytes} \
                 bytes of device area and one chunk of {chunk_bytes} bytes need {needed}"
            )));
        }
        let locks = |start, count| LockRegion { base: RemotePtr::new(id, start), count };
        let region = Arc::new(Region::anonymous(bytes_per_server, config.line_mode)?);
        let info = ServerInfo {
            id,
            region_bytes: region.bytes(),
            locks: locks(LOCKS_START, locks_per_server),
            device_locks: (device_bytes > 0).then(|| locks(device_start, device_bytes / 8)),
            chunk_bytes,
        };
        let chunks = Chunks::new(chunks_start, bytes_per_server, chunk_bytes);
        let catalog = Catalog::new(INDEXES_MAX);
        Ok(MemoryServer { region, info, state: Mutex::new(ServerState { chunks, catalog }) })
    }

    /// The memory that verbs reach.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().expect("no control call panics while it holds the state")
    }

    fn zero(&self, offset: u64, bytes: u64) {
        const ZEROES: [u8; 4096] = [0; 4096];
        for at in (offset..offset + bytes).step_by(ZEROES.len()) {
            let len = (offset + bytes - at).min(ZEROES.len() as u64) as usize;
            self.region.write(at, &ZEROES[..len]).expect("chunks and root words lie inside the region");
        }
    }
}

/// Where the part of a region begins that follows one of `bytes` bytes at `start`. Sizes come from users: what would
/// overflow saturates, and is then more than any region has.
fn part_after(start: u64, bytes: u64) -> u64 {
    start.saturating_add(bytes).checked_next_multiple_of(CHUNK_ALIGN).unwrap_or(u64::MAX)
}

/// The memory servers that compute nodes work on. Here: servers of this process.
pub struct Cluster {
    servers: Arc<[MemoryServer]>,
    infos: Arc<[ServerInfo]>,
    nodes: Mutex<u16>,
}

impl Cluster {
    /// Memory servers in this process, their memory zeroed.
    ///
    /// # Errors
    /// If the configuration makes no sense or the system refuses the memory.
    pub fn embedded(config: EmbeddedConfig) -> Result<Arc<Self>, ClusterError> {
        let EmbeddedConfig { servers, chunk_bytes, locks_per_server, device_bytes, .. } = config;
        if servers == 0 || locks_per_server == 0 {
            return Err(ClusterError::Config(
                "a cluster needs at least one memory server and one lock".into(),
            ));
        }
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(CHUNK_ALIGN) {
            return Err(ClusterError::Config(format!(
                "chunk_bytes {chunk_bytes} is not a multiple of {CHUNK_ALIGN}"
            )));
        }
        if !device_bytes.is_multiple_of(8) {
            return Err(ClusterError::Config(format!(
                "device_bytes {device_bytes} is not a multiple of 8, the size of a lock word"
            )));
        }
        let servers: Arc<[MemoryServer]> =
            (0..servers).map(|id| MemoryServer::new(ServerId(id), &config)).collect::<Result<_, _>>()?;
        let infos = servers.iter().map(|server| server.info.clone()).collect();
        Ok(Arc::new(Cluster { servers, infos, nodes: Mutex::new(0) }))
    }

    /// The mapped servers.
    pub fn mapped(&self) -> &Arc<[MemoryServer]> {
        &self.servers
    }

    /// The catalog is kept by the first server.
    fn home(&self) -> &MemoryServer {
        &self.servers[0]
    }

    fn root_word(&self, place: u32) -> RemotePtr {
        RemotePtr::new(ServerId(0), ROOTS_START + u64::from(place) * LINE_BYTES as u64)
    }

    fn create_now(&self, name: &str, kind: &str, config: &[u8]) -> Result<CatalogEntry, ControlError> {
        let mut state = self.home().state();
        let place = state.catalog.free_place(name)?;
        let root = self.root_word(place);
        self.home().zero(root.offset(), LINE_BYTES as u64);
        Ok(state.catalog.insert(place, name, kind, config, root))
    }

    fn drop_now(&self, name: &str) -> Result<u64, ControlError> {
        let entry = self.home().state().catalog.remove(name)?;
        let mut freed = 0;
        for server in self.servers.iter() {
            freed += server.state().chunks.free_all(entry.id);
        }
        Ok(freed)
    }

    fn chunk_now(&self, server: ServerId, index: IndexId) -> Result<Chunk, ControlError> {
        let Some(memory) = self.servers.get(server.0 as usize) else {
            return Err(ControlError::NoSuchServer { server });
        };
        let chunk_bytes = memory.info.chunk_bytes;
        let (offset, reused) =
            memory.state().chunks.take(index).ok_or(ControlError::OutOfMemory { server, chunk_bytes })?;
        if reused {
            memory.zero(offset, chunk_bytes);
        }
        Ok(Chunk { start: RemotePtr::new(server, offset), bytes: chunk_bytes })
    }
}

impl Fabric for Cluster {
    type Device = MappedDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        Arc::clone(self) as Arc<dyn Control>
    }

    fn admit(&self) -> Result<u16, ControlError> {
        let mut nodes = self.nodes.lock().expect("nothing panics while it counts");
        *nodes = nodes.checked_add(1).ok_or(ControlError::TooManyNodes)?;
        Ok(*nodes)
    }

    fn device(&self, seat: &Seat) -> Result<MappedDevice, NodeError> {
        let never = Arc::new(AtomicBool::new(false));
        let mapped =
            |server: &MemoryServer| MappedServer::new(Arc::clone(&server.region), Arc::clone(&never));
        let servers = self.servers.iter().map(mapped).collect();
        Ok(MappedDevice::new(servers, MappedDevice::EMBEDDED, seat.clock.clone()))
    }
}

/// In this process a control call is a direct call: its future is ready at once.
impl Control for Cluster {
    fn servers(&self) -> &[ServerInfo] {
        &self.infos
    }

    fn chunk(
        &self,
        server: ServerId,
        index: IndexId,
    ) -> LocalBoxFuture<'static, Result<Chunk, ControlError>> {
        ready(self.chunk_now(server, index)).boxed_local()
    }

    fn create(
        &self,
        name: &str,
        kind: &str,
        config: &[u8],
    ) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        ready(self.create_now(name, kind, config)).boxed_local()
    }

    fn open(&self, name: &str) -> LocalBoxFuture<'static, Result<CatalogEntry, ControlError>> {
        ready(self.home().state().catalog.get(name)).boxed_local()
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        ready(Ok(self.home().state().catalog.list())).boxed_local()
    }

    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        ready(self.drop_now(name)).boxed_local()
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        let usage = |server: &MemoryServer| {
            let state = server.state();
            let (capacity_bytes, chunk_bytes) = state.chunks.usage();
            ServerUsage { capacity_bytes, chunk_bytes, indexes: state.catalog.len() }
        };
        ready(Ok(self.servers.iter().map(usage).collect())).boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small_config() -> EmbeddedConfig {
        EmbeddedConfig {
            servers: 2,
            bytes_per_server: 1 << 20,
            chunk_bytes: 64 << 10,
            locks_per_server: 16,
            ..Default::default()
        }
    }

    fn small() -> Arc<Cluster> {
        Cluster::embedded(small_config()).unwrap()
    }

    fn now<T>(future: LocalBoxFuture<'static, T>) -> T {
        future.now_or_never().expect("embedded control calls are direct")
    }

    #[test]
    fn hands_out_each_chunk_once_and_says_when_none_is_left() {
        let cluster = small();
        let mut starts = std::collections::BTreeSet::new();
        let refused = loop {
            match now(cluster.chunk(ServerId(1), IndexId(1))) {
                Ok(chunk) => assert!(starts.insert(chunk.start), "{chunk:?} twice"),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, ControlError::OutOfMemory { server: ServerId(1), chunk_bytes: 64 << 10 });
        let all = starts.len() as u64;
        assert!(all >= 14 && starts.iter().all(|start| start.offset() >= LOCKS_START + 16 * 8));
        let usage = now(cluster.usage()).unwrap();
        assert_eq!(usage[1].chunk_bytes, all << 16);
        assert_eq!((usage[0].chunk_bytes, usage[1].capacity_bytes), (0, all << 16));
    }

    #[test]
    fn keeps_a_catalog_and_reuses_zeroed_chunks_after_a_drop() {
        let cluster = small();
        let entry = now(cluster.create("a", "sherman", b"config")).unwrap();
        assert_eq!(now(cluster.create("a", "sherman", b"")), Err(ControlError::Exists { name: "a".into() }));
        assert_eq!(now(cluster.open("a")), Ok(entry.clone()));
        assert_eq!(now(cluster.open("b")), Err(ControlError::NotFound { name: "b".into() }));
        let other = now(cluster.create("b", "sherman", b"")).unwrap();
        assert!(other.root != entry.root && other.id != entry.id);
        let chunk = now(cluster.chunk(ServerId(0), entry.id)).unwrap();
        now(cluster.chunk(ServerId(0), other.id)).unwrap();
        cluster.mapped()[0].region().write_word(chunk.start.offset(), 7).unwrap();
        assert_eq!(now(cluster.drop_index("a")), Ok(64 << 10));
        let again = now(cluster.chunk(ServerId(0), other.id)).unwrap();
        assert_eq!(again, chunk);
        assert_eq!(cluster.mapped()[0].region().cas(chunk.start.offset(), 1, 1), Ok(0));
        assert_eq!(now(cluster.list()).unwrap(), [other]);
    }

    /// Chunks, locks and roots of a server share nothing with its device area, whose words are zero at first.
    #[test]
    fn a_device_area_lies_between_locks_and_chunks() {
        for (locks_per_server, device_bytes) in
            [(16, 8), (16, 4096), (512, 4096), (1000, 5000), (1, 256 << 10)]
        {
            let config = EmbeddedConfig { locks_per_server, device_bytes, ..small_config() };
            let cluster = Cluster::embedded(config).unwrap();
            for (info, server) in cluster.servers().iter().zip(cluster.mapped().iter()) {
                let device = info.device_locks.expect("it was asked for");
                assert_eq!(info.locks.count, locks_per_server);
                assert_eq!((device.base.server(), device.bytes()), (info.id, device_bytes));
                let (start, end) = (device.base.offset(), device.base.offset() + device_bytes);
                assert!(start >= info.locks.base.offset() + info.locks.bytes() && end <= info.region_bytes);
                assert!(device.contains(device.base) && !device.contains(RemotePtr::new(info.id, end)));
                assert!(!info.locks.contains(device.base) && !device.contains(info.locks.base));
                // A CAS that finds 0.
                assert!((start..end).step_by(8).all(|word| server.region().cas(word, 0, 7) == Ok(0)));
                while let Ok(chunk) = now(cluster.chunk(info.id, IndexId(1))) {
                    assert!(chunk.start.offset() >= end, "{chunk:?} overlaps {device:?}");
                }
            }
        }
    }

    #[test]
    fn no_device_area_takes_no_room() {
        let cluster = small();
        let info = &cluster.servers()[1];
        assert_eq!(info.device_locks, None);
        let chunk = now(cluster.chunk(info.id, IndexId(1))).unwrap();
        assert_eq!(chunk.start.offset(), (LOCKS_START + 16 * 8).next_multiple_of(CHUNK_ALIGN));
    }

    #[test]
    fn refuses_impossible_configurations() {
        let error = |config: EmbeddedConfig| Cluster::embedded(config).err().expect("impossible").to_string();
        assert!(
            error(EmbeddedConfig { bytes_per_server: 1 << 20, ..Default::default() }).contains("too few")
        );
        assert!(error(EmbeddedConfig { servers: 0, ..Default::default() }).contains("at least one"));
        assert!(error(EmbeddedConfig { chunk_bytes: 1000, ..Default::default() }).contains("multiple"));
        let device = |device_bytes| error(EmbeddedConfig { device_bytes, ..small_config() });
        assert!(device(12).contains("multiple of 8"));
        for too_much in [1 << 20, u64::MAX - 7] {
            assert!(device(too_much).contains("bytes of device area"), "{}", device(too_much));
        }
        let locks = EmbeddedConfig { locks_per_server: u64::MAX, ..small_config() };
        assert!(error(locks).contains("too few"));
    }
}
