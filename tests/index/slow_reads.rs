//! READs that take longer than versions vouch for: what is read again, what is not, and that it ends. The fabric below
//! the index is the embedded one, but for what it says of the time that its READs took.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use farwood::index::KindStats;
use farwood::runtime::chain::Op;
use farwood::runtime::{Chain, ClientPool, Completion, Meter};
use farwood::sherman::{Geometry, NodeSize, Options};
use farwood::{AccessError, Dolphin, OpKind, RangeIndex, ReadError, Sherman, ShermanIndex, Verbs, dolphin};
use futures::executor::block_on;
use futures::future::LocalBoxFuture;
use futures::{FutureExt, TryStreamExt};

use crate::kit;
use crate::kit::cluster::{Seat, as_main};
use crate::kit::shard::{Ended, Steering};
use crate::kit::{NAME, TestShard, key};

const KEYS: u64 = 4000;
/// Longer than from the first of 32 writes of an entry to the last on the embedded fabric, shorter than with 2048.
const TOO_LONG_FOR_ENTRIES_NS: u32 = 100_000;

/// A shard, some of whose READs are said to have taken `span_ns`.
#[derive(Clone)]
struct Slowed {
    shard: TestShard,
    span_ns: u32,
    /// READs that are not and that are slow, alternately, from the next on: what is left of each run.
    runs: Rc<Cell<[u32; 2]>>,
    paused_ns: Rc<Cell<u64>>,
    /// Begun by another client when one pauses.
    meanwhile: Rc<Cell<Option<Meanwhile>>>,
}

type Meanwhile = Pin<Box<dyn Future<Output = ()>>>;

impl Slowed {
    fn new(shard: &TestShard, span_ns: u32) -> Self {
        let (runs, paused_ns, meanwhile) = (Rc::default(), Rc::default(), Rc::default());
        Slowed { shard: shard.clone(), span_ns, runs, paused_ns, meanwhile }
    }

    /// Yields the shard as the index sees it.
    fn steered(&self) -> TestShard {
        self.shard.clone().steered(Rc::new(self.clone()))
    }

    /// Makes as many as `slow` READs slow, after `fast` ones.
    fn slow_down(&self, fast: u32, slow: u32) {
        self.runs.set([fast, slow]);
        self.paused_ns.set(0);
    }

    fn is_slow(&self, chain: &Chain) -> bool {
        let reads =
            !chain.verbs().is_empty() && chain.verbs().iter().all(|v| matches!(v.op, Op::Read { .. }));
        let [fast, slow] = self.runs.get();
        if !reads {
            return false;
        }
        self.runs.set(if fast > 0 { [fast - 1, slow] } else { [0, slow.saturating_sub(1)] });
        fast == 0 && slow > 0
    }
}

impl Steering for Slowed {
    fn post(&self, shard: &TestShard, meter: &Meter, chain: Chain) -> LocalBoxFuture<'static, Ended> {
        let slow_ns = self.is_slow(&chain).then_some(self.span_ns);
        let posted = shard.post(meter, chain);
        let said = async move {
            let done = posted.await?;
            Ok(Completion { span_ns: slow_ns.unwrap_or(done.span_ns), ..done })
        };
        said.boxed_local()
    }

    fn pauses(&self, shard: &TestShard, ns: u64) {
        self.paused_ns.set(self.paused_ns.get() + ns);
        if let Some(client) = self.meanwhile.take() {
            drop(shard.spawn(client));
        }
    }
}

/// The tree, and how long its slow READs take.
struct Setting {
    options: Options,
    geometry: Geometry,
    fill: f64,
    span_ns: u32,
}

impl Default for Setting {
    fn default() -> Self {
        let (options, geometry) = (Options::default(), Geometry::default());
        Setting { options, geometry, fill: 0.7, span_ns: TOO_LONG_FOR_ENTRIES_NS }
    }
}

/// Runs `main` on a tree with the numbers below `KEYS`, over a fabric some of whose READs are slow.
fn slowed<R>(
    setting: Setting,
    main: impl Fn(Slowed, ShermanIndex<TestShard>) -> R + Clone + Send + Sync + 'static,
) where
    R: Future<Output = ()> + 'static,
{
    let Setting { options, geometry, fill, span_ns } = setting;
    let node = kit::node(&kit::cluster(), 1);
    let tree = block_on(Sherman::create(&node, NAME, geometry, options)).unwrap();
    let body = as_main(move |Seat { shard, .. }: Seat<TestShard>| {
        let fabric = Slowed::new(&shard, span_ns);
        let index = tree.attach(fabric.steered());
        let main = main.clone();
        async move {
            index.bulk_load((0..KEYS).map(|n| (key(n), key(n))), fill).await.unwrap();
            shard.spawn(main(fabric, index.clone())).await;
            assert_eq!((index.locks_in_use(), kit::lock_words_set(&shard).await), (0, 0));
        }
    });
    kit::run_nodes(vec![node], &kit::on_node(&body));
}

