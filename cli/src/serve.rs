//! Memory servers of this process: starts one, whatever the fabric, and asks it what it holds. The runtime knows what a
//! server serves and over what.

#[cfg(feature = "verbs")]
use std::net::SocketAddr;
use std::time::Duration;

use farwood::runtime::ServerParts;
use farwood::runtime::control::ServerUsage;
use farwood::runtime::control::wire::ConnectedNode;
#[cfg(feature = "verbs")]
use farwood::runtime::ibverbs::{VerbsServer, VerbsServerConfig};
use farwood::runtime::service::ServiceTimes;
use farwood::runtime::shm::{ShmName, ShmServer, ShmServerConfig};

use crate::error::CliError;
use crate::fabric::Place;
use crate::interrupt::Interrupt;

/// A memory server to be started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// Place at which the server is to be reached.
    pub(crate) place: Place,
    /// Bytes of its region, all included.
    pub(crate) memory_bytes: u64,
    /// Bytes of the chunks that it hands out.
    pub(crate) chunk_bytes: u64,
    /// True if its memory has to be in huge pages.
    pub(crate) huge_pages: bool,
    /// Time after which a silent compute node is given up.
    pub(crate) silence: Duration,
    /// True if its process is ended then.
    pub(crate) end_silent: bool,
}

/// A memory server that runs. It stops when it is dropped.
pub(crate) trait Serving {
    /// Returns the address that clients write behind `--fabric`.
    fn address(&self) -> String;

    /// Counts what would be lost if the server stopped now.
    fn holdings(&self) -> Holdings;
}

/// Contents of a memory server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Indexes of its catalog.
    pub(crate) indexes: u32,
    /// Bytes that it has handed out.
    pub(crate) used_bytes: u64,
    /// Compute nodes that are connected.
    pub(crate) compute_nodes: usize,
}

/// Starts a memory server, which an interrupt ends.
///
/// # Errors
/// If it cannot be reached there, or the memory cannot be had.
pub(crate) fn start(plan: &ServerPlan, interrupt: &Interrupt) -> Result<Box<dyn Serving>, CliError> {
    let (silence, ends_silent) = (plan.silence, plan.end_silent);
    let times = ServiceTimes { silence, ends_silent, ..ServiceTimes::default() };
    let parts = ServerParts { chunk_bytes: plan.chunk_bytes, ..ServerParts::default() };
    match &plan.place {
        Place::Shm(name) => {
            let name = ShmName::new(name).map_err(CliError::usage)?;
            let config = ShmServerConfig {
                parts,
                reserved_huge_pages: plan.huge_pages,
                stop: Some(interrupt.flag()),
                times,
                ..ShmServerConfig::new(name, plan.memory_bytes)
            };
            Ok(Box::new(ShmServer::start(&config).map_err(CliError::failed)?))
        }
        #[cfg(feature = "verbs")]
        Place::Verbs(listen, options) => {
            let config = VerbsServerConfig {
                parts,
                reserved_huge_pages: plan.huge_pages,
                verbs: options.config(),
                times,
                ..VerbsServerConfig::new(listen.to_string(), plan.memory_bytes)
            };
            Ok(Box::new(VerbsServer::start(&config).map_err(CliError::failed)?))
        }
        #[cfg(not(feature = "verbs"))]
        Place::Verbs(..) => Err(crate::fabric::without_verbs()),
    }
}

impl Serving for ShmServer {
    fn address(&self) -> String {
        self.name().to_string()
    }

    fn holdings(&self) -> Holdings {
        holdings(self.usage(), &self.nodes())
    }
}

#[cfg(feature = "verbs")]
impl Serving for VerbsServer {
    fn address(&self) -> String {
        let address = VerbsServer::address(self);
        // It listens on all addresses of this host: the client has to know which of them it can reach.
        match address.parse::<SocketAddr>() {
            Ok(all) if all.ip().is_unspecified() => format!("verbs:HOST:{}", all.port()),
            _ => format!("verbs:{address}"),
        }
    }

    fn holdings(&self) -> Holdings {
        holdings(self.usage(), &self.nodes())
    }
}

fn holdings(usage: ServerUsage, nodes: &[ConnectedNode]) -> Holdings {
    Holdings { indexes: usage.indexes, used_bytes: usage.chunk_bytes, compute_nodes: nodes.len() }
}
