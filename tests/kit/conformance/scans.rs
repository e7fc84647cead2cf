//! Scans while other clients split the leaves that are being scanned, change what is in them and take it away: cold
//! and warm caches, narrow and wide windows, from both shards of a node and from two nodes.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use farwood::runtime::ClientPool;
use farwood::{IndexKind, OpKind, RangeIndex};
use farwood_sim::history::{Op, Outcome};
use futures::StreamExt;
use futures::future::join_all;
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Fabric, on_index};
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::recorder::{Client, Recorder};
use crate::kit::{key, number};

/// Keys 0, GAP, 2 * GAP, .. are there from the beginning; those in between come while scans run.
const GAP: u64 = 12;
const SCANNERS: usize = 12;
const WRITERS: usize = 6;

/// Every stable key comes exactly once and in order, whatever comes between.
pub(crate) fn scans_among_splits<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let end = fabric.size().steps(80, 20) as u64 * GAP;
    let scans = fabric.size().steps(15, 4);
    for parties in Parties::BOTH {
        for mix in fabric.size().few(kind.scan_mixes()) {
            on_index(fabric, parties, Shape::TINY.of(mix), || {
                let recorder = Arc::new(Recorder::default());
                move |cluster: TestCluster<V>| split_and_scan(cluster, Arc::clone(&recorder), end, scans)
            });
        }
    }
}

