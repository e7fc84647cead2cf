//! Failures to connect a compute node to its memory servers: each cause has its own remedy.

use std::path::PathBuf;

use thiserror::Error;

use crate::control::wire::OfferKind;
use crate::control::{ControlError, ServerAddress};

/// Failures of [`super::RemoteControl::connect`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages name the fields")]
pub enum ConnectError {
    /// The list of servers is empty or too long.
    #[error("a cluster has 1 to 256 memory servers, {servers} were given")]
    Servers { servers: usize },
    /// Two addresses lead to the same server.
    #[error("{first} and {second} are the same memory server: list it once")]
    SameServer { first: ServerAddress, second: ServerAddress },
    /// The socket file does not exist.
    #[error("there is no socket {path}: the memory server was never started there, or was stopped; start it")]
    NoSocket { path: PathBuf },
    /// The address exists, and no program listens there.
    #[error("no program listens at {address}: the memory server has died, or has another address; start it")]
    NotListening { address: ServerAddress },
    /// The system does not let this user connect.
    #[error(
        "no permission to connect to {address}: run as the memory server's user, or let it make the socket file \
             writable for others (umask), and see that its folder can be entered"
    )]
    Permission { address: ServerAddress },
    /// The host has no address.
    #[error("cannot resolve {address}: {cause}; give HOST:PORT with a name or number that this host knows")]
    Resolve { address: ServerAddress, cause: String },
    /// No answer in time.
    #[error(
        "{address} does not answer: see that the host is up, that its firewall lets the port through, and that a \
             Farwood memory server listens there"
    )]
    Timeout { address: ServerAddress },
    /// Another program answers.
    #[error("what listens at {address} is no Farwood memory server: check the address")]
    NotFarwood { address: ServerAddress },
    /// The other side closed the connection at once.
    #[error(
        "{address} closed the connection before it said what it is: it is being stopped, or it is no Farwood \
             memory server"
    )]
    Closed { address: ServerAddress },
    /// A memory server of another version.
    #[error(
        "the memory server at {address} speaks version {theirs} of the control protocol, this program version \
             {ours}: use the same version of the program on all hosts"
    )]
    Version { address: ServerAddress, theirs: u16, ours: u16 },
    /// The server's memory is reached in another way.
    #[error(
        "the memory server at {address} offers the fabric {offered}, and {asked} was asked for: connect with \
             {offered}, or start the server for {asked}"
    )]
    Fabric { address: ServerAddress, offered: OfferKind, asked: OfferKind },
    /// The server says something impossible about itself.
    #[error(
        "the memory server at {address} describes itself in an impossible way ({what}): use the same version of \
             the program on all hosts"
    )]
    Welcome { address: ServerAddress, what: &'static str },
    /// The server refuses.
    #[error("{address}: {cause}")]
    Refused { address: ServerAddress, cause: ControlError },
    /// The system refuses otherwise.
    #[error("cannot connect to {address}: {cause}")]
    Io { address: ServerAddress, cause: String },
    /// The system gives no thread.
    #[error("cannot start a thread: {cause}; raise the limit of processes (ulimit -u)")]
    Thread { cause: String },
}
