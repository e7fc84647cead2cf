//! Chains that fail with any prefix executed and any lines of the WRITE behind it: a CAS finds out its outcome, a
//! release is redone. No update is lost, no node stays torn, locks come free.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::{Backoff, LockConfig, LockError};
use farwood_runtime::{Buf, Chain, FabricError, Meter, Verbs};

use crate::clients::{Client, Cut, DATA_BYTES, NODE_BYTES, Place, Style, assert_carried, assert_whole};
use crate::fake::{Fault, LOCK_BASE, LOCKS, World, embedded, node};

/// Yields every way in which a chain of at most two verbs fails, a node having two lines.
fn ways_to_fail() -> impl Iterator<Item = Fault> {
    (0..=2).flat_map(|verbs| (0..4).map(move |lines| Fault { verbs, lines, gone: false }))
}

const SEVENS: u64 = u64::from_le_bytes([7; 8]);

const STYLES: [Style; 15] = [
    Style::FAST,
    Style::LEAVING,
    Style { combine: false, ..Style::LEAVING },
    Style { combine: false, ..Style::FAST },
    Style { fused: false, ..Style::FAST },
    Style { fused: false, combine: false, ..Style::FAST },
    Style { in_order: false, ..Style::FAST },
    Style::EMBEDDED,
    Style::REAR,
    Style { in_order: false, ..Style::REAR },
    Style { fused: false, ..Style::REAR },
    Style::FRONT,
    Style { combine: false, ..Style::FRONT },
    Style::CLEARED_BY_CAS[1],
    Style::CLEARED_BY_CAS[4],
];

/// Runs eight clients on two compute nodes, of whose chains one in ten fails. Yields how many had to be tried again.
fn count_with_faults(seed: u64, config: LockConfig, style: Style, polls: Option<u32>) -> u32 {
    let world = style.world(seed, 2, 2);
    let tables = world.attach(style.config(config));
    world.set_fault_rate(0.1);
    let retried = Rc::new(Cell::new(0));
    let clients: Vec<Client> = (0..8).map(|word| Client::new(&tables[word % 4], word, style)).collect();
    for client in &clients {
        let (client, retried) = (client.clone(), Rc::clone(&retried));
        world.spawn(async move {
            for round in 0..8 {
                let meter = Meter::default();
                let polls = polls.map_or(u32::MAX, |polls| (polls + round) % 8);
                let done = Cut::after(polls, true, client.add_one(&meter, node(0))).await;
                assert!(done.is_none_or(|done| done.is_ok()), "a broken queue pair is no error");
                retried.set(retried.get() + meter.usage().retries);
            }
        });
    }
    world.run();
    for client in &clients {
        let value = client.value(&world, 0);
        assert_eq!(client.lost(value), 0, "lost updates with seed {seed}");
        assert!(polls.is_some() || value == 8, "an update that succeeded is missing with seed {seed}");
    }
    assert_whole(&world, 0, style);
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
    retried.get()
}

#[test]
fn failed_chains_are_redone() {
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    let mut retried = 0;
    for seed in 0..40 {
        for style in STYLES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS) {
            retried += count_with_faults(seed, LockConfig::default(), style, None);
            count_with_faults(seed, flat.clone(), style, None);
        }
    }
    assert!(retried > 1000, "{retried} retries");
}

#[test]
fn failed_chains_of_dropped_operations_are_redone() {
    for seed in 0..80 {
        for style in STYLES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS) {
            count_with_faults(seed, LockConfig::default(), style, Some(seed as u32));
        }
    }
}

/// The write-back arrives in part, and its queue pair breaks. Before it was redone, the janitor only cleared the lock:
/// ```text
///   holder   WRITE lines 0, 1, unlock: line 0 arrives ✗          janitor: unlock
///   next                                                                     READ: torn, and so for ever
/// ```
#[test]
fn a_torn_write_back_is_repaired() {
    for (torn, style) in (0..4).flat_map(|torn| Style::PLACES.map(|style| (torn, style))) {
        let world = style.world(3, 1, 1);
        let tables = world.attach(LockConfig::default());
        let client = Client::new(&tables[0], 0, style);
        let before = style.chains_to_read();
        world.fail(before, Fault { verbs: 0, lines: torn, gone: false });
        let writer = client.clone();
        world.spawn(async move {
            let meter = Meter::default();
            writer.add_one(&meter, node(0)).await.expect("it was redone");
            assert_eq!(meter.usage().retries, 1);
        });
        world.run();
        assert_whole(&world, 0, style);
        assert_eq!(client.value(&world, 0), 1);
        // The write-back; the word read back; the write-back, unless that says that all has arrived.
        let arrived = torn == 3 && style == Style::REAR;
        assert_eq!(world.posted() - before, if arrived { 2 } else { 3 }, "lines {torn}, {style:?}");
        world.assert_at_rest(&tables);
    }
}

