//! SMART's inner nodes that are out of the tree: their memory is used again when no cache leads there any more, a
//! client with an old cache takes no other node for one of them, and a tree that was emptied keeps next to nothing.

use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{IndexSpec, RangeIndex, Verbs};

use crate::kit::{Parties, TestCluster, with_parties};

/// Groups of keys, each below an inner node of its own.
const GROUPS: u16 = 300;
/// Keys of a group.
const KEYS: u8 = 3;

fn smart(types: Types) -> IndexSpec {
    let geometry = Geometry { max_key: 64, max_value: 8, types };
    IndexSpec::Smart { geometry, options: Options { techniques: Techniques::ALL, ..Options::default() } }
}

fn keys_of(side: u8, keys: impl Iterator<Item = u8> + Clone) -> impl Iterator<Item = [u8; 4]> {
    (0..GROUPS).flat_map(move |group| {
        let [high, low] = group.to_be_bytes();
        keys.clone().map(move |last| [side, high, low, last])
    })
}

/// Sees to it that all memory is free that was retired and that caches may lead to.
async fn pass_flush(cluster: &TestCluster) {
    let since = cluster.shard.pins().retired_now();
    while cluster.shard.pins().flushed_since(since).is_none_or(|since| !cluster.shard.pins().is_over(since)) {
        cluster.shard.control().want_flush(since);
        cluster.shard.pause(1_000).await;
    }
}

async fn insert_all(cluster: &TestCluster, side: u8) {
    for key in keys_of(side, 0..KEYS) {
        assert!(cluster.index.insert(&key, &key).await.unwrap());
    }
}

async fn remove_all(cluster: &TestCluster, side: u8) {
    for key in keys_of(side, 0..KEYS) {
        assert!(cluster.index.remove(&key).await.unwrap());
    }
}

/// Nodes grow, and are taken out, again and again: they used to take new memory each time.
#[test]
fn memory_of_inner_nodes_is_used_again() {
    with_parties(Parties::ONE, smart(Types::Tiny), |cluster| async move {
        let mut most = [0; 2];
        for round in 0..20 {
            insert_all(&cluster, round).await;
            let used = cluster.index.books().used_bytes;
            most[usize::from(round >= 10)] = used.max(most[usize::from(round >= 10)]);
            remove_all(&cluster, round).await;
            cluster.shard_pause().await;
        }
        let books = cluster.index.books();
        assert!(cluster.shard.pins().flushed() > 0, "it asks for it by itself");
        assert!(
            most[1] <= most[0] + most[0] / 2,
            "{most:?} bytes at most in the first and last rounds, {books:?}"
        );
        cluster.finish().await;
    });
}

/// The memory of the nodes that the second compute node has copies of becomes that of others, with as many children.
/// Its inserts used their slots, if it kept the copies.
#[test]
fn a_cache_from_long_ago_leads_to_no_other_node() {
    with_parties(Parties::Nodes(2), smart(Types::Lines), |cluster| async move {
        let index = &cluster.index;
        if cluster.place == 0 {
            insert_all(&cluster, 1).await;
            assert!(index.insert(&[3], b"stays").await.unwrap());
        }
        cluster.meet().await;
        if cluster.place == 1 {
            for key in keys_of(1, 0..KEYS) {
                assert!(index.get(&key).await.unwrap().is_some());
            }
        }
        cluster.meet().await;
        if cluster.place == 0 {
            remove_all(&cluster, 1).await;
        }
        cluster.rest().await;
        if cluster.place == 0 {
            pass_flush(&cluster).await;
            let before = index.books().reused_bytes;
            insert_all(&cluster, 2).await;
            assert!(index.books().reused_bytes - before > 64 * u64::from(GROUPS), "{:?}", index.books());
        }
        cluster.rest().await;
        if cluster.place == 1 {
            for key in keys_of(1, KEYS..KEYS + 1) {
                assert!(index.insert(&key, &key).await.unwrap());
            }
            for key in keys_of(1, 0..KEYS) {
                assert_eq!(index.get(&key).await.unwrap(), None, "{key:?}");
            }
        }
        cluster.meet().await;
        if cluster.place == 0 {
            for key in keys_of(1, KEYS..KEYS + 1).chain(keys_of(2, 0..KEYS)) {
                assert!(index.get(&key).await.unwrap().is_some(), "{key:?}");
            }
        }
        cluster.finish().await;
    });
}

/// An operation that does not end keeps all of them.
#[test]
fn no_inner_node_is_used_again_while_an_operation_may_come_there() {
    with_parties(Parties::ONE, smart(Types::Tiny), |cluster| async move {
        let pin = cluster.shard.pins().pin();
        for round in 0..4 {
            insert_all(&cluster, round).await;
            remove_all(&cluster, round).await;
        }
        cluster.shard_pause().await;
        assert_eq!(cluster.index.books().reclaimed_bytes, 0);
        drop(pin);
        cluster.rest().await;
        pass_flush(&cluster).await;
        assert!(cluster.index.insert(b"key", b"value").await.unwrap());
        let books = cluster.index.books();
        assert!(books.reclaimed_bytes > 0 && books.retired_bytes == 0, "{books:?}");
        cluster.finish().await;
    });
}

/// A tree whose keys are all removed used to keep every node of a large type that was emptied, and all above it; and
/// the nodes for bytes that keys have in common, but for one that was taken out with each key.
#[test]
fn a_tree_that_is_emptied_returns_its_memory() {
    let scattered = (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec());
    let begins_as_another =
        (0..2_000_u16).map(|n| [&(n / 2).to_be_bytes()[..], &[b'-'; 40], &[n as u8]].concat());
    for keys in [scattered.collect::<Vec<_>>(), begins_as_another.collect()] {
        for types in [Types::Tiny, Types::Lines] {
            let keys = keys.clone();
            with_parties(Parties::ONE, smart(types), move |cluster| is_emptied(cluster, keys.clone()));
        }
    }
}

async fn is_emptied(cluster: TestCluster, keys: Vec<Vec<u8>>) {
    let index = &cluster.index;
    for key in &keys {
        assert!(index.insert(key, b"value").await.unwrap());
    }
    let most = index.books().used_bytes;
    for key in &keys {
        assert!(index.remove(key).await.unwrap());
    }
    cluster.rest().await;
    pass_flush(&cluster).await;
    assert!(index.insert(b"key", b"value").await.unwrap());
    let left = index.books();
    assert!(left.used_bytes <= most / 20, "{left:?} are left of {most} bytes");
    cluster.finish().await;
}