/// Counts what `operation` did with `slow` slow READs after `fast` others. Again, if a READ was slow that
/// should not have been: this thread may lose its core.
async fn counted(
    fabric: &Slowed,
    index: &ShermanIndex<TestShard>,
    (kind, retries): (OpKind, u64),
    (fast, slow): (u32, u32),
    operation: impl AsyncFn(),
) -> KindStats {
    for _ in 0..1000 {
        let before = index.stats();
        fabric.slow_down(fast, slow);
        operation().await;
        fabric.slow_down(0, 0);
        let mut during = index.stats();
        during -= &before;
        if during.kind(kind).retries == retries {
            return *during.kind(kind);
        }
    }
    panic!("it never takes {retries} retries");
}

async fn scan_100(index: &ShermanIndex<TestShard>, from: u64) {
    let pairs: Vec<_> = index.scan(&key(from)[..].., Some(100)).try_collect().await.unwrap();
    assert!(pairs.iter().map(|(key, _)| kit::number(key)).eq(from..from + 100));
    assert!(pairs.iter().all(|(key, value)| key == value));
}

/// A scan used to drop the rest of its window with each of them and read that again too: 13 READs instead of 8.
#[test]
fn a_scan_reads_again_only_the_leaves_that_were_slow() {
    slowed(Setting::default(), |fabric, index| async move {
        // Four leaves, of which so many are slow.
        for (fast, slow) in [(0, 0), (0, 1), (1, 1), (3, 1), (1, 2), (0, 4)] {
            let retries = u64::from(slow);
            let scan = async || scan_100(&index, 500).await;
            let stats = counted(&fabric, &index, (OpKind::Scan, retries), (fast, slow), scan).await;
            assert_eq!((stats.ops, stats.entries), (1, 100));
            assert_eq!((stats.reads, stats.round_trips), (4 + retries, 1 + retries), "{slow} after {fast}");
            assert_eq!(stats.cas, 0);
        }
    });
}

#[test]
fn readers_that_are_always_too_slow_pause_and_then_take_the_lock() {
    for span_ns in [TOO_LONG_FOR_ENTRIES_NS, u32::MAX] {
        slowed(Setting { span_ns, ..Setting::default() }, |fabric, index| async move {
            // Per leaf four rejected READs after the first, then one under the lock.
            let scan = async || {
                scan_100(&index, 500).await;
                assert!(fabric.paused_ns.get() >= 4 * 60 * 31 * 150 / 2, "{}", fabric.paused_ns.get());
            };
            let always = (0, u32::MAX);
            let stats = counted(&fabric, &index, (OpKind::Scan, 4 * 5), always, scan).await;
            assert_eq!((stats.reads, stats.cas, stats.round_trips), (4 + 4 * 5, 4, 1 + 4 * 6));
            // A key whose entry crosses lines: one in four does.
            let before = index.stats();
            for n in 0..100 {
                fabric.slow_down(0, u32::MAX);
                assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(n)[..]));
            }
            let mut stats = index.stats();
            stats -= &before;
            let gets = *stats.kind(OpKind::Get);
            // One is a get's anyway; then five more, the lock and the unlock.
            assert_eq!(gets.round_trips, gets.ops + 7 * gets.cas);
            assert_eq!(gets.retries, 6 * gets.cas);
            // Where only the entry's version is in doubt, header and entry are read, two READs unless they touch.
            let leaves = if fabric.span_ns == u32::MAX { 7 } else { 2 };
            let bytes = (gets.ops + (leaves - 1) * gets.cas) * 1024;
            let again = if fabric.span_ns == u32::MAX { 0 } else { 5 * 3 * 64 * gets.cas };
            assert_eq!(gets.bytes_read, bytes + again);
            let locked = if fabric.span_ns == u32::MAX { 100..=100 } else { 15..=40 };
            assert!(locked.contains(&gets.cas), "{gets:?}");
        });
    }
}

/// Finds a key whose entry crosses a line, beyond those of the header: two READs instead of one that is too slow.
async fn doubtful_key(fabric: &Slowed, index: &ShermanIndex<TestShard>) -> u64 {
    for n in 0..KEYS {
        let before = index.stats();
        fabric.slow_down(0, 1);
        index.get(&key(n)).await.unwrap();
        let mut stats = index.stats();
        stats -= &before;
        let get = stats.kind(OpKind::Get);
        // This thread may have lost its core: then another READ was slow.
        if (get.retries, get.reads) == (1, 3) {
            fabric.slow_down(0, 0);
            return n;
        }
    }
    panic!("no entry crosses a line");
}

/// Such a get used to read the leaf again, and so did all others that waited in the same line.
#[test]
fn a_get_that_was_slow_reads_its_entry_again_and_not_the_leaf() {
    slowed(Setting::default(), |fabric, index| async move {
        let n = doubtful_key(&fabric, &index).await;
        let get = async || assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(n)[..]));
        for slow in 0..6_u64 {
            let stats = counted(&fabric, &index, (OpKind::Get, slow), (0, slow as u32), get).await;
            assert_eq!((stats.reads, stats.round_trips, stats.cas), (1 + 2 * slow, 1 + slow, 0));
            // A line of header, and two of the entry.
            assert_eq!(stats.bytes_read, 1024 + 3 * 64 * slow);
        }
    });
}

