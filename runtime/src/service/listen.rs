//! Listening sockets, Unix and TCP. A socket file of a server that is dead is replaced, that of a live one is not.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ListenAt, ServiceError};
use crate::control::ServerAddress;
use crate::control::stream::Stream;

/// Attempts to lock the folder of a socket file, which is locked only while a socket is made.
const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A socket that takes connections.
pub(super) enum Listener {
    Unix { socket: UnixListener, file: SocketFile },
    Tcp { socket: TcpListener, address: String },
}

/// A socket file, removed when its server stops, unless another has taken its name.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file.
    identity: Option<(u64, u64)>,
}

/// Ends an [`Listener::accept`] that waits.
pub(super) struct Wake(TcpStream);

impl Listener {
    pub(super) fn bind(at: &ListenAt) -> Result<Self, ServiceError> {
        match at {
            ListenAt::Unix(path) => bind_unix(path),
            ListenAt::Tcp(address) => bind_tcp(address),
        }
    }

    pub(super) fn address(&self) -> ServerAddress {
        match self {
            Listener::Unix { file, .. } => ServerAddress::Unix(file.path.clone()),
            Listener::Tcp { address, .. } => ServerAddress::Tcp(address.clone()),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Unix { socket, .. } => socket.accept().map(|(stream, _)| Stream::Unix(stream)),
            Listener::Tcp { socket, .. } => {
                let (stream, _) = socket.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }

    pub(super) fn wake(&self) -> io::Result<Wake> {
        let socket: OwnedFd = match self {
            Listener::Unix { socket, .. } => socket.try_clone()?.into(),
            Listener::Tcp { socket, .. } => socket.try_clone()?.into(),
        };
        Ok(Wake(TcpStream::from(socket)))
    }
}

impl Wake {
    /// Shuts the socket down: on Linux a listening socket that is shut down takes no connection any more, and `accept`
    /// says so. The type of stream does not matter to the call; std offers it for streams only.
    pub(super) fn wake(self) {
        if let Err(error) = self.0.shutdown(Shutdown::Both) {
            tracing::debug!(%error, "a listening socket was shut down before");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = self.identity.is_some() && identity(&self.path) == self.identity;
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket file");
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

fn bind_unix(path: &Path) -> Result<Listener, ServiceError> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::InvalidInput => ServiceError::SocketPath { path: path.into() },
        _ => refused(&path.display().to_string(), &error),
    };
    let _alone = lock_folder(path)?;
    let socket = match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            remove_stale(path)?;
            UnixListener::bind(path)
        }
        other => other,
    };
    let socket = socket.map_err(failed)?;
    let file = SocketFile { path: path.into(), identity: identity(path) };
    Ok(Listener::Unix { socket, file })
}

/// Locks the folder of a socket file. Otherwise, of two servers that replace a dead one's socket at the same time, the
/// later would remove the file of the earlier.
fn lock_folder(path: &Path) -> Result<File, ServiceError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |error: io::Error| refused(&path.display().to_string(), &error);
    let opened = File::open(folder).map_err(failed)?;
    for _ in 0..LOCK_ATTEMPTS {
        match opened.try_lock() {
            Ok(()) => return Ok(opened),
            Err(TryLockError::WouldBlock) => std::thread::park_timeout(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(ServiceError::Starting { path: path.into() })
}

fn remove_stale(path: &Path) -> Result<(), ServiceError> {
    let failed = |error: io::Error| refused(&path.display().to_string(), &error);
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(ServiceError::NotASocket { path: path.into() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket file of a server that is gone");
            fs::remove_file(path).map_err(failed)
        }
        Ok(_) => Err(ServiceError::InUse { address: path.display().to_string() }),
        Err(error) => Err(failed(error)),
    }
}

fn bind_tcp(address: &str) -> Result<Listener, ServiceError> {
    let failed = |error: io::Error| refused(address, &error);
    let socket = TcpListener::bind(address).map_err(failed)?;
    let address = socket.local_addr().map_err(failed)?.to_string();
    Ok(Listener::Tcp { socket, address })
}

fn refused(address: &str, error: &io::Error) -> ServiceError {
    let (address, cause) = (address.to_string(), error.to_string());
    match error.kind() {
        ErrorKind::AddrInUse => ServiceError::InUse { address },
        ErrorKind::PermissionDenied => ServiceError::Permission { address },
        ErrorKind::AddrNotAvailable => ServiceError::Address { address, cause },
        ErrorKind::InvalidInput => ServiceError::Address { address, cause },
        _ => ServiceError::Listen { address, cause },
    }
}
