//! The file behind a region that several processes map: how a memory server makes it without destroying anything, how
//! clients check it before they map it, and how it goes away. Knows nothing of what verbs do to it.
//!
//! ```text
//! server                                               client
//!   open what is at the path: Farwood's or empty?        open, take the shared lock CLIENTS
//!   lock it (SERVER): no server lives; remove it         read the header, compare with the size of the file
//!   make .NAME.farwood-new, lock it (SERVER)             map
//!   allocate, map, write the header, its magic last
//!   link it to NAME, which must be free
//!   unlink .NAME.farwood-new
//!   ...                                                  ...
//!   unlink NAME, if it is still this file                closing the file drops the lock
//! ```
//!
//! A file is never reused: clients of a server that died keep the old one until they let go of it. Devices cannot be
//! replaced: they are taken when neither a server nor clients hold them, and zeroed.

#![expect(unsafe_code, reason = "a device's header is read and written where it is mapped")]

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, compiler_fence};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use nix::unistd::geteuid;

use super::error::RegionError;
use super::header::{CODED_BYTES, HEADER_BYTES, Header, LAYOUT_VERSION, MAGIC, Rejected};
use super::mapping::{HUGE_BYTES, Mapping};
use super::range_lock::{self, CLIENTS, CONNECTIONS, CONNECTIONS_MAX, Kind, SERVER};
use super::region::{HugePages, RegionConfig};

/// Allocated by one call, so that signals do not make it begin anew.
const ALLOCATE_BYTES: u64 = 64 << 20;
/// Times that a server looks again when another one has just changed what is at its path.
const ATTEMPTS_MAX: u32 = 8;

/// A region file that is open, mapped and valid.
pub(super) struct RegionFile {
    /// Carries the lock SERVER or CLIENTS while this lives.
    file: File,
    pub mapping: Mapping,
    pub header: Header,
    path: PathBuf,
    /// Set if this is the memory server's end of it.
    server: bool,
}

/// Bytes of a device that have to be zero, or Farwood's, before it is taken: file systems begin within the first 64
/// KiB.
const DEVICE_LOOK_BYTES: u64 = 2 << 20;

