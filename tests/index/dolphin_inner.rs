//! Dolphin's inner nodes that have moved to more room: their memory is used again when no cache leads there any more,
//! and a compute node that had copies of them finds all keys, and writes, afterwards.

use farwood::dolphin::{Geometry, Options, Types};
use farwood::{IndexSpec, OpKind, RangeIndex, Verbs};

use crate::kit::cancel::{Drops, after_polls};
use crate::kit::{Parties, TestCluster, with_parties};

/// Groups of keys, each of which gets an inner node of its own.
const GROUPS: u8 = 60;
/// Keys of a group: its node moves several times.
const KEYS: u8 = 40;

fn dolphin(types: Types) -> IndexSpec {
    let geometry = Geometry { max_key: 8, max_value: 24, leaf_bytes: 192, types };
    IndexSpec::Dolphin { geometry, options: Options::default() }
}

fn keys_of(side: u8, keys: impl Iterator<Item = u8> + Clone) -> impl Iterator<Item = [u8; 3]> {
    (0..GROUPS).flat_map(move |group| keys.clone().map(move |last| [side, group, last]))
}

async fn insert(cluster: &TestCluster, keys: impl Iterator<Item = [u8; 3]>) {
    for key in keys {
        assert!(cluster.index.insert(&key, &key).await.unwrap(), "{key:?}");
    }
}

async fn get(cluster: &TestCluster, keys: impl Iterator<Item = [u8; 3]>) {
    for key in keys {
        assert_eq!(cluster.index.get(&key).await.unwrap().as_deref(), Some(&key[..]), "{key:?}");
    }
}

/// Sees to it that all memory is free that was retired and that caches may lead to.
async fn pass_flush(cluster: &TestCluster) {
    let since = cluster.shard.pins().retired_now();
    while cluster.shard.pins().flushed_since(since).is_none_or(|since| !cluster.shard.pins().is_over(since)) {
        cluster.shard.control().want_flush(since);
        cluster.shard.pause(1_000).await;
    }
}

/// It used to stay where it was for as long as the index.
#[test]
fn memory_of_nodes_that_have_moved_is_used_again() {
    with_parties(Parties::ONE, dolphin(Types::Tiny), |cluster| async move {
        insert(&cluster, keys_of(1, 0..KEYS)).await;
        cluster.rest().await;
        let retired = cluster.index.books().retired_bytes;
        assert!(retired > 64 * u64::from(GROUPS), "{:?}", cluster.index.books());
        pass_flush(&cluster).await;
        let reused = cluster.index.books().reused_bytes;
        insert(&cluster, keys_of(2, 0..KEYS)).await;
        let books = cluster.index.books();
        assert!(books.reclaimed_bytes >= retired && books.reused_bytes - reused >= retired, "{books:?}");
        get(&cluster, keys_of(1, 0..KEYS).chain(keys_of(2, 0..KEYS))).await;
        cluster.finish().await;
    });
}

/// The janitor finds out whether a node is out that a dropped insert has moved. It used to stay until a repair.
#[test]
fn memory_of_nodes_that_dropped_inserts_have_moved_comes_back() {
    with_parties(Parties::ONE, dolphin(Types::Tiny), |cluster| async move {
        for (n, key) in keys_of(1, 0..KEYS).enumerate() {
            let drops = if n % 2 == 0 { Drops::AtOnce } else { Drops::WhenWoken };
            drop(after_polls(cluster.index.insert(&key, &key), 4 + n / 2 % 16, drops).await);
            cluster.index.put(&key, &key).await.unwrap();
        }
        cluster.rest().await;
        let books = cluster.index.books();
        assert!(books.unsettled_bytes == 0 && books.retired_bytes > 64 * u64::from(GROUPS), "{books:?}");
        get(&cluster, keys_of(1, 0..KEYS)).await;
        cluster.finish().await;
    });
}

/// The memory of the nodes that the second compute node has copies of, and of those that its copies lead to, becomes
/// that of other nodes. Leaves' bounds hide most of what copies that were kept would do to it, so swarms judge that.
#[test]
fn a_cache_from_long_ago_finds_what_was_moved() {
    with_parties(Parties::Nodes(2), dolphin(Types::Lines), |cluster| async move {
        if cluster.place == 0 {
            insert(&cluster, keys_of(1, (0..KEYS).step_by(8))).await;
        }
        cluster.meet().await;
        if cluster.place == 1 {
            // Below some groups alone: above the others it has slots, and no copies of what they lead to.
            get(&cluster, keys_of(1, (0..KEYS).step_by(8)).filter(|[_, group, _]| group % 2 == 0)).await;
        }
        cluster.meet().await;
        if cluster.place == 0 {
            insert(&cluster, keys_of(1, (0..KEYS).filter(|last| last % 8 != 0))).await;
        }
        cluster.rest().await;
        if cluster.place == 0 {
            pass_flush(&cluster).await;
            let before = cluster.index.books();
            insert(&cluster, keys_of(2, 0..KEYS)).await;
            let books = cluster.index.books();
            assert!(books.reused_bytes - before.reused_bytes > 64 * u64::from(GROUPS), "{books:?}");
        }
        cluster.rest().await;
        if cluster.place == 1 {
            get(&cluster, keys_of(1, 0..KEYS)).await;
            insert(&cluster, keys_of(1, KEYS..KEYS + 4)).await;
        }
        cluster.rest().await;
        get(&cluster, keys_of(1, 0..KEYS + 4).chain(keys_of(2, 0..KEYS))).await;
        cluster.finish().await;
    });
}

/// An operation that does not end keeps all of them.
#[test]
fn no_node_that_has_moved_is_used_again_while_an_operation_may_come_there() {
    with_parties(Parties::ONE, dolphin(Types::Tiny), |cluster| async move {
        let pin = cluster.shard.pins().pin();
        insert(&cluster, keys_of(1, 0..KEYS)).await;
        cluster.shard_pause().await;
        let books = cluster.index.books();
        assert!(books.reclaimed_bytes == 0 && books.retired_bytes > 0, "{books:?}");
        drop(pin);
        cluster.rest().await;
        pass_flush(&cluster).await;
        assert!(cluster.index.insert(b"key", b"value").await.unwrap());
        assert!(cluster.index.books().reclaimed_bytes > 0, "{:?}", cluster.index.books());
        cluster.finish().await;
    });
}

/// The root never moves, and all clients rely on knowing it: what a flush leaves unknown are the nodes.
#[test]
fn after_a_flush_the_root_is_read_and_not_looked_for() {
    with_parties(Parties::ONE, dolphin(Types::Lines), |cluster| async move {
        insert(&cluster, std::iter::once([1, 1, 1])).await;
        pass_flush(&cluster).await;
        for round_trips in [2, 1] {
            let before = cluster.index.stats();
            get(&cluster, std::iter::once([1, 1, 1])).await;
            let mut spent = cluster.index.stats();
            spent -= &before;
            assert_eq!(spent.kind(OpKind::Get).round_trips, round_trips);
        }
        cluster.finish().await;
    });
}
