//! A memory server's region as mapped memory: of this process alone, or of a file that several processes map. Bounds
//! and alignment are checked here, once, for every access; how lines stay whole is [`super::line`]'s business, where
//! files come from and go is `file.rs`'s.

#![expect(unsafe_code, reason = "hands out accesses to mapped memory")]

use std::path::Path;
#[cfg(feature = "verbs")]
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::file::RegionFile;
use super::header::{HEADER_BYTES, Header, Parts};
use super::journal::{Journal, SLOTS_MAX};
use super::line::{Change, LINE_BYTES, LineMode, Lines, WriterStopped};
use super::mapping::Mapping;
use super::prefetch::prefetch_once;

pub use super::error::RegionError;

const PAGE_BYTES: u64 = 4096;

/// Memory that one-sided verbs can reach: zeroed at first, on huge pages where the system gives them.
pub struct Region {
    start: *mut u8,
    bytes: u64,
    /// One per line in `Sequence` mode, else null.
    counters: *const AtomicU32,
    journal: Option<Arc<Journal>>,
    mode: LineMode,
    /// Owns what the pointers point to.
    memory: Memory,
}

// SAFETY: the pointers are to memory that the region owns and that belongs to no thread; every access to it goes
// through `Lines`, which is atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

enum Memory {
    Anonymous { region: Mapping, _counters: Option<Mapping> },
    File(RegionFile),
}

/// Use of huge pages for the memory of a region file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// As far as the system is willing. About 1.7 s per GiB of tmpfs, when the region is made.
    #[default]
    Try,
    /// Only where the file system has no others.
    No,
    /// Reserved ones and no others: the file has to be on hugetlbfs (a DAX device has its own).
    Reserved,
}

/// Configuration of a memory server's region file.
#[derive(Clone, Debug)]
pub struct RegionConfig {
    /// Bytes that verbs reach, rounded up to whole pages.
    pub bytes: u64,
    /// Mechanism of line atomicity, for all processes that map it.
    pub line_mode: LineMode,
    /// Which run of a memory server this is. Clients learn it from the control service, and accept no other region.
    pub instance: u128,
    /// Use of huge pages.
    pub huge_pages: HugePages,
    /// Permissions of the file: mode bits, from which the process's umask is taken.
    pub permissions: u32,
    /// Once it is set, a region that is being made is given up, which leaves nothing behind.
    pub stop: Option<Arc<AtomicBool>>,
}

impl RegionConfig {
    /// Configures a region of `bytes` bytes for the user's own processes.
    ///
    /// ```
    /// # use farwood_runtime::mapped::region::RegionConfig;
    /// let config = RegionConfig::new(1 << 20, 7);
    /// assert_eq!((config.bytes, config.instance, config.permissions), (1 << 20, 7, 0o600));
    /// ```
    pub fn new(bytes: u64, instance: u128) -> Self {
        let (line_mode, huge_pages) = (LineMode::Auto, HugePages::Try);
        RegionConfig { bytes, line_mode, instance, huge_pages, permissions: 0o600, stop: None }
    }

    /// Tells whether the region is to be made still.
    pub(super) fn goes_on(&self) -> bool {
        !self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

/// Why an access did not take place; of a WRITE or READ of several lines the first ones may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AccessError {
    /// It is outside the region.
    OutOfRegion,
    /// Another process is in the middle of one of the lines, and does not go on.
    WriterStopped(WriterStopped),
}

impl From<WriterStopped> for AccessError {
    fn from(stopped: WriterStopped) -> Self {
        AccessError::WriterStopped(stopped)
    }
}

impl Region {
    /// Makes a region of `bytes` bytes (rounded up to whole pages) of this process's memory.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{line::LineMode, region::Region};
    /// let region = Region::anonymous(5000, LineMode::Auto)?;
    /// assert_eq!(region.bytes(), 8192);
    /// # Ok::<_, farwood_runtime::mapped::error::RegionError>(())
    /// ```
    ///
    /// # Errors
    /// If the system refuses to map that much, or the CPU the mode.
    pub fn anonymous(bytes: u64, mode: LineMode) -> Result<Self, RegionError> {
        Self::anonymous_in(bytes, mode.detect()?)
    }

