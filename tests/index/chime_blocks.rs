//! CHIME's indirect trees: pairs that outgrow their blocks, keys with one fingerprint, operations that are dropped
//! between a block and its entry, blocks that there is no memory for, and such as are damaged.

use std::collections::BTreeMap;

use farwood::index::check::Broken;
use farwood::index::layout::hopscotch::{HopLayout, Ring};
use farwood::index::layout::{Malformed, Rejection};
use farwood::runtime::alloc::AllocError;
use farwood::runtime::{Chain, Meter, RemotePtr, ServerId};
use farwood::{CheckOptions, IndexSpec, OpKind, RangeIndex, Verbs, WriteError};

use crate::kit;
use crate::kit::cancel::{Drops, after_polls};
use crate::kit::cluster::Model;
use crate::kit::kind::switched;
use crate::kit::{IndexKind, NAME, Parties, Shape, TestCluster, key, with_parties, with_parties_on};

/// Yields an indirect tree of this shape.
fn indirect(shape: Shape) -> IndexSpec {
    switched(shape.usual(IndexKind::Chime), "indirect", true)
}

/// A block has 8 bytes of head, and a key of 8: what is left of its lines is the value's.
const ROOM: usize = 64 - 16;

fn value(bytes: usize, number: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at + number) as u8).collect()
}

/// Counts the round trips of one operation.
async fn round_trips<T>(cluster: &TestCluster, kind: OpKind, operation: impl Future<Output = T>) -> (T, u64) {
    let count = || cluster.index.stats().kind(kind).round_trips;
    let before = count();
    (operation.await, count() - before)
}

/// Blocks that are out of the tree are used again: as many wait as are retired in three epochs, of which one comes with
/// sixteen of them.
#[test]
fn blocks_that_are_out_of_the_tree_are_used_again() {
    const BLOCK_BYTES: i64 = 192;
    let shape = Shape { max_value: 300, ..Shape::USUAL };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, key) = (&cluster.index, key(7));
        assert!(index.insert(&key, &value(100, 0)).await.unwrap());
        let before = index.books().used_bytes;
        for n in 1..5_000 {
            assert!(index.remove(&key).await.unwrap());
            assert!(index.insert(&key, &value(100, n)).await.unwrap());
        }
        let books = index.books();
        assert!(books.used_bytes - before <= 100 * BLOCK_BYTES, "{books:?}");
        let retired = (books.reclaimed_bytes + books.retired_bytes) as i64;
        assert_eq!((retired % 4_999, books.unsettled_bytes), (0, 0), "{books:?}");
        cluster.rest().await;
        cluster.holds(&[(key.to_vec(), value(100, 4_999))].into()).await;
        cluster.rest().await;
    });
}

/// A value that fits is written in place, whatever its length was before; one that does not gets a new block, and the
/// old one stays allocated for as long as an operation may read it.
#[test]
fn values_outgrow_their_blocks() {
    let shape = Shape { max_value: 300, ..Shape::USUAL };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, key) = (&cluster.index, key(7));
        assert!(index.insert(&key, b"").await.unwrap());
        let used_bytes = || index.books().used_bytes - index.intent_bytes() as i64;
        let pin = cluster.shard.pins().pin();
        let leaf_and_block = used_bytes();
        let mut expected = leaf_and_block;
        for (bytes, grows_by) in [
            (1, 0),
            (ROOM, 0),
            (ROOM + 1, 128),
            (ROOM, 0),
            (0, 0),
            (ROOM + 64, 0),
            (ROOM + 65, 192),
            (300, 320),
            (3, 0),
            (300, 0),
        ] {
            let new = value(bytes, bytes as u64);
            let (updated, trips) = round_trips(&cluster, OpKind::Update, index.update(&key, &new)).await;
            expected += grows_by;
            assert_eq!((updated, trips, used_bytes()), (Ok(true), 3, expected), "{bytes}");
            let (found, trips) = round_trips(&cluster, OpKind::Get, index.get(&key)).await;
            assert_eq!((found.unwrap().as_deref(), trips), (Some(&new[..]), 2));
        }
        // What the tree has now is a leaf and a block of 320 bytes.
        let used = index.survey().await.unwrap().used_bytes;
        assert_eq!(used as i64, leaf_and_block - 64 + 320);
        drop(pin);
        cluster.rest().await;
        cluster.holds(&[(key.to_vec(), value(300, 300))].into()).await;
        cluster.rest().await;
    });
}

