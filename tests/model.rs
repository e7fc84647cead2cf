//! One client against `BTreeMap`, on tiny nodes, with every combination of techniques and with awkward keys.

mod kit;

use std::collections::BTreeMap;
use std::ops::Bound;

use farwood::{Bytes, Geometry, NodeSize, Options, RangeIndex, Shard, ShermanIndex, Techniques};
use futures::TryStreamExt;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys that collide in their first bytes, are prefixes of each other, are empty, or are full of 0x00 and
/// 0xff.
fn awkward_key(rng: &mut SmallRng, max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=max);
    (0..len).map(|_| [0x00, 0x01, b'a', 0xff][rng.random_range(0..4)]).collect()
}

fn some_value(rng: &mut SmallRng, max: usize) -> Vec<u8> {
    (0..rng.random_range(0..=max)).map(|_| rng.random()).collect()
}

async fn same_scan(index: &ShermanIndex<Shard>, model: &Model, rng: &mut SmallRng, max_key: usize) {
    let bound = |rng: &mut SmallRng| match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(awkward_key(rng, max_key)),
        _ => Bound::Excluded(awkward_key(rng, max_key)),
    };
    let (start, end) = (bound(rng), bound(rng));
    let limit = rng.random_bool(0.5).then(|| rng.random_range(0..50));
    let slice = |bound: &Bound<Vec<u8>>| bound.as_ref().map(Vec::as_slice).map(|key| key.to_vec());
    let (start_key, end_key) = (slice(&start), slice(&end));
    let range = (start_key.as_ref().map(Vec::as_slice), end_key.as_ref().map(Vec::as_slice));
    let found: Vec<(Bytes, Bytes)> = index.scan(range, limit).try_collect().await.unwrap();
    let in_range = |key: &Vec<u8>| {
        (match &start {
            Bound::Unbounded => true,
            Bound::Included(start) => key >= start,
            Bound::Excluded(start) => key > start,
        }) && (match &end {
            Bound::Unbounded => true,
            Bound::Included(end) => key <= end,
            Bound::Excluded(end) => key < end,
        })
    };
    let expected: Vec<_> =
        model.iter().filter(|(key, _)| in_range(key)).take(limit.unwrap_or(usize::MAX)).collect();
    assert_eq!(found.len(), expected.len(), "{start:?} {end:?} {limit:?}");
    for ((key, value), (model_key, model_value)) in found.iter().zip(expected) {
        assert_eq!((key.as_slice(), value.as_slice()), (model_key.as_slice(), model_value.as_slice()));
    }
}

async fn run(index: ShermanIndex<Shard>, geometry: Geometry, seed: u64, steps: usize) {
    let Geometry { max_key, max_value, .. } = geometry;
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut model = Model::new();
    assert_eq!(index.get(b"").await.unwrap().map(|v| v.to_vec()), None);
    assert!(!index.remove(b"a").await.unwrap() && !index.update(b"a", b"").await.unwrap());
    for _ in 0..steps {
        let (key, value) = (awkward_key(&mut rng, max_key), some_value(&mut rng, max_value));
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
                assert_eq!(index.get(&key).await.unwrap().as_deref(), model.get(&key).map(Vec::as_slice))
            }
            18 => same_scan(&index, &model, &mut rng, max_key).await,
            _ => {
                let keys: Vec<_> = (0..10).map(|_| awkward_key(&mut rng, max_key)).collect();
                for (key, value) in keys.iter().zip(index.multi_get(&keys).await.unwrap()) {
                    assert_eq!(value.as_deref(), model.get(key).map(Vec::as_slice));
                }
            }
        }
    }
    let survey = index.survey().await.unwrap();
    assert_eq!(survey.keys, model.len() as u64);
    assert!(survey.height > 2, "too few keys to test splits: {survey:?}");
}

#[test]
fn every_combination_of_techniques() {
    let geometry = Geometry { max_key: 4, max_value: 5, ..kit::TINY };
    for bits in 0..1u32 << Techniques::NAMES.len() {
        let mut techniques = Techniques::NONE;
        for (i, name) in Techniques::NAMES.into_iter().enumerate() {
            techniques.set(name, bits >> i & 1 == 1);
        }
        let options = Options { techniques, ..Options::default() };
        kit::with_tree(1, geometry, options, move |_, index| run(index, geometry, u64::from(bits), 400));
    }
}

#[test]
fn every_shape_of_keys_and_values() {
    for (i, (max_key, max_value, size)) in [
        (3, 0, NodeSize::Slots { leaf: 2, inner: 3 }),
        (5, 1, NodeSize::Slots { leaf: 2, inner: 4 }),
        (9, 100, NodeSize::Slots { leaf: 5, inner: 4 }),
        (70, 8, NodeSize::Slots { leaf: 4, inner: 4 }),
        (300, 300, NodeSize::Slots { leaf: 4, inner: 4 }),
        (4, 8, NodeSize::Bytes(256)),
    ]
    .into_iter()
    .enumerate()
    {
        let geometry = Geometry { max_key, max_value, size };
        kit::with_tree(1, geometry, Options::default(), move |_, index| run(index, geometry, i as u64, 3000));
    }
}

#[test]
fn a_cache_too_small_for_anything_is_slow_but_right() {
    let geometry = Geometry { max_key: 4, ..kit::TINY };
    let options = Options { cache_bytes: 1, ..Options::default() };
    kit::with_tree(1, geometry, options, move |_, index| run(index, geometry, 7, 3000));
}
