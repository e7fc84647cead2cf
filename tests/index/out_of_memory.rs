//! Memory servers that are full: a typed error, and an index that goes on with what it has.

use std::sync::{Arc, Mutex};

use farwood::runtime::alloc::AllocError;
use farwood::{Cluster, EmbeddedConfig, LoadError, NodeContext, RangeIndex, WriteError};

use crate::kit;
use crate::kit::cluster::Model;
use crate::kit::{IndexKind, IndexSpec, Mixes, Parties, Shape, TestCluster, key, with_parties_on};

/// The acknowledged pairs, and the numbers that were refused.
type Done = Arc<Mutex<(Model, Vec<u64>)>>;

/// Makes a cluster for a few hundred nodes, and as many or a few times as many keys.
fn small_cluster(kind: IndexKind) -> Arc<Cluster> {
    let (bytes_per_server, chunk_bytes) = match kind {
        // Every key is a node.
        IndexKind::Smart => (104 << 10, 4 << 10),
        _ => (128 << 10, 8 << 10),
    };
    Cluster::embedded(EmbeddedConfig {
        servers: 2,
        bytes_per_server,
        chunk_bytes,
        locks_per_server: 64,
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

fn is_full(error: impl Into<LoadError>) -> bool {
    // An index may want a node where others of it are.
    matches!(error.into(), LoadError::Write(WriteError::Alloc(AllocError::OutOfMemory { servers: 1 | 2 })))
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Ascending,
    Descending,
    Scattered,
}

impl Order {
    fn number(self, n: u64) -> u64 {
        match self {
            Order::Ascending => n,
            Order::Descending => u64::MAX - n,
            Order::Scattered => kit::scatter(n),
        }
    }
}

/// Whatever was acknowledged is there; whatever failed is not, as the error says.
#[test]
fn a_full_index_keeps_what_it_acknowledged() {
    for &kind in IndexKind::ALL {
        // Each two of parties, order and mix meet.
        let mut mixes = kind.extremes().into_iter().cycle();
        for parties in [Parties::Shards(1), Parties::Shards(2), Parties::Nodes(2)] {
            for order in [Order::Ascending, Order::Descending, Order::Scattered] {
                let done = Done::default();
                let recipe = Shape::TINY.of(mixes.next().expect("they go on for ever"));
                with_parties_on(&small_cluster(kind), parties, recipe, move |cluster| {
                    let done = Arc::clone(&done);
                    fill_and_use(cluster, recipe, order, done)
                });
            }
        }
    }
}

/// Inserts until it fails several times over: other leaves may still have room.
async fn fill(cluster: TestCluster, order: Order, client: u64, clients: u64, done: Done) {
    let mut failures = 0;
    for i in 0.. {
        let n = order.number((i * clients + client) * 2 + cluster.place as u64);
        match cluster.index.insert(&key(n), &key(!n)).await {
            Ok(inserted) => {
                assert!(inserted);
                done.lock().unwrap().0.insert(key(n).to_vec(), key(!n).to_vec());
            }
            Err(error) => {
                assert!(is_full(error.clone()), "{error:?}");
                assert!(error.to_string().contains("add memory"), "{error}");
                done.lock().unwrap().1.push(n);
                failures += 1;
                if failures == 5 {
                    return;
                }
            }
        }
    }
}

async fn fill_and_use(cluster: TestCluster, recipe: IndexSpec, order: Order, done: Done) {
    const CLIENTS: usize = 8;
    cluster
        .clients(CLIENTS, |c| fill(cluster.clone(), order, c as u64, CLIENTS as u64, Arc::clone(&done)))
        .await;
    cluster.rest().await;
    let (mut model, failed) = done.lock().unwrap().clone();
    assert!(model.len() > 200, "{}", model.len());
    holds(&cluster, &model).await;
    for n in &failed {
        assert!(cluster.index.get(&key(*n)).await.unwrap().is_none(), "{n} was refused, and is there");
        assert!(!cluster.index.update(&key(*n), b"").await.unwrap());
    }
    cluster.rest().await;
    if cluster.place == 0 {
        update_all(&cluster, recipe, &mut model).await;
        remove_and_insert(&cluster, recipe, &mut model).await;
        for key in model.keys() {
            assert!(cluster.index.remove(key).await.unwrap());
        }
        // Leaves that were merged come back, and may be less full than those before.
        let trial = recipe.kind().trial();
        let are_merged = trial.rare_paths.iter().any(|path| path.ends_with(".leaf.merged"));
        let (mut again, before) = (Model::new(), model.len());
        for (key, value) in model {
            let in_place = trial.inserts_in_place && !are_merged;
            if took_effect(cluster.index.insert(&key, &value).await, in_place) {
                again.insert(key, value);
            }
        }
        let books = cluster.index.books();
        assert!(!are_merged || again.len() * 2 > before, "{order:?}: {} of {before}, {books:?}", again.len());
        holds(&cluster, &again).await;
    }
    cluster.rest().await;
}

/// Tells whether a possible change took effect. One `in_place` takes no memory, so it must have.
#[track_caller]
fn took_effect(done: Result<bool, WriteError>, in_place: bool) -> bool {
    match done {
        Ok(done) => {
            assert!(done);
            true
        }
        Err(error) => {
            assert!(is_full(error.clone()) && !in_place, "{error:?}");
            false
        }
    }
}

async fn update_all(cluster: &TestCluster, recipe: IndexSpec, model: &mut Model) {
    let in_place = recipe.updates_in_place();
    for (n, (key, value)) in model.iter_mut().enumerate() {
        let new = kit::key(n as u64).to_vec();
        if took_effect(cluster.index.update(key, &new).await, in_place) {
            *value = new;
        }
        // It might have been an insert, which may have to make room first.
        let put = cluster.index.put(key, value).await.map(|()| true);
        took_effect(put, recipe.kind().trial().inserts_in_place);
    }
    holds(cluster, model).await;
}

/// Takes slots that were vacated again, by the same key and by a neighbour.
async fn remove_and_insert(cluster: &TestCluster, recipe: IndexSpec, model: &mut Model) {
    let keys: Vec<_> = model.keys().cloned().collect();
    for (n, key) in keys.iter().enumerate().step_by(3) {
        assert!(cluster.index.remove(key).await.unwrap());
        let value = model.remove(key).unwrap();
        let taker = if n % 2 == 0 { key.clone() } else { kit::key(kit::number(key) ^ 1 << 20).to_vec() };
        if model.contains_key(&taker) {
            continue;
        }
        let in_place = taker == *key && recipe.kind().trial().inserts_in_place;
        if took_effect(cluster.index.insert(&taker, &value).await, in_place) {
            model.insert(taker, value);
        }
    }
    holds(cluster, model).await;
}

/// Asserts the index's contents, by point, by scan and by survey. Separators may be missing: there was no memory for
/// them.
async fn holds(cluster: &TestCluster, model: &Model) {
    for (key, value) in model {
        assert_eq!(cluster.index.get(key).await.unwrap().as_deref(), Some(&value[..]), "{key:?}");
    }
    assert!(kit::all_pairs(&cluster.index).await.into_iter().eq(model.clone()), "a scan says otherwise");
    assert_eq!(cluster.index.survey().await.unwrap().keys, model.len() as u64);
}

/// A full index has room again for what was removed, as soon as no operation can have its address: that is waited for.
#[test]
fn memory_on_its_way_back_is_waited_for() {
    for &kind in IndexKind::ALL {
        let recipe = Shape::TINY.usual(kind);
        with_parties_on(&small_cluster(kind), Parties::Shards(1), recipe, move |cluster| async move {
            let done = Done::default();
            fill(cluster.clone(), Order::Ascending, 0, 1, Arc::clone(&done)).await;
            cluster.rest().await;
            let model = done.lock().unwrap().0.clone();
            for (key, value) in &model {
                assert!(cluster.index.remove(key).await.unwrap());
                assert_eq!(cluster.index.insert(key, value).await, Ok(true), "{kind:?}: {key:?}");
            }
            holds(&cluster, &model).await;
            cluster.rest().await;
        });
    }
}

#[test]
fn a_bulk_load_that_does_not_fit() {
    for &kind in IndexKind::ALL {
        with_parties_on(
            &small_cluster(kind),
            Parties::Shards(1),
            Shape::TINY.usual(kind),
            |cluster| async move {
                let empty = cluster.index.survey().await.unwrap();
                for count in [100_000, 20_000, 6_000] {
                    let pairs = (0..count).map(|n| (key(n), key(n)));
                    let error = cluster.index.bulk_load(pairs, 1.0).await.unwrap_err();
                    assert!(is_full(error.clone()), "{error:?}");
                    assert_eq!(cluster.index.survey().await.unwrap(), empty);
                    for n in (0..count).step_by(97) {
                        assert!(cluster.index.get(&key(n)).await.unwrap().is_none());
                    }
                    cluster.rest().await;
                }
                // What the loads had taken can be used again.
                assert_eq!(cluster.index.bulk_load((0..500).map(|n| (key(n), key(n))), 1.0).await, Ok(500));
                cluster.rest().await;
                cluster.holds(&(0..500).map(|n| (key(n).to_vec(), key(n).to_vec())).collect()).await;
                cluster.rest().await;
            },
        );
    }
}

/// Not even the first node fits.
#[test]
fn no_memory_at_all() {
    for &kind in IndexKind::ALL {
        let recipe = Shape::TINY.usual(kind);
        with_parties_on(&small_cluster(kind), Parties::Shards(1), recipe, move |cluster| async move {
            // Another index takes everything.
            let control = cluster.host.control();
            let hog = control.create("hog", "hog", b"").await.unwrap();
            for server in control.servers() {
                while control.chunk(server.id, hog.id).await.is_ok() {}
            }
            for _ in 0..3 {
                assert!(is_full(cluster.index.put(&key(1), b"").await.unwrap_err()));
                assert!(is_full(cluster.index.insert(&key(1), b"").await.unwrap_err()));
                assert!(is_full(cluster.index.bulk_load([(key(1), b"")], 1.0).await.unwrap_err()));
                assert!(!cluster.index.update(&key(1), b"").await.unwrap());
                assert!(!cluster.index.remove(&key(1)).await.unwrap());
                assert!(cluster.index.get(&key(1)).await.unwrap().is_none());
                assert_eq!(kit::all_pairs(&cluster.index).await, []);
            }
            cluster.rest().await;
            // Memory comes back when an index is dropped.
            control.drop_index("hog").await.unwrap();
            cluster.index.put(&key(1), b"v").await.unwrap();
            assert_eq!(cluster.index.get(&key(1)).await.unwrap().as_deref(), Some(&b"v"[..]));
            cluster.rest().await;
            recipe.create(&cluster.host, "other").await.unwrap();
        });
    }
}
