//! Many clients that begin at the same moment with an empty index of the smallest nodes: what its first node is, and
//! how it grows from there, is raced for again and again.

use farwood::sherman::{Geometry, NodeSize};
use farwood::{Nodes, RangeIndex};

use crate::kit;
use crate::kit::cluster::Model;
use crate::kit::{IndexKind, IndexSpec, Mixes, Parties, Shape, TestCluster, key, with_parties};

const LEAST: Shape = Shape { nodes: Nodes::Least, ..Shape::TINY };

#[test]
fn one_root_is_planted_however_many_try() {
    for &kind in IndexKind::ALL {
        for parties in Parties::BOTH {
            for _ in 0..5 {
                let recipe = LEAST.usual(kind);
                with_parties(parties, recipe, move |cluster| async move {
                    cluster.meet().await;
                    cluster.clients(100, |c| plant(cluster.clone(), c)).await;
                    cluster.rest().await;
                    let expected = (0..200).map(|n| (key(n).to_vec(), b"v".to_vec())).collect();
                    holds(&cluster, recipe, &expected).await;
                    cluster.rest().await;
                });
            }
        }
    }
}

async fn plant(cluster: TestCluster, client: usize) {
    let (index, n) = (&cluster.index, (2 * client + cluster.place) as u64);
    match client % 4 {
        0 => index.put(&key(n), b"v").await.unwrap(),
        1 => assert!(index.insert(&key(n), b"v").await.unwrap()),
        2 => {
            assert!(!index.update(&key(n), b"x").await.unwrap());
            index.put(&key(n), b"v").await.unwrap();
        }
        _ => {
            assert!(!index.remove(&key(n)).await.unwrap());
            assert!(index.get(&key(n)).await.unwrap().is_none());
            assert!(index.insert(&key(n), b"v").await.unwrap());
        }
    }
}

/// Orders of keys, by the edge of the tree that they grow.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// All clients at the right edge.
    Ascending,
    /// All clients at the left edge.
    Descending,
    /// Everywhere.
    Scattered,
}

impl Order {
    fn number(self, n: u64) -> u64 {
        match self {
            Order::Ascending => n,
            Order::Descending => u64::MAX - n,
            // Of 16 first bytes: with all 256, Dolphin's leaf of each byte would have room for its keys.
            Order::Scattered => kit::scatter(n) >> 4,
        }
    }
}

const CLIENTS: u64 = 60;
const EACH: u64 = 8;

#[test]
fn indexes_of_the_least_nodes_grow_high() {
    for &kind in IndexKind::ALL {
        for parties in Parties::BOTH {
            for order in [Order::Ascending, Order::Descending, Order::Scattered] {
                for recipe in recipes(kind) {
                    with_parties(parties, recipe, move |cluster| async move {
                        let expected = grow(&cluster, order).await;
                        holds(&cluster, recipe, &expected).await;
                        let height = cluster.index.survey().await.unwrap().height;
                        assert!(height >= kind.trial().height_min, "{kind} {order:?}: {height}");
                        cluster.rest().await;
                    });
                }
            }
        }
    }
}

/// Yields the least nodes that the kind has, and of Sherman also others that split in other ways.
fn recipes(kind: IndexKind) -> Vec<IndexSpec> {
    let mut recipes: Vec<IndexSpec> = Vec::new();
    for mix in kind.extremes() {
        let least = LEAST.of(mix);
        recipes.push(least);
        if let IndexSpec::Sherman { geometry, options } = least {
            let of = |leaf, inner| Geometry { size: NodeSize::Slots { leaf, inner }, ..geometry };
            recipes.extend(
                [(3, 3), (4, 4)]
                    .map(|(leaf, inner)| IndexSpec::Sherman { geometry: of(leaf, inner), options }),
            );
        }
    }
    recipes
}

/// Asserts the contents by the index's own check, and of Sherman also by a walk that is not the index's.
async fn holds(cluster: &TestCluster, recipe: IndexSpec, expected: &Model) {
    cluster.holds(expected).await;
    if let IndexSpec::Sherman { geometry, .. } = recipe {
        kit::tree::holds_exactly(&cluster.shard, &cluster.index, geometry, expected).await;
    }
}

async fn grow(cluster: &TestCluster, order: Order) -> Model {
    cluster.meet().await;
    cluster
        .clients(CLIENTS as usize, |c| {
            let (index, me) = (cluster.index.clone(), 2 * c as u64 + cluster.place as u64);
            async move {
                for n in (0..EACH).map(|i| order.number(i * 2 * CLIENTS + me)) {
                    assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                }
            }
        })
        .await;
    cluster.rest().await;
    let all = (0..2 * CLIENTS * EACH).map(|n| order.number(n));
    all.map(|n| (key(n).to_vec(), key(!n).to_vec())).collect()
}
