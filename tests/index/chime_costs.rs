//! Costs of CHIME's operations on average, in leaves that are 80 % full, and what an outdated cache costs it. The table
//! for each operation is in `kit/conformance/costs/chime.rs`. On the simulated fabric, where no READ is slow by chance.

use farwood::index::KindStats;
use farwood::{IndexKind, OpKind, RangeIndex};
use futures::TryStreamExt;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::kit::TestShard;
use crate::kit::cluster::Parties;
use crate::kit::kind::{Shape, switched};
use crate::kit::simulated::{calm, simulate_parties};
use crate::kit::{TestCluster, key};

const KEYS: u64 = 20_000;
const LOAD: f64 = 0.8;
/// Operations whose mean is taken, on keys all over the tree.
const OPS: u64 = 500;
const STEP: u64 = KEYS / OPS;

type Index = farwood::AnyIndex<TestShard>;

/// Runs `main` on usual nodes with the even numbers below 2 * KEYS, without these techniques.
fn on_loaded<R>(
    parties: Parties,
    without: &[&str],
    main: impl Fn(TestCluster) -> R + Clone + Send + Sync + 'static,
) where
    R: Future<Output = ()> + 'static,
{
    let usual = Shape::USUAL.usual(IndexKind::Chime);
    let recipe = without.iter().fold(usual, |recipe, name| switched(recipe, name, false));
    simulate_parties(&calm(parties), parties, recipe, move |cluster: TestCluster| {
        let main = main.clone();
        async move {
            if cluster.place == 0 {
                let pairs = (0..KEYS).map(|n| (key(2 * n), key(n)));
                assert_eq!(cluster.index.bulk_load(pairs, LOAD).await, Ok(KEYS));
                let full = cluster.index.survey().await.unwrap().load_factor;
                assert!((full - LOAD).abs() < 0.02, "{full}");
            }
            cluster.meet().await;
            let client = cluster.clone();
            cluster.clients(1, move |_| main(client.clone())).await;
            cluster.meet().await;
        }
    });
}

/// Counts what `work` costs in operations of this kind.
async fn counted(index: &Index, kind: OpKind, work: impl Future<Output = ()>) -> KindStats {
    let before = index.stats();
    work.await;
    let mut stats = index.stats();
    stats -= &before;
    *stats.kind(kind)
}

/// Gets so many keys from all over the tree.
async fn get_some(index: &Index, keys: u64) {
    for n in (0..KEYS).step_by((KEYS / keys) as usize) {
        assert_eq!(index.get(&key(2 * n)).await.unwrap().as_deref(), Some(&key(n)[..]));
    }
}

#[test]
fn a_get_reads_a_neighbourhood_and_a_hotspot_an_entry() {
    on_loaded(Parties::ONE, &["speculative"], |cluster| async move {
        let gets = counted(&cluster.index, OpKind::Get, get_some(&cluster.index, KEYS)).await;
        assert_eq!((gets.round_trips, gets.retries), (KEYS, 0));
        assert!(gets.bytes_read <= 192 * KEYS, "{gets:?}");
    });
    on_loaded(Parties::ONE, &[], |cluster| async move {
        // So few that each has a hotspot: these take as much memory as the cached nodes.
        const HOT: u64 = 100;
        let get_hot = || get_some(&cluster.index, HOT);
        get_hot().await;
        let gets = counted(&cluster.index, OpKind::Get, get_hot()).await;
        assert_eq!((gets.round_trips, gets.reads, gets.retries), (HOT, HOT, 0));
        assert!(gets.bytes_read <= 64 * HOT, "{gets:?}");
    });
}

fn odd(n: u64) -> [u8; 8] {
    key(2 * STEP * n + 1)
}

/// Inserts keys all over the tree.
async fn insert_some(index: &Index) {
    for n in 0..OPS {
        assert!(index.insert(&odd(n), &key(n)).await.unwrap());
    }
}

#[test]
fn writes_take_two_round_trips_where_leaves_are_80_percent_full() {
    on_loaded(Parties::ONE, &[], |cluster| async move {
        let index = &cluster.index;
        let inserts = counted(index, OpKind::Insert, insert_some(index)).await;
        let round_trips = inserts.round_trips as f64 / OPS as f64;
        assert!((2.0..=2.2).contains(&round_trips), "{round_trips} {inserts:?}");
        let updates = counted(index, OpKind::Update, async {
            for n in 0..OPS {
                assert!(index.update(&key(2 * STEP * n), &key(n)).await.unwrap());
            }
        });
        assert_eq!(updates.await.round_trips, 2 * OPS);
        let removes = counted(index, OpKind::Remove, async {
            for n in 0..OPS {
                assert!(index.remove(&odd(n)).await.unwrap());
            }
        });
        assert_eq!(removes.await.round_trips, 2 * OPS);
    });
}