impl RegionFile {
    /// Makes the file at `path`, as its memory server. `header.file_bytes` is what its parts need, and is rounded up to
    /// what the memory comes in.
    pub(super) fn create(path: &Path, header: Header, config: &RegionConfig) -> Result<Self, RegionError> {
        // What a symbolic link points to is replaced, not the link.
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_char_device() => Self::take_device(path, &found, header),
            Ok(found) if !found.is_file() => {
                Err(occupied(path, "it is neither an ordinary file nor a DAX device"))
            }
            _ => {
                if config.huge_pages == HugePages::Reserved {
                    reserved_huge_pages(path)?;
                }
                Self::replace(path, header, config)
            }
        }
    }

    fn replace(path: &Path, header: Header, config: &RegionConfig) -> Result<Self, RegionError> {
        for _ in 0..ATTEMPTS_MAX {
            match Self::lock_old(path)? {
                Old::Nothing => {}
                // Before the new one is allocated: there may not be room for both.
                Old::Locked(_file) => std::fs::remove_file(path).map_err(failed("remove the old", path))?,
                Old::Changing => continue,
            }
            let new_path = new_path(path)?;
            let Some(file) = Self::lock_new(&new_path, config.permissions)? else { continue };
            // Shares the lock, also when the file is dropped on the way: until its name is removed, the name is ours.
            let _locked = file.try_clone().map_err(failed("share", path))?;
            let made = Self::fill(file, path, header, config).and_then(|region| {
                // Unlike a rename, a link does not replace what another server has put there in the meantime.
                match std::fs::hard_link(&new_path, path) {
                    Ok(()) => Ok(Some(region)),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
                    Err(error) => Err(failed("name", path)(error)),
                }
            });
            std::fs::remove_file(&new_path).ok();
            if let Some(mut region) = made? {
                region.server = true;
                return Ok(region);
            }
        }
        Err(occupied(path, "other memory servers are being started and ended at this path"))
    }

    fn lock_old(path: &Path) -> Result<Old, RegionError> {
        let file = match open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Old::Nothing),
            Err(error) => return Err(not_opened(path, error)),
        };
        let length = file.metadata().map_err(failed("look at", path))?.len();
        let begin = read_begin(&file).map_err(failed("read", path))?;
        if length > 0 && !begin.starts_with(&MAGIC) {
            return Err(occupied(path, "it has other contents"));
        }
        if !range_lock::try_lock(&file, SERVER, Kind::Exclusive).map_err(failed("lock", path))? {
            let pid = Header::decode(&begin).map_or(0, |header| header.server_pid);
            return Err(RegionError::ServerRuns { path: path.to_owned(), pid });
        }
        Ok(if names(path, &file) { Old::Locked(file) } else { Old::Changing })
    }

    /// Makes a new, empty, locked file at `new_path`, after removing one that a server left which was killed here.
    fn lock_new(new_path: &Path, permissions: u32) -> Result<Option<File>, RegionError> {
        let made =
            OpenOptions::new().read(true).write(true).create_new(true).mode(permissions).open(new_path);
        let (file, fresh) = match made {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match open(new_path) {
                Ok(file) => (file, false),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(not_opened(new_path, error)),
            },
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(not_opened(new_path, error));
            }
            Err(error) => return Err(failed("make", new_path)(error)),
        };
        if !range_lock::try_lock(&file, SERVER, Kind::Exclusive).map_err(failed("lock", new_path))? {
            return Err(RegionError::ServerRuns { path: new_path.to_owned(), pid: 0 });
        }
        if !names(new_path, &file) {
            return Ok(None);
        }
        if !fresh {
            let begin = read_begin(&file).map_err(failed("read", new_path))?;
            // A server that was killed here has not written its header, or all of it.
            if !begin.starts_with(&MAGIC) && begin.iter().take(MAGIC.len()).any(|&byte| byte != 0) {
                return Err(occupied(new_path, "it has other contents"));
            }
            std::fs::remove_file(new_path).map_err(failed("remove the unfinished", new_path))?;
            return Ok(None);
        }
        Ok(Some(file))
    }

    /// Gives the new `file` its memory and its header.
    fn fill(file: File, path: &Path, mut header: Header, config: &RegionConfig) -> Result<Self, RegionError> {
        let system = file_system(&file).map_err(failed("look at", path))?;
        let unit = match config.huge_pages {
            _ if system.huge_pages => system.block_bytes,
            HugePages::Try if header.region_bytes >= HUGE_BYTES => HUGE_BYTES,
            _ => HEADER_BYTES,
        };
        header.file_bytes = rounded(header.file_bytes, unit)?;
        let goes_on = || config.goes_on();
        allocate(&file, path, header.file_bytes, &system, goes_on)?;
        let mapping = map(&file, header.file_bytes, unit)?;
        if config.huge_pages == HugePages::Try
            && !system.huge_pages
            && let Err(error) = mapping.collapse(goes_on)
        {
            tracing::info!(path = %path.display(), %error, "not all of the region is on huge pages: it is slower");
        }
        if !goes_on() {
            return Err(RegionError::Stopped { path: path.to_owned() });
        }
        write_header(&mapping, &header);
        Ok(RegionFile { file, mapping, header, path: path.to_owned(), server: false })
    }

    fn take_device(path: &Path, found: &Metadata, mut header: Header) -> Result<Self, RegionError> {
        let Some(device) = Device::of(found) else {
            return Err(occupied(path, "it is a device, but not a DAX device"));
        };
        let needed = header.file_bytes;
        if rounded(needed, device.align)? > device.bytes {
            let (path, free) = (path.to_owned(), device.bytes);
            return Err(RegionError::NoRoom { path, needed, free, remedy: "use a larger device".into() });
        }
        let file = open(path).map_err(|error| not_opened(path, error))?;
        if !range_lock::try_lock(&file, SERVER, Kind::Exclusive).map_err(failed("lock", path))? {
            // Its header says who it is, if it got that far.
            let begun = map(&file, device.align, device.align).map(|mapping| begin_of(&mapping));
            let pid =
                begun.ok().and_then(|begin| Header::decode(&begin).ok()).map_or(0, |old| old.server_pid);
            return Err(RegionError::ServerRuns { path: path.to_owned(), pid });
        }
        // Until the header is complete, so that no client comes in half-way.
        if !range_lock::try_lock(&file, CLIENTS, Kind::Exclusive).map_err(failed("lock", path))? {
            return Err(RegionError::ClientsLeft { path: path.to_owned() });
        }
        header.file_bytes = rounded(needed, device.align)?;
        let mapping = map(&file, header.file_bytes, device.align)?;
        let begin = begin_of(&mapping);
        if !begin.starts_with(&MAGIC) && !begins_with_zeroes(&mapping) {
            return Err(occupied(path, "it has other contents (zero its first 2 MiB if they may be lost)"));
        }
        // SAFETY: the whole mapping; the two locks keep every other process of Farwood away.
        unsafe { mapping.start().write_bytes(0, mapping.bytes() as usize) };
        write_header(&mapping, &header);
        range_lock::unlock(&file, CLIENTS).map_err(failed("unlock", path))?;
        Ok(RegionFile { file, mapping, header, path: path.to_owned(), server: true })
    }

    /// Opens and maps the region at `path` as a client of the memory server's run `instance`.
    pub(super) fn open(path: &Path, instance: u128) -> Result<Self, RegionError> {
        let file = open(path).map_err(|error| not_opened(path, error))?;
        let found = file.metadata().map_err(failed("look at", path))?;
        if !range_lock::try_lock(&file, CLIENTS, Kind::Shared).map_err(failed("lock", path))? {
            return Err(RegionError::BeingMade { path: path.to_owned() });
        }
        let (begin, bytes, unit) = if found.is_file() {
            let system = file_system(&file).map_err(failed("look at", path))?;
            let unit = if system.huge_pages { system.block_bytes } else { HEADER_BYTES };
            (read_begin(&file).map_err(failed("read", path))?, found.len(), unit)
        } else if let Some(device) = Device::of(&found) {
            (begin_of(&map(&file, device.align, device.align)?), device.bytes, device.align)
        } else {
            return Err(not_farwood(path, "it is neither an ordinary file nor a DAX device"));
        };
        let header = Header::decode(&begin).map_err(|rejected| match rejected {
            Rejected::Version { found } => {
                RegionError::Version { path: path.to_owned(), found, known: LAYOUT_VERSION }
            }
            Rejected::Magic | Rejected::Nonsense => not_farwood(path, &rejected.to_string()),
        })?;
        if header.instance != instance {
            return Err(RegionError::OtherInstance { path: path.to_owned() });
        }
        // Pages behind the end of a file are there to be mapped, and kill who touches them.
        if bytes < header.file_bytes {
            let (found, needed) = (bytes, header.file_bytes);
            return Err(RegionError::TooSmall { path: path.to_owned(), found, needed });
        }
        if header.mode.detect() != Ok(header.mode) {
            return Err(RegionError::LineMode { path: path.to_owned() });
        }
        let mapping = map(&file, rounded(header.file_bytes, unit)?, unit)?;
        Ok(RegionFile { file, mapping, header, path: path.to_owned(), server: false })
    }

    /// Takes the lock by which the memory server knows that the mapping for its control connection `number` is there.
    pub(super) fn claim(&self, number: u64) -> Result<(), RegionError> {
        let taken = range_lock::try_lock(&self.file, connection_byte(number), Kind::Exclusive);
        match taken.map_err(failed("lock", &self.path))? {
            true => Ok(()),
            false => Err(RegionError::OtherInstance { path: self.path.clone() }),
        }
    }

    /// Tells whether another open file has the lock of that control connection. Where the system does not tell, it has.
    pub(super) fn is_claimed(&self, number: u64) -> bool {
        range_lock::is_locked(&self.file, connection_byte(number)).unwrap_or_else(|error| {
            tracing::warn!(path = %self.path.display(), %error, "whether a client lives cannot be told");
            true
        })
    }

    /// Makes another descriptor of the same open file: locks taken on either are the locks of both and of the mapping.
    pub(super) fn share(&self) -> Result<File, RegionError> {
        self.file.try_clone().map_err(failed("share", &self.path))
    }

    /// Returns the path at which it was found.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RegionFile {
    /// Clients that have it mapped keep it; new ones find nothing.
    fn drop(&mut self) {
        if !self.server {
            return;
        }
        if self.file.metadata().is_ok_and(|found| found.is_file()) {
            // No other server replaces it while the lock is held, so that it is still ours when it is removed.
            if names(&self.path, &self.file)
                && let Err(error) = std::fs::remove_file(&self.path)
            {
                tracing::warn!(path = %self.path.display(), %error, "remove the region yourself: it could not be");
            }
        } else {
            // SAFETY: inside the header, which verbs do not use.
            unsafe { self.mapping.start().cast::<[u8; CODED_BYTES]>().write_volatile([0; CODED_BYTES]) };
        }
    }
}

