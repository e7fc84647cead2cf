//! Words of dead owners that guard nothing of an index, because it was made later, or because they were taken for
//! another one: its clients take them over, and the other indexes still find them.

use std::rc::Rc;
use std::time::Duration;

use farwood_lock::{LockConfig, LockError, LockWord, OnceDead};
use farwood_runtime::{Chain, Meter};

use crate::clients::{Client, Cut, Style, assert_whole};
use crate::fake::{Fault, World, embedded, node};

const DEAD: u16 = 77;
const CLIENTS: usize = 8;
const OPERATIONS: u32 = 6;
/// Long enough that the control plane is asked which compute nodes are dead.
const WAIT: Duration = Duration::from_millis(20);

/// Makes a dead owner's word that was taken for the index of the tests, whose tag is 1.
fn dead_word() -> u64 {
    LockWord::new(DEAD, 1, 99).to_bits()
}

/// Makes a dead owner's word that was taken for another index.
fn others_word() -> u64 {
    LockWord::new(DEAD, 2, 99).to_bits()
}

/// Configures a table of an index that was made after some compute nodes had died.
fn after_deaths() -> LockConfig {
    LockConfig { dead_owners: [3, DEAD, 900].into(), ..LockConfig::default() }
}

fn ways() -> impl Iterator<Item = (LockConfig, Style)> {
    let configs = [
        after_deaths(),
        LockConfig { hierarchical: false, ..after_deaths() },
        LockConfig { handover: false, ..after_deaths() },
    ];
    let switches = [(true, true), (true, false), (false, true), (false, false)];
    configs.into_iter().flat_map(move |config| {
        switches.map(|(fused, combine)| (config.clone(), Style { fused, combine, ..Style::FAST }))
    })
}

/// Lets clients on 2 compute nodes x 2 shards count in one node whose lock a dead node left taken. Some operations are
/// dropped on their way, some chains fail. Yields how many locks were taken over, or acquired.
fn count(seed: u64, (config, style): (LockConfig, Style), fault_rate: f64, cuts: bool) -> (u64, u64) {
    let world = World::new(seed, 2, 2);
    world.set_locks(dead_word());
    let tables = world.attach(config);
    world.set_fault_rate(fault_rate);
    let clients: Vec<_> = (0..CLIENTS).map(|word| Client::new(&tables[word % 4], word, style)).collect();
    for client in clients.clone() {
        world.spawn(async move {
            for round in 0..OPERATIONS {
                let polls = if cuts { (seed as u32 + round) % 8 } else { u32::MAX };
                let done =
                    Cut::after(polls, seed.is_multiple_of(2), client.add_one(&Meter::default(), node(0)))
                        .await;
                assert!(done.is_none_or(|done| done.is_ok()), "the lock counts as free");
            }
        });
    }
    world.run();
    for client in &clients {
        let value = client.value(&world, 0);
        assert_eq!(client.lost(value), 0, "lost updates with seed {seed}, {style:?}");
        assert!(cuts || value == u64::from(OPERATIONS), "an update is missing with seed {seed}, {style:?}");
    }
    assert_whole(&world, 0, style);
    assert!(world.locks_are(dead_word()), "what an older index relies on is gone: seed {seed}, {style:?}");
    world.set_locks(0);
    world.assert_at_rest(&tables);
    let sum = |count: fn(farwood_lock::LockStats) -> u64| tables.iter().map(|(_, t)| count(t.stats())).sum();
    (sum(|stats| stats.taken_over), sum(|stats| stats.acquired))
}

#[test]
fn words_of_the_dead_are_taken_over_by_one_at_a_time() {
    for way in ways() {
        for seed in 0..12 {
            let (taken_over, acquired) = count(seed, way.clone(), 0.0, false);
            // Nothing is handed over, so each acquisition takes over again.
            let all = CLIENTS as u64 * u64::from(OPERATIONS);
            assert_eq!((taken_over, acquired), (all, all), "seed {seed}");
        }
    }
}

#[test]
fn a_takeover_whose_outcome_is_unknown_is_found_out() {
    for way in ways() {
        for seed in 0..12 {
            count(seed, way.clone(), 0.1, false);
        }
    }
}

#[test]
fn a_takeover_may_be_dropped_at_any_point() {
    for way in ways() {
        for seed in 0..16 {
            count(seed, way.clone(), if seed % 4 == 3 { 0.1 } else { 0.0 }, true);
        }
    }
}

