//! One memory server: its region, its chunks and its catalog. It knows neither its position in a cluster nor who asks,
//! but for the number of who takes memory; the embedded cluster and the control service both stand on it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use super::ClusterError;
use super::catalog::{Catalog, NewIndex, ReservedRoot};
use super::chunks::{Chunks, Cleaning, Extent, Owner, Reserved};
use super::layout::{LOCKS_START, ServerParts};
use crate::control::nodes::{NodeBatch, WantedNodes};
use crate::control::queue_pair::PeerId;
use crate::control::seal::SealKey;
use crate::control::wire::Entry;
use crate::control::{ControlError, IndexId, LockRegion, ServerInfo, ServerUsage};
use crate::mapped::line::LINE_BYTES;
use crate::mapped::region::{AccessError, Region};
use crate::pointer::{RemotePtr, ServerId};

/// A memory server whose region is mapped into this process.
pub struct MemoryServer {
    region: Arc<Region>,
    parts: ServerParts,
    state: Mutex<ServerState>,
}

struct ServerState {
    chunks: Chunks,
    catalog: Catalog,
}

/// A root word that is zero and no index's. Dropped, it is free again.
pub(crate) struct Root<'a> {
    server: &'a MemoryServer,
    reserved: Option<ReservedRoot>,
}

impl Drop for Root<'_> {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.server.state().catalog.unreserve(reserved);
        }
    }
}

impl MemoryServer {
    /// Makes a server without indexes over a region whose bytes are all zero.
    ///
    /// ```
    /// # use farwood_runtime::{MemoryServer, ServerParts};
    /// # use farwood_runtime::mapped::{line::LineMode, region::Region};
    /// let region = Region::anonymous(4 << 20, LineMode::Auto)?;
    /// let server = MemoryServer::new(region.into(), ServerParts::SMALL)?;
    /// assert_eq!(server.region().bytes(), 4 << 20);
    /// # Ok::<_, farwood_runtime::memory::ClusterError>(())
    /// ```
    ///
    /// # Errors
    /// If the region cannot be divided so.
    pub fn new(region: Arc<Region>, parts: ServerParts) -> Result<Self, ClusterError> {
        parts.check(region.bytes())?;
        let chunks = Chunks::new(parts.chunks_start(), region.bytes(), parts.chunk_bytes);
        let state = Mutex::new(ServerState { chunks, catalog: Catalog::new() });
        Ok(MemoryServer { region, parts, state })
    }

