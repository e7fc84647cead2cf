//! The order in which clients get the lock, and how: the queue, the hand-over and its limit.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_lock::{LockConfig, LockTable};
use farwood_runtime::{Chain, Meter};
use futures::channel::oneshot;

use crate::clients::{Client, Style};
use crate::fake::{Fake, World, node};

/// Lets a holder wait until `clients` others are queued, then all go one after the other. Yields for each in turn
/// whether the lock was handed over.
fn turns(
    config: LockConfig,
    shards: u16,
    clients: usize,
    style: Style,
) -> (Vec<bool>, Vec<(Fake, LockTable<Fake>)>) {
    let world = World::new(5, 1, shards);
    let tables = world.attach(config);
    let turns = Rc::new(RefCell::new(Vec::new()));
    let (go, gate) = oneshot::channel::<()>();
    let mut gate = Some(gate);
    for i in 0..=clients {
        let client = Client::new(&tables[i % tables.len()], 0, style);
        let (turns, gate) = (Rc::clone(&turns), gate.take());
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = client.acquire(&meter, node(0)).await.expect("it is not held for long");
            turns.borrow_mut().push((i, held.was_handed_over()));
            held.lock(&meter).await.expect("no other client wants it");
            if let Some(gate) = gate {
                gate.await.expect("it is opened");
            }
            assert_eq!(held.node(), node(0));
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
        });
        world.run_until_idle();
    }
    go.send(()).expect("the holder waits");
    world.run();
    world.assert_at_rest(&tables);
    let turns = turns.take();
    assert!(
        turns.iter().enumerate().all(|(at, &(client, _))| at == client),
        "not first come first served: {turns:?}"
    );
    (turns.into_iter().map(|(_, handed_over)| handed_over).collect(), tables)
}

#[test]
fn four_hand_overs_then_the_global_lock_is_taken_anew() {
    for (shards, style) in
        (1..=3).flat_map(|shards| [Style::FAST, Style::EMBEDDED].map(|style| (shards, style)))
    {
        let (turns, tables) = turns(LockConfig::default(), shards, 11, style);
        let (no, yes) = (false, true);
        assert_eq!(turns, [no, yes, yes, yes, yes, no, yes, yes, yes, yes, no, yes], "{shards} shards");
        let stats = |pick: fn(farwood_lock::LockStats) -> u64| -> u64 {
            tables.iter().map(|(_, table)| pick(table.stats())).sum()
        };
        assert_eq!((stats(|s| s.acquired), stats(|s| s.handed_over), stats(|s| s.remote_failed)), (12, 9, 0));
        assert!(stats(|s| s.waited) >= 11);
    }
}

#[test]
fn the_limit_is_configurable_and_the_switch_turns_it_off() {
    let one = LockConfig { handovers_max: 1, ..LockConfig::default() };
    assert_eq!(turns(one, 2, 4, Style::FAST).0, [false, true, false, true, false]);
    for config in [
        LockConfig { handover: false, ..LockConfig::default() },
        LockConfig { handovers_max: 0, ..LockConfig::default() },
    ] {
        assert_eq!(turns(config, 2, 4, Style::FAST).0, [false; 5]);
    }
}

#[test]
fn memory_is_bounded_by_concurrent_operations() {
    let world = World::new(3, 1, 2);
    let tables = world.attach(LockConfig::default());
    let bytes =
        |tables: &[(Fake, LockTable<Fake>)]| -> usize { tables.iter().map(|(_, table)| table.bytes()).sum() };
    let mut before = 0;
    for round in 0..50 {
        for client in 0..20 {
            let table = tables[client % 2].1.clone();
            world.spawn(async move {
                let meter = Meter::default();
                let mut held =
                    table.acquire(&meter, node(client as u64 % 3)).await.expect("it is not held for long");
                held.lock(&meter).await.expect("no other client wants it");
                held.release(&meter, Chain::new(node(0).server()), true)
                    .await
                    .expect("the fabric does not fail");
            });
        }
        world.run();
        if round == 25 {
            before = bytes(&tables);
        }
    }
    assert_eq!(bytes(&tables), before);
    assert!(before < 16 << 10, "{before} bytes");
}
