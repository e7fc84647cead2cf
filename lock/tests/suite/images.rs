//! Images that go with a lock which is handed over: which holder gets one, what it costs then, and how long it waits.
//! That no update is lost with them is `exclusion`'s and `cancellation`'s to show, and `faults`'.

use std::cell::RefCell;
use std::rc::Rc;

use farwood_lock::{LockConfig, LockError, LockStats, LockTable};
use farwood_runtime::{Chain, Meter, RemotePtr, Usage, Verbs};
use futures::channel::oneshot;

use crate::clients::NODE_BYTES;
use crate::fake::{Fake, Fault, LOCKS, World, node};

/// The part of the node that a client reads, and leaves behind its write-back of the first line.
type Part = std::ops::Range<usize>;

/// A holder that has released: its traffic, the ns from the write-back of the one before until it had what it wanted to
/// read, the first byte of that.
struct Turn {
    usage: Usage,
    after_ns: u64,
    first: u8,
}

#[derive(Clone)]
struct Turns {
    turns: Rc<RefCell<Vec<Turn>>>,
    written_ns: Rc<RefCell<u64>>,
}

async fn hold(
    (fake, table): (Fake, LockTable<Fake>),
    (at, part): (RemotePtr, Part),
    gate: Option<oneshot::Receiver<()>>,
    noted: Turns,
) -> Result<(), LockError> {
    let meter = Meter::default();
    let mut held = table.acquire(&meter, at).await?;
    let read =
        held.lock_and_read_parts(&meter, fake.lease(NODE_BYTES), std::slice::from_ref(&part), true).await?;
    let after_ns = fake.now() - *noted.written_ns.borrow();
    let mut buf = read.into_buf();
    if let Some(gate) = gate {
        gate.await.expect("it is opened");
    }
    let first = buf[part.start];
    buf[part.start] += 1;
    let mut chain = Chain::with_buffer(at.server(), buf);
    chain.write(at.add(part.start as u64), part.start..part.start + 8);
    held.release_with_image(&meter, chain, true, &[part]).await?;
    *noted.written_ns.borrow_mut() = fake.now();
    noted.turns.borrow_mut().push(Turn { usage: meter.usage(), after_ns, first });
    Ok(())
}

/// Lets clients hold a lock one after the other, alternately on two shards, each with its node and part. All wait when
/// the first one releases.
fn turns(
    config: LockConfig,
    clients: &[(RemotePtr, Part)],
    fault: Option<(usize, Fault)>,
) -> (Vec<Turn>, LockStats) {
    let world = World::new(9, 1, 2);
    let tables = world.attach(config);
    let noted = Turns { turns: Rc::default(), written_ns: Rc::default() };
    let (go, gate) = oneshot::channel();
    let mut gate = Some(gate);
    for (i, client) in clients.iter().enumerate() {
        let held = hold(tables[i % 2].clone(), client.clone(), gate.take(), noted.clone());
        world.spawn(async move { held.await.expect("what fails is redone") });
        world.run_until_idle();
    }
    if let Some((number, fault)) = fault {
        world.fail(number, fault);
    }
    go.send(()).expect("the first one waits");
    world.run();
    world.assert_at_rest(&tables);
    let mut stats = LockStats::default();
    tables.iter().for_each(|(_, table)| stats += &table.stats());
    (noted.turns.take(), stats)
}

const LINE: Part = 0..64;
const ALL: Part = 0..NODE_BYTES;

fn round_trips(turns: &[Turn]) -> Vec<(u32, u32)> {
    turns.iter().map(|turn| (turn.usage.round_trips, turn.usage.reads)).collect()
}

#[test]
fn a_holder_of_the_same_node_needs_one_round_trip() {
    let clients = vec![(node(0), ALL); 7];
    let (seen, stats) = turns(LockConfig::default(), &clients, None);
    // After four hand-overs the lock is taken anew.
    assert_eq!(round_trips(&seen), [(2, 1), (1, 0), (1, 0), (1, 0), (1, 0), (2, 1), (1, 0)]);
    assert_eq!((stats.handed_over, stats.images), (5, 5));
    assert!(
        seen.iter().enumerate().all(|(i, turn)| usize::from(turn.first) == i),
        "each sees the one before"
    );
    let without = LockConfig { image_handover: false, ..LockConfig::default() };
    let (seen, stats) = turns(without, &clients, None);
    assert_eq!(round_trips(&seen), [(2, 1); 7]);
    assert_eq!((stats.handed_over, stats.images), (5, 0));
}

#[test]
fn a_holder_that_wants_more_than_is_known_reads() {
    let parts = [ALL, LINE, ALL, 64..128, 64..120, LINE];
    let clients = parts.map(|part| (node(0), part));
    let (seen, stats) = turns(LockConfig { handovers_max: 9, ..LockConfig::default() }, &clients, None);
    assert_eq!(round_trips(&seen), [(2, 1), (1, 0), (2, 1), (1, 0), (1, 0), (2, 1)]);
    assert_eq!((stats.handed_over, stats.images), (5, 3));
    let firsts: Vec<_> = seen.iter().map(|turn| turn.first).collect();
    assert_eq!(firsts, [0, 1, 2, 0, 1, 3], "of each line what the one before has left there");
}

/// Nodes share lock words: what is handed over may be another's.
#[test]
fn a_holder_of_another_node_reads() {
    let world = World::new(9, 1, 1);
    let table = world.attach(LockConfig::default()).remove(0).1;
    let shares = |index: &u64| table.word_of(node(*index)) == table.word_of(node(0));
    let other = node((1..4 * LOCKS).find(shares).expect("there are more nodes than words"));
    let clients = [node(0), other, other, node(0), node(0)].map(|node| (node, ALL));
    let (seen, _) = turns(LockConfig::default(), &clients, None);
    assert_eq!(round_trips(&seen), [(2, 1), (2, 1), (1, 0), (2, 1), (1, 0)]);
    let firsts: Vec<_> = seen.iter().map(|turn| turn.first).collect();
    assert_eq!(firsts, [0, 0, 1, 1, 2]);
}

/// A write-back that fails is redone before the lock goes on, so its image is right.
#[test]
fn a_write_back_that_was_redone_leaves_its_image() {
    let clients = vec![(node(0), ALL); 3];
    let (seen, stats) = turns(LockConfig::default(), &clients, Some((0, Fault::default())));
    assert_eq!(round_trips(&seen)[1..], [(1, 0), (1, 0)]);
    assert_eq!((stats.images, seen[2].first), (2, 2));
}

/// Half an interval of 150 ns, and a nanosecond for each line: for less than that no holder with an image has to wait.
#[test]
fn a_holder_with_an_image_writes_no_sooner_than_versions_allow() {
    let clients = vec![(node(0), ALL); 50];
    let config = LockConfig { handovers_max: 100, ..LockConfig::default() };
    let (seen, _) = turns(config, &clients, None);
    assert!(seen[1..].iter().all(|turn| turn.after_ns >= 75 + 2), "a holder writes too soon");
    // The least of them has waited no longer than that.
    assert!(seen[1..].iter().any(|turn| turn.after_ns < 75 + 2 + 75), "no holder had to wait");
}
