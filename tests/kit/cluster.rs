//! A test cluster: shards of compute nodes of any fabric that work on one index, how they meet, and what must be true
//! when nothing runs any more. Knows no fabric: the code that runs nodes hands every shard its [`Seat`].

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};

use farwood::runtime::{Chain, ClientPool, Meter};
use farwood::{AnyIndex, CheckOptions, CheckReport, NodeContext, RangeIndex, ShermanIndex, Verbs};
use futures::future::{LocalBoxFuture, join_all};
use futures::{FutureExt, TryStreamExt};

use farwood::{AnyTree, IndexSpec};

use super::shard::TestShard;

/// Keys and values, as a test knows them.
pub(crate) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// An index whose local locks can be counted.
pub(crate) trait Locks {
    /// Counts local locks that are held or waited for.
    fn locks_in_use(&self) -> usize;
}

impl<V: Verbs> Locks for ShermanIndex<V> {
    fn locks_in_use(&self) -> usize {
        ShermanIndex::locks_in_use(self)
    }
}

impl<V: Verbs> Locks for AnyIndex<V> {
    fn locks_in_use(&self) -> usize {
        AnyIndex::locks_in_use(self)
    }
}

/// The shards that work on one index at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parties {
    /// So many shards of one compute node: they share a cache and local lock tables.
    Shards(usize),
    /// So many compute nodes of one shard each: they share nothing but the memory servers.
    Nodes(usize),
}

impl Parties {
    pub(crate) const ONE: Parties = Parties::Shards(1);
    pub(crate) const BOTH: [Parties; 2] = [Parties::Shards(2), Parties::Nodes(2)];

    pub(crate) fn count(self) -> usize {
        self.nodes() * self.shards()
    }

    pub(crate) fn nodes(self) -> usize {
        match self {
            Parties::Shards(_) => 1,
            Parties::Nodes(nodes) => nodes,
        }
    }

    /// Counts the shards of each node.
    pub(crate) fn shards(self) -> usize {
        match self {
            Parties::Shards(shards) => shards,
            Parties::Nodes(_) => 1,
        }
    }
}

/// A shard of a fabric, with its compute node.
pub(crate) struct Seat<V> {
    pub(crate) shard: V,
    /// Its compute node, the same for all shards of it.
    pub(crate) host: Arc<dyn NodeContext>,
    /// Which node that is, counted from 0.
    pub(crate) node: usize,
}

/// The function that every shard of a test runs, on what it is given there. Closures and futures of single tests end
/// here, so that all that runs them is compiled once.
pub(crate) type Main<S, T = ()> = Arc<dyn Fn(S) -> LocalBoxFuture<'static, T> + Send + Sync>;

/// Makes `main` one of all that are run in the same way.
pub(crate) fn as_main<S, R, T>(main: impl Fn(S) -> R + Send + Sync + 'static) -> Main<S, T>
where
    R: Future<Output = T> + 'static,
{
    Arc::new(move |given| main(given).boxed_local())
}

/// Seats every shard of all `parties` at a fresh index, where `main` then runs.
pub(crate) fn at_index<V: ClientPool, T: 'static>(
    parties: Parties,
    recipe: IndexSpec,
    main: Main<TestCluster<V>, T>,
) -> Main<Seat<V>, T> {
    let common = Common::new(parties);
    as_main(move |seat| {
        let (main, common) = (Arc::clone(&main), Arc::clone(&common));
        async move { main(TestCluster::enter(seat, recipe, common).await).await }
    })
}

/// Lets `main` be followed by [`TestCluster::finish`].
pub(crate) fn to_the_end<V: ClientPool>(main: Main<TestCluster<V>>) -> Main<TestCluster<V>> {
    as_main(move |cluster: TestCluster<V>| {
        let main = Arc::clone(&main);
        async move {
            main(cluster.clone()).await;
            cluster.finish().await;
        }
    })
}

/// State that all shards of a test cluster share.
pub(crate) struct Common {
    parties: Parties,
    meetings: Mutex<Meetings>,
    /// The index as each node sees it.
    trees: Vec<OnceLock<AnyTree>>,
}

