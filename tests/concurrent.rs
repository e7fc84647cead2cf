//! Many clients at once, on two shards of one compute node and on two compute nodes, with every technique
//! switched off in turn: what every client sees must be explained by operations that took effect one at a
//! time.

mod kit;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farwood::{Options, RangeIndex};
use kit::history::{Event, Ticks, check};
use kit::{Parties, Party, TINY, key, number, with_parties};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Runs `main` with every mix of options, on shards and on nodes.
fn in_every_setting<F, R>(main: F)
where
    F: Fn(Party) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + 'static,
{
    in_every_setting_afresh(|| main.clone());
}

/// The same with a fresh `main` for each.
fn in_every_setting_afresh<F, R>(main: impl Fn() -> F)
where
    F: Fn(Party) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + 'static,
{
    for parties in Parties::BOTH {
        for options in kit::option_mixes() {
            with_parties(parties, TINY, options, main());
        }
    }
}

#[test]
fn disjoint_inserts_into_an_empty_tree() {
    const CLIENTS: u64 = 110;
    const EACH: u64 = 8;
    in_every_setting(|party| async move {
        let all = 2 * CLIENTS * EACH;
        let first = party.place as u64 * CLIENTS;
        party.meet().await;
        party
            .clients(CLIENTS as usize, |c| {
                let (index, c) = (party.index.clone(), first + c as u64);
                async move {
                    // Neighbours belong to different clients, of both parties.
                    for n in (0..EACH).map(|i| i * 2 * CLIENTS + c) {
                        assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                        assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(!n)[..]));
                    }
                }
            })
            .await;
        party.rest().await;
        for n in 0..all {
            assert_eq!(party.index.get(&key(n)).await.unwrap().as_deref(), Some(&key(!n)[..]), "key {n}");
        }
        let expected = (0..all).map(|n| (key(n).to_vec(), key(!n).to_vec())).collect();
        let found = kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
        assert!(found.levels.len() >= 5, "{:?}", found.levels);
    });
}

#[test]
fn of_many_inserts_of_one_key_one_succeeds() {
    const CLIENTS: usize = 40;
    const KEYS: u64 = 60;
    in_every_setting_afresh(|| {
        let wins = Arc::new(Mutex::new(BTreeMap::<u64, Vec<u64>>::new()));
        move |party: Party| {
            let wins = Arc::clone(&wins);
            async move {
                party.meet().await;
                party
                    .clients(CLIENTS, |c| {
                        let (index, wins) = (party.index.clone(), Arc::clone(&wins));
                        let me = (party.place * CLIENTS + c) as u64;
                        async move {
                            for i in 0..KEYS {
                                // Half of the clients meet at the same keys, the others come from all sides.
                                let n = if me.is_multiple_of(2) { i } else { (i * 7 + me) % KEYS };
                                if index.insert(&key(n), &key(me)).await.unwrap() {
                                    wins.lock().unwrap().entry(n).or_default().push(me);
                                }
                            }
                        }
                    })
                    .await;
                party.rest().await;
                let wins = wins.lock().unwrap().clone();
                assert!(
                    wins.len() as u64 == KEYS && wins.values().all(|winners| winners.len() == 1),
                    "{wins:?}"
                );
                let expected =
                    wins.iter().map(|(n, winners)| (key(*n).to_vec(), key(winners[0]).to_vec())).collect();
                kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
            }
        }
    });
}

#[test]
fn nothing_is_lost_when_neighbours_change_in_the_same_leaf() {
    const CLIENTS: usize = 16;
    const ROUNDS: u64 = 15;
    in_every_setting(|party| async move {
        party.meet().await;
        party
            .clients(CLIENTS, |c| {
                let index = party.index.clone();
                let own = key((c * 2 + party.place) as u64);
                async move {
                    index.put(&own, &key(0)).await.unwrap();
                    for i in 0..ROUNDS {
                        let value = index.get(&own).await.unwrap().expect("nobody else removes it");
                        let count = number(&value);
                        drop(value);
                        assert_eq!(count, i, "an increment was lost");
                        assert!(index.update(&own, &key(count + 1)).await.unwrap());
                    }
                }
            })
            .await;
        party.rest().await;
        let expected = (0..2 * CLIENTS as u64).map(|n| (key(n).to_vec(), key(ROUNDS).to_vec())).collect();
        kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
    });
}

