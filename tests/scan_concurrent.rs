//! Scans while other clients split the leaves that are being scanned: cold and warm caches, windows of one
//! leaf and of many, from both shards of a node and from two nodes.

mod kit;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farwood::{OpKind, Options, RangeIndex};
use futures::{StreamExt, TryStreamExt};
use kit::{Parties, Party, TINY, key, number, with_parties};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Keys 0, GAP, 2 * GAP, .. are there from the beginning; those in between come while scans run.
const STABLE: u64 = 120;
const GAP: u64 = 12;
const END: u64 = STABLE * GAP;

/// A scan's range and limit, and what was certainly there before it began.
struct Ask {
    start: Bound<u64>,
    end: Bound<u64>,
    limit: Option<usize>,
    certain: Vec<u64>,
}

impl Ask {
    fn draw(rng: &mut SmallRng, came: &[AtomicBool]) -> Self {
        let bound = |rng: &mut SmallRng| match rng.random_range(0..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(rng.random_range(0..END)),
            _ => Bound::Included(rng.random_range(0..END)),
        };
        let (start, end) = (bound(rng), bound(rng));
        let limit = rng.random_bool(0.4).then(|| rng.random_range(0..100));
        let certain = (0..END).filter(|n| came[*n as usize].load(Ordering::SeqCst)).collect();
        Ask { start, end, limit, certain }
    }

    fn has(&self, n: u64) -> bool {
        let after_start = match self.start {
            Bound::Unbounded => true,
            Bound::Included(start) => n >= start,
            Bound::Excluded(start) => n > start,
        };
        after_start
            && match self.end {
                Bound::Unbounded => true,
                Bound::Included(end) => n <= end,
                Bound::Excluded(end) => n < end,
            }
    }

