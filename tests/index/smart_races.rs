//! Clients of a radix tree of tiny nodes that meet at the same slot, header, node or leaf, on the simulated fabric in
//! rough reordering: shards that share a cache and compute nodes that share nothing. What each of them sees must be
//! explained by operations that took effect one at a time, and at the end the tree must pass its check.
//!
//! The cases are those of SMART section 4.1.2, each with the others that may happen in the same place.

use std::future::Future;
use std::sync::Arc;

use farwood::Switches;
use farwood::runtime::sim::SimConfig;
use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood_sim::history::{Op, Outcome};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::kit;
use crate::kit::TestShard;
use crate::kit::recorder::{self, Recorder};
use crate::kit::simulated::{ROUGH, calm, simulate_parties};
use crate::kit::{IndexSpec, Parties, TestCluster};

const SEEDS: u64 = 8;
/// Clients of each shard.
const CLIENTS: usize = 4;
/// Larger than a line, so that values can be torn, and grow out of their leaf.
const GEOMETRY: Geometry = Geometry { max_key: 40, max_value: 200, types: Types::Tiny };

type Client = recorder::Client<TestShard>;

/// Yields all techniques, each that changes how nodes are written off, and none.
fn mixes() -> Vec<Techniques> {
    let mut mixes = vec![Techniques::ALL, Techniques::NONE];
    for name in ["lock_free_nodes", "in_place_leaves", "rear_lock", "combining", "fused"] {
        let mut techniques = Techniques::ALL;
        assert!(techniques.set(name, false));
        mixes.push(techniques);
    }
    mixes
}

/// Has one client prepare a tree, and then all of them race on it, many times over.
fn race<P, F, R>(prepare: P, client: F)
where
    P: AsyncFn(&Client) + Copy + Send + Sync + 'static,
    F: Fn(Client) -> R + Copy + Send + Sync + 'static,
    R: Future<Output = ()> + 'static,
{
    for techniques in mixes() {
        let recipe =
            IndexSpec::Smart { geometry: GEOMETRY, options: Options { techniques, ..Options::default() } };
        for parties in [Parties::Shards(2), Parties::Nodes(3)] {
            for seed in 0..SEEDS {
                println!("{techniques:?}, {parties:?}, seed {seed}");
                let config = SimConfig { seed, reordering: ROUGH, ..calm(parties) };
                let recorder = Arc::new(Recorder::default());
                simulate_parties(&config, parties, recipe, move |cluster| {
                    let recorder = Arc::clone(&recorder);
                    async move {
                        if cluster.place == 0 {
                            prepare(&Client::new(&cluster, &recorder, 100)).await;
                        }
                        cluster.meet().await;
                        cluster.clients(CLIENTS, |c| client(Client::new(&cluster, &recorder, c))).await;
                        look_back(&cluster, &recorder).await;
                    }
                });
            }
        }
    }
}

/// Reads every key by itself and all by a scan, with one more client, once there are no writers any more.
async fn look_back(cluster: &TestCluster, recorder: &Arc<Recorder>) {
    cluster.rest().await;
    let last = Client::new(cluster, recorder, 101);
    for (key, value) in kit::all_pairs(&cluster.index).await {
        assert_eq!(last.point(Op::Get, &key).await, Outcome::Found, "a scan says that {key:?} is {value:?}");
    }
    for key in recorder.keys() {
        last.point(Op::Get, &key).await;
    }
    cluster.meet().await;
    if cluster.place == 0 {
        recorder.judge();
    }
    cluster.meet().await;
}

/// Yields the client's number among all clients, and how many there are.
fn place(client: &Client) -> (usize, usize) {
    (client.number() % 1000 + client.cluster.place * CLIENTS, client.cluster.parties() * CLIENTS)
}

async fn insert(client: &Client, key: &[u8]) {
    assert_eq!(client.point(Op::Insert, key).await, Outcome::Ok, "{key:?} is this client's alone");
}

/// Clients that all want the first vacant slot of one node, each for a byte of its own.
#[test]
fn the_same_vacant_slot() {
    race(
        async |first| {
            for key in [&b"n-a"[..], b"n-b"] {
                insert(first, key).await;
            }
        },
        |client| async move {
            let (me, all) = place(&client);
            for round in 0..4 {
                insert(&client, &[b'n', b'-', (round * all + me) as u8]).await;
            }
        },
    );
}

/// Clients that all want it for the same byte: one key of all, and one of each behind it.
#[test]
fn the_same_vacant_slot_for_the_same_byte() {
    race(
        async |first| {
            insert(first, b"n-a").await;
        },
        |client| async move {
            let (me, _) = place(&client);
            for byte in b'b'..b'f' {
                client.point(Op::Insert, &[b'n', b'-', byte]).await;
                insert(&client, &[b'n', b'-', byte, me as u8]).await;
                client.point(Op::Insert, &[b'n', b'-', byte]).await;
            }
        },
    );
}

/// One leaf, and clients whose keys part from its key at different bytes: one leaf split wins, and the others find
/// inner nodes where the leaf was.
#[test]
fn a_leaf_split_against_leaf_splits() {
    race(
        async |first| {
            for byte in 0..3 {
                insert(first, &[&[byte][..], &[b'l'; 30]].concat()).await;
            }
        },
        |client| async move {
            let (me, _) = place(&client);
            for byte in 0..3 {
                for shared in [30, 7, 19, 0, 12] {
                    insert(&client, &[&[byte][..], &vec![b'l'; shared], &[me as u8]].concat()).await;
                }
            }
        },
    );
}