#[derive(Default)]
struct Meetings {
    /// Counts meetings that have ended.
    ended: usize,
    /// Shards that have come to the next one, and wait for the others.
    come: Vec<Waker>,
}

impl Common {
    pub(crate) fn new(parties: Parties) -> Arc<Self> {
        let trees = (0..parties.nodes()).map(|_| OnceLock::new()).collect();
        Arc::new(Common { parties, meetings: Mutex::default(), trees })
    }

    /// Waits until all shards are here. They sleep meanwhile: one that looked again and again would take the core that
    /// another one, or another test, works on.
    async fn meet(&self) {
        let mut mine = None;
        poll_fn(|cx| {
            let mut meetings = self.meetings.lock().expect("no shard panics while it has it");
            let Meetings { ended, come } = &mut *meetings;
            let (meeting, place) = *mine.get_or_insert_with(|| {
                come.push(cx.waker().clone());
                (*ended, come.len() - 1)
            });
            if *ended == meeting && come.len() < self.parties.count() {
                come[place] = cx.waker().clone();
                return Poll::Pending;
            }
            if *ended == meeting {
                *ended += 1;
                come.drain(..).for_each(Waker::wake);
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// The test cluster as one of its shards sees it: that shard, and its handle to the index.
#[derive(Clone)]
pub(crate) struct TestCluster<V: ClientPool = TestShard> {
    pub(crate) shard: V,
    pub(crate) index: AnyIndex<V>,
    pub(crate) host: Arc<dyn NodeContext>,
    /// The shard's number in the cluster.
    pub(crate) place: usize,
    common: Arc<Common>,
    /// Clients that are there before any test begins: the one that runs it, where that is a client.
    clients: usize,
}

impl<V: ClientPool> TestCluster<V> {
    /// Takes a seat at the index called [`super::NAME`]: the first of all creates it, the first of every other node
    /// opens it.
    pub(crate) async fn enter(seat: Seat<V>, recipe: IndexSpec, common: Arc<Common>) -> Self {
        let Seat { shard, host, node } = seat;
        let clients = shard.clients_alive();
        let number = usize::from(shard.shard().0);
        let place = node * common.parties.shards() + number;
        let tree = &common.trees[node];
        let filled = "only the first shard of a node fills its place";
        if place == 0 {
            let created = recipe.create(&host, super::NAME).await.unwrap();
            assert!(tree.set(created).is_ok(), "{filled}");
        }
        common.meet().await;
        if place > 0 && number == 0 {
            let opened = recipe.open(&host, super::NAME).await.unwrap();
            assert!(tree.set(opened).is_ok(), "{filled}");
        }
        common.meet().await;
        let index = tree.get().expect("the first shard of the node was here").attach(shard.clone());
        TestCluster { shard, index, host, place, common, clients }
    }

    /// Counts the shards of the cluster.
    pub(crate) fn parties(&self) -> usize {
        self.common.parties.count()
    }

    /// Waits until all shards are here.
    pub(crate) async fn meet(&self) {
        self.common.meet().await;
    }

    /// Runs `count` clients in the shard's pool and waits for all.
    pub(crate) async fn clients<R, T>(&self, count: usize, client: impl Fn(usize) -> R) -> Vec<T>
    where
        R: Future<Output = T> + 'static,
        T: 'static,
    {
        self.boxed_clients(count, &|i| client(i).boxed_local()).await
    }

    async fn boxed_clients<T: 'static>(
        &self,
        count: usize,
        client: &dyn Fn(usize) -> LocalBoxFuture<'static, T>,
    ) -> Vec<T> {
        join_all((0..count).map(|i| self.shard.spawn(client(i)))).await
    }

    /// Lets everything else of this shard go first.
    pub(crate) async fn shard_pause(&self) {
        self.shard.pause(500_000).await;
    }

    /// Waits until nothing runs on any shard any more (the janitors' tasks included), and checks that nothing
    /// was left behind: no chain, no buffer, no local lock, no lock word.
    pub(crate) async fn rest(&self) {
        self.meet().await;
        at_rest_but(&self.shard, &self.index, self.clients).await;
        self.meet().await;
        // Another shard's janitor may have spoken to this one since.
        at_rest_but(&self.shard, &self.index, self.clients).await;
        assert_eq!(lock_words_set(&self.shard).await, 0, "lock words are still set");
        self.meet().await;
    }

    /// Rests, and asserts that the index is then as its own check wants it.
    pub(crate) async fn finish(&self) {
        self.rest().await;
        if self.place == 0 {
            assert_clean(&self.index.check(&CheckOptions::default()).await.unwrap());
        }
        self.rest().await;
    }

    /// Asserts that the index, which is at rest, holds exactly `expected`: by its check, by a scan and by its survey.
    pub(crate) async fn holds(&self, expected: &Model) {
        let mut found = Model::new();
        let visit = |key: &[u8], value: &[u8]| {
            let other = found.insert(key.to_vec(), value.to_vec());
            assert!(other.is_none(), "{key:?} is in the index twice");
        };
        let report = self.index.check_each(&CheckOptions::default(), visit).await.unwrap();
        assert_clean(&report);
        assert_same(&found, expected);
        let scanned = all_pairs(&self.index).await;
        assert!(scanned.is_sorted() && scanned.len() == expected.len(), "a scan says otherwise: {scanned:?}");
        assert_same(&scanned.into_iter().collect(), expected);
        assert_eq!(report.survey, self.index.survey().await.unwrap());
        assert_eq!(report.survey.keys, expected.len() as u64);
    }
}

#[track_caller]
fn assert_clean(report: &CheckReport) {
    let lines: String = report.violations.iter().map(|found| format!("{found}\n")).collect();
    assert!(report.is_intact(), "the index is damaged:\n{lines}");
    assert!(report.missing_separators.is_empty(), "{:?}", report.missing_separators);
    assert!(report.orphaned.is_empty() && report.torn.is_empty(), "{report:?}");
}

#[track_caller]
fn assert_same(found: &Model, expected: &Model) {
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "the value of {key:?}");
    }
    let stray = found.keys().find(|key| !expected.contains_key(*key));
    assert_eq!(stray, None, "a key that should not be there");
}

/// Waits until this shard has nothing to do, and checks that no buffer and no local lock is in use.
pub(crate) async fn at_rest(shard: &impl ClientPool, index: &impl Locks) {
    at_rest_but(shard, index, 0).await;
}

async fn at_rest_but(shard: &impl ClientPool, index: &impl Locks, clients: usize) {
    // A bound on patience, not on time: what is left to do takes a handful of turns.
    for _ in 0..20_000 {
        if shard.clients_alive() == clients && shard.chains_in_flight() == 0 && index.locks_in_use() == 0 {
            break;
        }
        shard.pause(50_000).await;
    }
    assert_eq!(shard.clients_alive(), clients, "clients or janitors that never end");
    assert_eq!(shard.chains_in_flight(), 0, "chains that are never executed");
    assert_eq!(index.locks_in_use(), 0, "local locks that are never given back");
    assert_eq!(shard.buffers_leased(), 0, "buffers that never came back");
}

/// Counts the words of all servers' lock regions that are not free.
pub(crate) async fn lock_words_set(shard: &impl Verbs) -> usize {
    const WORDS: u64 = 512;
    let mut set = 0;
    let regions =
        shard.control().servers().iter().flat_map(|server| [Some(server.locks), server.device_locks]);
    for region in regions.flatten().collect::<Vec<_>>() {
        for first in (0..region.count).step_by(WORDS as usize) {
            let bytes = (WORDS.min(region.count - first) * 8) as usize;
            let mut chain = Chain::with_buffer(region.base.server(), shard.lease(bytes));
            chain.read(region.base.add(first * 8), 0..bytes);
            let words = shard.submit(&Meter::default(), chain).await.unwrap().into_buf();
            set += words.chunks(8).filter(|word| word.iter().any(|&byte| byte != 0)).count();
        }
    }
    set
}

/// Yields all pairs of the index, by a scan.
pub(crate) async fn all_pairs(index: &impl RangeIndex) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
    pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}
