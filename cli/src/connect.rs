//! Connections to running memory servers: from their names to a cluster, whatever kind it is. Work on a cluster is an
//! [`Action`]: written once, generic over the fabric.

use std::sync::Arc;

use farwood::ClusterName;
use farwood::runtime::control::wire::ConnectedNode;
use farwood::runtime::shm::Remains;
use farwood::runtime::{ClusterConfig, ConnectConfig, Fabric, OnCluster, ServerId};
use futures::executor::block_on;

use crate::error::CliError;
use crate::fabric::Servers;
use crate::note;
use crate::units::show_bytes;

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
    /// Seconds for which operations of it have kept memory from being used again.
    pub(crate) late_seconds: u64,
}

/// Lists the connections of the first server of a cluster, which knows all compute nodes and their ids; this process
/// is one of them. Memory servers of this process, which tests have, know none.
///
/// # Errors
/// If the memory server does not answer.
pub(crate) fn nodes(cluster: &impl Fabric) -> Result<Vec<Peer>, CliError> {
    let Some(control) = cluster.remote() else { return Ok(Vec::new()) };
    let nodes = block_on(control.nodes(ServerId(0))).map_err(CliError::failed)?;
    let peer = |ConnectedNode { id, name, seconds, silent, late_seconds }| Peer {
        id,
        name,
        seconds,
        silent,
        late_seconds,
    };
    Ok(nodes.into_iter().map(peer).collect())
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
    fn on<F: Fabric>(self, cluster: Arc<F>) -> Result<Self::Output, CliError>;
}

/// Connects to the memory servers and does the work there.
///
/// # Errors
/// If they cannot be connected to, or as the action has it.
pub(crate) fn with_cluster<A: Action>(servers: &Servers, action: A) -> Result<A::Output, CliError> {
    // It names this process in usage reports.
    let name = format!("farwood, {}", ConnectConfig::default().name);
    let connect = ConnectConfig { name, temporary_indexes: A::TEMPORARY, ..ConnectConfig::default() };
    let config = ClusterConfig { connect, ..servers.config() };
    servers.cluster.open_with(config, Work { action, name: &servers.cluster }).map_err(CliError::failed)?
}

/// An action on the cluster of that name, and what is to be said of memory servers that ended meanwhile.
struct Work<'n, A> {
    action: A,
    name: &'n ClusterName,
}

impl<A: Action> OnCluster for Work<'_, A> {
    type Output = Result<A::Output, CliError>;

    fn run<F: Fabric>(self, cluster: Arc<F>) -> Self::Output {
        let done = self.action.on(Arc::clone(&cluster));
        if let (ClusterName::Shm(names), Some(control)) = (self.name, cluster.remote()) {
            for server in control.lost() {
                if let Some(remains) = Remains::of(control, server) {
                    note(epitaph(server, &names[usize::from(server.0)], &remains));
                }
            }
        }
        done
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
