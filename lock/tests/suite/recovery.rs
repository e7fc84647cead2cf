//! Compute nodes that die at any verb, or within a WRITE, of what they do under locks; and others that take these locks
//! over. No node stays torn, no update that was acknowledged is lost, and a lock is either free in the end or says why
//! it is not.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use farwood_lock::{LockConfig, LockError, LockStats, LockTable, LockWord, Mending, OnceDead};
use farwood_runtime::{Chain, Meter, Verbs};

use crate::clients::{Client, NODE_BYTES, Style, assert_whole};
use crate::fake::{Fake, Fault, World, embedded, node};

const WAIT: Duration = Duration::from_millis(20);
/// Lines of the WRITE that a compute node dies in which have arrived.
const LINES: [u32; 3] = [0, 0b1, 0b10];
/// Verbs of a chain that may have been executed.
const VERBS_MAX: usize = 4;

type Tables = Vec<(Fake, LockTable<Fake>)>;
type Outcomes = Rc<RefCell<Vec<Result<(), LockError>>>>;

fn config(style: Style) -> LockConfig {
    style.config(LockConfig { wait_max: WAIT, ..LockConfig::default() })
}

/// Makes a world of three compute nodes, which have all had the lock once, so that they have slots.
fn warm(style: Style, seed: u64, config: LockConfig) -> (World, Tables, Vec<Client>) {
    let world = style.world(seed, 3, 1);
    let tables = world.attach_with_mending(config, style.mending());
    let clients: Vec<_> = (0..4).map(|word| Client::new(&tables[word % 3], word, style)).collect();
    add(&world, &clients, 1);
    world.run();
    (world, tables, clients)
}

/// Lets each of `clients` add one so many times.
fn add(world: &World, clients: &[Client], times: usize) -> Outcomes {
    let outcomes = Outcomes::default();
    for client in clients {
        let (client, outcomes) = (client.clone(), Rc::clone(&outcomes));
        world.spawn(async move {
            for _ in 0..times {
                let done = client.add_one(&Meter::default(), node(0)).await;
                outcomes.borrow_mut().push(done);
            }
        });
    }
    outcomes
}

fn stats(tables: &[(Fake, LockTable<Fake>)]) -> LockStats {
    let mut sum = LockStats::default();
    tables.iter().for_each(|(_, table)| sum += &table.stats());
    sum
}

/// Yields the word that locks node 0.
fn word(world: &World, tables: &Tables, style: Style) -> u64 {
    match style.place {
        crate::clients::Place::Region => world.word(tables[0].1.word_of(node(0)).offset()),
        _ => world.word(embedded(0).offset()),
    }
}

/// Asserts that all outcomes are good, or, where the word carries something that died with its owner, that they name
/// that one. Then nothing was taken over.
fn assert_taken_over(outcomes: &Outcomes, style: Style, recovered: u64, what: &str) -> bool {
    let outcomes = outcomes.borrow();
    if style.carries > 0 && recovered == 0 && outcomes.iter().any(Result::is_err) {
        let is_named = |outcome: &Result<(), LockError>| {
            use OnceDead::{Lost, Recovered};
            matches!(outcome, Err(LockError::Contended { owner: 1 | 2, once_dead: Lost | Recovered, .. }))
        };
        assert!(outcomes.iter().all(is_named), "{what}: {outcomes:?}");
        return false;
    }
    assert!(outcomes.iter().all(Result::is_ok), "{what}: {outcomes:?}");
    true
}

fn assert_whole_and_free(world: &World, tables: &Tables, clients: &[Client], style: Style, what: &str) {
    assert_whole(world, 0, style);
    for client in clients {
        assert_eq!(client.lost(client.value(world, 0)), 0, "{what}: an update is lost, or a node was torn");
    }
    assert_eq!(style.codec().holder(word(world, tables, style)), None, "{what}: the lock stays taken");
}

fn deaths() -> impl Iterator<Item = Fault> {
    (0..VERBS_MAX).flat_map(|verbs| LINES.map(|lines| Fault { verbs, lines, gone: false }))
}

/// Makes the death of a client that has written the first line of the node, and no more.
fn half_written(style: Style) -> Fault {
    Fault { verbs: usize::from(!style.mends), lines: 0b1, gone: false }
}

/// Counts nodes that were finished, from an intent or without one.
fn finished(stats: &LockStats) -> u64 {
    stats.redone + stats.mended
}

