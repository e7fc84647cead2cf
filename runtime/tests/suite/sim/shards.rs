//! Shards in the simulator are the shards of all fabrics: rings that overflow, ports that are given back, and the end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use farwood_runtime::sim::Stop;
use farwood_runtime::{Abandoned, ClientPool, Message, NodeContext, ShardId, Verbs};
use futures::FutureExt;

use super::kit::{LATE_NS, ROUGH, simulation};

#[test]
fn more_messages_than_a_ring_holds_arrive_in_their_order() {
    const MESSAGES: u64 = 1_000;
    for seed in 0..5 {
        let simulation = simulation(seed, ROUGH);
        let port = simulation.node(0).allocate_port();
        let heard: Rc<RefCell<Vec<(ShardId, u64)>>> = Rc::default();
        let hears = Rc::clone(&heard);
        let receiver = simulation.shard(0, 1);
        receiver
            .listen(port.port(), Rc::new(move |from, message| hears.borrow_mut().push((from, message.0[0]))));
        for from in 0..2 {
            let (sender, port) = (simulation.shard(0, from), port.port());
            let all_at_once = async move {
                (0..MESSAGES).for_each(|n| sender.send(ShardId(1), port, Message([n, 0, 0])));
            };
            drop(simulation.shard(0, from).spawn(all_at_once));
        }
        assert_eq!(simulation.run(LATE_NS, || false), Err(Stop::Idle));
        for from in [ShardId(0), ShardId(1)] {
            let heard = heard.borrow();
            let of_one = heard.iter().filter(|(sender, _)| *sender == from).map(|(_, n)| *n);
            assert!(of_one.eq(0..MESSAGES), "seed {seed}: messages of {from:?}");
        }
    }
}

#[test]
fn the_actors_of_a_port_go_when_its_lease_has_gone_and_they_rest() {
    let simulation = simulation(1, ROUGH);
    let port = simulation.node(0).allocate_port();
    let rests = Rc::new(Cell::new(false));
    let shards = [0, 1].map(|shard| simulation.shard(0, shard));
    for shard in &shards {
        let rests = Rc::clone(&rests);
        shard.listen_while_leased(port.port(), Rc::new(|_, _| ()), Rc::new(move || rests.get()));
    }
    let actors = || shards.each_ref().map(|shard| shard.actors());
    let first = port.port();
    drop(port);
    assert_eq!((simulation.run(LATE_NS, || false), actors()), (Err(Stop::Idle), [1, 1]));
    rests.set(true);
    for shard in &shards {
        simulation.block_on(shard, LATE_NS, shard.pause(1)).unwrap();
    }
    assert_eq!((simulation.run(LATE_NS, || false), actors()), (Err(Stop::Idle), [0, 0]));
    assert_ne!(
        simulation.node(0).allocate_port().port(),
        first,
        "a late message must not reach another actor"
    );
}

#[test]
fn a_closed_shard_ends_in_virtual_time_and_says_what_it_abandons() {
    let simulation = simulation(1, ROUGH);
    let shards = [0, 1].map(|shard| simulation.shard(0, shard));
    let ends = shards[0].spawn(shards[0].pause(1_000_000));
    let never = shards[1].spawn(std::future::pending::<()>());
    let closing = shards.map(|shard| shard.spawn(shard.clone().close()));
    assert_eq!(simulation.run(LATE_NS, || false), Err(Stop::Idle));
    let closed = closing.map(|closed| closed.outcome().now_or_never().expect("it has ended").unwrap());
    let mut abandoned = Abandoned::default();
    assert_eq!(closed[0], abandoned);
    abandoned.clients = 1;
    assert_eq!(closed[1], abandoned);
    assert_eq!(ends.now_or_never(), Some(()));
    assert!(never.outcome().now_or_never().expect("it was dropped").is_err());
    assert!(simulation.now() >= 1_000_000_000, "clients have a second to end");
    assert_eq!(simulation.shard(0, 0).clients_alive(), 0);
}
