//! No client waits for ever: neither at a global word, nor in a local queue, nor for a window. Each ends at its own
//! time, and leaves nothing behind, also if a grant or an answer crosses its leaving.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farwood_lock::window::{Access, Entered, Outcome, WindowConfig};
use farwood_lock::{LockConfig, LockError, LockWord};
use farwood_runtime::{Chain, Meter, Verbs};
use futures::channel::oneshot;

use crate::clients::{Client, Style, assert_whole};
use crate::fake::{World, embedded, node};

const DEAD: u16 = 77;
const WAIT_NS: u64 = 2_000_000;

fn patient() -> LockConfig {
    LockConfig { name: "books".into(), wait_max: Duration::from_nanos(WAIT_NS), ..LockConfig::default() }
}

/// Clients of two compute nodes all want a lock that a dead one holds. Each hears of it after its own time, and not
/// after that of the clients before it in the queue.
#[test]
fn a_queue_behind_the_lock_of_the_dead_ends_all_at_once() {
    const CLIENTS: usize = 100;
    for (hierarchical, place) in [(true, Style::FAST), (false, Style::FAST), (true, Style::EMBEDDED)] {
        let world = World::new(1, 2, 2);
        let dead = LockWord::new(DEAD, 0, 1).to_bits();
        world.set_locks(dead);
        world.set_word(embedded(0).offset(), dead);
        let tables = world.attach(LockConfig { hierarchical, ..patient() });
        let ended = Rc::new(Cell::new(0));
        for word in 0..CLIENTS {
            let client = Client::new(&tables[word % 4], word % 12, place);
            let ended = Rc::clone(&ended);
            world.spawn(async move {
                let error = client.add_one(&Meter::default(), node(0)).await.expect_err("no client frees it");
                let LockError::Contended { index, node: named, owner, waited_ns, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!((&*index, named, owner), ("books", node(0), DEAD));
                // The fake's clock jumps ahead of tasks that are ready: from pause to pause, a millisecond at most.
                assert!((WAIT_NS..WAIT_NS * 4).contains(&waited_ns), "it waited {waited_ns} ns");
                ended.set(ended.get() + 1);
            });
        }
        world.run();
        assert_eq!(ended.get(), CLIENTS);
        assert!(world.locks_are(dead), "a foreign lock was touched");
        world.set_locks(0);
        world.set_word(embedded(0).offset(), 0);
        world.assert_at_rest(&tables);
    }
}

/// A client in a local queue asks once which compute node has the lock, when its time is over: a queue pair that breaks
/// just then does not keep it from naming the owner.
#[test]
fn a_client_in_a_queue_names_the_owner_though_queue_pairs_break() {
    for seed in 0..20 {
        let world = World::new(seed, 1, 2);
        world.set_locks(LockWord::new(DEAD, 1, 1).to_bits());
        world.set_fault_rate(0.4);
        let tables = world.attach(patient());
        for word in 0..12 {
            let client = Client::new(&tables[word % 2], word, Style::FAST);
            world.spawn(async move {
                let error = client.add_one(&Meter::default(), node(0)).await.expect_err("it stays");
                assert!(matches!(error, LockError::Contended { owner: DEAD, .. }), "seed {seed}: {error}");
            });
        }
        world.run();
        world.set_locks(0);
        world.assert_at_rest(&tables);
    }
}

/// A client whose last chains all fail names the owner that it saw before.
#[test]
fn a_client_remembers_the_owner_that_it_saw() {
    for seed in 0..20 {
        let world = World::new(seed, 1, 1);
        world.set_locks(LockWord::new(DEAD, 1, 1).to_bits());
        let tables = world.attach(LockConfig { hierarchical: false, ..patient() });
        let client = Client::new(&tables[0], 0, Style::FAST);
        world.spawn(async move {
            let error = client.add_one(&Meter::default(), node(0)).await.expect_err("it stays");
            assert!(matches!(error, LockError::Contended { owner: DEAD, .. }), "seed {seed}: {error}");
        });
        let ((own, table), breaking) = (tables[0].clone(), world.clone());
        world.spawn(async move {
            while table.stats().remote_failed == 0 {
                own.pause(10_000).await;
            }
            breaking.set_fault_rate(1.0);
            own.pause(WAIT_NS * 4).await;
            breaking.set_fault_rate(0.0);
        });
        world.run();
        world.set_locks(0);
        world.assert_at_rest(&tables);
    }
}

/// A process is stopped for long while its clients wait for each other, and goes on: none of them gives up for that.
#[test]
fn time_in_which_the_process_stood_still_does_not_count() {
    for hierarchical in [true, false] {
        for seed in 0..20 {
            let world = World::new(seed, 1, 2);
            let tables =
                world.attach(LockConfig { hierarchical, wait_max: Duration::from_secs(2), ..patient() });
            let (holder, stopped) = (tables[0].clone(), world.clone());
            world.spawn(async move {
                let meter = Meter::default();
                let (fake, table) = holder;
                let mut held = table.acquire(&meter, node(0)).await.expect("it is free");
                held.lock(&meter).await.expect("it is free");
                while table.stats().waited + table.stats().remote_failed == 0 {
                    fake.pause(1_000).await;
                }
                stopped.stand_still(12_000_000_000);
                fake.pause(1_000).await;
                held.release(&meter, Chain::new(node(0).server()), true)
                    .await
                    .expect("the fabric does not fail");
            });
            for word in 0..6 {
                let client = Client::new(&tables[word % 2], word, Style::FAST);
                world.spawn(async move {
                    let done = client.add_one(&Meter::default(), node(0)).await;
                    done.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                });
            }
            world.run();
            world.assert_at_rest(&tables);
        }
    }
}

/// A holder does not go on, as one whose task does not poll it. The clients behind it, on its shard and on the other,
/// do.
#[test]
fn a_holder_that_stands_still_does_not_keep_its_queue() {
    for has_word in [true, false] {
        let world = World::new(2, 1, 2);
        let tables = world.attach(patient());
        let (go, gate) = oneshot::channel::<()>();
        let holder = tables[0].1.clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = holder.acquire(&meter, node(0)).await.expect("it is free");
            if has_word {
                held.lock(&meter).await.expect("it is free");
            }
            gate.await.expect("it is opened");
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
        });
        world.run_until_idle();
        let owners = Rc::new(RefCell::new(Vec::new()));
        for word in 0..6 {
            let (client, owners) = (Client::new(&tables[word % 2], word, Style::FAST), Rc::clone(&owners));
            world.spawn(async move {
                match client.add_one(&Meter::default(), node(0)).await {
                    Err(LockError::Contended { owner, attempts: 0, .. }) => owners.borrow_mut().push(owner),
                    other => panic!("{other:?}"),
                }
            });
        }
        let (count, opened) = (Rc::clone(&owners), tables[0].0.clone());
        world.spawn(async move {
            while count.borrow().len() < 6 {
                opened.pause(WAIT_NS).await;
            }
            go.send(()).expect("the holder waits");
        });
        world.run();
        assert_eq!(*owners.borrow(), [1; 6], "their own compute node is the owner");
        world.assert_at_rest(&tables);
    }
}

