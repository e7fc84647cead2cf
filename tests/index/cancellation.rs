//! Operations that are dropped where it takes a particular cluster to see what stays behind. What every dropped
//! operation of every index must keep is in `kit/conformance/cancelled.rs`.

use std::sync::Arc;

use farwood::{Host, RangeIndex};
use futures::executor::block_on;

use crate::kit;
use crate::kit::cancel::{Drops, after_polls};
use crate::kit::{Kind, Parties, Shape, with_parties_on};

/// First writes that are dropped give the nodes back that they would have planted.
#[test]
fn an_empty_index_does_not_leak_nodes() {
    for kind in Kind::ALL {
        let cluster = farwood::Cluster::embedded(farwood::EmbeddedConfig {
            bytes_per_server: 160 << 10,
            chunk_bytes: 8 << 10,
            locks_per_server: 64,
            ..Default::default()
        })
        .unwrap();
        with_parties_on(&cluster, Parties::Shards(1), kind.unfused(Shape::TINY), |party| async move {
            // Polls: the root word's READ, the new node's WRITE; then comes the root word's CAS.
            for i in 0..3000 {
                let drops = if i % 2 == 0 { Drops::AtOnce } else { Drops::WhenWoken };
                let put = after_polls(party.index.put(b"k", b"v"), 2, drops).await;
                assert!(put.is_none(), "the memory is all gone: {put:?}");
            }
            assert!(party.index.get(b"k").await.unwrap().is_none());
            party.index.put(b"k", b"v").await.unwrap();
            party.rest().await;
        });
    }
}

/// Creating and opening are dropped like everything else.
#[test]
fn opening_can_be_given_up() {
    for kind in Kind::ALL {
        let cluster = kit::cluster();
        let node: Arc<dyn Host> = kit::node(&cluster, 1);
        let recipe = kind.usual(Shape::TINY);
        assert!(block_on(after_polls(recipe.create(&node, "t"), 0, Drops::AtOnce)).is_none());
        block_on(recipe.create(&node, "t")).unwrap();
    }
}
