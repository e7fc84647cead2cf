//! Costs of Dolphin's operations on average, how full its leaves are, and what clients that update one leaf do at the
//! same time. The table for each operation is in `kit/conformance/costs/dolphin.rs`. On the simulated fabric, where no
//! READ is slow by chance.

use std::cell::Cell;
use std::rc::Rc;

use farwood::index::KindStats;
use farwood::index::layout::radix::Child;
use farwood::index::layout::range_leaf::RangeLayout;
use farwood::runtime::{Chain, Meter, RemotePtr, ServerId};
use farwood::{CheckOptions, IndexKind, OpKind, RangeIndex, Verbs};
use futures::TryStreamExt;

use crate::kit::TestShard;
use crate::kit::cluster::Parties;
use crate::kit::kind::{Shape, switched};
use crate::kit::simulated::{calm, simulate_parties};
use crate::kit::{TestCluster, key, scatter};

const KEYS: u64 = 20_000;
const LOAD: f64 = 0.8;
/// Operations whose mean is taken, on keys all over the tree.
const OPS: u64 = 500;
const STEP: u64 = KEYS / OPS;

type Index = farwood::AnyIndex<TestShard>;

/// Runs `main` on usual nodes, in each party, without those techniques.
fn on_usual<R>(
    parties: Parties,
    off: &[&str],
    main: impl Fn(TestCluster) -> R + Clone + Send + Sync + 'static,
) where
    R: Future<Output = ()> + 'static,
{
    let usual = Shape::USUAL.usual(IndexKind::Dolphin);
    let recipe = off.iter().fold(usual, |recipe, name| switched(recipe, name, false));
    simulate_parties(&calm(parties), parties, recipe, move |cluster: TestCluster| {
        let main = main.clone();
        async move {
            let client = cluster.clone();
            cluster.clients(1, move |_| main(client.clone())).await;
            cluster.meet().await;
        }
    });
}

/// Loads the even numbers below 2 * KEYS.
async fn load(cluster: &TestCluster) {
    if cluster.place == 0 {
        let pairs = (0..KEYS).map(|n| (key(2 * n), key(n)));
        assert_eq!(cluster.index.bulk_load(pairs, LOAD).await, Ok(KEYS));
    }
    cluster.meet().await;
}

/// Counts what `work` costs in operations of this kind.
async fn counted(index: &Index, kind: OpKind, work: impl Future<Output = ()>) -> KindStats {
    let before = index.stats();
    work.await;
    let mut stats = index.stats();
    stats -= &before;
    *stats.kind(kind)
}

async fn get_all(index: &Index) {
    for n in 0..KEYS {
        assert_eq!(index.get(&key(2 * n)).await.unwrap().as_deref(), Some(&key(n)[..]));
    }
}

#[test]
fn gets_take_one_round_trip_and_writes_two_or_without_fused_three() {
    for (off, update, other) in [
        (&[][..], 2, 2),
        (&["shared_updates"], 2, 2),
        (&["fused"], 2, 3),
        (&["fused", "shared_updates"], 3, 3),
    ] {
        on_usual(Parties::ONE, off, move |cluster| async move {
            load(&cluster).await;
            let index = &cluster.index;
            get_all(index).await;
            let gets = counted(index, OpKind::Get, get_all(index)).await;
            assert_eq!((gets.round_trips, gets.retries, gets.bytes_read), (KEYS, 0, 1024 * KEYS));
            let updates = counted(index, OpKind::Update, async {
                for n in 0..OPS {
                    assert!(index.update(&key(2 * STEP * n), &key(n)).await.unwrap());
                }
            });
            assert_eq!(updates.await.round_trips, update * OPS, "{off:?}");
            let odd = |n: u64| key(2 * STEP * n + 1);
            let inserts = counted(index, OpKind::Insert, async {
                for n in 0..OPS {
                    assert!(index.insert(&odd(n), &key(n)).await.unwrap());
                }
            });
            assert_eq!(inserts.await.round_trips, other * OPS, "no leaf is full yet");
            let removes = counted(index, OpKind::Remove, async {
                for n in 0..OPS {
                    assert!(index.remove(&odd(n)).await.unwrap());
                }
            });
            assert_eq!(removes.await.round_trips, other * OPS);
        });
    }
}

