//! Registered buffers, leased from a shard's pool: a fabric reads into them and writes from them.
//!
//! Invariants: a buffer's bytes stay where they are from lease to return, so a NIC (or the mapped fabric's executor)
//! may hold its address while the chain that owns it is in flight; a pool and its buffers stay on one thread; an arena
//! goes back to the system only when none of its buffers is leased, and never while a device may have registered it.
//! This file knows nothing of verbs.

#![expect(unsafe_code, reason = "leases hand out disjoint pieces of arenas that outlive them")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use nix::sys::mman::{MmapAdvise, madvise};

const CLASS_SHIFT_MIN: u32 = 6;
const CLASSES: usize = 15;
/// The largest buffer that a pool leases, in bytes.
pub const BUFFER_BYTES_MAX: usize = 1 << (CLASS_SHIFT_MIN as usize + CLASSES - 1);
/// An arena is cut into buffers of one class; it is a page at least, so that small classes grow rarely.
const ARENA_BYTES_MIN: usize = 64 << 10;
const ARENA_ALIGN: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes that small buffers have beyond their class, for what is appended to them ([`Buf::extend`]).
const ROOM_BYTES: usize = 256;
/// The largest class with that room.
const ROOMY_BYTES_MAX: usize = 8 << 10;
/// Bytes of unleased buffers that a class keeps; about twice as much between two checks.
const RETAINED_BYTES: usize = 16 << 20;

/// A pool of buffers in power-of-two size classes from 64 bytes to [`BUFFER_BYTES_MAX`].
///
/// It grows when a class is empty, and shrinks when far more was leased than is: in steady state a lease is a pop from
/// a list.
#[derive(Clone)]
pub struct BufferPool(Rc<Shelves>);

struct Shelves {
    free: [RefCell<Vec<NonNull<u8>>>; CLASSES],
    arenas: RefCell<Vec<Arena>>,
    leased: Cell<usize>,
    arena_bytes_min: usize,
}

/// Memory from the system, cut into buffers of one class.
struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    class: usize,
}

impl BufferPool {
    /// Makes an empty pool.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let pool = BufferPool::new();
    /// assert_eq!((pool.leased(), pool.bytes()), (0, 0));
    /// ```
    pub fn new() -> Self {
        Self::with_arenas(ARENA_BYTES_MIN)
    }

    /// Makes an empty pool for a device that has to register its arenas: each is a huge page at least, on huge pages
    /// where the system gives them, so that they are few and the NIC's translation table stays small.
    #[cfg(feature = "verbs")]
    pub(crate) fn for_registration() -> Self {
        Self::with_arenas(HUGE_PAGE_BYTES)
    }

    fn with_arenas(arena_bytes_min: usize) -> Self {
        BufferPool(Rc::new(Shelves {
            free: [const { RefCell::new(Vec::new()) }; CLASSES],
            arenas: RefCell::new(Vec::new()),
            leased: Cell::new(0),
            arena_bytes_min,
        }))
    }

    /// Returns address and size in bytes of the arena that holds `buf`, which stays where it is while the pool lives;
    /// `None` for a buffer of another pool.
    #[cfg(feature = "verbs")]
    pub(crate) fn arena_of(&self, buf: &Buf) -> Option<(usize, usize)> {
        let arenas = self.0.arenas.borrow();
        let mut arenas = arenas.iter().map(|arena| (arena.start.as_ptr().addr(), arena.layout.size()));
        arenas.find(|&(start, bytes)| (start..start + bytes).contains(&buf.start.as_ptr().addr()))
    }

    /// Leases a buffer of `bytes` bytes, aligned to 64. It holds whatever its last user left there.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let mut buf = BufferPool::new().lease(100);
    /// assert_eq!((buf.len(), buf.as_ptr().addr() % 64), (100, 0));
    /// buf[..8].copy_from_slice(&7u64.to_le_bytes());
    /// assert_eq!(buf[0], 7);
    /// ```
    ///
    /// # Panics
    /// If `bytes` exceeds [`BUFFER_BYTES_MAX`].
    #[inline]
    pub fn lease(&self, bytes: usize) -> Buf {
        assert!(bytes <= BUFFER_BYTES_MAX, "a buffer of {bytes} bytes exceeds {BUFFER_BYTES_MAX}");
        let class = class_of(bytes);
        let popped = self.0.free[class].borrow_mut().pop();
        let start = popped.unwrap_or_else(|| self.0.grow(class));
        self.0.leased.set(self.0.leased.get() + 1);
        Buf { start, len: bytes as u32, class: class as u8, shelves: Rc::clone(&self.0) }
    }

    /// Counts the buffers that are leased now. Tests use it to show that none got lost.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let pool = BufferPool::new();
    /// let buf = pool.lease(64);
    /// assert_eq!(pool.leased(), 1);
    /// drop(buf);
    /// assert_eq!(pool.leased(), 0);
    /// ```
    pub fn leased(&self) -> usize {
        self.0.leased.get()
    }

