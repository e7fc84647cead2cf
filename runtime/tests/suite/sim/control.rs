//! Faults of the simulated control plane: requests that fail, replies that are lost or late, memory that is not there.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_runtime::alloc::AllocError;
use farwood_runtime::sim::{Fault, Reordering, SimConfig, SimShard, Simulation};
use farwood_runtime::{ControlError, IndexId, NodeAllocator, ServerId, Verbs};

use super::kit::{LATE_NS, config, rule, simulation};

async fn chunk_bytes(v: &SimShard) -> u64 {
    v.control().usage().await.unwrap().iter().map(|server| server.chunk_bytes).sum()
}

/// Asks for a chunk while `fault` strikes, then for another; yields the outcome of the first, the bytes handed out for
/// it, and its duration.
fn ask(fault: Fault) -> (Result<(), ControlError>, u64, u64) {
    let simulation = simulation(1, Reordering::NONE);
    simulation.set_faults(&[rule(fault, 1, 1)]);
    let v = simulation.shard(0, 0);
    let client = v.clone();
    let asking = async move {
        let begun = client.now();
        let first = client.control().chunk(ServerId(1), IndexId(1)).await.map(drop);
        let took = client.now() - begun;
        let bytes = chunk_bytes(&client).await;
        client.control().chunk(ServerId(1), IndexId(1)).await.unwrap();
        (first, bytes, took)
    };
    simulation.block_on(&v, LATE_NS, asking).unwrap()
}

#[test]
fn requests_fail_replies_are_lost_or_late_and_memory_is_not_there() {
    let gone = ControlError::ServerGone { server: ServerId(1) };
    assert_eq!(ask(Fault::FailedRequest), (Err(gone.clone()), 0, 0));
    assert_eq!(ask(Fault::LostReply), (Err(gone), 1 << 20, 0), "it was done");
    let none = ControlError::OutOfMemory { server: ServerId(1), chunk_bytes: 1 << 20 };
    assert_eq!(ask(Fault::NoMemory), (Err(none), 0, 0));
    let (answer, bytes, took) = ask(Fault::LateReply(1 << 30));
    assert_eq!((answer, bytes), (Ok(()), 1 << 20));
    assert!((1 << 14..=1 << 30).contains(&took), "{took} ns");
}

#[test]
fn a_reply_that_was_given_up_disturbs_no_other() {
    let simulation = simulation(1, Reordering::NONE);
    simulation.set_faults(&[rule(Fault::LateReply(1 << 20), 1, u32::MAX)]);
    let v = simulation.shard(0, 0);
    let client = v.clone();
    let asking = async move {
        for n in 1..200 {
            let chunk = client.control().list();
            futures::future::select(chunk, client.pause(n * 100)).await;
        }
        client.control().list().await.unwrap().len()
    };
    assert_eq!(simulation.block_on(&v, LATE_NS, asking), Ok(0));
}

#[test]
fn an_allocator_without_memory_says_so_until_there_is_some() {
    let simulation = simulation(1, Reordering::NONE);
    simulation.set_faults(&[rule(Fault::NoMemory, 1, u32::MAX)]);
    let v = simulation.shard(0, 0);
    let allocator = Rc::new(NodeAllocator::new(v.control().clone(), IndexId(1), 0, v.pins().clone()));
    let asking = Rc::clone(&allocator);
    let none = simulation.block_on(&v, LATE_NS, async move { asking.allocate(64).await });
    assert_eq!(none, Ok(Err(AllocError::OutOfMemory { servers: 2 })));
    simulation.heal();
    assert!(simulation.block_on(&v, LATE_NS, async move { allocator.allocate(64).await }).unwrap().is_ok());
}

/// Returns the order in which four clients that are ready at the same time have their second turn.
fn order(seed: u64, any_order: bool) -> Vec<u32> {
    let simulation = Simulation::new(&SimConfig { any_order, ..config(seed, Reordering::NONE) }).unwrap();
    let v = simulation.shard(0, 0);
    let order = Rc::new(RefCell::new(Vec::new()));
    for client in 0..4 {
        let (v, order) = (v.clone(), Rc::clone(&order));
        drop(v.clone().spawn(async move {
            v.pause(1_000).await;
            order.borrow_mut().push(client);
        }));
    }
    simulation.run(LATE_NS, || order.borrow().len() == 4).unwrap();
    order.take()
}

#[test]
fn ready_clients_go_on_in_any_order() {
    let orders: std::collections::BTreeSet<_> = (0..400).map(|seed| order(seed, true)).collect();
    assert_eq!(orders.len(), 24, "all permutations");
    assert_eq!(order(1, false), [0, 1, 2, 3]);
    assert_eq!(order(7, true), order(7, true));
}

#[test]
fn a_simulation_of_nothing_is_an_error() {
    for (nodes, shards) in [(0, 1), (1, 0)] {
        let error = Simulation::new(&SimConfig { nodes, shards, ..SimConfig::default() }).err();
        assert!(error.is_some_and(|error| error.to_string().contains("at least one")));
    }
}
