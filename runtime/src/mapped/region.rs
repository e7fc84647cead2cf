//! A memory server's region as mapped memory of this process. Bounds and alignment are checked here, once, for every
//! access; how lines stay whole is [`super::line`]'s business.

#![expect(unsafe_code, reason = "maps memory and hands out accesses to it")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use super::line::{LINE_BYTES, LineMode, Lines};
use super::prefetch::prefetch_once;

const PAGE_BYTES: u64 = 4096;

/// Memory that one-sided verbs can reach: zeroed at first, on huge pages where the system gives them.
pub struct Region {
    memory: Mapping,
    counters: Option<Mapping>,
    mode: LineMode,
}

/// Why a region could not be had.
#[derive(Debug, Error)]
#[error(
    "cannot map {bytes} bytes of memory: {cause}; ask for less, or raise the limit (ulimit -v, cgroup memory.max)"
)]
pub struct RegionError {
    bytes: u64,
    cause: std::io::Error,
}

/// An access outside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfRegion;

impl Region {
    /// A region of `bytes` bytes (rounded up to whole pages) of this process's memory.
    ///
    /// # Errors
    /// If the system refuses to map that much.
    pub fn anonymous(bytes: u64, mode: LineMode) -> Result<Self, RegionError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let mode = mode.detect();
        let memory = Mapping::anonymous(bytes)?;
        let counters = match mode {
            LineMode::Sequence => Some(Mapping::anonymous(bytes / LINE_BYTES as u64 * 4)?),
            _ => None,
        };
        Ok(Region { memory, counters, mode })
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// The mechanism that keeps its lines whole.
    pub fn line_mode(&self) -> LineMode {
        self.mode
    }

    /// READ. `to` is the whole destination; its length is a multiple of 8.
    #[inline]
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), OutOfRegion> {
        self.check(at, to.len())?;
        // SAFETY: checked.
        unsafe { self.lines().read(at as usize, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// WRITE.
    #[inline]
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), OutOfRegion> {
        self.check(at, from.len())?;
        // SAFETY: checked.
        unsafe { self.lines().write(at as usize, from.as_ptr(), from.len()) };
        Ok(())
    }

    /// WRITE of one little-endian word.
    #[inline]
    pub(crate) fn write_word(&self, at: u64, word: u64) -> Result<(), OutOfRegion> {
        self.check(at, 8)?;
        // SAFETY: checked. A plain store would do outside `Sequence` mode; `atomic` knows the modes.
        unsafe {
            self.lines().atomic(at as usize, |cell| {
                cell.store(word.to_le(), Ordering::Release);
                0
            });
        }
        Ok(())
    }

    /// CAS; yields the word found.
    #[inline]
    pub(crate) fn cas(&self, at: u64, expected: u64, desired: u64) -> Result<u64, OutOfRegion> {
        self.check(at, 8)?;
        let swap = (expected.to_le(), desired.to_le());
        // SAFETY: checked.
        let found = unsafe {
            self.lines().atomic(at as usize, |cell| {
                cell.compare_exchange(swap.0, swap.1, Ordering::SeqCst, Ordering::SeqCst)
                    .unwrap_or_else(|found| found)
            })
        };
        Ok(u64::from_le(found))
    }

    /// FAA; yields the word found.
    #[inline]
    pub(crate) fn faa(&self, at: u64, add: u64) -> Result<u64, OutOfRegion> {
        self.check(at, 8)?;
        let sum = |word: u64| Some(u64::from_le(word).wrapping_add(add).to_le());
        // SAFETY: checked.
        let found = unsafe {
            self.lines().atomic(at as usize, |cell| {
                cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum).unwrap_or_else(|found| found)
            })
        };
        Ok(u64::from_le(found))
    }

    /// Prefetches the lines of `at..at + len`, and their counters. Addresses outside the region do no harm.
    #[inline]
    pub(crate) fn prefetch(&self, at: u64, len: u64) {
        let first = self.memory.start.as_ptr().wrapping_add(at as usize);
        for i in (0..len as usize).step_by(LINE_BYTES) {
            prefetch_once(first.wrapping_add(i));
        }
        if let Some(counters) = &self.counters {
            prefetch_once(counters.start.as_ptr().wrapping_add(at as usize / LINE_BYTES * 4));
        }
    }

    #[inline]
    fn check(&self, at: u64, len: usize) -> Result<(), OutOfRegion> {
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= self.memory.bytes);
        debug_assert!(at.is_multiple_of(8) && len.is_multiple_of(8), "chains check alignment");
        if inside { Ok(()) } else { Err(OutOfRegion) }
    }

    #[inline]
    fn lines(&self) -> Lines {
        let counters =
            self.counters.as_ref().map_or(std::ptr::null(), |c| c.start.as_ptr() as *const AtomicU32);
        Lines { base: self.memory.start.as_ptr(), counters, mode: self.mode }
    }
}