    /// Makes a region like [`Region::anonymous`], in a mode that was detected, or that a test of one thread wants to
    /// see at work.
    fn anonymous_in(bytes: u64, mode: LineMode) -> Result<Self, RegionError> {
        let bytes = whole_pages(bytes)?;
        let map = |bytes| Mapping::anonymous(bytes).map_err(|cause| RegionError::Map { bytes, cause });
        let region = map(bytes)?;
        let counters = match mode {
            LineMode::Sequence => Some(map(bytes / LINE_BYTES as u64 * 4)?),
            _ => None,
        };
        Ok(Region {
            start: region.start(),
            bytes,
            counters: counters.as_ref().map_or(std::ptr::null(), |counters| counters.start().cast()),
            journal: None,
            mode,
            memory: Memory::Anonymous { region, _counters: counters },
        })
    }

    /// Makes the region of a memory server that other processes map: a file at `path`, which may be in tmpfs (such as
    /// /dev/shm), in any other file system on which memory can be shared, or on hugetlbfs; or a DAX device. What is
    /// there is replaced if it is empty or the region of a server that has ended, and nothing else. All its memory is
    /// allocated, which takes seconds if it is large. Dropping the region removes the file.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{error::RegionError, region::{Region, RegionConfig}};
    /// # let path = std::env::temp_dir().join(format!("farwood-doc-create-{}", std::process::id()));
    /// let region = Region::create(&path, &RegionConfig::new(1 << 20, 7))?;
    /// assert!(path.exists());
    /// drop(region);
    /// assert!(!path.exists());
    /// # Ok::<_, RegionError>(())
    /// ```
    ///
    /// # Errors
    /// If something else is at `path`, a memory server runs on it, the CPU refuses the line mode, there is not enough
    /// memory, or it was told to stop.
    pub fn create(path: &Path, config: &RegionConfig) -> Result<Self, RegionError> {
        let region_bytes = whole_pages(config.bytes.max(HEADER_BYTES))?;
        let mode = config.line_mode.detect()?;
        let journal_slots = if mode == LineMode::Sequence { SLOTS_MAX } else { 0 };
        let parts = Parts::of(region_bytes, journal_slots).ok_or_else(|| too_large(config.bytes))?;
        let header = Header {
            mode,
            instance: config.instance,
            region_bytes,
            file_bytes: parts.end,
            server_pid: std::process::id(),
            journal_slots,
        };
        Self::of_file(RegionFile::create(path, header, config)?)
    }

    /// Maps the region at `path`, which the memory server's run `instance` made, as one of its clients. Writing threads
    /// take a place each in `Sequence` mode, of which a region has 4096. A process that forks must open it anew.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{access::Access, error::RegionError, region::{Region, RegionConfig}};
    /// # let path = std::env::temp_dir().join(format!("farwood-doc-open-{}", std::process::id()));
    /// let made = Region::create(&path, &RegionConfig::new(1 << 20, 7))?;
    /// let opened = Region::open(&path, 7)?;
    /// assert_eq!(Access::to(&made).faa(4096, 5), Ok(0));
    /// assert_eq!(Access::to(&opened).faa(4096, 5), Ok(5));
    /// assert!(Region::open(&path, 8).is_err(), "another run of the server");
    /// # Ok::<_, RegionError>(())
    /// ```
    ///
    /// # Errors
    /// If there is none, it may not be opened, or it is not that server's, each with its remedy.
    pub fn open(path: &Path, instance: u128) -> Result<Self, RegionError> {
        Self::of_file(RegionFile::open(path, instance)?)
    }