/// Leaves are split off to the other one of two servers, and their blocks stay behind.
#[test]
fn values_of_all_lengths_in_leaves_that_are_split() {
    for parties in [Parties::Shards(1), Parties::Nodes(2)] {
        let shape = Shape { max_value: 300, ..Shape::TINY };
        with_parties(parties, indirect(shape), move |cluster| async move {
            let (index, mut model) = (&cluster.index, Model::new());
            let own = |n: u64| key(kit::scatter(2 * n + cluster.place as u64));
            for round in 0..6_u64 {
                for n in 0..120 {
                    let (key, bytes) = (own(n), (n * 37 + round * 61) % 301);
                    let new = value(bytes as usize, n ^ round);
                    index.put(&key, &new).await.unwrap();
                    model.insert(key.to_vec(), new);
                    if (n + round) % 7 == 0 {
                        assert!(index.remove(&key).await.unwrap());
                        model.remove(&key[..]);
                    }
                }
                for (key, value) in &model {
                    assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]));
                }
            }
            cluster.rest().await;
            if cluster.parties() == 1 {
                cluster.holds(&model).await;
            }
            cluster.finish().await;
        });
    }
}

/// Makes three keys of 16 bytes with one hash: of such keys the first and the last 8 bytes are mixed by a product, of
/// which one factor can be made 0 or 1 (xxh3, inputs of 9 to 16 bytes, with its default secret).
fn keys_of_one_hash(number: u64) -> [[u8; 16]; 3] {
    let word = |bytes: [u8; 8]| u64::from_le_bytes(bytes);
    let low = word([0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f])
        ^ word([0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78]);
    let high = word([0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21])
        ^ word([0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e]);
    // What is mixed is `a` swapped, plus `b`, plus the halves of their product.
    let key = |a: u64, b: u64| {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&(a ^ low).to_le_bytes());
        key[8..].copy_from_slice(&(b ^ high).to_le_bytes());
        key
    };
    let sum = 2 * number;
    let keys = [key(0, sum), key(sum.swap_bytes(), 0), key(1, (sum.wrapping_sub(1 << 56)) / 2)];
    assert!(keys.iter().all(|key| HopLayout::hash(key) == HopLayout::hash(&keys[0])), "{keys:?}");
    keys
}

#[test]
fn keys_with_one_fingerprint_are_told_by_their_blocks() {
    let shape = Shape { max_key: 16, max_value: 100, ..Shape::USUAL };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, [first, second, absent]) = (&cluster.index, keys_of_one_hash(1 << 60));
        assert!(index.insert(&first, b"1").await.unwrap());
        // Each is read under the lock, the other key's block too.
        let inserted = round_trips(&cluster, OpKind::Insert, index.insert(&second, b"2")).await;
        assert_eq!(inserted, (Ok(true), 3));
        let mut trips = Vec::new();
        for (key, value) in [(&first, Some(&b"1"[..])), (&second, Some(b"2")), (&absent, None)] {
            let mut least = u64::MAX;
            // A READ that the system has made slow is made again: not each time.
            for _ in 0..20 {
                let (found, took) = round_trips(&cluster, OpKind::Get, index.get(key)).await;
                assert_eq!(found.unwrap().as_deref(), value);
                least = least.min(took);
            }
            trips.push(least);
        }
        trips[..2].sort_unstable();
        assert_eq!(trips, [2, 3, 3], "the one whose entry is first takes a round trip less");
        for (key, is_there) in [(&first, true), (&second, true), (&absent, false)] {
            assert_eq!(index.update(key, b"3").await.unwrap(), is_there);
            assert_eq!(index.insert(key, b"3").await.unwrap(), !is_there);
        }
        assert!(index.remove(&second).await.unwrap() && !index.remove(&second).await.unwrap());
        let model = Model::from([first, absent].map(|key| (key.to_vec(), b"3".to_vec())));
        assert!(index.get(&second).await.unwrap().is_none());
        cluster.rest().await;
        cluster.holds(&model).await;
        cluster.rest().await;
    });
}

/// In leaves of four slots and neighbourhoods of two, three keys with one fingerprint have to be split.
#[test]
fn leaves_are_split_among_keys_with_one_fingerprint() {
    let shape = Shape { max_key: 16, max_value: 100, ..Shape::TINY };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, mut model) = (&cluster.index, Model::new());
        for number in (1..=60).map(|n| kit::scatter(n) >> 2) {
            for (n, key) in keys_of_one_hash(number).into_iter().enumerate() {
                assert!(index.insert(&key, &value(n * 40, number)).await.unwrap());
                model.insert(key.to_vec(), value(n * 40, number));
            }
        }
        for (n, (key, value)) in model.clone().into_iter().enumerate() {
            assert_eq!(index.get(&key).await.unwrap().as_deref(), Some(&value[..]));
            if n % 3 == 0 {
                assert!(index.remove(&key).await.unwrap());
                model.remove(&key);
            }
        }
        cluster.rest().await;
        cluster.holds(&model).await;
        cluster.rest().await;
    });
}

