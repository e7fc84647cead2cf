//! A compute node for the time of one command, for the commands that work on an index.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use farwood::index::shell::Options;
use farwood::runtime::{Control, Fabric, Port, PortLease};
use farwood::{AnyIndex, ComputeNode, NodeConfig, NodeContext, Shard, Switches};
use futures::executor::block_on;
use futures::future::{Either, select};

use crate::error::CliError;
use crate::index;
use crate::interrupt::Interrupt;

/// The cache of a command that does a single operation: enough for the upper levels of any tree.
const CACHE_BYTES: usize = 16 << 20;

/// Opens the index `name` and runs `main` with it, on a compute node of one shard. An interrupt drops `main`, wherever
/// it waits, and `undone` is the error's text then.
///
/// # Errors
/// If the index cannot be opened or the shard not be started, as `main` has it, or if it was interrupted.
pub(crate) fn on_index<F, M, R, T>(
    cluster: Arc<F>,
    name: &str,
    interrupt: &Interrupt,
    undone: &'static str,
    main: M,
) -> Result<T, CliError>
where
    F: Fabric,
    M: Fn(AnyIndex<Shard<F::Device>>) -> R + Clone + Send + 'static,
    R: Future<Output = Result<T, CliError>> + 'static,
    T: Send + 'static,
{
    on_index_with(cluster, name, |_| {}, interrupt, undone, main)
}

/// Runs `main` with the index as [`on_index`] does, which is opened with the options that `change` makes.
///
/// # Errors
/// See [`on_index`].
pub(crate) fn on_index_with<F, M, R, T>(
    cluster: Arc<F>,
    name: &str,
    change: impl FnOnce(&mut Options<dyn Switches>),
    interrupt: &Interrupt,
    undone: &'static str,
    main: M,
) -> Result<T, CliError>
where
    F: Fabric,
    M: Fn(AnyIndex<Shard<F::Device>>) -> R + Clone + Send + 'static,
    R: Future<Output = Result<T, CliError>> + 'static,
    T: Send + 'static,
{
    let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() });
    let node = node.map_err(CliError::failed)?;
    let opened = index::open(&node, name, |options| {
        options.cache_bytes = CACHE_BYTES;
        change(options);
    });
    let index = block_on(opened)?;
    let interrupt = interrupt.clone();
    let results = node.run(move |shard| {
        let (main, interrupt) = (main(index.attach(shard.clone())), interrupt.clone());
        async move {
            match select(pin!(main), pin!(interrupt.asked(&shard))).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => Err(interrupt.error(undone)),
            }
        }
    });
    let results = results.map_err(CliError::failed)?;
    results.into_iter().next().expect("a node of one shard yields one result")
}

/// A host with the control services alone: no shard, no compute node.
pub(crate) struct ControlOnly(Arc<dyn Control>);

impl ControlOnly {
    /// Makes the host of that cluster's control services.
    pub(crate) fn at<F: Fabric>(cluster: &Arc<F>) -> Self {
        ControlOnly(cluster.control())
    }
}

impl NodeContext for ControlOnly {
    fn control(&self) -> Arc<dyn Control> {
        Arc::clone(&self.0)
    }

    fn allocate_port(&self) -> PortLease {
        // There is no shard to receive anything.
        PortLease::for_ever(Port(0))
    }

    fn seed(&self) -> u64 {
        0
    }
}

/// A small cluster of this process for the tests of commands, with an index on it.
#[cfg(test)]
pub(crate) mod kit {
    use std::sync::Arc;

    use farwood::{Cluster, EmbeddedConfig, IndexKind, Limits};
    use futures::executor::block_on;

    use super::ControlOnly;
    use crate::index;

    /// Makes two memory servers of 32 MiB with an empty index "t" of that kind, for keys and values of up to 16 bytes.
    /// Nothing that runs an index: all kinds would be compiled once more, so commands that do are tested as processes
    /// (`cli/tests/commands`).
    pub(crate) fn cluster(kind: IndexKind) -> Arc<Cluster> {
        let config = EmbeddedConfig {
            servers: 2,
            bytes_per_server: 32 << 20,
            chunk_bytes: 256 << 10,
            ..EmbeddedConfig::default()
        };
        let cluster = Cluster::embedded(config).unwrap();
        let limits = Limits { max_key: 16, max_value: 16 };
        let spec = index::spec(kind, limits, &[]).unwrap();
        let spec = spec.with_options(|options| options.cache_bytes = 0);
        block_on(index::create(&ControlOnly::at(&cluster), "t", &spec)).unwrap();
        cluster
    }
}
