//! What every operation costs on the fabric, exactly: the table in `index/src/sherman/mod.rs`, for nodes of 1
//! KiB and 8-byte keys and values, one client, a warm cache.

mod kit;

use farwood::index::KindStats;
use farwood::{Geometry, OpKind, Options, RangeIndex, Shard, ShermanIndex, Techniques};
use futures::TryStreamExt;

const KEYS: u64 = 4000;
const FILL: f64 = 0.7;
const LEAF_BYTES: u64 = 1024;
/// A key in the middle of a leaf: its slot is far from the fingerprints, so the two are separate WRITEs.
const PRESENT: u64 = 2 * 20;
const ABSENT: u64 = PRESENT + 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    round_trips: u64,
    reads: u64,
    writes: u64,
    cas: u64,
    bytes_read: u64,
    bytes_written: u64,
}

impl From<&KindStats> for Cost {
    fn from(stats: &KindStats) -> Self {
        let KindStats { round_trips, reads, writes, cas, bytes_read, bytes_written, .. } = *stats;
        Cost { round_trips, reads, writes, cas, bytes_read, bytes_written }
    }
}

/// What was counted for `kind` while `operation` ran; nothing else was.
async fn counted(index: &ShermanIndex<Shard>, kind: OpKind, operation: impl AsyncFn()) -> KindStats {
    loop {
        let before = index.stats();
        operation().await;
        let mut during = index.stats();
        during -= &before;
        for other in OpKind::ALL.into_iter().filter(|other| *other != kind) {
            assert_eq!(
                during.kind(other),
                &KindStats::default(),
                "{} counted as {}",
                kind.name(),
                other.name()
            );
        }
        let stats = *during.kind(kind);
        // A reader whose thread lost its core in the middle of a READ cannot trust the versions, and reads
        // again.
        if stats.retries == 0 || !matches!(kind, OpKind::Get | OpKind::Scan) {
            assert_eq!(stats.retries, 0);
            assert_eq!(stats.round_trip_histogram[(stats.round_trips / stats.ops) as usize], stats.ops);
            return stats;
        }
    }
}

async fn cost(index: &ShermanIndex<Shard>, kind: OpKind, operation: impl AsyncFn()) -> Cost {
    let stats = counted(index, kind, operation).await;
    assert_eq!(stats.ops, 1);
    Cost::from(&stats)
}

