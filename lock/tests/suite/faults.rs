//! Chains that fail with any prefix executed: a CAS or an unlock of unknown outcome is read back and settled, so locks
//! come free and no update is lost.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::{LockConfig, LockError};
use farwood_runtime::Meter;

use crate::clients::{Client, Cut, Style};
use crate::fake::{NODES, World, node};

fn count_with_faults(seed: u64, config: LockConfig, style: Style, polls: Option<u32>) -> u32 {
    let world = World::new(seed, 2, 2);
    let tables = world.attach(config);
    world.set_fault_rate(0.1);
    let failed = Rc::new(Cell::new(0));
    let clients: Vec<Client> = (0..8).map(|word| Client::new(&tables[word % 4], word, style)).collect();
    for client in &clients {
        let (client, failed) = (client.clone(), Rc::clone(&failed));
        world.spawn(async move {
            for round in 0..8 {
                let meter = Meter::default();
                let polls = polls.map_or(u32::MAX, |polls| (polls + round) % 8);
                match Cut::after(polls, true, client.add_one(&meter, node(0))).await {
                    Some(Err(LockError::Fabric(_))) => failed.set(failed.get() + 1),
                    Some(done) => done.expect("only the fabric fails"),
                    None => {}
                }
            }
        });
    }
    world.run();
    for client in &clients {
        assert_eq!(
            client.lost(world.word(NODES + client.word as u64 * 8)),
            0,
            "lost updates with seed {seed}"
        );
    }
    world.assert_at_rest(&tables);
    failed.get()
}

#[test]
fn unknown_outcomes_are_settled() {
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    let mut failed = 0;
    for seed in 0..40 {
        for (fused, combine) in [(true, true), (true, false), (false, true)] {
            let style = Style { fused, combine, ..Style::FAST };
            failed += count_with_faults(seed, LockConfig::default(), style, None);
            count_with_faults(seed, flat, style, None);
        }
    }
    assert!(failed > 1000, "{failed} operations failed");
}

#[test]
fn unknown_outcomes_of_dropped_operations_are_settled() {
    for seed in 0..80 {
        count_with_faults(seed, LockConfig::default(), Style::FAST, Some(seed as u32));
    }
}

/// A caller that tries again on the same acquisition takes the lock once, whether the CAS that failed had won or not.
#[test]
fn a_second_try_finds_what_the_first_one_did() {
    let mut retried = 0;
    for seed in 0..100 {
        let world = World::new(seed, 1, 1);
        let tables = world.attach(LockConfig::default());
        world.set_fault_rate(0.5);
        let table = tables[0].1.clone();
        let tries = Rc::new(Cell::new(0));
        let counted = Rc::clone(&tries);
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = table.acquire(node(0)).await;
            while held.lock(&meter).await.is_err() {
                counted.set(counted.get() + 1);
            }
            assert_eq!(meter.usage().retries, 0, "its own word is not contention");
        });
        world.run();
        retried += tries.get();
        assert_eq!(tables[0].1.stats().acquired, 1);
        world.assert_at_rest(&tables);
    }
    assert!(retried > 50, "{retried} tries");
}