/// Counts the chains of a client before its write-back. One whose word carries something has guessed wrong.
fn chains_to_write(style: Style) -> usize {
    style.chains_to_read() + usize::from(style.carries > 0)
}

/// Four clients of a compute node have the lock in turn, handed over and not, until their node dies in the `number`-th
/// chain. Then two others want it. Yields whether it died, and what the others have counted.
fn a_death(style: Style, seed: u64, number: usize, fault: Fault) -> (bool, LockStats) {
    let what = format!("seed {seed}, chain {number}, {fault:?}, {style:?}");
    let (world, tables, mut clients) = warm(style, seed, config(style));
    clients.extend([4, 5].map(|word| Client::new(&tables[0], word, style)));
    world.die(number, fault);
    add(&world, &[&clients[..1], &clients[3..]].concat(), 1);
    world.run_with_the_dead();
    let died = world.alive() > 0;
    world.spare();
    world.set_dead(&[1]);
    let others = add(&world, &clients[1..3], 2);
    world.run_with_the_dead();
    let counted = stats(&tables[1..]);
    if assert_taken_over(&others, style, counted.recovered, &what) {
        assert_whole_and_free(&world, &tables, &clients, style, &what);
    }
    assert!(counted.recovered <= 1, "{what}: it is taken over once");
    (died, counted)
}

fn all_styles() -> impl Iterator<Item = Style> {
    let apart = [Style { combine: false, ..Style::FAST }, Style { fused: false, ..Style::LEAVING }];
    let places = Style::PLACES.into_iter().chain(Style::CARRYING).chain(Style::CLEARED_BY_CAS);
    places.chain(Style::MENDED).chain(apart)
}

#[test]
fn a_compute_node_may_die_in_any_verb() {
    for style in all_styles() {
        let (mut deaths_met, mut sum) = (0, LockStats::default());
        for fault in deaths() {
            for number in 0..10 {
                let (died, counted) = a_death(style, (number + 7 * fault.verbs) as u64, number, fault);
                deaths_met += u32::from(died);
                sum += &counted;
            }
        }
        assert!(deaths_met > 30, "{deaths_met} deaths, {style:?}");
        // Without intents a WRITE is less, and with it as many ways to die.
        assert!(finished(&sum) > if style.mends { 3 } else { 10 }, "{sum:?}, {style:?}");
        assert_eq!((sum.mended > 0, sum.redone == 0), (style.mends, style.mends), "{sum:?}, {style:?}");
        assert!(sum.recovered > finished(&sum) || style.carries > 0, "{sum:?}, {style:?}");
    }
}

/// Holders on two shards have their intents in different pages, and the same word when one has the lock from another:
/// an intent of an earlier one is not redone over what a later one has written.
#[test]
fn an_intent_goes_when_its_lock_is_passed_on() {
    let style = Style::FAST;
    let mut handed_over = 0;
    for (seed, number) in (0..12).flat_map(|seed| (0..12).map(move |number| (seed, number))) {
        let what = format!("seed {seed}, chain {number}");
        let world = style.world(seed, 2, 2);
        let tables = world.attach_with_intents(config(style));
        let clients: Vec<_> = (0..8).map(|word| Client::new(&tables[word % 4], word, style)).collect();
        add(&world, &clients, 1);
        world.run();
        // Before the next holder has written anything.
        world.die(number, Fault { verbs: 0, lines: 0, gone: false });
        let own: Vec<_> = [0, 1, 4, 5].map(|word| clients[word].clone()).to_vec();
        add(&world, &own, 2);
        world.run_with_the_dead();
        handed_over += stats(&tables[..2]).handed_over;
        world.spare();
        world.set_dead(&[1]);
        let others = add(&world, &clients[2..4], 1);
        world.run_with_the_dead();
        assert!(others.borrow().iter().all(Result::is_ok), "{what}: {others:?}");
        assert_whole_and_free(&world, &tables, &clients, style, &what);
    }
    assert!(handed_over > 100, "{handed_over}");
}