async fn split_and_scan<V: ClientPool>(
    cluster: TestCluster<V>,
    recorder: Arc<Recorder>,
    end: u64,
    scans: usize,
) {
    if cluster.place == 0 {
        let first = Client::new(&cluster, &recorder, 0);
        for n in (0..end).step_by(GAP as usize) {
            first.point(Op::Put, &key(n)).await;
        }
    }
    cluster.meet().await;
    let writers = (0..WRITERS).map(|w| {
        let mut client = Client::new(&cluster, &recorder, 1 + w);
        let me = 2 * w + cluster.place;
        cluster.shard.spawn(async move {
            let own = (0..end).filter(|n| n % GAP != 0 && n % GAP == me as u64);
            let mut own: Vec<u64> = own.collect();
            while let Some(n) =
                (!own.is_empty()).then(|| own.swap_remove(client.rng.random_range(0..own.len())))
            {
                assert_eq!(client.point(Op::Insert, &key(n)).await, Outcome::Ok);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    cluster
        .clients(SCANNERS, |c| {
            let mut client = Client::new(&cluster, &recorder, 100 + c);
            async move {
                for _ in 0..scans {
                    scan_something(&mut client, end).await;
                }
            }
        })
        .await;
    join_all(writers).await;
    cluster.rest().await;
    let all = Client::new(&cluster, &recorder, 200).scan(Bound::Unbounded, Bound::Unbounded, None).await;
    assert!(all.into_iter().eq(0..end), "a key is missing");
    cluster.meet().await;
    if cluster.place == 0 {
        recorder.judge();
    }
}

async fn scan_something<V: ClientPool>(client: &mut Client<V>, end: u64) {
    let bound = |rng: &mut SmallRng| match rng.random_range(0..4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(rng.random_range(0..end)),
        _ => Bound::Included(rng.random_range(0..end)),
    };
    let (from, to) = (bound(&mut client.rng), bound(&mut client.rng));
    let limit = client.rng.random_bool(0.4).then(|| client.rng.random_range(0..100));
    let found = client.scan(from, to, limit).await;
    if limit.is_none() {
        let inside = |n: &u64| (from, to).contains(n);
        let stable = (0..end).step_by(GAP as usize).filter(inside);
        let seen = found.into_iter().filter(|n| n % GAP == 0);
        assert!(seen.eq(stable), "stable keys are not each once and in order: {from:?} to {to:?}");
    }
}

/// Values change and keys come and go while they are scanned: what a scan returns was there at some moment.
pub(crate) fn scans_among_changes<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const KEYS: u64 = 60;
    let rounds = fabric.size().steps(20, 3);
    for parties in Parties::BOTH {
        for mix in fabric.size().few(kind.scan_mixes()) {
            on_index(fabric, parties, Shape::TINY.of(mix), || {
                let recorder = Arc::new(Recorder::default());
                move |cluster: TestCluster<V>| {
                    let recorder = Arc::clone(&recorder);
                    async move {
                        cluster.meet().await;
                        let changing = cluster.clients(6, |c| {
                            let mut client = Client::new(&cluster, &recorder, c);
                            async move {
                                for i in 0..rounds * 10 {
                                    let n = client.rng.random_range(0..KEYS);
                                    // Even keys come once and change, odd ones come and go.
                                    let op = match (n % 2, i % 3) {
                                        (1, 0) => Op::Remove,
                                        (1, 1) => Op::Insert,
                                        _ => Op::Put,
                                    };
                                    client.point(op, &key(n)).await;
                                }
                            }
                        });
                        let scanning = cluster.clients(4, |c| {
                            let mut client = Client::new(&cluster, &recorder, 100 + c);
                            async move {
                                for _ in 0..rounds {
                                    scan_anything(&mut client, KEYS).await;
                                }
                            }
                        });
                        futures::join!(changing, scanning);
                        cluster.meet().await;
                        if cluster.place == 0 {
                            recorder.judge();
                        }
                    }
                }
            });
        }
    }
}

async fn scan_anything<V: ClientPool>(client: &mut Client<V>, keys: u64) {
    let from = client.rng.random_range(0..keys);
    let limit = client.rng.random_bool(0.3).then(|| client.rng.random_range(0..30));
    client.scan(Bound::Included(from / 2), Bound::Unbounded, limit).await;
}

/// A node whose cache knows the last leaf only from before other nodes split it.
pub(crate) fn scans_beyond_what_the_cache_knows<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    for mix in fabric.size().few(kind.scan_mixes()) {
        on_index(fabric, Parties::Nodes(2), Shape::TINY.of(mix), || {
            |cluster: TestCluster<V>| async move {
                if cluster.place == 0 {
                    put_all(&cluster, 0..50).await;
                }
                cluster.meet().await;
                if cluster.place == 1 {
                    assert_eq!(keys_from(&cluster, 0, None).await.len(), 50);
                }
                cluster.meet().await;
                if cluster.place == 0 {
                    put_all(&cluster, 50..200).await;
                }
                cluster.meet().await;
                if cluster.place == 1 {
                    for from in [199, 200, 150, 51, 50, 49, 20] {
                        let before = cluster.index.stats();
                        assert!(keys_from(&cluster, from, None).await.into_iter().eq(from..200));
                        let three = keys_from(&cluster, from, Some(3)).await;
                        assert!(three.into_iter().eq(from..200.min(from + 3)));
                        let mut stats = cluster.index.stats();
                        stats -= &before;
                        // Once it read the same leaf for ever, until it lost its core in the middle of a READ.
                        let stats = stats.kind(OpKind::Scan);
                        assert!(stats.round_trips < 400, "from {from}: {stats:?}");
                    }
                }
            }
        });
    }
}

async fn put_all<V: ClientPool>(cluster: &TestCluster<V>, numbers: std::ops::Range<u64>) {
    for n in numbers {
        cluster.index.put(&key(n), b"").await.unwrap();
    }
}

async fn keys_from<V: ClientPool>(cluster: &TestCluster<V>, from: u64, limit: Option<usize>) -> Vec<u64> {
    let scan = cluster.index.scan(&key(from)[..].., limit);
    scan.map(|pair| number(&pair.unwrap().0)).collect().await
}

/// A prefix leads to the keys that begin with it, itself among them, and to no others.
pub(crate) fn scans_of_prefixes<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const KEYS: [&[u8]; 9] =
        [b"", b"a", b"ab", b"ab\x00", b"abc", b"ab\xff\xff", b"ac", b"\xff", b"\xff\xff"];
    on_index(fabric, Parties::ONE, Shape::TINY.of(kind.default_mix()), || {
        move |cluster: TestCluster<V>| async move {
            for key in KEYS {
                cluster.index.put(key, key).await.unwrap();
            }
            for prefix in KEYS.into_iter().chain([&b"b"[..], b"abcd", b"\xff\xff\xff"]) {
                let found: Vec<Vec<u8>> = cluster
                    .index
                    .scan_prefix(prefix, None)
                    .map(|pair| pair.unwrap().0.to_vec())
                    .collect()
                    .await;
                let expected = KEYS.into_iter().filter(|key| key.starts_with(prefix));
                assert!(expected.eq(found.iter().map(|key| &key[..])), "{prefix:?}: {found:?}");
                let first = cluster.index.scan_prefix(prefix, Some(1)).count().await;
                assert_eq!(first, found.len().min(1));
            }
        }
    });
}

/// A scan that is dropped leaves nothing behind; one that is not polled for long goes on where it was.
pub(crate) fn scans_that_stop_and_wait<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let later = fabric.size().steps(1000, 200) as u64;
    on_index(fabric, Parties::ONE, Shape::TINY.of(kind.default_mix()), || {
        move |cluster: TestCluster<V>| async move {
            let mut expected = Model::new();
            for n in 0..100 {
                cluster.index.put(&key(2 * n), &key(n)).await.unwrap();
                expected.insert(key(2 * n).to_vec(), key(n).to_vec());
            }
            let mut scan = cluster.index.scan(.., None);
            for n in 0..30 {
                assert_eq!(number(&scan.next().await.unwrap().unwrap().0), 2 * n);
            }
            for n in 0..later {
                cluster.index.put(&key(2 * n + 1), &key(n)).await.unwrap();
                expected.insert(key(2 * n + 1).to_vec(), key(n).to_vec());
            }
            let rest: Vec<u64> = scan.map(|pair| number(&pair.unwrap().0)).collect().await;
            let even = rest.iter().filter(|n| *n % 2 == 0).copied();
            assert!(rest.is_sorted() && even.eq((30..100).map(|n| 2 * n)));
            let mut dropped = cluster.index.scan(.., Some(1000));
            assert_eq!(number(&dropped.next().await.unwrap().unwrap().0), 0);
            drop(dropped);
            cluster.rest().await;
            cluster.holds(&expected).await;
        }
    });
}
