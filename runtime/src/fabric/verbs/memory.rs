//! Memory that a device may reach: registered regions, the arenas of a shard's buffers among them, and the words that
//! atomics land in.
//!
//! Invariant: a registration owns what it registers. Once `ibv_dereg_mr` has returned, the device reaches nothing of
//! it any more, whatever queue pairs still exist; only then is the memory freed. If that call fails, the memory is
//! leaked: better lost than written to by a NIC after it has become something else.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_access_flags as allow;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

use super::context::{Protection, last_error};
use super::error::VerbsError;
use crate::buffer::{Buf, BufferPool};

/// Rights of access to registered memory.
#[derive(Clone, Copy)]
pub(super) enum Access {
    /// The device, for chains of this process.
    Local,
    /// Compute nodes.
    Remote,
}

impl Access {
    fn flags(self) -> u32 {
        let local = allow::IBV_ACCESS_LOCAL_WRITE.0;
        match self {
            Access::Local => local,
            Access::Remote => {
                local
                    | allow::IBV_ACCESS_REMOTE_READ.0
                    | allow::IBV_ACCESS_REMOTE_WRITE.0
                    | allow::IBV_ACCESS_REMOTE_ATOMIC.0
            }
        }
    }
}

/// Registered memory that `owner` keeps allocated and in its place.
pub(super) struct Registration<K> {
    raw: NonNull<ffi::ibv_mr>,
    owner: ManuallyDrop<K>,
    _protection: Arc<Protection>,
}

// SAFETY: libibverbs is thread-safe, and the registration does not touch the memory itself.
unsafe impl<K: Send> Send for Registration<K> {}
// SAFETY: as above.
unsafe impl<K: Sync> Sync for Registration<K> {}

impl<K> Registration<K> {
    /// Registers `bytes` bytes at `start`.
    ///
    /// # Safety
    /// The memory is allocated as long as `owner` is not dropped, and there is no Rust reference into it while the
    /// device may access it.
    unsafe fn new(
        protection: &Arc<Protection>,
        start: *mut u8,
        bytes: u64,
        access: Access,
        owner: K,
    ) -> Result<Self, VerbsError> {
        let flags = access.flags() as i32;
        // SAFETY: the protection domain is alive, and the caller vouches for the memory.
        let raw = unsafe { ffi::ibv_reg_mr(protection.raw(), start.cast(), bytes as usize, flags) };
        let Some(raw) = NonNull::new(raw) else {
            return Err(VerbsError::registration(bytes, io::Error::last_os_error(), memlock_limit()));
        };
        Ok(Registration { raw, owner: ManuallyDrop::new(owner), _protection: Arc::clone(protection) })
    }

    /// Returns the key by which work requests of this process name the memory.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: alive until `drop`.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Returns the key by which work requests of others name the memory.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: alive until `drop`.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub(super) fn owner(&self) -> &K {
        &self.owner
    }
}

impl<K> Drop for Registration<K> {
    fn drop(&mut self) {
        // SAFETY: registered in `new`, and not used after this.
        let failed = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        if failed != 0 {
            tracing::error!("cannot deregister memory, it is leaked: {}", last_error(failed));
            return;
        }
        // SAFETY: dropped once, and not used after this.
        unsafe { ManuallyDrop::drop(&mut self.owner) };
    }
}

/// Returns the bytes of memory that this process may lock, if that is limited.
fn memlock_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// Registers a memory server's region for compute nodes.
pub(super) fn register_region(
    protection: &Arc<Protection>,
    region: Arc<crate::mapped::region::Region>,
) -> Result<Registration<Arc<crate::mapped::region::Region>>, VerbsError> {
    let (start, bytes) = (region.start(), region.bytes());
    // SAFETY: the region is mapped until its last `Arc` is dropped, and never handed out as a reference: every access
    // of this process is atomic (`mapped::line`).
    unsafe { Registration::new(protection, start.as_ptr(), bytes, Access::Remote, region) }
}

/// The arenas of a shard's buffers, registered as buffers of them are posted for the first time.
pub(super) struct Arenas {
    /// Sorted by their ends' addresses. Before `pool` only to be read first: each owns a clone of the pool.
    registered: Vec<Arena>,
    protection: Arc<Protection>,
    pool: BufferPool,
}

struct Arena {
    start: u64,
    end: u64,
    registration: Registration<BufferPool>,
}

impl Arenas {
    /// Registers a first arena at once, so that a limit that is too low shows at the start.
    pub(super) fn new(protection: &Arc<Protection>) -> Result<Self, VerbsError> {
        const USUAL_BUFFER_BYTES: usize = 1024;
        let pool = BufferPool::for_registration();
        let mut arenas = Arenas { registered: Vec::new(), protection: Arc::clone(protection), pool };
        let first = arenas.pool.lease(USUAL_BUFFER_BYTES);
        arenas.local_key(&first)?;
        Ok(arenas)
    }