enum Old {
    Nothing,
    /// A file that may be replaced, and that no other server replaces.
    Locked(File),
    /// Another server has just replaced it.
    Changing,
}

/// Attributes of a DAX device, from sysfs.
struct Device {
    bytes: u64,
    align: u64,
}

impl Device {
    fn of(found: &Metadata) -> Option<Device> {
        let (major, minor) = (major(found.rdev()), minor(found.rdev()));
        found.file_type().is_char_device().then_some(())?;
        Device::at(&PathBuf::from(format!("/sys/dev/char/{major}:{minor}")))
    }

    fn at(folder: &Path) -> Option<Device> {
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let device = Device { bytes: number("size")?, align: number("align")? };
        (device.align.is_power_of_two() && device.align >= HEADER_BYTES && device.bytes >= device.align)
            .then_some(device)
    }
}

struct FileSystem {
    /// Set if all its files are on huge pages.
    huge_pages: bool,
    /// Set if its files are memory.
    memory: bool,
    /// The size of its blocks; of its huge pages, if it has them.
    block_bytes: u64,
    /// Bytes that are free, if it counts them.
    free: Option<u64>,
}

/// Tells whether files beside `path` are on reserved huge pages.
fn reserved_huge_pages(path: &Path) -> Result<(), RegionError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_there = File::open(folder).and_then(|folder| file_system(&folder));
    match is_there {
        Ok(system) if system.huge_pages => Ok(()),
        _ => Err(RegionError::NotHugetlbfs { folder: folder.to_owned() }),
    }
}

