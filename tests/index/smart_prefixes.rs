//! Keys and values that a radix tree has to take care of: keys that are prefixes of each other, that share long ones or
//! are as long as can be, nodes for every byte, and values that grow out of their leaf and shrink again.

use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{OpenError, RangeIndex, ReadError, WriteError};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::kit;
use crate::kit::cluster::Model;
use crate::kit::{IndexSpec, Parties, TestCluster, with_parties};

const LONGEST: usize = 255;

/// Yields users' nodes and tiny ones, with all techniques, without those that say what leaves are, and with none.
fn recipes(max_key: usize, max_value: usize) -> Vec<IndexSpec> {
    let replaced = Techniques { in_place_leaves: false, rear_lock: false, ..Techniques::ALL };
    let elsewhere = Techniques { rear_lock: false, ..Techniques::ALL };
    let mut recipes = Vec::new();
    for types in [Types::Lines, Types::Tiny] {
        for techniques in [Techniques::ALL, elsewhere, replaced, Techniques::NONE] {
            let options = Options { techniques, ..Options::default() };
            recipes.push(IndexSpec::Smart { geometry: Geometry { max_key, max_value, types }, options });
        }
    }
    recipes
}

/// Runs `main` alone on an index of each recipe; afterwards the index must pass its check.
fn alone<R: Future<Output = ()> + 'static>(recipes: Vec<IndexSpec>, main: fn(TestCluster) -> R) {
    for recipe in recipes {
        println!("{recipe:?}");
        with_parties(Parties::ONE, recipe, move |cluster| async move {
            main(cluster.clone()).await;
            cluster.finish().await;
        });
    }
}

/// Puts keys into an order that has nothing to do with theirs.
fn shuffled(mut keys: Vec<Vec<u8>>, seed: u64) -> Vec<Vec<u8>> {
    keys.shuffle(&mut SmallRng::seed_from_u64(seed));
    keys
}

/// Inserts all keys, removes every other one and inserts it again; after each step the index is as a map.
async fn come_and_go(cluster: &TestCluster, keys: &[Vec<u8>]) {
    let (index, mut model) = (&cluster.index, Model::new());
    for (n, key) in keys.iter().enumerate() {
        assert!(index.get(key).await.unwrap().is_none(), "{key:?} is there before its time");
        assert!(!index.update(key, b"").await.unwrap() && !index.remove(key).await.unwrap());
        let value = vec![n as u8; n % 9];
        assert!(index.insert(key, &value).await.unwrap(), "{key:?} is said to be there");
        assert!(!index.insert(key, b"other").await.unwrap());
        assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]));
        model.insert(key.clone(), value);
    }
    cluster.rest().await;
    cluster.holds(&model).await;
    for key in keys.iter().step_by(2) {
        assert!(index.remove(key).await.unwrap());
        assert!(index.get(key).await.unwrap().is_none());
        model.remove(key);
    }
    cluster.rest().await;
    cluster.holds(&model).await;
    for key in keys.iter().step_by(2) {
        assert!(index.insert(key, b"again").await.unwrap());
        model.insert(key.clone(), b"again".to_vec());
    }
    cluster.rest().await;
    cluster.holds(&model).await;
}

/// Every prefix of a key of 255 bytes, the empty one and the whole included.
#[test]
fn every_prefix_of_a_key() {
    alone(recipes(LONGEST, 8), |cluster| async move {
        let whole: Vec<u8> = (0..LONGEST).map(|at| at as u8 ^ 0x5a).collect();
        let ascending: Vec<Vec<u8>> = (0..=LONGEST).map(|len| whole[..len].to_vec()).collect();
        let descending = ascending.iter().rev().cloned().collect();
        for keys in [ascending.clone(), descending, shuffled(ascending, 1)] {
            come_and_go(&cluster, &keys).await;
            for key in &keys {
                assert!(cluster.index.remove(key).await.unwrap());
            }
        }
    });
}

/// One long prefix with branches at each of its bytes: headers are split wherever they can be.
#[test]
fn branches_at_every_byte_of_a_long_prefix() {
    alone(recipes(LONGEST, 8), |cluster| async move {
        let stem = [b'p'; LONGEST];
        let branch = |at: usize, byte: u8| [&stem[..at], &[byte]].concat();
        let mut keys: Vec<Vec<u8>> = vec![stem.to_vec()];
        keys.extend((0..LONGEST).step_by(3).flat_map(|at| [branch(at, 0), branch(at, b'q')]));
        for seed in [2, 3] {
            come_and_go(&cluster, &shuffled(keys.clone(), seed)).await;
            for key in &keys {
                assert!(cluster.index.remove(key).await.unwrap());
            }
        }
    });
}