/// The takeover's own CAS fails: before it takes effect, or after. A word that is ours then must go back to what it
/// was.
#[test]
fn the_takeovers_own_cas_fails() {
    for executed in 0..=1 {
        for drops in [false, true] {
            let world = World::new(5, 1, 1);
            world.set_locks(dead_word());
            let tables = world.attach(after_deaths());
            // The first finds the leftover.
            world.fail(1, Fault { verbs: executed, lines: 0, gone: false });
            let table = tables[0].1.clone();
            world.spawn(async move {
                let meter = Meter::default();
                let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
                if drops {
                    // In its pause after the failure.
                    assert!(Cut::after(2, false, held.lock(&meter)).await.is_none());
                    return;
                }
                held.lock(&meter).await.expect("it counts as free");
                assert_eq!((meter.usage().cas, table.stats().taken_over), (3, 1));
                held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric holds");
            });
            world.run();
            assert!(world.locks_are(dead_word()), "executed {executed}, dropped {drops}");
            world.set_locks(0);
            world.assert_at_rest(&tables);
        }
    }
}

#[test]
fn a_takeover_costs_one_round_trip_more() {
    for (fused, hierarchical) in [(true, true), (false, true), (true, false), (false, false)] {
        let world = World::new(6, 1, 1);
        let tables = world.attach(LockConfig { hierarchical, ..after_deaths() });
        let client = Client::new(&tables[0], 0, Style { fused, ..Style::FAST });
        let meters = [Rc::new(Meter::default()), Rc::new(Meter::default())];
        for (meter, word) in meters.iter().zip([0, dead_word()]) {
            world.set_locks(word);
            let (client, meter) = (client.clone(), Rc::clone(meter));
            world.spawn(async move { client.add_one(&meter, node(0)).await.expect("the fabric holds") });
            world.run();
        }
        let [free, taken_over] = meters.map(|meter| meter.usage());
        assert_eq!(taken_over.round_trips, free.round_trips + 1);
        assert_eq!((free.cas, taken_over.cas, free.retries, taken_over.retries), (1, 2, 0, 1));
    }
}

/// An index that was there when the owner died may have a torn node under that word.
#[test]
fn an_older_index_still_finds_the_word() {
    let world = World::new(7, 1, 1);
    world.set_locks(dead_word());
    let new = world.attach(after_deaths());
    let client = Client::new(&new[0], 0, Style::FAST);
    world.spawn(async move { client.add_one(&Meter::default(), node(0)).await.expect("it counts as free") });
    world.run();
    assert_contended(&world, LockConfig { dead_owners: [3, 900].into(), ..LockConfig::default() }, false);
}

/// A word within a node of the index was written after the index was made: the dead cannot have done that.
#[test]
fn a_word_within_a_node_is_never_a_leftover() {
    let world = World::new(8, 1, 1);
    world.set_word(embedded(0).offset(), dead_word());
    assert_contended(&world, after_deaths(), true);
}

/// The owner was at work when the index was there already, on another one whose nodes have the same lock words. Once
/// the control plane says that it is dead, its words stop no client.
#[test]
fn a_word_of_another_index_is_taken_over_once_its_owner_is_dead() {
    for hierarchical in [true, false] {
        for seed in 0..12 {
            let world = World::new(seed, 2, 2);
            world.set_locks(others_word());
            world.set_dead(&[3, DEAD, 900]);
            let tables = world.attach(LockConfig { hierarchical, ..LockConfig::default() });
            for (word, table) in (0..).zip(&tables) {
                let client = Client::new(table, word, Style::FAST);
                world.spawn(async move {
                    for _ in 0..OPERATIONS {
                        client.add_one(&Meter::default(), node(0)).await.expect("the owner is dead");
                    }
                });
            }
            world.run();
            assert_whole(&world, 0, Style::FAST);
            assert!(world.locks_are(others_word()), "what the other index relies on is gone: seed {seed}");
            assert!((1..=tables.len()).contains(&world.asked_for_dead()), "{}", world.asked_for_dead());
            let taken_over: u64 = tables.iter().map(|(_, table)| table.stats().taken_over).sum();
            assert_eq!(taken_over, tables.len() as u64 * u64::from(OPERATIONS));
            world.set_locks(0);
            world.assert_at_rest(&tables);
        }
    }
}

