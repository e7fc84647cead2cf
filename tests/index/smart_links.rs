//! Links of a radix tree's nodes after splits that were lost or dropped: once everything rests they name the parents
//! again. A link that names another node misleads no client, but as long as it does, one that looks for an absent key
//! there reads the parent once more.

use farwood::runtime::sim::SimConfig;
use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{OpKind, RangeIndex};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::kit::cancel::{Drops, after_polls};
use crate::kit::simulated::{ROUGH, calm, simulate_parties};
use crate::kit::{IndexSpec, Parties, TestCluster, all_pairs};

/// Nodes of six slots at least: none has to move.
const GEOMETRY: Geometry = Geometry { max_key: 40, max_value: 8, types: Types::Lines };
const CLIENTS: usize = 2;

fn recipe(fused: bool) -> IndexSpec {
    let techniques = Techniques { fused, ..Techniques::ALL };
    IndexSpec::Smart { geometry: GEOMETRY, options: Options { techniques, ..Options::default() } }
}

/// Yields the key 30 bytes behind `first`, or one that parts from it so many bytes behind.
fn long_key(first: u8, parts: Option<(usize, u8)>) -> Vec<u8> {
    let same = |count| [&[first][..], &vec![b'l'; count]].concat();
    parts.map_or_else(|| same(30), |(count, last)| [&same(count)[..], &[last]].concat())
}

/// Gets keys that leave the ways of all that are there, at every byte.
async fn absent_keys_cost_a_round_trip(cluster: &TestCluster) {
    let mut dear = Vec::new();
    for (key, _) in all_pairs(&cluster.index).await {
        for end in 1..=key.len() {
            let absent = [&key[..end], b"~"].concat();
            assert!(cluster.index.get(&absent).await.unwrap().is_none());
            let before = cluster.index.stats();
            assert!(cluster.index.get(&absent).await.unwrap().is_none());
            let mut stats = cluster.index.stats();
            stats -= &before;
            if stats.kind(OpKind::Get).round_trips != 1 {
                dear.push((absent, stats.kind(OpKind::Get).round_trips));
            }
        }
    }
    assert!(dear.is_empty(), "round trips of gets of absent keys: {dear:?}");
}

#[test]
fn splits_that_lose_leave_links_as_they_should_be() {
    for parties in [Parties::Shards(2), Parties::Nodes(2)] {
        for seed in 0..30 {
            println!("{parties:?}, seed {seed}");
            let config = SimConfig { seed, reordering: ROUGH, ..calm(parties) };
            simulate_parties(&config, parties, recipe(seed % 2 == 0), |cluster| async move {
                if cluster.place == 0 {
                    for first in 0..3 {
                        cluster.index.put(&long_key(first, None), b"").await.unwrap();
                    }
                }
                cluster.meet().await;
                cluster
                    .clients(CLIENTS, |c| {
                        let (index, me) = (cluster.index.clone(), (cluster.place * CLIENTS + c) as u8);
                        async move {
                            let partings = [30, 7, 19, 0, 12, 25];
                            let mut keys: Vec<_> =
                                (0..3).flat_map(|n| partings.map(|at| long_key(n, Some((at, me))))).collect();
                            keys.shuffle(&mut SmallRng::seed_from_u64(1));
                            for key in keys {
                                assert!(index.insert(&key, b"").await.unwrap());
                            }
                        }
                    })
                    .await;
                cluster.rest().await;
                if cluster.place == 0 {
                    absent_keys_cost_a_round_trip(&cluster).await;
                }
                cluster.rest().await;
            });
        }
    }
}

#[test]
fn splits_that_are_dropped_leave_links_as_they_should_be() {
    for fused in [true, false] {
        simulate_parties(&calm(Parties::ONE), Parties::ONE, recipe(fused), |cluster| async move {
            let index = &cluster.index;
            for (n, drops) in [Drops::AtOnce, Drops::WhenWoken].into_iter().enumerate() {
                for polls in 0..10 {
                    // Of a leaf, and of a node.
                    let first = (n * 10 + polls) as u8;
                    index.put(&long_key(first, None), b"").await.unwrap();
                    let leaf = long_key(first, Some((20, b'a')));
                    drop(after_polls(index.insert(&leaf, b""), polls, drops).await);
                    index.put(&leaf, b"").await.unwrap();
                    let node = long_key(first, Some((17, b'b')));
                    drop(after_polls(index.insert(&node, b""), polls, drops).await);
                }
            }
            cluster.rest().await;
            absent_keys_cost_a_round_trip(&cluster).await;
        });
    }
}
