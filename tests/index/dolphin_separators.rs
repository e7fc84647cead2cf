//! Separators of Dolphin's that are put in late, or not at all: what others make of the tree meanwhile, and what a
//! client does under the lock of an inner node. The fabric below the index is the simulated one, but for chains that
//! it holds back, refuses or calls slow when it is told to. Janitors rest until a test lets them go to work.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::rc::Rc;

use farwood::dolphin::{Geometry, Options, Types};
use farwood::index::layout::range_leaf::RangeLayout;
use farwood::runtime::chain::Op;
use farwood::runtime::sim::{SimConfig, SimShard, Simulation};
use farwood::runtime::{Chain, ClientPool, Completion, FabricError, Failed, Meter};
use farwood::{CheckOptions, CheckReport, Dolphin, DolphinIndex, OpKind, RangeIndex, Verbs};
use futures::future::LocalBoxFuture;
use futures::{FutureExt, TryStreamExt};

use crate::kit::shard::{Ended, Steering};
use crate::kit::{NAME, TestShard};

/// Far beyond what any part takes.
const LATE_NS: u64 = 60_000_000_000;
/// Leaves of two slots.
const GEOMETRY: Geometry = Geometry { max_key: 8, max_value: 24, leaf_bytes: 192, types: Types::Lines };

type Index = DolphinIndex<TestShard>;
type Task = LocalBoxFuture<'static, ()>;

/// A simulated shard, and the orders of its steering: with some chains it does as it is told.
#[derive(Clone)]
struct Steered {
    shard: SimShard,
    orders: Rc<Orders>,
}

struct Orders {
    /// Verbs that a queue pair takes at once.
    verbs_max: Cell<usize>,
    /// The lock that a client is not to get yet: its place among those that it wants after it has divided a leaf.
    late_lock: Rc<Cell<Option<u32>>>,
    /// Set if all READs without an atomic are to be called slow, from the next leaf on that is divided.
    is_slow: Cell<bool>,
    has_divided: Cell<bool>,
    /// Set once a client waits for the lock that is late.
    is_waiting: Cell<bool>,
    /// Chains that were posted since the last leaf was divided.
    posted: RefCell<Vec<Posted>>,
    /// Tasks that are left to the janitor; `None` once that may work.
    deferred: RefCell<Option<Vec<Task>>>,
}

/// A chain, as far as it tells what a client is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Posted {
    /// It tries to take a lock, or to share one.
    Lock,
    /// It READs.
    Read,
    /// It WRITEs.
    Write,
}

impl Posted {
    fn of(chain: &Chain) -> Self {
        let ops = || chain.verbs().iter().map(|verb| verb.op);
        if ops().any(|op| op.is_atomic()) {
            Posted::Lock
        } else if ops().all(|op| matches!(op, Op::Read { .. })) {
            Posted::Read
        } else {
            Posted::Write
        }
    }
}

impl Steered {
    fn new(shard: SimShard) -> Self {
        let orders = Orders {
            verbs_max: Cell::new(usize::MAX),
            late_lock: Rc::default(),
            is_slow: Cell::new(false),
            has_divided: Cell::new(false),
            is_waiting: Cell::new(false),
            posted: RefCell::default(),
            deferred: RefCell::new(Some(Vec::new())),
        };
        Steered { shard, orders: Rc::new(orders) }
    }

    /// Lets the janitor go to work.
    fn let_janitor_go(&self) {
        let tasks = self.orders.deferred.take();
        tasks.into_iter().flatten().for_each(|task| self.shard.attend(task));
    }

    /// Yields the shard as the index sees it.
    fn steered(&self) -> TestShard {
        TestShard::Simulated(self.shard.clone()).steered(Rc::clone(&self.orders) as Rc<dyn Steering>)
    }
}

impl Steering for Orders {
    fn post(&self, shard: &TestShard, meter: &Meter, chain: Chain) -> LocalBoxFuture<'static, Ended> {
        let (verbs, verbs_max) = (chain.verbs().len(), self.verbs_max.get());
        if verbs > verbs_max {
            let refused = Failed::new(FabricError::ChainTooLong { verbs, verbs_max }, chain);
            return ready(Err(refused)).boxed_local();
        }
        let posted = Posted::of(&chain);
        if matches!(chain.verbs()[0].op, Op::WriteWord { word: RangeLayout::TORN, .. }) {
            self.has_divided.set(true);
            self.posted.take();
        } else if self.has_divided.get() {
            self.posted.borrow_mut().push(posted);
        }
        match self.late_lock.get() {
            Some(0) if posted == Posted::Lock && self.has_divided.get() => {
                self.is_waiting.set(true);
                return post_late(shard, Rc::clone(&self.late_lock), chain);
            }
            Some(left) if posted == Posted::Lock && self.has_divided.get() => {
                self.late_lock.set(Some(left - 1));
            }
            _ => {}
        }
        let is_slow = posted == Posted::Read && self.has_divided.get() && self.is_slow.get();
        let submission = shard.post(meter, chain);
        let said = async move {
            let done = submission.await?;
            Ok(if is_slow { Completion { span_ns: u32::MAX, ..done } } else { done })
        };
        said.boxed_local()
    }

    fn attend(&self, shard: &TestShard, task: Task) {
        match &mut *self.deferred.borrow_mut() {
            Some(tasks) => tasks.push(task),
            None => shard.attend(task),
        }
    }
}