/// As long as it is not known to be dead it may go on, and clear the word. The error says which index is its reason.
#[test]
fn a_word_of_another_index_is_waited_for_while_its_owner_may_live() {
    let world = World::new(10, 1, 1);
    world.set_locks(others_word());
    let tables = world.attach(LockConfig { wait_max: WAIT, ..LockConfig::default() });
    for word in 0..2 {
        let client = Client::new(&tables[0], word, Style::FAST);
        world.spawn(async move {
            let error = client.add_one(&Meter::default(), node(0)).await.expect_err("it may go on");
            assert!(
                matches!(error, LockError::Contended { owner: DEAD, once_dead: OnceDead::Unharmed, .. }),
                "{error:?}"
            );
            assert!(error.to_string().contains("nothing of this index is half written"), "{error}");
        });
    }
    world.run();
    assert!(world.locks_are(others_word()));
    assert_eq!(world.asked_for_dead(), 1, "a question a tenth of a second");
}

/// Such a word may be over one of this index, whose node is torn.
#[test]
fn a_dead_owner_that_had_taken_a_word_over_is_not_passed_over() {
    let world = World::new(11, 1, 1);
    world.set_locks(dead_word());
    let newer = world.attach(LockConfig { tag: 2, dead_owners: [DEAD].into(), ..LockConfig::default() });
    let table = newer[0].1.clone();
    let word = table.word_of(node(0)).offset();
    let taken = world.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
        held.lock(&meter).await.expect("it counts as free");
        let over = LockWord::from_bits(taken.word(word)).expect("it is taken");
        assert_eq!((over.owner(), over.tag()), (1, 0));
        // Its owner dies.
        taken.set_word(word, LockWord::new(DEAD + 1, over.tag(), over.nonce()).to_bits());
        std::mem::forget(held);
    });
    world.run();
    world.set_dead(&[DEAD, DEAD + 1]);
    world.set_locks(world.word(word));
    let tables = world.attach(LockConfig { wait_max: WAIT, ..LockConfig::default() });
    let client = Client::new(&tables[0], 0, Style::FAST);
    world.spawn(async move {
        let error = client.add_one(&Meter::default(), node(0)).await.expect_err("a node may be torn");
        assert!(
            matches!(error, LockError::Contended { owner, once_dead: OnceDead::Lost, .. } if owner == DEAD + 1),
            "{error:?}"
        );
    });
    world.run();
}

/// The index's own lock of a dead owner stays, even if the control plane knows of the death.
#[test]
fn a_word_of_the_index_itself_is_never_passed_over() {
    for word in [dead_word(), LockWord::new(DEAD, 0, 99).to_bits()] {
        let world = World::new(12, 1, 1);
        world.set_locks(word);
        world.set_dead(&[DEAD]);
        assert_contended(&world, LockConfig::default(), false);
        assert!(world.locks_are(word));
    }
    let world = World::new(13, 1, 1);
    world.set_word(embedded(0).offset(), others_word());
    world.set_dead(&[DEAD]);
    assert_contended(&world, LockConfig::default(), true);
}

fn assert_contended(world: &World, config: LockConfig, within: bool) {
    let tables = world.attach(LockConfig { wait_max: WAIT, ..config });
    let table = tables[0].1.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = match within {
            true => {
                table.acquire_embedded(&meter, node(0), embedded(0)).await.expect("it is not held for long")
            }
            false => table.acquire(&meter, node(0)).await.expect("it is not held for long"),
        };
        let error = held.lock(&meter).await.expect_err("the owner may have torn the node");
        assert!(
            matches!(error, LockError::Contended { owner: DEAD, once_dead: OnceDead::Lost, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("the node may be half written"), "{error}");
        assert_eq!(table.stats().taken_over, 0);
    });
    world.run();
}

#[test]
fn a_word_is_foreign_by_its_owner_or_its_index() {
    let world = World::new(9, 1, 1);
    let table = world.attach(after_deaths()).remove(0).1;
    let of = |owner, tag| LockWord::new(owner, tag, 2);
    assert!([3, DEAD, 900].into_iter().all(|owner| table.is_foreign(of(owner, 1))));
    let others = [1, 2, 4, 78, 899, 901, u16::MAX];
    assert!(others.into_iter().all(|owner| [0, 1].into_iter().all(|tag| !table.is_foreign(of(owner, tag)))));
    assert!(
        others.into_iter().all(|owner| [2, u16::MAX].into_iter().all(|tag| table.is_foreign(of(owner, tag))))
    );
}
