//! Work on a cluster that a name names: one call from `shm:demo` to code that is generic over the fabric. Of a fabric
//! it knows how its cluster is made, and nothing else.

use std::sync::Arc;

use thiserror::Error;

use super::Fabric;
use super::embedded::{Cluster, EmbeddedConfig};
use super::name::ClusterName;
use super::shm::{ShmCluster, ShmError};
#[cfg(feature = "verbs")]
use super::verbs::{VerbsCluster, VerbsConfig, VerbsError};
use crate::control::ConnectConfig;
use crate::memory::ClusterError;

/// Work to be done on a cluster, whatever its fabric ([`ClusterName::open`]). A closure cannot be generic, so the work
/// is a type: its fields are what a closure would capture.
pub trait OnCluster {
    /// Result of the work.
    type Output;

    /// Does the work on that cluster.
    ///
    /// ```
    /// # use farwood_runtime::{Cluster, EmbeddedConfig, Fabric, OnCluster};
    /// # use std::sync::Arc;
    /// struct NewNode;
    ///
    /// impl OnCluster for NewNode {
    ///     type Output = u16;
    ///
    ///     fn run<F: Fabric>(self, cluster: Arc<F>) -> u16 {
    ///         cluster.allocate_node_id().unwrap()
    ///     }
    /// }
    ///
    /// let cluster = Cluster::embedded(EmbeddedConfig::small()).unwrap();
    /// assert_ne!(NewNode.run(cluster.clone()), NewNode.run(cluster));
    /// ```
    fn run<F: Fabric>(self, cluster: Arc<F>) -> Self::Output;
}

/// Configuration of clusters, of which the part for the fabric that a name names counts.
#[derive(Clone, Debug, Default)]
pub struct ClusterConfig {
    /// The memory servers of an embedded cluster.
    pub embedded: EmbeddedConfig,
    /// Connections to memory servers of other processes.
    pub connect: ConnectConfig,
    /// This side of the fabric verbs.
    #[cfg(feature = "verbs")]
    pub verbs: VerbsConfig,
}

/// Failures of opening a cluster by its name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterOpenError {
    /// This process has no room for the memory servers.
    #[error(transparent)]
    Embedded(#[from] ClusterError),
    /// The memory servers on this host cannot be had.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The memory servers behind NICs cannot be had.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The name is of a fabric that was left out when the program was built.
    #[error("{0}: this program was built without the fabric verbs: build it with the cargo feature verbs")]
    WithoutVerbs(ClusterName),
}

impl ClusterName {
    /// Makes the cluster, or connects to its memory servers, and does `work` on it. Blocks as long as that takes. All
    /// is as the command line has it by default.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use farwood_runtime::{ClusterName, Fabric, OnCluster};
    /// struct CountServers;
    ///
    /// impl OnCluster for CountServers {
    ///     type Output = usize;
    ///
    ///     fn run<F: Fabric>(self, cluster: Arc<F>) -> usize {
    ///         // Here: `ComputeNode::new(cluster, NodeConfig::default())`.
    ///         cluster.control().servers().len()
    ///     }
    /// }
    ///
    /// let name: ClusterName = "embedded".parse()?; // `shm:demo` or `verbs:10.0.0.1:7077`, if one of these runs
    /// assert_eq!(name.open(CountServers)?, 1);
    /// assert!("shm:nothing-of-that-name".parse::<ClusterName>()?.open(CountServers).is_err());
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such cluster, or it cannot be connected to.
    pub fn open<T: OnCluster>(&self, work: T) -> Result<T::Output, ClusterOpenError> {
        self.open_with(ClusterConfig::default(), work)
    }

    /// Does `work` on the cluster, as [`ClusterName::open`] does, with a configuration.
    ///
    /// ```
    /// # use farwood_runtime::{ClusterConfig, ClusterName, EmbeddedConfig, Fabric, OnCluster};
    /// # use std::sync::Arc;
    /// # struct CountServers;
    /// # impl OnCluster for CountServers {
    /// #     type Output = usize;
    /// #     fn run<F: Fabric>(self, cluster: Arc<F>) -> usize {
    /// #         cluster.control().servers().len()
    /// #     }
    /// # }
    /// let embedded = EmbeddedConfig { servers: 3, ..EmbeddedConfig::small() };
    /// let config = ClusterConfig { embedded, ..Default::default() };
    /// assert_eq!(ClusterName::Embedded.open_with(config, CountServers)?, 3);
    /// # Ok::<_, farwood_runtime::ClusterOpenError>(())
    /// ```
    ///
    /// # Errors
    /// See [`ClusterName::open`].
    pub fn open_with<T: OnCluster>(
        &self,
        config: ClusterConfig,
        work: T,
    ) -> Result<T::Output, ClusterOpenError> {
        Ok(match self {
            ClusterName::Embedded => work.run(Cluster::embedded(config.embedded)?),
            ClusterName::Shm(names) => work.run(ShmCluster::connect_with(names, config.connect)?),
            #[cfg(feature = "verbs")]
            ClusterName::Verbs(addresses) => {
                work.run(VerbsCluster::connect_with(addresses, &config.verbs, config.connect)?)
            }
            #[cfg(not(feature = "verbs"))]
            ClusterName::Verbs(_) => return Err(ClusterOpenError::WithoutVerbs(self.clone())),
        })
    }
}