/// Posts a chain once the lock that it wants may be taken, whether its client still waits or not.
fn post_late(
    shard: &TestShard,
    late_lock: Rc<Cell<Option<u32>>>,
    chain: Chain,
) -> LocalBoxFuture<'static, Ended> {
    let own = shard.clone();
    let late = shard.spawn(async move {
        while late_lock.get().is_some() {
            own.pause(1_000).await;
        }
        own.post(&Meter::default(), chain).await
    });
    late.boxed_local()
}

/// A simulated cluster with a tree of small leaves, and a handle to it on each compute node.
struct Site {
    sim: Simulation,
    parties: Vec<(Steered, Index)>,
}

impl Site {
    /// Makes a site with these pairs in full leaves. Each key is its own value.
    fn new(nodes: u16, types: Types, keys: &'static [&str]) -> Self {
        let config = SimConfig {
            nodes,
            bytes_per_server: 4 << 20,
            locks_per_server: 256,
            chunk_bytes: 16 << 10,
            ..SimConfig::default()
        };
        let sim = Simulation::new(&config).unwrap();
        let geometry = Geometry { types, ..GEOMETRY };
        let parties = (0..nodes).map(|node| {
            let host = &*sim.node(node);
            // Orders are about locks by their number, and pages of intents are had by CAS as well.
            let options = Options { retries_max: 100, intent_log: false, ..Options::default() };
            let tree = match node {
                0 => Dolphin::create(host, NAME, geometry, options).now_or_never(),
                _ => Dolphin::open(host, NAME, options).now_or_never(),
            };
            let tree = tree.expect("control services answer at once").unwrap();
            let fabric = Steered::new(sim.shard(node, 0));
            (fabric.clone(), tree.attach(fabric.steered()))
        });
        let site = Site { parties: parties.collect(), sim };
        site.run(0, |index| async move {
            let pairs = keys.iter().map(|key| (key.as_bytes(), key.as_bytes()));
            assert_eq!(index.bulk_load(pairs, 1.0).await, Ok(keys.len() as u64));
            let leaves = index.survey().await.unwrap().leaves;
            assert_eq!(leaves, keys.len() as u64 / 2, "leaves have two slots");
        });
        site
    }

    fn orders(&self, node: usize) -> &Orders {
        &self.parties[node].0.orders
    }

    /// Runs a client of a compute node to its end.
    fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        node: usize,
        client: impl FnOnce(Index) -> F,
    ) -> T {
        let (fabric, index) = self.parties[node].clone();
        self.sim.block_on(&fabric.shard, self.sim.now() + LATE_NS, client(index)).unwrap()
    }

    fn insert(&self, node: usize, name: &'static str) {
        self.run(node, move |index| async move {
            assert!(index.insert(name.as_bytes(), name.as_bytes()).await.unwrap());
        });
    }

    /// Lets a client insert a key, of which the leaf is divided, and get all locks that it wants for the separator but
    /// the `nth`, from 0 on, and what comes after that: until [`Site::let_go`].
    fn insert_and_hold_back(&self, node: usize, name: &'static str, nth: u32) {
        let (fabric, index) = self.parties[node].clone();
        self.orders(node).late_lock.set(Some(nth));
        drop(fabric.shard.spawn(async move {
            assert!(index.insert(name.as_bytes(), name.as_bytes()).await.unwrap());
        }));
        self.sim.run(self.sim.now() + LATE_NS, || self.orders(node).is_waiting.get()).unwrap();
    }

    /// Lets a compute node's janitor go to work, and waits for it.
    fn let_janitor_go(&self, node: usize) {
        let fabric = &self.parties[node].0;
        fabric.let_janitor_go();
        self.sim.run(self.sim.now() + LATE_NS, || fabric.shard.clients_alive() == 0).unwrap();
    }

    /// Lets clients have their locks, and janitors go to work, until nothing runs any more.
    fn let_go(&self) {
        self.parties.iter().for_each(|(fabric, _)| fabric.orders.late_lock.set(None));
        (0..self.parties.len()).for_each(|node| self.let_janitor_go(node));
        assert!(self.parties.iter().all(|(_, index)| index.locks_in_use() == 0));
    }

    /// Asserts that the tree holds exactly these keys, for a check and for clients of each compute node. Yields the
    /// report of the check, which comes first.
    fn holds(&self, keys: &'static [&str]) -> CheckReport {
        let report = self.run(0, |index| async move { index.check(&CheckOptions::default()).await.unwrap() });
        assert!(report.is_intact(), "{:?}", report.violations);
        assert_eq!(report.survey.keys, keys.len() as u64);
        for node in 0..self.parties.len() {
            self.run(node, move |index| async move {
                for name in keys {
                    let found = index.get(name.as_bytes()).await.unwrap();
                    assert_eq!(found.as_deref(), Some(name.as_bytes()), "{name}");
                }
                let found: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
                assert!(found.iter().map(|(key, _)| &key[..]).eq(keys.iter().map(|name| name.as_bytes())));
            });
        }
        report
    }

    /// Gets a key that is not there; yields the round trips that it takes.
    fn get_absent(&self, node: usize, name: &'static str) -> u64 {
        self.run(node, move |index| async move {
            let before = index.stats();
            assert_eq!(index.get(name.as_bytes()).await.unwrap(), None);
            let mut stats = index.stats();
            stats -= &before;
            stats.kind(OpKind::Get).round_trips
        })
    }
}