/// A split writes a new node and, behind it, the locked one that leads there. Once that has arrived others change the
/// new node under its own lock, which the holder does not have:
/// ```text
///   holder   WRITE new, WRITE node, unlock: both WRITEs arrive ✗ ······················ WRITE new again: 99 is lost
///   other                                        READ node ─> new: WRITE 99 to it
/// ```
#[test]
fn a_new_node_that_others_have_reached_is_not_written_again() {
    for fault in ways_to_fail() {
        for combine in [true, false] {
            let world = World::new(u64::from(fault.lines), 1, 1);
            let tables = world.attach(LockConfig::default());
            world.fail(1, fault);
            (2..8).for_each(|chain| world.fail(chain, Fault::GONE));
            let (fake, table) = tables[0].clone();
            world.spawn(async move {
                let meter = Meter::default();
                let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
                held.lock(&meter).await.expect("no other client wants it");
                let mut buf = fake.lease(2 * NODE_BYTES);
                buf.fill(7);
                // Where an embedded lock would be.
                buf[DATA_BYTES..NODE_BYTES].fill(0);
                buf[NODE_BYTES + DATA_BYTES..].fill(0);
                let mut chain = Chain::with_buffer(node(0).server(), buf);
                chain.write(node(1), NODE_BYTES..2 * NODE_BYTES).write(node(0), 0..NODE_BYTES);
                held.with_unpublished_prefix(1);
                held.release(&meter, chain, combine).await.expect("it was redone");
            });
            let (fake, memory) = (tables[0].0.clone(), world.clone());
            let (first, new) = (node(0).offset(), node(1).offset());
            world.spawn(async move {
                while memory.word(first) == 0 && memory.word(first + 64) == 0 {
                    fake.pause(1_000).await;
                }
                assert_eq!((memory.word(new), memory.word(new + 64)), (SEVENS, SEVENS));
                memory.set_word(new, 99);
            });
            world.run();
            assert_eq!(world.word(new), 99, "{fault:?} combine {combine}");
            assert_whole(&world, 0, Style::FAST);
            world.assert_at_rest(&tables);
        }
    }
}

/// One client alone: each of its chains fails in every way, once and twice in a row, the redoing too, while the
/// operation runs to its end or is dropped at each of its polls.
#[test]
fn every_failure_of_a_lone_operation() {
    let cuts = |polls: u32| [(polls, false), (polls, true)];
    let cuts: Vec<(u32, bool)> = (0..8).flat_map(cuts).chain([(u32::MAX, true)]).collect();
    for style in STYLES.into_iter().chain(Style::CARRYING) {
        for fault in ways_to_fail() {
            for first in 0..5 {
                for second in first..first + 3 {
                    for &(polls, at_once) in &cuts {
                        lone(style, fault, [first, second], polls, at_once);
                    }
                }
            }
        }
    }
}

fn lone(style: Style, fault: Fault, chains: [usize; 2], polls: u32, at_once: bool) {
    let world = style.world(7, 1, 1);
    let tables = world.attach(style.config(LockConfig::default()));
    let client = Client::new(&tables[0], 0, style);
    // A guess that is wrong: a new node's word carries 0.
    client.carried.set(u64::from(style.carries > 0));
    chains.into_iter().for_each(|chain| world.fail(chain, fault));
    let cut = client.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let done = Cut::after(polls, at_once, cut.add_one(&meter, node(0))).await;
        assert!(done.is_none_or(|done| done.is_ok()), "{style:?} {fault:?} {chains:?}");
    });
    world.run();
    assert_eq!(client.lost(client.value(&world, 0)), 0, "{style:?} {fault:?} {chains:?} cut at {polls}");
    assert_whole(&world, 0, style);
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
    let again = client.clone();
    world.spawn(async move {
        again.add_one(&Meter::default(), node(0)).await.expect("all is as before");
    });
    world.run();
    assert_eq!(client.bounds.get().0, client.value(&world, 0));
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
}