/// The owner dies when the first line of the node is written; then its first taker, if a number is given, in that chain
/// of its own; then there is another one. Yields how many chains the first taker has posted, and whether the last one
/// has finished the node after both.
fn a_taker(style: Style, seed: u64, death: Option<(usize, Fault)>) -> (usize, bool) {
    let what = format!("seed {seed}, {death:?}, {style:?}");
    let (world, tables, clients) = warm(style, seed, config(style));
    world.die(chains_to_write(style), half_written(style));
    add(&world, &clients[..1], 1);
    world.run_with_the_dead();
    world.spare();
    world.set_dead(&[1]);
    let (posted, alive) = (world.posted(), world.alive());
    death.into_iter().for_each(|(number, fault)| world.die(number, fault));
    add(&world, &clients[1..2], 1);
    world.run_with_the_dead();
    world.spare();
    let (posted, first) = (world.posted() - posted, tables[1].1.stats());
    let holder = style.codec().holder(word(&world, &tables, style)).map(LockWord::owner);
    world.set_dead(if world.alive() > alive { &[1, 2] } else { &[1] });
    let outcomes = add(&world, &clients[2..3], 1);
    world.run_with_the_dead();
    let last = tables[2].1.stats();
    if assert_taken_over(&outcomes, style, last.recovered, &what) {
        assert_whole_and_free(&world, &tables, &clients, style, &what);
    }
    (posted, holder == Some(2) && finished(&first) == 0 && finished(&last) == 1)
}

#[test]
fn a_taker_may_die_in_any_verb() {
    let styles = [Style::FAST, Style::REAR, Style::FRONT, Style::CARRYING[1], Style::CLEARED_BY_CAS[0]];
    for style in styles.into_iter().chain(Style::MENDED) {
        let mut redone_again = 0;
        for (seed, fault) in (0..).zip(deaths()) {
            let (chains, _) = a_taker(style, seed, None);
            // Those before only find the lock taken.
            for number in chains.saturating_sub(12)..chains {
                redone_again += u32::from(a_taker(style, seed, Some((number, fault))).1);
            }
        }
        assert!(redone_again > 5, "{redone_again}, {style:?}");
    }
}

/// Chains of takers fail, too: what became of a CAS is found out.
#[test]
fn chains_of_takers_may_fail() {
    for style in all_styles() {
        for seed in 0..20 {
            let what = format!("seed {seed}, {style:?}");
            let (world, tables, clients) = warm(style, seed, config(style));
            world.die(chains_to_write(style), half_written(style));
            add(&world, &clients[..1], 1);
            world.run_with_the_dead();
            world.spare();
            world.set_dead(&[1]);
            world.set_fault_rate(0.2);
            let others = add(&world, &clients[1..3], 2);
            world.run_with_the_dead();
            let redone = finished(&stats(&tables[1..]));
            if assert_taken_over(&others, style, redone, &what) {
                assert_whole_and_free(&world, &tables, &clients, style, &what);
                assert!(redone == 1 || style.carries > 0, "{what}");
            }
        }
    }
}

/// Without memory a lock is had as without intents, and stays taken when its owner dies.
#[test]
fn without_memory_a_lock_is_not_taken_over() {
    let world = World::new(3, 2, 1);
    world.set_out_of_memory(true);
    let tables = world.attach_with_intents(config(Style::FAST));
    let clients: Vec<_> = (0..2).map(|word| Client::new(&tables[word], word, Style::FAST)).collect();
    let done = add(&world, &clients[..1], 1);
    world.run();
    assert!(done.borrow().iter().all(Result::is_ok));
    assert_eq!((tables[0].1.stats().recorded, tables[0].1.stats().unrecorded), (0, 1));
    world.die(1, Fault { verbs: 0, lines: 0b1, gone: false });
    add(&world, &clients[..1], 1);
    world.run_with_the_dead();
    world.set_dead(&[1]);
    world.set_out_of_memory(false);
    let others = add(&world, &clients[1..], 1);
    world.run_with_the_dead();
    assert!(matches!(others.borrow()[0], Err(LockError::Contended { owner: 1, .. })), "{others:?}");
    assert_eq!(tables[1].1.stats().recovered, 0);
}

/// A table without intents takes nothing over, and nothing of it is taken over.
#[test]
fn both_have_to_keep_intents() {
    for (dead_keeps, other_keeps) in [(false, true), (true, false), (true, true)] {
        let world = World::new(4, 2, 1);
        let attach = |keeps| match keeps {
            true => world.attach_with_intents(config(Style::FAST)),
            false => world.attach(config(Style::FAST)),
        };
        let dead = Client::new(&attach(dead_keeps)[0], 0, Style::FAST);
        add(&world, std::slice::from_ref(&dead), 1);
        world.run();
        world.die(1, Fault { verbs: 1, lines: 0b1, gone: false });
        add(&world, &[dead], 1);
        world.run_with_the_dead();
        world.set_dead(&[1]);
        let others = add(&world, &[Client::new(&attach(other_keeps)[1], 1, Style::FAST)], 1);
        world.run_with_the_dead();
        assert_eq!(others.borrow()[0].is_ok(), dead_keeps && other_keeps, "{others:?}");
    }
}