/// Patience that ends at any time, also while the lock is on its way: what crosses is given back. No update is lost,
/// and an operation that gave up had no effect.
#[test]
fn hand_over_and_the_end_of_patience_may_cross() {
    let (mut done, mut gave_up) = (0, 0);
    for seed in 0..120 {
        for style in Style::PLACES {
            let world = style.world(seed, 2, 2);
            let wait_max = Duration::from_nanos([1, 300, 3_000, 30_000][seed as usize % 4]);
            let tables = world.attach(LockConfig { wait_max, ..LockConfig::default() });
            world.set_fault_rate(if seed % 3 == 0 { 0.05 } else { 0.0 });
            let clients: Vec<_> = (0..8).map(|word| Client::new(&tables[word % 4], word, style)).collect();
            let counts = Rc::new(Cell::new((0, 0)));
            for client in clients.iter().cloned() {
                let counts = Rc::clone(&counts);
                world.spawn(async move {
                    for _ in 0..5 {
                        let (did, gave_up) = counts.get();
                        let before = client.bounds.get();
                        match client.add_one(&Meter::default(), node(0)).await {
                            Ok(()) => counts.set((counts.get().0 + 1, counts.get().1)),
                            Err(LockError::Contended { .. }) => {
                                assert_eq!(client.bounds.get(), before, "it saw the node, {did} {gave_up}");
                                counts.set((counts.get().0, counts.get().1 + 1));
                            }
                            // Queue pairs that break cost time, too.
                            Err(LockError::Fabric(cause)) => assert!(cause.is_passing(), "{cause}"),
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
            world.run();
            for client in &clients {
                assert_eq!(client.lost(client.value(&world, 0)), 0, "lost updates with seed {seed}");
            }
            assert_whole(&world, 0, style);
            world.assert_at_rest(&tables);
            done += counts.get().0;
            gave_up += counts.get().1;
        }
    }
    assert!(done > 1000 && gave_up > 1000, "{done} operations were done, {gave_up} given up");
}

/// A client that waits for a window works alone in the end, and what it waited counts for the lock that it needs then.
#[test]
fn a_leader_that_stands_still_does_not_keep_its_group() {
    for (home, access) in [(0, Access::Read), (1, Access::Read), (0, Access::Write(0)), (1, Access::Write(0))]
    {
        let world = World::new(3, 1, 2);
        let config = WindowConfig { wait_max: Duration::from_nanos(WAIT_NS), ..WindowConfig::default() };
        let tables = world.attach_windows(config);
        // Of two keys that the first client leads one is at home on its shard; both are waited for from both shards.
        let key = [b"left".as_slice(), b"right"][home];
        let (go, gate) = oneshot::channel::<()>();
        let leader = tables[0].1.clone();
        world.spawn(async move {
            let meter = Meter::default();
            let Entered::Led(lead) = leader.enter(&meter, key, Access::Read).await else {
                panic!("it is first")
            };
            gate.await.expect("it is opened");
            lead.finish(Outcome::read(None));
        });
        world.run_until_idle();
        let alone = Rc::new(Cell::new(0));
        for client in 0..6 {
            let (table, alone) = (tables[client % 2].1.clone(), Rc::clone(&alone));
            let fake = tables[client % 2].0.clone();
            world.spawn(async move {
                let meter = Meter::default();
                assert!(matches!(table.enter(&meter, key, access).await, Entered::Bypass));
                let now = fake.now();
                assert!(now - meter.waits_since(now) >= WAIT_NS, "what it has waited is remembered");
                alone.set(alone.get() + 1);
            });
        }
        let (count, fake) = (Rc::clone(&alone), tables[0].0.clone());
        world.spawn(async move {
            while count.get() < 6 {
                fake.pause(WAIT_NS).await;
            }
            go.send(()).expect("the leader waits");
        });
        world.run();
        for (fake, table) in &tables {
            assert_eq!((table.in_use(), fake.leased()), ((0, 0), 0));
        }
    }
}

#[test]
fn a_lock_that_is_free_costs_no_look_at_the_clock() {
    let world = World::new(4, 1, 1);
    let tables = world.attach(LockConfig::default());
    let client = Client::new(&tables[0], 0, Style::FAST);
    world.spawn(async move {
        for _ in 0..3 {
            client.add_one(&Meter::default(), node(0)).await.expect("it is free");
        }
    });
    world.run();
    assert_eq!(world.clock_reads(), 0);
}

/// Clients are watched only as long as one of them waits, and not at all if they wait for ever.
#[test]
fn patience_without_end_costs_nothing() {
    let world = World::new(5, 1, 1);
    let tables = world.attach(LockConfig { wait_max: Duration::MAX, ..LockConfig::default() });
    for word in 0..4 {
        let client = Client::new(&tables[0], word, Style::FAST);
        world.spawn(async move { client.add_one(&Meter::default(), node(0)).await.expect("it comes free") });
    }
    world.run();
    assert_eq!((world.clock_reads(), tables[0].1.stats().waited), (0, 3));
}

/// An operation that has what it waited for begins anew when it waits for the next: a scan waits for many locks.
#[test]
fn each_wait_has_its_own_time() {
    let world = World::new(6, 1, 1);
    let tables = world.attach(LockConfig { wait_max: Duration::from_millis(4), ..LockConfig::default() });
    let (fake, table) = tables[0].clone();
    let freeing = world.clone();
    world.set_locks(LockWord::new(DEAD, 0, 1).to_bits());
    world.spawn(async move {
        let meter = Meter::default();
        let waited = Rc::new(Cell::new(0));
        for _ in 0..4 {
            let begun = fake.now();
            let mut held = table.acquire(&meter, node(0)).await.expect("no client is before it");
            let (world, sum, own) = (freeing.clone(), Rc::clone(&waited), fake.clone());
            fake.defer(async move {
                own.pause(2_000_000).await;
                world.set_locks(0);
                sum.set(sum.get() + own.now() - begun);
            });
            held.lock(&meter).await.expect("it is freed in time");
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
            freeing.set_locks(LockWord::new(DEAD, 0, 1).to_bits());
        }
        assert!(waited.get() > 4_000_000, "all waits together are longer than one may be");
        freeing.set_locks(0);
    });
    world.run();
    world.assert_at_rest(&tables);
}