#[test]
fn shared_keys_are_linearizable() {
    const CLIENTS: usize = 12;
    const KEYS: u64 = 6;
    const OPS: usize = 100;
    in_every_setting_afresh(|| {
        let shared: Arc<Shared> = Arc::default();
        move |party: Party| {
            let shared = Arc::clone(&shared);
            async move {
                if party.place == 0 {
                    for n in 0..KEYS {
                        put(&party, &shared, n).await;
                    }
                }
                party.meet().await;
                party
                    .clients(CLIENTS, |c| {
                        let (party, shared) = (party.clone(), Arc::clone(&shared));
                        async move {
                            let mut rng = SmallRng::seed_from_u64((party.place * CLIENTS + c) as u64);
                            for _ in 0..OPS {
                                let n = rng.random_range(0..KEYS);
                                match rng.random_range(0..10) {
                                    0..3 => put(&party, &shared, n).await,
                                    3 => {
                                        // New keys in between split the leaves of the shared ones.
                                        let between = [&key(n)[..7], &[rng.random_range(100..250)]].concat();
                                        party.index.put(&between, b"").await.unwrap();
                                    }
                                    4 => {
                                        let between = [&key(n)[..7], &[rng.random_range(100..250)]].concat();
                                        party.index.remove(&between).await.unwrap();
                                    }
                                    _ => get(&party, &shared, n).await,
                                }
                            }
                        }
                    })
                    .await;
                party.rest().await;
                let histories = shared.2.lock().unwrap().clone();
                for n in 0..KEYS {
                    let of_key: Vec<_> =
                        histories.iter().filter(|(key, _)| *key == n).map(|(_, event)| *event).collect();
                    assert!(of_key.len() > 50);
                    check(&of_key).unwrap_or_else(|why| panic!("key {n}: {why}"));
                }
            }
        }
    });
}

type Shared = (Ticks, AtomicU64, Mutex<Vec<(u64, Event)>>);

async fn put(party: &Party, (ticks, values, events): &Shared, n: u64) {
    let value = values.fetch_add(1, Ordering::SeqCst);
    let start = ticks.next();
    party.index.put(&key(n), &key(value)).await.unwrap();
    let event = Event { start, end: ticks.next(), write: true, value };
    events.lock().unwrap().push((n, event));
}

async fn get(party: &Party, (ticks, _, events): &Shared, n: u64) {
    let start = ticks.next();
    let value = number(&party.index.get(&key(n)).await.unwrap().expect("it is never removed"));
    let event = Event { start, end: ticks.next(), write: false, value };
    events.lock().unwrap().push((n, event));
}

#[test]
fn what_is_never_removed_is_always_found_and_never_goes_back() {
    const READERS: usize = 6;
    const WRITERS: usize = 6;
    const STABLE: u64 = 30;
    const ROUNDS: u64 = 40;
    in_every_setting(|party| async move {
        // Multiples of 16 stay and count upwards; what lies between them comes and goes.
        if party.place == 0 {
            for n in 0..STABLE {
                party.index.put(&key(16 * n), &key(0)).await.unwrap();
            }
        }
        party.meet().await;
        party
            .clients(READERS + WRITERS, |c| {
                let (index, place) = (party.index.clone(), party.place);
                async move {
                    let mut rng = SmallRng::seed_from_u64((place * 100 + c) as u64);
                    if c >= READERS {
                        // A key has one writer, so it knows what has to be there.
                        let own =
                            |n: u64, i: u64| key(16 * n + 1 + (2 * (c - READERS) + place) as u64 + i % 2);
                        for i in 0..ROUNDS {
                            let n = rng.random_range(0..STABLE);
                            let between = own(n, 0);
                            assert!(index.insert(&between, &key(i)).await.unwrap());
                            assert_eq!(index.get(&between).await.unwrap().as_deref(), Some(&key(i)[..]));
                            assert!(index.remove(&between).await.unwrap());
                            assert!(index.get(&between).await.unwrap().is_none());
                            let counted = (2 * (c - READERS) + place) as u64;
                            assert!(index.update(&key(16 * counted), &key(i + 1)).await.unwrap());
                        }
                        return;
                    }
                    let mut seen = vec![0; STABLE as usize];
                    for _ in 0..10 * ROUNDS {
                        let n = rng.random_range(0..STABLE);
                        let value = index.get(&key(16 * n)).await.unwrap();
                        let value = number(&value.unwrap_or_else(|| panic!("key {n} was not found")));
                        assert!(
                            value >= seen[n as usize],
                            "key {n} went back from {} to {value}",
                            seen[n as usize]
                        );
                        seen[n as usize] = value;
                    }
                }
            })
            .await;
        party.rest().await;
        let counted = 2 * WRITERS as u64;
        let expected = (0..STABLE)
            .map(|n| (key(16 * n).to_vec(), key(if n < counted { ROUNDS } else { 0 }).to_vec()))
            .collect();
        kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
    });
}

