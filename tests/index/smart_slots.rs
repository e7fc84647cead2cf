//! Slots of a radix tree's inner nodes behind those in use: a node takes a larger type before one of them is claimed,
//! so that a claimed slot is seen by all clients from the moment of its CAS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farwood::smart::{Geometry, Options, Techniques, Types};
use farwood::{RangeIndex, Switches, Verbs};

use crate::kit::cancel::{Drops, after_polls};
use crate::kit::simulated::{calm, simulate_parties};
use crate::kit::{IndexSpec, Parties, at_rest, with_parties};

/// Types of 2; 3, 5; 8, 16; 64, 257 slots, those of one room between semicolons.
const GEOMETRY: Geometry = Geometry { max_key: 8, max_value: 8, types: Types::Tiny };

fn recipe(techniques: Techniques) -> IndexSpec {
    IndexSpec::Smart { geometry: GEOMETRY, options: Options { techniques, ..Options::default() } }
}

/// Dropped after the CAS of the slot, an insert used to stay invisible until another one came to the same node, at any
/// later time: then its key appeared.
#[test]
fn a_dropped_insert_takes_effect_soon_or_never() {
    const POLLS: u8 = 12;
    for name in ["", "fused", "lock_free_nodes"] {
        let mut techniques = Techniques::ALL;
        techniques.set(name, false);
        simulate_parties(&calm(Parties::ONE), Parties::ONE, recipe(techniques), move |cluster| async move {
            let index = &cluster.index;
            let mut taken = [0, 0];
            for (n, drops) in [Drops::AtOnce, Drops::WhenWoken].into_iter().enumerate() {
                for polls in 0..POLLS {
                    let first = n as u8 * POLLS + polls;
                    // The fourth slot is the first one that the node's type does not cover.
                    for last in 0..3 {
                        assert!(index.insert(&[first, last], b"").await.unwrap());
                    }
                    drop(after_polls(index.insert(&[first, 3], b"dropped"), polls.into(), drops).await);
                    // Everything that was posted has been executed, and the janitor is done.
                    cluster.shard.pause(1_000_000).await;
                    let at_rest = index.get(&[first, 3]).await.unwrap();
                    assert!(index.insert(&[first, 4], b"").await.unwrap());
                    let later = index.get(&[first, 3]).await.unwrap();
                    assert_eq!(at_rest, later, "{polls} polls, {drops:?}, {techniques:?}");
                    taken[usize::from(later.is_some())] += 1;
                }
            }
            assert!(taken.iter().all(|times| *times > 4), "drops came all too early or too late: {taken:?}");
        });
    }
}

/// The cache used to learn of the slot before others could see it: a shard found the key there, and a moment later, the
/// cached copy gone, did not find it in the node.
#[test]
fn a_key_that_was_found_stays() {
    const NODES: u64 = 4000;
    // The slots that take a larger type first.
    const LAST: [u64; 3] = [3, 8, 64];
    let next = Arc::new(AtomicU64::new(0));
    with_parties(Parties::Shards(2), recipe(Techniques::ALL), move |cluster| {
        let next = Arc::clone(&next);
        async move {
            let key = |node: u64, slot: u64| (node << 8 | slot).to_be_bytes();
            cluster.meet().await;
            if cluster.place == 0 {
                for node in 0..NODES {
                    for slot in 0..=LAST[node as usize % 3] {
                        next.store(node << 8 | slot, Ordering::Release);
                        assert!(cluster.index.insert(&key(node, slot), b"v").await.unwrap());
                    }
                }
                next.store(u64::MAX, Ordering::Release);
            } else {
                let mut found = 0;
                loop {
                    let coming = next.load(Ordering::Acquire);
                    if coming == u64::MAX {
                        break;
                    }
                    let key = coming.to_be_bytes();
                    if cluster.index.get(&key).await.unwrap().is_some() {
                        found += 1;
                        for look in 0..4 {
                            let again = cluster.index.get(&key).await.unwrap();
                            assert!(again.is_some(), "key {coming:#x} was gone at look {look}");
                        }
                    }
                }
                assert!(found > 100, "the reader hardly ever came in time");
            }
            cluster.meet().await;
            at_rest(&cluster.shard, &cluster.index).await;
        }
    });
}
