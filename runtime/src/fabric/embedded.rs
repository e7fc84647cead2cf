//! The embedded fabric: memory servers of this process. Chains are executed by the shard that posts them
//! ([`crate::mapped`]), control calls are direct calls. The simulated fabric has such a cluster behind its NICs.
//!
//! Its servers have no device area unless they are asked for one: it would be memory like any other here.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};

use super::{DeviceContext, DeviceError, Fabric};
use crate::control::node_ids::NodeIds;
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::queue_pair::PeerId;
use crate::control::seal::{Seal, SealKey};
use crate::control::sweep::{Ended, Lists, Step, SweepHome};
use crate::control::wire::Entry;
use crate::control::{
    CatalogEntry, Chunk, Control, ControlError, Holdings, IndexId, ServerInfo, ServerUsage,
};
use crate::epoch::{EpochHome, NodeEpochs};
use crate::mapped::line::LineMode;
use crate::mapped::region::Region;
use crate::mapped::{MappedDevice, MappedServer};
use crate::memory::catalog::NewIndex;
use crate::memory::chunks::{Extent, Owner};
use crate::memory::{ClusterError, MemoryServer, ServerParts};
use crate::pointer::{RemotePtr, ServerId};

/// The peer that takes memory of an embedded cluster: all of this process.
const THIS_PROCESS: PeerId = PeerId(0);

/// Configuration of an embedded cluster.
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
    /// Mechanism of line atomicity.
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

impl EmbeddedConfig {
    /// Lays out one server of 4 MiB ([`ServerParts::SMALL`]), for examples and tests.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, Control, EmbeddedConfig};
    /// let cluster = Cluster::embedded(EmbeddedConfig { servers: 2, ..EmbeddedConfig::small() }).unwrap();
    /// assert_eq!(cluster.servers()[1].region_bytes, 4 << 20);
    /// ```
    pub fn small() -> Self {
        let ServerParts { locks: locks_per_server, device_bytes, chunk_bytes } = ServerParts::SMALL;
        let (servers, bytes_per_server, line_mode) = (1, 4 << 20, LineMode::Auto);
        EmbeddedConfig { servers, bytes_per_server, locks_per_server, device_bytes, chunk_bytes, line_mode }
    }

    fn parts(&self) -> ServerParts {
        let EmbeddedConfig { locks_per_server: locks, device_bytes, chunk_bytes, .. } = *self;
        ServerParts { locks, device_bytes, chunk_bytes }
    }
}

/// The memory servers that compute nodes work on. Here: servers of this process.
pub struct Cluster {
    servers: Arc<[MemoryServer]>,
    infos: Arc<[ServerInfo]>,
    node_ids: Mutex<NodeIds>,
    epochs: Mutex<Epochs>,
    epochs_wanted: AtomicU32,
    lists: Lists,
    sweep: Mutex<SweepHome>,
}

/// The epoch of a cluster whose nodes are of this process, and so can be asked at any time.
#[derive(Default)]
struct Epochs {
    home: EpochHome<u16>,
    nodes: BTreeMap<u16, Arc<NodeEpochs>>,
    /// Number of times that a node has joined.
    joins: u64,
}

/// Wishes for the next epoch of which one is looked after: that takes as long as some operations.
const WISHES: u32 = 16;

impl Epochs {
    fn leave(&mut self, node: u16) {
        self.home.leave(node);
        self.nodes.remove(&node);
    }
}