/// Trees that grow from nothing: the cost of inserts with all splits, and how full the leaves are then.
#[test]
fn inserts_take_little_more_than_two_round_trips_and_fill_half_of_the_slots() {
    let dense = |n: u64| key(n).to_vec();
    let descending = |n: u64| key(KEYS - n).to_vec();
    let random = |n: u64| key(scatter(n)).to_vec();
    type KeyOf = fn(u64) -> Vec<u8>;
    for (name, key_of) in [("dense", dense as KeyOf), ("descending", descending), ("random", random)] {
        on_usual(Parties::ONE, &[], move |cluster| async move {
            let index = &cluster.index;
            let inserts = counted(index, OpKind::Insert, async {
                for n in 0..KEYS {
                    assert!(index.insert(&key_of(n), &key(n)).await.unwrap());
                }
            });
            let round_trips = inserts.await.round_trips as f64 / KEYS as f64;
            let shape = index.survey().await.unwrap();
            assert!((2.0..=2.2).contains(&round_trips), "{name}: {round_trips}");
            assert!(shape.load_factor >= 0.5, "{name}: {shape:?}");
            assert_eq!(shape.keys, KEYS);
        });
    }
}

/// Many clients append at once, a little before or behind each other: most slots of leaves are used all the same.
#[test]
fn dense_keys_that_many_clients_append_fill_most_slots() {
    on_usual(Parties::Shards(2), &[], |cluster| async move {
        const CLIENTS: usize = 64;
        let drawn = Rc::new(Cell::new(cluster.place as u64));
        let client = |_| {
            let (index, drawn) = (cluster.index.clone(), drawn.clone());
            async move {
                while let n @ 0..KEYS = drawn.replace(drawn.get() + 2) {
                    assert!(index.insert(&key(n), &key(n)).await.unwrap());
                }
            }
        };
        cluster.clients(CLIENTS, client).await;
        cluster.meet().await;
        let shape = cluster.index.survey().await.unwrap();
        assert_eq!(shape.keys, KEYS);
        // 27 bytes a pair are a leaf of 1 KiB for 38 of 50.
        assert!(shape.load_factor >= 0.78, "{shape:?}");
        cluster.meet().await;
    });
}

/// A node whose cache knows less of the tree than another node has made of it learns that: what leads to the left of
/// where keys are is dropped.
#[test]
fn what_another_node_has_appended_is_found_soon() {
    const APPENDED: u64 = 10_000;
    on_usual(Parties::Nodes(2), &[], move |cluster| async move {
        let (index, is_reader) = (&cluster.index, cluster.place == 1);
        load(&cluster).await;
        if is_reader {
            get_all(index).await;
        }
        cluster.meet().await;
        if !is_reader {
            for n in 0..APPENDED {
                index.put(&key(2 * KEYS + n), &key(n)).await.unwrap();
            }
        }
        cluster.meet().await;
        if is_reader {
            // Over the nodes that have changed, and not from leaf to leaf.
            let first = counted(index, OpKind::Get, async {
                assert!(index.get(&key(2 * KEYS + APPENDED - 1)).await.unwrap().is_some());
            });
            let round_trips = first.await.round_trips;
            assert!(round_trips < 20, "{round_trips}");
            for turn in 0..2 {
                let gets = counted(index, OpKind::Get, async {
                    for n in (0..APPENDED).rev() {
                        assert!(index.get(&key(2 * KEYS + n)).await.unwrap().is_some(), "{n}");
                    }
                });
                let round_trips = gets.await.round_trips;
                assert!(round_trips - APPENDED < [APPENDED / 10, 1][turn], "turn {turn}: {round_trips}");
            }
        }
        cluster.meet().await;
    });
}

