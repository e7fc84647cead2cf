//! Costs of each way of locking on the fabric, verb by verb: the table in the crate's documentation.

use std::rc::Rc;
use std::slice;

use farwood_lock::{LockConfig, LockTable};
use farwood_runtime::{Chain, Meter, RemotePtr, ServerId, Usage, Verbs};
use futures::channel::oneshot;

use crate::clients::{AROUND_WORD, DATA_BYTES, NODE_BYTES};
use crate::fake::{Fake, World, embedded, node};

async fn read_modify_write(
    fake: Fake,
    table: LockTable<Fake>,
    (fused, combine): (bool, bool),
    meter: Rc<Meter>,
    gate: Option<oneshot::Receiver<()>>,
) {
    let buf = fake.lease(NODE_BYTES);
    let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
    let buf = held
        .lock_and_read(&meter, buf, NODE_BYTES, fused)
        .await
        .expect("no other client wants it")
        .into_buf();
    if let Some(gate) = gate {
        gate.await.expect("it is opened");
    }
    let mut chain = Chain::with_buffer(node(0).server(), buf);
    chain.write(node(0), 0..64);
    let buf = held.release(&meter, chain, combine).await.expect("the fabric does not fail");
    assert_eq!(buf.expect("the chain's buffer comes back").len(), NODE_BYTES);
}

/// Measures the traffic of a first client, which holds the lock until a second one waits, and of that second one.
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
        let config = || LockConfig { hierarchical, ..LockConfig::default() };
        assert_eq!(traffic(config(), (false, true), false)[0], usage(3, 1, 2, 1, 1));
        assert_eq!(traffic(config(), (true, false), false)[0], usage(3, 1, 2, 1, 1));
        assert_eq!(traffic(config(), (false, false), false)[0], usage(4, 1, 2, 1, 1));
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
            let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("no other client wants it");
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
            let held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.release(&meter, Chain::new(node(0).server()), true).await.expect("nothing is posted");
            drop(table.acquire(&meter, node(1)).await.expect("it is not held for long"));
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
            let mut held = table.acquire(&meter, node(0)).await.expect("it is not held for long");
            held.lock(&meter).await.expect("no other client wants it");
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

/// Takes an embedded lock with a READ, and releases it by `release_rear`: a whole node, or its last line.
async fn rear_release(
    (fake, table): (Fake, LockTable<Fake>),
    from: usize,
    meter: Rc<Meter>,
    gate: Option<oneshot::Receiver<()>>,
) {
    let mut held =
        table.acquire_embedded(&meter, node(0), embedded(0)).await.expect("it is not held for long");
    let buf = fake.lease(NODE_BYTES + 64);
    let mut buf =
        held.lock_and_read(&meter, buf, DATA_BYTES, true).await.expect("no other client wants it").into_buf();
    buf[DATA_BYTES..].fill(0xAA);
    if let Some(gate) = gate {
        gate.await.expect("it is opened");
    }
    let buf = held.release_rear(&meter, buf, from..DATA_BYTES).await.expect("the fabric does not fail");
    assert!(buf[DATA_BYTES + 8..].iter().all(|&byte| byte == 0xAA), "only the word's place is used");
}

#[test]
fn a_rear_lock_is_cleared_by_the_write_back_where_that_is_safe() {
    // Whether lines come in order, where the data begins, whether a client waits: WRITEs, and bytes besides the data.
    for (in_order, from, waiter, writes, tail) in [
        (true, 0, false, 1, 8),
        (false, 0, false, 2, 8),
        // Within one line, which is whole on every fabric.
        (false, 64, false, 1, 8),
        (false, 56, false, 2, 8),
        (true, 56, false, 1, 8),
        (true, 0, true, 1, 0),
        (false, 0, true, 1, 0),
        (false, 64, true, 1, 0),
    ] {
        let world = World::new(9, 1, 2).with_lines(in_order);
        let tables = world.attach(LockConfig::default());
        let meters = [Rc::new(Meter::default()), Rc::new(Meter::default())];
        let (go, gate) = oneshot::channel();
        world.spawn(rear_release(tables[0].clone(), from, Rc::clone(&meters[0]), Some(gate)));
        world.run_until_idle();
        if waiter {
            world.spawn(rear_release(tables[1].clone(), from, Rc::clone(&meters[1]), None));
            world.run_until_idle();
        }
        go.send(()).expect("the holder waits");
        world.run();
        let bytes_written = (DATA_BYTES - from) as u64 + tail;
        let expected = Usage {
            round_trips: 2,
            reads: 1,
            writes,
            cas: 1,
            bytes_read: DATA_BYTES as u64,
            bytes_written,
            ..Usage::default()
        };
        assert_eq!(meters[0].usage(), expected, "in order {in_order}, from {from}, waiter {waiter}");
        assert_eq!(meters[1].usage().cas, 0, "it was handed over, if at all");
        world.assert_at_rest(&tables);
    }
}

