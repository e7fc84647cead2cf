//! A compute node and a memory server that do not reach each other: its chains to that server end with `ServerGone`,
//! executed or not; it reaches other servers, and other nodes reach that one.

use farwood_runtime::sim::Fault;
use farwood_runtime::{FabricError, ServerId};

use super::kit::{LATE_NS, ROUGH, area, faa, read, rule, simulation};

#[test]
fn a_node_and_a_server_lose_each_other_and_no_other() {
    let mut executed = [0, 0];
    for seed in 0..60 {
        let simulation = simulation(seed, ROUGH);
        let (at, elsewhere) = (area(&simulation, 0), area(&simulation, 1));
        simulation.set_faults(&[rule(Fault::Partition(400_000), 5, 1)]);
        let v = simulation.shard(0, 0);
        let (client, sibling, other) = (v.clone(), simulation.shard(0, 1), simulation.shard(1, 0));
        let extra = simulation.block_on(&v, LATE_NS, async move {
            let gone = FabricError::ServerGone { server: ServerId(0) };
            let mut known = 0;
            let failed = loop {
                match faa(&client, at, 1).await {
                    Ok(_) => known += 1,
                    Err(failed) => break failed,
                }
            };
            assert_eq!(failed, gone);
            // All shards of the node are cut off; other servers are not, and neither are other nodes.
            assert_eq!(faa(&sibling, at.add(64), 1).await.unwrap_err(), gone);
            faa(&client, elsewhere, 1).await.unwrap();
            faa(&sibling, elsewhere, 1).await.unwrap();
            let found = read(&other, at, 8).await.unwrap()[0];
            // It ends by itself.
            let mut attempts = 0;
            while faa(&client, at.add(128), 1).await.is_err() {
                attempts += 1;
                assert!(attempts < 20, "it does not end");
            }
            found - known
        });
        executed[extra.unwrap() as usize] += 1;
    }
    assert!(executed[0] > 5 && executed[1] > 5, "{executed:?}");
}

#[test]
fn healing_ends_a_partition() {
    let simulation = simulation(1, ROUGH);
    let at = area(&simulation, 0);
    simulation.set_faults(&[rule(Fault::Partition(1 << 40), 1, 1)]);
    let v = simulation.shard(0, 0);
    let client = v.clone();
    let failing = async move {
        let _ = faa(&client, at, 1).await;
        faa(&client, at, 1).await.is_err() && faa(&client, at, 1).await.is_err()
    };
    assert_eq!(simulation.block_on(&v, LATE_NS, failing), Ok(true));
    simulation.heal();
    let client = v.clone();
    assert!(simulation.block_on(&v, LATE_NS, async move { faa(&client, at, 1).await.is_ok() }).unwrap());
}