/// Every change is there or is not, wherever it was dropped, and what was read is no mixture.
#[test]
fn changes_that_are_dropped_take_effect_whole_or_not_at_all() {
    let shape = Shape { max_value: 300, ..Shape::TINY };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, mut model) = (&cluster.index, Model::new());
        let mut dropped = BTreeMap::<&str, u32>::new();
        for step in 0..600_u64 {
            let (key, polls) = (key(kit::scatter(step % 40)), (step % 11) as usize);
            let drops = if step % 2 == 0 { Drops::AtOnce } else { Drops::WhenWoken };
            let new = value(((step * 53) % 301) as usize, step);
            let before = model.get(&key[..]).cloned();
            let (name, after) = match step % 5 {
                0 => ("remove", None),
                1 => ("update", before.as_ref().map(|_| new.clone())),
                _ => ("put", Some(new.clone())),
            };
            let finished = match name {
                "remove" => after_polls(index.remove(&key), polls, drops).await.map(|done| _ = done.unwrap()),
                "update" => {
                    after_polls(index.update(&key, &new), polls, drops).await.map(|done| _ = done.unwrap())
                }
                _ => after_polls(index.put(&key, &new), polls, drops).await.map(|done| done.unwrap()),
            };
            cluster.rest().await;
            let found = index.get(&key).await.unwrap().map(|found| found.to_vec());
            if finished.is_some() {
                assert_eq!(found, after, "{name}");
            } else {
                assert!(found == after || found == before, "{name} after {polls} polls");
                *dropped.entry(name).or_default() += 1;
            }
            match found {
                Some(found) => model.insert(key.to_vec(), found),
                None => model.remove(&key[..]),
            };
        }
        assert!(dropped.len() == 3 && dropped.values().all(|count| *count > 30), "{dropped:?}");
        cluster.rest().await;
        assert_eq!(index.books().unsettled_bytes, 0, "the janitor finds out which blocks are out");
        cluster.holds(&model).await;
        cluster.finish().await;
    });
}

/// Lets another index take what these servers have, but for what this one's allocator has in hand.
async fn fill_up(cluster: &TestCluster, is_filled: impl Fn(ServerId) -> bool) {
    let control = cluster.host.control();
    let hog = control.create("hog", "hog", b"").await.unwrap();
    for server in control.servers().iter().filter(|server| is_filled(server.id)) {
        while control.chunk(server.id, hog.id).await.is_ok() {}
    }
}

/// Without memory for a block nothing changes, and what takes none goes on.
#[test]
fn no_memory_for_a_block() {
    let shape = Shape { max_value: 300, ..Shape::USUAL };
    let cluster = kit::cluster_of(1 << 20);
    with_parties_on(&cluster, Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, mut model) = (&cluster.index, Model::new());
        index.put(&key(0), b"0").await.unwrap();
        model.insert(key(0).to_vec(), b"0".to_vec());
        fill_up(&cluster, |_| true).await;
        let is_full = |error| matches!(error, WriteError::Alloc(AllocError::OutOfMemory { .. }));
        let mut refused = None;
        for n in 1..10_000 {
            match index.insert(&key(n), b"1").await {
                Ok(done) => assert!(done && model.insert(key(n).to_vec(), b"1".to_vec()).is_none()),
                Err(error) => {
                    assert!(is_full(error));
                    refused = Some(n);
                    break;
                }
            }
        }
        let refused = refused.expect("the chunk has an end");
        assert!(index.get(&key(refused)).await.unwrap().is_none());
        // There may be room for a few blocks that was none for a leaf. Then a value that does not fit stays as it was.
        let mut grown = 0;
        let stays = loop {
            match index.update(&key(grown), &[3; 200]).await {
                Ok(done) => assert!(done && model.insert(key(grown).to_vec(), vec![3; 200]).is_some()),
                Err(error) => {
                    assert!(is_full(error));
                    break key(grown);
                }
            }
            grown += 1;
        };
        assert_eq!(
            index.get(&stays).await.unwrap().as_deref(),
            model.get(&stays[..]).map(|value| &value[..])
        );
        // What takes no memory goes on.
        assert!(index.update(&stays, b"2").await.unwrap());
        model.insert(stays.to_vec(), b"2".to_vec());
        let last = key(refused - 1);
        assert!(index.remove(&last).await.unwrap() && model.remove(&last[..]).is_some());
        cluster.rest().await;
        for (key, value) in &model {
            assert_eq!(index.get(key).await.unwrap().as_deref(), Some(&value[..]));
        }
        assert_eq!(kit::all_pairs(index).await.into_iter().collect::<Model>(), model);
        cluster.rest().await;
    });
}