/// Three clients that pass the lock on: each chain fails in every way, whether it unlocks, keeps the lock for the
/// next, or leaves the unlock to another chain; the first client stays or is dropped.
#[test]
fn every_failure_of_a_hand_over() {
    let mut handed_over = 0;
    for style in STYLES.into_iter().chain(Style::CARRYING) {
        for fault in ways_to_fail() {
            for chain in 0..14 {
                for polls in [u32::MAX, 2, 3, 4, 5] {
                    handed_over += queue(style, fault, chain, polls);
                }
            }
        }
    }
    assert!(handed_over > 2000, "{handed_over} hand-overs");
}

fn queue(style: Style, fault: Fault, chain: usize, polls: u32) -> u64 {
    let world = style.world(chain as u64, 1, 2);
    let tables = world.attach(style.config(LockConfig::default()));
    world.fail(chain, fault);
    let clients: Vec<Client> = (0..3).map(|i| Client::new(&tables[i % 2], i * 5, style)).collect();
    for (i, client) in clients.iter().cloned().enumerate() {
        let polls = if i == 0 { polls } else { u32::MAX };
        world.spawn(async move {
            let meter = Meter::default();
            let done = Cut::after(polls, true, client.add_one(&meter, node(0))).await;
            assert!(done.is_none_or(|done| done.is_ok()), "{style:?} {fault:?} of chain {chain}");
        });
    }
    world.run();
    for (i, client) in clients.iter().enumerate() {
        let value = client.value(&world, 0);
        assert_eq!(client.lost(value), 0, "{style:?} {fault:?} of chain {chain}");
        assert!(value == 1 || i == 0 && polls < u32::MAX);
    }
    assert_whole(&world, 0, style);
    assert_carried(&world, 0, style);
    world.assert_at_rest(&tables);
    tables.iter().map(|(_, table)| table.stats().handed_over).sum()
}

/// The server goes while a write-back is half done. The operation fails, a client that waits for the lock does not
/// hang, and when the server answers again, at whatever attempt, the write-back is completed and the lock comes free.
#[test]
fn a_server_that_comes_back_finds_its_nodes_repaired() {
    let (mut failed, mut succeeded) = (0, 0);
    for style in STYLES.into_iter().chain(Style::CARRYING) {
        let write_back = style.chains_to_read();
        for silent in 0..38 {
            let world = style.world(silent as u64, 1, 2);
            // The client that waited finds the word taken by the unfinished release; it gives up before the janitor
            // does.
            let config = LockConfig { attempts_max: 2, ..LockConfig::default() };
            let tables = world.attach(style.config(config));
            world.fail(write_back, Fault { verbs: 0, lines: 1, gone: false });
            (1..=silent).for_each(|chain| world.fail(write_back + chain, Fault::GONE));
            let client = Client::new(&tables[0], 0, style);
            let waiter = Client::new(&tables[1], 1, style);
            let results = Rc::new(Cell::new((0, 0)));
            for client in [client.clone(), waiter.clone()] {
                let results = Rc::clone(&results);
                world.spawn(async move {
                    let (ok, err) = results.get();
                    let done = client.add_one(&Meter::default(), node(0)).await;
                    results.set(if done.is_ok() { (ok + 1, err) } else { (ok, err + 1) });
                });
            }
            world.run();
            for client in [&client, &waiter] {
                assert_eq!(client.lost(client.value(&world, 0)), 0, "{style:?}, silent for {silent} chains");
            }
            assert!(
                client.value(&world, 0) + waiter.value(&world, 0) > 0,
                "what was begun was not completed"
            );
            assert_whole(&world, 0, style);
            assert_carried(&world, 0, style);
            world.assert_at_rest(&tables);
            let (ok, err) = results.get();
            (failed, succeeded) = (failed + err, succeeded + ok);
        }
    }
    assert!(failed > 50 && succeeded > 30, "{failed} failed, {succeeded} succeeded");
}

