//! Queue pairs that break under way, on the simulated fabric: of what was in flight any prefix took effect, the last
//! WRITE in part. No operation fails for that, whatever it was doing; nothing is lost, and nothing stays behind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use farwood::index::check::Pairs;
use farwood::runtime::ClientPool;
use farwood::runtime::sim::{Fault, FaultMix, Rule, SimConfig, SimShard, Simulation};
use farwood::{AnyIndex, CheckOptions, RangeIndex};
use futures::{FutureExt, TryStreamExt};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::kit::TestShard;
use crate::kit::kind::switched;
use crate::kit::simulated::ROUGH;
use crate::kit::{IndexKind, IndexSpec, Mixes, Shape};

/// Far beyond what any part takes.
const LATE_NS: u64 = 60_000_000_000;
const NODES: u16 = 2;
const SHARDS: u16 = 2;
const CLIENTS: u64 = 4;
const KEYS_PER_CLIENT: u64 = 12;

/// The pairs of a client that are left.
type Model = BTreeMap<[u8; 8], [u8; 8]>;

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// A simulated cluster with an index, and a handle to it on every shard.
struct Site {
    sim: Simulation,
    parties: Vec<(SimShard, AnyIndex<TestShard>)>,
}

impl Site {
    fn new(seed: u64, servers: u16, recipe: IndexSpec) -> Self {
        let config = SimConfig {
            seed,
            reordering: ROUGH,
            nodes: NODES,
            shards: SHARDS,
            servers,
            bytes_per_server: 8 << 20,
            locks_per_server: 1024,
            chunk_bytes: 16 << 10,
            ..SimConfig::default()
        };
        let sim = Simulation::new(&config).unwrap();
        let mut parties = Vec::new();
        for node in 0..NODES {
            let host = &*sim.node(node);
            let tree = match node {
                0 => recipe.create(host, "t").now_or_never(),
                _ => recipe.open(host, "t").now_or_never(),
            };
            let tree = tree.expect("control services answer at once").unwrap();
            for shard in 0..SHARDS {
                let shard = sim.shard(node, shard);
                parties.push((shard.clone(), tree.attach(TestShard::Simulated(shard))));
            }
        }
        Site { sim, parties }
    }

    /// Lets one in so many verbs break its queue pair.
    fn break_one_in(&self, one_in: u32) {
        let mut rules = FaultMix::named("errors").unwrap().rules.to_vec();
        rules[0] = Rule { fault: Fault::QueuePairError(20_000), one_in, most: u32::MAX };
        self.sim.set_faults(&rules);
    }

    /// Runs `clients` to their ends.
    fn run(&self, clients: impl IntoIterator<Item = (SimShard, impl Future<Output = ()> + 'static)>) {
        let left = Rc::new(Cell::new(0));
        for (shard, client) in clients {
            left.set(left.get() + 1);
            let left = Rc::clone(&left);
            drop(shard.spawn(async move {
                client.await;
                left.set(left.get() - 1);
            }));
        }
        self.sim.run(LATE_NS, || left.get() == 0).unwrap();
    }

    /// Asserts that nothing runs any more and nothing was left behind: the tree is intact and holds `expected`, for a
    /// check and for every client. Queue pairs go on breaking.
    fn holds_exactly(&self, expected: Model) {
        let rest = |(shard, index): &(SimShard, AnyIndex<TestShard>)| {
            shard.clients_alive() == 0 && shard.chains_in_flight() == 0 && index.locks_in_use() == 0
        };
        self.sim.run(LATE_NS, || self.parties.iter().all(rest)).unwrap();
        assert!(self.parties.iter().all(|(shard, _)| shard.buffers_leased() == 0));
        self.run(self.parties.iter().cloned().map(|(shard, index)| {
            let expected = expected.clone();
            (shard, async move {
                let mut found = Pairs::default();
                let visit = |key: &[u8], value: &[u8]| assert!(found.insert(key, value));
                let report = index.check_each(&CheckOptions::default(), visit).await.unwrap();
                assert!(report.is_intact(), "{:?}", report.violations);
                assert!(found.iter().eq(expected.iter().map(|(key, value)| (&key[..], &value[..]))));
                let scanned: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
                assert!(scanned.iter().map(|(k, v)| (&k[..], &v[..])).eq(found.iter()));
                for (key, value) in &expected {
                    assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]));
                }
            })
        }));
    }
}

/// Works on keys of its own. None of its operations fails.
async fn work(index: AnyIndex<TestShard>, client: u64, seed: u64, left: Rc<RefCell<Model>>) {
    let mut rng = SmallRng::seed_from_u64(seed << 8 | client);
    let mut model = Model::new();
    for step in 0..60 {
        let n = client * KEYS_PER_CLIENT + rng.random_range(0..KEYS_PER_CLIENT);
        let (key, value) = (key(n), (client << 32 | step).to_be_bytes());
        let before = model.get(&key).copied();
        match rng.random_range(0..8) {
            0..4 => {
                index.put(&key, &value).await.unwrap();
                model.insert(key, value);
            }
            4 => {
                assert_eq!(index.insert(&key, &value).await.unwrap(), before.is_none());
                model.entry(key).or_insert(value);
            }
            5 => {
                assert_eq!(index.remove(&key).await.unwrap(), before.is_some());
                model.remove(&key);
            }
            6 => {
                let at = &key[..];
                let found: Vec<_> = index.scan(at..=at, None).try_collect().await.unwrap();
                assert_eq!(found.first().map(|(_, value)| &value[..]), before.as_ref().map(|v| &v[..]));
            }
            _ => {}
        }
        let found = index.get(&key).await.unwrap();
        assert_eq!(found.as_deref(), model.get(&key).map(|value| &value[..]), "client {client}, step {step}");
    }
    left.borrow_mut().extend(model);
}

