//! Mutual exclusion: many clients of two compute nodes count in shared nodes, and no update is lost, whatever the
//! schedule. The negative control shows that the test would notice.

use farwood_lock::{LockConfig, LockStats, LockTable};
use farwood_runtime::Meter;

use crate::clients::{Client, Style, assert_carried};
use crate::fake::{Fake, World, node};

const CLIENTS: usize = 12;
const OPERATIONS: u64 = 6;

/// Counts as [`count_losses`] does, where nothing may be lost.
fn count(seed: u64, config: LockConfig, style: Style, nodes: u64) -> LockStats {
    let world = style.world(seed, 2, 2);
    let (stats, lost) = count_losses(world, config, style, nodes);
    assert_eq!(lost, 0, "lost updates with seed {seed}");
    stats
}

/// Runs clients on 2 compute nodes x 2 shards; each adds `OPERATIONS` to its word in each of `nodes` nodes. Yields how
/// many updates were seen to be lost, and nodes to be torn.
fn count_losses(world: World, config: LockConfig, style: Style, nodes: u64) -> (LockStats, u32) {
    let tables = world.attach(style.config(config));
    let mut clients = Vec::new();
    for index in 0..nodes {
        for word in 0..CLIENTS {
            let client = Client::new(&tables[word % tables.len()], word, style);
            clients.push((index, client.clone()));
            world.spawn(async move {
                for _ in 0..OPERATIONS {
                    client.add_one(&Meter::default(), node(index)).await.expect("the fabric does not fail");
                }
            });
        }
    }
    world.run();
    let lost = clients.iter().map(|(index, client)| {
        let value = client.value(&world, *index);
        client.lost(value) + u32::from(value != OPERATIONS)
    });
    (0..nodes).for_each(|index| assert_carried(&world, index, style));
    world.assert_at_rest(&tables);
    (total(&tables), lost.sum())
}

fn total(tables: &[(Fake, LockTable<Fake>)]) -> LockStats {
    let mut total = LockStats::default();
    for (_, table) in tables {
        total += &table.stats();
    }
    total
}

#[test]
fn no_update_is_lost_with_hand_over() {
    for style in Style::PLACES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS) {
        let mut handed_over = 0;
        for seed in 0..75 {
            let stats = count(seed, LockConfig::default(), style, 1);
            assert_eq!(stats.acquired, CLIENTS as u64 * OPERATIONS, "seed {seed}");
            handed_over += stats.handed_over;
            // Every one, since a write-back is of all that clients read.
            assert_eq!(stats.images, if style.leaves { stats.handed_over } else { 0 }, "seed {seed}");
        }
        assert!(handed_over > 1000, "{handed_over} hand-overs, {style:?}");
    }
}

#[test]
fn no_update_is_lost_on_nodes_with_a_word_each() {
    for seed in 0..15 {
        for style in [Style::EMBEDDED, Style::REAR] {
            count(seed, LockConfig::default(), style, 3);
        }
    }
}

#[test]
fn no_update_is_lost_on_nodes_that_share_lock_words() {
    for seed in 0..30 {
        count(seed, LockConfig::default(), Style::FAST, 24);
        count(seed, LockConfig::default(), Style::LEAVING, 24);
    }
}

#[test]
fn no_update_is_lost_whatever_is_switched_off() {
    for seed in 0..10 {
        for fused in [false, true] {
            for combine in [false, true] {
                count_switched_off(seed, Style { fused, combine, ..Style::FAST });
                count_switched_off(seed, Style { fused, combine, ..Style::EMBEDDED });
                count_switched_off(seed, Style { fused, combine, ..Style::FRONT });
            }
            count_switched_off(seed, Style { fused, ..Style::REAR });
        }
        let styles = Style::CARRYING.into_iter().chain(Style::CLEARED_BY_CAS);
        styles.for_each(|style| count_switched_off(seed, style));
    }
}

fn count_switched_off(seed: u64, style: Style) {
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    let stats = count(seed, flat, style, 1);
    assert_eq!((stats.waited, stats.handed_over), (0, 0));
    assert!(stats.remote_failed > 0);
    let queued = LockConfig { handover: false, ..LockConfig::default() };
    assert_eq!(count(seed, queued, style, 1).handed_over, 0);
    let without_images = LockConfig { image_handover: false, ..LockConfig::default() };
    assert_eq!(count(seed, without_images, style, 1).images, 0);
    count(seed, LockConfig::default(), style, 1);
}

/// A CAS that did not fit put the word back that its holder had cleared: clients over Soft-RoCE waited for a lock that
/// no client held.
#[test]
#[should_panic(expected = "the fabric does not fail: Contended")]
fn an_unlock_that_a_cas_undoes_is_caught() {
    let flat = LockConfig { hierarchical: false, ..LockConfig::default() };
    for seed in 0..20 {
        count_losses(World::new(seed, 2, 2).with_atomics_that_lie(), flat.clone(), Style::FAST, 1);
    }
}

#[test]
fn passing_the_lock_on_before_the_write_back_completed_is_caught() {
    let early = Style { pass_on_early: true, ..Style::FAST };
    let lost = |seed| count_losses(World::new(seed, 2, 2), LockConfig::default(), early, 1).1 > 0;
    let caught = (0..20).filter(|&seed| lost(seed)).count();
    assert!(caught >= 15, "the paper's figure 6 went unnoticed: {caught} of 20 seeds");
}

#[test]
fn a_rear_lock_where_lines_come_in_any_order_is_caught() {
    let lost = |seed| {
        let world = World::new(seed, 2, 2).with_lines_that_lie();
        // Without hand-over each release clears the word.
        let config = LockConfig { hierarchical: false, ..LockConfig::default() };
        count_losses(world, config, Style::REAR, 1).1 > 0
    };
    let caught = (0..20).filter(|&seed| lost(seed)).count();
    assert!(caught >= 15, "an unlock before its data went unnoticed: {caught} of 20 seeds");
}
