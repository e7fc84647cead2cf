//! Costs of Sherman's operations where clients meet, and after a bulk load: nodes of 1 KiB and 8-byte keys and values.
//! The table for a lone client is in `kit/conformance/costs/sherman.rs`.

use farwood::runtime::ClientPool;
use farwood::sherman::{Geometry, Options, Techniques};
use farwood::{OpKind, RangeIndex, ShermanIndex, Switches};

use crate::kit;
use crate::kit::TestShard;

const KEYS: u64 = 4000;
const FILL: f64 = 0.7;
/// A key in the middle of a leaf.
const PRESENT: u64 = 2 * 20;

/// Runs `main` on a tree with the even numbers below 2 * KEYS.
fn on_loaded_tree<R>(
    techniques: Techniques,
    main: impl Fn(TestShard, ShermanIndex<TestShard>) -> R + Clone + Send + Sync + 'static,
) where
    R: Future<Output = ()> + 'static,
{
    let options = Options { techniques, ..Options::default() };
    kit::with_tree(1, Geometry::default(), options, move |shard, index| {
        let main = main.clone();
        async move {
            let pairs = (0..KEYS).map(|n| (kit::key(2 * n), kit::key(n)));
            assert_eq!(index.bulk_load(pairs, FILL).await, Ok(KEYS));
            let stats = index.stats();
            assert!(stats.kinds.iter().all(|kind| kind.ops == 0), "a bulk load is no operation of any kind");
            let client = shard.spawn(main(shard.clone(), index));
            client.await;
        }
    });
}

/// Yields everything on, everything off, and each technique off alone, but on-chip locks, which the embedded fabric
/// lacks, and what shares operations, which would leave none to count.
fn technique_mixes() -> Vec<Techniques> {
    let mut mixes = vec![Techniques::ALL, Techniques::NONE];
    let left_out = ["on_chip", "delegation", "combining"];
    let names = Techniques::ALL.list().into_iter().map(|(name, _)| name);
    for name in names.filter(|name| !left_out.contains(name)) {
        let mut techniques = Techniques::ALL;
        assert!(techniques.set(name, false));
        mixes.push(techniques);
    }
    mixes
}

/// Many clients of one shard put one key. A client that gets the lock by hand-over sends no CAS, and one that hands it
/// over no unlock. With the lock comes the leaf's image, which saves the READ.
#[test]
fn a_handed_over_write_needs_one_round_trip_and_no_cas() {
    const CLIENTS: u64 = 40;
    const PUTS: u64 = 50;
    for techniques in technique_mixes() {
        on_loaded_tree(techniques, move |shard, index| async move {
            let before = index.stats();
            let clients = (0..CLIENTS).map(|c| {
                let index = index.clone();
                shard.spawn(async move {
                    for i in 0..PUTS {
                        index.put(&kit::key(PRESENT), &kit::key(c * PUTS + i)).await.unwrap();
                    }
                })
            });
            futures::future::join_all(clients).await;
            let mut stats = index.stats();
            stats -= &before;
            let (put, locks, ops) = (*stats.kind(OpKind::Put), stats.locks, CLIENTS * PUTS);
            assert_eq!((put.ops, put.found, locks.acquired), (ops, ops, ops));
            assert_eq!(
                put.cas,
                locks.acquired - locks.handed_over + locks.remote_failed,
                "{techniques:?} {locks:?}"
            );
            // The entry goes over a line's end: its intent is recorded, and taken back where no unlock is behind it.
            assert_eq!(locks.recorded, ops);
            let taken_back = if techniques.combine { locks.handed_over } else { ops };
            let unlocks = ops - locks.handed_over;
            assert_eq!(put.writes, locks.recorded + ops + unlocks + taken_back, "{techniques:?} {locks:?}");
            assert_eq!(put.retries, locks.remote_failed);
            if techniques.hierarchical {
                assert_eq!(locks.remote_failed, 0, "clients of one node never spin against each other");
                assert_eq!(locks.waited, ops - 1, "all but the first find the lock taken");
            } else {
                assert_eq!((locks.waited, locks.handed_over), (0, 0));
            }
            if techniques.hierarchical && techniques.handover {
                // After four hand-overs the lock is released.
                let released = ops - locks.handed_over;
                assert!((ops / 5..ops / 5 + 2).contains(&released), "{techniques:?} {locks:?}");
            }
            let failed = locks.remote_failed;
            let images = if techniques.image_handover { locks.handed_over } else { 0 };
            assert_eq!(locks.images, images, "{techniques:?}");
            // A fused attempt that fails has read for nothing.
            let vain_reads = if techniques.fused { failed } else { 0 };
            assert_eq!(put.reads, ops - images + vain_reads, "{techniques:?}");
            let by_cas = if techniques.fused { 2 } else { 3 };
            let by_handover = 2 * locks.handed_over - images;
            let unlocks = if techniques.combine { 0 } else { ops - locks.handed_over };
            let expected = (ops - locks.handed_over) * by_cas + by_handover + failed + unlocks;
            assert_eq!(put.round_trips, expected, "{techniques:?} {locks:?}");
        });
    }
}

#[test]
fn a_bulk_load_fills_leaves_as_told_and_warms_the_cache() {
    for fill in [0.3, 0.7, 0.8, 1.0] {
        kit::with_tree(1, Geometry::default(), Options::default(), move |_, index| async move {
            let pairs = (0..KEYS).map(|n| (kit::key(n), kit::key(n)));
            assert_eq!(index.bulk_load(pairs, fill).await, Ok(KEYS));
            let survey = index.survey().await.unwrap();
            assert_eq!(survey.keys, KEYS);
            assert!((survey.load_factor - fill).abs() < 0.02, "{fill} {survey:?}");
            let before = index.stats();
            index.get(&kit::key(KEYS / 2)).await.unwrap().unwrap();
            let mut stats = index.stats();
            stats -= &before;
            assert_eq!((stats.cache.lookups, stats.cache.hits), (1, 1));
        });
    }
}
