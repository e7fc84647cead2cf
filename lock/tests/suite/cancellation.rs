//! Operations are dropped at every point where they can be: nothing stays held, leased or forgotten, and an operation
//! has taken effect or has not.

use farwood_lock::LockConfig;
use farwood_runtime::{Chain, Meter, Verbs};

use crate::clients::{Client, Cut, Style, assert_carried};
use crate::fake::{World, embedded, node};

const CLIENTS: usize = 6;

/// Runs operations of all clients, of which some are cut after a number of polls that goes round. Yields how many were
/// cut.
fn cut_everywhere(seed: u64, config: LockConfig, style: Style, at_once: bool, polls_max: u32) -> u32 {
    let world = style.world(seed, 2, 2);
    let tables = world.attach(style.config(config));
    let cuts = std::rc::Rc::new(std::cell::Cell::new(0));
    let clients: Vec<Client> =
        (0..CLIENTS).map(|word| Client::new(&tables[word % tables.len()], word, style)).collect();
    for (i, client) in clients.iter().cloned().enumerate() {
        let cuts = std::rc::Rc::clone(&cuts);
        world.spawn(async move {
            for round in 0..polls_max {
                let meter = Meter::default();
                let polls = (round + i as u32) % polls_max;
                match Cut::after(polls, at_once, client.add_one(&meter, node(0))).await {
                    Some(done) => done.expect("the fabric does not fail"),
                    None => cuts.set(cuts.get() + 1),
                }
                client.add_one(&meter, node(0)).await.expect("the fabric does not fail");
            }
        });
    }
    world.run();
    for client in &clients {
        assert_eq!(client.lost(client.value(&world, 0)), 0, "lost updates with seed {seed}");
    }
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
    cuts.get()
}

#[test]
fn dropping_at_every_await_point_leaves_nothing_behind() {
    let mut cut = 0;
    for seed in 0..60 {
        for at_once in [false, true] {
            for style in Style::PLACES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS) {
                cut += cut_everywhere(seed, LockConfig::default(), style, at_once, 6);
            }
        }
    }
    assert!(cut > 4000, "{cut} operations were cut");
}

#[test]
fn dropping_leaves_nothing_behind_whatever_is_switched_off() {
    for seed in 0..15 {
        for at_once in [false, true] {
            for (fused, combine) in [(false, false), (false, true), (true, false)] {
                cut_switched_off(seed, Style { fused, combine, ..Style::FAST }, at_once);
                cut_switched_off(seed, Style { fused, combine, ..Style::EMBEDDED }, at_once);
                cut_switched_off(seed, Style { fused, combine, ..Style::FRONT }, at_once);
            }
            cut_switched_off(seed, Style { fused: false, ..Style::REAR }, at_once);
            cut_switched_off(seed, Style { fused: false, combine: false, ..Style::CARRYING[0] }, at_once);
        }
    }
}

fn cut_switched_off(seed: u64, style: Style, at_once: bool) {
    cut_everywhere(seed, LockConfig::default(), style, at_once, 9);
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    cut_everywhere(seed, flat, style, at_once, 12);
    let queued = LockConfig { handover: false, ..LockConfig::default() };
    cut_everywhere(seed, queued, style, at_once, 9);
}

/// One client alone, one operation: the number of polls at which it is cut goes through all of them, so every await
/// point is met for certain.
#[test]
fn every_await_point_of_a_lone_operation() {
    for (fused, combine, awaits) in [(true, true, 2), (false, true, 3), (true, false, 3), (false, false, 4)] {
        for shard in 0..2 {
            // The remote home adds the wait for the grant; which shard is home depends on the lock.
            for polls in 0..=awaits + 1 {
                for at_once in [false, true] {
                    for place in Style::PLACES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS)
                    {
                        lone(Style { fused, combine, ..place }, shard, polls, at_once);
                    }
                }
            }
        }
    }
}

fn lone(style: Style, shard: usize, polls: u32, at_once: bool) {
    let world = style.world(7, 1, 2);
    let tables = world.attach(style.config(LockConfig::default()));
    let client = Client::new(&tables[shard], 0, style);
    let again = client.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let done = Cut::after(polls, at_once, client.add_one(&meter, node(0))).await;
        assert!(done.is_none_or(|done| done.is_ok()));
    });
    world.run();
    world.assert_at_rest(&tables);
    assert_eq!(again.lost(again.value(&world, 0)), 0);
    let check = again.clone();
    world.spawn(async move {
        check.add_one(&Meter::default(), node(0)).await.expect("the lock is free");
    });
    world.run();
    assert_eq!(again.bounds.get().0, again.value(&world, 0));
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
}

/// A call is dropped and the [`farwood_lock::Held`] is not: it finds its CAS again.
#[test]
fn a_held_lock_outlives_a_dropped_call() {
    for at_once in [false, true] {
        let world = World::new(11, 1, 1);
        let tables = world.attach(LockConfig::default());
        let client = Client::new(&tables[0], 0, Style::FAST);
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = client.table.acquire(&meter, node(0)).await.expect("it is not held for long");
            assert!(Cut::after(1, at_once, held.lock(&meter)).await.is_none());
            held.lock(&meter).await.expect("the CAS in flight wins");
            assert_eq!((meter.usage().cas, meter.usage().round_trips), (1, 1));
            let chain = Chain::new(node(0).server());
            held.release(&meter, chain, true).await.expect("the fabric does not fail");
        });
        world.run();
        assert_eq!(tables[0].1.stats().acquired, 1);
        world.assert_at_rest(&tables);
    }
}

/// A holder does a CAS of its own on a word of the node and is dropped while that is in flight. The janitor's unlock
/// may not overtake it, which on one queue pair only a fence behind a READ prevents.
#[test]
fn the_janitor_unlocks_behind_what_a_dropped_holder_has_in_flight() {
    for (own_verbs, place) in [(true, Style::EMBEDDED), (false, Style::EMBEDDED), (true, Style::FAST)] {
        let world = World::new(13, 1, 1);
        let tables = world.attach(LockConfig::default());
        let client = Client::new(&tables[0], 0, place);
        let checked = client.clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = client.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("no other client wants it");
            if own_verbs {
                let mut chain = Chain::new(node(0).server());
                chain.cas(node(0), 0, 1);
                let cas = client.fake.submit(&meter, chain);
                assert!(Cut::after(1, true, cas).await.is_none());
            }
        });
        world.run();
        assert_eq!((world.word(node(0).offset()), world.fences()), (u64::from(own_verbs), 1));
        assert_eq!(world.word(embedded(0).offset()), 0);
        world.assert_at_rest(&tables);
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = checked.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("it is free again");
            let mut chain = Chain::new(node(0).server());
            chain.cas(node(0), u64::from(own_verbs), 7);
            checked.fake.submit(&meter, chain).await.expect("the fabric does not fail");
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
            assert_eq!((meter.usage().round_trips, meter.usage().cas, meter.usage().writes), (3, 2, 1));
        });
        world.run();
        assert_eq!((world.word(node(0).offset()), world.fences()), (7, 1), "what was awaited needs no fence");
        world.assert_at_rest(&tables);
    }
}