impl Cluster {
    /// Makes memory servers in this process, their memory zeroed.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, Control, EmbeddedConfig};
    /// let (bytes_per_server, chunk_bytes) = (16 << 20, 1 << 20);
    /// let config = EmbeddedConfig { bytes_per_server, chunk_bytes, ..Default::default() };
    /// let cluster = Cluster::embedded(config)?;
    /// assert_eq!(cluster.servers()[0].chunk_bytes, 1 << 20);
    /// # Ok::<_, farwood_runtime::memory::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// If the configuration makes no sense or the system refuses the memory.
    pub fn embedded(config: EmbeddedConfig) -> Result<Arc<Self>, ClusterError> {
        if config.servers == 0 {
            return Err(ClusterError::Config("a cluster needs at least one memory server".into()));
        }
        let parts = config.parts();
        parts.check(config.bytes_per_server)?;
        let server = |_| {
            let region = Region::anonymous(config.bytes_per_server, config.line_mode)?;
            MemoryServer::new(Arc::new(region), parts)
        };
        let servers: Arc<[MemoryServer]> = (0..config.servers).map(server).collect::<Result<_, _>>()?;
        let infos = (0..).zip(servers.iter()).map(|(id, server)| server.info(ServerId(id))).collect();
        Ok(Arc::new(Cluster {
            servers,
            infos,
            node_ids: Mutex::default(),
            epochs: Mutex::default(),
            epochs_wanted: AtomicU32::new(0),
            lists: Lists::default(),
            sweep: Mutex::default(),
        }))
    }

    /// Returns the mapped servers.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig};
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// assert_eq!(cluster.mapped()[0].region().bytes(), 4 << 20);
    /// ```
    pub fn mapped(&self) -> &Arc<[MemoryServer]> {
        &self.servers
    }

    /// Returns the first server, which keeps the catalog.
    fn home(&self) -> &MemoryServer {
        &self.servers[0]
    }

    /// Declares a compute node dead: from now on nothing of it takes effect. Nodes of this process do not die by
    /// themselves; those of a simulation do. Indexes that are created from now on know it.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, Control, EmbeddedConfig, Fabric};
    /// # use futures::executor::block_on;
    /// # let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let node = cluster.allocate_node_id()?;
    /// cluster.died(node);
    /// assert_eq!(block_on(cluster.dead())?[..], [node]);
    /// # Ok::<_, farwood_runtime::ControlError>(())
    /// ```
    pub fn died(&self, node: u16) {
        let mut ids = self.node_ids();
        if !ids.dead().contains(&node) {
            ids.died(&[node]);
        }
        let mut epochs = self.epochs();
        epochs.nodes.get(&node).into_iter().for_each(|node| self.lists.forget(node));
        epochs.leave(node);
        drop(epochs);
        // What it had noted is not told any more.
        self.sweep().leave(THIS_PROCESS.0);
        self.lists.end();
    }

    /// Moves the epoch on, if no node holds it back. `heard` tells whether a message comes through, of a node or to
    /// one.
    pub(crate) fn move_epoch(&self, mut heard: impl FnMut() -> bool) {
        // Another shard is about it.
        let Ok(mut epochs) = self.epochs.try_lock() else { return };
        let Epochs { home, nodes, .. } = &mut *epochs;
        for (id, node) in &*nodes {
            if heard() {
                home.acknowledge(*id, node.acknowledged());
            }
        }
        nodes.values().filter(|_| heard()).for_each(|node| node.learn(home.epoch(), home.flushed()));
    }

    /// Asks for a flush; see [`EpochHome::want_flush`].
    pub(crate) fn note_flush(&self, since: u64) {
        self.epochs().home.want_flush(since);
    }