/// A get that comes to a leaf which another node has split reads the leaf behind, or else all nodes from the root on.
/// The next ones know the way.
#[test]
fn who_comes_to_a_leaf_that_was_split_goes_on_from_there_or_from_the_root() {
    for backtracks in [true, false] {
        let off: &[&str] = if backtracks { &[] } else { &["backtracking"] };
        on_usual(Parties::Nodes(2), off, move |cluster| async move {
            const NEAR: u64 = 100;
            let (index, is_reader) = (&cluster.index, cluster.place == 1);
            load(&cluster).await;
            if is_reader {
                get_all(index).await;
            }
            cluster.meet().await;
            if !is_reader {
                for n in 0..NEAR {
                    assert!(index.insert(&key(2 * n + 1), &key(n)).await.unwrap());
                }
            }
            cluster.meet().await;
            if is_reader {
                let height = u64::from(index.survey().await.unwrap().height);
                let mut found = std::collections::BTreeSet::new();
                for n in 0..2 * NEAR {
                    let get = counted(index, OpKind::Get, async {
                        assert!(index.get(&key(n)).await.unwrap().is_some());
                    });
                    found.insert(get.await.round_trips);
                }
                let longer = if backtracks { 2 } else { 1 + height };
                assert!(found.remove(&1) && found.contains(&longer), "{found:?}, height {height}");
                assert!(backtracks || found.len() == 1, "{found:?}");
                get_all(index).await;
                let gets = counted(index, OpKind::Get, get_all(index)).await;
                assert_eq!(gets.round_trips, KEYS);
            }
            cluster.meet().await;
        });
    }
}

/// With `deep_special` leaves hold what the paper's do: several are full of dense integers, and of keys at random each
/// has its own.
#[test]
fn deep_special_nodes_lead_to_leaves_of_one_prefix() {
    let dense = |n: u64| key(n).to_vec();
    let random = |n: u64| key(scatter(n)).to_vec();
    type KeyOf = fn(u64) -> Vec<u8>;
    for (key_of, is_dense) in [(dense as KeyOf, true), (random, false)] {
        for loads in [false, true] {
            let recipe = switched(Shape::USUAL.usual(IndexKind::Dolphin), "deep_special", true);
            simulate_parties(
                &calm(Parties::Nodes(2)),
                Parties::Nodes(2),
                recipe,
                move |cluster| async move {
                    const KEYS: u64 = 2_000;
                    let (index, is_first) = (&cluster.index, cluster.place == 0);
                    let mut pairs: Vec<_> = (0..KEYS).map(|n| (key_of(n), key(n))).collect();
                    pairs.sort_unstable();
                    if loads && is_first {
                        assert_eq!(index.bulk_load(pairs.clone(), 1.0).await, Ok(KEYS));
                    }
                    cluster.meet().await;
                    if !loads {
                        let client = |_| {
                            let (index, own) =
                                (index.clone(), pairs.iter().skip(cluster.place).step_by(2).cloned());
                            let own: Vec<_> = own.collect();
                            async move {
                                for (key, value) in own {
                                    assert!(index.insert(&key, &value).await.unwrap());
                                }
                            }
                        };
                        cluster.clients(1, client).await;
                    }
                    cluster.meet().await;
                    let shape = index.survey().await.unwrap();
                    let leaves = if is_dense { KEYS / 256 * 6..=KEYS / 25 } else { KEYS..=KEYS };
                    assert!(shape.keys == KEYS && leaves.contains(&shape.leaves), "{shape:?}");
                    let found: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
                    let found = found.iter().map(|(key, value)| (&key[..], &value[..]));
                    assert!(found.eq(pairs.iter().map(|(key, value)| (&key[..], &value[..]))));
                    cluster.meet().await;
                },
            );
        }
    }
}

/// Clients of two shards update one leaf: they share its lock, and no client waits for another.
#[test]
fn clients_update_one_leaf_at_the_same_time() {
    const UPDATES: u64 = 400;
    for shares in [true, false] {
        let off: &[&str] = if shares { &[] } else { &["shared_updates"] };
        on_usual(Parties::Shards(2), off, move |cluster| async move {
            load(&cluster).await;
            for n in 0..UPDATES {
                assert!(cluster.index.update(&key(2 * cluster.place as u64), &key(n)).await.unwrap());
            }
            cluster.meet().await;
            let stats = cluster.index.stats();
            let updates = stats.kind(OpKind::Update);
            if shares {
                assert!(stats.shared_locks.shared > UPDATES / 2, "{:?}", stats.shared_locks);
                assert!(updates.retries < UPDATES / 4, "{updates:?}");
            } else {
                assert_eq!(stats.shared_locks.shared, 0);
            }
            for place in 0..2 {
                assert_eq!(cluster.index.get(&key(2 * place)).await.unwrap().unwrap(), key(UPDATES - 1));
            }
        });
    }
}