#[test]
fn no_operation_fails() {
    for &kind in IndexKind::ALL {
        let mut retries = 0;
        let [usual, other] = kind.extremes().map(|mix| Shape::TINY.of(mix));
        let usual = if kind.trial().fails_with_queue_pairs { other } else { usual };
        for seed in 0..6 {
            for (servers, recipe) in [(1, usual), (3, usual), (2, other)] {
                let site = Site::new(seed, servers, recipe);
                site.break_one_in(40);
                let left = Rc::new(RefCell::default());
                site.run((0..).zip(&site.parties).flat_map(|(place, (shard, index))| {
                    let clients = place * CLIENTS..(place + 1) * CLIENTS;
                    clients.map(|client| (shard.clone(), work(index.clone(), client, seed, Rc::clone(&left))))
                }));
                site.holds_exactly(left.take());
                let kinds = site.parties.iter().flat_map(|(_, index)| index.stats().kinds);
                retries += kinds.map(|kind| kind.retries).sum::<u64>();
            }
        }
        assert!(retries > 5_000, "{kind:?}: {retries} retries");
    }
}

/// The nodes of a bulk load are written again, and the CAS on the root word finds out what it did.
#[test]
fn a_bulk_load_succeeds() {
    for &kind in IndexKind::ALL {
        for seed in 0..20 {
            let site = Site::new(seed, 1 + (seed % 2) as u16, Shape::TINY.usual(kind));
            site.break_one_in(10);
            let model: Model = (0..300_u64).map(|n| (n.to_be_bytes(), key(n))).collect();
            let (shard, index) = site.parties[0].clone();
            let pairs = model.clone();
            site.run([(shard, async move {
                assert_eq!(index.bulk_load(pairs, 0.8).await, Ok(300), "seed {seed}");
            })]);
            site.break_one_in(200);
            site.holds_exactly(model);
        }
    }
}

/// The first writers of an empty index compete for the root word, and again whenever it grows upwards.
#[test]
fn roots_are_put_up_once() {
    for &kind in IndexKind::ALL {
        for seed in 0..40 {
            let site = Site::new(seed, 2, Shape::TINY.usual(kind));
            site.break_one_in(8);
            site.run(site.parties.clone().into_iter().enumerate().map(|(place, (shard, index))| {
                (shard, async move {
                    for n in 0..8 {
                        let key = key(place as u64 * 8 + n);
                        index.put(&key, &key).await.unwrap();
                    }
                })
            }));
            site.break_one_in(200);
            site.holds_exactly((0..32).map(|n| (key(n), key(n))).collect());
        }
    }
}

/// Memory that others have taken the place of counts as retired no sooner than all clients see those others: not when
/// the chain that puts them there is posted, since that may come to nothing, and be posted again much later.
#[test]
fn nothing_is_retired_before_it_is_out() {
    let shape = Shape { max_value: 300, ..Shape::TINY };
    let specs = [
        switched(shape.usual(IndexKind::Chime), "indirect", true),
        switched(shape.usual(IndexKind::Smart), "in_place_leaves", false),
    ];
    let (key, short, long) = (key(7), [1; 8], [2; 200]);
    for spec in specs {
        let mut retries = 0;
        for seed in 0..200 {
            let site = Site::new(seed, 1 + (seed % 2) as u16, spec);
            let [(writer, index), .., (reader, others)] = &site.parties[..] else {
                unreachable!("two nodes")
            };
            let (first, second) = (index.clone(), index.clone());
            site.run([(writer.clone(), async move { first.put(&key, &short).await.unwrap() })]);
            assert_eq!(index.books().retired_bytes, 0);
            site.break_one_in(3);
            drop(writer.spawn(async move { assert_eq!(second.update(&key, &long).await, Ok(true)) }));
            site.sim.run(LATE_NS, || index.books().retired_bytes > 0).unwrap();
            site.sim.set_faults(&[]);
            let (others, seen) = (others.clone(), Rc::new(Cell::new(false)));
            let sees = Rc::clone(&seen);
            site.run([(reader.clone(), async move {
                sees.set(others.get(&key).await.unwrap().as_deref() == Some(&long[..]));
            })]);
            assert!(seen.get(), "{spec:?}, seed {seed}: what is retired can still be found");
            retries += index.stats().kinds.iter().map(|kind| kind.retries).sum::<u64>();
        }
        assert!(retries > 100, "{spec:?}: {retries} retries");
    }
}
