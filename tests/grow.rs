//! Many clients that begin at the same moment with an empty tree of the smallest nodes: who plants the first
//! leaf, and who puts a new root on top, is raced for again and again.

mod kit;

use farwood::{Geometry, NodeSize, Options, RangeIndex, Techniques};
use kit::{Parties, key, with_parties};

fn slots(leaf: usize, inner: usize) -> Geometry {
    Geometry { size: NodeSize::Slots { leaf, inner }, ..kit::TINY }
}

#[test]
fn one_root_is_planted_however_many_try() {
    for parties in Parties::BOTH {
        for _ in 0..10 {
            with_parties(parties, slots(2, 3), Options::default(), |party| async move {
                party.meet().await;
                party
                    .clients(100, |c| {
                        let (index, n) = (party.index.clone(), (2 * c + party.place) as u64);
                        async move {
                            match c % 4 {
                                0 => index.put(&key(n), b"v").await.unwrap(),
                                1 => assert!(index.insert(&key(n), b"v").await.unwrap()),
                                2 => {
                                    assert!(!index.update(&key(n), b"x").await.unwrap());
                                    index.put(&key(n), b"v").await.unwrap();
                                }
                                _ => {
                                    assert!(!index.remove(&key(n)).await.unwrap());
                                    assert!(index.get(&key(n)).await.unwrap().is_none());
                                    assert!(index.insert(&key(n), b"v").await.unwrap());
                                }
                            }
                        }
                    })
                    .await;
                party.rest().await;
                let expected = (0..200).map(|n| (key(n).to_vec(), b"v".to_vec())).collect();
                kit::tree::holds_exactly(&party.shard, &party.index, slots(2, 3), &expected).await;
            });
        }
    }
}

/// What the keys of a client do to the tree's edges.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Everybody at the right edge.
    Ascending,
    /// Everybody at the left edge.
    Descending,
    /// Everywhere.
    Scattered,
}

#[test]
fn trees_of_two_to_four_slots_grow_high() {
    const CLIENTS: u64 = 60;
    const EACH: u64 = 12;
    for parties in Parties::BOTH {
        for (leaf, inner) in [(2, 3), (3, 3), (4, 4)] {
            for order in [Order::Ascending, Order::Descending, Order::Scattered] {
                for techniques in [Techniques::ALL, Techniques::NONE] {
                    let options = Options { techniques, ..Options::default() };
                    let number = move |n: u64| match order {
                        Order::Ascending => n,
                        Order::Descending => u64::MAX - n,
                        Order::Scattered => kit::scatter(n),
                    };
                    with_parties(parties, slots(leaf, inner), options, move |party| async move {
                        party.meet().await;
                        party
                            .clients(CLIENTS as usize, |c| {
                                let (index, me) = (party.index.clone(), 2 * c as u64 + party.place as u64);
                                async move {
                                    for n in (0..EACH).map(|i| number(i * 2 * CLIENTS + me)) {
                                        assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                                    }
                                }
                            })
                            .await;
                        party.rest().await;
                        let all = (0..2 * CLIENTS * EACH).map(number);
                        let expected = all.map(|n| (key(n).to_vec(), key(!n).to_vec())).collect();
                        let found = kit::tree::holds_exactly(
                            &party.shard,
                            &party.index,
                            slots(leaf, inner),
                            &expected,
                        )
                        .await;
                        assert!(found.levels.len() >= 5, "{:?}", found.levels);
                    });
                }
            }
        }
    }
}
