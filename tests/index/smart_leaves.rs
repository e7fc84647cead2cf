//! SMART's leaves that are out of the tree: their memory is used again, for leaves, unless an operation or a scan may
//! still come there; and what of it is not costs no more than a new leaf does.

use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{IndexSpec, OpKind, RangeIndex, Verbs};
use futures::TryStreamExt;

use crate::kit::cluster::Model;
use crate::kit::{Parties, TestCluster, key, with_parties};

const GEOMETRY: Geometry = Geometry { max_key: 8, max_value: 300, types: Types::Lines };
const LEAF_BYTES: i64 = 64;

fn smart(techniques: Techniques) -> IndexSpec {
    IndexSpec::Smart { geometry: GEOMETRY, options: Options { techniques, ..Options::default() } }
}

fn value(bytes: usize, n: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at + n) as u8).collect()
}

/// Counts the round trips of one operation.
async fn round_trips<T>(cluster: &TestCluster, kind: OpKind, operation: impl Future<Output = T>) -> (T, u64) {
    let count = || cluster.index.stats().kind(kind).round_trips;
    let before = count();
    (operation.await, count() - before)
}

/// Sees to it that what was retired is free.
async fn pass_epochs(cluster: &TestCluster) {
    cluster.rest().await;
    let since = cluster.shard.pins().retired_now();
    while !cluster.shard.pins().is_over(since) {
        cluster.shard.control().want_epoch();
        cluster.shard.pause(1_000).await;
    }
}

/// Takes the leaf of one key out of the tree many times, each time for another one, by updates or by removals; asserts
/// that memory stays within bounds, and that all of it is accounted for.
fn stays_within_bounds(techniques: Techniques, updates: bool) {
    with_parties(Parties::Shards(1), smart(techniques), move |cluster| async move {
        let (index, key) = (&cluster.index, key(7));
        assert!(index.insert(&key, &value(20, 0)).await.unwrap());
        assert!(index.insert(b"another", &value(20, 0)).await.unwrap());
        let before = index.books().used_bytes;
        for n in 1..5_000 {
            if updates {
                assert!(index.update(&key, &value(20, n)).await.unwrap());
            } else {
                assert!(index.remove(&key).await.unwrap());
                assert!(index.insert(&key, &value(20, n)).await.unwrap());
            }
        }
        let books = index.books();
        assert!(books.used_bytes - before <= 500 * LEAF_BYTES, "{books:?}");
        cluster.rest().await;
        let books = index.books();
        let leaves = (books.reclaimed_bytes + books.retired_bytes) as i64 / LEAF_BYTES;
        assert!(leaves >= 4_999 && books.unsettled_bytes == 0, "{books:?}");
        cluster.holds(&[(key.to_vec(), value(20, 4_999)), (b"another".to_vec(), value(20, 0))].into()).await;
        cluster.rest().await;
    });
}

#[test]
fn leaves_that_were_removed_are_used_again() {
    for techniques in [
        Techniques::ALL,
        Techniques { fused: false, ..Techniques::ALL },
        Techniques { rear_lock: false, ..Techniques::ALL },
        Techniques { lock_free_nodes: false, ..Techniques::ALL },
    ] {
        stays_within_bounds(techniques, false);
    }
}

#[test]
fn leaves_that_another_one_took_the_place_of_are_used_again() {
    for fused in [false, true] {
        let techniques = Techniques { in_place_leaves: false, rear_lock: false, fused, ..Techniques::ALL };
        stays_within_bounds(techniques, true);
    }
}

/// An operation that does not end keeps all of them.
#[test]
fn no_leaf_is_used_again_while_an_operation_may_come_there() {
    with_parties(Parties::Shards(1), smart(Techniques::ALL), |cluster| async move {
        let index = &cluster.index;
        assert!(index.insert(&key(7), b"0").await.unwrap());
        let (before, pin) = (index.books().used_bytes, cluster.shard.pins().pin());
        for n in 0..200_u64 {
            assert!(index.remove(&key(7)).await.unwrap());
            assert!(index.insert(&key(7), &n.to_le_bytes()).await.unwrap());
        }
        cluster.rest().await;
        let books = index.books();
        assert_eq!((books.used_bytes - before, books.reclaimed_bytes), (200 * LEAF_BYTES, 0), "{books:?}");
        drop(pin);
        pass_epochs(&cluster).await;
        assert!(index.insert(&key(8), b"8").await.unwrap());
        assert_eq!(index.books().reclaimed_bytes as i64, 200 * LEAF_BYTES);
        cluster.rest().await;
    });
}

