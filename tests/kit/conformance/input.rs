//! Input that no index can take: a typed error, and an index that is as it was. And input that looks odd and is fine:
//! empty keys, keys of full length, every byte.

use farwood::runtime::ClientPool;
use farwood::{IndexKind, Nodes, RangeIndex, ReadError, WriteError};
use futures::TryStreamExt;

use super::{Fabric, on_index};
use crate::kit::cluster::{Model, Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::{key, number};

pub(crate) fn too_long_keys_and_values<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    on_index(fabric, Parties::ONE, Shape::TINY.of(kind.default_mix()), || {
        |cluster: TestCluster<V>| async move {
            let index = &cluster.index;
            for n in 0..20 {
                index.put(&key(n), &key(n)).await.unwrap();
            }
            let (long_key, long_value) = ([7; 9], [7; 200]);
            let read_error = ReadError::KeyTooLong { len: 9, max: 8 };
            assert_eq!(index.get(&long_key).await.unwrap_err(), read_error);
            let key_error = WriteError::KeyTooLong { len: 9, max: 8 };
            assert_eq!(index.put(&long_key, b"").await.unwrap_err(), key_error);
            assert_eq!(index.insert(&long_key, b"").await.unwrap_err(), key_error);
            assert_eq!(index.update(&long_key, b"").await.unwrap_err(), key_error);
            assert_eq!(index.remove(&long_key).await.unwrap_err(), key_error);
            assert_eq!(index.multi_get(&[&key(1)[..], &long_key]).await.unwrap_err(), read_error);
            let value_error = WriteError::ValueTooLong { len: 200, max: 8 };
            assert_eq!(index.put(&key(1), &long_value).await.unwrap_err(), value_error);
            assert_eq!(index.insert(&key(99), &long_value).await.unwrap_err(), value_error);
            assert_eq!(index.update(&key(1), &long_value).await.unwrap_err(), value_error);
            // Bounds need not be keys of the index: a longer one lies between two keys.
            let between = [&key(3)[..], b"x"].concat();
            let found: Vec<_> = index.scan(&between.., Some(1)).try_collect().await.unwrap();
            assert_eq!(number(&found[0].0), 4);
            let found: Vec<_> = index.scan(..between, None).try_collect().await.unwrap();
            assert_eq!(found.len(), 4);
            cluster.rest().await;
            cluster.holds(&(0..20).map(|n| (key(n).to_vec(), key(n).to_vec())).collect()).await;
        }
    });
}

pub(crate) fn odd_keys<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let step = 100usize.div_ceil(fabric.size().percent);
    for (max_key, max_value) in [(1, 0), (2, 1), (8, 8), (40, 9), (kind.trial().long_key, 300)] {
        let shape = Shape { max_key, max_value, nodes: Nodes::Least };
        on_index(fabric, Parties::ONE, shape.of(kind.default_mix()), || {
            move |cluster: TestCluster<V>| async move {
                let index = &cluster.index;
                let mut expected = Model::new();
                let mut keys = vec![Vec::new()];
                for byte in (0..=255u8).step_by(step).chain([255]) {
                    let mixed = [vec![byte; max_key - 1], vec![!byte]].concat();
                    keys.extend([vec![byte], vec![byte; max_key], mixed]);
                }
                for (n, key) in keys.into_iter().enumerate() {
                    // From empty to full length.
                    let value = vec![n as u8; n % (max_value + 1)];
                    assert_eq!(index.insert(&key, &value).await.unwrap(), !expected.contains_key(&key));
                    expected.entry(key).or_insert(value);
                }
                for (key, value) in &expected {
                    assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]), "{key:?}");
                }
                cluster.rest().await;
                cluster.holds(&expected).await;
                for key in expected.keys() {
                    assert!(index.remove(key).await.unwrap());
                    assert!(index.get(key).await.unwrap().is_none());
                }
                cluster.rest().await;
                cluster.holds(&Model::new()).await;
            }
        });
    }
}
