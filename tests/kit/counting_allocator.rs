//! A global allocator that counts, for test programs that measure memory: each includes this file as a module
//! (`#[path]`). Knows nothing of what they measure.
#![expect(unsafe_code, reason = "a global allocator is the only independent witness of memory use")]
#![allow(dead_code, clippy::allow_attributes, reason = "a program measures allocations or bytes")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// Counts the allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Counts the bytes that all threads have allocated and not given back.
pub(crate) fn bytes_in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

fn count(bytes: usize) {
    IN_USE.fetch_add(bytes, Ordering::Relaxed);
    // A thread that is ending has no counter any more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn an_allocation_is_seen() {
    let before = allocations();
    let one = std::hint::black_box(Box::new([0u8; 64]));
    assert!(bytes_in_use() >= size_of_val(&*one));
    drop(one);
    assert_eq!(allocations(), before + 1);
}
