//! Many clients at once, on two shards of one compute node and on two compute nodes, with every switch of the index
//! off in turn: what every client sees must be explained by operations that took effect one at a time.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use farwood::runtime::ClientPool;
use farwood::{IndexKind, RangeIndex};
use farwood_sim::history::Op;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Fabric, in_every_setting, on_index};
use crate::kit::cancel::Drops;
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::recorder::{Client, Recorder};
use crate::kit::{key, number, scatter};

/// Neighbours belong to different clients, of both parties.
pub(crate) fn disjoint_inserts<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const EACH: u64 = 8;
    let clients = fabric.size().steps(110, 20) as u64;
    in_every_setting(fabric, kind, Shape::TINY, || {
        move |cluster: TestCluster<V>| async move {
            let all = 2 * clients * EACH;
            let first = cluster.place as u64 * clients;
            cluster.meet().await;
            cluster
                .clients(clients as usize, |c| {
                    let (index, c) = (cluster.index.clone(), first + c as u64);
                    async move {
                        for n in (0..EACH).map(|i| i * 2 * clients + c) {
                            assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                            assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(!n)[..]));
                        }
                    }
                })
                .await;
            cluster.rest().await;
            for n in 0..all {
                assert_eq!(
                    cluster.index.get(&key(n)).await.unwrap().as_deref(),
                    Some(&key(!n)[..]),
                    "key {n}"
                );
            }
            cluster.holds(&(0..all).map(|n| (key(n).to_vec(), key(!n).to_vec())).collect()).await;
        }
    });
}

pub(crate) fn of_many_inserts_one_succeeds<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const KEYS: u64 = 60;
    let clients = fabric.size().steps(40, 10);
    in_every_setting(fabric, kind, Shape::TINY, || {
        let wins = Arc::new(Mutex::new(BTreeMap::<u64, Vec<u64>>::new()));
        move |cluster: TestCluster<V>| {
            let wins = Arc::clone(&wins);
            async move {
                cluster.meet().await;
                cluster
                    .clients(clients, |c| {
                        let (index, wins) = (cluster.index.clone(), Arc::clone(&wins));
                        let me = (cluster.place * clients + c) as u64;
                        async move {
                            for i in 0..KEYS {
                                // Half of the clients meet at the same keys, the others come from all sides.
                                let n = if me.is_multiple_of(2) { i } else { (i * 7 + me) % KEYS };
                                if index.insert(&key(n), &key(me)).await.unwrap() {
                                    wins.lock().unwrap().entry(n).or_default().push(me);
                                }
                            }
                        }
                    })
                    .await;
                cluster.rest().await;
                let wins = wins.lock().unwrap().clone();
                let each_once = wins.values().all(|winners| winners.len() == 1);
                assert!(wins.len() as u64 == KEYS && each_once, "{wins:?}");
                let pair = |(n, winners): (&u64, &Vec<u64>)| (key(*n).to_vec(), key(winners[0]).to_vec());
                cluster.holds(&wins.iter().map(pair).collect()).await;
            }
        }
    });
}

/// Neighbours change in the same leaf, and none undoes what another did.
pub(crate) fn no_lost_increments<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const CLIENTS: usize = 16;
    let rounds = fabric.size().steps(15, 4) as u64;
    in_every_setting(fabric, kind, Shape::TINY, || {
        move |cluster: TestCluster<V>| async move {
            cluster.meet().await;
            cluster
                .clients(CLIENTS, |c| {
                    let index = cluster.index.clone();
                    let own = key((c * 2 + cluster.place) as u64);
                    async move {
                        index.put(&own, &key(0)).await.unwrap();
                        for i in 0..rounds {
                            let value = index.get(&own).await.unwrap().expect("no other client removes it");
                            let count = number(&value);
                            drop(value);
                            assert_eq!(count, i, "an increment was lost");
                            assert!(index.update(&own, &key(count + 1)).await.unwrap());
                        }
                    }
                })
                .await;
            cluster.rest().await;
            let all = 0..2 * CLIENTS as u64;
            cluster.holds(&all.map(|n| (key(n).to_vec(), key(rounds).to_vec())).collect()).await;
        }
    });
}

/// All clients do everything to the same few keys, and drop operations now and then.
pub(crate) fn shared_keys_are_linearizable<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const CLIENTS: usize = 12;
    let ops = fabric.size().steps(100, 20);
    in_every_setting(fabric, kind, Shape::TINY, || {
        let recorder = Arc::new(Recorder::default());
        move |cluster: TestCluster<V>| {
            let recorder = Arc::clone(&recorder);
            async move {
                cluster.meet().await;
                cluster
                    .clients(CLIENTS, |c| {
                        let mut client = Client::new(&cluster, &recorder, c);
                        async move {
                            for _ in 0..ops {
                                something_to_few_keys(&mut client).await;
                            }
                        }
                    })
                    .await;
                cluster.rest().await;
                // Whatever was given up has taken effect or never will: all see the same from now on.
                let last = Client::new(&cluster, &recorder, CLIENTS);
                for n in 0..KEYS {
                    last.point(Op::Get, &key(n << 32)).await;
                }
                last.scan(Bound::Unbounded, Bound::Unbounded, None).await;
                cluster.meet().await;
                if cluster.place == 0 {
                    recorder.judge();
                }
            }
        }
    });
}