/// Pairs that differ in their last byte only, behind prefixes of all lengths: leaf splits with long chains of nodes.
#[test]
fn pairs_that_differ_in_their_last_byte() {
    alone(recipes(LONGEST, 8), |cluster| async move {
        let mut keys = Vec::new();
        for len in (0..LONGEST - 1).step_by(7).chain([1, 2, 5, 6, 8, 12, 13, LONGEST - 2]) {
            // A byte of its own in front, so that each pair has a way of its own from the root.
            let prefix = [&[len as u8][..], &vec![b'x'; len]].concat();
            keys.extend([[&prefix[..], &[0]].concat(), [&prefix[..], &[0xff]].concat()]);
        }
        keys.sort_unstable();
        keys.dedup();
        come_and_go(&cluster, &shuffled(keys, 4)).await;
    });
}

/// A node that has a slot for each of the 256 bytes and for the key that ends there.
#[test]
fn nodes_for_all_bytes() {
    for depth in [0, 1, 9] {
        for recipe in recipes(12, 8) {
            with_parties(Parties::ONE, recipe, move |cluster| async move {
                let prefix = vec![b'k'; depth];
                let mut keys = vec![prefix.clone()];
                keys.extend((0..=255).map(|byte| [&prefix[..], &[byte]].concat()));
                come_and_go(&cluster, &shuffled(keys, depth as u64)).await;
                cluster.finish().await;
            });
        }
    }
}

/// Values of every length become values of every other: in place, out of their leaf, and back.
#[test]
fn values_that_grow_and_shrink() {
    alone(recipes(20, 700), |cluster| async move {
        // Around the ends of lines, with keys of 1 and of 20 bytes.
        let lengths = [0, 1, 8, 19, 20, 21, 38, 39, 40, 83, 84, 85, 102, 103, 104, 300, 699, 700];
        let keys = [b"k".to_vec(), vec![b'l'; 20], Vec::new()];
        let mut model = Model::new();
        for from in lengths {
            for to in lengths {
                for (n, key) in keys.iter().enumerate() {
                    cluster.index.put(key, &vec![1; from]).await.unwrap();
                    let value = vec![(from + to + n) as u8; to];
                    assert!(cluster.index.update(key, &value).await.unwrap());
                    let found = cluster.index.get(key).await.unwrap();
                    assert_eq!(found.as_deref(), Some(&value[..]), "{from} to {to}");
                    model.insert(key.clone(), value);
                }
            }
            cluster.rest().await;
            cluster.holds(&model).await;
        }
        for key in &keys {
            assert!(cluster.index.remove(key).await.unwrap());
            assert!(cluster.index.insert(key, &[7; 700]).await.unwrap());
        }
        cluster.rest().await;
        cluster.holds(&keys.iter().map(|key| (key.clone(), vec![7; 700])).collect()).await;
    });
}

/// Keys of 255 bytes are fine, and of 256 are not: neither as keys nor as a tree's longest.
#[test]
fn the_longest_keys() {
    alone(recipes(LONGEST, 8), |cluster| async move {
        let (longest, longer) = (vec![0xff; LONGEST], vec![0xff; LONGEST + 1]);
        assert!(cluster.index.insert(&longest, b"v").await.unwrap());
        let error = ReadError::KeyTooLong { len: 256, max: 255 };
        assert_eq!(cluster.index.get(&longer).await.unwrap_err(), error);
        assert_eq!(cluster.index.put(&longer, b"v").await, Err(WriteError::from(error)));
        cluster.rest().await;
        cluster.holds(&[(longest, b"v".to_vec())].into()).await;
    });
    let node = kit::node(&kit::cluster(), 1);
    for max_key in [0, LONGEST + 1, 1 << 20] {
        for recipe in recipes(max_key, 8) {
            let created = futures::executor::block_on(recipe.create(&node, "x"));
            assert!(matches!(created, Err(OpenError::Layout(_))), "keys of {max_key} bytes were taken");
        }
    }
}

/// A node whose only child is an inner node takes its slots over, however many, and with them its room: the type of
/// what comes of it was that of a node for the old one's slots, and the others were out of sight.
#[test]
fn a_node_that_takes_over_many_slots_shows_them_all() {
    alone(recipes(4, 8), |cluster| async move {
        let index = &cluster.index;
        let key = |bytes: &[u8]| bytes.to_vec();
        for beside in [1, 5, 29] {
            for below in (2..=100).step_by(3) {
                let begin = [beside as u8, below as u8];
                let with = |rest: &[u8]| key(&[&begin[..], rest].concat());
                let merged: Vec<_> = (0..below).map(|n| with(&[7, n as u8])).collect();
                let removed: Vec<_> = (0..beside).map(|n| with(&[8 + n as u8])).collect();
                for key in merged.iter().chain(&removed) {
                    assert!(index.insert(key, b"value").await.unwrap());
                }
                for key in &removed {
                    assert!(index.remove(key).await.unwrap());
                }
                // Before the background has seen to the node: there is no room for this one.
                assert!(index.insert(&with(&[0]), b"last").await.unwrap());
                for key in &merged {
                    assert!(index.get(key).await.unwrap().is_some(), "{key:?} is out of sight");
                }
            }
        }
        cluster.rest().await;
    });
}