/// A leaf that begins below one slot is divided among keys that have none above them: their new node has to lead to
/// that leaf from its beginning on, which is the last one below the slot before.
#[test]
fn a_new_node_leads_to_the_leaf_before_which_is_the_last_below_another() {
    on_usual(Parties::ONE, &[], |cluster| async move {
        let index = &cluster.index;
        // The second leaf begins with the last three of `kx`.
        let mut keys: Vec<[u8; 3]> = (0..53).map(|n| [b'k', b'x', n]).collect();
        keys.extend((0..47).map(|n| [b'k', b'y', 2 * n]));
        let pairs = keys.iter().map(|name| (*name, key(u64::from(name[2]))));
        assert_eq!(index.bulk_load(pairs, 1.0).await, Ok(100));
        keys.push([b'k', b'y', 41]);
        assert!(index.insert(&keys[100], &key(41)).await.unwrap());
        let shape = index.survey().await.unwrap();
        assert_eq!((shape.leaves, shape.inner_nodes), (3, 4), "{shape:?}");
        let get_all = async || {
            for name in &keys {
                let found = index.get(name).await.unwrap();
                assert_eq!(found.as_deref(), Some(&key(u64::from(name[2]))[..]), "{name:?}");
            }
        };
        get_all().await;
        let gets = counted(index, OpKind::Get, get_all()).await;
        assert_eq!((gets.round_trips, gets.retries), (101, 0), "each leaf has its slots");
    });
}

/// Windows of a scan without a limit are of 2, 4, 8, 16 and then of 32 leaves, whichever nodes lead to them.
#[test]
fn a_scan_reads_windows_of_leaves() {
    on_usual(Parties::ONE, &[], |cluster| async move {
        load(&cluster).await;
        let index = &cluster.index;
        get_all(index).await;
        let leaves = index.survey().await.unwrap().leaves;
        let scan = counted(index, OpKind::Scan, async {
            let pairs: Vec<_> = index.scan(.., None).try_collect().await.unwrap();
            assert_eq!(pairs.len() as u64, KEYS);
        });
        let scan = scan.await;
        // There are 30 leaves in the first four. Before them: whether there is a leaf for the empty key.
        let windows = 4 + (leaves - 30).div_ceil(32);
        let costs = (scan.round_trips, scan.reads, scan.retries);
        assert_eq!(costs, (2 + windows, 2 + 2 * leaves, 0), "{leaves} leaves");
    });
}

/// Leaves that were emptied stay. A scan goes over them in windows all the same, however few pairs it wants.
#[test]
fn a_scan_goes_over_empty_leaves_in_windows() {
    on_usual(Parties::ONE, &[], |cluster| async move {
        load(&cluster).await;
        let index = &cluster.index;
        for n in 0..KEYS - 1 {
            assert!(index.remove(&key(2 * n)).await.unwrap());
        }
        let leaves = index.survey().await.unwrap().leaves;
        for limit in [1, 30, 100] {
            let scan = counted(index, OpKind::Scan, async {
                let pairs: Vec<_> = index.scan(key(0).., Some(limit)).try_collect().await.unwrap();
                assert_eq!(pairs.len(), 1);
            });
            let round_trips = scan.await.round_trips;
            assert!(
                round_trips <= 6 + leaves.div_ceil(32),
                "limit {limit}: {round_trips} over {leaves} leaves"
            );
        }
    });
}

/// The first leaf of keys that share seven bytes is divided: the seven nodes below the root are written in one round
/// trip.
#[test]
fn new_nodes_are_written_in_parallel() {
    on_usual(Parties::ONE, &[], |cluster| async move {
        let index = &cluster.index;
        let name = |last: u8| [b'k', b'e', b'y', b'k', b'e', b'y', b'k', last];
        for last in (0..100).step_by(2) {
            assert!(index.insert(&name(last), &key(7)).await.unwrap());
        }
        let inner_nodes = index.survey().await.unwrap().inner_nodes;
        let insert = counted(index, OpKind::Insert, async {
            assert!(index.insert(&name(51), &key(7)).await.unwrap());
        });
        // Lock and leaf, right half, left half; the root with its lock, the new nodes, the root's slot.
        assert_eq!(insert.await.round_trips, 6);
        let shape = index.survey().await.unwrap();
        assert_eq!((shape.leaves, shape.inner_nodes - inner_nodes), (2, 7));
    });
}