    fn of_file(file: RegionFile) -> Result<Self, RegionError> {
        let Header { mode, region_bytes: bytes, journal_slots, .. } = file.header;
        let parts = file.header.parts();
        let start = file.mapping.start();
        assert!(parts.end <= file.mapping.bytes());
        let (mut counters, mut journal): (*const AtomicU32, _) = (std::ptr::null(), None);
        if mode == LineMode::Sequence {
            if journal_slots != SLOTS_MAX {
                let reason = format!("its journal has {journal_slots} slots instead of {SLOTS_MAX}");
                return Err(RegionError::NotFarwood { path: file.path().to_owned(), reason });
            }
            // SAFETY: parts of the mapping, which `file` keeps until the region that has the journal is dropped; both
            // are aligned to pages.
            unsafe {
                counters = start.add(parts.counters as usize).cast();
                let lines = Lines { base: start, counters, journal: None, mode };
                let slots = start.add(parts.journal as usize).cast_const().cast();
                let path = || file.path().to_owned();
                let made = Journal::new(file.share()?, slots, lines, bytes);
                let made = made.map_err(|cause| RegionError::Io { action: "lock", path: path(), cause })?;
                journal = Some(made.ok_or(RegionError::TooManyWriters { path: path(), slots: SLOTS_MAX })?);
            }
        }
        Ok(Region { start, bytes, counters, journal, mode, memory: Memory::File(file) })
    }

    /// Takes the lock by which the memory server knows that this mapping, which is for its control connection `number`,
    /// is still there. The kernel gives it back when the mapping and all descriptors of its open file are gone: at the
    /// latest when the process ends, however it ends, and never before its last thread has. Memory of this process
    /// needs none.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{error::RegionError, region::{Region, RegionConfig}};
    /// # let path = std::env::temp_dir().join(format!("farwood-doc-claim-{}", std::process::id()));
    /// let server = Region::create(&path, &RegionConfig::new(1 << 20, 7))?;
    /// let (one, other) = (Region::open(&path, 7)?, Region::open(&path, 7)?);
    /// one.claim(3)?;
    /// assert!(other.claim(3).is_err());
    /// # Ok::<_, RegionError>(())
    /// ```
    ///
    /// # Errors
    /// If the system refuses, or another mapping has it.
    pub fn claim(&self, number: u64) -> Result<(), RegionError> {
        match &self.memory {
            Memory::Anonymous { .. } => Ok(()),
            Memory::File(file) => file.claim(number),
        }
    }

    /// Tells whether a mapping of another process, or another one of this process, has that lock.
    pub(crate) fn is_claimed(&self, number: u64) -> bool {
        match &self.memory {
            Memory::Anonymous { .. } => false,
            Memory::File(file) => file.is_claimed(number),
        }
    }

    /// Tells whether processes share it by mapping its file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.memory, Memory::File(_))
    }

    /// Returns its size in bytes.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{line::LineMode, region::Region};
    /// assert_eq!(Region::anonymous(1 << 20, LineMode::Auto)?.bytes(), 1 << 20);
    /// # Ok::<_, farwood_runtime::mapped::error::RegionError>(())
    /// ```
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the bytes of it that this process reaches through huge pages at this moment. Takes milliseconds.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{line::LineMode, region::Region};
    /// let region = Region::anonymous(4 << 20, LineMode::Auto).unwrap();
    /// assert!(region.huge_bytes()? <= region.bytes());
    /// # Ok::<_, std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// If /proc/self/smaps cannot be read.
    pub fn huge_bytes(&self) -> std::io::Result<u64> {
        let memory = match &self.memory {
            Memory::Anonymous { region, .. } => region,
            Memory::File(file) => &file.mapping,
        };
        Ok(memory.huge_bytes()?.min(self.bytes))
    }

    /// Returns its first byte, for a NIC that reaches it.
    #[cfg(feature = "verbs")]
    pub(crate) fn start(&self) -> NonNull<u8> {
        NonNull::new(self.start).expect("a mapping is not at 0")
    }

    /// Returns the mechanism that keeps its lines whole.
    ///
    /// ```
    /// # use farwood_runtime::mapped::{line::LineMode, region::Region};
    /// let region = Region::anonymous(1 << 20, LineMode::Sequence)?;
    /// assert_eq!(region.line_mode(), LineMode::Sequence);
    /// # Ok::<_, farwood_runtime::mapped::error::RegionError>(())
    /// ```
    pub fn line_mode(&self) -> LineMode {
        self.mode
    }

    /// Executes a READ. `to` is the whole destination; its length is a multiple of 8.
    #[inline]
    pub(crate) fn read(&self, at: u64, to: &mut [u8]) -> Result<(), AccessError> {
        self.check(at, to.len())?;
        // SAFETY: checked.
        unsafe { self.lines().read(at as usize, to.as_mut_ptr(), to.len()) }?;
        Ok(())
    }

