//! Kit of the scenarios: tiny clusters, an index of any kind on some shards or compute nodes, and what has to be
//! true when nothing runs any more.
#![allow(clippy::allow_attributes, dead_code, unused_imports, reason = "every scenario uses a part of it")]

pub(crate) mod cancel;
pub(crate) mod cluster;
pub(crate) mod damaged_tree;
pub(crate) mod deaths;
pub(crate) mod kind;
pub(crate) mod nodes;
pub(crate) mod recorder;
pub(crate) mod shard;
pub(crate) mod simulated;
pub(crate) mod tree;

use std::future::Future;
use std::sync::Arc;

use farwood::sherman::{Geometry, NodeSize, Options};
use farwood::{Cluster, ComputeNode, EmbeddedConfig, NodeConfig, Sherman, ShermanIndex};
use futures::executor::block_on;

pub(crate) use self::cluster::{Parties, TestCluster, all_pairs, at_rest, lock_words_set};
use self::cluster::{Seat, as_main, at_index};
pub(crate) use self::kind::{Mixes, Shape};
pub(crate) use self::nodes::{on_node, run_nodes};
pub(crate) use self::shard::TestShard;
pub(crate) use farwood::{IndexKind, IndexSpec};

/// Sherman nodes of four slots, so that splits and moved nodes happen all the time.
pub(crate) const TINY: Geometry =
    Geometry { max_key: 8, max_value: 8, size: NodeSize::Slots { leaf: 4, inner: 4 } };

/// The name of the tree in its cluster's catalog.
pub(crate) const NAME: &str = "test";

/// Yields two servers with chunks small enough that both are used.
pub(crate) fn cluster() -> Arc<Cluster> {
    cluster_of(256 << 20)
}

pub(crate) fn cluster_of(bytes_per_server: u64) -> Arc<Cluster> {
    nodes::use_small_pages();
    Cluster::embedded(EmbeddedConfig {
        servers: 2,
        bytes_per_server,
        chunk_bytes: 64 << 10,
        locks_per_server: 1024,
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

pub(crate) fn node(cluster: &Arc<Cluster>, shards: usize) -> Arc<ComputeNode> {
    ComputeNode::new(Arc::clone(cluster), NodeConfig { shards, ..NodeConfig::default() }).unwrap()
}

/// Runs `main` on every shard of a fresh node with a fresh Sherman tree.
pub(crate) fn with_tree<F, R, T>(shards: usize, geometry: Geometry, options: Options, main: F) -> Vec<T>
where
    F: Fn(TestShard, ShermanIndex<TestShard>) -> R + Send + Sync + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let node = node(&cluster(), shards);
    let tree = block_on(Sherman::create(&node, NAME, geometry, options)).unwrap();
    let main = as_main(move |Seat { shard, .. }: Seat<TestShard>| {
        let index = tree.attach(shard.clone());
        main(shard, index)
    });
    run_nodes(vec![node], &on_node(&main))
}

/// Runs `main` on every shard, on a fresh index of a fresh cluster; results in the order of places.
pub(crate) fn with_parties<F, R, T>(parties: Parties, recipe: IndexSpec, main: F) -> Vec<T>
where
    F: Fn(TestCluster) -> R + Send + Sync + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    with_parties_on(&cluster(), parties, recipe, main)
}

/// Runs `main` on every shard, on a fresh index of a given cluster.
pub(crate) fn with_parties_on<F, R, T>(
    cluster: &Arc<Cluster>,
    parties: Parties,
    recipe: IndexSpec,
    main: F,
) -> Vec<T>
where
    F: Fn(TestCluster) -> R + Send + Sync + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    with_parties_in(cluster, NodeConfig::default(), parties, recipe, main)
}

/// Runs `main` on every shard, with compute nodes of a given configuration (but for the number of their shards).
pub(crate) fn with_parties_in<F, R, T>(
    cluster: &Arc<Cluster>,
    config: NodeConfig,
    parties: Parties,
    recipe: IndexSpec,
    main: F,
) -> Vec<T>
where
    F: Fn(TestCluster) -> R + Send + Sync + 'static,
    R: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let config = NodeConfig { shards: parties.shards(), ..config };
    let nodes = (0..parties.nodes()).map(|_| ComputeNode::new(Arc::clone(cluster), config.clone()).unwrap());
    run_nodes(nodes.collect(), &on_node(&at_index(parties, recipe, as_main(main))))
}

/// Yields an 8-byte key that keeps the order of `n`.
pub(crate) fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Yields the number that [`key`] made a key of (or a value).
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Spreads consecutive numbers over all 64-bit numbers, each onto another one.
pub(crate) fn scatter(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