    /// What is wrong with what the scan returned.
    fn fault(&self, pairs: &[(u64, u64)]) -> Option<String> {
        if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Some(format!("{} comes after {}", pair[1].0, pair[0].0));
        }
        if let Some((n, _)) = pairs.iter().find(|(n, _)| !self.has(*n)) {
            return Some(format!("{n} is outside the range"));
        }
        if let Some((n, value)) = pairs.iter().find(|(n, value)| *value != !n) {
            return Some(format!("{value} is no value that {n} ever had"));
        }
        if self.limit.is_some_and(|limit| pairs.len() > limit) {
            return Some(format!("{} pairs are more than {:?}", pairs.len(), self.limit));
        }
        // A scan that reached its limit has not looked beyond its last key.
        let reached = match self.limit {
            Some(limit) if pairs.len() == limit => pairs.last().map_or(0, |(n, _)| n + 1),
            _ => u64::MAX,
        };
        let missing =
            |n: &&u64| **n < reached && self.has(**n) && pairs.binary_search_by_key(*n, |(n, _)| *n).is_err();
        self.certain
            .iter()
            .find(missing)
            .map(|n| format!("{n} was there before the scan began, and is missing"))
    }

    async fn run(&self, party: &Party) -> Vec<(u64, u64)> {
        let owned = |bound: Bound<u64>| bound.map(key);
        let (start, end) = (owned(self.start), owned(self.end));
        let slice = |bound: &Bound<[u8; 8]>| match bound {
            Bound::Included(key) => Bound::Included(key.to_vec()),
            Bound::Excluded(key) => Bound::Excluded(key.to_vec()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let (start, end) = (slice(&start), slice(&end));
        let range = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
        let pairs: Vec<_> = party.index.scan(range, self.limit).try_collect().await.unwrap();
        pairs.iter().map(|(key, value)| (number(key), number(value))).collect()
    }
}

fn options() -> Vec<Options> {
    let mut all = Vec::new();
    for scan_window in [1, 2, 32] {
        for cache_bytes in [1, 2000, 1 << 20] {
            all.push(Options { scan_window, cache_bytes, ..Options::default() });
        }
    }
    all
}

#[test]
fn scans_among_splits() {
    const SCANNERS: usize = 12;
    const WRITERS: u64 = 6;
    for parties in Parties::BOTH {
        for options in options() {
            let came: Arc<Vec<AtomicBool>> = Arc::new((0..END).map(|_| AtomicBool::new(false)).collect());
            with_parties(parties, TINY, options, move |party| {
                let came = Arc::clone(&came);
                async move {
                    if party.place == 0 {
                        for n in (0..END).step_by(GAP as usize) {
                            party.index.put(&key(n), &key(!n)).await.unwrap();
                            came[n as usize].store(true, Ordering::SeqCst);
                        }
                    }
                    party.meet().await;
                    let writers =
                        (0..WRITERS).map(|w| write(party.clone(), Arc::clone(&came), 2 * w, 2 * WRITERS));
                    let writers: Vec<_> = writers.map(|writer| party.shard.spawn(writer)).collect();
                    party.clients(SCANNERS, |c| scan(party.clone(), Arc::clone(&came), c)).await;
                    futures::future::join_all(writers).await;
                    party.rest().await;
                    let expected: BTreeMap<_, _> =
                        (0..END).map(|n| (key(n).to_vec(), key(!n).to_vec())).collect();
                    kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
                }
            });
        }
    }
}

async fn write(party: Party, came: Arc<Vec<AtomicBool>>, first: u64, step: u64) {
    let mut rng = SmallRng::seed_from_u64(first);
    let mut own: Vec<u64> =
        (0..END).filter(|n| n % GAP != 0 && n % step == first + party.place as u64).collect();
    // Those that no writer would take.
    while let Some(n) = (!own.is_empty()).then(|| own.swap_remove(rng.random_range(0..own.len()))) {
        assert!(party.index.insert(&key(n), &key(!n)).await.unwrap());
        came[n as usize].store(true, Ordering::SeqCst);
    }
}

async fn scan(party: Party, came: Arc<Vec<AtomicBool>>, seed: usize) {
    let mut rng = SmallRng::seed_from_u64((party.place * 1000 + seed) as u64);
    for _ in 0..15 {
        let ask = Ask::draw(&mut rng, &came);
        let pairs = ask.run(&party).await;
        if let Some(fault) = ask.fault(&pairs) {
            panic!("{fault}: a scan of {:?} to {:?}, limit {:?}", ask.start, ask.end, ask.limit);
        }
    }
}

/// A node whose cache knows the last leaf only from before other nodes split it.
#[test]
fn a_scan_that_begins_beyond_what_the_cache_knows() {
    for scan_window in [1, 2, 32] {
        let options = Options { scan_window, ..Options::default() };
        with_parties(Parties::Nodes(2), TINY, options, |party| async move {
            let scan = async |from: u64, limit| {
                let pairs: Vec<_> = party.index.scan(&key(from)[..].., limit).try_collect().await.unwrap();
                pairs.iter().map(|(key, _)| number(key)).collect::<Vec<_>>()
            };
            if party.place == 0 {
                for n in 0..50 {
                    party.index.put(&key(n), b"").await.unwrap();
                }
            }
            party.meet().await;
            if party.place == 1 {
                assert_eq!(scan(0, None).await.len(), 50);
            }
            party.meet().await;
            if party.place == 0 {
                for n in 50..200 {
                    party.index.put(&key(n), b"").await.unwrap();
                }
            }
            party.meet().await;
            if party.place == 1 {
                for from in [199, 200, 150, 51, 50, 49, 20] {
                    let before = party.index.stats();
                    assert_eq!(scan(from, None).await, (from..200).collect::<Vec<_>>());
                    assert_eq!(scan(from, Some(3)).await, (from..200.min(from + 3)).collect::<Vec<_>>());
                    let mut stats = party.index.stats();
                    stats -= &before;
                    // Once it read the same leaf for ever, until it lost its core in the middle of a READ.
                    let stats = stats.kind(OpKind::Scan);
                    assert!(stats.round_trips < 400, "from {from}: {stats:?}");
                }
            }
            party.meet().await;
        });
    }
}

const KEYS: u64 = 60;
const ROUNDS: u64 = 40;

/// What every key's value has begun to become, and what it certainly is by now.
struct Progress {
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
}

/// Values change and keys come and go while they are scanned: what a scan returns was there at some moment.
#[test]
fn scanned_values_belong_to_their_keys_and_their_time() {
    let zeros = || (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    for parties in Parties::BOTH {
        for scan_window in [1, 32] {
            let options = Options { scan_window, ..Options::default() };
            let progress = Arc::new(Progress { begun: zeros(), ended: zeros() });
            with_parties(parties, TINY, options, move |party| {
                let progress = Arc::clone(&progress);
                async move {
                    if party.place == 0 {
                        for n in 0..KEYS {
                            party.index.put(&key(2 * n), &key(n << 32)).await.unwrap();
                        }
                    }
                    party.meet().await;
                    let writer = party.shard.spawn(change_values(party.clone(), Arc::clone(&progress)));
                    party.clients(4, |_| scan_values(party.clone(), Arc::clone(&progress))).await;
                    writer.await;
                    party.rest().await;
                }
            });
        }
    }
}

/// Even keys count upwards, each by one party; odd ones come and go.
async fn change_values(party: Party, progress: Arc<Progress>) {
    let index = &party.index;
    for i in 1..ROUNDS {
        for n in (party.place as u64..KEYS).step_by(2) {
            progress.begun[n as usize].store(i, Ordering::SeqCst);
            assert!(index.update(&key(2 * n), &key(n << 32 | i)).await.unwrap());
            progress.ended[n as usize].store(i, Ordering::SeqCst);
            if i % 2 == 1 {
                index.put(&key(2 * n + 1), &key(n)).await.unwrap();
            } else {
                assert!(index.remove(&key(2 * n + 1)).await.unwrap());
            }
        }
    }
}

async fn scan_values(party: Party, progress: Arc<Progress>) {
    let read = |counts: &[AtomicU64]| counts.iter().map(|n| n.load(Ordering::SeqCst)).collect::<Vec<_>>();
    for _ in 0..30 {
        let before = read(&progress.ended);
        let pairs: Vec<_> = party.index.scan(.., None).try_collect().await.unwrap();
        let after = read(&progress.begun);
        let pairs = pairs.iter().map(|(key, value)| (number(key), number(value)));
        let steady: Vec<_> = pairs.filter(|(n, _)| n % 2 == 0).collect();
        assert!(steady.iter().map(|(n, _)| *n).eq((0..KEYS).map(|n| 2 * n)));
        for (n, value) in steady.into_iter().map(|(n, value)| (n / 2, value)) {
            let (of, i) = (value >> 32, value & 0xffff_ffff);
            assert_eq!(of, n, "another key's value");
            let possible = before[n as usize]..=after[n as usize];
            assert!(possible.contains(&i), "{n}: {i} is not in {possible:?}");
        }
    }
}

/// A scan that nobody finishes leaves nothing behind; one that is not polled for long goes on where it was.
#[test]
fn scans_that_stop_and_scans_that_wait() {
    with_parties(Parties::Shards(1), TINY, Options::default(), |party| async move {
        for n in 0..100 {
            party.index.put(&key(2 * n), &key(n)).await.unwrap();
        }
        let mut scan = party.index.scan(.., None);
        for n in 0..30 {
            assert_eq!(number(&scan.next().await.unwrap().unwrap().0), 2 * n);
        }
        for n in 0..1000 {
            party.index.put(&key(2 * n + 1), &key(n)).await.unwrap();
        }
        let rest: Vec<u64> = scan.map(|pair| number(&pair.unwrap().0)).collect().await;
        assert!(
            rest.is_sorted() && rest.iter().filter(|n| *n % 2 == 0).copied().eq((30..100).map(|n| 2 * n))
        );
        let mut dropped = party.index.scan(.., Some(1000));
        assert_eq!(number(&dropped.next().await.unwrap().unwrap().0), 0);
        drop(dropped);
        party.rest().await;
    });
}

/// The check itself: what it must catch.
#[test]
fn the_check_sees_faults() {
    let ask =
        |limit| Ask { start: Bound::Included(2), end: Bound::Excluded(9), limit, certain: vec![2, 4, 6, 12] };
    let pairs = |numbers: &[u64]| numbers.iter().map(|n| (*n, !n)).collect::<Vec<_>>();
    assert_eq!(ask(None).fault(&pairs(&[2, 3, 4, 6])), None);
    assert_eq!(ask(Some(2)).fault(&pairs(&[2, 4])), None);
    for (limit, found, why) in [
        (None, &[2, 4][..], "6 was there"),
        (Some(3), &[2, 4][..], "6 was there"),
        (Some(2), &[2, 5][..], "4 was there"),
        (None, &[2, 4, 4, 6][..], "comes after"),
        (None, &[2, 6, 4][..], "comes after"),
        (None, &[2, 4, 6, 9][..], "outside"),
        (Some(2), &[2, 4, 6][..], "more than"),
    ] {
        let fault = ask(limit).fault(&pairs(found)).expect(why);
        assert!(fault.contains(why), "{fault}");
    }
    assert!(ask(None).fault(&[(2, !2), (4, 7), (6, !6)]).unwrap().contains("no value"));
}