#[test]
fn an_entry_that_goes_while_a_slow_reader_pauses_is_looked_for_in_the_leaf() {
    slowed(Setting::default(), |fabric, index| async move {
        let n = doubtful_key(&fabric, &index).await;
        for _ in 0..1000 {
            index.put(&key(n), &key(n)).await.unwrap();
            let before = index.stats();
            let other = index.clone();
            let remove = Box::pin(async move {
                assert!(other.remove(&key(n)).await.unwrap());
            });
            fabric.slow_down(0, 2);
            fabric.meanwhile.set(Some(remove));
            let got = index.get(&key(n)).await.unwrap();
            fabric.slow_down(0, 0);
            let mut stats = index.stats();
            stats -= &before;
            let reads = stats.kind(OpKind::Get).reads;
            match got.as_deref() {
                // The leaf, its entry (rejected), its entry, which is not there, and the leaf.
                None if reads == 1 + 2 + 2 + 1 => return,
                // The other client was late, or one more READ was slow.
                None => assert!(reads > 6, "{reads}"),
                Some(value) => assert_eq!(value, key(n)),
            }
            assert!(fabric.meanwhile.take().is_none(), "two slow READs are followed by a pause");
            while index.get(&key(n)).await.unwrap().is_some() {
                fabric.shard.pause(1000).await;
            }
        }
        panic!("no entry ever goes while a reader pauses");
    });
}

#[test]
fn a_budget_that_slow_reads_have_spent_says_so() {
    for span_ns in [TOO_LONG_FOR_ENTRIES_NS, u32::MAX] {
        let options = Options { retries_max: 3, ..Options::default() };
        slowed(Setting { options, span_ns, ..Setting::default() }, |fabric, index| async move {
            // What takes that long is in doubt for all keys.
            let n = if fabric.span_ns == u32::MAX { 0 } else { doubtful_key(&fabric, &index).await };
            let before = index.stats().kind(OpKind::Get).reads;
            fabric.slow_down(0, u32::MAX);
            let error = index.get(&key(n)).await.unwrap_err();
            let ReadError::Access(AccessError::RetriesExhausted { retries: 3, .. }) = error else {
                panic!("{error:?}")
            };
            assert!(error.to_string().contains("took longer than versions vouch for"), "{error}");
            let scan = index.scan(&key(n)[..].., Some(100)).try_collect::<Vec<_>>().await;
            assert!(scan.unwrap_err().to_string().contains("took longer"));
            fabric.slow_down(0, 0);
            assert!(index.stats().kind(OpKind::Get).reads <= before + 1 + 3 * 2);
        });
    }
}

/// Lines are atomic: what lies in one needs no version.
#[test]
fn entries_within_lines_are_not_read_again() {
    // Of nine slots the first four do not cross lines.
    let geometry = Geometry { max_key: 8, max_value: 8, size: NodeSize::Slots { leaf: 9, inner: 8 } };
    let nearly_half = Setting { geometry, fill: 4.0 / 9.0, ..Setting::default() };
    slowed(nearly_half, |fabric, index| async move {
        let scan = async || scan_100(&index, 500).await;
        counted(&fabric, &index, (OpKind::Scan, 0), (0, u32::MAX), scan).await;
        let get = async || assert!(index.get(&key(77)).await.unwrap().is_some());
        counted(&fabric, &index, (OpKind::Get, 0), (0, u32::MAX), get).await;
    });
}

/// Dolphin's leaves are read again as well, and in the end under their lock.
#[test]
fn a_leaf_of_dolphins_is_not_believed_either() {
    let node = kit::node(&kit::cluster(), 1);
    let (geometry, options) = (dolphin::Geometry::default(), dolphin::Options::default());
    let tree = block_on(Dolphin::create(&node, NAME, geometry, options)).unwrap();
    let body = as_main(move |Seat { shard, .. }: Seat<TestShard>| {
        let fabric = Slowed::new(&shard, u32::MAX);
        let index = tree.attach(fabric.steered());
        async move {
            index.put(&key(1), &key(1)).await.unwrap();
            for (slow, retries_min, cas_min) in [(1, 1, 0), (u32::MAX, 2, 1)] {
                let before = index.stats();
                fabric.slow_down(0, slow);
                assert_eq!(index.get(&key(1)).await.unwrap().as_deref(), Some(&key(1)[..]));
                fabric.slow_down(0, 0);
                let mut during = index.stats();
                during -= &before;
                let get = during.kind(OpKind::Get);
                assert!(get.retries >= retries_min && get.cas >= cas_min, "{get:?}");
            }
            assert_eq!((index.locks_in_use(), kit::lock_words_set(&shard).await), (0, 0));
        }
    });
    kit::run_nodes(vec![node], &kit::on_node(&body));
}