/// A leaf in memory of one that was removed comes into the tree in one round trip, as one in new memory does, and a get
/// of it takes one, too; a leaf in memory of one that moved takes a round trip more.
#[test]
fn round_trips_in_memory_that_was_used_before() {
    let out_of_place = Techniques { in_place_leaves: false, rear_lock: false, ..Techniques::ALL };
    for (techniques, updates) in [(Techniques::ALL, 2), (out_of_place, 3)] {
        with_parties(Parties::Shards(1), smart(techniques), move |cluster| async move {
            let (index, mut model) = (&cluster.index, Model::new());
            // Some stay, so that no node is taken out.
            for n in 0..8 {
                assert!(index.insert(&key(n), b"0").await.unwrap());
                model.insert(key(n).to_vec(), b"0".to_vec());
            }
            for n in 4..8 {
                assert!(index.get(&key(n)).await.unwrap().is_some() && index.remove(&key(n)).await.unwrap());
            }
            pass_epochs(&cluster).await;
            for n in 4..8 {
                let (done, trips) = round_trips(&cluster, OpKind::Insert, index.insert(&key(n), b"1")).await;
                assert_eq!((done.unwrap(), trips), (true, 1));
                cluster.rest().await;
                let (found, trips) = round_trips(&cluster, OpKind::Get, index.get(&key(n))).await;
                assert_eq!((found.unwrap().as_deref(), trips), (Some(&b"1"[..]), 1));
            }
            assert_eq!(index.books().reclaimed_bytes as i64, 4 * LEAF_BYTES);
            for round in 0..2_u8 {
                for n in 4..8 {
                    let (done, trips) =
                        round_trips(&cluster, OpKind::Update, index.update(&key(n), &[round])).await;
                    let recycled = techniques.in_place_leaves || round > 0;
                    let expected = if recycled { updates } else { 2 };
                    assert_eq!((done.unwrap(), trips), (true, expected), "round {round}");
                    model.insert(key(n).to_vec(), vec![round]);
                }
                pass_epochs(&cluster).await;
            }
            cluster.holds(&model).await;
            cluster.rest().await;
        });
    }
}

/// The slots that a scan has read lead to leaves that are others' by the time of its next window.
#[test]
fn a_scan_that_lasts_does_not_come_to_leaves_of_others() {
    with_parties(Parties::Shards(1), smart(Techniques::ALL), |cluster| async move {
        let index = &cluster.index;
        for n in 0..400 {
            assert!(index.insert(&key(n), b"there").await.unwrap());
        }
        let mut scan = index.scan(.., None);
        let mut found = vec![scan.try_next().await.unwrap().unwrap().0.to_vec()];
        // Those that stay are every second one. The memory of the others is used for keys before all of them.
        for n in (1..400).step_by(2) {
            assert!(index.remove(&key(n)).await.unwrap());
        }
        pass_epochs(&cluster).await;
        for n in 0..200_u32 {
            assert!(index.insert(&[&[0xff; 4][..], &n.to_be_bytes()].concat(), b"late").await.unwrap());
        }
        assert!(index.books().reclaimed_bytes > 0);
        while let Some((key, value)) = scan.try_next().await.unwrap() {
            let (key, is_late) = (key.to_vec(), &value[..] == b"late");
            assert!(found.last().unwrap() < &key && is_late == (key[..4] == [0xff; 4]), "{key:?}");
            found.push(key);
        }
        assert!((0..400).step_by(2).all(|n| found.contains(&key(n).to_vec())));
        cluster.rest().await;
    });
}
