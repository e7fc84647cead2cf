//! A memory server that cannot be reached: chains to it end with `ServerGone`, executed or not; other servers answer,
//! and it is back later with its memory.

use farwood_runtime::sim::Fault;
use farwood_runtime::{ClientPool, FabricError, ServerId, Verbs};

use super::kit::{LATE_NS, ROUGH, area, faa, read, rule, simulation};

#[test]
fn a_server_that_is_away_is_gone_and_comes_back() {
    let mut executed = [0, 0];
    for seed in 0..60 {
        let simulation = simulation(seed, ROUGH);
        let (at, other) = (area(&simulation, 0), area(&simulation, 1));
        simulation.set_faults(&[rule(Fault::ServerAway(400_000), 5, 1)]);
        let v = simulation.shard(0, 0);
        let client = v.clone();
        let (failures, known) = simulation
            .block_on(&v, LATE_NS, async move {
                let v = client;
                let (mut known, mut failures) = (0, 0);
                let mut away_since = None;
                while known < 400 {
                    let before = v.now();
                    match faa(&v, at, 1).await {
                        Ok(_) => known += 1,
                        Err(failed) => {
                            assert_eq!(failed, FabricError::ServerGone { server: ServerId(0) });
                            assert!(!failed.cause().is_passing() && !failed.cause().is_refusal());
                            assert!(v.now() - before >= 50_000, "the fabric tries for a while");
                            let since = *away_since.get_or_insert(before);
                            assert!(v.now() - since < 700_000, "it does not come back");
                            failures += 1;
                            // The other one answers meanwhile.
                            faa(&v, other, 1).await.unwrap();
                        }
                    }
                }
                assert_eq!((v.buffers_leased(), v.chains_in_flight()), (0, 0));
                (failures, known)
            })
            .unwrap();
        assert!(failures >= 2, "seed {seed}: 400 us are several attempts, not {failures}");
        let reading = simulation.shard(1, 0);
        let word = simulation.block_on(&v, LATE_NS, async move { read(&reading, at, 8).await.unwrap()[0] });
        // Only the first one can have been on its way back when the server went.
        let extra = word.unwrap() - known;
        executed[extra as usize] += 1;
    }
    assert!(executed[0] > 5 && executed[1] > 5, "{executed:?}");
}

#[test]
fn healing_brings_a_server_back() {
    let simulation = simulation(1, ROUGH);
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(Fault::ServerAway(1 << 40), 1, 1)]);
    let v = simulation.shard(0, 0);
    let client = v.clone();
    let failing = async move { faa(&client, at, 1).await.is_err() && faa(&client, at, 1).await.is_err() };
    assert_eq!(simulation.block_on(&v, LATE_NS, failing), Ok(true));
    simulation.heal();
    let client = v.clone();
    assert!(simulation.block_on(&v, LATE_NS, async move { faa(&client, at, 1).await.is_ok() }).unwrap());
}

/// A verb draws its fault when it is sent, and the fault strikes a little later. One that was drawn just before the
/// faults ended took the server away afterwards (swarm, `--seeds 7632..7633`).
#[test]
fn a_fault_drawn_before_healing_does_not_strike_after_it() {
    for seed in 0..40 {
        let simulation = simulation(seed, ROUGH);
        let at = area(&simulation, 0);
        simulation.set_faults(&[rule(Fault::ServerAway(1 << 40), 1, u32::MAX)]);
        let v = simulation.shard(0, 0);
        let client = v.clone();
        drop(v.spawn(async move { faa(&client, at, 1).await }));
        // The first verb is sent after about half a microsecond; some of the faults have struck by then, others have
        // not.
        let pausing = v.clone();
        simulation.block_on(&v, LATE_NS, async move { pausing.pause(700 + seed * 50).await }).unwrap();
        simulation.heal();
        let client = v.clone();
        let done = simulation.block_on(&v, LATE_NS, async move {
            // Whatever the fault broke before is known after a while.
            client.pause(200_000).await;
            faa(&client, at, 1).await
        });
        assert!(done.unwrap().is_ok(), "seed {seed}");
    }
}
