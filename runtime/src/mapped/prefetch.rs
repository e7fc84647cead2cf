//! Prefetching, as a safe function: a prefetch is a hint that never faults.

#![expect(unsafe_code, reason = "the intrinsic is declared unsafe")]

/// Asks the CPU to bring the cache line of `target`'s first byte closer. Does nothing where it does not know how.
///
/// ```
/// # use farwood_runtime::prefetch;
/// let nodes = vec![7u64; 1024];
/// prefetch(&nodes[1000]); // Its line comes closer while other work is done.
/// assert_eq!(nodes[1000], 7);
/// ```
#[inline(always)]
pub fn prefetch<T: ?Sized>(target: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; it reads nothing that the program could see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(target.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

/// Prefetches like [`prefetch`], for memory that is read once: it should not push what is used again out of the larger
/// caches.
#[inline(always)]
pub(crate) fn prefetch_once(target: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch`.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_NTA }>(target.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