/// Pairs of 8 + 8 bytes, inner nodes counted; a load fills leaves as far as they find room.
#[test]
fn a_pair_takes_27_bytes_after_a_load_and_37_after_inserts() {
    let recipe = || Shape::USUAL.usual(IndexKind::Chime);
    let bytes_per_pair = |index: Index| async move {
        let shape = index.survey().await.unwrap();
        assert_eq!(shape.keys, KEYS);
        shape.used_bytes as f64 / KEYS as f64
    };
    simulate_parties(&calm(Parties::ONE), Parties::ONE, recipe(), move |cluster| async move {
        let pairs = (0..KEYS).map(|n| (key(n), key(n)));
        assert_eq!(cluster.index.bulk_load(pairs, 1.0).await, Ok(KEYS));
        let bytes = bytes_per_pair(cluster.index.clone()).await;
        assert!(bytes <= 27.0, "{bytes}");
    });
    simulate_parties(&calm(Parties::ONE), Parties::ONE, recipe(), move |cluster| async move {
        let mut order: Vec<u64> = (0..KEYS).collect();
        order.shuffle(&mut SmallRng::seed_from_u64(0));
        for n in order {
            assert!(cluster.index.insert(&key(n), &key(n)).await.unwrap());
        }
        let bytes = bytes_per_pair(cluster.index.clone()).await;
        assert!(bytes <= 37.0, "{bytes}");
    });
}

/// Without `fused` an insert is the paper's: lock and words by one masked CAS, as many slots as the words call for, the
/// write-back with the unlock (sections 4.2.1 and 4.4). Without the words it reads the leaf.
#[test]
fn words_that_come_with_the_lock_say_how_far_an_insert_reads() {
    on_loaded(Parties::ONE, &["fused"], |cluster| async move {
        let inserts = insert_some_in_three(&cluster.index).await;
        // A neighbourhood that is around the table's end is two READs, and the last leaf of a parent has the header.
        assert!((OPS..=OPS * 13 / 10).contains(&inserts.reads), "{inserts:?}");
        assert!((250 * OPS..=350 * OPS).contains(&inserts.bytes_read), "{inserts:?}");
    });
    on_loaded(Parties::ONE, &["fused", "piggyback"], |cluster| async move {
        let inserts = insert_some_in_three(&cluster.index).await;
        assert!((1408 * OPS..=1500 * OPS).contains(&inserts.bytes_read), "{inserts:?}");
    });
}

/// Inserts keys all over the tree, each in three round trips but those that split a leaf.
async fn insert_some_in_three(index: &Index) -> KindStats {
    let leaves = index.survey().await.unwrap().leaves;
    let inserts = counted(index, OpKind::Insert, insert_some(index)).await;
    let splits = index.survey().await.unwrap().leaves - leaves;
    assert!(splits < OPS / 20, "{splits}");
    assert_eq!(inserts.round_trip_histogram[3], OPS - splits, "{inserts:?}");
    inserts
}

/// Windows of a scan without a limit are of 2, 4, 8, 16 and then of 32 leaves.
#[test]
fn a_scan_takes_one_round_trip_for_each_window() {
    on_loaded(Parties::ONE, &[], |cluster| async move {
        let index = &cluster.index;
        let leaves = index.survey().await.unwrap().leaves;
        let scan = counted(index, OpKind::Scan, async {
            let pairs: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
            assert_eq!(pairs.len() as u64, KEYS);
        });
        let scan = scan.await;
        assert_eq!((scan.reads, scan.retries), (leaves, 0));
        assert_eq!(scan.round_trips, 4 + (leaves - 30).div_ceil(32), "{leaves} leaves");
    });
}

/// Another node splits a leaf. A client that asks its left half for a key that is not there reads the fences, once: its
/// cached parent is outdated, and it reads that anew, once.
#[test]
fn an_outdated_parent_is_found_out_left_of_a_split_too() {
    const ABSENT: u64 = 1;
    for is_found_out_by_a_get in [false, true] {
        on_loaded(Parties::Nodes(2), &[], move |cluster| async move {
            let index = &cluster.index;
            let update = || async {
                let vain = async { assert!(!index.update(&key(ABSENT), b"").await.unwrap()) };
                counted(index, OpKind::Update, vain).await.round_trips
            };
            if cluster.place == 1 {
                assert!(index.get(&key(0)).await.unwrap().is_some());
                assert_eq!(update().await, 2);
            }
            cluster.meet().await;
            if cluster.place == 0 {
                for n in 1..20 {
                    assert!(index.insert(&key(2 * n + 1), b"").await.unwrap());
                }
            }
            cluster.meet().await;
            if cluster.place == 1 {
                if is_found_out_by_a_get {
                    assert_eq!(index.get(&key(ABSENT)).await.unwrap(), None);
                } else {
                    assert_eq!(update().await, 3, "it reads the header");
                }
                assert_eq!(update().await, 3, "it reads the parent");
                assert_eq!(update().await, 2);
            }
        });
    }
}
