//! A thousand clients that insert into an empty index of tiny nodes at once. The large run is for a
//! release build: `cargo test --release --test index million_keys -- --ignored`.

use farwood::RangeIndex;

use crate::kit;
use crate::kit::{IndexKind, IndexSpec, Parties, Shape, key, with_parties_on};

/// Inserts the numbers below `keys`, by `clients` clients, in an order that has nothing to do with the
/// keys'.
fn insert_and_check(kind: IndexKind, parties: Parties, clients: u64, keys: u64, bytes_per_server: u64) {
    let cluster = kit::cluster_of(bytes_per_server);
    let recipe = Shape::TINY.usual(kind);
    with_parties_on(&cluster, parties, recipe, move |cluster| async move {
        let all = match parties {
            Parties::Shards(parties) | Parties::Nodes(parties) => parties as u64,
        };
        let here = clients / all;
        let (first, step) = (cluster.place as u64 * here, clients);
        cluster.meet().await;
        cluster
            .clients(here as usize, |c| {
                let (index, me) = (cluster.index.clone(), first + c as u64);
                async move {
                    for n in (me..keys).step_by(step as usize).map(kit::scatter) {
                        assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                    }
                }
            })
            .await;
        cluster.rest().await;
        // A client each for a part, so that reading overlaps as well.
        cluster
            .clients(here as usize, |c| {
                let (index, me) = (cluster.index.clone(), first + c as u64);
                async move {
                    for n in (me..keys).step_by(step as usize).map(kit::scatter) {
                        let value = index.get(&key(n)).await.unwrap();
                        assert_eq!(value.as_deref(), Some(&key(!n)[..]), "key {n}");
                    }
                }
            })
            .await;
        cluster.rest().await;
        if cluster.place == 0 {
            let numbers = (0..keys).map(kit::scatter);
            cluster.holds(&numbers.map(|n| (key(n).to_vec(), key(!n).to_vec())).collect()).await;
            let survey = cluster.index.survey().await.unwrap();
            assert!(survey.load_factor > kind.trial().load_factor_min, "{survey:?}");
            if let IndexSpec::Sherman { geometry, .. } = recipe {
                let found = kit::tree::read(&cluster.shard, kit::NAME, geometry).await;
                assert_eq!((found.pairs.len() as u64, found.orphans), (keys, 0));
            }
        }
        cluster.rest().await;
    });
}

#[test]
fn ten_thousand_keys() {
    for &kind in IndexKind::ALL {
        for parties in Parties::BOTH {
            insert_and_check(kind, parties, 1000, 10_000, 256 << 20);
        }
    }
}

#[test]
#[ignore = "an acceptance run for release builds"]
fn a_million_keys() {
    for &kind in IndexKind::ALL {
        for parties in [Parties::Shards(1), Parties::Shards(2), Parties::Nodes(2)] {
            insert_and_check(kind, parties, 1000, 1_000_000, 2 << 30);
        }
    }
}