    fn sweep(&self) -> MutexGuard<'_, SweepHome> {
        self.sweep.lock().expect("nothing panics while it holds the sweep")
    }

    fn begin_sweep_now(&self, index: IndexId) -> Result<u64, ControlError> {
        let by = THIS_PROCESS.0;
        let mut sweep = self.sweep();
        if sweep.wanted(by).is_some() {
            return Err(ControlError::Sweeping { by: "this process".into() });
        }
        let number = sweep.begin(index, by, [by]).expect("there is one process");
        self.lists.begin(number, index);
        sweep.noted(by, number);
        Ok(number)
    }

    fn sweep_waits_for_now(&self, number: u64, step: Step) -> Result<Vec<u16>, Ended> {
        let (by, mut sweep) = (THIS_PROCESS.0, self.sweep());
        if step == Step::Lists
            && !sweep.waits_for(by, number, step)?.is_empty()
            && let Some(extents) = self.lists.tell(number)
        {
            let pieces: Vec<_> = extents.iter().collect();
            sweep.told(by, number, &pieces, true);
        }
        let is_late = !sweep.waits_for(by, number, step)?.is_empty();
        Ok(if is_late { self.epochs().nodes.keys().copied().collect() } else { Vec::new() })
    }

    fn epochs(&self) -> MutexGuard<'_, Epochs> {
        self.epochs.lock().expect("nothing panics while it counts")
    }

    fn node_ids(&self) -> MutexGuard<'_, NodeIds> {
        self.node_ids.lock().expect("nothing panics while it counts")
    }

    fn create_now(&self, name: &str, kind: &str, config: &[u8]) -> Result<CatalogEntry, ControlError> {
        let fenced = self.node_ids().dead().len() as u32;
        // No other process reaches this memory: there is nothing to be sealed.
        let (key, temporary_of) = (SealKey::default(), None);
        let new = NewIndex { name, kind, config, key, fenced, temporary_of };
        let root = self.home().reserve_root(&new)?;
        let entry = self.home().create(new, root)?;
        Ok(self.entry(entry))
    }

    fn entry(&self, entry: Entry) -> CatalogEntry {
        let dead_owners = self.node_ids().first_dead(entry.fenced as usize);
        CatalogEntry { dead_owners, ..entry.of(ServerId(0)) }
    }

    fn drop_now(&self, name: &str) -> Result<u64, ControlError> {
        let (index, _) = self.home().begin_drop(name)?;
        let freed = self.servers.iter().map(|server| server.free(unsealed(index))).sum();
        self.home().finish_drop(name, index)?;
        Ok(freed)
    }

    fn chunk_now(&self, server: ServerId, index: IndexId) -> Result<Chunk, ControlError> {
        let memory = self.server(server)?;
        let owner = unsealed(index);
        let Extent { offset, bytes } = match memory.take_rest(owner, THIS_PROCESS) {
            Some(rest) => rest,
            None => memory.hand_out(memory.reserve(server)?, owner, THIS_PROCESS)?,
        };
        Ok(Chunk { start: RemotePtr::new(server, offset), bytes })
    }

    fn return_extent_now(&self, index: IndexId, rest: Chunk) -> Result<(), ControlError> {
        let extent = Extent { offset: rest.start.offset(), bytes: rest.bytes };
        self.server(rest.start.server())?.return_extent(index, THIS_PROCESS, extent)
    }

    /// Counts the compute nodes beside the one that asks, and how often one has joined.
    fn others(&self) -> (u32, u64) {
        let epochs = self.epochs();
        (epochs.nodes.len().saturating_sub(1) as u32, epochs.joins)
    }

    fn holdings_now(&self, index: IndexId) -> Vec<Holdings> {
        let (others, joins) = self.others();
        let of_server = |(id, server): (u16, &MemoryServer)| {
            let mut held = Holdings { others, joins, ..Holdings::default() };
            for (Extent { offset, bytes }, is_rest) in server.pieces(index, 0, usize::MAX).0 {
                let piece = Chunk { start: RemotePtr::new(ServerId(id), offset), bytes };
                if is_rest { held.rests.push(piece) } else { held.used.push(piece) }
            }
            held
        };
        (0..).zip(self.servers.iter()).map(of_server).collect()
    }

    fn take_back_now(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: &[Chunk],
    ) -> Result<u64, ControlError> {
        let memory = self.server(server)?;
        let extent = |&Chunk { start, bytes }: &Chunk| Extent { offset: start.offset(), bytes };
        // None joins meanwhile: it would have to wait for the epochs.
        let epochs = self.epochs();
        if let Some(joins) = joins {
            let others = epochs.nodes.len().saturating_sub(1) as u32;
            if others > 0 {
                return Err(ControlError::OthersConnected { server, others });
            }
            if epochs.joins != joins {
                return Err(ControlError::OthersCame { server });
            }
        }
        memory.clean(memory.take_back(index, extents.iter().map(extent).collect())?)
    }

    fn server(&self, server: ServerId) -> Result<&MemoryServer, ControlError> {
        self.servers.get(server.0 as usize).ok_or(ControlError::NoSuchServer { server })
    }
}

impl Fabric for Cluster {
    type Device = MappedDevice;