/// Lists the leaves in a server's memory, with their bounds.
async fn leaves_of(shard: &impl Verbs) -> Vec<(RemotePtr, Vec<u8>, Option<Vec<u8>>)> {
    const LEAF_BYTES: usize = 1024;
    let layout = RangeLayout::new(LEAF_BYTES, 1, 8, 8).unwrap();
    let mut leaves = Vec::new();
    for at in (0..2 << 20).step_by(LEAF_BYTES) {
        let at = RemotePtr::new(ServerId(0), at);
        let Ok(image) = shard.read(&Meter::default(), at, LEAF_BYTES).await else { continue };
        if let Ok(leaf) = layout.parse(&image.into_buf()) {
            let (low, high) = leaf.bounds();
            leaves.push((at, low.to_vec(), high.map(|high| high.to_vec())));
        }
    }
    leaves
}

/// A damaged leaf says that it ends early, and leads to one far behind. No slot is put in that leads there: when the
/// leaf is mended, no key between them is out of reach.
#[test]
fn a_damaged_link_does_not_become_a_slot() {
    const LINK: u64 = 24;
    const HIGH: u64 = 48;
    on_usual(Parties::ONE, &[], |cluster| async move {
        let (index, shard) = (&cluster.index, &cluster.shard);
        load(&cluster).await;
        get_all(index).await;
        let leaves = leaves_of(shard).await;
        let behind = |from: u64| leaves.iter().filter(move |(_, low, _)| low[..] > key(from)[..]);
        let is_long =
            |low: &[u8], high: &Option<Vec<u8>>| [low.len(), high.as_ref().map_or(0, Vec::len)] == [8; 2];
        let (leaf, low, _) = behind(KEYS).find(|(_, low, high)| is_long(low, high)).expect("most are");
        let (far, ..) = behind(3 * KEYS / 2).next().expect("there are many");
        let first = u64::from_be_bytes(low[..].try_into().unwrap());
        let early = key(first + 20);
        let words = [(LINK, Child::new(*far).unwrap().bits()), (HIGH, u64::from_le_bytes(early))];
        let mut mended = Vec::new();
        for (at, wrong) in words.map(|(offset, wrong)| (leaf.add(offset), wrong)) {
            let right = shard.read(&Meter::default(), at, 8).await.unwrap().into_buf();
            mended.push((at, u64::from_le_bytes(right[..8].try_into().unwrap())));
            write_word(shard, at, wrong).await;
        }
        assert!(index.get(&early).await.is_err(), "no leaf answers for it");
        // Long enough for the janitor.
        shard.pause(5_000_000).await;
        for (at, right) in mended {
            write_word(shard, at, right).await;
        }
        get_all(index).await;
        let report = index.check(&CheckOptions::default()).await.unwrap();
        assert!(report.is_intact(), "{:?}", report.violations);
    });
}

async fn write_word(shard: &impl Verbs, at: RemotePtr, word: u64) {
    let mut chain = Chain::new(at.server());
    chain.write_word(at, word);
    shard.submit(&Meter::default(), chain).await.unwrap();
}

/// A scan with a limit reads the leaves that it wants in one round trip, most of the time.
#[test]
fn a_scan_of_a_hundred_pairs_takes_little_more_than_one_round_trip() {
    on_usual(Parties::ONE, &[], |cluster| async move {
        load(&cluster).await;
        let index = &cluster.index;
        get_all(index).await;
        let scans = counted(index, OpKind::Scan, async {
            for n in 0..OPS / 2 {
                let from = key(2 * STEP * n);
                let pairs: Vec<_> = index.scan(from.., Some(100)).try_collect().await.unwrap();
                assert_eq!(pairs.len() as u64, 100, "from {n}");
            }
        });
        let scans = scans.await;
        assert!(scans.round_trips * 10 <= scans.ops * 11, "{scans:?}");
        assert!(scans.reads <= scans.ops * 2 * 4, "{scans:?}");
    });
}
