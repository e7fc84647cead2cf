//! Exact costs of operations on the fabric: one client, a warm cache, keys and values of 8 bytes. The numbers are the
//! kind's ([`costs`]) and the same on every fabric.

use std::ops::RangeInclusive;

use farwood::index::KindStats;
use farwood::index::stats::ROUND_TRIPS_MAX;
use farwood::runtime::ClientPool;
use farwood::{AnyIndex, IndexKind, IndexSpec, OpKind, RangeIndex};
use futures::future::LocalBoxFuture;
use futures::{FutureExt, TryStreamExt};

use super::costs::{Cost, Work, costs, second_looks};
use super::{Fabric, on_index};
use crate::kit::cluster::{Parties, TestCluster};
use crate::kit::kind::{Mixes, Shape};
use crate::kit::{key, number};

/// The index holds the even numbers below twice as many.
const KEYS: u64 = 4000;
/// So many where hundreds of mixes are loaded, and operations touch the first leaf alone.
const KEYS_OF_CHANGES: u64 = 1000;
const FILL: f64 = 0.7;
/// A key in the middle of a leaf.
const PRESENT: u64 = 2 * 20;
/// Its neighbours: one for an insert, one for a put, and one that stays absent.
const ABSENT: [u64; 3] = [PRESENT + 1, PRESENT + 3, PRESENT + 5];
/// Attempts to count an operation none of whose READs is too slow.
const ATTEMPTS: usize = 100;

/// Yields what was counted for `kind` while `operation` ran, which reads again so often; nothing else was counted.
///
/// Panics if a READ was too slow in every attempt.
async fn counted<V: ClientPool>(
    index: &AnyIndex<V>,
    kind: OpKind,
    second_looks: RangeInclusive<u64>,
    operation: impl AsyncFn(),
) -> KindStats {
    let operation = || operation().boxed_local();
    let counted = counted_unless_slow(index, kind, second_looks.clone(), &operation).await;
    counted.unwrap_or_else(|retries| {
        panic!("{} looked again {retries} times and not {second_looks:?}, {ATTEMPTS} times over", kind.name())
    })
}

/// Counts as [`counted`] does, or yields how often the last attempt looked again if a READ was too slow in every one.
async fn counted_unless_slow<'a, V: ClientPool>(
    index: &AnyIndex<V>,
    kind: OpKind,
    second_looks: RangeInclusive<u64>,
    operation: &dyn Fn() -> LocalBoxFuture<'a, ()>,
) -> Result<KindStats, u64> {
    let mut retries = 0;
    for _ in 0..ATTEMPTS {
        let before = index.stats();
        operation().await;
        let mut during = index.stats();
        during -= &before;
        for other in OpKind::ALL.into_iter().filter(|other| *other != kind) {
            let stats = during.kind(other);
            assert_eq!(stats, &KindStats::default(), "{} counted as {}", kind.name(), other.name());
        }
        let mut stats = *during.kind(kind);
        // The tables are without intents, which are counted apart.
        stats.writes -= during.locks.recorded;
        stats.bytes_written -= during.locks.record_bytes;
        // A reader whose thread lost its core in the middle of a READ cannot trust the versions, and reads
        // again.
        if second_looks.contains(&stats.retries) || !matches!(kind, OpKind::Get | OpKind::Scan) {
            assert!(second_looks.contains(&stats.retries), "{}: {}", kind.name(), stats.retries);
            let place = (stats.round_trips / stats.ops) as usize;
            assert_eq!(stats.round_trip_histogram[place.min(ROUND_TRIPS_MAX - 1)], stats.ops);
            return Ok(stats);
        }
        retries = stats.retries;
    }
    Err(retries)
}

/// Counts one operation and compares it with the kind's table.
struct Till<V: ClientPool> {
    mix: IndexSpec,
    index: AnyIndex<V>,
    /// True if locks are cleared by WRITEs, as the tables have it.
    unlocks_by_write: bool,
}

impl<V: ClientPool> Till<V> {
    async fn costs(&self, work: Work, op: OpKind, operation: impl AsyncFn()) -> KindStats {
        let stats = counted(&self.index, op, second_looks(self.mix, work), operation).await;
        assert_eq!(stats.ops, 1);
        let (found, mix) = (Cost::from(&stats), self.mix);
        let possible = costs(mix, work);
        let by_write = found.with_unlock_by_write();
        let is_possible = possible.allow(&found)
            || !self.unlocks_by_write && by_write.iter().any(|found| possible.allow(found));
        assert!(is_possible, "{work:?} by {} with {mix:?}: {found:?} is none of {possible:?}", op.name());
        stats
    }
}

/// Runs `main` on an index that was loaded with so many keys.
fn on_loaded<V, R>(
    fabric: &dyn Fabric<V>,
    mix: IndexSpec,
    keys: u64,
    main: impl Fn(Till<V>) -> R + Clone + Send + Sync + 'static,
) where
    V: ClientPool,
    R: Future<Output = ()> + 'static,
{
    on_index(fabric, Parties::ONE, Shape::USUAL.of(mix), || {
        let main = main.clone();
        move |cluster: TestCluster<V>| {
            let main = main.clone();
            async move {
                let index = cluster.index.clone();
                let pairs = (0..keys).map(|n| (key(2 * n), key(n)));
                assert_eq!(index.bulk_load(pairs, FILL).await, Ok(keys));
                let stats = index.stats();
                assert!(
                    stats.kinds.iter().all(|kind| kind.ops == 0),
                    "a bulk load is no operation of any kind"
                );
                let unlocks_by_write = cluster.shard.capabilities().atomic_writes;
                cluster.shard.spawn(main(Till { mix, index, unlocks_by_write })).await;
            }
        }
    });
}

