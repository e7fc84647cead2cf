//! Bounds on the work that clients leave to the janitor when a memory server does not answer, none of which is lost:
//! clients fail before they ask, and what was begun is finished when the server answers again.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::{LockConfig, LockError, LockStats};
use farwood_runtime::{FabricError, Meter, Verbs};

use crate::clients::{Client, Cut, Style};
use crate::fake::{Fault, World, node};

const CLIENTS: usize = 4;
const OPERATIONS: u64 = 200;
/// Each with a lock word of its own.
const NODES: u64 = 100;

fn config(unsettled_max: usize) -> LockConfig {
    LockConfig { unsettled_max, ..LockConfig::default() }
}

/// The most tasks that were alive at the end of any operation of [`CLIENTS`] clients, which go from node to node.
struct Busy {
    world: World,
    peak: Rc<Cell<usize>>,
}

impl Busy {
    fn new(seed: u64) -> Self {
        Busy { world: World::new(seed, 1, 1), peak: Rc::default() }
    }

    fn look(&self) {
        self.peak.set(self.peak.get().max(self.world.alive()));
    }

    /// Runs operations all of which meet a server that is gone. Yields how many tasks there were at most.
    fn against_a_dead_server(self, config: LockConfig) -> (usize, LockStats) {
        (0..100_000).for_each(|chain| self.world.fail(chain, Fault::GONE));
        let busy = Rc::new(self);
        let tables = busy.world.attach(config);
        for word in 0..CLIENTS {
            let (busy, client) = (Rc::clone(&busy), Client::new(&tables[0], word, Style::EMBEDDED));
            busy.world.clone().spawn(async move {
                for n in 0..OPERATIONS {
                    let node = node((n * CLIENTS as u64 + word as u64) % NODES);
                    let failed =
                        client.add_one(&Meter::default(), node).await.expect_err("the server is gone");
                    assert!(matches!(failed, LockError::Fabric(FabricError::ServerGone { .. })), "{failed}");
                    busy.look();
                }
            });
        }
        busy.world.run();
        let (fake, table) = &tables[0];
        assert_eq!((table.in_use(), fake.leased()), ((0, 0), 0));
        (busy.peak.get(), table.stats())
    }
}

#[test]
fn a_server_that_is_gone_collects_no_more_tasks_than_it_may() {
    for seed in 0..3 {
        let (peak, stats) = Busy::new(seed).against_a_dead_server(config(8));
        // Each client is a task itself, may have asked before there were too many, and one task watches the clients
        // that wait.
        assert!(peak <= 8 + 2 * CLIENTS + 1, "{peak} tasks with seed {seed}");
        assert!(stats.refused > 0 && stats.orphaned > 0 && stats.acquired == 0, "{stats:?}");
        // The control: nothing else bounds them.
        let (peak, stats) = Busy::new(seed).against_a_dead_server(config(usize::MAX));
        assert!(peak > 50 && stats.refused == 0, "{peak} tasks with seed {seed}, {stats:?}");
    }
}

/// The server answers again before the janitor's patience ends: every lock comes free, no update is lost, and new
/// operations succeed at once.
#[test]
fn nothing_is_lost_of_what_was_begun() {
    let mut refused = 0;
    for seed in 0..20 {
        let world = World::new(seed, 2, 1);
        let tables = world.attach(config(1));
        (20..200).for_each(|chain| world.fail(chain, Fault::GONE));
        let clients: Vec<Client> =
            (0..12).map(|word| Client::new(&tables[word % 2], word, Style::EMBEDDED)).collect();
        for client in &clients {
            let client = client.clone();
            world.spawn(async move {
                let (mut done, mut failed) = (0, 0);
                while done < 5 {
                    match client.add_one(&Meter::default(), node(client.word as u64 % 6)).await {
                        Ok(()) => done += 1,
                        Err(_) => {
                            failed += 1;
                            assert!(failed < 10_000, "the server was away for a while only");
                            client.fake.pause(10_000_000).await;
                        }
                    }
                }
            });
        }
        world.run();
        for client in &clients {
            assert_eq!(client.lost(client.value(&world, client.word as u64 % 6)), 0, "seed {seed}");
        }
        world.assert_at_rest(&tables);
        let stats = tables.iter().map(|(_, table)| table.stats());
        refused +=
            stats.inspect(|stats| assert_eq!(stats.orphaned, 0)).map(|stats| stats.refused).sum::<u64>();
    }
    assert!(refused > 0, "the bound was never met");
}

/// A server that answers, but more slowly than clients drop their operations: they wait for the janitor.
#[test]
fn dropped_operations_wait_for_the_janitor() {
    let mut unbounded = 0;
    for seed in 0..20 {
        for unsettled_max in [1, usize::MAX] {
            let busy = Rc::new(Busy::new(seed));
            let tables = busy.world.attach(config(unsettled_max));
            for word in 0..CLIENTS {
                let (busy, client) = (Rc::clone(&busy), Client::new(&tables[0], word, Style::EMBEDDED));
                busy.world.clone().spawn(async move {
                    for n in 0..OPERATIONS {
                        let node = node((n * CLIENTS as u64 + word as u64) % NODES);
                        drop(Cut::after(1, true, client.add_one(&Meter::default(), node)).await);
                        busy.look();
                    }
                });
            }
            busy.world.run();
            busy.world.assert_at_rest(&tables);
            assert_eq!(tables[0].1.stats().refused, 0, "the server answers");
            match unsettled_max {
                1 => assert!(busy.peak.get() <= 2 * CLIENTS + 2, "{} tasks", busy.peak.get()),
                _ => unbounded = unbounded.max(busy.peak.get()),
            }
        }
    }
    assert!(unbounded > 2 * CLIENTS + 2, "{unbounded} tasks: nothing was to be bounded");
}
