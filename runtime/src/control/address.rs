//! The addresses at which a memory server's control service listens.

use std::fmt;
use std::path::PathBuf;

/// The address of a memory server's control service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerAddress {
    /// A socket file of this host.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Unix(path) => write!(f, "{}", path.display()),
            ServerAddress::Tcp(address) => f.write_str(address),
        }
    }
}
