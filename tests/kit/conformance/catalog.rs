//! Indexes by their names: created once, opened by all, dropped with all of their memory.

use farwood::IndexKind;
use farwood::runtime::ClientPool;
use farwood::runtime::control::ServerUsage;
use farwood::{CheckOptions, ControlError, NodeContext, OpenError, RangeIndex};

use super::{Fabric, on_index};
use crate::kit::cluster::{Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::{NAME, key};

const OTHER: &str = "other";

/// A name is taken once, by any node; what is created by one node is there for all.
pub(crate) fn names_in_the_catalog<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let recipe = Shape::TINY.of(kind.default_mix());
    // A handle is the whole node's, so every node has one shard here.
    for parties in [Parties::ONE, Parties::Nodes(3)] {
        on_index(fabric, parties, recipe, || {
            move |cluster: TestCluster<V>| async move {
                let host = &cluster.host;
                let exists = |name: &str| OpenError::Control(ControlError::Exists { name: name.into() });
                let missing = |name: &str| OpenError::Control(ControlError::NotFound { name: name.into() });
                assert_eq!(recipe.create(host, NAME).await.err(), Some(exists(NAME)));
                assert_eq!(recipe.open(host, OTHER).await.err(), Some(missing(OTHER)));
                let nothing = ControlError::NotFound { name: OTHER.into() };
                assert_eq!(host.control().drop_index(OTHER).await, Err(nothing));
                cluster.meet().await;
                // All at once: one creates it.
                if let Err(error) = recipe.create(host, OTHER).await {
                    assert_eq!(error, exists(OTHER));
                }
                cluster.meet().await;
                let entries = host.control().list().await.unwrap();
                let mut names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
                names.sort_unstable();
                assert_eq!(names, [OTHER, NAME]);
                let opened = recipe.open(host, OTHER).await.unwrap().attach(cluster.shard.clone());
                opened.put(&key(cluster.place as u64), &key(7)).await.unwrap();
                cluster.meet().await;
                for n in 0..cluster.parties() as u64 {
                    assert_eq!(opened.get(&key(n)).await.unwrap().as_deref(), Some(&key(7)[..]));
                    assert!(cluster.index.get(&key(n)).await.unwrap().is_none(), "the indexes are one");
                }
            }
        });
    }
}

/// Memory of a dropped index is free, and its next user finds nothing of it.
pub(crate) fn dropped_indexes<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let keys = fabric.size().steps(2000, 400) as u64;
    let recipe = Shape::TINY.of(kind.default_mix());
    on_index(fabric, Parties::ONE, recipe, || {
        move |cluster: TestCluster<V>| async move {
            cluster.index.put(&key(1), &key(2)).await.unwrap();
            let before = usage(&cluster).await;
            for round in 0..3 {
                let index = recipe.create(&cluster.host, OTHER).await.unwrap().attach(cluster.shard.clone());
                assert!(index.get(&key(round)).await.unwrap().is_none());
                assert_eq!(index.survey().await.unwrap().keys, 0, "what the last one left");
                for n in 0..keys {
                    index.put(&key(n), &key(n)).await.unwrap();
                }
                assert!(index.check(&CheckOptions::default()).await.unwrap().is_intact());
                cluster.rest().await;
                let during = usage(&cluster).await;
                let taken = bytes(&during) - bytes(&before);
                let nodes = index.survey().await.unwrap().used_bytes;
                assert!(taken >= nodes && nodes > 0, "{taken} bytes of chunks hold {nodes} bytes of nodes");
                let control = cluster.host.control();
                assert_eq!(control.drop_index(OTHER).await, Ok(taken), "the bytes that it gave back");
                assert_eq!(usage(&cluster).await, before);
                let gone = recipe.open(&cluster.host, OTHER).await.err();
                let missing = ControlError::NotFound { name: OTHER.into() };
                assert_eq!(gone, Some(OpenError::Control(missing)));
            }
            assert_eq!(cluster.index.get(&key(1)).await.unwrap().as_deref(), Some(&key(2)[..]));
        }
    });
}

/// Yields what the servers have handed out. Their epochs move on with time, so they are left out.
async fn usage<V: ClientPool>(cluster: &TestCluster<V>) -> Vec<ServerUsage> {
    let usage = cluster.host.control().usage().await.unwrap();
    usage.into_iter().map(|server| ServerUsage { epoch: 0, waits: false, ..server }).collect()
}

fn bytes(usage: &[ServerUsage]) -> u64 {
    usage.iter().map(|server| server.chunk_bytes).sum()
}
