//! Free lock words that carry data: what a taker has to guess, what the next holder sees, and what is left when an
//! operation ends before its release.

use std::cell::Cell;
use std::rc::Rc;

use farwood_lock::{Held, LockConfig, LockError, WordCodec};
use farwood_runtime::{Chain, Meter, Verbs};
use futures::channel::oneshot;

use crate::clients::{Client, Cut, Style};
use crate::fake::{Fake, Fault, World, embedded, node};

const STYLE: Style = Style::CARRYING[1];

fn config() -> LockConfig {
    STYLE.config(LockConfig::default())
}

fn word() -> u64 {
    embedded(0).offset()
}

/// Makes a compute node with a client on each of two shards, where the word of node 0 carries `payload`.
fn world_with(payload: u64) -> (World, [Client; 2]) {
    let world = World::new(3, 1, 2);
    let tables = world.attach(config());
    world.set_word(word(), payload);
    let clients = [0, 1].map(|shard| Client::new(&tables[shard], 0, STYLE));
    (world, clients)
}

async fn release(held: Held<Fake>, meter: &Meter) {
    held.release(meter, Chain::new(node(0).server()), true).await.expect("the fabric does not fail");
}

/// The table of round trips: the worth of a guess.
#[test]
fn a_wrong_guess_costs_a_round_trip() {
    for (guess, cas) in [(Some(5), 1), (Some(6), 2), (None, 2)] {
        let (world, [client, _]) = world_with(5);
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = client.acquire(&meter, node(0)).await.expect("no other client wants it");
            if let Some(guess) = guess {
                held.expect_payload(guess);
            }
            held.lock(&meter).await.expect("no other client wants it");
            assert_eq!((held.payload(), meter.usage().round_trips), (5, cas));
            held.set_payload(9);
            release(held, &meter).await;
            assert_eq!((meter.usage().cas, meter.usage().round_trips), (cas, cas + 1));
            assert_eq!(client.table.stats().remote_failed, 0, "the lock was free");
        });
        world.run();
        assert_eq!(world.word(word()), 9);
    }
}

#[test]
fn a_payload_stays_unless_it_is_changed() {
    let (world, [client, _]) = world_with(5);
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = client.acquire(&meter, node(0)).await.expect("no other client wants it");
        held.lock(&meter).await.expect("no other client wants it");
        release(held, &meter).await;
    });
    world.run();
    assert_eq!(world.word(word()), 5);
}

/// The next holder on the compute node gets the payload with the lock, on its own shard or in a message, and whatever
/// it had guessed. It leaves that one, or its own.
#[test]
fn a_lock_that_is_handed_over_brings_its_payload() {
    for (other, large, last) in [(0, 7, None), (0, 7, Some(3)), (1, 7, None), (1, 0xFEDC_BA98_7654, Some(3))]
    {
        let (world, clients) = world_with(5);
        let (go, gate) = oneshot::channel::<()>();
        let first = clients[0].clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = first.acquire(&meter, node(0)).await.expect("no other client wants it");
            held.lock(&meter).await.expect("no other client wants it");
            held.set_payload(large);
            gate.await.expect("it is opened");
            release(held, &meter).await;
        });
        world.run_until_idle();
        let second = clients[other].clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = second.acquire(&meter, node(0)).await.expect("it is handed over");
            held.expect_payload(1);
            held.lock(&meter).await.expect("it was handed over");
            assert!(held.was_handed_over());
            assert_eq!((held.payload(), meter.usage().round_trips), (large, 0));
            if let Some(last) = last {
                held.set_payload(last);
            }
            release(held, &meter).await;
        });
        world.run_until_idle();
        let codec = config().codec;
        assert!(codec.holder(world.word(word())).is_some());
        go.send(()).expect("the holder waits");
        world.run();
        assert_eq!(world.word(word()), last.unwrap_or(large));
    }
}

/// A holder changes the payload, and is dropped before it releases: the node is as it was, and so is its word. It is so
/// too for a CAS whose outcome no client has heard of, after a guess that was right or wrong.
#[test]
fn a_holder_that_is_dropped_leaves_the_payload_that_it_found() {
    for (guess, polls, fault) in [5, 6]
        .into_iter()
        .flat_map(|guess| (0..6).flat_map(move |polls| (0..4).map(move |f| (guess, polls, f))))
    {
        let (world, [client, other]) = world_with(5);
        // The first CAS, or the second, which took effect or did not.
        world.fail((fault / 2) as usize, Fault { verbs: (fault % 2) as usize, lines: 0, gone: false });
        world.spawn(async move {
            let meter = Meter::default();
            let operation = async {
                let mut held = client.acquire(&meter, node(0)).await?;
                held.expect_payload(guess);
                held.lock(&meter).await?;
                assert_eq!(held.payload(), 5);
                held.set_payload(9);
                Ok::<(), LockError>(())
            };
            assert!(Cut::after(polls, true, operation).await.is_none_or(|done| done.is_ok()));
        });
        world.run();
        assert_eq!(world.word(word()), 5, "guess {guess}, {polls} polls, fault {fault}");
        assert_eq!(other.table.in_use(), (0, 0));
    }
}

