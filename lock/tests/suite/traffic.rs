//! What each way of locking costs on the fabric, verb by verb: the table in the crate's documentation.

use std::rc::Rc;

use farwood_lock::{LockConfig, LockTable};
use farwood_runtime::{Chain, Meter, Usage, Verbs};
use futures::channel::oneshot;

use crate::clients::NODE_BYTES;
use crate::fake::{Fake, World, node};

async fn read_modify_write(
    fake: Fake,
    table: LockTable<Fake>,
    (fused, combine): (bool, bool),
    meter: Rc<Meter>,
    gate: Option<oneshot::Receiver<()>>,
) {
    let buf = fake.lease(NODE_BYTES);
    let mut held = table.acquire(node(0)).await;
    let buf =
        held.lock_and_read(&meter, buf, NODE_BYTES, fused).await.expect("nobody else wants it").into_buf();
    if let Some(gate) = gate {
        gate.await.expect("it is opened");
    }
    let mut chain = Chain::with_buffer(node(0).server(), buf);
    chain.write(node(0), 0..64);
    let buf = held.release(&meter, chain, combine).await.expect("the fabric does not fail");
    assert_eq!(buf.expect("the chain's buffer comes back").len(), NODE_BYTES);
}

/// The traffic of a first client, which holds the lock until a second one waits, and of that second one.
fn traffic(config: LockConfig, how: (bool, bool), waiter: bool) -> [Usage; 2] {
    let world = World::new(9, 1, 2);
    let tables = world.attach(config);
    let meters = [Rc::new(Meter::default()), Rc::new(Meter::default())];
    let (go, gate) = oneshot::channel();
    let spawn = |client: usize, gate| {
        let (fake, table) = tables[client].clone();
        world.spawn(read_modify_write(fake, table, how, Rc::clone(&meters[client]), gate));
        world.run_until_idle();
    };
    spawn(0, Some(gate));
    if waiter {
        spawn(1, None);
    }
    go.send(()).expect("the holder waits");
    world.run();
    world.assert_at_rest(&tables);
    meters.map(|meter| meter.usage())
}

fn usage(round_trips: u32, reads: u32, writes: u32, cas: u32, words_written: u64) -> Usage {
    let (bytes_read, bytes_written) = (u64::from(reads) * NODE_BYTES as u64, 64 + 8 * words_written);
    Usage { round_trips, reads, writes, cas, bytes_read, bytes_written, ..Usage::default() }
}

#[test]
fn fused_and_combined_takes_two_round_trips() {
    for hierarchical in [true, false] {
        let config = LockConfig { hierarchical, ..LockConfig::default() };
        assert_eq!(traffic(config, (true, true), false)[0], usage(2, 1, 2, 1, 1));
    }
}

#[test]
fn each_switch_off_costs_a_round_trip() {
    for hierarchical in [true, false] {
        let config = LockConfig { hierarchical, ..LockConfig::default() };
        assert_eq!(traffic(config, (false, true), false)[0], usage(3, 1, 2, 1, 1));
        assert_eq!(traffic(config, (true, false), false)[0], usage(3, 1, 2, 1, 1));
        assert_eq!(traffic(config, (false, false), false)[0], usage(4, 1, 2, 1, 1));
    }
}

#[test]
fn a_hand_over_saves_the_unlock_here_and_the_cas_there() {
    for fused in [true, false] {
        for combine in [true, false] {
            let [first, second] = traffic(LockConfig::default(), (fused, combine), true);
            assert_eq!(first, usage(2 + u32::from(!fused), 1, 1, 1, 0), "no unlock");
            assert_eq!(second, usage(2 + u32::from(!combine), 1, 2, 0, 1), "no CAS");
        }
    }
}

#[test]
fn a_lock_alone_takes_two_round_trips_and_none_where_it_is_passed_on() {
    let world = World::new(4, 1, 1);
    let tables = world.attach(LockConfig::default());
    let (go, gate) = oneshot::channel::<()>();
    let mut gate = Some(gate);
    // The first takes it and passes it on, the second has nothing to do with the fabric at all, the third unlocks.
    for (round_trips, cas, writes) in [(1, 1, 0), (0, 0, 0), (1, 0, 1)] {
        let (table, gate) = (tables[0].1.clone(), gate.take());
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = table.acquire(node(0)).await;
            held.lock(&meter).await.expect("nobody else wants it");
            if let Some(gate) = gate {
                gate.await.expect("it is opened");
            }
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
            let used = meter.usage();
            assert_eq!((used.round_trips, used.cas, used.writes), (round_trips, cas, writes));
        });
        world.run_until_idle();
    }
    go.send(()).expect("the holder waits");
    world.run();
    world.assert_at_rest(&tables);
}

#[test]
fn a_local_lock_that_is_given_back_unused_costs_nothing() {
    let world = World::new(4, 1, 2);
    let tables = world.attach(LockConfig::default());
    for (_, table) in &tables {
        let table = table.clone();
        world.spawn(async move {
            let meter = Meter::default();
            let held = table.acquire(node(0)).await;
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("nothing is posted");
            drop(table.acquire(node(1)).await);
            assert_eq!(meter.usage(), Usage::default());
        });
    }
    world.run();
    assert_eq!(tables[0].1.stats().acquired, 0);
    world.assert_at_rest(&tables);
}

/// On one queue pair a WRITE stays behind WRITEs but may overtake a READ or an atomic.
#[test]
fn the_unlock_is_fenced_where_it_could_overtake() {
    for (reads, fences) in [(false, 0), (true, 1)] {
        let world = World::new(6, 1, 1);
        let tables = world.attach(LockConfig::default());
        let (fake, table) = tables[0].clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = table.acquire(node(0)).await;
            held.lock(&meter).await.expect("nobody else wants it");
            let mut chain = Chain::with_buffer(node(0).server(), fake.lease(NODE_BYTES));
            match reads {
                true => chain.read(node(0), 0..64),
                false => chain.write(node(0), 0..64),
            };
            held.release(&meter, chain, true).await.expect("the fabric does not fail");
        });
        world.run();
        assert_eq!(world.fences(), fences);
    }
}
