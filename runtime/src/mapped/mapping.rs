//! Pages from `mmap`: of this process alone, or of a file that other processes map as well. Knows nothing of what is
//! in them.

#![expect(unsafe_code, reason = "maps memory")]

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The size of a huge page where the page table has an entry for one, and the alignment that lets it.
pub(super) const HUGE_BYTES: u64 = 2 << 20;
/// Turned into huge pages by one call: often enough that a signal need not wait, and that a log shows progress.
const COLLAPSE_BYTES: u64 = 64 << 20;

const READ_WRITE: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

/// Pages of memory. They are unmapped when this is dropped.
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: u64,
}

// SAFETY: the pages belong to no thread; every access to their bytes goes through `Lines`, which is atomic, or happens
// before others know of them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory of this process, on huge pages where the system gives them, taken when it is first touched.
    pub(super) fn anonymous(bytes: u64) -> io::Result<Self> {
        let mapping = Mapping { start: reserve(bytes.max(1), READ_WRITE)?, bytes };
        mapping.advise(MmapAdvise::MADV_HUGEPAGE).ok(); // Without huge pages it is slower, no more.
        Ok(mapping)
    }

    /// Maps the first `bytes` bytes of `file`, at an address that is a multiple of `align` (a power of two): page
    /// tables have entries for huge pages only if address and file offset agree. Children of a fork do not inherit it.
    pub(super) fn shared(file: &File, bytes: u64, align: u64) -> io::Result<Self> {
        let room = bytes.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        // Address space first; the file is mapped over a part of it, and the rest is given back.
        let room = Mapping { start: reserve(room, ProtFlags::PROT_NONE)?, bytes: room };
        let before = (room.start.as_ptr() as u64).next_multiple_of(align) - room.start.as_ptr() as u64;
        // SAFETY: inside `room`, which is `align` bytes larger than what begins here.
        let start = unsafe { room.start.add(before as usize) };
        let (address, length) = (start.addr(), length(bytes)?);
        // Not given back whole from here on: should mapping fail half-way, another mapping may have got a part of it.
        let whole = std::mem::ManuallyDrop::new(room);
        // SAFETY: over address space that was reserved above for nothing else.
        unsafe {
            mmap(Some(address), length, READ_WRITE, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, file, 0)?
        };
        // SAFETY: the two ends of `whole` beside the file's pages, which are not in use. A failure, which needs
        // a process at its limit of mappings, leaves address space behind, no memory.
        unsafe {
            let end = start.add(bytes as usize);
            let after = whole.bytes - before - bytes;
            if before > 0 {
                munmap(whole.start.cast(), before as usize).ok();
            }
            if after > 0 {
                munmap(end.cast(), after as usize).ok();
            }
        }
        let mapping = Mapping { start, bytes };
        mapping.advise(MmapAdvise::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Returns its first byte.
    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns its size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts its memory on huge pages as far as the system is willing. Unlike all other ways to huge pages in tmpfs,
    /// this needs neither a mount option nor a setting of the administrator. Every page must have been allocated. About
    /// 1.7 s per GiB; costs nothing but speed if it fails, and yields the failure of the first piece that did. Piece by
    /// piece as long as it `goes_on`.
    pub(super) fn collapse(&self, goes_on: impl Fn() -> bool) -> io::Result<()> {
        let mut first_failure = Ok(());
        for at in (0..self.bytes).step_by(COLLAPSE_BYTES as usize).take_while(|_| goes_on()) {
            let bytes = (self.bytes - at).min(COLLAPSE_BYTES) / HUGE_BYTES * HUGE_BYTES;
            if bytes == 0 {
                break;
            }
            if let Err(error) = self.collapse_piece(at, bytes) {
                // Not known to this kernel, or not for this kind of file: the rest will fare no better.
                let hopeless = error.raw_os_error() == Some(libc::EINVAL);
                first_failure = first_failure.and(Err(error));
                if hopeless {
                    break;
                }
            }
        }
        first_failure
    }

    /// Counts the bytes of it that this process reaches through huge pages just now, by `/proc/self/smaps`. Pages that
    /// were not touched yet do not count. Takes milliseconds.
    pub(super) fn huge_bytes(&self) -> io::Result<u64> {
        let first = self.start.as_ptr() as u64;
        Ok(huge_bytes_in(&std::fs::read_to_string("/proc/self/smaps")?, first, first + self.bytes))
    }

    fn advise(&self, advice: MmapAdvise) -> io::Result<()> {
        // SAFETY: this mapping; none of the advice used here changes what the memory contains.
        unsafe { madvise(self.start.cast(), self.bytes as usize, advice) }.map_err(io::Error::from)
    }

    fn collapse_piece(&self, at: u64, bytes: u64) -> io::Result<()> {
        debug_assert!(at + bytes <= self.bytes);
        // nix has no MADV_COLLAPSE.
        // SAFETY: a range of this mapping, whose contents stay as they are.
        let piece = unsafe { self.start.add(at as usize) };
        // SAFETY: as above.
        match unsafe { libc::madvise(piece.as_ptr().cast(), bytes as usize, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; what hands out accesses keeps this alive until after the last.
        unsafe { munmap(self.start.cast(), self.bytes.max(1) as usize) }.ok();
    }
}

/// Maps pages of this process alone, which take memory when they are first touched.
fn reserve(bytes: u64, protection: ProtFlags) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    Ok(unsafe { mmap_anonymous(None, length(bytes)?, protection, flags)? }.cast())
}

/// Checks that a length is not 0, as the kernel demands.
fn length(bytes: u64) -> io::Result<NonZero<usize>> {
    NonZero::new(bytes as usize).ok_or_else(|| Errno::EINVAL.into())
}

/// Adds up the huge pages in the mappings between two addresses, in the format of `/proc/PID/smaps`.
fn huge_bytes_in(smaps: &str, first: u64, end: u64) -> u64 {
    let mut inside = false;
    let mut size = 0;
    let mut sum = 0;
    for line in smaps.lines() {
        let Some((name, value)) = line.split_once(' ') else { continue };
        if let Some((from, to)) = name.split_once('-') {
            let address = |hex| u64::from_str_radix(hex, 16).ok();
            let overlap = |from: u64, to: u64| from < end && first < to;
            inside = address(from).zip(address(to)).is_some_and(|(from, to)| overlap(from, to));
            continue;
        }
        let bytes =
            value.trim().strip_suffix(" kB").and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
        match name {
            "Size:" => size = bytes,
            // A whole mapping of huge pages: hugetlbfs, DAX.
            "KernelPageSize:" if inside && bytes >= HUGE_BYTES => return size.max(sum),
            "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" if inside => sum += bytes,
            _ => {}
        }
    }
    sum.min(end - first)
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::Folder;
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-s 00000000 00:19 5  /dev/shm/x
Size:               2048 kB
KernelPageSize:        4 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd wr sh mr mw me ms
7f0000200000-7f0000800000 rw-s 00200000 00:19 5  /dev/shm/x
Size:               6144 kB
KernelPageSize:        4 kB
ShmemPmdMapped:     4096 kB
7f0001000000-7f0001400000 rw-s 00200000 00:19 5  /mnt/huge/x
Size:               4096 kB
KernelPageSize:     2048 kB
ShmemPmdMapped:        0 kB
";

    #[test]
    fn adds_up_huge_pages() {
        assert_eq!(huge_bytes_in(SMAPS, 0x7f00_0000_0000, 0x7f00_0020_0000), 2 << 20);
        assert_eq!(huge_bytes_in(SMAPS, 0x7f00_0000_0000, 0x7f00_0080_0000), 6 << 20);
        assert_eq!(huge_bytes_in(SMAPS, 0x7f00_0100_0000, 0x7f00_0140_0000), 4 << 20);
        assert_eq!(huge_bytes_in(SMAPS, 0x7f00_0200_0000, 0x7f00_0240_0000), 0);
    }

    #[test]
    fn maps_files_aligned() {
        let folder = Folder::new("mapping");
        let path = folder.path("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        for align in [4096, HUGE_BYTES, 4 * HUGE_BYTES] {
            let mapping = Mapping::shared(&file, 8192, align).unwrap();
            assert!((mapping.start() as u64).is_multiple_of(align));
            // SAFETY: inside the mapping, which has no other user.
            assert_eq!(unsafe { mapping.start().add(8191).read_volatile() }, 7);
        }
        assert!(Mapping::shared(&file, u64::MAX - 4095, HUGE_BYTES).is_err());
    }
}
