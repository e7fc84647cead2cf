//! A compute node whose cache is from long ago: other nodes have split what it knows many times over since.
//! What it finds out costs it a way down from the root, not a walk along all the leaves that are new.

mod kit;

use farwood::{OpKind, Options, RangeIndex};
use futures::TryStreamExt;
use kit::{Parties, TINY, key, with_parties};

const OLD: u64 = 50;
const ALL: u64 = 5000;

#[test]
fn a_far_outdated_cache_costs_a_descent() {
    for kind in OpKind::ALL {
        with_parties(Parties::Nodes(2), TINY, Options::default(), move |party| async move {
            let index = &party.index;
            let fill = async |from, to| {
                for n in from..to {
                    index.put(&key(n), &key(n)).await.unwrap();
                }
            };
            if party.place == 0 {
                fill(0, OLD).await;
            }
            party.meet().await;
            if party.place == 1 {
                for n in 0..OLD {
                    assert!(index.get(&key(n)).await.unwrap().is_some());
                }
            }
            party.meet().await;
            if party.place == 0 {
                fill(OLD, ALL).await;
            }
            party.meet().await;
            if party.place == 1 {
                let before = index.stats();
                let last = key(ALL - 1);
                match kind {
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
                let round_trips = stats.kind(kind).round_trips;
                let height = u64::from(index.survey().await.unwrap().height);
                // A step or two to the right, the root, and on the way down a step to the right here and
                // there.
                assert!(round_trips <= 3 * height + 6, "{}: {round_trips}, height {height}", kind.name());
                // And the next one knows the way.
                let before = index.stats();
                assert!(index.get(&key(ALL - 2)).await.unwrap().is_some());
                let mut stats = index.stats();
                stats -= &before;
                assert!(stats.kind(OpKind::Get).round_trips <= 2);
            }
            party.rest().await;
        });
    }
}
