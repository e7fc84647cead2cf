//! Memory servers that are full: a typed error, and an index that goes on with what it has.

mod kit;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use farwood::runtime::alloc::AllocError;
use farwood::{Cluster, EmbeddedConfig, IndexError, Options, RangeIndex, Techniques};
use kit::{Parties, Party, TINY, key, with_parties_on};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
/// What was acknowledged, and which numbers were refused.
type Done = Arc<Mutex<(Model, Vec<u64>)>>;

/// A few hundred nodes.
fn small_cluster() -> Arc<Cluster> {
    Cluster::embedded(EmbeddedConfig {
        servers: 2,
        bytes_per_server: 160 << 10,
        chunk_bytes: 8 << 10,
        locks_per_server: 64,
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

fn is_full(error: &IndexError) -> bool {
    matches!(error, IndexError::Alloc(AllocError::OutOfMemory { servers: 2 }))
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
    for parties in [Parties::Shards(1), Parties::Shards(2), Parties::Nodes(2)] {
        for order in [Order::Ascending, Order::Descending, Order::Scattered] {
            for techniques in [Techniques::ALL, Techniques::NONE] {
                let options = Options { techniques, ..Options::default() };
                let done = Done::default();
                with_parties_on(&small_cluster(), parties, TINY, options, move |party| {
                    let done = Arc::clone(&done);
                    fill_and_use(party, order, done)
                });
            }
        }
    }
}

/// Inserts until it fails several times over: other leaves may still have room.
async fn fill(party: Party, order: Order, client: u64, clients: u64, done: Done) {
    let mut failures = 0;
    for i in 0.. {
        let n = order.number((i * clients + client) * 2 + party.place as u64);
        match party.index.insert(&key(n), &key(!n)).await {
            Ok(inserted) => {
                assert!(inserted);
                done.lock().unwrap().0.insert(key(n).to_vec(), key(!n).to_vec());
            }
            Err(error) => {
                assert!(is_full(&error), "{error:?}");
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

async fn fill_and_use(party: Party, order: Order, done: Done) {
    const CLIENTS: usize = 8;
    party.clients(CLIENTS, |c| fill(party.clone(), order, c as u64, CLIENTS as u64, Arc::clone(&done))).await;
    party.rest().await;
    let (mut model, failed) = done.lock().unwrap().clone();
    assert!(model.len() > 200, "{}", model.len());
    holds(&party, &model).await;
    for n in &failed {
        assert!(party.index.get(&key(*n)).await.unwrap().is_none(), "{n} was refused, and is there");
        assert!(!party.index.update(&key(*n), b"").await.unwrap());
    }
    party.rest().await;
    if party.place == 0 {
        for (n, (key, value)) in model.iter_mut().enumerate() {
            *value = kit::key(n as u64).to_vec();
            assert!(party.index.update(key, value).await.unwrap());
            party.index.put(key, value).await.unwrap();
        }
        holds(&party, &model).await;
        // A slot that was vacated can be taken again, by the same key and by a neighbour.
        let keys: Vec<_> = model.keys().cloned().collect();
        for (n, key) in keys.iter().enumerate().step_by(3) {
            assert!(party.index.remove(key).await.unwrap());
            let value = model.remove(key).unwrap();
            let taker = if n % 2 == 0 { key.clone() } else { kit::key(kit::number(key) ^ 1 << 20).to_vec() };
            if model.contains_key(&taker) {
                continue;
            }
            match party.index.insert(&taker, &value).await {
                Ok(inserted) => {
                    assert!(inserted);
                    model.insert(taker, value);
                }
                Err(error) => assert!(is_full(&error) && taker != *key, "{error:?}"),
            }
        }
        holds(&party, &model).await;
        for key in model.keys() {
            assert!(party.index.remove(key).await.unwrap());
        }
        for (key, value) in &model {
            assert!(party.index.insert(key, value).await.unwrap());
        }
        holds(&party, &model).await;
    }
    party.rest().await;
}

/// The tree's contents, by point, by scan and by survey. Separators may be missing: there was no memory for
/// them.
async fn holds(party: &Party, model: &Model) {
    for (key, value) in model {
        assert_eq!(party.index.get(key).await.unwrap().as_deref(), Some(&value[..]), "{key:?}");
    }
    assert!(kit::all_pairs(&party.index).await.into_iter().eq(model.clone()), "a scan says otherwise");
    assert_eq!(party.index.survey().await.unwrap().keys, model.len() as u64);
}

#[test]
fn a_bulk_load_that_does_not_fit() {
    with_parties_on(&small_cluster(), Parties::Shards(1), TINY, Options::default(), |party| async move {
        for count in [100_000, 20_000, 5_000] {
            let pairs = (0..count).map(|n| (key(n), key(n)));
            let error = party.index.bulk_load(pairs, 1.0).await.unwrap_err();
            assert!(is_full(&error), "{error:?}");
            assert_eq!(party.index.survey().await.unwrap().height, 0);
            for n in (0..count).step_by(97) {
                assert!(party.index.get(&key(n)).await.unwrap().is_none());
            }
            party.rest().await;
        }
        // What the loads had taken can be used again.
        assert_eq!(party.index.bulk_load((0..500).map(|n| (key(n), key(n))), 1.0).await, Ok(500));
        let expected = (0..500).map(|n| (key(n).to_vec(), key(n).to_vec())).collect();
        kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
        party.rest().await;
    });
}

/// Not even the first leaf fits.
#[test]
fn no_memory_at_all() {
    let cluster = small_cluster();
    with_parties_on(&cluster, Parties::Shards(1), TINY, Options::default(), |party| async move {
        use farwood::{Geometry, Host, NodeSize, Sherman, Verbs};
        // Another index takes everything.
        let control = Arc::clone(party.shard.control());
        let hog = control.create("hog", "hog", b"").await.unwrap();
        for server in control.servers() {
            while control.chunk(server.id, hog.id).await.is_ok() {}
        }
        for _ in 0..3 {
            assert!(is_full(&party.index.put(&key(1), b"").await.unwrap_err()));
            assert!(is_full(&party.index.insert(&key(1), b"").await.unwrap_err()));
            assert!(is_full(&party.index.bulk_load([(key(1), b"")], 1.0).await.unwrap_err()));
            assert!(!party.index.update(&key(1), b"").await.unwrap());
            assert!(!party.index.remove(&key(1)).await.unwrap());
            assert!(party.index.get(&key(1)).await.unwrap().is_none());
            assert_eq!(kit::all_pairs(&party.index).await, []);
        }
        party.rest().await;
        // Memory comes back when an index is dropped.
        control.drop_index("hog").await.unwrap();
        party.index.put(&key(1), b"v").await.unwrap();
        assert_eq!(party.index.get(&key(1)).await.unwrap().as_deref(), Some(&b"v"[..]));
        party.rest().await;
        struct Here(Arc<dyn farwood::runtime::Control>);
        impl Host for Here {
            fn control(&self) -> Arc<dyn farwood::runtime::Control> {
                Arc::clone(&self.0)
            }
            fn allocate_port(&self) -> farwood::runtime::Port {
                farwood::runtime::Port(7)
            }
            fn seed(&self) -> u64 {
                1
            }
        }
        let geometry = Geometry { size: NodeSize::Bytes(512), ..Geometry::default() };
        Sherman::create(&Here(control), "other", geometry, Options::default()).await.unwrap();
    });
}