fn connection_byte(number: u64) -> i64 {
    assert!(number < CONNECTIONS_MAX, "connections are counted one by one");
    CONNECTIONS + number as i64
}

fn file_system(file: &File) -> io::Result<FileSystem> {
    let found = fstatfs(file)?;
    let block_bytes = found.block_size() as u64;
    let limited = found.blocks() != 0 && found.blocks() as i64 != -1;
    Ok(FileSystem {
        huge_pages: found.filesystem_type() == HUGETLBFS_MAGIC,
        memory: found.filesystem_type() == TMPFS_MAGIC,
        block_bytes,
        free: limited.then(|| found.blocks_available().saturating_mul(block_bytes)),
    })
}

/// Gives `file` `bytes` bytes of memory or blocks, now: later, a page that cannot be had kills who touches it.
/// Takes the memory, piece by piece as long as it `goes_on`.
fn allocate(
    file: &File,
    path: &Path,
    bytes: u64,
    system: &FileSystem,
    goes_on: impl Fn() -> bool,
) -> Result<(), RegionError> {
    let no_room = |free: u64| RegionError::NoRoom {
        path: path.to_owned(),
        needed: bytes,
        free,
        remedy: remedy(path, system),
    };
    if let Some(free) = system.free.filter(|&free| free < bytes) {
        return Err(no_room(free));
    }
    // A limit of tmpfs may be larger than the machine, which would end processes to make room.
    if let Some(free) = available_memory().filter(|&free| system.memory && free < bytes) {
        let (path, remedy) = (path.to_owned(), "this machine has no more memory: end other programs".into());
        return Err(RegionError::NoRoom { path, needed: bytes, free, remedy });
    }
    for at in (0..bytes).step_by(ALLOCATE_BYTES as usize).take_while(|_| goes_on()) {
        let len = (bytes - at).min(ALLOCATE_BYTES);
        let allocated = loop {
            match posix_fallocate(file, at as i64, len as i64) {
                Err(Errno::EINTR) => {}
                allocated => break allocated,
            }
        };
        match allocated {
            Ok(()) => {}
            Err(Errno::ENOSPC) => {
                let free = file_system(file).ok().and_then(|system| system.free);
                return Err(no_room(free.unwrap_or(0)));
            }
            Err(error) => return Err(failed("allocate", path)(error.into())),
        }
    }
    Ok(())
}

fn remedy(path: &Path, system: &FileSystem) -> String {
    if system.huge_pages {
        let pages = system.block_bytes;
        return format!("reserve more huge pages of {pages} bytes (/proc/sys/vm/nr_hugepages)");
    }
    let folder = path.parent().unwrap_or(path).display();
    match system.memory {
        true => format!("make room in {folder} (mount -o remount,size=..., if {folder} is the mount point)"),
        false => format!("make room in {folder}"),
    }
}

