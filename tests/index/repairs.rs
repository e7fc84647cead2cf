//! Repairs: memory that a compute node had in its lists when it died is given back, in small pieces too, and is used
//! again, also by a compute node whose caches lead there.

use farwood::runtime::Control;
use farwood::runtime::sim::{SimConfig, SimShard, Simulation};
use farwood::{AnyIndex, CheckOptions, RangeIndex, Verbs};
use futures::FutureExt;

use crate::kit::{IndexKind, IndexSpec, Shape, TestShard, key};

pub(crate) const KEYS: u64 = 4000;
/// Keys that are removed, or stay, lie next to each other, so many at a time.
const SECTION: u64 = 200;
/// Far beyond what any part takes.
const LATE_NS: u64 = 60_000_000_000;
/// The smallest piece of a chunk that servers hand out as such.
const PART_BYTES_MIN: u64 = 4096;

pub(crate) type Index = AnyIndex<TestShard>;

pub(crate) fn is_removed(n: u64) -> bool {
    n / SECTION % 2 == 1
}

/// A simulated cluster with an index.
pub(crate) struct Site {
    sim: Simulation,
    spec: IndexSpec,
}

impl Site {
    pub(crate) fn new(kind: IndexKind) -> Self {
        let config = SimConfig {
            servers: 2,
            shards: 2,
            bytes_per_server: 8 << 20,
            chunk_bytes: 16 << 10,
            finds_deaths: true,
            ..SimConfig::default()
        };
        let spec = Shape::USUAL.usual(kind);
        Site { sim: Simulation::new(&config).unwrap(), spec }
    }

    /// Opens the index on both shards of a new node, which takes no memory before it writes; or creates it.
    pub(crate) fn attached(&self, creates: bool) -> [(SimShard, Index); 2] {
        self.attached_with(creates, creates)
    }

    /// Opens the index, or creates it, with an intent log or without.
    pub(crate) fn attached_with(&self, creates: bool, intent_log: bool) -> [(SimShard, Index); 2] {
        let node = if creates { 0 } else { self.sim.add_node(None) };
        let (host, spec) =
            (self.sim.node(node), self.spec.with_options(|options| options.intent_log = intent_log));
        let tree = match creates {
            true => spec.create(&*host, "t").now_or_never(),
            false => spec.open(&*host, "t").now_or_never(),
        };
        let tree = tree.expect("control services answer at once").unwrap();
        [0, 1].map(|shard| {
            let shard = self.sim.shard(node, shard);
            (shard.clone(), tree.attach(TestShard::Simulated(shard)))
        })
    }

    /// Runs a client to its end.
    pub(crate) fn on<T: 'static>(&self, shard: &SimShard, client: impl Future<Output = T> + 'static) -> T {
        self.sim.block_on(shard, self.sim.now() + LATE_NS, client).unwrap()
    }

    /// Lets janitors come to their ends, and what is retired become free.
    pub(crate) fn rest(&self, shard: &SimShard) {
        for _ in 0..50 {
            shard.control().want_epoch();
            self.on(shard, shard.pause(2_000_000));
        }
    }

    /// Lets a node die, with all that it has in its lists.
    pub(crate) fn kill(&self, node: &(SimShard, Index)) {
        let place =
            (0..self.sim.nodes()).find(|place| self.sim.shard(*place, 0).node_id() == node.0.node_id());
        self.sim.stop_node(place.expect("it is one of them"));
        self.sim.cluster().died(node.0.node_id());
    }

    pub(crate) fn handed_out(&self) -> u64 {
        let usage = self.sim.cluster().usage().now_or_never().expect("it answers at once").unwrap();
        usage.iter().map(|server| server.chunk_bytes).sum()
    }

    /// Puts keys in, in an order in which neighbours are not neighbours in memory.
    pub(crate) fn insert(&self, (shard, index): &(SimShard, Index), is_new: fn(u64) -> bool) {
        let index = index.clone();
        self.on(shard, async move {
            for n in (0..KEYS).map(|n| n * 1571 % KEYS).filter(|n| is_new(*n)) {
                assert!(index.insert(&key(n), &key(n)).await.unwrap());
            }
        });
    }

    pub(crate) fn remove(&self, (shard, index): &(SimShard, Index)) {
        let index = index.clone();
        self.on(shard, async move {
            for n in (0..KEYS).filter(|n| is_removed(*n)) {
                assert!(index.remove(&key(n)).await.unwrap());
            }
        });
        self.rest(shard);
    }

    /// Gives back what is lost. Yields how many bytes that are, and how many small pieces are free then.
    pub(crate) fn repair(&self, (shard, index): &(SimShard, Index)) -> (u64, usize) {
        let index = index.clone();
        self.on(shard, async move {
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact() && report.orphaned.is_empty(), "{report:?}");
            let lost = report.memory.as_ref().expect("the servers say what they have handed out").clone();
            let freed = index.give_back(&report).await.unwrap();
            let report = index.check(&CheckOptions::default()).await.unwrap();
            let left = report.memory.expect("they say it again");
            assert_eq!(left.unreached_bytes, lost.led_to_bytes, "nothing else is left");
            assert_eq!(left.rest_bytes, lost.rest_bytes + freed);
            assert!(left.led_to_bytes <= freed / 10, "{} stay of {freed}", left.led_to_bytes);
            (freed, left.rests.iter().filter(|(_, bytes)| *bytes < PART_BYTES_MIN).count())
        })
    }

    pub(crate) fn has_all(&self, (shard, index): &(SimShard, Index)) {
        let index = index.clone();
        self.on(shard, async move {
            for n in 0..KEYS {
                assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(n)[..]), "key {n}");
            }
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.is_intact(), "{:?}", report.violations);
        });
    }
}

#[test]
fn free_nodes_of_a_dead_process_are_given_back_however_small() {
    for &kind in IndexKind::ALL {
        let site = Site::new(kind);
        let [victim, _other] = site.attached(true);
        site.insert(&victim, |_| true);
        site.remove(&victim);
        let handed_out = site.handed_out();
        site.kill(&victim);
        let (freed, small) = site.repair(&site.attached(false)[0]);
        assert!(
            freed > handed_out / 8 && small > 0,
            "{kind}: {freed} bytes of {handed_out}, {small} small pieces"
        );
        let [next, _other] = site.attached(false);
        site.insert(&next, is_removed);
        site.has_all(&next);
        // A leaf is made beside its neighbour, if its server has a chunk left.
        let (chunk_bytes, more) = (16 << 10, site.handed_out() - handed_out);
        assert!(more <= chunk_bytes, "{kind}: {more} bytes more, though what was given back is enough");
    }
}

/// A compute node has copies of inner nodes that lead to leaves which another one has merged since, and which that one
/// had in its lists when it died. Then they are any nodes.
#[test]
fn who_repairs_may_have_worked_on_the_index_before() {
    for &kind in IndexKind::ALL {
        let site = Site::new(kind);
        let [victim, _other] = site.attached(true);
        site.insert(&victim, |_| true);
        let [first, second] = site.attached(false);
        site.has_all(&first);
        drop(first);
        site.remove(&victim);
        site.kill(&victim);
        site.repair(&second);
        site.insert(&second, is_removed);
        site.has_all(&second);
    }
}
