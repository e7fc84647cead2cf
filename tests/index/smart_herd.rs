//! Many clients of one compute node that find the same node full: one of them moves it, and the others wait for that.

use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{OpKind, RangeIndex, Verbs};

use crate::kit::cancel::{Drops, after_polls};
use crate::kit::simulated::{calm, simulate_parties};
use crate::kit::{IndexSpec, Parties};

const GEOMETRY: Geometry = Geometry { max_key: 8, max_value: 8, types: Types::Lines };
const LEAF_BYTES: u64 = 64;
/// The node has 6 slots, then 30, then 94: so large are the copies that are written.
const COPIES_BYTES: u64 = 256 + 768;
const CLIENTS: usize = 32;

fn recipe() -> IndexSpec {
    IndexSpec::Smart {
        geometry: GEOMETRY,
        options: Options { techniques: Techniques::ALL, ..Options::default() },
    }
}

/// Each of them used to write a copy.
#[test]
fn one_client_moves_a_node() {
    let parties = Parties::Shards(2);
    simulate_parties(&calm(parties), parties, recipe(), move |cluster| async move {
        if cluster.place == 0 {
            for byte in [0, 1] {
                cluster.index.put(&[b'n', byte], b"").await.unwrap();
            }
        }
        cluster.meet().await;
        let before = cluster.index.stats();
        cluster
            .clients(CLIENTS, |c| {
                let index = cluster.index.clone();
                let byte = (2 + cluster.place * CLIENTS + c) as u8;
                async move { assert!(index.insert(&[b'n', byte], b"").await.unwrap()) }
            })
            .await;
        let mut stats = cluster.index.stats();
        stats -= &before;
        let inserts = stats.kind(OpKind::Insert);
        let copies = inserts.bytes_written - LEAF_BYTES * inserts.writes;
        println!("shard {}: {inserts:?}", cluster.place);
        // Both copies by this shard, and one more for a client that came at the wrong moment.
        assert!(copies <= 2 * COPIES_BYTES, "{copies} bytes of copies");
    });
}

/// The client that moves the node is dropped at any time, and the next one does it.
#[test]
fn a_turn_that_is_dropped_is_given_back() {
    simulate_parties(&calm(Parties::ONE), Parties::ONE, recipe(), move |cluster| async move {
        for (n, drops) in [Drops::AtOnce, Drops::WhenWoken].into_iter().enumerate() {
            for polls in 0..16 {
                let first = (n * 16 + polls) as u8;
                for byte in 0..6 {
                    cluster.index.put(&[first, byte], b"").await.unwrap();
                }
                let seventh = after_polls(cluster.index.insert(&[first, 6], b""), polls, drops).await;
                let start = cluster.shard.now();
                assert_eq!(cluster.index.insert(&[first, 7], b"").await, Ok(true));
                assert!(cluster.shard.now() - start < 500_000, "it waited for a client that is gone");
                assert!(seventh.is_none_or(|done| done == Ok(true)));
            }
        }
        // A client that is not polled any more does not hold others up for long.
        for byte in 0..6 {
            cluster.index.put(&[99, byte], b"").await.unwrap();
        }
        let mut stuck = Box::pin(after_polls(cluster.index.insert(&[99, 6], b""), 5, Drops::WhenWoken));
        for _ in 0..5 {
            let _ = futures::poll!(&mut stuck);
            cluster.shard.pause(20_000).await;
        }
        assert_eq!(cluster.index.insert(&[99, 7], b"").await, Ok(true));
        drop(stuck);
    });
}