/// A client divides the leaf from `kxm` on at `kyd`, and before its separator is in another one divides the right half:
/// keys between `ky` and `kyd` are of the first leaf, which is the last one below `kx`, and not of the half that is
/// divided then.
#[test]
fn a_new_node_leads_to_the_leaf_before_one_that_has_no_slot_yet() {
    for types in [Types::Lines, Types::Tiny] {
        let site = Site::new(2, types, &["kxa", "kxc", "kxm", "kyb"]);
        site.insert_and_hold_back(0, "kyd", 0);
        for name in ["kyf", "kyh"] {
            site.insert(1, name);
        }
        let report = site.holds(&["kxa", "kxc", "kxm", "kyb", "kyd", "kyf", "kyh"]);
        assert_eq!((report.survey.leaves, report.missing_separators.total()), (4, 1));
        site.let_go();
        let report = site.holds(&["kxa", "kxc", "kxm", "kyb", "kyd", "kyf", "kyh"]);
        assert_eq!(report.missing_separators.total(), 0);
    }
}

/// As before, and the node below `kx` has moved: the slot above leads to where it was.
#[test]
fn the_leaf_before_is_looked_for_where_a_node_has_moved_to() {
    let site = Site::new(3, Types::Tiny, &["kxa", "kxc", "kxm", "kyb"]);
    site.insert_and_hold_back(0, "kyd", 0);
    site.insert_and_hold_back(2, "kxb", 1);
    for name in ["kyf", "kyh"] {
        site.insert(1, name);
    }
    let report = site.holds(&["kxa", "kxb", "kxc", "kxm", "kyb", "kyd", "kyf", "kyh"]);
    assert_eq!((report.survey.leaves, report.missing_separators.total()), (5, 1));
    assert_eq!(report.unfinished.total(), 1, "the node has moved");
    site.let_go();
    let report = site.holds(&["kxa", "kxb", "kxc", "kxm", "kyb", "kyd", "kyf", "kyh"]);
    assert_eq!((report.missing_separators.total(), report.unfinished.total()), (0, 0));
}

/// The leaf before `axm` is divided at `ad`, and before that separator is in the right half is divided at `ah`: the end
/// of `ax` leads to the first leaf still, and may be another's by now. So the new leaf is asked for its end under the
/// node's lock, once; if that READ is in doubt, the janitor sees to it, and no client has to come by before.
#[test]
fn under_the_lock_of_an_inner_node_a_leaf_is_read_once_and_not_waited_for() {
    for is_slow in [false, true] {
        let site = Site::new(2, Types::Lines, &["aa", "axl", "axm", "axn"]);
        site.insert_and_hold_back(0, "ad", 0);
        site.orders(1).is_slow.set(is_slow);
        site.insert(1, "ah");
        let posted = site.orders(1).posted.take();
        assert!(posted.ends_with(&[Posted::Lock, Posted::Read, Posted::Write]), "{posted:?}");
        if is_slow {
            site.orders(1).is_slow.set(false);
            site.let_janitor_go(1);
        }
        assert_eq!(site.get_absent(1, "axa"), 1, "is_slow: {is_slow}");
        site.let_go();
        site.holds(&["aa", "ad", "ah", "axl", "axm", "axn"]);
    }
}

/// A queue pair takes no chain that writes a leaf whole, so that a leaf cannot be divided: its right half is there, but
/// no slot is to lead there.
#[test]
fn a_split_that_never_takes_effect_gets_no_separator() {
    let site = Site::new(1, Types::Lines, &["kb", "kd", "kf", "kh"]);
    site.orders(0).verbs_max.set(3);
    site.run(0, |index| async move {
        let error = index.insert(b"kc", b"kc").await.unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    });
    site.let_go();
    site.orders(0).verbs_max.set(usize::MAX);
    site.holds(&["kb", "kd", "kf", "kh"]);
    site.insert(0, "kc");
    site.holds(&["kb", "kc", "kd", "kf", "kh"]);
}