/// Makes a world of three compute nodes, the first of which has died within the WRITE of its release.
fn with_a_dead_holder() -> (World, Tables, Vec<Client>) {
    let (world, tables, clients) = warm(Style::FAST, 5, config(Style::FAST));
    world.die(1, Fault { verbs: 1, lines: 0b1, gone: false });
    add(&world, &clients[..1], 1);
    world.run_with_the_dead();
    (world, tables, clients)
}

/// An owner that is not dead, or not known to be, keeps its lock, however long it takes.
#[test]
fn the_lock_of_a_living_node_is_not_taken_over() {
    let (world, tables, clients) = with_a_dead_holder();
    world.set_dead(&[7]);
    let others = add(&world, &clients[1..3], 1);
    world.run_with_the_dead();
    let is_named =
        |outcome: &Result<(), LockError>| matches!(outcome, Err(LockError::Contended { owner: 1, .. }));
    assert!(others.borrow().iter().all(is_named), "{others:?}");
    assert_eq!(stats(&tables).recovered, 0);
}

/// Those that wait ask again who is dead: a table that had asked too early once never asked again (Sherman's seed 795
/// with takeover).
#[test]
fn a_death_may_be_known_late() {
    let (world, tables, clients) = with_a_dead_holder();
    let too_early = add(&world, &clients[1..3], 2);
    world.run_with_the_dead();
    assert!(too_early.borrow().iter().all(Result::is_err), "{too_early:?}");
    world.set_dead(&[1]);
    let others = add(&world, &clients[1..3], 2);
    world.run_with_the_dead();
    assert!(others.borrow().iter().all(Result::is_ok), "{others:?}");
    assert_whole_and_free(&world, &tables, &clients, Style::FAST, "late");
}

/// The negative control of fencing: of a node that is said to be dead, and goes on, an update of others is lost.
#[test]
fn a_takeover_without_fencing_is_caught() {
    for is_said_to_be_dead in [false, true] {
        let world = World::new(10, 2, 1);
        let tables = world.attach_with_intents(LockConfig { wait_max: 5 * WAIT, ..config(Style::FAST) });
        if is_said_to_be_dead {
            world.set_dead(&[1]);
        }
        for ((fake, table), pause) in tables.iter().cloned().zip([WAIT, Duration::ZERO]) {
            world.spawn(async move {
                let meter = Meter::default();
                let mut held = table.acquire(&meter, node(0)).await.expect("it comes free");
                let read = held.lock_and_read(&meter, fake.lease(NODE_BYTES), NODE_BYTES, true).await;
                let mut buf = read.expect("it comes free, or is taken over").into_buf();
                fake.pause(pause.as_nanos() as u64).await;
                buf[0] += 1;
                held.write_back(&meter, buf, true).await.expect("the fabric holds");
            });
        }
        world.run();
        let value = world.word(node(0).offset());
        assert_eq!(value, if is_said_to_be_dead { 1 } else { 2 });
    }
}

/// A taker that has no slot takes the lock all the same, with a word that promises nothing.
#[test]
fn a_taker_needs_no_memory() {
    let world = World::new(8, 2, 1);
    let dead = Client::new(&world.attach_with_intents(config(Style::FAST))[0], 0, Style::FAST);
    add(&world, std::slice::from_ref(&dead), 1);
    world.run();
    world.die(1, Fault { verbs: 1, lines: 0b1, gone: false });
    add(&world, std::slice::from_ref(&dead), 1);
    world.run_with_the_dead();
    world.set_dead(&[1]);
    world.set_out_of_memory(true);
    let tables = world.attach_with_intents(config(Style::FAST));
    let taker = Client::new(&tables[1], 1, Style::FAST);
    let others = add(&world, std::slice::from_ref(&taker), 1);
    world.run_with_the_dead();
    assert!(others.borrow()[0].is_ok(), "{others:?}");
    let counted = tables[1].1.stats();
    assert_eq!((counted.recovered, counted.redone, counted.recorded, counted.unrecorded), (1, 1, 0, 1));
    assert_whole_and_free(&world, &tables, &[dead, taker], Style::FAST, "no memory");
}