/// A lock that is kept for a waiter that goes at the last moment: the home's janitor gives the word the new payload.
#[test]
fn a_payload_kept_for_a_cancelled_waiter_is_written() {
    let mut kept_for_cancelled = 0;
    for seed in 0..200 {
        let world = World::new(seed, 1, 2);
        let tables = world.attach(config());
        let released = Rc::new(Cell::new(0));
        let waits = Rc::new(Cell::new(true));
        for (shard, table) in tables.iter().enumerate() {
            let (client, released, waits) =
                (Client::new(table, 0, STYLE), Rc::clone(&released), Rc::clone(&waits));
            world.spawn(async move {
                let meter = Meter::default();
                if shard == 1 {
                    // Dropped when the lock has come.
                    let wait = client.acquire(&meter, node(0));
                    if Cut::after(1, false, wait).await.is_some() {
                        waits.set(false);
                    }
                    return;
                }
                let mut held = client.acquire(&meter, node(0)).await.expect("it comes free");
                held.lock(&meter).await.expect("no other client has it");
                held.set_payload(held.payload() + 1);
                release(held, &meter).await;
                released.set(released.get() + 1);
            });
        }
        world.run();
        assert_eq!(world.word(word()), released.get(), "seed {seed}");
        world.assert_at_rest(&tables);
        kept_for_cancelled += u32::from(waits.get());
    }
    assert!(kept_for_cancelled > 20, "{kept_for_cancelled} waiters went");
}

/// The word changes between a client's CASes again and again, as if others had the lock in between: the client gives up
/// when its budget is spent, and says that only clients that came and went keep it from the lock.
#[test]
fn a_client_that_is_outrun_gives_up() {
    let (mut gave_up, attempts_max) = (0, 3);
    for seed in 0..100 {
        let world = World::new(seed, 1, 1);
        let tables = world.attach(LockConfig { attempts_max, ..config() });
        let client = Client::new(&tables[0], 0, STYLE);
        let (results, ended) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(false)));
        let (memory, result, done) = (world.clone(), Rc::clone(&results), Rc::clone(&ended));
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = client.acquire(&meter, node(0)).await.expect("no other client wants it");
            match held.lock(&meter).await {
                Ok(()) => {
                    release(held, &meter).await;
                    result.set(Some(true));
                }
                Err(LockError::Contended { attempts, owner, .. }) => {
                    assert_eq!((attempts, owner), (attempts_max, 1));
                    assert_eq!(meter.usage().cas, attempts_max);
                    result.set(Some(false));
                }
                Err(error) => panic!("{error}"),
            }
            done.set(true);
        });
        let fake = tables[0].0.clone();
        world.spawn(async move {
            for payload in 1.. {
                if ended.get() {
                    break;
                }
                if config().codec.holder(memory.word(word())).is_none() {
                    memory.set_word(word(), payload);
                }
                fake.pause(0).await;
            }
        });
        world.run();
        world.assert_at_rest(&tables);
        gave_up += u32::from(results.get() == Some(false));
    }
    assert!((10..90).contains(&gave_up), "{gave_up} of 100 gave up");
}

#[test]
#[should_panic(expected = "words of the lock region carry nothing")]
fn words_of_the_lock_region_carry_nothing() {
    let world = World::new(1, 1, 1);
    let tables = world.attach(config());
    let client = Client::new(&tables[0], 0, Style::FAST);
    world.spawn(async move {
        let mut held = client.acquire(&Meter::default(), node(0)).await.expect("it is not held for long");
        held.expect_payload(0);
    });
    world.run();
}

#[test]
#[should_panic(expected = "larger than the table's codec has it")]
fn a_payload_fits_the_codec() {
    let world = World::new(1, 1, 1);
    let tables = world.attach(LockConfig { codec: WordCodec::carrying(3), ..LockConfig::default() });
    let client = Client::new(&tables[0], 0, Style::EMBEDDED);
    world.spawn(async move {
        let meter = Meter::default();
        let mut held = client.acquire(&meter, node(0)).await.expect("it is not held for long");
        held.lock(&meter).await.expect("no other client wants it");
        held.set_payload(7);
        held.set_payload(8);
    });
    world.run();
}