    /// Executes a WRITE.
    #[inline]
    pub(crate) fn write(&self, at: u64, from: &[u8]) -> Result<(), AccessError> {
        self.check(at, from.len())?;
        // SAFETY: checked.
        unsafe { self.lines().write(at as usize, from.as_ptr(), from.len()) }?;
        Ok(())
    }

    /// Executes a WRITE of one little-endian word.
    #[inline]
    pub(crate) fn write_word(&self, at: u64, word: u64) -> Result<(), AccessError> {
        self.check(at, 8)?;
        // SAFETY: checked.
        unsafe { self.lines().atomic(at as usize, Change::Store { word: word.to_le() })? };
        Ok(())
    }

    /// Executes a CAS; yields the word found.
    #[inline]
    pub(crate) fn cas(&self, at: u64, expected: u64, desired: u64) -> Result<u64, AccessError> {
        self.check(at, 8)?;
        let swap = Change::Swap { expected: expected.to_le(), desired: desired.to_le() };
        // SAFETY: checked.
        Ok(u64::from_le(unsafe { self.lines().atomic(at as usize, swap)? }))
    }

    /// Executes an FAA; yields the word found.
    #[inline]
    pub(crate) fn faa(&self, at: u64, add: u64) -> Result<u64, AccessError> {
        self.check(at, 8)?;
        // SAFETY: checked.
        Ok(u64::from_le(unsafe { self.lines().atomic(at as usize, Change::Add { add })? }))
    }

    /// Prefetches the lines of `at..at + len`, and their counters. Addresses outside the region do no harm.
    #[inline]
    pub(crate) fn prefetch(&self, at: u64, len: u64) {
        let first = self.start.wrapping_add(at as usize);
        for i in (0..len as usize).step_by(LINE_BYTES) {
            prefetch_once(first.wrapping_add(i));
        }
        if !self.counters.is_null() {
            prefetch_once(self.counters.wrapping_add(at as usize / LINE_BYTES).cast());
        }
    }

    #[inline]
    fn check(&self, at: u64, len: usize) -> Result<(), AccessError> {
        let inside = at.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        debug_assert!(at.is_multiple_of(8) && len.is_multiple_of(8), "chains check alignment");
        if inside { Ok(()) } else { Err(AccessError::OutOfRegion) }
    }

    #[inline]
    fn lines(&self) -> Lines<'_> {
        let (base, counters) = (self.start, self.counters);
        Lines { base, counters, journal: self.journal.as_ref(), mode: self.mode }
    }
}

fn whole_pages(bytes: u64) -> Result<u64, RegionError> {
    bytes.checked_next_multiple_of(PAGE_BYTES).ok_or_else(|| too_large(bytes))
}

fn too_large(bytes: u64) -> RegionError {
    RegionError::Config(format!("a region of {bytes} bytes is more than there are addresses: ask for less"))
}

#[cfg(test)]
mod tests {
    use super::super::line::has_line_vectors;
    use super::*;

    /// Yields the modes that this CPU can execute. That vectors could tear on it is no matter where one thread works.
    fn executable() -> impl Iterator<Item = LineMode> {
        let vector = has_line_vectors().then_some(LineMode::Vector);
        [LineMode::Sequence, LineMode::Plain].into_iter().chain(vector)
    }

    #[test]
    fn every_mode_copies_every_range_of_three_lines() {
        for mode in executable() {
            let region = Region::anonymous_in(4096, mode).unwrap();
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
        for mode in executable() {
            let region = Region::anonymous_in(4096, mode).unwrap();
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
        assert_eq!(region.read(4096, &mut [0; 8]), Err(AccessError::OutOfRegion));
        assert_eq!(region.write(4088, &[0; 16]), Err(AccessError::OutOfRegion));
        assert_eq!(region.cas(u64::MAX - 7, 0, 0), Err(AccessError::OutOfRegion));
        region.prefetch(u64::MAX - 63, 1 << 20);
    }

    #[test]
    fn says_what_to_do_when_memory_is_refused() {
        let error =
            Region::anonymous(1 << 60, LineMode::Auto).err().expect("no machine has an exbibyte").to_string();
        assert!(error.contains("ask for less"), "{error}");
    }
}