/// A check takes over what no client asks for, if its owner is dead, and has kept intents.
#[test]
fn a_lock_that_a_check_has_found_is_taken_over() {
    for (keeps, is_dead) in [(true, false), (true, true), (false, true)] {
        let world = World::new(9, 2, 1);
        let tables = world.attach_with_intents(config(Style::FAST));
        let dead = if keeps { &tables[0] } else { &world.attach(config(Style::FAST))[0] };
        let client = Client::new(dead, 0, Style::FAST);
        add(&world, std::slice::from_ref(&client), 1);
        world.run();
        world.die(1, Fault { verbs: 1, lines: 0b1, gone: false });
        add(&world, std::slice::from_ref(&client), 1);
        world.run_with_the_dead();
        world.set_dead(if is_dead { &[1] } else { &[7] });
        let lock = tables[1].1.word_of(node(0));
        let word = LockWord::from_bits(world.word(lock.offset())).expect("it died with the lock in hand");
        let (taken, table) = (Rc::new(RefCell::new(None)), tables[1].1.clone());
        let told = Rc::clone(&taken);
        world.spawn(async move { *told.borrow_mut() = Some(table.take_over(lock, word).await) });
        world.run_with_the_dead();
        assert_eq!(*taken.borrow(), Some(Ok(keeps && is_dead)), "{keeps} {is_dead}");
        assert_eq!(tables[1].1.stats().redone, u64::from(keeps && is_dead));
        assert_eq!(world.word(lock.offset()) == 0, keeps && is_dead);
    }
}

/// One WRITE and the intent's bytes more for a write-back that may be torn, and one word more where the lock is passed
/// on; nothing more for one that may not, and no round trip more in any case.
#[test]
fn an_intent_costs_a_write_and_no_round_trip() {
    for place in [Style::FAST, Style::REAR, Style::FRONT] {
        let spent = [false, true].map(|keeps| {
            let world = World::new(6, 1, 1);
            let tables = match keeps {
                true => world.attach_with_intents(config(place)),
                false => world.attach(config(place)),
            };
            let client = Client::new(&tables[0], 0, place);
            add(&world, std::slice::from_ref(&client), 1);
            world.run();
            let meter = Rc::new(Meter::default());
            let counted = Rc::clone(&meter);
            let before = tables[0].1.stats().record_bytes;
            world.spawn(async move { client.add_one(&counted, node(0)).await.expect("the fabric holds") });
            world.run();
            (meter.usage(), tables[0].1.stats().record_bytes - before)
        });
        let [(without, _), (with, record_bytes)] = spent;
        assert!(record_bytes > 112, "the node's bytes, and a header");
        assert_eq!(
            (with.round_trips, with.cas, with.reads),
            (without.round_trips, without.cas, without.reads)
        );
        assert_eq!(with.writes, without.writes + 1);
        // The words of the intent, and not those of the node once more.
        assert_eq!(with.bytes_written, without.bytes_written + record_bytes);
    }
}

#[test]
fn what_cannot_be_torn_is_not_recorded() {
    let world = World::new(7, 1, 1);
    let tables = world.attach_with_intents(config(Style::FAST));
    let (fake, table) = tables[0].clone();
    world.spawn(async move {
        for _ in 0..3 {
            let meter = Meter::default();
            let mut held = table.acquire(&meter, node(0)).await.expect("it is free");
            held.lock(&meter).await.expect("it is free");
            let mut chain = Chain::with_buffer(node(0).server(), fake.lease(64));
            chain.write(node(0), 0..64);
            held.release(&meter, chain, true).await.expect("the fabric holds");
            assert_eq!((meter.usage().writes, meter.usage().bytes_written), (2, 64 + 8));
        }
        assert_eq!((table.stats().recorded, table.stats().unrecorded), (0, 0));
    });
    world.run();
}

/// Nor is what goes from one whole node to the next, if none of its WRITEs goes over a line's end.
#[test]
fn whole_steps_within_lines_are_not_recorded() {
    for (has_whole_steps, at, recorded) in [(false, 0, 1), (true, 0, 0), (true, 56, 1)] {
        let world = World::new(7, 1, 1);
        let (fake, table) = world.attach_with_intents(config(Style::FAST))[0].clone();
        world.spawn(async move {
            let meter = Meter::default();
            let mut held = table.acquire(&meter, node(0)).await.expect("it is free");
            held.lock(&meter).await.expect("it is free");
            let mut chain = Chain::with_buffer(node(0).server(), fake.lease(16));
            chain.write(node(0).add(64), 0..8).write(node(0).add(at), 0..16);
            if has_whole_steps {
                held.with_whole_steps();
            }
            held.release(&meter, chain, true).await.expect("the fabric holds");
            assert_eq!((table.stats().recorded, table.stats().unrecorded), (recorded, 0), "{at}");
        });
        world.run();
    }
}

