//! Where a tree's locks are: in host memory or in the servers' device areas, as its creator chose, for all compute
//! nodes alike.

use std::sync::Arc;

use farwood::lock::{LockError, LockWord};
use farwood::runtime::control::LockRegion;
use farwood::runtime::{Chain, ClientPool, Meter, RemotePtr};
use farwood::sherman::{Options, Techniques};
use farwood::{AccessError, Backoff, Cluster, EmbeddedConfig, RangeIndex, Sherman, Verbs, WriteError};
use futures::executor::block_on;

use crate::kit;
use crate::kit::cluster::{Seat, as_main};
use crate::kit::{NAME, TINY, TestShard, key, on_node};

/// A compute node that is not there any more.
const DEAD: u16 = 4242;
const ATTEMPTS: u32 = 3;

fn cluster(device_bytes: u64) -> Arc<Cluster> {
    Cluster::embedded(EmbeddedConfig {
        servers: 2,
        bytes_per_server: 16 << 20,
        chunk_bytes: 64 << 10,
        locks_per_server: 64,
        device_bytes,
        ..EmbeddedConfig::default()
    })
    .unwrap()
}

/// Gives up soon, and spins at once meanwhile.
fn options(on_chip: bool) -> Options {
    Options {
        techniques: Techniques { on_chip, ..Techniques::ALL },
        backoff: Backoff::NONE,
        lock_attempts_max: ATTEMPTS,
        ..Options::default()
    }
}

/// Makes all locks of a region look taken by a dead node, or free.
async fn set_all(shard: &impl Verbs, region: LockRegion, taken: bool) {
    let word = if taken { LockWord::new(DEAD, 0, 1).to_bits() } else { 0 };
    for n in 0..region.count {
        let mut chain = Chain::new(region.base.server());
        chain.write_word(region.base.add(8 * n), word);
        shard.submit(&Meter::default(), chain).await.unwrap();
    }
}

async fn set_everywhere(shard: &impl Verbs, on_chip: bool, taken: bool) {
    for server in shard.control().servers() {
        let region = if on_chip { server.device_locks } else { Some(server.locks) };
        if let Some(region) = region {
            set_all(shard, region, taken).await;
        }
    }
}

/// Yields the word at which a put of `key` fails while the locks of one kind of memory are taken; `None` if it does not
/// fail.
async fn fails_at(
    shard: &impl Verbs,
    tree: &impl RangeIndex,
    on_chip: bool,
    key: &[u8],
) -> Option<RemotePtr> {
    set_everywhere(shard, on_chip, true).await;
    let put = tree.put(key, b"blocked").await;
    set_everywhere(shard, on_chip, false).await;
    match put {
        Ok(()) => None,
        Err(WriteError::Access(AccessError::Lock(LockError::Contended {
            lock, owner, attempts, ..
        }))) => {
            assert_eq!((owner, attempts), (DEAD, ATTEMPTS));
            let servers = shard.control().servers();
            let server = &servers[usize::from(lock.server().0)];
            let region = if on_chip { server.device_locks.unwrap() } else { server.locks };
            assert!(region.contains(lock), "{lock} is not in {region:?}");
            Some(lock)
        }
        Err(other) => panic!("{other}"),
    }
}

/// Has one node create a tree and another open it, each with its own switch; the locks are then on chip or not.
fn creator_and_opener(device_bytes: u64, creator: bool, opener: bool, on_chip: bool) {
    let cluster = cluster(device_bytes);
    let mut words = Vec::new();
    for (place, wanted) in [creator, opener].into_iter().enumerate() {
        let node = kit::node(&cluster, 1);
        let tree = match place {
            0 => block_on(Sherman::create(&node, NAME, TINY, options(wanted))).unwrap(),
            _ => block_on(Sherman::open(&node, NAME, options(wanted))).unwrap(),
        };
        let at = node.run(move |shard| {
            let shard = TestShard::Node(shard);
            let tree = tree.attach(shard.clone());
            async move {
                assert_eq!(tree.techniques(), Techniques { on_chip, ..Techniques::ALL });
                tree.put(&key(1), b"first").await.unwrap();
                // All locks of the other memory are nothing to this tree.
                assert_eq!(fails_at(&shard, &tree, !on_chip, &key(1)).await, None);
                let at = fails_at(&shard, &tree, on_chip, &key(1)).await.expect("its lock is taken");
                tree.put(&key(1), b"second").await.unwrap();
                kit::at_rest(&shard, &tree).await;
                assert_eq!(kit::lock_words_set(&shard).await, 0);
                at
            }
        });
        words.push(at.unwrap()[0]);
    }
    assert_eq!(words[0], words[1], "two words for one node exclude no client");
}

#[test]
fn locks_are_where_the_creator_put_them() {
    for opener in [true, false] {
        creator_and_opener(512, true, opener, true);
        creator_and_opener(512, false, opener, false);
    }
}

#[test]
fn without_device_memory_locks_are_in_host_memory() {
    for opener in [true, false] {
        creator_and_opener(0, true, opener, false);
    }
}

/// Many clients insert the same keys: exactly one of them may succeed with each, whatever its node was told.
#[test]
fn nodes_with_different_switches_exclude_each_other() {
    const CLIENTS: u64 = 8;
    const KEYS: u64 = 600;
    let cluster = cluster(64);
    let patient = |on_chip| Options { techniques: options(on_chip).techniques, ..Options::default() };
    let nodes = [kit::node(&cluster, 1), kit::node(&cluster, 1)];
    let trees = [
        block_on(Sherman::create(&nodes[0], NAME, TINY, patient(true))).unwrap(),
        block_on(Sherman::open(&nodes[1], NAME, patient(false))).unwrap(),
    ];
    let main = as_main(move |Seat { shard, node, .. }: Seat<TestShard>| {
        let tree = trees[node].attach(shard.clone());
        async move {
            let clients = (0..CLIENTS).map(|_| {
                let tree = tree.clone();
                shard.spawn(async move {
                    let mut inserted = 0;
                    for n in 0..KEYS {
                        let key = key(kit::scatter(n));
                        inserted += u64::from(tree.insert(&key, b"v").await.unwrap());
                    }
                    inserted
                })
            });
            let inserted: u64 = futures::future::join_all(clients).await.into_iter().sum();
            kit::at_rest(&shard, &tree).await;
            inserted
        }
    });
    let inserted: u64 = kit::run_nodes(nodes.into(), &on_node(&main)).into_iter().sum();
    assert_eq!(inserted, KEYS);
}
