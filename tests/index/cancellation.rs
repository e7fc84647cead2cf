//! Operations that are dropped where it takes a particular cluster to see what stays behind. What every dropped
//! operation of every index must keep is in `kit/conformance/cancelled.rs`.

use std::sync::Arc;

use farwood::{NodeContext, RangeIndex};
use futures::executor::block_on;

use crate::kit;
use crate::kit::cancel::{Drops, after_polls};
use crate::kit::kind::switched;
use crate::kit::{IndexKind, IndexSpec, Parties, Shape, with_parties_on};

/// Yields the index that users get, where a radix tree writes nodes that nothing leads to yet in a chain of their own.
fn unfused(kind: IndexKind) -> IndexSpec {
    let spec = Shape::TINY.usual(kind);
    if kind.trial().is_radix && spec.technique("fused").is_some() {
        switched(spec, "fused", false)
    } else {
        spec
    }
}

/// First writes that are dropped give the nodes back that they would have planted.
#[test]
fn an_empty_index_does_not_leak_nodes() {
    for &kind in IndexKind::ALL {
        let cluster = farwood::Cluster::embedded(farwood::EmbeddedConfig {
            bytes_per_server: 160 << 10,
            chunk_bytes: 8 << 10,
            locks_per_server: 64,
            ..Default::default()
        })
        .unwrap();
        with_parties_on(&cluster, Parties::Shards(1), unfused(kind), |cluster| async move {
            // Polls: the root word's READ, the new node's WRITE; then comes the root word's CAS.
            for i in 0..3000 {
                let drops = if i % 2 == 0 { Drops::AtOnce } else { Drops::WhenWoken };
                let put = after_polls(cluster.index.put(b"k", b"v"), 2, drops).await;
                assert!(put.is_none(), "the memory is all gone: {put:?}");
            }
            assert!(cluster.index.get(b"k").await.unwrap().is_none());
            cluster.index.put(b"k", b"v").await.unwrap();
            cluster.rest().await;
        });
    }
}

/// Creating and opening are dropped like everything else.
#[test]
fn opening_can_be_given_up() {
    for &kind in IndexKind::ALL {
        let cluster = kit::cluster();
        let node: Arc<dyn NodeContext> = kit::node(&cluster, 1);
        let recipe = Shape::TINY.usual(kind);
        assert!(block_on(after_polls(recipe.create(&node, "t"), 0, Drops::AtOnce)).is_none());
        block_on(recipe.create(&node, "t")).unwrap();
    }
}