/// A release that the node itself tells of is not recorded, if the table has a way to mend nodes.
#[test]
fn what_is_mended_is_not_recorded() {
    let style = Style::MENDED[0];
    for (mending, recorded) in [(None, 1), (style.mending(), 0)] {
        let world = World::new(7, 1, 1);
        let tables = world.attach_with_mending(config(style), mending);
        add(&world, &[Client::new(&tables[0], 0, style)], 1);
        world.run();
        assert_eq!((tables[0].1.stats().recorded, tables[0].1.stats().unrecorded), (recorded, 0));
    }
}

/// A node that no release leaves so keeps its lock, and its bytes.
#[test]
fn a_node_that_cannot_be_mended_is_not_taken_over() {
    let style = Style::MENDED[0];
    let (world, tables, clients) = warm(style, 5, config(style));
    world.die(chains_to_write(style), half_written(style));
    add(&world, &clients[..1], 1);
    world.run_with_the_dead();
    world.spare();
    world.set_dead(&[1]);
    let left = word(&world, &tables, style);
    let refusing = style.mending().map(|mending| Mending { mend: Rc::new(|_| None), ..mending });
    let other = Client::new(&world.attach_with_mending(config(style), refusing)[1], 1, style);
    let outcomes = add(&world, &[other], 1);
    world.run_with_the_dead();
    assert!(matches!(outcomes.borrow()[..], [Err(LockError::Contended { owner: 1, .. })]), "{outcomes:?}");
    assert_eq!(word(&world, &tables, style), left);
    let outcomes = add(&world, &clients[1..2], 1);
    world.run_with_the_dead();
    assert!(outcomes.borrow()[0].is_ok() && stats(&tables).mended == 1);
    assert_whole_and_free(&world, &tables, &clients, style, "mended");
}

/// Slots come back, and pages go to the next table when the last handle is gone.
#[test]
fn pages_are_used_again() {
    let world = World::new(8, 1, 1);
    let (mut tables, mut pages) = (world.attach_with_intents(config(Style::FAST)), 0);
    for _ in 0..50 {
        let client = Client::new(&tables[0], 0, Style::FAST);
        add(&world, std::slice::from_ref(&client), 20);
        drop(client);
        world.run();
        pages += tables[0].1.intent_bytes();
        drop(tables);
        world.run();
        tables = world.attach_with_intents(config(Style::FAST));
    }
    assert_eq!(pages, 64 + 7 * 256, "one page");
}

/// The pages of a compute node that is dead go to others, but not while one of its intents may be needed.
#[test]
fn pages_of_the_dead_are_used_again() {
    for is_dead in [false, true] {
        let world = Style::FAST.world(5, 4, 1);
        let tables = world.attach_with_intents(config(Style::FAST));
        let clients: Vec<_> = (0..4).map(|word| Client::new(&tables[word], word, Style::FAST)).collect();
        add(&world, &clients[..1], 1);
        world.run();
        world.die(1, Fault { verbs: 1, lines: 0b1, gone: false });
        add(&world, &clients[..1], 1);
        world.run_with_the_dead();
        if is_dead {
            world.set_dead(&[1]);
        }
        let needs_memory = |place: usize, of: u64| {
            let client = clients[place].clone();
            let is_taken = Rc::new(Cell::new(None));
            let done = Rc::clone(&is_taken);
            world.spawn(
                async move { done.set(Some(client.add_one(&Meter::default(), node(of)).await.is_ok())) },
            );
            world.run_with_the_dead();
            (tables[place].1.intent_bytes() > 0, is_taken.get().expect("it is over"))
        };
        // Another index has the lock over the dead one's word, and gives that back.
        let at = tables[0].1.word_of(node(0)).offset();
        let left = world.word(at);
        world.set_word(at, LockWord::new(9, 0, 1).to_bits());
        assert_eq!(needs_memory(1, 9), (true, true), "node 0 is half written: its intent may be needed");
        world.set_word(at, left);
        assert_eq!(needs_memory(2, 9), (true, true), "its intent is needed");
        assert_eq!(needs_memory(2, 0), (true, is_dead), "node 0 is finished, if its writer is dead");
        assert_eq!(needs_memory(3, 9), (!is_dead, true), "the dead node's page");
    }
}