/// The server goes while a write-back is half done, and stays silent: every client gets an error, nothing is held or
/// leased any more, and the word stays taken over the node that may be torn.
#[test]
fn a_server_that_stays_away_keeps_the_lock_of_a_torn_node() {
    for style in STYLES {
        let write_back = if style.fused { 1 } else { 2 };
        let world = style.world(5, 1, 2);
        let tables = world.attach(LockConfig::default());
        world.fail(write_back, Fault { verbs: 0, lines: 1, gone: false });
        (1..200).for_each(|chain| world.fail(write_back + chain, Fault::GONE));
        for (word, on) in tables.iter().enumerate() {
            let client = Client::new(on, word, style);
            world.spawn(async move {
                let error = client.add_one(&Meter::default(), node(0)).await.expect_err("the server is gone");
                assert!(matches!(error, LockError::Fabric(FabricError::ServerGone { .. })), "{error}");
            });
        }
        world.run();
        assert!(world.posted() < 100, "{} chains", world.posted());
        let region = (0..LOCKS).filter(|lock| world.word(LOCK_BASE + lock * 8) != 0).count();
        let in_node = usize::from(world.word(embedded(0).offset()) != 0);
        let expected = if style.place == Place::Region { (1, 0) } else { (0, 1) };
        assert_eq!((region, in_node), expected, "no client may meet a torn node");
        for (fake, table) in &tables {
            assert_eq!((table.in_use(), fake.leased()), ((0, 0), 0));
        }
    }
}

/// A chain that only the holder can repeat is not repeated: one with a READ in it fails, and the lock comes free.
#[test]
fn a_chain_that_reads_is_not_redone() {
    for verbs in 0..=2 {
        let world = World::new(2, 1, 1);
        let tables = world.attach(LockConfig::default());
        world.fail(1, Fault { verbs, lines: 0, gone: false });
        let (fake, table) = tables[0].clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("the fabric works");
            let mut chain = Chain::with_buffer(node(0).server(), fake.lease(NODE_BYTES));
            chain.read(node(0), 0..64);
            let done: Result<Option<Buf>, _> = held.release(&meter, chain, true).await;
            assert!(matches!(done, Err(LockError::Fabric(FabricError::QueuePair { .. }))));
        });
        world.run();
        world.assert_at_rest(&tables);
    }
}

/// A CAS that failed is tried again, and takes the lock once, whether the first had won or not.
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
            let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("a broken queue pair is no error");
            counted.set(meter.usage().retries);
        });
        world.run();
        retried += tries.get();
        assert_eq!(tables[0].1.stats().remote_failed, 0, "its own word is not contention");
        assert_eq!(tables[0].1.stats().acquired, 1);
        world.assert_at_rest(&tables);
    }
    assert!(retried > 50, "{retried} tries");
}

/// An acquisition ends when queue pairs do nothing but break.
#[test]
fn trying_again_has_a_budget() {
    let world = World::new(1, 1, 1);
    let config = LockConfig { attempts_max: 5, ..LockConfig::default() };
    let tables = world.attach(config);
    (0..5).for_each(|chain| world.fail(chain, Fault::default()));
    let table = tables[0].1.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
        let error = held.lock(&meter).await.expect_err("the budget is spent");
        assert!(matches!(error, LockError::Fabric(FabricError::QueuePair { .. })), "{error}");
        assert_eq!((meter.usage().cas, meter.usage().retries), (5, 5));
    });
    world.run();
    world.assert_at_rest(&tables);
}

/// An audit of all lock words survives a few broken queue pairs.
#[test]
fn an_audit_reads_again() {
    for (failures, gone, ends_well) in
        [(1, false, true), (9, false, true), (10, false, false), (1, true, false)]
    {
        let world = World::new(1, 1, 1);
        let tables = world.attach(LockConfig::default());
        (0..failures).for_each(|chain| world.fail(chain, Fault { gone, ..Fault::default() }));
        let table = tables[0].1.clone();
        world.spawn(async move {
            let meter = Meter::default();
            let held = table.words_held(&meter).await;
            assert_eq!(held.is_ok(), ends_well, "{failures} failures: {held:?}");
            assert_eq!(meter.usage().retries as usize, if gone { 0 } else { failures.min(9) });
        });
        world.run();
        world.assert_at_rest(&tables);
    }
}

/// Spinners may be told not to pause at all. The janitor, which waits for a server to come back, pauses all the same.
#[test]
fn the_janitor_pauses_whatever_spinners_do() {
    let world = World::new(1, 1, 1);
    let tables = world.attach(LockConfig { backoff: Backoff::NONE, ..LockConfig::default() });
    let client = Client::new(&tables[0], 0, Style::FAST);
    world.fail(1, Fault { verbs: 0, lines: 1, gone: false });
    (2..6).for_each(|chain| world.fail(chain, Fault::GONE));
    let writer = client.clone();
    world.spawn(async move {
        writer.add_one(&Meter::default(), node(0)).await.expect("it was redone when the server came back");
    });
    world.run();
    assert_whole(&world, 0, Style::FAST);
    assert!(tables[0].0.now() >= 4 * 16_000, "{} ns", tables[0].0.now());
    world.assert_at_rest(&tables);
}