/// Pages from `mmap`.
struct Mapping {
    start: NonNull<u8>,
    bytes: u64,
}

// SAFETY: the pages belong to no thread; every access to their bytes goes through `Lines`, which is atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn anonymous(bytes: u64) -> Result<Self, RegionError> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes.max(1) as usize, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(RegionError { bytes, cause: std::io::Error::last_os_error() });
        }
        // SAFETY: advice about the mapping just made. Refusal (no huge pages in this kernel) costs speed only.
        unsafe { libc::madvise(start, bytes as usize, libc::MADV_HUGEPAGE) };
        let start = NonNull::new(start.cast()).expect("mmap does not map page 0");
        Ok(Mapping { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `anonymous` with this length; regions are dropped after the last access.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes.max(1) as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODES: [LineMode; 4] = [LineMode::Auto, LineMode::Vector, LineMode::Sequence, LineMode::Plain];

    #[test]
    fn every_mode_copies_every_range_of_three_lines() {
        for mode in MODES {
            let region = Region::anonymous(4096, mode).unwrap();
            let pattern: Vec<u8> = (0..192).map(|i| i as u8 + 1).collect();
            for (start, end) in (0..192).step_by(8).flat_map(|s| (s..=192).step_by(8).map(move |e| (s, e))) {
                region.write(0, &[0; 192]).unwrap();
                region.write(start as u64, &pattern[start..end]).unwrap();
                let mut all = [0; 192];
                region.read(0, &mut all).unwrap();
                assert!(all[..start].iter().chain(&all[end..]).all(|&b| b == 0), "{mode:?} {start}..{end}");
                assert_eq!(all[start..end], pattern[start..end]);
                let mut part = vec![0; end - start];
                region.read(start as u64, &mut part).unwrap();
                assert_eq!(part, pattern[start..end], "{mode:?} {start}..{end}");
            }
        }
    }

    #[test]
    fn every_mode_has_atomics() {
        for mode in MODES {
            let region = Region::anonymous(4096, mode).unwrap();
            assert_eq!(region.cas(8, 0, 5), Ok(0));
            assert_eq!(region.cas(8, 0, 6), Ok(5));
            assert_eq!(region.faa(8, u64::MAX), Ok(5));
            region.write_word(16, 9).unwrap();
            let mut words = [0; 16];
            region.read(8, &mut words).unwrap();
            assert_eq!(words, [4, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    #[test]
    fn refuses_what_is_outside() {
        let region = Region::anonymous(4096, LineMode::Auto).unwrap();
        assert_eq!(region.read(4096, &mut [0; 8]), Err(OutOfRegion));
        assert_eq!(region.write(4088, &[0; 16]), Err(OutOfRegion));
        assert_eq!(region.cas(u64::MAX - 7, 0, 0), Err(OutOfRegion));
        region.prefetch(u64::MAX - 63, 1 << 20);
    }

    #[test]
    fn says_what_to_do_when_memory_is_refused() {
        let error =
            Region::anonymous(1 << 60, LineMode::Auto).err().expect("nobody has an exbibyte").to_string();
        assert!(error.contains("ask for less"), "{error}");
    }
}
