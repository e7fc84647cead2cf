//! Locks on bytes of a region file, by which processes notice each other's death: the kernel drops them when the last
//! descriptor and the last mapping of their open file are gone: then no thread of the process can run any more.
//!
//! They are locks of open files (`F_OFD_SETLK`), not of processes: closing another descriptor of the same file does not
//! drop them, and two openings of one file in one process exclude each other. A lock never conflicts with locks of its
//! own open file: who shares one must agree by other means. The bytes lie far behind the end of any file: what is in
//! the file does not matter.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

/// Held by the memory server while it lives.
pub(super) const SERVER: i64 = 1 << 62;
/// Shared by all clients; alone with a server that is about to use a device anew.
pub(super) const CLIENTS: i64 = SERVER + 1;
/// The first of the journal's slots, a byte each: held by who writes through it.
pub(super) const SLOTS: i64 = SERVER + (1 << 20);
/// The first of the control connections, a byte each: held by the mapping that the connection is for, so that a memory
/// server can tell a process that is silent from one that has ended.
pub(super) const CONNECTIONS: i64 = SERVER + (1 << 24);
/// Connections that have a byte: more than a server has in its life.
pub(super) const CONNECTIONS_MAX: u64 = 1 << 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Shared,
    Exclusive,
}

/// Takes the lock on `byte` unless another open file has it. Yields whether it did.
///
/// # Errors
/// If the system cannot lock, as when it has no memory for locks.
pub(super) fn try_lock(file: &File, byte: i64, kind: Kind) -> io::Result<bool> {
    let lock_type = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
    };
    match set(file, byte, lock_type) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives the lock on `byte` back.
///
/// # Errors
/// As for [`try_lock`].
pub(super) fn unlock(file: &File, byte: i64) -> io::Result<()> {
    set(file, byte, libc::F_UNLCK).map_err(io::Error::from)
}

/// Tells whether another open file has a lock on `byte`.
///
/// # Errors
/// If the system does not tell.
pub(super) fn is_locked(file: &File, byte: i64) -> io::Result<bool> {
    let mut range = range_of(byte, libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut range))?;
    Ok(range.l_type != libc::F_UNLCK as libc::c_short)
}

fn set(file: &File, byte: i64, lock_type: i32) -> nix::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range_of(byte, lock_type))).map(drop)
}

fn range_of(byte: i64, lock_type: i32) -> libc::flock {
    libc::flock {
        l_type: lock_type as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::tests::Folder;
    use super::*;

    #[test]
    fn open_files_exclude_each_other_and_let_go_when_closed() {
        let folder = Folder::new("range-lock");
        let path = folder.path("file");
        std::fs::write(&path, b"").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(&first, SLOTS, Kind::Exclusive).unwrap());
        assert!(try_lock(&first, SLOTS, Kind::Exclusive).unwrap(), "never in its own way");
        assert!(!try_lock(&second, SLOTS, Kind::Exclusive).unwrap());
        assert!(!try_lock(&second, SLOTS, Kind::Shared).unwrap());
        assert!(is_locked(&second, SLOTS).unwrap() && !is_locked(&first, SLOTS).unwrap());
        assert!(!is_locked(&second, SLOTS + 1).unwrap());
        assert!(try_lock(&second, SLOTS + 1, Kind::Exclusive).unwrap());
        drop(open());
        assert!(
            !try_lock(&second, SLOTS, Kind::Exclusive).unwrap(),
            "closing another descriptor drops nothing"
        );
        drop(first);
        assert!(!is_locked(&second, SLOTS).unwrap());
        assert!(try_lock(&second, SLOTS, Kind::Exclusive).unwrap());
        let third = open();
        unlock(&second, SLOTS).unwrap();
        assert!(try_lock(&third, SLOTS, Kind::Shared).unwrap());
        assert!(try_lock(&second, SLOTS, Kind::Shared).unwrap());
        assert!(!try_lock(&second, SLOTS, Kind::Exclusive).unwrap());
    }
}