    /// Counts the bytes that the pool has taken from the system.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let pool = BufferPool::new();
    /// drop(pool.lease(64));
    /// let grown = pool.bytes();
    /// drop(pool.lease(64));
    /// assert_eq!(pool.bytes(), grown, "the second lease is the buffer of the first");
    /// ```
    pub fn bytes(&self) -> usize {
        self.0.arenas.borrow().iter().map(|arena| arena.layout.size()).sum()
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new()
    }
}

impl Shelves {
    #[cold]
    fn grow(&self, class: usize) -> NonNull<u8> {
        let piece = piece_bytes(class);
        let bytes = piece.max(self.arena_bytes_min);
        let huge = bytes.is_multiple_of(HUGE_PAGE_BYTES);
        let align = if huge { HUGE_PAGE_BYTES } else { ARENA_ALIGN };
        let layout = Layout::from_size_align(bytes, align).expect("it is far below isize::MAX");
        let start = if huge { allocate_huge(layout) } else { allocate(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        self.arenas.borrow_mut().push(Arena { start, layout, class });
        let mut free = self.free[class].borrow_mut();
        // SAFETY: every piece lies inside the arena that was just allocated.
        free.extend((1..bytes / piece).rev().map(|i| unsafe { start.add(i * piece) }));
        start
    }

    fn put_back(&self, class: usize, start: NonNull<u8>) {
        let mut free = self.free[class].borrow_mut();
        // The list is about to grow.
        if free.len() == free.capacity() {
            self.shrink(class, &mut free);
        }
        free.push(start);
    }

    /// Gives arenas that are free as a whole back to the system, but for what is retained.
    #[cold]
    fn shrink(&self, class: usize, free: &mut Vec<NonNull<u8>>) {
        let piece = piece_bytes(class);
        // Devices do not deregister arenas.
        if self.arena_bytes_min == HUGE_PAGE_BYTES || free.len() * piece < RETAINED_BYTES {
            return;
        }
        free.sort_unstable();
        let (mut left, mut gone) = (free.len() * piece, Vec::new());
        self.arenas.borrow_mut().retain(|arena| {
            let (bytes, end) = (arena.layout.size(), arena.start.as_ptr().addr() + arena.layout.size());
            if arena.class != class || left < RETAINED_BYTES / 2 + bytes {
                return true;
            }
            let from = free.partition_point(|piece| *piece < arena.start);
            let until = from + free[from..].partition_point(|piece| piece.as_ptr().addr() < end);
            if until - from != bytes / piece {
                return true;
            }
            left -= bytes;
            gone.push(from..until);
            // SAFETY: allocated in `grow` with this layout. All of its pieces are on the list, so none is leased, and
            // they are taken off it below.
            unsafe { dealloc(arena.start.as_ptr(), arena.layout) };
            false
        });
        gone.sort_unstable_by_key(|pieces| pieces.start);
        let (mut place, mut gone) = (0, gone.into_iter().peekable());
        free.retain(|_| {
            let at = place;
            place += 1;
            gone.next_if(|pieces| pieces.end <= at);
            gone.peek().is_none_or(|pieces| at < pieces.start)
        });
        free.shrink_to(RETAINED_BYTES / piece);
    }
}

impl Drop for Shelves {
    fn drop(&mut self) {
        for Arena { start, layout, .. } in self.arenas.get_mut().drain(..) {
            // SAFETY: allocated in `grow` with this layout; every `Buf` holds an `Rc` of the shelves, so none is left.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: the layout's size is not zero.
    unsafe { alloc_zeroed(layout) }
}

/// Allocates zeroed memory, on huge pages where the system gives them: it is asked before the memory is touched.
fn allocate_huge(layout: Layout) -> *mut u8 {
    // SAFETY: the layout's size is not zero.
    let start = unsafe { alloc(layout) };
    if let Some(start) = NonNull::new(start) {
        // SAFETY: advice about whole pages of the allocation. Refusal costs speed only.
        unsafe { madvise(start.cast(), layout.size(), MmapAdvise::MADV_HUGEPAGE) }.ok();
        // SAFETY: the allocation is that long, and has no other user yet.
        unsafe { start.write_bytes(0, layout.size()) };
    }
    start
}

fn class_of(bytes: usize) -> usize {
    let shift = bytes.next_power_of_two().trailing_zeros();
    shift.saturating_sub(CLASS_SHIFT_MIN) as usize
}

/// Yields the bytes of a class's buffers.
fn piece_bytes(class: usize) -> usize {
    let bytes = 1usize << (class as u32 + CLASS_SHIFT_MIN);
    if bytes <= ROOMY_BYTES_MAX { bytes + ROOM_BYTES } else { bytes }
}

/// A leased buffer. It goes back to its pool when it is dropped.
///
/// ```
/// # use farwood_runtime::{Verbs, on_one_shard};
/// # on_one_shard(async |shard| {
/// let mut buf = shard.lease(64);
/// buf.fill(7);
/// assert_eq!(buf[..], [7; 64]);
/// # Ok(()) }).unwrap();
/// ```
pub struct Buf {
    start: NonNull<u8>,
    len: u32,
    class: u8,
    shelves: Rc<Shelves>,
}

impl Buf {
    /// Lengthens the buffer where it is, if there is room for so many bytes more; yields whether there is. They hold
    /// whatever their last user left there.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let mut buf = BufferPool::new().lease(64);
    /// assert!(buf.extend(100) && buf.len() == 164);
    /// assert!(!buf.extend(1000) && buf.len() == 164);
    /// ```
    #[inline]
    pub fn extend(&mut self, bytes: usize) -> bool {
        let fits = bytes <= piece_bytes(self.class as usize) - self.len as usize;
        if fits {
            self.len += bytes as u32;
        }
        fits
    }

    /// Shortens the buffer to its first `bytes` bytes, if it has more.
    ///
    /// ```
    /// # use farwood_runtime::BufferPool;
    /// let mut buf = BufferPool::new().lease(64);
    /// buf.truncate(8);
    /// assert_eq!(buf.len(), 8);
    /// ```
    #[inline]
    pub fn truncate(&mut self, bytes: usize) {
        self.len = self.len.min(bytes as u32);
    }
}

#[cfg(feature = "verbs")]
impl Buf {
    /// Returns the address of the first byte, for a device that reads and writes it while it owns it.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is the first of at least `len` initialised bytes that this lease alone may touch.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        self.shelves.put_back(self.class as usize, self.start);
        self.shelves.leased.set(self.shelves.leased.get() - 1);
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_disjoint_and_come_back() {
        let pool = BufferPool::new();
        let mut bufs: Vec<Buf> = (0..200).map(|i| pool.lease(1 + i * 7)).collect();
        for (i, buf) in bufs.iter_mut().enumerate() {
            buf.fill(i as u8);
        }
        for (i, buf) in bufs.iter().enumerate() {
            assert!(buf.len() == 1 + i * 7 && buf.iter().all(|&b| b == i as u8));
            assert_eq!(buf.as_ptr() as usize % 64, 0);
        }
        assert_eq!(pool.leased(), 200);
        drop(bufs);
        assert_eq!(pool.leased(), 0);
    }

    #[test]
    fn reuses_what_was_returned() {
        let pool = BufferPool::new();
        let first = pool.lease(1000).as_ptr();
        assert_eq!(pool.lease(1024).as_ptr(), first);
    }

    /// Memory that only a peak needed goes back to the system, and buffers that stay leased stay where they are.
    #[test]
    fn shrinks_when_far_more_was_leased_than_is() {
        // Miri would take hours for a million small ones.
        let sizes: &[usize] = if cfg!(miri) { &[1 << 16] } else { &[64, 1000, 1 << 16] };
        for &bytes in sizes {
            let pool = BufferPool::new();
            let mut bufs: Vec<Buf> = (0..(4 * RETAINED_BYTES / bytes)).map(|_| pool.lease(bytes)).collect();
            for (n, buf) in bufs.iter_mut().enumerate() {
                buf.fill(n as u8);
            }
            let peak = pool.bytes();
            assert!(peak >= 4 * RETAINED_BYTES);
            bufs.truncate(bufs.len() / 100);
            let held = bufs.len();
            assert!(pool.bytes() <= 2 * RETAINED_BYTES + peak / 50, "{}", pool.bytes());
            for (n, buf) in bufs.iter().enumerate() {
                assert!(buf.iter().all(|&byte| byte == n as u8));
            }
            assert_eq!(pool.leased(), held);
            let again: Vec<Buf> = (0..(RETAINED_BYTES / bytes)).map(|_| pool.lease(bytes)).collect();
            assert!(pool.bytes() < peak);
            drop((again, bufs));
        }
    }

    #[test]
    fn outlives_its_pool() {
        let pool = BufferPool::new();
        let mut buf = pool.lease(64);
        drop(pool);
        buf.fill(1);
        assert!(buf.iter().all(|&b| b == 1));
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn knows_its_arenas() {
        let (pool, other) = (BufferPool::for_registration(), BufferPool::for_registration());
        let bufs: Vec<Buf> = [8, 1000, 1 << 20, 1 << 20, 1 << 20].map(|bytes| pool.lease(bytes)).into();
        for buf in &bufs {
            assert!(buf.iter().all(|&byte| byte == 0));
            let (start, bytes) = pool.arena_of(buf).unwrap();
            assert!(bytes == HUGE_PAGE_BYTES && start.is_multiple_of(HUGE_PAGE_BYTES));
            assert!(buf.address() as usize >= start);
            assert!(buf.address() as usize + buf.len() <= start + bytes);
        }
        assert_eq!(pool.arena_of(&bufs[2]), pool.arena_of(&bufs[3]));
        assert_ne!(pool.arena_of(&bufs[3]), pool.arena_of(&bufs[4]));
        assert_eq!(pool.arena_of(&other.lease(8)), None);
    }

    #[test]
    #[should_panic(expected = "exceeds")]
    fn refuses_what_no_class_holds() {
        BufferPool::new().lease(BUFFER_BYTES_MAX + 1);
    }
}
