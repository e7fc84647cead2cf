//! One client, alone with a small index and awkward keys: it is answered as by a `BTreeMap`.

use std::ops::Bound;

use farwood::runtime::ClientPool;
use farwood::{IndexKind, Nodes, RangeIndex};
use futures::TryStreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{Fabric, on_index};
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};

/// Yields keys that collide in their first bytes, are prefixes of each other, are empty, or are full of 0x00 and 0xff.
fn awkward_key(rng: &mut SmallRng, max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=max);
    (0..len).map(|_| [0x00, 0x01, b'a', 0xff][rng.random_range(0..4)]).collect()
}

fn some_value(rng: &mut SmallRng, max: usize) -> Vec<u8> {
    (0..rng.random_range(0..=max)).map(|_| rng.random()).collect()
}

/// A client and its map.
struct Pair<V: ClientPool> {
    cluster: TestCluster<V>,
    shape: Shape,
    model: Model,
    rng: SmallRng,
}

pub(crate) fn every_mix_is_as_a_map<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let shape = Shape { max_key: 4, max_value: 5, nodes: Nodes::Tiny };
    for (seed, mix) in fabric.size().few(kind.every_mix()).into_iter().enumerate() {
        let steps = fabric.size().steps(500, 100);
        on_index(fabric, Parties::ONE, shape.of(mix), || {
            move |cluster: TestCluster<V>| compare(cluster, shape, seed as u64, steps)
        });
    }
}

pub(crate) fn every_shape_is_as_a_map<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let shapes = [
        (3, 0, Nodes::Least),
        (5, 1, Nodes::Least),
        (9, 100, Nodes::Tiny),
        (70, 8, Nodes::Tiny),
        (kind.trial().long_key, 300, Nodes::Least),
        (6, 8, Nodes::Usual),
    ];
    for (seed, (max_key, max_value, nodes)) in shapes.into_iter().enumerate() {
        let (shape, steps) = (Shape { max_key, max_value, nodes }, fabric.size().steps(3000, 300));
        on_index(fabric, Parties::ONE, shape.of(kind.default_mix()), || {
            move |cluster: TestCluster<V>| compare(cluster, shape, seed as u64, steps)
        });
    }
}

/// Longer, with a cache too small for anything: slow, but right.
pub(crate) fn a_map_says_the_same<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let shape = Shape { max_key: 4, ..Shape::TINY };
    let steps = fabric.size().steps(3000, 300);
    let recipe = kind.default_mix().with_options(|options| options.cache_bytes = 1);
    on_index(fabric, Parties::ONE, shape.of(recipe), || {
        move |cluster: TestCluster<V>| compare(cluster, shape, 7, steps)
    });
}

async fn compare<V: ClientPool>(cluster: TestCluster<V>, shape: Shape, seed: u64, steps: usize) {
    let rng = SmallRng::seed_from_u64(seed);
    let mut pair = Pair { cluster, shape, model: Model::new(), rng };
    let index = pair.cluster.index.clone();
    assert!(index.get(b"").await.unwrap().is_none());
    if seed.is_multiple_of(2) {
        assert!(!index.remove(b"a").await.unwrap() && !index.update(b"a", b"").await.unwrap());
    } else {
        pair.load().await;
    }
    for _ in 0..steps {
        pair.step().await;
    }
    let survey = index.survey().await.unwrap();
    assert_eq!(survey.keys, pair.model.len() as u64);
    let least = index.kind().trial().height_min.min(3);
    let tall = shape.nodes == Nodes::Usual || (survey.height >= least && survey.leaves > 2);
    assert!(tall, "too few keys to test splits: {survey:?}");
    pair.cluster.rest().await;
    pair.cluster.holds(&pair.model).await;
}

impl<V: ClientPool> Pair<V> {
    async fn load(&mut self) {
        let Shape { max_key, max_value, .. } = self.shape;
        for _ in 0..60 {
            self.model.insert(awkward_key(&mut self.rng, max_key), some_value(&mut self.rng, max_value));
        }
        let fill = self.rng.random_range(0.2..=1.0);
        let loaded = self.cluster.index.bulk_load(&self.model, fill).await;
        assert_eq!(loaded, Ok(self.model.len() as u64));
    }

    async fn step(&mut self) {
        let Shape { max_key, max_value, .. } = self.shape;
        let Pair { cluster, model, rng, .. } = self;
        let index = cluster.index.clone();
        let (key, value) = (awkward_key(rng, max_key), some_value(rng, max_value));
        let present = model.contains_key(&key);
        match rng.random_range(0..20) {
            0..5 => {
                index.put(&key, &value).await.unwrap();
                model.insert(key, value);
            }
            5..10 => {
                assert_eq!(index.insert(&key, &value).await.unwrap(), !present);
                model.entry(key).or_insert(value);
            }
            10..12 => {
                assert_eq!(index.update(&key, &value).await.unwrap(), present);
                model.entry(key).and_modify(|v| *v = value);
            }
            12..15 => assert_eq!(index.remove(&key).await.unwrap(), model.remove(&key).is_some()),
            15..18 => {
                assert_eq!(index.get(&key).await.unwrap().as_deref(), model.get(&key).map(Vec::as_slice));
            }
            18 => self.same_scan().await,
            _ => {
                let keys: Vec<_> = (0..10).map(|_| awkward_key(rng, max_key)).collect();
                for (key, value) in keys.iter().zip(index.multi_get(&keys).await.unwrap()) {
                    assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice));
                }
            }
        }
    }

    /// Compares a scan with bounds of all sorts, also such that contain nothing, and a limit.
    async fn same_scan(&mut self) {
        let max_key = self.shape.max_key;
        let mut bound = || match self.rng.random_range(0..3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(awkward_key(&mut self.rng, max_key)),
            _ => Bound::Excluded(awkward_key(&mut self.rng, max_key)),
        };
        let (start, end) = (bound(), bound());
        let limit = self.rng.random_bool(0.5).then(|| self.rng.random_range(0..50));
        let range = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
        let found: Vec<_> = self.cluster.index.scan(range, limit).try_collect().await.unwrap();
        let after_start = |key: &Vec<u8>| match &start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        };
        let before_end = |key: &Vec<u8>| match &end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        };
        let expected = self.model.iter().filter(|(key, _)| after_start(key) && before_end(key));
        let expected: Vec<_> = expected.take(limit.unwrap_or(usize::MAX)).collect();
        assert_eq!(found.len(), expected.len(), "{start:?} {end:?} {limit:?}");
        for ((key, value), (model_key, model_value)) in found.iter().zip(expected) {
            assert_eq!((key.as_slice(), value.as_slice()), (model_key.as_slice(), model_value.as_slice()));
        }
    }
}