/// One chain of nodes with long prefixes: headers are split at all bytes at once, while leaves below them are split and
/// go.
#[test]
fn header_splits_against_header_splits_and_leaf_splits_below() {
    race(
        async |first| {
            for end in [b'0', b'1'] {
                insert(first, &[&[b'h'; 30][..], &[end]].concat()).await;
            }
        },
        |mut client| async move {
            let (me, all) = place(&client);
            let mut keys: Vec<Vec<u8>> =
                (me..30).step_by(all).map(|at| [&vec![b'h'; at], &[me as u8][..]].concat()).collect();
            keys.extend([1, 5].map(|more| [&[b'h'; 30][..], b"0", &vec![me as u8; more]].concat()));
            keys.shuffle(&mut client.rng);
            for key in &keys {
                insert(&client, key).await;
                assert_eq!(client.point(Op::Get, key).await, Outcome::Found);
            }
            for key in keys.iter().step_by(2) {
                assert_eq!(client.point(Op::Remove, key).await, Outcome::Ok);
            }
        },
    );
}

/// One node that takes all bytes: it changes its type in place and moves to larger rooms, while keys that are in it are
/// read, changed, removed and inserted again.
#[test]
fn nodes_that_switch_type_and_move() {
    race(
        async |first| {
            for byte in [0, 1] {
                insert(first, &[b'm', byte]).await;
            }
        },
        |mut client| async move {
            let (me, all) = place(&client);
            let mut own: Vec<u8> = (2 + me..256).step_by(all).map(|byte| byte as u8).collect();
            own.shuffle(&mut client.rng);
            own.truncate(12);
            for (n, byte) in own.into_iter().enumerate() {
                insert(&client, &[b'm', byte]).await;
                match n % 4 {
                    0 => drop(client.point(Op::Put, &[b'm', (n % 2) as u8]).await),
                    1 => assert_eq!(client.point(Op::Update, &[b'm', byte]).await, Outcome::Ok),
                    2 => {
                        assert_eq!(client.point(Op::Remove, &[b'm', byte]).await, Outcome::Ok);
                        insert(&client, &[b'm', byte]).await;
                    }
                    // Behind a leaf that moves with its node.
                    _ => insert(&client, &[b'm', byte, 7]).await,
                }
                assert_eq!(client.point(Op::Get, &[b'm', byte]).await, Outcome::Found);
                assert_eq!(client.point(Op::Get, &[b'm', 0]).await, Outcome::Found);
            }
        },
    );
}

/// Does `ops` to the same few keys as all other clients, with values of `sizes`.
async fn fight(mut client: Client, ops: &[Op], sizes: &[usize]) {
    for _ in 0..20 {
        let key = *[&b"f"[..], b"fi", b"fight"].choose(&mut client.rng).expect("not empty");
        let op = *ops.choose(&mut client.rng).expect("not empty");
        client.value_bytes = *sizes.choose(&mut client.rng).expect("not empty");
        client.point(op, key).await;
    }
}

async fn first_values(first: &Client) {
    for key in [&b"f"[..], b"fi", b"fight", b"other"] {
        insert(first, key).await;
    }
}

/// Values change in place, in leaves that go at the same time and come back from another client.
#[test]
fn an_update_in_place_against_a_remove() {
    race(first_values, |client| {
        fight(client, &[Op::Update, Op::Update, Op::Remove, Op::Insert, Op::Get], &[8])
    });
}

/// Puts, each of which is an insert or an update, against removes.
#[test]
fn a_put_against_a_remove() {
    race(first_values, |client| fight(client, &[Op::Put, Op::Put, Op::Remove, Op::Get], &[8, 100]));
}

/// A key that is removed is inserted again at once, by another client.
#[test]
fn a_remove_and_an_insert_by_another_client() {
    race(first_values, |client| async move {
        let (me, _) = place(&client);
        for _ in 0..12 {
            for key in [&b"f"[..], b"fight"] {
                let op = if me.is_multiple_of(2) { Op::Remove } else { Op::Insert };
                client.point(op, key).await;
            }
        }
    });
}

/// Values that stay in their leaf against values that need a larger one, or a smaller one.
#[test]
fn an_update_in_place_against_values_that_grow() {
    let sizes = &[8, 8, 30, 60, 130, 200];
    race(first_values, |client| fight(client, &[Op::Update, Op::Put, Op::Get], sizes));
    race(first_values, |client| {
        fight(client, &[Op::Update, Op::Put, Op::Remove, Op::Insert, Op::Get], sizes)
    });
}

/// Leaves that change, grow and go while the slot that leads to them is split over and over.
#[test]
fn an_update_against_a_leaf_split_above_it() {
    race(
        async |first| {
            insert(first, &[b's'; 30]).await;
        },
        |mut client| async move {
            let (me, all) = place(&client);
            for (n, shared) in (me % 29..29).step_by(all.min(5)).enumerate() {
                client.value_bytes = if client.rng.random() { 8 } else { 150 };
                let op = if n % 2 == 0 { Op::Update } else { Op::Put };
                client.point(op, &[b's'; 30]).await;
                client.point(Op::Put, &[&vec![b's'; shared], &[me as u8][..]].concat()).await;
                client.point(Op::Get, &[b's'; 30]).await;
            }
        },
    );
}
