//! Locks that are shared, one operation at a time: its round trips, each await point and each failure of it, and the
//! errors that it ends with.

use farwood_lock::{LockConfig, LockError, LockWord};
use farwood_runtime::{Chain, FabricError, Meter, Verbs};

use crate::clients::{Cut, DATA_BYTES, NODE_BYTES};
use crate::fake::{Fault, World, embedded, node};
use crate::shared::{Client, Cluster, DIRECTORY, WORDS, Way, lanes};

/// The costs of one operation: round trips, READs, WRITEs and FAAs.
fn costs(meter: &Meter) -> (u32, u32, u32, u32) {
    let usage = meter.usage();
    (usage.round_trips, usage.reads, usage.writes, usage.faa)
}

#[test]
fn round_trips_are_as_promised() {
    let cluster = Cluster::new(World::new(1, 1, 1), LockConfig::default(), lanes(64));
    let [first, second] = [0, 1].map(|word| cluster.client(0, word, Way::Shares));
    cluster.world.spawn(async move {
        let meter = Meter::default();
        first.share(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!(costs(&meter), (2, 2, 1, 2), "FAA, READ, READ; WRITE, FAA");
        let (outer, meter) = (Meter::default(), Meter::default());
        let (buf, parts) = (first.fake.lease(NODE_BYTES), [WORDS, 0..DATA_BYTES]);
        let shared = first.locks.share_and_read(&outer, node(0), embedded(0), buf, &parts);
        let (shared, _) = shared.await.expect("the fabric does not fail");
        second.share(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!(costs(&meter), (2, 2, 1, 0), "READ, READ; WRITE: its shard is present");
        shared.release(&outer, Chain::new(node(0).server())).await.expect("the fabric does not fail");
        assert_eq!(costs(&outer), (2, 2, 0, 2), "nothing to write, but the bit");
        let meter = Meter::default();
        first.have_alone(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!((costs(&meter), meter.usage().cas), ((2, 2, 2, 0), 1), "CAS, READ, READ; WRITE, unlock");
        let (meter, first) = (Meter::default(), Client { way: Way::AloneInTurn, ..first });
        first.have_alone(&meter, 0).await.expect("the fabric does not fail");
        assert_eq!((costs(&meter), meter.usage().cas), ((3, 2, 2, 0), 1), "CAS; READ, READ; WRITE, unlock");
    });
    cluster.world.run();
    cluster.assert_at_rest();
}

/// One client alone on its shard, one operation, cut at each await point or failing at each chain in each way: nothing
/// is left behind, and the next operation goes through.
#[test]
fn every_await_point_and_every_failure_of_a_lone_operation() {
    let cuts = (0..5).flat_map(|polls| [(Some(polls), None)]);
    let faults = (0..4).flat_map(|chain| {
        (0..=3).map(move |verbs| Fault { verbs, lines: 1, gone: false }).map(move |fault| (chain, fault))
    });
    let faults = faults.map(|fault| (None, Some(fault)));
    for (polls, fault) in cuts.chain(faults) {
        for way in [Way::Shares, Way::Swaps, Way::Alone, Way::AloneInTurn] {
            for at_once in [false, true] {
                lone(way, polls, at_once, fault);
            }
        }
    }
}

fn lone(way: Way, polls: Option<u32>, at_once: bool, fault: Option<(usize, Fault)>) {
    let cluster = Cluster::new(World::new(7, 1, 1), LockConfig::default(), lanes(64));
    if let Some((chain, fault)) = fault {
        cluster.world.fail(chain, fault);
    }
    let client = cluster.client(0, 0, way);
    let (again, posted) = (client.clone(), cluster.world.posted());
    cluster.world.spawn(async move {
        let done = Cut::after(polls.unwrap_or(u32::MAX), at_once, client.add_one(&Meter::default(), 0)).await;
        let is_unknown = |error: LockError| matches!(error, LockError::Fabric(FabricError::QueuePair { .. }));
        assert!(
            done.is_none_or(|done| done.map_or_else(|error| fault.is_some() && is_unknown(error), |()| true))
        );
    });
    cluster.world.run();
    cluster.assert_at_rest();
    assert_eq!(again.lost(&cluster.world), 0, "{way:?}, {polls:?}, {fault:?}");
    let before = again.value(&cluster.world);
    if fault.is_some_and(|(chain, _)| cluster.world.posted() - posted <= chain) {
        return;
    }
    for next in [way, Way::Alone] {
        let next = Client { way: next, ..again.clone() };
        cluster.world.spawn(async move {
            next.add_one(&Meter::default(), 0).await.expect("the lock is free");
        });
        cluster.world.run();
    }
    assert_eq!(again.value(&cluster.world), before + 2);
    cluster.assert_at_rest();
}

/// The chain of the last client of a shard fails. Its bit is looked at:
/// ```text
///   WRITE, FAA ✗   clear: both took effect
///   WRITE ✗ FAA    set: the WRITE may have taken effect
/// ```
#[test]
fn a_release_that_took_effect_succeeds_though_it_failed() {
    for (verbs, ends_well) in [(2, true), (1, false), (0, false)] {
        let cluster = Cluster::new(World::new(3, 1, 1), LockConfig::default(), lanes(64));
        cluster.world.fail(1, Fault { verbs, ..Fault::default() });
        let client = cluster.client(0, 0, Way::Shares);
        let writer = client.clone();
        cluster.world.spawn(async move {
            let done = writer.share(&Meter::default(), 0).await;
            assert_eq!(done.is_ok(), ends_well, "{done:?}");
        });
        cluster.world.run();
        assert_eq!(client.value(&cluster.world), u64::from(verbs > 0));
        // FAA and READs; the release; the look, and the FAA again where it is needed.
        assert_eq!(cluster.world.posted() - warm_up(), if ends_well { 3 } else { 4 });
        cluster.assert_at_rest();
    }
}

/// Counts the chains that a cluster of one shard posts before a test begins.
fn warm_up() -> usize {
    Cluster::new(World::new(3, 1, 1), LockConfig::default(), lanes(64)).world.posted()
}

/// A holder and a sharer of a compute node that is gone: errors name it.
#[test]
fn errors_name_the_compute_node_that_has_the_lock() {
    let config = LockConfig { wait_max: std::time::Duration::from_millis(20), ..LockConfig::default() };
    for (at, way) in [(0, Way::Shares), (8, Way::Alone)] {
        let cluster = Cluster::new(World::new(5, 1, 2), config.clone(), lanes(64));
        let dead = LockWord::new(9, 1, 77).to_bits();
        cluster.world.set_word(DIRECTORY + 5 * 8, dead);
        let (lock, held) = (embedded(0).offset() + at, if at == 0 { dead } else { 1 << 5 });
        cluster.world.set_word(lock, held);
        for shard in [0, 0, 1] {
            let client = cluster.client(shard, shard, way);
            cluster.world.spawn(async move {
                let done = client.add_one(&Meter::default(), 0).await;
                assert!(matches!(done, Err(LockError::Contended { owner: 9, .. })), "{done:?}");
            });
        }
        cluster.world.run();
        assert_eq!(cluster.world.word(lock), held, "it is left alone");
        cluster.world.set_word(lock, 0);
        cluster.assert_at_rest();
    }
}

/// A client of this compute node shares the lock and does not go on: the clients behind it do not wait for ever.
#[test]
fn a_client_that_does_not_go_on_is_named_too() {
    let config = LockConfig { wait_max: std::time::Duration::from_millis(20), ..LockConfig::default() };
    let cluster = Cluster::new(World::new(5, 1, 1), config, lanes(64));
    let [first, alone, late] = [Way::Shares, Way::Alone, Way::Shares].map(|way| cluster.client(0, 0, way));
    cluster.world.spawn(async move {
        let (meter, buf) = (Meter::default(), first.fake.lease(NODE_BYTES));
        let shared = first.locks.share_and_read(&meter, node(0), embedded(0), buf, &[WORDS]);
        let (shared, _) = shared.await.expect("the fabric does not fail");
        let waits = alone.add_one(&Meter::default(), 0).await;
        assert!(matches!(waits, Err(LockError::Contended { owner: 1, .. })), "{waits:?}");
        late.add_one(&Meter::default(), 0).await.expect("the client alone has given up");
        shared.release(&meter, Chain::new(node(0).server())).await.expect("the fabric does not fail");
    });
    cluster.world.run();
    cluster.assert_at_rest();
}

/// A memory server does not answer for a while: operations say so, and the bit is cleared when it is back, by the
/// janitor or by the next client.
#[test]
fn a_server_that_is_gone_ends_operations_and_leaves_bits_to_be_settled() {
    let mut orphaned = 0;
    for gone in [1, 5, 12, 21, 40, 45, 100] {
        for begins in 0..2 {
            let cluster = Cluster::new(World::new(5, 1, 1), LockConfig::default(), lanes(64));
            (begins..begins + gone).for_each(|chain| cluster.world.fail(chain, Fault::GONE));
            let client = cluster.client(0, 0, Way::Shares);
            let first = client.clone();
            cluster.world.spawn(async move {
                let done = first.share(&Meter::default(), 0).await;
                assert!(matches!(done, Err(LockError::Fabric(FabricError::ServerGone { .. }))), "{done:?}");
            });
            cluster.world.run();
            assert!(cluster.stats().orphaned > 0 || cluster.locks[0].in_use() == 0);
            let again = client.clone();
            cluster.world.spawn(async move {
                for _ in 0..100 {
                    match again.share(&Meter::default(), 0).await {
                        Ok(()) => return,
                        Err(LockError::Fabric(FabricError::ServerGone { .. })) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                panic!("the server is back");
            });
            cluster.world.run();
            assert_eq!(client.lost(&cluster.world), 0);
            orphaned += cluster.stats().orphaned;
            cluster.assert_at_rest();
        }
    }
    assert!(orphaned > 0);
}