/// A block that is not on its leaf's server, which is full, is written before its entry, and replaced by an update.
#[test]
fn blocks_on_another_server() {
    let shape = Shape { max_value: 300, ..Shape::USUAL };
    let cluster = kit::cluster_of(1 << 20);
    with_parties_on(&cluster, Parties::Shards(1), indirect(shape), |cluster| async move {
        let (index, mut model) = (&cluster.index, Model::new());
        index.put(&key(0), b"0").await.unwrap();
        model.insert(key(0).to_vec(), b"0".to_vec());
        let leaf = root(&cluster).await;
        fill_up(&cluster, |server| server == leaf.server()).await;
        // One key again and again: the chunk of the leaf comes to its end, and the leaf is not split.
        // As an operation that does not end keeps all of them.
        let _pin = cluster.shard.pins().pin();
        let mut trips = Vec::new();
        for n in 1..2_000_u64 {
            assert!(index.remove(&key(0)).await.unwrap());
            let (inserted, took) =
                round_trips(&cluster, OpKind::Insert, index.insert(&key(0), &value(100, n))).await;
            assert!(inserted.unwrap());
            trips.push(took);
        }
        model.insert(key(0).to_vec(), value(100, 1_999));
        assert_eq!((trips.first(), trips.last()), (Some(&2), Some(&3)), "the block has a chain of its own");
        let before = index.books().used_bytes;
        let updated = round_trips(&cluster, OpKind::Update, index.update(&key(0), &value(100, 1))).await;
        assert_eq!((updated, index.books().used_bytes - before), ((Ok(true), 4), 128));
        model.insert(key(0).to_vec(), value(100, 1));
        cluster.rest().await;
        cluster.holds(&model).await;
        cluster.rest().await;
    });
}

/// Yields where the root is.
async fn root(cluster: &TestCluster) -> RemotePtr {
    let entry = cluster.host.control().open(NAME).await.unwrap();
    let word = read(cluster, entry.root, 8).await;
    RemotePtr::from_bits(u64::from_le_bytes(word[..8].try_into().unwrap()) & !0x3f)
}

async fn read(cluster: &TestCluster, at: RemotePtr, bytes: usize) -> Vec<u8> {
    cluster.shard.read(&Meter::default(), at, bytes).await.unwrap().into_buf().to_vec()
}

/// Damaged blocks are reported with what is wrong with them.
#[test]
fn a_check_reads_every_block() {
    let shape = Shape { max_value: 300, ..Shape::USUAL };
    with_parties(Parties::Shards(1), indirect(shape), |cluster| async move {
        let index = &cluster.index;
        for n in 0..20 {
            index.put(&key(n), &value(100, n)).await.unwrap();
        }
        let layout = HopLayout::indirect(Ring { slots: 64, reach: 8 }, 8, 300, false).unwrap();
        let image = read(&cluster, root(&cluster).await, layout.node_bytes()).await;
        let blocks = layout.view(&image).unwrap().blocks().unwrap();
        assert_eq!(blocks.len(), 20);
        let torn = |broken: &Broken| *broken == Broken::Entry(Rejection::Torn);
        let of_another = |broken: &Broken| {
            matches!(broken, Broken::Entry(Rejection::Malformed(Malformed::BlockKey { .. })))
        };
        let lengths =
            |broken: &Broken| matches!(broken, Broken::Entry(Rejection::Malformed(Malformed::Block { .. })));
        let another = read(&cluster, blocks[1].1.address(), 128).await;
        for (expected, damage) in [
            (
                &torn as &dyn Fn(&Broken) -> bool,
                &(|image: &mut Vec<u8>| image[60] ^= 1) as &dyn Fn(&mut Vec<u8>),
            ),
            (&torn, &|image: &mut Vec<u8>| image[9] ^= 1),
            (&lengths, &|image: &mut Vec<u8>| image[..8].fill(0xff)),
            (&of_another, &|image: &mut Vec<u8>| image.copy_from_slice(&another)),
        ] {
            let at = blocks[0].1.address();
            let mut image = read(&cluster, at, 128).await;
            let healthy = image.clone();
            damage(&mut image);
            write(&cluster, at, &image).await;
            let report = index.check(&CheckOptions::default()).await.unwrap();
            assert!(report.violations.iter().any(|violation| expected(&violation.broken)), "{report:?}");
            write(&cluster, at, &healthy).await;
            assert!(index.check(&CheckOptions::default()).await.unwrap().is_intact());
        }
        cluster.rest().await;
    });
}

async fn write(cluster: &TestCluster, at: RemotePtr, bytes: &[u8]) {
    let mut buf = cluster.shard.lease(bytes.len());
    buf.copy_from_slice(bytes);
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.write(at, 0..bytes.len());
    cluster.shard.submit(&Meter::default(), chain).await.unwrap();
}
