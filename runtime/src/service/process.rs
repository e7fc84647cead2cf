//! The process at the other end of a connection, and how it is ended. When that is to be is not known here.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::control::stream::Stream;

/// Another process, by a descriptor: what has its pid when it has ended is not meant.
pub(super) struct Process {
    pid: Pid,
    descriptor: OwnedFd,
}

impl Process {
    /// Finds the process that has made that connection.
    ///
    /// # Errors
    /// If the connection is no Unix socket, or the process is this one, or not visible from here.
    pub(super) fn of(stream: &Stream) -> io::Result<Self> {
        let Stream::Unix(socket) = stream else {
            return Err(io::Error::new(ErrorKind::Unsupported, "it is connected over TCP"));
        };
        let pid = Pid::from_raw(getsockopt(socket, PeerCredentials)?.pid());
        let pid = pid.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "it is in another pid namespace"))?;
        if pid == getpid() {
            return Err(io::Error::new(ErrorKind::ResourceBusy, "it is the memory server's own process"));
        }
        Ok(Process { pid, descriptor: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Ends it by SIGKILL, also if it is stopped. It may take a while to be over.
    ///
    /// # Errors
    /// If it has ended, or this process may not end it.
    pub(super) fn end(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.descriptor, Signal::KILL)?)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pid)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn neither_this_process_nor_one_over_tcp_can_be_ended() {
        let (_theirs, ours) = UnixStream::pair().unwrap();
        let refused = |stream| Process::of(&stream).err().map(|error| error.kind());
        assert_eq!(refused(Stream::Unix(ours)), Some(ErrorKind::ResourceBusy));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let over_tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(refused(Stream::Tcp(over_tcp)), Some(ErrorKind::Unsupported));
    }
}
