//! Global locks that stay taken: back-off, the budget, and what the error says.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::{LockConfig, LockError, LockWord};
use farwood_runtime::{Chain, Meter};

use crate::fake::{LOCK_BASE, LOCKS, World, node};

#[test]
fn a_lock_of_a_dead_node_is_an_error_that_names_it() {
    let world = World::new(1, 1, 1);
    let config = LockConfig { attempts_max: 5, name: "books".into(), ..LockConfig::default() };
    let tables = world.attach(config);
    let foreign = LockWord::new(77, 1, 99).to_bits();
    for lock in 0..LOCKS {
        world.set_word(LOCK_BASE + lock * 8, foreign);
    }
    let failed = Rc::new(Cell::new(None));
    let (table, error) = (tables[0].1.clone(), Rc::clone(&failed));
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
        error.set(held.lock(&meter).await.err());
        assert_eq!((meter.usage().cas, meter.usage().retries), (5, 5));
    });
    world.run();
    let error = failed.take().expect("the budget is spent");
    assert!(matches!(error, LockError::Contended { owner: 77, attempts: 5, .. }), "{error:?}");
    assert!(
        ["index \"books\"", &node(0).to_string(), "compute node 77", "lock_wait_max", "if it is dead"]
            .iter()
            .all(|part| error.to_string().contains(part)),
        "{error}"
    );
    assert_eq!(tables[0].1.stats().remote_failed, 5);
    assert_eq!(tables[0].1.in_use(), (0, 0));
    assert!((0..LOCKS).all(|lock| world.word(LOCK_BASE + lock * 8) == foreign), "a foreign lock was touched");
}

#[test]
fn a_foreign_lock_that_comes_free_is_taken() {
    let world = World::new(2, 1, 1);
    let tables = world.attach(LockConfig::default());
    for lock in 0..LOCKS {
        world.set_word(LOCK_BASE + lock * 8, LockWord::new(77, 0, 1).to_bits());
    }
    let (fake, table) = tables[0].clone();
    let freed = Rc::new(Cell::new(false));
    let (seen, unlock) = (Rc::clone(&freed), world.clone());
    world.spawn(async move {
        use farwood_runtime::Verbs;
        fake.pause(100_000).await;
        freed.set(true);
        (0..LOCKS).for_each(|lock| unlock.set_word(LOCK_BASE + lock * 8, 0));
    });
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
        held.lock(&meter).await.expect("it comes free");
        assert!(seen.get());
        held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
    });
    world.run();
    world.assert_at_rest(&tables);
}