/// Tiny caches of every size in between: nodes leave the cache in the middle of operations.
#[test]
fn caches_of_a_few_nodes() {
    for cache_bytes in [500, 1000, 2000, 4000] {
        let options = Options { cache_bytes, ..Options::default() };
        with_parties(Parties::Shards(2), TINY, options, |party| async move {
            party.meet().await;
            party
                .clients(20, |c| {
                    let index = party.index.clone();
                    let me = (2 * c + party.place) as u64;
                    async move {
                        for n in (0..20).map(|i| kit::scatter(i * 40 + me)) {
                            assert!(index.insert(&key(n), &key(!n)).await.unwrap());
                            assert_eq!(index.get(&key(n)).await.unwrap().as_deref(), Some(&key(!n)[..]));
                        }
                    }
                })
                .await;
            party.rest().await;
            let expected = (0..800).map(kit::scatter).map(|n| (key(n).to_vec(), key(!n).to_vec())).collect();
            kit::tree::holds_exactly(&party.shard, &party.index, TINY, &expected).await;
        });
    }
}

/// The checker itself: what it must let pass, and what it must catch.
#[test]
fn the_checker_tells_good_histories_from_bad_ones() {
    let write = |start, end, value| Event { start, end, write: true, value };
    let read = |start, end, value| Event { start, end, write: false, value };
    let good: [&[Event]; 4] = [
        &[write(0, 1, 1), read(2, 3, 1), write(4, 5, 2), read(6, 7, 2)],
        // While a write is under way either value may be read, until the new one has been.
        &[write(0, 1, 1), write(2, 9, 2), read(3, 4, 1), read(5, 6, 2), read(7, 8, 2)],
        &[write(0, 9, 1), write(1, 8, 2), read(2, 3, 1), read(4, 5, 2)],
        &[write(0, 1, 1), write(2, 5, 2), write(3, 4, 3), read(6, 7, 2)],
    ];
    for history in good {
        assert_eq!(check(history), Ok(()), "{history:?}");
    }
    let bad: [(&[Event], &str); 6] = [
        (&[write(0, 1, 1), read(2, 3, 2)], "nobody wrote"),
        (&[write(0, 1, 1), read(2, 3, 2), write(4, 5, 2)], "before"),
        // A stale read.
        (&[write(0, 1, 1), write(2, 3, 2), read(4, 5, 1)], "inside the time of"),
        // New, then old.
        (&[write(0, 1, 1), write(2, 9, 2), read(3, 4, 2), read(5, 6, 1)], "inside the time of"),
        // Two readers that disagree about the order of two writes.
        (&[write(0, 1, 1), write(0, 1, 2), read(2, 3, 1), read(4, 5, 2), read(6, 7, 1)], "at once"),
        (
            &[write(0, 1, 1), write(0, 1, 2), read(2, 3, 1), read(4, 5, 2), read(6, 7, 1), read(8, 9, 2)],
            "at once",
        ),
    ];
    for (history, why) in bad {
        let found = check(history).unwrap_err();
        assert!(found.contains(why), "{history:?}: {found}");
    }
}