const KEYS: u64 = 6;

async fn something_to_few_keys<V: ClientPool>(client: &mut Client<V>) {
    let rng = &mut client.rng;
    let n = rng.random_range(0..KEYS);
    let given_up = rng.random_bool(0.03);
    let drops = given_up.then(|| (rng.random_range(0..6), Drops::WhenWoken));
    let op = match rng.random_range(0..20) {
        0..9 => Op::Get,
        9..12 => Op::Put,
        12..14 => Op::Insert,
        14..16 => Op::Update,
        16 => Op::Remove,
        // New keys in between split the leaves of the shared ones.
        last => {
            let between = n << 32 | rng.random_range(1..100);
            let op = if last == 17 { Op::Remove } else { Op::Put };
            client.point(op, &key(between)).await;
            return;
        }
    };
    client.point_within(op, &key(n << 32), drops).await;
}

/// Keys that are never removed are always found, and values that only count upwards never go back.
pub(crate) fn stable_keys_are_always_found<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let rounds = fabric.size().steps(40, 6) as u64;
    in_every_setting(fabric, kind, Shape::TINY, || {
        move |cluster: TestCluster<V>| async move {
            // Multiples of 16 stay and count upwards; what lies between them comes and goes.
            if cluster.place == 0 {
                for n in 0..STABLE {
                    cluster.index.put(&key(16 * n), &key(0)).await.unwrap();
                }
            }
            cluster.meet().await;
            cluster
                .clients(READERS + WRITERS, |c| {
                    let cluster = cluster.clone();
                    async move {
                        match c.checked_sub(READERS) {
                            None => read_stable(cluster, c, 10 * rounds).await,
                            Some(writer) => come_and_go(cluster, 2 * writer, rounds).await,
                        }
                    }
                })
                .await;
            cluster.rest().await;
            let counted = 2 * WRITERS as u64;
            let last = |n| if n < counted { rounds } else { 0 };
            let expected: Model =
                (0..STABLE).map(|n| (key(16 * n).to_vec(), key(last(n)).to_vec())).collect();
            cluster.holds(&expected).await;
        }
    });
}

const READERS: usize = 6;
const WRITERS: usize = 6;
const STABLE: u64 = 30;

async fn read_stable<V: ClientPool>(cluster: TestCluster<V>, client: usize, rounds: u64) {
    let mut rng = SmallRng::seed_from_u64((cluster.place * 100 + client) as u64);
    let mut seen = vec![0; STABLE as usize];
    for _ in 0..rounds {
        let n = rng.random_range(0..STABLE);
        let value = cluster.index.get(&key(16 * n)).await.unwrap();
        let value = number(&value.unwrap_or_else(|| panic!("key {n} was not found")));
        let before = std::mem::replace(&mut seen[n as usize], value);
        assert!(value >= before, "key {n} went back from {before} to {value}");
    }
}

/// Inserts and removes keys of one writer each, which knows what has to be there.
async fn come_and_go<V: ClientPool>(cluster: TestCluster<V>, writer: usize, rounds: u64) {
    let (index, me) = (&cluster.index, (writer + cluster.place) as u64);
    let mut rng = SmallRng::seed_from_u64(1000 + me);
    for i in 0..rounds {
        let between = key(16 * rng.random_range(0..STABLE) + 1 + me);
        assert!(index.insert(&between, &key(i)).await.unwrap());
        assert_eq!(index.get(&between).await.unwrap().as_deref(), Some(&key(i)[..]));
        assert!(index.remove(&between).await.unwrap());
        assert!(index.get(&between).await.unwrap().is_none());
        assert!(index.update(&key(16 * me), &key(i + 1)).await.unwrap());
    }
}

/// Caches of a few nodes, of every size: nodes leave the cache in the middle of operations.
pub(crate) fn small_caches<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    const CLIENTS: u64 = 20;
    let each = fabric.size().steps(20, 5) as u64;
    for cache_bytes in [500, 1000, 2000, 4000] {
        let recipe = kind.default_mix().with_options(|options| options.cache_bytes = cache_bytes);
        on_index(fabric, Parties::Shards(2), Shape::TINY.of(recipe), || {
            move |cluster: TestCluster<V>| async move {
                cluster.meet().await;
                cluster
                    .clients(CLIENTS as usize, |c| {
                        let index = cluster.index.clone();
                        let me = 2 * c as u64 + cluster.place as u64;
                        async move {
                            for n in (0..each).map(|i| scatter(i * 2 * CLIENTS + me)) {
                                assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                                assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(!n)[..]));
                            }
                        }
                    })
                    .await;
                cluster.rest().await;
                let all = (0..2 * CLIENTS * each).map(scatter);
                cluster.holds(&all.map(|n| (key(n).to_vec(), key(!n).to_vec())).collect()).await;
            }
        });
    }
}