/// Runs `main` on a tree with the even numbers below 2 * KEYS.
fn on_loaded_tree<R>(
    techniques: Techniques,
    main: impl Fn(Shard, ShermanIndex<Shard>) -> R + Clone + Send + 'static,
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

#[test]
fn a_get_is_one_read_of_a_leaf_whether_it_finds_or_not() {
    on_loaded_tree(Techniques::ALL, |_, index| async move {
        let read =
            Cost { round_trips: 1, reads: 1, writes: 0, cas: 0, bytes_read: LEAF_BYTES, bytes_written: 0 };
        for n in 0..2 * KEYS {
            let get = async || assert_eq!(index.get(&kit::key(n)).await.unwrap().is_some(), n % 2 == 0);
            assert_eq!(cost(&index, OpKind::Get, get).await, read, "key {n}");
        }
        let keys: Vec<_> = (0..50).map(|n| kit::key(n * 97)).collect();
        let multi_get = async || assert_eq!(index.multi_get(&keys).await.unwrap().len(), 50);
        let stats = counted(&index, OpKind::Get, multi_get).await;
        assert_eq!((stats.ops, stats.round_trips, stats.reads, stats.found), (50, 50, 50, 25));
        assert_eq!(index.multi_get::<&[u8]>(&[]).await.unwrap().len(), 0);
    });
}

/// What a change costs, with the techniques' part of the table in `sherman/mod.rs` spelled out.
fn change(techniques: Techniques, patch_writes: u64, patch_bytes: u64) -> Cost {
    let Techniques { fused, combine, two_level, .. } = techniques;
    let (writes, bytes) = if two_level { (patch_writes, patch_bytes) } else { (1, LEAF_BYTES) };
    Cost {
        round_trips: if fused { 1 } else { 2 } + if combine { 1 } else { 2 },
        reads: 1,
        writes: writes + 1,
        cas: 1,
        bytes_read: LEAF_BYTES,
        bytes_written: bytes + 8,
    }
}

/// What a change without effect costs: the lock is given back in a chain of its own.
fn no_change(techniques: Techniques) -> Cost {
    let round_trips = if techniques.fused { 2 } else { 3 };
    Cost { round_trips, reads: 1, writes: 1, cas: 1, bytes_read: LEAF_BYTES, bytes_written: 8 }
}

async fn assert_changes(index: &ShermanIndex<Shard>, techniques: Techniques) {
    let (present, absent, value) = (kit::key(PRESENT), kit::key(ABSENT), kit::key(7));
    // 17 bytes of entry, widened to words: 24 or 32.
    let entries: [u64; 2] = [24, 32];
    let is_entry = |found: Cost, fingerprint: u64| {
        let writes = 1 + fingerprint;
        entries.iter().any(|entry| found == change(techniques, writes, entry + 8 * fingerprint))
    };
    let update =
        cost(index, OpKind::Update, async || assert!(index.update(&present, &value).await.unwrap())).await;
    assert!(is_entry(update, 0), "{techniques:?} {update:?}");
    let put = cost(index, OpKind::Put, async || index.put(&present, &value).await.unwrap()).await;
    assert_eq!(put, update, "a put of a present key is an update");
    for kind in [OpKind::Insert, OpKind::Put] {
        let found = cost(index, kind, async || match kind {
            OpKind::Put => index.put(&absent, &value).await.unwrap(),
            _ => assert!(index.insert(&absent, &value).await.unwrap()),
        })
        .await;
        assert!(is_entry(found, 1), "{techniques:?} {found:?}");
        let remove =
            cost(index, OpKind::Remove, async || assert!(index.remove(&absent).await.unwrap())).await;
        assert_eq!(remove, change(techniques, 2, 16), "{techniques:?}");
    }
    let vain = no_change(techniques);
    assert_eq!(
        cost(index, OpKind::Insert, async || assert!(!index.insert(&present, &value).await.unwrap())).await,
        vain
    );
    assert_eq!(
        cost(index, OpKind::Update, async || assert!(!index.update(&absent, &value).await.unwrap())).await,
        vain
    );
    assert_eq!(
        cost(index, OpKind::Remove, async || assert!(!index.remove(&absent).await.unwrap())).await,
        vain
    );
}

#[test]
fn changes_cost_what_the_table_says() {
    for bits in 0..1u32 << Techniques::NAMES.len() {
        let mut techniques = Techniques::NONE;
        for (i, name) in Techniques::NAMES.into_iter().enumerate() {
            techniques.set(name, bits >> i & 1 == 1);
        }
        on_loaded_tree(techniques, move |_, index| async move { assert_changes(&index, techniques).await });
    }
}

/// The figures of the table themselves, so that they stand somewhere as numbers.
#[test]
fn the_table() {
    let without = |names: &[&str]| {
        let mut techniques = Techniques::ALL;
        for name in names {
            assert!(techniques.set(name, false));
        }
        techniques
    };
    assert_eq!(change(Techniques::ALL, 1, 24).round_trips, 2);
    assert_eq!(change(without(&["fused"]), 1, 24).round_trips, 3);
    assert_eq!(change(without(&["fused", "combine"]), 1, 24).round_trips, 4);
    assert_eq!(change(Techniques::NONE, 1, 24).round_trips, 4);
    assert_eq!(change(without(&["two_level"]), 1, 24).bytes_written, 1032);
}

#[test]
fn a_scan_reads_its_leaves_in_one_round_trip() {
    on_loaded_tree(Techniques::ALL, |_, index| async move {
        for from in (0..KEYS - 200).step_by(7) {
            let start = kit::key(2 * from);
            let scan = async || {
                let pairs: Vec<_> = index.scan(&start[..].., Some(100)).try_collect().await.unwrap();
                let keys = pairs.iter().map(|(key, _)| kit::number(key));
                assert!(keys.eq((from..from + 100).map(|n| 2 * n)));
            };
            let stats = counted(&index, OpKind::Scan, scan).await;
            assert_eq!((stats.ops, stats.entries), (1, 100));
            // 100 pairs are at most four leaves of 37.
            let expected = Cost {
                round_trips: 1,
                reads: 4,
                writes: 0,
                cas: 0,
                bytes_read: 4 * LEAF_BYTES,
                bytes_written: 0,
            };
            assert_eq!(Cost::from(&stats), expected, "from {from}");
        }
        let nothing = async || assert_eq!(index.scan(.., Some(0)).try_collect::<Vec<_>>().await.unwrap(), []);
        let stats = index.stats();
        nothing().await;
        let mut during = index.stats();
        during -= &stats;
        assert_eq!((during.kind(OpKind::Scan).ops, during.kind(OpKind::Scan).round_trips), (1, 0));
    });
}

/// Many clients of one shard put one key. Who gets the lock by hand-over sends no CAS, and who hands it over
/// no unlock.
#[test]
fn a_handed_over_write_needs_two_round_trips_and_no_cas() {
    const CLIENTS: u64 = 40;
    const PUTS: u64 = 50;
    for techniques in kit::technique_mixes() {
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
            assert_eq!(put.writes, 2 * ops - locks.handed_over, "{techniques:?} {locks:?}");
            assert_eq!(put.retries, locks.remote_failed);
            if techniques.hierarchical {
                assert_eq!(locks.remote_failed, 0, "clients of one node never spin against each other");
                assert_eq!(locks.waited, ops - 1, "all but the first find somebody there");
            } else {
                assert_eq!((locks.waited, locks.handed_over), (0, 0));
            }
            if techniques.hierarchical && techniques.handover {
                // After four hand-overs the lock is released.
                let released = ops - locks.handed_over;
                assert!((ops / 5..ops / 5 + 2).contains(&released), "{techniques:?} {locks:?}");
            }
            let failed = locks.remote_failed;
            // A fused attempt that fails has read in vain.
            let vain_reads = if techniques.fused { failed } else { 0 };
            assert_eq!(put.reads, ops + vain_reads, "{techniques:?}");
            let by_cas = if techniques.fused { 2 } else { 3 };
            let by_handover = 2;
            let unlocks = if techniques.combine { 0 } else { ops - locks.handed_over };
            let expected =
                (ops - locks.handed_over) * by_cas + locks.handed_over * by_handover + failed + unlocks;
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