/// An unlock takes with it what is right behind the word: one WRITE, where all else is one more.
#[test]
fn words_behind_the_lock_are_written_with_the_unlock() {
    // Whether the unlock goes with the write-back, whether a client waits: round trips, WRITEs, bytes beside the line.
    for (combine, waiter, round_trips, writes, tail) in
        [(true, false, 2, 2, 16), (true, true, 2, 2, 8), (false, false, 3, 3, 16), (false, true, 2, 2, 8)]
    {
        let world = World::new(9, 1, 2);
        let tables = world.attach(LockConfig::default());
        let meter = Rc::new(Meter::default());
        let (go, gate) = oneshot::channel::<()>();
        let ((fake, table), used) = (tables[0].clone(), Rc::clone(&meter));
        world.spawn(async move {
            let mut held = table.acquire_embedded(&used, node(0), embedded(0)).await.expect("it is free");
            let read = held.lock_and_read(&used, fake.lease(NODE_BYTES), NODE_BYTES, true).await;
            let mut buf = read.expect("no other client wants it").into_buf();
            buf[DATA_BYTES..].fill(0xAA);
            gate.await.expect("it is opened");
            let mut chain = Chain::with_buffer(node(0).server(), buf);
            chain.write(node(0), 0..64);
            held.with_words_behind(DATA_BYTES + 8..NODE_BYTES);
            held.release(&used, chain, combine).await.expect("the fabric does not fail");
        });
        world.run_until_idle();
        if waiter {
            let table = tables[1].1.clone();
            world.spawn(async move {
                let meter = Meter::default();
                let held = table.acquire_embedded(&meter, node(0), embedded(0)).await;
                held.expect("it is handed over").unlock(&meter).await.expect("the fabric does not fail");
            });
            world.run_until_idle();
        }
        go.send(()).expect("the holder waits");
        world.run();
        let used = meter.usage();
        let case = format!("combine {combine}, waiter {waiter}");
        assert_eq!(
            (used.round_trips, used.writes, used.bytes_written),
            (round_trips, writes, 64 + tail),
            "{case}"
        );
        assert_eq!(world.word(embedded(0).offset() + 8), 0xAAAA_AAAA_AAAA_AAAA, "{case}");
        world.assert_at_rest(&tables);
    }
}

/// Both kinds of locks in one table: the queues are those of the words, whatever nodes they are for.
#[test]
fn embedded_and_other_locks_do_not_meet() {
    let world = World::new(3, 1, 2);
    let tables = world.attach(LockConfig::default());
    let table = tables[0].1.clone();
    world.spawn(async move {
        let meter = Meter::default();
        let mut first = table.acquire(&meter, node(0)).await.expect("it is not held for long");
        let mut second =
            table.acquire_embedded(&meter, node(0), embedded(0)).await.expect("it is not held for long");
        first.lock(&meter).await.expect("free");
        second.lock(&meter).await.expect("free");
        assert!(!first.was_handed_over() && !second.was_handed_over());
        first.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
        second.release(&meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
    });
    world.run();
    world.assert_at_rest(&tables);
}

/// Releases `data` of a buffer of `bytes` as the holder of an embedded lock, with or without the global lock.
fn misuse(bytes: usize, data: std::ops::Range<usize>, locked: bool, unpublished: u8) {
    let world = World::new(1, 1, 1);
    let (fake, table) = world.attach(LockConfig::default()).remove(0);
    world.spawn(async move {
        let meter = Meter::default();
        let mut held =
            table.acquire_embedded(&meter, node(0), embedded(0)).await.expect("it is not held for long");
        if locked {
            held.lock(&meter).await.expect("no other client wants it");
        }
        held.with_unpublished_prefix(unpublished);
        held.release_rear(&meter, fake.lease(bytes), data).await.expect("the fabric does not fail");
    });
    world.run();
}

#[test]
#[should_panic(expected = "needs the global lock")]
fn a_write_back_needs_the_global_lock() {
    misuse(120, 0..112, false, 0);
}

#[test]
#[should_panic(expected = "use `release`")]
fn a_rear_release_writes_something() {
    misuse(120, 8..8, true, 0);
}

#[test]
#[should_panic(expected = "behind the data in the buffer")]
fn a_rear_release_has_room_for_the_word() {
    misuse(112, 0..112, true, 0);
}

#[test]
#[should_panic(expected = "one WRITE only")]
fn a_rear_release_is_of_one_node() {
    misuse(120, 0..112, true, 1);
}

#[test]
#[should_panic(expected = "on the node's server")]
fn a_nodes_lock_is_not_elsewhere() {
    let world = World::new(1, 1, 1);
    let table = world.attach(LockConfig::default()).remove(0).1;
    drop(table.acquire_embedded(&Meter::default(), node(0), RemotePtr::new(ServerId(1), 64)));
}

/// Takes locks with parts of their nodes: the one around an embedded word comes with a masked CAS, no other does.
#[test]
fn a_masked_cas_saves_a_read() {
    let before = AROUND_WORD.start - 32..AROUND_WORD.start;
    let more = AROUND_WORD.start - 8..AROUND_WORD.end;
    for (masked, part, reads) in
        [(true, AROUND_WORD, 0), (false, AROUND_WORD, 1), (true, before, 1), (true, more, 1)]
    {
        let world = World::new(9, 1, 1).with_masked_atomic(masked);
        let (fake, table) = world.attach(LockConfig::default()).remove(0);
        world.set_word(node(0).offset() + part.start as u64, 7);
        world.spawn(async move {
            let meter = Meter::default();
            let mut held =
                table.acquire_embedded(&meter, node(0), embedded(0)).await.expect("no other wants it");
            let buf = fake.lease(NODE_BYTES);
            let read = held.lock_and_read_parts(&meter, buf, slice::from_ref(&part), true).await;
            assert_eq!(read.expect("no other wants it").into_buf()[part.start], 7);
            let bytes_read = part.len() as u64;
            let usage = Usage { round_trips: 1, cas: 1, reads, bytes_read, ..Usage::default() };
            assert_eq!(meter.usage(), usage);
            held.unlock(&meter).await.expect("the fabric does not fail");
        });
        world.run();
    }
}
