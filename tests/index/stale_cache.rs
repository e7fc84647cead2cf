//! A compute node whose cache is from long ago: other nodes have split what it knows many times over since. What it
//! finds out costs it a way down from the root, not a walk along all the leaves that are new.

use farwood::{OpKind, RangeIndex};
use futures::TryStreamExt;

use crate::kit::{IndexKind, Parties, Shape, TestCluster, key, with_parties};

const OLD: u64 = 50;
const ALL: u64 = 5000;

#[test]
fn a_far_outdated_cache_costs_a_descent() {
    for &kind in IndexKind::ALL {
        for op in OpKind::ALL {
            with_parties(Parties::Nodes(2), Shape::TINY.usual(kind), move |cluster| async move {
                if cluster.place == 0 {
                    fill(&cluster, 0, OLD).await;
                }
                cluster.meet().await;
                if cluster.place == 1 {
                    for n in 0..OLD {
                        assert!(cluster.index.get(&key(n)).await.unwrap().is_some());
                    }
                }
                cluster.meet().await;
                if cluster.place == 0 {
                    fill(&cluster, OLD, ALL).await;
                }
                cluster.meet().await;
                if cluster.place == 1 {
                    find_out(&cluster.index, kind, op).await;
                }
                cluster.rest().await;
            });
        }
    }
}

async fn fill(cluster: &TestCluster, from: u64, to: u64) {
    for n in from..to {
        cluster.index.put(&key(n), &key(n)).await.unwrap();
    }
}

/// Does `op` to the last key, and then a get to its neighbour.
async fn find_out(index: &impl RangeIndex, kind: IndexKind, op: OpKind) {
    let before = index.stats();
    let last = key(ALL - 1);
    match op {
        OpKind::Get => assert_eq!(index.get(&last).await.unwrap().as_deref(), Some(&last[..])),
        OpKind::Put => index.put(&last, b"").await.unwrap(),
        OpKind::Insert => assert!(!index.insert(&last, b"").await.unwrap()),
        OpKind::Update => assert!(index.update(&last, b"").await.unwrap()),
        OpKind::Remove => assert!(index.remove(&last).await.unwrap()),
        OpKind::Scan => {
            let pairs: Vec<_> = index.scan(&last[..].., None).try_collect().await.unwrap();
            assert_eq!(pairs.len(), 1);
        }
    }
    let mut stats = index.stats();
    stats -= &before;
    let round_trips = stats.kind(op).round_trips;
    let height = u64::from(index.survey().await.unwrap().height);
    // A step or two to where the key was, the root, and on the way down a step aside here and there.
    assert!(round_trips <= 3 * height + 6, "{}: {round_trips}, height {height}", op.name());
    // And the next one knows the way.
    let before = index.stats();
    assert!(index.get(&key(ALL - 2)).await.unwrap().is_some());
    let mut stats = index.stats();
    stats -= &before;
    let round_trips = stats.kind(OpKind::Get).round_trips;
    // A radix tree's neighbour may be below nodes of its own that no client here has met yet.
    let most = if kind.trial().is_radix { height + 2 } else { 2 };
    assert!(round_trips <= most, "a get after {}: {round_trips}, height {height}", op.name());
}