/// Present or absent, one by one or many at once.
pub(crate) fn cost_of_gets<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    // Odd, so that both those that are there and those that are not are among them.
    let step = 100usize.div_ceil(fabric.size().percent) | 1;
    let most = (fabric.size().percent as u64 / 2).max(4) & !1;
    for mix in fabric.size().few(kind.with_each_on()) {
        on_loaded(fabric, mix, KEYS, move |till| gets(till, step, most));
    }
}

/// Gets every so manyth key, then so many at once.
async fn gets<V: ClientPool>(till: Till<V>, step: usize, most: u64) {
    let index = &till.index;
    for n in (0..2 * KEYS).step_by(step) {
        let get = async || assert_eq!(index.get(&key(n)).await.unwrap().is_some(), n % 2 == 0);
        till.costs(Work::Get { present: n % 2 == 0 }, OpKind::Get, get).await;
    }
    // As many at once as a slow fabric, or a slow machine, brings before a READ seems to have taken too long for
    // its versions.
    let mut many = most;
    let stats = loop {
        let keys: Vec<_> = (0..many).map(|n| key(n * 96)).collect();
        let multi_get = async || assert_eq!(index.multi_get(&keys).await.unwrap().len(), keys.len());
        match counted_unless_slow(index, OpKind::Get, 0..=0, &|| multi_get().boxed_local()).await {
            Ok(stats) => break stats,
            Err(retries) if many == 2 => panic!("two gets at once looked again {retries} times"),
            Err(_) => many = (many / 4).max(2) & !1,
        }
    };
    assert_eq!((stats.ops, stats.found), (many, many));
    let each = costs(till.mix, Work::Get { present: true });
    assert!(each.times(many).allow(&Cost::from(&stats)), "{stats:?}");
    let keys: Vec<_> = (0..most).map(|n| key(n * 97)).collect();
    let found = index.multi_get(&keys).await.unwrap();
    assert!(found.iter().zip(0..most).all(|(found, n)| found.is_some() == (n % 2 == 0)));
    assert_eq!(index.multi_get::<&[u8]>(&[]).await.unwrap().len(), 0);
}

pub(crate) fn cost_of_changes<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    for mix in fabric.size().few([kind.every_mix(), kind.with_each_on()].concat()) {
        on_loaded(fabric, mix, KEYS_OF_CHANGES, changes);
    }
}

async fn changes<V: ClientPool>(till: Till<V>) {
    let index = &till.index;
    let (present, value) = (key(PRESENT), key(7));
    // Some kinds learn the way to a leaf from the first operation there.
    assert!(index.get(&present).await.unwrap().is_some());
    let update = async || assert!(index.update(&present, &value).await.unwrap());
    let update = till.costs(Work::Change(OpKind::Update), OpKind::Update, update).await;
    let put = async || index.put(&present, &value).await.unwrap();
    let put = till.costs(Work::Change(OpKind::Update), OpKind::Put, put).await;
    let (put, update) = (Cost::from(&put), Cost::from(&update));
    // In the READ of a put there may be what an insert would need, or behind its lock.
    let Cost { round_trips, reads, bytes_read, .. } = update;
    assert_eq!(Cost { round_trips, reads, bytes_read, ..put }, update, "a put of a present key is an update");
    for (op, absent) in [OpKind::Insert, OpKind::Put].into_iter().zip(ABSENT.map(key)) {
        let come = async || match op {
            OpKind::Put => index.put(&absent, &value).await.unwrap(),
            _ => assert!(index.insert(&absent, &value).await.unwrap()),
        };
        till.costs(Work::Change(OpKind::Insert), op, come).await;
        // The cache may not know it yet.
        assert!(index.get(&absent).await.unwrap().is_some());
        let remove = async || assert!(index.remove(&absent).await.unwrap());
        till.costs(Work::Change(OpKind::Remove), OpKind::Remove, remove).await;
    }
    let absent = key(ABSENT[2]);
    let insert = async || assert!(!index.insert(&present, &value).await.unwrap());
    till.costs(Work::VainChange(OpKind::Insert), OpKind::Insert, insert).await;
    let update = async || assert!(!index.update(&absent, &value).await.unwrap());
    till.costs(Work::VainChange(OpKind::Update), OpKind::Update, update).await;
    let remove = async || assert!(!index.remove(&absent).await.unwrap());
    till.costs(Work::VainChange(OpKind::Remove), OpKind::Remove, remove).await;
}

pub(crate) fn cost_of_scans<V: ClientPool>(fabric: &dyn Fabric<V>, kind: IndexKind) {
    let step = 700usize.div_ceil(fabric.size().percent);
    for mix in fabric.size().few(kind.with_each_on()) {
        on_loaded(fabric, mix, KEYS, move |till| scans(till, step));
    }
}

async fn scans<V: ClientPool>(till: Till<V>, step: usize) {
    let index = &till.index;
    for from in (0..KEYS - 200).step_by(step) {
        let start = key(2 * from);
        let scan = async || {
            let pairs: Vec<_> = index.scan(&start[..].., Some(100)).try_collect().await.unwrap();
            assert!(pairs.iter().map(|(key, _)| number(key)).eq((from..from + 100).map(|n| 2 * n)));
        };
        let stats = till.costs(Work::ScanOf100, OpKind::Scan, scan).await;
        assert_eq!(stats.entries, 100);
    }
    let nothing = async || assert_eq!(index.scan(.., Some(0)).try_collect::<Vec<_>>().await.unwrap(), []);
    let stats = counted(index, OpKind::Scan, 0..=0, nothing).await;
    assert_eq!((stats.ops, stats.round_trips), (1, 0));
}