    pub(super) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Returns the key of the arena that holds `buf`, which is registered if it is new.
    ///
    /// # Panics
    /// If the buffer is of another pool.
    #[inline]
    pub(super) fn local_key(&mut self, buf: &Buf) -> Result<u32, VerbsError> {
        let at = buf.address();
        let place = self.registered.partition_point(|arena| arena.end <= at);
        match self.registered.get(place) {
            Some(arena) if arena.start <= at => Ok(arena.registration.local_key()),
            _ => self.register(place, buf),
        }
    }

    /// Makes a copy of `buf`, which its device may still use.
    #[cold]
    pub(super) fn copy_of(&self, buf: &Buf) -> Buf {
        let mut copy = self.pool.lease(buf.len());
        let start = std::ptr::with_exposed_provenance::<u8>(buf.address() as usize);
        for (place, byte) in copy.iter_mut().enumerate() {
            // SAFETY: inside the buffer, which is leased. Volatile, because the device may write to it.
            *byte = unsafe { start.add(place).read_volatile() };
        }
        copy
    }

    #[cold]
    fn register(&mut self, place: usize, buf: &Buf) -> Result<u32, VerbsError> {
        let arena = self.pool.arena_of(buf);
        let (start, bytes) = arena.expect("chains have buffers that their own shard leased (Verbs::lease)");
        let memory = std::ptr::with_exposed_provenance_mut(start);
        let pool = self.pool.clone();
        // SAFETY: arenas are freed when the last handle to their pool is gone, of which the registration owns one. A
        // buffer is borrowed only through its lease; while a chain that owns it is in flight its slot has the lease,
        // and lends it only to the device.
        let registration =
            unsafe { Registration::new(&self.protection, memory, bytes as u64, Access::Local, pool)? };
        let key = registration.local_key();
        let (start, end) = (start as u64, (start + bytes) as u64);
        self.registered.insert(place, Arena { start, end, registration });
        Ok(key)
    }
}

/// Words, zero at first, that the device and this process alone have: where atomics put what they found, and where
/// words are read from that are written and do not fit into their work request. On pages of their own, since a forked
/// child may not have them ([`super::context`]).
pub(super) struct Words {
    registration: Registration<WordMemory>,
}

/// Never handed out as a reference: the device may write to it at any time.
struct WordMemory(NonNull<[u64]>, Layout);

// SAFETY: the words belong to no thread.
unsafe impl Send for WordMemory {}
// SAFETY: `Words` hands out copies, read at times when the device does not write.
unsafe impl Sync for WordMemory {}

impl Drop for WordMemory {
    fn drop(&mut self) {
        // SAFETY: allocated so in `WordMemory::new`, and dropped once.
        unsafe { dealloc(self.0.as_ptr().cast(), self.1) };
    }
}

impl WordMemory {
    fn new(count: usize) -> Self {
        let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        let page =
            page.and_then(|bytes| usize::try_from(bytes).ok()).expect("the system knows its page size");
        let bytes = (count.max(1) * 8).next_multiple_of(page);
        let layout = Layout::from_size_align(bytes, page).expect("a page's size is a power of two");
        // SAFETY: not of size 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let start = start.unwrap_or_else(|| handle_alloc_error(layout));
        WordMemory(NonNull::slice_from_raw_parts(start.cast(), count), layout)
    }
}

impl Words {
    pub(super) fn new(
        protection: &Arc<Protection>,
        count: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let memory = WordMemory::new(count);
        let (start, bytes) = (memory.0.as_ptr().cast::<u8>(), count as u64 * 8);
        start.expose_provenance();
        // SAFETY: `memory` owns the words, and does not lend them.
        let registration = unsafe { Registration::new(protection, start, bytes, access, memory)? };
        Ok(Words { registration })
    }

    pub(super) fn local_key(&self) -> u32 {
        self.registration.local_key()
    }

    pub(super) fn remote_key(&self) -> u32 {
        self.registration.remote_key()
    }

    /// Returns the address of a word.
    pub(super) fn address(&self, place: usize) -> u64 {
        let words = self.registration.owner().0;
        assert!(place < words.len());
        words.as_ptr().cast::<u64>().addr() as u64 + place as u64 * 8
    }

    /// Changes a word that no work request in flight names.
    pub(super) fn set(&self, place: usize, word: u64) {
        let words = self.registration.owner().0;
        assert!(place < words.len());
        // SAFETY: inside the allocation, and never borrowed. Volatile, because the device reads it.
        unsafe { words.as_ptr().cast::<u64>().add(place).write_volatile(word) }
    }

    /// Reads a word that the device has written: the completion that says so was polled before.
    pub(super) fn get(&self, place: usize) -> u64 {
        let words = self.registration.owner().0;
        assert!(place < words.len());
        // SAFETY: inside the allocation. Volatile, because the device wrote it.
        unsafe { words.as_ptr().cast::<u64>().add(place).read_volatile() }
    }
}
