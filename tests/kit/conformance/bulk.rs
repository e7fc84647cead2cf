//! Bulk loads: input that cannot be loaded, loads that are dropped on their way, and loads that race with writers.
//! Readers see all pairs or none.

use std::cell::Cell;
use std::rc::Rc;

use farwood::runtime::ClientPool;
use farwood::{IndexKind, LoadError, RangeIndex, ReadError, WriteError};

use super::{Fabric, on_index};
use crate::kit::cancel::{Drops, after_polls};
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::{all_pairs, key};

pub(crate) fn bulk_loads_that_cannot_be<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    on_index(fabric, Parties::ONE, Shape::TINY.of(kind.default_mix()), || {
        |cluster: TestCluster<V>| async move {
            let index = &cluster.index;
            let empty = index.survey().await.unwrap();
            assert_eq!((empty.keys, empty.leaves), (0, 0));
            let pairs = |numbers: &[u64]| numbers.iter().map(|n| (key(*n), key(*n))).collect::<Vec<_>>();
            let unsorted = index.bulk_load(pairs(&[1, 2, 3, 9, 4, 10]), 1.0).await;
            assert_eq!(unsorted, Err(LoadError::Unsorted { position: 4 }));
            let twice = index.bulk_load(pairs(&[1, 1]), 1.0).await;
            assert_eq!(twice, Err(LoadError::Unsorted { position: 1 }));
            for fill in [0.0, -1.0, 1.001, f64::NAN, f64::INFINITY] {
                let error = index.bulk_load(pairs(&[1]), fill).await.unwrap_err();
                assert!(matches!(error, LoadError::Fill { .. }), "{error}");
            }
            let long: Vec<([u8; 9], [u8; 1])> = vec![([1; 9], [1])];
            let too_long = ReadError::KeyTooLong { len: 9, max: 8 };
            assert_eq!(index.bulk_load(long, 1.0).await, Err(too_long.into()));
            let mut late = (0..1000).map(|n| (key(n).to_vec(), key(n).to_vec())).collect::<Vec<_>>();
            late.push((key(1000).to_vec(), vec![0; 9]));
            let too_long = WriteError::ValueTooLong { len: 9, max: 8 };
            assert_eq!(index.bulk_load(late, 1.0).await, Err(too_long.into()));
            // Nothing of all that is to be seen.
            assert_eq!(index.survey().await.unwrap(), empty);
            assert!(index.get(&key(1)).await.unwrap().is_none());
            cluster.holds(&Model::new()).await;
            assert_eq!(index.bulk_load(pairs(&[]), 1.0).await, Ok(0));
            assert_eq!(index.bulk_load(pairs(&[5]), 1.0).await, Ok(1));
            assert_eq!(index.bulk_load(pairs(&[6]), 1.0).await, Err(LoadError::NotEmpty));
            assert!(index.remove(&key(5)).await.unwrap());
            let again = index.bulk_load(pairs(&[6]), 1.0).await;
            assert_eq!(again, Err(LoadError::NotEmpty), "it was written to once");
        }
    });
}

const KEYS: u64 = 60;

/// Drops bulk loads: readers see all or nothing while they run, and the index is usable afterwards.
pub(crate) fn bulk_loads_that_are_dropped<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let step = 100usize.div_ceil(fabric.size().percent);
    for mix in kind.extremes() {
        for polls in (0..60).step_by(step) {
            for drops in [Drops::AtOnce, Drops::WhenWoken] {
                on_index(fabric, Parties::ONE, Shape::TINY.of(mix), || {
                    move |cluster: TestCluster<V>| load_and_drop(cluster, polls, drops)
                });
            }
        }
    }
}

async fn load_and_drop<V: ClientPool>(cluster: TestCluster<V>, polls: usize, drops: Drops) {
    let running = Rc::new(Cell::new(true));
    let load = {
        let (index, running) = (cluster.index.clone(), Rc::clone(&running));
        cluster.shard.spawn(async move {
            let pairs = (0..KEYS).map(|n| (key(n), key(!n)));
            let done = after_polls(index.bulk_load(pairs, 1.0), polls, drops).await;
            running.set(false);
            done.map(Result::unwrap).is_some()
        })
    };
    cluster
        .clients(3, |c| {
            let (index, running) = (cluster.index.clone(), Rc::clone(&running));
            async move {
                let mut seen = false;
                while running.get() {
                    for n in (c as u64..KEYS).step_by(7) {
                        let found = index.get(&key(n)).await.unwrap().is_some();
                        assert!(found || !seen, "a pair of the load is there and another is not");
                        seen |= found;
                    }
                }
            }
        })
        .await;
    let done = load.await;
    assert!(polls > 0 || !done);
    cluster.rest().await;
    let mut expected: Model = all_pairs(&cluster.index).await.into_iter().collect();
    let whole = expected.len() as u64 == KEYS;
    assert!(whole || (expected.is_empty() && !done), "{} pairs", expected.len());
    for n in 0..KEYS {
        let found = cluster.index.get(&key(n)).await.unwrap();
        assert_eq!(found.as_deref(), expected.get(&key(n)[..]).map(Vec::as_slice), "key {n}");
    }
    for n in (0..2 * KEYS).step_by(2) {
        cluster.index.put(&key(n), b"later").await.unwrap();
        expected.insert(key(n).to_vec(), b"later".to_vec());
    }
    cluster.rest().await;
    cluster.holds(&expected).await;
}

/// A bulk load that loses to a writer leaves nothing that others could find; one that wins hides nothing.
pub(crate) fn bulk_loads_that_race<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    for mix in kind.extremes() {
        on_index(fabric, Parties::ONE, Shape::TINY.of(mix), || {
            |cluster: TestCluster<V>| async move {
                let index = cluster.index.clone();
                let pairs = (0..500).map(|n| (key(2 * n), key(n)));
                let load = cluster.shard.spawn(async move { index.bulk_load(pairs, 1.0).await });
                let index = cluster.index.clone();
                let writer = cluster.shard.spawn(async move {
                    for n in 0..100 {
                        assert!(index.insert(&key(2 * n + 1), b"").await.unwrap());
                        assert!(index.get(&key(2 * n + 1)).await.unwrap().is_some());
                    }
                });
                writer.await;
                let mut expected: Model = (0..100).map(|n| (key(2 * n + 1).to_vec(), Vec::new())).collect();
                match load.await {
                    Ok(count) => {
                        assert_eq!(count, 500);
                        expected.extend((0..500).map(|n| (key(2 * n).to_vec(), key(n).to_vec())));
                    }
                    Err(error) => assert_eq!(error, LoadError::NotEmpty),
                }
                cluster.rest().await;
                cluster.holds(&expected).await;
            }
        });
    }
}
