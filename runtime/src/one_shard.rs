//! Work on one shard of a small embedded cluster, in one call: for examples, and for tests of what is built upon
//! [`Verbs`](crate::verbs::Verbs). It knows nothing of the work, and nothing of the runtime rests on it.

use std::error::Error;
use std::future::Future;
use std::sync::{Arc, Mutex};

use futures::future::LocalBoxFuture;
use futures::{FutureExt, TryFutureExt};

use crate::fabric::embedded::{Cluster, EmbeddedConfig};
use crate::mapped::MappedDevice;
use crate::node::{ComputeNode, NodeConfig};
use crate::shard::Shard;

/// Makes an embedded cluster of 4 MiB ([`EmbeddedConfig::small`]) and a compute node of one shard, and runs `work` on
/// it: all that an example or a test of one's own algorithm needs. Yields what `work` does; the cluster is gone then.
///
/// ```
/// use farwood_runtime::{IndexId, Meter, ServerId, Verbs, on_one_shard};
///
/// let read = on_one_shard(async |shard| {
///     let chunk = shard.control().chunk(ServerId(0), IndexId(1)).await?;
///     Ok(shard.read(&Meter::default(), chunk.start, 64).await?.into_buf().to_vec())
/// });
/// assert_eq!(read.unwrap(), [0; 64]);
/// let failed = on_one_shard(async |_shard| Err::<(), _>("no luck".into()));
/// assert_eq!(failed.unwrap_err().to_string(), "no luck");
/// ```
///
/// # Errors
/// The text of `work`'s error, which may stay on its thread; or if there can be no executor
/// ([`NodeError::Executor`](crate::NodeError::Executor)).
///
/// # Panics
/// As [`ComputeNode::run`] does.
pub fn on_one_shard<W, R, T>(work: W) -> Result<T, Failure>
where
    W: FnOnce(Shard<MappedDevice>) -> R + Send + 'static,
    R: Future<Output = Result<T, Box<dyn Error>>> + 'static,
    T: Send + 'static,
{
    run(Box::new(move |shard| work(shard).map_err(|error| error.to_string().into()).boxed_local()))
}

type Failure = Box<dyn Error + Send + Sync>;

/// Work of any type: what a node runs is then compiled once, and not for each of hundreds of examples.
type Work<T> = Box<dyn FnOnce(Shard<MappedDevice>) -> LocalBoxFuture<'static, Result<T, Failure>> + Send>;

fn run<T: Send + 'static>(work: Work<T>) -> Result<T, Failure> {
    let cluster = Cluster::embedded(EmbeddedConfig::small())?;
    let node = ComputeNode::new(cluster, NodeConfig { shards: 1, ..NodeConfig::default() })?;
    let work = Arc::new(Mutex::new(Some(work)));
    let mut results = node.try_run(move |shard| {
        let work = work.lock().expect("nothing panics while it holds this").take();
        work.expect("there is one shard")(shard)
    })?;
    Ok(results.remove(0))
}
