//! Connections to running memory servers: from their names to a cluster, whatever kind it is. Work on a cluster is an
//! [`Action`]: written once, generic over the fabric, and chosen here. No other file of the command names a kind of
//! cluster that other processes serve.

use std::sync::Arc;

use farwood::runtime::control::wire::ConnectedNode;
#[cfg(feature = "verbs")]
use farwood::runtime::ibverbs::VerbsCluster;
use farwood::runtime::shm::{Remains, ShmCluster};
use farwood::runtime::{ConnectConfig, Fabric, RemoteControl, ServerId};
use futures::executor::block_on;

use crate::error::CliError;
use crate::fabric::Servers;
use crate::note;
use crate::units::show_bytes;

/// A cluster of memory servers that run already.
pub(crate) trait Connected: Fabric {
    /// Lists the connections to it, this one included.
    ///
    /// # Errors
    /// If a memory server does not answer.
    fn nodes(&self) -> Result<Vec<Peer>, CliError>;
}

/// A connection: a compute node, or a command that only asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its id, if it was given one.
    pub(crate) id: Option<u16>,
    /// Name that it gave itself.
    pub(crate) name: String,
    /// Seconds since it connected.
    pub(crate) seconds: u64,
    /// True if nothing is heard of it any more while its process still has the memory mapped.
    pub(crate) silent: bool,
}

impl Connected for ShmCluster {
    fn nodes(&self) -> Result<Vec<Peer>, CliError> {
        nodes(self.remote())
    }
}

#[cfg(feature = "verbs")]
impl Connected for VerbsCluster {
    fn nodes(&self) -> Result<Vec<Peer>, CliError> {
        nodes(self.remote().expect("the command connects by sockets"))
    }
}

/// Lists the connections of the first server of a list, which knows all compute nodes and their ids.
fn nodes(control: &RemoteControl) -> Result<Vec<Peer>, CliError> {
    let nodes = block_on(control.nodes(ServerId(0))).map_err(CliError::failed)?;
    let peer = |ConnectedNode { id, name, seconds, silent }| Peer { id, name, seconds, silent };
    Ok(nodes.into_iter().map(peer).collect())
}

/// Memory servers of this process, for tests: they know no connections.
#[cfg(test)]
impl Connected for farwood::Cluster {
    fn nodes(&self) -> Result<Vec<Peer>, CliError> {
        Ok(Vec::new())
    }
}

/// Work to be done on a cluster.
pub(crate) trait Action {
    /// Result of the work.
    type Output;
    /// True if the indexes that it creates are for itself: they go with this process, however it ends.
    const TEMPORARY: bool = false;

    /// Does the work on that cluster.
    ///
    /// # Errors
    /// Any failure, put for the person at the terminal.
    fn on<F: Connected>(self, cluster: Arc<F>) -> Result<Self::Output, CliError>;
}

/// Connects to the memory servers and does the work there.
///
/// # Errors
/// If they cannot be connected to, or as the action has it.
pub(crate) fn with_cluster<A: Action>(servers: &Servers, action: A) -> Result<A::Output, CliError> {
    match servers {
        Servers::Shm(names) => {
            let cluster = ShmCluster::connect_with(names, config::<A>()).map_err(CliError::failed)?;
            let done = action.on(Arc::clone(&cluster));
            for server in cluster.remote().lost() {
                if let Some(remains) = cluster.remains(server) {
                    note(epitaph(server, &names[usize::from(server.0)], &remains));
                }
            }
            done
        }
        #[cfg(feature = "verbs")]
        Servers::Verbs(addresses, options) => {
            let cluster = VerbsCluster::connect_with(addresses, &options.config(), config::<A>());
            action.on(cluster.map_err(CliError::failed)?)
        }
        #[cfg(not(feature = "verbs"))]
        Servers::Verbs(..) => Err(crate::fabric::without_verbs()),
    }
}

/// Explains that a memory server ended while the command ran.
fn epitaph(server: ServerId, name: &str, remains: &Remains) -> String {
    let ended = format!("memory server {} (shm:{name}) has ended: all that it held is lost", server.0);
    if remains.files.is_empty() {
        return ended;
    }
    let files: Vec<String> = remains.files.iter().map(|file| file.display().to_string()).collect();
    format!(
        "{ended}. It was killed and left {} behind: the next memory server of that name replaces it; without one, \
         rm {}",
        show_bytes(remains.bytes),
        files.join(" "),
    )
}

/// Names this process for usage reports, and says what becomes of its indexes.
fn config<A: Action>() -> ConnectConfig {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = format!("farwood, process {} on {}", std::process::id(), host.trim());
    ConnectConfig { name, temporary_indexes: A::TEMPORARY, ..ConnectConfig::default() }
}