    fn control(self: &Arc<Self>) -> Arc<dyn Control> {
        Arc::clone(self) as Arc<dyn Control>
    }

    fn allocate_node_id(&self) -> Result<u16, ControlError> {
        self.node_ids().take()
    }

    fn release_node_id(&self, node: u16) {
        let mut ids = self.node_ids();
        if !ids.dead().contains(&node) {
            ids.give_back(&[node]);
        }
        self.epochs().leave(node);
    }

    fn join_epochs(&self, node: u16, epochs: &Arc<NodeEpochs>) {
        let mut all = self.epochs();
        epochs.join(all.home.join(node));
        all.joins += 1;
        all.nodes.insert(node, Arc::clone(epochs));
    }

    fn device(&self, context: &DeviceContext) -> Result<MappedDevice, DeviceError> {
        let never = Arc::new(AtomicBool::new(false));
        let mapped =
            |server: &MemoryServer| MappedServer::new(Arc::clone(server.region()), Arc::clone(&never));
        let servers = self.servers.iter().map(mapped).collect();
        Ok(MappedDevice::new(servers, MappedDevice::EMBEDDED, context.clock.clone()))
    }
}

/// Chunks of this process's own memory.
fn unsealed(index: IndexId) -> Owner {
    Owner { index, seal: Seal::default() }
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

    fn return_extent(&self, index: IndexId, rest: Chunk) {
        if let Err(error) = self.return_extent_now(index, rest) {
            // The index was dropped before its users.
            tracing::debug!(?rest, %error, "a rest was not taken back");
        }
    }

    fn give_nodes(&self, index: IndexId, server: ServerId, batch: NodeBatch) {
        let given = self.server(server).and_then(|server| server.give_nodes(index, batch));
        if let Err(error) = given {
            // The index was dropped before its users.
            tracing::debug!(%error, "free nodes were not taken back");
        }
    }

    fn take_nodes(
        &self,
        server: ServerId,
        index: IndexId,
        wanted: WantedNodes,
    ) -> LocalBoxFuture<'static, Result<Option<NodeBatch>, ControlError>> {
        let taken = self.server(server).map(|server| server.take_nodes(unsealed(index), &wanted));
        ready(taken).boxed_local()
    }

    fn holdings(&self, index: IndexId) -> LocalBoxFuture<'static, Result<Vec<Holdings>, ControlError>> {
        ready(Ok(self.holdings_now(index))).boxed_local()
    }

    fn take_back(
        &self,
        index: IndexId,
        server: ServerId,
        joins: Option<u64>,
        extents: Vec<Chunk>,
    ) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        ready(self.take_back_now(index, server, joins, &extents)).boxed_local()
    }

    fn lists(&self) -> &Lists {
        &self.lists
    }

    fn begin_sweep(&self, index: IndexId) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        ready(self.begin_sweep_now(index)).boxed_local()
    }

    fn sweep_waits_for(
        &self,
        sweep: u64,
        step: Step,
    ) -> LocalBoxFuture<'static, Result<Vec<u16>, ControlError>> {
        let late = self.sweep_waits_for_now(sweep, step);
        ready(late.map_err(|_| ControlError::SweepVoid)).boxed_local()
    }

    fn swept_lists(&self, sweep: u64) -> LocalBoxFuture<'static, Result<Vec<Chunk>, ControlError>> {
        let told = self.sweep().lists(THIS_PROCESS.0, sweep, RemotePtr::from_bits(0), usize::MAX);
        let piece = |(start, bytes)| Chunk { start, bytes };
        let told = told.map(|(pieces, _)| pieces.into_iter().map(piece).collect());
        ready(told.map_err(|_| ControlError::SweepVoid)).boxed_local()
    }

    fn end_sweep(&self, sweep: Option<u64>) {
        let mut home = self.sweep();
        home.end(THIS_PROCESS.0, sweep);
        if home.wanted(THIS_PROCESS.0).is_none() {
            self.lists.end();
        }
    }

    fn want_epoch(&self) {
        if self.epochs_wanted.fetch_add(1, Ordering::Relaxed).is_multiple_of(WISHES) {
            self.move_epoch(|| true);
        }
    }

    fn want_flush(&self, since: u64) {
        self.note_flush(since);
        self.want_epoch();
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
        let opened = self.home().open(name, THIS_PROCESS);
        ready(opened.map(|entry| self.entry(entry))).boxed_local()
    }

    fn list(&self) -> LocalBoxFuture<'static, Result<Vec<CatalogEntry>, ControlError>> {
        let (entries, _) = self.home().page(None, usize::MAX);
        ready(Ok(entries.into_iter().map(|entry| entry.of(ServerId(0))).collect())).boxed_local()
    }

    fn drop_index(&self, name: &str) -> LocalBoxFuture<'static, Result<u64, ControlError>> {
        ready(self.drop_now(name)).boxed_local()
    }

    fn usage(&self) -> LocalBoxFuture<'static, Result<Vec<ServerUsage>, ControlError>> {
        let mut usage: Vec<ServerUsage> = self.servers.iter().map(MemoryServer::usage).collect();
        usage[0].epoch = self.epochs().home.epoch();
        ready(Ok(usage)).boxed_local()
    }

    fn dead(&self) -> LocalBoxFuture<'static, Result<Arc<[u16]>, ControlError>> {
        let ids = self.node_ids();
        ready(Ok(ids.first_dead(ids.dead().len()))).boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::layout::{CHUNK_ALIGN, LOCKS_START};

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

    #[test]
    fn what_is_taken_back_is_zero_when_it_is_handed_out() {
        let cluster = small();
        let id = now(cluster.create("a", "sherman", b"")).unwrap().id;
        let chunk = now(cluster.chunk(ServerId(1), id)).unwrap();
        let region = cluster.mapped()[1].region();
        let words: Vec<u64> = (0..chunk.bytes / 8).map(|word| chunk.start.offset() + word * 8).collect();
        words.iter().for_each(|word| region.write_word(*word, 7).unwrap());
        let lost = Chunk { start: chunk.start.add(64), bytes: 8192 };
        let epochs = || Arc::new(NodeEpochs::new(1));
        cluster.join_epochs(1, &epochs());
        let joins = now(cluster.holdings(id)).unwrap()[1].joins;
        cluster.join_epochs(2, &epochs());
        let take_back = || now(cluster.take_back(id, ServerId(1), Some(joins), vec![lost]));
        let others = ControlError::OthersConnected { server: ServerId(1), others: 1 };
        assert_eq!(take_back(), Err(others));
        cluster.release_node_id(2);
        assert_eq!(take_back(), Err(ControlError::OthersCame { server: ServerId(1) }));
        let joins = now(cluster.holdings(id)).unwrap()[1].joins;
        assert_eq!(now(cluster.take_back(id, ServerId(1), Some(joins), vec![lost])), Ok(8192));
        assert_eq!(now(cluster.chunk(ServerId(1), id)).unwrap(), lost);
        let lost = lost.start.offset()..lost.start.offset() + lost.bytes;
        for word in words {
            let expected = if lost.contains(&word) { 0 } else { 7 };
            assert_eq!(region.cas(word, 1, 1), Ok(expected), "at {word}");
        }
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
    fn takes_in_any_number_of_nodes_one_after_the_other_and_never_gives_the_id_of_a_dead_one() {
        let cluster = small();
        let (living, dead) = (cluster.allocate_node_id().unwrap(), cluster.allocate_node_id().unwrap());
        cluster.died(dead);
        cluster.release_node_id(dead);
        for _ in 0..200_000 {
            let node = cluster.allocate_node_id().unwrap();
            assert!(node > dead && dead > living, "{node}");
            cluster.release_node_id(node);
        }
        let others = (0..u16::MAX - 2).filter(|_| cluster.allocate_node_id().is_ok()).count();
        assert_eq!(
            (others, cluster.allocate_node_id()),
            (usize::from(u16::MAX) - 2, Err(ControlError::TooManyNodes))
        );
        cluster.release_node_id(living);
        assert_eq!(cluster.allocate_node_id(), Ok(living));
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