/// Returns the bytes that the machine can give without ending anything.
fn available_memory() -> Option<u64> {
    let known = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = known.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((kib("MemAvailable:")? + kib("SwapFree:").unwrap_or(0)) << 10)
}

fn map(file: &File, bytes: u64, unit: u64) -> Result<Mapping, RegionError> {
    let align = unit.max(HUGE_BYTES);
    Mapping::shared(file, bytes, align).map_err(|cause| RegionError::Map { bytes, cause })
}

fn write_header(mapping: &Mapping, header: &Header) {
    let bytes = header.encode();
    let rest = &bytes[MAGIC.len()..];
    // SAFETY: inside the mapping, whose first page is the header's and no verb's; it is not read before the magic.
    unsafe {
        let start = mapping.start();
        start.add(MAGIC.len()).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        // A server that is killed in between leaves no magic.
        compiler_fence(Ordering::SeqCst);
        start.cast::<[u8; 8]>().write_volatile(MAGIC);
    }
}

/// Reads the first bytes of what is mapped, a page at least.
fn begin_of(mapping: &Mapping) -> Vec<u8> {
    // SAFETY: a mapping has at least one page; a copy is made, since other processes may write.
    unsafe { mapping.start().cast::<[u8; CODED_BYTES]>().read_volatile() }.to_vec()
}

/// Tells whether nothing that others put there (a file system, a pool) can be on a device: they begin at various
/// places, none of them far behind the first.
fn begins_with_zeroes(mapping: &Mapping) -> bool {
    let bytes = mapping.bytes().min(DEVICE_LOOK_BYTES) as usize;
    // SAFETY: inside the mapping, which is not written to: the two locks keep every other process of Farwood away.
    let begin = unsafe { std::slice::from_raw_parts(mapping.start().cast_const(), bytes) };
    begin.iter().all(|&byte| byte == 0)
}

fn read_begin(file: &File) -> io::Result<Vec<u8>> {
    let mut begin = vec![0; CODED_BYTES];
    let mut len = 0;
    while len < begin.len() {
        match file.read_at(&mut begin[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    begin.truncate(len);
    Ok(begin)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Tells whether `path` is a name of `file`.
fn names(path: &Path, file: &File) -> bool {
    let same = |a: Metadata, b: Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    std::fs::metadata(path).ok().zip(file.metadata().ok()).is_some_and(|(a, b)| same(a, b))
}

/// Returns the name of a new region until it is complete. A fixed name, so that the next server finds what one left
/// that was killed half-way: it may be most of the machine's memory.
fn new_path(path: &Path) -> Result<PathBuf, RegionError> {
    let Some(name) = path.file_name() else { return Err(occupied(path, "it has no file name")) };
    Ok(path.with_file_name(format!(".{}.farwood-new", name.to_string_lossy())))
}

fn rounded(bytes: u64, unit: u64) -> Result<u64, RegionError> {
    bytes.checked_next_multiple_of(unit).filter(|&bytes| bytes <= i64::MAX as u64).ok_or_else(|| {
        RegionError::Config(format!("a region of {bytes} bytes is more than a file can have: ask for less"))
    })
}

fn occupied(path: &Path, reason: &str) -> RegionError {
    RegionError::Occupied { path: path.to_owned(), reason: reason.into() }
}

fn not_farwood(path: &Path, reason: &str) -> RegionError {
    RegionError::NotFarwood { path: path.to_owned(), reason: reason.into() }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> RegionError {
    let path = path.to_owned();
    move |cause| RegionError::Io { action, path: path.clone(), cause }
}

fn not_opened(path: &Path, error: io::Error) -> RegionError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => RegionError::Missing { path },
        io::ErrorKind::PermissionDenied => {
            let we = geteuid();
            let whose = match std::fs::metadata(&path) {
                Ok(found) => {
                    format!(
                        "it belongs to user {} and has mode {:04o}, this is user {we}",
                        found.uid(),
                        found.mode() & 0o7777
                    )
                }
                Err(_) => format!("its folder is closed to user {we}"),
            };
            RegionError::Denied { path, whose }
        }
        io::ErrorKind::IsADirectory => not_farwood(&path, "it is a folder"),
        _ => RegionError::Io { action: "open", path, cause: error },
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
pub(super) mod tests;
