//! Why a region could not be had, each reason with what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::line::LineModeRefused;

/// Why a region could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The system refused address space.
    #[error(
        "cannot map {bytes} bytes of memory: {cause}; ask for less, or raise the limit (ulimit -v, cgroup memory.max)"
    )]
    Map {
        /// Bytes that were asked for.
        bytes: u64,
        /// The system's error.
        cause: io::Error,
    },
    /// There is no such file.
    #[error(
        "there is no region at {}: start its memory server (farwood memory-server), or check the name",
        path.display()
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file may not be opened.
    #[error(
        "may not open the region {}: {whose}; run as its owner, or let the owner give access (chmod, chown)",
        path.display()
    )]
    Denied {
        /// The file.
        path: PathBuf,
        /// Its owner and mode, and who asked.
        whose: String,
    },
    /// Something is in the way of a new region.
    #[error(
        "{} exists and is not a Farwood region: {reason}; choose another name, or remove it yourself",
        path.display()
    )]
    Occupied {
        /// The path that was to become the region.
        path: PathBuf,
        /// Description of what is there instead.
        reason: String,
    },
    /// Another memory server has the region.
    #[error(
        "a memory server (process {pid}) runs on {} already: stop it first, or choose another name",
        path.display()
    )]
    ServerRuns {
        /// The region.
        path: PathBuf,
        /// The server's process id, as the server sees it; 0 while it is only starting.
        pid: u32,
    },
    /// Clients of an earlier server still have the device mapped.
    #[error(
        "clients of an earlier memory server still have {} mapped: end them first (fuser {})",
        path.display(), path.display()
    )]
    ClientsLeft {
        /// The device.
        path: PathBuf,
    },
    /// A server is filling the device.
    #[error("a memory server is just preparing {}: try again when it says that it is ready", path.display())]
    BeingMade {
        /// The device.
        path: PathBuf,
    },
    /// The file is something else.
    #[error(
        "{} is not a Farwood region: {reason}; check the name, and that its memory server runs",
        path.display()
    )]
    NotFarwood {
        /// The file.
        path: PathBuf,
        /// Description of the fault.
        reason: String,
    },
    /// Another version of Farwood made it.
    #[error(
        "the region {} has layout version {found}, this program knows version {known}: run a memory server and clients \
         of the same version of Farwood",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// The file was cut off.
    #[error(
        "the region {} is too small: its header speaks of {needed} bytes, it has {found}; something truncated it: \
         restart its memory server",
        path.display()
    )]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        found: u64,
        /// The bytes that it should have.
        needed: u64,
    },
    /// Another run of a memory server made it.
    #[error(
        "the region {} belongs to another run of a memory server than the one that answered: the server was restarted \
         (connect again), or another server uses this name",
        path.display()
    )]
    OtherInstance {
        /// The file.
        path: PathBuf,
    },
    /// The line mode that was asked for cannot be had.
    #[error(transparent)]
    LineModeRefused(#[from] LineModeRefused),
    /// Its lines need a CPU that moves them at once.
    #[error(
        "the region {} keeps its lines whole by 64-byte vectors, which this CPU is not known to move at once: run the \
         memory server and its clients on CPUs of one kind, or start the server with FARWOOD_LINE_MODE=sequence",
        path.display()
    )]
    LineMode {
        /// The file.
        path: PathBuf,
    },
    /// Reserved huge pages were asked for where there are none.
    #[error(
        "{} is not a hugetlbfs, where reserved huge pages are: mkdir -p {} && mount -t hugetlbfs none {}, and reserve \
         some (/proc/sys/vm/nr_hugepages); or leave --huge-pages out",
        folder.display(), folder.display(), folder.display()
    )]
    NotHugetlbfs {
        /// The folder of the region.
        folder: PathBuf,
    },
    /// There is not enough memory, or room in the file system.
    #[error("{} needs {needed} bytes and {free} are free: {remedy}, or ask for less (--memory)", path.display())]
    NoRoom {
        /// The file or device.
        path: PathBuf,
        /// Bytes that it would take, all included.
        needed: u64,
        /// Bytes that there are.
        free: u64,
        /// Advice how to make room.
        remedy: String,
    },
    /// It was not wanted any more while it was made.
    #[error("the region {} was given up while it was made: it was told to stop", path.display())]
    Stopped {
        /// The file.
        path: PathBuf,
    },
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// All slots of the journal are taken.
    #[error(
        "all {slots} places for writers of the region {} are taken: end some of its clients, or give them fewer shards",
        path.display()
    )]
    TooManyWriters {
        /// The file.
        path: PathBuf,
        /// Number of slots that there are.
        slots: u32,
    },
    /// Anything else that the system refused.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// The action that was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}