    /// Returns the memory that verbs reach.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig};
    /// # use farwood_runtime::mapped::access::Access;
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let memory = Access::to(cluster.mapped()[0].region());
    /// assert_eq!(memory.faa(1 << 20, 7), Ok(0));
    /// ```
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Describes what it offers as server `id` of a cluster.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, ServerId};
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// let info = cluster.mapped()[0].info(ServerId(3));
    /// assert_eq!((info.locks.base.server(), info.locks.count), (ServerId(3), 1024));
    /// ```
    pub fn info(&self, id: ServerId) -> ServerInfo {
        let locks = |start, count| LockRegion { base: RemotePtr::new(id, start), count };
        let device_words = self.parts.device_bytes / 8;
        ServerInfo {
            id,
            region_bytes: self.region.bytes(),
            locks: locks(LOCKS_START, self.parts.locks),
            device_locks: (device_words > 0).then(|| locks(self.parts.device_start(), device_words)),
            chunk_bytes: self.parts.chunk_bytes,
        }
    }

    /// Reserves a root word for an index that there may be, zeroed. That may take as long as a writer is waited for
    /// which is stopped in its line, so nothing else waits for it: the index is not there yet.
    pub(crate) fn reserve_root(&self, new: &NewIndex<'_>) -> Result<Root<'_>, ControlError> {
        let reserved = self.state().catalog.reserve(new)?;
        let offset = reserved.offset();
        let root = Root { server: self, reserved: Some(reserved) };
        self.zero(offset, LINE_BYTES as u64)?;
        Ok(root)
    }

    /// Makes an index, of which another may have the name since its root word was reserved.
    pub(crate) fn create(&self, new: NewIndex<'_>, mut root: Root<'_>) -> Result<Entry, ControlError> {
        let reserved = root.reserved.take().expect("it is taken once");
        self.state().catalog.create(new, reserved)
    }

    pub(crate) fn open(&self, name: &str, by: PeerId) -> Result<Entry, ControlError> {
        self.state().catalog.open(name, by)
    }

    pub(crate) fn page(&self, after: Option<&str>, bytes_max: usize) -> (Vec<Entry>, bool) {
        self.state().catalog.page(after, bytes_max)
    }

    pub(crate) fn id_of(&self, name: &str) -> Result<IndexId, ControlError> {
        self.state().catalog.id_of(name)
    }

    /// Returns the owner of chunks for that index, if the catalog, which is kept here, lets that peer take them.
    pub(crate) fn usable(&self, index: IndexId, by: PeerId) -> Result<Owner, ControlError> {
        self.state().catalog.usable(index, by)
    }

    pub(crate) fn begin_drop(&self, name: &str) -> Result<(IndexId, SealKey), ControlError> {
        self.state().catalog.begin_drop(name)
    }

    /// Returns the owner of chunks of that index, if the catalog, which is kept here, is dropping it.
    pub(crate) fn dropping(&self, index: IndexId) -> Option<Owner> {
        self.state().catalog.dropping(index)
    }

    /// Takes the chunks of an index back; yields the bytes.
    pub(crate) fn free(&self, owner: Owner) -> u64 {
        self.state().chunks.free_all(owner)
    }

    /// Ties the chunks of that index, whose catalog is kept elsewhere, to `peer`: they go when it has ended.
    pub(crate) fn tie(&self, owner: Owner, peer: PeerId) {
        self.state().chunks.tie(owner, peer);
    }

    /// Takes everything back that goes with that peer, which has ended.
    pub(crate) fn drop_temporary(&self, peer: PeerId) {
        let mut state = self.state();
        for name in state.catalog.temporary_of(peer) {
            let (index, key) = state.catalog.begin_drop(&name).expect("the catalog has just named it");
            state.chunks.free_all(Owner { index, seal: key.seal() });
            state.catalog.finish_drop(&name, index).expect("its drop has begun");
        }
        state.chunks.free_temporary(peer);
    }

    /// Counts the bytes of the chunks of these indexes.
    pub(crate) fn bytes_of(&self, indexes: &BTreeSet<IndexId>) -> u64 {
        self.state().chunks.bytes_of(indexes)
    }

    pub(crate) fn finish_drop(&self, name: &str, index: IndexId) -> Result<(), ControlError> {
        self.state().catalog.finish_drop(name, index)
    }

    /// Reserves a chunk, which has no owner until [`MemoryServer::hand_out`]. `id` is what errors call this server.
    pub(crate) fn reserve(&self, id: ServerId) -> Result<Reserved, ControlError> {
        let chunk_bytes = self.parts.chunk_bytes;
        self.state().chunks.reserve().ok_or(ControlError::OutOfMemory { server: id, chunk_bytes })
    }

    /// Takes what was given back of a chunk of that index, if there is anything: zero still, and `by` has it from now
    /// on.
    pub(crate) fn take_rest(&self, owner: Owner, by: PeerId) -> Option<Extent> {
        self.state().chunks.take_rest(owner, by)
    }

    /// Takes back what `by` has taken for that index and not used.
    pub(crate) fn return_extent(&self, index: IndexId, by: PeerId, rest: Extent) -> Result<(), ControlError> {
        let Extent { offset, bytes } = rest;
        let taken_back = self.state().chunks.return_extent(index, by, rest);
        if taken_back { Ok(()) } else { Err(ControlError::NotTaken { index, offset, bytes }) }
    }

    /// Takes free nodes of the chunks of that index, which go to who asks for such.
    pub(crate) fn give_nodes(&self, index: IndexId, batch: NodeBatch) -> Result<(), ControlError> {
        let taken = self.state().chunks.give_nodes(index, batch);
        taken.map_err(|Extent { offset, bytes }| ControlError::NotFree { index, offset, bytes })
    }

    /// Hands out free nodes of that owner's chunks that were given back, if there are such. Nothing of them is here any
    /// more then: none gets them twice, whatever becomes of the answer.
    pub(crate) fn take_nodes(&self, owner: Owner, wanted: &WantedNodes) -> Option<NodeBatch> {
        self.state().chunks.take_nodes(owner, wanted)
    }

    /// Lists pieces of the chunks of that index from `from` on, and whether they were given back; `max` at most, and
    /// whether there are more.
    pub(crate) fn pieces(&self, index: IndexId, from: u64, max: usize) -> (Vec<(Extent, bool)>, bool) {
        self.state().chunks.pieces(index, from, max)
    }

    /// Takes back pieces of the chunks of that index, in which nothing is that is in use. They have to be cleaned.
    pub(crate) fn take_back(&self, index: IndexId, pieces: Vec<Extent>) -> Result<Cleaning, ControlError> {
        let taken_back = self.state().chunks.take_back(index, pieces);
        taken_back.map_err(|Extent { offset, bytes }| ControlError::NotHeld { index, offset, bytes })
    }

    /// Zeroes what was taken back, so that it is handed out again; yields the bytes. No lock is held meanwhile.
    pub(crate) fn clean(&self, cleaning: Cleaning) -> Result<u64, ControlError> {
        let zeroed = cleaning.pieces.iter().try_for_each(|piece| self.zero(piece.offset, piece.bytes));
        let bytes = self.state().chunks.cleaned(cleaning, zeroed.is_ok());
        zeroed.map(|()| bytes)
    }

    /// Notes that the connection of that peer has ended, which gives nothing back any more.
    pub(crate) fn forget_peer(&self, peer: PeerId) {
        self.state().chunks.forget_peer(peer);
    }

    /// Hands out that chunk, which is zeroed, to `owner`; it was taken by `by`.
    pub(crate) fn hand_out(
        &self,
        reserved: Reserved,
        owner: Owner,
        by: PeerId,
    ) -> Result<Extent, ControlError> {
        if reserved.reused {
            // Takes milliseconds, so no lock is held. The chunk has no owner yet: should the index be dropped
            // meanwhile, and the chunk given to another, this would wipe what the other has written.
            if let Err(stopped) = self.zero(reserved.offset, self.parts.chunk_bytes) {
                self.state().chunks.unreserve(reserved);
                return Err(stopped);
            }
        }
        let index = owner.index;
        self.state().chunks.own(reserved, owner, by).ok_or(ControlError::NoSuchIndex { index })
    }

    /// Tells whether it holds neither an index of the catalog nor a chunk.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.state();
        state.catalog.len() == 0 && state.chunks.usage().1 == 0
    }

    /// Forgets which indexes were freed: from now on another server numbers the indexes, from the beginning.
    pub(crate) fn forget_freed(&self) {
        self.state().chunks.forget_freed();
    }

    pub(crate) fn usage(&self) -> ServerUsage {
        let state = self.state();
        let (capacity_bytes, chunk_bytes) = state.chunks.usage();
        ServerUsage { capacity_bytes, chunk_bytes, indexes: state.catalog.len(), ..ServerUsage::default() }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().expect("no control call panics while it holds the state")
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), ControlError> {
        const ZEROES: [u8; 4096] = [0; 4096];
        for at in (offset..offset + bytes).step_by(ZEROES.len()) {
            let len = (offset + bytes - at).min(ZEROES.len() as u64) as usize;
            match self.region.write(at, &ZEROES[..len]) {
                Ok(()) => {}
                Err(AccessError::WriterStopped(writer)) => {
                    return Err(ControlError::WriterStopped { process: writer.process });
                }
                Err(AccessError::OutOfRegion) => panic!("chunks and root words lie inside the region"),
            }
        }
        Ok(())
    }
}
